//! Runs of graphs defined by hand: what fetches need, and the list that computes it for fed types.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Calls, DeferredCall, Given, define, in_fresh_trace, make};
use crate::dtype::{DType, Numeric};
use crate::engine::site;
use crate::engine::trace::{Trace, is_sized};
use crate::error::{self, Error, Result};
use crate::graph::{self, ControlFlow, ControlFlowKind, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::ops::op::Type;
use crate::shape::{Bindings, Dim, Scope, Shape, Tuple};
use crate::site::Site;

/// A list that runs, made from a graph for values of known types.
pub struct Resolved {
    /// The list; its results are what was fetched
    pub list: List,
    /// The node of the graph that each input stands for
    pub inputs: Vec<Id>,
    /// For each node of the graph the one of the list that has its value, if it was made
    pub names: Vec<Option<Id>>,
    /// What keeps its sizes
    pub scope: Scope,
}

/// What a run needs: the nodes to compute, in the graph's numbering.
pub struct Needs {
    /// Which nodes are computed or given
    pub live: Vec<bool>,
    /// The inputs among them that are not fed
    pub inputs: Vec<Id>,
}

/// The nodes that fetches need, given that some nodes are fed.
pub fn needs(list: &List, calls: &Calls, fetches: &[Id], is_fed: &dyn Fn(Id) -> bool) -> Needs {
    let count = list.nodes.len();
    let mut live = vec![false; count];
    fetches.iter().for_each(|id| live[id.0 as usize] = true);
    mark(list, calls, &mut live, is_fed);
    // An effect is done where what it looks at is computed anyway: its operands, or what decides
    // them, as `x` decides `x > 0`.
    let mut ready = live.clone();
    let mut any = false;
    for i in 0..count {
        let id = Id(i as u32);
        let node = &list.nodes[i];
        let args = calls.args(list, id);
        let all = |ready: &[bool]| {
            args.iter().all(|arg| match arg {
                Arg::Node(id) => ready[id.0 as usize],
                Arg::Number(_) => true,
            })
        };
        if node.has_effect() && !live[i] && all(&ready) {
            live[i] = true;
            any = true;
        }
        let is_given = matches!(node.kind, Kind::Constant(_)) || is_fed(id);
        let decides = node.ty.dtype == DType::Bool && !args.is_empty() && all(&ready);
        ready[i] |= is_given || decides;
    }
    if any {
        mark(list, calls, &mut live, is_fed);
    }
    let is_input = |id: &Id| {
        let i = id.0 as usize;
        live[i]
            && !is_fed(*id)
            && matches!(list.nodes[i].kind, Kind::Input)
            && calls.of(*id).is_none()
    };
    let inputs = (0..count as u32).map(Id).filter(is_input).collect();
    Needs { live, inputs }
}

fn mark(list: &List, calls: &Calls, live: &mut [bool], is_fed: &dyn Fn(Id) -> bool) {
    for i in (0..list.nodes.len()).rev() {
        let id = Id(i as u32);
        if !live[i] || is_fed(id) {
            continue;
        }
        let args = match calls.making(list, id) {
            Some(deferred) => deferred.args.as_slice(),
            None => list.nodes[i].args.as_slice(),
        };
        for arg in args {
            if let Arg::Node(id) = arg {
                live[id.0 as usize] = true;
            }
        }
    }
}

/// The nodes that no other value is computed from, of those that are computed; not those inside a
/// call.
pub fn ends(trace: &Trace) -> Vec<Id> {
    let (list, calls) = trace.snapshot();
    let mut is_end = vec![true; list.nodes.len()];
    for deferred in &calls.deferred {
        deferred.nodes.clone().for_each(|i| is_end[i as usize] = false);
        deferred.results.iter().for_each(|id| is_end[id.0 as usize] = true);
    }
    for i in 0..list.nodes.len() {
        let id = Id(i as u32);
        let is_given = matches!(list.nodes[i].kind, Kind::Input) && calls.of(id).is_none();
        if matches!(list.nodes[i].kind, Kind::Effect(_)) {
            is_end[i] = false;
            continue;
        }
        is_end[i] &= !is_given;
        for arg in calls.args(&list, id) {
            if let Arg::Node(read) = arg {
                is_end[read.0 as usize] = false;
            }
        }
    }
    (0..list.nodes.len() as u32).map(Id).filter(|id| is_end[id.0 as usize]).collect()
}

/// Refuses a feed of another dtype, rank or size than its node has. What is open in the node takes
/// any size, what the node says is asked of sizes that are open themselves.
fn check_feed(op: &str, list: &List, calls: &Calls, id: Id, ty: &Type) -> Result<()> {
    let node = list.node(id);
    let pattern = &node.ty.shape;
    let fits = |(want, got): (&Dim, &Dim)| want.known().is_none() || want.equals(*got);
    let is_open = calls.unresolved.contains(&id);
    let same_rank = pattern.rank() == ty.shape.rank();
    let same_shape = same_rank && pattern.dims().iter().zip(ty.shape.dims()).all(fits);
    if node.ty.dtype == ty.dtype && (is_open || same_shape) {
        return Ok(());
    }
    let kind = match node.kind {
        Kind::Input if calls.of(id).is_none() => "placeholder",
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => calls.of(id).map_or(node.kind.name(), |deferred| deferred.call.name()),
    };
    let name = list.names.get(&id).map_or(format!("%{}", id.0), |name| format!("\"{name}\""));
    let refusal = match node.ty.dtype == ty.dtype {
        true => {
            let shape = |shape: &Shape| {
                let size = |dim: &Dim| dim.known().map_or("None".into(), |n| n.to_string());
                Tuple(&shape.dims().iter().map(size).collect::<Vec<String>>()).to_string()
            };
            error::bad_feed(op, format!("{kind} {name} {}", shape(pattern)), &ty.shape)
        }
        false => error::bad_feed_dtype(op, format!("{kind} {name} {}", node.ty.dtype), ty.dtype),
    };
    Err(noted(refusal, kind, node.site))
}

/// The list that computes `fetches` from nodes of known types, which are checked.
pub fn resolve(
    op: &str,
    trace: &Arc<Trace>,
    fetches: &[Id],
    feeds: &[(Id, Type)],
) -> Result<Resolved> {
    let (list, calls) = trace.snapshot();
    for (id, ty) in feeds {
        check_feed(op, &list, &calls, *id, ty)?;
    }
    let fed: FxHashMap<Id, &Type> = feeds.iter().map(|(id, ty)| (*id, ty)).collect();
    let needs = needs(&list, &calls, fetches, &|id| fed.contains_key(&id));
    let fixed: Vec<bool> = list.nodes.iter().map(|node| is_sized(&node.ty.shape)).collect();
    let (sizes, list, is_open) = sized(op, trace, list, &calls, feeds)?;
    let within = !feeds.iter().all(|(_, ty)| is_sized(&ty.shape));
    in_fresh_trace(trace.device(), |fresh| {
        let numbers = numbers(fresh, &list.numbers, &sizes, within);
        let mut maker = Maker {
            list: &list,
            calls: &calls,
            fresh,
            fixed: &fixed,
            sizes: &sizes,
            numbers: &numbers,
            names: vec![None; list.nodes.len()],
            inputs: Vec::new(),
            is_open,
            within,
        };
        for i in 0..list.nodes.len() {
            let id = Id(i as u32);
            if needs.live[i] && maker.names[i].is_none() {
                match fed.get(&id) {
                    Some(ty) => maker.input(id, (*ty).clone())?,
                    None => maker.node(id)?,
                }
            }
        }
        if maker.is_open || !calls.unresolved.is_empty() {
            // Sizes were put into nodes: those that fit no longer are refused here.
            fresh.read(|graph| match graph.list().refusal() {
                Some((node, error)) => Err(noted(error, node.kind.name(), node.site)),
                None => graph.verify(),
            })?;
        }
        let mut made = fresh.read(|graph| graph.list().clone());
        for id in fetches {
            made.outputs.push(maker.name(*id)?);
        }
        for (id, name) in &list.names {
            if let Some(new) = maker.names[id.0 as usize] {
                made.names.insert(new, name.clone());
            }
        }
        let scope = fresh.scope().clone();
        Ok(Resolved { list: made, inputs: maker.inputs, names: maker.names, scope })
    })
}

/// The numbers that stand among operands of nodes, as far as they are known; a call works out its
/// own again. Where sizes may stay open those of the fresh trace stand for them.
fn numbers(
    fresh: &Trace,
    table: &[Number],
    sizes: &Bindings,
    within: bool,
) -> Vec<Option<Numeric>> {
    let mut found: Vec<Option<Numeric>> = Vec::with_capacity(table.len());
    for number in table {
        let named = |x: Numeric| match x.told() {
            Some(i) => found.get(i as usize).copied().flatten(),
            None => Some(x),
        };
        let number = match *number {
            Number::Input => None,
            Number::Size(dim) => Some(sizes.resolve(dim))
                .filter(|dim| within || dim.known().is_some())
                .map(Number::Size),
            Number::Calculated(how, [a, b]) => match (named(a), named(b)) {
                (Some(a), Some(b)) => Some(Number::Calculated(how, [a, b])),
                _ => None,
            },
        };
        found.push(number.map(|number| fresh.read(|graph| graph.define(number))));
    }
    found
}

/// The sizes that feeds give to symbols, and the list with them. Where two feeds disagree the first
/// one counts: a call on both says what is wrong with them, or that nothing is.
fn sized(
    op: &str,
    trace: &Trace,
    list: List,
    calls: &Calls,
    feeds: &[(Id, Type)],
) -> Result<(Bindings, List, bool)> {
    let mut sizes = Bindings::default();
    for (id, ty) in feeds {
        let pattern = &list.node(*id).ty.shape;
        if !calls.unresolved.contains(id) && pattern.rank() == ty.shape.rank() {
            // What does not fit is looked at below.
            let _ = sizes.fit(pattern, &ty.shape);
            for (axis, (&dim, &n)) in pattern.dims().iter().zip(ty.shape.dims()).enumerate() {
                let other = sizes.resolve(dim);
                if trace.scope().is_declared(dim) && !other.equals(n) {
                    let name =
                        list.names.get(id).map_or(String::new(), |name| format!(" of \"{name}\""));
                    let facts = format!("{dim} is {other}, axis {axis}{name} was fed {n}");
                    return Err(error::bad_shape(op, "feeds disagree on a size", facts));
                }
            }
        }
    }
    let is_open = list.nodes.iter().any(|node| !is_sized(&node.ty.shape));
    let mut list = list;
    if is_open {
        list.each_dim(&mut |dim| *dim = sizes.resolve(*dim));
    }
    Ok((sizes, list, is_open))
}

/// An error with the line of the call that met it.
fn made_at(error: Error, deferred: &DeferredCall) -> Error {
    noted(error, deferred.call.name(), deferred.site)
}

/// An error with the line that made the node it speaks of.
fn noted(error: Error, name: &str, at: Site) -> Error {
    match site::quote(at) {
        Some(line) => error.note(format!("{name} made at {line}")),
        None => error,
    }
}

struct Maker<'a> {
    list: &'a List,
    calls: &'a Calls,
    fresh: &'a Arc<Trace>,
    /// Which nodes had a known shape when they were written
    fixed: &'a [bool],
    /// The sizes of symbols, and the numbers that come of them
    sizes: &'a Bindings,
    numbers: &'a [Option<Numeric>],
    /// The nodes made so far, by those they stand for
    names: Vec<Option<Id>>,
    inputs: Vec<Id>,
    /// Whether nodes had open sizes
    is_open: bool,
    /// Whether they may stay open, since those of the feeds are: another trace is being made
    within: bool,
}

impl Maker<'_> {
    fn name(&self, id: Id) -> Result<Id> {
        self.names[id.0 as usize].ok_or_else(|| {
            let kind = self.list.node(id).kind.name();
            let facts = format!("%{} ({kind}) is part of a call", id.0);
            error::bad_graph("session.run", "fetch or feed the call's result instead", facts)
        })
    }

    /// A number, or what it stands for.
    fn number(&self, value: Numeric) -> Result<Numeric> {
        let Some(i) = value.told() else { return Ok(value) };
        self.numbers.get(i as usize).copied().flatten().ok_or_else(|| {
            let facts = "feed the placeholders it comes from";
            error::bad_graph("session.run", "a size is not known", facts)
        })
    }

    /// A body whose numbers are those of the fresh trace.
    fn body(&self, body: &List) -> Result<List> {
        let mut body = body.clone();
        for node in &mut body.nodes {
            for arg in &mut node.args {
                if let Arg::Number(value) = arg {
                    *value = self.number(*value)?;
                }
            }
            if let Kind::ControlFlow(flow) = &node.kind {
                node.kind = Kind::ControlFlow(self.flow(flow)?);
            }
        }
        body.numbers = self.fresh.read(|graph| graph.list().numbers.clone());
        Ok(body)
    }

    fn flow(&self, flow: &ControlFlow) -> Result<Arc<ControlFlow>> {
        let bodies = flow.bodies.iter().map(|body| self.body(body).map(Arc::new));
        Ok(Arc::new(flow.with_bodies(bodies.collect::<Result<_>>()?)))
    }

    /// That what a scan goes over is of one length was asked when it was made; here it is known.
    fn check_lengths(&self, flow: &ControlFlow, args: &[Arg], at: Site) -> Result<()> {
        let ControlFlowKind::Scan { carry, xs, .. } = flow.kind else { return Ok(()) };
        let rows = args.iter().skip(carry as usize).take(xs as usize);
        let length = |arg: &Arg| self.fresh.type_of(*arg)?.shape.dims().first().copied();
        let lengths: Vec<Dim> = rows.filter_map(length).collect();
        if lengths.windows(2).all(|pair| pair[0].equals(pair[1])) {
            return Ok(());
        }
        let refusal = error::bad_shape("scan", "lengths differ", Tuple(&lengths));
        Err(noted(refusal, "scan", at))
    }

    fn input(&mut self, id: Id, ty: Type) -> Result<()> {
        let node = self.list.node(id);
        let value = site::pinned(node.site, || self.fresh.input(ty))?;
        self.names[id.0 as usize] = Some(self.fresh.node("input", &value)?);
        self.inputs.push(id);
        Ok(())
    }

    fn node(&mut self, id: Id) -> Result<()> {
        if let Some(deferred) = self.calls.making(self.list, id) {
            return self.call(deferred);
        }
        let node = self.list.node(id);
        if let Kind::Input = node.kind {
            return self.input(id, node.ty.clone());
        }
        let mut args = graph::Args::new();
        for arg in &node.args {
            args.push(match arg {
                Arg::Node(id) => Arg::Node(self.name(*id)?),
                Arg::Number(value) => Arg::Number(self.number(*value)?),
            });
        }
        if let (Kind::Barrier, Some(Arg::Node(of))) = (&node.kind, args.first()) {
            // An assignment: a name for the value.
            self.names[id.0 as usize] = Some(*of);
            return Ok(());
        }
        let is_open = !node.ty.shape.dims().iter().all(|dim| dim.is_counted());
        if is_open && !self.within {
            let facts = format!("{} of {}", node.kind.name(), node.ty.shape);
            return Err(error::bad_graph("session.run", "a size is not known", facts));
        }
        let kind = match &node.kind {
            Kind::ControlFlow(flow) => {
                self.check_lengths(flow, &args, node.site)?;
                Kind::ControlFlow(self.flow(flow)?)
            }
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => node.kind.clone(),
        };
        let ty = node.ty.clone();
        let new = self.fresh.with_graph(|graph| {
            graph.at(node.site);
            graph.push(kind, args, ty)
        });
        self.names[id.0 as usize] = Some(new);
        Ok(())
    }

    /// Makes a call again: its results, and its other nodes where they came out the same way.
    fn call(&mut self, deferred: &DeferredCall) -> Result<()> {
        let mut given = Vec::with_capacity(deferred.args.len());
        for arg in &deferred.args {
            given.push(match arg {
                Arg::Number(value) => Given::Scalar(self.number(*value)?),
                Arg::Node(id) => Given::Value(self.fresh.value(self.name(*id)?)),
            });
        }
        let start = self.fresh.read(|graph| graph.len());
        let values =
            site::pinned(deferred.site, || make(self.fresh, &deferred.call, &given, self.sizes));
        let values = values.map_err(|error| made_at(error, deferred))?;
        if values.len() != deferred.results.len() {
            let what = "the size that says how many results there are";
            return Err(made_at(error::unknown_size(deferred.call.name(), what), deferred));
        }
        let end = self.fresh.read(|graph| graph.len());
        if end - start == deferred.nodes.len() {
            for (new, old) in (start..end).zip(deferred.nodes.clone()) {
                let same = self.fresh.read(|graph| {
                    let name = graph.nodes()[new].kind.name();
                    name == self.list.nodes[old as usize].kind.name()
                });
                let place = &mut self.names[old as usize];
                if same && place.is_none() {
                    *place = Some(Id(new as u32));
                }
            }
        }
        for (value, old) in values.iter().zip(&deferred.results) {
            let new = self.fresh.node(deferred.call.name(), value)?;
            let ty = &self.list.node(*old).ty;
            let doubted = self.calls.unresolved.contains(old) || self.calls.likely.contains(old);
            let was_known = !doubted && self.fixed[old.0 as usize];
            if was_known && (!ty.shape.equals(value.shape()) || ty.dtype != value.dtype()) {
                // Nodes were written that rely on it.
                let facts = format!("got shape {}, wanted {}", value.shape(), ty.shape);
                let error =
                    error::bad_shape(deferred.call.name(), "another result was expected", facts);
                return Err(made_at(error, deferred));
            }
            // A fed result keeps what it was fed.
            if !self.inputs.contains(old) {
                self.names[old.0 as usize] = Some(new);
            }
        }
        Ok(())
    }
}

/// The nodes that `outputs` need, from `inputs` on: a graph of its own, and where they came from.
pub fn part(trace: &Trace, outputs: &[Id], inputs: &[Id]) -> (Arc<Trace>, Vec<Id>) {
    let (list, calls) = trace.snapshot();
    let cut: FxHashSet<Id> = inputs.iter().copied().collect();
    let needs = needs(&list, &calls, outputs, &|id| cut.contains(&id));
    let mut live = needs.live;
    inputs.iter().for_each(|id| live[id.0 as usize] = true);
    // A call's nodes stay together.
    let used = |deferred: &&DeferredCall| {
        deferred.nodes.clone().any(|i| live[i as usize] && !cut.contains(&Id(i)))
    };
    let deferred_calls: Vec<DeferredCall> = calls.deferred.iter().filter(used).cloned().collect();
    for deferred in &deferred_calls {
        deferred.nodes.clone().for_each(|i| live[i as usize] = true);
    }
    let kept: Vec<Id> =
        (0..list.nodes.len() as u32).map(Id).filter(|id| live[id.0 as usize]).collect();
    let mut place = vec![Id(0); list.nodes.len()];
    kept.iter().enumerate().for_each(|(new, old)| place[old.0 as usize] = Id(new as u32));
    let moved = |arg: &Arg| match arg {
        Arg::Node(id) => Arg::Node(place[id.0 as usize]),
        scalar => *scalar,
    };
    let mut part = List { numbers: list.numbers.clone(), ..List::default() };
    for id in &kept {
        let mut node = list.node(*id).clone();
        if cut.contains(id) {
            node.kind = Kind::Input;
            node.args.clear();
        }
        node.args.iter_mut().for_each(|arg| *arg = moved(arg));
        part.nodes.push(node);
    }
    let is_kept = |id: &Id| live[id.0 as usize];
    let names = list.names.iter().filter(|(id, _)| is_kept(id));
    part.names = names.map(|(id, name)| (place[id.0 as usize], name.clone())).collect();
    part.outputs = outputs.iter().map(|id| place[id.0 as usize]).collect();
    let moved_call = |deferred: &DeferredCall| DeferredCall {
        args: deferred.args.iter().map(&moved).collect(),
        nodes: place[deferred.nodes.start as usize].0
            ..place[deferred.nodes.start as usize].0 + deferred.nodes.len() as u32,
        results: deferred.results.iter().map(|id| place[id.0 as usize]).collect(),
        ..deferred.clone()
    };
    let ids = |of: &FxHashSet<Id>| -> FxHashSet<Id> {
        of.iter().filter(|id| is_kept(id)).map(|id| place[id.0 as usize]).collect()
    };
    let calls = Calls {
        deferred: deferred_calls.iter().map(moved_call).collect(),
        unresolved: ids(&calls.unresolved),
        likely: ids(&calls.likely),
    };
    let keys = ids(&trace.keys());
    (define(trace.device(), part, calls, keys, trace.scope().clone()), kept)
}
