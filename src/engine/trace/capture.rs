//! The capture recorder: which handles, gradients and outer values a trace reads and writes.

use std::any::Any;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::stack::{at_level, depth, is_on_stack, level_of, position};
use super::{Named, Role, Trace, is_traced, named};
use crate::engine::tape::{History, Leaf, Shared, StandsFor, Value};
use crate::error::{self, Result};
use crate::ops::emit::Id;
use crate::ops::op::Type;

/// Something outside that a trace reads or writes.
#[derive(Clone)]
pub struct Capture {
    /// What
    pub source: Source,
    /// The handle it was reached by, kept alive
    pub handle: Option<Handle>,
    /// The input that stands for it
    pub input: Id,
    /// Its value now, as the trace sees it
    pub cell: Shared,
    /// The trace's own leaf for a value outside that requires a gradient
    pub leaf: Option<Arc<Leaf>>,
}

/// A handle of Python's, of which only the bindings know more.
pub type Handle = Arc<dyn Any + Send + Sync>;

/// Where the value of a capture comes from.
#[derive(Clone)]
pub enum Source {
    /// The handle, which holds a value outside all traces
    Handle,
    /// The gradient of a leaf
    Gradient(Arc<Leaf>),
    /// A value of a trace below
    Outer(Value),
    /// A fresh random key
    Key,
}

/// What a capture is found by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The address of a handle or of a gradient's cell
    Address(usize),
    /// A node of another trace
    Node(u64, Id),
}

/// What a handle is to captures: how to keep it, and its own value.
type Outside<'a> = dyn FnMut() -> (Option<Handle>, Value) + 'a;

/// The cell in which the trace at a level keeps its view of something outside it.
fn capture(level: usize, key: Key, outside: &mut Outside<'_>) -> Result<Shared> {
    let trace = at_level(level)?;
    if let Some(cell) = trace.find(key) {
        return Ok(cell);
    }
    let (keep, own) = outside();
    let base = level_of(&own.array).ok_or_else(|| match named(&own.array) {
        Some(name) => name.trace.escaped("capture", name.id),
        None => error::internal("a plain value belongs nowhere"),
    })?;
    if base > level {
        return Ok(Arc::new(Mutex::new(own)));
    }
    // What the trace below sees of it; itself, where nothing is between.
    let seen = if base == level { own } else { capture(level - 1, key, outside)?.lock().clone() };
    if trace.role == Role::Definition || (level > 0 && !is_traced(&seen.array)) {
        return Ok(Arc::new(Mutex::new(seen)));
    }
    let source = match keep {
        Some(_) if level == 0 => Source::Handle,
        _ => Source::Outer(seen.clone()),
    };
    trace.take_in(Some(key), source, keep, &seen)
}

impl Trace {
    /// Adds a capture: the cell of its value.
    pub(super) fn take_in(
        self: &Arc<Trace>,
        key: Option<Key>,
        source: Source,
        handle: Option<Handle>,
        seen: &Value,
    ) -> Result<Shared> {
        let ty = Type::new(seen.dtype(), seen.shape().clone());
        self.take_in_as(key, source, handle, seen, ty)
    }

    fn take_in_as(
        self: &Arc<Trace>,
        key: Option<Key>,
        source: Source,
        handle: Option<Handle>,
        seen: &Value,
        ty: Type,
    ) -> Result<Shared> {
        if let Some(name) = named(&seen.array)
            && name.trace.is_unresolved(name.id)
        {
            let what = "a tensor of unknown rank cannot enter control flow or a transform";
            return Err(error::bad_graph("capture", what, "give its placeholder a shape"));
        }
        let mut value = match source {
            Source::Key => self.input(ty.clone())?,
            Source::Handle | Source::Gradient(_) | Source::Outer(_) => {
                self.input_on(seen.array.device(), ty.clone())?
            }
        };
        let input = self.node("capture", &value)?;
        if let (Source::Key, Role::Definition) = (&source, self.role) {
            // A capture would hold its own trace: the number of the node is enough.
            self.state.lock().keys.insert(input);
            return Ok(Arc::new(Mutex::new(value)));
        }
        let leaf = seen.requires_grad().then(|| {
            let real = match &seen.history {
                History::Leaf(real) if !matches!(source, Source::Outer(_)) => Some(real.clone()),
                History::None | History::Leaf(_) | History::Entry(..) => None,
            };
            Arc::new(Leaf::inside(ty, self, real))
        });
        value.history = leaf.clone().map_or(History::None, History::Leaf);
        let cell: Shared = Arc::new(Mutex::new(value));
        let mut state = self.state.lock();
        if let Some(key) = key {
            let i = state.captures.len();
            state.found.insert(key, i);
        }
        state.captures.push(Capture { source, handle, input, cell: cell.clone(), leaf });
        Ok(cell)
    }

    /// A value of another trace, as an input of this one.
    pub(super) fn capture_node(
        self: &Arc<Trace>,
        op: &str,
        name: &Named,
        value: &Value,
    ) -> Result<Id> {
        if !is_on_stack(&name.trace) {
            return Err(name.trace.escaped(op, name.id));
        }
        let level = position(self).unwrap_or(0);
        let key = Key::Node(name.trace.serial, name.id);
        let cell = capture(level, key, &mut || (None, Value::plain(value.array.clone())))?;
        let found = cell.lock().clone();
        // A value of a trace inside this one: its node does not exist where this one runs.
        if let Some(inner) = named(&found.array)
            && !Arc::ptr_eq(&inner.trace, self)
        {
            return Err(inner.trace.escaped(op, inner.id));
        }
        self.node(op, &found)
    }

    /// Takes in a handle as an argument of a type of its own: some sizes are symbols.
    pub fn argument(
        self: &Arc<Trace>,
        address: usize,
        own: &Value,
        handle: Handle,
        ty: Type,
    ) -> Result<()> {
        let key = Some(Key::Address(address));
        self.take_in_as(key, Source::Handle, Some(handle), own, ty).map(drop)
    }

    /// The captures so far.
    pub fn captures(&self) -> Vec<Capture> {
        self.state.lock().captures.clone()
    }

    /// The node of a capture's value now, if it was given a new one.
    pub fn written(self: &Arc<Trace>, capture: &Capture) -> Result<Option<Id>> {
        let id = self.node("capture", &capture.cell.lock())?;
        Ok((id != capture.input).then_some(id))
    }

    fn find(&self, key: Key) -> Option<Shared> {
        let state = self.state.lock();
        state.found.get(&key).map(|&i| state.captures[i].cell.clone())
    }
}

/// The value of a handle as the top trace sees it. `own` is what the handle holds.
pub fn read_handle(address: usize, own: &Value, keep: &mut dyn FnMut() -> Handle) -> Result<Value> {
    let depth = depth();
    let Some(top) = depth.checked_sub(1) else { return Ok(own.clone()) };
    if level_of(&own.array) == Some(depth) {
        return Ok(own.clone());
    }
    let mut outside = || (Some(keep()), own.clone());
    let cell = capture(top, Key::Address(address), &mut outside)?;
    let value = cell.lock().clone();
    Ok(value)
}

/// Gives a handle a value that only the top trace sees, until that is committed. False where the
/// handle is the trace's own, to be written directly.
pub fn write_handle(
    address: usize,
    own: &Value,
    keep: &mut dyn FnMut() -> Handle,
    new: Value,
) -> Result<bool> {
    let depth = depth();
    if depth == 0 || level_of(&own.array) == Some(depth) {
        return Ok(false);
    }
    let trace = at_level(depth - 1)?;
    if trace.role == Role::Definition {
        let facts = "make it a wengert.Variable, or update it outside";
        return Err(error::bad_graph("update", "a graph cannot update a tensor outside it", facts));
    }
    let key = Key::Address(address);
    let cell = capture(depth - 1, key, &mut || (Some(keep()), own.clone()))?;
    match trace.find(key) {
        Some(_) => *cell.lock() = new,
        // A plain value seen from a nested trace: taken in to be written.
        None => {
            let seen = cell.lock().clone();
            let source = Source::Outer(seen.clone());
            *trace.take_in(Some(key), source, Some(keep()), &seen)?.lock() = new;
        }
    }
    Ok(true)
}

/// The link from a trace's leaf to what it stands for.
struct Link {
    trace: Weak<Trace>,
    real: Arc<Leaf>,
}

impl StandsFor for Link {
    fn real(&self) -> &Arc<Leaf> {
        &self.real
    }

    fn gradient(&self) -> Result<Option<Shared>> {
        let Some(trace) = self.trace.upgrade() else { return Ok(None) };
        let Some(cell) = self.real.gradient()? else { return Ok(None) };
        let key = Key::Address(Arc::as_ptr(&cell).addr());
        if let Some(cell) = trace.find(key) {
            return Ok(Some(cell));
        }
        let seen = cell.lock().clone();
        trace.take_in(Some(key), Source::Gradient(self.real.clone()), None, &seen).map(Some)
    }
}

impl Leaf {
    /// The leaf inside a trace that stands for one outside.
    fn inside(ty: Type, trace: &Arc<Trace>, real: Option<Arc<Leaf>>) -> Leaf {
        let mut leaf = Leaf::new(ty);
        if let Some(real) = real {
            leaf.link = Some(Box::new(Link { trace: Arc::downgrade(trace), real }));
        }
        leaf
    }

    /// The leaf outside that this one stands for in a trace.
    pub fn real(&self) -> Option<&Arc<Leaf>> {
        self.link.as_ref().map(|link| link.real())
    }
}
