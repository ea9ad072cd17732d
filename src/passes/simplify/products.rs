//! Products that sum nothing.

use smallvec::SmallVec;

use super::{is_one, op_of, operand, place};
use crate::dtype::{DType, Scalar};
use crate::graph::{Args, Kind, Node};
use crate::ops::attributes::Contraction;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::shape::{Axes, Dim, Shape};

/// A product over axes of one element is `a · b + 0`, element by element, which fuses with its
/// neighbours. The zero is that with which a sum starts: −0 becomes 0.
pub fn outer(nodes: &mut Vec<Node>, node: Node, fast: bool) -> Node {
    let Some([a, b]) = sides(nodes, &node) else { return node };
    let mut part = |op: Op, args: &[Arg], shape: Shape| {
        let (args, ty) = (Args::from_slice(args), Type::new(node.ty.dtype, shape));
        Arg::Node(place(nodes, Node { kind: Kind::Op(op), args, ty, site: node.site }, fast))
    };
    let a = part(Op::Reshape(a.clone()), &node.args[..1], a);
    let b = part(Op::Reshape(b.clone()), &node.args[1..], b);
    let product = part(Op::Map(&arithmetic::multiply), &[a, b], node.ty.shape.clone());
    let zero = Arg::Number(match node.ty.dtype.is_float() {
        true => Scalar::Float(0.0).into(),
        false => Scalar::Int(0).into(),
    });
    let args = Args::from_slice(&[product, zero]);
    Node { kind: Kind::Op(Op::Map(&arithmetic::add)), args, ..node }
}

/// The shapes in which the operands broadcast to their product, if it sums over single elements.
fn sides(nodes: &[Node], node: &Node) -> Option<[Shape; 2]> {
    let Some(Op::Contract(spec)) = op_of(node) else { return None };
    let Contraction { a_batch, b_batch: _, a_contract, b_contract } = &**spec;
    let (a, b) = (operand(nodes, node, 0)?, operand(nodes, node, 1)?);
    let free = |x: &Node, contract: &Axes| -> SmallVec<[Dim; 6]> {
        let dims = x.ty.shape.dims().iter().enumerate();
        dims.filter(|(axis, _)| !contract.contains(axis)).map(|(_, &dim)| dim).collect()
    };
    let is_single = |x: &Node, contract: &Axes| contract.iter().all(|&i| is_one(x.ty.shape[i]));
    if node.ty.dtype == DType::Bool
        || !a_batch.is_empty()
        || !is_single(a, a_contract)
        || !is_single(b, b_contract)
    {
        return None;
    }
    let (mut left, right) = (free(a, a_contract), free(b, b_contract));
    left.extend(right.iter().map(|_| Dim::ONE));
    Some([Shape::from_dims(&left), Shape::from_dims(&right)])
}
