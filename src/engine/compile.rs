//! Captured functions, compiled: the end of a trace, with its gradient and what may be written
//! over.
//!
//! A trace ends in the values that the function returned, then those that it gave to handles and
//! gradients. Where a returned value leads to an input that wants a gradient, the backward nodes
//! are appended by the tape that the trace kept, and the list is cut in two. A handle's old value
//! may be written over by its new one.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::backward::{self, Options};
use super::call;
use super::executors::Device;
use super::frozen::{Flowing, Frozen, with_constants};
use super::program::{Program, cut};
use super::tape::{self, First, History, Leaf, Value};
use super::trace::{self, Capture, Source, Trace};
use crate::array::Array;
use crate::error;
use crate::error::Result;
use crate::graph::{Host, List, resize};
use crate::ops::emit::Id;
use crate::ops::number::Number;
use crate::ops::op::Type;
use crate::passes::with_stops;
use crate::shape::{Bindings, Constraint, Dim, Relation, Scope};

/// What a function did to the gradient of an input.
pub struct GradientUse {
    /// The input
    pub input: usize,
    /// What it did first
    pub first: First,
    /// Whether there was one, where that was read first
    pub present: bool,
    /// Whether there is one afterwards, and if so the result that holds it (none: as it was)
    pub after: Option<Option<usize>>,
    /// Whether it stays in the cell it was in
    pub same_cell: bool,
}

/// A function that was traced, ready to run.
pub struct Compiled {
    /// What computes the results
    pub program: Program,
    /// The same with its gradient, where one may be wanted
    pub differentiable: Option<Arc<call::Differentiated>>,
    /// What the trace relies on about sizes
    pub constraints: Vec<Constraint>,
    /// The ops of the host in it, which are the caller's to keep
    pub hosts: Vec<Host>,
    /// Numbers whose values the trace depends on, by their places among those given
    pub pinned: Vec<(usize, f64)>,
    /// The results that are moved to another device
    pub moved: Vec<(usize, Device)>,
}

/// The end of a trace: results are named one after another, then it is compiled.
pub struct Ending<'a> {
    trace: &'a Arc<Trace>,
    name: &'a str,
    captures: Vec<Capture>,
    /// The nodes of the results
    results: Vec<Id>,
    /// The values of the results, with their histories
    values: Vec<Value>,
    /// How many of them are returned: gradients flow through these
    returned: usize,
}

impl<'a> Ending<'a> {
    /// The end of the trace of a function of this name.
    pub fn new(trace: &'a Arc<Trace>, name: &'a str) -> Ending<'a> {
        let (results, values) = (Vec::new(), Vec::new());
        Ending { trace, name, captures: trace.captures(), results, values, returned: 0 }
    }

    /// What the trace reads and writes outside: its inputs.
    pub fn captures(&self) -> &[Capture] {
        &self.captures
    }

    /// Names a value as a result.
    fn result(&mut self, value: &Value) -> Result<usize> {
        let id = self.trace.node(self.name, value)?;
        self.results.push(id);
        self.values.push(value.clone());
        Ok(self.results.len() - 1)
    }

    /// Names a value that the function returns.
    pub fn returns(&mut self, value: &Value) -> Result<usize> {
        self.returned = self.results.len() + 1;
        self.result(value)
    }

    /// Whether a value was made in the trace.
    pub fn is_own(&self, value: &Value) -> bool {
        trace::node_of(&value.array).is_some_and(|(trace, _)| Arc::ptr_eq(trace, self.trace))
    }

    /// The handles that the function gave new values to: `(input, result)` by position.
    pub fn updates(&mut self) -> Result<Vec<(usize, usize)>> {
        let mut updates = Vec::new();
        for (input, capture) in self.captures.clone().into_iter().enumerate() {
            let is_handle = matches!(capture.source, Source::Handle) && capture.handle.is_some();
            if self.trace.written(&capture)?.is_some() && is_handle {
                let value = capture.cell.lock().clone();
                updates.push((input, self.result(&value)?));
            }
        }
        Ok(updates)
    }

    /// The input whose leaf this is.
    pub fn holder(&self, leaf: &Arc<Leaf>) -> Option<usize> {
        self.captures.iter().position(|capture| {
            let real = capture.leaf.as_ref().and_then(|inside| inside.real());
            real.is_some_and(|real| Arc::ptr_eq(real, leaf))
        })
    }

    /// What the function did to the gradients of its inputs.
    pub fn gradients(&mut self) -> Result<Vec<GradientUse>> {
        let mut uses = Vec::new();
        for (input, capture) in self.captures.clone().into_iter().enumerate() {
            let Some(leaf) = capture.leaf.as_ref().filter(|leaf| leaf.real().is_some()) else {
                continue;
            };
            let (first, cell) = leaf.first_use();
            if first == First::Nothing {
                continue;
            }
            let initial = self.captures.iter().chain(&self.trace.captures()).find_map(|other| {
                match &other.source {
                    Source::Gradient(real) if leaf.real().is_some_and(|l| Arc::ptr_eq(l, real)) => {
                        Some(other.clone())
                    }
                    Source::Handle | Source::Gradient(_) | Source::Outer(_) | Source::Key => None,
                }
            });
            let same_cell = match (&initial, &cell) {
                (Some(initial), Some(cell)) => Arc::ptr_eq(&initial.cell, cell),
                _ => false,
            };
            let unchanged = same_cell
                && match &initial {
                    Some(initial) => self.trace.written(initial)?.is_none(),
                    None => false,
                };
            let after = match cell {
                _ if unchanged => None,
                None if first == First::Read && initial.is_none() => None,
                None => Some(None),
                Some(cell) => {
                    let value = cell.lock().clone();
                    Some(Some(self.result(&value)?))
                }
            };
            uses.push(GradientUse { input, first, present: initial.is_some(), after, same_cell });
        }
        // Reading gradients may have added captures.
        self.captures = self.trace.captures();
        Ok(uses)
    }

    /// Compiles the function, whose sizes have these symbols; what is updated may be written over.
    /// Of a frozen function, the inputs for which `frozen` has a value become constants, and
    /// `updates` name the inputs that are left.
    pub fn finish(
        self,
        symbols: &[Dim],
        updates: &[(usize, usize)],
        frozen: Option<&[Option<Array>]>,
    ) -> Result<Compiled> {
        self.check_devices()?;
        // What differentiation appends is not part of the function itself.
        let count = self.trace.read(|graph| graph.len());
        let varies = |i: usize| frozen.is_none_or(|values| values[i].is_none());
        let differentiable = self.differentiate(varies)?;
        let (pinned, moved, device) = (self.pinned(), self.moved()?, self.trace.device());
        let (list, _) = self.trace.close();
        let mut hosts = Vec::new();
        // Who holds the function shows the collector of cycles what it keeps; a list cannot.
        let list = list.with_hosts(&mut |op| {
            hosts.push(op.clone());
            op.0.lent()
        });
        let list = merged(list, &self.trace.scope().constraints())?;
        let mut plain = list.until(count);
        plain.outputs = self.results.clone();
        let (scope, no_grad) = (self.trace.scope(), self.trace.no_grad_nodes());
        let donated = updates.iter().map(|&(input, result)| (input as u32, result as u32));
        let donated: Vec<(u32, u32)> = donated.collect();
        let (program, differentiable) = match frozen {
            Some(values) => {
                let inputs = self.captures.iter().map(|capture| capture.input);
                let given = |(id, value): (Id, &Option<Array>)| Some((id, value.clone()?));
                let known: Vec<(Id, Array)> = inputs.zip(values).filter_map(given).collect();
                let left = |i: &usize| values[..*i].iter().filter(|value| value.is_none()).count();
                let flowing = differentiable.map(|cut| Flowing {
                    wrt: cut.wrt.iter().map(left).collect(),
                    results: cut.results,
                });
                let at = Frozen { device, symbols, scope };
                at.compile(with_constants(plain, &known)?, flowing, &no_grad)?
            }
            None => {
                let differentiable = differentiable
                    .map(|cut| cut.flowing(device, &list, symbols, scope, &self.results, &no_grad))
                    .transpose()?;
                let program = Program::new(device, plain, symbols.to_vec(), scope.clone());
                (program, differentiable)
            }
        };
        let program = program.donating(donated);
        // What passes ask about sizes is relied on as well.
        program.optimized()?;
        let constraints = scope.constraints();
        Ok(Compiled { program, differentiable, constraints, hosts, pinned, moved })
    }

    /// Refuses tensors of other devices among the inputs: ops refused them already, so they are
    /// returned or written as they are.
    fn check_devices(&self) -> Result<()> {
        for capture in &self.captures {
            let device = capture.cell.lock().device();
            if !matches!(capture.source, Source::Key) && device != self.trace.device() {
                return Err(error::one_device(self.name, self.trace.device(), device));
            }
        }
        Ok(())
    }

    /// The results that lie on another device than the trace. Only those that are returned may.
    fn moved(&self) -> Result<Vec<(usize, Device)>> {
        let own = self.trace.device();
        let devices = self.values.iter().map(Value::device).enumerate();
        let moved: Vec<(usize, Device)> = devices.filter(|(_, device)| *device != own).collect();
        match moved.iter().find(|(i, _)| *i >= self.returned) {
            Some((_, device)) => Err(error::one_device(self.name, own, *device)),
            None => Ok(moved),
        }
    }

    /// The numbers that the trace looked at, with their values.
    fn pinned(&self) -> Vec<(usize, f64)> {
        let looked: Vec<u32> = self.trace.read(|graph| graph.looked().to_vec());
        let places: Vec<u32> = self.trace.read(|graph| {
            let list = graph.list();
            let given = |i: &u32| matches!(list.numbers[*i as usize], Number::Input);
            (0..list.numbers.len() as u32).filter(given).collect()
        });
        let mut pinned = Vec::new();
        for (k, i) in places.into_iter().enumerate() {
            if looked.contains(&i) {
                pinned.push((k, self.trace.number_now(i)));
            }
        }
        pinned
    }

    /// Appends the backward nodes, where a result leads to an input that varies and wants a
    /// gradient.
    fn differentiate(&self, varies: impl Fn(usize) -> bool) -> Result<Option<Cut>> {
        let reached: Vec<(usize, Value)> = self
            .captures
            .iter()
            .enumerate()
            .filter(|(i, _)| varies(*i))
            .filter_map(|(i, capture)| {
                let leaf = capture.leaf.clone()?;
                let mut value = self.trace.value(capture.input);
                value.history = History::Leaf(leaf);
                Some((i, value))
            })
            .collect();
        let results: Vec<usize> =
            (0..self.returned).filter(|&i| self.values[i].requires_grad()).collect();
        if reached.is_empty() || results.is_empty() {
            return Ok(None);
        }
        let count = self.trace.read(|graph| graph.len());
        let work = |results: &[usize]| -> Result<Cut> {
            let mut seeds = Vec::new();
            let mut pairs = Vec::new();
            for &i in results {
                let y = &self.values[i];
                let seed = self.trace.input(Type::new(y.dtype(), y.shape().clone()))?;
                // The seed of a result that is moved is moved back before it is given.
                let seed = self.trace.value_on(y.device(), &seed)?;
                seeds.push(self.trace.node(self.name, &seed)?);
                pairs.push((y.clone(), Some(seed)));
            }
            let wanted: Vec<Value> = reached.iter().map(|(_, value)| value.clone()).collect();
            let options = Options { retain_graph: true, create_graph: false };
            let found = {
                let _recording = tape::recording_as(false);
                backward::gradients(self.name, &pairs, &wanted, options)
            };
            let (mut wrt, mut gradients) = (Vec::new(), Vec::new());
            for ((i, _), g) in reached.iter().zip(found?) {
                if let Some(g) = g {
                    wrt.push(*i);
                    gradients.push(self.trace.node(self.name, &g)?);
                }
            }
            Ok(Cut { count, seeds, wrt, gradients, results: results.to_vec() })
        };
        let is_freed =
            |found: &Result<Cut>| found.as_ref().is_err_and(|error| error.code() == "freed");
        let mut found = work(&results);
        if is_freed(&found) {
            // A loss whose backward ran inside: its history is used up, as it is in eager code.
            let alive: Vec<usize> =
                results.into_iter().filter(|&i| !is_freed(&work(&[i]))).collect();
            if alive.is_empty() {
                return Ok(None);
            }
            found = work(&alive);
        }
        let cut = found?;
        Ok((!cut.wrt.is_empty()).then_some(cut))
    }
}

/// A list in which symbols that must be equal are one.
fn merged(list: List, constraints: &[Constraint]) -> Result<List> {
    let equal = |c: &&Constraint| {
        c.relation == Relation::Equal && c.left.is_symbol() && c.right.is_symbol()
    };
    let mut sizes = Bindings::default();
    let mut is_any = false;
    for constraint in constraints.iter().filter(equal) {
        let (a, b) = (sizes.resolve(constraint.left), sizes.resolve(constraint.right));
        let (old, new) = if a.key() < b.key() { (a, b) } else { (b, a) };
        sizes.bind(new, old);
        is_any = true;
    }
    if is_any { resize(&list, &sizes) } else { Ok(list) }
}

/// Where the forward nodes end, and what the backward nodes read and give.
struct Cut {
    count: usize,
    seeds: Vec<Id>,
    wrt: Vec<usize>,
    gradients: Vec<Id>,
    results: Vec<usize>,
}

impl Cut {
    fn flowing(
        self,
        device: Device,
        list: &List,
        symbols: &[Dim],
        scope: &Scope,
        results: &[Id],
        no_grad: &FxHashSet<Id>,
    ) -> Result<Arc<call::Differentiated>> {
        let mut forward = list.clone();
        forward.outputs = results.to_vec();
        let program =
            cut(device, &forward, symbols, scope, self.count, &self.seeds, &self.gradients);
        let mut whole = list.clone();
        whole.outputs = self.gradients;
        let inputs: Vec<Id> = list.inputs().collect();
        let wrt: Vec<Id> = self.wrt.iter().map(|&i| inputs[i]).collect();
        Ok(Arc::new(call::Differentiated {
            program: Arc::new(program),
            partial: Mutex::default(),
            whole: Arc::new(with_stops(whole, no_grad, self.count, &wrt)?),
            wrt: self.wrt,
            results: self.results,
        }))
    }
}
