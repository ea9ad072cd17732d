//! Numbers whose products are fused with sums where a formula asks what rounding lost of a product.
//!
//! [`Fused`] has the memory form of the number in it, and every formula the same bits: only
//! [`Float::lost`] differs, in the instructions that it takes. It is for code that is compiled for
//! processors with fused multiply-adds; elsewhere each of them would be a call.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Float, Scalar};

/// A native number as formulas see it where the processor has fused multiply-adds.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Fused<T>(pub T);

/// A native number, and the number of the same memory form for such processors.
pub trait Native: Copy {
    /// Itself, if it is no float.
    type Fused: Copy;
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Native for $ty {
            type Fused = $ty;
        }
    )*};
}
plain!(bool);
plain!(std::num::Wrapping<i32>, std::num::Wrapping<i64>);
plain!(std::num::Wrapping<u32>, std::num::Wrapping<u64>);

macro_rules! operator {
    ($($trait:ident $name:ident),*) => {$(
        impl<T: $trait<Output = T>> $trait for Fused<T> {
            type Output = Self;
            #[inline(always)]
            fn $name(self, other: Self) -> Self {
                Fused(self.0.$name(other.0))
            }
        }
    )*};
}
operator!(Add add, Sub sub, Mul mul, Div div);

impl<T: Neg<Output = T>> Neg for Fused<T> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Fused(-self.0)
    }
}

macro_rules! fused {
    ($($float:ident),*) => {$(
        impl Native for $float {
            type Fused = Fused<$float>;
        }

        impl Scalar for Fused<$float> {
            type Mask = bool;

            #[inline(always)]
            fn whole(n: i64) -> Self {
                Fused($float::whole(n))
            }

            #[inline(always)]
            fn lt(self, other: Self) -> bool {
                self.0 < other.0
            }

            #[inline(always)]
            fn le(self, other: Self) -> bool {
                self.0 <= other.0
            }

            #[inline(always)]
            fn eq(self, other: Self) -> bool {
                self.0 == other.0
            }

            #[inline(always)]
            fn select(mask: bool, a: Self, b: Self) -> Self {
                if mask { a } else { b }
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                Fused(Scalar::maximum(self.0, other.0))
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                Fused(Scalar::minimum(self.0, other.0))
            }

            #[inline(always)]
            fn abs(self) -> Self {
                Fused(self.0.abs())
            }

            #[inline(always)]
            fn sign(self) -> Self {
                Fused(Scalar::sign(self.0))
            }
        }

        impl Float for Fused<$float> {
            type Bits = <$float as Float>::Bits;
            const DOUBLE: bool = <$float as Float>::DOUBLE;

            #[inline(always)]
            fn lit(value: f64) -> Self {
                Fused($float::lit(value))
            }

            #[inline(always)]
            fn of_bits(bits: Self::Bits) -> Self {
                Fused($float::of_bits(bits))
            }

            #[inline(always)]
            fn bits(self) -> Self::Bits {
                self.0.bits()
            }

            #[inline(always)]
            fn of_small(n: Self::Bits) -> Self {
                Fused($float::of_small(n))
            }

            #[inline(always)]
            fn round_small(self) -> (Self, Self::Bits) {
                let (whole, n) = self.0.round_small();
                (Fused(whole), n)
            }

            #[inline(always)]
            fn quarter_turns(self) -> (Self::Bits, Self, Self) {
                let (quadrant, hi, lo) = self.0.quarter_turns();
                (quadrant, Fused(hi), Fused(lo))
            }

            #[inline(always)]
            fn is_far(self) -> bool {
                self.0.is_far()
            }

            #[inline(always)]
            fn is_beyond(self, limit: f64) -> bool {
                self.0.is_beyond(limit)
            }

            #[inline(always)]
            fn far_quarter_turns(self) -> (Self::Bits, Self, Self) {
                let (quadrant, hi, lo) = self.0.far_quarter_turns();
                (quadrant, Fused(hi), Fused(lo))
            }

            #[inline(always)]
            fn lost(self, other: Self, product: Self) -> Self {
                Fused(self.0.mul_add(other.0, -product.0))
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                Fused(Float::sqrt(self.0))
            }

            #[inline(always)]
            fn floor(self) -> Self {
                Fused(Float::floor(self.0))
            }

            #[inline(always)]
            fn ceil(self) -> Self {
                Fused(Float::ceil(self.0))
            }

            #[inline(always)]
            fn trunc(self) -> Self {
                Fused(Float::trunc(self.0))
            }

            #[inline(always)]
            fn round(self) -> Self {
                Fused(Float::round(self.0))
            }

            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                Fused(self.0.fmod(divisor.0))
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0.is_nan()
            }
        }
    )*};
}
fused!(f32, f64);
