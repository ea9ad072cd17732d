//! The elements of an array in C order, each a word that holds its memory form in its low bytes.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::op::Type;

use super::number::widen;

/// Elements in C order.
#[derive(Clone)]
pub struct Elements {
    /// The element type
    pub dtype: DType,
    /// The sizes of the axes
    pub sizes: Vec<usize>,
    /// One word for each element
    pub words: Vec<u64>,
}

impl Elements {
    /// The elements of an array of any layout.
    pub fn read(x: &Array) -> Elements {
        let (width, strides) = (x.dtype.width(), x.layout.strides());
        Elements::make(x.dtype, &x.shape().sizes(), |index| {
            let at: isize =
                index.iter().zip(&strides).map(|(&i, stride)| i as isize * stride).sum();
            let from = x.ptr().wrapping_offset(at * width.bytes() as isize);
            // SAFETY: an index of the shape names an element inside the buffer, which is set and
            // not written meanwhile.
            unsafe { width.read(from) }
        })
    }

    /// Elements by a function of their index.
    pub fn make(dtype: DType, sizes: &[usize], mut f: impl FnMut(&[usize]) -> u64) -> Elements {
        let mut words = Vec::with_capacity(sizes.iter().product());
        each_index(sizes, |index| words.push(f(index)));
        Elements { dtype, sizes: sizes.to_vec(), words }
    }

    /// One element without axes.
    pub fn scalar(dtype: DType, word: u64) -> Elements {
        Elements { dtype, sizes: Vec::new(), words: vec![word] }
    }

    /// The same elements under other sizes.
    pub fn reshaped(self, sizes: &[usize]) -> Elements {
        Elements { sizes: sizes.to_vec(), ..self }
    }

    /// The element at an index.
    pub fn at(&self, index: &[usize]) -> u64 {
        self.words[position(&self.sizes, index)]
    }

    /// The element at an index, in register form.
    pub fn register(&self, index: &[usize]) -> u64 {
        widen(self.dtype, self.at(index))
    }

    /// The element that an index of a shape sees to which these elements broadcast.
    pub fn broadcast_at(&self, index: &[usize]) -> u64 {
        let own = &index[index.len() - self.sizes.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.sizes).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
        self.at(&own)
    }

    /// A fresh array.
    pub fn into_array(self, ty: Type) -> Result<Array> {
        debug_assert_eq!((self.dtype, self.words.len()), (ty.dtype, ty.shape.count()));
        let out = Array::uninit(ty.dtype, ty.shape)?;
        let width = self.dtype.width();
        for (i, &word) in self.words.iter().enumerate() {
            // SAFETY: the array is fresh, in C order, and has one element for each word.
            unsafe { width.write(out.ptr_mut().add(i * width.bytes()), word) };
        }
        Ok(out)
    }
}

/// Visits every index of a shape, in C order.
pub fn each_index(sizes: &[usize], mut f: impl FnMut(&[usize])) {
    let mut index = vec![0; sizes.len()];
    for _ in 0..sizes.iter().product() {
        f(&index);
        for (i, &n) in index.iter_mut().zip(sizes).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
}

/// The place of an index in C order.
pub fn position(sizes: &[usize], index: &[usize]) -> usize {
    debug_assert!(index.len() == sizes.len() && index.iter().zip(sizes).all(|(i, n)| i < n));
    sizes.iter().zip(index).fold(0, |at, (&n, &i)| at * n + i)
}

/// An index with one axis put in.
pub fn with_axis(index: &[usize], axis: usize, i: usize) -> Vec<usize> {
    let mut out = index.to_vec();
    out.insert(axis, i);
    out
}

/// Sizes, or an index, without one axis.
pub fn without_axis(index: &[usize], axis: usize) -> Vec<usize> {
    let mut out = index.to_vec();
    out.remove(axis);
    out
}
