//! Integers that sort as elements do.

use crate::cpu::element::{BF16, Element, F16};

/// An element with an integer key. Keys order as elements, NaN above everything; both zeros have
/// one key, and so have all NaNs.
pub trait Sortable: Element {
    /// An unsigned integer of the size of the element.
    type Key: Key;
    /// The key.
    fn key(self) -> Self::Key;
    /// The element of a key: that of lowest bits, where several have the key.
    fn of_key(key: Self::Key) -> Self;
    /// Whether [`Sortable::of_key`] loses something: for NaN and negative zero.
    fn is_special(self) -> bool;
    /// Whether this is not a number.
    fn is_unordered(self) -> bool;

    /// The key in the direction of the sort. NaN stays last.
    #[inline(always)]
    fn directed_key(self, descending: bool) -> Self::Key {
        if descending && !self.is_unordered() { self.key().inverse() } else { self.key() }
    }
}

/// What an item is as it lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// An unsigned integer of 32 bits, in whose order items are
    Bits32,
    /// One of 64 bits
    Bits64,
    /// Anything else
    Other,
}

/// What is moved about while sorting. Its order is that of the keys first.
pub trait Item: Copy + Ord + Send + Sync + 'static {
    /// What it is in memory.
    const LANE: Lane;
    /// The key, in the low bits.
    fn bits(self) -> u64;
}

/// A key.
pub trait Key: Item {
    /// A key with the position it came from.
    type Place: Place<Key = Self>;
    /// The key in the opposite order.
    fn inverse(self) -> Self;
}

/// A key with the position it came from; equal keys order by position.
pub trait Place: Item {
    /// The key alone.
    type Key: Key;
    /// The largest position.
    const LAST: usize;
    /// Puts both together.
    fn new(key: Self::Key, position: usize) -> Self;
    /// The position.
    fn position(self) -> usize;
}

/// A key in the upper `BITS` bits and a position in the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Packed<const BITS: u32>(u64);

/// A key of 64 bits and a position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wide(u64, u64);

impl<const BITS: u32> Item for Packed<BITS> {
    const LANE: Lane = Lane::Bits64;
    #[inline(always)]
    fn bits(self) -> u64 {
        self.0 >> (64 - BITS)
    }
}
impl Item for Wide {
    const LANE: Lane = Lane::Other;
    #[inline(always)]
    fn bits(self) -> u64 {
        self.0
    }
}
impl Place for Wide {
    type Key = u64;
    const LAST: usize = usize::MAX;
    #[inline(always)]
    fn new(key: u64, position: usize) -> Self {
        Wide(key, position as u64)
    }
    #[inline(always)]
    fn position(self) -> usize {
        self.1 as usize
    }
}

macro_rules! keys {
    ($($key:ident: $place:ty, $lane:ident;)*) => {$(
        impl Item for $key {
            const LANE: Lane = Lane::$lane;
            #[inline(always)]
            fn bits(self) -> u64 {
                self.into()
            }
        }
        impl Key for $key {
            type Place = $place;
            #[inline(always)]
            fn inverse(self) -> $key {
                !self
            }
        }
    )*};
}
keys! {
    u8: Packed<8>, Other;
    u16: Packed<16>, Other;
    u32: Packed<32>, Bits32;
    u64: Wide, Bits64;
}

macro_rules! packed {
    ($($key:ident $bits:literal),*) => {$(
        impl Place for Packed<$bits> {
            type Key = $key;
            const LAST: usize = (u64::MAX >> $bits) as usize;
            #[inline(always)]
            fn new(key: $key, position: usize) -> Self {
                Packed(u64::from(key) << (64 - $bits) | position as u64)
            }
            #[inline(always)]
            fn position(self) -> usize {
                self.0 as usize & Self::LAST
            }
        }
    )*};
}
packed!(u8 8, u16 16, u32 32);

macro_rules! integers {
    ($($ty:ident as $key:ident flipped $flip:expr;)*) => {$(
        impl Sortable for $ty {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                self as $key ^ $flip
            }
            #[inline(always)]
            fn of_key(key: $key) -> $ty {
                (key ^ $flip) as $ty
            }
            #[inline(always)]
            fn is_special(self) -> bool {
                false
            }
            #[inline(always)]
            fn is_unordered(self) -> bool {
                false
            }
        }
    )*};
}
integers! {
    u8 as u8 flipped 0;
    u16 as u16 flipped 0;
    u32 as u32 flipped 0;
    u64 as u64 flipped 0;
    i8 as u8 flipped 1 << 7;
    i16 as u16 flipped 1 << 15;
    i32 as u32 flipped 1 << 31;
    i64 as u64 flipped 1 << 63;
}

/// Positive numbers order as their bits, negative ones the other way round.
macro_rules! floats {
    ($($ty:ident as $key:ident, infinity $infinity:expr, |$x:ident| $to:expr, |$bits:ident| $from:expr;)*) => {$(
        impl Sortable for $ty {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                const SIGN: $key = 1 << ($key::BITS - 1);
                let $x = self;
                let bits: $key = $to;
                let key = if bits > SIGN { !bits } else { bits | SIGN };
                if self.is_unordered() { $key::MAX } else { key }
            }
            #[inline(always)]
            fn of_key(key: $key) -> $ty {
                const SIGN: $key = 1 << ($key::BITS - 1);
                let $bits = if key < SIGN { !key } else { key ^ SIGN };
                $from
            }
            #[inline(always)]
            fn is_special(self) -> bool {
                let $x = self;
                let bits: $key = $to;
                self.is_unordered() | (bits == 1 << ($key::BITS - 1))
            }
            #[inline(always)]
            fn is_unordered(self) -> bool {
                let $x = self;
                let bits: $key = $to;
                bits & ($key::MAX >> 1) > $infinity
            }
        }
    )*};
}
floats! {
    F16 as u16, infinity 0x7c00, |x| x.0, |bits| F16(bits);
    BF16 as u16, infinity 0x7f80, |x| x.0, |bits| BF16(bits);
    f32 as u32, infinity 0x7f80_0000, |x| x.to_bits(), |bits| f32::from_bits(bits);
    f64 as u64, infinity 0x7ff0_0000_0000_0000, |x| x.to_bits(), |bits| f64::from_bits(bits);
}
