//! Conversions: between register types, and between registers and the narrow dtypes that only
//! memory holds.

use std::marker::PhantomData;

use super::{Map1, TileKernel, kernel1};
use crate::dtype::{Compute, DType};
use crate::scalar::half::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_bf16, f64_to_f16,
};

/// The bits of a half-precision number, to tell it from an integer.
#[derive(Clone, Copy)]
struct F16(u16);

/// The bits of a bfloat16 number.
#[derive(Clone, Copy)]
struct BF16(u16);

/// From memory form to register form.
struct Widen;

/// From register form to the memory form `T`: floats round, integers wrap.
struct Narrow<T>(PhantomData<T>);

/// To what memory of type `T` can hold, in register form.
struct Cast<T>(PhantomData<T>);

/// Declares how each narrow type is held in a register.
macro_rules! narrow_types {
    ($($narrow:ident in $register:ident, |$x:ident| $widen:expr, |$y:ident| $shrink:expr;)*) => {$(
        impl Map1<$narrow> for Widen {
            type Out = $register;
            #[inline(always)]
            fn map($x: $narrow) -> $register {
                $widen
            }
        }
        impl Map1<$register> for Narrow<$narrow> {
            type Out = $narrow;
            #[inline(always)]
            fn map($y: $register) -> $narrow {
                $shrink
            }
        }
    )*};
}

narrow_types! {
    i8 in i32, |x| x.into(), |y| y as i8;
    i16 in i32, |x| x.into(), |y| y as i16;
    u8 in u32, |x| x.into(), |y| y as u8;
    u16 in u32, |x| x.into(), |y| y as u16;
    F16 in f32, |x| f16_to_f32(x.0), |y| F16(f32_to_f16(y));
    BF16 in f32, |x| bf16_to_f32(x.0), |y| BF16(f32_to_bf16(y));
}

/// Declares the casts from one register type: by `as`, which wraps integers and truncates and
/// saturates floats; to half precision in one rounding; to bool by comparison with zero.
macro_rules! casts {
    ($($from:ident, |$x:ident| $number:expr, $f16:ident $bf16:ident $float:ident;)*) => {$(
        casts!(@as $from, |$x| $number;
            i8 i32, i16 i32, i32 i32, i64 i64, u8 u32, u16 u32, u32 u32, u64 u64, f32 f32, f64 f64);
        casts!(@one $from, F16, f32, |$x| f16_to_f32($f16($number as $float)));
        casts!(@one $from, BF16, f32, |$x| bf16_to_f32($bf16($number as $float)));
        casts!(@one $from, bool, bool, |$x| $x != $from::default());
    )*};
    (@as $from:ident, |$x:ident| $number:expr; $($to:ident $register:ident),*) => {
        $(casts!(@one $from, $to, $register, |$x| $number as $to as $register);)*
    };
    (@one $from:ident, $to:ident, $register:ident, |$x:ident| $value:expr) => {
        impl Map1<$from> for Cast<$to> {
            type Out = $register;
            #[inline(always)]
            fn map($x: $from) -> $register {
                $value
            }
        }
    };
}

casts! {
    bool, |x| u8::from(x), f32_to_f16 f32_to_bf16 f32;
    i32, |x| x, f32_to_f16 f32_to_bf16 f32;
    i64, |x| x, f32_to_f16 f32_to_bf16 f32;
    u32, |x| x, f32_to_f16 f32_to_bf16 f32;
    u64, |x| x, f32_to_f16 f32_to_bf16 f32;
    f32, |x| x, f32_to_f16 f32_to_bf16 f32;
    f64, |x| x, f64_to_f16 f64_to_bf16 f64;
}

/// Evaluates `$kernel` with `$t` standing for the memory type of a dtype.
macro_rules! for_dtype {
    ($dtype:expr, $t:ident => $kernel:expr) => {
        for_dtype!(@ $dtype, $t => $kernel, Bool bool, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16,
            U32 u32, U64 u64, F16 F16, BF16 BF16, F32 f32, F64 f64)
    };
    (@ $dtype:expr, $t:ident => $kernel:expr, $($name:ident $memory:ident),*) => {
        match $dtype {
            $(DType::$name => {
                type $t = $memory;
                $kernel
            })*
        }
    };
}

/// The kernel that converts a register to what `to` can hold, in the register form of `to`. Floats
/// become integers by truncation, saturating, NaN as 0; integers wrap; anything but zero is true;
/// to half precision, integers go through float32.
pub fn cast(from: Compute, to: DType) -> TileKernel {
    match from {
        Compute::Bool => for_dtype!(to, T => kernel1::<Cast<T>, bool>()),
        Compute::I32 => for_dtype!(to, T => kernel1::<Cast<T>, i32>()),
        Compute::I64 => for_dtype!(to, T => kernel1::<Cast<T>, i64>()),
        Compute::U32 => for_dtype!(to, T => kernel1::<Cast<T>, u32>()),
        Compute::U64 => for_dtype!(to, T => kernel1::<Cast<T>, u64>()),
        Compute::F32 => for_dtype!(to, T => kernel1::<Cast<T>, f32>()),
        Compute::F64 => for_dtype!(to, T => kernel1::<Cast<T>, f64>()),
    }
}

/// The kernel that leaves in a register what a store as `dtype` and a load would; `None` for a
/// dtype whose memory form is its register form.
pub fn round_through(dtype: DType) -> Option<TileKernel> {
    (dtype.compute().dtype() != dtype).then(|| cast(dtype.compute(), dtype))
}

/// The kernel that brings elements of a narrow dtype into register form; `None` for a dtype whose
/// memory form is its register form.
pub fn widen(dtype: DType) -> Option<TileKernel> {
    Some(match dtype {
        DType::I8 => kernel1::<Widen, i8>(),
        DType::I16 => kernel1::<Widen, i16>(),
        DType::U8 => kernel1::<Widen, u8>(),
        DType::U16 => kernel1::<Widen, u16>(),
        DType::F16 => kernel1::<Widen, F16>(),
        DType::BF16 => kernel1::<Widen, BF16>(),
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => return None,
    })
}

/// The kernel that brings a register into the memory form of a narrow dtype: floats round, integers
/// wrap; `None` for a dtype whose memory form is its register form.
pub fn narrow(dtype: DType) -> Option<TileKernel> {
    Some(match dtype {
        DType::I8 => kernel1::<Narrow<i8>, i32>(),
        DType::I16 => kernel1::<Narrow<i16>, i32>(),
        DType::U8 => kernel1::<Narrow<u8>, u32>(),
        DType::U16 => kernel1::<Narrow<u16>, u32>(),
        DType::F16 => kernel1::<Narrow<F16>, f32>(),
        DType::BF16 => kernel1::<Narrow<BF16>, f32>(),
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;

    /// A register value as a number whose conversions can be computed exactly.
    fn number(compute: Compute, bits: u64) -> Scalar {
        match compute {
            Compute::Bool => Scalar::Bool(bits != 0),
            Compute::I32 => Scalar::Int((bits as u32 as i32).into()),
            Compute::U32 => Scalar::Int((bits as u32).into()),
            Compute::I64 => Scalar::Int(bits as i64),
            Compute::U64 => Scalar::Uint(bits),
            Compute::F32 => Scalar::Float(f32::from_bits(bits as u32).into()),
            Compute::F64 => Scalar::Float(f64::from_bits(bits)),
        }
    }

    /// The conversion of one number through exact arithmetic.
    fn expected(x: Scalar, to: Compute) -> u64 {
        match (x, to.dtype().int_range()) {
            (Scalar::Float(x), Some((low, high))) => {
                let whole = if x.is_nan() { 0 } else { (x as i128).clamp(low, high) };
                whole as u64 & (u64::MAX >> (64 - 8 * to.size()))
            }
            _ => x.register_bits(to),
        }
    }

    fn samples(compute: Compute) -> Vec<u64> {
        let float = |x: f64| {
            if compute == Compute::F32 { (x as f32).to_bits().into() } else { x.to_bits() }
        };
        match compute {
            Compute::Bool => vec![0, 1],
            Compute::F32 | Compute::F64 => {
                let magnitudes = [
                    0.0,
                    0.4,
                    0.5,
                    1.0,
                    1.5,
                    127.9,
                    255.0,
                    3e4,
                    65535.5,
                    2147483647.0,
                    4294967295.0,
                ];
                let large = [9.3e18, 1.9e19, 3e38, f64::INFINITY, f64::NAN, 1e-40, 16777217.0];
                magnitudes.iter().chain(&large).flat_map(|&x| [float(x), float(-x)]).collect()
            }
            Compute::I32 | Compute::I64 | Compute::U32 | Compute::U64 => {
                let mask = u64::MAX >> (64 - 8 * compute.size());
                (0..64)
                    .flat_map(|k| [1u64 << k, (1 << k) - 1, !(1 << k), 0x9e37_79b9 << k])
                    .map(|x| x & mask)
                    .collect()
            }
        }
    }

    fn pack(compute: Compute, values: &[u64]) -> Vec<u64> {
        let mut bytes: Vec<u8> =
            values.iter().flat_map(|v| v.to_le_bytes()[..compute.size()].to_vec()).collect();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    fn unpack(compute: Compute, words: &[u64], n: usize) -> Vec<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let one = |c: &[u8]| c.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
        bytes.chunks(compute.size()).take(n).map(one).collect()
    }

    #[test]
    fn casts_between_registers_match_exact_arithmetic() {
        for from in Compute::ALL {
            let values = samples(from);
            let n = values.len();
            let source = pack(from, &values);
            for to in Compute::ALL.map(Compute::dtype) {
                let mut out = vec![0u64; n];
                let args = [source.as_ptr().cast(), std::ptr::null(), std::ptr::null()];
                // SAFETY: both vectors hold `n` elements of at most eight bytes.
                unsafe { cast(from, to)(out.as_mut_ptr().cast(), &args, n) };
                for (got, &bits) in unpack(to.compute(), &out, n).into_iter().zip(&values) {
                    let want = expected(number(from, bits), to.compute());
                    let both_nan = to == DType::F64
                        && f64::from_bits(got).is_nan()
                        && f64::from_bits(want).is_nan()
                        || to == DType::F32
                            && f32::from_bits(got as u32).is_nan()
                            && f32::from_bits(want as u32).is_nan();
                    assert!(
                        got == want || both_nan,
                        "{from:?} {bits:#x} to {to}: {got:#x}, wanted {want:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn narrow_registers_wrap() {
        let kernel = round_through(DType::I8).unwrap();
        let mut x = [127i32, 128, -129, 1000];
        let p = x.as_mut_ptr().cast::<u8>();
        // SAFETY: four elements, in place.
        unsafe { kernel(p, &[p, p, p], 4) };
        assert_eq!(x, [127, -128, 127, -24]);
        assert!(round_through(DType::F32).is_none() && round_through(DType::U64).is_none());
    }
}
