//! Backward lists for cotangents of which some are absent.
//!
//! A backward list takes a cotangent for every result. An unused result has none, which is not the
//! same as zeros: a value that only unused results depend on has no gradient, and `0 · ∞` must not
//! reach the values that other results depend on.

use smallvec::smallvec;

use super::rebuild::push;
use crate::dtype::Scalar;
use crate::graph::{Args, Kind, List, Node};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Op;

/// The list without the inputs in `seeds` that are not `given`, and a mask of the results that
/// remain.
pub fn without_seeds(list: &List, seeds: &[Id], given: &[bool]) -> (List, Vec<bool>) {
    let mut cx = Absent {
        seeded: vec![false; list.nodes.len()],
        names: Vec::with_capacity(list.nodes.len()),
        nodes: Vec::with_capacity(list.nodes.len()),
    };
    seeds.iter().for_each(|id| cx.seeded[id.0 as usize] = true);
    for (i, node) in list.nodes.iter().enumerate() {
        let id = Id(i as u32);
        let is_absent = seeds.iter().zip(given).any(|(seed, given)| *seed == id && !given);
        let name = if is_absent { None } else { cx.node(list, id, node) };
        cx.names.push(name);
    }
    let left: Vec<bool> = list.outputs.iter().map(|id| cx.names[id.0 as usize].is_some()).collect();
    let outputs = list.outputs.iter().filter_map(|id| cx.names[id.0 as usize]).collect();
    let (nodes, numbers) = (cx.nodes, list.numbers.clone());
    (List { nodes, outputs, numbers, ..List::default() }, left)
}

struct Absent {
    /// Which nodes are computed from a cotangent
    seeded: Vec<bool>,
    /// The new node for each node so far; `None` for an absent one
    names: Vec<Option<Id>>,
    nodes: Vec<Node>,
}

impl Absent {
    fn node(&mut self, list: &List, id: Id, node: &Node) -> Option<Id> {
        let seeded = |arg: &Arg| matches!(arg, Arg::Node(x) if self.seeded[x.0 as usize]);
        let absent = |arg: &Arg| matches!(arg, Arg::Node(x) if self.names[x.0 as usize].is_none());
        // A barrier passes on its first operand; it only waits for the others.
        let operands = match node.kind {
            Kind::Barrier => &node.args[..1],
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_) => &node.args[..],
        };
        let is_seeded = operands.iter().any(seeded);
        // Rules are linear in the cotangents, so a node is absent where all its cotangents are.
        let is_gone = is_seeded && operands.iter().filter(|arg| seeded(arg)).all(absent);
        let is_whole = !node.args.iter().any(absent);
        let present: Args = node.args.iter().filter(|arg| !absent(arg)).copied().collect();
        self.seeded[id.0 as usize] |= is_seeded;
        if is_gone {
            return None;
        }
        if let (Kind::Barrier, false) = (&node.kind, is_whole) {
            return Some(self.push(list, node, present));
        }
        if let (Kind::Op(Op::Map(def)), [Arg::Node(other)]) = (&node.kind, &present[..])
            && !is_whole
            && **def == arithmetic::add
            && list.node(*other).ty.equals(&node.ty)
        {
            return self.names[other.0 as usize];
        }
        let args = node.args.clone();
        Some(self.push(list, node, args))
    }

    /// Adds a node, with zeros for its absent operands.
    fn push(&mut self, list: &List, node: &Node, mut args: Args) -> Id {
        for arg in &mut args {
            if let Arg::Node(id) = arg {
                *id = self.names[id.0 as usize].unwrap_or_else(|| {
                    let ty = list.node(*id).ty.clone();
                    let kind = Kind::Op(Op::Full(ty.clone()));
                    let zero = smallvec![Arg::Number(Scalar::Float(0.0).into())];
                    push(&mut self.nodes, Node { kind, args: zero, ty, site: node.site })
                });
            }
        }
        push(&mut self.nodes, Node { args, ..node.clone() })
    }
}
