//! Numbers of twice the precision, as unevaluated sums.

use super::{Float, Scalar};

/// `hi + lo`, where `lo` is at most half an ULP of `hi`.
#[derive(Clone, Copy)]
pub(super) struct Pair<S> {
    pub hi: S,
    pub lo: S,
}

/// `a + b`, exactly.
#[inline(always)]
pub(super) fn sum<S: Float>(a: S, b: S) -> Pair<S> {
    let hi = a + b;
    let part = hi - a;
    Pair { hi, lo: (a - (hi - part)) + (b - part) }
}

/// `a + b`, exactly, where `|a| ≥ |b|` or `a = 0`.
#[inline(always)]
pub(super) fn ordered_sum<S: Float>(a: S, b: S) -> Pair<S> {
    let hi = a + b;
    Pair { hi, lo: (a - hi) + b }
}

/// `x` as the sum of its upper 12 (26) bits and a rest of as many, which may be negative in
/// binary64.
#[inline(always)]
pub(super) fn split<S: Float>(x: S) -> (S, S) {
    let upper = if S::DOUBLE {
        // Of 53 bits a rest without a sign would have 27, and the product of two of them 54.
        (x.bits() + S::Bits::whole(1 << 26)) & S::Bits::whole(-1 << 27)
    } else {
        x.bits() & S::Bits::whole(-1 << 12)
    };
    let upper = S::of_bits(upper);
    (upper, x - upper)
}

/// `a · b`, exactly, as far as [`Float::lost`] is.
#[inline(always)]
pub(super) fn product<S: Float>(a: S, b: S) -> Pair<S> {
    let hi = a * b;
    Pair { hi, lo: a.lost(b, hi) }
}

/// `a · b − hi`, where `hi` is the product rounded: of halves of the digits, whose products and
/// partial sums are exact. Source: Dekker: A floating-point technique for extending the available
/// precision, 1971.
#[inline(always)]
pub(super) fn lost<S: Float>(a: S, b: S, hi: S) -> S {
    let ((a1, a0), (b1, b0)) = (split(a), split(b));
    (((a1 * b1 - hi) + a1 * b0) + a0 * b1) + a0 * b0
}

impl<S: Float> Pair<S> {
    /// The constant that two parts give for each width.
    #[inline(always)]
    pub fn constant(single: (f64, f64), double: (f64, f64)) -> Pair<S> {
        Pair { hi: S::pick(single.0, double.0), lo: S::pick(single.1, double.1) }
    }

    /// The sum in one number.
    #[inline(always)]
    pub fn value(self) -> S {
        self.hi + self.lo
    }

    /// The product, to about twice the precision.
    #[inline(always)]
    pub fn times(self, other: Pair<S>) -> Pair<S> {
        let p = product(self.hi, other.hi);
        ordered_sum(p.hi, p.lo + (self.hi * other.lo + self.lo * other.hi))
    }

    /// The sum, to about twice the precision, where `|other| ≥ |self|` or `other = 0`.
    #[inline(always)]
    pub fn plus_larger(self, other: S) -> Pair<S> {
        let s = ordered_sum(other, self.hi);
        ordered_sum(s.hi, s.lo + self.lo)
    }
}
