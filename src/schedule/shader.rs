//! Compute shaders of groups: elementwise nodes of one shape as WGSL.
//!
//! A shader computes one element of every result an invocation. Each op is a function of its own, so
//! that its text is the same in every shader. Inputs are read-only buffers that broadcast to the
//! group's shape, results are buffers in C order; truth values are stored as `u32` 0 and 1. What WGSL
//! has no type for is refused.

use std::fmt::Write;

use smallvec::SmallVec;

use super::{Element, element, number_dtype};
use crate::dtype::{Compute, DType, Scalar};
use crate::error::{self, Result};
use crate::graph::{Graph, Kind, Node, number_of};
use crate::layout::Layout;

use crate::ops::emit::Arg;
use crate::scalar::wgsl::WgslType;
use crate::shape::Shape;

/// Invocations of a workgroup.
pub const WORKGROUP: usize = 64;

/// The shader of a graph of elementwise nodes whose results have one shape.
pub fn shader(graph: &Graph) -> Result<String> {
    let nodes = graph.nodes();
    let outputs = graph.outputs();
    let Some(first) = outputs.first() else {
        return Err(error::bad_graph("shader", "no results", graph.len()));
    };
    let shape = &nodes[first.0 as usize].ty.shape;
    let mut text = Text::default();
    for (i, node) in nodes.iter().enumerate() {
        match &node.kind {
            Kind::Input => text.input(i, node, shape)?,
            Kind::Op(op) => match element(node) {
                Some(element) => text.node(&nodes, i, element)?,
                None => return Err(refused("is not elementwise", op.name())),
            },
            other => return Err(refused("is not elementwise", other.name())),
        }
    }
    for (k, id) in outputs.iter().enumerate() {
        let node = &nodes[id.0 as usize];
        if !node.ty.shape.same(shape) {
            return Err(refused("results differ in shape", &node.ty.shape));
        }
        text.output(k, id.0, wgsl_type(node.ty.dtype)?);
    }
    Ok(text.finish(shape.count(), graph.numbers()))
}

fn refused(what: &str, facts: impl std::fmt::Display) -> error::Error {
    error::bad_graph("shader", what, facts)
}

/// The type of WGSL for a dtype.
fn wgsl_type(dtype: DType) -> Result<WgslType> {
    match dtype {
        DType::Bool => Ok(WgslType::Bool),
        DType::F32 => Ok(WgslType::F32),
        DType::I32 => Ok(WgslType::I32),
        DType::U32 => Ok(WgslType::U32),
        _ => Err(refused("WGSL has no such type; use float32, int32, uint32 or bool", dtype)),
    }
}

/// What a buffer holds: WGSL does not store truth values.
fn stored(ty: WgslType) -> &'static str {
    if ty == WgslType::Bool { "u32" } else { ty.name() }
}

/// The parts of a shader.
#[derive(Default)]
struct Text {
    bindings: String,
    functions: String,
    main: String,
    bound: u32,
}

impl Text {
    fn bind(&mut self, access: &str, name: &str, ty: &str) {
        let binding = self.bound;
        self.bound += 1;
        let _ = writeln!(
            self.bindings,
            "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;"
        );
    }

    fn input(&mut self, i: usize, node: &Node, shape: &Shape) -> Result<()> {
        if !node.ty.shape.broadcasts_to(shape) {
            return Err(refused("an input does not broadcast to the results", &node.ty.shape));
        }
        let ty = wgsl_type(node.ty.dtype)?;
        self.bind("read", &format!("in{i}"), stored(ty));
        let load = format!("in{i}[{}]", position(&node.ty.shape, shape));
        let load = if ty == WgslType::Bool { format!("{load} != 0u") } else { load };
        let _ = writeln!(self.main, "    let x{i} = {load};");
        Ok(())
    }

    fn node(&mut self, nodes: &[Node], i: usize, element: Element) -> Result<()> {
        let node = &nodes[i];
        match element {
            Element::Cast(to) => {
                let (Arg::Node(x), to) = (node.args[0], wgsl_type(to)?) else {
                    return Err(refused("a number is cast", i));
                };
                let from = wgsl_type(nodes[x.0 as usize].ty.dtype)?;
                let value = converted(&format!("x{}", x.0), from, to);
                let _ = writeln!(self.main, "    let x{i} = {value};");
            }
            Element::Map(def) => {
                let dtype = number_dtype(nodes, node, def, def.params.len() - 1);
                let ty = wgsl_type(dtype)?;
                let Some(text) = def.text(ty) else {
                    return Err(refused("has no text for this dtype", def.name));
                };
                let types = (0..node.args.len())
                    .map(|k| if def.is_condition(k) { WgslType::Bool } else { ty });
                let params: SmallVec<[String; 3]> = types
                    .zip(["a", "b", "c"])
                    .map(|(ty, name)| format!("{name}: {}", ty.name()))
                    .collect();
                let name = format!("{}_{}", def.name, ty.name());
                let head = format!("fn {name}({}) -> {} {{\n", params.join(", "), text.ty.name());
                if !self.functions.contains(&head) {
                    let _ =
                        write!(self.functions, "{head}{}return {};\n}}\n", text.body, text.result);
                }
                let args: SmallVec<[String; 3]> = (0..node.args.len())
                    .map(|k| match node.args[k] {
                        Arg::Node(x) => format!("x{}", x.0),
                        Arg::Scalar(value) => {
                            number(value, if def.is_condition(k) { DType::Bool } else { dtype })
                        }
                    })
                    .collect();
                let _ = writeln!(self.main, "    let x{i} = {name}({});", args.join(", "));
            }
        }
        Ok(())
    }

    fn output(&mut self, k: usize, id: u32, ty: WgslType) {
        self.bind("read_write", &format!("out{k}"), stored(ty));
        let value = format!("x{id}");
        let value = if ty == WgslType::Bool { format!("u32({value})") } else { value };
        let _ = writeln!(self.main, "    out{k}[i] = {value};");
    }

    fn finish(mut self, count: usize, numbers: u32) -> String {
        if numbers > 0 {
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

/// Where element `i` of a group finds its element of an input that broadcasts to it.
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

/// A number of a dtype, by its bits: no infinity or NaN is written as a constant.
fn number(value: Scalar, dtype: DType) -> String {
    match (number_of(value), dtype.compute()) {
        (Some(i), Compute::F32) => format!("numbers[{i}]"),
        (Some(i), _) => format!("{}(numbers[{i}])", dtype_name(dtype)),
        (None, Compute::Bool) => (value.register_bits(Compute::Bool) != 0).to_string(),
        (None, compute) => {
            format!("bitcast<{}>({}u)", dtype_name(dtype), value.register_bits(compute) as u32)
        }
    }
}

fn dtype_name(dtype: DType) -> &'static str {
    wgsl_type(dtype).map_or("f32", WgslType::name)
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
    use crate::ops::elementwise;
    use crate::ops::emit::Expr;
    use crate::ops::op::Type;

    fn validate(source: &str) {
        let module = naga::front::wgsl::parse_str(source)
            .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        Validator::new(ValidationFlags::all(), Capabilities::empty())
            .validate(&module)
            .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
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
                // Kernel and text are there for the same types.
                assert_eq!(
                    def.kernel(dtype.compute()).is_some(),
                    def.text(wgsl_type(dtype).unwrap()).is_some(),
                    "{} {dtype}",
                    def.name
                );
                validate(&shader(&graph).unwrap());
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
        let text = shader(&graph).unwrap();
        validate(&text);
        for part in [
            "let x1 = in1[i / 1u % 5u * 1u];",
            "let x2 = in2[0u];",
            "let x3 = in3[i / 5u % 4u * 1u] != 0u;",
            "multiply_f32(x5, numbers[0])",
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
            assert!(shader(&graph).unwrap_err().message().contains("WGSL has no such type"));
        }
        let graph = Graph::new();
        let x = input(&graph, DType::F32, &[3]);
        graph
            .build(|| smallvec![x.cumulate(crate::ops::attributes::Cumulation::Sum, 0, false)])
            .unwrap();
        assert!(shader(&graph).unwrap_err().message().contains("not elementwise: cumulative_sum"));
        assert!(shader(&Graph::new()).unwrap_err().message().contains("no results"));
    }
}
