//! Graphs defined by hand: calls on sizes that are not known yet, and the lists that run once they
//! are.
//!
//! A placeholder may leave sizes open, or its rank. A call on such a value is *deferred*: which
//! function, which attributes, which operands. Where the sizes are symbols its nodes are written as
//! well, so that shapes are checked and shown; where even the rank is open, or a formula needs a
//! number that nobody knows, the result is *unresolved*: a node without a shape. A run says all
//! sizes: the calls are made again on values of known types in a fresh trace, op by op as eager
//! code would, and give the list that runs. So nothing that is computed depends on what was guessed
//! before.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use rustc_hash::FxHashSet;

use super::context;
use super::eager::{Traced, given};
use super::executors::Device;
use super::tape::{Operand, Results, Value};
use super::trace::{self, Called, Dispatch, Trace, Values, is_sized};
pub use super::trace::{Call, Calls, DeferredCall};
use super::{site, tape};
use crate::error::{self, Result};
use crate::graph::List;
use crate::ops::declare::Returns;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::Op;
use crate::shape::Scope;

mod gradients;
mod make;
mod probe;
pub mod resolve;

pub use gradients::gradients;
pub use make::{Given, check_assign, in_fresh_trace, make};

use probe::{Likely, probe, unresolved};

/// Runs something as part of a call.
fn inside<T>(f: impl FnOnce() -> T) -> T {
    let _within = context::replace(|context| &context.within_call, true);
    f()
}

/// A graph defined by hand that goes on from a list, with its calls and random keys.
pub fn define(
    device: Device,
    list: List,
    calls: Calls,
    keys: FxHashSet<Id>,
    scope: Scope,
) -> Arc<Trace> {
    Trace::define(&Deferred, device, list, calls, keys, scope)
}

/// The way of a graph defined by hand: the trace on top keeps calls until a run makes them.
struct Deferred;

impl Dispatch for Deferred {
    fn op(&self, op: &Op, args: &[Operand<'_>]) -> Result<Results> {
        let native = || Ok(Traced.op(op, args)?.into_iter().map(Value::plain).collect());
        let values = defer(&on_top()?, Call::Op(op.clone()), args, native)?;
        Ok(values.into_iter().map(|value| value.array).collect())
    }

    fn composite(&self, called: &Called<'_>) -> Result<Values> {
        let call = Call::Composite(called.composite, called.attributes.into());
        let native = || Traced.composite(called).map(|all| given(called.composite, all));
        defer(&on_top()?, call, called.operands, native)
    }

    fn whole(
        &self,
        call: &dyn Fn() -> Call,
        operands: &[Operand<'_>],
        make: &mut dyn FnMut() -> Result<Values>,
    ) -> Result<Values> {
        defer(&on_top()?, call(), operands, make)
    }
}

fn on_top() -> Result<Arc<Trace>> {
    trace::top().ok_or_else(|| error::internal("no graph is open"))
}

/// Defers a call; `native` writes its nodes where ranks are known.
pub fn defer(
    trace: &Arc<Trace>,
    call: Call,
    operands: &[Operand<'_>],
    native: impl FnOnce() -> Result<SmallVec<[Value; 1]>>,
) -> Result<SmallVec<[Value; 1]>> {
    let mut args = Vec::with_capacity(operands.len());
    for operand in operands {
        args.push(match operand {
            Operand::Scalar(value) => Arg::Number(*value),
            Operand::Value(value) => Arg::Node(operand_of(trace, &call, value)?),
        });
    }
    let is_unresolved = |arg: &Arg| matches!(arg, Arg::Node(id) if trace.is_unresolved(*id));
    let start = trace.read(|graph| graph.len()) as u32;
    let asked = trace.scope().asked();
    let mut found = None;
    if !args.iter().any(is_unresolved) {
        // What unwinds inside, as formulas do, comes back as a value.
        match catch(|| inside(native)).and_then(|result| result) {
            Ok(values) => {
                let is_one = match &call {
                    Call::Composite(composite, _) => composite.returns == Returns::One,
                    Call::Op(_) | Call::Get(_) | Call::Set(_) | Call::Assign(_) => true,
                    Call::Gradients { .. } => values.len() == 1,
                };
                // How many results there are must not rest on what is likely.
                let likely = match trace.scope().asked() > asked && !is_one {
                    true => probe(trace, &call, &args),
                    false => Ok(Likely::new()),
                };
                match likely {
                    Ok(likely) if !likely.is_empty() && likely.len() != values.len() => {
                        trace.forget_from(start);
                    }
                    Err(error) if error.code() == "unknown_size" => return Err(error),
                    // Where no size that was tried fits, the count does not rest on them.
                    Ok(_) | Err(_) => found = Some(own(trace, start, values)?),
                }
            }
            // What was refused because of a likely size may be right for the size that comes.
            Err(error) if error.code() == "unknown_size" || trace.scope().asked() > asked => {
                trace.forget_from(start);
            }
            Err(error) => return Err(error),
        }
    }
    let values = match found {
        Some(values) => values,
        None => unresolved(trace, &call, &args)?,
    };
    let mut results = SmallVec::new();
    for value in &values {
        results.push(trace.node(call.name(), value)?);
    }
    let end = trace.read(|graph| graph.len()) as u32;
    let nodes = start..end;
    match &call {
        // A gradient has the type of what it is the gradient of, whatever came between.
        Call::Gradients { ys, xs, kept, .. } => {
            let by = args[*ys..ys + xs].iter().zip(kept).filter(|(_, kept)| **kept);
            for ((x, _), result) in by.zip(&results) {
                let is_open = |id: Id| {
                    let ty = trace.type_of(Arg::Node(id));
                    trace.is_uncertain(id) || ty.is_some_and(|ty| !is_sized(&ty.shape))
                };
                if matches!(x, Arg::Node(id) if is_open(*id)) {
                    trace.doubt(*result);
                }
            }
        }
        Call::Assign(_) => {}
        Call::Op(_) | Call::Composite(..) | Call::Get(_) | Call::Set(_) => {
            results.iter().for_each(|id| trace.doubt(*id));
            if trace.is_no_grad() {
                trace.mark_no_grad(&results);
            }
        }
    }
    trace.defer(DeferredCall { call, args, nodes, results, site: site::current() });
    Ok(values)
}

/// The node of an operand; one that was made without recording passes no gradient on to a call that
/// is recorded.
fn operand_of(trace: &Arc<Trace>, call: &Call, value: &Value) -> Result<Id> {
    let id = trace.node(call.name(), value)?;
    let stop = Op::Map(&arithmetic::stop_gradient);
    let is_stop = matches!(call, Call::Op(op) if *op == stop);
    match trace.stop_of(id).filter(|_| tape::recording() && !is_stop) {
        None => Ok(id),
        Some(Some(known)) => Ok(known),
        Some(None) => {
            let operand = [Operand::Value(value)];
            let native = || Ok(Value::plain(trace::emit(stop.clone(), &operand)?));
            let again = Call::Op(stop.clone());
            let stopped =
                defer(trace, again, &operand, || Ok(smallvec![native()?]))?.swap_remove(0);
            trace.stopped(id, trace.node(call.name(), &stopped)?)
        }
    }
}

/// Results that are nodes of the call: one that is an operand as it is may be another value when
/// the call is made again.
fn own(
    trace: &Arc<Trace>,
    start: u32,
    values: SmallVec<[Value; 1]>,
) -> Result<SmallVec<[Value; 1]>> {
    let mut out = SmallVec::new();
    for mut value in values {
        let id = trace.node("graph", &value)?;
        if id.0 < start {
            let op = Op::Reshape(value.shape().clone());
            value.array = trace.add(|graph| catch(|| graph.emit(op, &[Arg::Node(id)])))?;
        }
        out.push(value);
    }
    Ok(out)
}
