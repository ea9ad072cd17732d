//! The backward sweep: cotangents travel from outputs to leaves along the tape.
//!
//! Entries are taken in falling order of their sequence numbers, so every cotangent is complete when
//! its entry's turn comes. The sweep accumulates and undoes broadcasting; rules do neither. Gradients
//! are committed after the whole sweep has succeeded.

use std::collections::BinaryHeap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::apply::apply;
use super::eager::Eager;
use super::plans::{self, Formula, Given, Part};
use super::site::{self, Site};
use super::tape::{Entry, History, Kept, Leaf, Link, Operand, Saved, Step, Value, host_calls};
use super::trace;
use crate::array::Array;
use crate::cpu;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::ops::attributes::ScatterMode;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Expr, catch};
use crate::ops::op::{Call, Op, Type};
use crate::ops::rule::Rule;
use crate::shape::Shape;
use crate::watch;

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
    Entry(u64),
}

fn target(history: &History) -> Option<Target> {
    match history {
        History::None => None,
        History::Leaf(leaf) => Some(Target::Leaf(Arc::as_ptr(leaf) as usize)),
        History::Entry(entry) => Some(Target::Entry(entry.sequence)),
    }
}

/// Adds the gradients of `outputs` to the `.grad` of every leaf they depend on.
pub fn backward(outputs: &[(Value, Option<Value>)], options: Options) -> Result<()> {
    let seeds = seeds("backward", outputs, options)?;
    let mut sweep = Sweep::new(options, None);
    sweep.run("backward", seeds)?;
    // All sums first, then all writes: a failure leaves every gradient as it was.
    let mut updates = Vec::with_capacity(sweep.leaves.len());
    for (leaf, g) in std::mem::take(&mut sweep.leaf_order)
        .into_iter()
        .filter_map(|key| sweep.leaves.remove(&key))
    {
        let g = leaf.run_hooks(g)?;
        let old = leaf.gradient()?.map(|shared| shared.lock().clone());
        let new = match old {
            Some(old) => add(&old, &g, options.create_graph)?,
            None => g,
        };
        updates.push((leaf, new));
    }
    for (leaf, new) in updates {
        match leaf.gradient()? {
            Some(shared) => *shared.lock() = new,
            None => leaf.set_gradient(Some(Arc::new(Mutex::new(new)))),
        }
    }
    Ok(())
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
        if !y.requires_grad() {
            return Err(error::gradient(
                op,
                "nothing here requires a gradient",
                "no requires_grad=True tensor was used while recording was on",
            ));
        }
        let seed = match seed {
            Some(g) if g.shape() != y.shape() => {
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
            None if y.shape().elements() != 1 => {
                let facts = format!("got shape {}; pass gradient=", y.shape());
                return Err(error::gradient(
                    op,
                    "only a scalar output has an implicit gradient",
                    facts,
                ));
            }
            None => {
                let ty = Type::new(y.dtype(), y.shape().clone());
                apply(Op::Fill(ty), &[Operand::Scalar(Scalar::Float(1.0))], false)?
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
        if let History::Entry(entry) = history {
            stack.push(entry.clone());
        }
    }
    while let Some(entry) = stack.pop() {
        if seen.contains_key(&entry.sequence) {
            continue;
        }
        for link in &entry.links {
            if let Link::Entry(next) = link {
                stack.push(next.clone());
            }
        }
        seen.insert(entry.sequence, entry);
    }
    let mut order: Vec<u64> = seen.keys().copied().collect();
    order.sort_unstable();
    let mut needed = FxHashSet::default();
    for sequence in order {
        let reaches = |link: &Link| match link {
            Link::None => false,
            Link::Leaf(leaf) => wanted.contains(&Target::Leaf(leaf.as_ptr() as usize)),
            Link::Entry(entry) => needed.contains(&entry.sequence),
        };
        if wanted.contains(&Target::Entry(sequence)) || seen[&sequence].links.iter().any(reaches) {
            needed.insert(sequence);
        }
    }
    needed
}

/// What a sweep for chosen inputs looks at.
struct Selection {
    wanted: FxHashSet<Target>,
    needed: FxHashSet<u64>,
}

struct Sweep {
    options: Options,
    selection: Option<Selection>,
    /// Sequence numbers of entries with a cotangent, latest first
    order: BinaryHeap<u64>,
    pending: FxHashMap<u64, (Arc<Entry>, Value)>,
    /// A pending entry that came while no other was: in a chain of ops always, and then neither heap
    /// nor map is touched
    alone: Option<(Arc<Entry>, Value)>,
    leaves: FxHashMap<usize, (Arc<Leaf>, Value)>,
    leaf_order: Vec<usize>,
    found: FxHashMap<Target, Value>,
    /// Entries whose saved values go when the sweep has succeeded
    used: Vec<Arc<Entry>>,
}

impl Sweep {
    fn new(options: Options, selection: Option<Selection>) -> Sweep {
        Sweep {
            options,
            selection,
            order: BinaryHeap::new(),
            pending: FxHashMap::default(),
            alone: None,
            leaves: FxHashMap::default(),
            leaf_order: Vec::new(),
            found: FxHashMap::default(),
            used: Vec::new(),
        }
    }

    fn run(&mut self, op: &str, seeds: Vec<(History, Value)>) -> Result<()> {
        for (history, g) in seeds {
            match history {
                History::None => {}
                History::Leaf(leaf) => self.reach_leaf(leaf, g)?,
                History::Entry(entry) => self.reach_entry(&entry, g)?,
            }
        }
        let here = site::current();
        while let Some((entry, g)) = self.take_latest() {
            let sequence = entry.sequence;
            let g = entry.run_hooks(g)?;
            if let Some(selection) = &self.selection
                && selection.wanted.contains(&Target::Entry(sequence))
            {
                self.found.insert(Target::Entry(sequence), g.clone());
            }
            trace::sweeping(|| self.step(op, &entry, g)).map_err(|error| located(error, &entry))?;
            if self.options.retain_graph {
                continue;
            }
            match host_calls() {
                true => self.used.push(entry),
                false => free(&entry, here),
            }
        }
        for entry in self.used.drain(..) {
            free(&entry, here);
        }
        Ok(())
    }

    /// Runs the rules of one entry.
    fn step(&mut self, op: &str, entry: &Arc<Entry>, g: Value) -> Result<()> {
        let step = match &entry.step {
            Step::Op(step) => step,
            Step::Host(rule) => {
                let cotangents = rule.backward(&g, self.options.create_graph)?;
                for (i, cotangent) in cotangents.into_iter().enumerate().take(entry.links.len()) {
                    if let Some(cotangent) = cotangent {
                        self.deliver(entry, i, cotangent)?;
                    }
                }
                return Ok(());
            }
        };
        for i in 0..entry.links.len() {
            if !self.wants(&entry.links[i]) {
                continue;
            }
            if self.add_in_place(entry, step, i, &g)? {
                continue;
            }
            let cotangent = self.rule(op, entry, step, i, &g)?;
            if let Some(cotangent) = cotangent {
                self.deliver(entry, i, cotangent)?;
            }
        }
        Ok(())
    }

    fn wants(&self, link: &Link) -> bool {
        match (link, &self.selection) {
            (Link::None, _) => false,
            (_, None) => true,
            (Link::Leaf(leaf), Some(s)) => s.wanted.contains(&Target::Leaf(leaf.as_ptr() as usize)),
            (Link::Entry(entry), Some(s)) => s.needed.contains(&entry.sequence),
        }
    }

    /// The cotangent of operand `i`, by the op's rule.
    fn rule(
        &self,
        op: &str,
        entry: &Arc<Entry>,
        step: &Op,
        i: usize,
        g: &Value,
    ) -> Result<Option<Value>> {
        let record = self.options.create_graph;
        if let (Op::Call(call), false) = (step, record)
            && let Some(cotangent) = planned_rule(op, entry, call, i, g)?
        {
            return Ok(Some(cotangent));
        }
        let cx = Eager::new(record);
        let (args, y) = {
            let kept = entry.kept.lock();
            check_kept(op, entry, &kept)?;
            let mut args: SmallVec<[Arg; 4]> = SmallVec::new();
            for (saved, link) in kept.args.iter().zip(&entry.links) {
                let own = || if record { link.history() } else { History::None };
                args.push(restore(&cx, saved, own));
            }
            let own = || if record { History::Entry(entry.clone()) } else { History::None };
            (args, restore(&cx, &kept.result, own))
        };
        let g = cx.value(g.clone());
        let cotangent = catch(|| {
            let mut exprs: SmallVec<[Expr<'_>; 4]> = SmallVec::new();
            args.iter().for_each(|&arg| exprs.push(Expr::new(&cx, arg)));
            step.vjp(&Rule { args: &exprs, y: Expr::new(&cx, y), g: Expr::new(&cx, g) }, i)
        })?;
        cotangent.map(|x| cx.take(x)).transpose()
    }

    /// Parts of one value are added into one buffer, so that a loop over `x[t]` stays linear.
    fn add_in_place(&mut self, entry: &Arc<Entry>, step: &Op, i: usize, g: &Value) -> Result<bool> {
        if self.options.create_graph || i != 0 || !matches!(step, Op::Slice(_) | Op::Gather) {
            return Ok(false);
        }
        if trace::active() {
            return self.add_part(entry, step, g);
        }
        let (shape, indices) = {
            let kept = entry.kept.lock();
            check_kept("backward", entry, &kept)?;
            let indices: SmallVec<[Array; 2]> =
                kept.args[1..].iter().filter_map(Saved::array).cloned().collect();
            (kept.args[0].ty().shape, indices)
        };
        if let Link::None = entry.links[0] {
            return Ok(true);
        }
        let slot = self.slot(&entry.links[0]);
        let usable = |v: &Value| v.array.buffer.is_unique() && v.array.is_contiguous();
        let add = |mut sum: Array| -> Result<Array> {
            match step {
                // SAFETY: the sum is fresh or was found to be held by this sweep alone.
                Op::Slice(at) => unsafe { cpu::add_into_slice(&sum, at, &g.array)? },
                _ => {
                    let refs: SmallVec<[&Array; 2]> = indices.iter().collect();
                    sum = cpu::scatter(sum, &refs, &g.array, ScatterMode::Add)?;
                }
            }
            Ok(sum)
        };
        match slot {
            Some(slot) if usable(slot) => {
                // The buffer is taken out, so that it is held once while it is written.
                let empty = Array::zeros(g.dtype(), Shape::of(&[0]))?;
                let sum = std::mem::replace(&mut slot.array, empty);
                slot.array = add(sum)?;
            }
            _ => {
                let sum = add(Array::zeros(g.dtype(), shape)?)?;
                self.deliver(entry, 0, Value::plain(sum))?;
            }
        }
        Ok(true)
    }

    /// The same additions as nodes.
    fn add_part(&mut self, entry: &Arc<Entry>, step: &Op, g: &Value) -> Result<bool> {
        let (ty, indices) = {
            let kept = entry.kept.lock();
            check_kept("backward", entry, &kept)?;
            let indices: SmallVec<[Array; 2]> =
                kept.args[1..].iter().filter_map(Saved::array).cloned().collect();
            (kept.args[0].ty(), indices)
        };
        let slot = match &entry.links[0] {
            Link::None => return Ok(true),
            link => self.slot(link),
        };
        let cx = Eager::new(false);
        let so_far = slot.as_ref().map(|slot| cx.value((*slot).clone()));
        let g = cx.value(g.clone());
        let indices: SmallVec<[Arg; 2]> =
            indices.into_iter().map(|array| cx.value(Value::plain(array))).collect();
        let sum = catch(|| {
            let g = Expr::new(&cx, g);
            let sum = match so_far {
                Some(sum) => Expr::new(&cx, sum),
                None => g.scalar(0.0).full(ty.dtype, ty.shape.clone()),
            };
            match step {
                Op::Slice(at) => {
                    let part = sum.emit(Op::Slice(at.clone())) + g;
                    sum.emit_with(Op::Update(at.clone()), &[sum.arg(), part.arg()])
                }
                _ => {
                    let indices: SmallVec<[Expr<'_>; 2]> =
                        indices.iter().map(|&arg| Expr::new(&cx, arg)).collect();
                    sum.scatter(ScatterMode::Add, g, &indices)
                }
            }
        })?;
        let sum = cx.take(sum)?;
        match slot {
            Some(slot) => *slot = sum,
            None => self.deliver(entry, 0, sum)?,
        }
        Ok(true)
    }

    /// The sum so far of the cotangents that go along a link.
    fn slot(&mut self, link: &Link) -> Option<&mut Value> {
        match link {
            Link::None => None,
            Link::Leaf(leaf) => self.leaves.get_mut(&(leaf.as_ptr() as usize)).map(|(_, g)| g),
            Link::Entry(entry) => match &mut self.alone {
                Some((waiting, g)) if waiting.sequence == entry.sequence => Some(g),
                _ => self.pending.get_mut(&entry.sequence).map(|(_, g)| g),
            },
        }
    }

    /// Hands a cotangent to operand `i`, in that operand's shape and dtype.
    fn deliver(&mut self, entry: &Entry, i: usize, cotangent: Value) -> Result<()> {
        let unfit = match &entry.kept.lock().args[i] {
            Saved::Array(x)
                if x.shape().same(cotangent.shape()) && x.dtype == cotangent.dtype() =>
            {
                None
            }
            Saved::Type(ty)
                if ty.shape.same(cotangent.shape()) && ty.dtype == cotangent.dtype() =>
            {
                None
            }
            Saved::Array(x) => Some(Type::new(x.dtype, x.shape().clone())),
            Saved::Type(ty) => Some(ty.clone()),
            Saved::Scalar(_) => return Ok(()),
        };
        let cotangent = match unfit {
            Some(ty) => self.fit(entry, cotangent, &ty)?,
            None => cotangent,
        };
        match &entry.links[i] {
            Link::None => Ok(()),
            Link::Leaf(leaf) => {
                leaf.upgrade().map_or(Ok(()), |leaf| self.reach_leaf(leaf, cotangent))
            }
            Link::Entry(entry) => self.reach_entry(entry, cotangent),
        }
    }

    fn fit(&self, entry: &Entry, cotangent: Value, ty: &Type) -> Result<Value> {
        if !ty.shape.broadcasts_to(cotangent.shape()) {
            let facts = format!("got {} for an operand of shape {}", cotangent.shape(), ty.shape);
            return Err(error::bad_shape(
                entry.name(),
                "a rule gave a cotangent of the wrong shape",
                facts,
            ));
        }
        let cx = Eager::new(self.options.create_graph);
        let g = cx.value(cotangent);
        let sum = catch(|| Expr::new(&cx, g).sum_to(&ty.shape).cast(ty.dtype))?;
        cx.take(sum)
    }

    /// The pending entry with the largest sequence number.
    fn take_latest(&mut self) -> Option<(Arc<Entry>, Value)> {
        let alone = self.alone.as_ref().map(|(entry, _)| entry.sequence);
        if alone.is_some() && alone > self.order.peek().copied() {
            return self.alone.take();
        }
        let sequence = self.order.pop()?;
        self.pending.remove(&sequence)
    }

    fn reach_entry(&mut self, entry: &Arc<Entry>, g: Value) -> Result<()> {
        if let Some((waiting, sum)) = &mut self.alone {
            if waiting.sequence == entry.sequence {
                return accumulate(sum, g, self.options.create_graph);
            }
        } else if self.pending.is_empty() {
            self.alone = Some((entry.clone(), g));
            return Ok(());
        }
        if let Some((_, sum)) = self.pending.get_mut(&entry.sequence) {
            return accumulate(sum, g, self.options.create_graph);
        }
        self.order.push(entry.sequence);
        self.pending.insert(entry.sequence, (entry.clone(), g));
        Ok(())
    }

    fn reach_leaf(&mut self, leaf: Arc<Leaf>, g: Value) -> Result<()> {
        let key = Arc::as_ptr(&leaf) as usize;
        if let Some((_, sum)) = self.leaves.get_mut(&key) {
            return accumulate(sum, g, self.options.create_graph);
        }
        self.leaf_order.push(key);
        self.leaves.insert(key, (leaf, g));
        Ok(())
    }
}

impl Saved {
    fn array(&self) -> Option<&Array> {
        match self {
            Saved::Array(array) => Some(array),
            _ => None,
        }
    }

    fn ty(&self) -> Type {
        match self {
            Saved::Array(array) => Type::new(array.dtype, array.shape().clone()),
            Saved::Type(ty) => ty.clone(),
            Saved::Scalar(_) => Type::new(DType::F32, Shape::scalar()),
        }
    }
}

/// The cotangent of operand `i` of a composite by the plan of its rule, if there is one.
fn planned_rule(
    op: &str,
    entry: &Arc<Entry>,
    call: &Call,
    i: usize,
    g: &Value,
) -> Result<Option<Value>> {
    if trace::active() || trace::is_traced(&g.array) || watch::checking() {
        return Ok(None);
    }
    let kept = entry.kept.lock();
    check_kept(op, entry, &kept)?;
    let mut operands: SmallVec<[Given<'_>; 6]> = SmallVec::new();
    for saved in kept.args.iter().chain([&kept.result]) {
        operands.push(match saved {
            Saved::Array(array) => Given::Array(array),
            Saved::Type(ty) => Given::Type(ty),
            Saved::Scalar(scalar) => Given::Scalar(*scalar),
        });
    }
    operands.push(Given::Array(&g.array));
    let formula = Formula {
        composite: call.composite,
        attributes: &call.attributes,
        part: Part::Rule(call.position(i) as u32),
        operands: &operands,
    };
    let arrays = plans::run(&formula)?;
    Ok(arrays.and_then(|arrays| arrays.into_iter().next()).map(Value::plain))
}

fn restore(cx: &Eager, saved: &Saved, history: impl Fn() -> History) -> Arg {
    match saved {
        Saved::Array(array) => cx.value(Value { array: array.clone(), history: history() }),
        Saved::Type(ty) => cx.absent(ty.clone()),
        Saved::Scalar(scalar) => Arg::Scalar(*scalar),
    }
}

/// `sum += g`, in the sum's own memory where nobody else holds it.
fn accumulate(sum: &mut Value, g: Value, recorded: bool) -> Result<()> {
    let in_place =
        !recorded && !watch::on() && sum.array.buffer.is_unique() && sum.array.is_contiguous();
    if in_place && sum.shape().same(g.shape()) && sum.dtype() == g.dtype() {
        let operands = [cpu::Operand::Array(&sum.array), cpu::Operand::Array(&g.array)];
        // SAFETY: the types agree and this sweep alone holds the sum.
        return unsafe { cpu::map_into(&arithmetic::add, &operands, &sum.array) };
    }
    *sum = add(sum, &g, recorded)?;
    Ok(())
}

fn add(a: &Value, b: &Value, recorded: bool) -> Result<Value> {
    apply(Op::Map(&arithmetic::add), &[Operand::Value(a), Operand::Value(b)], recorded)
}

fn check_kept(op: &str, entry: &Entry, kept: &Kept) -> Result<()> {
    let Some(first) = kept.freed else { return Ok(()) };
    let first = site::describe(first).map_or(String::new(), |line| format!(" at {line}"));
    let node = site::describe(entry.site)
        .map_or(entry.name().to_string(), |line| format!("{} at {line}", entry.name()));
    Err(error::freed(op, node, first))
}

fn free(entry: &Entry, by: Site) {
    let mut kept = entry.kept.lock();
    if let Step::Host(rule) = &entry.step {
        rule.release(by);
    }
    if let Step::Op(op) = &entry.step {
        // An entry that kept nothing can be swept again.
        let keeps =
            kept.args.iter().chain([&kept.result]).any(|saved| matches!(saved, Saved::Array(_)));
        if keeps || matches!(op, Op::Call(_)) {
            kept.freed = Some(by);
        }
    }
    let drop_data = |saved: &mut Saved| {
        if let Saved::Array(array) = saved {
            *saved = Saved::Type(Type::new(array.dtype, array.shape().clone()));
        }
    };
    kept.args.iter_mut().for_each(drop_data);
    drop_data(&mut kept.result);
}

fn located(error: Error, entry: &Entry) -> Error {
    match site::describe(entry.site) {
        Some(line) => error.note(format!("in the gradient of {}, made at {line}", entry.name())),
        None => error,
    }
}
