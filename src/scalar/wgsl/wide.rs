//! Integers of 64 bits, which WGSL lacks, as two words: the low one first, as in memory.
//!
//! A formula's operators become calls of the functions in [`FUNCTIONS`], which a shader with such
//! integers has to contain.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Neg, Not, Sub};

use super::super::{Int, Scalar};
use super::{Code, Word, line, literal};

/// The functions that formulas call.
pub const FUNCTIONS: &str = include_str!("wide.wgsl");

/// A call of a function of two operands.
fn call<T: Word, U: Word, V: Word>(name: &str, a: Code<T>, b: Code<U>) -> Code<V> {
    line([a.index, b.index], |[a, b]| format!("{name}({a}, {b})"))
}

macro_rules! calls {
    ($($trait:ident::$method:ident $name:literal for $($word:ident)*;)*) => {
        $($(
            impl $trait for Code<$word> {
                type Output = Self;
                fn $method(self, other: Self) -> Self {
                    call($name, self, other)
                }
            }
        )*)*
    };
}

calls! {
    Add::add "wide_add" for i64 u64;
    Sub::sub "wide_subtract" for i64 u64;
    Mul::mul "wide_multiply" for i64 u64;
}

macro_rules! wide {
    ($int:ident, $letter:literal, signed: $signed:literal) => {
        impl Neg for Code<$int> {
            type Output = Self;
            fn neg(self) -> Self {
                self.call("wide_negative")
            }
        }

        impl Not for Code<$int> {
            type Output = Self;
            fn not(self) -> Self {
                self.call("~")
            }
        }

        impl BitAnd for Code<$int> {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                self.infix("&", other)
            }
        }

        impl BitOr for Code<$int> {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.infix("|", other)
            }
        }

        impl BitXor for Code<$int> {
            type Output = Self;
            fn bitxor(self, other: Self) -> Self {
                self.infix("^", other)
            }
        }

        impl Scalar for Code<$int> {
            type Mask = Code<bool>;

            fn whole(n: i64) -> Self {
                let (low, high) = (n as u32, (n as u64 >> 32) as u32);
                literal(format!("vec2<u32>({low}u, {high}u)"))
            }

            fn lt(self, other: Self) -> Code<bool> {
                call(concat!("wide_less_", $letter), self, other)
            }

            fn le(self, other: Self) -> Code<bool> {
                !other.lt(self)
            }

            fn eq(self, other: Self) -> Code<bool> {
                line([self.index, other.index], |[a, b]| format!("all({a} == {b})"))
            }

            fn select(mask: Code<bool>, a: Self, b: Self) -> Self {
                line([b.index, a.index, mask.index], |[b, a, m]| format!("select({b}, {a}, {m})"))
            }

            fn maximum(self, other: Self) -> Self {
                Self::select(self.lt(other), other, self)
            }

            fn minimum(self, other: Self) -> Self {
                Self::select(other.lt(self), other, self)
            }

            fn abs(self) -> Self {
                if $signed { Self::select(self.lt(Self::whole(0)), -self, self) } else { self }
            }

            fn sign(self) -> Self {
                let one = Self::select(self.eq(Self::whole(0)), self, Self::whole(1));
                match $signed {
                    true => Self::select(self.lt(Self::whole(0)), Self::whole(-1), one),
                    false => one,
                }
            }
        }

        impl Int for Code<$int> {
            fn left(self, bits: u32) -> Self {
                call("wide_left", self, Code::<u32>::whole(bits.into()))
            }

            fn right(self, bits: u32) -> Self {
                call(concat!("wide_right_", $letter), self, Code::<u32>::whole(bits.into()))
            }

            fn shift_left(self, amount: Self) -> Self {
                call("wide_shift_left", self, amount)
            }

            fn shift_right(self, amount: Self) -> Self {
                call(concat!("wide_shift_right_", $letter), self, amount)
            }

            fn floor_divide(self, divisor: Self) -> Self {
                call(concat!("wide_floor_divide_", $letter), self, divisor)
            }

            fn remainder(self, divisor: Self) -> Self {
                let zero = Self::whole(0);
                let rest = self - self.floor_divide(divisor) * divisor;
                Self::select(divisor.eq(zero), zero, rest)
            }
        }
    };
}

wide!(i64, "i", signed: true);
wide!(u64, "u", signed: false);
