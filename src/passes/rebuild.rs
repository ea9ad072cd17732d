//! Rewriting a list node by node.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{Kind, List, Node};
use crate::ops::emit::{Arg, Id};

/// Hands every node, its operands renamed already, to `place`. `place` appends the node, or others
/// that give its value, to the nodes made so far, and returns the node that has the value. Results
/// and names follow.
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

/// Renames operands to the nodes of the new list.
pub fn rename(args: &mut [Arg], ids: &[Id]) {
    for arg in args {
        if let Arg::Node(id) = arg {
            *id = ids[id.0 as usize];
        }
    }
}

/// Appends a node.
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
