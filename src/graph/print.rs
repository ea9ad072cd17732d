//! Graphs as text: one line a node, stable from run to run, and [complete](super::parse).
//!
//! ```text
//! numbers 1
//! %0: float32 (2, 3) = input "x"  # model.py:3
//! %1: float32 () = constant(2.0)
//! %2: float32 (2, 3) = multiply(%0, #0)  # model.py:4
//! %3: float32 (2, 3) = multiply(%2, %1)
//! %4: float32 (2,) = sum(%3, axis=(1,)) "total"
//! return %4
//! ```
//!
//! A list of another device than the CPU starts with a line `device name`. The line of a node is
//! `%id: type = kind(operands, attributes) "name"  # site`. Attributes that the types give already
//! (the dtype of `astype`, the shape of `reshape`) are left out. Control flow has no type, but
//! `-> (types of results) {`, and its bodies follow, indented, between braces.

use std::fmt::Write;

use super::literal::{self, quoted};
use super::{ControlFlow, ControlFlowKind, Effect, Graph, Kind, List, Node};
use crate::array::Array;
use crate::device::Device;
use crate::ops::declare::Attr;
use crate::ops::emit::Id;
use crate::ops::op::{Call, Op, SliceAxis};
use crate::ops::structural::Field;
use crate::shape::Tuple;
use crate::site::Site;

pub use super::literal::operand;

impl Graph {
    /// The list as text; `describe` writes sites.
    pub fn print(&self, describe: impl Fn(Site) -> Option<String>) -> String {
        self.list().print(describe)
    }
}

impl List {
    /// The whole list as text, which [`parse`](super::parse::parse) reads back; `describe` writes
    /// sites.
    pub fn print(&self, describe: impl Fn(Site) -> Option<String>) -> String {
        let mut printer = Printer { text: String::new(), describe: &describe, short: false };
        printer.list(self, 0);
        printer.text
    }

    /// The whole list as text, with its device unless that is the CPU.
    pub fn print_on(&self, device: Device, describe: impl Fn(Site) -> Option<String>) -> String {
        let first = match device {
            Device::Cpu => String::new(),
            Device::Reference | Device::Gpu(_) => format!("device {device}\n"),
        };
        first + &self.print(describe)
    }

    /// A text for people only: the bytes of large constants are left out.
    pub fn print_short(&self, describe: impl Fn(Site) -> Option<String>) -> String {
        let mut printer = Printer { text: String::new(), describe: &describe, short: true };
        printer.list(self, 0);
        printer.text
    }
}

struct Printer<'a> {
    text: String,
    describe: &'a dyn Fn(Site) -> Option<String>,
    short: bool,
}

impl Printer<'_> {
    fn list(&mut self, list: &List, indent: usize) {
        if !list.numbers.is_empty() {
            let numbers = literal::numbers(&list.numbers);
            let _ = writeln!(self.text, "{:indent$}numbers {numbers}", "");
        }
        for (i, node) in list.nodes.iter().enumerate() {
            let name = list.names.get(&Id(i as u32)).map(|name| format!(" {}", quoted(name)));
            let name = name.unwrap_or_default();
            let _ = write!(self.text, "{:indent$}%{i}{}{name}", "", self.node(node));
            match &node.kind {
                Kind::ControlFlow(flow) if !flow.bodies.is_empty() => {
                    self.bodies(flow, node.site, indent);
                }
                Kind::Input
                | Kind::Constant(_)
                | Kind::Op(_)
                | Kind::ControlFlow(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => self.end(node.site),
            }
        }
        let outputs: Vec<String> = list.outputs.iter().map(|id| format!("%{}", id.0)).collect();
        let line = format!("return {}", outputs.join(", "));
        let _ = writeln!(self.text, "{:indent$}{}", "", line.trim_end());
    }

    /// The text between id and name.
    fn node(&self, node: &Node) -> String {
        let parts = parts(node, self.short).join(", ");
        let kind = node.kind.name();
        match &node.kind {
            Kind::Input => format!(": {} = {kind}", literal::ty(&node.ty)),
            Kind::Effect(_) => format!(" = {kind}({parts})"),
            Kind::ControlFlow(flow) => {
                let results: Vec<String> = flow.results.iter().map(literal::ty).collect();
                let results = results.join(", ");
                match &flow.kind {
                    // The kind has a word of its own, because the user's name may be that of
                    // another op.
                    ControlFlowKind::Host(op) => {
                        let name = quoted(op.name());
                        let parts =
                            if parts.is_empty() { name } else { format!("{name}, {parts}") };
                        format!(" = host({parts}) -> ({results})")
                    }
                    ControlFlowKind::Branch
                    | ControlFlowKind::While { .. }
                    | ControlFlowKind::Scan { .. } => {
                        format!(" = {kind}({parts}) -> ({results})")
                    }
                }
            }
            Kind::Constant(_) | Kind::Op(_) | Kind::Result(_) | Kind::Barrier => {
                format!(": {} = {kind}({parts})", literal::ty(&node.ty))
            }
        }
    }

    fn bodies(&mut self, flow: &ControlFlow, site: Site, indent: usize) {
        self.text += " {";
        self.end(site);
        for (i, body) in flow.bodies.iter().enumerate() {
            if i > 0 {
                let _ = writeln!(self.text, "{:indent$}}} {{", "");
            }
            self.list(body, indent + 2);
        }
        let _ = writeln!(self.text, "{:indent$}}}", "");
    }

    /// The site, and the end of the line.
    fn end(&mut self, site: Site) {
        if let Some(line) = (self.describe)(site) {
            let _ = write!(self.text, "  # {}", line.replace(char::is_control, "?"));
        }
        self.text.push('\n');
    }
}

/// A node in a line for messages and pictures: `multiply(%1, 2.0)`.
pub fn summary(node: &Node) -> String {
    match &node.kind {
        Kind::Input => node.kind.name().into(),
        Kind::Constant(_)
        | Kind::Op(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => format!("{}({})", node.kind.name(), parts(node, true).join(", ")),
    }
}

/// An array for people: its elements, or `...` where there are many.
pub fn array_text(array: &Array) -> String {
    literal::array(array, true)
}

/// Operands and attributes.
pub(super) fn parts(node: &Node, short: bool) -> Vec<String> {
    if let Kind::Op(Op::Call(call)) = &node.kind {
        return call_parts(call, node);
    }
    let mut parts: Vec<String> = node.args.iter().map(|&arg| operand(arg)).collect();
    match &node.kind {
        Kind::Op(op) => parts.extend(attributes(op)),
        Kind::Result(i) => parts.push(i.to_string()),
        Kind::Effect(effect) => match &**effect {
            Effect::Check(text) | Effect::Print(text) => parts.push(quoted(text)),
        },
        Kind::Constant(array) => parts.push(literal::array(array, short)),
        Kind::ControlFlow(flow) => parts.extend(flow_attributes(&flow.kind)),
        Kind::Input | Kind::Barrier => {}
    }
    parts
}

/// `name=value`.
fn named(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name}={value}")
}

/// A truth value as Python writes it.
fn truth(name: &str, value: bool) -> String {
    named(name, if value { "True" } else { "False" })
}

fn flow_attributes(kind: &ControlFlowKind) -> Vec<String> {
    match kind {
        ControlFlowKind::Branch => vec![],
        ControlFlowKind::While { carry, history } => {
            vec![named("carry", carry), truth("history", *history)]
        }
        ControlFlowKind::Scan { carry, xs, length, reverse } => vec![
            named("carry", carry),
            named("xs", xs),
            named("length", length),
            truth("reverse", *reverse),
        ],
        ControlFlowKind::Host(op) => vec![named("effect", quoted(op.class().name()))],
    }
}

/// The arguments of a composite by its parameters. Operands are written by position until another
/// argument comes before them, everything else by name, and absent arguments not at all.
fn call_parts(call: &Call, node: &Node) -> Vec<String> {
    let mut operands = node.args.iter().map(|&arg| operand(arg));
    let mut by_position = true;
    let mut parts = Vec::new();
    for (param, attr) in call.composite.params.iter().zip(call.attributes.iter()) {
        let value = match attr {
            Attr::Operand => operands.next().unwrap_or_default(),
            Attr::Operands(n) => {
                let list: Vec<String> = operands.by_ref().take(*n as usize).collect();
                format!("[{}]", list.join(", "))
            }
            Attr::None => {
                by_position = false;
                continue;
            }
            Attr::Bool(b) => literal::scalar((*b).into()),
            Attr::Int(n) => n.to_string(),
            Attr::Float(x) => literal::float(*x),
            Attr::Size(dim) => dim.to_string(),
            Attr::Ints(list) => Tuple(list).to_string(),
            Attr::Sizes(list) => Tuple(list).to_string(),
            Attr::DType(dtype) => dtype.to_string(),
            Attr::Text(text) => quoted(text),
        };
        by_position &= attr.width() > 0 || matches!(attr, Attr::Operands(_));
        parts.push(if by_position { value } else { named(param.name, value) });
    }
    parts
}

/// The attributes that the types do not give already.
fn attributes(op: &Op) -> Vec<String> {
    let mut op = op.clone();
    op.fields().into_iter().flat_map(attribute).collect()
}

/// The text of an attribute of a structural op.
fn attribute(field: Field<'_>) -> Vec<String> {
    match field {
        Field::Count(name, n) => vec![named(name, n)],
        Field::Truth(name, value) => vec![truth(name, *value)],
        Field::Choice(name, choice) => vec![named(name, choice.word())],
        Field::Axes(name, axes) => vec![named(name, Tuple(axes))],
        Field::MaybePairs(_, a, b) if a.is_empty() && b.is_empty() => vec![],
        Field::Pairs(name, a, b) | Field::MaybePairs(name, a, b) => {
            vec![named(name, format!("({}, {})", Tuple(a), Tuple(b)))]
        }
        Field::PerAxis(name, list) => vec![named(name, Tuple(list))],
        Field::Sizes(name, sizes) => vec![named(name, Tuple(sizes))],
        Field::Slices(at) => slices(at),
        Field::ResultDType(_)
        | Field::ResultShape(_)
        | Field::ResultType(_)
        | Field::ResultSizes(_) => vec![],
    }
}

/// Where a slice starts and how far it goes along each axis; steps where one is not 1.
fn slices(at: &[SliceAxis]) -> Vec<String> {
    let list = |item: &dyn Fn(&SliceAxis) -> String| {
        Tuple(&at.iter().map(item).collect::<Vec<_>>()).to_string()
    };
    let mut parts = vec![
        named("start", list(&|axis| axis.start.to_string())),
        named("size", list(&|axis| axis.size.to_string())),
    ];
    if at.iter().any(|axis| axis.step != 1) {
        parts.push(named("step", list(&|axis| axis.step.to_string())));
    }
    parts
}
