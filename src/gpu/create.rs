//! Arrays made from attributes alone: `iota` and random bits.

use super::kernel::{Input, Kernel, Output};
use super::moves::given;
use super::shader::Shader;
use crate::dtype::DType;
use crate::error::Result;

/// The index along an axis: integers wrap, floats round once.
pub fn iota(axis: usize, out: &Output) -> Result<Kernel> {
    let (dtype, sizes) = (out.ty.dtype, out.ty.shape.dims());
    let mut shader = Shader::new();
    let index = shader.indices("i", sizes);
    let i = shader.name(&index[axis]);
    let lane = whole(&mut shader, dtype, i)?;
    Ok(Kernel::of(given(shader, &lane, out)))
}

/// The lane of a whole number that is named.
pub fn whole(shader: &mut Shader, dtype: DType, i: String) -> Result<String> {
    Ok(match dtype {
        DType::Bool => format!("select(0u, 1u, {i} != 0u)"),
        DType::I8 | DType::U8 => format!("{i} & 0xffu"),
        DType::I16 | DType::U16 => format!("{i} & 0xffffu"),
        DType::I32 | DType::U32 => i,
        DType::I64 | DType::U64 => format!("vec2<u32>({i}, 0u)"),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            // One rounding for bfloat16: the first keeps all that the second needs.
            let bits = if dtype == DType::BF16 { "to_odd" } else { "to_even" };
            shader.function(ROUNDED);
            shader.stored(dtype, &format!("f32({bits}({i}))"))?
        }
    })
}

/// Whole numbers of at most 24 significant bits: the nearest, the even one of two; and the one that
/// tells whether bits were lost.
const ROUNDED: &str = "\
fn to_even(i: u32) -> u32 {
    let shift = max(firstLeadingBit(i | 0x800000u), 23u) - 23u;
    let half = (1u << shift) >> 1u;
    let odd = (i >> shift) & min(shift, 1u);
    return ((i + max(half, 1u) - 1u + odd) >> shift) << shift;
}

fn to_odd(i: u32) -> u32 {
    if i < 0x1000000u { return i; }
    return (i & 0xffffff00u) | select(0u, 0x100u, (i & 0xffu) != 0u);
}

";

/// Random bits: element `i` of uint32 is word `i % 2` of the block of counter `i / 2`, element `i`
/// of uint64 the whole block of counter `i`.
pub fn random_bits(inputs: &[Input], out: &Output) -> Kernel {
    let mut shader = Shader::new();
    let sizes = [crate::shape::Dim::new(2)];
    let key = |shader: &mut Shader, k: &str| {
        shader.lane_of(&inputs[0], DType::U32, &sizes, &[k.to_owned()])
    };
    let (low, high) = (key(&mut shader, "0u"), key(&mut shader, "1u"));
    shader.function(THREEFRY);
    let lane = match out.ty.dtype.size() {
        8 => format!("threefry(vec2<u32>({low}, {high}), vec2<u32>(i, 0u))"),
        _ => {
            let counter = "vec2<u32>(i >> 1u, 0u)";
            let block = shader.name(format!("threefry(vec2<u32>({low}, {high}), {counter})"));
            format!("select({block}.x, {block}.y, (i & 1u) != 0u)")
        }
    };
    Kernel::of(given(shader, &lane, out))
}

/// Threefry-2x32 with 20 rounds. The key is added before every fourth round and after the last.
pub const THREEFRY: &str = "\
fn threefry_four(x: vec2<u32>, turns: vec4<u32>) -> vec2<u32> {
    var a = x.x;
    var b = x.y;
    a = a + b; b = ((b << turns.x) | (b >> (32u - turns.x))) ^ a;
    a = a + b; b = ((b << turns.y) | (b >> (32u - turns.y))) ^ a;
    a = a + b; b = ((b << turns.z) | (b >> (32u - turns.z))) ^ a;
    a = a + b; b = ((b << turns.w) | (b >> (32u - turns.w))) ^ a;
    return vec2<u32>(a, b);
}

fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let last = 0x1bd11bdau ^ key.x ^ key.y;
    let even = vec4<u32>(13u, 15u, 26u, 6u);
    let odd = vec4<u32>(17u, 29u, 16u, 24u);
    var x = counter + key;
    x = threefry_four(x, even) + vec2<u32>(key.y, last + 1u);
    x = threefry_four(x, odd) + vec2<u32>(last, key.x + 2u);
    x = threefry_four(x, even) + vec2<u32>(key.x, key.y + 3u);
    x = threefry_four(x, odd) + vec2<u32>(key.y, last + 4u);
    return threefry_four(x, even) + vec2<u32>(last, key.x + 5u);
}

";
