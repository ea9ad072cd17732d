//! Calls of the host: run at once, and on the tape.
//!
//! The rule of an op is a list of nodes, so its gradient is recorded or traced as that list is.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::interpret;
use crate::array::Array;
use crate::engine::executors;
use crate::engine::site::{self, Site};
use crate::engine::tape::{self, Entry, History, HostRule, Value, record_host};
use crate::engine::trace;
use crate::error::{self, Result};
use crate::graph::{ControlFlow, Formula, Host, Signature};
use crate::ops::op::Type;

/// A call outside of traces: its results, with a history where a gradient is wanted.
pub fn call(op: &Host, flow: &ControlFlow, args: Vec<Value>) -> Result<Vec<Value>> {
    let record = tape::recording();
    if record {
        check_rule(op, flow, &args)?;
    }
    let arrays = arrays(&args);
    let device = executors::common(op.name(), &arrays)?;
    let found = executors::execute_host(op, &arrays, &flow.results, device)?;
    let found = found.into_iter().map(Value::plain).collect();
    if record { recorded(op, flow, &args, found) } else { Ok(found) }
}

fn arrays(values: &[Value]) -> Vec<Array> {
    values.iter().map(|value| value.array.clone()).collect()
}

/// Whether a gradient can flow from a result to an operand.
fn flows(flow: &ControlFlow, args: &[Value]) -> bool {
    args.iter().any(Value::requires_grad) && flow.results.iter().any(|ty| ty.dtype.is_float())
}

/// Refuses a call through which a gradient is wanted and cannot flow.
pub fn check_rule(op: &Host, flow: &ControlFlow, args: &[Value]) -> Result<()> {
    match flows(flow, args) && !op.0.has_vjp() {
        true => Err(op.without_gradient()),
        false => Ok(()),
    }
}

/// The results of a call, with a history where a gradient is wanted.
pub fn recorded(
    op: &Host,
    flow: &ControlFlow,
    args: &[Value],
    found: Vec<Value>,
) -> Result<Vec<Value>> {
    if !flows(flow, args) {
        return Ok(found);
    }
    let operands = args.iter().map(|x| Type::new(x.dtype(), x.shape().clone())).collect();
    let results = arrays(&found);
    let call = Arc::new(Call {
        op: op.clone(),
        signature: Signature { operands, results: flow.results.clone() },
        wanted: args.iter().map(|x| x.requires_grad() && x.dtype().is_float()).collect(),
        saved: Mutex::new(Saved::Kept(arrays(args), results.clone())),
        entry: OnceLock::new(),
    });
    let values = record_host(call.clone(), args, results.into());
    let entry = values.iter().find_map(|value| match &value.history {
        History::Entry(entry, _) => Some(Arc::downgrade(entry)),
        History::None | History::Leaf(_) => None,
    });
    if let Some(entry) = entry {
        let _ = call.entry.set(entry);
    }
    Ok(values.into_vec())
}

/// A call whose gradient may be wanted.
struct Call {
    op: Host,
    signature: Signature,
    wanted: Vec<bool>,
    saved: Mutex<Saved>,
    entry: OnceLock<Weak<Entry>>,
}

/// What the rule reads, until a backward has used it up.
enum Saved {
    /// Operands and results
    Kept(Vec<Array>, Vec<Array>),
    Freed(Site),
}

impl Call {
    /// Operands and results as a rule reads them whose work is recorded: with their history.
    fn with_history(&self, operands: Vec<Array>, results: Vec<Array>) -> Result<Vec<Value>> {
        let Some(entry) = self.entry.get().and_then(Weak::upgrade) else {
            return Err(error::internal("a call without an entry"));
        };
        let linked = operands.into_iter().zip(&entry.links);
        let mut all: Vec<Value> =
            linked.map(|(array, link)| Value { array, history: link.history() }).collect();
        for (k, array) in results.into_iter().enumerate() {
            all.push(match array.dtype.is_float() {
                true => Value { array, history: History::Entry(entry.clone(), k as u32) },
                false => Value::plain(array),
            });
        }
        Ok(all)
    }
}

/// The results of a formula, recorded or traced as other steps are.
fn run(formula: &Formula, mut inputs: Vec<Value>) -> Result<Vec<Value>> {
    for outside in &formula.outside {
        let value = outside.downcast_ref::<Value>();
        inputs.push(value.cloned().ok_or_else(|| error::internal("a rule reads no value"))?);
    }
    let numbers = match trace::top() {
        Some(trace) => trace.read(|graph| graph.numbers_of(&formula.list)),
        None => Vec::new(),
    };
    interpret(&formula.list, inputs, &numbers)
}

impl HostRule for Call {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, given: &[Option<Value>], record: bool) -> Result<Vec<Option<Value>>> {
        let (operands, results) = match &*self.saved.lock() {
            Saved::Kept(operands, results) => (operands.clone(), results.clone()),
            Saved::Freed(by) => {
                let first = site::describe(*by).map_or(String::new(), |line| format!(" at {line}"));
                return Err(error::freed("backward", self.op.name(), first));
            }
        };
        let _on = executors::common(self.op.name(), &operands)?.enter();
        let mut has: Vec<bool> = given.iter().map(Option::is_some).collect();
        has.resize(results.len(), false);
        let formula = self.op.vjp(&self.signature, &has, &self.wanted)?;
        let mut inputs = match record {
            true => self.with_history(operands, results)?,
            false => operands.into_iter().chain(results).map(Value::plain).collect(),
        };
        inputs.extend(given.iter().flatten().cloned());
        let found = run(&formula, inputs)?;
        Ok(formula.places.iter().map(|place| place.map(|i| found[i].clone())).collect())
    }

    fn release(&self, by: Site) {
        let before = std::mem::replace(&mut *self.saved.lock(), Saved::Freed(by));
        drop(before);
    }
}
