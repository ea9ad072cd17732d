//! How rows are cut into blocks, and how threads take the blocks.

use smallvec::SmallVec;

use super::{CarriedReduction, block_bytes};
use crate::target::{Blocks, Target};

/// Sizes or positions along the row axes.
pub type Sizes = SmallVec<[usize; 4]>;

/// How rows are cut into blocks: along one axis. Of the axes outside it a block has one index each;
/// the axes inside it are whole in every block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    sizes: Sizes,
    axis: usize,
    height: usize,
}

impl Grid {
    /// Blocks of about `rows` rows. The height of a block is a multiple of `even(n)`, where `n` is
    /// the rows per unit of height; a lower height is a power of two.
    pub fn new(sizes: Sizes, rows: usize, even: impl Fn(usize) -> usize) -> Grid {
        let (mut axis, mut inside) = (sizes.len() - 1, 1);
        while axis > 0 && inside * sizes[axis] <= rows {
            inside *= sizes[axis];
            axis -= 1;
        }
        let height = (rows / inside).clamp(1, sizes[axis]);
        // Blocks of about the same height.
        let height = sizes[axis].div_ceil(sizes[axis].div_ceil(height));
        let even = even(inside);
        let height = match height >= even {
            true => height.next_multiple_of(even),
            false => 1 << height.ilog2(),
        };
        Grid { height: height.min(sizes[axis]), sizes, axis }
    }

    /// The row at which a block starts, of all rows in order.
    pub fn row(&self, b: usize) -> usize {
        let inside: usize = self.sizes[self.axis + 1..].iter().product();
        let (outside, part) = (b / self.parts(), b % self.parts());
        (outside * self.sizes[self.axis] + part * self.height) * inside
    }

    /// The smallest number of blocks in a chunk with which all chunks start at rows for which
    /// `fits` holds.
    fn unit(&self, fits: impl Fn(usize) -> bool) -> usize {
        let blocks = self.blocks();
        let holds = |unit: &usize| (1..blocks.div_ceil(*unit)).all(|i| fits(self.row(i * unit)));
        // Chunks of more blocks are too few for several threads.
        (1..=blocks / 2).take(2048).find(holds).unwrap_or(blocks)
    }

    fn parts(&self) -> usize {
        self.sizes[self.axis].div_ceil(self.height)
    }

    /// The sizes of the row axes.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.sizes.iter().product()
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.sizes[..self.axis].iter().product::<usize>() * self.parts()
    }

    /// Where a block starts along each row axis, and how far it goes.
    pub fn block(&self, b: usize) -> (Sizes, Sizes) {
        let (mut start, mut size) = (Sizes::from_elem(0, self.sizes.len()), self.sizes.clone());
        let (mut rest, part) = (b / self.parts(), b % self.parts());
        start[self.axis] = part * self.height;
        size[self.axis] = self.height.min(self.sizes[self.axis] - start[self.axis]);
        for a in (0..self.axis).rev() {
            (start[a], size[a]) = (rest % self.sizes[a], 1);
            rest /= self.sizes[a];
        }
        (start, size)
    }

    /// Whether a block of this size has the full height.
    pub fn is_full(&self, size: &Sizes) -> bool {
        size[self.axis] == self.height
    }

    /// The sizes of full blocks, and of the lower blocks at the end of the axis, if there are any.
    pub fn forms(&self) -> (Sizes, Option<Sizes>) {
        let full = self.block(0).1;
        let last = self.block(self.parts() - 1).1;
        let lower = (last != full).then_some(last);
        (full, lower)
    }
}

/// How threads take the blocks.
#[derive(Clone, Debug)]
pub struct BlockSchedule {
    /// The blocks
    pub grid: Grid,
    /// How many blocks one thread runs in a row
    pub chunk: usize,
    /// How many blocks run at a time
    pub lanes: usize,
}

impl BlockSchedule {
    /// The schedule for rows of these sizes whose values take `bytes` in all; `None` where there
    /// would be one block.
    pub(super) fn new(
        sizes: Sizes,
        bytes: usize,
        carried: &[CarriedReduction],
        limits: &Blocks,
        target: &dyn Target,
    ) -> Option<BlockSchedule> {
        let rows: usize = sizes.iter().product();
        if rows < 2 {
            return None;
        }
        // Reductions over all rows combine lines in groups, so a chunk has to begin with a group.
        let groups: SmallVec<[(usize, usize); 2]> = carried
            .iter()
            .filter_map(|reduction| {
                let group = target.reduction_group(reduction.lines, reduction.width)?;
                Some((group, reduction.lines / rows))
            })
            .collect();
        let even = |inside: usize| {
            let step = |&(group, lines): &(usize, usize)| group / gcd(group, inside * lines);
            groups.iter().map(step).max().unwrap_or(1)
        };
        let high = block_bytes(limits, bytes, target.lanes()) / (bytes / rows).max(1);
        let grid = Grid::new(sizes, high.max(1), even);
        if grid.blocks() < 2 {
            return None;
        }
        let begins =
            |row: usize| groups.iter().all(|&(group, lines)| (row * lines).is_multiple_of(group));
        let unit = grid.unit(begins);
        let lanes = target.lanes().min(grid.blocks().div_ceil(unit));
        let chunk = match groups.is_empty() {
            true => 1,
            // Many small chunks have more overhead; a large chunk that starts late delays the end.
            false => unit * grid.blocks().div_ceil(unit * 8 * lanes),
        };
        Some(BlockSchedule { grid, chunk, lanes })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
