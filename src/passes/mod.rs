//! Transforms from graph to graph: expansion of composites, gradients, batching, and the passes of
//! the compiler.
//!
//! A transform reads one graph and appends to another (or to the same): existing ids keep their
//! meaning. The passes of the compiler ([`pipeline`]) take a list and return a better one.

mod absent;
pub mod batch;
mod constant_folding;
#[cfg(test)]
mod constant_folding_tests;
mod control_flow_batch;
mod control_flow_jvp;
#[cfg(test)]
mod control_flow_tests;
mod control_flow_vjp;
pub mod cost;
mod cse;
mod dead;
#[cfg(test)]
mod dead_tests;
pub mod derived;
pub mod expand;
pub mod freeze;
pub mod grad;
mod gradient_stops;
mod host;
mod joint;
pub mod jvp;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod random;
mod rebuild;
pub mod remat;
#[cfg(test)]
mod round_trip;
mod simplify;
mod sink;
#[cfg(test)]
mod symbolic;
#[cfg(test)]
mod tests;

pub use absent::without_seeds;
pub use batch::batch;
pub use control_flow_vjp::{
    ControlFlowGradient, Feed, control_flow_gradient, control_flow_vjp, unused_count,
};
pub use expand::{expand, expand_for};
pub use grad::gradients;
pub use gradient_stops::{with_stops, without_stops};
pub use host::inlined;
pub use jvp::{Tangents, jvp};
pub use pipeline::{
    Options, PASSES, Pass, Report, alone, names, pipeline, report, reported, stages,
};

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::array::{Array, Operand};
use crate::error::Result;
use crate::graph::{ControlFlow, Graph, Kind, List, numbers};
use crate::ops::declare::Composite;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};

/// Computes known nodes for constant folding: the executor of the list's device.
pub trait Evaluator {
    /// Whether calls of a composite run by a kernel, and so are not expanded.
    fn has_kernel(&self, composite: &'static Composite) -> bool;

    /// Computes one op on known values.
    fn evaluate(&self, op: &Op, args: &[Operand<'_>]) -> Result<Array>;

    /// The elements in C order, in memory of their own.
    fn contiguous(&self, x: &Array) -> Result<Array>;
}

/// The operands of a node, named in another graph.
fn renamed(args: &[Arg], names: &[Id]) -> SmallVec<[Arg; 4]> {
    let name = |arg: &Arg| match *arg {
        Arg::Node(id) => Arg::Node(names[id.0 as usize]),
        scalar => scalar,
    };
    args.iter().map(name).collect()
}

/// Copies the results and the names of a graph to one whose nodes are `names`.
fn carry_over(from: &Graph, to: &Graph, names: &[Id]) {
    from.outputs().iter().for_each(|id| to.output(names[id.0 as usize]));
    for (id, name) in &from.list().names {
        to.name(names[id.0 as usize], name.clone());
    }
}

/// The same control flow over other bodies.
fn map_bodies(flow: &ControlFlow, pass: impl Fn(&Graph) -> Result<Graph>) -> Result<ControlFlow> {
    let mut bodies = SmallVec::new();
    for body in &flow.bodies {
        bodies.push(Arc::new(pass(&Graph::from_list((**body).clone()))?.into_list()));
    }
    Ok(flow.with_bodies(bodies))
}

/// Which nodes of a list these values depend on, themselves included. The search ends at nodes that
/// are `known`.
fn needed(list: &List, wanted: &[Id], known: impl Fn(Id) -> bool) -> Vec<bool> {
    let mut needed = vec![false; list.nodes.len()];
    wanted.iter().for_each(|id| needed[id.0 as usize] = true);
    for i in (0..list.nodes.len()).rev() {
        if needed[i] && !known(Id(i as u32)) {
            list.nodes[i].reads().for_each(|id| needed[id.0 as usize] = true);
        }
    }
    needed
}

/// Appends the nodes that these values of a list depend on, without effects, and returns the new
/// nodes for the values. `names` holds new nodes for some old ones already, at least for the
/// inputs.
fn graft(to: &Graph, list: &List, mut names: FxHashMap<Id, Id>, wanted: &[Id]) -> Vec<Id> {
    let needed = needed(list, wanted, |id| names.contains_key(&id));
    let numbers = to.numbers_of(list);
    for (i, node) in list.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        let id = Id(i as u32);
        if names.contains_key(&id) {
            continue;
        }
        let name = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(names[&id]),
            Arg::Number(value) => Arg::Number(numbers::renamed(value, &numbers)),
        };
        let args = node.args.iter().map(name).collect();
        to.at(node.site);
        names.insert(id, to.push(without_effects(&node.kind), args, node.ty.clone()));
    }
    wanted.iter().map(|id| names[id]).collect()
}

/// Appends a list with these inputs, effects included, and returns its results.
fn append(to: &Graph, list: &List, inputs: &[Id]) -> Vec<Id> {
    let live = list.live();
    let numbers = to.numbers_of(list);
    let mut inputs = inputs.iter();
    let mut names: Vec<Id> = vec![Id(0); list.nodes.len()];
    for (i, node) in list.nodes.iter().enumerate() {
        if matches!(node.kind, Kind::Input) {
            names[i] = inputs.next().copied().unwrap_or(Id(0));
            continue;
        }
        if !live[i] {
            continue;
        }
        let name = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(names[id.0 as usize]),
            Arg::Number(value) => Arg::Number(numbers::renamed(value, &numbers)),
        };
        let args = node.args.iter().map(name).collect();
        to.at(node.site);
        names[i] = to.push(node.kind.clone(), args, node.ty.clone());
    }
    list.outputs.iter().map(|id| names[id.0 as usize]).collect()
}

/// The list with its inputs in another order, and with some inputs that it does not read. Each new
/// input has a type, and the old input that it replaces, if any.
pub fn reordered(list: &List, inputs: &[(Type, Option<Id>)]) -> List {
    let out = Graph::from_list(List { numbers: list.numbers.clone(), ..List::default() });
    let mut names: Vec<Id> = vec![Id(0); list.nodes.len()];
    for (ty, own) in inputs {
        let id = out.input(ty.clone());
        if let Some(own) = own {
            names[own.0 as usize] = id;
        }
    }
    for (i, node) in list.nodes.iter().enumerate() {
        if matches!(node.kind, Kind::Input) {
            continue;
        }
        out.at(node.site);
        let args = renamed(&node.args, &names).into_iter().collect();
        names[i] = out.push(node.kind.clone(), args, node.ty.clone());
    }
    list.outputs.iter().for_each(|id| out.output(names[id.0 as usize]));
    out.into_list()
}

/// The same node; a control-flow op loses its effects.
fn without_effects(kind: &Kind) -> Kind {
    match kind {
        Kind::ControlFlow(flow) if flow.has_effect() => {
            let strip = |body: &Arc<List>| Arc::new(stripped(body));
            let bodies = flow.bodies.iter().map(strip).collect();
            Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)))
        }
        kind @ (Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier) => kind.clone(),
    }
}

/// The list without its effects and without nodes that nothing needs. The inputs stay.
pub fn stripped(list: &List) -> List {
    let out = Graph::from_list(List { numbers: list.numbers.clone(), ..List::default() });
    let inputs: FxHashMap<Id, Id> =
        list.inputs().map(|id| (id, out.input(list.node(id).ty.clone()))).collect();
    graft(&out, list, inputs, &list.outputs).into_iter().for_each(|id| out.output(id));
    out.into_list()
}
