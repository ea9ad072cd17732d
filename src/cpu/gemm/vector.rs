//! What a tile keeps its sums in: a register's worth of elements.
//!
//! Arrays become registers by the compiler's choice, which is right where there are many. Where the
//! sums of a tile take all but a few, it splits some of them; those are written as the registers
//! that they are.

use super::kernel::Element;

/// Some neighbouring elements, in memory as in an array.
pub trait Vector<T>: Copy {
    /// Zeros.
    fn zero() -> Self;
    /// Adds `x · y`, with one rounding if the instruction set fuses.
    fn add_product(&mut self, x: T, y: &Self);
    /// Adds these to `old`.
    fn add_to(&mut self, old: &Self);
}

/// `W` elements; `F` says that the instruction set has the fused operation.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Lanes<T, const W: usize, const F: bool>([T; W]);

impl<T: Element, const W: usize, const F: bool> Vector<T> for Lanes<T, W, F> {
    #[inline(always)]
    fn zero() -> Self {
        Lanes([T::default(); W])
    }

    #[inline(always)]
    fn add_product(&mut self, x: T, y: &Self) {
        for (s, &y) in self.0.iter_mut().zip(&y.0) {
            *s = s.fma::<F>(x, y);
        }
    }

    #[inline(always)]
    fn add_to(&mut self, old: &Self) {
        for (s, o) in self.0.iter_mut().zip(old.0) {
            *s = o.plus(*s);
        }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! registers {
    ($($(#[doc = $doc:literal])* $name:ident($register:ident) of $t:ty:
       $zero:ident, $one:ident, $fused:ident, $add:ident;)*) => { $(
        $(#[doc = $doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub struct $name(std::arch::x86_64::$register);

        // SAFETY, of what follows: kernels of a level with these registers alone name the type.
        impl Vector<$t> for $name {
            #[inline(always)]
            fn zero() -> Self {
                // SAFETY: see above.
                $name(unsafe { std::arch::x86_64::$zero() })
            }

            #[inline(always)]
            fn add_product(&mut self, x: $t, y: &Self) {
                use std::arch::x86_64::{$fused, $one};
                // SAFETY: see above.
                self.0 = unsafe { $fused($one(x), y.0, self.0) };
            }

            #[inline(always)]
            fn add_to(&mut self, old: &Self) {
                // SAFETY: see above.
                self.0 = unsafe { std::arch::x86_64::$add(old.0, self.0) };
            }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
registers! {
    /// Eight of f32, in a register of AVX2.
    F32x8(__m256) of f32: _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps;
    /// Four of f64, in a register of AVX2.
    F64x4(__m256d) of f64: _mm256_setzero_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_add_pd;
    /// Sixteen of f32, in a register of AVX-512.
    F32x16(__m512) of f32: _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps;
    /// Eight of f64, in a register of AVX-512.
    F64x8(__m512d) of f64: _mm512_setzero_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_add_pd;
}
