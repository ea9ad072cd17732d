//! The loop of the sweep: which entry is next, its rule, and the sums of cotangents.

use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::rows::Lookups;
use super::saved::{check_saved, free, part_of, planned_rules, restore};
use super::{Options, Target};
use crate::array::Array;
use crate::engine::eager::Eager;
use crate::engine::eager::apply::apply;
use crate::engine::executors::{self, device};
use crate::engine::pending;
use crate::engine::site::{self};
use crate::engine::tape::signature::Signature;
use crate::engine::tape::{Entry, History, Leaf, Link, Operand, Saved, Step, Value, host_calls};
use crate::engine::trace;
use crate::error::{self, Error, Result};
use crate::ops::attributes::ScatterMode;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Expr, OrThrow, catch};
use crate::ops::op::{Op, Type};
use crate::ops::rule::Rule;
use crate::passes::derived::vjp;
use crate::shape::Shape;
use crate::threads::{Pace, pause};
use crate::watch;

/// Nanoseconds that a step takes at least, about.
const STEP: usize = 1 << 10;

/// What a sweep for chosen inputs looks at.
pub(super) struct Selection {
    pub(super) wanted: FxHashSet<Target>,
    pub(super) needed: FxHashSet<u64>,
}

/// An entry with the cotangents that reached it so far, by result.
struct Waiting {
    entry: Arc<Entry>,
    given: Given,
}

/// Cotangents of results, in the order in which they came.
type Given = SmallVec<[(u32, Value); 1]>;

impl Waiting {
    fn new(entry: Arc<Entry>, k: u32, g: Value) -> Waiting {
        let mut given = Given::new();
        given.push((k, g));
        Waiting { entry, given }
    }

    /// The cotangent of a result so far.
    fn slot(&mut self, k: u32) -> Option<&mut Value> {
        self.given.iter_mut().find(|(other, _)| *other == k).map(|(_, g)| g)
    }

    /// Adds to the cotangent of a result.
    fn add(&mut self, k: u32, g: Value, recorded: bool) -> Result<()> {
        match self.slot(k) {
            Some(sum) => accumulate(sum, g, recorded),
            None => {
                self.given.push((k, g));
                Ok(())
            }
        }
    }
}

pub(super) struct Sweep {
    options: Options,
    selection: Option<Selection>,
    /// Sequence numbers of entries with a cotangent, latest first
    order: BinaryHeap<u64>,
    pending: FxHashMap<u64, Waiting>,
    /// A pending entry that came while no other was: in a chain of ops always, and then neither
    /// heap nor map is touched
    alone: Option<Waiting>,
    pub(super) leaves: FxHashMap<usize, (Arc<Leaf>, Value)>,
    /// What lookups gave of leaves of which nothing else is known yet
    pub(super) rows: FxHashMap<usize, Lookups>,
    pub(super) leaf_order: Vec<usize>,
    pub(super) found: FxHashMap<Target, Value>,
    /// Entries whose saved values go when the sweep has succeeded
    used: Vec<Arc<Entry>>,
}

impl Sweep {
    pub(super) fn new(options: Options, selection: Option<Selection>) -> Sweep {
        Sweep {
            options,
            selection,
            order: BinaryHeap::new(),
            pending: FxHashMap::default(),
            alone: None,
            leaves: FxHashMap::default(),
            rows: FxHashMap::default(),
            leaf_order: Vec::new(),
            found: FxHashMap::default(),
            used: Vec::new(),
        }
    }

    pub(super) fn run(&mut self, op: &str, seeds: Vec<(History, Value)>) -> Result<()> {
        for (history, g) in seeds {
            match history {
                History::None => {}
                History::Leaf(leaf) => self.reach_leaf(leaf, g)?,
                History::Entry(entry, k) => self.reach_entry(&entry, k, g)?,
            }
        }
        let (here, mut pace) = (site::current(), Pace::default());
        let is_traced = trace::active();
        while let Some(Waiting { entry, mut given }) = self.take_latest() {
            for (k, g) in &mut given {
                if entry.has_hooks() {
                    *g = entry.run_hooks(*k, g.clone())?;
                }
                let target = Target::Entry(entry.sequence, *k);
                if let Some(selection) = &self.selection
                    && selection.wanted.contains(&target)
                {
                    self.found.insert(target, g.clone());
                }
            }
            // Kernels over few elements do not look whether they are to be broken off.
            if pace.is_up(STEP) {
                catch(pause)?;
            }
            // Only traces ask whether a sweep runs, and only a rule of the user's may open one.
            let done = match is_traced || matches!(entry.step, Step::Host(_)) {
                true => trace::sweeping(|| {
                    let _scope = entry.site.scope.backward().enter();
                    self.step(op, &entry, given)
                }),
                false => self.step(op, &entry, given),
            };
            done.map_err(|error| located(error, &entry))?;
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
    fn step(&mut self, op: &str, entry: &Arc<Entry>, mut given: Given) -> Result<()> {
        let device = given[0].1.device();
        let _on = (device != device::current()).then(|| device.enter());
        let step = match &entry.step {
            Step::Op(step) => step,
            Step::Call(signature) => {
                let _within = entry.site.origin.enter();
                return self.call(op, entry, Some(signature), &signature.op, &given);
            }
            Step::Host(rule) => {
                let count = entry.saved.lock().results.len();
                let mut cotangents: Vec<Option<Value>> = vec![None; count];
                given.into_iter().for_each(|(k, g)| cotangents[k as usize] = Some(g));
                let cotangents = rule.backward(&cotangents, self.options.create_graph)?;
                for (i, cotangent) in cotangents.into_iter().enumerate().take(entry.links.len()) {
                    if let Some(cotangent) = cotangent {
                        self.deliver(entry, i, cotangent)?;
                    }
                }
                return Ok(());
            }
        };
        // What a rule makes in a trace is part of the call that made the entry.
        let _within = entry.site.origin.enter();
        // `x[i]` and `x[:, None]` are slices of another shape, whose cotangent is one of a slice.
        if let Op::Slice(at) = step {
            let shape: Shape = at.iter().map(|axis| axis.size).collect();
            if !given[0].1.shape().same(&shape) {
                let operand = [Operand::Value(&given[0].1)];
                given[0].1 = apply(Op::Reshape(shape), &operand, self.options.create_graph)?;
            }
        }
        if let Op::Call(_) = step {
            return self.call(op, entry, None, step, &given);
        }
        let g = &given[0].1;
        for i in 0..entry.links.len() {
            if !self.wants(&entry.links[i]) || (i == 0 && self.add_in_place(entry, step, g)?) {
                continue;
            }
            let cx = Eager::new(self.options.create_graph);
            let found = self.restored(&cx, op, entry, &given, |rule| {
                let cotangent = step.vjp_of(rule, i)?;
                Some((cotangent, cx.are_alike(rule.args[i], cotangent)))
            })?;
            let Some((cotangent, fits)) = found else { continue };
            let cotangent = cx.last(cotangent)?;
            match fits {
                true => self.hand_on(&entry.links[i], cotangent)?,
                false => self.deliver(entry, i, cotangent)?,
            }
        }
        Ok(())
    }

    /// Whether it is a sweep for chosen inputs.
    pub(super) fn gives_some(&self) -> bool {
        self.selection.is_some()
    }

    fn wants(&self, link: &Link) -> bool {
        match (link, &self.selection) {
            (Link::None, _) => false,
            (_, None) => true,
            (Link::Leaf(leaf), Some(s)) => s.wanted.contains(&Target::Leaf(leaf.as_ptr() as usize)),
            (Link::Entry(entry, _), Some(s)) => s.needed.contains(&entry.sequence),
        }
    }

    /// Delivers the cotangents of a composite's operands, all from one run of its rules.
    fn call(
        &mut self,
        op: &str,
        entry: &Arc<Entry>,
        signature: Option<&Signature>,
        step: &Op,
        given: &Given,
    ) -> Result<()> {
        let wanted: SmallVec<[bool; 8]> = entry.links.iter().map(|link| self.wants(link)).collect();
        if !wanted.contains(&true) {
            return Ok(());
        }
        let part = signature.and_then(|of| Some((of, part_of(entry, &wanted, given)?)));
        if !self.options.create_graph
            && !watch::checking()
            && let Some((signature, part)) = part
            && let Some(cotangents) = planned_rules(op, entry, signature, part, given)?
        {
            let operands = wanted.iter().enumerate().filter(|(_, wanted)| **wanted);
            for ((i, _), cotangent) in operands.zip(cotangents) {
                self.deliver(entry, i, Value::plain(cotangent))?;
            }
            return Ok(());
        }
        let cx = Eager::new(self.options.create_graph);
        let mut found: SmallVec<[(usize, Expr<'_>); 4]> = SmallVec::new();
        self.restored(&cx, op, entry, given, |rule| {
            let give = |i, cotangent| found.push((i, cotangent));
            match part {
                Some((signature, part)) => signature.vjp(part, rule, &wanted, give).or_throw(),
                None => vjp(step, rule, &wanted, give),
            }
        })?;
        for (i, cotangent) in found {
            self.deliver(entry, i, cx.value_of(cotangent)?)?;
        }
        Ok(())
    }

    /// Runs formulas on what an entry saved and the cotangent of its result.
    fn restored<'c, 'g: 'c, T>(
        &self,
        cx: &'c Eager<'g>,
        op: &str,
        entry: &Arc<Entry>,
        given: &'g Given,
        formulas: impl FnOnce(&Rule<'_, 'c>) -> T,
    ) -> Result<T> {
        let record = self.options.create_graph;
        let own = |k: usize| match record {
            true => History::Entry(entry.clone(), k as u32),
            false => History::None,
        };
        let (args, y, more) = {
            let values = entry.saved.lock();
            check_saved(op, entry, &values)?;
            let mut args: SmallVec<[Arg; 4]> = SmallVec::new();
            for (saved, link) in values.args.iter().zip(&entry.links) {
                let own = || if record { link.history() } else { History::None };
                args.push(restore(cx, saved, own));
            }
            let y = restore(cx, &values.results[0], || own(0));
            let mut more: SmallVec<[Arg; 2]> = SmallVec::new();
            for (k, saved) in values.results.iter().enumerate().skip(1) {
                more.push(restore(cx, saved, || own(k)));
            }
            (args, y, more)
        };
        if more.is_empty() {
            let g = cx.operand(Operand::Value(&given[0].1));
            return catch(|| {
                let mut exprs: SmallVec<[Expr<'_>; 4]> = SmallVec::new();
                args.iter().for_each(|&arg| exprs.push(Expr::new(cx, arg)));
                let (y, g) = (Expr::new(cx, y), Some(Expr::new(cx, g)));
                formulas(&Rule::of_one(&exprs, &y, &g))
            });
        }
        let results: SmallVec<[Expr<'_>; 2]> =
            std::iter::once(y).chain(more).map(|arg| Expr::new(cx, arg)).collect();
        let mut cotangents: SmallVec<[Option<Expr<'_>>; 2]> = SmallVec::new();
        cotangents.resize(results.len(), None);
        for (k, g) in given {
            cotangents[*k as usize] = Some(Expr::new(cx, cx.operand(Operand::Value(g))));
        }
        let exprs: SmallVec<[Expr<'_>; 4]> = args.iter().map(|&arg| Expr::new(cx, arg)).collect();
        catch(|| formulas(&Rule::new(&exprs, &results, &cotangents)))
    }

    /// Parts of one value are added into one buffer, so that a loop over `x[t]` stays linear.
    fn add_in_place(&mut self, entry: &Arc<Entry>, step: &Op, g: &Value) -> Result<bool> {
        if self.options.create_graph || !matches!(step, Op::Slice(_) | Op::Gather) {
            return Ok(false);
        }
        if matches!(step, Op::Gather) && self.add_rows(entry, g)? {
            return Ok(true);
        }
        if trace::active() || !g.array.is_on_host() {
            return self.add_part(entry, step, g);
        }
        let (shape, indices) = {
            let values = entry.saved.lock();
            check_saved("backward", entry, &values)?;
            let indices: SmallVec<[Array; 2]> =
                values.args[1..].iter().filter_map(Saved::array).cloned().collect();
            (values.args[0].ty().shape, indices)
        };
        if let Link::None = entry.links[0] {
            return Ok(true);
        }
        let slot = self.slot(&entry.links[0]);
        let usable = |v: &Value| v.array.is_unique() && v.array.is_contiguous();
        let add = |mut sum: Array| -> Result<Array> {
            #[allow(
                clippy::wildcard_enum_match_arm,
                reason = "`add_in_place` lets slices and gathers through"
            )]
            match step {
                // SAFETY: the sum is fresh or was found to be held by this sweep alone.
                Op::Slice(at) => unsafe { executors::add_into_slice(&sum, at, &g.array)? },
                _ => {
                    let refs: SmallVec<[&Array; 2]> = indices.iter().collect();
                    sum = executors::scatter(sum, &refs, &g.array, ScatterMode::Add)?;
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
            let values = entry.saved.lock();
            check_saved("backward", entry, &values)?;
            let indices: SmallVec<[Array; 2]> =
                values.args[1..].iter().filter_map(Saved::array).cloned().collect();
            (values.args[0].ty(), indices)
        };
        let slot = match &entry.links[0] {
            Link::None => return Ok(true),
            link @ (Link::Leaf(_) | Link::Entry(..)) => self.slot(link),
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
            #[allow(
                clippy::wildcard_enum_match_arm,
                reason = "`add_in_place` lets slices and gathers through"
            )]
            match step {
                Op::Slice(at) => {
                    let part = sum.emit(Op::Slice(at.clone())) + g;
                    sum.emit_with(Op::SetItem(at.clone()), &[sum.arg(), part.arg()])
                }
                _ => {
                    let indices: SmallVec<[Expr<'_>; 2]> =
                        indices.iter().map(|&arg| Expr::new(&cx, arg)).collect();
                    sum.scatter(ScatterMode::Add, g, &indices)
                }
            }
        })?;
        let sum = cx.last(sum)?;
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
            Link::Entry(entry, k) => match &mut self.alone {
                Some(alone) if alone.entry.sequence == entry.sequence => alone.slot(*k),
                _ => self.pending.get_mut(&entry.sequence).and_then(|waiting| waiting.slot(*k)),
            },
        }
    }

    /// Hands a cotangent to operand `i`, in that operand's shape and dtype.
    fn deliver(&mut self, entry: &Entry, i: usize, cotangent: Value) -> Result<()> {
        let unfit = match &entry.saved.lock().args[i] {
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
        self.hand_on(&entry.links[i], cotangent)
    }

    /// Hands on a cotangent that has its operand's shape and dtype.
    fn hand_on(&mut self, link: &Link, cotangent: Value) -> Result<()> {
        match link {
            Link::None => Ok(()),
            Link::Leaf(leaf) => {
                leaf.upgrade().map_or(Ok(()), |leaf| self.reach_leaf(leaf, cotangent))
            }
            Link::Entry(entry, k) => self.reach_entry(entry, *k, cotangent),
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
        cx.last(sum)
    }

    /// The pending entry with the largest sequence number.
    fn take_latest(&mut self) -> Option<Waiting> {
        let alone = self.alone.as_ref().map(|alone| alone.entry.sequence);
        if alone.is_some() && alone > self.order.peek().copied() {
            return self.alone.take();
        }
        let sequence = self.order.pop()?;
        self.pending.remove(&sequence)
    }

    fn reach_entry(&mut self, entry: &Arc<Entry>, k: u32, g: Value) -> Result<()> {
        let recorded = self.options.create_graph;
        if let Some(alone) = &mut self.alone {
            if alone.entry.sequence == entry.sequence {
                return alone.add(k, g, recorded);
            }
        } else if self.pending.is_empty() {
            self.alone = Some(Waiting::new(entry.clone(), k, g));
            return Ok(());
        }
        if let Some(waiting) = self.pending.get_mut(&entry.sequence) {
            return waiting.add(k, g, recorded);
        }
        self.order.push(entry.sequence);
        self.pending.insert(entry.sequence, Waiting::new(entry.clone(), k, g));
        Ok(())
    }

    fn reach_leaf(&mut self, leaf: Arc<Leaf>, g: Value) -> Result<()> {
        let key = Arc::as_ptr(&leaf) as usize;
        if !self.rows.is_empty() {
            self.spread_rows(key)?;
        }
        if let Some((_, sum)) = self.leaves.get_mut(&key) {
            return accumulate(sum, g, self.options.create_graph);
        }
        self.leaf_order.push(key);
        self.leaves.insert(key, (leaf, g));
        Ok(())
    }
}

/// `sum += g`, in the sum's own memory where nobody else holds it.
fn accumulate(sum: &mut Value, g: Value, recorded: bool) -> Result<()> {
    let in_place = !recorded && !watch::on() && sum.array.is_unique() && sum.array.is_contiguous();
    let at_hand = g.array.is_on_host() && !pending::waits(&sum.array) && !pending::waits(&g.array);
    if in_place && at_hand && sum.shape().same(g.shape()) && sum.dtype() == g.dtype() {
        let operands = [executors::Operand::Array(&sum.array), executors::Operand::Array(&g.array)];
        // SAFETY: the types agree and this sweep alone holds the sum.
        return unsafe { executors::map_into(&arithmetic::add, &operands, &sum.array) };
    }
    *sum = add(sum, &g, recorded)?;
    Ok(())
}

pub(super) fn add(a: &Value, b: &Value, recorded: bool) -> Result<Value> {
    apply(Op::Map(&arithmetic::add), &[Operand::Value(a), Operand::Value(b)], recorded)
}

fn located(error: Error, entry: &Entry) -> Error {
    match site::describe(entry.site) {
        Some(line) => error.note(format!("in the gradient of {}, made at {line}", entry.name())),
        None => error,
    }
}
