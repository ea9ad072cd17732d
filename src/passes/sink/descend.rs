//! Broadcasts move behind elementwise ops, so that each element is computed once.

use super::{beside, is_elementwise};
use crate::error::Result;
use crate::graph::{Args, List, Node};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::passes::cost::elements;
use crate::passes::rebuild::{push, rebuild};
use crate::passes::simplify::{joint, repeated};
use crate::shape::Shape;

/// The least number of elements to save: below it, the extra step costs more than it saves.
pub const WORTH: u64 = 1024;

pub fn descend(list: List) -> Result<List> {
    rebuild(list, |nodes, node| {
        let small = match is_elementwise(&node) {
            true => smaller(nodes, &node),
            false => None,
        };
        Ok(match small {
            Some(small) => {
                let op = Op::Broadcast(node.ty.shape.clone());
                let small = Arg::Node(push(nodes, small));
                let wide = beside(&node, op, &[small], node.ty.clone());
                push(nodes, wide)
            }
            None => push(nodes, node),
        })
    })
}

/// The node on the operands of its broadcasts, where it is smaller by enough.
fn smaller(nodes: &[Node], node: &Node) -> Option<Node> {
    let is_repeated = |arg: &Arg| match *arg {
        Arg::Node(id) => repeated(nodes, &nodes[id.0 as usize]),
        Arg::Number(_) => None,
    };
    if !node.args.iter().any(|arg| is_repeated(arg).is_some()) {
        return None;
    }
    let args: Args = node.args.iter().map(|arg| is_repeated(arg).map_or(*arg, Arg::Node)).collect();
    let shape = joint(nodes, &args)?;
    let known = |shape: &Shape| shape.dims().iter().all(|d| d.known().is_some());
    if !known(&shape) || !known(&node.ty.shape) {
        return None;
    }
    let saved = elements(&node.ty.shape).saturating_sub(elements(&shape));
    let ty = Type::new(node.ty.dtype, shape);
    (saved >= WORTH).then(|| Node { kind: node.kind.clone(), args, ty, site: node.site })
}
