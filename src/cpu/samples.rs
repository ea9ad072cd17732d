//! What the tests of kernels share: arrays from values, and the same values in many layouts.

use crate::array::Array;
use crate::cpu::element::{BF16, Element, F16};
use crate::dtype::DType;
use crate::layout::{Layout, row_major};
use crate::shape::Shape;

/// An element type that tests can make and read.
pub trait Sample: Element + PartialEq + std::fmt::Debug {
    /// A small number as an element; wraps in unsigned types.
    fn of(x: f64) -> Self;
    /// The element as a double.
    fn number(self) -> f64;
}

macro_rules! samples {
    ($($ty:ty, |$x:ident| $of:expr, |$y:ident| $number:expr;)*) => {$(
        impl Sample for $ty {
            fn of($x: f64) -> $ty {
                $of
            }
            fn number(self) -> f64 {
                let $y = self;
                $number
            }
        }
    )*};
}
samples! {
    i8, |x| x as i8, |y| y.into();
    i16, |x| x as i16, |y| y.into();
    i32, |x| x as i32, |y| y.into();
    i64, |x| x as i64, |y| y as f64;
    u8, |x| x as i64 as u8, |y| y.into();
    u16, |x| x as i64 as u16, |y| y.into();
    u32, |x| x as i64 as u32, |y| y.into();
    u64, |x| x as i64 as u64, |y| y as f64;
    F16, |x| F16::narrow(x as f32), |y| y.widen().into();
    BF16, |x| BF16::narrow(x as f32), |y| y.widen().into();
    f32, |x| x as f32, |y| y.into();
    f64, |x| x, |y| y;
}

/// Runs a statement for every element type, under a type alias.
macro_rules! every_element {
    ($T:ident => $body:expr) => {
        $crate::dtype::DType::ALL[1..].iter().for_each(|&dtype| $crate::cpu::element::with_element!(dtype, $T => $body))
    };
}
pub(crate) use every_element;

/// A C-order array of values.
pub fn array<T: Element>(sizes: &[usize], values: &[T]) -> Array {
    array_as(T::DTYPE, sizes, values)
}

/// A C-order bool array.
pub fn bools(sizes: &[usize], values: &[bool]) -> Array {
    let values: Vec<u8> = values.iter().map(|&b| b.into()).collect();
    array_as(DType::Bool, sizes, &values)
}

fn array_as<T: Copy>(dtype: DType, sizes: &[usize], values: &[T]) -> Array {
    let x = Array::uninit(dtype, Shape::of(sizes)).unwrap();
    assert_eq!(x.count(), values.len());
    // SAFETY: fresh, and of this size.
    unsafe { x.ptr_mut().cast::<T>().copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    x
}

/// The positions of all elements in C order, relative to the element at index zero.
fn positions(x: &Array) -> Vec<isize> {
    let (sizes, own, strides) =
        (x.shape().sizes(), row_major(&x.shape().sizes()), x.layout.strides());
    let position = |i: usize| {
        (0..sizes.len()).map(|a| (i / own[a] as usize % sizes[a]) as isize * strides[a]).sum()
    };
    (0..x.count()).map(position).collect()
}

/// The elements in C order.
pub fn values<T: Copy>(x: &Array) -> Vec<T> {
    assert_eq!(size_of::<T>(), x.dtype.size());
    let first = x.ptr().cast::<T>();
    // SAFETY: the positions lie in the array.
    positions(x).into_iter().map(|at| unsafe { *first.wrapping_offset(at) }).collect()
}

/// The bytes of the elements in C order.
pub fn bytes(x: &Array) -> Vec<u8> {
    let (first, size) = (x.ptr(), x.dtype.size());
    let one = |at: isize| first.wrapping_offset(at * size as isize);
    // SAFETY: the positions lie in the array.
    positions(x)
        .into_iter()
        .flat_map(|at| unsafe { std::slice::from_raw_parts(one(at), size) }.to_vec())
        .collect()
}

/// The same values in C order, transposed, backwards, with gaps, and all of these together.
pub fn layouts(x: &Array) -> Vec<Array> {
    let rank = x.shape().rank();
    let straight: Vec<usize> = (0..rank).collect();
    let turned: Vec<usize> = (0..rank).rev().collect();
    let mut rolled = straight.clone();
    rolled.rotate_left(rank.min(1));
    let mut out = vec![x.clone()];
    for order in [straight, turned, rolled] {
        for (sign, gap) in [(1, 1), (-1, 1), (1, 2), (-1, 3)] {
            out.push(relaid(x, &order, sign, gap));
        }
    }
    out
}

/// The same values with the axes in memory in the given order, outermost first, `gap` elements for
/// each, forwards or backwards.
fn relaid(x: &Array, order: &[usize], sign: isize, gap: usize) -> Array {
    let sizes = x.shape().sizes();
    let mut strides = vec![0isize; sizes.len()];
    let mut span = gap;
    for &axis in order.iter().rev() {
        strides[axis] = sign * span as isize;
        span *= sizes[axis];
    }
    let offset = if sign < 0 { span.saturating_sub(gap) } else { 0 };
    let buffer = Array::zeros(x.dtype, Shape::of(&[span + gap])).unwrap();
    let view = buffer.view(Layout::strided(x.shape().clone(), &strides, offset));
    let size = x.dtype.size();
    for (to, from) in positions(&view).into_iter().zip(positions(x)) {
        let (to, from) = (to * size as isize, from * size as isize);
        // SAFETY: fresh memory, and positions inside both arrays.
        unsafe {
            view.ptr_mut()
                .wrapping_offset(to)
                .copy_from_nonoverlapping(x.ptr().wrapping_offset(from), size)
        };
    }
    view
}

/// `n` reproducible numbers in −range..range, multiples of `unit`.
pub fn noise(n: usize, range: f64, unit: f64) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) as f64 / 2f64.powi(30) - 1.0) * range
    };
    // No negative zeros.
    (0..n).map(|_| (next() / unit).round() * unit + 0.0).collect()
}
