//! Graph to graph: expansion of composites, gradients, batching.
//!
//! A pass reads one graph and appends to another (or to the same): ids that exist keep their meaning.

pub mod batch;
pub mod expand;
pub mod grad;
#[cfg(test)]
mod tests;

pub use batch::batch;
pub use expand::expand;
pub use grad::gradients;

use smallvec::SmallVec;

use crate::ops::emit::{Arg, Id};

/// The operands of a node, named in another graph.
fn renamed(args: &[Arg], names: &[Id]) -> SmallVec<[Arg; 4]> {
    let name = |arg: &Arg| match *arg {
        Arg::Node(id) => Arg::Node(names[id.0 as usize]),
        scalar => scalar,
    };
    args.iter().map(name).collect()
}
