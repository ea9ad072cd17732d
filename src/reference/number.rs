//! Numbers: between memory form, register form and exact values, and the arithmetic of registers.

use std::num::Wrapping;

use crate::dtype::{Class, Compute, DType, Scalar as Weak};
use crate::scalar::half::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_bf16, f64_to_f16,
};
use crate::scalar::{Register, Scalar};

/// The exact value of an element; the width of a float says how a cast goes on from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer or a truth value
    Int(i128),
    /// A float of single precision or less
    Single(f32),
    /// A float64
    Double(f64),
}

/// The register form of an element.
pub fn widen(dtype: DType, word: u64) -> u64 {
    match dtype {
        DType::I8 => Wrapping(i32::from(word as i8)).word(),
        DType::I16 => Wrapping(i32::from(word as i16)).word(),
        DType::F16 => f16_to_f32(word as u16).word(),
        DType::BF16 => bf16_to_f32(word as u16).word(),
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => word,
    }
}

/// The memory form of a register: floats round, integers wrap.
pub fn narrow(dtype: DType, register: u64) -> u64 {
    match dtype {
        DType::I8 | DType::U8 => u64::from(register as u8),
        DType::I16 | DType::U16 => u64::from(register as u16),
        DType::F16 => f32_to_f16(f32::of_word(register)).into(),
        DType::BF16 => f32_to_bf16(f32::of_word(register)).into(),
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => register,
    }
}

/// The value of a register of a dtype.
pub fn of_register(dtype: DType, register: u64) -> Number {
    match dtype.compute() {
        Compute::Bool | Compute::U64 => Number::Int(register.into()),
        Compute::I32 => Number::Int((register as i32).into()),
        Compute::U32 => Number::Int((register as u32).into()),
        Compute::I64 => Number::Int((register as i64).into()),
        Compute::F32 => Number::Single(f32::of_word(register)),
        Compute::F64 => Number::Double(f64::of_word(register)),
    }
}

/// The value of an element.
pub fn of_element(dtype: DType, word: u64) -> Number {
    of_register(dtype, widen(dtype, word))
}

/// The value of a Python number.
pub fn of_scalar(value: Weak) -> Number {
    match value {
        Weak::Bool(b) => Number::Int(b.into()),
        Weak::Int(i) => Number::Int(i.into()),
        Weak::Uint(u) => Number::Int(u.into()),
        Weak::Float(x) => Number::Double(x),
        // Lists are run with their numbers filled in.
    }
}

impl Number {
    /// As a double: exact but for large integers.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Single(x) => x.into(),
            Number::Double(x) => x,
        }
    }

    /// The element of a dtype, in memory form. Integers wrap; floats become integers by truncation,
    /// saturating, NaN as 0; anything but zero is true; floats round once, integers become half
    /// precision through float32.
    pub fn word(self, dtype: DType) -> u64 {
        match dtype.class() {
            Class::Bool => u64::from(match self {
                Number::Int(i) => i != 0,
                Number::Single(x) => x != 0.0,
                Number::Double(x) => x != 0.0,
            }),
            Class::Int => {
                let saturated = |whole: i128| {
                    let (low, high) = dtype.int_range().unwrap_or((i128::MIN, i128::MAX));
                    whole.clamp(low, high)
                };
                let whole = match self {
                    Number::Int(i) => i,
                    Number::Single(x) => saturated(x as i128),
                    Number::Double(x) => saturated(x as i128),
                };
                whole as u64 & (u64::MAX >> (64 - 8 * dtype.size()))
            }
            Class::Float => self.float_word(dtype),
        }
    }

    fn float_word(self, dtype: DType) -> u64 {
        let is_double = dtype == DType::F64;
        match self {
            Number::Int(i) if is_double => (i as f64).word(),
            Number::Int(i) => narrow(dtype, (i as f32).word()),
            Number::Single(x) if is_double => f64::from(x).word(),
            Number::Single(x) => narrow(dtype, x.word()),
            Number::Double(x) if is_double => x.word(),
            Number::Double(x) if dtype == DType::F16 => f64_to_f16(x).into(),
            Number::Double(x) if dtype == DType::BF16 => f64_to_bf16(x).into(),
            Number::Double(x) => (x as f32).word(),
        }
    }
}

/// The arithmetic of registers: integers wrap, floats round; truth values add as *or* and multiply
/// as *and*.
pub trait Arithmetic: Register {
    /// The sum of nothing.
    const ZERO: Self;
    /// The product of nothing.
    const ONE: Self;
    /// The sum.
    fn plus(self, b: Self) -> Self;
    /// The product.
    fn times(self, b: Self) -> Self;
    /// The larger; NaN wins, and of two zeros the second.
    fn larger(self, b: Self) -> Self;
    /// The smaller; NaN wins, and of two zeros the second.
    fn smaller(self, b: Self) -> Self;
}

impl Arithmetic for bool {
    const ZERO: bool = false;
    const ONE: bool = true;
    fn plus(self, b: bool) -> bool {
        self | b
    }
    fn times(self, b: bool) -> bool {
        self & b
    }
    fn larger(self, b: bool) -> bool {
        self | b
    }
    fn smaller(self, b: bool) -> bool {
        self & b
    }
}

macro_rules! arithmetic {
    ($($ty:ty, $zero:expr, $one:expr;)*) => {$(
        impl Arithmetic for $ty {
            const ZERO: $ty = $zero;
            const ONE: $ty = $one;
            fn plus(self, b: $ty) -> $ty {
                self + b
            }
            fn times(self, b: $ty) -> $ty {
                self * b
            }
            fn larger(self, b: $ty) -> $ty {
                Scalar::maximum(self, b)
            }
            fn smaller(self, b: $ty) -> $ty {
                Scalar::minimum(self, b)
            }
        }
    )*};
}
arithmetic! {
    Wrapping<i32>, Wrapping(0), Wrapping(1);
    Wrapping<u32>, Wrapping(0), Wrapping(1);
    Wrapping<i64>, Wrapping(0), Wrapping(1);
    Wrapping<u64>, Wrapping(0), Wrapping(1);
    f32, 0.0, 1.0;
    f64, 0.0, 1.0;
}

/// Evaluates an expression with the native number of a dtype's registers as a type.
macro_rules! with_register {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use std::num::Wrapping as W;
        with_register!(@ $dtype, $T => $body;
            Bool bool, I32 W<i32>, U32 W<u32>, I64 W<i64>, U64 W<u64>, F32 f32, F64 f64)
    }};
    (@ $dtype:expr, $T:ident => $body:expr; $($compute:ident $ty:ty),*) => {
        match $dtype.compute() {
            $($crate::dtype::Compute::$compute => {
                type $T = $ty;
                $body
            })*
        }
    };
}
pub(super) use with_register;
