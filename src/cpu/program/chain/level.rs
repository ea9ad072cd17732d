//! Registers of float32, and the rows of a chain compiled for each instruction set that has them.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::{Step, rows};

/// A register of float32.
pub trait Register: Copy {
    /// Its elements
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self;
    /// The first `n` elements, fewer than there are
    unsafe fn load(from: *const f32, n: usize) -> Self;
    unsafe fn store(self, to: *mut f32, n: usize);
    unsafe fn add(a: Self, b: Self) -> Self;
    unsafe fn subtract(a: Self, b: Self) -> Self;
    unsafe fn multiply(a: Self, b: Self) -> Self;
    unsafe fn divide(a: Self, b: Self) -> Self;
    unsafe fn maximum(a: Self, b: Self) -> Self;
    unsafe fn minimum(a: Self, b: Self) -> Self;
    /// `b` where `a` is not larger, or not smaller
    unsafe fn larger(a: Self, b: Self) -> Self;
    unsafe fn smaller(a: Self, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
macro_rules! level {
    ($module:ident: $feature:literal, $register:ident, $width:literal, $splat:ident, $add:ident,
     $subtract:ident, $multiply:ident, $divide:ident, |$x:ident, $a:ident| $nan:expr, $maximum:ident,
     $minimum:ident, |$n:ident| $mask:expr, |$from:ident, $bits:ident| $load:expr,
     $store:ident) => {
        pub mod $module {
            use std::arch::x86_64::*;

            #[allow(unused_imports, reason = "not every level has masks in memory")]
            use super::{MASKS, Range, Register, Step};

            // SAFETY, of what follows: the level whose registers these are alone calls it.
            impl Register for $register {
                const WIDTH: usize = $width;
                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: see above.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load($from: *const f32, $n: usize) -> Self {
                    // SAFETY: see above; what the mask leaves out is not read.
                    unsafe {
                        let $bits = $mask;
                        $load
                    }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32, $n: usize) {
                    // SAFETY: see above; what the mask leaves out is not written.
                    unsafe { $store(to, $mask, self) }
                }
                #[inline(always)]
                unsafe fn add(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                unsafe fn subtract(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $subtract(a, b) }
                }
                #[inline(always)]
                unsafe fn multiply(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $multiply(a, b) }
                }
                #[inline(always)]
                unsafe fn divide(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $divide(a, b) }
                }
                // The instructions give the second operand at a tie, and where one is NaN.
                #[inline(always)]
                unsafe fn maximum($a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe {
                        let $x = $maximum($a, b);
                        $nan
                    }
                }
                #[inline(always)]
                unsafe fn minimum($a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe {
                        let $x = $minimum($a, b);
                        $nan
                    }
                }
                #[inline(always)]
                unsafe fn larger(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $maximum(a, b) }
                }
                #[inline(always)]
                unsafe fn smaller(a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    unsafe { $minimum(a, b) }
                }
            }

            /// [`rows`](super::rows) at this level.
            ///
            /// # Safety
            /// As for [`rows`](super::rows).
            #[target_feature(enable = $feature)]
            pub unsafe fn rows(
                from: (*const f32, isize),
                to: (*mut f32, isize),
                steps: &[Step],
                size: (Range<usize>, usize),
            ) {
                // SAFETY: as the caller's.
                unsafe { super::rows::<$register>(from, to, steps, size) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(v4: "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma", __m512, 16, _mm512_set1_ps, _mm512_add_ps,
    _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps,
    |x, a| _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a), _mm512_max_ps,
    _mm512_min_ps, |n| (1 << n) - 1, |from, mask| _mm512_maskz_loadu_ps(mask, from), _mm512_mask_storeu_ps);
#[cfg(target_arch = "x86_64")]
level!(v3: "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps,
    |x, a| _mm256_blendv_ps(x, a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)), _mm256_max_ps,
    _mm256_min_ps, |n| _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()),
    |from, mask| _mm256_maskload_ps(from, mask),
    _mm256_maskstore_ps);

/// Eight words from number `8 - n` on are a mask of `n` elements.
#[cfg(target_arch = "x86_64")]
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
