//! Control flow over a batch. Where all examples take the same path, one control-flow op serves
//! them all; where they may differ, all paths are computed and each example selects its own.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::batch::{Pass, batch_list, stacked};
use super::graft;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::graph::{ControlFlow, ControlFlowKind, Graph, List};
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Expr, Id, catch};
use crate::ops::op::Type;
use crate::shape::Axes;

impl Pass<'_> {
    /// Appends a control-flow op and returns its results.
    pub(super) fn flow(&self, flow: &ControlFlow, args: &[Id]) -> Result<Vec<Id>> {
        match flow.kind {
            ControlFlowKind::Host(ref op) => self.host(op, flow, args),
            ControlFlowKind::Branch if self.is_mapped(args[0]) => self.choose(flow, args),
            ControlFlowKind::Branch => self.branch(flow, args),
            ControlFlowKind::Scan { carry, xs, .. } => {
                self.scan(flow, args, carry as usize, (carry + xs) as usize)
            }
            ControlFlowKind::While { carry, history } => {
                self.repeat(flow, args, carry as usize, history)
            }
        }
    }

    pub(super) fn is_mapped(&self, id: Id) -> bool {
        self.batching.below(id).1
    }

    pub(super) fn mapped(&self, ids: &[Id]) -> Vec<bool> {
        ids.iter().map(|&id| self.is_mapped(id)).collect()
    }

    /// The values below that stand for these, with an axis of examples where `mapped`.
    pub(super) fn operands(&self, ids: &[Id], mapped: &[bool]) -> Result<Vec<Id>> {
        let below = |(&id, &mapped): (&Id, &bool)| match mapped {
            true => self.spread(id),
            false => Ok(self.batching.below(id).0),
        };
        ids.iter().zip(mapped).map(below).collect()
    }

    /// The same types, with an axis of examples where `mapped`.
    pub(super) fn types(&self, types: &[Type], mapped: &[bool]) -> Vec<Type> {
        let all = |(ty, &mapped): (&Type, &bool)| match mapped {
            true => stacked(ty, self.size),
            false => ty.clone(),
        };
        types.iter().zip(mapped).map(all).collect()
    }

    /// A branch whose index all examples share.
    fn branch(&self, flow: &ControlFlow, args: &[Id]) -> Result<Vec<Id>> {
        let mapped = self.mapped(&args[1..]);
        let mut force = vec![false; flow.results.len()];
        for body in &flow.bodies {
            let (_, has) = batch_list(body, &mapped, self.size, &force)?;
            force = has;
        }
        let all = |body: &Arc<List>| Ok(Arc::new(batch_list(body, &mapped, self.size, &force)?.0));
        let bodies = flow.bodies.iter().map(all).collect::<Result<_>>()?;
        let results = self.types(&flow.results, &force).into();
        let mut below = vec![Arg::Node(self.batching.below(args[0]).0)];
        below.extend(self.operands(&args[1..], &mapped)?.into_iter().map(Arg::Node));
        let ids =
            self.out.flow(ControlFlow { kind: ControlFlowKind::Branch, bodies, results }, &below);
        Ok(ids.iter().zip(force).map(|(&id, mapped)| self.batching.value(id, mapped)).collect())
    }

    /// A branch whose index differs between examples: every body runs on all examples, and each
    /// example takes the results of its own branch.
    fn choose(&self, flow: &ControlFlow, args: &[Id]) -> Result<Vec<Id>> {
        refuse_effects(flow, "the predicate of a branch")?;
        let expr = |id: Id| Expr::new(&self.batching, Arg::Node(id));
        let mut ways = Vec::new();
        for body in &flow.bodies {
            ways.push(self.run(body, &args[1..])?);
        }
        let last = ways.pop().unwrap_or_default();
        let mut results: Vec<Arg> = last.into_iter().map(Arg::Node).collect();
        for (i, way) in ways.iter().enumerate().rev() {
            let index = expr(args[0]);
            let here = catch(|| index.less_equal(index.scalar(i as i64)).arg())?;
            for (result, &own) in results.iter_mut().zip(way) {
                let (here, other) =
                    (Expr::new(&self.batching, here), Expr::new(&self.batching, *result));
                *result = catch(|| here.select(expr(own), other).arg())?;
            }
        }
        results.into_iter().map(value).collect()
    }

    /// A carry has an axis of examples if it starts with one or gets one from the body.
    fn scan(
        &self,
        flow: &ControlFlow,
        args: &[Id],
        carry: usize,
        stacked_end: usize,
    ) -> Result<Vec<Id>> {
        let mut mapped = self.mapped(args);
        let gives = flow.results.len();
        let (list, has) = loop {
            let mut force = vec![false; gives];
            force[..carry].copy_from_slice(&mapped[..carry]);
            let (list, has) = batch_list(&flow.bodies[0], &mapped, self.size, &force)?;
            if has[..carry] == mapped[..carry] {
                break (list, has);
            }
            mapped[..carry].copy_from_slice(&has[..carry]);
        };
        let mut below = self.operands(args, &mapped)?;
        // Scanned operands and stacked results have the axis of rounds in front of the axis of
        // examples.
        for i in (carry..stacked_end).filter(|&i| mapped[i]) {
            below[i] = self.exchange(below[i])?;
        }
        let below: Vec<Arg> = below.into_iter().map(Arg::Node).collect();
        let mut results = self.types(&flow.results, &has);
        for i in (carry..gives).filter(|&i| has[i]) {
            results[i].shape.dims_mut().swap(0, 1);
        }
        let flow = ControlFlow {
            kind: flow.kind.clone(),
            bodies: smallvec![Arc::new(list)],
            results: results.into(),
        };
        let ids = self.out.flow(flow, &below);
        let outside = |(i, &id): (usize, &Id)| match has[i] && i >= carry {
            true => self.exchange(id),
            false => Ok(id),
        };
        let ids: Vec<Id> = ids.iter().enumerate().map(outside).collect::<Result<_>>()?;
        Ok(ids.iter().zip(has).map(|(&id, mapped)| self.batching.value(id, mapped)).collect())
    }

    /// The value with its first two axes exchanged.
    fn exchange(&self, id: Id) -> Result<Id> {
        let x = Expr::new(self.out, Arg::Node(id));
        let mut axes: Axes = (0..x.rank()).collect();
        axes.swap(0, 1);
        value(catch(|| x.permute(axes).arg())?)
    }

    /// Where all examples have the same number of rounds, one loop over all of them. Otherwise a
    /// loop that runs until every example has finished; an example that has finished keeps its
    /// carries unchanged.
    fn repeat(
        &self,
        flow: &ControlFlow,
        args: &[Id],
        carry: usize,
        history: bool,
    ) -> Result<Vec<Id>> {
        let mut mapped = self.mapped(args);
        let (list, differs) = loop {
            let (_, differs) = batch_list(&flow.bodies[0], &mapped, self.size, &[false])?;
            if differs[0] {
                mapped[..carry].fill(true);
            }
            let (list, has) = batch_list(&flow.bodies[1], &mapped, self.size, &mapped[..carry])?;
            if has == mapped[..carry] {
                break (list, differs[0]);
            }
            mapped[..carry].copy_from_slice(&has);
        };
        let (condition, _) = batch_list(&flow.bodies[0], &mapped, self.size, &[differs])?;
        let mut below = self.operands(args, &mapped)?;
        let mut bodies: SmallVec<[Arc<List>; 2]> = smallvec![Arc::new(condition), Arc::new(list)];
        let mut kinds = self.types(&flow.results[..carry], &mapped[..carry]);
        if differs {
            refuse_effects(flow, "the condition of a while_loop")?;
            let names = bodies[0].inputs().zip(below.iter().copied()).collect();
            let on = graft(self.out, &bodies[0], names, &bodies[0].outputs);
            below.splice(carry..carry, on);
            kinds.push(Type::new(DType::Bool, [self.size].into_iter().collect()));
            bodies = self.masked(&bodies[0], &bodies[1], carry)?;
        }
        let own = kinds.len();
        let mut results = kinds.clone();
        if history {
            let length = flow.results[carry].shape[0];
            results.extend(kinds.iter().map(|ty| stacked(ty, length)));
            results.push(Type::new(DType::I64, Default::default()));
        }
        let kind = ControlFlowKind::While { carry: own as u32, history };
        let below: Vec<Arg> = below.into_iter().map(Arg::Node).collect();
        let ids = self.out.flow(ControlFlow { kind, bodies, results: results.into() }, &below);
        let mut found: Vec<Id> =
            (0..carry).map(|i| self.batching.value(ids[i], mapped[i])).collect();
        if history {
            for i in 0..carry {
                let past = ids[own + i];
                let past = if mapped[i] { self.exchange(past)? } else { past };
                found.push(self.batching.value(past, mapped[i]));
            }
            let count = match differs {
                true => self.count(ids[own + carry])?,
                false => ids[2 * own],
            };
            found.push(self.batching.value(count, differs));
        }
        Ok(found)
    }

    /// The number of rounds in which each example's condition held.
    fn count(&self, rounds: Id) -> Result<Id> {
        let on = Expr::new(self.out, Arg::Node(rounds));
        value(catch(|| on.cast(DType::I64).reduce(Reduction::Sum, &[0]).arg())?)
    }

    /// The condition and the body of a loop whose last carry says which examples still run.
    fn masked(
        &self,
        condition: &List,
        body: &List,
        carry: usize,
    ) -> Result<SmallVec<[Arc<List>; 2]>> {
        let start = || {
            let graph = Graph::from_list(List { numbers: body.numbers.clone(), ..List::default() });
            let ty = |id: Id| body.node(id).ty.clone();
            let mut inputs: Vec<Id> = Vec::new();
            let all: Vec<Id> = body.inputs().collect();
            all[..carry].iter().for_each(|&id| inputs.push(graph.input(ty(id))));
            let on = graph.input(Type::new(DType::Bool, [self.size].into_iter().collect()));
            all[carry..].iter().for_each(|&id| inputs.push(graph.input(ty(id))));
            (graph, inputs, on)
        };
        let (test, _, on) = start();
        let any =
            value(catch(|| Expr::new(&test, Arg::Node(on)).reduce(Reduction::Any, &[0]).arg())?)?;
        test.output(any);

        let (graph, mut inputs, on) = start();
        let names: FxHashMap<Id, Id> = body.inputs().zip(inputs.iter().copied()).collect();
        let next = graft(&graph, body, names, &body.outputs);
        let on = Expr::new(&graph, Arg::Node(on));
        for (i, id) in next.into_iter().enumerate() {
            let (new, old) =
                (Expr::new(&graph, Arg::Node(id)), Expr::new(&graph, Arg::Node(inputs[i])));
            let rank = new.rank();
            let chosen = catch(|| {
                let wide = (1..rank).fold(on, |on, at| on.unsqueeze(at));
                wide.select(new, old).arg()
            })?;
            inputs[i] = value(chosen)?;
            graph.output(inputs[i]);
        }
        let names = condition.inputs().zip(inputs).collect();
        for id in graft(&graph, condition, names, &condition.outputs) {
            let still = Expr::new(&graph, Arg::Node(id));
            graph.output(value(catch(|| on.logical_and(still).arg())?)?);
        }
        Ok(smallvec![Arc::new(test.into_list()), Arc::new(graph.into_list())])
    }
}

/// The node that an argument is.
fn value(arg: Arg) -> Result<Id> {
    match arg {
        Arg::Node(id) => Ok(id),
        Arg::Number(_) => Err(error::internal("a value is a node")),
    }
}

/// Refuses effects, which cannot happen for some examples only.
fn refuse_effects(flow: &ControlFlow, what: &str) -> Result<()> {
    let nodes = flow.bodies.iter().flat_map(|body| &body.nodes);
    match nodes.into_iter().find(|node| node.has_effect()) {
        None => Ok(()),
        Some(node) => {
            let facts = format!("{} inside {}", node.kind.name(), flow.kind.name());
            let what = format!("{what} differs between examples, and an effect is for all of them");
            Err(error::bad_value("vmap", what, facts))
        }
    }
}
