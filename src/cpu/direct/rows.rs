//! Vectors of neighbouring rows of the weights.

use std::ops::Range;

use smallvec::SmallVec;

use super::job::Job;
use crate::cpu::gemm::kernel::{BLOCK, Element, SQUARE, TileKernels, prefetch};
use crate::cpu::sweep::each_index;
use crate::threads::Pace;

/// Places of a tile: the first, as an offset in a plane and as a number among the places of the
/// band, and the kernels of their count.
struct Piece<T: 'static> {
    at: usize,
    number: usize,
    tile: TileKernels<T>,
}

impl<T: Element> Job<'_, T> {
    /// The places of a band in tiles.
    fn pieces(&self, places: usize) -> Vec<Piece<T>> {
        let (cut, tiles) = (self.cut, self.kernels.tiles);
        let last = cut.planes.axes.len() - 1;
        let size = |i: usize| if i == 0 { places } else { cut.planes.axes[i].places };
        let (long, mut pieces, mut number) = (size(last), Vec::new(), 0);
        each_index((0..last).map(size), |index| {
            let line: usize =
                index.iter().zip(&cut.planes.pitches).map(|(i, pitch)| i * pitch).sum();
            let mut at = 0;
            while at < long {
                // Tiles of about one height: low ones leave the multipliers idle.
                let rest = long - at;
                let most = rest.div_ceil(rest.div_ceil(tiles[0].rows));
                let fits = tiles.iter().find(|tile| tile.rows <= most);
                let tile = *fits.unwrap_or_else(|| unreachable!("the last tile has one row"));
                pieces.push(Piece { at: line + at, number: number + at, tile });
                at += tile.rows;
            }
            number += long;
        });
        pieces
    }

    /// Multiplies the places of a patch with rows of weights. Results of neighbouring places are
    /// `each` apart.
    ///
    /// # Safety
    /// The patch is written, and there is room for the results.
    pub unsafe fn multiply_rows(
        &self,
        group: usize,
        rows: &Range<usize>,
        places: usize,
        patch: *const T,
        (results, each): (*mut T, isize),
    ) {
        let (cut, width) = (self.cut, self.kernels.width);
        let pieces = self.pieces(places);
        let lanes = self.kernels.lanes;
        let panel = |row: usize, k: usize| {
            let at = (group * cut.rows + row / width * width) * cut.depth + k * width + row % width;
            self.weights.wrapping_add(at)
        };
        let mut pace = Pace::default();
        for k in (0..cut.depth).step_by(BLOCK) {
            let steps = &self.offsets[k..cut.depth.min(k + BLOCK)];
            let mut row = rows.start;
            while row < rows.end {
                // A part may start in the middle of a panel, with a vector.
                let is_slim =
                    !row.is_multiple_of(width) || cut.outputs.min(rows.end) - row <= lanes;
                let after = row + if is_slim { lanes } else { width };
                let here = panel(row, k);
                // While a panel is multiplied, the next one is fetched.
                let next = match after < rows.end {
                    true => panel(after / width * width, k),
                    false => panel(rows.start / width * width, k + BLOCK),
                };
                let lines = steps.len() * width * size_of::<T>() / 64;
                // One line for each step, as far as these suffice, the rest before.
                let line = (64 / size_of::<T>()) as isize;
                let ahead = |i: usize| next.wrapping_offset((i * steps.len()) as isize * line);
                let few = lines.saturating_sub(pieces.len() * steps.len());
                for i in lines - few..lines {
                    prefetch(next.wrapping_offset(i as isize * line));
                }
                for (i, piece) in pieces.iter().enumerate() {
                    pace.multiplied(piece.tile.rows * width * steps.len());
                    let fetch = match i * steps.len() < lines {
                        true => (ahead(i), line),
                        false => (here, 0),
                    };
                    let kernel = if is_slim { piece.tile.slim } else { piece.tile.spread };
                    // SAFETY: the patch and the panel have these steps, the results these rows.
                    unsafe {
                        kernel(
                            steps.len(),
                            patch.add(piece.at),
                            steps.as_ptr(),
                            here,
                            width as isize,
                            results.offset(piece.number as isize * each).add(row - rows.start),
                            each,
                            k == 0,
                            fetch,
                        );
                    }
                }
                row = after;
            }
        }
    }

    /// Copies results to where they belong, transposed.
    ///
    /// # Safety
    /// They are written.
    pub unsafe fn store_rows(
        &self,
        item: usize,
        rows: &Range<usize>,
        places: &Range<usize>,
        from: *const T,
    ) {
        let cut = self.cut;
        let to = self.result(item, rows.start);
        let to = to.wrapping_offset(places.start as isize * self.apart[0]);
        let count = places.len() * cut.behind();
        let is_dense = self.apart.last() == Some(&1)
            && self
                .apart
                .windows(2)
                .zip(&cut.planes.axes[1..])
                .all(|(two, inner)| two[0] == two[1] * inner.places as isize);
        let mut done = 0;
        if let (Some(transpose), true, 4) = (self.kernels.transpose, is_dense, size_of::<T>())
            && rows.len() >= SQUARE
            && count >= SQUARE
        {
            for at in (0..count).step_by(SQUARE) {
                // The last square is moved back so that it ends with the places.
                let at = at.min(count - SQUARE);
                // SAFETY: by contract; the processor has what its kernels need.
                unsafe {
                    let lines = std::array::from_fn(|i| from.add((at + i) * cut.each).cast());
                    let to = to.add(at).cast();
                    transpose(to, self.next as usize, &lines, rows.len());
                }
            }
            done = count;
        }
        if done == count {
            return;
        }
        let sizes = (cut.planes.axes.iter().enumerate())
            .map(|(i, along)| if i == 0 { places.len() } else { along.places });
        let mut offsets: SmallVec<[isize; 64]> = SmallVec::with_capacity(count);
        each_index(sizes, |index| {
            offsets.push(index.iter().zip(&self.apart).map(|(&i, by)| i as isize * by).sum());
        });
        for some in (0..rows.len()).step_by(SQUARE) {
            for (i, offset) in offsets.iter().enumerate() {
                for row in some..rows.len().min(some + SQUARE) {
                    // SAFETY: by contract.
                    unsafe {
                        let to = to.wrapping_offset(row as isize * self.next + offset);
                        *to = *from.add(i * cut.each + row);
                    }
                }
            }
        }
    }
}
