//! Loop nests over the elements of several operands of one shape, cut into two-dimensional blocks.
//!
//! A nest merges the axes that every operand walks evenly, and chooses blocks so that each operand
//! is read in whole cache lines: an operand whose dense axis is not the innermost one (a transpose)
//! gets blocks with room along both axes.

use std::ops::Range;

use smallvec::{Array, SmallVec};

/// Columns of a block when some operand is dense along another axis: a few cache lines.
const SQUARE: usize = 64;

/// Elements that are worth setting up a block.
const FEW: usize = 256;

/// The offsets of a first block.
static NOWHERE: [isize; 16] = [0; 16];

/// The block of a nest that is being worked on.
pub struct Block<'a> {
    /// Positions along the row axis
    pub rows: usize,
    /// Positions along the innermost axis
    pub cols: usize,
    /// For each operand, the elements from its index zero to this block's first element
    pub offsets: &'a [isize],
}

/// Rectangles of one size.
pub struct Planes {
    /// How many there are
    pub count: usize,
    /// Rows of each
    pub rows: usize,
    /// Columns of each
    pub columns: usize,
}

/// A loop nest over one shape.
#[derive(Clone)]
pub struct Nest {
    operands: usize,
    sizes: SmallVec<[usize; 6]>,
    /// Elements from one position to the next, `operands` numbers an axis.
    strides: SmallVec<[isize; 24]>,
    row_axis: usize,
    /// Positions of a block along each axis.
    steps: SmallVec<[usize; 6]>,
}

/// Adds an axis inside those of these sizes, merged with the one before it where every operand walks
/// the two as one. There are the strides of so many operands for each axis.
pub fn push_axis<A: Array<Item = usize>, B: Array<Item = isize>>(
    sizes: &mut SmallVec<A>,
    all: &mut SmallVec<B>,
    operands: usize,
    (size, strides): (usize, impl Iterator<Item = isize> + Clone),
) {
    if let Some(outer) = sizes.last_mut() {
        let first = all.len() - operands;
        let last = &mut all[first..];
        if last.iter().zip(strides.clone()).all(|(&o, i)| o == i * size as isize) {
            *outer *= size;
            last.iter_mut().zip(strides).for_each(|(o, i)| *o = i);
            return;
        }
    }
    sizes.push(size);
    all.extend(strides);
}

impl Nest {
    /// A nest over `sizes` (outermost first) for operands of the given strides in elements, in
    /// blocks of at most `limit` elements, and of at most `square` where they have room along two
    /// axes.
    pub fn new(sizes: &[usize], operands: &[&[isize]], limit: usize, square: usize) -> Nest {
        let mut nest = Nest {
            operands: operands.len(),
            sizes: SmallVec::new(),
            strides: SmallVec::new(),
            row_axis: 0,
            steps: SmallVec::new(),
        };
        for (axis, &size) in sizes.iter().enumerate() {
            if size != 1 {
                nest.push(size, operands.iter().map(|strides| strides[axis]));
            }
        }
        if nest.sizes.is_empty() {
            nest.push(1, operands.iter().map(|_| 1));
        }
        nest.cut(limit, square);
        nest
    }

    /// The nest of operands that all lie in C order without gaps.
    pub fn line(count: usize, operands: usize, limit: usize) -> Nest {
        Nest {
            operands,
            sizes: SmallVec::from_slice(&[count]),
            strides: SmallVec::from_elem(1, operands),
            row_axis: 0,
            steps: SmallVec::from_slice(&[count.clamp(1, limit)]),
        }
    }

    fn push(&mut self, size: usize, strides: impl Iterator<Item = isize> + Clone) {
        push_axis(&mut self.sizes, &mut self.strides, self.operands, (size, strides));
    }

    /// Chooses the row axis and the size of blocks.
    fn cut(&mut self, limit: usize, square: usize) {
        let last = self.sizes.len() - 1;
        let dense = (0..self.operands).find_map(|k| {
            let inner = self.stride(k, last).unsigned_abs();
            let step = |axis: usize| self.stride(k, axis).unsigned_abs();
            (0..last)
                .filter(|&axis| step(axis) != 0 && step(axis) < inner)
                .min_by_key(|&axis| step(axis))
        });
        // Short windows over an image are dense along the window, but blocks of one are too small.
        let beside = (last.saturating_sub(1), limit, limit);
        let is_worth_it = |&cut: &(usize, usize, usize)| {
            let count = |(rows, cols)| rows * cols;
            let found = count(self.block(cut));
            found >= FEW || found >= count(self.block(beside))
        };
        let square = dense.map(|axis| (axis, SQUARE, square.min(SQUARE * SQUARE)));
        let cut = square.filter(is_worth_it).unwrap_or(beside);
        let (rows, cols) = self.block(cut);
        self.row_axis = cut.0;
        self.steps = SmallVec::from_elem(1, self.sizes.len());
        self.steps[self.row_axis] = rows;
        self.steps[last] = cols;
    }

    /// The rows, along an axis, and the columns of a block of about `width` columns and at most
    /// `limit` elements.
    fn block(&self, (row_axis, width, limit): (usize, usize, usize)) -> (usize, usize) {
        let last = self.sizes.len() - 1;
        let cols = self.sizes[last].clamp(1, width);
        if row_axis == last {
            return (1, cols);
        }
        let rows = self.sizes[row_axis].clamp(1, (limit / cols).max(1));
        // What a short row axis leaves goes to the columns.
        (rows, self.sizes[last].clamp(1, limit / rows))
    }

    fn stride(&self, operand: usize, axis: usize) -> isize {
        self.strides[axis * self.operands + operand]
    }

    /// Elements of an operand from one row of a block to the next.
    pub fn row_stride(&self, operand: usize) -> isize {
        if self.row_axis == self.sizes.len() - 1 { 0 } else { self.stride(operand, self.row_axis) }
    }

    /// Elements of an operand from one column of a block to the next.
    pub fn col_stride(&self, operand: usize) -> isize {
        self.stride(operand, self.sizes.len() - 1)
    }

    /// Whether all elements of an operand are one, of several.
    pub fn repeats(&self, operand: usize) -> bool {
        (0..self.sizes.len()).all(|axis| self.stride(operand, axis) == 0)
    }

    /// The rectangles that the innermost two axes make, one for each position along a third, where
    /// there are no more axes and blocks are cut along these.
    pub fn planes(&self) -> Option<Planes> {
        let last = self.sizes.len() - 1;
        let (count, rows) = match self.sizes[..] {
            [rows, _] => (1, rows),
            [count, rows, _] => (count, rows),
            _ => return None,
        };
        (self.row_axis + 1 == last).then_some(Planes { count, rows, columns: self.sizes[last] })
    }

    /// Elements of an operand from one plane to the next.
    pub fn plane_stride(&self, operand: usize) -> isize {
        if self.sizes.len() < 3 { 0 } else { self.stride(operand, 0) }
    }

    /// The count of elements.
    pub fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The most elements of a block.
    pub fn most(&self) -> usize {
        self.steps.iter().product()
    }

    /// The count of blocks.
    pub fn blocks(&self) -> usize {
        self.sizes.iter().zip(&self.steps).map(|(n, step)| n.div_ceil(*step)).product()
    }

    /// Calls `f` for the blocks of a range, in order.
    pub fn visit(&self, blocks: Range<usize>, mut f: impl FnMut(Block)) {
        // A block that is everything, as where there are few elements.
        if let ([cols], [step]) = (&self.sizes[..], &self.steps[..])
            && cols <= step
            && let Some(offsets) = NOWHERE.get(..self.operands)
        {
            return blocks.for_each(|_| f(Block { rows: 1, cols: *cols, offsets }));
        }
        let (last, row) = (self.sizes.len() - 1, self.row_axis);
        let mut at: SmallVec<[usize; 6]> = SmallVec::from_elem(0, self.sizes.len());
        let mut offsets: SmallVec<[isize; 12]> = SmallVec::from_elem(0, self.operands);
        let mut rest = blocks.start;
        for axis in (0..=last).rev() {
            let count = self.sizes[axis].div_ceil(self.steps[axis]);
            at[axis] = rest % count.max(1) * self.steps[axis];
            rest /= count.max(1);
            self.advance(&mut offsets, axis, at[axis] as isize);
        }
        for _ in blocks {
            let cols = self.steps[last].min(self.sizes[last] - at[last]);
            let rows = if row == last { 1 } else { self.steps[row].min(self.sizes[row] - at[row]) };
            f(Block { rows, cols, offsets: &offsets });
            for axis in (0..=last).rev() {
                let step = self.steps[axis];
                at[axis] += step;
                self.advance(&mut offsets, axis, step as isize);
                if at[axis] < self.sizes[axis] {
                    break;
                }
                self.advance(&mut offsets, axis, -(at[axis] as isize));
                at[axis] = 0;
            }
        }
    }

    /// Moves the offsets along an axis.
    fn advance(&self, offsets: &mut [isize], axis: usize, by: isize) {
        let strides = &self.strides[axis * self.operands..][..self.operands];
        offsets.iter_mut().zip(strides).for_each(|(offset, stride)| *offset += by * stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::row_major;

    /// The positions of every operand, by walking the blocks; sorted by the first operand.
    fn walk(nest: &Nest) -> Vec<Vec<isize>> {
        let mut seen = Vec::new();
        nest.visit(0..nest.blocks(), |block| {
            for r in 0..block.rows as isize {
                for c in 0..block.cols as isize {
                    let at = |k: usize| {
                        block.offsets[k] + r * nest.row_stride(k) + c * nest.col_stride(k)
                    };
                    seen.push((0..block.offsets.len()).map(at).collect());
                }
            }
        });
        seen.sort();
        seen
    }

    fn naive(sizes: &[usize], operands: &[&[isize]]) -> Vec<Vec<isize>> {
        let count: usize = sizes.iter().product();
        let own = row_major(sizes);
        let index = |i: usize, a: usize| (i / own[a] as usize % sizes[a]) as isize;
        let mut out: Vec<Vec<isize>> = (0..count)
            .map(|i| {
                operands
                    .iter()
                    .map(|s| (0..sizes.len()).map(|a| index(i, a) * s[a]).sum())
                    .collect()
            })
            .collect();
        out.sort();
        out
    }

    #[test]
    fn blocks_cover_every_element_once() {
        let cases: &[(&[usize], &[&[isize]])] = &[
            (&[], &[&[], &[]]),
            (&[70], &[&[1], &[-2]]),
            (&[5, 7, 3], &[&[21, 3, 1], &[1, 5, 35], &[0, 0, 1]]),
            (&[90, 70], &[&[70, 1], &[1, 90]]),
            (&[2, 90, 1, 3], &[&[270, 3, 3, 1], &[0, 1, 0, 90]]),
            (&[4, 0, 2], &[&[1, 1, 1]]),
            (&[3, 200], &[&[200, 1], &[1, 0], &[0, 3]]),
        ];
        for (sizes, operands) in cases {
            for limit in [64, 1024] {
                let nest = Nest::new(sizes, operands, limit, limit);
                assert_eq!(walk(&nest), naive(sizes, operands), "{sizes:?} {operands:?}");
                assert!(nest.steps.iter().product::<usize>() <= limit);
            }
        }
    }

    #[test]
    fn a_walk_can_be_split_anywhere() {
        let nest = Nest::new(&[9, 40, 50], &[&[2000, 50, 1], &[1, 9, 360]], 64, 64);
        let mut whole = Vec::new();
        nest.visit(0..nest.blocks(), |b| whole.push((b.rows, b.cols, b.offsets.to_vec())));
        for split in [1, 7, nest.blocks() / 2, nest.blocks() - 1] {
            let mut parts = Vec::new();
            for range in [0..split, split..nest.blocks()] {
                nest.visit(range, |b| parts.push((b.rows, b.cols, b.offsets.to_vec())));
            }
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn blocks_of_short_windows_span_the_image() {
        // Windows of 2 × 2 over an image of 28 × 28, their elements outermost.
        let windows: &[isize] = &[28, 1, 56, 2];
        let nest = Nest::new(&[2, 2, 14, 14], &[windows, &[392, 196, 14, 1]], 1024, 1024);
        assert_eq!((nest.row_axis, nest.steps.as_slice()), (2, &[1, 1, 14, 14][..]));
        // Windows that are as long as a cache line are read along it.
        let nest = Nest::new(&[16, 64], &[&[1, 16], &[64, 1]], 1024, 1024);
        assert_eq!((nest.row_axis, nest.steps.as_slice()), (0, &[16, 64][..]));
    }

    #[test]
    fn a_line_is_the_nest_of_dense_operands() {
        for count in [1, 63, 64, 1000] {
            let (line, nest) =
                (Nest::line(count, 2, 64), Nest::new(&[count], &[&[1][..], &[1][..]], 64, 64));
            assert_eq!((line.sizes, line.strides), (nest.sizes, nest.strides));
            assert_eq!((line.steps, line.row_axis), (nest.steps, nest.row_axis));
        }
    }

    #[test]
    fn even_axes_merge() {
        let nest = Nest::new(&[4, 5, 6], &[&[30, 6, 1], &[60, 12, 2]], 1024, 1024);
        assert_eq!(nest.sizes.as_slice(), [120]);
        let nest = Nest::new(&[4, 5, 6], &[&[30, 6, 1], &[0, 6, 1]], 1024, 1024);
        assert_eq!(nest.sizes.as_slice(), [4, 30]);
    }
}
