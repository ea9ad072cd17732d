//! Gradient stops: nodes that end gradients and do not change values.
//!
//! The values of `stop_gradient` and `custom_rule` are those of their operands. Once all gradients
//! of a list have been taken, these nodes only hinder other passes.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

use super::rebuild::{in_bodies, push, rebuild};
use crate::error::Result;
use crate::graph::{ControlFlow, Kind, List, Node};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Op;

/// The operand of a gradient stop.
fn stopped(node: &Node) -> Option<Id> {
    match (&node.kind, node.args.first()) {
        (Kind::Op(Op::Map(def)), Some(Arg::Node(id)))
            if **def == arithmetic::stop_gradient || **def == arithmetic::custom_rule =>
        {
            Some(*id)
        }
        _ => None,
    }
}

fn has_stops(list: &List) -> bool {
    let inside = |flow: &ControlFlow| flow.bodies.iter().any(|body| has_stops(body));
    list.nodes.iter().any(|node| match &node.kind {
        Kind::ControlFlow(flow) => inside(flow),
        Kind::Op(_) => stopped(node).is_some(),
        Kind::Input | Kind::Constant(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
            false
        }
    })
}

/// The list without gradient stops, for a list whose gradients have all been taken.
pub fn without_stops(list: List) -> Result<List> {
    if !has_stops(&list) {
        return Ok(list);
    }
    rebuild(list, |nodes, mut node| {
        if let Some(id) = stopped(&node) {
            return Ok(id);
        }
        in_bodies(&mut node, without_stops)?;
        Ok(push(nodes, node))
    })
}

/// The list with a `stop_gradient` wherever a node outside `no_grad` reads a node in `no_grad` that
/// depends on one of the inputs `wrt`. Nodes from `count` on are never in `no_grad`. A
/// `custom_rule` reads such nodes without a stop, because the error that it raises says more.
pub fn with_stops(list: List, no_grad: &FxHashSet<Id>, count: usize, wrt: &[Id]) -> Result<List> {
    let mut reached = vec![false; list.nodes.len()];
    wrt.iter().for_each(|id| reached[id.0 as usize] = true);
    for i in 0..count.min(reached.len()) {
        reached[i] |= list.nodes[i].reads().any(|id| reached[id.0 as usize]);
    }
    let is_end = |id: Id| {
        let is_float = list.node(id).ty.dtype.is_float();
        (id.0 as usize) < count && is_float && no_grad.contains(&id) && reached[id.0 as usize]
    };
    let ends: FxHashSet<Id> =
        list.nodes.iter().flat_map(Node::reads).filter(|&id| is_end(id)).collect();
    if ends.is_empty() {
        return Ok(list);
    }
    // The old names of the operands: `rebuild` has replaced them when it hands over a node.
    let reads: Vec<_> = list.nodes.iter().map(|node| node.args.clone()).collect();
    let mut stops: FxHashMap<Id, Id> = FxHashMap::default();
    let mut at = 0;
    rebuild(list, |nodes, mut node| {
        let old = at;
        at += 1;
        let is_rule =
            matches!(node.kind, Kind::Op(Op::Map(def)) if *def == arithmetic::custom_rule);
        if !is_rule && (old >= count || !no_grad.contains(&Id(old as u32))) {
            for (arg, was) in node.args.iter_mut().zip(&reads[old]) {
                let (Arg::Node(id), Arg::Node(was)) = (arg, *was) else { continue };
                if ends.contains(&was) {
                    *id = *stops.entry(was).or_insert_with(|| {
                        let source = nodes[id.0 as usize].clone();
                        let kind = Kind::Op(Op::Map(&arithmetic::stop_gradient));
                        push(nodes, Node { kind, args: smallvec![Arg::Node(*id)], ..source })
                    });
                }
            }
        }
        Ok(push(nodes, node))
    })
}
