//! Graphs as text: one line a node, stable from run to run.

use std::fmt::Write;

use super::{Graph, Kind, Node, number_of};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, SliceAxis};
use crate::shape::Tuple;
use crate::site::Site;

impl Graph {
    /// The list, `%3 = multiply(%1, 2.0): float32 (2, 3)  # file.py:12` a line; `describe` spells
    /// sites.
    pub fn print(&self, describe: impl Fn(Site) -> Option<String>) -> String {
        let mut text = String::new();
        for (i, node) in self.nodes().iter().enumerate() {
            let _ = write!(text, "%{i} = {}: {} {}", value(node), node.ty.dtype, node.ty.shape);
            if let Some(line) = describe(node.site) {
                let _ = write!(text, "  # {line}");
            }
            text.push('\n');
        }
        let outputs: Vec<String> = self.outputs().iter().map(|id| format!("%{}", id.0)).collect();
        if !outputs.is_empty() {
            let _ = writeln!(text, "return {}", outputs.join(", "));
        }
        text
    }
}

fn value(node: &Node) -> String {
    let mut parts: Vec<String> = node.args.iter().map(|&arg| operand(arg)).collect();
    let attributes = match &node.kind {
        Kind::Input => return "input".into(),
        Kind::Op(op) => attributes(op),
        Kind::Part(i) => i.to_string(),
        Kind::Effect(effect) => format!("{effect:?}"),
        Kind::Constant(_) | Kind::Flow(_) | Kind::Barrier => String::new(),
    };
    if !attributes.is_empty() {
        parts.push(attributes);
    }
    format!("{}({})", node.kind.name(), parts.join(", "))
}

/// An operand: `%3`, a number, or `#0` for a numeric input.
pub fn operand(arg: Arg) -> String {
    match arg {
        Arg::Node(id) => format!("%{}", id.0),
        Arg::Scalar(value) => match number_of(value) {
            Some(i) => format!("#{i}"),
            None => value.to_string(),
        },
    }
}

/// What the result's type does not say already.
fn attributes(op: &Op) -> String {
    match op {
        Op::Map(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Gather
        | Op::Fill(_)
        | Op::RandomBits(_) => String::new(),
        Op::Call(call) => format!("{:?}", call.attributes),
        Op::Permute(axes) => format!("axes={}", Tuple(axes)),
        Op::Slice(at) | Op::Embed(_, at) | Op::Update(at) => slices(at),
        Op::Concat(axis) | Op::Iota(_, axis) | Op::ArgReduce(_, axis) => format!("axis={axis}"),
        Op::Scatter(mode) => format!("{mode:?}").to_lowercase(),
        Op::Reduce(_, axes) => format!("axis={}", Tuple(axes)),
        Op::Cumulate { axis, reverse, .. } => format!("axis={axis}, reverse={reverse}"),
        Op::Sort { axis, descending } | Op::ArgSort { axis, descending } => {
            format!("axis={axis}, descending={descending}")
        }
        Op::TopK { k, axis, largest } => format!("k={k}, axis={axis}, largest={largest}"),
        Op::Contract(spec) => format!(
            "batch={} {}, contract={} {}",
            Tuple(&spec.a_batch),
            Tuple(&spec.b_batch),
            Tuple(&spec.a_contract),
            Tuple(&spec.b_contract)
        ),
        Op::Conv(_, spec) => format!(
            "stride={}, pad={} {}, dilation={}, groups={}",
            Tuple(&spec.stride),
            Tuple(&spec.pad_low),
            Tuple(&spec.pad_high),
            Tuple(&spec.dilation),
            spec.groups
        ),
        Op::Windows(spec) | Op::Fold(spec, _) => format!(
            "size={}, stride={}, dilation={}",
            Tuple(&spec.size),
            Tuple(&spec.stride),
            Tuple(&spec.dilation)
        ),
    }
}

/// A slice as `[start:count:step, …]`.
fn slices(at: &[SliceAxis]) -> String {
    let axes: Vec<String> =
        at.iter().map(|a| format!("{}:{}:{}", a.start, a.size, a.step)).collect();
    format!("[{}]", axes.join(", "))
}
