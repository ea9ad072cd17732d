//! Composites replaced by their formulas.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{carry_over, map_bodies, renamed};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::graph::{Graph, Kind, List, Node};
use crate::ops::declare::{Arguments, Composite};
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::{Call, Op, Type};
use crate::shape::Shape;

/// Which composites stay calls, because the device has kernels for them.
pub type Kernels<'a> = &'a dyn Fn(&'static Composite) -> bool;

/// The same values without call nodes.
pub fn expand(graph: &Graph) -> Result<Graph> {
    expand_for(graph, &|_| false)
}

/// The same values without calls of composites that have no kernel.
pub fn expand_for(graph: &Graph, kernels: Kernels<'_>) -> Result<Graph> {
    let body = |body: &Graph| expand_for(body, kernels);
    expand_where(graph, &|_, call| !kernels(call.composite), &body)
}

/// The same values without the calls of which `expands` says so, by position; bodies of control
/// flow become what `body` makes of them.
pub fn expand_where(
    graph: &Graph,
    expands: &dyn Fn(usize, &Call) -> bool,
    body: &dyn Fn(&Graph) -> Result<Graph>,
) -> Result<Graph> {
    let out = Graph::with_numbers_of(graph);
    let mut names: Vec<Id> = Vec::with_capacity(graph.len());
    // The results of expanded calls that have several.
    let mut results: FxHashMap<Id, Results> = FxHashMap::default();
    for (i, node) in graph.nodes().iter().enumerate() {
        out.at(node.site);
        let args = renamed(&node.args, &names);
        names.push(match &node.kind {
            Kind::Input => out.input(node.ty.clone()),
            Kind::Op(Op::Call(call)) if expands(i, call) => {
                let found = formula(&out, call, &args, &node.ty)?;
                let first = found[0];
                if found.len() > 1 {
                    results.insert(Id(i as u32), found);
                }
                first
            }
            Kind::Result(k) if node.reads().any(|of| results.contains_key(&of)) => {
                let of = node.reads().next();
                let found = of.and_then(|of| results[&of].get(*k as usize).copied());
                found.ok_or_else(|| error::internal("a call gives fewer results than are read"))?
            }
            Kind::ControlFlow(flow) => {
                let flow = Arc::new(map_bodies(flow, body)?);
                out.push(Kind::ControlFlow(flow), args.into_iter().collect(), node.ty.clone())
            }
            Kind::Op(_) | Kind::Constant(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
                out.push(node.kind.clone(), args.into_iter().collect(), node.ty.clone())
            }
        });
    }
    carry_over(graph, &out, &names);
    Ok(out)
}

/// Whether a list, or a body in it, has calls to expand.
pub fn has_calls(list: &List, kernels: Kernels<'_>) -> bool {
    list.nodes.iter().any(|node| match &node.kind {
        Kind::Op(op) => matches!(op, Op::Call(call) if !kernels(call.composite)),
        Kind::ControlFlow(flow) => flow.bodies.iter().any(|body| has_calls(body, kernels)),
        Kind::Input | Kind::Constant(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
            false
        }
    })
}

/// The formula of a call node alone, over inputs of the given types.
pub fn expanded(node: &Node, types: &[&Type]) -> Result<List> {
    let Kind::Op(Op::Call(call)) = &node.kind else {
        return Err(error::internal("only calls have formulas"));
    };
    let graph = Graph::new();
    let mut types = types.iter();
    let args: Vec<Arg> = node
        .args
        .iter()
        .filter_map(|arg| match arg {
            Arg::Node(_) => types.next().map(|&ty| Arg::Node(graph.input(ty.clone()))),
            &number => Some(number),
        })
        .collect();
    formula(&graph, call, &args, &node.ty)?.into_iter().for_each(|y| graph.output(y));
    Ok(graph.into_list())
}

/// The results of a formula.
type Results = SmallVec<[Id; 2]>;

/// Emits the formula of a call, whose first result has this type.
fn formula(out: &Graph, call: &Call, args: &[Arg], ty: &Type) -> Result<Results> {
    let is_open = |arg: &Arg| matches!(arg, Arg::Number(value) if value.told().is_some());
    if args.iter().any(is_open) && looks(out, call, args, ty)? {
        // The formula would decide by a number that is not known yet. It gets a tensor instead,
        // whose value it cannot read.
        let dtype = if ty.dtype.is_float() { ty.dtype } else { DType::F32 };
        let fill = |arg: &Arg| match is_open(arg) {
            true => Expr::new(out, *arg).full(dtype, Shape::scalar()).arg(),
            false => *arg,
        };
        let args: Vec<Arg> = catch(|| args.iter().map(fill).collect())?;
        return emit(out, call, &args, ty);
    }
    emit(out, call, args, ty)
}

fn emit(out: &Graph, call: &Call, args: &[Arg], ty: &Type) -> Result<Results> {
    let arguments = Arguments { cx: out, attributes: &call.attributes, operands: args };
    let found: Results =
        catch(|| call.composite.formula(&arguments).iter().map(|x| x.node()).collect::<Results>())?;
    match out.ty(found[0]).equals(ty) {
        true => Ok(found),
        false => Err(error::internal(format!("{} changes its type", call.composite.name))),
    }
}

/// Whether a formula looks at the values of its numbers, instead of only passing them on.
fn looks(out: &Graph, call: &Call, args: &[Arg], ty: &Type) -> Result<bool> {
    let trial = Graph::with_numbers_of(out);
    let stand_in = |arg: &Arg| match *arg {
        Arg::Node(id) => Arg::Node(trial.input(out.ty(id))),
        number => number,
    };
    let args: Vec<Arg> = args.iter().map(stand_in).collect();
    emit(&trial, call, &args, ty)?;
    let looked = !trial.looked().is_empty();
    Ok(looked)
}
