//! Every op, composite, gradient and batch as text: the text reads back to the same list, and
//! damaged text is refused without a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::array::Array;
use crate::dtype::Scalar;
use crate::graph::cases;
use crate::graph::testing::try_one_by_one;
use crate::graph::{Kind, List, Node, parse};
use crate::ops::emit::{Emit, catch};
use crate::ops::number::Number;
use crate::shape::Dim;

/// The graph of each case with calls and without them, its gradients and its batch.
fn graphs() -> Vec<Graph> {
    let mut out = Vec::new();
    for (op, operands) in cases::ops() {
        let graph = Graph::with_calls();
        let args = cases::args(&operands, &graph);
        graph.output(catch(|| graph.emit(op.clone(), &args)).unwrap());
        derived(graph, &mut out);
    }
    for call in cases::calls() {
        let graph = Graph::with_calls();
        call.build(&graph);
        derived(graph, &mut out);
    }
    out
}

fn derived(graph: Graph, out: &mut Vec<Graph>) {
    let inputs: Vec<Id> = graph.list().inputs().collect();
    out.push(batch(&graph, &vec![true; inputs.len()], Dim::new(3)).unwrap());
    for plain in [Graph::from_list(graph.list().clone()), expand(&graph).unwrap()] {
        let results = plain.outputs().to_vec().into_iter();
        let floating = results.filter(|id| plain.ty(*id).dtype.is_float());
        let ys: Vec<(Id, Arg)> = floating.map(|id| (id, Arg::Number(1.0.into()))).collect();
        if let Ok(found) = gradients(&plain, &ys, &inputs) {
            found.iter().flatten().for_each(|id| plain.output(*id));
        }
        out.push(plain);
    }
    out.push(graph);
}

#[test]
fn every_graph_reads_back() {
    let graphs = graphs();
    for graph in &graphs {
        let text = graph.print(|site| Some(format!("file.py:{}", site.offset)));
        let back = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        graph.list().same(&back).unwrap_or_else(|what| panic!("{what}\n{text}"));
    }
    assert!(graphs.len() > 1000, "{}", graphs.len());
}

/// Replaces a number in a text by another, so that the text usually still parses.
fn renumber(text: &mut String, random: &mut impl FnMut(usize) -> usize) {
    let is_digit = |c: u8| c.is_ascii_digit();
    let starts =
        |(i, &c): (usize, &u8)| is_digit(c) && (i == 0 || !is_digit(text.as_bytes()[i - 1]));
    let found: Vec<usize> = text
        .bytes()
        .collect::<Vec<_>>()
        .iter()
        .enumerate()
        .filter(|&x| starts(x))
        .map(|(i, _)| i)
        .collect();
    if found.is_empty() {
        return;
    }
    let start = found[random(found.len())];
    let end = start + text[start..].bytes().take_while(|&c| is_digit(c)).count();
    let new = ["0", "1", "2", "3", "7", "1000", "4611686018427387904", "18446744073709551615"];
    text.replace_range(start..end, new[random(new.len())]);
}

/// Runs a list that was read, if it is small: a list that passes verification computes or is
/// refused.
fn compute(list: List, text: &str) {
    // A name in place of a size is an open size. Runs that bind sizes refuse it before they start.
    let is_closed = |node: &Node| {
        let mut closed = node.ty.shape.is_known();
        if let Kind::Op(op) = &node.kind {
            op.clone().each_dim(|dim| closed &= dim.known().is_some());
        }
        closed
    };
    let small = |node: &Node| is_closed(node) && node.ty.shape.count() < 1 << 16;
    if !list.nodes.iter().all(small) || list.numbers.iter().any(|n| *n != Number::Input) {
        return;
    }
    let inputs: Vec<Array> =
        list.inputs().map(|id| cases::data(&list.node(id).ty, 3, u64::from(id.0))).collect();
    let numbers = vec![Scalar::Float(0.5); list.numbers.len()];
    let graph = Graph::from_list(list);
    let refs: Vec<&Array> = inputs.iter().collect();
    let run = AssertUnwindSafe(|| try_one_by_one(&graph, &refs, &numbers).map(drop));
    let result = catch_unwind(run).unwrap_or_else(|_| panic!("a panic in running\n{text}"));
    if let Err(error) = result {
        assert_ne!(error.code(), "internal", "{error}\n{text}");
    }
}

#[test]
fn damaged_text_is_refused_or_read_and_nothing_else() {
    let mut state = 7u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let pieces = [
        "0",
        "-1",
        "9",
        "99999999999999999999",
        "(",
        ")",
        "%0",
        "%1",
        ",",
        "axis=",
        "(1,)",
        "float64",
        "int64",
        "bool",
        "\"",
        "{",
        "}",
        "#0",
        "0, ",
        "9223372036854775807",
    ];
    let (mut read, mut refused) = (0, 0);
    for graph in graphs() {
        let text = graph.print(|_| None);
        for _ in 0..8 {
            let mut damaged = text.clone();
            for _ in 0..=random(2) {
                if random(2) == 0 {
                    renumber(&mut damaged, &mut random);
                    continue;
                }
                // Texts of these graphs are ASCII.
                let (at, length) = (random(damaged.len()), random(4));
                let end = (at + length).min(damaged.len());
                damaged.replace_range(at..end, pieces[random(pieces.len())]);
            }
            let result = catch_unwind(AssertUnwindSafe(|| parse(&damaged)));
            match result.unwrap_or_else(|_| panic!("a panic on\n{damaged}")) {
                Ok(list) => {
                    read += 1;
                    compute(list, &damaged);
                }
                Err(error) => {
                    assert_ne!(error.code(), "internal", "{error}\n{damaged}");
                    refused += 1;
                }
            }
        }
    }
    assert!(read > 50 && refused > 1000, "{read} read, {refused} refused");
}
