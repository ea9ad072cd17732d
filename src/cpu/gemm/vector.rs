//! What a tile keeps its sums in: a register's worth of elements.
//!
//! Arrays become registers by the compiler's choice, which is right where there are many. Where the
//! sums of a tile take all but a few, it splits some of them; those are written as the registers
//! that they are.

use super::kernel::Element;

/// A place that an instruction can address: some distances away, and some elements behind that.
pub trait Place {
    /// 1, 2, 4 or 8
    const DISTANCES: usize;
    const ELEMENTS: usize;
}

/// Some neighbouring elements, in memory as in an array.
pub trait Vector<T>: Copy {
    /// One element, to be multiplied with all of these
    type One: Copy;
    /// The most rows, so far apart as only the running program knows, whose elements are read without
    /// instructions, or registers for sums, that go into their addresses
    const APART: usize;
    /// Whether it is a register by name
    const IS_NAMED: bool;

    /// Zeros.
    fn zero() -> Self;
    /// An element.
    fn one(x: T) -> Self::One;
    /// The element at a place, counted from `at` in distances of so many bytes: read by one
    /// instruction, which stays between those before and after it.
    ///
    /// # Safety
    /// It can be read.
    unsafe fn one_at<P: Place>(at: *const T, bytes: isize) -> Self::One;
    /// Adds `x · y`, with one rounding if the instruction set fuses.
    fn add_product(&mut self, x: Self::One, y: &Self);
    /// Adds these to `old`.
    fn add_to(&mut self, old: &Self);
}

/// `W` elements; `F` says that the instruction set has the fused operation.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Lanes<T, const W: usize, const F: bool>([T; W]);

impl<T: Element, const W: usize, const F: bool> Vector<T> for Lanes<T, W, F> {
    type One = T;
    const APART: usize = 6;
    const IS_NAMED: bool = false;

    #[inline(always)]
    fn one(x: T) -> T {
        x
    }

    #[inline(always)]
    unsafe fn one_at<P: Place>(at: *const T, bytes: isize) -> T {
        let line = at.wrapping_byte_offset(P::DISTANCES as isize * bytes);
        // SAFETY: by contract.
        unsafe { *line.wrapping_add(P::ELEMENTS) }
    }

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
    ($($(#[doc = $doc:literal])* $name:ident($register:ident, $class:ident, $feature:literal) of $t:ty,
       $spread:literal: $zero:ident, $one:ident, $fused:ident, $add:ident;)*) => { $(
        $(#[doc = $doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub struct $name(std::arch::x86_64::$register);

        impl $name {
            /// [`Vector::one_at`]: an instruction that the compiler neither moves nor splits. It would
            /// read elements early, for which there are no registers, and prepare their addresses.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn read<P: Place>(
                at: *const $t,
                bytes: isize,
            ) -> std::arch::x86_64::$register {
                let one;
                // SAFETY: by contract; it reads, and changes nothing but its result.
                unsafe {
                    std::arch::asm!(
                        concat!($spread, " {one}, [{at} + {bytes} * {times} + {ahead}]"),
                        one = out($class) one,
                        at = in(reg) at,
                        bytes = in(reg) bytes,
                        times = const P::DISTANCES,
                        ahead = const P::ELEMENTS * size_of::<$t>(),
                        options(readonly, nostack, preserves_flags),
                    );
                }
                one
            }
        }

        // SAFETY, of what follows: kernels of a level with these registers alone name the type.
        impl Vector<$t> for $name {
            type One = std::arch::x86_64::$register;
            const APART: usize = 12;
            const IS_NAMED: bool = true;

            #[inline(always)]
            fn one(x: $t) -> Self::One {
                // SAFETY: see above.
                unsafe { std::arch::x86_64::$one(x) }
            }

            #[inline(always)]
            unsafe fn one_at<P: Place>(at: *const $t, bytes: isize) -> Self::One {
                // SAFETY: by contract; see above.
                unsafe { Self::read::<P>(at, bytes) }
            }

            #[inline(always)]
            fn zero() -> Self {
                // SAFETY: see above.
                $name(unsafe { std::arch::x86_64::$zero() })
            }

            #[inline(always)]
            fn add_product(&mut self, x: Self::One, y: &Self) {
                // SAFETY: see above.
                self.0 = unsafe { std::arch::x86_64::$fused(x, y.0, self.0) };
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
    F32x8(__m256, ymm_reg, "avx2,fma") of f32, "vbroadcastss":
        _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps;
    /// Four of f64, in a register of AVX2.
    F64x4(__m256d, ymm_reg, "avx2,fma") of f64, "vbroadcastsd":
        _mm256_setzero_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_add_pd;
    /// Sixteen of f32, in a register of AVX-512.
    F32x16(__m512, zmm_reg, "avx512f") of f32, "vbroadcastss":
        _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps;
    /// Eight of f64, in a register of AVX-512.
    F64x8(__m512d, zmm_reg, "avx512f") of f64, "vbroadcastsd":
        _mm512_setzero_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_add_pd;
}
