//! Programs: lists that run, with their plans.
//!
//! A program keeps the list as it was traced and makes a plan from it: passes, expansion of
//! composites, schedule. Programs are shared by threads; plans are made once.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::config::{self, Config};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::graph::{Graph, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::passes::{Report, expand, pipeline};
use crate::schedule::Plan;

/// A list that runs.
pub struct Program {
    list: List,
    config: Config,
    optimized: OnceLock<Optimized>,
    plan: OnceLock<Arc<Plan>>,
}

/// What the passes made of a list.
#[derive(Clone)]
pub struct Optimized {
    /// The list that is planned
    pub list: List,
    /// What each pass did
    pub reports: Vec<Report>,
}

impl Program {
    /// The program of a list, compiled as the settings of this thread say.
    pub fn new(list: List) -> Program {
        let (optimized, plan) = (OnceLock::new(), OnceLock::new());
        Program { list, config: config::current(), optimized, plan }
    }

    /// The list as it was traced.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// The list after the passes.
    pub fn optimized(&self) -> Result<&Optimized> {
        if let Some(optimized) = self.optimized.get() {
            return Ok(optimized);
        }
        let (list, reports) = pipeline(self.list.clone(), &self.config.passes)?;
        Ok(self.optimized.get_or_init(|| Optimized { list, reports }))
    }

    /// The plan, made when it is first asked for.
    pub fn plan(&self) -> Result<Arc<Plan>> {
        if let Some(plan) = self.plan.get() {
            return Ok(plan.clone());
        }
        let expanded = expand(&Graph::from_list(self.optimized()?.list.clone()))?;
        let plan = Arc::new(Plan::new(&expanded)?);
        Ok(self.plan.get_or_init(|| plan).clone())
    }

    /// Computes the results.
    pub fn run(&self, inputs: &[&Array], numbers: &[Scalar]) -> Result<SmallVec<[Array; 2]>> {
        self.plan()?.run(inputs, numbers)
    }
}

/// A function with its gradient: what runs when nobody wants a gradient, and otherwise.
pub struct Differentiable {
    /// The results, then the residuals
    pub forward: Program,
    /// `(residuals…, cotangents of results…)`: the cotangents of inputs
    pub backward: Program,
    /// How many residuals there are
    pub residuals: usize,
}

/// Cuts a list in two: the first `count` nodes, and those after them, which compute `gradients` with
/// `seeds` (inputs that came after the cut) given.
pub fn cut(list: &List, count: usize, seeds: &[Id], gradients: &[Id]) -> Differentiable {
    let is_late = |id: Id| id.0 as usize >= count;
    let mut residuals: Vec<Id> = Vec::new();
    let mut place: Vec<Option<Id>> = vec![None; list.nodes.len()];
    let live = {
        let wanted =
            List { nodes: list.nodes.clone(), outputs: gradients.into(), ..List::default() };
        wanted.live()
    };
    let mut need = |id: Id| {
        if !is_late(id) && place[id.0 as usize].is_none() {
            place[id.0 as usize] = Some(Id(residuals.len() as u32));
            residuals.push(id);
        }
    };
    for (i, node) in list.nodes.iter().enumerate().skip(count) {
        if live[i] {
            for arg in &node.args {
                if let Arg::Node(id) = arg {
                    need(*id);
                }
            }
        }
    }
    gradients.iter().for_each(|id| need(*id));
    let mut backward = List { numbers: list.numbers.clone(), ..List::default() };
    for id in residuals.iter().chain(seeds) {
        let mut node = list.node(*id).clone();
        node.kind = Kind::Input;
        node.args.clear();
        place[id.0 as usize] = Some(Id(backward.nodes.len() as u32));
        backward.nodes.push(node);
    }
    let moved = |id: Id, place: &[Option<Id>]| {
        place[id.0 as usize].unwrap_or_else(|| unreachable!("%{} is not there yet", id.0))
    };
    for (i, node) in list.nodes.iter().enumerate().skip(count) {
        if !live[i] || place[i].is_some() {
            continue;
        }
        let mut node = node.clone();
        for arg in &mut node.args {
            if let Arg::Node(id) = arg {
                *id = moved(*id, &place);
            }
        }
        place[i] = Some(Id(backward.nodes.len() as u32));
        backward.nodes.push(node);
    }
    backward.outputs = gradients.iter().map(|id| moved(*id, &place)).collect();
    let mut forward = List { nodes: list.nodes[..count].to_vec(), ..list.clone() };
    forward.names.retain(|id, _| !is_late(*id));
    let kept = residuals.len();
    forward.outputs.extend(residuals);
    Differentiable {
        forward: Program::new(forward),
        backward: Program::new(backward),
        residuals: kept,
    }
}
