//! Groups: elementwise programs as compute shaders.

use std::fmt::Write;

use smallvec::SmallVec;

use super::element::{
    PACK, element, functions, is_wide, lane, lane_type, loaded, pack, packed, register, rounded,
    stored,
};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::ops::element::{ElementOp, ElementProgram, Instruction, Value};
use crate::scalar::half::{f64_to_bf16, f64_to_f16};
use crate::scalar::wgsl::WgslType;
use crate::schedule::{self as plan, Number, Plan, Sequel, Source, Step};
use crate::shape::Shape;

/// Invocations of a workgroup.
pub const WORKGROUP: usize = 64;

/// The most workgroups along one dimension of a dispatch, on any adapter.
const MOST_GROUPS: usize = 65_535;

/// The most elements: offsets fit into 31 bits, so that strides may be negative.
const MOST_ELEMENTS: usize = 1 << 31;

/// Words of the uniform buffer before the numbers: packs, invocations in a row of the dispatch, and
/// the last element.
const HEAD: usize = 3;

/// An array that a group reads: the range of memory in which it lies, by its number, and its layout
/// there.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The number of the range
    pub range: usize,
    /// The layout, whose offset counts from the start of the range
    pub layout: &'a Layout,
}

/// How invocations walk over an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Walk {
    /// All elements of the group, in order
    Dense,
    /// One element for all
    Single,
    /// By an index along each axis
    Strided,
}

/// What the text of a group depends on, beside its program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Structure {
    /// For each operand its walk and the number of its range
    operands: SmallVec<[(Walk, usize); 4]>,
    /// The number of the range of each result
    results: SmallVec<[usize; 2]>,
    /// The axes that strided operands are walked along
    axes: usize,
    /// For each range the type of its elements: a pack, or words where its users differ
    ranges: SmallVec<[&'static str; 4]>,
}

/// A group, ready to be dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The shader, which groups of other sizes share
    pub text: String,
    /// The uniform buffer
    pub words: Vec<u32>,
    /// Workgroups along `x` and `y`
    pub groups: [u32; 2],
}

/// The shader of a group of this shape, and what it takes. Results lie without gaps from the start
/// of their ranges. Equal numbers of ranges say that operands and results share one; ranges are
/// numbered from 0 on, and bound in this order; the uniform buffer is bound behind them.
pub fn dispatch(
    program: &ElementProgram,
    shape: &Shape,
    operands: &[Operand<'_>],
    numbers: &[Scalar],
    results: &[usize],
) -> Result<Dispatch> {
    let count = shape.count();
    let reach = operands.iter().map(|x| x.layout.room()).max().unwrap_or(0);
    if count.max(reach) > MOST_ELEMENTS {
        let facts = format!("got {} for {shape}, at most {MOST_ELEMENTS}", count.max(reach));
        return Err(error::bad_graph("shader", "too many elements", facts));
    }
    let walks = operands.iter().map(|x| walk(x.layout, count));
    let walks: SmallVec<[Walk; 4]> = walks.collect();
    let axes = Axes::new(shape, operands, &walks);
    let structure = Structure {
        operands: walks.iter().zip(operands).map(|(&walk, x)| (walk, x.range)).collect(),
        results: SmallVec::from_slice(results),
        axes: axes.sizes.len(),
        ranges: ranges(program, operands, &walks, results),
    };
    let text = Text::new(program, &structure).print()?;
    let packs = count.div_ceil(PACK);
    let all = packs.div_ceil(WORKGROUP);
    let rows = all.div_ceil(MOST_GROUPS).max(1);
    let row = all.div_ceil(rows);
    let mut words = vec![packs as u32, (row * WORKGROUP) as u32, count.saturating_sub(1) as u32];
    let dtypes = program.numbers().iter();
    for (&value, &dtype) in numbers.iter().zip(dtypes) {
        let bits = bits(value, dtype);
        words.push(bits as u32);
        words.extend(is_wide(dtype).then_some((bits >> 32) as u32));
    }
    words.extend(axes.sizes.iter().map(|&size| size as u32));
    for (walk, operand) in walks.iter().zip(operands) {
        let offset = operand.layout.offset();
        words.push(if *walk == Walk::Dense { offset / PACK } else { offset } as u32);
    }
    words.extend(axes.strides.iter().map(|&stride| stride as u32));
    words.resize(words.len().next_multiple_of(4), 0);
    Ok(Dispatch { text, words, groups: [row as u32, rows as u32] })
}

/// The same for an elementwise step of a plan whose arrays lie in ranges of their own: inputs of
/// the plan in these layouts, all others without gaps. Ranges are numbered in the order of the
/// operands; the results follow. `numbers` are the numeric inputs of the plan.
pub fn of_step(
    plan: &Plan,
    step: &Step,
    inputs: &[Layout],
    numbers: &[Scalar],
) -> Result<Dispatch> {
    let Some(Sequel { group, operands }) = plan.elementwise(step) else {
        return Err(error::bad_graph("shader", "is not elementwise", step.name()));
    };
    let (mut layouts, mut given) = (Vec::new(), Vec::new());
    for operand in &operands {
        match *operand {
            plan::Operand::Array(source) => layouts.push(match source {
                Source::Input(i) => inputs[i as usize].clone(),
                Source::Slot(_) | Source::Constant(_) => Layout::contiguous(plan.ty(source).shape),
            }),
            plan::Operand::Number(Number::Constant(value)) => given.push(value),
            plan::Operand::Number(Number::Input(i)) => given.push(numbers[i as usize]),
        }
    }
    let own: Vec<Operand<'_>> =
        layouts.iter().enumerate().map(|(range, layout)| Operand { range, layout }).collect();
    let results: Vec<usize> = (own.len()..own.len() + group.program.results().len()).collect();
    dispatch(&group.program, &group.shape, &own, &given, &results)
}

fn walk(layout: &Layout, count: usize) -> Walk {
    let own = layout.shape().count();
    if own == 1 {
        return Walk::Single;
    }
    let is_dense = layout.is_contiguous() && own == count && layout.offset().is_multiple_of(PACK);
    if is_dense { Walk::Dense } else { Walk::Strided }
}

/// The type of the elements of each range.
fn ranges(
    program: &ElementProgram,
    operands: &[Operand<'_>],
    walks: &[Walk],
    results: &[usize],
) -> SmallVec<[&'static str; 4]> {
    let reads = operands.iter().zip(walks).zip(program.arrays());
    let reads = reads.map(|((operand, walk), &dtype)| {
        (operand.range, if *walk == Walk::Dense { pack(dtype) } else { "u32" })
    });
    let writes = results.iter().zip(program.dtypes()).map(|(&range, dtype)| (range, pack(dtype)));
    let uses: SmallVec<[(usize, &str); 6]> = reads.chain(writes).collect();
    let count = uses.iter().map(|&(range, _)| range + 1).max().unwrap_or(0);
    let of = |range: usize| {
        let mut types = uses.iter().filter(|(of, _)| *of == range).map(|(_, ty)| *ty);
        let first = types.next().unwrap_or("u32");
        if types.all(|ty| ty == first) { first } else { "u32" }
    };
    (0..count).map(of).collect()
}

/// The bits of a number in the memory form of a dtype.
fn bits(value: Scalar, dtype: DType) -> u64 {
    match dtype {
        DType::F16 => f64_to_f16(value.as_f64()).into(),
        DType::BF16 => f64_to_bf16(value.as_f64()).into(),
        DType::I8 | DType::U8 => value.register_bits(dtype.compute()) & 0xff,
        DType::I16 | DType::U16 => value.register_bits(dtype.compute()) & 0xffff,
        DType::Bool
        | DType::I32
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => value.register_bits(dtype.compute()),
    }
}

/// The axes that strided operands are walked along, neighbours merged where every such operand
/// walks them as one.
#[derive(Default)]
struct Axes {
    sizes: SmallVec<[usize; 6]>,
    /// For each strided operand its strides, one operand after the other
    strides: SmallVec<[isize; 12]>,
}

impl Axes {
    fn new(shape: &Shape, operands: &[Operand<'_>], walks: &[Walk]) -> Axes {
        let strided = operands.iter().zip(walks).filter(|(_, walk)| **walk == Walk::Strided);
        let all: SmallVec<[_; 4]> =
            strided.map(|(operand, _)| operand.layout.broadcast_strides(shape)).collect();
        if all.is_empty() {
            return Axes::default();
        }
        // Of merged axes the last one has the strides.
        let mut axes: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        for (axis, size) in shape.sizes().into_iter().enumerate().filter(|(_, size)| *size != 1) {
            match axes.last_mut() {
                Some((outer, last))
                    if all.iter().all(|own| own[*last] == own[axis] * size as isize) =>
                {
                    *outer *= size;
                    *last = axis;
                }
                _ => axes.push((size, axis)),
            }
        }
        let of = |own: &Strides| {
            axes.iter().map(|&(_, axis)| own[axis]).collect::<SmallVec<[isize; 6]>>()
        };
        Axes {
            sizes: axes.iter().map(|&(size, _)| size).collect(),
            strides: all.iter().flat_map(of).collect(),
        }
    }
}

/// The parts of a shader.
struct Text<'p> {
    program: &'p ElementProgram,
    structure: &'p Structure,
    functions: String,
    /// The lines of the function of one element
    body: String,
    /// The name of each value
    names: Vec<String>,
}

/// A word of the uniform buffer.
fn word(i: usize) -> String {
    format!("words[{}].{}", i / 4, ["x", "y", "z", "w"][i % 4])
}

impl<'p> Text<'p> {
    fn new(program: &'p ElementProgram, structure: &'p Structure) -> Text<'p> {
        let (functions, body, names) = Default::default();
        Text { program, structure, functions, body, names }
    }

    fn print(mut self) -> Result<String> {
        self.helpers();
        self.operands()?;
        self.numbers()?;
        for (k, instruction) in self.program.instructions().iter().enumerate() {
            self.instruction(self.program.first_result() + k, instruction)?;
        }
        for (k, &value) in self.program.results().iter().enumerate() {
            let value = stored(self.program.dtype(value), &self.names[value.0 as usize]);
            let _ = writeln!(self.body, "    out.y{k} = {value};");
        }
        let main = self.main();
        let (bindings, element) = (self.bindings(), self.element());
        Ok(format!("{bindings}\n{}{element}\n{main}", self.functions))
    }

    /// Conversions of the dtypes that there are.
    fn helpers(&mut self) {
        let program = self.program;
        let results = program.instructions().iter().map(|instruction| instruction.dtype);
        let given = program.arrays().iter().chain(program.numbers()).copied();
        let dtypes: SmallVec<[DType; 8]> = given.chain(results).collect();
        for dtype in [DType::F16, DType::BF16, DType::I64, DType::U64] {
            let text = functions(dtype);
            if dtypes.contains(&dtype) && !self.functions.contains(text) {
                self.functions += text;
                self.functions.push('\n');
            }
        }
    }

    /// The position of the sizes of the axes among the words; the offsets of the operands follow.
    fn sizes(&self) -> usize {
        self.number(self.program.numbers().len())
    }

    /// The position of a number.
    fn number(&self, k: usize) -> usize {
        let before = &self.program.numbers()[..k];
        HEAD + before.iter().map(|&dtype| 1 + usize::from(is_wide(dtype))).sum::<usize>()
    }

    fn offset(&self, operand: usize) -> String {
        word(self.sizes() + self.structure.axes + operand)
    }

    /// The position of the strides of an operand.
    fn strides(&self, operand: usize) -> usize {
        let operands = &self.structure.operands;
        let before = operands[..operand].iter().filter(|x| x.0 == Walk::Strided).count();
        self.sizes() + self.structure.axes + operands.len() + before * self.structure.axes
    }

    /// The count of vectors of words.
    fn vectors(&self) -> usize {
        self.strides(self.structure.operands.len()).div_ceil(4)
    }

    fn bindings(&self) -> String {
        let mut text = String::new();
        for (i, ty) in self.structure.ranges.iter().enumerate() {
            let _ = writeln!(
                text,
                "@group(0) @binding({i}) var<storage, read_write> m{i}: array<{ty}>;"
            );
        }
        let (at, count) = (self.structure.ranges.len(), self.vectors());
        let _ = writeln!(
            text,
            "@group(0) @binding({at}) var<uniform> words: array<vec4<u32>, {count}>;"
        );
        text
    }

    /// The operands' values in the function of one element.
    fn operands(&mut self) -> Result<()> {
        let axes = self.structure.axes;
        if axes > 0 {
            self.body += "    var rest = i;\n";
        }
        for axis in (0..axes).rev() {
            let size = word(self.sizes() + axis);
            let _ = match axis {
                0 => writeln!(self.body, "    let i0 = rest;"),
                _ => writeln!(self.body, "    let i{axis} = rest % {size};\n    rest /= {size};"),
            };
        }
        for (k, &(walk, range)) in self.structure.operands.iter().enumerate() {
            let dtype = self.program.arrays()[k];
            register(dtype)?;
            let lane = match walk {
                Walk::Dense => format!("l{k}"),
                Walk::Single | Walk::Strided => {
                    let mut at = self.offset(k);
                    let steps = if walk == Walk::Strided { axes } else { 0 };
                    for axis in 0..steps {
                        let _ = write!(at, " + i{axis} * {}", word(self.strides(k) + axis));
                    }
                    let _ = writeln!(self.body, "    let at{k} = {at};");
                    element(dtype, &format!("m{range}"), &format!("at{k}"))
                }
            };
            let lane = if walk == Walk::Dense { lane } else { format!("({lane})") };
            let _ = writeln!(self.body, "    let x{k} = {};", loaded(dtype, &lane));
            self.names.push(format!("x{k}"));
        }
        Ok(())
    }

    fn numbers(&mut self) -> Result<()> {
        for (k, &dtype) in self.program.numbers().iter().enumerate() {
            register(dtype)?;
            let (name, at) = (format!("n{k}"), self.number(k));
            let lane = match is_wide(dtype) {
                true => format!("vec2<u32>({}, {})", word(at), word(at + 1)),
                false => word(at),
            };
            let _ = writeln!(self.body, "    let {name} = {};", loaded(dtype, &lane));
            self.names.push(name);
        }
        Ok(())
    }

    fn instruction(&mut self, i: usize, instruction: &Instruction) -> Result<()> {
        let name = |x: &Value| self.names[x.0 as usize].clone();
        let args: SmallVec<[String; 3]> = instruction.args.iter().map(name).collect();
        let ty = register(instruction.dtype)?;
        let value = match instruction.op {
            ElementOp::Cast => {
                let from = register(self.program.dtype(instruction.args[0]))?;
                converted(&args[0], from, ty)
            }
            ElementOp::Map(def) => {
                let ty = register(instruction.computes_in(self.program))?;
                let Some(text) = def.text(ty) else {
                    let what = "has no text for this dtype";
                    return Err(error::bad_graph("shader", what, def.name));
                };
                let types =
                    (0..args.len()).map(|k| if def.is_condition(k) { WgslType::Bool } else { ty });
                let params: SmallVec<[String; 3]> = types
                    .zip(["a", "b", "c"])
                    .map(|(ty, name)| format!("{name}: {}", ty.name()))
                    .collect();
                // Each op is a function of its own, so that its text is the same in every shader.
                let name = format!("{}_{}", def.name, ty.suffix());
                let call = format!("{name}({})", args.join(", "));
                let head = format!("fn {name}({}) -> {} {{\n", params.join(", "), text.ty.name());
                if !self.functions.contains(&head) {
                    let lines: String =
                        text.body.lines().map(|line| format!("    {line}\n")).collect();
                    let end = format!("    return {};\n}}\n\n", text.result);
                    self.functions += &(head + &lines + &end);
                }
                call
            }
        };
        let _ = writeln!(self.body, "    let v{i} = {value};");
        self.names.push(format!("v{i}"));
        if let Some(value) = rounded(instruction.dtype, &format!("v{i}")) {
            let _ = writeln!(self.body, "    let r{i} = {value};");
            self.names[i] = format!("r{i}");
        }
        Ok(())
    }

    /// The function of one element, from the lanes of dense operands to the lanes of the results.
    fn element(&self) -> String {
        let results = self.program.dtypes().enumerate();
        let fields: Vec<String> =
            results.map(|(k, dtype)| format!("y{k}: {}", lane_type(dtype))).collect();
        let dense = self.dense().map(|(k, dtype, _)| format!(", l{k}: {}", lane_type(dtype)));
        format!(
            "struct Out {{ {} }}\n\nfn element(i: u32{}) -> Out {{\n    var out: Out;\n{}    \
             return out;\n}}\n",
            fields.join(", "),
            dense.collect::<String>(),
            self.body
        )
    }

    /// The dense operands: position, dtype and range.
    fn dense(&self) -> impl Iterator<Item = (usize, DType, usize)> + '_ {
        let operands = self.structure.operands.iter().zip(self.program.arrays()).enumerate();
        let dense = operands.filter(|(_, ((walk, _), _))| *walk == Walk::Dense);
        dense.map(|(k, (&(_, range), &dtype))| (k, dtype, range))
    }

    /// The entry point: an invocation reads packs, computes four elements and writes packs.
    fn main(&self) -> String {
        let mut text = format!(
            "@compute @workgroup_size({WORKGROUP})\n\
             fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    \
             let pack = id.y * {} + id.x;\n    if pack >= {} {{ return; }}\n",
            word(1),
            word(0)
        );
        for (k, dtype, range) in self.dense() {
            let _ = writeln!(text, "    let p{k} = {} + pack;", self.offset(k));
            if self.is_packed(dtype, range) && !is_wide(dtype) {
                let _ = writeln!(text, "    let d{k} = m{range}[p{k}];");
            }
        }
        for e in 0..PACK {
            let lanes = self.dense().map(|(k, dtype, range)| {
                let at = format!("(p{k} * {PACK}u + {e}u)");
                match (self.is_packed(dtype, range), is_wide(dtype)) {
                    (true, true) => format!(", m{range}[{at}]"),
                    (true, false) => format!(", {}", lane(dtype, &format!("d{k}"), e)),
                    (false, _) => format!(", {}", element(dtype, &format!("m{range}"), &at)),
                }
            });
            let lanes: String = lanes.collect();
            let _ = writeln!(
                text,
                "    let e{e} = element(min(pack * {PACK}u + {e}u, {}){lanes});",
                word(2)
            );
        }
        for (k, dtype) in self.program.dtypes().enumerate() {
            self.store(&mut text, k, dtype, self.structure.results[k]);
        }
        text + "}\n"
    }

    /// Whether a range is bound as packs of a dtype.
    fn is_packed(&self, dtype: DType, range: usize) -> bool {
        self.structure.ranges[range] == pack(dtype)
    }

    /// Writes result `k` of the four elements.
    fn store(&self, text: &mut String, k: usize, dtype: DType, range: usize) {
        let lanes: [String; PACK] = std::array::from_fn(|e| format!("e{e}.y{k}"));
        let mut put = |at: String, value: String| {
            let _ = writeln!(text, "    m{range}[{at}] = {value};");
        };
        match (self.is_packed(dtype, range), is_wide(dtype)) {
            (true, false) => put("pack".into(), packed(dtype, lanes)),
            (true, true) => {
                for (e, lane) in lanes.into_iter().enumerate() {
                    put(format!("pack * {PACK}u + {e}u"), lane);
                }
            }
            (false, true) => {
                for (e, lane) in lanes.into_iter().enumerate() {
                    for (j, part) in ["x", "y"].into_iter().enumerate() {
                        put(format!("pack * 8u + {}u", 2 * e + j), format!("{lane}.{part}"));
                    }
                }
            }
            (false, false) => {
                let count = PACK * dtype.size() / 4;
                let _ = writeln!(text, "    let o{k} = {};", packed(dtype, lanes));
                for (j, part) in ["x", "y", "z", "w"].into_iter().take(count).enumerate() {
                    let value = if count == 1 { format!("o{k}") } else { format!("o{k}.{part}") };
                    let _ = writeln!(text, "    m{range}[pack * {count}u + {j}u] = {value};");
                }
            }
        }
    }
}

/// A conversion of registers; what is too large for an integer becomes its largest or smallest
/// value, and NaN becomes 0.
fn converted(x: &str, from: WgslType, to: WgslType) -> String {
    use WgslType::{Bool, F32, I32, I64, U32, U64};
    let name = to.name();
    match (from, to) {
        _ if from == to => x.into(),
        // Comparisons with NaN are unreliable.
        (F32, Bool) => format!("(bitcast<u32>({x}) & 0x7fffffffu) != 0u"),
        (F32, I32 | U32) => {
            let is_nan = format!("(bitcast<u32>({x}) & 0x7fffffffu) > 0x7f800000u");
            format!("select({name}({x}), {name}(0), {is_nan})")
        }
        (F32, I64) => format!("wide_i_of_f32({x})"),
        (F32, U64) => format!("wide_u_of_f32({x})"),
        (I64, F32) => format!("f32_of_wide_i({x})"),
        (U64, F32) => format!("f32_of_wide_u({x})"),
        (I64 | U64, Bool) => format!("any({x} != vec2<u32>(0u, 0u))"),
        (I64 | U64, I32) => format!("bitcast<i32>({x}.x)"),
        (I64 | U64, U32) => format!("{x}.x"),
        (I64 | U64, I64 | U64) => x.into(),
        (I32, I64 | U64) => format!("wide_of_i32({x})"),
        (U32, I64 | U64) => format!("wide_of_u32({x})"),
        (Bool, I64 | U64) => format!("wide_of_u32(u32({x}))"),
        (Bool | I32 | U32 | F32, Bool | I32 | U32 | F32) => format!("{name}({x})"),
    }
}
