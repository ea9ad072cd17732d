//! The scalar traits of native numbers.

use super::{Float, Int, Mask, Scalar, far};
use std::num::Wrapping;

impl Mask for bool {}

/// The items of [`Scalar`] that read alike for integers and floats.
macro_rules! comparisons {
    () => {
        type Mask = bool;

        #[inline(always)]
        fn lt(self, other: Self) -> bool {
            self < other
        }

        #[inline(always)]
        fn le(self, other: Self) -> bool {
            self <= other
        }

        #[inline(always)]
        fn eq(self, other: Self) -> bool {
            self == other
        }

        #[inline(always)]
        fn select(mask: bool, a: Self, b: Self) -> Self {
            if mask { a } else { b }
        }
    };
}

macro_rules! float {
    ($float:ident, $bits:ident, double: $double:literal, {$($fused:item)*}) => {
        impl Scalar for $float {
            comparisons!();

            #[inline(always)]
            fn whole(n: i64) -> Self {
                n as $float
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if (self > other) | self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if (self < other) | self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $float::abs(self)
            }

            #[inline(always)]
            fn sign(self) -> Self {
                let one = if self > 0.0 { 1.0 } else { -1.0 };
                let rest = if self == 0.0 { 0.0 } else { one };
                if self.is_nan() { self } else { rest }
            }
        }

        impl Float for $float {
            type Bits = Wrapping<$bits>;
            const DOUBLE: bool = $double;

            #[inline(always)]
            fn lit(value: f64) -> Self {
                value as $float
            }

            #[inline(always)]
            fn of_bits(bits: Self::Bits) -> Self {
                $float::from_bits(bits.0 as _)
            }

            #[inline(always)]
            fn bits(self) -> Self::Bits {
                Wrapping(self.to_bits() as $bits)
            }

            // 1.5·2^m, where m is the number of stored bits, has an ULP of 1: adding to it rounds,
            // and leaves the whole number in the low bits. This vectorises on every instruction
            // set, which conversions between floats and integers do not.
            #[inline(always)]
            fn of_small(n: Self::Bits) -> Self {
                let origin = 1.5 / $float::EPSILON;
                Self::of_bits(origin.bits() + n) - origin
            }

            #[inline(always)]
            fn round_small(self) -> (Self, Self::Bits) {
                let origin = 1.5 / $float::EPSILON;
                let shifted = self + origin;
                (shifted - origin, shifted.bits() - origin.bits())
            }

            $($fused)*

            #[inline(always)]
            fn quarter_turns(self) -> (Self::Bits, Self, Self) {
                $bits::quarter_turns(self)
            }

            #[inline(always)]
            fn is_far(self) -> bool {
                self.is_beyond(far::NEAR)
            }

            #[inline(always)]
            fn is_beyond(self, limit: f64) -> bool {
                $float::abs(self) > limit as $float
            }

            #[inline(always)]
            fn far_quarter_turns(self) -> (Self::Bits, Self, Self) {
                $bits::far_quarter_turns(self)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $float::sqrt(self)
            }

            #[inline(always)]
            fn floor(self) -> Self {
                $float::floor(self)
            }

            #[inline(always)]
            fn ceil(self) -> Self {
                $float::ceil(self)
            }

            #[inline(always)]
            fn trunc(self) -> Self {
                $float::trunc(self)
            }

            #[inline(always)]
            fn round(self) -> Self {
                self.round_ties_even()
            }

            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                self % divisor
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                $float::is_nan(self)
            }
        }
    };
}

float!(f32, i32, double: false, {
    const FUSES: bool = true;

    #[inline(always)]
    fn multiply_add(self, factor: f32, term: f32) -> f32 {
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            return self.mul_add(factor, term);
        }
        fused_by_halves(self, factor, term)
    }

    #[inline(always)]
    fn round_product(self, factor: f32) -> (f32, Self::Bits) {
        let origin = 1.5 / f32::EPSILON;
        let shifted = Float::multiply_add(self, factor, origin);
        (shifted - origin, shifted.bits() - origin.bits())
    }
});
float!(f64, i64, double: true, {});

/// Quotient and rest, rounded towards zero. Numbers of 32 bits take a fraction of the time of longer
/// ones to divide, and most are.
macro_rules! divided {
    ($int:ident, $unsigned:ident, $x:expr, $by:expr) => {{
        let (x, by): (Wrapping<$int>, Wrapping<$int>) = ($x, $by);
        let both = (x.0 | by.0) as $unsigned;
        if $unsigned::BITS == 64 && u64::from(both) <= u64::from(u32::MAX) {
            let (x, by) = (x.0 as u32, by.0 as u32);
            (Wrapping((x / by) as $int), Wrapping((x % by) as $int))
        } else {
            (x / by, x % by)
        }
    }};
}

/// `a · b + c`, rounded once, without the instruction for it: in double precision the product is
/// exact, and of the sum the last bit is made odd where something was lost, so that rounding again
/// decides as the exact sum would. Source: Boldo, Melquiond: Emulation of a FMA and correctly
/// rounded sums, 2008.
#[inline(always)]
fn fused_by_halves(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits() as i64;
    // One place up or down in magnitude, as what was lost has the sign of the sum or not.
    let step = ((lost.to_bits() as i64 ^ bits) >> 63) | 1;
    // Of infinities NaN is lost, which is neither.
    let is_inexact = (lost > 0.0) | (lost < 0.0);
    let step = if is_inexact & (bits & 1 == 0) { step } else { 0 };
    f64::from_bits((bits + step) as u64) as f32
}

/// How a float of this width is reduced by multiples of π/2.
trait Reduction<F>: Sized {
    fn quarter_turns(x: F) -> (Wrapping<Self>, F, F);
    fn far_quarter_turns(x: F) -> (Wrapping<Self>, F, F);
}

/// The leading 23 bits of π/2, the next 23, and so on: a whole number of up to 30 bits times one of
/// them is exact.
const HALF_PI: [f64; 4] =
    [1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820031633724233e-22];
const HALF_PI_REST: f64 = 3.7950107727212256e-29;

impl Reduction<f32> for i32 {
    /// In double precision: the 24 bits of `x` and 99 bits of π/2 leave a result with all its bits.
    #[inline(always)]
    fn quarter_turns(x: f32) -> (Wrapping<i32>, f32, f32) {
        let x = x as f64;
        let (n, quadrant) = (x * std::f64::consts::FRAC_2_PI).round_small();
        let rest = HALF_PI[2] + HALF_PI[3];
        let r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * rest;
        let hi = r as f32;
        (Wrapping(quadrant.0 as i32), hi, (r - hi as f64) as f32)
    }

    #[inline(always)]
    fn far_quarter_turns(x: f32) -> (Wrapping<i32>, f32, f32) {
        let (quadrant, r, lo) = far::quarter_turns(x as f64);
        let hi = r as f32;
        (Wrapping(quadrant as i32), hi, ((r - hi as f64) + lo) as f32)
    }
}

impl Reduction<f64> for i64 {
    /// The first two steps are exact; the errors of the next two are carried in `lo`.
    #[inline(always)]
    fn quarter_turns(x: f64) -> (Wrapping<i64>, f64, f64) {
        let (n, quadrant) = (x * std::f64::consts::FRAC_2_PI).round_small();
        let r2 = (x - n * HALF_PI[0]) - n * HALF_PI[1];
        let step = n * HALF_PI[2];
        let r3 = r2 - step;
        let lo = (r2 - r3) - step;
        let step = n * HALF_PI[3];
        let r4 = r3 - step;
        let lo = (((r3 - r4) - step) + lo) - n * HALF_PI_REST;
        let hi = r4 + lo;
        (quadrant, hi, (r4 - hi) + lo)
    }

    #[inline(always)]
    fn far_quarter_turns(x: f64) -> (Wrapping<i64>, f64, f64) {
        let (quadrant, hi, lo) = far::quarter_turns(x);
        (Wrapping(quadrant), hi, lo)
    }
}

macro_rules! int {
    ($int:ident, $unsigned:ident, signed: $signed:literal) => {
        impl Scalar for Wrapping<$int> {
            comparisons!();

            #[inline(always)]
            fn whole(n: i64) -> Self {
                Wrapping(n as $int)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self > other { self } else { other }
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if self < other { self } else { other }
            }

            #[inline(always)]
            fn abs(self) -> Self {
                if $signed & (self < Wrapping(0)) { -self } else { self }
            }

            #[inline(always)]
            fn sign(self) -> Self {
                let one = Wrapping(1);
                let one = if $signed & (self < Wrapping(0)) { -one } else { one };
                if self == Wrapping(0) { self } else { one }
            }
        }

        impl Int for Wrapping<$int> {
            #[inline(always)]
            fn left(self, bits: u32) -> Self {
                Wrapping(self.0.wrapping_shl(bits))
            }

            #[inline(always)]
            fn right(self, bits: u32) -> Self {
                Wrapping(self.0.wrapping_shr(bits))
            }

            #[inline(always)]
            fn shift_left(self, amount: Self) -> Self {
                let inside = (amount.0 as $unsigned) < $int::BITS as $unsigned;
                let shifted = self.left(amount.0 as u32);
                if inside { shifted } else { Wrapping(0) }
            }

            #[inline(always)]
            fn shift_right(self, amount: Self) -> Self {
                let inside = (amount.0 as $unsigned) < $int::BITS as $unsigned;
                let shifted = self.right(amount.0 as u32);
                let outside = if $signed { self.right($int::BITS - 1) } else { Wrapping(0) };
                if inside { shifted } else { outside }
            }

            #[inline(always)]
            fn floor_divide(self, divisor: Self) -> Self {
                let zero = Wrapping(0);
                let safe = if divisor == zero { Wrapping(1) } else { divisor };
                let (quotient, rest) = divided!($int, $unsigned, self, safe);
                let below = $signed & (rest != zero) & ((rest < zero) != (safe < zero));
                let floor = if below { quotient - Wrapping(1) } else { quotient };
                if divisor == zero { zero } else { floor }
            }

            #[inline(always)]
            fn remainder(self, divisor: Self) -> Self {
                let zero = Wrapping(0);
                let safe = if divisor == zero { Wrapping(1) } else { divisor };
                let rest = divided!($int, $unsigned, self, safe).1;
                let other = $signed & (rest != zero) & ((rest < zero) != (safe < zero));
                if other { rest + safe } else { rest }
            }
        }
    };
}

int!(i32, u32, signed: true);
int!(i64, u64, signed: true);
int!(u32, u32, signed: false);
int!(u64, u64, signed: false);
