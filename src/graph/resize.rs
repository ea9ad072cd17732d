//! A list for other sizes: its symbols replaced.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{ControlFlow, ControlFlowKind, Graph, Kind, List, Node};
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::Result;
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::ops::op::Op;
use crate::shape::{Bindings, Dim, Scope};

/// The same list with sizes for its symbols: in types, attributes and numbers, in bodies too. Sizes
/// that become known become constants, so that with all symbols bound this is the list that the
/// same program makes for these sizes. Whether a list may have these sizes is up to its
/// constraints, which are not checked here.
pub fn resize(list: &List, sizes: &Bindings) -> Result<List> {
    let graph = Graph::new();
    let inputs: Vec<Numeric> = (list.numbers.iter())
        .filter(|number| matches!(number, Number::Input))
        .map(|_| graph.define(Number::Input))
        .collect();
    let names = graph.import_numbers(&list.numbers, &inputs, sizes)?;
    let mut out = List { numbers: graph.into_list().numbers, ..list.clone() };
    out.each_dim(&mut |dim| *dim = sizes.resolve(*dim));
    let counts = whole_counts(list);
    out.rename_numbers(&names);
    let numbers = out.numbers.clone();
    out.nodes.iter_mut().for_each(|node| in_bodies(node, &numbers));
    Ok(inlined(out, &counts))
}

/// Bodies share the table of the list around them.
fn in_bodies(node: &mut Node, numbers: &[Number]) {
    let Kind::ControlFlow(flow) = &node.kind else { return };
    let mut bodies = SmallVec::new();
    for body in &flow.bodies {
        let mut body = List { numbers: numbers.to_vec(), ..(**body).clone() };
        body.nodes.iter_mut().for_each(|node| in_bodies(node, numbers));
        bodies.push(Arc::new(body));
    }
    node.kind = Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)));
}

impl List {
    /// Visits every size in types and attributes, in bodies too, but not the sizes in numbers.
    pub fn each_dim(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        for node in &mut self.nodes {
            node.ty.each_dim(&mut *f);
            match &mut node.kind {
                Kind::Op(op) => op.each_dim(&mut *f),
                Kind::ControlFlow(flow) => *flow = Arc::new(with_each_dim(flow, f)),
                Kind::Input
                | Kind::Constant(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => {}
            }
        }
    }

    /// The symbols that occur in the list.
    pub fn symbols(&self) -> Vec<Dim> {
        let (mut list, mut seen, mut found) = (self.clone(), FxHashSet::default(), Vec::new());
        let mut visit = |dim: Dim| {
            if dim.known().is_none() && seen.insert(dim.key()) {
                found.extend(dim.symbols());
            }
        };
        list.each_dim(&mut |dim| visit(*dim));
        for number in &self.numbers {
            if let Number::Size(dim) = number {
                visit(*dim);
            }
        }
        found.sort_unstable_by_key(|dim| dim.key());
        found.dedup_by_key(|dim| dim.key());
        found
    }

    /// A scope for this list alone. It knows nothing of the symbols and keeps the list's
    /// expressions.
    pub fn scope(&self) -> Scope {
        let (scope, mut list) = (Scope::owner(), self.clone());
        list.each_dim(&mut |dim| scope.keeper().keep(*dim));
        for number in &self.numbers {
            if let Number::Size(dim) = number {
                scope.keeper().keep(*dim);
            }
        }
        scope
    }
}

fn with_each_dim(flow: &ControlFlow, f: &mut dyn FnMut(&mut Dim)) -> ControlFlow {
    let mut kind = flow.kind.clone();
    if let ControlFlowKind::Scan { length, .. } = &mut kind {
        f(length);
    }
    let mut results = flow.results.clone();
    results.iter_mut().for_each(|ty| ty.each_dim(&mut *f));
    let mut bodies = SmallVec::new();
    for body in &flow.bodies {
        let mut body = (**body).clone();
        body.each_dim(f);
        bodies.push(Arc::new(body));
    }
    ControlFlow { kind, bodies, results }
}

/// The nodes that are counts used with integers (`Expr::whole`): an int64 without axes filled with
/// a number, which only elementwise ops read.
fn whole_counts(list: &List) -> Vec<bool> {
    let is_count = |node: &Node| {
        let fills = matches!(&node.kind, Kind::Op(Op::Full(ty)) if ty.dtype == DType::I64);
        fills
            && node.ty.shape.rank() == 0
            && matches!(node.args[0], Arg::Number(value) if value.told().is_some())
    };
    let mut counts: Vec<bool> = list.nodes.iter().map(is_count).collect();
    for node in list.nodes.iter().filter(|node| !matches!(node.kind, Kind::Op(Op::Map(_)))) {
        for arg in &node.args {
            if let Arg::Node(id) = arg {
                counts[id.0 as usize] = false;
            }
        }
    }
    list.outputs.iter().for_each(|id| counts[id.0 as usize] = false);
    counts
}

/// Replaces the nodes of counts that are known now by the counts.
fn inlined(list: List, counts: &[bool]) -> List {
    let mut out = List { numbers: list.numbers, ..List::default() };
    let mut names: Vec<Arg> = Vec::with_capacity(list.nodes.len());
    for (i, mut node) in list.nodes.into_iter().enumerate() {
        if let (true, Arg::Number(Numeric::Known(Scalar::Float(n)))) =
            (counts[i], *node.args.first().unwrap_or(&NONE))
            && n.is_finite()
        {
            names.push(Arg::Number(Scalar::Int(n as i64).into()));
            continue;
        }
        for arg in &mut node.args {
            if let Arg::Node(id) = arg {
                *arg = names[id.0 as usize];
            }
        }
        names.push(Arg::Node(Id(out.nodes.len() as u32)));
        out.nodes.push(node);
    }
    let named = |id: &Id| match names[id.0 as usize] {
        Arg::Node(id) => Some(id),
        Arg::Number(_) => None,
    };
    out.outputs = list.outputs.iter().filter_map(named).collect();
    for (id, name) in &list.names {
        if let Some(id) = named(id) {
            out.names.insert(id, name.clone());
        }
    }
    out
}

const NONE: Arg = Arg::Number(Numeric::Known(Scalar::Bool(false)));
