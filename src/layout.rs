//! How a value lies in its buffer: strides (zero and negative ones too) and an offset, in elements.

use smallvec::SmallVec;

use crate::shape::{Dim, Dims, MAX_RANK, Shape};
use crate::small::small;

/// Distances between neighbours along each axis, in elements.
pub type Strides = SmallVec<[isize; 6]>;

/// Shape, strides and offset of a value in its buffer. A layout in C order keeps no strides.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    shape: Shape,
    kept: Kept,
    offset: usize,
}

/// The strides that a layout keeps. Equal strides are always kept in the same way.
#[derive(Clone, Debug, PartialEq)]
enum Kept {
    /// C order without gaps
    None,
    /// Few of moderate size, as nearly all are: a view of an array needs no memory of its own
    Short([i32; SHORT]),
    /// Others
    Long(Box<[isize]>),
}

/// The most axes whose strides need no memory of their own.
const SHORT: usize = 4;

impl Kept {
    /// What is kept of strides for such sizes.
    #[inline(always)]
    fn of(sizes: &[Dim], strides: &[isize]) -> Kept {
        debug_assert_eq!(sizes.len(), strides.len());
        let (mut expected, mut plain, mut is_empty) = (1_isize, true, false);
        for (d, &stride) in sizes.iter().zip(strides).rev() {
            let n = d.value();
            is_empty |= n == 0;
            if n != 1 {
                plain &= stride == expected;
                expected = expected.wrapping_mul(n as isize);
            }
        }
        // Without elements no stride matters.
        if plain || is_empty { Kept::None } else { Kept::new(strides) }
    }

    #[inline(always)]
    fn new(strides: &[isize]) -> Kept {
        let mut short = [0; SHORT];
        let mut fits = strides.len() <= SHORT;
        for (place, &stride) in short.iter_mut().zip(strides) {
            *place = stride as i32;
            fits &= stride == *place as isize;
        }
        if fits { Kept::Short(short) } else { Kept::Long(strides.into()) }
    }
}

/// The strides of C order.
pub fn row_major(sizes: &[usize]) -> Strides {
    let mut strides: Strides = small(sizes.iter().map(|_| 1));
    set_row_major(&mut strides, sizes.iter().copied());
    strides
}

#[inline(always)]
fn set_row_major(
    strides: &mut [isize],
    sizes: impl ExactSizeIterator<Item = usize> + DoubleEndedIterator,
) {
    let mut step = 1_isize;
    for (stride, n) in strides.iter_mut().rev().zip(sizes.rev()) {
        *stride = step;
        // Too large a product is that of an array without elements, whose strides do not matter.
        step = step.wrapping_mul(n.max(1) as isize);
    }
}

impl Layout {
    /// C order from the start of a buffer.
    pub fn contiguous(shape: Shape) -> Layout {
        Layout { shape, kept: Kept::None, offset: 0 }
    }

    /// C order from a position in a buffer.
    pub fn contiguous_at(shape: Shape, offset: usize) -> Layout {
        Layout { shape, kept: Kept::None, offset }
    }

    /// The elements of `shape` with axis 1, the channels, innermost, and the others in C order.
    pub fn channels_last(shape: &Shape) -> Layout {
        let rank = shape.rank();
        let lying = std::iter::once(0).chain(2..rank).chain(std::iter::once(1));
        let dense = Layout::contiguous(lying.map(|axis| shape[axis]).collect());
        let axes: SmallVec<[usize; 6]> = small([0, rank - 1].into_iter().chain(1..rank - 1));
        dense.permuted(&axes)
    }

    /// Any strides. Those of C order are recognised (axes of size 1 do not count).
    pub fn strided(shape: Shape, strides: &[isize], offset: usize) -> Layout {
        let kept = Kept::of(shape.dims(), strides);
        Layout { shape, kept, offset }
    }

    /// The same layout further on in its buffer.
    pub fn moved(&self, by: usize) -> Layout {
        Layout { offset: self.offset + by, ..self.clone() }
    }

    /// The same layout, counted from the element at index zero.
    pub fn from_zero(&self) -> Layout {
        Layout { offset: 0, ..self.clone() }
    }

    /// The same elements with the axes in another order.
    pub fn permuted(&self, axes: &[usize]) -> Layout {
        self.with_strides(|from| {
            let (mut dims, mut strides) = (Dims::new(), Strides::new());
            for &axis in axes {
                dims.push(self.shape[axis]);
                strides.push(from[axis]);
            }
            Layout::strided(dims.into(), &strides, self.offset)
        })
    }

    /// The same elements with two axes exchanged. In place wherever it is called, as parts of arrays
    /// are.
    #[inline(always)]
    pub fn exchanged(&self, a: usize, b: usize) -> Layout {
        self.with_strides(|from| {
            let mut shape = self.shape.clone();
            shape.dims_mut().swap(a, b);
            let mut room = [0; MAX_RANK];
            let mut short = [0; SHORT];
            let rank = from.len();
            let strides = if rank <= SHORT { &mut short[..rank] } else { &mut room[..rank] };
            strides.copy_from_slice(from);
            strides.swap(a, b);
            Layout::strided(shape, strides, self.offset)
        })
    }

    /// Gives a layout of a scalar a short shape, in C order, in place: see [`Shape::set_short`].
    #[inline(always)]
    pub fn set_short_shape(&mut self, shape: &Shape) {
        debug_assert!(self.is_contiguous(), "C order");
        self.shape.set_short(shape);
    }

    /// Gives a layout of a scalar other sizes and strides, in place.
    #[inline(always)]
    pub fn set_strided(&mut self, sizes: &[Dim], strides: &[isize], offset: usize) {
        debug_assert_eq!(self.shape.rank(), 0);
        for &size in sizes {
            self.shape.dims_mut().push(size);
        }
        self.kept = Kept::of(sizes, strides);
        self.offset = offset;
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Elements between the buffer's start and the element at index zero.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the elements lie in C order without gaps (not necessarily from the buffer's start).
    pub fn is_contiguous(&self) -> bool {
        matches!(self.kept, Kept::None)
    }

    /// The strides of every axis.
    pub fn strides(&self) -> Strides {
        let mut strides: Strides = small(self.shape.dims().iter().map(|_| 0));
        self.write_strides(&mut strides);
        strides
    }

    /// The strides of every axis, of which there are at most [`MAX_RANK`]; in `room` where they are
    /// not kept as they are.
    #[inline]
    pub fn strides_in<'a>(&'a self, room: &'a mut [isize; MAX_RANK]) -> &'a [isize] {
        let rank = self.shape.rank();
        match &self.kept {
            Kept::Long(strides) => strides,
            Kept::Short(_) | Kept::None => {
                self.write_strides(&mut room[..rank]);
                &room[..rank]
            }
        }
    }

    /// The strides of every axis, to read.
    #[inline(always)]
    fn with_strides<T>(&self, read: impl FnOnce(&[isize]) -> T) -> T {
        let rank = self.shape.rank();
        if rank > SHORT {
            return read(self.strides_in(&mut [0; MAX_RANK]));
        }
        let mut room = [0; SHORT];
        self.write_strides(&mut room[..rank]);
        read(&room[..rank])
    }

    /// Writes the strides, into room for all.
    #[inline(always)]
    fn write_strides(&self, room: &mut [isize]) {
        match &self.kept {
            Kept::Long(strides) => room.copy_from_slice(strides),
            Kept::Short(strides) => {
                for (place, &stride) in room.iter_mut().zip(strides) {
                    *place = stride as isize;
                }
            }
            Kept::None => set_row_major(room, self.shape.dims().iter().map(|d| d.value())),
        }
    }

    /// The elements of memory that it needs from its first one on.
    pub fn room(&self) -> usize {
        self.extent().map_or(0, |(_, high)| high + 1)
    }

    /// The lowest and highest element position, inclusive; `None` without elements.
    pub fn extent(&self) -> Option<(usize, usize)> {
        if self.shape.count() == 0 {
            return None;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (d, stride) in self.shape.dims().iter().zip(self.strides()) {
            let reach = (d.value() as isize - 1) * stride;
            low += reach.min(0);
            high += reach.max(0);
        }
        Some((low as usize, high as usize))
    }

    /// One past the highest element position, 0 without elements; `None` where a position lies
    /// before the buffer's start or beyond all memory.
    #[inline]
    pub fn end(&self) -> Option<usize> {
        let dims = self.shape.dims();
        if self.is_contiguous() {
            // A saturated count is beyond all memory.
            let count = dims.iter().fold(1, |n: usize, d| n.saturating_mul(d.value()));
            return if count == 0 { Some(0) } else { self.offset.checked_add(count) };
        }
        self.with_strides(|strides| {
            // One pass, since views are made for every index.
            let (mut low, mut high, mut is_far) = (0_isize, 0_isize, false);
            for (d, &stride) in dims.iter().zip(strides) {
                let n = d.value();
                if n == 0 {
                    return Some(0);
                }
                let (reach, overflows) = (n as isize - 1).overflowing_mul(stride);
                is_far |= overflows || n > isize::MAX as usize;
                let end = if reach < 0 { &mut low } else { &mut high };
                let (sum, overflows) = end.overflowing_add(reach);
                is_far |= overflows;
                *end = sum;
            }
            if is_far {
                return None;
            }
            self.offset.checked_add_signed(low)?;
            self.offset.checked_add_signed(high)?.checked_add(1)
        })
    }

    /// The strides of this layout seen as `target`, to which its shape broadcasts.
    pub fn broadcast_strides(&self, target: &Shape) -> Strides {
        let own = self.strides();
        let lead = target.rank() - own.len();
        (0..target.rank())
            .map(|i| match i.checked_sub(lead) {
                Some(j) if self.shape[j].same(target[i]) => own[j],
                _ => 0,
            })
            .collect()
    }

    /// The layout of the same elements in another shape, where that needs no copy.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.is_contiguous() {
            return Some(Layout::contiguous_at(shape.clone(), self.offset));
        }
        let (old, new) = (self.shape.sizes(), shape.sizes());
        let from = self.strides();
        let mut strides: Strides = SmallVec::from_elem(0, new.len());
        let (mut i, mut j) = (0, 0);
        while i < old.len() || j < new.len() {
            // The next group of axes on either side with the same count of elements.
            let (start_i, start_j) = (i, j);
            let (mut a, mut b) = (1, 1);
            while i == start_i || j == start_j || a != b {
                if (a <= b && i < old.len()) || j >= new.len() {
                    if i >= old.len() {
                        break;
                    }
                    a *= old[i];
                    i += 1;
                } else {
                    b *= new[j];
                    j += 1;
                }
            }
            while i < old.len() && old[i] == 1 {
                i += 1;
            }
            let group: SmallVec<[usize; 6]> = (start_i..i).filter(|&k| old[k] != 1).collect();
            let merges = group.windows(2).all(|w| from[w[0]] == from[w[1]] * old[w[1]] as isize);
            if !merges {
                return None;
            }
            let mut stride = group.last().map_or(0, |&k| from[k]);
            for k in (start_j..j).rev() {
                strides[k] = stride;
                stride *= new[k] as isize;
            }
        }
        Some(Layout::strided(shape.clone(), &strides, self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_order_is_recognised() {
        assert!(Layout::strided(Shape::of(&[2, 1, 3]), &[3, 99, 1], 5).is_contiguous());
        assert!(!Layout::strided(Shape::of(&[2, 3]), &[1, 2], 0).is_contiguous());
        assert!(Layout::strided(Shape::of(&[0, 3]), &[7, 7], 0).is_contiguous());
    }

    #[test]
    fn a_reshape_without_a_copy_keeps_every_position() {
        // 2 x 3 x 4 out of a wider buffer: the last two axes merge, the first does not.
        let from = Layout::strided(Shape::of(&[2, 3, 4]), &[24, 4, 1], 1);
        let merged = from.reshape(&Shape::of(&[2, 12])).unwrap();
        assert_eq!(merged.strides().as_slice(), [24, 1]);
        assert!(from.reshape(&Shape::of(&[24])).is_none());
        let split = from.reshape(&Shape::of(&[2, 3, 2, 2])).unwrap();
        assert_eq!(split.strides().as_slice(), [24, 4, 2, 1]);
        let transposed = Layout::strided(Shape::of(&[4, 6]), &[1, 4], 0);
        assert_eq!(
            transposed.reshape(&Shape::of(&[2, 2, 6])).unwrap().strides().as_slice(),
            [2, 1, 4]
        );
        assert!(transposed.reshape(&Shape::of(&[24])).is_none());
        assert!(transposed.reshape(&Shape::of(&[4, 1, 6, 1])).is_some());
    }

    #[test]
    fn the_end_is_that_of_every_position() {
        let end = |sizes: &[usize], strides: &[isize], offset| {
            Layout::strided(Shape::of(sizes), strides, offset).end()
        };
        assert_eq!(end(&[2, 3], &[3, 1], 5), Some(11));
        assert_eq!(end(&[3, 2], &[-2, 1], 4), Some(6));
        assert_eq!(end(&[3, 2], &[-2, 1], 3), None);
        assert_eq!(end(&[1 << 40], &[0], 7), Some(8));
        assert_eq!(end(&[0, 3], &[7, 7], 9), Some(0));
        assert_eq!(end(&[], &[], 9), Some(10));
        assert_eq!(end(&[3], &[isize::MAX], 0), None);
    }

    #[test]
    fn extent_follows_the_sign_of_the_strides() {
        assert_eq!(Layout::strided(Shape::of(&[3, 2]), &[-2, 1], 4).extent(), Some((0, 5)));
    }
}
