//! Node by node from one list into another.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{Kind, List, Node};
use crate::ops::emit::{Arg, Id};

/// Gives every node, its operands renamed already, to `place`, which puts it behind the nodes made so
/// far, or something else that has its value, and says where the value is. Results and names follow.
pub fn rebuild(
    list: List,
    mut place: impl FnMut(&mut Vec<Node>, Node) -> Result<Id>,
) -> Result<List> {
    let mut nodes: Vec<Node> = Vec::with_capacity(list.nodes.len());
    let mut ids: Vec<Id> = Vec::with_capacity(list.nodes.len());
    for mut node in list.nodes {
        rename(&mut node.args, &ids);
        ids.push(place(&mut nodes, node)?);
    }
    let mut out = List { nodes, numbers: list.numbers, ..List::default() };
    out.outputs = list.outputs.iter().map(|id| ids[id.0 as usize]).collect();
    let mut named: Vec<_> = list.names.into_iter().collect();
    named.sort_unstable_by_key(|(id, _)| id.0);
    for (id, name) in named {
        out.names.entry(ids[id.0 as usize]).or_insert(name);
    }
    Ok(out)
}

/// Operands by their names in the other list.
pub fn rename(args: &mut [Arg], ids: &[Id]) {
    for arg in args {
        if let Arg::Node(id) = arg {
            *id = ids[id.0 as usize];
        }
    }
}

/// Puts a node behind the others.
pub fn push(nodes: &mut Vec<Node>, node: Node) -> Id {
    nodes.push(node);
    Id(nodes.len() as u32 - 1)
}

/// Runs a pass over the bodies of a node, if it has any.
pub fn in_bodies(node: &mut Node, pass: impl Fn(List) -> Result<List>) -> Result<()> {
    if let Kind::ControlFlow(flow) = &node.kind {
        let mut bodies = SmallVec::new();
        for body in &flow.bodies {
            bodies.push(Arc::new(pass((**body).clone())?));
        }
        node.kind = Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)));
    }
    Ok(())
}
