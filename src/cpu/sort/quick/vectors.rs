//! The vectors that a quicksort works in.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Vector, network_by, part_by};

/// The loops of the sort, compiled with the instructions of a vector.
macro_rules! shells {
    ($lane:ty, $features:literal) => {
        #[inline(always)]
        unsafe fn part<const STRICT: bool>(
            items: *mut $lane,
            spare: *mut $lane,
            stretch: Range<usize>,
            pivot: $lane,
            ends: [usize; 2],
        ) -> [usize; 2] {
            #[target_feature(enable = $features)]
            unsafe fn shell<V: Vector, const STRICT: bool>(
                items: *mut V::Lane,
                spare: *mut V::Lane,
                stretch: Range<usize>,
                pivot: V::Lane,
                ends: [usize; 2],
            ) -> [usize; 2] {
                // SAFETY: as the caller's.
                unsafe { part_by::<V, STRICT>(items, spare, stretch, pivot, ends) }
            }
            // SAFETY: as the caller's.
            unsafe { shell::<Self, STRICT>(items, spare, stretch, pivot, ends) }
        }
        #[inline(always)]
        unsafe fn network<const N: usize>(items: *mut $lane, n: usize) {
            #[target_feature(enable = $features)]
            unsafe fn shell<V: Vector, const N: usize>(items: *mut V::Lane, n: usize) {
                // SAFETY: as the caller's.
                unsafe { network_by::<V, N>(items, n) }
            }
            // SAFETY: as the caller's.
            unsafe { shell::<Self, N>(items, n) }
        }
    };
}

macro_rules! vector {
    ($(#[$doc:meta])* $name:ident of $lane:ty as $number:ty, $lanes:literal, $mask:ty: $load_first:ident $store_first:ident $splat:ident
     $min:ident $max:ident $or_max:ident $at_most:ident $below:ident $compress:ident
     $permute:ident $permute_both:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(__m512i);

        // SAFETY (of the intrinsics): the callers of this module have AVX-512, and vouch for
        // what is read and written.
        impl Vector for $name {
            shells!($lane, "avx512f,avx512vl,avx512bw,avx512dq,popcnt,bmi1,bmi2");
            type Lane = $lane;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn load(p: *const $lane) -> Self {
                unsafe { $name(_mm512_loadu_si512(p.cast())) }
            }
            #[inline(always)]
            unsafe fn load_first(p: *const $lane, count: usize) -> Self {
                let lanes = ((1u64 << count) - 1) as $mask;
                unsafe { $name($load_first(_mm512_set1_epi64(-1), lanes, p.cast())) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $lane) {
                unsafe { _mm512_storeu_si512(p.cast(), self.0) }
            }
            #[inline(always)]
            unsafe fn store_first(self, p: *mut $lane, count: usize) {
                let lanes = ((1u64 << count) - 1) as $mask;
                unsafe { $store_first(p.cast(), lanes, self.0) }
            }
            #[inline(always)]
            unsafe fn splat(x: $lane) -> Self {
                unsafe { $name($splat(x as $number)) }
            }
            #[inline(always)]
            unsafe fn min(self, other: Self) -> Self {
                unsafe { $name($min(self.0, other.0)) }
            }
            #[inline(always)]
            unsafe fn max(self, other: Self) -> Self {
                unsafe { $name($max(self.0, other.0)) }
            }
            #[inline(always)]
            unsafe fn within<const STRICT: bool>(self, bound: Self) -> u32 {
                let lanes = unsafe {
                    if STRICT { $below(self.0, bound.0) } else { $at_most(self.0, bound.0) }
                };
                u32::from(lanes)
            }
            #[inline(always)]
            unsafe fn compress(self, lanes: u32) -> Self {
                unsafe { $name($compress(lanes as $mask, self.0)) }
            }
            #[inline(always)]
            unsafe fn meet<const X: usize, const HIGH: usize>(self, other: Self) -> Self {
                let (mut from, mut high): ([$lane; $lanes], $mask) = ([0; $lanes], 0);
                for (i, from) in from.iter_mut().enumerate() {
                    *from = (i ^ X) as $lane;
                    high |= <$mask>::from(i & HIGH != 0) << i;
                }
                unsafe {
                    let from = _mm512_loadu_si512(from.as_ptr().cast());
                    let other = $permute(from, other.0);
                    $name($or_max($min(self.0, other), high, self.0, other))
                }
            }
            #[inline(always)]
            unsafe fn riffle<const VECTOR: usize>(self, other: Self) -> Self {
                let mut from: [$lane; $lanes] = [0; $lanes];
                for (i, from) in from.iter_mut().enumerate() {
                    *from = (VECTOR * $lanes / 2 + i / 2 + i % 2 * $lanes) as $lane;
                }
                unsafe {
                    let from = _mm512_loadu_si512(from.as_ptr().cast());
                    $name($permute_both(self.0, from, other.0))
                }
            }
        }
    };
}

vector! {
    /// Integers of 32 bits.
    Words of u32 as i32, 16, u16:
    _mm512_mask_loadu_epi32 _mm512_mask_storeu_epi32 _mm512_set1_epi32
    _mm512_min_epu32 _mm512_max_epu32 _mm512_mask_max_epu32
    _mm512_cmple_epu32_mask _mm512_cmplt_epu32_mask _mm512_maskz_compress_epi32
    _mm512_permutexvar_epi32 _mm512_permutex2var_epi32
}

vector! {
    /// Integers of 64 bits.
    Doubles of u64 as i64, 8, u8:
    _mm512_mask_loadu_epi64 _mm512_mask_storeu_epi64 _mm512_set1_epi64
    _mm512_min_epu64 _mm512_max_epu64 _mm512_mask_max_epu64
    _mm512_cmple_epu64_mask _mm512_cmplt_epu64_mask _mm512_maskz_compress_epi64
    _mm512_permutexvar_epi64 _mm512_permutex2var_epi64
}

/// The places of the lanes that are chosen, side by side, for each choice of eight.
static CHOSEN: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut lanes = 0;
    while lanes < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < 8 {
            if lanes >> lane & 1 == 1 {
                all[lanes][count] = lane as u8;
                count += 1;
            }
            lane += 1;
        }
        lanes += 1;
    }
    all
};

/// Eight integers of 32 bits, for AVX2.
#[derive(Clone, Copy)]
pub struct Eight(__m256i);

impl Eight {
    /// All bits of the first lanes.
    #[inline(always)]
    unsafe fn first(count: usize) -> __m256i {
        // SAFETY: as the caller's.
        unsafe {
            let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), places)
        }
    }
}

// SAFETY (of the intrinsics): the callers of this module have AVX2, and vouch for what is read and
// written.
impl Vector for Eight {
    shells!(u32, "avx2,fma,popcnt,bmi1,bmi2");
    type Lane = u32;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn load(p: *const u32) -> Self {
        unsafe { Eight(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const u32, count: usize) -> Self {
        unsafe {
            let lanes = Self::first(count);
            let others = _mm256_xor_si256(lanes, _mm256_set1_epi32(-1));
            Eight(_mm256_or_si256(_mm256_maskload_epi32(p.cast(), lanes), others))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut u32) {
        unsafe { _mm256_storeu_si256(p.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut u32, count: usize) {
        unsafe { _mm256_maskstore_epi32(p.cast(), Self::first(count), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: u32) -> Self {
        unsafe { Eight(_mm256_set1_epi32(x as i32)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Eight(_mm256_min_epu32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Eight(_mm256_max_epu32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn within<const STRICT: bool>(self, bound: Self) -> u32 {
        // There is no comparison of unsigned integers but for equality.
        unsafe {
            let end = if STRICT { self.max(bound) } else { self.min(bound) };
            let is_end = _mm256_castsi256_ps(_mm256_cmpeq_epi32(end.0, self.0));
            let lanes = _mm256_movemask_ps(is_end) as u32;
            if STRICT { !lanes & 0xff } else { lanes }
        }
    }
    #[inline(always)]
    unsafe fn compress(self, lanes: u32) -> Self {
        unsafe {
            let from = _mm_loadl_epi64(CHOSEN[(lanes & 0xff) as usize].as_ptr().cast());
            Eight(_mm256_permutevar8x32_epi32(self.0, _mm256_cvtepu8_epi32(from)))
        }
    }
    #[inline(always)]
    unsafe fn meet<const X: usize, const HIGH: usize>(self, other: Self) -> Self {
        let (mut from, mut high) = ([0i32; 8], [0i32; 8]);
        for i in 0..8 {
            (from[i], high[i]) = ((i ^ X) as i32, if i & HIGH == 0 { 0 } else { -1 });
        }
        unsafe {
            let from = _mm256_loadu_si256(from.as_ptr().cast());
            let other = Eight(_mm256_permutevar8x32_epi32(other.0, from));
            let high = _mm256_loadu_si256(high.as_ptr().cast());
            Eight(_mm256_blendv_epi8(self.min(other).0, self.max(other).0, high))
        }
    }
    #[inline(always)]
    unsafe fn riffle<const VECTOR: usize>(self, other: Self) -> Self {
        unsafe {
            let low = _mm256_unpacklo_epi32(self.0, other.0);
            let high = _mm256_unpackhi_epi32(self.0, other.0);
            Eight(match VECTOR {
                0 => _mm256_permute2x128_si256::<0x20>(low, high),
                _ => _mm256_permute2x128_si256::<0x31>(low, high),
            })
        }
    }
}
