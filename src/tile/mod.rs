//! Kernels over one tile: contiguous elements in register form.
//!
//! A kernel is one scalar formula compiled for three instruction sets, and the choice is made once,
//! when the kernel is asked for. Every element is computed by the same operations wherever it
//! stands in a tile, so results do not depend on how work is cut into tiles.

mod convert;

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::multiversion;
use crate::scalar::Native;
use crate::simd::isa;

pub use convert::{cast, narrow, round_through, widen};

/// Computes `n` elements of `dst` from `n` elements of each argument, all contiguous and in
/// register form ([`Compute`]); bools are the bytes 0 and 1.
///
/// # Safety
/// The pointers the kernel's arity asks for are valid for `n` elements and aligned to them. `dst`
/// may be exactly the memory of an argument whose elements are no smaller; otherwise it overlaps
/// none.
pub type TileKernel = unsafe fn(dst: *mut u8, args: &[*const u8; 3], n: usize);

/// A formula of one element. Implementations are unit structs whose `map` is `#[inline(always)]`.
pub trait Map1<A> {
    /// The element type of the result.
    type Out: Copy;
    /// The formula.
    fn map(a: A) -> Self::Out;
    /// Whether [`Map1::rare`] holds for all elements.
    const RARE_HOLDS: bool = false;
    /// Whether the element is one of the rare ones that the formula does not hold for.
    #[inline(always)]
    fn is_rare(_: A) -> bool {
        false
    }
    /// The formula of a rare element; may be slow.
    #[inline(always)]
    fn rare(a: A) -> Self::Out {
        Self::map(a)
    }
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

/// The most elements of a tile that is computed in scratch memory: a few registers stay in the
/// innermost cache.
pub const TILE: usize = 1024;

/// Elements a kernel loads before it stores any: keeps a call in place free of run-time alias
/// checks, so that it stays vectorised.
const BLOCK: usize = 64;

/// Elements computed at once at the end of a range, where fewer than a block are left.
pub const SHORT: usize = 16;

/// What the loop needs of a formula, whatever its arity: `load` reads the operands of elements
/// `i..i + N`, `at` computes one of them.
trait Body {
    type Out: Copy;
    type Loaded<const N: usize>: Copy;
    /// # Safety
    /// Every argument is valid for elements `i..i + N`.
    unsafe fn load<const N: usize>(args: &[*const u8; 3], i: usize) -> Self::Loaded<N>;
    /// # Safety
    /// Every argument is valid for elements `i..i + count`, and zero bytes are an element.
    unsafe fn load_part<const N: usize>(
        args: &[*const u8; 3],
        i: usize,
        count: usize,
    ) -> Self::Loaded<N>;
    fn at<const N: usize>(loaded: &Self::Loaded<N>, k: usize) -> Self::Out;
    /// Whether `rare` holds for all elements.
    const RARE_HOLDS: bool = false;
    /// Whether `at` does not hold for an element, and `rare` does.
    #[inline(always)]
    fn is_rare<const N: usize>(_: &Self::Loaded<N>, _: usize) -> bool {
        false
    }
    #[inline(always)]
    fn rare<const N: usize>(loaded: &Self::Loaded<N>, k: usize) -> Self::Out {
        Self::at(loaded, k)
    }
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

/// What is left over: behind it zeros, or the one element again. What is most often left over in small
/// calls, all or one, is read without a call.
///
/// # Safety
/// `arg` is valid for elements `i..i + count`, `count` is at most `N`, and zero bytes are a `T`.
#[inline(always)]
unsafe fn part<T: Copy, const N: usize>(arg: *const u8, i: usize, count: usize) -> [T; N] {
    // SAFETY: as the caller's.
    unsafe {
        match count {
            1 => return [*arg.cast::<T>().add(i); N],
            _ if count == N => return block(arg, i),
            _ => {}
        }
    }
    let mut block = MaybeUninit::<[T; N]>::zeroed();
    // SAFETY: the caller vouches for the range and for zeros.
    unsafe {
        let from = arg.cast::<T>().add(i);
        block.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(from, count);
        block.assume_init()
    }
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
    unsafe fn load_part<const N: usize>(args: &[*const u8; 3], i: usize, count: usize) -> [A; N] {
        // SAFETY: as the caller's.
        unsafe { part(args[0], i, count) }
    }
    #[inline(always)]
    fn at<const N: usize>(a: &[A; N], k: usize) -> F::Out {
        F::map(a[k])
    }
    const RARE_HOLDS: bool = F::RARE_HOLDS;
    #[inline(always)]
    fn is_rare<const N: usize>(a: &[A; N], k: usize) -> bool {
        F::is_rare(a[k])
    }
    #[inline(always)]
    fn rare<const N: usize>(a: &[A; N], k: usize) -> F::Out {
        F::rare(a[k])
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
    unsafe fn load_part<const N: usize>(
        args: &[*const u8; 3],
        i: usize,
        count: usize,
    ) -> Self::Loaded<N> {
        // SAFETY: as the caller's.
        unsafe { (part(args[0], i, count), part(args[1], i, count)) }
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
    unsafe fn load_part<const N: usize>(
        args: &[*const u8; 3],
        i: usize,
        count: usize,
    ) -> Self::Loaded<N> {
        // SAFETY: as the caller's.
        unsafe { (part(args[0], i, count), part(args[1], i, count), part(args[2], i, count)) }
    }
    #[inline(always)]
    fn at<const N: usize>((a, b, c): &Self::Loaded<N>, k: usize) -> F::Out {
        F::map(a[k], b[k], c[k])
    }
}

/// The results of the elements in registers. Whether any is rare is one comparison for each vector,
/// so that a tile without one costs what it would if there were none.
#[inline(always)]
fn computed<B: Body, const N: usize>(loaded: &B::Loaded<N>) -> [MaybeUninit<B::Out>; N] {
    let mut out = [MaybeUninit::<B::Out>::uninit(); N];
    for (k, y) in out.iter_mut().enumerate() {
        y.write(B::at(loaded, k));
    }
    if (0..N).fold(false, |any, k| any | B::is_rare(loaded, k)) {
        // In vectors again, where that is possible: rare elements seldom come alone.
        for (k, y) in out.iter_mut().enumerate() {
            if B::RARE_HOLDS || B::is_rare(loaded, k) {
                y.write(B::rare(loaded, k));
            }
        }
    }
    out
}

multiversion! {
    /// The loop of every kernel.
    ///
    /// # Safety
    /// As for [`TileKernel`].
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn run[B](dst: *mut u8, args: &[*const u8; 3], n: usize) where [B: Body] {
        let dst = dst.cast::<B::Out>();
        let mut i = 0;
        // SAFETY: the caller vouches for `n` elements of every pointer, and `i` stays below `n`.
        unsafe {
            while i + BLOCK <= n {
                let loaded = B::load::<BLOCK>(args, i);
                let out = computed::<B, BLOCK>(&loaded);
                dst.add(i).cast::<[MaybeUninit<B::Out>; BLOCK]>().write(out);
                i += BLOCK;
            }
            while i < n {
                // What is left, in vectors too: lanes past the end compute unseen.
                let count = (n - i).min(SHORT);
                let loaded = B::load_part::<SHORT>(args, i, count);
                let out = computed::<B, SHORT>(&loaded);
                match count {
                    1 => dst.add(i).cast::<MaybeUninit<B::Out>>().write(out[0]),
                    SHORT => dst.add(i).cast::<[MaybeUninit<B::Out>; SHORT]>().write(out),
                    _ => dst.add(i).copy_from_nonoverlapping(out.as_ptr().cast(), count),
                }
                i += SHORT;
            }
        }
    }
}

/// The kernel of one body where the processor has fused multiply-adds, else that of the other.
fn best<Least: Body, Fused: Body>() -> TileKernel {
    run::above::<Fused>(isa()).unwrap_or_else(run::base::<Least>)
}

/// The kernel of a mathematical formula of one number, for this CPU.
pub fn formula1<F: Map1<A> + Map1<A::Fused>, A: Native>() -> TileKernel {
    best::<Unary<F, A>, Unary<F, A::Fused>>()
}

/// The kernel of a mathematical formula of two numbers, for this CPU.
pub fn formula2<F: Map2<A, A> + Map2<A::Fused, A::Fused>, A: Native>() -> TileKernel {
    best::<Binary<F, A, A>, Binary<F, A::Fused, A::Fused>>()
}

/// The kernel of a mathematical formula of a condition and two numbers, for this CPU.
pub fn formula3<F, A: Native>() -> TileKernel
where
    F: Map3<bool, A, A> + Map3<bool, A::Fused, A::Fused>,
{
    best::<Ternary<F, bool, A, A>, Ternary<F, bool, A::Fused, A::Fused>>()
}

/// The kernel of any formula of one element, for this CPU.
pub fn kernel1<F: Map1<A>, A: Copy>() -> TileKernel {
    run::select::<Unary<F, A>>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::Float;

    #[test]
    fn every_length_and_place_gives_the_same_bits() {
        struct Formula;
        impl<S: Float> Map3<S::Mask, S, S> for Formula {
            type Out = S;
            fn map(a: S::Mask, b: S, c: S) -> S {
                S::select(a, b * c + b, c) / (b * b + S::lit(1.5))
            }
        }
        let kernel = formula3::<Formula, f32>();
        let a: Vec<bool> = (0..200).map(|i| i * 7919 % 3 == 0).collect();
        let b: Vec<f32> = (0..200).map(|i| (i as f32 - 90.3) * 0.37).collect();
        let c: Vec<f32> = (0..200).map(|i| 1.0 / (i as f32 + 0.1)).collect();
        let want: Vec<f32> = (0..200).map(|i| Formula::map(a[i], b[i], c[i])).collect();
        for n in (0..200).step_by(3) {
            for start in [0, 1, 5].into_iter().filter(|s| s + n <= 200) {
                let mut out = vec![7.0f32; n + 1];
                let mut place = c.clone();
                let args = [
                    a[start..].as_ptr().cast(),
                    b[start..].as_ptr().cast(),
                    c[start..].as_ptr().cast(),
                ];
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
}
