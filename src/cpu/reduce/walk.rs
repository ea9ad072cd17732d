//! A walk over the elements along some axes of a layout, in C order.

use smallvec::SmallVec;

/// Axes in C order without those of size 1. Neighbouring axes that one stride walks are merged.
#[derive(Default, Debug)]
pub struct Walk {
    axes: SmallVec<[(usize, isize); 6]>,
}

impl Walk {
    /// Adds an axis as the new innermost one.
    pub fn push(&mut self, size: usize, stride: isize) {
        if size == 1 {
            return;
        }
        match self.axes.last_mut() {
            Some((n, s)) if *s == stride * size as isize => (*n, *s) = (*n * size, stride),
            _ => self.axes.push((size, stride)),
        }
    }

    /// Size and stride of the innermost axis; a walk without axes has one position.
    pub fn inner(&self) -> (usize, isize) {
        self.axes.last().copied().unwrap_or((1, 0))
    }

    /// Whether there is at most one axis.
    pub fn is_flat(&self) -> bool {
        self.axes.len() <= 1
    }

    /// Whether some axis has stride 0, so that it repeats elements.
    pub fn repeats(&self) -> bool {
        self.axes.iter().any(|a| a.1 == 0)
    }

    /// The smallest nonzero stride of an axis, in absolute value.
    pub fn shortest_stride(&self) -> usize {
        self.axes.iter().map(|a| a.1.unsigned_abs()).filter(|&s| s > 0).min().unwrap_or(usize::MAX)
    }

    /// Visits the positions `start..start + count` in order, in runs along the innermost axis:
    /// `visit(offset of the first, positions in the run)`.
    pub fn runs(&self, start: usize, count: usize, mut visit: impl FnMut(isize, usize)) {
        self.visit(start, count, &mut visit);
    }

    /// [`Walk::runs`], compiled once for all visitors, of which kernels have hundreds.
    fn visit(&self, start: usize, count: usize, visit: &mut dyn FnMut(isize, usize)) {
        let Some((&(n, stride), outer)) = self.axes.split_last() else {
            return if count > 0 {
                visit(0, 1)
            };
        };
        if outer.is_empty() {
            return visit(start as isize * stride, count);
        }
        let (mut at, end) = (start, start + count);
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
        let mut rest = start / n;
        let mut offset = 0;
        for (i, &(size, s)) in outer.iter().enumerate().rev() {
            index[i] = rest % size;
            offset += index[i] as isize * s;
            rest /= size;
        }
        while at < end {
            let inner = at % n;
            let run = (n - inner).min(end - at);
            visit(offset + inner as isize * stride, run);
            at += run;
            for (i, &(size, s)) in outer.iter().enumerate().rev() {
                index[i] += 1;
                offset += s;
                if index[i] < size {
                    break;
                }
                offset -= size as isize * s;
                index[i] = 0;
            }
        }
    }
}
