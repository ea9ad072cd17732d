//! Between floating arrays of any dtype and layout, and the dense rows of numbers that kernels of
//! composites work on.

use crate::cpu::element::{BF16, Element, F16, Number};
use crate::cpu::gemm::kernel;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::multiversion;
use crate::scalar::{Float, Native};

/// What such kernels calculate in. What is refused is refused in the name of an op and an operand.
pub trait Real:
    kernel::Element + Number + Float + Native<Fused: Float> + Of<f32> + Of<f64>
{
    /// How elements of a floating dtype are read.
    fn loader(dtype: DType, op: &str, name: &str) -> Result<Load<Self>>;
    /// How elements of a floating dtype are added.
    fn shifter(dtype: DType, op: &str, name: &str) -> Result<Shift<Self>>;
    /// How elements of a floating dtype are written.
    fn storer(dtype: DType, op: &str, name: &str) -> Result<Store<Self>>;
}

/// A number made of one of another width.
pub trait Of<S> {
    /// Rounded where it must be.
    fn of(x: S) -> Self;
}

macro_rules! of {
    ($($to:ident $from:ident),*) => {$(
        impl Of<$from> for $to {
            #[inline(always)]
            fn of(x: $from) -> $to {
                x as $to
            }
        }
    )*};
}
of!(f32 f32, f32 f64, f64 f32, f64 f64);

/// `dst[r · step + c] = src[r, c] · factor` for a count of rows and columns; `src` has these
/// strides.
pub type Load<T> = unsafe fn(*mut T, usize, *const u8, [isize; 2], [usize; 2], T);
/// `s[r · step + c] += src[r, c]`, likewise.
pub type Shift<T> = unsafe fn(*mut T, usize, *const u8, [isize; 2], [usize; 2]);
/// `dst[r · row + c] = src[r · step + c] · factor`: `dst`, `row`, `src`, `step`, and the counts.
pub type Store<T> = unsafe fn(*mut u8, usize, *const T, usize, [usize; 2], T);

/// Evaluates an expression with the element type of a floating dtype.
macro_rules! with_float {
    ($dtype:expr, $op:expr, $name:expr, $I:ident => $body:expr) => {{
        macro_rules! arm {
            ($ty:ty) => {{
                type $I = $ty;
                Ok($body)
            }};
        }
        match $dtype {
            DType::F16 => arm!(F16),
            DType::BF16 => arm!(BF16),
            DType::F32 => arm!(f32),
            DType::F64 => arm!(f64),
            dtype @ (DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64) => Err(error::wrong_dtype($op, $name, dtype, "floating")),
        }
    }};
}

macro_rules! real {
    ($($T:ident),*) => {$(
        impl Real for $T {
            fn loader(dtype: DType, op: &str, name: &str) -> Result<Load<$T>> {
                with_float!(dtype, op, name, I => load::select::<I, $T>())
            }
            fn shifter(dtype: DType, op: &str, name: &str) -> Result<Shift<$T>> {
                with_float!(dtype, op, name, I => shift::select::<I, $T>())
            }
            fn storer(dtype: DType, op: &str, name: &str) -> Result<Store<$T>> {
                with_float!(dtype, op, name, I => store::select::<I, $T>())
            }
        }
    )*};
}
real!(f32, f64);

multiversion! {
    /// [`Load`] from elements of type `I`.
    ///
    /// # Safety
    /// All that is named can be read or written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn load[I, T](
        dst: *mut T,
        step: usize,
        src: *const u8,
        strides: [isize; 2],
        size: [usize; 2],
        factor: T,
    )
    where [I: Element, T: Real + Of<I::Number>]
    {
        let src = src.cast::<I>();
        for r in 0..size[0] {
            let from = src.wrapping_offset(r as isize * strides[0]);
            // SAFETY: by contract.
            unsafe {
                if strides[1] == 1 {
                    let from = std::slice::from_raw_parts(from, size[1]);
                    let to = std::slice::from_raw_parts_mut(dst.add(r * step), size[1]);
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = T::of(from.widen()) * factor;
                    }
                } else {
                    for c in 0..size[1] {
                        let x = *from.wrapping_offset(c as isize * strides[1]);
                        *dst.add(r * step + c) = T::of(x.widen()) * factor;
                    }
                }
            }
        }
    }

    /// [`Shift`] by elements of type `I`.
    ///
    /// # Safety
    /// All that is named can be read or written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn shift[I, T](
        s: *mut T,
        step: usize,
        src: *const u8,
        strides: [isize; 2],
        size: [usize; 2],
    )
    where [I: Element, T: Real + Of<I::Number>]
    {
        let src = src.cast::<I>();
        for r in 0..size[0] {
            let from = src.wrapping_offset(r as isize * strides[0]);
            // SAFETY: by contract.
            unsafe {
                let to = std::slice::from_raw_parts_mut(s.add(r * step), size[1]);
                if strides[1] == 1 {
                    let from = std::slice::from_raw_parts(from, size[1]);
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = *to + T::of(from.widen());
                    }
                } else {
                    for (c, to) in to.iter_mut().enumerate() {
                        let x = *from.wrapping_offset(c as isize * strides[1]);
                        *to = *to + T::of(x.widen());
                    }
                }
            }
        }
    }

    /// [`Store`] as elements of type `I`.
    ///
    /// # Safety
    /// All that is named can be read or written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn store[I, T](
        dst: *mut u8,
        row: usize,
        src: *const T,
        step: usize,
        size: [usize; 2],
        factor: T,
    )
    where [I: Element, I::Number: Of<T>, T: Real]
    {
        for r in 0..size[0] {
            // SAFETY: by contract.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(src.add(r * step), size[1]),
                    std::slice::from_raw_parts_mut(dst.cast::<I>().add(r * row), size[1]),
                )
            };
            for (to, from) in to.iter_mut().zip(from) {
                *to = I::narrow(Of::of(*from * factor));
            }
        }
    }
}
