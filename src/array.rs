//! An array: dtype, layout and the data they describe. What kernels read and write.

use crate::device::Device;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::layout::Layout;
use crate::memory::Buffer;
use crate::shape::{Dim, Shape};

pub use crate::memory::{Busy, Data, Where};

/// An immutable array of known sizes. Cloning shares the data.
#[derive(Clone)]
pub struct Array {
    /// The element type.
    pub dtype: DType,
    /// Where the elements lie in their memory.
    pub layout: Layout,
    /// Where that memory is.
    pub data: Data,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape())
    }
}

impl Array {
    /// A fresh C-order array whose elements are not initialised yet: the caller fills every one.
    pub fn uninit(dtype: DType, shape: Shape) -> Result<Array> {
        let buffer = Buffer::alloc(shape.count().saturating_mul(dtype.size()))?;
        Ok(Array { dtype, layout: Layout::contiguous(shape), data: buffer.into() })
    }

    /// A fresh C-order array of zero bytes (0, 0.0, false).
    pub fn zeros(dtype: DType, shape: Shape) -> Result<Array> {
        let buffer = Buffer::zeroed(shape.count().saturating_mul(dtype.size()))?;
        Ok(Array { dtype, layout: Layout::contiguous(shape), data: buffer.into() })
    }

    /// An array in C order.
    pub fn new(dtype: DType, shape: Shape, data: Data) -> Array {
        Array { dtype, layout: Layout::contiguous(shape), data }
    }

    /// Where the elements lie, or will lie.
    #[inline]
    pub fn device(&self) -> Device {
        self.data.device()
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The count of elements.
    pub fn count(&self) -> usize {
        self.shape().count()
    }

    /// Whether the elements lie in C order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether the elements are in host memory.
    #[inline]
    pub fn is_on_host(&self) -> bool {
        self.data.is_on_host()
    }

    /// The host memory. Whoever asks for what is not there unwinds with an error.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        self.data.buffer()
    }

    /// Whether the elements are in host memory that nobody else holds.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.data.is_unique()
    }

    /// Computes elements that are computed when somebody looks: a caller does so before it shares
    /// work with other threads, which would wait for each other there.
    #[inline]
    pub fn look(&self) {
        if self.is_on_host() {
            self.buffer().ptr();
        }
    }

    /// The address of the element at index zero.
    #[inline]
    pub fn ptr(&self) -> *const u8 {
        self.buffer().ptr().wrapping_add(self.layout.offset() * self.dtype.size())
    }

    /// The address of the element at index zero, to write.
    ///
    /// # Safety
    /// The buffer is fresh or uniquely held, and nobody reads what is written while it is written.
    pub unsafe fn ptr_mut(&self) -> *mut u8 {
        // SAFETY: the caller holds the buffer alone.
        unsafe { self.buffer().ptr_mut() }.wrapping_add(self.layout.offset() * self.dtype.size())
    }

    /// Whether it lies in C order and has a short shape, as nearly all do.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.is_contiguous() && self.shape().is_short()
    }

    /// The same elements under another layout, which stays inside the buffer: anything else is a
    /// defect of the caller, and panics rather than reads what lies beside.
    #[inline]
    pub fn view(&self, layout: Layout) -> Array {
        let view = Array { dtype: self.dtype, layout, data: self.data.clone() };
        view.check_inside();
        view
    }

    /// Panics where the layout reaches outside the buffer.
    #[inline(always)]
    pub fn check_inside(&self) {
        let end = self.layout.end().and_then(|end| end.checked_mul(self.dtype.size()));
        let is_inside = end.is_some_and(|end| end <= self.buffer().bytes());
        assert!(is_inside, "a view reaches outside its buffer");
    }
}

/// A new array in C order that has the short shape of another, in parts. Results of small calls go to
/// where they stay so: moving an array a few times takes as long as computing few elements.
pub struct Fresh<'a> {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: &'a Shape,
    /// The elements.
    pub data: Data,
}

impl Fresh<'_> {
    /// The array.
    #[inline(always)]
    pub fn array(self) -> Array {
        Array::new(self.dtype, self.shape.clone(), self.data)
    }
}

/// Parts of an array along its first axis, which it has, and the whole with two axes exchanged. In
/// place wherever they are made, so that they are written where they stay.
impl Array {
    /// `count` rows of an array in C order, from `start` on.
    #[inline(always)]
    pub fn rows(&self, start: usize, count: usize) -> Array {
        let mut shape = self.shape().clone();
        let size = std::mem::replace(&mut shape.dims_mut()[0], Dim::new(count)).value();
        assert!(start <= size && count <= size - start, "rows beyond the last one");
        self.part_from(start, shape)
    }

    /// One row of an array in C order, without the axis.
    #[inline(always)]
    pub fn row(&self, i: usize) -> Array {
        let mut shape = self.shape().clone();
        assert!(i < shape.dims_mut().remove(0).value(), "a row beyond the last one");
        self.part_from(i, shape)
    }

    /// The same elements with two axes exchanged.
    #[inline(always)]
    pub fn exchanged(&self, a: usize, b: usize) -> Array {
        let layout = self.layout.exchanged(a, b);
        Array { dtype: self.dtype, layout, data: self.data.clone() }
    }

    #[inline(always)]
    fn part_from(&self, start: usize, shape: Shape) -> Array {
        assert!(self.is_contiguous(), "rows of an array in C order");
        let row = self.shape().dims()[1..].iter().fold(1, |n, d| n * d.value());
        let layout = Layout::contiguous_at(shape, self.layout.offset() + start * row);
        Array { dtype: self.dtype, layout, data: self.data.clone() }
    }
}

/// An operand of an op.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// An array
    Array(&'a Array),
    /// A number, which takes the dtype of the arrays beside it
    Scalar(Scalar),
}
