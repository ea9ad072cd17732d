//! Traces: lists that grow while Python code runs.
//!
//! A traced value is an ordinary [`Value`] whose data is [traced](Where::Traced): the trace, and
//! the node there. Ops on it go the same ways as eager ops (promotion, composites, tape, sweep) and
//! end here, as nodes. So what a trace holds is what eager code would have computed, op by op.
//!
//! Traces nest: the body of a loop is traced while the function around it is. Each thread has a
//! stack of open traces; new nodes belong to the top one. What a trace reads from outside (a handle
//! of Python's, a value of a trace below, a gradient, a random key) becomes an input of its list,
//! listed in its [captures](Capture). Handles are not written while a trace is open: a trace keeps
//! the values it gives them to itself, and whoever ends the trace commits them. A trace that fails
//! is dropped, and nothing has happened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, ReentrantMutex};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::executors::{self, Device, device};
use super::site;
use super::tape::{self, Operand, Value};
use crate::array::{Array, Data, Where};
use crate::dtype::{Numeric, Scalar};
use crate::error::{self, Error, Result};
use crate::graph::{Graph, Kind, List};
use crate::ops::emit::{Arg, Emit, Id, OrThrow, catch};
use crate::ops::number::Number;
use crate::ops::op::{Op, Type};
use crate::shape::{Bindings, Dim, Scope};
use crate::small::small;

mod capture;
mod deferred;
mod defined;
mod dispatch;
mod keys;
mod no_grad;
mod stack;

pub use capture::{Capture, Handle, Source, read_handle, write_handle};
pub use deferred::{Call, Calls, DeferredCall, Item};
pub use dispatch::{Called, Dispatch, Values, deferring, is_sized};
pub use keys::{GeneratorState, check_seeding, draw_key, random_state, set_random_state};
pub use no_grad::{cuts, sweeping};
pub use stack::{
    Entered, active, depth, is_on_stack, leave, only_bodies_since, speaks_of, suspended, top,
};

use capture::Key;

/// What a trace is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A function: what it reads outside are inputs, what it writes there are results
    Function,
    /// A graph defined by hand: what it reads outside are constants; it stays open
    Definition,
}

/// The node behind a traced value, whose data says the device that it will lie on.
struct Named {
    trace: Arc<Trace>,
    id: Id,
}

/// A list that grows while Python code runs.
pub struct Trace {
    /// What it is for
    pub role: Role,
    serial: u64,
    graph: ReentrantMutex<Graph>,
    state: Mutex<State>,
    open: AtomicBool,
    is_body: bool,
    /// Whether its results may be moved to other devices, at the end of each run
    moves_results: bool,
    /// Whether its list becomes a program of shaders
    is_exported: bool,
    /// The device that its nodes are computed on, once something says it
    device: OnceLock<Device>,
    /// The symbols among its sizes, and what it relies on about them
    scope: Scope,
    /// The way of a graph defined by hand, which defers calls
    deferred: Option<&'static dyn Dispatch>,
}

#[derive(Default)]
struct State {
    captures: Vec<Capture>,
    found: FxHashMap<Key, usize>,
    /// The constants, by the address of the data that they were made of, and its offset
    constants: FxHashMap<(usize, usize), SmallVec<[Known; 1]>>,
    /// The values at hand of the numbers that are given, by their places in the table
    numbers: FxHashMap<u32, f64>,
    /// The inputs that are random keys, fresh at every run, of a graph defined by hand
    keys: FxHashSet<Id>,
    /// All keys drawn, in order, and how many of them the generator of the trace is past
    draws: (Vec<Id>, usize),
    /// The calls that a graph defined by hand keeps
    calls: Calls,
    finalized: bool,
    /// The inputs that lie on another device than its own
    away: FxHashSet<Id>,
    /// The nodes that were made without recording, and what stands for them where their gradient
    /// must not be followed
    no_grad: FxHashMap<Id, Option<Id>>,
}

/// A constant, with the data it was made of: kept, since an address that is free is used again.
struct Known {
    id: Id,
    _data: Data,
}

fn named(array: &Array) -> Option<&Named> {
    match array.data.place() {
        Where::Traced(node) => node.node(),
        Where::Host(_) | Where::Device(_) | Where::Busy(_) => None,
    }
}

/// Whether a value is traced.
#[inline]
pub fn is_traced(array: &Array) -> bool {
    matches!(array.data.place(), Where::Traced(_))
}

/// The trace and the node of a traced value.
pub fn node_of(array: &Array) -> Option<(&Arc<Trace>, Id)> {
    named(array).map(|name| (&name.trace, name.id))
}

/// Whether an op on these operands becomes a node.
pub fn wants(args: &[Operand<'_>]) -> bool {
    active() || args.iter().any(|arg| matches!(arg, Operand::Value(v) if is_traced(&v.array)))
}

/// Whether operands lie in host memory and no trace is open: the kernels of the CPU run at once.
#[inline]
pub fn at_hand(args: &[Operand<'_>]) -> bool {
    let elsewhere = |arg: &Operand<'_>| matches!(arg, Operand::Value(v) if !v.array.is_on_host());
    !active() && !args.iter().any(elsewhere)
}

/// Opens the graph that operands belong to, where no trace is open: so that what a formula makes
/// without operands becomes a node there too.
pub fn enter_for(op: &str, args: &[Operand<'_>]) -> Result<Option<Entered>> {
    if let Some(trace) = top() {
        trace.scope.at(site::current());
        return Ok(None);
    }
    let mut traced = args.iter().filter_map(|arg| match arg {
        Operand::Value(v) => named(&v.array),
        Operand::Scalar(_) => None,
    });
    match traced.next() {
        Some(name) if name.trace.stands_open() => Ok(Some(name.trace.enter())),
        Some(name) => Err(name.trace.escaped(op, name.id)),
        None => Ok(None),
    }
}

/// Adds an op as a node: its value.
#[cold]
pub fn emit(op: Op, args: &[Operand<'_>]) -> Result<Array> {
    Ok(emit_all(op, args)?.swap_remove(0))
}

/// The same: all results.
pub fn emit_all(op: Op, args: &[Operand<'_>]) -> Result<tape::Results> {
    let _entered = enter_for(op.name(), args)?;
    let device = tape::device_of(op.name(), args)?;
    executors::admit(device, &op, args.iter().map(|arg| arg.ty()))?;
    let Some(trace) = top() else { return Err(error::internal("no trace is open")) };
    trace.settle_device(op.name(), device)?;
    let mut operands: SmallVec<[Arg; 4]> = SmallVec::new();
    for arg in args {
        operands.push(match arg {
            Operand::Scalar(value) => Arg::Number(*value),
            Operand::Value(value) => Arg::Node(trace.node(op.name(), value)?),
        });
    }
    if trace.cuts() && tape::recording() {
        trace.settle(&mut operands)?;
    }
    let mut more: SmallVec<[Id; 2]> = SmallVec::new();
    let first = trace.add(|graph| {
        let count = op.results();
        let id = catch(|| graph.emit(op, &operands))?;
        more.extend((1..count).map(|k| graph.part(id, k)));
        Ok(id)
    })?;
    let mut arrays = tape::Results::new();
    arrays.push(first);
    arrays.extend(more.into_iter().map(|id| trace.value(id).array));
    if trace.is_no_grad() {
        let ids: SmallVec<[Id; 2]> =
            arrays.iter().filter_map(|array| node_of(array).map(|(_, id)| id)).collect();
        trace.mark_no_grad(&ids);
    }
    Ok(arrays)
}

/// A number of a formula: one of the top trace's, if one is open.
pub fn number(number: Number) -> Numeric {
    match (top(), number) {
        (Some(trace), number) => trace.read(|graph| graph.define(number)),
        (None, number) => match number.now() {
            Some(value) => value.into(),
            None => crate::error::throw(error::internal("a number that no run tells")),
        },
    }
}

/// The size that a number of the top trace is.
pub fn size_of(value: Numeric) -> Option<Dim> {
    let i = value.told()?;
    match top()?.read(|graph| graph.list().numbers.get(i as usize).cloned())? {
        Number::Size(dim) => Some(dim),
        Number::Input | Number::Calculated(..) => None,
    }
}

/// A look at a number of the top trace.
pub fn look(number: u32) -> Option<Scalar> {
    top().map(|trace| trace.look(number).or_throw())
}

/// The device of the trace on top; where there is none, that of new values.
pub fn device() -> Device {
    top().map_or_else(device::current, |trace| trace.device())
}

impl Trace {
    /// A new trace of a function, not yet on a stack. Its sizes go with it. With `is_exported` its
    /// list becomes a program of shaders.
    pub fn new(is_exported: bool) -> Arc<Trace> {
        let mut trace = Trace::make(Role::Function, false, Scope::owner());
        if let Some(trace) = Arc::get_mut(&mut trace) {
            trace.moves_results = true;
            trace.is_exported |= is_exported;
        }
        trace
    }

    /// A new trace whose list goes elsewhere: what is around keeps its sizes.
    pub fn passing() -> Arc<Trace> {
        Trace::make(Role::Function, false, Scope::new())
    }

    fn make(role: Role, is_body: bool, scope: Scope) -> Arc<Trace> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Arc::new(Trace {
            role,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            graph: ReentrantMutex::new(Graph::with_calls()),
            state: Mutex::default(),
            open: AtomicBool::new(true),
            is_body,
            moves_results: false,
            is_exported: top().is_some_and(|outer| outer.is_exported),
            device: OnceLock::new(),
            scope,
            deferred: None,
        })
    }

    /// The device that its nodes are computed on: that of what it read first; before, that of new
    /// values.
    pub fn device(&self) -> Device {
        self.device.get().copied().unwrap_or_else(device::current)
    }

    /// Whether its list, or that of the trace around it, becomes a program of shaders.
    pub fn is_exported(&self) -> bool {
        self.is_exported
    }

    /// Says that its nodes are computed on a device. A graph computes on one device alone.
    pub fn settle_device(&self, op: &str, device: Device) -> Result<()> {
        match *self.device.get_or_init(|| device) {
            known if known == device => Ok(()),
            known => Err(error::one_device(op, known, device)),
        }
    }

    /// A new trace of a body inside the one on top, whose numbers it speaks of.
    pub fn within() -> Arc<Trace> {
        let trace = Trace::make(Role::Function, true, Scope::new());
        if let Some(outer) = top() {
            let numbers = outer.graph.lock().list().numbers.clone();
            trace.graph.lock().list_mut().numbers = numbers;
            trace.state.lock().numbers = outer.state.lock().numbers.clone();
            if let Some(device) = outer.device.get() {
                let _ = trace.device.set(*device);
            }
        }
        trace
    }

    /// Closes the trace: its list and captures. Values it made cannot be used any more.
    pub fn close(self: &Arc<Trace>) -> (List, Vec<Capture>) {
        self.open.store(false, Ordering::Relaxed);
        let list = self.graph.lock().list().clone();
        (list, std::mem::take(&mut self.state.lock().captures))
    }

    /// Closes the trace and forgets what it read: values name their trace, so that it would keep
    /// itself alive.
    pub fn abandon(&self) {
        self.open.store(false, Ordering::Relaxed);
        let captures = std::mem::take(&mut self.state.lock().captures);
        drop(captures);
    }

    /// Whether it takes nodes at any time.
    fn stands_open(&self) -> bool {
        self.role == Role::Definition && self.open.load(Ordering::Relaxed)
    }

    /// Forbids new nodes.
    pub fn finalize(&self) {
        self.state.lock().finalized = true;
    }

    /// Whether new nodes are forbidden.
    pub fn is_finalized(&self) -> bool {
        self.state.lock().finalized
    }

    /// Refuses new nodes where they are forbidden.
    pub fn check_open(&self) -> Result<()> {
        if self.is_finalized() {
            let facts = "it was finalized; clone() it to go on";
            return Err(error::bad_graph("graph", "no node can be added", facts));
        }
        Ok(())
    }

    /// Looks at the graph.
    pub fn read<T>(&self, f: impl FnOnce(&Graph) -> T) -> T {
        f(&self.graph.lock())
    }

    /// Adds nodes, attributed to the running line: the value of the one that `f` names.
    pub fn add(self: &Arc<Trace>, f: impl FnOnce(&Graph) -> Result<Id>) -> Result<Array> {
        self.check_open()?;
        let graph = self.graph.lock();
        let site = site::current();
        graph.at(site);
        self.scope.at(site);
        let id = f(&graph)?;
        Ok(self.array(id, graph.ty(id)))
    }

    /// The value of a node.
    pub fn value(self: &Arc<Trace>, id: Id) -> Value {
        let ty = self.read(|graph| graph.ty(id));
        Value::plain(self.array(id, ty))
    }

    /// The value of a node, as it is once it was moved to a device.
    pub fn value_on(self: &Arc<Trace>, device: Device, x: &Value) -> Result<Value> {
        let ty = Type::new(x.dtype(), x.shape().clone());
        Ok(Value::plain(self.array_on(device, self.node("to", x)?, ty)))
    }

    fn array(self: &Arc<Trace>, id: Id, ty: Type) -> Array {
        self.array_on(self.device(), id, ty)
    }

    fn array_on(self: &Arc<Trace>, device: Device, id: Id, ty: Type) -> Array {
        let data = Data::traced(device, Named { trace: self.clone(), id });
        Array::new(ty.dtype, ty.shape, data)
    }

    /// Adds an input that lies on a device; a trace computes where its first input lies.
    pub fn input_on(self: &Arc<Trace>, device: Device, ty: Type) -> Result<Value> {
        let own = *self.device.get_or_init(|| device);
        let value = self.input(ty)?;
        let Some((_, id)) = node_of(&value.array) else { return Ok(value) };
        if own != device {
            self.state.lock().away.insert(id);
        }
        let ty = Type::new(value.dtype(), value.shape().clone());
        Ok(Value::plain(self.array_on(device, id, ty)))
    }

    /// Adds an input.
    pub fn input(self: &Arc<Trace>, ty: Type) -> Result<Value> {
        self.add(|graph| Ok(graph.input(ty))).map(Value::plain)
    }

    /// The node that stands for a value here: its own, a capture, or a constant.
    pub fn node(self: &Arc<Trace>, op: &str, value: &Value) -> Result<Id> {
        match named(&value.array) {
            Some(name) if Arc::ptr_eq(&name.trace, self) => Ok(name.id),
            Some(name) => self.capture_node(op, name, value),
            None => self.constant(&value.array),
        }
    }

    /// A value that is known, once for each view of its data. Constants are data of the host.
    fn constant(self: &Arc<Trace>, array: &Array) -> Result<Id> {
        let key = (array.data.address(), array.layout.offset());
        let mut state = self.state.lock();
        let known = state.constants.entry(key).or_default();
        let graph = self.graph.lock();
        let same = |known: &&Known| match &graph.nodes()[known.id.0 as usize].kind {
            Kind::Constant(other) => other.dtype == array.dtype && other.layout == array.layout,
            Kind::Input
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => false,
        };
        if let Some(known) = known.iter().find(same) {
            return Ok(known.id);
        }
        graph.at(site::current());
        let id = graph.constant(executors::download(array)?);
        known.push(Known { id, _data: array.data.clone() });
        Ok(id)
    }

    /// The error for a value used outside its trace.
    fn escaped(&self, op: &str, id: Id) -> Error {
        let graph = self.graph.lock();
        let node = graph.nodes().get(id.0 as usize).map(|node| {
            let line =
                site::describe(node.site).map_or(String::new(), |at| format!(", made at {at},"));
            format!("the traced result of {}{line}", node.kind.name())
        });
        let node = node.unwrap_or_else(|| "a traced value".into());
        match self.stands_open() {
            true => {
                let node = node.trim_end_matches(',');
                error::bad_graph(op, "operands belong to different graphs", node)
            }
            false => error::escaped(op, node),
        }
    }

    /// The error for Python code that needs the data of a node of this trace.
    pub fn untraceable(&self, op: &str, id: Id, remedy: &str) -> Error {
        let name = self.read(|graph| graph.nodes()[id.0 as usize].kind.name());
        let line = site::describe(site::current()).map_or(String::new(), |at| format!(", at {at}"));
        error::untraceable(op, name, line, remedy)
    }

    /// The symbols among its sizes.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Adds a number that is given at each run; it is this now.
    pub fn given(&self, now: f64) -> u32 {
        let i = self.graph.lock().given();
        self.state.lock().numbers.insert(i, now);
        i
    }

    /// The value at hand of a number that is given.
    pub fn number_now(&self, i: u32) -> f64 {
        self.state.lock().numbers.get(&i).copied().unwrap_or(f64::NAN)
    }

    /// A look at a number: what it is now. What it comes of is noted, and sizes are pinned.
    pub fn look(&self, number: u32) -> Result<Scalar> {
        let graph = self.graph.lock();
        if let Some(seen) = graph.looks_at(number) {
            return Ok(seen);
        }
        let (list, state) = (graph.list(), self.state.lock());
        let is_given = |i: &u32| matches!(list.numbers.get(*i as usize), Some(Number::Input));
        let given: Vec<Scalar> = (0..list.numbers.len() as u32)
            .filter(is_given)
            .map(|i| Scalar::Float(state.numbers.get(&i).copied().unwrap_or(f64::NAN)))
            .collect();
        let hints = self.scope.symbols().into_iter();
        let sizes = hints.filter_map(|(dim, hint)| Some((dim, Dim::new(hint?))));
        let values = list.evaluate_numbers(&given, &Bindings::of(sizes))?;
        // A number of another trace, such as that of a graph around this one, has no value here.
        values.get(number as usize).copied().ok_or_else(|| error::unknown_size("number", "a size"))
    }

    /// What tells it from others.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Works on the graph, attributing new nodes to the running line.
    pub fn with_graph<T>(&self, f: impl FnOnce(&Graph) -> T) -> T {
        let graph = self.graph.lock();
        graph.at(site::current());
        f(&graph)
    }
}

/// The refusal of Python code that needs the data of a traced value, if the value is one.
pub fn check_data(op: &str, array: &Array, remedy: &str) -> Result<()> {
    match named(array) {
        Some(name) if name.trace.open.load(Ordering::Relaxed) => {
            Err(name.trace.untraceable(op, name.id, remedy))
        }
        Some(name) => Err(name.trace.escaped(op, name.id)),
        None => Ok(()),
    }
}

/// `x` as it is, once `after` are there, kept apart from other nodes of its value by passes; `x`
/// itself outside of traces. The history is that of `x`.
pub fn barrier(x: &Value, after: &[Value]) -> Result<Value> {
    let Some(trace) = top() else { return Ok(x.clone()) };
    let id = trace.node("barrier", x)?;
    let after: Result<SmallVec<[Id; 2]>> =
        after.iter().map(|value| trace.node("barrier", value)).collect();
    let array = barrier_of(&trace, id, &after?)?;
    Ok(Value { array, ..x.clone() })
}

/// A traced value on another device. A list computes on one device, so there is no node: what a
/// captured function returns is moved at the end of each run. Refused for other traces, and for
/// inputs that lie on another device than the trace.
pub fn moved(op: &str, x: &Value, to: Device) -> Result<Array> {
    let refused = || error::one_device(op, x.device(), to);
    let trace = top().filter(|trace| trace.moves_results).ok_or_else(refused)?;
    let id = trace.node(op, x)?;
    if trace.state.lock().away.contains(&id) {
        return Err(refused());
    }
    Ok(trace.value_on(to, x)?.array)
}

fn barrier_of(trace: &Arc<Trace>, id: Id, after: &[Id]) -> Result<Array> {
    trace.add(|graph| Ok(graph.barrier(id, after)))
}

/// A value that Python code makes from data: a constant of the top trace, if one is open.
pub fn lift(value: Value) -> Result<Value> {
    match top() {
        Some(trace) if !is_traced(&value.array) => {
            let id = trace.constant(&value.array)?;
            let ty = Type::new(value.dtype(), value.shape().clone());
            Ok(Value::plain(trace.array_on(value.array.device(), id, ty)))
        }
        _ => Ok(value),
    }
}

/// The operands of a recorded op as nodes and types, for whoever builds nodes by hand.
pub fn nodes(op: &str, values: &[Value]) -> Result<(Arc<Trace>, SmallVec<[Arg; 4]>)> {
    let Some(trace) = top() else { return Err(error::internal("no trace is open")) };
    trace.settle_device(op, executors::common(op, values.iter().map(|v| &v.array))?)?;
    let ids: Result<SmallVec<[Id; 4]>> = values.iter().map(|v| trace.node(op, v)).collect();
    let mut args: SmallVec<[Arg; 4]> = small(ids?.into_iter().map(Arg::Node));
    if trace.cuts() && tape::recording() {
        trace.settle(&mut args)?;
    }
    Ok((trace, args))
}
