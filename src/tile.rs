//! Kernels over one tile: contiguous elements in register form.
//!
//! A kernel is one scalar formula compiled for three instruction sets, and the choice is made once,
//! when the kernel is asked for. Every element is computed by the same operations wherever it stands
//! in a tile, so results do not depend on how work is cut into tiles.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::dtype::{Compute, DType};

/// Computes `n` elements of `dst` from `n` elements of each argument, all contiguous and in register
/// form ([`Compute`]); bools are the bytes 0 and 1.
///
/// # Safety
/// The pointers the kernel's arity asks for are valid for `n` elements and aligned to them. `dst`
/// may be exactly the memory of an argument whose elements are no smaller; otherwise it overlaps none.
pub type TileKernel = unsafe fn(dst: *mut u8, args: &[*const u8; 3], n: usize);

/// A formula of one element. Implementations are unit structs whose `map` is `#[inline(always)]`.
pub trait Map1<A> {
    /// The element type of the result.
    type Out: Copy;
    /// The formula.
    fn map(a: A) -> Self::Out;
}

/// A formula of two elements.
pub trait Map2<A, B> {
    /// The element type of the result.
    type Out: Copy;
    /// The formula.
    fn map(a: A, b: B) -> Self::Out;
}

/// A formula of three elements.
pub trait Map3<A, B, C> {
    /// The element type of the result.
    type Out: Copy;
    /// The formula.
    fn map(a: A, b: B, c: C) -> Self::Out;
}

/// Elements a kernel loads before it stores any: keeps a call in place free of run-time alias checks,
/// so that it stays vectorised.
const BLOCK: usize = 64;

/// What the loop needs of a formula, whatever its arity: `load` reads the operands of elements
/// `i..i + N`, `at` computes one of them.
trait Body {
    type Out: Copy;
    type Loaded<const N: usize>: Copy;
    /// # Safety
    /// Every argument is valid for elements `i..i + N`.
    unsafe fn load<const N: usize>(args: &[*const u8; 3], i: usize) -> Self::Loaded<N>;
    fn at<const N: usize>(loaded: &Self::Loaded<N>, k: usize) -> Self::Out;
}

struct Unary<F, A>(PhantomData<(F, A)>);
struct Binary<F, A, B>(PhantomData<(F, A, B)>);
struct Ternary<F, A, B, C>(PhantomData<(F, A, B, C)>);

/// # Safety
/// `args` is valid for elements `i..i + N`.
#[inline(always)]
unsafe fn block<T: Copy, const N: usize>(arg: *const u8, i: usize) -> [T; N] {
    // SAFETY: the caller vouches for the range; an array is aligned as its elements are.
    unsafe { arg.cast::<T>().add(i).cast::<[T; N]>().read() }
}

impl<F: Map1<A>, A: Copy> Body for Unary<F, A> {
    type Out = F::Out;
    type Loaded<const N: usize> = [A; N];
    #[inline(always)]
    unsafe fn load<const N: usize>(args: &[*const u8; 3], i: usize) -> [A; N] {
        // SAFETY: as the caller's.
        unsafe { block(args[0], i) }
    }
    #[inline(always)]
    fn at<const N: usize>(a: &[A; N], k: usize) -> F::Out {
        F::map(a[k])
    }
}

impl<F: Map2<A, B>, A: Copy, B: Copy> Body for Binary<F, A, B> {
    type Out = F::Out;
    type Loaded<const N: usize> = ([A; N], [B; N]);
    #[inline(always)]
    unsafe fn load<const N: usize>(args: &[*const u8; 3], i: usize) -> ([A; N], [B; N]) {
        // SAFETY: as the caller's.
        unsafe { (block(args[0], i), block(args[1], i)) }
    }
    #[inline(always)]
    fn at<const N: usize>((a, b): &([A; N], [B; N]), k: usize) -> F::Out {
        F::map(a[k], b[k])
    }
}

impl<F: Map3<A, B, C>, A: Copy, B: Copy, C: Copy> Body for Ternary<F, A, B, C> {
    type Out = F::Out;
    type Loaded<const N: usize> = ([A; N], [B; N], [C; N]);
    #[inline(always)]
    unsafe fn load<const N: usize>(args: &[*const u8; 3], i: usize) -> Self::Loaded<N> {
        // SAFETY: as the caller's.
        unsafe { (block(args[0], i), block(args[1], i), block(args[2], i)) }
    }
    #[inline(always)]
    fn at<const N: usize>((a, b, c): &Self::Loaded<N>, k: usize) -> F::Out {
        F::map(a[k], b[k], c[k])
    }
}

/// # Safety
/// As for [`TileKernel`].
#[inline(always)]
unsafe fn run<B: Body>(dst: *mut u8, args: &[*const u8; 3], n: usize) {
    let dst = dst.cast::<B::Out>();
    let mut i = 0;
    // SAFETY: the caller vouches for `n` elements of every pointer, and `i` stays below `n`.
    unsafe {
        while i + BLOCK <= n {
            let loaded = B::load::<BLOCK>(args, i);
            let mut out = [MaybeUninit::<B::Out>::uninit(); BLOCK];
            for k in 0..BLOCK {
                out[k].write(B::at(&loaded, k));
            }
            dst.add(i).cast::<[MaybeUninit<B::Out>; BLOCK]>().write(out);
            i += BLOCK;
        }
        while i < n {
            dst.add(i).write(B::at::<1>(&B::load(args, i), 0));
            i += 1;
        }
    }
}

/// The kernel of a body for this CPU.
fn select<B: Body>() -> TileKernel {
    /// # Safety
    /// As for [`TileKernel`], on a CPU with these features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt")]
    unsafe fn v4<B: Body>(dst: *mut u8, args: &[*const u8; 3], n: usize) {
        // SAFETY: as the caller's.
        unsafe { run::<B>(dst, args, n) }
    }
    /// # Safety
    /// As for [`TileKernel`], on a CPU with these features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt")]
    unsafe fn v3<B: Body>(dst: *mut u8, args: &[*const u8; 3], n: usize) {
        // SAFETY: as the caller's.
        unsafe { run::<B>(dst, args, n) }
    }
    /// # Safety
    /// As for [`TileKernel`].
    unsafe fn base<B: Body>(dst: *mut u8, args: &[*const u8; 3], n: usize) {
        // SAFETY: as the caller's.
        unsafe { run::<B>(dst, args, n) }
    }
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512dq") {
            return v4::<B>;
        }
        if is_x86_feature_detected!("avx2") {
            return v3::<B>;
        }
    }
    base::<B>
}

/// The kernel of a formula of one element, for this CPU.
pub fn kernel1<F: Map1<A>, A: Copy>() -> TileKernel {
    select::<Unary<F, A>>()
}

/// The kernel of a formula of two elements, for this CPU.
pub fn kernel2<F: Map2<A, B>, A: Copy, B: Copy>() -> TileKernel {
    select::<Binary<F, A, B>>()
}

/// The kernel of a formula of three elements, for this CPU.
pub fn kernel3<F: Map3<A, B, C>, A: Copy, B: Copy, C: Copy>() -> TileKernel {
    select::<Ternary<F, A, B, C>>()
}

/// Conversion between register types: integers wrap, floats become integers by truncation, saturating
/// at the bounds with NaN as 0, and anything but zero is true.
struct Cast<To>(PhantomData<To>);

/// Declares the casts from each register type to each other one.
macro_rules! casts {
    ($($from:ident => $($to:ident)*;)*) => {
        $(
            $(impl Map1<$from> for Cast<$to> {
                type Out = $to;
                #[inline(always)]
                fn map(a: $from) -> $to {
                    a as $to
                }
            })*
            impl Map1<$from> for Cast<bool> {
                type Out = bool;
                #[inline(always)]
                fn map(a: $from) -> bool {
                    a != 0 as $from
                }
            }
            impl Map1<bool> for Cast<$from> {
                type Out = $from;
                #[inline(always)]
                fn map(a: bool) -> $from {
                    u8::from(a) as $from
                }
            }
        )*
    };
}

casts! {
    i32 => i32 i64 u32 u64 f32 f64;
    i64 => i32 i64 u32 u64 f32 f64;
    u32 => i32 i64 u32 u64 f32 f64;
    u64 => i32 i64 u32 u64 f32 f64;
    f32 => i32 i64 u32 u64 f32 f64;
    f64 => i32 i64 u32 u64 f32 f64;
}

impl Map1<bool> for Cast<bool> {
    type Out = bool;
    #[inline(always)]
    fn map(a: bool) -> bool {
        a
    }
}

/// Runs `$body` with `$t` standing for the Rust type of a register type.
macro_rules! with_type {
    ($compute:expr, $t:ident => $body:expr) => {
        match $compute {
            Compute::Bool => {
                type $t = bool;
                $body
            }
            Compute::I32 => {
                type $t = i32;
                $body
            }
            Compute::I64 => {
                type $t = i64;
                $body
            }
            Compute::U32 => {
                type $t = u32;
                $body
            }
            Compute::U64 => {
                type $t = u64;
                $body
            }
            Compute::F32 => {
                type $t = f32;
                $body
            }
            Compute::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}

pub(crate) use with_type;

/// The kernel that converts between two register types.
pub fn cast(from: Compute, to: Compute) -> TileKernel {
    with_type!(from, A => with_type!(to, B => kernel1::<Cast<B>, A>()))
}

/// Rounds or wraps a register to what a narrow type `T` can hold.
struct Through<T>(PhantomData<T>);

macro_rules! wraps {
    ($($narrow:ident in $register:ident),*) => {$(
        impl Map1<$register> for Through<$narrow> {
            type Out = $register;
            #[inline(always)]
            fn map(a: $register) -> $register {
                a as $narrow as $register
            }
        }
    )*};
}

wraps!(i8 in i32, i16 in i32, u8 in u32, u16 in u32);

/// The kernel that rounds (float) or wraps (integer) a register to the values its narrow dtype can
/// hold; `None` for dtypes that registers hold as they are.
pub fn round_through(dtype: DType) -> Option<TileKernel> {
    Some(match dtype {
        DType::I8 => kernel1::<Through<i8>, i32>(),
        DType::I16 => kernel1::<Through<i16>, i32>(),
        DType::U8 => kernel1::<Through<u8>, u32>(),
        DType::U16 => kernel1::<Through<u16>, u32>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;

    /// A register value as a number whose conversions can be computed exactly.
    fn number(compute: Compute, bits: u64) -> Scalar {
        match compute {
            Compute::Bool => Scalar::Bool(bits != 0),
            Compute::I32 => Scalar::Int((bits as u32 as i32).into()),
            Compute::U32 => Scalar::Int((bits as u32).into()),
            Compute::I64 => Scalar::Int(bits as i64),
            Compute::U64 => Scalar::Uint(bits),
            Compute::F32 => Scalar::Float(f32::from_bits(bits as u32).into()),
            Compute::F64 => Scalar::Float(f64::from_bits(bits)),
        }
    }

    /// The conversion of one number through exact arithmetic.
    fn expected(x: Scalar, to: Compute) -> u64 {
        match (x, to.dtype().int_range()) {
            (Scalar::Float(x), Some((low, high))) => {
                let whole = if x.is_nan() { 0 } else { (x as i128).clamp(low, high) };
                whole as u64 & (u64::MAX >> (64 - 8 * to.size()))
            }
            _ => x.register_bits(to),
        }
    }

    fn samples(compute: Compute) -> Vec<u64> {
        let float = |x: f64| if compute == Compute::F32 { (x as f32).to_bits().into() } else { x.to_bits() };
        match compute {
            Compute::Bool => vec![0, 1],
            Compute::F32 | Compute::F64 => {
                let magnitudes = [0.0, 0.4, 0.5, 1.0, 1.5, 127.9, 255.0, 3e4, 65535.5, 2147483647.0, 4294967295.0];
                let large = [9.3e18, 1.9e19, 3e38, f64::INFINITY, f64::NAN, 1e-40, 16777217.0];
                magnitudes.iter().chain(&large).flat_map(|&x| [float(x), float(-x)]).collect()
            }
            _ => {
                let mask = u64::MAX >> (64 - 8 * compute.size());
                (0..64).flat_map(|k| [1u64 << k, (1 << k) - 1, !(1 << k), 0x9e37_79b9 << k]).map(|x| x & mask).collect()
            }
        }
    }

    fn pack(compute: Compute, values: &[u64]) -> Vec<u64> {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..compute.size()].to_vec()).collect();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    fn unpack(compute: Compute, words: &[u64], n: usize) -> Vec<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let one = |c: &[u8]| c.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
        bytes.chunks(compute.size()).take(n).map(one).collect()
    }

    #[test]
    fn casts_between_registers_match_exact_arithmetic() {
        for from in Compute::ALL {
            let values = samples(from);
            let n = values.len();
            let source = pack(from, &values);
            for to in Compute::ALL {
                let mut out = vec![0u64; n];
                let args = [source.as_ptr().cast(), std::ptr::null(), std::ptr::null()];
                // SAFETY: both vectors hold `n` elements of at most eight bytes.
                unsafe { cast(from, to)(out.as_mut_ptr().cast(), &args, n) };
                for (got, &bits) in unpack(to, &out, n).into_iter().zip(&values) {
                    let want = expected(number(from, bits), to);
                    let both_nan = to == Compute::F64 && f64::from_bits(got).is_nan() && f64::from_bits(want).is_nan()
                        || to == Compute::F32
                            && f32::from_bits(got as u32).is_nan()
                            && f32::from_bits(want as u32).is_nan();
                    assert!(got == want || both_nan, "{from:?} {bits:#x} to {to:?}: {got:#x}, wanted {want:#x}");
                }
            }
        }
    }

    #[test]
    fn every_length_and_place_gives_the_same_bits() {
        struct Formula;
        impl Map3<f32, i32, f32> for Formula {
            type Out = f32;
            fn map(a: f32, b: i32, c: f32) -> f32 {
                (a * b as f32 + c) / (a * a + 1.5)
            }
        }
        let kernel = kernel3::<Formula, f32, i32, f32>();
        let a: Vec<f32> = (0..200).map(|i| (i as f32 - 90.3) * 0.37).collect();
        let b: Vec<i32> = (0..200).map(|i| i * 7919 % 1001 - 500).collect();
        let c: Vec<f32> = (0..200).map(|i| 1.0 / (i as f32 + 0.1)).collect();
        let want: Vec<f32> = (0..200).map(|i| Formula::map(a[i], b[i], c[i])).collect();
        for n in (0..200).step_by(3) {
            for start in [0, 1, 5].into_iter().filter(|s| s + n <= 200) {
                let mut out = vec![7.0f32; n + 1];
                let mut place = c.clone();
                let args = [a[start..].as_ptr().cast(), b[start..].as_ptr().cast(), c[start..].as_ptr().cast()];
                // SAFETY: every pointer has `n` elements; the second call writes over its argument.
                unsafe {
                    kernel(out.as_mut_ptr().cast(), &args, n);
                    let dst = place[start..].as_mut_ptr().cast::<u8>();
                    kernel(dst, &[args[0], args[1], dst], n);
                }
                assert_eq!(out[..n], want[start..start + n]);
                assert_eq!(place[start..start + n], want[start..start + n]);
                assert_eq!(out[n], 7.0, "wrote past the end");
            }
        }
    }

    #[test]
    fn narrow_registers_wrap() {
        let kernel = round_through(DType::I8).unwrap();
        let mut x = [127i32, 128, -129, 1000];
        let p = x.as_mut_ptr().cast::<u8>();
        // SAFETY: four elements, in place.
        unsafe { kernel(p, &[p, p, p], 4) };
        assert_eq!(x, [127, -128, 127, -24]);
        assert!(round_through(DType::F32).is_none() && round_through(DType::U64).is_none());
    }
}
