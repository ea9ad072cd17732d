//! Formulas run at once: the emission that computes.

pub mod apply;
pub mod emissions;
pub mod views;

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::engine::executors::{self, Device, device};
use crate::engine::observe;
use crate::engine::pending;
use crate::engine::tape::signature::{self, Signature};
use crate::engine::tape::{self, History, Operand, Results, Value, device_of};
use crate::engine::trace::{self, Called, Dispatch, Values};
use crate::error::{self, Result};
use crate::ops::declare::{Arguments, Attr, Composite, Kernel};
use crate::ops::emit::{Arg, Emit, Expr, Id, OrThrow, catch, throw};
use crate::ops::number::Number;
use crate::ops::op::{self, Op, Type};
use crate::ops::origin;
use crate::ops::scan::{self, Scan};
use crate::shape::{Dim, Shape};
use crate::site::Origin;
use crate::small::small;
use crate::watch;
use apply::{apply, apply_all};
use emissions::{Emission, Known, Step};

/// A value of a running formula.
enum Slot<'a> {
    /// An operand, which lies where it is
    Lent(&'a Value),
    /// Computed
    Value(Value),
    /// Its type only: a residual that was not kept, because the rule does not read it
    Type(Type),
}

/// Computes every node as it is emitted, and records it where `record`.
pub struct Eager<'a> {
    slots: RefCell<Vec<Slot<'a>>>,
    record: bool,
    /// The ops so far, where they are noted and depend on no data
    noted: RefCell<Option<Noted>>,
}

/// Ops of an emission that is to be kept.
struct Noted {
    steps: Vec<Step>,
    /// More are not worth it
    most: usize,
}

thread_local! {
    /// Storage of finished emissions, for the next ones on this thread.
    static STORAGE: RefCell<Vec<Vec<Slot<'static>>>> = const { RefCell::new(Vec::new()) };
}

/// Emptied lists that a thread keeps, and how long they may be.
const KEPT_LISTS: usize = 4;
const KEPT_LENGTH: usize = 64;

impl Drop for Eager<'_> {
    fn drop(&mut self) {
        let slots = std::mem::take(self.slots.get_mut());
        if slots.capacity() <= KEPT_LENGTH {
            let slots = emptied(slots);
            // A thread that is ending keeps nothing.
            let _ = STORAGE.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < KEPT_LISTS {
                    kept.push(slots);
                }
            });
        }
    }
}

/// The memory of a list, for values of another lifetime.
fn emptied<'a>(mut slots: Vec<Slot<'_>>) -> Vec<Slot<'a>> {
    slots.clear();
    // Collecting from a list in place keeps its memory.
    slots.into_iter().map_while(|_| None).collect()
}

impl Slot<'_> {
    /// The value, where there is one.
    #[inline(always)]
    fn value(&self) -> Option<&Value> {
        match self {
            Slot::Lent(value) => Some(value),
            Slot::Value(value) => Some(value),
            Slot::Type(_) => None,
        }
    }
}

impl<'a> Eager<'a> {
    /// An empty emission.
    pub fn new(record: bool) -> Eager<'a> {
        let slots = STORAGE.with(|kept| kept.borrow_mut().pop()).unwrap_or_default();
        Eager { slots: RefCell::new(slots), record, noted: RefCell::new(None) }
    }

    /// Notes the ops from now on, if there are at most so many.
    fn note(&self, most: usize) {
        self.noted.replace(Some(Noted { steps: Vec::new(), most }));
    }

    /// Gives up noting ops.
    fn note_nothing(&self) {
        self.noted.replace(None);
    }

    fn note_op(&self, op: &Op, args: &[Arg]) {
        let mut noted = self.noted.borrow_mut();
        if let Some(Noted { steps, most }) = &mut *noted {
            match steps.len() < *most && op.results() == 1 {
                true => steps.push(Step::new(op, args)),
                false => *noted = None,
            }
        }
    }

    /// Adds a value.
    pub fn value(&self, value: Value) -> Arg {
        self.push(Slot::Value(value))
    }

    /// Adds a value of which only the type is known.
    pub fn absent(&self, ty: Type) -> Arg {
        self.push(Slot::Type(ty))
    }

    /// Adds an operand.
    pub fn operand(&self, operand: Operand<'a>) -> Arg {
        match operand {
            Operand::Value(value) => self.push(Slot::Lent(value)),
            Operand::Scalar(scalar) => Arg::Number(scalar),
        }
    }

    /// The value of an expression; a number becomes a tensor.
    pub fn value_of(&self, x: Expr<'_>) -> Result<Value> {
        let at = self.place(x)?;
        self.slots.borrow()[at].value().cloned().ok_or_else(not_saved)
    }

    /// The same, where nothing reads the emission any more: the value leaves it.
    pub fn last(&self, x: Expr<'_>) -> Result<Value> {
        self.take(self.place(x)?)
    }

    /// Whether two values are known to be of one type; numbers are not.
    pub fn are_alike(&self, x: Expr<'_>, y: Expr<'_>) -> bool {
        let (Arg::Node(x), Arg::Node(y)) = (x.arg(), y.arg()) else { return false };
        let is_same = |x: &Shape| self.with_shape(y, |y| x.same(y));
        self.dtype(x) == self.dtype(y) && self.with_shape(x, is_same)
    }

    fn take(&self, at: usize) -> Result<Value> {
        match self.slots.borrow_mut().swap_remove(at) {
            Slot::Lent(value) => Ok(value.clone()),
            Slot::Value(value) => Ok(value),
            Slot::Type(_) => Err(not_saved()),
        }
    }

    fn place(&self, x: Expr<'_>) -> Result<usize> {
        let arg = match x.arg() {
            Arg::Number(_) => catch(|| x.tensor().arg())?,
            node => node,
        };
        match arg {
            Arg::Node(id) => Ok(id.0 as usize),
            Arg::Number(_) => Err(error::internal("a number is no value")),
        }
    }

    #[inline]
    fn with_shape<T>(&self, id: Id, f: impl FnOnce(&Shape) -> T) -> T {
        match &self.slots.borrow()[id.0 as usize] {
            Slot::Lent(value) => f(value.shape()),
            Slot::Value(value) => f(value.shape()),
            Slot::Type(ty) => f(&ty.shape),
        }
    }

    fn push(&self, slot: Slot<'a>) -> Arg {
        let mut slots = self.slots.borrow_mut();
        slots.push(slot);
        Arg::Node(Id(slots.len() as u32 - 1))
    }
}

#[cold]
fn not_saved() -> error::Error {
    error::internal("a formula gave a value that was not saved")
}

impl Emit for Eager<'_> {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        let explained = |error| origin::explain(error, Origin::running());
        self.note_op(&op, args);
        let mut values = {
            let slots = self.slots.borrow();
            let mut operands: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
            for arg in args {
                operands.push(match *arg {
                    Arg::Number(scalar) => Operand::Scalar(scalar),
                    Arg::Node(id) => match slots[id.0 as usize].value() {
                        Some(value) => Operand::Value(value),
                        None => throw(error::internal(format!(
                            "{} reads a value that was not kept",
                            op.name()
                        ))),
                    },
                });
            }
            // Nearly all ops have one result, which goes to its place without a list.
            if op.results() == 1 {
                let value = apply(op, &operands, self.record).map_err(explained).or_throw();
                drop(operands);
                drop(slots);
                let mut slots = self.slots.borrow_mut();
                slots.push(Slot::Value(value));
                return Id(slots.len() as u32 - 1);
            }
            apply_all(op, &operands, self.record).map_err(explained).or_throw()
        };
        let mut slots = self.slots.borrow_mut();
        let first = Id(slots.len() as u32);
        slots.extend(values.drain(..).map(Slot::Value));
        first
    }

    fn result(&self, id: Id, k: usize) -> Id {
        Id(id.0 + k as u32)
    }

    fn scan(&self, scan: &Scan<'_>) -> scan::Results {
        scan::unrolled(self, scan)
    }

    fn ty(&self, id: Id) -> Type {
        let of = |value: &Value| Type::new(value.dtype(), value.shape().clone());
        match &self.slots.borrow()[id.0 as usize] {
            Slot::Lent(value) => of(value),
            Slot::Value(value) => of(value),
            Slot::Type(ty) => ty.clone(),
        }
    }

    fn dtype(&self, id: Id) -> DType {
        match &self.slots.borrow()[id.0 as usize] {
            Slot::Lent(value) => value.dtype(),
            Slot::Value(value) => value.dtype(),
            Slot::Type(ty) => ty.dtype,
        }
    }

    fn rank(&self, id: Id) -> usize {
        self.with_shape(id, Shape::rank)
    }

    fn size(&self, id: Id, axis: usize) -> Option<Dim> {
        self.with_shape(id, |shape| shape.dims().get(axis).copied())
    }

    fn keeps(&self, composite: &'static Composite) -> bool {
        let may_run = || composite.kernel.is_some() && has_kernel(device::current(), composite);
        self.record || trace::active() || may_run()
    }

    fn integer(&self, id: Id) -> Option<i64> {
        self.note_nothing();
        let array = match self.slots.borrow()[id.0 as usize].value() {
            Some(value) if !trace::is_traced(&value.array) => value.array.clone(),
            Some(_) | None => return None,
        };
        if array.dtype != DType::I64 || array.count() != 1 {
            return None;
        }
        let array = executors::download(&array).or_throw();
        // SAFETY: the only element of an array of int64 in host memory.
        Some(unsafe { array.ptr().cast::<i64>().read() })
    }

    fn allow_rows(&self, id: Id) {
        if !self.record {
            return;
        }
        self.note_nothing();
        let slots = self.slots.borrow();
        if let Some(Value { history: History::Leaf(leaf), .. }) = slots[id.0 as usize].value() {
            leaf.allow_rows();
        }
    }

    fn number(&self, number: Number) -> Numeric {
        trace::number(number)
    }

    fn looks_at(&self, number: u32) -> Option<Scalar> {
        trace::look(number)
    }

    fn has_float64(&self) -> bool {
        let device = trace::device();
        let (cast, double) = (Op::Cast(DType::F64), DType::F64);
        device == Device::Cpu || executors::target(device).supports(&cast, &[double], double)
    }

    fn is_exported(&self) -> bool {
        trace::top().is_some_and(|trace| trace.is_exported())
    }

    fn size_behind(&self, value: Numeric) -> Option<Dim> {
        trace::top().and_then(|trace| trace.read(|graph| graph.size_behind(value)))
    }
}

/// Calls a composite: the results that a user is given.
pub fn call(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
    record: bool,
) -> Result<SmallVec<[Value; 1]>> {
    // Results are large, and go to their place at once where nothing is saved.
    if composite.saved == 0 {
        return call_all(composite, attributes, operands, record);
    }
    call_all(composite, attributes, operands, record).map(|all| given(composite, all))
}

/// The results that a user is given, of all.
pub fn given(composite: &Composite, mut all: SmallVec<[Value; 1]>) -> SmallVec<[Value; 1]> {
    all.truncate(composite.given());
    all
}

/// The same with what is saved for the gradient.
pub fn call_all(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
    record: bool,
) -> Result<SmallVec<[Value; 1]>> {
    let wants = |operand: &Operand<'_>| matches!(operand, Operand::Value(v) if v.requires_grad());
    let record = record && operands.iter().any(wants);
    let is_at_hand = trace::at_hand(operands);
    // What the formula makes of numbers lies where its operands do.
    let device = match operands {
        [Operand::Value(_), ..] if is_at_hand => Device::Cpu,
        _ => device_of(composite.name, operands)?,
    };
    let _on = (device != device::current()).then(|| device.enter());
    let _entered = match is_at_hand {
        true => None,
        false => {
            let entered = trace::enter_for(composite.name, operands)?;
            if trace::active() {
                let called = Called { composite, attributes, operands, record };
                return trace::deferring(operands).unwrap_or(&Traced).composite(&called);
            }
            entered
        }
    };
    Computed(device).composite(&Called { composite, attributes, operands, record })
}

/// The way of eager code: ops are computed at once, on the device of their operands.
pub struct Computed(Device);

impl Dispatch for Computed {
    fn op(&self, op: &Op, args: &[Operand<'_>]) -> Result<Results> {
        Ok(smallvec![apply::execute(self.0, op, args)?])
    }

    #[inline]
    fn composite(&self, called: &Called<'_>) -> Result<Values> {
        let &Called { composite, attributes, operands, record } = called;
        let is_cpu = self.0 == Device::Cpu;
        if record
            && composite.stays()
            && is_cpu
            && let Some(signature) = signature::of(composite, attributes, operands)
        {
            let explained = |error| origin::explain(error, Origin::running());
            return call_recorded(signature, operands).map_err(explained);
        }
        if !record && !is_cpu && has_kernel(self.0, composite) {
            return match watch::on() {
                true => observe::composite(composite, operands, || elsewhere(self.0, called)),
                false => elsewhere(self.0, called),
            };
        }
        if watch::on() && !(record && composite.stays()) {
            return observe::composite(composite, operands, || call_now(called, is_cpu));
        }
        call_now(called, is_cpu)
    }
}

/// The way of an open trace: ops and calls become nodes.
pub struct Traced;

impl Dispatch for Traced {
    fn op(&self, op: &Op, args: &[Operand<'_>]) -> Result<Results> {
        trace::emit_all(op.clone(), args)
    }

    fn composite(&self, called: &Called<'_>) -> Result<Values> {
        emitted(called, None)
    }
}

/// Calls a composite on values in host memory, as one step of the tape.
pub fn call_recorded(
    mut signature: Arc<Signature>,
    operands: &[Operand<'_>],
) -> Result<SmallVec<[Value; 1]>> {
    let composite = signature.call().composite;
    let results = match watch::on() {
        true => observe::composite(composite, operands, || call_signed(&mut signature, operands))?,
        false => call_signed(&mut signature, operands)?,
    };
    tape::record_call(signature, operands, results)
}

/// Whether a device runs calls of a composite by a kernel.
fn has_kernel(device: Device, composite: &'static Composite) -> bool {
    match device {
        Device::Cpu => composite.kernel.is_some(),
        Device::Reference | Device::Gpu(_) => executors::executor(device).has_kernel(composite),
    }
}

/// Computes a call by the kernel of another device than the host.
fn elsewhere(device: Device, called: &Called<'_>) -> Result<Values> {
    let &Called { composite, attributes, operands, .. } = called;
    let args: SmallVec<[executors::Operand<'_>; 8]> =
        operands.iter().map(|operand| operand.operand()).collect::<Result<_>>()?;
    let call = op::Call { composite, attributes: attributes.into() };
    let found = executors::call_on(device, &call, &args);
    let arrays = found.map_err(|error| error.within(composite.name))?;
    Ok(arrays.into_iter().map(Value::plain).collect())
}

/// The same, unwatched.
fn call_now(called: &Called<'_>, is_cpu: bool) -> Result<SmallVec<[Value; 1]>> {
    let &Called { composite, attributes, operands, record } = called;
    let is_checking = watch::on() && watch::checking();
    let plans = !is_checking && composite.payoff.body.is_worth_planning();
    // Only the CPU runs eager calls by plans.
    let kernel = kernel(composite, is_checking);
    if is_cpu && !record && (kernel.is_some() || plans) {
        // Known from here on: the first run, op by op, is kept at once if it is one op.
        if kernel.is_none()
            && !watch::on()
            && let Known::Emission(emission) = emissions::known(called)
        {
            return Ok(smallvec![again(&emission, operands)?]);
        }
        if let Some(mut signature) = signature::of(composite, attributes, operands) {
            return call_signed(&mut signature, operands);
        }
    }
    if is_cpu { formula(called, emissions::LONGEST) } else { emitted(called, None) }
}

/// The kernel of a composite. Checks look at every step of a formula, where nothing tells it from
/// its kernel.
fn kernel(composite: &Composite, is_checking: bool) -> Option<Kernel> {
    composite.kernel.filter(|kernel| !(kernel.is_exact() && is_checking))
}

/// Computes a call on values in host memory: by a kernel, by its plan, or op by op.
fn call_signed(
    signature: &mut Arc<Signature>,
    operands: &[Operand<'_>],
) -> Result<SmallVec<[Value; 1]>> {
    let call = signature.call();
    let composite = call.composite;
    let is_checking = watch::on() && watch::checking();
    let plain = |arrays: SmallVec<[Array; 2]>| arrays.into_iter().map(Value::plain).collect();
    if let Some(kernel) = kernel(composite, is_checking) {
        let args: SmallVec<[executors::Operand<'_>; 8]> =
            operands.iter().map(|operand| operand.operand()).collect::<Result<_>>()?;
        let found = executors::call(kernel, call, &args);
        if let Some(arrays) = found.map_err(|error| error.within(composite.name))? {
            return Ok(plain(arrays));
        }
    }
    if !is_checking
        && let Some(arrays) =
            signature.run(operands).map_err(|error| error.within(composite.name))?
    {
        return Ok(plain(arrays));
    }
    // What a plan may run is kept where it is one op, of which a plan makes no less.
    let most = if composite.payoff.body.is_worth_planning() { 1 } else { emissions::LONGEST };
    let attributes = &signature.call().attributes;
    formula(&Called { composite, attributes, operands, record: false }, most)
}

/// Runs the formula of a composite on values in host memory, or the ops that it emitted before, if
/// they are at most so many.
fn formula(called: &Called<'_>, most: usize) -> Result<Values> {
    // A call that stays one is no formula where it is recorded.
    if called.record && called.composite.stays() || watch::on() {
        return emitted(called, None);
    }
    match emissions::known(called) {
        Known::Emission(emission) => Ok(smallvec![again(&emission, called.operands)?]),
        Known::Again(mark) => emitted(called, Some((mark, most))),
        Known::New => emitted(called, None),
    }
}

/// Runs the ops of an emission that is kept for such operands.
pub fn again(emission: &Emission, operands: &[Operand<'_>]) -> Result<Value> {
    let found = emission.run(operands)?;
    pending::tidy();
    Ok(found)
}

/// Runs the formula of a composite: all its results. What it emits is kept for calls with a mark, if
/// it is at most so many ops.
fn emitted(called: &Called<'_>, keep: Option<(u64, usize)>) -> Result<Values> {
    let &Called { composite, attributes, operands, record } = called;
    let cx = Eager::new(record);
    if let Some((_, most)) = keep {
        cx.note(most);
    }
    let args: SmallVec<[Arg; 6]> = small(operands.iter().map(|&operand| cx.operand(operand)));
    let arguments = Arguments { cx: &cx, attributes, operands: &args };
    // Elsewhere a call stays one for the sake of its kernel alone, which was asked before.
    let outputs = catch(|| match record || trace::active() {
        true => composite.call(&arguments),
        false => composite.formula(&arguments),
    });
    let outputs = outputs.map_err(|error| error.within(composite.name))?;
    let place = if let [y] = outputs[..] { Some(cx.place(y)?) } else { None };
    if let Some((mark, _)) = keep {
        let emission = cx.noted.take().map(|noted| noted.steps).zip(place);
        emissions::keep(mark, called, origin::of(composite, &arguments), emission);
    }
    let results = match place {
        Some(at) => Ok(smallvec![cx.take(at)?]),
        None => outputs.iter().map(|&y| cx.value_of(y)).collect(),
    };
    drop(outputs);
    drop(cx);
    pending::tidy();
    results
}
