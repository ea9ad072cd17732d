//! Orders along an axis: keys, runs that are merged, and what lies where the order says.
//!
//! Every element finds its own place: first among the elements of a short block, then, when two
//! sorted runs become one, by a binary search in the other run. No invocation waits for another.

use super::kernel::{Dispatch, Input, Kernel, Output, Place, Repeat, Times, View, Word, count};
use super::moves::given;
use super::shader::Shader;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::op::Op;
use crate::shape::Dim;

/// Elements that are sorted by counting.
const BLOCK: usize = 32;

/// The kernel of an op that orders an axis: sorted values, or the positions of the first of them.
pub fn kernel(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops are refused")]
    let (axis, descending) = match *op {
        Op::Sort { axis, descending } | Op::ArgSort { axis, descending } => (axis, descending),
        Op::TopK { axis, largest, .. } => (axis, largest),
        _ => return Err(error::internal(format!("{} orders nothing", op.name()))),
    };
    let Input::Array { range, dtype, ref view } = inputs[0] else {
        return Err(error::internal(format!("{} of a number", op.name())));
    };
    let n = view.sizes[axis];
    let mut kernel = Kernel::default();
    let lines = lines(view, axis);
    let keys = keys(&mut kernel, Place::Range(range), dtype, &lines, descending)?;
    let count = count(&lines.sizes);
    let order = order(&mut kernel, keys, count, n);
    let sizes = out.ty.shape.dims();
    let mut shader = Shader::new();
    let mut index = shader.indices("i", sizes);
    let at = shader.position(&order_view(&lines, axis), &index);
    let from = shader.lane_at(order, DType::U32, &at);
    let from = shader.name(from);
    let lane = if let Op::Sort { .. } = op {
        index[axis] = from;
        let at = shader.position(view, &index);
        shader.lane(&inputs[0], dtype, &at)
    } else {
        format!("vec2<u32>({from}, 0u)")
    };
    kernel.dispatches.push(given(shader, &lane, out));
    Ok(kernel)
}

/// A view whose last axis is the one that is ordered.
fn lines(view: &View, axis: usize) -> View {
    let axes: Vec<usize> = (0..view.sizes.len()).filter(|&i| i != axis).chain([axis]).collect();
    view.permute(&axes)
}

/// Where the order of elements lies, seen with the axes of the operand.
fn order_view(lines: &View, axis: usize) -> View {
    let rank = lines.sizes.len();
    let back: Vec<usize> = (0..rank)
        .map(|i| match i.cmp(&axis) {
            std::cmp::Ordering::Less => i,
            std::cmp::Ordering::Equal => rank - 1,
            std::cmp::Ordering::Greater => i - 1,
        })
        .collect();
    View::dense(&lines.sizes).permute(&back)
}

/// Keys in scratch.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Where they lie, without gaps
    pub place: Place,
    /// Their dtype: uint32 or uint64
    pub dtype: DType,
}

/// Keys that order as the elements do, as integers without a sign.
fn keys(
    kernel: &mut Kernel,
    from: Place,
    dtype: DType,
    lines: &View,
    descending: bool,
) -> Result<Keys> {
    let count = count(&lines.sizes);
    let to = if dtype.size() == 8 { DType::U64 } else { DType::U32 };
    let place = kernel.scratch(to, count);
    let mut shader = Shader::new();
    let at = shader.position_of(lines, "i");
    let lane = shader.lane_at(from, dtype, &at);
    let lane = shader.name(lane);
    let invert = |key: String| if descending { format!("~({key})") } else { key };
    // The sign bit of a float, and the magnitude of an infinity, moved to the top of a word.
    let mut float = |shift: u32, infinity: &str| {
        shader.function(FLOAT_KEY);
        let mask = if descending { "0xffffffffu" } else { "0u" };
        format!("float_key({lane} << {shift}u, {infinity}, {mask})")
    };
    let key = match dtype {
        DType::F16 => float(16, "0x7c000000u"),
        DType::BF16 => float(16, "0x7f800000u"),
        DType::F32 => float(0, "0x7f800000u"),
        DType::I8 => invert(format!("({lane} ^ 0x80u)")),
        DType::I16 => invert(format!("({lane} ^ 0x8000u)")),
        DType::I32 => invert(format!("({lane} ^ 0x80000000u)")),
        DType::I64 => invert(format!("({lane} ^ vec2<u32>(0u, 0x80000000u))")),
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => invert(lane),
        DType::F64 => return Err(error::internal("float64 has no key")),
    };
    kernel.dispatches.push(shader.finish(place, to, count, &key, Dim::new(0)));
    Ok(Keys { place, dtype: to })
}

/// The key of a float whose bits lie at the top of a word: both zeros are one, NaN is the last in
/// either direction.
const FLOAT_KEY: &str = "\
fn float_key(bits: u32, infinity: u32, direction: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if magnitude > infinity { return 0xffffffffu; }
    if magnitude == 0u { return 0x80000000u ^ direction; }
    if bits != magnitude { return ~bits ^ direction; }
    return (bits | 0x80000000u) ^ direction;
}

";

/// Whether a key comes before another.
fn before(keys: Keys, a: &str, b: &str) -> String {
    match keys.dtype.size() {
        8 => format!("({a}.y < {b}.y || ({a}.y == {b}.y && {a}.x < {b}.x))"),
        _ => format!("({a} < {b})"),
    }
}

/// The stable order of keys in lines of `n`: for each place of a line the position in the line.
pub fn order(kernel: &mut Kernel, keys: Keys, count: Dim, n: Dim) -> Place {
    let key = |shader: &mut Shader, at: &str| {
        let key = shader.lane_at(keys.place, keys.dtype, at);
        shader.name(key)
    };
    let mut order = kernel.scratch(DType::U32, count);
    let mut shader = Shader::new();
    let size = shader.size(n);
    let memory = shader.memory(order);
    let p = shader.name(format!("i % {size}"));
    let base = shader.name(format!("i - {p}"));
    let from = shader.name(format!("{p} - {p} % {BLOCK}u"));
    let own = key(&mut shader, "i");
    let rank = shader.variable("0u");
    shader.line(format!("for (var q = {from}; q < min({from} + {BLOCK}u, {size}); q++) {{"));
    let other = key(&mut shader, &format!("{base} + q"));
    let (less, more) = (before(keys, &other, &own), before(keys, &own, &other));
    shader.line(format!("{rank} += select(0u, 1u, {less} || (q < {p} && !{more}));\n}}"));
    shader.line(format!("{memory}[{base} + {from} + {rank}] = {p};"));
    kernel.dispatches.push(shader.each(count, Dim::new(BLOCK)));
    let Some(known) = n.known() else {
        // Two passes at a time, so that the result lies where it did; a pass too many only copies.
        let free = kernel.scratch(DType::U32, count);
        let start = kernel.dispatches.len();
        for (k, places) in [[order, free], [free, order]].into_iter().enumerate() {
            let pass = Word::Round { times: 2, plus: k as u32 };
            kernel.dispatches.push(merged(keys, places, count, n, pass));
        }
        let times = Times::Log { base: 4, of: n.div_ceil(Dim::new(BLOCK)) };
        kernel.repeats.push(Repeat { range: start..start + 2, times });
        return order;
    };
    if known > BLOCK {
        let mut free = kernel.scratch(DType::U32, count);
        for pass in 0..known.div_ceil(BLOCK).next_power_of_two().trailing_zeros() {
            kernel.dispatches.push(merged(keys, [order, free], count, n, Word::Bits(pass)));
            (order, free) = (free, order);
        }
    }
    order
}

/// Merges sorted runs in pairs. The first pass merges blocks, each one runs of twice the width.
fn merged(keys: Keys, [order, to]: [Place; 2], count: Dim, n: Dim, pass: Word) -> Dispatch {
    let mut shader = Shader::new();
    let (size, pass) = (shader.size(n), shader.word(pass));
    let width = shader.name(format!("{BLOCK}u << {pass}"));
    let s = shader.name(format!("i % {size}"));
    let base = shader.name(format!("i - {s}"));
    let key = |shader: &mut Shader, at: &str| {
        let j = shader.lane_at(order, DType::U32, at);
        let j = shader.name(j);
        let key = shader.lane_at(keys.place, keys.dtype, &format!("{base} + {j}"));
        (shader.name(key), j)
    };
    let (own, j) = key(&mut shader, "i");
    let run = shader.name(format!("{s} / {width}"));
    let start = shader.name(format!("{run} * {width}"));
    let other = shader.name(format!("min(({run} ^ 1u) * {width}, {size})"));
    let low = shader.variable(&other);
    let high = shader.variable(format!("min({other} + {width}, {size})"));
    shader.line(format!("while {low} < {high} {{"));
    let middle = shader.name(format!("({low} + {high}) >> 1u"));
    let (there, _) = key(&mut shader, &format!("{base} + {middle}"));
    // Of equal keys those of the left run come first.
    let (less, more) = (before(keys, &there, &own), before(keys, &own, &there));
    shader.line(format!("let is_before = select(!{more}, {less}, ({run} & 1u) == 0u);"));
    shader.line(format!("if is_before {{ {low} = {middle} + 1u; }} else {{ {high} = {middle}; }}"));
    shader.line("}");
    let memory = shader.memory(to);
    let place = format!("{base} + min({start}, {other}) + ({s} - {start}) + ({low} - {other})");
    shader.line(format!("{memory}[{place}] = {j};"));
    shader.each(count, Dim::new(32))
}
