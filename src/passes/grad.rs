//! The reverse sweep over a graph: gradients appended as nodes.
//!
//! This is the sweep that the engine does over its tape, with the same rules and the same order of
//! additions, so the bits are the same.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::control_flow_vjp;
use super::derived::vjp;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List, Node};
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::{Op, Type};
use crate::ops::rule::Rule;

/// Appends the gradients of `outputs` by `inputs`; `None` where no output depends on the input.
/// Each output comes with its cotangent; a number stands for a tensor filled with it.
pub fn gradients(graph: &Graph, outputs: &[(Id, Arg)], inputs: &[Id]) -> Result<Vec<Option<Id>>> {
    let (reaches, parts) = {
        let nodes = graph.nodes();
        (reaches(&nodes, inputs), parts(&nodes))
    };
    let mut sweep = Sweep { graph, reaches, parts, sums: vec![None; graph.len()] };
    for &(id, seed) in outputs {
        let ty = graph.ty(id);
        catch(|| {
            let seed = Expr::new(graph, seed);
            let seed = match seed.arg() {
                Arg::Number(_) => seed.full(ty.dtype, ty.shape.clone()),
                Arg::Node(_) => seed.cast(ty.dtype),
            };
            sweep.add(id, seed);
        })?;
    }
    let last = outputs.iter().map(|(id, _)| id.0 + 1).max().unwrap_or(0);
    for id in (0..last).rev().map(Id) {
        if sweep.reaches[id.0 as usize] {
            catch(|| sweep.step(id))
                .and_then(|done| done)
                .map_err(|error| error.note(format!("in the gradient of node %{}", id.0)))?;
        }
    }
    inputs.iter().map(|id| sweep.sums[id.0 as usize].map(node).transpose()).collect()
}

fn node(arg: Arg) -> Result<Id> {
    match arg {
        Arg::Node(id) => Ok(id),
        Arg::Number(_) => Err(error::internal("a cotangent is a node")),
    }
}

/// The nodes through which a gradient can reach one of the inputs.
fn reaches(nodes: &[Node], inputs: &[Id]) -> Vec<bool> {
    let mut reaches = vec![false; nodes.len()];
    let mut flows: FxHashMap<Id, Vec<bool>> = FxHashMap::default();
    inputs.iter().for_each(|id| reaches[id.0 as usize] = true);
    for (i, node) in nodes.iter().enumerate() {
        let through = match &node.kind {
            Kind::Op(op) => node.args.iter().enumerate().any(|(k, arg)| match arg {
                Arg::Node(id) => reaches[id.0 as usize] && op.differentiable(k),
                Arg::Number(_) => false,
            }),
            Kind::Barrier => node.reads().next().is_some_and(|id| reaches[id.0 as usize]),
            Kind::ControlFlow(flow) => {
                let args: Vec<bool> = node.reads().map(|id| reaches[id.0 as usize]).collect();
                let results = flow_reaches(flow, &args);
                // Only the results of a control-flow op are read, so the type of its own node does
                // not matter.
                reaches[i] = results.contains(&true);
                flows.insert(Id(i as u32), results);
                false
            }
            Kind::Result(k) => node.reads().next().is_some_and(|id| match flows.get(&id) {
                Some(results) => results[*k as usize],
                None => reaches[id.0 as usize],
            }),
            Kind::Input | Kind::Constant(_) | Kind::Effect(_) => false,
        };
        reaches[i] |= through && node.ty.dtype.is_float();
    }
    reaches
}

/// Which results of a list depend differentiably on one of the inputs.
pub fn list_reaches(list: &List, inputs: &[bool]) -> Vec<bool> {
    let marked = |(id, &on): (Id, &bool)| (on && list.node(id).ty.dtype.is_float()).then_some(id);
    let from: Vec<Id> = list.inputs().zip(inputs).filter_map(marked).collect();
    let reaches = reaches(&list.nodes, &from);
    list.outputs.iter().map(|id| reaches[id.0 as usize]).collect()
}

/// The same for a control-flow op: which results, given which operands reach an input.
fn flow_reaches(flow: &ControlFlow, args: &[bool]) -> Vec<bool> {
    match flow.kind {
        ControlFlowKind::Branch => {
            let mut any = vec![false; flow.results.len()];
            for body in &flow.bodies {
                let found = list_reaches(body, &args[1..]);
                any.iter_mut().zip(found).for_each(|(any, found)| *any |= found);
            }
            any
        }
        ControlFlowKind::Host(_) => {
            let is_float = |ty: &Type| ty.dtype.is_float() && args.contains(&true);
            flow.results.iter().map(is_float).collect()
        }
        ControlFlowKind::Scan { carry, .. } => carried(&flow.bodies[0], args, carry as usize),
        ControlFlowKind::While { carry, history } => {
            let mut results = carried(&flow.bodies[1], args, carry as usize);
            if history {
                results.extend_from_within(..);
                results.push(false);
            }
            results
        }
    }
}

/// The same for a body whose first results are its first operands of the next round.
pub(super) fn carried(body: &List, args: &[bool], carry: usize) -> Vec<bool> {
    let mut args = args.to_vec();
    loop {
        let found = list_reaches(body, &args);
        let mut grown = false;
        for i in 0..carry {
            grown |= found[i] && !args[i];
            args[i] |= found[i];
        }
        if !grown {
            return args[..carry].iter().chain(&found[carry..]).copied().collect();
        }
    }
}

/// The `Result` nodes of each node that has some, with the index of each.
fn parts(nodes: &[Node]) -> FxHashMap<Id, Vec<(usize, Id)>> {
    let mut parts: FxHashMap<Id, Vec<(usize, Id)>> = FxHashMap::default();
    for (i, node) in nodes.iter().enumerate() {
        if let (Kind::Result(k), Some(flow)) = (&node.kind, node.reads().next()) {
            parts.entry(flow).or_default().push((*k as usize, Id(i as u32)));
        }
    }
    parts
}

struct Sweep<'g> {
    graph: &'g Graph,
    reaches: Vec<bool>,
    /// The `Result` nodes of each node, with the index of each
    parts: FxHashMap<Id, Vec<(usize, Id)>>,
    /// The cotangent of each node so far
    sums: Vec<Option<Arg>>,
}

impl<'g> Sweep<'g> {
    /// Runs the rules of one node.
    fn step(&mut self, id: Id) -> Result<()> {
        let node = self.graph.nodes()[id.0 as usize].clone();
        match &node.kind {
            Kind::Op(op) => {
                self.graph.at(node.site.backward());
                self.op(id, op, &node.args);
            }
            Kind::Barrier => {
                if let (Some(x), Some(g)) = (node.reads().next(), self.sums[id.0 as usize]) {
                    self.add(x, Expr::new(self.graph, g));
                }
            }
            Kind::ControlFlow(flow) => {
                self.graph.at(node.site.backward());
                self.flow(id, flow, &node.args)?;
            }
            // The cotangent of a result is used when the sweep comes to its control-flow op.
            Kind::Result(_) | Kind::Input | Kind::Constant(_) | Kind::Effect(_) => {}
        }
        Ok(())
    }

    /// Gives the operands of a control-flow op their cotangents, from those of its results.
    fn flow(&mut self, id: Id, flow: &ControlFlow, args: &[Arg]) -> Result<()> {
        let mut given: Vec<Option<Arg>> = vec![None; flow.results.len()];
        for &(i, part) in self.parts.get(&id).map_or(&[][..], Vec::as_slice) {
            let Some(g) = self.sums[part.0 as usize] else { continue };
            given[i] = Some(match given[i] {
                Some(sum) => (Expr::new(self.graph, sum) + Expr::new(self.graph, g)).arg(),
                None => g,
            });
        }
        if given.iter().all(Option::is_none) {
            return Ok(());
        }
        let wanted: Vec<bool> = args
            .iter()
            .map(|arg| matches!(arg, Arg::Node(id) if self.reaches[id.0 as usize]))
            .collect();
        let found = control_flow_vjp(self.graph, id, &given, &wanted)?;
        for (arg, g) in args.iter().zip(found) {
            if let (Arg::Node(operand), Some(g)) = (*arg, g) {
                self.add(operand, Expr::new(self.graph, Arg::Node(g)));
            }
        }
        Ok(())
    }

    /// Runs the rules of one op.
    fn op(&mut self, id: Id, op: &Op, args: &[Arg]) {
        let count = op.results();
        let mut given: SmallVec<[Option<Expr<'g>>; 2]> = SmallVec::new();
        given.push(self.sums[id.0 as usize].map(|g| Expr::new(self.graph, g)));
        given.resize(count, None);
        for &(k, part) in self.parts.get(&id).map_or(&[][..], Vec::as_slice) {
            let g = self.sums[part.0 as usize].map(|g| Expr::new(self.graph, g));
            given[k] = match (given[k], g) {
                (Some(sum), Some(g)) => Some(sum + g),
                (sum, g) => sum.or(g),
            };
        }
        if given.iter().all(Option::is_none) {
            return;
        }
        let exprs: SmallVec<[Expr<'g>; 4]> =
            args.iter().map(|&arg| Expr::new(self.graph, arg)).collect();
        let result = |k| Expr::new(self.graph, Arg::Node(self.graph.result(id, k)));
        let results: SmallVec<[Expr<'g>; 2]> = (0..count).map(result).collect();
        let rule = Rule::new(&exprs, &results, &given);
        let wants = |(i, arg): (usize, &Arg)| match *arg {
            Arg::Node(operand) => self.reaches[operand.0 as usize] && op.differentiable(i),
            Arg::Number(_) => false,
        };
        let mut wanted: SmallVec<[bool; 4]> = args.iter().enumerate().map(wants).collect();
        if let (Some(Arg::Node(first)), Some(true)) = (args.first(), wanted.first()) {
            wanted[0] = !self.add_part(*first, op, &rule);
        }
        vjp(op, &rule, &wanted, |i, cotangent| {
            if let Arg::Node(operand) = args[i] {
                self.add(operand, cotangent);
            }
        });
    }

    /// Adds a cotangent to the sum of a node, in the shape and dtype of the node.
    fn add(&mut self, id: Id, cotangent: Expr<'g>) {
        let ty = self.graph.ty(id);
        let cotangent = cotangent.sum_to(&ty.shape).cast(ty.dtype);
        let sum = &mut self.sums[id.0 as usize];
        *sum = Some(
            match *sum {
                Some(sum) => Expr::new(self.graph, sum) + cotangent,
                None => cotangent,
            }
            .arg(),
        );
    }

    /// Adds the cotangent of a slice in place, so that the gradient of a loop over `x[t]` takes
    /// linear time.
    fn add_part(&mut self, id: Id, op: &Op, rule: &Rule<'_, 'g>) -> bool {
        let sum = |sweep: &Sweep<'g>| match sweep.sums[id.0 as usize] {
            Some(sum) => Expr::new(sweep.graph, sum),
            None => {
                let Type { dtype, shape } = sweep.graph.ty(id);
                rule.g.scalar(Scalar::Float(0.0)).full(dtype, shape)
            }
        };
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "what has no shorter sum takes its general rule"
        )]
        let added = match op {
            Op::Slice(at) => {
                let sum = sum(self);
                let part = sum.emit(Op::Slice(at.clone())) + rule.g;
                sum.emit_with(Op::SetItem(at.clone()), &[sum.arg(), part.arg()])
            }
            Op::Gather => sum(self).scatter(ScatterMode::Add, rule.g, &rule.args[1..]),
            _ => return false,
        };
        self.sums[id.0 as usize] = Some(added.arg());
        true
    }
}
