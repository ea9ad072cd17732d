//! The reverse sweep through control flow: the gradient of a control-flow op is a control-flow op
//! over the gradients of its bodies.
//!
//! A body's gradient reads values of the body (residuals). Branches and scans return residuals as
//! further results, a scan one for each round. Values that are cheap to compute again, or the same
//! in every round, are computed again instead. A `while_loop` returns the carries of all rounds,
//! whose number is known only at run time, and its gradient computes each round again, without
//! effects.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::grad::carried;
use super::graft;
use super::host::host_vjp;
use super::joint::{Backward, Joint, node, read_inputs, stacked, zeros};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List};
use crate::ops::emit::{Arg, Emit, Expr, Id};
use crate::ops::number::Number;
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

/// Appends the gradient of a control-flow op. It takes the cotangents of the results and returns
/// those of the operands that are wanted, `None` where no result depends on an operand. The op gets
/// further results behind the existing ones: the values that the gradient reads.
pub fn control_flow_vjp(
    graph: &Graph,
    id: Id,
    cotangents: &[Option<Arg>],
    wanted: &[bool],
) -> Result<Vec<Option<Id>>> {
    let node = graph.nodes()[id.0 as usize].clone();
    let Kind::ControlFlow(flow) = &node.kind else {
        return Err(error::internal("the gradient of control flow was asked of another node"));
    };
    let given: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
    if let ControlFlowKind::Host(op) = &flow.kind {
        return host_vjp(graph, (id, op), cotangents, wanted);
    }
    let Some(gradient) = control_flow_gradient(flow, &given, wanted, &|| unused_count(graph))?
    else {
        return Ok(vec![None; node.args.len()]);
    };
    graph.at(node.site.backward());
    graph.looks_at_all(&gradient.looked);
    graph.widen(id, gradient.widened);
    let mut args = Vec::new();
    for feed in gradient.feeds {
        args.push(match feed {
            Feed::Operand(i) => node.args[i],
            Feed::Result(i) => Arg::Node(graph.part(id, i)),
            Feed::Cotangent(i) => {
                cotangents[i].ok_or_else(|| error::internal("a cotangent is missing"))?
            }
            Feed::Zeros(ty) => Arg::Node(zeros(graph, &ty)?),
        });
    }
    let ids = graph.flow(gradient.flow, &args);
    Ok(gradient.places.into_iter().map(|place| place.map(|i| ids[i])).collect())
}

/// The gradient of a control-flow op, to be written beside it.
pub struct ControlFlowGradient {
    /// The op itself; the results that its gradient reads stand behind its own
    pub widened: ControlFlow,
    /// Its gradient
    pub flow: ControlFlow,
    /// The operands of the gradient
    pub feeds: Vec<Feed>,
    /// For each operand of the op, the result of the gradient that is its cotangent
    pub places: Vec<Option<usize>>,
    /// The numeric inputs that rules looked at
    pub looked: Vec<u32>,
}

/// An operand of the gradient of a control-flow op.
#[derive(Clone, Debug)]
pub enum Feed {
    /// An operand of the op
    Operand(usize),
    /// A result of the op
    Result(usize),
    /// The cotangent of a result
    Cotangent(usize),
    /// Zeros
    Zeros(Type),
}

/// The gradient of a control-flow op by the operands in `wanted`, where the results in `given` have
/// a cotangent; `None` where none of the operands gets one. `count` makes a size for the rounds of
/// this loop that differs from all other sizes in its list ([`unused_count`]).
pub fn control_flow_gradient(
    flow: &ControlFlow,
    given: &[bool],
    wanted: &[bool],
    count: &dyn Fn() -> Dim,
) -> Result<Option<ControlFlowGradient>> {
    let cx = Sweep { flow, given, wanted, count };
    match flow.kind {
        ControlFlowKind::Host(_) => {
            Err(error::internal("a call of the host has a rule of its own"))
        }
        ControlFlowKind::Branch => cx.branch(),
        ControlFlowKind::Scan { .. } => cx.scan(),
        ControlFlowKind::While { .. } => cx.repeat(),
    }
}

/// A symbol for a count of rounds, which no type in the list uses yet.
pub fn unused_count(graph: &Graph) -> Dim {
    let mut sizes = Vec::new();
    for node in graph.nodes().iter() {
        let results = match &node.kind {
            Kind::ControlFlow(flow) => flow.results.as_slice(),
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => std::slice::from_ref(&node.ty),
        };
        let dims = results.iter().flat_map(|ty| ty.shape.dims());
        sizes.extend(dims.filter(|dim| dim.known().is_none()));
    }
    Dim::uncounted(sizes)
}

/// A control-flow op whose gradient is taken.
struct Sweep<'a> {
    flow: &'a ControlFlow,
    given: &'a [bool],
    wanted: &'a [bool],
    count: &'a dyn Fn() -> Dim,
}

impl Sweep<'_> {
    fn numbers(&self) -> Vec<Number> {
        self.flow.bodies[0].numbers.clone()
    }

    /// The op with new bodies and more results.
    fn widened(
        &self,
        kind: ControlFlowKind,
        bodies: SmallVec<[Arc<List>; 2]>,
        more: impl IntoIterator<Item = Type>,
    ) -> ControlFlow {
        let results = self.flow.results.iter().cloned().chain(more).collect();
        ControlFlow { kind, bodies, results }
    }

    /// The results in a range that have a cotangent.
    fn cotangents(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        range.filter(|&i| self.given[i])
    }

    /// A branch on the same index over the gradients of the bodies. A residual of one body is a
    /// result of the whole branch; other bodies fill it with zeros. Bodies share these results
    /// where types allow.
    fn branch(&self) -> Result<Option<ControlFlowGradient>> {
        let takes = self.wanted.len() - 1;
        let mut joints = Vec::new();
        let mut slots = Slots::new(self.flow.results.len());
        let mut used = vec![false; takes];
        for body in &self.flow.bodies {
            let joint = Joint::new(body, &self.wanted[1..], self.given)?;
            let again = joint.made_again(&vec![false; takes]);
            let (here, residuals) = joint.residuals(&vec![true; takes], &again);
            used.iter_mut().zip(here).for_each(|(used, here)| *used |= here);
            let places = slots.take(body, &joint.graph, &residuals);
            joints.push((joint, residuals, places));
        }
        if joints.iter().all(|(joint, ..)| joint.wanted().is_empty()) {
            return Ok(None);
        }
        let mut bodies = SmallVec::new();
        for (body, (joint, residuals, places)) in self.flow.bodies.iter().zip(&joints) {
            let forward = joint.forward(body, residuals);
            bodies.push(Arc::new(slots.fill(forward, places)?));
        }
        let widened = self.widened(ControlFlowKind::Branch, bodies, slots.types.iter().cloned());
        let gives: Vec<usize> = (0..takes)
            .filter(|&i| joints.iter().any(|(joint, ..)| joint.grads[i].is_some()))
            .collect();
        let mut kept: Vec<usize> =
            joints.iter().flat_map(|(_, _, places)| places.iter().copied()).collect();
        kept.sort_unstable();
        kept.dedup();
        let mut feeds = vec![Feed::Operand(0)];
        feeds.extend((0..takes).filter(|&i| used[i]).map(|i| Feed::Operand(i + 1)));
        feeds.extend(kept.iter().map(|&place| Feed::Result(place)));
        feeds.extend(self.cotangents(0..self.given.len()).map(Feed::Cotangent));
        let mut looked = Vec::new();
        let mut bodies = SmallVec::new();
        for (joint, residuals, places) in &joints {
            let mut body = Backward::new(self.numbers());
            for i in (0..takes).filter(|&i| used[i]) {
                body.stand_in(&joint.graph, joint.inputs[i]);
            }
            for place in &kept {
                match places.iter().position(|at| at == place) {
                    Some(i) => body.stand_in(&joint.graph, residuals[i]),
                    None => body.graph.input(slots.ty(self.flow, *place)),
                };
            }
            for &seed in joint.seeds.iter().flatten() {
                body.stand_in(&joint.graph, seed);
            }
            let grads = body.grads(joint)?;
            for &i in &gives {
                let ty = joint.graph.ty(joint.inputs[i]);
                body.graph.output(grads[i].map_or_else(|| zeros(&body.graph, &ty), Ok)?);
            }
            bodies.push(Arc::new(body.graph.into_list()));
            looked.extend_from_slice(&joint.graph.looked());
        }
        let ty = |&i: &usize| joints[0].0.graph.ty(joints[0].0.inputs[i]);
        let results = gives.iter().map(ty).collect();
        let mut places = vec![None; takes + 1];
        gives.iter().enumerate().for_each(|(k, &i)| places[i + 1] = Some(k));
        let flow = ControlFlow { kind: ControlFlowKind::Branch, bodies, results };
        Ok(Some(ControlFlowGradient { widened, flow, feeds, places, looked }))
    }

    /// A scan in the other direction. Its carries are the cotangents of the carries, and the sums
    /// of the cotangents of the captures.
    fn scan(&self) -> Result<Option<ControlFlowGradient>> {
        let ControlFlowKind::Scan { carry, xs, length, reverse } = self.flow.kind else {
            return Err(error::internal("a scan's gradient"));
        };
        let (carry, captures, takes) = (carry as usize, (carry + xs) as usize, self.wanted.len());
        let body = &self.flow.bodies[0];
        let live = self.given[..carry].to_vec();
        let (joint, live) = self.loop_joint(body, carry, live, &self.given[carry..])?;
        if joint.wanted().is_empty() {
            return Ok(None);
        }
        let fixed: Vec<bool> = (0..takes).map(|i| i >= captures).collect();
        let at_hand: Vec<bool> = (0..takes).map(|i| i >= carry).collect();
        let (used, residuals) = joint.residuals(&at_hand, &joint.made_again(&fixed));
        // The forward scan also stacks the residuals that it does not stack already.
        let (mut more, mut places) = (Vec::new(), Vec::new());
        for &id in &residuals {
            let there = body.outputs[carry..].iter().position(|&known| known == id);
            places.push(there.map_or(body.outputs.len() + more.len(), |i| carry + i));
            if there.is_none() {
                more.push(id);
            }
        }
        let types = more.iter().map(|&id| stacked(&joint.graph.ty(id), length));
        let forward = smallvec![Arc::new(joint.forward(body, &more))];
        let widened = self.widened(self.flow.kind.clone(), forward, types);

        let mut back = Reverse::new(self, &joint, carry..captures);
        back.carries(&live);
        for (&id, &place) in residuals.iter().zip(&places) {
            back.row(id, Feed::Result(place));
        }
        for i in (carry..captures).filter(|&i| used[i]) {
            back.row(joint.inputs[i], Feed::Operand(i));
        }
        for i in self.cotangents(carry..self.given.len()) {
            if let Some(seed) = joint.seeds[i] {
                back.row(seed, Feed::Cotangent(i));
            }
        }
        back.captures((captures..takes).filter(|&i| used[i]));
        let grads = back.body.grads(&joint)?;
        back.finish(widened, &grads, None, (length, !reverse)).map(Some)
    }

    /// A scan over the carries as they entered each round, from the last round to the first. A
    /// round whose condition does not hold changes nothing; such rounds exist in a batch, whose
    /// rounds last until all examples have finished.
    fn repeat(&self) -> Result<Option<ControlFlowGradient>> {
        let ControlFlowKind::While { carry, history } = self.flow.kind else {
            return Err(error::internal("a while_loop's gradient"));
        };
        let (n, takes) = (carry as usize, self.wanted.len());
        let (condition, body) = (&self.flow.bodies[0], &self.flow.bodies[1]);
        let past = |i: usize| history && self.given[n + i];
        let live = (0..n).map(|i| self.given[i] || past(i)).collect();
        let (joint, live) = self.loop_joint(body, n, live, &[])?;
        if joint.wanted().is_empty() {
            return Ok(None);
        }
        let (widened, length) = self.remembering(n, history);
        let mut used = read_inputs(&joint.graph.list(), &joint.wanted());
        let tested = read_inputs(condition, &condition.outputs);
        used.iter_mut().zip(tested).for_each(|(used, tested)| *used |= tested);

        let mut back = Reverse::new(self, &joint, 0..0);
        back.carries(&live);
        for i in (0..n).filter(|&i| used[i]) {
            back.row(joint.inputs[i], Feed::Result(n + i));
        }
        let mut pasts = vec![None; n];
        for i in (0..n).filter(|&i| live[i] && past(i)) {
            pasts[i] = Some(back.body.graph.input(joint.graph.ty(joint.inputs[i])));
            back.feeds.push(Feed::Cotangent(n + i));
            back.rows += 1;
        }
        back.captures((n..takes).filter(|&i| used[i]));
        let grads = back.body.grads(&joint)?;
        let inputs = condition
            .inputs()
            .enumerate()
            .filter_map(|(i, id)| Some((id, *back.body.names.get(&joint.inputs[i])?)));
        let on = graft(&back.body.graph, condition, inputs.collect(), &condition.outputs).pop();
        back.finish(widened, &grads, Some(Rounds { on, pasts }), (length, true)).map(Some)
    }

    /// The `while_loop` that also returns the carries of all rounds and the number of rounds; and
    /// that number as a size. The size is a symbol that nothing binds before the run.
    fn remembering(&self, carry: usize, history: bool) -> (ControlFlow, Dim) {
        if history {
            let kept = self.widened(self.flow.kind.clone(), self.flow.bodies.clone(), []);
            return (kept, self.flow.results[carry].shape[0]);
        }
        let length = (self.count)();
        let pasts = self.flow.results[..carry].iter().map(|ty| stacked(ty, length));
        let count = Type::new(DType::I64, Shape::scalar());
        let kind = ControlFlowKind::While { carry: carry as u32, history: true };
        (self.widened(kind, self.flow.bodies.clone(), pasts.chain([count])), length)
    }

    /// A body whose first results are its first operands of the next round, with its gradient; and
    /// which of these carries have a cotangent: those in `live`, and those that get one in some
    /// round.
    fn loop_joint(
        &self,
        body: &List,
        carry: usize,
        mut live: Vec<bool>,
        rows: &[bool],
    ) -> Result<(Joint, Vec<bool>)> {
        let mut wanted = self.wanted.to_vec();
        wanted[..carry].copy_from_slice(&carried(body, self.wanted, carry)[..carry]);
        live.iter_mut().zip(&wanted).for_each(|(live, &wanted)| *live &= wanted);
        loop {
            let seeds: Vec<bool> = live.iter().chain(rows).copied().collect();
            let joint = Joint::new(body, &wanted, &seeds)?;
            let before = live.clone();
            (0..carry).for_each(|i| live[i] |= joint.grads[i].is_some());
            if live == before {
                return Ok((joint, live));
            }
        }
    }
}

/// The further results of a branch that hold residuals.
struct Slots {
    /// How many results it has already
    first: usize,
    types: Vec<Type>,
}

impl Slots {
    fn new(first: usize) -> Slots {
        Slots { first, types: Vec::new() }
    }

    /// Gives each residual of a body a result of the branch.
    fn take(&mut self, body: &List, joint: &Graph, residuals: &[Id]) -> Vec<usize> {
        let mut free: Vec<bool> = vec![true; self.types.len()];
        let mut places = Vec::new();
        for &id in residuals {
            if let Some(there) = body.outputs.iter().position(|&known| known == id) {
                places.push(there);
                continue;
            }
            let ty = joint.ty(id);
            let slot = (0..free.len()).find(|&i| free[i] && self.types[i] == ty);
            let slot = slot.unwrap_or_else(|| {
                self.types.push(ty);
                free.push(true);
                free.len() - 1
            });
            free[slot] = false;
            places.push(self.first + slot);
        }
        places
    }

    /// The type of a result.
    fn ty(&self, flow: &ControlFlow, place: usize) -> Type {
        match place.checked_sub(self.first) {
            Some(slot) => self.types[slot].clone(),
            None => flow.results[place].clone(),
        }
    }

    /// Takes a body whose results are its own and then the residuals for `places`. Moves the
    /// residuals to those places, and fills the places that this body does not use with zeros.
    fn fill(&self, forward: List, places: &[usize]) -> Result<List> {
        let graph = Graph::from_list(forward);
        let residuals = graph.outputs()[self.first..].to_vec();
        let mut outputs = graph.outputs()[..self.first].to_vec();
        for (slot, ty) in self.types.iter().enumerate() {
            let own = places.iter().position(|&place| place == self.first + slot);
            outputs.push(own.map_or_else(|| zeros(&graph, ty), |i| Ok(residuals[i]))?);
        }
        Ok(List { outputs, ..graph.into_list() })
    }
}

/// The values of a `while_loop` that its gradient reads in a round.
struct Rounds {
    /// Whether the round took place
    on: Option<Id>,
    /// The cotangents of the carries as they entered the round
    pasts: Vec<Option<Id>>,
}

/// The gradient of a loop as it is built: a scan over the values that the rounds returned.
struct Reverse<'s> {
    sweep: &'s Sweep<'s>,
    joint: &'s Joint,
    body: Backward,
    feeds: Vec<Feed>,
    /// The operands that get a cotangent for each round
    each: std::ops::Range<usize>,
    /// The carries that have cotangents
    live: Vec<usize>,
    /// The captures whose cotangents are summed, and their sums so far
    sums: Vec<(usize, Id)>,
    /// How many operands the scan takes row by row, one row for each round
    rows: u32,
}

impl<'s> Reverse<'s> {
    fn new(sweep: &'s Sweep<'s>, joint: &'s Joint, each: std::ops::Range<usize>) -> Reverse<'s> {
        let body = Backward::new(sweep.numbers());
        let (feeds, live, sums) = (Vec::new(), Vec::new(), Vec::new());
        Reverse { sweep, joint, body, feeds, each, live, sums, rows: 0 }
    }

    /// The type of an operand of the body.
    fn ty(&self, i: usize) -> Type {
        self.joint.graph.ty(self.joint.inputs[i])
    }

    /// Adds the carries: cotangents of carries, and sums of the cotangents of captures.
    fn carries(&mut self, live: &[bool]) {
        for (i, seed) in self.joint.seeds.iter().enumerate().take(live.len()) {
            let (true, Some(seed)) = (live[i], *seed) else { continue };
            self.body.stand_in(&self.joint.graph, seed);
            self.feeds.push(match self.sweep.given[i] {
                true => Feed::Cotangent(i),
                false => Feed::Zeros(self.ty(i)),
            });
            self.live.push(i);
        }
        for i in live.len()..self.joint.inputs.len() {
            if self.each.contains(&i) || self.joint.grads[i].is_none() {
                continue;
            }
            self.feeds.push(Feed::Zeros(self.ty(i)));
            self.sums.push((i, self.body.graph.input(self.ty(i))));
        }
    }

    /// Adds an operand that is scanned: the values that each round returned for a node.
    fn row(&mut self, id: Id, all: Feed) {
        self.body.stand_in(&self.joint.graph, id);
        self.feeds.push(all);
        self.rows += 1;
    }

    /// Adds captures.
    fn captures(&mut self, used: impl Iterator<Item = usize>) {
        for i in used {
            self.body.stand_in(&self.joint.graph, self.joint.inputs[i]);
            self.feeds.push(Feed::Operand(i));
        }
    }

    /// The scan, with the cotangents of the op's operands among its results.
    fn finish(
        self,
        widened: ControlFlow,
        grads: &[Option<Id>],
        rounds: Option<Rounds>,
        (length, reverse): (Dim, bool),
    ) -> Result<ControlFlowGradient> {
        for &i in &self.live {
            let g = self.carried(i, grads[i], rounds.as_ref())?;
            self.body.graph.output(g);
        }
        for &(i, sum) in &self.sums {
            let g = self.summed(sum, grads[i], rounds.as_ref())?;
            self.body.graph.output(g);
        }
        let each: Vec<usize> = self.each.clone().filter(|&i| grads[i].is_some()).collect();
        each.iter().filter_map(|&i| grads[i]).for_each(|id| self.body.graph.output(id));
        let carried: Vec<usize> =
            self.live.iter().copied().chain(self.sums.iter().map(|&(i, _)| i)).collect();
        let results = carried.iter().map(|&i| self.ty(i));
        let results = results.chain(each.iter().map(|&i| stacked(&self.ty(i), length))).collect();
        let kind =
            ControlFlowKind::Scan { carry: carried.len() as u32, xs: self.rows, length, reverse };
        let mut places = vec![None; self.sweep.wanted.len()];
        for (k, i) in carried.into_iter().chain(each).enumerate() {
            places[i] = self.sweep.wanted[i].then_some(k);
        }
        let looked = self.joint.graph.looked().to_vec();
        let bodies = smallvec![Arc::new(self.body.graph.into_list())];
        let flow = ControlFlow { kind, bodies, results };
        Ok(ControlFlowGradient { widened, flow, feeds: self.feeds, places, looked })
    }

    /// The cotangent of a carry as it entered the round.
    fn carried(&self, i: usize, g: Option<Id>, rounds: Option<&Rounds>) -> Result<Id> {
        let graph = &self.body.graph;
        let expr = |id| Expr::new(graph, Arg::Node(id));
        let after = self.joint.seeds[i].and_then(|seed| self.body.names.get(&seed)).copied();
        let mut g = g.map_or_else(|| zeros(graph, &self.ty(i)), Ok)?;
        if let (Some(on), Some(after)) = (rounds.and_then(|rounds| rounds.on), after) {
            g = node(|| expr(on).select(expr(g), expr(after)).arg())?;
        }
        match rounds.and_then(|rounds| rounds.pasts[i]) {
            Some(past) => node(|| (expr(g) + expr(past)).arg()),
            None => Ok(g),
        }
    }

    /// The sum of a capture's cotangents so far.
    fn summed(&self, sum: Id, g: Option<Id>, rounds: Option<&Rounds>) -> Result<Id> {
        let expr = |id| Expr::new(&self.body.graph, Arg::Node(id));
        let Some(g) = g else { return Ok(sum) };
        node(|| {
            let g = match rounds.and_then(|rounds| rounds.on) {
                Some(on) => expr(on).select(expr(g), expr(g).scalar(0.0)),
                None => expr(g),
            };
            (expr(sum) + g).arg()
        })
    }
}
