//! The Rust types of dtypes, for kernels that are generic over the element.
//!
//! Promises: an [`Element`] has exactly the memory form of its dtype; a [`Number`] is one in which
//! kernels calculate, with arithmetic that wraps (integers) or rounds once (floats).

use crate::dtype::DType;
use crate::scalar::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// An element as it lies in memory, and the number that kernels hold in registers for it.
pub trait Element: Copy + Send + Sync + 'static {
    /// The dtype with this memory form.
    const DTYPE: DType;
    /// What kernels calculate in: f32 for the half types, the type itself for all others.
    type Number: Number;
    /// The element as a number: exact.
    fn widen(self) -> Self::Number;
    /// The number as an element: rounded to nearest even for the half types.
    fn narrow(x: Self::Number) -> Self;
}

/// A native number.
pub trait Number: Element<Number = Self> + PartialOrd {
    /// The value 0.
    const ZERO: Self;
    /// The value 1.
    const ONE: Self;
    /// What changes no sum, not even the sign of a zero: −0 for floats.
    const NOTHING: Self;
    /// Not above any other number.
    const LOWEST: Self;
    /// Not below any other number.
    const HIGHEST: Self;
    /// Whether there is NaN among the numbers.
    const HAS_NAN: bool;
    /// Sum; wraps.
    fn add(self, b: Self) -> Self;
    /// Product; wraps.
    fn mul(self, b: Self) -> Self;
    /// Whether this is not a number; never for integers.
    fn is_nan(self) -> bool;
}

macro_rules! native {
    ($ty:ty, $dtype:ident, $nothing:expr, $lowest:expr, $highest:expr,
     $add:expr, $mul:expr, $nan:expr, $has_nan:literal) => {
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            type Number = $ty;
            #[inline(always)]
            fn widen(self) -> $ty {
                self
            }
            #[inline(always)]
            fn narrow(x: $ty) -> $ty {
                x
            }
        }
        impl Number for $ty {
            const ZERO: $ty = 0 as $ty;
            const ONE: $ty = 1 as $ty;
            const NOTHING: $ty = $nothing;
            const LOWEST: $ty = $lowest;
            const HIGHEST: $ty = $highest;
            const HAS_NAN: bool = $has_nan;
            #[inline(always)]
            fn add(self, b: $ty) -> $ty {
                $add(self, b)
            }
            #[inline(always)]
            fn mul(self, b: $ty) -> $ty {
                $mul(self, b)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $nan(self)
            }
        }
    };
}
macro_rules! integer {
    ($($ty:ident $dtype:ident),*) => {
        $(native!($ty, $dtype, 0, $ty::MIN, $ty::MAX, $ty::wrapping_add, $ty::wrapping_mul, |_| false, false);)*
    };
}
macro_rules! float {
    ($($ty:ident $dtype:ident),*) => {
        $(native!($ty, $dtype, -0.0, $ty::NEG_INFINITY, $ty::INFINITY, |a, b| a + b, |a, b| a * b, |x: $ty| x != x, true);)*
    };
}
integer!(i8 I8, i16 I16, i32 I32, i64 I64, u8 U8, u16 U16, u32 U32, u64 U64);
float!(f32 F32, f64 F64);

macro_rules! half {
    ($(#[doc = $doc:literal] $ty:ident, $widen:ident, $narrow:ident;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[repr(transparent)]
        pub struct $ty(pub u16);

        impl Element for $ty {
            const DTYPE: DType = DType::$ty;
            type Number = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.0)
            }
            #[inline(always)]
            fn narrow(x: f32) -> $ty {
                $ty($narrow(x))
            }
        }
    )*};
}
half! {
    /// IEEE binary16.
    F16, f16_to_f32, f32_to_f16;
    /// The upper half of an f32.
    BF16, bf16_to_f32, f32_to_bf16;
}

/// Runs an expression with a type alias bound to the element type of a dtype; bool is `u8`, with
/// the values 0 and 1.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use $crate::cpu::element::{BF16, F16};
        macro_rules! arm {
            ($ty:ty) => {{
                type $T = $ty;
                $body
            }};
        }
        match $dtype {
            $crate::dtype::DType::Bool | $crate::dtype::DType::U8 => arm!(u8),
            $crate::dtype::DType::U16 => arm!(u16),
            $crate::dtype::DType::U32 => arm!(u32),
            $crate::dtype::DType::U64 => arm!(u64),
            $crate::dtype::DType::I8 => arm!(i8),
            $crate::dtype::DType::I16 => arm!(i16),
            $crate::dtype::DType::I32 => arm!(i32),
            $crate::dtype::DType::I64 => arm!(i64),
            $crate::dtype::DType::F16 => arm!(F16),
            $crate::dtype::DType::BF16 => arm!(BF16),
            $crate::dtype::DType::F32 => arm!(f32),
            $crate::dtype::DType::F64 => arm!(f64),
        }
    }};
}
pub(crate) use with_element;

/// An address that the chunks of one parallel call share. Each chunk writes elements of its own.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: only an address; whoever dereferences it keeps the chunks apart.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// An address to write.
    pub fn new(p: *mut T) -> Shared<T> {
        Shared(p)
    }

    /// An address that is only read.
    pub fn reading(p: *const T) -> Shared<T> {
        Shared(p.cast_mut())
    }

    /// The address `offset` elements further.
    #[inline(always)]
    pub fn at(self, offset: isize) -> *mut T {
        self.0.wrapping_offset(offset)
    }
}
