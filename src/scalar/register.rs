//! Native numbers as words: how one element of any register type is handed on.

use std::num::Wrapping;

/// A native number, whose bytes are the low ones of a word; the others are zero.
pub trait Register: Copy {
    /// The number in a word.
    fn of_word(word: u64) -> Self;
    /// The word of the number.
    fn word(self) -> u64;
}

impl Register for bool {
    fn of_word(word: u64) -> bool {
        word != 0
    }
    fn word(self) -> u64 {
        self.into()
    }
}

impl Register for f32 {
    fn of_word(word: u64) -> f32 {
        f32::from_bits(word as u32)
    }
    fn word(self) -> u64 {
        self.to_bits().into()
    }
}

impl Register for f64 {
    fn of_word(word: u64) -> f64 {
        f64::from_bits(word)
    }
    fn word(self) -> u64 {
        self.to_bits()
    }
}

macro_rules! integers {
    ($($int:ident $unsigned:ident),*) => {$(
        impl Register for Wrapping<$int> {
            fn of_word(word: u64) -> Self {
                Wrapping(word as $int)
            }
            fn word(self) -> u64 {
                (self.0 as $unsigned).into()
            }
        }
    )*};
}
integers!(i32 u32, u32 u32, i64 u64, u64 u64);
