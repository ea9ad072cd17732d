//! The inner loops of a product, compiled for every element type and instruction set.
//!
//! Every kernel computes the `Σ a[k] b[k]` of an output element as one chain with `k` ascending,
//! with a fused multiply-add where the machine has one. So the bits of an element do not depend on
//! which kernel computes it.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

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
/// whether `c` is overwritten instead of added to; what each step of `k` fetches: an address, which
/// need not be valid, and the distance to that of the next step.
///
/// # Safety
/// Every address named must be valid; `c` overlaps neither operand.
pub type Micro<T> = unsafe fn(
    usize,
    *const T,
    (isize, isize),
    *const T,
    isize,
    *mut T,
    isize,
    bool,
    (*const T, isize),
);

/// As [`Micro`], with an offset for each row of `b` instead of a stride, and nothing to fetch.
///
/// # Safety
/// As [`Micro`].
pub type Listed<T> =
    unsafe fn(usize, *const T, (isize, isize), *const T, *const isize, *mut T, isize, bool);

/// What a tile of places works on: rows that are neighbours in lines, and an offset for each of its
/// steps. A panel of weights is its `b`.
pub struct Places<T> {
    /// How many steps
    pub depth: usize,
    /// The first place, and the offset of each step
    pub at: *const T,
    pub steps: *const isize,
    /// The distance of two lines
    pub line: isize,
    /// `b`, whose columns have unit stride, and the offset of each step
    pub b: *const T,
    pub b_steps: *const isize,
    /// `c`, and its distances from a place to the next of its line, and from line to line
    pub c: *mut T,
    pub c_steps: [isize; 2],
    /// Whether `c` is overwritten instead of added to
    pub fresh: bool,
    /// What each step fetches, as [`Micro`] says
    pub fetch: (*const T, isize),
}

/// As [`Micro`], over places.
///
/// # Safety
/// As [`Micro`].
pub type Spread<T> = unsafe fn(&Places<T>);

/// The kernels of a tile whose rows are places in lines.
#[derive(Clone, Copy)]
pub struct PlaceKernels<T: 'static> {
    /// Lines, and places of a line
    pub lines: usize,
    pub each: usize,
    pub spread: Spread<T>,
    /// The same for the columns of one register
    pub slim: Spread<T>,
}

impl<T> PlaceKernels<T> {
    /// Its rows
    pub fn places(&self) -> usize {
        self.lines * self.each
    }
}

/// The kernels of a tile.
#[derive(Clone, Copy)]
pub struct TileKernels<T: 'static> {
    /// Its rows
    pub rows: usize,
    /// For strides along `k`
    pub micro: Micro<T>,
    /// The same for the columns of one register
    pub narrow: Micro<T>,
    /// For a list of offsets of `b`
    pub listed: Listed<T>,
}

/// As [`Micro`], for few rows and any count of columns. `(rows, columns)` come first, and the slice
/// has the offset of the row of `b` for each step of `k`.
///
/// # Safety
/// As [`Micro`]; at least one row, at most [`STREAM_ROWS`].
pub type Stream<T> =
    unsafe fn((usize, usize), *const T, (isize, isize), *const T, &[isize], *mut T, isize, bool);

/// The sums of all steps at once, for operands that are read in place. Arguments: rows, columns and
/// depth; `a` and its two strides; `b`, whose columns have unit stride, and its row stride; `c`, which
/// is overwritten, and its row stride. Blocks of [`BLOCK`] steps are added in order.
///
/// # Safety
/// As [`Micro`].
pub type Small<T> = unsafe fn([usize; 3], *const T, (isize, isize), *const T, isize, *mut T, isize);

/// The sum of `a[i] b[i]`, as sums over consecutive blocks of [`BLOCK`], added in order.
///
/// # Safety
/// As many elements as the first argument says can be read.
pub type Dot<T> = unsafe fn(usize, *const T, *const T) -> T;

/// The products of one row with [`ROW`] columns that are contiguous along `k`. Arguments: the depth,
/// the row and its stride, the columns.
///
/// # Safety
/// As many elements as the first argument says can be read.
pub type Row<T> = unsafe fn(usize, *const T, isize, &[*const T; ROW]) -> [T; ROW];

/// Transposes [`SQUARE`] rows of some elements of four bytes, at least as many: element `k` of row
/// `i` goes to `dst[k · width + i]`. Arguments: `dst`, `width`, the rows, and how many elements.
/// Columns are written in order, so of a smaller `width` those behind write over what is too much;
/// after the last one so many elements are arbitrary as a square has more.
///
/// # Safety
/// Rows and `dst` are valid for these elements, also those that are arbitrary.
pub type Transpose = unsafe fn(*mut i32, usize, &[*const i32; SQUARE], usize);

/// The kernels for one element type and instruction set.
#[derive(Clone, Copy)]
pub struct Kernels<T: 'static> {
    /// Columns of a tile, and of one of its registers
    pub width: usize,
    pub lanes: usize,
    /// The tiles, highest first, the last with one row
    pub tiles: &'static [TileKernels<T>],
    /// The tiles of places along a line, highest first, the last with one place
    pub along: &'static [PlaceKernels<T>],
    /// Those of several lines, as high as the highest
    pub lined: &'static [PlaceKernels<T>],
    /// Few rows times a matrix whose columns have unit stride, which is read once
    pub stream: Stream<T>,
    /// Any count of rows times few columns, or in few steps
    pub small: Small<T>,
    /// One row times one column
    pub dot: Dot<T>,
    /// One row times columns that are contiguous along `k`, where that is faster than packing them
    pub row: Option<Row<T>>,
    /// How elements of four bytes are transposed in registers, where that is possible
    pub transpose: Option<Transpose>,
}

impl<T> Kernels<T> {
    /// The rows of tiles that make up so many rows: of about one height, where there are such, since
    /// low ones leave the multipliers idle.
    pub fn height(&self, rows: usize) -> usize {
        let (high, rows) = (self.tiles[0].rows, rows.max(1));
        let even = rows.div_ceil(rows.div_ceil(high));
        let has = |rows: usize| self.tiles.iter().any(|tile| tile.rows == rows);
        if has(even) && has((rows - 1) % even + 1) { even } else { high }
    }

    /// The kernels for panels as wide as one register.
    pub fn narrow(self) -> Kernels<T> {
        Kernels { width: self.lanes, ..self }
    }
}

/// Steps of `k` in one chain. Chains are added in order.
pub const BLOCK: usize = 256;
/// Side of the squares that are transposed in registers.
pub const SQUARE: usize = 16;
/// Columns of [`Kernels::row`].
pub const ROW: usize = 2 * SQUARE;
/// The most rows [`Kernels::stream`] takes.
pub const STREAM_ROWS: usize = 16;
/// The most columns between two checks for an interruption.
pub const STREAM_COLUMNS: usize = 1 << 15;
/// The largest tile, in elements.
pub const TILE: usize = 12 * TILE_WIDTH;
/// The most columns of a tile.
pub const TILE_WIDTH: usize = 128;

/// Whether sums fuse multiplication and addition, see [`Element::fma`]: at the lowest level of the
/// instruction set as this says, at all others always. So of a kernel in both forms each level has
/// one, `kernel::above::<T, true>` or `kernel::base::<T, BASE_FUSES>`.
pub const BASE_FUSES: bool = cfg!(target_arch = "aarch64");

/// Whether sums fuse on this machine.
pub fn fuses() -> bool {
    isa() != Isa::Base || BASE_FUSES
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

/// Compiles the generic bodies for each instruction set.
macro_rules! shells {
    ($($(#[$feature:meta])* $module:ident: $fused:expr;)*) => { $(
        mod $module {
            use super::super::{micro as tile, small, stream};
            use super::super::steps::{InLines, Lined, Listed, Strided};
            use super::{Element, Lanes, Places, Vector};

            /// `W` elements in an array.
            pub type Array<T, const W: usize> = Lanes<T, W, { $fused }>;

            $(#[$feature])*
            pub unsafe fn micro<T: Element, V: Vector<T>, const M: usize, const N: usize>(
                depth: usize, a: *const T, a_strides: (isize, isize), b: *const T, b_step: isize,
                c: *mut T, c_row: isize, fresh: bool, fetch: (*const T, isize),
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    tile::strided::<T, V, M, N>(
                        depth, a, a_strides, (b, b_step), c, c_row, fresh, fetch,
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn listed<T: Element, V: Vector<T>, const M: usize, const N: usize>(
                depth: usize, a: *const T, a_strides: (isize, isize), b: *const T,
                b_at: *const isize, c: *mut T, c_row: isize, fresh: bool,
            ) {
                let a = Strided { at: a, row: a_strides.0, step: a_strides.1 };
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    tile::micro::<T, V, _, _, _, _, M, N>(
                        depth, a, (b, b_at), (c, c_row), fresh, (),
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn spread<
                T: Element, V: Vector<T>, const M: usize, const C: usize, const N: usize,
            >(
                on: &Places<T>,
            ) {
                let a = Lined::<T, C>::new(Listed(on.at, on.steps), on.line);
                let c = InLines::<T, C>(on.c, on.c_steps);
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    tile::micro::<T, V, _, _, _, _, M, N>(
                        on.depth, a, (on.b, on.b_steps), c, on.fresh, on.fetch,
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn stream<T: Element, V: Vector<T>, const N: usize>(
                size: (usize, usize), a: *const T, a_strides: (isize, isize), b: *const T,
                b_at: &[isize], c: *mut T, c_row: isize, fresh: bool,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    stream::stream::<T, V, { $fused }, N>(
                        size, a, a_strides, b, b_at, c, c_row, fresh,
                    );
                }
            }

            $(#[$feature])*
            pub unsafe fn small<T: Element, V: Vector<T>>(
                size: [usize; 3], a: *const T, a_strides: (isize, isize), b: *const T,
                b_step: isize, c: *mut T, c_row: isize,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { small::small::<T, V, { $fused }>(size, a, a_strides, b, b_step, c, c_row) }
            }

            $(#[$feature])*
            pub unsafe fn dot<T: Element>(n: usize, a: *const T, b: *const T) -> T {
                // SAFETY: the caller's promises are passed on.
                unsafe { stream::dot::<T, { $fused }>(n, a, b) }
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

/// The kernels of places in lines.
macro_rules! places {
    ($module:ident, $t:ty, $vector:ty, $count:literal, $lines:literal by $each:literal) => {
        PlaceKernels {
            lines: $lines,
            each: $each,
            spread: $module::spread::<$t, $vector, { $lines * $each }, $each, $count>,
            slim: $module::spread::<$t, $vector, { $lines * $each }, $each, 1>,
        }
    };
}

/// The kernels of an instruction set: the elements of a register, the tile's registers along a row,
/// and the rows of the tiles.
macro_rules! kernels {
    ($module:ident, $t:ty, $lanes:expr, [$vector:ty; $count:literal], [$($rows:literal),*],
     [$($lines:literal by $each:literal),*], $stream:literal, $row:expr, $transpose:expr) => {
        Kernels {
            width: $count * $lanes,
            lanes: $lanes,
            tiles: &[$(TileKernels {
                rows: $rows,
                micro: $module::micro::<$t, $vector, $rows, $count>,
                narrow: $module::micro::<$t, $vector, $rows, 1>,
                listed: $module::listed::<$t, $vector, $rows, $count>,
            }),*],
            along: &[$(places!($module, $t, $vector, $count, 1 by $rows)),*],
            lined: &[$(places!($module, $t, $vector, $count, $lines by $each)),*],
            stream: $module::stream::<$t, $vector, $stream>,
            small: $module::small::<$t, $vector>,
            dot: $module::dot::<$t>,
            row: $row,
            transpose: $transpose,
        }
    };
}

macro_rules! element {
    (
        $t:ident, $size:literal, |$s:ident, $a:ident, $b:ident| $fused:expr, $plain:expr, $plus:expr,
        v4: $v4:tt, $v4_rows:tt, $v4_lined:tt, $v4_row:expr,
        v3: $v3:tt, $v3_rows:tt, $v3_lined:tt, $v3_row:expr
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
                        v4,
                        $t,
                        { 64 / $size },
                        $v4,
                        $v4_rows,
                        $v4_lined,
                        4,
                        $v4_row,
                        Some(square::v4::transpose)
                    ),
                    #[cfg(target_arch = "x86_64")]
                    Isa::V3 => kernels!(
                        v3,
                        $t,
                        { 32 / $size },
                        $v3,
                        $v3_rows,
                        $v3_lined,
                        2,
                        $v3_row,
                        Some(square::v3::transpose)
                    ),
                    _ => kernels!(
                        base,
                        $t,
                        { 16 / $size },
                        [base::Array<$t, { 16 / $size }>; 3],
                        [4, 1],
                        [],
                        2,
                        None,
                        None
                    ),
                }
            }
        }
    };
}

element!(
    f32, 4, |s, a, b| a.mul_add(b, s), s + a * b, s + b,
    v4: [F32x16; 2], [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1],
        [2 by 6, 3 by 4, 4 by 3, 6 by 2, 12 by 1], Some(square::v3::row),
    v3: [F32x8; 2], [6, 5, 4, 3, 2, 1], [2 by 3, 3 by 2, 6 by 1], Some(square::v3::row)
);
element!(
    f64, 8, |s, a, b| a.mul_add(b, s), s + a * b, s + b,
    v4: [F64x8; 2], [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1],
        [2 by 6, 3 by 4, 4 by 3, 6 by 2, 12 by 1], None,
    v3: [F64x4; 2], [6, 5, 4, 3, 2, 1], [2 by 3, 3 by 2, 6 by 1], None
);
element!(
    i32, 4,
    |s, a, b| s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(b),
    v4: [v4::Array<i32, 16>; 2], [12, 8, 4, 1], [], None,
    v3: [v3::Array<i32, 8>; 3], [4, 1], [], None
);
element!(
    i64, 8,
    |s, a, b| s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(a.wrapping_mul(b)),
    s.wrapping_add(b),
    v4: [v4::Array<i64, 8>; 2], [12, 8, 4, 1], [], None,
    v3: [v3::Array<i64, 4>; 3], [4, 1], [], None
);
// Truth values are the bytes 0 and 1.
element!(
    u8, 1, |s, a, b| s | (a & b), s | (a & b), s | b,
    v4: [v4::Array<u8, 64>; 2], [12, 8, 4, 1], [], None,
    v3: [v3::Array<u8, 32>; 3], [4, 1], [], None
);
