//! Simplifies slices of concatenated or padded values, and concatenations of slices.

use super::{Rewrite, filling, give, is_one, on, op_of, operand};
use crate::graph::{Kind, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, SliceAxis};
use crate::passes::cse::{key, same_arg};
use crate::shape::{Dim, Shape};

/// Whether a slice takes all elements, in order.
fn is_whole(at: &[SliceAxis], shape: &Shape) -> bool {
    at.len() == shape.rank()
        && at
            .iter()
            .zip(shape.dims())
            .all(|(a, d)| is_none(a.start) && a.size.same(*d) && (a.step == 1 || is_one(*d)))
}

/// Whether two slices are certainly the same.
pub fn same(a: &[SliceAxis], b: &[SliceAxis]) -> bool {
    let one = |(a, b): (&SliceAxis, &SliceAxis)| {
        a.start.same(b.start) && a.step == b.step && a.size.same(b.size)
    };
    a.len() == b.len() && a.iter().zip(b).all(one)
}

/// Whether a size is certainly 0.
fn is_none(dim: Dim) -> bool {
    dim.known() == Some(0)
}

/// The lowest and the highest index taken; `None` without elements, or where the indices are not
/// known.
fn range(a: &SliceAxis) -> Option<(usize, usize)> {
    let n = a.size.known().filter(|&n| n > 0)?;
    let start = a.start.known()?;
    let end = start.checked_add_signed((n as isize - 1) * a.step)?;
    Some((start.min(end), start.max(end)))
}

/// One slice of another.
fn of_slice(outer: &[SliceAxis], inner: &[SliceAxis]) -> Option<Box<[SliceAxis]>> {
    let one = |(a, b): (&SliceAxis, &SliceAxis)| {
        let step = b.step.checked_mul(a.step)?;
        let start = match (a.start.known(), b.start.known()) {
            // The start of an empty slice does not matter.
            _ if is_none(a.size) => Dim::new(0),
            (Some(from), Some(start)) => {
                let far = b.step.checked_mul(isize::try_from(from).ok()?)?;
                Dim::new(start.checked_add_signed(far)?)
            }
            (Some(0), None) => b.start,
            _ if b.step == 1 => b.start + a.start,
            _ => return None,
        };
        Some(SliceAxis { start, step, size: a.size })
    };
    outer.iter().zip(inner).map(one).collect()
}

/// Simplifies a slice.
pub fn slice(nodes: &[Node], node: &mut Node) -> Rewrite {
    let (Some(x), Some(Op::Slice(at))) = (operand(nodes, node, 0), op_of(node)) else {
        return Rewrite::Keep;
    };
    if is_whole(at, &x.ty.shape) {
        return give(nodes, node, node.args[0]);
    }
    if let Some(value) = filling(x) {
        let ty = node.ty.clone();
        return on(node, Op::Full(ty), Arg::Number(value));
    }
    let found = match op_of(x) {
        Some(Op::Slice(inner)) => of_slice(at, inner).map(|at| (Op::Slice(at), x.args[0])),
        Some(Op::Broadcast(_)) => of_broadcast(nodes, x, at, &node.ty.shape),
        Some(Op::Concat(axis)) => of_concat(nodes, x, at, *axis),
        Some(Op::Pad(_, put)) => of_pad(x, at, put, node),
        Some(Op::SetItem(put)) => match same(at, put) {
            true => return give(nodes, node, x.args[1]),
            false => apart(at, put).then(|| (Op::Slice(at.clone()), x.args[0])),
        },
        Some(Op::Iota(_, axis)) => {
            let axis = *axis;
            let along = SliceAxis { start: Dim::new(0), step: 1, size: x.ty.shape[axis] };
            if same(&at[axis..=axis], &[along]) {
                let ty = node.ty.clone();
                node.args.clear();
                node.kind = Kind::Op(Op::Iota(ty, axis));
            }
            return Rewrite::Keep;
        }
        _ => None,
    };
    match found {
        Some((op, arg)) => on(node, op, arg),
        None => Rewrite::Keep,
    }
}

/// A slice that takes the whole of every axis that the broadcast does not repeat is another
/// broadcast.
fn of_broadcast(nodes: &[Node], x: &Node, at: &[SliceAxis], to: &Shape) -> Option<(Op, Arg)> {
    let from = &operand(nodes, x, 0)?.ty.shape;
    let lead = x.ty.shape.rank() - from.rank();
    let whole = at[lead..]
        .iter()
        .zip(from.dims())
        .all(|(a, d)| is_one(*d) || (is_none(a.start) && a.step == 1 && a.size.same(*d)));
    whole.then(|| (Op::Broadcast(to.clone()), x.args[0]))
}

/// A slice that lies within one operand of the concatenation.
fn of_concat(nodes: &[Node], x: &Node, at: &[SliceAxis], axis: usize) -> Option<(Op, Arg)> {
    let (low, high) = range(&at[axis])?;
    let mut from = 0;
    for &part in &x.args {
        let Arg::Node(id) = part else { return None };
        let to = from + nodes[id.0 as usize].ty.shape[axis].known()?;
        if low >= from && high < to {
            let mut at: Box<[SliceAxis]> = at.into();
            at[axis].start = Dim::new(at[axis].start.known()? - from);
            return Some((Op::Slice(at), part));
        }
        from = to;
    }
    None
}

/// A slice of exactly the padded operand, or of the padding alone.
fn of_pad(x: &Node, at: &[SliceAxis], put: &[SliceAxis], node: &Node) -> Option<(Op, Arg)> {
    if same(at, put) {
        let same = Op::Reshape(node.ty.shape.clone());
        return Some((same, x.args[0]));
    }
    if apart(at, put) {
        return Some(match x.args[1] {
            Arg::Number(_) => (Op::Full(node.ty.clone()), x.args[1]),
            Arg::Node(_) => (Op::Broadcast(node.ty.shape.clone()), x.args[1]),
        });
    }
    let inner = |(a, p): (&SliceAxis, &SliceAxis)| {
        let ((low, high), (first, last)) = (range(a)?, range(p)?);
        let inside = p.step == 1 && low >= first && high <= last;
        inside.then(|| SliceAxis { start: a.start - p.start, ..*a })
    };
    let at: Option<Box<[SliceAxis]>> = at.iter().zip(put).map(inner).collect();
    at.map(|at| (Op::Slice(at), x.args[0]))
}

/// Whether two slices have no element in common, as their ranges along some axis show.
fn apart(a: &[SliceAxis], b: &[SliceAxis]) -> bool {
    a.iter().zip(b).any(|(a, b)| match (range(a), range(b)) {
        (Some((low, high)), Some((first, last))) => high < first || last < low,
        _ => false,
    })
}

/// Simplifies a padding.
pub fn pad(nodes: &[Node], node: &mut Node) -> Rewrite {
    let (Some(x), Some(Op::Pad(shape, at))) = (operand(nodes, node, 0), op_of(node)) else {
        return Rewrite::Keep;
    };
    if shape.same(&x.ty.shape) && is_whole(at, shape) {
        return give(nodes, node, node.args[0]);
    }
    let outside = match node.args[1] {
        Arg::Number(value) => Some(value),
        Arg::Node(id) => filling(&nodes[id.0 as usize]),
    };
    match (filling(x), outside) {
        (Some(a), Some(b)) if key(a) == key(b) => {
            let ty = node.ty.clone();
            on(node, Op::Full(ty), Arg::Number(a))
        }
        _ => Rewrite::Keep,
    }
}

/// Simplifies a write.
pub fn setitem(nodes: &[Node], node: &mut Node) -> Rewrite {
    let (Some(x), Some(Op::SetItem(at))) = (operand(nodes, node, 0), op_of(node)) else {
        return Rewrite::Keep;
    };
    if is_whole(at, &x.ty.shape) {
        return give(nodes, node, node.args[1]);
    }
    if at.iter().any(|a| is_none(a.size)) {
        return give(nodes, node, node.args[0]);
    }
    // The value written is the slice that was read at the same place.
    if let Some(v) = operand(nodes, node, 1)
        && matches!(op_of(v), Some(Op::Slice(from)) if same(from, at))
        && same_arg(&v.args[0], &node.args[0])
    {
        return give(nodes, node, node.args[0]);
    }
    // The operand is a write to the same place, which this write replaces.
    if matches!(op_of(x), Some(Op::SetItem(before)) if same(before, at)) {
        node.args[0] = x.args[0];
        return Rewrite::Again;
    }
    Rewrite::Keep
}

/// Simplifies a concatenation.
pub fn concat(nodes: &[Node], node: &mut Node, axis: usize) -> Rewrite {
    let part = |arg: &Arg| match *arg {
        Arg::Node(id) => Some(&nodes[id.0 as usize]),
        Arg::Number(_) => None,
    };
    if node.args.len() > 1 {
        let is_empty = |arg: &Arg| part(arg).is_some_and(|x| is_none(x.ty.shape[axis]));
        if node.args.iter().any(is_empty) && !node.args.iter().all(is_empty) {
            node.args.retain(|arg| !is_empty(arg));
            return Rewrite::Again;
        }
    } else {
        return give(nodes, node, node.args[0]);
    }
    let mut values = node.args.iter().map(|arg| part(arg).and_then(filling).map(key));
    if let Some(Some(first)) = values.next()
        && values.all(|value| value == Some(first))
        && let Some(value) = part(&node.args[0]).and_then(filling)
    {
        let ty = node.ty.clone();
        return on(node, Op::Full(ty), Arg::Number(value));
    }
    match neighbours(nodes, node, axis) {
        Some((x, at)) => on(node, Op::Slice(at), Arg::Node(x)),
        None => Rewrite::Keep,
    }
}

/// The single slice that equals the concatenation of slices of one value.
fn neighbours(nodes: &[Node], node: &Node, axis: usize) -> Option<(Id, Box<[SliceAxis]>)> {
    let piece = |arg: &Arg| {
        let Arg::Node(id) = arg else { return None };
        let part = &nodes[id.0 as usize];
        match (op_of(part)?, part.args.first()) {
            (Op::Slice(at), Some(Arg::Node(x))) => Some((*x, at)),
            _ => None,
        }
    };
    let (x, first) = piece(&node.args[0])?;
    let mut joined = first.clone();
    for arg in &node.args[1..] {
        let (other, at) = piece(arg)?;
        let size = joined[axis].size.known()?;
        let start = joined[axis].start.known()?;
        let after = start.checked_add_signed(size as isize * joined[axis].step)?;
        let others = (0..at.len()).all(|i| i == axis || same(&at[i..=i], &joined[i..=i]));
        if other != x
            || !others
            || at[axis].step != joined[axis].step
            || at[axis].start.known() != Some(after)
        {
            return None;
        }
        joined[axis].size = Dim::new(size + at[axis].size.known()?);
    }
    Some((x, joined))
}
