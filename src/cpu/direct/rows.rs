//! Vectors of neighbouring rows of the weights.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::job::Job;
use super::shown::{Block, Steps, Taps};
use crate::cpu::gemm::kernel::{BLOCK, Element, Kernels, PlaceKernels, Places, SQUARE};
use crate::cpu::sweep::each_index;
use crate::threads::Pace;

/// The longest lines whose tiles are chosen one by one; most of those of longer ones are full.
const SHORT: usize = 64;

/// Places of a tile: the first, as an offset in a plane and as a number among the places of the
/// band, the kernels, and the steps, by their number among [`Pieces::steps`].
struct Piece<T: 'static> {
    at: usize,
    number: usize,
    tile: PlaceKernels<T>,
    steps: usize,
}

/// The places of a band in tiles, and the steps that these have.
pub struct Pieces<T: 'static> {
    pieces: Vec<Piece<T>>,
    steps: SmallVec<[Arc<Steps>; 4]>,
}

/// Some neighbouring columns of places: how many, and the tiles for several lines of them, if there
/// are such.
type Strip<T> = (usize, Option<PlaceKernels<T>>);

/// Cuts `long` columns of `lines` lines of places into strips, so that tiles are high: low ones leave
/// the multipliers idle. `shown` says how many of a line's taps some lines see.
fn strips<T: Element>(
    kernels: &Kernels<T>,
    long: usize,
    lines: usize,
    shown: impl Fn(Range<usize>) -> usize,
) -> Vec<Strip<T>> {
    let high = kernels.along[0].each;
    if lines == 1 || long > SHORT || kernels.lined.is_empty() {
        let mut strips = Vec::new();
        let mut rest = long;
        while rest > 0 {
            let most = rest.div_ceil(rest.div_ceil(high));
            strips.push((line(kernels, most).each, None));
            rest -= line(kernels, most).each;
        }
        return strips;
    }
    // Instructions for a step of a tile: a multiplication for each vector of each row, an element of
    // each row, the vectors, and an address.
    let vectors = kernels.width / kernels.lanes;
    let cost = |rows: usize| rows * (vectors + 1) + vectors + 2;
    // What lines one by one see, and what those of tiles do.
    let seen: SmallVec<[usize; 64]> = (0..lines).map(|i| shown(i..i + 1)).collect();
    let each: usize = seen.iter().sum();
    let several: SmallVec<[_; 8]> = (kernels.lined.iter())
        .map(|tile| {
            let whole = lines / tile.lines * tile.lines;
            let groups = (0..whole).step_by(tile.lines).map(|i| shown(i..i + tile.lines));
            (tile, groups.sum::<usize>(), seen[whole..].iter().sum::<usize>())
        })
        .collect();
    let strip = |wide: usize| {
        let by_line = (each * cost(wide), None);
        let Some(&(tile, groups, rest)) = several.iter().find(|(tile, ..)| tile.each == wide)
        else {
            return by_line;
        };
        match groups * cost(tile.places()) + rest * cost(wide) {
            less if less < by_line.0 => (less, Some(*tile)),
            _ => by_line,
        }
    };
    // The cheapest way to cut so many columns: its cost, and its last strip.
    let mut best: SmallVec<[(usize, Strip<T>); SHORT + 1]> = SmallVec::new();
    best.push((0, (0, None)));
    for columns in 1..=long {
        let ways = (1..=high.min(columns)).filter(|&n| line(kernels, n).each == n).map(|n| {
            let (cost, tile) = strip(n);
            (best[columns - n].0 + cost, (n, tile))
        });
        let cheapest = ways.min_by_key(|way| way.0);
        best.push(cheapest.unwrap_or_else(|| unreachable!("a strip may have one column")));
    }
    let (mut strips, mut rest) = (Vec::new(), long);
    while rest > 0 {
        let strip = best[rest].1;
        strips.push(strip);
        rest -= strip.0;
    }
    strips
}

/// The highest tile along a line that has at most so many places.
fn line<T: Element>(kernels: &Kernels<T>, most: usize) -> PlaceKernels<T> {
    let fits = kernels.along.iter().find(|tile| tile.each <= most);
    *fits.unwrap_or_else(|| unreachable!("the last tile has one place"))
}

impl<T: Element> Job<'_, T> {
    /// The places of a band in tiles.
    fn pieces(&self, places: &Range<usize>) -> Pieces<T> {
        let planes = &self.cut.planes;
        let last = planes.axes.len() - 1;
        let size = |i: usize| if i == 0 { places.len() } else { planes.axes[i].places };
        let (long, lines, pitch) = match last {
            0 => (size(0), 1, 0),
            _ => (size(last), size(last - 1), planes.pitches[last - 1]),
        };
        let before = if last == 1 { places.start } else { 0 };
        let strips = strips(&self.kernels, long, lines, |some| match last {
            0 => 1,
            _ => self.shown.along(last - 1, before + some.start..before + some.end).len(),
        });
        let (mut pieces, mut number) = (Vec::new(), 0);
        let mut steps: SmallVec<[Arc<Steps>; 4]> = SmallVec::new();
        let mut of = |taps: Taps| {
            steps.iter().position(|known| known.taps == taps).unwrap_or_else(|| {
                steps.push(self.shown.steps(taps));
                steps.len() - 1
            })
        };
        each_index((0..last.saturating_sub(1)).map(size), |index| {
            let from: usize = index.iter().zip(&planes.pitches).map(|(i, by)| i * by).sum();
            let mut column = 0;
            for &(wide, several) in &strips {
                let mut done = 0;
                while done < lines {
                    let tile = match several {
                        Some(tile) if tile.lines <= lines - done => tile,
                        _ => line(&self.kernels, wide),
                    };
                    let at = from + done * pitch + column;
                    let number = number + done * long + column;
                    let axis = |i: usize| match last - i {
                        0 => column..column + wide,
                        1 => done..done + tile.lines,
                        _ => index[i]..index[i] + 1,
                    };
                    let steps = of(self.shown.taps(places.start, axis));
                    pieces.push(Piece { at, number, tile, steps });
                    done += tile.lines;
                }
                column += wide;
            }
            number += lines * long;
        });
        // Lines are in the near cache one after another.
        pieces.sort_unstable_by_key(|piece| piece.at);
        Pieces { pieces, steps }
    }

    /// Multiplies the places of a band's patch with rows of weights. Results of neighbouring places are
    /// `each` apart.
    ///
    /// # Safety
    /// The patch is written, and there is room for the results.
    pub unsafe fn multiply_rows(
        &self,
        group: usize,
        rows: &Range<usize>,
        band: usize,
        patch: *const T,
        (results, each): (*mut T, isize),
    ) {
        let (cut, width) = (self.cut, self.kernels.width);
        let chosen = || self.pieces(&self.cut.places(band));
        let Pieces { pieces, steps: known } = self.pieces[band].get_or_init(chosen);
        let lanes = self.kernels.lanes;
        let last = cut.planes.axes.len() - 1;
        // From a line to the next, in the patch and among the results.
        let (pitch, line_each) = match last {
            0 => (0, 0),
            _ => (
                cut.planes.pitches[last - 1] as isize,
                cut.planes.axes[last].places as isize * each,
            ),
        };
        let panel = |row: usize, k: usize| {
            let at = (group * cut.rows + row / width * width) * cut.depth + k * width + row % width;
            self.weights.wrapping_add(at)
        };
        let mut pace = Pace::default();
        for k in (0..cut.depth).step_by(BLOCK) {
            let depth = BLOCK.min(cut.depth - k);
            let blocks: SmallVec<[Block; 4]> =
                known.iter().map(|steps| steps.block(k / BLOCK)).collect();
            let mut row = rows.start;
            while row < rows.end {
                // A part may start in the middle of a panel, with a vector.
                let is_slim =
                    !row.is_multiple_of(width) || cut.outputs.min(rows.end) - row <= lanes;
                let after = row + if is_slim { lanes } else { width };
                let here = panel(row, 0);
                // While a panel is multiplied, the next one is fetched.
                let next = match after < rows.end {
                    true => panel(after / width * width, k),
                    false => panel(rows.start / width * width, k + BLOCK),
                };
                // Its lines are spread over all steps of all tiles: many fetches at once wait for each
                // other.
                let line = 64 / size_of::<T>();
                let share = (depth * width).div_ceil(pieces.len().max(1));
                let by = share.div_ceil(depth).min(line) as isize;
                for (i, piece) in pieces.iter().enumerate() {
                    let tile = &piece.tile;
                    let steps = &blocks[piece.steps];
                    pace.multiplied(tile.places() * width * steps.count);
                    let to = results.wrapping_offset(piece.number as isize * each);
                    let on = Places {
                        depth: steps.count,
                        at: patch.wrapping_add(piece.at),
                        steps: steps.at,
                        line: pitch,
                        b: here,
                        b_steps: steps.weights,
                        c: to.wrapping_add(row - rows.start),
                        c_steps: [each, line_each],
                        fresh: k == 0,
                        fetch: (next.wrapping_add(i * share), by),
                    };
                    let kernel = if is_slim { tile.slim } else { tile.spread };
                    // SAFETY: the patch and the panel have these steps, the results these rows.
                    unsafe { kernel(&on) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, isa};

    #[test]
    fn strips_have_all_columns_in_the_highest_tiles() {
        for isa in [Isa::Base, Isa::V3, Isa::V4].into_iter().filter(|&level| level <= isa()) {
            let kernels = f32::kernels_of(isa);
            let high = kernels.along[0].each;
            for (long, lines) in (1..80).flat_map(|long| [1, 2, 7, 13, 60].map(|n| (long, n))) {
                let strips = strips(&kernels, long, lines, |_| 3);
                assert_eq!(strips.iter().map(|strip| strip.0).sum::<usize>(), long);
                for (wide, several) in strips {
                    assert!(line(&kernels, wide).each == wide, "{wide} columns");
                    let Some(tile) = several else { continue };
                    assert!(tile.each == wide && tile.lines <= lines && wide * tile.lines == high);
                }
            }
            // One column is over: a tile down the lines, not a low one in each of them.
            if !kernels.lined.is_empty() {
                let strips = strips(&kernels, high + 1, 4 * high, |_| 3);
                assert!(strips.iter().any(|strip| strip.1.is_some()));
            }
        }
    }
}
