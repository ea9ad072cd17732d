//! Groups: elementwise programs as compute shaders.

use std::fmt::Write;

use smallvec::SmallVec;

use super::element::{
    PACK, element, is_wide, lane, lane_type, loaded, pack, packed, rounded, stored,
};
use super::kernel::{Dispatch, Place, View, Word, count};
use super::shader::Shader;
use super::terms::{BLOCK, Join, read, zero};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::Reduction;
use crate::ops::element::{ElementOp, ElementProgram, Instruction, Value};
use crate::scalar::wgsl::WgslType;
use crate::shape::Dim;

/// An array that a group reads: the memory in which it lies, and where its elements lie there.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The memory
    pub place: Place,
    /// Its elements
    pub view: View,
    /// Where it is a sum of so many parts: they lie behind each other, without gaps, in the dtype
    /// that sums are kept in
    pub parts: Option<Dim>,
}

impl Operand {
    /// An array in a range that the step was given.
    pub fn new(range: usize, view: View) -> Operand {
        Operand { place: Place::Range(range), view, parts: None }
    }
}

/// How invocations walk over an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// All elements of the group, in order
    Dense,
    /// One element for all
    Single,
    /// By an index along each axis
    Strided,
    /// All elements in order, each a sum of parts
    Summed,
}

/// The shader of a group of these sizes. Results lie without gaps from the start of their ranges.
/// Equal numbers of ranges say that operands and results share one.
pub fn dispatch(
    program: &ElementProgram,
    sizes: &[Dim],
    operands: &[Operand],
    results: &[usize],
) -> Result<Dispatch> {
    for operand in operands {
        operand.view.addressable()?;
    }
    let walks: SmallVec<[Walk; 4]> = operands.iter().map(|x| walk(x, sizes)).collect();
    let ranges = ranges(program, operands, &walks, results);
    Text { program, operands, results, walks, ranges, shader: Shader::new(), names: Vec::new() }
        .print(sizes)
}

fn walk(Operand { view, parts, .. }: &Operand, sizes: &[Dim]) -> Walk {
    let one = Dim::ONE;
    if parts.is_some() {
        return Walk::Summed;
    }
    if view.sizes.iter().all(|&size| size == one) {
        return Walk::Single;
    }
    let is_aligned = matches!(view.offset, Word::Size(offset)
        if offset.known().is_some_and(|offset| offset.is_multiple_of(PACK)));
    let is_whole = view.broadcast(sizes).is_dense || count(&view.sizes).same(count(sizes));
    if view.is_dense && is_aligned && is_whole { Walk::Dense } else { Walk::Strided }
}

/// The type of the elements of each range: a pack, or words where its users differ.
fn ranges(
    program: &ElementProgram,
    operands: &[Operand],
    walks: &[Walk],
    results: &[usize],
) -> SmallVec<[(Place, &'static str); 4]> {
    let reads = operands.iter().zip(walks).zip(program.arrays());
    let reads = reads.map(|((operand, walk), &dtype)| {
        (operand.place, if *walk == Walk::Dense { pack(dtype) } else { "u32" })
    });
    let writes = results.iter().map(|&range| Place::Range(range)).zip(program.dtypes().map(pack));
    let mut types: SmallVec<[(Place, &'static str); 4]> = SmallVec::new();
    for (range, ty) in reads.chain(writes) {
        match types.iter_mut().find(|(known, _)| *known == range) {
            Some((_, known)) if *known != ty => *known = "u32",
            Some(_) => {}
            None => types.push((range, ty)),
        }
    }
    types
}

/// The axes that strided operands are walked along, neighbours merged where every such operand
/// walks them as one; for each operand its strides.
fn axes(sizes: &[Dim], views: &[View]) -> (SmallVec<[Dim; 6]>, Vec<SmallVec<[Word; 6]>>) {
    let mut merged: SmallVec<[Dim; 6]> = SmallVec::new();
    let mut strides: Vec<SmallVec<[Word; 6]>> = vec![SmallVec::new(); views.len()];
    for (axis, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != Dim::ONE) {
        let joins = |(own, view): (&SmallVec<[Word; 6]>, &View)| {
            let outer = own.last().copied();
            match (outer, view.strides[axis], size.known()) {
                (Some(outer), inner, Some(n)) => outer == inner.times(n as isize),
                _ => false,
            }
        };
        match merged.last_mut() {
            Some(last) if strides.iter().zip(views).all(joins) => {
                *last = *last * size;
                for (own, view) in strides.iter_mut().zip(views) {
                    own.pop();
                    own.push(view.strides[axis]);
                }
            }
            Some(_) | None => {
                merged.push(size);
                for (own, view) in strides.iter_mut().zip(views) {
                    own.push(view.strides[axis]);
                }
            }
        }
    }
    (merged, strides)
}

/// The parts of a group's shader.
struct Text<'p> {
    program: &'p ElementProgram,
    operands: &'p [Operand],
    results: &'p [usize],
    walks: SmallVec<[Walk; 4]>,
    ranges: SmallVec<[(Place, &'static str); 4]>,
    shader: Shader,
    /// The name of each value
    names: Vec<String>,
}

impl Text<'_> {
    fn print(mut self, sizes: &[Dim]) -> Result<Dispatch> {
        let all = count(sizes);
        let packs = all.div_ceil(Dim::new(PACK));
        let (packs_, last) = (self.shader.size(packs), self.shader.size(all - all.min(Dim::ONE)));
        self.names = self.shader.numbers(self.program)?;
        self.reads(sizes)?;
        let fields = self.shader.compute(self.program, &mut self.names)?;
        let dense = self.dense();
        let params = dense.iter().map(|(k, dtype, _)| format!(", l{k}: {}", lane_type(*dtype)));
        let params: String = params.collect();
        self.shader.close("element", &format!("i: u32{params}"), &fields);
        let body = self.body(&dense, &packs_, &last);
        let parts = self.operands.iter().filter_map(|operand| operand.parts);
        // Of each of four elements, and of their blocks.
        let rounds = parts.fold(Dim::new(0), |all, parts| all + parts * Dim::new(2 * PACK));
        Ok(self.shader.entry(&body, packs, rounds))
    }

    fn memory(&mut self, place: Place) -> String {
        let ty = self.ranges.iter().find(|(known, _)| *known == place).map_or("u32", |(_, ty)| *ty);
        self.shader.memory_as(place, ty)
    }

    /// The operands' values in the function of one element.
    fn reads(&mut self, sizes: &[Dim]) -> Result<()> {
        let strided = |k: &usize| self.walks[*k] == Walk::Strided;
        let strided: Vec<usize> = (0..self.operands.len()).filter(strided).collect();
        let views: Vec<View> =
            strided.iter().map(|&k| self.operands[k].view.broadcast(sizes)).collect();
        let (merged, strides) =
            if views.is_empty() { Default::default() } else { axes(sizes, &views) };
        let index = self.shader.indices("i", &merged);
        for k in 0..self.operands.len() {
            let (walk, Operand { place, view, parts }) = (self.walks[k], &self.operands[k]);
            let dtype = self.program.arrays()[k];
            self.shader.register(dtype)?;
            let memory = self.memory(*place);
            let lane = match walk {
                Walk::Dense => format!("l{k}"),
                Walk::Summed => {
                    let parts = parts.unwrap_or(Dim::ONE);
                    self.shader.summed(*place, dtype, parts, count(sizes))?
                }
                Walk::Single | Walk::Strided => {
                    let own = strided.iter().position(|&of| of == k);
                    let (sizes, strides) = match own {
                        Some(own) => (merged.clone(), strides[own].clone()),
                        None => Default::default(),
                    };
                    let sizes = sizes.into_iter().collect();
                    let view = View { sizes, strides, offset: view.offset, is_dense: false };
                    let at = self.shader.position(&view, &index);
                    self.shader.line(format!("let at{k} = {at};"));
                    format!("({})", element(dtype, &memory, &format!("at{k}")))
                }
            };
            self.shader.line(format!("let x{k} = {};", loaded(dtype, &lane)));
            self.names[k] = format!("x{k}");
        }
        Ok(())
    }

    /// The dense operands: position, dtype and range.
    fn dense(&self) -> SmallVec<[(usize, DType, Place); 4]> {
        let operands = self.operands.iter().zip(self.program.arrays()).zip(&self.walks);
        let dense = operands.enumerate().filter(|(_, (_, walk))| **walk == Walk::Dense);
        dense.map(|(k, ((operand, &dtype), _))| (k, dtype, operand.place)).collect()
    }

    /// The entry point: an invocation reads packs, computes four elements and writes packs.
    fn body(&mut self, dense: &[(usize, DType, Place)], packs: &str, last: &str) -> String {
        let mut text = format!("    let pack = id;\n    if pack >= {packs} {{ return; }}\n");
        for &(k, dtype, range) in dense {
            let offset = match self.operands[k].view.offset {
                Word::Size(offset) => Dim::new(offset.value() / PACK),
                Word::Bits(_)
                | Word::Minus(_)
                | Word::Number { .. }
                | Word::Slot
                | Word::Round { .. } => Dim::new(0),
            };
            let (offset, memory) = (self.shader.size(offset), self.memory(range));
            let _ = writeln!(text, "    let p{k} = {offset} + pack;");
            if self.is_packed(dtype, range) && !is_wide(dtype) {
                let _ = writeln!(text, "    let d{k} = {memory}[p{k}];");
            }
        }
        for e in 0..PACK {
            let mut lanes = String::new();
            for &(k, dtype, range) in dense {
                let memory = self.memory(range);
                let at = format!("(p{k} * {PACK}u + {e}u)");
                lanes += &match (self.is_packed(dtype, range), is_wide(dtype)) {
                    (true, true) => format!(", {memory}[{at}]"),
                    (true, false) => format!(", {}", lane(dtype, &format!("d{k}"), e)),
                    (false, _) => format!(", {}", element(dtype, &memory, &at)),
                };
            }
            let _ = writeln!(
                text,
                "    let e{e} = element(min(pack * {PACK}u + {e}u, {last}){lanes});"
            );
        }
        for (k, dtype) in self.program.dtypes().enumerate() {
            self.store(&mut text, k, dtype, Place::Range(self.results[k]));
        }
        text
    }

    /// Whether a range is bound as packs of a dtype.
    fn is_packed(&self, dtype: DType, range: Place) -> bool {
        self.ranges.iter().any(|&(known, ty)| known == range && ty == pack(dtype))
    }

    /// Writes result `k` of the four elements.
    fn store(&mut self, text: &mut String, k: usize, dtype: DType, range: Place) {
        let memory = self.memory(range);
        let lanes: [String; PACK] = std::array::from_fn(|e| format!("e{e}.y{k}"));
        let mut put = |at: String, value: String| {
            let _ = writeln!(text, "    {memory}[{at}] = {value};");
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
                    let _ = writeln!(text, "    {memory}[pack * {count}u + {j}u] = {value};");
                }
            }
        }
    }
}

impl Shader {
    /// Names of the numbers of a program, behind those of its arrays, which are still to be given.
    pub fn numbers(&mut self, program: &ElementProgram) -> Result<Vec<String>> {
        let mut names = vec![String::new(); program.arrays().len()];
        for (number, &dtype) in program.numbers().iter().enumerate() {
            self.register(dtype)?;
            let half = |is_high| Word::Number { number, dtype, is_high };
            let low = self.word(half(false));
            let lane = match is_wide(dtype) {
                true => format!("vec2<u32>({low}, {})", self.word(half(true))),
                false => low,
            };
            let name = format!("n{number}");
            self.line(format!("let {name} = {};", loaded(dtype, &lane)));
            names.push(name);
        }
        Ok(names)
    }

    /// The lines of a program whose arrays and numbers have these names. Its results become the
    /// fields of `out`, whose declarations are returned.
    pub fn compute(&mut self, program: &ElementProgram, names: &mut Vec<String>) -> Result<String> {
        for instruction in program.instructions() {
            self.define(program, instruction, names)?;
        }
        let mut fields = Vec::new();
        for (k, &value) in program.results().iter().enumerate() {
            let dtype = program.dtype(value);
            self.register(dtype)?;
            let value = stored(dtype, &names[value.0 as usize]);
            self.line(format!("out.y{k} = {value};"));
            fields.push(format!("y{k}: {}", lane_type(dtype)));
        }
        Ok(fields.join(", "))
    }

    /// The line of an instruction, whose result gets the next name.
    fn define(
        &mut self,
        program: &ElementProgram,
        instruction: &Instruction,
        names: &mut Vec<String>,
    ) -> Result<()> {
        let i = names.len();
        let name = |x: &Value| names[x.0 as usize].clone();
        let args: SmallVec<[String; 3]> = instruction.args.iter().map(name).collect();
        let value = self.instruction(program, instruction, &args)?;
        self.line(format!("let v{i} = {value};"));
        names.push(format!("v{i}"));
        if let Some(value) = rounded(instruction.dtype, &format!("v{i}")) {
            self.line(format!("let r{i} = {value};"));
            names[i] = format!("r{i}");
        }
        Ok(())
    }

    /// An instruction of a program on registers, before its result is rounded.
    pub fn instruction(
        &mut self,
        program: &ElementProgram,
        instruction: &Instruction,
        args: &[String],
    ) -> Result<String> {
        let ty = self.register(instruction.dtype)?;
        match instruction.op {
            ElementOp::Cast => {
                let from = self.register(program.dtype(instruction.args[0]))?;
                Ok(match (from, 8 * instruction.dtype.size()) {
                    (WgslType::F32, bits @ (8 | 16)) if instruction.dtype.is_int() => {
                        saturated(&args[0], ty, bits)
                    }
                    _ => converted(&args[0], from, ty),
                })
            }
            ElementOp::Map(def) => {
                let args: SmallVec<[&str; 3]> = args.iter().map(String::as_str).collect();
                self.call(def, instruction.computes_in(program), &args)
            }
        }
    }

    /// The lane of element `i` of a sum whose parts lie behind each other, so many elements each.
    fn summed(&mut self, place: Place, dtype: DType, parts: Dim, each: Dim) -> Result<String> {
        let join = Join::of(Reduction::Sum, dtype);
        let (sum, own) = (self.variable(zero(join.dtype)), self.variable(zero(join.dtype)));
        let (parts, each) = (self.size(parts), self.size(each));
        let j = self.variable("0u");
        self.line(format!("while ({j} < {parts}) {{"));
        let end = self.name(format!("min({j} + {BLOCK}u, {parts})"));
        self.line(format!("{own} = {};\nfor (; {j} < {end}; {j}++) {{", zero(join.dtype)));
        let part = self.load_at(place, join.dtype, &format!("{j} * {each} + i"))?;
        let joined = join.call(self, &own, &part)?;
        self.line(format!("{own} = {joined};\n}}"));
        let joined = join.call(self, &sum, &own)?;
        self.line(format!("{sum} = {joined};\n}}"));
        self.narrowed(read(dtype), &sum)
    }
}

/// A conversion of registers; what is too large for an integer becomes its largest or smallest
/// value, and NaN becomes 0.
pub fn converted(x: &str, from: WgslType, to: WgslType) -> String {
    use WgslType::{Bool, F32, I32, I64, U32, U64};
    let name = to.name();
    match (from, to) {
        _ if from == to => x.into(),
        // Comparisons with NaN are unreliable.
        (F32, Bool) => format!("(bitcast<u32>({x}) & 0x7fffffffu) != 0u"),
        (F32, I32 | U32) => saturated(x, to, 32),
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

/// A float as an integer of so many bits: towards zero, the nearest bound where it is out of range,
/// 0 where it is NaN. The conversion of WGSL stops at the largest float below the bound, and knows
/// no integers of fewer than 32 bits.
fn saturated(x: &str, to: WgslType, bits: usize) -> String {
    let name = to.name();
    let is_signed = to == WgslType::I32;
    let high = (1u64 << (bits - usize::from(is_signed))) - 1;
    let (low, suffix) = if is_signed { (-(high as f64) - 1.0, "i") } else { (0.0, "u") };
    let bound = (high + 1) as f64;
    let is_nan = format!("(bitcast<u32>({x}) & 0x7fffffffu) > 0x7f800000u");
    let inside = format!("{name}(clamp({x}, {low:.1}f, {bound:.1}f))");
    let above = format!("{x} >= {bound:.1}f");
    format!("select(select({inside}, {high}{suffix}, {above}), {name}(0), {is_nan})")
}
