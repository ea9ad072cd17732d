//! One axis of a product, merged from several axes of an array.

use smallvec::SmallVec;

/// Positions, in elements, along an axis that was merged from several. Its parts are ordered
/// outermost first; neighbours that one stride can walk are one part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axis {
    parts: SmallVec<[(usize, isize); 3]>,
}

/// A run of an axis that one stride walks: `len` indices from `at`, the first at position `offset`.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first index, counted from the start of the block asked for
    pub at: usize,
    /// How many indices
    pub len: usize,
    /// The position of the first
    pub offset: isize,
}

/// The runs of a block of an axis.
pub type Runs = SmallVec<[Run; 8]>;

impl Axis {
    /// The axis that walks `parts` (size, stride), outermost first.
    pub fn new(parts: impl IntoIterator<Item = (usize, isize)>) -> Axis {
        let mut merged: SmallVec<[(usize, isize); 3]> = SmallVec::new();
        for (size, stride) in parts.into_iter().filter(|p| p.0 != 1) {
            match merged.last_mut() {
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => merged.push((size, stride)),
            }
        }
        Axis { parts: merged }
    }

    /// The merged axes of several arrays. All have the same parts, so that their runs differ only
    /// in offsets. `strides` has the strides of each array, one for each size.
    pub fn together(sizes: &[usize], strides: &[SmallVec<[isize; 6]>]) -> SmallVec<[Axis; 4]> {
        let mut all: SmallVec<[Axis; 4]> = strides.iter().map(|_| Axis::default()).collect();
        for (i, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
            let goes_on = all.iter().zip(strides).all(|(axis, strides)| {
                axis.parts.last().is_some_and(|last| last.1 == strides[i] * size as isize)
            });
            for (axis, strides) in all.iter_mut().zip(strides) {
                match axis.parts.last_mut() {
                    Some(last) if goes_on => *last = (last.0 * size, strides[i]),
                    Some(_) | None => axis.parts.push((size, strides[i])),
                }
            }
        }
        all
    }

    /// The count of indices.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|p| p.0).product()
    }

    /// The stride, if a single one walks the whole axis (1 if the axis has one index).
    pub fn stride(&self) -> Option<isize> {
        match self.parts.as_slice() {
            [] => Some(1),
            [(_, stride)] => Some(*stride),
            _ => None,
        }
    }

    /// The size and stride of the innermost part.
    pub fn inner(&self) -> (usize, isize) {
        self.parts.last().copied().unwrap_or((1, 1))
    }

    /// The position of index `i`.
    pub fn at(&self, mut i: usize) -> isize {
        let mut offset = 0;
        for &(size, stride) in self.parts.iter().skip(1).rev() {
            offset += (i % size) as isize * stride;
            i /= size;
        }
        offset + i as isize * self.parts.first().map_or(0, |p| p.1)
    }

    /// The positions of the indices from `start` on.
    pub fn offsets(&self, start: usize, out: &mut [isize]) {
        let stride = self.inner().1;
        for run in self.runs(start, out.len()) {
            for (i, out) in out[run.at..run.at + run.len].iter_mut().enumerate() {
                *out = run.offset + i as isize * stride;
            }
        }
    }

    /// The runs of the innermost stride that make up the `len` indices from `start` on.
    pub fn runs(&self, start: usize, len: usize) -> Runs {
        let size = if self.parts.len() < 2 { usize::MAX } else { self.inner().0 };
        let (mut runs, mut at) = (Runs::new(), 0);
        while at < len {
            let n = (size - (start + at) % size).min(len - at);
            runs.push(Run { at, len: n, offset: self.at(start + at) });
            at += n;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mergeable_neighbours_become_one_part() {
        assert_eq!(Axis::new([(2, 12), (1, 77), (3, 4), (4, 1)]).stride(), Some(1));
        assert_eq!(Axis::new([(3, -4), (4, -1)]).stride(), Some(-1));
        assert_eq!(Axis::new([]).len(), 1);
        assert_eq!(Axis::new([(0, 3), (2, 9)]).len(), 0);
    }

    #[test]
    fn axes_that_walk_together_have_the_same_runs() {
        let strides: [SmallVec<[isize; 6]>; 3] = [
            SmallVec::from_slice(&[12, 4, 77, 1]),
            SmallVec::from_slice(&[0, 4, 5, 1]),
            SmallVec::from_slice(&[0, 0, 0, 0]),
        ];
        let axes = Axis::together(&[2, 3, 1, 4], &strides);
        for (start, len) in [(0, 24), (5, 9), (13, 1), (3, 0)] {
            let all: Vec<Runs> = axes.iter().map(|axis| axis.runs(start, len)).collect();
            let at = |runs: &Runs| runs.iter().map(|run| (run.at, run.len)).collect::<Vec<_>>();
            assert!(all.iter().all(|runs| at(runs) == at(&all[0])));
            for ((runs, strides), axis) in all.iter().zip(&strides).zip(&axes) {
                for run in runs {
                    for i in 0..run.len {
                        let k = (start + run.at + i) as isize;
                        let want =
                            k / 12 * strides[0] + k / 4 % 3 * strides[1] + k % 4 * strides[3];
                        assert_eq!(run.offset + i as isize * axis.inner().1, want);
                    }
                }
            }
        }
        assert!(Axis::together(&[1, 1], &[SmallVec::from_slice(&[3, 4])])[0].stride() == Some(1));
    }

    #[test]
    fn runs_cover_a_block_in_order() {
        let axis = Axis::new([(2, 100), (3, 10), (4, 1)]);
        for (start, len) in [(0, 24), (3, 7), (11, 2), (5, 0)] {
            let mut next = 0;
            for run in axis.runs(start, len) {
                assert_eq!(run.at, next);
                for i in 0..run.len {
                    let k = start + run.at + i;
                    let want = (k / 12 * 100 + k / 4 % 3 * 10 + k % 4) as isize;
                    assert_eq!(run.offset + i as isize, want);
                    assert_eq!(axis.at(k), want);
                }
                next += run.len;
            }
            assert_eq!(next, len);
        }
    }
}
