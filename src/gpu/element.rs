//! Elements in words: the memory form and the register form of each dtype.
//!
//! A lane is an element as it lies in memory: the low bits of a word, or two words. A register
//! holds what ops compute with: `bool`, `i32`, `u32`, `f32`, or an integer of two words. Results of
//! narrow dtypes are rounded after each op, to the nearest even number, as everywhere.

use crate::dtype::DType;
use crate::error::{self, Result};
use crate::scalar::wgsl::{WgslType, wide};

/// Elements of one invocation.
pub const PACK: usize = 4;

/// The register form of a dtype.
pub fn register(dtype: DType) -> Result<WgslType> {
    match dtype {
        DType::Bool => Ok(WgslType::Bool),
        DType::I8 | DType::I16 | DType::I32 => Ok(WgslType::I32),
        DType::U8 | DType::U16 | DType::U32 => Ok(WgslType::U32),
        DType::F16 | DType::BF16 | DType::F32 => Ok(WgslType::F32),
        DType::I64 => Ok(WgslType::I64),
        DType::U64 => Ok(WgslType::U64),
        DType::F64 => Err(error::bad_graph("shader", "WGSL has no such type; use float32", dtype)),
    }
}

/// The type that memory of a dtype is read as: four elements, or one of 64 bits.
pub fn pack(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "u32",
        2 | 8 => "vec2<u32>",
        _ => "vec4<u32>",
    }
}

/// Whether an element takes two words.
pub fn is_wide(dtype: DType) -> bool {
    dtype.size() == 8
}

/// The type of a lane.
pub fn lane_type(dtype: DType) -> &'static str {
    if is_wide(dtype) { "vec2<u32>" } else { "u32" }
}

/// Lane `k` of a pack called `from`.
pub fn lane(dtype: DType, from: &str, k: usize) -> String {
    let part = ["x", "y", "z", "w"];
    match dtype.size() {
        1 => format!("({from} >> {}u) & 0xffu", 8 * k),
        2 => format!("({from}.{} >> {}u) & 0xffffu", part[k / 2], 16 * (k % 2)),
        _ => format!("{from}.{}", part[k]),
    }
}

/// The pack of four lanes.
pub fn packed(dtype: DType, lanes: [String; PACK]) -> String {
    let [a, b, c, d] = lanes;
    match dtype.size() {
        1 => format!("{a} | ({b} << 8u) | ({c} << 16u) | ({d} << 24u)"),
        2 => format!("vec2<u32>({a} | ({b} << 16u), {c} | ({d} << 16u))"),
        _ => format!("vec4<u32>({a}, {b}, {c}, {d})"),
    }
}

/// The lane of element `at` of a range called `from` that is bound as words.
pub fn element(dtype: DType, from: &str, at: &str) -> String {
    match dtype.size() {
        1 => format!("({from}[{at} >> 2u] >> (({at} & 3u) * 8u)) & 0xffu"),
        2 => format!("({from}[{at} >> 1u] >> (({at} & 1u) * 16u)) & 0xffffu"),
        8 => format!("vec2<u32>({from}[2u * {at}], {from}[2u * {at} + 1u])"),
        _ => format!("{from}[{at}]"),
    }
}

/// The same of a range that is bound as vectors of four words.
pub fn element_of_vectors(dtype: DType, from: &str, at: &str) -> String {
    let word = |at: String| format!("{from}[({at}) >> 2u][({at}) & 3u]");
    match dtype.size() {
        1 => format!("({} >> (({at} & 3u) * 8u)) & 0xffu", word(format!("{at} >> 2u"))),
        2 => format!("({} >> (({at} & 1u) * 16u)) & 0xffffu", word(format!("{at} >> 1u"))),
        8 => {
            let half = |half: usize| word(format!("2u * {at} + {half}u"));
            format!("vec2<u32>({}, {})", half(0), half(1))
        }
        _ => word(at.to_owned()),
    }
}

/// The register of a lane.
pub fn loaded(dtype: DType, lane: &str) -> String {
    match dtype {
        DType::Bool => format!("{lane} != 0u"),
        DType::I8 => format!("bitcast<i32>({lane} << 24u) >> 24u"),
        DType::I16 => format!("bitcast<i32>({lane} << 16u) >> 16u"),
        DType::I32 => format!("bitcast<i32>({lane})"),
        DType::F16 => format!("from_f16({lane})"),
        DType::BF16 => format!("bitcast<f32>({lane} << 16u)"),
        DType::F32 => format!("bitcast<f32>({lane})"),
        DType::U8 | DType::U16 | DType::U32 | DType::I64 | DType::U64 | DType::F64 => lane.into(),
    }
}

/// The lane of a register that holds a value of the dtype.
pub fn stored(dtype: DType, value: &str) -> String {
    match dtype {
        DType::Bool => format!("select(0u, 1u, {value})"),
        DType::I8 => format!("bitcast<u32>({value}) & 0xffu"),
        DType::I16 => format!("bitcast<u32>({value}) & 0xffffu"),
        DType::F16 => format!("to_f16({value})"),
        DType::BF16 => format!("to_bf16({value})"),
        DType::I32 | DType::F32 => format!("bitcast<u32>({value})"),
        DType::U8 | DType::U16 | DType::U32 | DType::I64 | DType::U64 | DType::F64 => value.into(),
    }
}

/// A register rounded to the dtype; `None` where every register is one.
pub fn rounded(dtype: DType, value: &str) -> Option<String> {
    match dtype {
        DType::I8 => Some(format!("({value} << 24u) >> 24u")),
        DType::I16 => Some(format!("({value} << 16u) >> 16u")),
        DType::U8 => Some(format!("{value} & 0xffu")),
        DType::U16 => Some(format!("{value} & 0xffffu")),
        DType::F16 => Some(format!("from_f16(to_f16({value}))")),
        DType::BF16 => Some(format!("bitcast<f32>(to_bf16({value}) << 16u)")),
        DType::Bool | DType::I32 | DType::U32 | DType::F32 => None,
        DType::I64 | DType::U64 | DType::F64 => None,
    }
}

/// The functions that loads and stores of a dtype call.
pub fn functions(dtype: DType) -> &'static str {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other forms are expressions")]
    match dtype {
        DType::F16 => F16,
        DType::BF16 => BF16,
        DType::I64 | DType::U64 => wide::FUNCTIONS,
        _ => "",
    }
}

/// Conversions by bits: the built-in ones need not keep subnormal numbers, nor give infinity for
/// what is too large. A number below 2⁻¹⁴ is a multiple of 2⁻²⁴, which is what remains of it beside
/// ½.
const F16: &str = "\
fn from_f16(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let bits = h & 0x7fffu;
    if bits >= 0x7c00u { return bitcast<f32>(sign | 0x7f800000u | ((bits & 0x3ffu) << 13u)); }
    if bits < 0x400u { return bitcast<f32>(sign | bitcast<u32>(f32(bits) * 5.9604644775390625e-8)); }
    return bitcast<f32>(sign | ((bits << 13u) + 0x38000000u));
}

fn to_f16(x: f32) -> u32 {
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    if bits > 0x7f800000u { return sign | 0x7e00u | ((bits >> 13u) & 0x3ffu); }
    if bits >= 0x477ff000u { return sign | 0x7c00u; }
    if bits < 0x38800000u { return sign | (bitcast<u32>(bitcast<f32>(bits) + 0.5) - 0x3f000000u); }
    return sign | ((bits + 0xfffu + ((bits >> 13u) & 1u) - 0x38000000u) >> 13u);
}

";

const BF16: &str = "\
fn to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return (bits >> 16u) | 0x40u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

";
