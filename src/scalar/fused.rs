//! Numbers whose products are fused with sums where a formula asks for that, or for what rounding
//! lost of a product.
//!
//! [`Fused`] has the memory form of the number in it, and every formula the same bits: only
//! [`Float::multiply_add`] and [`Float::lost`] differ, in the instructions that they take. It is for
//! code that is compiled for processors with fused multiply-adds; elsewhere each of them would be a
//! call.

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
    /// The same number.
    fn fuse(self) -> Self::Fused;
    /// The number that [`Native::fuse`] made that of.
    fn plain(x: Self::Fused) -> Self;
}

/// A function of one number, in code of which a constant says whether it is compiled for fused
/// multiply-adds ([`multiversion!`](crate::multiversion) gives it).
macro_rules! by_fma {
    ($fma:ident, $f:ident($x:expr)) => {
        match $fma {
            true => $crate::scalar::Native::plain($f($crate::scalar::Native::fuse($x))),
            false => $f($x),
        }
    };
}
pub(crate) use by_fma;

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Native for $ty {
            type Fused = $ty;
            #[inline(always)]
            fn fuse(self) -> $ty {
                self
            }
            #[inline(always)]
            fn plain(x: $ty) -> $ty {
                x
            }
        }
    )*};
}
plain!(bool);
plain!(std::num::Wrapping<i32>, std::num::Wrapping<i64>);
plain!(std::num::Wrapping<u32>, std::num::Wrapping<u64>);

macro_rules! operator {
    ($wrapper:ident: $($trait:ident $name:ident),*) => {
        $(
            impl<T: $trait<Output = T>> $trait for $wrapper<T> {
                type Output = Self;
                #[inline(always)]
                fn $name(self, other: Self) -> Self {
                    $wrapper(self.0.$name(other.0))
                }
            }
        )*

        impl<T: Neg<Output = T>> Neg for $wrapper<T> {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                $wrapper(-self.0)
            }
        }
    };
}
operator!(Fused: Add add, Sub sub, Mul mul, Div div);

/// What a number wrapped in another type does as it does itself, and what it does otherwise.
macro_rules! wrapper {
    ($wrapper:ident, $float:ident, {$($other:item)*}) => {
        impl Scalar for $wrapper<$float> {
            type Mask = bool;

            #[inline(always)]
            fn whole(n: i64) -> Self {
                $wrapper($float::whole(n))
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
                $wrapper(Scalar::maximum(self.0, other.0))
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                $wrapper(Scalar::minimum(self.0, other.0))
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $wrapper(self.0.abs())
            }

            #[inline(always)]
            fn sign(self) -> Self {
                $wrapper(Scalar::sign(self.0))
            }
        }

        impl Float for $wrapper<$float> {
            type Bits = <$float as Float>::Bits;
            const DOUBLE: bool = <$float as Float>::DOUBLE;

            #[inline(always)]
            fn lit(value: f64) -> Self {
                $wrapper($float::lit(value))
            }

            #[inline(always)]
            fn of_bits(bits: Self::Bits) -> Self {
                $wrapper($float::of_bits(bits))
            }

            #[inline(always)]
            fn bits(self) -> Self::Bits {
                self.0.bits()
            }

            #[inline(always)]
            fn of_small(n: Self::Bits) -> Self {
                $wrapper($float::of_small(n))
            }

            #[inline(always)]
            fn round_small(self) -> (Self, Self::Bits) {
                let (whole, n) = self.0.round_small();
                ($wrapper(whole), n)
            }

            #[inline(always)]
            fn quarter_turns(self) -> (Self::Bits, Self, Self) {
                let (quadrant, hi, lo) = self.0.quarter_turns();
                (quadrant, $wrapper(hi), $wrapper(lo))
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
                (quadrant, $wrapper(hi), $wrapper(lo))
            }

            $($other)*

            #[inline(always)]
            fn sqrt(self) -> Self {
                $wrapper(Float::sqrt(self.0))
            }

            #[inline(always)]
            fn floor(self) -> Self {
                $wrapper(Float::floor(self.0))
            }

            #[inline(always)]
            fn ceil(self) -> Self {
                $wrapper(Float::ceil(self.0))
            }

            #[inline(always)]
            fn trunc(self) -> Self {
                $wrapper(Float::trunc(self.0))
            }

            #[inline(always)]
            fn round(self) -> Self {
                $wrapper(Float::round(self.0))
            }

            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                $wrapper(self.0.fmod(divisor.0))
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0.is_nan()
            }
        }
    };
}

macro_rules! fused {
    ($($float:ident),*) => {$(
        impl Native for $float {
            type Fused = Fused<$float>;
            #[inline(always)]
            fn fuse(self) -> Fused<$float> {
                Fused(self)
            }
            #[inline(always)]
            fn plain(x: Fused<$float>) -> $float {
                x.0
            }
        }

        wrapper!(Fused, $float, {
            const FUSES: bool = <$float as Float>::FUSES;

            #[inline(always)]
            fn multiply_add(self, factor: Self, term: Self) -> Self {
                match Self::FUSES {
                    true => Fused(self.0.mul_add(factor.0, term.0)),
                    false => self * factor + term,
                }
            }

            #[inline(always)]
            fn round_product(self, factor: Self) -> (Self, Self::Bits) {
                if !Self::FUSES {
                    return (self * factor).round_small();
                }
                let origin = Fused(1.5 / $float::EPSILON);
                let shifted = self.multiply_add(factor, origin);
                (shifted - origin, shifted.bits() - origin.bits())
            }

            #[inline(always)]
            fn lost(self, other: Self, product: Self) -> Self {
                Fused(self.0.mul_add(other.0, -product.0))
            }
        });
    )*};
}
fused!(f32, f64);

/// A number of binary32 as formulas see it where nothing fuses, as in WGSL.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Apart<T>(pub T);
#[cfg(test)]
operator!(Apart: Add add, Sub sub, Mul mul, Div div);
#[cfg(test)]
wrapper!(Apart, f32, {
    const HAS_RARE: bool = false;
});
