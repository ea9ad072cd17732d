//! Dead code elimination: nodes that no result and no effect needs are dropped.
//!
//! The inputs of the whole list stay, since they are its signature. A control-flow op loses the
//! results that nobody reads, the operands that no body reads any more, and the carries that
//! neither a result, a condition nor another carry needs.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::pipeline::Options;
use super::rebuild::rename;
use crate::error::Result;
use crate::graph::{ControlFlow, ControlFlowKind, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Type;

/// Stands in place of the new name of a dropped node.
const GONE: Id = Id(u32::MAX);

/// Drops the nodes that nothing needs.
pub fn dead(mut list: List, _: &Options) -> Result<List> {
    sweep(&mut list);
    Ok(list)
}

fn sweep(list: &mut List) {
    let mut live = vec![false; list.nodes.len()];
    list.outputs.iter().for_each(|id| live[id.0 as usize] = true);
    // Which results of each control-flow op are read, then their new positions.
    let mut read: FxHashMap<u32, Vec<bool>> = FxHashMap::default();
    let mut places: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    for (i, node) in list.nodes.iter_mut().enumerate().rev() {
        live[i] |= node.has_effect();
        if !live[i] {
            continue;
        }
        match &node.kind {
            Kind::Result(result) => {
                if let Some(Arg::Node(flow)) = node.args.first() {
                    let read = read.entry(flow.0).or_default();
                    let at = *result as usize;
                    read.resize(read.len().max(at + 1), false);
                    read[at] = true;
                }
            }
            Kind::ControlFlow(_) => {
                let kept = prune(node, read.remove(&(i as u32)).unwrap_or_default());
                places.insert(i as u32, kept);
            }
            Kind::Input | Kind::Constant(_) | Kind::Op(_) | Kind::Effect(_) | Kind::Barrier => {}
        }
        mark(&mut live, &node.args);
    }
    for (i, node) in list.nodes.iter_mut().enumerate() {
        if let (true, Kind::Result(result), Some(Arg::Node(flow))) =
            (live[i], &mut node.kind, node.args.first())
            && let Some(place) = places.get(&flow.0).and_then(|kept| position(kept, *result))
        {
            *result = place;
        }
        live[i] |= matches!(node.kind, Kind::Input);
    }
    keep(list, &live);
}

fn position(kept: &[usize], result: u32) -> Option<u32> {
    kept.binary_search(&(result as usize)).ok().map(|at| at as u32)
}

fn mark(live: &mut [bool], args: &[Arg]) {
    for arg in args {
        if let Arg::Node(id) = arg {
            live[id.0 as usize] = true;
        }
    }
}

/// Keeps the `live` nodes, and renames operands, results and names accordingly.
fn keep(list: &mut List, live: &[bool]) {
    if live.iter().all(|&live| live) {
        return;
    }
    let mut ids = vec![GONE; list.nodes.len()];
    let left = ids.iter_mut().zip(live).filter(|(_, live)| **live);
    left.enumerate().for_each(|(count, (id, _))| *id = Id(count as u32));
    let mut at = 0;
    list.nodes.retain_mut(|node| {
        let live = live[at];
        at += 1;
        if live {
            rename(&mut node.args, &ids);
        }
        live
    });
    list.outputs.iter_mut().for_each(|id| *id = ids[id.0 as usize]);
    let names = std::mem::take(&mut list.names).into_iter();
    list.names =
        names.map(|(id, name)| (ids[id.0 as usize], name)).filter(|(id, _)| *id != GONE).collect();
}

/// Drops the unused work and operands of a control-flow op, given which results are read. Returns
/// the results that remain, by their old positions.
fn prune(node: &mut Node, mut read: Vec<bool>) -> Vec<usize> {
    let Kind::ControlFlow(flow) = &node.kind else { return Vec::new() };
    read.resize(flow.results.len(), false);
    // Inputs of bodies match operands by position; with a number among the operands the positions
    // differ, so such an op stays as it is.
    if node.args.iter().any(|arg| matches!(arg, Arg::Number(_))) {
        return (0..flow.results.len()).collect();
    }
    let (pruned, results, operands) = match flow.kind {
        // The user's code has a fixed signature.
        ControlFlowKind::Host(_) => return (0..flow.results.len()).collect(),
        ControlFlowKind::Branch => prune_branch(flow, &read, node.args.len()),
        ControlFlowKind::While { carry, history } => {
            prune_while(flow, &read, node.args.len(), carry as usize, history)
        }
        ControlFlowKind::Scan { carry, xs, .. } => {
            prune_scan(flow, &read, node.args.len(), carry as usize, xs as usize)
        }
    };
    node.args = chosen(&node.args, &operands).collect();
    node.kind = Kind::ControlFlow(Arc::new(pruned));
    results
}

/// The items at which the mask is set.
fn chosen<'a, T: Clone>(items: &'a [T], mask: &'a [bool]) -> impl Iterator<Item = T> + 'a {
    items.iter().zip(mask).filter(|(_, kept)| **kept).map(|(item, _)| item.clone())
}

/// Positions at which the mask is set.
fn positions(mask: &[bool]) -> Vec<usize> {
    (0..mask.len()).filter(|&i| mask[i]).collect()
}

/// The control-flow op that remains, its results by their old positions, and which operands remain.
type Pruned = (ControlFlow, Vec<usize>, Vec<bool>);

fn prune_branch(flow: &ControlFlow, read: &[bool], operands: usize) -> Pruned {
    let bodies: Vec<List> = flow.bodies.iter().map(|body| with_outputs(body, read)).collect();
    let mut taken = vec![false; operands];
    taken[0] = true;
    for body in &bodies {
        or(&mut taken[1..], &inputs_read(body));
    }
    let bodies = bodies.into_iter().map(|body| with_inputs(body, &taken[1..])).collect();
    (rebuilt(flow, flow.kind.clone(), bodies, read), positions(read), taken)
}

fn prune_while(
    flow: &ControlFlow,
    read: &[bool],
    operands: usize,
    carry: usize,
    history: bool,
) -> Pruned {
    // With a history, result `carry + i` is carry `i` stacked, and the last is the count of rounds.
    let stacked = history && read[carry..].iter().any(|&read| read);
    let mut kept: Vec<bool> = (0..carry).map(|i| read[i] || (stacked && read[carry + i])).collect();
    let condition = with_outputs(&flow.bodies[0], &[true]);
    let body = grow(&flow.bodies[1], &mut kept, carry, &inputs_read(&condition));
    let mut taken = kept.clone();
    taken.resize(operands, false);
    let mut captured = inputs_read(&condition);
    or(&mut captured, &inputs_read(&body));
    or(&mut taken[carry..], &captured[carry..]);
    let bodies = [condition, body].into_iter().map(|body| with_inputs(body, &taken)).collect();
    let mut results = kept.clone();
    match stacked {
        true => results.extend(kept.iter().copied().chain([true])),
        false => results.resize(read.len(), false),
    }
    let left = kept.iter().filter(|&&kept| kept).count() as u32;
    let kind = ControlFlowKind::While { carry: left, history: stacked };
    (rebuilt(flow, kind, bodies, &results), positions(&results), taken)
}

fn prune_scan(
    flow: &ControlFlow,
    read: &[bool],
    operands: usize,
    carry: usize,
    xs: usize,
) -> Pruned {
    let mut kept = read.to_vec();
    let body = grow(&flow.bodies[0], &mut kept, carry, &[]);
    let mut taken = kept[..carry].to_vec();
    taken.resize(operands, false);
    or(&mut taken[carry..], &inputs_read(&body)[carry..]);
    let ControlFlowKind::Scan { length, reverse, .. } = flow.kind else {
        unreachable!("the caller has a scan")
    };
    // Where the length is not a known size, the run reads it off a scanned operand, so one of these
    // stays.
    if length.known().is_none() && xs > 0 && !taken[carry..carry + xs].contains(&true) {
        taken[carry] = true;
    }
    let body = with_inputs(body, &taken);
    let count = |mask: &[bool]| mask.iter().filter(|&&kept| kept).count() as u32;
    let kind = ControlFlowKind::Scan {
        carry: count(&taken[..carry]),
        xs: count(&taken[carry..carry + xs]),
        length,
        reverse,
    };
    (rebuilt(flow, kind, SmallVec::from_iter([body]), &kept), positions(&kept), taken)
}

/// The body with the `kept` results, and with every carry whose value these need.
fn grow(body: &List, kept: &mut [bool], carry: usize, also: &[bool]) -> List {
    kept.iter_mut().take(carry).zip(also).for_each(|(kept, also)| *kept |= also);
    loop {
        let small = with_outputs(body, kept);
        let needed = inputs_read(&small);
        let before = kept.iter().filter(|&&kept| kept).count();
        or(&mut kept[..carry], &needed);
        if kept.iter().filter(|&&kept| kept).count() == before {
            return small;
        }
    }
}

fn or(mask: &mut [bool], other: &[bool]) {
    mask.iter_mut().zip(other).for_each(|(mask, other)| *mask |= other);
}

fn rebuilt(
    flow: &ControlFlow,
    kind: ControlFlowKind,
    bodies: SmallVec<[Arc<List>; 2]>,
    results: &[bool],
) -> ControlFlow {
    let results: SmallVec<[Type; 2]> = chosen(&flow.results, results).collect();
    ControlFlow { kind, bodies, results }
}

/// The body with some of its results, and all its inputs.
fn with_outputs(body: &List, kept: &[bool]) -> List {
    let mut body = body.clone();
    body.outputs = chosen(&body.outputs, kept).collect();
    sweep(&mut body);
    body
}

/// Which inputs of a body are read.
fn inputs_read(body: &List) -> Vec<bool> {
    let mut read = vec![false; body.nodes.len()];
    body.outputs.iter().for_each(|id| read[id.0 as usize] = true);
    body.nodes.iter().for_each(|node| mark(&mut read, &node.args));
    body.inputs().map(|id| read[id.0 as usize]).collect()
}

/// The body with some of its inputs; the others are not read.
fn with_inputs(mut body: List, kept: &[bool]) -> Arc<List> {
    let mut live = vec![true; body.nodes.len()];
    for (id, &kept) in body.inputs().zip(kept) {
        live[id.0 as usize] = kept;
    }
    keep(&mut body, &live);
    Arc::new(body)
}
