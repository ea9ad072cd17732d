//! Traces: lists that grow while Python code runs.
//!
//! A traced value is an ordinary [`Value`] whose array has no memory but a name: the trace, and the
//! node there. Ops on it go the same ways as eager ops (promotion, composites, tape, sweep) and end
//! here, as nodes. So what a trace holds is what eager code would have computed, op by op.
//!
//! Traces nest: the body of a loop is traced while the function around it is. Each thread has a stack
//! of open traces; new nodes belong to the top one. What a trace reads from outside (a handle of
//! Python's, a value of a trace below, a gradient, a random key) becomes an input of its list, listed
//! in its [captures](Capture). Handles are not written while a trace is open: a trace keeps the values
//! it gives them to itself, and whoever ends the trace commits them. A trace that fails is dropped,
//! and nothing has happened.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, ReentrantMutex};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::definition::{self, Call, Calls, Kept};
use super::random;
use super::site;
use super::tape::{self, History, Leaf, Operand, Shared, Value};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::graph::{Graph, Kind, List, number_of};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Emit, Id, OrThrow, catch};
use crate::ops::number::Number;
use crate::ops::op::{Op, Type};
use crate::shape::{self, Bindings, Dim, Scope, Shape};
use crate::small::small;

/// What a trace is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A function: what it reads outside are inputs, what it writes there are results
    Function,
    /// A graph defined by hand: what it reads outside are constants; it stays open
    Definition,
}

/// The name in the buffer of a traced value.
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
    /// The symbols among its sizes, and what it relies on about them
    scope: Scope,
}

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

/// A handle of Python's, of which only the border knows more.
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
enum Key {
    /// The address of a handle or of a gradient's cell
    Address(usize),
    /// A node of another trace
    Node(u64, Id),
}

#[derive(Default)]
struct State {
    captures: Vec<Capture>,
    found: FxHashMap<Key, usize>,
    constants: FxHashMap<(usize, usize), SmallVec<[Id; 1]>>,
    /// The values at hand of the numbers that are given, by their places in the table
    numbers: FxHashMap<u32, f64>,
    /// The inputs that are random keys, fresh at every run, of a graph defined by hand
    keys: FxHashSet<Id>,
    /// All keys drawn, in order, and how many of them the generator of the trace is past
    draws: (Vec<Id>, usize),
    /// The calls that a graph defined by hand keeps
    calls: Calls,
    finalized: bool,
    /// The nodes that were made without recording, and what stands for them where their gradient must
    /// not be followed
    silent: FxHashMap<Id, Option<Id>>,
}

/// A trace on a thread's stack, with its scope entered.
struct Level(Arc<Trace>, #[allow(dead_code)] shape::Entered);

thread_local! {
    static STACK: RefCell<Vec<Level>> = const { RefCell::new(Vec::new()) };
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a trace is open on this thread.
#[inline]
pub fn active() -> bool {
    ACTIVE.get()
}

/// The trace that gets the nodes of this thread.
pub fn top() -> Option<Arc<Trace>> {
    STACK.with(|stack| stack.borrow().last().map(|level| level.0.clone()))
}

/// Whether a trace is on this thread's stack.
pub fn is_on_stack(trace: &Arc<Trace>) -> bool {
    STACK.with(|stack| stack.borrow().iter().any(|level| Arc::ptr_eq(&level.0, trace)))
}

/// Keeps a trace on top of this thread's stack.
pub struct Entered(Arc<Trace>);

impl Drop for Entered {
    fn drop(&mut self) {
        leave(&self.0);
        // A function is entered once, and may have failed: what it read must not be kept.
        if self.0.role == Role::Function {
            self.0.abandon();
        }
    }
}

/// Takes a trace off the stack of this thread, and what was left above it.
pub fn leave(trace: &Arc<Trace>) {
    let is_it = |level: &Level| Arc::ptr_eq(&level.0, trace);
    let at = STACK.with(|stack| stack.borrow().iter().rposition(is_it));
    // Scopes are left in reverse order.
    while at.is_some_and(|at| STACK.with(|stack| stack.borrow().len()) > at) {
        drop(STACK.with(|stack| stack.borrow_mut().pop()));
    }
    ACTIVE.set(STACK.with(|stack| !stack.borrow().is_empty()));
}

/// Runs `f` outside all traces: what it computes are ordinary values.
pub fn suspended<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(Vec<Level>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let kept = std::mem::take(&mut self.0);
            ACTIVE.set(!kept.is_empty());
            STACK.with(|stack| *stack.borrow_mut() = kept);
        }
    }
    let _restore = Restore(STACK.with(|stack| std::mem::take(&mut *stack.borrow_mut())));
    ACTIVE.set(false);
    f()
}

fn named(array: &Array) -> Option<&Named> {
    array.buffer.name().and_then(|name| name.downcast_ref())
}

/// Whether a value is traced.
#[inline]
pub fn is_traced(array: &Array) -> bool {
    array.buffer.is_named()
}

/// The trace and the node of a traced value.
pub fn node_of(array: &Array) -> Option<(&Arc<Trace>, Id)> {
    named(array).map(|name| (&name.trace, name.id))
}

/// Whether an op on these operands becomes a node.
#[inline]
pub fn wants(args: &[Operand<'_>]) -> bool {
    active() || args.iter().any(|arg| matches!(arg, Operand::Value(v) if is_traced(&v.array)))
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
    let _entered = enter_for(op.name(), args)?;
    if let Some(trace) = definition::keeper(args) {
        let native = || Ok(Value::plain(emit(op.clone(), args)?));
        let value = definition::keep_one(&trace, Call::Op(op.clone()), args, native)?;
        return Ok(value.array);
    }
    let Some(trace) = top() else { return Err(error::internal("no trace is open")) };
    let mut operands: SmallVec<[Arg; 4]> = SmallVec::new();
    for arg in args {
        operands.push(match arg {
            Operand::Scalar(value) => Arg::Scalar(*value),
            Operand::Value(value) => Arg::Node(trace.node(op.name(), value)?),
        });
    }
    if trace.cuts() && tape::recording() {
        trace.settle(&mut operands)?;
    }
    let array = trace.add(|graph| catch(|| graph.emit(op, &operands)))?;
    if let (true, Some((_, id))) = (trace.is_silent(), node_of(&array)) {
        trace.silence(&[id]);
    }
    Ok(array)
}

/// Runs a sweep.
pub fn sweeping<T>(sweep: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            SWEEPING.set(self.0);
        }
    }
    let _restore = Restore(SWEEPING.replace(true));
    sweep()
}

/// Whether the numbers of a trace are those of the top one: it is that one, or there are only bodies
/// between.
pub fn speaks_of(trace: &Arc<Trace>) -> bool {
    STACK.with(|stack| {
        let stack = stack.borrow();
        let at = stack.iter().position(|level| Arc::ptr_eq(&level.0, trace));
        at.is_some_and(|at| stack[at + 1..].iter().all(|level| level.0.is_body))
    })
}

/// Whether gradients of what is computed of a traced value are those of the graph, whatever the tape
/// says: in a body of control flow, a function under a transform, a graph defined by hand.
pub fn cuts(array: &Array) -> bool {
    match top() {
        Some(trace) => trace.cuts(),
        None => named(array).is_some_and(|name| name.trace.cuts()),
    }
}

/// A number of a formula: one of the top trace's, if one is open.
pub fn number(number: Number) -> Scalar {
    match top() {
        Some(trace) => trace.read(|graph| graph.define(number)),
        None => number.now(),
    }
}

/// A look at a number of the top trace.
pub fn look(value: Scalar) -> Scalar {
    match (number_of(value), top()) {
        (Some(_), Some(trace)) => trace.look(value).or_throw(),
        _ => value,
    }
}

impl Trace {
    /// A new trace, not yet on a stack.
    pub fn new(role: Role) -> Arc<Trace> {
        Trace::make(role, false)
    }

    fn make(role: Role, is_body: bool) -> Arc<Trace> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Arc::new(Trace {
            role,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            graph: ReentrantMutex::new(Graph::with_calls()),
            state: Mutex::default(),
            open: AtomicBool::new(true),
            is_body,
            scope: Scope::new(),
        })
    }

    /// A new trace of a body inside the one on top, whose numbers it speaks of.
    pub fn within() -> Arc<Trace> {
        let trace = Trace::make(Role::Function, true);
        if let Some(outer) = top() {
            let numbers = outer.graph.lock().list().numbers.clone();
            trace.graph.lock().list_mut().numbers = numbers;
            trace.state.lock().numbers = outer.state.lock().numbers.clone();
        }
        trace
    }

    /// Whether gradients are those of its graph, whatever the tape says: what cuts a history is a node
    /// there.
    fn cuts(&self) -> bool {
        self.is_body || self.role == Role::Definition
    }

    /// Whether what is computed now is to have no gradient. Where gradients are those of the graph,
    /// what a sweep gives is part of it like anything else, though it does not record.
    pub fn is_silent(&self) -> bool {
        !tape::recording() && !(self.cuts() && SWEEPING.get())
    }

    /// For a node that was made without recording what stands for it where it is recorded, if that is
    /// known.
    pub fn stop_of(&self, id: Id) -> Option<Option<Id>> {
        let known = self.state.lock().silent.get(&id).copied()?;
        let is_float = self.read(|graph| graph.ty(id)).dtype.is_float();
        Some(if is_float { known } else { Some(id) })
    }

    /// Takes note of what stands for a node that was made without recording.
    pub fn stopped(&self, id: Id, stop: Id) -> Result<Id> {
        self.state.lock().silent.insert(id, Some(stop));
        Ok(stop)
    }

    /// The nodes that were made without recording.
    pub fn silent(&self) -> FxHashSet<Id> {
        self.state.lock().silent.keys().copied().collect()
    }

    /// Takes note of nodes that were made without recording.
    pub fn silence(&self, ids: &[Id]) {
        self.state.lock().silent.extend(ids.iter().map(|&id| (id, None)));
    }

    /// Operands of what is recorded: those that were made without recording pass no gradient on.
    pub fn settle(self: &Arc<Trace>, operands: &mut [Arg]) -> Result<()> {
        for arg in operands {
            let Arg::Node(id) = *arg else { continue };
            let stop = match self.stop_of(id) {
                None => continue,
                Some(Some(stop)) => stop,
                Some(None) => {
                    let stop = Op::Map(&arithmetic::stop_gradient);
                    let array = self.add(|graph| catch(|| graph.emit(stop, &[*arg])))?;
                    self.stopped(id, node_of(&array).map_or(id, |(_, stop)| stop))?
                }
            };
            *arg = Arg::Node(stop);
        }
        Ok(())
    }

    /// A graph defined by hand that goes on from a list.
    pub fn from_list(list: List) -> Arc<Trace> {
        let trace = Trace::new(Role::Definition);
        *trace.graph.lock().list_mut() = list;
        trace
    }

    /// Puts the trace on top of this thread's stack, as long as the result lives.
    pub fn enter(self: &Arc<Trace>) -> Entered {
        self.push();
        Entered(self.clone())
    }

    /// Puts the trace on top of this thread's stack, until [`leave`].
    pub fn push(self: &Arc<Trace>) {
        let level = Level(self.clone(), self.scope.enter());
        STACK.with(|stack| stack.borrow_mut().push(level));
        ACTIVE.set(true);
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

    fn array(self: &Arc<Trace>, id: Id, ty: Type) -> Array {
        Array::named(ty.dtype, ty.shape, Box::new(Named { trace: self.clone(), id }))
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
            None => Ok(self.constant(&value.array)),
        }
    }

    /// A value that is known, once for each view of a buffer.
    fn constant(self: &Arc<Trace>, array: &Array) -> Id {
        let key = (array.buffer.address(), array.layout.offset());
        let mut state = self.state.lock();
        let known = state.constants.entry(key).or_default();
        let graph = self.graph.lock();
        let same = |id: &&Id| match &graph.nodes()[id.0 as usize].kind {
            Kind::Constant(other) => other.dtype == array.dtype && other.layout == array.layout,
            _ => false,
        };
        if let Some(id) = known.iter().find(same) {
            return *id;
        }
        graph.at(site::current());
        let id = graph.constant(array.clone());
        known.push(id);
        id
    }

    /// A value of another trace, as an input of this one.
    fn capture_node(self: &Arc<Trace>, op: &str, name: &Named, value: &Value) -> Result<Id> {
        let (mine, below) = STACK.with(|stack| {
            let stack = stack.borrow();
            let at = |trace: &Arc<Trace>| stack.iter().position(|t| Arc::ptr_eq(&t.0, trace));
            (at(self), at(&name.trace).is_some())
        });
        if !below {
            return Err(name.trace.escaped(op, name.id));
        }
        let level = mine.unwrap_or(0);
        let key = Key::Node(name.trace.serial, name.id);
        let cell = capture(level, key, &mut || (None, Value::plain(value.array.clone())))?;
        let found = cell.lock().clone();
        self.node(op, &found)
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
            true => error::bad_graph(op, "operands belong to different graphs", node),
            false => error::escaped(op, node),
        }
    }

    /// The error for Python code that needs the data of a node of this trace.
    pub fn untraceable(&self, op: &str, id: Id, remedy: &str) -> Error {
        let name = self.read(|graph| graph.nodes()[id.0 as usize].kind.name());
        let line = site::describe(site::current()).map_or(String::new(), |at| format!(", at {at}"));
        error::untraceable(op, name, line, remedy)
    }

    /// The node of a capture's value now, if it was given a new one.
    pub fn written(self: &Arc<Trace>, capture: &Capture) -> Result<Option<Id>> {
        let id = self.node("capture", &capture.cell.lock())?;
        Ok((id != capture.input).then_some(id))
    }

    /// The symbols among its sizes.
    pub fn scope(&self) -> &Scope {
        &self.scope
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

    /// Adds a number that is given at each run; it is this now.
    pub fn given(&self, now: f64) -> Scalar {
        let Arg::Scalar(number) = self.graph.lock().number() else { return Scalar::Float(now) };
        if let Some(i) = number_of(number) {
            self.state.lock().numbers.insert(i, now);
        }
        number
    }

    /// The value at hand of a number that is given.
    pub fn number_now(&self, i: u32) -> f64 {
        self.state.lock().numbers.get(&i).copied().unwrap_or(f64::NAN)
    }

    /// A look at a number: what it is now. What it comes of is noted, and sizes are pinned.
    pub fn look(&self, value: Scalar) -> Result<Scalar> {
        let graph = self.graph.lock();
        let seen = graph.looks_at(value);
        let Some(i) = number_of(seen) else { return Ok(seen) };
        let (list, state) = (graph.list(), self.state.lock());
        let is_given = |i: &u32| matches!(list.numbers.get(*i as usize), Some(Number::Input));
        let given: Vec<Scalar> = (0..list.numbers.len() as u32)
            .filter(is_given)
            .map(|i| Scalar::Float(state.numbers.get(&i).copied().unwrap_or(f64::NAN)))
            .collect();
        let hints = self.scope.symbols().into_iter();
        let sizes = hints.filter_map(|(dim, hint)| Some((dim, Dim::new(hint?))));
        let values = list.evaluate_numbers(&given, &Bindings::of(sizes))?;
        Ok(values[i as usize])
    }

    /// The captures so far.
    pub fn captures(&self) -> Vec<Capture> {
        self.state.lock().captures.clone()
    }

    fn find(&self, key: Key) -> Option<Shared> {
        let state = self.state.lock();
        state.found.get(&key).map(|&i| state.captures[i].cell.clone())
    }
}

/// What graphs defined by hand know besides their lists.
impl Trace {
    /// A graph defined by hand that goes on from a list, with its calls and random keys.
    pub fn define(list: List, calls: Calls, keys: FxHashSet<Id>, scope: Scope) -> Arc<Trace> {
        let mut trace = Trace::from_list(list);
        if let Some(trace) = Arc::get_mut(&mut trace) {
            let state = trace.state.get_mut();
            (state.calls, state.keys) = (calls, keys);
            trace.scope = scope;
        }
        trace
    }

    /// What tells it from others.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether the shape of a node is not known.
    pub fn is_unresolved(&self, id: Id) -> bool {
        self.state.lock().calls.unresolved.contains(&id)
    }

    /// Whether nodes must not rely on the shape of a node.
    pub fn is_uncertain(&self, id: Id) -> bool {
        let state = self.state.lock();
        state.calls.unresolved.contains(&id) || state.calls.likely.contains(&id)
    }

    /// Notes that the shape of a node rests on sizes taken for likely.
    pub fn doubt(&self, id: Id) {
        let calls = &mut self.state.lock().calls;
        if !calls.unresolved.contains(&id) {
            calls.likely.insert(id);
        }
    }

    /// Whether an input is a random key.
    pub fn is_key(&self, id: Id) -> bool {
        self.state.lock().keys.contains(&id)
    }

    /// The type of an operand that is a node.
    pub fn type_of(&self, arg: Arg) -> Option<Type> {
        match arg {
            Arg::Node(id) => Some(self.read(|graph| graph.list().node(id).ty.clone())),
            Arg::Scalar(_) => None,
        }
    }

    /// A value of unknown shape.
    pub fn unresolved(self: &Arc<Trace>, dtype: DType) -> Result<Value> {
        let value = self.input(Type::new(dtype, Shape::scalar()))?;
        let id = self.node("graph", &value)?;
        self.state.lock().calls.unresolved.insert(id);
        Ok(value)
    }

    /// Keeps a call.
    pub fn keep(&self, kept: Kept) {
        self.state.lock().calls.kept.push(kept);
    }

    /// The calls it keeps.
    pub fn calls(&self) -> Calls {
        self.state.lock().calls.clone()
    }

    /// The list and the calls as they are now.
    pub fn snapshot(&self) -> (List, Calls) {
        let graph = self.graph.lock();
        let list = graph.list().clone();
        (list, self.calls())
    }

    /// The random keys among the nodes.
    pub fn keys(&self) -> FxHashSet<Id> {
        self.state.lock().keys.clone()
    }

    /// Takes back the last nodes, which nobody names.
    pub fn forget_from(&self, start: u32) {
        let mut state = self.state.lock();
        for known in state.constants.values_mut() {
            known.retain(|id| id.0 < start);
        }
        state.calls.unresolved.retain(|id| id.0 < start);
        state.calls.likely.retain(|id| id.0 < start);
        state.silent.retain(|id, _| id.0 < start);
        state.silent.values_mut().for_each(|stop| *stop = stop.filter(|id| id.0 < start));
        let (keys, past) = &mut state.draws;
        keys.retain(|id| id.0 < start);
        *past = (*past).min(keys.len());
        self.graph.lock().list_mut().nodes.truncate(start as usize);
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

fn barrier_of(trace: &Arc<Trace>, id: Id, after: &[Id]) -> Result<Array> {
    trace.add(|graph| Ok(graph.barrier(id, after)))
}

/// A value that Python code makes from data: a constant of the top trace, if one is open.
pub fn lift(value: Value) -> Result<Value> {
    match top() {
        Some(trace) if !is_traced(&value.array) => {
            let id = trace.constant(&value.array);
            Ok(trace.value(id))
        }
        _ => Ok(value),
    }
}

/// What a handle is to captures: how to keep it, and its own value.
type Outside<'a> = dyn FnMut() -> (Option<Handle>, Value) + 'a;

/// The level of the stack that a value belongs to: 0 for one outside all traces.
fn level_of(array: &Array) -> Option<usize> {
    let Some(name) = named(array) else { return Some(0) };
    STACK.with(|stack| {
        stack.borrow().iter().position(|level| Arc::ptr_eq(&level.0, &name.trace)).map(|i| i + 1)
    })
}

fn at_level(level: usize) -> Result<Arc<Trace>> {
    let trace = STACK.with(|stack| stack.borrow().get(level).map(|level| level.0.clone()));
    trace.ok_or_else(|| error::internal("a trace left the stack too early"))
}

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
    /// The next random key: one that was drawn before, where the generator was put back.
    fn next_key(self: &Arc<Trace>) -> Result<Value> {
        let known = {
            let (keys, past) = &mut self.state.lock().draws;
            *past += 1;
            keys.get(*past - 1).copied()
        };
        if let Some(id) = known {
            // Apart from what was computed of it the first time.
            return barrier_of(self, id, &[]).map(Value::plain);
        }
        let zero = Value::plain(Array::zeros(DType::U32, Shape::of(&[2]))?);
        let value = self.take_in(None, Source::Key, None, &zero)?.lock().clone();
        let id = self.node("random", &value)?;
        self.state.lock().draws.0.push(id);
        Ok(value)
    }

    /// Adds a capture: the cell of its value.
    fn take_in(
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
        let mut value = self.input(ty.clone())?;
        let input = self.node("capture", &value)?;
        if let (Source::Key, Role::Definition) = (&source, self.role) {
            // A capture would hold its own trace: the number of the node is enough.
            self.state.lock().keys.insert(input);
            return Ok(Arc::new(Mutex::new(value)));
        }
        let leaf = seen.requires_grad().then(|| {
            let real = match &seen.history {
                History::Leaf(real) if !matches!(source, Source::Outer(_)) => Some(real.clone()),
                _ => None,
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
}

/// The value of a handle as the top trace sees it. `own` is what the handle holds.
pub fn read_handle(address: usize, own: &Value, keep: &mut dyn FnMut() -> Handle) -> Result<Value> {
    let depth = STACK.with(|stack| stack.borrow().len());
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
    let depth = STACK.with(|stack| stack.borrow().len());
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

/// A random key for the top trace: an input that is fresh at every run.
pub fn draw_key() -> Result<Value> {
    let level = STACK.with(|stack| stack.borrow().len());
    let mut value = at_level(0)?.next_key()?;
    for level in 1..level {
        let source = Source::Outer(value.clone());
        let cell = at_level(level)?.take_in(None, source, None, &value)?;
        value = cell.lock().clone();
    }
    Ok(value)
}

/// Set in the count of a generator's state that belongs to a trace.
const OF_TRACE: u64 = 1 << 63;

/// The state of the generator as the open traces see it: which trace, and how many keys it is past.
pub fn random_state() -> Option<random::State> {
    let trace = STACK.with(|stack| stack.borrow().first().map(|level| level.0.clone()))?;
    let drawn = trace.state.lock().draws.1 as u64 | OF_TRACE;
    Some(random::State { key: [trace.serial as u32, (trace.serial >> 32) as u32], drawn })
}

/// Puts back a state that [`random_state`] gave: the keys drawn since then are drawn again. `None`
/// where no trace is open and the state is none of a trace.
pub fn set_random_state(state: random::State) -> Result<Option<()>> {
    let now = random_state();
    let is_of_trace = state.drawn & OF_TRACE != 0;
    match now {
        None if !is_of_trace => Ok(None),
        Some(now) if is_of_trace && now.key == state.key => {
            at_level(0)?.state.lock().draws.1 = (state.drawn & !OF_TRACE) as usize;
            Ok(Some(()))
        }
        _ => {
            let what = "a state of the generator outside cannot be set while a function is \
                        captured, nor one of a capture outside of it";
            let facts = "set it before the call, or draw with keys: wengert.random.key(seed)";
            Err(error::bad_capture("set_state", what, facts))
        }
    }
}

/// The gradient of a leaf outside, as the trace of `inside` sees it at its start.
pub fn read_gradient(inside: &Leaf) -> Result<Option<Shared>> {
    let Some((trace, real)) = inside.outside() else { return Ok(None) };
    let Some(cell) = real.gradient()? else { return Ok(None) };
    let key = Key::Address(Arc::as_ptr(&cell).addr());
    if let Some(cell) = trace.find(key) {
        return Ok(Some(cell));
    }
    let seen = cell.lock().clone();
    trace.take_in(Some(key), Source::Gradient(real), None, &seen).map(Some)
}

/// The link from a trace's leaf to what it stands for.
pub struct Link {
    trace: Weak<Trace>,
    real: Arc<Leaf>,
}

impl Leaf {
    /// The leaf inside a trace that stands for one outside.
    fn inside(ty: Type, trace: &Arc<Trace>, real: Option<Arc<Leaf>>) -> Leaf {
        let link = real.map(|real| Link { trace: Arc::downgrade(trace), real });
        let mut leaf = Leaf::new(ty);
        leaf.link = link;
        leaf
    }

    fn outside(&self) -> Option<(Arc<Trace>, Arc<Leaf>)> {
        let link = self.link.as_ref()?;
        Some((link.trace.upgrade()?, link.real.clone()))
    }

    /// The leaf outside that this one stands for in a trace.
    pub fn real(&self) -> Option<&Arc<Leaf>> {
        self.link.as_ref().map(|link| &link.real)
    }
}

/// The operands of a recorded op as nodes and types, for whoever builds nodes by hand.
pub fn nodes(op: &str, values: &[Value]) -> Result<(Arc<Trace>, SmallVec<[Arg; 4]>)> {
    let Some(trace) = top() else { return Err(error::internal("no trace is open")) };
    let ids: Result<SmallVec<[Id; 4]>> = values.iter().map(|v| trace.node(op, v)).collect();
    let mut args: SmallVec<[Arg; 4]> = small(ids?.into_iter().map(Arg::Node));
    if trace.cuts() && tape::recording() {
        trace.settle(&mut args)?;
    }
    Ok((trace, args))
}
