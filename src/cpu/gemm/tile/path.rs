//! How a rectangle is computed: the choice of its kernel, of what is packed, and of sizes.

use super::super::kernel::{BLOCK, Element, Row, SQUARE, STREAM_ROWS};
use super::super::small::TOGETHER;
use super::super::tiny::TINY;
use super::super::{Job, Matrix, SPAN};
use super::along;
use crate::cpu::caches;
use crate::simd;

/// Bytes that stay in the L1 cache beside others.
pub(super) const NEAR: usize = 16 << 10;
/// Bytes of an operand from which on it comes from a far cache, or from memory.
const FAR: usize = 4 << 20;
/// Panels of columns from which on rows are packed that could be read in place.
const OFTEN: usize = 48;
/// Steps of `k` up to which a tile takes longer to be written than to be computed.
const SHALLOW: usize = 4;
/// Columns of `b` packed at a time.
const COLUMNS: usize = 2048;

/// The most rows of `a` at a time: with a block of `k` they fill a quarter of the L2 cache.
fn most_rows<T>(high: usize) -> usize {
    (caches::second() / (4 * BLOCK * size_of::<T>())).next_multiple_of(high)
}

/// Rows of `a` at a time, in blocks of about one height.
fn rows_of<T>(m: usize, high: usize) -> usize {
    m.div_ceil(m.div_ceil(most_rows::<T>(high)).max(1)).next_multiple_of(high)
}

/// How a rectangle is computed.
pub enum Path<T: Element> {
    /// A dot product for a single element
    Dot,
    /// One row: the stride of `a` along `k`, and the kernel
    Row(isize, Row<T>),
    /// Few rows, with columns read in place: the strides of `a`
    Stream((isize, isize)),
    /// Few columns or few steps, with both operands read in place: the strides of `a`, and that of `b`
    /// along `k`
    Small((isize, isize), isize),
    /// Blocks of both operands, packed or in place
    Blocks(Blocks),
}

/// The blocks of a rectangle.
pub struct Blocks {
    /// The strides of `a` and of `b`, where they are read in place
    pub(super) a: Option<(isize, isize)>,
    pub(super) b: Option<(isize, isize)>,
    /// Rows and columns that are packed at a time, and steps of `k`
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) kc: usize,
    /// Rows for which there is room to pack them: none, or a last panel, where rows are read in place
    pub(super) held: usize,
    /// The elements of scratch in which a prologue computes columns before they are packed
    spare: usize,
    /// Whether rows are read so few times, or are so near, that they would not be packed either if
    /// they crowded the cache
    near: bool,
    /// Whether columns were packed before
    kept: bool,
    /// Whether nothing is packed
    bare: bool,
}

impl Blocks {
    /// Bytes for the packed blocks.
    pub fn packed_bytes<T>(&self) -> usize {
        let columns = if self.kept { 0 } else { self.columns };
        let packed = (self.held + columns) * self.kc + SQUARE + self.spare;
        if self.bare { 0 } else { packed * size_of::<T>() }
    }

    /// Whether each operand is packed, or might as well be: then it costs nothing to compute it
    /// meanwhile.
    pub fn packs(&self) -> [bool; 2] {
        [self.a.is_none() || !self.near, self.b.is_none()]
    }

    /// Columns that are packed at a time.
    pub fn columns(&self) -> usize {
        self.columns
    }
}

impl<T: Element> Job<'_, T> {
    /// How a rectangle of `m` rows and `n` columns is computed over `depth` steps of `k`.
    pub fn path(&self, m: usize, n: usize, depth: usize) -> Path<T> {
        let (a, b) = (direct(self.a), direct(self.b));
        if self.a.made.is_some() || self.b.made.is_some() || self.panels.is_some() {
            return Path::Blocks(self.blocks((m, n, depth)));
        }
        if let (1, 1, Some((_, 1)), Some((_, 1))) = (m, n, a, b) {
            return Path::Dot;
        }
        if let (1, Some((_, step)), Some((_, 1)), Some(kernel)) = (m, a, b, self.kernels.row) {
            return Path::Row(step, kernel);
        }
        if let (Some(a), Some((1, step))) = (a, b.map(|b| if n == 1 { (1, b.1) } else { b }))
            && self.column == 1
            && self.is_small([m, n, depth])
        {
            return Path::Small(a, step);
        }
        // The most rows for reading columns in place: some; fewer where columns are in pieces,
        // which may be short, or in a near cache, where tiles are faster; any count where preparing
        // blocks would take longer than the product.
        let (run, unit) = self.b.own.inner();
        let blocks = self.blocks((m, n, depth));
        let rows = match b {
            Some(_) if m * n * depth <= TINY && !blocks.bare => m,
            Some(_) if n * depth * size_of::<T>() >= FAR => STREAM_ROWS,
            Some(_) | None => 4,
        };
        match (a, unit, self.column) {
            (Some(a), 1, 1) if m <= rows && run.min(n) >= 4 => Path::Stream(a),
            _ => Path::Blocks(blocks),
        }
    }

    /// The blocks of a rectangle of `m` rows and `n` columns, over `depth` steps of `k`.
    pub fn blocks(&self, (m, n, depth): (usize, usize, usize)) -> Blocks {
        let (a, b) = (direct(self.a), direct(self.b));
        let size = size_of::<T>();
        let (high, width) = (self.kernels.tiles[0].rows, self.kernels.width);
        // An operand that is read at most a few times, or fits the L1 cache, is read in place, and
        // so are rows that are contiguous along `k`, where those of a tile have room in that cache
        // and those of a block in the next, and are not read so often that packing them pays: the
        // kernel is faster then.
        let is_near = n <= 4 * width || m * depth * size <= NEAR;
        let kc = BLOCK.min(depth);
        let rows = rows_of::<T>(m, high);
        let have_room = |row: isize| {
            let stride = row.wrapping_mul(size as isize);
            !caches::crowd(high, stride) && !caches::crowd_second(rows, stride, kc * size)
        };
        let a = a.filter(|&(row, step)| match step {
            1 => is_near || n < OFTEN * width && have_room(row),
            _ => is_near && row == 1,
        });
        let b = b.filter(|s| s.0 == 1 && (m <= 2 * high || n * depth * size <= NEAR));
        // With few rows, few columns are packed at a time and used while they are in the cache: one
        // panel where columns are contiguous along `k`, more where they are not.
        let transposed = along(&self.b.depth) > along(&self.b.own);
        // A prologue computes rows once for each of these blocks of columns, so the blocks are
        // large.
        let columns = match m {
            _ if self.a.is_computed() => COLUMNS,
            _ if self.b.is_computed() && m <= 4 * high => 256,
            _ if transposed && m <= 4 * high && self.panels.is_none() => width,
            _ if m <= most_rows::<T>(high) => 512,
            _ => COLUMNS,
        };
        // Whole panels, because a partial panel takes as much memory.
        let columns = (columns / width * width).min(n.next_multiple_of(width));
        Blocks {
            a,
            b,
            rows,
            held: match a {
                Some(_) if self.fits(m % high) => 0,
                Some(_) => high,
                None => rows,
            },
            columns,
            kc,
            spare: self.spare(columns, kc),
            near: is_near,
            kept: self.panels.is_some(),
            bare: a.is_some()
                && self.fits(m % high)
                && (self.panels.is_some() || b.is_some() && self.fills(n % width)),
        }
    }

    /// Whether these panels, of one register, are better than those of a tile's two: where two of them and
    /// packed rows do not fit the first cache together, but one does, and its sums are enough to keep
    /// the multipliers busy. Rows that are read in place bring too many instructions for that.
    pub fn suits_narrow(&self) -> bool {
        let (high, lanes) = (self.kernels.tiles[0].rows, self.kernels.lanes);
        let fits = |width: usize| (width + high) * BLOCK * size_of::<T>() <= caches::first();
        let depth = self.a.depth.len();
        if depth < BLOCK
            || self.count() == 0
            || !simd::takes_turns(lanes * size_of::<T>())
            || fits(2 * lanes)
        {
            return false;
        }
        let (m, n) = self.largest(&self.cut());
        let is_large = m >= 4 * high && n >= 4 * lanes;
        is_large && fits(lanes) && self.blocks((m, n, depth.min(SPAN))).a.is_none()
    }

    /// Whether sums stay in registers until they are written: where there are so few products that
    /// preparing blocks would take longer, so few steps that a tile is mostly written, or so few columns
    /// that panels of them have room for others.
    fn is_small(&self, [m, n, depth]: [usize; 3]) -> bool {
        let (width, bytes) = (self.kernels.width, n * depth * size_of::<T>());
        let is_shallow = depth <= SHALLOW && bytes <= caches::second() / 4;
        // Columns that are read again for other rows come from the second cache.
        let is_near = bytes <= caches::second() || m <= TOGETHER;
        let is_slim = n < 2 * width && !self.fills(n % width) && is_near;
        m * n * depth <= TINY || is_shallow || is_slim
    }

    /// Whether the last panel of `rest` columns (0: a full one) reads only columns that exist.
    pub(super) fn fills(&self, rest: usize) -> bool {
        rest == 0 || rest == self.kernels.lanes
    }

    /// Whether the last panel of `rest` rows (0: a full one) reads only rows that exist.
    pub(super) fn fits(&self, rest: usize) -> bool {
        rest == 0 || self.kernels.tiles.iter().any(|t| t.rows == rest)
    }
}

/// The two strides of an operand, if two suffice and the operand is in memory.
pub fn direct(x: &Matrix) -> Option<(isize, isize)> {
    if x.made.is_some() {
        return None;
    }
    Some((x.own.stride()?, x.depth.stride()?))
}
