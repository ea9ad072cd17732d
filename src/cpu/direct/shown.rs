//! The steps of a sum that some places have: those of taps that show them padding alone are left out.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Cut, Windows};
use crate::cpu::gemm::kernel::BLOCK;
use crate::cpu::sweep::{Sweep, each_index};

/// By spatial axis, the taps that show some places more than padding, or others between them.
pub type Taps = SmallVec<[Range<usize>; 3]>;

/// The steps of a sum that read some of the taps.
pub struct Steps {
    pub taps: Taps,
    /// What each of them reads of a patch, and of a panel of weights
    at: Vec<isize>,
    weights: Vec<isize>,
    /// Where each block of all steps ends among these
    ends: Vec<usize>,
}

/// Those of a block of all steps: how many, and what they read of a patch and of a panel of weights.
pub struct Block {
    pub count: usize,
    pub at: *const isize,
    pub weights: *const isize,
}

impl Steps {
    /// Those of a block of [`BLOCK`] steps, by its number.
    pub fn block(&self, block: usize) -> Block {
        let start = if block == 0 { 0 } else { self.ends[block - 1] };
        let range = start..self.ends[block];
        Block {
            count: range.len(),
            at: self.at[range.clone()].as_ptr(),
            weights: self.weights[range].as_ptr(),
        }
    }
}

/// A spatial axis.
struct Axis<'a> {
    /// How places and taps meet
    sweep: &'a Sweep,
    positions: usize,
    /// The places whose taps all read one of these
    whole: Range<usize>,
}

/// The steps of the sums of a convolution.
pub struct Shown<'a> {
    /// None where places are read where they lie
    axes: SmallVec<[Axis<'a>; 3]>,
    /// Offsets in a patch: of the taps of a channel, and from a channel to the next
    offsets: Vec<isize>,
    channel: isize,
    channels: usize,
    /// Weights that a step of a panel has
    width: usize,
    known: Mutex<Vec<Arc<Steps>>>,
}

impl<'a> Shown<'a> {
    /// Those of these windows, of which a panel of weights has `width` for a step.
    pub fn new(windows: &'a Windows<'_>, cut: &Cut, width: usize) -> Shown<'a> {
        let (offsets, channel) = cut.taps();
        let axis = |(sweep, &(positions, _)): (&'a Sweep, &(usize, isize))| Axis {
            sweep,
            positions,
            whole: sweep.whole(positions),
        };
        Shown {
            axes: match cut.there {
                Some(_) => SmallVec::new(),
                None => windows.sweeps.iter().zip(&windows.x.spatial).map(axis).collect(),
            },
            offsets,
            channel,
            channels: cut.channels,
            width,
            known: Mutex::default(),
        }
    }

    /// The taps of places: along each axis a range of them, along the first one counted from `first`.
    pub fn taps(&self, first: usize, places: impl Fn(usize) -> Range<usize>) -> Taps {
        let axis = |i: usize| {
            let (places, before) = (places(i), if i == 0 { first } else { 0 });
            self.along(i, before + places.start..before + places.end)
        };
        (0..self.axes.len()).map(axis).collect()
    }

    /// The taps along an axis of some places, at least one.
    pub fn along(&self, axis: usize, places: Range<usize>) -> Range<usize> {
        // Places that lie one after another in memory have one tap.
        let Some(Axis { sweep, positions, whole }) = self.axes.get(axis) else { return 0..1 };
        if whole.start <= places.start && places.end <= whole.end {
            return 0..sweep.taps;
        }
        // From one place to the next both ends move to one side.
        let [a, b] = [places.start, places.end - 1].map(|q| sweep.inside(q, *positions));
        a.start.min(b.start)..a.end.max(b.end)
    }

    /// The steps of those taps.
    pub fn steps(&self, taps: Taps) -> Arc<Steps> {
        let mut known = self.known.lock();
        if let Some(steps) = known.iter().find(|steps| steps.taps == taps) {
            return steps.clone();
        }
        let made = Arc::new(self.list(taps));
        known.push(made.clone());
        made
    }

    fn list(&self, taps: Taps) -> Steps {
        // The numbers of those taps among all of a channel, in C order.
        let mut numbers: SmallVec<[usize; 64]> = SmallVec::new();
        each_index(taps.iter().map(|range| range.len()), |index| {
            let axes = index.iter().zip(&taps).zip(&self.axes);
            let number = |n, ((i, range), axis): ((&usize, &Range<usize>), &Axis<'_>)| {
                n * axis.sweep.taps + range.start + i
            };
            numbers.push(axes.fold(0, number));
        });
        let offsets: SmallVec<[isize; 64]> = numbers.iter().map(|&n| self.offsets[n]).collect();
        let panels: SmallVec<[isize; 64]> =
            numbers.iter().map(|&n| (n * self.width) as isize).collect();
        let (all, count) = (self.offsets.len(), self.channels * numbers.len());
        let (mut at, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for c in 0..self.channels {
            let (patch, panel) = (c as isize * self.channel, (c * all * self.width) as isize);
            at.extend(offsets.iter().map(|offset| patch + offset));
            weights.extend(panels.iter().map(|offset| panel + offset));
        }
        // Those of the channels before the end of a block, and of the one that it is in.
        let end =
            |step: usize| step / all * numbers.len() + numbers.partition_point(|&n| n < step % all);
        let depth = self.channels * all;
        let ends = (0..depth).step_by(BLOCK).map(|k| end(depth.min(k + BLOCK))).collect();
        Steps { taps, at, weights, ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three taps by two, with one position of padding on each side of seven by nine.
    fn axes() -> [Sweep; 2] {
        let plain = Sweep {
            count: 7,
            taps: 3,
            first: 0,
            skip: 1,
            base: -1,
            step: 1,
            tap: 1,
            to: 0,
            apart: 1,
        };
        // From the last tap to the first, two apart.
        [plain, Sweep { count: 9, taps: 2, base: 1, tap: -2, ..plain }]
    }

    #[test]
    fn steps_are_those_of_all_taps_that_show_more_than_padding() {
        let (axes, positions, channels, width) = (axes(), [7, 9], 70, 32);
        let axis = |(sweep, &positions)| Axis { sweep, positions, whole: sweep.whole(positions) };
        let shown = Shown {
            axes: axes.iter().zip(&positions).map(axis).collect(),
            offsets: vec![5, 17, 40, 2, 90, 33],
            channel: 1000,
            channels,
            width,
            known: Mutex::default(),
        };
        let mut fewer = 0;
        for (start, end) in [(0, 1), (0, 7), (1, 2), (3, 6), (6, 7)] {
            for columns in [0..1, 0..9, 2..4, 8..9] {
                // Rows are counted from a band that starts at the third place.
                let first = start.min(2);
                let places = [start - first..end - first, columns.clone()];
                let taps = shown.taps(first, |i| places[i].clone());
                let steps = shown.steps(taps.clone());
                assert!(Arc::ptr_eq(&steps, &shown.steps(taps)), "listed once");
                let shows = |axis: usize, tap: usize, places: &Range<usize>| {
                    let Sweep { base, step, tap: by, .. } = axes[axis];
                    places.clone().any(|q| {
                        let at = base + q as isize * step + tap as isize * by;
                        (0..positions[axis] as isize).contains(&at)
                    })
                };
                let all = (0..channels * 6).filter(|step| {
                    let tap = step % 6;
                    shows(0, tap / 2, &(start..end)) && shows(1, tap % 2, &columns)
                });
                let all: Vec<usize> = all.collect();
                fewer += usize::from(all.len() < channels * 6);
                let offset = |&step: &usize| (step / 6 * 1000) as isize + shown.offsets[step % 6];
                assert_eq!(steps.at, all.iter().map(offset).collect::<Vec<_>>());
                let weight = |&step: &usize| (step * width) as isize;
                assert_eq!(steps.weights, all.iter().map(weight).collect::<Vec<_>>());
                for block in 0..(channels * 6).div_ceil(BLOCK) {
                    let own = all.iter().filter(|&&step| step / BLOCK == block).count();
                    assert_eq!(steps.block(block).count, own);
                }
            }
        }
        assert!(fewer > 8, "{fewer}");
    }
}
