//! Graph to graph: expansion of composites, gradients, batching, and what the compiler does.
//!
//! A transform reads one graph and appends to another (or to the same): ids that exist keep their
//! meaning. The passes of the compiler ([`pipeline`]) take a list and give a better one.

pub mod batch;
pub mod cost;
mod cse;
mod dead;
#[cfg(test)]
mod dead_tests;
pub mod expand;
mod fold;
#[cfg(test)]
mod fold_tests;
pub mod grad;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod random;
mod rebuild;
#[cfg(test)]
mod round_trip;
mod simplify;
mod sink;
#[cfg(test)]
mod symbolic;
#[cfg(test)]
mod tests;

pub use batch::batch;
pub use expand::expand;
pub use grad::gradients;
pub use pipeline::{Options, PASSES, Pass, Report, names, pipeline};

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{Flow, Graph};
use crate::ops::emit::{Arg, Id};

/// The operands of a node, named in another graph.
fn renamed(args: &[Arg], names: &[Id]) -> SmallVec<[Arg; 4]> {
    let name = |arg: &Arg| match *arg {
        Arg::Node(id) => Arg::Node(names[id.0 as usize]),
        scalar => scalar,
    };
    args.iter().map(name).collect()
}

/// The results and the names of a graph, for one whose nodes are `names`.
fn carry_over(from: &Graph, to: &Graph, names: &[Id]) {
    from.outputs().iter().for_each(|id| to.output(names[id.0 as usize]));
    for (id, name) in &from.list().names {
        to.name(names[id.0 as usize], name.clone());
    }
}

/// The same control flow over other bodies.
fn map_bodies(flow: &Flow, pass: impl Fn(&Graph) -> Result<Graph>) -> Result<Flow> {
    let mut bodies = SmallVec::new();
    for body in &flow.bodies {
        bodies.push(Arc::new(pass(&Graph::from_list((**body).clone()))?.into_list()));
    }
    Ok(Flow { kind: flow.kind, bodies, results: flow.results.clone() })
}
