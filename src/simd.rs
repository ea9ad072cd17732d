//! The instruction set, chosen once, and functions compiled for each.
//!
//! Promises: [`isa`] never names more than the processor has; a function made by
//! [`multiversion!`](crate::multiversion) gives the same bits whichever version runs (nothing is
//! contracted or re-associated: only the width differs).

use crate::fork::Lazy;
use crate::settings;

/// A level of the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every processor of this architecture has.
    Base,
    /// x86-64-v3: AVX2, FMA, BMI, F16C.
    V3,
    /// x86-64-v4: AVX-512 F, VL, BW, DQ, CD.
    V4,
}

impl Isa {
    /// Every level, lowest first.
    pub const ALL: [Isa; 3] = [Isa::Base, Isa::V3, Isa::V4];

    /// The name that `WENGERT_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Base => "base",
            Isa::V3 => "v3",
            Isa::V4 => "v4",
        }
    }

    /// Whether this build has code of this level and the processor can run it.
    pub fn is_available(self) -> bool {
        self <= detected()
    }
}

/// The level in use: the highest the processor has, or a lower one that `WENGERT_ISA` names
/// (`base`, `v3`, `v4`).
#[inline]
pub fn isa() -> Isa {
    static CHOSEN: Lazy<Isa> = Lazy::new(|| choose(settings::ISA.value().as_deref()));
    *CHOSEN
}

fn choose(wish: Option<&str>) -> Isa {
    let wish = match wish {
        Some("base") => Isa::Base,
        Some("v3") => Isa::V3,
        _ => Isa::V4,
    };
    wish.min(detected())
}

/// The highest level that this build has all kernels for and the processor has.
fn detected() -> Isa {
    if cfg!(one_isa) { Isa::Base } else { processor() }
}

/// Whether the processor takes vectors of so many bytes in two turns, as those of AMD with Zen 4 cores
/// take 64 bytes: it multiplies one of them at a time, not two.
pub fn takes_turns(bytes: usize) -> bool {
    static HALVES: Lazy<bool> = Lazy::new(halves);
    bytes == 64 && *HALVES
}

/// The family of Zen 4; of Zen 3 too, which has no such vectors.
#[cfg(target_arch = "x86_64")]
fn halves() -> bool {
    use std::arch::x86_64::__cpuid;
    const FAMILY: u32 = 0x19;
    let version = __cpuid(1).eax;
    is_amd() && (version >> 8 & 15) + (version >> 20 & 255) == FAMILY
}

/// Whether AMD made the processor.
#[cfg(target_arch = "x86_64")]
pub fn is_amd() -> bool {
    std::arch::x86_64::__cpuid(0).ebx == u32::from_le_bytes(*b"Auth")
}

/// Whether AMD made the processor: of no other architecture that this is built for.
#[cfg(not(target_arch = "x86_64"))]
pub fn is_amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn halves() -> bool {
    false
}

/// The highest level that the processor has.
#[cfg(target_arch = "x86_64")]
pub fn processor() -> Isa {
    macro_rules! all {
        ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    if !all!("avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "popcnt") {
        Isa::Base
    } else if !all!("avx512f" "avx512vl" "avx512bw" "avx512dq" "avx512cd") {
        Isa::V3
    } else {
        Isa::V4
    }
}

/// The highest level that the processor has.
#[cfg(not(target_arch = "x86_64"))]
pub fn processor() -> Isa {
    Isa::Base
}

/// Compiles the body of a function once for each level of the instruction set.
///
/// Type parameters stand in brackets, const parameters after a semicolon, bounds after `where` in
/// brackets. What the body calls must be `#[inline(always)]` to be compiled with it. In the body
/// `FMA` is a constant: whether this version may use fused multiply-adds. The tests of this file have
/// two such functions.
///
/// `name::select::<T, N>()` gives the version for this machine, to keep in a table of kernels, and
/// `name::at::<T, N>(isa)` that for a level, as far as the processor has it.
#[macro_export]
macro_rules! multiversion {
    ($(
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident
        $([ $($T:ident),* $(; $(const $N:ident : $NT:ty),+)? ])?
        ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?
        $(where [ $($bounds:tt)* ])?
        $body:block
    )+) => { $(
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name $(< $($T,)* $($(const $N: $NT),+)? >)? ($($arg: $ty),*) $(-> $ret)?
        $(where $($bounds)*)?
        {
            // SAFETY: the contract is the caller's; the version is one that the processor has.
            unsafe { $name::select $(::< $($T,)* $($($N),+)? >)? ()($($arg),*) }
        }

        #[doc = concat!("The versions of [`", stringify!($name), "`](fn@", stringify!($name), ").")]
        $vis mod $name {
            #[allow(unused_imports)]
            use super::*;

            /// The version for this machine.
            #[inline]
            pub fn select $(< $($T,)* $($(const $N: $NT),+)? >)? () -> unsafe fn($($ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                at $(::< $($T,)* $($($N),+)? >)? ($crate::simd::isa())
            }

            /// The version for the lowest level.
            #[inline]
            #[allow(dead_code)]
            pub fn base $(< $($T,)* $($(const $N: $NT),+)? >)? () -> unsafe fn($($ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                shell_base $(::< $($T,)* $($($N),+)? >)?
            }

            /// The version for a level above the lowest that the processor has; `None` for others.
            #[inline]
            #[allow(dead_code, unused_variables)]
            pub fn above $(< $($T,)* $($(const $N: $NT),+)? >)? (isa: $crate::simd::Isa) -> Option<unsafe fn($($ty),*) $(-> $ret)?>
            $(where $($bounds)*)?
            {
                debug_assert!(isa.is_available());
                match isa {
                    #[cfg(all(target_arch = "x86_64", not(one_isa)))]
                    $crate::simd::Isa::V4 => Some(shell_v4 $(::< $($T,)* $($($N),+)? >)?),
                    #[cfg(all(target_arch = "x86_64", not(one_isa)))]
                    $crate::simd::Isa::V3 => Some(shell_v3 $(::< $($T,)* $($($N),+)? >)?),
                    _ => None,
                }
            }

            /// The version for a level of the instruction set that the processor has.
            #[inline]
            #[allow(dead_code)]
            pub fn at $(< $($T,)* $($(const $N: $NT),+)? >)? (isa: $crate::simd::Isa) -> unsafe fn($($ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                match above $(::< $($T,)* $($($N),+)? >)? (isa) {
                    Some(version) => version,
                    None => base $(::< $($T,)* $($($N),+)? >)? (),
                }
            }

            #[cfg(all(target_arch = "x86_64", not(one_isa)))]
            #[target_feature(
                enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt"
            )]
            unsafe fn shell_v4 $(< $($T,)* $($(const $N: $NT),+)? >)? ($($arg: $ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                #[allow(dead_code, reason = "not every body asks")]
                const FMA: bool = true;
                $body
            }

            #[cfg(all(target_arch = "x86_64", not(one_isa)))]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt")]
            unsafe fn shell_v3 $(< $($T,)* $($(const $N: $NT),+)? >)? ($($arg: $ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                #[allow(dead_code, reason = "not every body asks")]
                const FMA: bool = true;
                $body
            }

            unsafe fn shell_base $(< $($T,)* $($(const $N: $NT),+)? >)? ($($arg: $ty),*) $(-> $ret)?
            $(where $($bounds)*)?
            {
                #[allow(dead_code, reason = "not every body asks")]
                const FMA: bool = false;
                $body
            }
        }
    )+ };
}

/// Copies `bytes` bytes past the caches: for outputs larger than these, whose old contents then
/// need not be read. Plain copying where `dst` is not aligned to 64 bytes. Call [`stream_fence`]
/// after the last copy, before another thread is told of it.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes, and they do not overlap.
#[inline]
pub unsafe fn stream_copy(dst: *mut u8, src: *const u8, bytes: usize) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if (dst as usize).is_multiple_of(64) {
        done = bytes & !63;
        // SAFETY: inside both and aligned; the processor has the level.
        unsafe {
            if isa() == Isa::V4 { stream_v4(dst, src, done) } else { stream_base(dst, src, done) }
        }
    }
    // SAFETY: by contract.
    unsafe { dst.add(done).copy_from_nonoverlapping(src.add(done), bytes - done) };
}

/// # Safety
/// As for [`stream_copy`]; `dst` is aligned to 64 bytes and `bytes` a multiple of them.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_base(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for at in (0..bytes).step_by(16) {
        // SAFETY: inside both. SSE2 is part of x86-64.
        unsafe {
            _mm_stream_si128(dst.add(at).cast::<__m128i>(), _mm_loadu_si128(src.add(at).cast()))
        };
    }
}

/// # Safety
/// As for [`stream_base`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_v4(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};
    for at in (0..bytes).step_by(64) {
        // SAFETY: inside both.
        unsafe {
            let line = _mm512_loadu_si512(src.add(at).cast());
            _mm512_stream_si512(dst.add(at).cast::<__m512i>(), line)
        };
    }
}

/// Orders the copies of [`stream_copy`] before later stores, on which readers on other threads
/// rely.
#[inline]
pub fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    multiversion! {
        /// The sum of the squares, in order.
        unsafe fn squares[T; const N: usize](x: &[T; N]) -> T
        where [T: Copy + std::ops::Mul<Output = T> + std::iter::Sum<T>] {
            x.iter().map(|&v| v * v).sum()
        }

        /// Twice `x`.
        unsafe fn twice(x: u32) -> u32 {
            2 * x
        }
    }

    #[test]
    fn every_version_that_the_processor_has_gives_the_same() {
        let x: [f64; 9] = std::array::from_fn(|i| 1.0 + i as f64);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            // SAFETY: any arguments will do.
            unsafe {
                assert_eq!(squares::at::<f64, 9>(isa)(&x), 285.0);
                assert_eq!(twice::at(isa)(21), 42);
            }
        }
        // SAFETY: any arguments will do.
        unsafe { assert_eq!((squares(&x), twice(4)), (285.0, 8)) };
    }

    #[test]
    fn the_environment_may_only_lower_the_level() {
        assert_eq!(choose(Some("base")), Isa::Base);
        assert_eq!(choose(Some("v3")), Isa::V3.min(detected()));
        assert_eq!(choose(Some("v4")), detected());
        assert_eq!(choose(None), detected());
        assert!(isa().is_available() && Isa::Base.is_available());
    }

    #[test]
    fn streaming_copies_every_byte_aligned_or_not() {
        let src: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        for (at, bytes) in [(0, 0), (0, 64), (0, 999), (1, 900), (64, 777)] {
            let buffer = crate::memory::Buffer::zeroed(1100).unwrap();
            // SAFETY: fresh, and long enough.
            let copied = unsafe {
                stream_copy(buffer.ptr_mut().add(at), src.as_ptr(), bytes);
                std::slice::from_raw_parts(buffer.ptr(), 1100)
            };
            assert_eq!(copied[at..at + bytes], src[..bytes]);
            assert!(copied[at + bytes..].iter().all(|&byte| byte == 0));
        }
    }
}
