//! Chains of views become one view; a view of a fill is a fill.

use super::elementwise::leads;
use super::{Rewrite, becomes, filling, give, is_one, on, op_of, operand};
use crate::graph::Node;
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::shape::{Axes, Shape};

/// A view of a fill is a fill with the same number.
fn filled(nodes: &[Node], node: &mut Node) -> Option<Rewrite> {
    let value = filling(operand(nodes, node, 0)?)?;
    let ty: Type = node.ty.clone();
    Some(on(node, Op::Full(ty), Arg::Number(value)))
}

/// Simplifies a reshape.
pub fn reshape(nodes: &[Node], node: &mut Node) -> Rewrite {
    let Some(x) = operand(nodes, node, 0) else { return Rewrite::Keep };
    if x.ty.shape.same(&node.ty.shape) {
        return give(nodes, node, node.args[0]);
    }
    if let Some(step) = filled(nodes, node) {
        return step;
    }
    match op_of(x) {
        Some(Op::Reshape(_)) => {
            node.args[0] = x.args[0];
            Rewrite::Again
        }
        _ => Rewrite::Keep,
    }
}

/// Simplifies a permutation.
pub fn permute(nodes: &[Node], node: &mut Node) -> Rewrite {
    let (Some(x), Some(Op::Permute(axes))) = (operand(nodes, node, 0), op_of(node)) else {
        return Rewrite::Keep;
    };
    if axes.iter().enumerate().all(|(i, &axis)| i == axis) {
        return give(nodes, node, node.args[0]);
    }
    if keeps_order(&x.ty.shape, axes) {
        return becomes(node, Op::Reshape(node.ty.shape.clone()));
    }
    if let Some(Op::Permute(inner)) = op_of(x) {
        let axes = composed(axes, inner);
        return on(node, Op::Permute(axes), x.args[0]);
    }
    filled(nodes, node).unwrap_or(Rewrite::Keep)
}

/// The permutation `inner` followed by `outer`.
pub fn composed(outer: &Axes, inner: &Axes) -> Axes {
    outer.iter().map(|&axis| inner[axis]).collect()
}

/// Whether only axes of size 1 change their places.
fn keeps_order(shape: &Shape, axes: &Axes) -> bool {
    let mut long = axes.iter().filter(|&&axis| !is_one(shape[axis]));
    let Some(mut last) = long.next() else { return true };
    long.all(|axis| std::mem::replace(&mut last, axis) < axis)
}

/// Simplifies a broadcast.
pub fn broadcast(nodes: &[Node], node: &mut Node) -> Rewrite {
    let Some(x) = operand(nodes, node, 0) else { return Rewrite::Keep };
    if x.ty.shape.same(&node.ty.shape) {
        return give(nodes, node, node.args[0]);
    }
    if let Some(step) = filled(nodes, node) {
        return step;
    }
    let inner = operand(nodes, x, 0);
    let passes = match (op_of(x), inner) {
        (Some(Op::Broadcast(_)), _) => true,
        (Some(Op::Reshape(to)), Some(inner)) => leads(&inner.ty.shape, to),
        _ => false,
    };
    if passes {
        node.args[0] = x.args[0];
        return Rewrite::Again;
    }
    Rewrite::Keep
}

/// Simplifies a fill with a tensor: it is a broadcast.
pub fn full(nodes: &[Node], node: &mut Node) -> Rewrite {
    let Some(x) = operand(nodes, node, 0) else { return Rewrite::Keep };
    match x.ty.dtype == node.ty.dtype && x.ty.shape.broadcasts_to(&node.ty.shape) {
        true => give(nodes, node, node.args[0]),
        false => Rewrite::Keep,
    }
}
