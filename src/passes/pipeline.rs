//! The order of the passes, their switches and their reports.
//!
//! A pass takes a list and returns one with the same inputs and, bit for bit, the same results.
//! Nodes keep their source lines, and a name moves to the node that holds the same value. Rewrites
//! that may change a bit run only under [`Options::fast_math`].

use smallvec::SmallVec;

use super::cost::{Cost, of_list};
use super::{Evaluator, constant_folding, cse, dead, expand, expand_for, freeze, simplify, sink};
use crate::dtype::{Numeric, Scalar};
use crate::error::{self, Result};
use crate::graph::{Graph, Kind, List, Node};
use crate::ops::emit::Arg;
use crate::shape::Tuple;

/// Options of the passes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whether algebra may change the last bits
    pub fast_math: bool,
    /// The most bytes that a result computed ahead may have
    pub fold_bytes: usize,
    /// The passes that are switched off, sorted; see [`Options::switch`]
    pub off: SmallVec<[&'static str; 4]>,
    /// The pass, the schedule or the kernels that spoil a number, see [`Options::spoil`]
    pub spoiled: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options { fast_math: false, fold_bytes: 64 << 10, off: SmallVec::new(), spoiled: None }
    }
}

impl Options {
    /// Makes a pass or the schedule add 1 to the first number among the operands, or the kernels to
    /// their results, so that tests of the self-check have an error to find.
    pub fn spoil(&mut self, name: &str) -> Result<()> {
        let others = [SCHEDULE, KERNELS].into_iter().find(|other| *other == name);
        self.spoiled = Some(others.map_or_else(|| named(name).map(|pass| pass.name), Ok)?);
        Ok(())
    }

    /// Whether kernels are to give wrong results.
    pub fn spoils_kernels(&self) -> bool {
        self.spoiled == Some(KERNELS)
    }

    /// The list that a spoiled schedule plans instead of the true one.
    pub fn spoiled_for_schedule(&self, list: &List) -> Option<List> {
        (self.spoiled == Some(SCHEDULE)).then(|| {
            let mut list = list.clone();
            spoil(&mut list);
            list
        })
    }

    /// Switches a pass on or off by its name.
    pub fn switch(&mut self, name: &str, on: bool) -> Result<()> {
        let pass = named(name)?;
        self.off.retain(|off| *off != pass.name);
        if !on {
            self.off.push(pass.name);
            self.off.sort_unstable();
        }
        Ok(())
    }

    /// Whether a pass is on.
    pub fn is_on(&self, name: &str) -> bool {
        !self.off.contains(&name)
    }
}

/// The name under which the planner is spoiled; it is no pass.
const SCHEDULE: &str = "schedule";
/// The name under which the kernels are spoiled, likewise.
const KERNELS: &str = "kernels";

/// The effect of a pass on a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Report {
    /// Its name
    pub name: &'static str,
    /// Nodes, those of bodies included
    pub nodes_before: usize,
    pub nodes_after: usize,
    /// Bytes that the nodes read and write, if each node is computed alone
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Arithmetic on elements
    pub flops_before: u64,
    pub flops_after: u64,
}

/// One pass.
pub struct Pass {
    /// The name of its switch and report
    pub name: &'static str,
    /// What it does, in a sentence
    pub doc: &'static str,
    run: fn(List, &Options, &dyn Evaluator) -> Result<List>,
}

/// Every pass, in the order in which they first run. The first one is for frozen functions alone,
/// runs before the others and gives another list ([`freeze`](super::freeze)). The last ones work on
/// plans, not on lists: applied alone they do nothing ([`schedule`](crate::schedule)).
pub const PASSES: [Pass; 10] = [
    Pass {
        name: "freeze",
        doc: "Constants are worked into what reads them; bits change.",
        run: freeze::freeze,
    },
    Pass {
        name: "expand",
        doc: "Composites without a kernel become their formulas, which share equal nodes.",
        run: expand_list,
    },
    Pass {
        name: "dead",
        doc: "Nodes that no result and no effect needs are dropped.",
        run: |list, options, _| dead::dead(list, options),
    },
    Pass { name: "fold", doc: "Constants are folded.", run: constant_folding::fold },
    Pass {
        name: "simplify",
        doc: "Exact algebra; views cancel.",
        run: |list, options, _| simplify::simplify(list, options),
    },
    Pass {
        name: "sink",
        doc: "Slices, broadcasts and permutations move to where they cost least.",
        run: |list, options, _| sink::sink(list, options),
    },
    Pass {
        name: "cse",
        doc: "Equal nodes are merged.",
        run: |list, options, _| cse::cse(list, options),
    },
    Pass {
        name: "remat",
        doc: "Values that a memory budget does not hold are computed again.",
        run: keep,
    },
    Pass {
        name: "fuse",
        doc: "Elementwise nodes, products and blocks are fused into steps.",
        run: keep,
    },
    Pass {
        name: "donate",
        doc: "Updates are written over the memory that they replace.",
        run: keep,
    },
];

/// The order of running, by name. The last `dead` drops the nodes that sinking and merging leave
/// unused.
const ORDER: [&str; 7] = ["expand", "dead", "fold", "simplify", "sink", "cse", "dead"];

fn named(name: &str) -> Result<&'static Pass> {
    match PASSES.iter().find(|pass| pass.name == name) {
        Some(pass) => Ok(pass),
        None => {
            let known: Vec<&str> = names().collect();
            let facts = format!("got {name:?}, the passes are {}", Tuple(&known));
            Err(error::bad_value("passes", "unknown pass", facts))
        }
    }
}

impl Pass {
    fn apply(&self, list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
        let mut list = (self.run)(list, options, evaluator)?;
        if options.spoiled == Some(self.name) {
            spoil(&mut list);
        }
        Ok(list)
    }
}

fn spoil(list: &mut List) {
    let operands = list.nodes.iter_mut().flat_map(|node| &mut node.args);
    for arg in operands {
        match arg {
            Arg::Number(Numeric::Known(value)) => {
                *value = Scalar::Float(value.as_f64() + 1.0);
                return;
            }
            Arg::Number(_) | Arg::Node(_) => {}
        }
    }
}

/// A list after one pass.
pub fn alone(name: &str, list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    named(name)?.apply(list, options, evaluator)
}

/// The list after each pass that is on, with the name of the pass.
pub fn stages(
    mut list: List,
    options: &Options,
    evaluator: &dyn Evaluator,
) -> Result<Vec<(&'static str, List)>> {
    let mut stages = Vec::new();
    for name in ORDER.into_iter().filter(|name| options.is_on(name)) {
        list = alone(name, list, options, evaluator)?;
        stages.push((name, list.clone()));
    }
    Ok(stages)
}

/// The names of the passes.
pub fn names() -> impl Iterator<Item = &'static str> {
    PASSES.iter().map(|pass| pass.name)
}

/// Runs the passes that are on, in order.
///
/// In debug builds and tests the law of graphs ([`Graph::verify`]) is checked after every pass.
pub fn pipeline(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    each(list, options, evaluator, |_, _| {})
}

/// The same with a report for each pass. It takes longer, because costs are counted.
pub fn reported(
    list: List,
    options: &Options,
    evaluator: &dyn Evaluator,
) -> Result<(List, Vec<Report>)> {
    let mut reports = Vec::with_capacity(ORDER.len());
    let (mut nodes, mut cost) = (count(&list), of_list(&list));
    let list = each(list, options, evaluator, |name, list| {
        let (before, after) = (cost, of_list(list));
        // Calls cost what their formulas cost, so expansion changes nothing there.
        let before = if name == "expand" { after } else { before };
        reports.push(Report::of(name, (nodes, before), (count(list), after)));
        (nodes, cost) = (count(list), after);
    })?;
    Ok((list, reports))
}

fn each(
    mut list: List,
    options: &Options,
    evaluator: &dyn Evaluator,
    mut done: impl FnMut(&'static str, &List),
) -> Result<List> {
    for name in ORDER.into_iter().filter(|name| options.is_on(name)) {
        let Some(pass) = PASSES.iter().find(|pass| pass.name == name) else { continue };
        list = pass.apply(list, options, evaluator)?;
        if cfg!(debug_assertions) || cfg!(test) {
            list = verified(list).map_err(|error| error.note(format!("after pass {name}")))?;
        }
        done(pass.name, &list);
    }
    Ok(list)
}

/// The report of a pass that ran elsewhere, from the lists before and after it.
pub fn report(name: &'static str, before: &List, after: &List) -> Report {
    let counted = |list| (count(list), of_list(list));
    Report::of(name, counted(before), counted(after))
}

impl Report {
    /// From nodes and cost before and after.
    fn of(name: &'static str, before: (usize, Cost), after: (usize, Cost)) -> Report {
        Report {
            name,
            nodes_before: before.0,
            nodes_after: after.0,
            bytes_before: before.1.bytes,
            bytes_after: after.1.bytes,
            flops_before: before.1.flops,
            flops_after: after.1.flops,
        }
    }
}

fn keep(list: List, _: &Options, _: &dyn Evaluator) -> Result<List> {
    Ok(list)
}

/// Nodes, those of bodies included.
fn count(list: &List) -> usize {
    let inner = |node: &Node| match &node.kind {
        Kind::ControlFlow(flow) => flow.bodies.iter().map(|body| count(body)).sum(),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => 0,
    };
    list.nodes.len() + list.nodes.iter().map(inner).sum::<usize>()
}

/// The list, if it keeps the law of graphs.
fn verified(list: List) -> Result<List> {
    let graph = Graph::from_list(list);
    graph.verify()?;
    Ok(graph.into_list())
}

fn expand_list(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    let kernels = |composite| evaluator.has_kernel(composite);
    match expand::has_calls(&list, &kernels) {
        // A derived gradient begins with the nodes of its composite's formula. They are merged with
        // the expanded call here, before constant folding computes each copy for itself.
        true => {
            let list = expand_for(&Graph::from_list(list), &kernels)?.into_list();
            if options.is_on("cse") { cse::cse(list, options) } else { Ok(list) }
        }
        false => Ok(list),
    }
}
