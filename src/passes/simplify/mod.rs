//! Algebraic simplification that changes no bit, for any input: NaN, infinities, −0.0 and subnormal
//! numbers too.
//!
//! A node is simplified after its operands. It becomes an earlier value, or another node that is
//! simplified again. So one walk over the list is enough, and nothing recurses. Rewrites that are
//! exact for finite numbers only, or only nearly exact, need [`Options::fast_math`].

mod elementwise;
mod movement;
mod products;
mod slices;
#[cfg(test)]
mod tests;

use super::pipeline::Options;
use super::rebuild::{in_bodies, push, rebuild};
use crate::dtype::{Numeric, Scalar};
use crate::error::Result;
use crate::graph::{Args, Kind, List, Node};
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::shape::Dim;

pub use elementwise::{joint, repeated};

/// The most rewrites of one node. Each makes it smaller or its operands earlier, so a node needs a
/// handful; the bound keeps a chain of a million movements from being walked again for each.
const STEPS: usize = 64;

/// The outcome of one step on a node.
pub enum Rewrite {
    /// It stays as it is
    Keep,
    /// Its value is that of an earlier node
    Is(Id),
    /// It was changed, and may be again
    Again,
}

/// Simplifies every node.
pub fn simplify(list: List, options: &Options) -> Result<List> {
    rebuild(list, |nodes, mut node| {
        in_bodies(&mut node, |body| simplify(body, options))?;
        let node = products::outer(nodes, node, options.fast_math);
        Ok(place(nodes, node, options.fast_math))
    })
}

/// Puts a node behind the others in its simplest form, or finds its value among them.
pub fn place(nodes: &mut Vec<Node>, mut node: Node, fast: bool) -> Id {
    for _ in 0..STEPS {
        match step(nodes, &mut node, fast) {
            Rewrite::Keep => break,
            Rewrite::Again => {}
            Rewrite::Is(id) => {
                debug_assert!(
                    same_type(&nodes[id.0 as usize].ty, &node.ty),
                    "{}",
                    node.kind.name()
                );
                return id;
            }
        }
    }
    push(nodes, node)
}

fn step(nodes: &[Node], node: &mut Node, fast: bool) -> Rewrite {
    let Kind::Op(op) = &node.kind else { return Rewrite::Keep };
    #[allow(clippy::wildcard_enum_match_arm, reason = "an op without a rule stays as it is")]
    match op {
        Op::Map(def) => elementwise::map(nodes, node, def, fast),
        Op::Cast(_) => elementwise::cast(nodes, node),
        Op::Reshape(_) => movement::reshape(nodes, node),
        Op::Permute(_) => movement::permute(nodes, node),
        Op::Broadcast(_) => movement::broadcast(nodes, node),
        Op::Full(_) => movement::full(nodes, node),
        Op::Concat(axis) => slices::concat(nodes, node, *axis),
        Op::Slice(_) => slices::slice(nodes, node),
        Op::Pad(..) => slices::pad(nodes, node),
        Op::SetItem(_) => slices::setitem(nodes, node),
        Op::Reduce(kind, axes) => {
            let Some(x) = operand(nodes, node, 0) else { return Rewrite::Keep };
            // A reduction of one element is that element. `any` and `all` stay, because they
            // convert to truth values.
            let truth = matches!(kind, Reduction::Any | Reduction::All);
            let alone = axes.iter().all(|&axis| is_one(x.ty.shape[axis]));
            match alone && x.ty.dtype == node.ty.dtype && !truth {
                true => becomes(node, Op::Reshape(node.ty.shape.clone())),
                false => Rewrite::Keep,
            }
        }
        Op::Cumulate { axis, .. } | Op::Sort { axis, .. } => match operand(nodes, node, 0) {
            Some(x) if is_one(x.ty.shape[*axis]) => give(nodes, node, node.args[0]),
            _ => Rewrite::Keep,
        },
        Op::ArgSort { axis, .. } | Op::ArgReduce(_, axis) => match operand(nodes, node, 0) {
            Some(x) if is_one(x.ty.shape[*axis]) => {
                give(nodes, node, Arg::Number(Scalar::Int(0).into()))
            }
            _ => Rewrite::Keep,
        },
        _ => Rewrite::Keep,
    }
}

/// Whether a size is certainly 1. Passes ask only for certain facts, so that they add no condition
/// on symbols.
fn is_one(dim: Dim) -> bool {
    dim.known() == Some(1)
}

fn same_type(a: &Type, b: &Type) -> bool {
    a.dtype == b.dtype && a.shape.same(&b.shape)
}

/// The node of operand `i`, if it is a node.
fn operand<'n>(nodes: &'n [Node], node: &Node, i: usize) -> Option<&'n Node> {
    match node.args.get(i) {
        Some(Arg::Node(id)) => Some(&nodes[id.0 as usize]),
        Some(Arg::Number(_)) | None => None,
    }
}

/// The op of a node.
fn op_of(node: &Node) -> Option<&Op> {
    match &node.kind {
        Kind::Op(op) => Some(op),
        Kind::Input
        | Kind::Constant(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    }
}

/// The number that fills a node, if one does.
pub fn filling(node: &Node) -> Option<Numeric> {
    match (&node.kind, node.args.first()) {
        (Kind::Op(Op::Full(_)), Some(Arg::Number(value))) => Some(*value),
        _ => None,
    }
}

/// The number that all elements of an operand are, if it is known before the run.
fn known(nodes: &[Node], arg: Arg) -> Option<Scalar> {
    match arg {
        Arg::Number(value) => value.known(),
        Arg::Node(id) => filling(&nodes[id.0 as usize])?.known(),
    }
}

/// The node takes another op and keeps its operands.
fn becomes(node: &mut Node, op: Op) -> Rewrite {
    node.kind = Kind::Op(op);
    Rewrite::Again
}

/// The node takes another op, on one operand.
fn on(node: &mut Node, op: Op, arg: Arg) -> Rewrite {
    node.args = Args::from_slice(&[arg]);
    becomes(node, op)
}

/// The node is one of its operands, broadcast to the shape of the node where that is larger.
fn give(nodes: &[Node], node: &mut Node, arg: Arg) -> Rewrite {
    match arg {
        Arg::Node(id) if same_type(&nodes[id.0 as usize].ty, &node.ty) => Rewrite::Is(id),
        Arg::Node(_) => on(node, Op::Broadcast(node.ty.shape.clone()), arg),
        Arg::Number(_) => on(node, Op::Full(node.ty.clone()), arg),
    }
}

/// The node is a fill with one number.
fn number(node: &mut Node, value: Scalar) -> Rewrite {
    let ty: Type = node.ty.clone();
    on(node, Op::Full(ty), Arg::Number(value.into()))
}
