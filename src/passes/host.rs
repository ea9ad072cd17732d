//! Calls of the host under transforms: an op's rules, written beside the call.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::batch::{self, stacked};
use super::jvp::{self, Dual};
use super::{append, gradients, graft};
use crate::error::{self, Result};
use crate::graph::{Flow, FlowKind, Graph, Host, Signature};
use crate::ops::emit::{Arg, Emit, Id};

/// Appends the gradient of a call: from the cotangents of its results those of the operands that are
/// wanted, as the op's rule says.
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
    graph.at(node.site);
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
    /// Appends a call with tangents: its results.
    pub(super) fn host(&self, op: &Host, flow: &Flow, args: &[Dual]) -> Result<Vec<Dual>> {
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
            None => self.turned(op, &call, &has, (&operands, &results, &tangents))?,
        };
        Ok(results.iter().zip(moved).map(|(&x, t)| Dual { x, t }).collect())
    }

    /// The tangents as the transpose of the gradient rule: with `v(g)` the rule, which is linear, they
    /// are the gradient of `⟨v(g), t⟩` by `g`.
    fn turned(
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
    /// Appends a call for all examples: by the op's rule, or one call for each example.
    pub(super) fn host(&self, op: &Host, flow: &Flow, args: &[Id]) -> Result<Vec<Id>> {
        let mapped = self.mapped(args);
        let below = self.operands(args, &mapped)?;
        let as_args = |ids: &[Id]| -> Vec<Arg> { ids.iter().map(|&id| Arg::Node(id)).collect() };
        if !mapped.contains(&true) {
            let ids = self.out.flow(flow.clone(), &as_args(&below));
            return Ok(ids.iter().map(|&id| self.batching.value(id, false)).collect());
        }
        let operands = args.iter().map(|&id| self.batching.ty(id)).collect();
        let call = Signature { operands, results: flow.results.clone() };
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

/// A scan that makes a call for each example, and its operands by their places among the call's: first
/// those that examples differ in.
fn one_by_one(
    flow: &Flow,
    call: &Signature,
    mapped: &[bool],
    size: crate::shape::Dim,
) -> (Flow, Vec<usize>) {
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
    let kind = FlowKind::Scan { carry: 0, xs: own.len() as u32, length: size, reverse: false };
    let results = flow.results.iter().map(|ty| stacked(ty, size)).collect();
    (Flow { kind, bodies: smallvec![Arc::new(body.into_list())], results }, order)
}
