//! What nodes cost: bytes moved and arithmetic done, if each node is computed alone.
//!
//! The counts are exact for the ops whose work is known from shapes: an elementwise op reads its
//! operands, writes its result and does one operation an element; a reduction of `n` elements to `m`
//! does `n − m`; a product does a multiplication and an addition for every term. Movement costs
//! nothing where it gives a view. Of control flow, a branch costs its dearest body, a scan its body
//! times its length, a loop of unknown length one round. A symbol counts as the size it was seen with.

use smallvec::SmallVec;

use super::expand::expanded;
use crate::dtype::DType;
use crate::graph::{Args, Flow, FlowKind, Kind, List, Node};
use crate::ops::attributes::ConvRole;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::shape::{Dim, Shape, hint};
use crate::site::Site;

/// Bytes read and written, operations done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

impl Cost {
    fn plus(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes.saturating_add(other.bytes),
            flops: self.flops.saturating_add(other.flops),
        }
    }

    fn times(self, n: u64) -> Cost {
        Cost { bytes: self.bytes.saturating_mul(n), flops: self.flops.saturating_mul(n) }
    }

    fn max(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes.max(other.bytes), flops: self.flops.max(other.flops) }
    }
}

/// The cost of all nodes of a list.
pub fn of_list(list: &List) -> Cost {
    let costs = list.nodes.iter().map(|node| of_node(&list.nodes, node));
    costs.fold(Cost::default(), Cost::plus)
}

/// The cost of a node of a list.
pub fn of_node(nodes: &[Node], node: &Node) -> Cost {
    match &node.kind {
        Kind::Input | Kind::Constant(_) | Kind::Part(_) | Kind::Barrier => Cost::default(),
        Kind::Effect(_) => Cost { bytes: read(nodes, node, 0), flops: 0 },
        Kind::Flow(flow) => of_flow(flow),
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
            None => Arg::Scalar(0.0.into()),
        });
    }
    of_node(&nodes, &node(Kind::Op(op.clone()), args, ty))
}

fn of_flow(flow: &Flow) -> Cost {
    let mut bodies = flow.bodies.iter().map(|body| of_list(body));
    match flow.kind {
        FlowKind::Branch => bodies.fold(Cost::default(), Cost::max),
        FlowKind::While { .. } => bodies.fold(Cost::default(), Cost::plus),
        FlowKind::Scan { length, .. } => bodies.next().unwrap_or_default().times(size(length)),
    }
}

fn of_op(nodes: &[Node], node: &Node, op: &Op) -> Cost {
    let out = elements(&node.ty.shape);
    let write = out.saturating_mul(node.ty.dtype.size() as u64);
    let both = |from: usize| read(nodes, node, from).saturating_add(write);
    let ty = |i: usize| operand(nodes, node, i);
    let first = || ty(0).map_or(1, |ty| elements(&ty.shape));
    let (bytes, flops) = match op {
        Op::Call(_) => {
            let types: SmallVec<[&Type; 4]> = (0..node.args.len()).filter_map(ty).collect();
            return match expanded(node, &types) {
                Ok(list) => of_list(&list),
                Err(_) => Cost { bytes: both(0), flops: 0 },
            };
        }
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Windows(_) => {
            (0, 0)
        }
        Op::Map(_) => (both(0), out),
        Op::Cast(_) | Op::Concat(_) => (both(0), 0),
        Op::Embed(..) | Op::Update(_) | Op::Fill(_) | Op::Iota(..) | Op::RandomBits(_) => {
            (both(0), 0)
        }
        // Of the array read, only what is taken.
        Op::Gather => (read(nodes, node, 1).saturating_add(write.saturating_mul(2)), 0),
        Op::Scatter(_) => {
            let values = ty(1).map_or(0, |ty| elements(&ty.shape));
            (both(0).saturating_add(bytes(node.ty.dtype, values)), values)
        }
        Op::Reduce(..) | Op::ArgReduce(..) => (both(0), first().saturating_sub(out)),
        Op::Cumulate { .. } | Op::Fold(..) => (both(0), first()),
        Op::Sort { axis, .. } | Op::ArgSort { axis, .. } | Op::TopK { axis, .. } => {
            let n = ty(0).map_or(1, |ty| size(ty.shape[*axis]));
            let depth = u64::from(n.max(1).next_power_of_two().trailing_zeros());
            (both(0), first().saturating_mul(depth))
        }
        Op::Contract(spec) => {
            let along = spec.a_contract.iter().map(|&i| ty(0).map_or(1, |ty| size(ty.shape[i])));
            (both(0), along.fold(out.saturating_mul(2), u64::saturating_mul))
        }
        Op::Conv(role, _) => {
            let terms = match role {
                // Each element of the convolution's result is a sum over a filter.
                ConvRole::Output => out.saturating_mul(filter(ty(1))),
                ConvRole::Input => first().saturating_mul(filter(ty(1))),
                ConvRole::Weight => {
                    let filter: u64 = node.ty.shape.dims()[1..].iter().map(|&d| size(d)).product();
                    ty(1).map_or(1, |g| elements(&g.shape)).saturating_mul(filter)
                }
            };
            (both(0), terms.saturating_mul(2))
        }
    };
    Cost { bytes, flops }
}

/// The elements of one filter of a weight.
fn filter(weight: Option<&Type>) -> u64 {
    weight.map_or(1, |ty| ty.shape.dims()[1..].iter().map(|&d| size(d)).product())
}

/// The bytes of the operands from `from` on, as often as they are read: each once.
fn read(nodes: &[Node], node: &Node, from: usize) -> u64 {
    let types = (from..node.args.len()).filter_map(|i| operand(nodes, node, i));
    types.map(|ty| bytes(ty.dtype, elements(&ty.shape))).fold(0, u64::saturating_add)
}

fn operand<'n>(nodes: &'n [Node], node: &Node, i: usize) -> Option<&'n Type> {
    match node.args.get(i) {
        Some(Arg::Node(id)) => Some(&nodes[id.0 as usize].ty),
        Some(Arg::Scalar(_)) | None => None,
    }
}

fn bytes(dtype: DType, elements: u64) -> u64 {
    elements.saturating_mul(dtype.size() as u64)
}

/// The count of elements.
pub fn elements(shape: &Shape) -> u64 {
    shape.dims().iter().map(|&d| size(d)).fold(1, u64::saturating_mul)
}

/// A size; of a symbol the one at hand, or 1 where there is none.
fn size(dim: Dim) -> u64 {
    dim.known().or_else(|| hint(dim)).map_or(1, |n| n as u64)
}
