//! Slices move before elementwise ops, so that only the elements read are computed.

use smallvec::SmallVec;

use super::{Readers, beside, is_elementwise, readers};
use crate::error::Result;
use crate::graph::{Kind, List, Node};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, SliceAxis, Type};
use crate::passes::cost::elements;
use crate::passes::rebuild::{push, rebuild};
use crate::passes::simplify::place;
use crate::shape::{Dim, Shape};

/// The part of a node that its only reader takes.
type Part = Box<[SliceAxis]>;

/// The rewrite of a node.
#[derive(Clone)]
enum Fate {
    /// The node stays as it is
    Keeps,
    /// The node computes a part only; the mask says which operands are already cut to that part
    Narrows(Part, SmallVec<[bool; 3]>),
    /// The node is a slice whose operand is already cut to it
    Goes,
}

pub fn rise(mut list: List) -> Result<List> {
    let parts = parts(&list);
    if parts.iter().all(Option::is_none) {
        return Ok(list);
    }
    // A name stands for a whole value, so nodes that are cut lose theirs.
    list.names.retain(|id, _| parts[id.0 as usize].is_none());
    let mut fates = fates(&list, &parts).into_iter();
    rebuild(list, |nodes, mut node| {
        Ok(match (fates.next(), node.args.first()) {
            (Some(Fate::Goes), Some(Arg::Node(x))) => *x,
            (Some(Fate::Narrows(at, taken)), _) => {
                narrow(nodes, &taken, &mut node, &at);
                push(nodes, node)
            }
            (Some(Fate::Keeps | Fate::Goes) | None, _) => push(nodes, node),
        })
    })
}

/// A node that is cut has one reader: a slice, which is dropped, or elementwise work cut to the
/// same part.
fn fates(list: &List, parts: &[Option<Part>]) -> Vec<Fate> {
    let is_part = |arg: &Arg| matches!(arg, Arg::Node(id) if parts[id.0 as usize].is_some());
    let fate = |(node, part): (&Node, &Option<Part>)| match (part, &node.kind) {
        (Some(at), _) => Fate::Narrows(at.clone(), node.args.iter().map(is_part).collect()),
        (None, Kind::Op(Op::Slice(_))) if node.args.iter().any(is_part) => Fate::Goes,
        (None, _) => Fate::Keeps,
    };
    list.nodes.iter().zip(parts).map(fate).collect()
}

/// The part of each elementwise node that is read, where it is not the whole.
fn parts(list: &List) -> Vec<Option<Part>> {
    let readers = readers(list);
    let mut parts: Vec<Option<Part>> = vec![None; list.nodes.len()];
    for (i, node) in list.nodes.iter().enumerate().rev() {
        let Readers::One(reader) = readers[i] else { continue };
        if !is_elementwise(node) {
            continue;
        }
        let reader_node = list.node(reader);
        parts[i] = match &reader_node.kind {
            Kind::Op(Op::Slice(at)) if is_less(at, &node.ty.shape) => Some(at.clone()),
            Kind::Op(Op::Map(_) | Op::Cast(_)) if reader_node.ty.shape.same(&node.ty.shape) => {
                parts[reader.0 as usize].clone()
            }
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => None,
        };
    }
    parts
}

fn is_less(at: &[SliceAxis], shape: &Shape) -> bool {
    let known = |d: &Dim| d.known().is_some();
    let all_known = at.iter().all(|a| known(&a.size)) && shape.dims().iter().all(known);
    all_known && elements(&at.iter().map(|a| a.size).collect()) < elements(shape)
}

/// Makes an elementwise node compute a part of its result.
fn narrow(nodes: &mut Vec<Node>, taken: &[bool], node: &mut Node, at: &[SliceAxis]) {
    let whole = std::mem::replace(&mut node.ty.shape, at.iter().map(|a| a.size).collect());
    for (i, &taken) in taken.iter().enumerate() {
        let Arg::Node(id) = node.args[i] else { continue };
        if taken {
            continue;
        }
        let ty = &nodes[id.0 as usize].ty;
        // An operand that is repeated along an axis stays whole along it.
        let lead = whole.rank() - ty.shape.rank();
        let own: Part = at[lead..]
            .iter()
            .zip(ty.shape.dims())
            .zip(&whole.dims()[lead..])
            .map(|((a, &d), &w)| match d.same(w) {
                true => *a,
                false => SliceAxis { start: Dim::new(0), step: 1, size: d },
            })
            .collect();
        let ty = Type::new(ty.dtype, own.iter().map(|a| a.size).collect());
        let slice = beside(node, Op::Slice(own), &[node.args[i]], ty);
        node.args[i] = Arg::Node(place(nodes, slice, false));
    }
}
