//! Compute shaders of groups: elementwise steps of a plan as WGSL.
//!
//! An invocation computes one element of every result. Each op is a function of its own, so that
//! its text is the same in every shader. Arrays are read-only buffers that broadcast to the group's
//! shape, results are buffers in C order, and truth values are stored as `u32` 0 and 1. Dtypes that
//! WGSL lacks are refused.

use std::fmt::Write;

use smallvec::SmallVec;

use super::assemble::Sequel;
use super::{Number, Operand, Plan, Step};
use crate::dtype::{Compute, DType, Scalar};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::element::{ElementOp, ElementProgram, Instruction, Value};
use crate::scalar::wgsl::WgslType;
use crate::shape::Shape;

/// Invocations of a workgroup.
pub const WORKGROUP: usize = 64;

/// The shader of an elementwise step.
pub fn shader(plan: &Plan, step: &Step) -> Result<String> {
    let Some(Sequel { group, operands }) = plan.elementwise(step) else {
        return Err(refused("is not elementwise", step.name()));
    };
    let program = &*group.program;
    let mut text = Text::new(program);
    for (i, operand) in operands.iter().enumerate() {
        match *operand {
            Operand::Array(source) => text.array(i, &plan.ty(source).shape, &group.shape)?,
            Operand::Number(value) => text.number(i, value)?,
        }
    }
    for (k, instruction) in program.instructions().iter().enumerate() {
        text.instruction(program.first_result() + k, instruction)?;
    }
    for (k, &value) in program.results().iter().enumerate() {
        text.result(k, value)?;
    }
    Ok(text.finish(group.shape.count()))
}

fn refused(what: &str, facts: impl std::fmt::Display) -> error::Error {
    error::bad_graph("shader", what, facts)
}

/// The WGSL type for a dtype.
fn wgsl_type(dtype: DType) -> Result<WgslType> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other dtype is refused by name")]
    match dtype {
        DType::Bool => Ok(WgslType::Bool),
        DType::F32 => Ok(WgslType::F32),
        DType::I32 => Ok(WgslType::I32),
        DType::U32 => Ok(WgslType::U32),
        _ => Err(refused("WGSL has no such type; use float32, int32, uint32 or bool", dtype)),
    }
}

/// The type that a buffer holds: WGSL does not store truth values.
fn stored(ty: WgslType) -> &'static str {
    if ty == WgslType::Bool { "u32" } else { ty.name() }
}

/// The parts of a shader.
struct Text<'p> {
    program: &'p ElementProgram,
    bindings: String,
    functions: String,
    main: String,
    bound: u32,
    has_numbers: bool,
    /// The name of each value
    names: Vec<String>,
}

impl<'p> Text<'p> {
    fn new(program: &'p ElementProgram) -> Text<'p> {
        Text {
            program,
            bindings: String::new(),
            functions: String::new(),
            main: String::new(),
            bound: 0,
            has_numbers: false,
            names: Vec::new(),
        }
    }

    fn bind(&mut self, access: &str, name: &str, ty: &str) {
        let binding = self.bound;
        self.bound += 1;
        let _ = writeln!(
            self.bindings,
            "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;"
        );
    }

    fn ty(&self, value: Value) -> Result<WgslType> {
        wgsl_type(self.program.dtype(value))
    }

    fn name(&self, value: Value) -> &str {
        &self.names[value.0 as usize]
    }

    fn array(&mut self, i: usize, shape: &Shape, to: &Shape) -> Result<()> {
        let ty = self.ty(self.program.array(i))?;
        self.bind("read", &format!("in{i}"), stored(ty));
        let load = format!("in{i}[{}]", position(shape, to));
        let load = if ty == WgslType::Bool { format!("{load} != 0u") } else { load };
        let _ = writeln!(self.main, "    let x{i} = {load};");
        self.names.push(format!("x{i}"));
        Ok(())
    }

    fn number(&mut self, i: usize, value: Number) -> Result<()> {
        let dtype = self.program.dtype(Value(i as u16));
        let ty = wgsl_type(dtype)?.name();
        self.names.push(match (value, dtype.compute()) {
            (Number::Input(k), compute) => {
                self.has_numbers = true;
                if compute == Compute::F32 {
                    format!("numbers[{k}]")
                } else {
                    format!("{ty}(numbers[{k}])")
                }
            }
            (Number::Constant(value), compute) => constant(value, compute, ty),
        });
        Ok(())
    }

    fn instruction(&mut self, i: usize, instruction: &Instruction) -> Result<()> {
        let args: SmallVec<[String; 3]> =
            instruction.args.iter().map(|&x| self.name(x).to_string()).collect();
        let value = match instruction.op {
            ElementOp::Cast => {
                let from = self.ty(instruction.args[0])?;
                converted(&args[0], from, wgsl_type(instruction.dtype)?)
            }
            ElementOp::Map(def) => {
                let ty = wgsl_type(instruction.computes_in(self.program))?;
                let Some(text) = def.text(ty) else {
                    return Err(refused("has no text for this dtype", def.name));
                };
                let types =
                    (0..args.len()).map(|k| if def.is_condition(k) { WgslType::Bool } else { ty });
                let params: SmallVec<[String; 3]> = types
                    .zip(["a", "b", "c"])
                    .map(|(ty, name)| format!("{name}: {}", ty.name()))
                    .collect();
                let name = format!("{}_{}", def.name, ty.name());
                let call = format!("{name}({})", args.join(", "));
                let head = format!("fn {name}({}) -> {} {{\n", params.join(", "), text.ty.name());
                if !self.functions.contains(&head) {
                    let _ =
                        write!(self.functions, "{head}{}return {};\n}}\n", text.body, text.result);
                }
                call
            }
        };
        let _ = writeln!(self.main, "    let x{i} = {value};");
        self.names.push(format!("x{i}"));
        Ok(())
    }

    fn result(&mut self, k: usize, value: Value) -> Result<()> {
        let ty = self.ty(value)?;
        self.bind("read_write", &format!("out{k}"), stored(ty));
        let value = self.name(value);
        let value = if ty == WgslType::Bool { format!("u32({value})") } else { value.into() };
        let _ = writeln!(self.main, "    out{k}[i] = {value};");
        Ok(())
    }

    fn finish(mut self, count: usize) -> String {
        if self.has_numbers {
            self.bind("read", "numbers", "f32");
        }
        format!(
            "{}\n{}\n@compute @workgroup_size({WORKGROUP})\n\
             fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    \
             let i = id.x;\n    if i >= {count}u {{ return; }}\n{}}}\n",
            self.bindings, self.functions, self.main
        )
    }
}

/// The index expression of element `i` of a group in an input that broadcasts to the group's shape.
fn position(from: &Shape, to: &Shape) -> String {
    if from.same(to) {
        return "i".into();
    }
    let own = crate::layout::row_major(&to.sizes());
    let strides = Layout::contiguous(from.clone()).broadcast_strides(to);
    let terms: SmallVec<[String; 6]> = (0..to.rank())
        .filter(|&axis| strides[axis] != 0)
        .map(|axis| format!("i / {}u % {}u * {}u", own[axis], to[axis], strides[axis]))
        .collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}

/// A number by its bits: no infinity or NaN is written as a constant.
fn constant(value: Scalar, compute: Compute, ty: &str) -> String {
    match compute {
        Compute::Bool => (value.register_bits(compute) != 0).to_string(),
        Compute::I32 | Compute::I64 | Compute::U32 | Compute::U64 | Compute::F32 | Compute::F64 => {
            format!("bitcast<{ty}>({}u)", value.register_bits(compute) as u32)
        }
    }
}

/// A conversion; NaN becomes the integer 0.
fn converted(x: &str, from: WgslType, to: WgslType) -> String {
    match (from, to) {
        _ if from == to => x.into(),
        (WgslType::F32, WgslType::I32 | WgslType::U32) => {
            let to = to.name();
            format!("select({to}({x}), {to}(0), (bitcast<u32>({x}) & 0x7fffffffu) > 0x7f800000u)")
        }
        _ => format!("{}({x})", to.name()),
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::cpu::target::Cpu;
    use crate::graph::Graph;
    use crate::ops::elementwise;
    use crate::ops::emit::{Arg, Expr};
    use crate::ops::op::Type;

    fn validate(source: &str) {
        let module = naga::front::wgsl::parse_str(source)
            .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        Validator::new(ValidationFlags::all(), Capabilities::empty())
            .validate(&module)
            .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
    }

    /// The shader of a graph that is one step.
    fn printed(graph: &Graph) -> Result<String> {
        let plan = Plan::new(graph, &Cpu)?;
        assert_eq!(plan.steps().len(), 1, "{plan}");
        shader(&plan, &plan.steps()[0])
    }

    fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
        Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
    }

    const TYPES: [DType; 4] = [DType::Bool, DType::F32, DType::I32, DType::U32];

    #[test]
    fn every_op_has_a_shader_for_every_type_it_takes() {
        let mut count = 0;
        for def in elementwise::tables() {
            for dtype in TYPES.into_iter().filter(|dtype| def.classes.contains(dtype.class())) {
                let graph = Graph::new();
                let args: Vec<Expr<'_>> = (0..def.params.len())
                    .map(|i| if def.is_condition(i) { DType::Bool } else { dtype })
                    .map(|dtype| input(&graph, dtype, &[5, 4]))
                    .collect();
                graph.build(|| smallvec![def.call(&args)]).unwrap();
                // An op has a kernel and a text for the same types.
                assert_eq!(
                    def.kernel(dtype.compute()).is_some(),
                    def.text(wgsl_type(dtype).unwrap()).is_some(),
                    "{} {dtype}",
                    def.name
                );
                validate(&printed(&graph).unwrap());
                count += 1;
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn a_group_reads_broadcast_inputs_and_numbers() {
        let graph = Graph::new();
        let (x, row) = (input(&graph, DType::F32, &[4, 5]), input(&graph, DType::F32, &[5]));
        let (one, mask) = (input(&graph, DType::F32, &[1, 1]), input(&graph, DType::Bool, &[4, 1]));
        let s = Expr::new(&graph, graph.number());
        graph
            .build(|| {
                let y = (x * row + one) * s + f64::INFINITY;
                let kept = mask.select(y.tanh(), x.scalar(-0.5));
                smallvec![kept, kept.cast(DType::I32), kept.less(x), kept.cast(DType::Bool)]
            })
            .unwrap();
        let text = printed(&graph).unwrap();
        validate(&text);
        for part in [
            "let x1 = in1[i / 1u % 5u * 1u];",
            "let x2 = in2[0u];",
            "let x3 = in3[i / 5u % 4u * 1u] != 0u;",
            "numbers[0])",
            "bitcast<f32>(2139095040u)",
            "if i >= 20u { return; }",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn what_wgsl_lacks_is_refused() {
        for dtype in [DType::F64, DType::F16, DType::I8, DType::I64] {
            let graph = Graph::new();
            let x = input(&graph, dtype, &[3]);
            graph.build(|| smallvec![x + x]).unwrap();
            assert!(printed(&graph).unwrap_err().message().contains("WGSL has no such type"));
        }
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &[3]);
        graph
            .build(|| smallvec![x.cumulate(crate::ops::attributes::Cumulation::Sum, 0, false)])
            .unwrap();
        assert!(printed(&graph).unwrap_err().message().contains("not elementwise: cumulative_sum"));
    }
}
