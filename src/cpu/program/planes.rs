//! A chain on the rectangles of a loop nest.

use std::ops::Range;

use smallvec::SmallVec;

use super::chain::{Chain, Rows};
use super::part::Matrix;
use super::{Place, Port};
use crate::cpu::nest::{self, Nest};

/// A chain on each of some rectangles, which lie evenly apart.
pub struct Planes<'a> {
    chain: &'a Chain,
    nest: &'a Nest,
    sources: &'a [Port],
    target: &'a Port,
    numbers: &'a [u64],
    size: nest::Planes,
}

// SAFETY: threads work on different rows.
unsafe impl Sync for Planes<'_> {}

impl<'a> Planes<'a> {
    /// The chain on the rectangles of a nest; `None` where it has none, or something else is faster.
    pub fn of(
        chain: &'a Chain,
        nest: &'a Nest,
        sources: &'a [Port],
        target: &'a Port,
        numbers: &'a [u64],
    ) -> Option<Planes<'a>> {
        let planes = Planes { chain, nest, sources, target, numbers, size: nest.planes()? };
        let first = planes.on(0)?;
        // Around the caches, blocks are as fast where no operand has one element for a row.
        (!target.streams || first.has_columns()).then_some(planes)
    }

    /// The rows of all rectangles.
    pub fn rows(&self) -> usize {
        self.size.count * self.size.rows
    }

    /// The chain on a rectangle. All are alike: what lies in the memory of the result lies as it does.
    fn on(&self, plane: usize) -> Option<Rows> {
        let matrix = |x: &Port, k: usize| {
            let Place { ptr, row, col } = x.at(plane as isize * self.nest.plane_stride(k));
            Matrix { ptr, dtype: x.dtype, row, col }
        };
        let inputs: SmallVec<[Matrix; 4]> =
            self.sources.iter().enumerate().map(|(k, x)| matrix(x, k)).collect();
        let output = matrix(self.target, inputs.len());
        self.chain.on(&inputs, self.numbers, &output, self.size.columns)
    }

    /// Works on some of all rows.
    ///
    /// # Safety
    /// As for [`run`](super::run), on these rows.
    pub unsafe fn run(&self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let (plane, row) = (at / self.size.rows, at % self.size.rows);
            let rows = row..self.size.rows.min(row + range.end - at);
            at += rows.len();
            let Some(chain) = self.on(plane) else { continue };
            // SAFETY: as the caller's.
            unsafe { if self.target.streams { chain.stream(rows) } else { chain.run(rows) } }
        }
    }
}
