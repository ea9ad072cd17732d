//! Moves movement ops to where they cost least: an elementwise op gives the same numbers before and
//! after its elements are moved, repeated or left out.
//!
//! - Slices move before elementwise ops, so that only the elements read are computed ([`rise`]).
//! - Broadcasts move behind elementwise ops, so that each element is computed once ([`descend`]).
//! - Permutations and reshapes sink where every reader further down is one too, so that they cancel
//!   or become one ([`cancel`]). Elsewhere they stay: a view in another place is no gain, and may
//!   separate nodes that would fuse.
//!
//! No element is computed twice, and no element that was not computed before.

mod cancel;
mod descend;
mod rise;
#[cfg(test)]
mod tests;

use super::pipeline::Options;
use super::rebuild::in_bodies;
use crate::error::Result;
use crate::graph::{Args, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};

/// Moves movement ops in a list and its bodies.
pub fn sink(list: List, _: &Options) -> Result<List> {
    sunk(list)
}

fn sunk(mut list: List) -> Result<List> {
    for node in &mut list.nodes {
        in_bodies(node, sunk)?;
    }
    let list = rise::rise(list)?;
    let list = descend::descend(list)?;
    cancel::cancel(list)
}

/// Whether a node computes each element from the elements at the same place.
fn is_elementwise(node: &Node) -> bool {
    matches!(node.kind, Kind::Op(Op::Map(_) | Op::Cast(_)))
}

/// A new node with the source line of another.
fn beside(node: &Node, op: Op, args: &[Arg], ty: Type) -> Node {
    Node { kind: Kind::Op(op), args: Args::from_slice(args), ty, site: node.site }
}

/// The readers of a node: none, one node, or several (a result of the list counts as several).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    One(Id),
    Many,
}

fn readers(list: &List) -> Vec<Readers> {
    let mut readers = vec![Readers::None; list.nodes.len()];
    for (i, node) in list.nodes.iter().enumerate() {
        for arg in &node.args {
            let Arg::Node(id) = arg else { continue };
            let reader = Id(i as u32);
            let seen = &mut readers[id.0 as usize];
            *seen = match *seen {
                Readers::None => Readers::One(reader),
                Readers::One(same) if same == reader => Readers::One(reader),
                Readers::One(_) | Readers::Many => Readers::Many,
            };
        }
    }
    list.outputs.iter().for_each(|id| readers[id.0 as usize] = Readers::Many);
    readers
}
