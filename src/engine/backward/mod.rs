//! The backward sweep: cotangents travel from outputs to leaves along the tape.
//!
//! Entries are taken in falling order of their sequence numbers, so every cotangent is complete
//! when its entry's turn comes. The sweep accumulates and undoes broadcasting; rules do neither.
//! Gradients are committed after the whole sweep has succeeded.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::eager::apply::apply;
use super::tape::{Entry, Gradient, History, Leaf, Link, Operand, Rows, Value};
use super::{executors, pending};
use crate::array::Array;
use crate::error::{self, Result};
use crate::ops::op::{Op, Type};

mod rows;
mod saved;
mod sweep;

use sweep::{Selection, Sweep, add};

/// How a sweep treats the tape.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Keep saved values for another sweep
    pub retain_graph: bool,
    /// Record the sweep itself
    pub create_graph: bool,
}

/// Identifies where a gradient is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Target {
    Leaf(usize),
    Entry(u64, u32),
}

impl Target {
    /// The entry, by its sequence number.
    fn entry(&self) -> Option<u64> {
        match *self {
            Target::Entry(sequence, _) => Some(sequence),
            Target::Leaf(_) => None,
        }
    }
}

fn target(history: &History) -> Option<Target> {
    match history {
        History::None => None,
        History::Leaf(leaf) => Some(Target::Leaf(Arc::as_ptr(leaf) as usize)),
        History::Entry(entry, k) => Some(Target::Entry(entry.sequence, *k)),
    }
}

/// Adds the gradients of `outputs` to the `.grad` of every leaf they depend on.
pub fn backward(outputs: &[(Value, Option<Value>)], options: Options) -> Result<()> {
    let seeds = seeds("backward", outputs, options)?;
    let mut sweep = Sweep::new(options, None);
    sweep.run("backward", seeds)?;
    let mut additions = Vec::with_capacity(sweep.leaves.len());
    for key in std::mem::take(&mut sweep.leaf_order) {
        if let Some((leaf, g)) = sweep.leaves.remove(&key) {
            let g = Sum::Dense(leaf.run_hooks(g)?);
            additions.push(Addition::new(leaf, g, options.create_graph)?);
        } else if let Some(found) = sweep.rows.remove(&key) {
            let (leaf, rows) = found.join()?;
            additions.push(Addition::new(leaf, Sum::Rows(rows), options.create_graph)?);
        }
    }
    accumulate(additions, options.create_graph)?;
    drop(sweep);
    pending::tidy();
    Ok(())
}

/// A gradient of a leaf, or a part of one.
#[derive(Clone)]
enum Sum {
    Dense(Value),
    Rows(Rows),
}

impl Sum {
    fn of(gradient: Gradient) -> Sum {
        match gradient {
            Gradient::Dense(cell) => Sum::Dense(cell.lock().clone()),
            Gradient::Rows(rows) => Sum::Rows(*rows),
        }
    }

    /// A sum that stands where another stood, or none.
    fn in_place_of(old: Option<&Array>, mut new: Value) -> Sum {
        new.array = executors::replacing(old, new.array);
        Sum::Dense(new)
    }

    /// Rows that stand where none were.
    fn fresh(mut rows: Rows) -> Sum {
        rows.values = executors::replacing(None, rows.values);
        Sum::Rows(rows)
    }

    fn dense(&self, ty: &Type) -> Result<Value> {
        match self {
            Sum::Dense(value) => Ok(value.clone()),
            Sum::Rows(rows) => Ok(Value::plain(rows.dense(ty)?)),
        }
    }
}

/// What a sweep adds to the gradient of a leaf.
struct Addition {
    leaf: Arc<Leaf>,
    g: Sum,
    /// The gradient it was added to, and the sum
    old: Option<Sum>,
    new: Sum,
}

impl Addition {
    fn new(leaf: Arc<Leaf>, g: Sum, record: bool) -> Result<Addition> {
        let old = leaf.held()?.map(Sum::of);
        let new = match (&old, &g) {
            (None, Sum::Rows(g)) => Sum::fresh(g.clone()),
            (Some(Sum::Rows(old)), Sum::Rows(g)) => {
                Sum::fresh(rows::join(vec![old.clone(), g.clone()])?)
            }
            (Some(Sum::Rows(old)), Sum::Dense(g)) => {
                let old = Value::plain(old.dense(&leaf.ty)?);
                Sum::in_place_of(None, add(&old, g, record)?)
            }
            (None, Sum::Dense(g)) => Sum::in_place_of(None, g.clone()),
            (Some(Sum::Dense(old)), g) => {
                Sum::in_place_of(Some(&old.array), add(old, &g.dense(&leaf.ty)?, record)?)
            }
        };
        Ok(Addition { leaf, g, old, new })
    }

    /// Whether the gradient is still the one it was added to.
    fn is_current(&self) -> Result<bool> {
        Ok(match (self.leaf.held()?, &self.old) {
            (Some(Gradient::Dense(now)), Some(Sum::Dense(old))) => {
                let now = &now.lock().array;
                now.data.same(&old.array.data) && now.layout == old.array.layout
            }
            (Some(Gradient::Rows(now)), Some(Sum::Rows(old))) => now.same(old),
            (None, None) => true,
            _ => false,
        })
    }

    fn write(&mut self) -> Result<()> {
        match (self.leaf.held()?, &mut self.new) {
            (Some(Gradient::Dense(cell)), Sum::Dense(new)) => {
                std::mem::swap(&mut *cell.lock(), new)
            }
            (_, Sum::Dense(new)) => {
                self.leaf.set_gradient(Some(Arc::new(Mutex::new(new.clone()))));
            }
            (_, Sum::Rows(rows)) => self.leaf.set(Some(Gradient::Rows(Box::new(rows.clone())))),
        }
        Ok(())
    }
}

/// Writes sums: all sums first, then all writes, so a failure leaves every gradient as it was.
/// Sweeps of several threads write one after another; what another one wrote meanwhile is added to
/// again.
fn accumulate(mut additions: Vec<Addition>, record: bool) -> Result<()> {
    static WRITING: Mutex<()> = Mutex::new(());
    loop {
        {
            // Nothing is computed or freed under the lock: the additions hold what is replaced.
            let _one = WRITING.lock();
            let current: Result<Vec<bool>> = additions.iter().map(Addition::is_current).collect();
            if current?.into_iter().all(|is_current| is_current) {
                return additions.iter_mut().try_for_each(Addition::write);
            }
        }
        additions = additions
            .into_iter()
            .map(|addition| Addition::new(addition.leaf, addition.g, record))
            .collect::<Result<_>>()?;
    }
}

/// The gradients of `outputs` by `inputs`, touching no `.grad`; `None` where nothing depends on the
/// input.
pub fn gradients(
    op: &str,
    outputs: &[(Value, Option<Value>)],
    inputs: &[Value],
    options: Options,
) -> Result<Vec<Option<Value>>> {
    let mut wanted = FxHashSet::default();
    for input in inputs {
        let Some(target) = target(&input.history) else {
            return Err(error::gradient(
                op,
                "an input does not require a gradient",
                "set requires_grad=True",
            ));
        };
        wanted.insert(target);
    }
    let seeds = seeds(op, outputs, options)?;
    let needed = needed(&seeds, &wanted);
    let mut sweep = Sweep::new(options, Some(Selection { wanted, needed }));
    sweep.run(op, seeds)?;
    let find = |input: &Value| match target(&input.history) {
        Some(Target::Leaf(key)) => sweep.leaves.get(&key).map(|(_, g)| g.clone()),
        Some(target) => sweep.found.get(&target).cloned(),
        None => None,
    };
    Ok(inputs.iter().map(find).collect())
}

/// The cotangents a sweep starts with.
fn seeds(
    op: &str,
    outputs: &[(Value, Option<Value>)],
    options: Options,
) -> Result<Vec<(History, Value)>> {
    let mut seeds = Vec::with_capacity(outputs.len());
    for (y, seed) in outputs {
        if !y.dtype().is_float() {
            let facts = format!("got {}, wanted a floating tensor", y.dtype());
            return Err(error::gradient(op, "the result is no float", facts));
        }
        if !y.requires_grad() {
            return Err(error::gradient(
                op,
                "nothing here requires a gradient",
                "no requires_grad=True tensor was used while recording was on",
            ));
        }
        if let Some(g) = seed {
            executors::common(op, [&y.array, &g.array])?;
        }
        let seed = match seed {
            Some(g) if !g.shape().equals(y.shape()) => {
                let facts = format!("got {} for an output of shape {}", g.shape(), y.shape());
                return Err(error::bad_shape(
                    op,
                    "the gradient's shape differs from the output's",
                    facts,
                ));
            }
            Some(g) if g.dtype() != y.dtype() => {
                apply(Op::Cast(y.dtype()), &[Operand::Value(g)], options.create_graph)?
            }
            Some(g) => g.clone(),
            None if !y.shape().elements().equals(1) => {
                let facts = format!("got shape {}; pass gradient=", y.shape());
                return Err(error::gradient(
                    op,
                    "only a scalar output has an implicit gradient",
                    facts,
                ));
            }
            None => {
                let ty = Type::new(y.dtype(), y.shape().clone());
                let _on = y.device().enter();
                apply(Op::Full(ty), &[Operand::Scalar(1.0.into())], false)?
            }
        };
        seeds.push((y.history.clone(), seed));
    }
    Ok(seeds)
}

/// The entries on a path from the seeds to what is wanted.
fn needed(seeds: &[(History, Value)], wanted: &FxHashSet<Target>) -> FxHashSet<u64> {
    let mut seen: FxHashMap<u64, Arc<Entry>> = FxHashMap::default();
    let mut stack: Vec<Arc<Entry>> = Vec::new();
    for (history, _) in seeds {
        if let History::Entry(entry, _) = history {
            stack.push(entry.clone());
        }
    }
    while let Some(entry) = stack.pop() {
        if seen.contains_key(&entry.sequence) {
            continue;
        }
        for link in &entry.links {
            if let Link::Entry(next, _) = link {
                stack.push(next.clone());
            }
        }
        seen.insert(entry.sequence, entry);
    }
    let mut order: Vec<u64> = seen.keys().copied().collect();
    order.sort_unstable();
    let ends: FxHashSet<u64> = wanted.iter().filter_map(|target| target.entry()).collect();
    let mut needed = FxHashSet::default();
    for sequence in order {
        let reaches = |link: &Link| match link {
            Link::None => false,
            Link::Leaf(leaf) => wanted.contains(&Target::Leaf(leaf.as_ptr() as usize)),
            Link::Entry(entry, _) => needed.contains(&entry.sequence),
        };
        if ends.contains(&sequence) || seen[&sequence].links.iter().any(reaches) {
            needed.insert(sequence);
        }
    }
    needed
}
