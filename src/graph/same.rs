//! Equality of lists: nodes, types, operands, attributes, constants to the bit, names and results.
//! Sites do not count.

use super::literal::{Elements, bytes_of, elements, numbers, operand};
use super::print::summary;
use super::{ControlFlow, ControlFlowKind, Kind, List, Node};
use crate::array::Array;
use crate::ops::emit::{Arg, Id};

impl List {
    /// Whether two lists are equal; the first difference where they are not.
    pub fn same(&self, other: &List) -> Result<(), String> {
        if let Some((id, what)) = self.first_difference(other) {
            return Err(format!("%{}: {what}", id.0));
        }
        differ("counts of nodes", &self.nodes.len(), &other.nodes.len())?;
        let [mine, others] = [self, other].map(|list| numbers(&list.numbers));
        differ("numbers", &mine, &others)?;
        differ("results", &self.outputs, &other.outputs)
    }

    /// The first node that differs in another list, as far as both lists go, and how the two
    /// differ.
    pub fn first_difference(&self, other: &List) -> Option<(Id, String)> {
        for (i, (a, b)) in self.nodes.iter().zip(&other.nodes).enumerate() {
            let id = Id(i as u32);
            let names = [self, other].map(|list| list.names.get(&id).map(|name| &**name));
            let found = node(a, b).and_then(|()| differ("names", &names[0], &names[1]));
            if let Err(what) = found {
                return Some((id, what));
            }
        }
        None
    }
}

impl PartialEq for List {
    fn eq(&self, other: &List) -> bool {
        self.same(other).is_ok()
    }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what} differ: {a:?} and {b:?}")) }
}

fn node(a: &Node, b: &Node) -> Result<(), String> {
    let equal = match (&a.kind, &b.kind) {
        (Kind::Input, Kind::Input) | (Kind::Barrier, Kind::Barrier) => true,
        (Kind::Constant(x), Kind::Constant(y)) => same_array(x, y),
        (Kind::Op(x), Kind::Op(y)) => x == y,
        (Kind::Result(x), Kind::Result(y)) => x == y,
        (Kind::Effect(x), Kind::Effect(y)) => x == y,
        (Kind::ControlFlow(x), Kind::ControlFlow(y)) => {
            return flow(x, y).and_then(|()| args(a, b));
        }
        (
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier,
            _,
        ) => false,
    };
    if !equal {
        return Err(format!("{} and {}", summary(a), summary(b)));
    }
    // The type of an effect means nothing.
    if !matches!(a.kind, Kind::Effect(_)) {
        differ("types", &a.ty, &b.ty)?;
    }
    args(a, b)
}

/// Operands. Numbers are compared by their bits, so that a NaN is itself and 0.0 is not −0.0.
fn args(a: &Node, b: &Node) -> Result<(), String> {
    let equal = |(x, y): (&Arg, &Arg)| match (*x, *y) {
        (Arg::Node(x), Arg::Node(y)) => x == y,
        (Arg::Number(x), Arg::Number(y)) => operand(Arg::Number(x)) == operand(Arg::Number(y)),
        (Arg::Node(_) | Arg::Number(_), _) => false,
    };
    if a.args.len() == b.args.len() && a.args.iter().zip(&b.args).all(equal) {
        return Ok(());
    }
    let list =
        |node: &Node| node.args.iter().map(|&arg| operand(arg)).collect::<Vec<_>>().join(", ");
    Err(format!("operands of {} differ: {} and {}", a.kind.name(), list(a), list(b)))
}

fn same_array(a: &Array, b: &Array) -> bool {
    if a.dtype != b.dtype || !a.shape().same(b.shape()) {
        return false;
    }
    match (elements(a), elements(b)) {
        (Elements::All(x), Elements::All(y)) | (Elements::Each(x), Elements::Each(y)) => x == y,
        (Elements::All(_), Elements::Each(_)) | (Elements::Each(_), Elements::All(_)) => false,
    }
}

/// The first difference between the bits of two arrays in host memory. Payloads of NaNs do not
/// count.
pub fn difference(wanted: &Array, found: &Array) -> Option<String> {
    let (dtype, shape) = (wanted.dtype, wanted.shape());
    if dtype != found.dtype || !shape.same(found.shape()) {
        return Some(format!("{dtype} {shape} became {} {}", found.dtype, found.shape()));
    }
    let bits = |element: &[u8]| {
        let mut wide = [0; 8];
        wide[..element.len()].copy_from_slice(element);
        u64::from_le_bytes(wide)
    };
    let differ = |x: u64, y: u64| x != y && !(dtype.is_nan(x) && dtype.is_nan(y));
    let (a, b) = (bytes_of(wanted), bytes_of(found));
    if a == b {
        return None;
    }
    let pairs = a.chunks_exact(dtype.size()).zip(b.chunks_exact(dtype.size()));
    let mut pairs = pairs.map(|(x, y)| (bits(x), bits(y))).enumerate();
    let (k, (x, y)) = pairs.find(|&(_, (x, y))| differ(x, y))?;
    Some(format!("element {k}: bits {x:#x} became {y:#x}"))
}

fn flow(a: &ControlFlow, b: &ControlFlow) -> Result<(), String> {
    match (&a.kind, &b.kind) {
        // Host ops are compared by name and class: the same code may be another object.
        (ControlFlowKind::Host(x), ControlFlowKind::Host(y)) => {
            differ("ops of the host", &(x.name(), x.class()), &(y.name(), y.class()))?;
        }
        (
            ControlFlowKind::Branch
            | ControlFlowKind::While { .. }
            | ControlFlowKind::Scan { .. }
            | ControlFlowKind::Host(_),
            _,
        ) => differ("kinds", &a.kind, &b.kind)?,
    }
    differ("types of results", &a.results, &b.results)?;
    differ("counts of bodies", &a.bodies.len(), &b.bodies.len())?;
    for (i, (x, y)) in a.bodies.iter().zip(&b.bodies).enumerate() {
        x.same(y).map_err(|what| format!("body {i} of {}: {what}", a.kind.name()))?;
    }
    Ok(())
}
