//! Gradients of nodes of graphs defined by hand.

use std::sync::Arc;

use smallvec::SmallVec;

use super::resolve;
use super::{Call, defer};
use crate::engine::tape::{Operand, Value};
use crate::engine::trace::{Trace, is_sized};
use crate::error::{self, Result};
use crate::graph::{Kind, List};
use crate::ops::emit::{Arg, Id, catch};
use crate::passes;

/// Gradients of nodes of a graph by nodes of it; `None` where nothing depends on one.
pub fn gradients(
    trace: &Arc<Trace>,
    ys: &[Value],
    xs: &[Value],
    seeds: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let _entered = trace.enter();
    let op = "gradients";
    let name = |values: &[Value]| -> Result<Vec<Id>> {
        values.iter().map(|value| trace.node(op, value)).collect()
    };
    let (y_ids, x_ids) = (name(ys)?, name(xs)?);
    let given: Vec<Value> = seeds.iter().flatten().cloned().collect();
    let seed_ids = name(&given)?;
    let seeded: Vec<bool> = seeds.iter().map(Option::is_some).collect();
    let kept = depends(trace, &y_ids, &x_ids);
    let operands: Vec<Operand<'_>> =
        ys.iter().chain(xs).chain(&given).map(Operand::Value).collect();
    let open = {
        let (list, calls) = trace.snapshot();
        let live = resolve::needs(&list, &calls, &y_ids, &|_| false).live;
        let is_open = |i: &usize| {
            let id = Id(*i as u32);
            live[*i]
                && (calls.of(id).is_some()
                    || calls.unresolved.contains(&id)
                    || calls.likely.contains(&id)
                    || !is_sized(&list.nodes[*i].ty.shape))
        };
        (0..live.len()).any(|i| is_open(&i))
    };
    let native = || -> Result<SmallVec<[Value; 1]>> {
        let found = differentiate(trace, &y_ids, &x_ids, &seed_ids, &seeded)?;
        let mut values = SmallVec::new();
        for ((g, x), _) in found.into_iter().zip(&x_ids).zip(&kept).filter(|(_, kept)| **kept) {
            values.push(match g {
                Some(g) => trace.value(g),
                None => zeros(trace, *x)?,
            });
        }
        Ok(values)
    };
    let call =
        Call::Gradients { ys: ys.len(), xs: xs.len(), seeded: seeded.clone(), kept: kept.clone() };
    trace.check_open()?;
    let mut values = match open {
        true => defer(trace, call, &operands, native)?,
        false => native()?,
    }
    .into_iter();
    Ok(kept.iter().map(|kept| if *kept { values.next() } else { None }).collect())
}

/// Which of `xs` some of `ys` depend on.
fn depends(trace: &Arc<Trace>, ys: &[Id], xs: &[Id]) -> Vec<bool> {
    let calls = trace.calls();
    let is_between = |list: &List, x: Id| {
        let mut reached = vec![false; list.nodes.len()];
        reached[x.0 as usize] = true;
        for i in x.0 as usize + 1..list.nodes.len() {
            let id = Id(i as u32);
            let node = &list.nodes[i];
            let passes = |k: usize| match (&node.kind, calls.of(id).map(|deferred| &deferred.call))
            {
                (Kind::Op(op), _) | (Kind::Input, Some(Call::Op(op))) => op.differentiable(k),
                _ => true,
            };
            reached[i] = (node.ty.dtype.is_float() || matches!(node.kind, Kind::ControlFlow(_)))
                && calls.args(list, id).iter().enumerate().any(|(k, arg)| {
                    matches!(arg, Arg::Node(id) if reached[id.0 as usize]) && passes(k)
                });
        }
        ys.iter().any(|y| reached[y.0 as usize])
    };
    trace.read(|graph| xs.iter().map(|x| is_between(&graph.list(), *x)).collect())
}

/// Appends gradients of nodes by nodes; scalars have an implicit seed.
pub(super) fn differentiate(
    trace: &Arc<Trace>,
    ys: &[Id],
    xs: &[Id],
    seeds: &[Id],
    seeded: &[bool],
) -> Result<Vec<Option<Id>>> {
    let mut seeds = seeds.iter();
    let mut pairs = Vec::with_capacity(ys.len());
    for (y, seeded) in ys.iter().zip(seeded) {
        let ty = trace.read(|graph| graph.list().node(*y).ty.clone());
        if !ty.dtype.is_float() {
            return Err(error::gradient_dtype("gradients", ty.dtype));
        }
        let seed = if *seeded { seeds.next() } else { None };
        pairs.push(match seed {
            Some(seed) => {
                let got = trace.read(|graph| graph.list().node(*seed).ty.shape.clone());
                if !got.equals(&ty.shape) {
                    let facts = format!("got {got} for an output of shape {}", ty.shape);
                    let what = "the gradient's shape differs from the output's";
                    return Err(error::bad_shape("gradients", what, facts));
                }
                (*y, Arg::Node(*seed))
            }
            None => {
                if ty.shape.dims().iter().any(|d| d.known().is_some_and(|n| n != 1)) {
                    let facts = format!("got shape {}; pass the cotangents", ty.shape);
                    let what = "only a scalar output has an implicit gradient";
                    return Err(error::gradient("gradients", what, facts));
                }
                (*y, Arg::Number(1.0.into()))
            }
        });
    }
    trace.with_graph(|graph| passes::gradients(graph, &pairs, xs))
}

/// Zeros of a node's type.
pub(super) fn zeros(trace: &Arc<Trace>, id: Id) -> Result<Value> {
    let ty = trace.read(|graph| graph.list().node(id).ty.clone());
    Ok(Value::plain(trace.add(|graph| {
        catch(|| {
            let zero = crate::ops::emit::Expr::new(graph, Arg::Number(0.0.into()));
            match zero.full(ty.dtype, ty.shape).arg() {
                Arg::Node(id) => Ok(id),
                Arg::Number(_) => Err(error::internal("a tensor is a node")),
            }
        })?
    })?))
}
