//! Frozen functions: what the function reaches by itself becomes constants, and the list is frozen.
//!
//! The frozen list is the program: runs, self-checks and gradients are of it, so that a call gives
//! the same bits whether its gradient is wanted or not. Gradients are taken of the list as a graph,
//! by the inputs that are left.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::call::Differentiated;
use super::executors::{self, Device};
use super::program::{Program, cut};
use super::{config, site};
use crate::array::Array;
use crate::error::Result;
use crate::graph::{Graph, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::passes::freeze::freeze;
use crate::passes::grad::list_reaches;
use crate::passes::{gradients, with_stops};
use crate::shape::{Dim, Scope};

/// Where a frozen function computes, and what is known of its sizes.
pub struct Frozen<'a> {
    /// The device
    pub device: Device,
    /// The symbols among its sizes
    pub symbols: &'a [Dim],
    /// The scope of these
    pub scope: &'a Scope,
}

/// Through what gradients flow: inputs and results, by position.
pub struct Flowing {
    /// The inputs that may have a cotangent
    pub wrt: Vec<usize>,
    /// The results that may have one
    pub results: Vec<usize>,
}

/// The list with these inputs as constants. Constants are data of the host.
pub fn with_constants(mut list: List, values: &[(Id, Array)]) -> Result<List> {
    for (id, value) in values {
        list.nodes[id.0 as usize].kind = Kind::Constant(executors::download(value)?);
    }
    Ok(list)
}

impl Frozen<'_> {
    /// The program of a list, frozen; and the same with its gradient, where one may be wanted.
    /// Nodes in `no_grad` pass no gradient on.
    pub fn compile(
        &self,
        list: List,
        flowing: Option<Flowing>,
        no_grad: &FxHashSet<Id>,
    ) -> Result<(Program, Option<Arc<Differentiated>>)> {
        let list = match &flowing {
            Some(Flowing { wrt, .. }) => {
                let (inputs, count) = (list.inputs().collect::<Vec<Id>>(), list.nodes.len());
                let wrt: Vec<Id> = wrt.iter().map(|&i| inputs[i]).collect();
                with_stops(list, no_grad, count, &wrt)?
            }
            None => list,
        };
        let (options, source) = (config::current().passes, Arc::new(list.clone()));
        let executor = executors::executor(self.device);
        let list = match options.is_on("freeze") {
            true => self.scope.run(|| freeze(list, &options, executor))?,
            false => list,
        };
        let differentiated = match flowing {
            Some(flowing) => self.differentiated(&list, flowing)?,
            None => None,
        };
        let program = Program::new(self.device, list, self.symbols.to_vec(), self.scope.clone());
        Ok((program.frozen_from(source), differentiated.map(Arc::new)))
    }

    /// The list with its backward nodes, cut in two.
    fn differentiated(&self, list: &List, flowing: Flowing) -> Result<Option<Differentiated>> {
        let inputs: Vec<Id> = list.inputs().collect();
        let wanted: Vec<bool> = (0..inputs.len()).map(|i| flowing.wrt.contains(&i)).collect();
        let reached = list_reaches(list, &wanted);
        let results: Vec<usize> = flowing.results.into_iter().filter(|&i| reached[i]).collect();
        if results.is_empty() {
            return Ok(None);
        }
        let (count, graph) = (list.nodes.len(), Graph::from_list(list.clone()));
        graph.at(site::current());
        let from: Vec<Id> = results.iter().map(|&i| list.outputs[i]).collect();
        let seeds: Vec<Id> = from.iter().map(|&y| graph.input(list.node(y).ty.clone())).collect();
        let seeded: Vec<(Id, Arg)> =
            from.iter().zip(&seeds).map(|(&y, &seed)| (y, Arg::Node(seed))).collect();
        let by: Vec<Id> = flowing.wrt.iter().map(|&i| inputs[i]).collect();
        let found = self.scope.run(|| gradients(&graph, &seeded, &by))?;
        let (wrt, found): (Vec<usize>, Vec<Id>) =
            flowing.wrt.iter().zip(found).filter_map(|(&i, g)| Some((i, g?))).unzip();
        if wrt.is_empty() {
            return Ok(None);
        }
        let mut whole = graph.into_list();
        let program = cut(self.device, &whole, self.symbols, self.scope, count, &seeds, &found);
        whole.outputs = found;
        Ok(Some(Differentiated {
            program: Arc::new(program),
            partial: Mutex::default(),
            whole: Arc::new(whole),
            wrt,
            results,
        }))
    }
}
