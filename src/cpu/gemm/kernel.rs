//! The inner loops of a product, compiled for every element type and instruction set.
//!
//! Every kernel computes the `Σ a[k] b[k]` of an output element as one chain with `k` ascending,
//! with a fused multiply-add where the machine has one. So the bits of an element do not depend on
//! which kernel computes it.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

use std::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
use super::square;
#[cfg(target_arch = "x86_64")]
use super::vector::{F32x8, F32x16, F64x4, F64x8};
use super::vector::{Lanes, Vector};
use crate::simd::{Isa, isa};

/// The elements of a sum: floats, wrapping integers, and truth values under or / and.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// `self + a·b`; with one rounding if `F`, which says that the instruction set has the fused
    /// operation.
    fn fma<const F: bool>(self, a: Self, b: Self) -> Self;
    /// `self + other`
    fn plus(self, other: Self) -> Self;
    /// The kernels for an instruction set of this machine.
    fn kernels_of(isa: Isa) -> Kernels<Self>;

    /// The kernels for the instruction set that was chosen.
    fn kernels() -> Kernels<Self> {
        Self::kernels_of(isa())
    }
}

/// `c[i][j] = (c[i][j] +) Σ_k a[i][k] b[k][j]` over one tile. Arguments: the depth; `a` and its two
/// strides; `b`, whose columns have unit stride, and its row stride; `c` and its row stride;
/// whether `c` is overwritten instead of added to.
///
/// # Safety
/// Every address named must be valid; `c` overlaps neither operand.
pub type Micro<T> =
    unsafe fn(usize, *const T, (isize, isize), *const T, isize, *mut T, isize, bool);

/// As [`Micro`], with an offset for each row of `b` instead of a stride.
///
/// # Safety
/// As [`Micro`].
pub type Listed<T> =
    unsafe fn(usize, *const T, (isize, isize), *const T, *const isize, *mut T, isize, bool);

/// The kernels of a tile.
#[derive(Clone, Copy)]
pub struct TileKernels<T: 'static> {
    /// Its rows
    pub rows: usize,
    /// For a stride along `k`
    pub micro: Micro<T>,
    /// For a list of offsets
    pub listed: Listed<T>,
}

/// As [`Micro`], for few rows and any count of columns. `(rows, columns)` come first, and the slice
/// has the offset of the row of `b` for each step of `k`.
///
/// # Safety
/// As [`Micro`]; at least one row, at most [`STREAM_ROWS`].
pub type Stream<T> =
    unsafe fn((usize, usize), *const T, (isize, isize), *const T, &[isize], *mut T, isize, bool);

/// The sum of `a[i] b[i]`, as sums over consecutive blocks of [`BLOCK`], added in order.
///
/// # Safety
/// As many elements as the first argument says can be read.
pub type Dot<T> = unsafe fn(usize, *const T, *const T) -> T;

/// The products of one row with 16 columns that are contiguous along `k`. Arguments: the depth, the
/// row and its stride, the columns.
///
/// # Safety
/// As many elements as the first argument says can be read.
pub type Row<T> = unsafe fn(usize, *const T, isize, &[*const T; SQUARE]) -> [T; SQUARE];

/// Transposes [`SQUARE`] rows of some elements of four bytes, at least as many: element `k` of row
/// `i` goes to `dst[k · width + i]`. Arguments: `dst`, `width`, the rows, and how many elements.
///
/// # Safety
/// Rows and `dst` are valid for these elements.
pub type Transpose = unsafe fn(*mut i32, usize, &[*const i32; SQUARE], usize);

/// The kernels for one element type and instruction set.
#[derive(Clone, Copy)]
pub struct Kernels<T: 'static> {
    /// Columns of a tile
    pub width: usize,
    /// The tiles, highest first, the last with one row
    pub tiles: &'static [TileKernels<T>],
    /// Few rows times a matrix whose columns have unit stride, which is read once
    pub stream: Stream<T>,
    /// One row times one column
    pub dot: Dot<T>,
    /// One row times columns that are contiguous along `k`, where that is faster than packing them
    pub row: Option<Row<T>>,
    /// How elements of four bytes are transposed in registers, where that is possible
    pub transpose: Option<Transpose>,
}

/// Steps of `k` in one chain. Chains are added in order.
pub const BLOCK: usize = 256;
/// Side of the squares that are transposed in registers.
pub const SQUARE: usize = 16;
/// The most rows [`Kernels::stream`] takes.
pub const STREAM_ROWS: usize = 4;
/// Steps of `k` that [`Kernels::stream`] takes at a time.
const TERMS: usize = 16;
/// Sums that [`Kernels::stream`] keeps in the L1 cache. Fewer rows take longer stretches of `b`,
/// whose rows are far apart.
const SUMS: usize = 2048;
/// The most columns between two checks for an interruption.
pub const STREAM_COLUMNS: usize = 16 * SUMS;
/// The largest tile, in elements.
pub const TILE: usize = 12 * TILE_WIDTH;
/// The most columns of a tile.
pub const TILE_WIDTH: usize = 128;

/// Whether sums fuse multiplication and addition, see [`Element::fma`].
pub fn fuses() -> bool {
    isa() != Isa::Base || cfg!(target_arch = "aarch64")
}

/// Prefetches a cache line. Any address is allowed.
#[inline(always)]
pub fn prefetch<T>(_at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_at.cast());
    }
}

/// Where the rows of `b` lie that a tile reads.
trait Source<T>: Copy {
    /// The next row.
    ///
    /// # Safety
    /// There is one.
    unsafe fn next(&mut self) -> *const T;
}

/// A row and the distance to the next.
impl<T> Source<T> for (*const T, isize) {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        let row = self.0;
        self.0 = row.wrapping_offset(self.1);
        row
    }
}

/// An address and the offset of each row.
impl<T> Source<T> for (*const T, *const isize) {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        // SAFETY: by contract.
        let at = unsafe { *self.1 };
        self.1 = self.1.wrapping_add(1);
        self.0.wrapping_offset(at)
    }
}

#[inline(always)]
unsafe fn micro<T: Copy, V: Vector<T>, B: Source<T>, const M: usize, const N: usize>(
    depth: usize,
    mut a: *const T,
    (a_row, a_step): (isize, isize),
    mut b: B,
    c: *mut T,
    c_row: isize,
    fresh: bool,
) {
    // The tile of `c` is fetched while the sums are computed.
    for i in 0..M as isize {
        prefetch(c.wrapping_offset(i * c_row));
        prefetch(
            c.wrapping_offset(i * c_row + (size_of::<[V; N]>() / size_of::<T>()) as isize - 1),
        );
    }
    let mut sum = [[V::zero(); N]; M];
    for _ in 0..depth {
        // SAFETY: the caller vouches for `M × depth` of `a` and `depth` rows of `b`.
        let row = unsafe { b.next().cast::<[V; N]>().read_unaligned() };
        for (i, sum) in sum.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = unsafe { *a.offset(i as isize * a_row) };
            for (sum, row) in sum.iter_mut().zip(&row) {
                sum.add_product(x, row);
            }
        }
        a = a.wrapping_offset(a_step);
    }
    for (i, sum) in sum.into_iter().enumerate() {
        // SAFETY: the caller vouches for `M` rows of `c`.
        let c = unsafe { c.offset(i as isize * c_row) }.cast::<V>();
        for (v, mut sum) in sum.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                if !fresh {
                    sum.add_to(&c.add(v).read_unaligned());
                }
                c.add(v).write_unaligned(sum);
            }
        }
    }
}

/// Adds one term for each element of `x` to the sums from index `from` on, `V·W` sums at a time.
/// Returns the index at which it stopped.
///
/// The loop over the terms is the inner one, so each sum is one chain, whose order the compiler
/// keeps.
#[inline(always)]
unsafe fn strip<T: Element, const F: bool, const V: usize, const W: usize>(
    sums: &mut [T],
    mut from: usize,
    x: &[T],
    b: *const T,
    b_at: &[isize],
) -> usize {
    while from + V * W <= sums.len() {
        // SAFETY: `sums` and (so says the caller) every row of `b` have these elements.
        unsafe {
            let place = sums.as_mut_ptr().add(from).cast::<[[T; W]; V]>();
            let mut sum = place.read_unaligned();
            for (&x, &at) in x.iter().zip(b_at) {
                let row = b.offset(at).add(from).cast::<[[T; W]; V]>().read_unaligned();
                for (sum, row) in sum.iter_mut().zip(&row) {
                    for (s, &y) in sum.iter_mut().zip(row) {
                        *s = s.fma::<F>(x, y);
                    }
                }
            }
            place.write_unaligned(sum);
        }
        from += V * W;
    }
    from
}

#[inline(always)]
fn zeros<T: Element>(numbers: &mut [MaybeUninit<T>]) -> &mut [T] {
    numbers.fill(MaybeUninit::new(T::default()));
    // SAFETY: filled just now.
    unsafe { &mut *(numbers as *mut [MaybeUninit<T>] as *mut [T]) }
}

#[inline(always)]
unsafe fn stream<T: Element, const F: bool, const W: usize>(
    (rows, columns): (usize, usize),
    a: *const T,
    (a_row, a_step): (isize, isize),
    b: *const T,
    b_at: &[isize],
    c: *mut T,
    c_row: isize,
    fresh: bool,
) {
    let mut memory = [MaybeUninit::uninit(); SUMS];
    let wide = SUMS / rows;
    for start in (0..columns).step_by(wide) {
        let n = wide.min(columns - start);
        let sums = zeros(&mut memory[..rows * n]);
        for k in (0..b_at.len()).step_by(TERMS) {
            let b_at = &b_at[k..b_at.len().min(k + TERMS)];
            for (i, sums) in sums.chunks_exact_mut(n).enumerate() {
                let mut x = [T::default(); TERMS];
                // SAFETY: rows, columns and depth stay inside what the caller vouches for.
                unsafe {
                    for (u, x) in x[..b_at.len()].iter_mut().enumerate() {
                        *x = *a.offset(i as isize * a_row + (k + u) as isize * a_step);
                    }
                    let b = b.add(start);
                    let done = strip::<T, F, 4, W>(sums, 0, &x, b, b_at);
                    let done = strip::<T, F, 1, W>(sums, done, &x, b, b_at);
                    let done = strip::<T, F, 1, 4>(sums, done, &x, b, b_at);
                    strip::<T, F, 1, 1>(sums, done, &x, b, b_at);
                }
            }
        }
        for (i, sums) in sums.chunks_exact(n).enumerate() {
            for (j, &s) in sums.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let c = c.offset(i as isize * c_row).add(start + j);
                    *c = if fresh { s } else { (*c).plus(s) };
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn dot<T: Element, const F: bool>(n: usize, a: *const T, b: *const T) -> T {
    // Several blocks at once, because in a single chain each addition would wait for the one
    // before.
    const SIDE: usize = 8;
    let blocks = n / BLOCK;
    let mut total = T::default();
    let (mut block, mut fresh) = (0, true);
    while block < n.div_ceil(BLOCK) {
        let side = if block + SIDE <= blocks { SIDE } else { 1 };
        let first = block * BLOCK;
        let mut s = [T::default(); SIDE];
        // SAFETY: the caller vouches for `n` elements of both.
        unsafe {
            if side == SIDE {
                for k in first..first + BLOCK {
                    for (q, s) in s.iter_mut().enumerate() {
                        *s = s.fma::<F>(*a.add(k + q * BLOCK), *b.add(k + q * BLOCK));
                    }
                }
            } else {
                for k in first..n.min(first + BLOCK) {
                    s[0] = s[0].fma::<F>(*a.add(k), *b.add(k));
                }
            }
        }
        for s in &s[..side] {
            total = if fresh { *s } else { total.plus(*s) };
            fresh = false;
        }
        block += side;
    }
    total
}

/// Compiles the generic bodies above for each instruction set.
macro_rules! shells {
    ($($(#[$feature:meta])* $module:ident: $fused:expr;)*) => { $(
        mod $module {
            use super::{Element, Lanes, Vector};

            /// `W` elements in an array.
            pub type Array<T, const W: usize> = Lanes<T, W, { $fused }>;

            $(#[$feature])*
            pub unsafe fn micro<T: Element, V: Vector<T>, const M: usize, const N: usize>(
                depth: usize, a: *const T, a_strides: (isize, isize), b: *const T, b_step: isize,
                c: *mut T, c_row: isize, fresh: bool,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    super::micro::<T, V, _, M, N>(
                        depth, a, a_strides, (b, b_step), c, c_row, fresh,
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn listed<T: Element, V: Vector<T>, const M: usize, const N: usize>(
                depth: usize, a: *const T, a_strides: (isize, isize), b: *const T,
                b_at: *const isize, c: *mut T, c_row: isize, fresh: bool,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    super::micro::<T, V, _, M, N>(
                        depth, a, a_strides, (b, b_at), c, c_row, fresh,
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn stream<T: Element, const W: usize>(
                size: (usize, usize), a: *const T, a_strides: (isize, isize), b: *const T,
                b_at: &[isize], c: *mut T, c_row: isize, fresh: bool,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    super::stream::<T, { $fused }, W>(size, a, a_strides, b, b_at, c, c_row, fresh);
                }
            }

            $(#[$feature])*
            pub unsafe fn dot<T: Element>(n: usize, a: *const T, b: *const T) -> T {
                // SAFETY: the caller's promises are passed on.
                unsafe { super::dot::<T, { $fused }>(n, a, b) }
            }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
shells! {
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi2")]
    v4: true;
    #[target_feature(enable = "avx2,fma,bmi2")]
    v3: true;
}
shells! {
    // Without certain support for fused instructions `mul_add` would be a library call.
    base: cfg!(target_arch = "aarch64");
}

/// The kernels of an instruction set: the elements of a register, the tile's registers along a row,
/// and the rows of the tiles.
macro_rules! kernels {
    ($module:ident, $t:ty, $lanes:expr, [$vector:ty; $count:literal], [$($rows:literal),*], $row:expr, $transpose:expr) => {
        Kernels {
            width: $count * $lanes,
            tiles: &[$(TileKernels {
                rows: $rows,
                micro: $module::micro::<$t, $vector, $rows, $count>,
                listed: $module::listed::<$t, $vector, $rows, $count>,
            }),*],
            stream: $module::stream::<$t, { $lanes }>,
            dot: $module::dot::<$t>,
            row: $row,
            transpose: $transpose,
        }
    };
}

macro_rules! element {
    (
        $t:ident, $size:literal, |$s:ident, $a:ident, $b:ident| $fused:expr, $plain:expr, $plus:expr,
        v4: $v4:tt, $v4_row:expr, v3: $v3:tt, [$($v3_rows:literal),*], $v3_row:expr
    ) => {
        impl Element for $t {
            #[inline(always)]
            fn fma<const F: bool>(self, $a: $t, $b: $t) -> $t {
                let $s = self;
                if F { $fused } else { $plain }
            }
            #[inline(always)]
            fn plus(self, $b: $t) -> $t {
                let $s = self;
                $plus
            }
            fn kernels_of(isa: Isa) -> Kernels<$t> {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::V4 => kernels!(
                        v4, $t, { 64 / $size }, $v4, [12, 8, 4, 1],
                        $v4_row, Some(square::v4::transpose)
                    ),
                    #[cfg(target_arch = "x86_64")]
                    Isa::V3 => kernels!(
                        v3, $t, { 32 / $size }, $v3, [$($v3_rows),*],
                        $v3_row, Some(square::v3::transpose)
                    ),
                    _ => kernels!(
                        base, $t, { 16 / $size }, [base::Array<$t, { 16 / $size }>; 3], [4, 1],
                        None, None
                    ),
                }
            }
        }
    };
}

element!(
    f32, 4, |s, a, b| a.mul_add(b, s), s + a * b, s + b,
    v4: [F32x16; 2], Some(square::v4::row), v3: [F32x8; 2], [6, 4, 2, 1], Some(square::v3::row)
);
element!(
    f64, 8, |s, a, b| a.mul_add(b, s), s + a * b, s + b,
    v4: [F64x8; 2], None, v3: [F64x4; 2], [6, 4, 2, 1], None
);
element!(
    i32, 4,
    |s, a, b| s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(b),
    v4: [v4::Array<i32, 16>; 2], None, v3: [v3::Array<i32, 8>; 3], [4, 1], None
);
element!(
    i64, 8,
    |s, a, b| s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(b),
    v4: [v4::Array<i64, 8>; 2], None, v3: [v3::Array<i64, 4>; 3], [4, 1], None
);
// Truth values are the bytes 0 and 1.
element!(
    u8, 1, |s, a, b| s | (a & b), s | (a & b), s | b,
    v4: [v4::Array<u8, 64>; 2], None, v3: [v3::Array<u8, 32>; 3], [4, 1], None
);
