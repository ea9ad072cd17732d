//! The cost of nodes: bytes moved and arithmetic done, if each node is computed alone.
//!
//! The counts are exact for ops whose work is known from shapes: an elementwise op reads its
//! operands, writes its result and does one operation an element; a reduction of `n` elements to
//! `m` does `n − m`; a product does a multiplication and an addition for every term. Movement costs
//! nothing where its result is a view. A branch costs as much as its most expensive body, a scan
//! its body times its length, a loop of unknown length one round. A symbol counts as the size it
//! was seen with.

use smallvec::SmallVec;

use super::expand::expanded;
use crate::graph::{Args, ControlFlow, ControlFlowKind, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::ops::structural::OpKind;
use crate::ops::structural::cost::{Work, bytes, size};
use crate::site::Site;

pub use crate::ops::structural::cost::{Cost, elements};

/// The cost of all nodes of a list.
pub fn of_list(list: &List) -> Cost {
    let costs = list.nodes.iter().map(|node| of_node(&list.nodes, node));
    costs.fold(Cost::default(), Cost::plus)
}

/// The cost of a node of a list.
pub fn of_node(nodes: &[Node], node: &Node) -> Cost {
    match &node.kind {
        Kind::Input | Kind::Constant(_) | Kind::Result(_) | Kind::Barrier => Cost::default(),
        Kind::Effect(_) => Cost { bytes: read(nodes, node), flops: 0 },
        Kind::ControlFlow(flow) => of_flow(flow),
        Kind::Op(op) => of_op(nodes, node, op),
    }
}

/// The cost of an op on operands of these types (None: a number) with a result of type `ty`.
pub fn of_call(op: &Op, operands: &[Option<Type>], ty: &Type) -> Cost {
    let node = |kind, args, ty: &Type| Node { kind, args, ty: ty.clone(), site: Site::default() };
    let mut nodes = Vec::new();
    let mut args = Args::new();
    for operand in operands {
        args.push(match operand {
            Some(ty) => {
                nodes.push(node(Kind::Input, Args::new(), ty));
                Arg::Node(Id(nodes.len() as u32 - 1))
            }
            None => Arg::Number(0.0.into()),
        });
    }
    of_node(&nodes, &node(Kind::Op(op.clone()), args, ty))
}

fn of_flow(flow: &ControlFlow) -> Cost {
    let mut bodies = flow.bodies.iter().map(|body| of_list(body));
    match flow.kind {
        ControlFlowKind::Branch => bodies.fold(Cost::default(), Cost::max),
        ControlFlowKind::While { .. } => bodies.fold(Cost::default(), Cost::plus),
        ControlFlowKind::Host(_) => bodies.next().unwrap_or_default(),
        ControlFlowKind::Scan { length, .. } => {
            bodies.next().unwrap_or_default().times(size(length))
        }
    }
}

fn of_op(nodes: &[Node], node: &Node, op: &Op) -> Cost {
    let operands = || -> SmallVec<[Option<&Type>; 4]> {
        (0..node.args.len()).map(|i| operand(nodes, node, i)).collect()
    };
    match op.kind() {
        OpKind::Map(_) => {
            let results = elements(&node.ty.shape);
            let written = bytes(node.ty.dtype, results);
            Cost { bytes: read(nodes, node).saturating_add(written), flops: results }
        }
        OpKind::Call(_) => {
            let operands = operands();
            let types: SmallVec<[&Type; 4]> = operands.iter().copied().flatten().collect();
            match expanded(node, &types) {
                Ok(list) => of_list(&list),
                Err(_) => Work { operands: &operands, result: &node.ty }.with(0),
            }
        }
        OpKind::Structural(def) => {
            (def.cost)(op, &Work { operands: &operands(), result: &node.ty })
        }
    }
}

/// The bytes of the operands, each read once.
fn read(nodes: &[Node], node: &Node) -> u64 {
    let types = (0..node.args.len()).filter_map(|i| operand(nodes, node, i));
    types.map(|ty| bytes(ty.dtype, elements(&ty.shape))).fold(0, u64::saturating_add)
}

fn operand<'n>(nodes: &'n [Node], node: &Node, i: usize) -> Option<&'n Type> {
    match node.args.get(i) {
        Some(Arg::Node(id)) => Some(&nodes[id.0 as usize].ty),
        Some(Arg::Number(_)) | None => None,
    }
}
