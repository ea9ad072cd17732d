//! The tape: what was computed, kept as long as somebody may differentiate it.
//!
//! An entry is held by the values it made and by later entries that read them, and by nothing else:
//! dropping a result frees its history at once. An entry names earlier entries only (sequence
//! numbers fall along every link), so there are no cycles; leaves are held weakly, because a leaf's
//! gradient may itself have a history. Nothing here recurses over links.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::executors::{self, Device};
use super::site::{self, Site};
use crate::array::Array;
use crate::dtype::{DType, Numeric};
use crate::error::Result;
use crate::ops::elementwise::Elementwise;
use crate::ops::op::{Op, OperandType, Type};
use crate::ops::probe::{Mask, OPERANDS, RESULT};
use crate::shape::Shape;
use crate::small::push_with;

pub use super::context::{recording, recording_as, set_recording};

mod leaf;
mod live;
mod rows;
mod saved;
pub mod signature;

pub use live::live_nodes;

pub use leaf::{First, Gradient, Hook, HookRule, Hooks, Leaf, StandsFor, host_calls};

pub use rows::Rows;

pub use saved::{Saved, SavedValues};

use leaf::HOST_CALLS;
use saved::{keep, save};
use signature::Signature;

/// An immutable value: an array and how it came to be.
#[derive(Clone)]
pub struct Value {
    /// The data
    pub array: Array,
    /// What backward follows
    pub history: History,
}

/// What a step gave.
pub type Results = SmallVec<[Array; 1]>;

/// Where a value's gradient goes.
#[derive(Clone, Default)]
pub enum History {
    /// Nowhere
    #[default]
    None,
    /// To a leaf's `.grad`
    Leaf(Arc<Leaf>),
    /// Through the op that made it, as one of its results
    Entry(Arc<Entry>, u32),
}

impl From<Option<Arc<Entry>>> for History {
    /// That of the one result of a step, if it was recorded.
    fn from(entry: Option<Arc<Entry>>) -> History {
        entry.map_or(History::None, |entry| History::Entry(entry, 0))
    }
}

/// An operand of an eager call.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor
    Value(&'a Value),
    /// A Python number, or one of a trace
    Scalar(Numeric),
}

impl<'a> Operand<'a> {
    /// What type rules see.
    pub fn ty(self) -> OperandType<'a> {
        match self {
            Operand::Value(v) => OperandType::Tensor(v.array.dtype, v.array.shape()),
            Operand::Scalar(s) => OperandType::Scalar(s),
        }
    }
}

/// The device of operands; that of new values, where none is a tensor. Refused where they differ.
pub fn device_of(op: &str, args: &[Operand<'_>]) -> Result<Device> {
    executors::common(
        op,
        args.iter().filter_map(|arg| match arg {
            Operand::Value(v) => Some(&v.array),
            Operand::Scalar(_) => None,
        }),
    )
}

impl Value {
    /// Where it lies.
    pub fn device(&self) -> Device {
        self.array.device()
    }

    /// A result of a step; no gradient flows through one that is no float.
    fn of(entry: &Arc<Entry>, k: usize, array: Array) -> Value {
        match array.dtype.is_float() {
            true => Value { array, history: History::Entry(entry.clone(), k as u32) },
            false => Value::plain(array),
        }
    }

    /// A value without history.
    pub fn plain(array: Array) -> Value {
        Value { array, history: History::None }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.array.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.array.shape()
    }

    /// Whether backward reaches it.
    pub fn requires_grad(&self) -> bool {
        !matches!(self.history, History::None)
    }
}

/// A cell that holds a value: what a `.grad` handle and its leaf share.
pub type Shared = Arc<Mutex<Value>>;

impl History {
    /// The objects of the user's code that only this history keeps alive: its own hooks and rule,
    /// if nobody else holds the leaf or entry.
    pub fn foreign_objects(&self) -> SmallVec<[*mut c_void; 2]> {
        match self {
            History::Leaf(leaf) if Arc::strong_count(leaf) == 1 => leaf.hooks.objects(),
            History::Entry(entry, _) if Arc::strong_count(entry) == 1 => {
                let hooks = entry.hooks.get().map_or(&[][..], |hooks| hooks);
                let mut objects: SmallVec<[*mut c_void; 2]> =
                    hooks.iter().flat_map(|hooks| hooks.objects()).collect();
                if let Step::Host(rule) = &entry.step {
                    objects.extend(rule.object());
                }
                objects
            }
            History::None | History::Leaf(_) | History::Entry(..) => SmallVec::new(),
        }
    }
}

/// Where the cotangent of an operand goes.
#[derive(Clone, Default)]
pub enum Link {
    /// Nowhere
    #[default]
    None,
    /// To a leaf, if it still lives
    Leaf(Weak<Leaf>),
    /// To the entry that made the operand, as one of its results
    Entry(Arc<Entry>, u32),
}

impl Link {
    fn to(history: &History) -> Link {
        match history {
            History::None => Link::None,
            History::Leaf(leaf) => Link::Leaf(Arc::downgrade(leaf)),
            History::Entry(entry, k) => Link::Entry(entry.clone(), *k),
        }
    }

    /// The history of the operand, for sweeps that are recorded.
    pub fn history(&self) -> History {
        match self {
            Link::None => History::None,
            Link::Leaf(leaf) => leaf.upgrade().map_or(History::None, History::Leaf),
            Link::Entry(entry, k) => History::Entry(entry.clone(), *k),
        }
    }
}

/// A rule written by the user.
pub trait HostRule: Send + Sync {
    /// The name in messages.
    fn name(&self) -> &str;
    /// The address of the Python object that holds the rule, for whoever collects cycles.
    fn object(&self) -> Option<*mut c_void>;
    /// The cotangents of the operands from those of the results, of which at least one is given;
    /// recorded where `record`.
    fn backward(&self, given: &[Option<Value>], record: bool) -> Result<Vec<Option<Value>>>;
    /// The backward at a line has used it up.
    fn release(&self, _by: Site) {}
}

/// What an entry computed.
pub enum Step {
    /// An op, with its rule
    Op(Op),
    /// A composite on values in host memory
    Call(Arc<Signature>),
    /// Something with a rule of the user's
    Host(Arc<dyn HostRule>),
}

/// One recorded step.
pub struct Entry {
    /// Rises with time: later entries have larger numbers
    pub sequence: u64,
    /// What was computed
    pub step: Step,
    /// The Python line
    pub site: Site,
    /// Where cotangents go
    pub links: SmallVec<[Link; 2]>,
    /// What the rules read
    pub saved: Mutex<SavedValues>,
    /// By result
    hooks: OnceLock<Box<[Hooks]>>,
}

impl Entry {
    /// A new entry, written where it stays, and then filled: it is large, and moving it would cost
    /// more than all else in recording a small op.
    #[inline(always)]
    fn build(
        step: impl FnOnce() -> Step,
        fill: impl FnOnce(&mut SmallVec<[Link; 2]>, &mut SavedValues),
    ) -> Arc<Entry> {
        let entry = Arc::<Entry>::new_uninit();
        let place = Arc::as_ptr(&entry).cast_mut().cast::<Entry>();
        // SAFETY: the memory is ours alone until it is returned; every field is written before the
        // references below are made, and a panic on the way only leaks.
        unsafe {
            (&raw mut (*place).sequence).write(live::number());
            (&raw mut (*place).site).write(site::current());
            (&raw mut (*place).step).write(step());
            (&raw mut (*place).links).write(SmallVec::new());
            let values =
                SavedValues { args: SmallVec::new(), results: SmallVec::new(), freed: None };
            (&raw mut (*place).saved).write(Mutex::new(values));
            (&raw mut (*place).hooks).write(OnceLock::new());
            let (links, values) = (&mut (*place).links, (*place).saved.get_mut());
            fill(links, values);
            entry.assume_init()
        }
    }

    /// The op's name, or the user's rule's.
    pub fn name(&self) -> &str {
        match &self.step {
            Step::Op(op) => op.name(),
            Step::Call(signature) => signature.op.name(),
            Step::Host(rule) => rule.name(),
        }
    }

    /// Makes room for a result behind those it has: control flow gives more when its gradient asks.
    pub fn widen(&self, result: usize, array: &Array) {
        let results = &mut self.saved.lock().results;
        while results.len() <= result {
            results.push(save(array, false));
        }
    }

    /// The hooks on the cotangent of a result.
    pub fn hooks(&self, result: u32) -> &Hooks {
        let none = || self.saved.lock().results.iter().map(|_| Hooks::default()).collect();
        &self.hooks.get_or_init(none)[result as usize]
    }

    /// Whether there may be hooks.
    pub fn has_hooks(&self) -> bool {
        self.hooks.get().is_some()
    }

    /// Runs the hooks of a result, if there are any.
    pub fn run_hooks(&self, result: u32, g: Value) -> Result<Value> {
        // Results that came later than the first hook have none.
        match self.hooks.get().and_then(|hooks| hooks.get(result as usize)) {
            Some(hooks) => hooks.run(g),
            None => Ok(g),
        }
    }
}

#[inline(always)]
fn unlink(links: &mut SmallVec<[Link; 2]>, rest: &mut SmallVec<[Arc<Entry>; 4]>) {
    while let Some(link) = links.pop() {
        if let Link::Entry(entry, _) = link {
            rest.push(entry);
        }
    }
}

impl Drop for Entry {
    /// Frees a whole chain without recursion: whoever drops the last entry unlinks the rest in a
    /// loop.
    fn drop(&mut self) {
        live::dropped();
        if let Step::Host(_) = self.step {
            HOST_CALLS.fetch_sub(1, Ordering::Relaxed);
        }
        if self.links.iter().all(|link| !matches!(link, Link::Entry(..))) {
            return;
        }
        let mut rest: SmallVec<[Arc<Entry>; 4]> = SmallVec::new();
        unlink(&mut self.links, &mut rest);
        while let Some(mut entry) = rest.pop() {
            // Where it is: an entry is large. Who holds it beside others finds out whether it is the
            // last one by giving it up.
            match Arc::get_mut(&mut entry) {
                Some(entry) => unlink(&mut entry.links, &mut rest),
                None => {
                    if let Some(mut entry) = Arc::into_inner(entry) {
                        unlink(&mut entry.links, &mut rest);
                    }
                }
            }
        }
    }
}

/// Wraps a result, recording the op if a gradient can flow through it.
pub fn record(op: Op, args: &[Operand<'_>], array: Array) -> Result<Value> {
    let Some((flows, mask)) = recorded(&op, args, std::slice::from_ref(&array))? else {
        return Ok(Value::plain(array));
    };
    let entry = Entry::build(
        || Step::Op(op),
        |links, values| {
            parts(args, flows, mask, links, values);
            values.results.push(save(&array, mask & RESULT != 0));
        },
    );
    Ok(Value { array, history: History::Entry(entry, 0) })
}

/// The same for an op with several results.
#[inline(never)]
pub fn record_all(op: Op, args: &[Operand<'_>], arrays: Results) -> Result<SmallVec<[Value; 1]>> {
    let Some((flows, mask)) = recorded(&op, args, &arrays)? else {
        return Ok(arrays.into_iter().map(Value::plain).collect());
    };
    let entry = Entry::build(
        || Step::Op(op),
        |links, values| {
            parts(args, flows, mask, links, values);
            let saved = arrays.iter().enumerate();
            values.results.extend(saved.map(|(k, array)| save(array, mask & RESULT >> k != 0)));
        },
    );
    Ok(arrays.into_iter().enumerate().map(|(k, array)| Value::of(&entry, k, array)).collect())
}

/// Records a call of a composite on values in host memory, whose results these are.
pub fn record_call(
    signature: Arc<Signature>,
    args: &[Operand<'_>],
    mut results: SmallVec<[Value; 1]>,
) -> Result<SmallVec<[Value; 1]>> {
    let mut flows: u64 = 0;
    for (i, arg) in args.iter().enumerate() {
        let wants = matches!(arg, Operand::Value(v) if v.requires_grad());
        flows |= u64::from(wants) << i;
    }
    flows &= signature.reaches();
    if flows == 0 || !results.iter().any(|value| value.dtype().is_float()) {
        return Ok(results);
    }
    let mask = signature.residuals(flows, args, &results)?;
    let entry = Entry::build(
        || Step::Call(signature),
        |links, values| {
            parts(args, flows, mask, links, values);
            for (k, value) in results.iter().enumerate() {
                values.results.push(save(&value.array, mask & RESULT >> k != 0));
            }
        },
    );
    for (k, value) in results.iter_mut().enumerate() {
        if value.dtype().is_float() {
            value.history = History::Entry(entry.clone(), k as u32);
        }
    }
    Ok(results)
}

/// To which operands a gradient flows, as bits (if there are more operands than bits, to all that
/// want one), and what the rules read; none where no gradient flows.
#[inline(always)]
fn recorded(op: &Op, args: &[Operand<'_>], results: &[Array]) -> Result<Option<(u64, Mask)>> {
    let wants = |arg: &Operand<'_>| matches!(arg, Operand::Value(v) if v.requires_grad());
    if !args.iter().any(wants) || !results.iter().any(|array| array.dtype.is_float()) {
        return Ok(None);
    }
    let mut flows: u64 = 0;
    let mut mask: Mask = 0;
    for (i, arg) in args.iter().enumerate() {
        if wants(arg) && op.differentiable(i) {
            flows |= 1 << i.min(63);
            mask |= probe_residuals(op, args, results, i)?;
        }
    }
    Ok((flows != 0).then_some((flows, mask)))
}

/// Links and what is kept of operands.
#[inline(always)]
fn parts(
    args: &[Operand<'_>],
    flows: u64,
    mask: Mask,
    links: &mut SmallVec<[Link; 2]>,
    values: &mut SavedValues,
) {
    for (i, arg) in args.iter().enumerate() {
        match arg {
            Operand::Scalar(s) => {
                push_with(links, || Link::None);
                push_with(&mut values.args, || Saved::Scalar(*s));
            }
            Operand::Value(v) => {
                let bit = 1 << i.min(63);
                match &v.history {
                    History::Leaf(leaf) if flows & bit != 0 => {
                        push_with(links, || Link::Leaf(Arc::downgrade(leaf)));
                    }
                    History::Entry(entry, k) if flows & bit != 0 => {
                        push_with(links, || Link::Entry(entry.clone(), *k));
                    }
                    History::None | History::Leaf(_) | History::Entry(..) => {
                        push_with(links, || Link::None);
                    }
                }
                keep(&mut values.args, &v.array, mask & OPERANDS & bit != 0);
            }
        }
    }
}

/// [`record`] for an elementwise op, in place: the result is not moved on its way.
#[inline(always)]
pub fn record_map(def: &'static Elementwise, args: &[Operand<'_>], array: Array) -> Value {
    let keep = |list: &mut SmallVec<[Saved; 1]>, data| keep(list, &array, data);
    let entry = entry_of_map(def, args, array.dtype, keep);
    Value { array, history: entry.into() }
}

/// The entry of an elementwise op, if a gradient can flow through it; `keep` appends what it keeps of
/// its result, with the data or without.
#[inline(always)]
pub fn entry_of_map(
    def: &'static Elementwise,
    args: &[Operand<'_>],
    dtype: DType,
    keep: impl FnOnce(&mut SmallVec<[Saved; 1]>, bool),
) -> Option<Arc<Entry>> {
    let wants = |arg: &Operand<'_>| matches!(arg, Operand::Value(v) if v.requires_grad());
    if args.iter().any(wants) { built_of_map(def, args, dtype, keep) } else { None }
}

#[inline(never)]
fn built_of_map(
    def: &'static Elementwise,
    args: &[Operand<'_>],
    dtype: DType,
    keep: impl FnOnce(&mut SmallVec<[Saved; 1]>, bool),
) -> Option<Arc<Entry>> {
    let (mut flows, mut mask) = (0_u64, 0);
    for (i, arg) in args.iter().enumerate() {
        let wants = matches!(arg, Operand::Value(v) if v.requires_grad());
        if wants && !def.vjp[i].is_zero() {
            flows |= 1 << i;
            mask |= def.residuals(i);
        }
    }
    if flows == 0 || !dtype.is_float() {
        return None;
    }
    Some(Entry::build(
        || Step::Op(Op::Map(def)),
        |links, values| {
            parts(args, flows, mask, links, values);
            keep(&mut values.results, mask & RESULT != 0);
        },
    ))
}

fn probe_residuals(op: &Op, args: &[Operand<'_>], results: &[Array], i: usize) -> Result<Mask> {
    if let Some(mask) = op.declared_residuals(args.len(), i) {
        return Ok(mask);
    }
    let types: SmallVec<[OperandType<'_>; 4]> = args.iter().map(|arg| arg.ty()).collect();
    let ty = |array: &Array| Type::new(array.dtype, array.shape().clone());
    let results: SmallVec<[Type; 1]> = results.iter().map(ty).collect();
    op.residuals(&types, &results, i)
}

/// Records a step with a rule of its own: its results, those of floats with a history.
pub fn record_host(
    rule: Arc<dyn HostRule>,
    inputs: &[Value],
    results: Results,
) -> SmallVec<[Value; 1]> {
    HOST_CALLS.fetch_add(1, Ordering::Relaxed);
    let entry = Entry::build(
        || Step::Host(rule),
        |links, values| {
            links.extend(inputs.iter().map(|v| Link::to(&v.history)));
            values.args.extend(inputs.iter().map(|v| save(&v.array, false)));
            values.results.extend(results.iter().map(|array| save(array, false)));
        },
    );
    results.into_iter().enumerate().map(|(k, array)| Value::of(&entry, k, array)).collect()
}
