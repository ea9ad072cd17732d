//! Host ops under transforms: gradients, tangents and batches by the op's rules.

use std::ffi::c_void;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::batch::{self, batch_list, stacked};
use super::jvp::{self, Dual};
use super::{append, gradients, graft, renamed};
use crate::array::Array;
use crate::error::{self, Result};
use crate::graph::{
    ControlFlow, ControlFlowKind, EffectClass, Formula, Graph, Host, HostOp, Kind, List, Signature,
    Types,
};
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::Type;
use crate::shape::Dim;

/// Appends the gradient of a call, by the op's rule. It takes the cotangents of the results and
/// returns those of the operands that are wanted.
pub(super) fn host_vjp(
    graph: &Graph,
    (id, op): (Id, &Host),
    cotangents: &[Option<Arg>],
    wanted: &[bool],
) -> Result<Vec<Option<Id>>> {
    let node = graph.nodes()[id.0 as usize].clone();
    let operands: Vec<Id> = node.reads().collect();
    let wants: Vec<bool> = operands
        .iter()
        .zip(wanted)
        .map(|(&id, &wanted)| wanted && graph.ty(id).dtype.is_float())
        .collect();
    let results: Vec<Id> = (0..cotangents.len()).map(|k| graph.part(id, k)).collect();
    let call = signature(graph, &operands, &results);
    let given: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
    let formula = op.closed(op.vjp(&call, &given, &wants)?, "vjp")?;
    let seeds = cotangents.iter().flatten().map(|&g| node_of(g)).collect::<Result<Vec<Id>>>()?;
    graph.at(node.site.backward());
    let inputs: Vec<Id> = operands.into_iter().chain(results).chain(seeds).collect();
    let found = append(graph, &formula.list, &inputs);
    Ok(formula.places.iter().map(|place| place.map(|i| found[i])).collect())
}

fn node_of(arg: Arg) -> Result<Id> {
    match arg {
        Arg::Node(id) => Ok(id),
        Arg::Number(_) => Err(error::internal("a cotangent is a node")),
    }
}

fn signature(graph: &Graph, operands: &[Id], results: &[Id]) -> Signature {
    let types = |ids: &[Id]| ids.iter().map(|&id| graph.ty(id)).collect();
    Signature { operands: types(operands), results: types(results) }
}

impl jvp::Pass<'_> {
    /// Appends a call with tangents and returns its results.
    pub(super) fn host(&self, op: &Host, flow: &ControlFlow, args: &[Dual]) -> Result<Vec<Dual>> {
        let operands: Vec<Id> = args.iter().map(|dual| dual.x).collect();
        let given: Vec<Arg> = operands.iter().map(|&id| Arg::Node(id)).collect();
        let results = self.out.flow(flow.clone(), &given);
        let is_float = |id: Id| self.out.ty(id).dtype.is_float();
        let has: Vec<bool> = args.iter().map(|dual| dual.t.is_some() && is_float(dual.x)).collect();
        let plain = |&x: &Id| Dual { x, t: None };
        if !has.contains(&true) || !results.iter().any(|&id| is_float(id)) {
            return Ok(results.iter().map(plain).collect());
        }
        let tangents: Vec<Id> =
            args.iter().zip(&has).filter(|(_, has)| **has).filter_map(|(dual, _)| dual.t).collect();
        let call = signature(self.out, &operands, &results);
        let moved = match op.0.jvp(&call, &has)? {
            Some(formula) => {
                let formula = op.closed(formula, "jvp")?;
                let inputs: Vec<Id> =
                    operands.iter().chain(&results).chain(&tangents).copied().collect();
                let found = append(self.out, &formula.list, &inputs);
                formula.places.iter().map(|place| place.map(|i| found[i])).collect()
            }
            None => self.transposed_rule(op, &call, &has, (&operands, &results, &tangents))?,
        };
        Ok(results.iter().zip(moved).map(|(&x, t)| Dual { x, t }).collect())
    }

    /// The tangents as the transpose of the gradient rule: that rule `v(g)` is linear, so they are
    /// the gradient of `⟨v(g), t⟩` by `g`.
    fn transposed_rule(
        &self,
        op: &Host,
        call: &Signature,
        has: &[bool],
        (operands, results, tangents): (&[Id], &[Id], &[Id]),
    ) -> Result<Vec<Option<Id>>> {
        let given: Vec<bool> = call.results.iter().map(|ty| ty.dtype.is_float()).collect();
        let formula = op.closed(op.vjp(call, &given, has)?, "vjp")?;
        let rules = Graph::with_numbers_of(self.out);
        let stand_in = |&id: &Id| rules.input(self.out.ty(id));
        let outside: Vec<Id> = operands.iter().chain(results).chain(tangents).copied().collect();
        let inside: Vec<Id> = outside.iter().map(stand_in).collect();
        let floats: Vec<&Id> =
            results.iter().zip(&given).filter(|(_, f)| **f).map(|(y, _)| y).collect();
        let seeds: Vec<Id> = floats.into_iter().map(stand_in).collect();
        let (primal, moved) = inside.split_at(operands.len() + results.len());
        let inputs: Vec<Id> = primal.iter().chain(&seeds).copied().collect();
        let found = append(&rules, &formula.list, &inputs);
        let mut moved = moved.iter();
        let mut pairs: Vec<(Id, Arg)> = Vec::new();
        for (i, _) in has.iter().enumerate().filter(|(_, has)| **has) {
            if let (Some(&t), Some(place)) = (moved.next(), formula.places[i]) {
                pairs.push((found[place], Arg::Node(t)));
            }
        }
        let linear = gradients(&rules, &pairs, &seeds)?;
        self.out.looks_at_all(&rules.looked());
        let list = rules.list();
        let wanted: Vec<Id> = linear.iter().flatten().copied().collect();
        let names = inside.into_iter().zip(outside).collect();
        let mut found = graft(self.out, &list, names, &wanted).into_iter();
        let mut linear = linear.into_iter();
        let result = |&given: &bool| match given {
            true => linear.next().flatten().and_then(|_| found.next()),
            false => None,
        };
        Ok(given.iter().map(result).collect())
    }
}

impl batch::Pass<'_> {
    /// Appends a call for all examples: by the op's batching rule, or one call for each example.
    pub(super) fn host(&self, op: &Host, flow: &ControlFlow, args: &[Id]) -> Result<Vec<Id>> {
        let mapped = self.mapped(args);
        let below = self.operands(args, &mapped)?;
        let as_args = |ids: &[Id]| -> Vec<Arg> { ids.iter().map(|&id| Arg::Node(id)).collect() };
        if !mapped.contains(&true) {
            let ids = self.out.flow(flow.clone(), &as_args(&below));
            return Ok(ids.iter().map(|&id| self.batching.value(id, false)).collect());
        }
        let operands = args.iter().map(|&id| self.batching.ty(id)).collect();
        let call = Signature { operands, results: flow.results.clone() };
        if let Some(body) = flow.bodies.first() {
            let all = vec![true; flow.results.len()];
            let (body, _) = batch_list(body, &mapped, self.size, &all)?;
            let rule = Batched { op: op.clone(), call, mapped, size: self.size };
            let kind = ControlFlowKind::Host(Host(Arc::new(rule)));
            let results = flow.results.iter().map(|ty| stacked(ty, self.size)).collect();
            let flow = ControlFlow { kind, bodies: smallvec![Arc::new(body)], results };
            let ids = self.out.flow(flow, &as_args(&below));
            return Ok(ids.iter().map(|&id| self.batching.value(id, true)).collect());
        }
        let found = match op.0.batch(&call, &mapped, self.size)? {
            Some(formula) => {
                let formula = op.closed(formula, "batch")?;
                append(self.out, &formula.list, &below)
            }
            None => {
                let (scan, order) = one_by_one(flow, &call, &mapped, self.size);
                let operands: Vec<Id> = order.into_iter().map(|i| below[i]).collect();
                self.out.flow(scan, &as_args(&operands)).to_vec()
            }
        };
        Ok(found.into_iter().map(|id| self.batching.value(id, true)).collect())
    }
}

/// A scan that makes one call for each example, and which operand of the call each of its operands
/// is: first the operands in which examples differ.
fn one_by_one(
    flow: &ControlFlow,
    call: &Signature,
    mapped: &[bool],
    size: Dim,
) -> (ControlFlow, Vec<usize>) {
    let (own, shared): (Vec<usize>, Vec<usize>) = (0..mapped.len()).partition(|&i| mapped[i]);
    let order: Vec<usize> = own.iter().chain(&shared).copied().collect();
    let body = Graph::with_calls();
    let mut args: SmallVec<[Arg; 4]> = smallvec![Arg::Number(0.into()); mapped.len()];
    for &i in &order {
        args[i] = Arg::Node(body.input(call.operands[i].clone()));
    }
    for id in body.flow(flow.clone(), &args) {
        body.output(id);
    }
    let kind =
        ControlFlowKind::Scan { carry: 0, xs: own.len() as u32, length: size, reverse: false };
    let results = flow.results.iter().map(|ty| stacked(ty, size)).collect();
    (ControlFlow { kind, bodies: smallvec![Arc::new(body.into_list())], results }, order)
}

/// The rules of an op for a batch: its rules for one example, batched.
struct Batched {
    op: Host,
    call: Signature,
    mapped: Vec<bool>,
    size: Dim,
}

impl Batched {
    fn of(&self, op: Host) -> Host {
        let (call, mapped) = (self.call.clone(), self.mapped.clone());
        Host(Arc::new(Batched { op, call, mapped, size: self.size }))
    }
}

impl HostOp for Batched {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn class(&self) -> EffectClass {
        self.op.class()
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn kept(&self) -> Host {
        self.of(self.op.0.kept())
    }

    fn lent(&self) -> Host {
        self.of(self.op.0.lent())
    }

    fn object(&self) -> Option<*mut c_void> {
        self.op.0.object()
    }

    fn infer(&self, _: &[Type]) -> Result<Types> {
        Err(error::internal("what a batch computes is a list"))
    }

    fn run(&self, _: &[&Array], _: &[Type]) -> Result<Vec<Array>> {
        Err(error::internal("what a batch computes is a list"))
    }

    fn has_vjp(&self) -> bool {
        self.op.0.has_vjp()
    }

    fn vjp(&self, _: &Signature, given: &[bool], wanted: &[bool]) -> Result<Option<Formula>> {
        let Some(formula) = self.op.0.vjp(&self.call, given, wanted)? else { return Ok(None) };
        let rest = formula.list.inputs().count() - self.mapped.len() - formula.outside.len();
        let mut flags = self.mapped.clone();
        flags.resize(self.mapped.len() + rest, true);
        flags.resize(flags.len() + formula.outside.len(), false);
        let all = vec![true; formula.list.outputs.len()];
        let (list, _) = batch_list(&formula.list, &flags, self.size, &all)?;
        let graph = Graph::from_list(list);
        let mut outputs = graph.outputs().to_vec();
        // An operand that all examples share gets the sum of their cotangents.
        for (place, _) in formula.places.iter().zip(&self.mapped).filter(|(_, mapped)| !**mapped) {
            if let Some(i) = *place {
                let g = Expr::new(&graph, Arg::Node(outputs[i]));
                outputs[i] = node_of(catch(|| g.reduce(Reduction::Sum, &[0]).arg())?)?;
            }
        }
        graph.list_mut().outputs = outputs;
        Ok(Some(Formula { list: Arc::new(graph.into_list()), ..formula }))
    }

    fn jvp(&self, _: &Signature, _: &[bool]) -> Result<Option<Formula>> {
        Ok(None)
    }

    fn batch(&self, _: &Signature, _: &[bool], _: Dim) -> Result<Option<Formula>> {
        Ok(None)
    }
}

/// The list in which calls with a body are replaced by that body: their computation is a list, and
/// only their rules are the user's code. For lists whose gradients have all been taken.
pub fn inlined(list: List) -> List {
    if !has_bodies(&list) {
        return list;
    }
    let out = Graph::from_list(List { numbers: list.numbers.clone(), ..List::default() });
    let mut names: Vec<Id> = Vec::with_capacity(list.nodes.len());
    let mut results: FxHashMap<Id, Vec<Id>> = FxHashMap::default();
    for (i, node) in list.nodes.iter().enumerate() {
        let args = renamed(&node.args, &names);
        out.at(node.site);
        let kind = match &node.kind {
            Kind::ControlFlow(flow) => match (&flow.kind, flow.bodies.first()) {
                (ControlFlowKind::Host(_), Some(body)) => {
                    let inputs: Vec<Id> = node.reads().map(|id| names[id.0 as usize]).collect();
                    let found = append(&out, &inlined((**body).clone()), &inputs);
                    results.insert(Id(i as u32), found);
                    // Only `Result` nodes read the call, so its own name is never looked up.
                    names.push(Id(0));
                    continue;
                }
                _ => {
                    let body = |body: &Arc<List>| Arc::new(inlined((**body).clone()));
                    let bodies = flow.bodies.iter().map(body).collect();
                    Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)))
                }
            },
            Kind::Result(k) => {
                let own = node.reads().next().and_then(|id| results.get(&id));
                if let Some(found) = own {
                    names.push(found[*k as usize]);
                    continue;
                }
                node.kind.clone()
            }
            Kind::Input | Kind::Constant(_) | Kind::Op(_) | Kind::Effect(_) | Kind::Barrier => {
                node.kind.clone()
            }
        };
        names.push(out.push(kind, args.into_iter().collect(), node.ty.clone()));
    }
    list.outputs.iter().for_each(|id| out.output(names[id.0 as usize]));
    for (id, name) in &list.names {
        out.name(names[id.0 as usize], name.clone());
    }
    out.into_list()
}

fn has_bodies(list: &List) -> bool {
    list.nodes.iter().any(|node| match &node.kind {
        Kind::ControlFlow(flow) => {
            let own = matches!(flow.kind, ControlFlowKind::Host(_)) && !flow.bodies.is_empty();
            own || flow.bodies.iter().any(|body| has_bodies(body))
        }
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => false,
    })
}
