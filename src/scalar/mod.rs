//! The scalar language: arithmetic and mathematical functions written once, over [`Scalar`].
//!
//! A formula generic over [`Float`] or [`Int`] is instantiated with native numbers for the CPU
//! (integers as [`Wrapping`](std::num::Wrapping), which has the memory form of the plain integer)
//! and with [`wgsl::Code`], which writes the formula down as WGSL. Promises:
//!
//! - Everything here is straight-line and inlined: no branch on data, no table, no call, except for
//!   [`Float::fmod`], integer division and angles [far out](Float::is_far). So a loop over it
//!   vectorises, and every instruction set gives the same bits: nothing is contracted or
//!   re-associated. Formulas that ask for fused products ([`Float::multiply_add`]) get them, in more
//!   instructions where the processor has none ([`Fused`]), and the same numbers.
//! - Each mathematical function states its largest error in units in the last place (ULP);
//!   [`BOUNDS`] holds the figures and the tests prove them.

mod algebraic;
mod bounds;
mod exponential;
mod far;
mod fused;
#[cfg(test)]
mod fused_tests;
pub mod half;
mod hyperbolic;
mod logarithm;
mod native;
mod pair;
mod polynomial;
mod register;
mod special;
#[cfg(test)]
mod tests;
pub mod trace;
mod trigonometric;
pub mod wgsl;

pub use algebraic::{Step, cbrt, floor_divide, fmod, hypot, next_after, remainder, rsqrt};
pub use bounds::{BOUNDS, Bound};
pub use exponential::{
    exp, exp_is_rare, exp_normal, exp_often, exp2, expm1, log_sigmoid, logaddexp, pow, sigmoid,
    sigmoid_often, silu, silu_often, silu_slope, softplus, third_power,
};
pub(crate) use fused::by_fma;
pub use fused::{Fused, Native};
pub use hyperbolic::{acosh, asinh, atanh, cosh, sinh, tanh};
pub use logarithm::{log, log1p, log2, log10};
pub use register::Register;
pub use special::{
    erf, erfc, erfinv, gelu, gelu_slope, gelu_tanh, gelu_tanh_is_rare, gelu_tanh_often,
    gelu_tanh_slope,
};
pub use trigonometric::{acos, asin, atan, atan2, cos, cos_far, sin, sin_far, tan, tan_far};

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// Truth values of comparisons.
pub trait Mask:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
}

/// A number of any kind. Integer arithmetic wraps; both sides of [`Scalar::select`] are computed.
pub trait Scalar:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// What comparisons give.
    type Mask: Mask;

    /// The whole number `n`, wrapped or rounded to this type.
    fn whole(n: i64) -> Self;
    /// `self < other`
    fn lt(self, other: Self) -> Self::Mask;
    /// `self ≤ other`
    fn le(self, other: Self) -> Self::Mask;
    /// `self = other`
    fn eq(self, other: Self) -> Self::Mask;
    /// `a` where `mask`, else `b`
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// The larger one; NaN if either is NaN.
    fn maximum(self, other: Self) -> Self;
    /// The smaller one; NaN if either is NaN.
    fn minimum(self, other: Self) -> Self;
    /// Absolute value; the smallest signed integer stays itself.
    fn abs(self) -> Self;
    /// −1, 0 or 1; 0 for zeros of both signs, and NaN stays NaN.
    fn sign(self) -> Self;

    /// `self > other`
    #[inline(always)]
    fn gt(self, other: Self) -> Self::Mask {
        other.lt(self)
    }

    /// `self ≥ other`
    #[inline(always)]
    fn ge(self, other: Self) -> Self::Mask {
        other.le(self)
    }

    /// `self ≠ other`, true if either is NaN
    #[inline(always)]
    fn ne(self, other: Self) -> Self::Mask {
        !self.eq(other)
    }
}

/// An integer.
pub trait Int:
    Scalar + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
    /// Shift left by a constant below the width.
    fn left(self, bits: u32) -> Self;
    /// Shift right by a constant below the width, arithmetic for signed types.
    fn right(self, bits: u32) -> Self;
    /// Shift left; an amount outside `0..width` gives 0.
    fn shift_left(self, amount: Self) -> Self;
    /// Shift right, arithmetic for signed types; an amount outside `0..width` gives the sign.
    fn shift_right(self, amount: Self) -> Self;
    /// Quotient rounded towards −∞. By zero it is 0; the smallest signed integer by −1 wraps.
    fn floor_divide(self, divisor: Self) -> Self;
    /// What [`Int::floor_divide`] leaves, with the sign of the divisor. By zero it is 0.
    fn remainder(self, divisor: Self) -> Self;
}

/// An IEEE binary32 or binary64 number.
pub trait Float: Scalar + Div<Output = Self> {
    /// The signed integer of the same width.
    type Bits: Int<Mask = Self::Mask>;
    /// Whether this is binary64.
    const DOUBLE: bool;
    /// Whether rare elements have a formula of their own: in WGSL one formula is for all.
    const HAS_RARE: bool = true;
    /// Whether [`Float::multiply_add`] rounds once: in binary32 on the CPU.
    const FUSES: bool = false;

    /// `value`, rounded to this type.
    fn lit(value: f64) -> Self;
    /// The number with these bits.
    fn of_bits(bits: Self::Bits) -> Self;
    /// The bits of the number.
    fn bits(self) -> Self::Bits;
    /// The number of an integer of magnitude below 2^22 (2^51).
    fn of_small(n: Self::Bits) -> Self;
    /// The nearest whole number, ties to even, as a number and as an integer, for magnitudes below
    /// 2^22 (2^51). Beyond that, and for NaN, both are arbitrary.
    fn round_small(self) -> (Self, Self::Bits);
    /// The quadrant `q` (in its two lowest bits) and `hi + lo = self − q·π/2` with
    /// `|hi| ≤ π/4` (barely above). NaN for NaN and infinities. Holds where not [`Float::is_far`].
    fn quarter_turns(self) -> (Self::Bits, Self, Self);
    /// Whether this is an angle whose reduction needs more digits of π: beyond ±2^30 on the CPU.
    /// Never in WGSL, whose text has the short reduction only.
    fn is_far(self) -> bool;
    /// Whether the magnitude is above a limit, beyond which a formula does not hold. Never in WGSL.
    fn is_beyond(self, limit: f64) -> bool;
    /// The same as [`Float::quarter_turns`] for an angle far out; slow.
    fn far_quarter_turns(self) -> (Self::Bits, Self, Self);
    /// What rounding lost of `self · other`, which was rounded to `product`: their difference,
    /// exactly. Arbitrary where digits of it are below those of normal numbers (so the product is
    /// near to 0), and where the product or one of its factors is near the largest number.
    #[inline(always)]
    fn lost(self, other: Self, product: Self) -> Self {
        pair::lost(self, other, product)
    }
    /// `self · factor + term`, rounded once where [`Float::FUSES`], else twice.
    #[inline(always)]
    fn multiply_add(self, factor: Self, term: Self) -> Self {
        self * factor + term
    }
    /// [`Float::round_small`] of a product, which is not rounded itself where [`Float::FUSES`].
    #[inline(always)]
    fn round_product(self, factor: Self) -> (Self, Self::Bits) {
        (self * factor).round_small()
    }
    /// This number, or `low` where it is below; NaN stays.
    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        Self::select(self.lt(low), low, self)
    }
    /// This number, or `high` where it is above; NaN stays.
    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        Self::select(self.gt(high), high, self)
    }
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The largest whole number not above.
    fn floor(self) -> Self;
    /// The smallest whole number not below.
    fn ceil(self) -> Self;
    /// The whole part.
    fn trunc(self) -> Self;
    /// The nearest whole number, ties to even.
    fn round(self) -> Self;
    /// What the quotient rounded towards zero leaves: exact, with the sign of `self`.
    fn fmod(self, divisor: Self) -> Self;
    /// Whether this is NaN.
    fn is_nan(self) -> Self::Mask;

    /// Bits of the significand that are stored.
    const SIGNIFICAND: u32 = if Self::DOUBLE { 52 } else { 23 };
    /// What is added to an exponent before it is stored.
    const BIAS: i64 = if Self::DOUBLE { 1023 } else { 127 };

    /// The literal of this type's width.
    #[inline(always)]
    fn pick(single: f64, double: f64) -> Self {
        Self::lit(if Self::DOUBLE { double } else { single })
    }

    /// +∞
    #[inline(always)]
    fn infinity() -> Self {
        Self::of_bits(Self::Bits::whole((2 * Self::BIAS + 1) << Self::SIGNIFICAND))
    }

    /// The quiet NaN without payload.
    #[inline(always)]
    fn nan() -> Self {
        Self::of_bits(Self::Bits::whole((4 * Self::BIAS + 3) << (Self::SIGNIFICAND - 1)))
    }

    /// The smallest normal number.
    #[inline(always)]
    fn smallest_normal() -> Self {
        Self::of_bits(Self::Bits::whole(1 << Self::SIGNIFICAND))
    }

    /// Whether this is +∞ or −∞.
    #[inline(always)]
    fn is_infinite(self) -> Self::Mask {
        self.abs().eq(Self::infinity())
    }

    /// The sign bit alone.
    #[inline(always)]
    fn sign_bits(self) -> Self::Bits {
        self.bits() & Self::Bits::whole(if Self::DOUBLE { i64::MIN } else { i32::MIN as i64 })
    }

    /// This magnitude with the sign of `sign`.
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        Self::of_bits(self.abs().bits() | sign.sign_bits())
    }

    /// `2^k` for exponents of normal numbers.
    #[inline(always)]
    fn power_of_two(k: Self::Bits) -> Self {
        Self::of_bits((k + Self::Bits::whole(Self::BIAS)).left(Self::SIGNIFICAND))
    }

    /// `self · 2^k` for |k| up to twice the range of exponents, rounded once, where `self` is
    /// within a few binades of 1.
    #[inline(always)]
    fn scale(self, k: Self::Bits) -> Self {
        let half = k.right(1);
        self * Self::power_of_two(half) * Self::power_of_two(k - half)
    }
}
