//! Common subexpression elimination: nodes of one kind, with the same operands and attributes,
//! become one, whose module scope holds those of all.
//!
//! Floats are compared by their bits. Inputs, effects, barriers and control-flow ops with effects
//! inside are never merged. A node behind a barrier has that barrier for an operand, so no merge
//! crosses a barrier.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};

use super::pipeline::Options;
use super::rebuild::{in_bodies, push, rebuild};
use crate::array::Array;
use crate::dtype::{Numeric, Scalar};
use crate::error::Result;
use crate::graph::{ControlFlow, Kind, List, Node};
use crate::ops::elementwise::{Elementwise, arithmetic, bits, comparison};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Op;

/// Constants up to this many bytes are compared by their contents.
const SMALL: usize = 256;

/// Merges nodes that compute the same value.
pub fn cse(list: List, _: &Options) -> Result<List> {
    merged(list)
}

fn merged(list: List) -> Result<List> {
    // The first node of each hash; further nodes of the same hash follow in `next`.
    let mut first: FxHashMap<u64, u32> = FxHashMap::default();
    let mut next: Vec<u32> = Vec::with_capacity(list.nodes.len());
    rebuild(list, |nodes, mut node| {
        in_bodies(&mut node, merged)?;
        order_operands(nodes, &mut node);
        if !merges(&node) {
            next.push(u32::MAX);
            return Ok(push(nodes, node));
        }
        let slot = first.entry(hash(&node)).or_insert(u32::MAX);
        let mut at = *slot;
        while at != u32::MAX {
            let known = &mut nodes[at as usize];
            if same(known, &node) {
                known.site.scope = known.site.scope.join(node.site.scope);
                return Ok(Id(at));
            }
            at = next[at as usize];
        }
        next.push(*slot);
        *slot = nodes.len() as u32;
        Ok(push(nodes, node))
    })
}

/// Whether a node may be merged with another.
fn merges(node: &Node) -> bool {
    match node.kind {
        Kind::Input | Kind::Effect(_) | Kind::Barrier => false,
        Kind::Constant(_) | Kind::Op(_) | Kind::Result(_) => true,
        Kind::ControlFlow(_) => !node.has_effect(),
    }
}

/// Sorts the operands of commutative ops. Not for floats: of two NaNs the first wins, so the order
/// of operands decides bits.
fn order_operands(nodes: &[Node], node: &mut Node) {
    let Kind::Op(Op::Map(def)) = &node.kind else { return };
    if let [Arg::Node(a), Arg::Node(b)] = node.args.as_mut_slice()
        && a.0 > b.0
        && !nodes[a.0 as usize].ty.dtype.is_float()
        && commutes(def)
    {
        std::mem::swap(a, b);
    }
}

fn commutes(def: &Elementwise) -> bool {
    [
        &arithmetic::add,
        &arithmetic::multiply,
        &arithmetic::maximum,
        &arithmetic::minimum,
        &comparison::equal,
        &comparison::not_equal,
        &comparison::logical_and,
        &comparison::logical_or,
        &comparison::logical_xor,
        &bits::bitwise_and,
        &bits::bitwise_or,
        &bits::bitwise_xor,
    ]
    .contains(&def)
}

fn hash(node: &Node) -> u64 {
    let mut state = FxHasher::default();
    match &node.kind {
        Kind::Op(op) => op.hash(&mut state),
        Kind::Constant(array) => match contents(array) {
            Some(bytes) => bytes.hash(&mut state),
            None => (array.data.address(), array.layout.offset()).hash(&mut state),
        },
        Kind::Result(i) => i.hash(&mut state),
        Kind::ControlFlow(flow) => flow.kind.hash(&mut state),
        Kind::Input | Kind::Effect(_) | Kind::Barrier => {}
    }
    for arg in &node.args {
        match arg {
            Arg::Node(id) => id.0.hash(&mut state),
            Arg::Number(value) => key(*value).hash(&mut state),
        }
    }
    state.finish()
}

/// A number by its class and bits.
pub fn key(value: Numeric) -> (u8, u64) {
    match value {
        Numeric::Known(Scalar::Bool(b)) => (0, b.into()),
        Numeric::Known(Scalar::Int(i)) => (1, i as u64),
        Numeric::Known(Scalar::Uint(u)) => (2, u),
        Numeric::Known(Scalar::Float(x)) => (3, x.to_bits()),
        Numeric::Told(i) => (4, i.into()),
    }
}

/// Whether two operands are the same.
pub fn same_arg(a: &Arg, b: &Arg) -> bool {
    match (a, b) {
        (Arg::Node(a), Arg::Node(b)) => a == b,
        (Arg::Number(a), Arg::Number(b)) => key(*a) == key(*b),
        (Arg::Node(_), Arg::Number(_)) | (Arg::Number(_), Arg::Node(_)) => false,
    }
}

/// Whether two nodes of one list have the same value.
fn same(a: &Node, b: &Node) -> bool {
    a.args.len() == b.args.len()
        && a.args.iter().zip(&b.args).all(|(a, b)| same_arg(a, b))
        && same_kind(&a.kind, &b.kind)
}

fn same_kind(a: &Kind, b: &Kind) -> bool {
    match (a, b) {
        (Kind::Op(a), Kind::Op(b)) => a == b,
        (Kind::Constant(a), Kind::Constant(b)) => same_array(a, b),
        (Kind::Result(a), Kind::Result(b)) => a == b,
        (Kind::ControlFlow(a), Kind::ControlFlow(b)) => Arc::ptr_eq(a, b) || same_flow(a, b),
        _ => false,
    }
}

fn same_array(a: &Array, b: &Array) -> bool {
    if a.dtype != b.dtype || !a.shape().same(b.shape()) {
        return false;
    }
    let shared = a.data.same(&b.data) && a.layout == b.layout;
    shared || matches!((contents(a), contents(b)), (Some(a), Some(b)) if a == b)
}

/// The bytes of a small array in C order.
fn contents(array: &Array) -> Option<&[u8]> {
    let bytes = array.count() * array.dtype.size();
    // SAFETY: a contiguous array has this many initialised bytes from its start, and they stay as
    // they are while it is borrowed.
    let contents = || unsafe { std::slice::from_raw_parts(array.ptr(), bytes) };
    (bytes <= SMALL && array.is_contiguous()).then(contents)
}

fn same_flow(a: &ControlFlow, b: &ControlFlow) -> bool {
    a.kind == b.kind
        && a.results == b.results
        && a.bodies.len() == b.bodies.len()
        && a.bodies.iter().zip(&b.bodies).all(|(a, b)| same_list(a, b))
}

/// Whether two lists are the same, node for node.
fn same_list(a: &List, b: &List) -> bool {
    let both_inputs = |a: &Node, b: &Node| matches!((&a.kind, &b.kind), (Kind::Input, Kind::Input));
    let one = |(a, b): (&Node, &Node)| a.ty == b.ty && (both_inputs(a, b) || same(a, b));
    a.nodes.len() == b.nodes.len()
        && a.outputs == b.outputs
        && a.nodes.iter().zip(&b.nodes).all(one)
}
