use std::collections::HashMap;

use super::*;
use crate::array::Array;
use crate::cpu::testing::{array, random};
use crate::dtype::Scalar;
use crate::graph::{Effect, numeric_input};
use crate::layout::Layout;
use crate::ops::emit::{Arg, Emit};
use crate::ops::{composite, elementwise};
use crate::shape::Dim;

/// Prints a list, reads it back, compares, and prints again.
fn round_trip(list: &List) -> String {
    let text = list.print(|_| Some("it's (a \"path\").py:12".into()));
    let back = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    list.same(&back).unwrap_or_else(|what| panic!("{what}\n{text}"));
    assert_eq!(back.print(|_| Some("it's (a \"path\").py:12".into())), text);
    text
}

fn refused(text: &str) -> String {
    let error = parse(text).unwrap_err();
    assert_eq!(error.code(), "bad_text");
    error.message().to_string()
}

fn f32s(sizes: &[usize]) -> Type {
    Type::new(DType::F32, Shape::of(sizes))
}

/// Control flow of each kind, chained and nested.
fn flows() -> Graph {
    let graph = Graph::new();
    let number = graph.number();
    let x = graph.input(f32s(&[5, 2]));
    graph.name(x, "the \"x\"\n\\ of π\u{7}");
    let (i, carry) = (graph.input(Type::new(DType::I64, Shape::scalar())), graph.input(f32s(&[2])));
    let identity = |types: &[Type], outputs: &[u32]| {
        let body = Graph::new();
        types.iter().for_each(|ty| body.name(body.input(ty.clone()), "in"));
        outputs.iter().for_each(|&i| body.output(Id(i)));
        Arc::new(body.into_list())
    };
    let truth = Graph::new();
    truth.input(f32s(&[2]));
    let y = truth.constant(array(DType::Bool, &[], &[0.0]));
    truth.effect(Effect::Check("is {} # \"fine\"".into()), &[Arg::Node(y)]);
    truth.output(y);
    let flow = |kind, bodies: &[Arc<List>], results: &[Type], args: &[u32]| {
        let args: Vec<Arg> = args.iter().map(|&i| Arg::Node(Id(i))).collect();
        let (bodies, results) =
            (bodies.iter().cloned().collect(), results.iter().cloned().collect());
        graph.flow(ControlFlow { kind, bodies, results }, &args)
    };
    let branch = identity(&[f32s(&[2])], &[0, 0]);
    let pair = [f32s(&[2]), f32s(&[2])];
    let ys = flow(
        ControlFlowKind::Branch,
        &[branch.clone(), branch.clone(), branch],
        &pair,
        &[i.0, carry.0],
    );
    let truth = Arc::new(truth.into_list());
    let same = identity(&[f32s(&[2])], &[0]);
    let kind = ControlFlowKind::While { carry: 1, history: false };
    let zs = flow(kind, &[truth, same], &[f32s(&[2])], &[ys[1].0]);
    graph.name(Id(zs[0].0 - 1), "loop");
    // A loop in the body of a scan.
    let inner = Graph::new();
    let (c, x_i) = (inner.input(f32s(&[2])), inner.input(f32s(&[2])));
    let fixed = ControlFlowKind::While { carry: 0, history: true };
    let always = identity(&[f32s(&[2])], &[]);
    let never = Graph::new();
    never.input(f32s(&[2]));
    let no = never.constant(array(DType::Bool, &[], &[0.0]));
    never.output(no);
    let bodies = [Arc::new(never.into_list()), always].into_iter().collect();
    inner.flow(ControlFlow { kind: fixed, bodies, results: SmallVec::new() }, &[Arg::Node(c)]);
    inner.output(c);
    inner.output(x_i);
    let kind = ControlFlowKind::Scan { carry: 1, xs: 1, length: Dim::new(5), reverse: true };
    let rows =
        flow(kind, &[Arc::new(inner.into_list())], &[f32s(&[2]), f32s(&[5, 2])], &[zs[0].0, x.0]);
    graph.effect(Effect::Print("{} and\n{}".into()), &[Arg::Node(rows[0]), number]);
    let last = graph.barrier(rows[1], &[rows[0], zs[0]]);
    graph.output(last);
    graph.output(rows[0]);
    graph
}

#[test]
fn control_flow_effects_and_names_read_back() {
    let text = round_trip(&flows().list());
    let head = "\
numbers 1
%0: float32 (5, 2) = input \"the \\\"x\\\"\\n\\\\ of π\\u{7}\"  # it's (a \"path\").py:12
%1: int64 () = input  # it's (a \"path\").py:12
%2: float32 (2,) = input  # it's (a \"path\").py:12
%3 = cond(%1, %2) -> (float32 (2,), float32 (2,)) {  # it's (a \"path\").py:12
  %0: float32 (2,) = input \"in\"  # it's (a \"path\").py:12
  return %0, %0
} {
";
    assert!(text.starts_with(head), "{text}");
    let tail = "\
%12: float32 (5, 2) = barrier(%10, %9, %7)
return %12, %9
";
    let plain = flows().print(|_| None);
    assert!(plain.ends_with(tail), "{plain}");
    assert!(plain.contains("%11 = print(%9, #0, \"{} and\\n{}\")\n"), "{plain}");
}

#[test]
fn constants_of_every_dtype_read_back_to_the_bit() {
    for dtype in DType::ALL {
        let graph = Graph::new();
        for sizes in [&[][..], &[3], &[2, 3], &[0, 4], &[2, 0, 3], &[1, 1], &[5, 5, 5]] {
            graph.constant(random(dtype, sizes, 3));
        }
        // All elements alike, in memory or by a layout; strides that are not in C order.
        graph.constant(Array::zeros(dtype, Shape::of(&[10, 10])).unwrap());
        let one = random(dtype, &[], 9);
        graph.constant(one.view(Layout::strided(Shape::of(&[1 << 20, 1 << 20]), &[0, 0], 0)));
        let wide = random(dtype, &[6, 20], 5);
        graph.constant(wide.view(Layout::strided(Shape::of(&[3, 5]), &[-20, 3], 100)));
        graph.constant(wide.view(Layout::strided(Shape::of(&[10, 12]), &[2, 0], 3)));
        round_trip(&graph.list());
    }
    let bits: [u32; 8] = [
        0x7fc0_0000,
        0xffc0_0000,
        0x7f80_0001,
        0x7f80_0000,
        0x8000_0000,
        1,
        0x3dcc_cccd,
        0xff7f_ffff,
    ];
    let special = Array::uninit(DType::F32, Shape::of(&[8])).unwrap();
    // SAFETY: the array is fresh and has eight elements.
    unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr(), special.ptr_mut().cast(), 8) };
    let graph = Graph::new();
    graph.constant(special);
    let text = round_trip(&graph.list());
    let want =
        "constant([nan, nan(0xffc00000), nan(0x7f800001), inf, -0.0, 1e-45, 0.1, -3.4028235e38])";
    assert!(text.contains(want), "{text}");
}

#[test]
fn symbols_in_sizes_read_back() {
    let graph = Graph::with_calls();
    let (n, m) = (Dim::named("batch"), Dim::numbered(3));
    let ty = |dims: &[Dim]| Type::new(DType::F32, Shape::from_dims(dims));
    let x = graph.input(ty(&[n * 2.into() + m, m / 2.into(), 7.into()]));
    let cast = crate::ops::op::Op::Cast(DType::F32);
    let same = ty(graph.ty(x).shape.dims());
    graph.push(Kind::Op(cast), [Arg::Node(x)].into_iter().collect(), same);
    let text = round_trip(&graph.list());
    assert!(text.contains("%0: float32 (2*batch + s3, s3//2, 7) = input"), "{text}");
    let product: String = (0..40).map(|i| format!("(a{i} + b{i})*")).collect();
    assert!(refused(&format!("%0: float32 ({product}2,) = input")).contains("a type such as"));
}

#[test]
fn numbers_read_back_to_the_bit() {
    let graph = Graph::new();
    let x = graph.input(f32s(&[]));
    graph.number();
    let add = elementwise::tables().find(|def| def.name == "add").unwrap();
    for value in [
        Scalar::Float(0.1),
        Scalar::Float(-0.0),
        Scalar::Float(1e300),
        Scalar::Float(f64::NAN),
        Scalar::Float(-f64::NAN),
        Scalar::Float(f64::NEG_INFINITY),
        Scalar::Int(i64::MIN),
        Scalar::Bool(true),
        Scalar::Uint(u64::MAX),
        Scalar::Uint(3),
    ] {
        let args = [Arg::Node(x), Arg::Number(value.into())].into_iter().collect();
        graph.push(Kind::Op(crate::ops::op::Op::Map(add)), args, f32s(&[]));
    }
    let args = [numeric_input(0), Arg::Node(x)].into_iter().collect();
    graph.push(Kind::Op(crate::ops::op::Op::Map(add)), args, f32s(&[]));
    let text = round_trip(&graph.list());
    assert!(text.contains("add(%0, nan(0xfff8000000000000))") && text.contains("add(%0, 3u)"));
}

#[test]
fn the_first_difference_is_named() {
    let (a, b) = (flows(), flows());
    assert!(*a.list() == *b.list());
    b.name(Id(1), "i");
    let what = a.list().same(&b.list()).unwrap_err();
    assert_eq!(what, "%1: names differ: None and Some(\"i\")");
    let change = |from: &str, to: &str| {
        let text = flows().print(|_| None);
        assert!(text.contains(from), "{from} in\n{text}");
        let other = parse(&text.replacen(from, to, 1)).unwrap();
        a.list().same(&other).unwrap_err()
    };
    assert_eq!(
        change("return %12, %9", "return %12"),
        "results differ: [Id(12), Id(9)] and [Id(12)]"
    );
    assert_eq!(
        change("(%10, %9, %7)", "(%10, %7, %9)"),
        "%12: operands of barrier differ: %10, %9, %7 and %10, %7, %9"
    );
    let what = change("constant(False)", "constant(True)");
    assert_eq!(what, "%6: body 0 of while_loop: %1: constant(False) and constant(True)");
    assert!(change("print(", "check(").starts_with("%11: print("));
    assert!(change("numbers 1", "numbers 2").contains("numbers differ: \"1\" and \"2\""));
}

#[test]
fn a_refusal_names_the_line_and_what_was_expected() {
    let start = "%0: float32 (2,) = input\n\n# a comment\n";
    for (line, want) in [
        ("nonsense", "line 4: expected a node, return or a closing brace: got nonsense"),
        ("%2: float32 (2,) = input", "line 4: expected %1: got %2"),
        ("%1: float32 = input", "expected a type such as float32 (2, 3): got float32"),
        ("%1: float31 (2,) = input", "got float31 (2,)"),
        ("%1: float32 (2,) = frobnicate(%0)", "expected the name of an op: got frobnicate"),
        ("%1: float32 () = sum(%0)", "expected argument axis of sum: got %0"),
        ("%1: float32 () = sum(%0, axis=0)", "expected a value of axis: got 0"),
        (
            "%1: float32 () = sum(%0, axis=(0,), fast=1)",
            "expected no more arguments of sum: got fast",
        ),
        ("%1: float32 () = sum(%x, axis=(0,))", "expected an operand such as %0 or 1.0: got %x"),
        ("%1: float32 (2,) = add(%0, #0)", "expected an operand such as %0 or 1.0: got #0"),
        ("%1: float32 (2,) = add(%0, 1.0", "expected a closing parenthesis: got (%0, 1.0"),
        ("%1: float32 (2,) = add(%0, 1.0) more", "expected the end of the line: got more"),
        ("%1: float32 (2,) = exp(%0) {", "expected no braces: got exp"),
        ("%1 = cond(%0)", "expected -> (types) {: got cond"),
        ("%1: float32 (3,) = constant([1.0, 2.0])", "the elements of float32 (3,): got [1.0, 2.0]"),
        ("%1: bool (1,) = constant(base64=\"Ag==\")", "expected the elements of bool (1,)"),
        ("%1: float32 (2,) = softmax(%0, axis=0.5)", "expected argument axis of softmax: got 0.5"),
        (
            "%1: float32 (2,) = gelu(%0, approximate=\"some\")",
            "expected argument approximate of gelu",
        ),
        ("}", "expected no closing brace: nothing is open: got }"),
        ("return %1", "expected a result such as %0: got %1"),
    ] {
        let message = refused(&format!("{start}{line}\n"));
        assert!(
            message.starts_with("parse_graph: line 4: ") && message.contains(want),
            "{message}"
        );
    }
    let open = "%0: int64 () = input\n%1 = cond(%0) -> () {\n  return\n";
    assert!(refused(open).contains("expected a closing brace: got the end"));
    assert!(
        refused(&format!("{open}}}\nreturn\n%2: int64 () = input")).contains("end of the list")
    );
    assert!(refused("%0: int64 () = input\n%1 = scan(%0, carry=0, xs=0, length=1, reverse=False) -> () {\nreturn\n} {\nreturn\n}").contains("expected 1 bodies: got 2 of scan"));
    let wrong = "%0: float32 (2,) = input\n%1: float32 (3,) = exp(%0)\n";
    let error = parse(wrong).unwrap_err();
    assert_eq!(error.code(), "bad_graph");
    assert!(error.message().contains("node %1 (exp) breaks the law"), "{error}");
}

#[test]
fn hostile_sizes_take_no_memory() {
    let before = crate::memory::stats().live_bytes;
    let huge = "%0: float32 (1048576, 1048576) = constant(all=1.0)\n";
    let list = parse(huge).unwrap();
    assert!(crate::memory::stats().live_bytes - before < 1 << 20);
    drop(list);
    let long = format!("%0: float32 ({}) = input", "1, ".repeat(100));
    assert!(refused(&long).contains("expected a type"));
    let deep = "%0: int64 () = input\n%1 = cond(%0) -> () {\n".repeat(1000);
    assert!(refused(&deep).contains("expected at most 64 levels"));
    assert!(refused(&format!("%0: float32 () = exp({})", "(".repeat(1 << 16))).contains("closing"));
}

#[test]
fn no_two_kinds_of_nodes_share_a_name() {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    let mut add = |name: &'static str, what: &'static str| {
        if let Some(before) = seen.insert(name, what) {
            panic!("{name} is {before} and {what}");
        }
    };
    elementwise::tables().for_each(|def| add(def.name, "elementwise"));
    composite::tables().filter(|c| c.stays()).for_each(|c| add(c.name, "a composite"));
    let mut structural: Vec<&str> = crate::graph::cases::ops()
        .iter()
        .filter(|(op, _)| !matches!(op, crate::ops::op::Op::Map(_)))
        .map(|(op, _)| op.name())
        .collect();
    structural.sort_unstable();
    structural.dedup();
    structural.into_iter().for_each(|name| add(name, "structural"));
    for name in
        ["input", "constant", "result", "barrier", "check", "print", "cond", "while_loop", "scan"]
    {
        add(name, "a kind of node");
    }
}
