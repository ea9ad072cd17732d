//! Polynomials with a short list of coefficients for binary32 and a long one for binary64.

use super::Float;

/// Coefficients, lowest power first, for binary32 and for binary64. They are minimax fits whose
/// lower coefficients were rounded first and the others fitted again.
pub(super) struct Polynomial<const M: usize, const N: usize>(pub [f64; M], pub [f64; N]);

impl<const M: usize, const N: usize> Polynomial<M, N> {
    /// The value at `x`.
    #[inline(always)]
    pub fn at<S: Float>(&self, x: S) -> S {
        if S::DOUBLE { horner(x, &self.1) } else { horner(x, &self.0) }
    }
}

impl<const M: usize, const N: usize> Polynomial<M, N> {
    /// The value at `x`, by [`Float::multiply_add`].
    #[inline(always)]
    pub fn fused<S: Float>(&self, x: S) -> S {
        if !S::FUSES {
            return self.at(x);
        }
        let mut sum = S::lit(self.0[M - 1]);
        for i in (0..M - 1).rev() {
            sum = sum.multiply_add(x, S::lit(self.0[i]));
        }
        sum
    }
}

/// `Σ cᵢ xⁱ`, from the highest power down.
#[inline(always)]
fn horner<S: Float, const N: usize>(x: S, coefficients: &[f64; N]) -> S {
    let mut sum = S::lit(coefficients[N - 1]);
    for i in (0..N - 1).rev() {
        sum = sum * x + S::lit(coefficients[i]);
    }
    sum
}
