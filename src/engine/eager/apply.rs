//! One eager op: computed on the device of its operands, recorded on the tape.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Computed, Eager, Traced};
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Numeric, Scalar};
use crate::engine::executors::{self, Device, device};
use crate::engine::observe;
use crate::engine::pending;
use crate::engine::tape::signature;
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace::{self, Call, Dispatch};
use crate::error::{self, Result};
use crate::ops::composite::products::of_matrices;
use crate::ops::elementwise::Elementwise;
use crate::ops::emit::{Arg, Expr, catch};
use crate::ops::op::{self, Op};
use crate::small::small;
use crate::watch;

/// Computes an op whose operands are promoted already.
pub fn apply(op: Op, args: &[Operand<'_>], record: bool) -> Result<Value> {
    if let Op::Map(def) = op {
        return apply_map(def, args, record);
    }
    if record
        && let Op::Call(call) = &op
        && let Some(mut values) = recorded(call, args)?
    {
        return Ok(values.swap_remove(0));
    }
    let array = compute(&op, args)?;
    if record { tape::record(op, args, array) } else { Ok(Value::plain(array)) }
}

/// The same of an op that is kept to be computed again.
#[inline]
pub fn apply_again(op: &Op, args: &[Operand<'_>], record: bool) -> Result<Value> {
    if let Op::Map(def) = op {
        return apply_map(def, args, record);
    }
    if record { apply(op.clone(), args, record) } else { compute(op, args).map(Value::plain) }
}

/// The same for an elementwise op.
#[inline]
fn apply_map(def: &'static Elementwise, args: &[Operand<'_>], record: bool) -> Result<Value> {
    let array = compute_map(def, args)?;
    Ok(if record { tape::record_map(def, args, array) } else { Value::plain(array) })
}

/// A call of a composite on values in host memory, recorded as one step. `None` of another.
#[inline(never)]
fn recorded(call: &op::Call, args: &[Operand<'_>]) -> Result<Option<SmallVec<[Value; 1]>>> {
    let wants = |arg: &Operand<'_>| matches!(arg, Operand::Value(v) if v.requires_grad());
    if !args.iter().any(wants) || !trace::at_hand(args) {
        return Ok(None);
    }
    let signature = signature::of(call.composite, &call.attributes, args);
    signature.map(|signature| super::call_recorded(signature, args)).transpose()
}

/// The same for an op with any count of results.
pub fn apply_all(op: Op, args: &[Operand<'_>], record: bool) -> Result<SmallVec<[Value; 1]>> {
    if op.results() == 1 {
        return Ok(smallvec![apply(op, args, record)?]);
    }
    if record
        && let Op::Call(call) = &op
        && let Some(values) = recorded(call, args)?
    {
        return Ok(values);
    }
    let arrays = match (trace::wants(args), &op) {
        (true, _) => emitted(&op, args)?,
        (false, Op::Call(call)) => called(call, args)?,
        (false, op) => return Err(error::internal(format!("{} has one result", op.name()))),
    };
    match record {
        true => tape::record_all(op, args, arrays),
        false => Ok(arrays.into_iter().map(Value::plain).collect()),
    }
}

/// The results of an op that is a node: of a trace, or of a graph defined by hand, which keeps
/// calls whose shapes it does not know.
#[cold]
fn emitted(op: &Op, args: &[Operand<'_>]) -> Result<tape::Results> {
    let _entered = trace::enter_for(op.name(), args)?;
    trace::deferring(args).unwrap_or(&Traced).op(op, args)
}

/// All results of a composite.
fn called(call: &op::Call, args: &[Operand<'_>]) -> Result<tape::Results> {
    let found = super::call_all(call.composite, &call.attributes, args, false)?;
    Ok(found.into_iter().map(|value| value.array).collect())
}

/// An elementwise op on promoted operands. Arrays of fixed size instead of lists: this is the hot
/// path of eager code.
#[inline]
fn compute_map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    if !trace::at_hand(args) {
        return elsewhere(&Op::Map(def), args);
    }
    if watch::on() {
        return observe::op(&Op::Map(def), args, || kernel(def, args));
    }
    kernel(def, args)
}

/// An op some of whose operands do not lie in host memory: a node of a trace, or work of a device.
#[cold]
fn elsewhere(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    let found = match trace::wants(args) {
        true => emitted(op, args)?,
        false => Computed(tape::device_of(op.name(), args)?).op(op, args)?,
    };
    found.into_iter().next().ok_or_else(|| error::internal("an op without a result"))
}

/// An op computed by the executor of a device, where its operands lie.
pub(super) fn execute(device: Device, op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    let operands = operands(args)?;
    match watch::on() {
        true => observe::op(op, args, || executors::execute_on(device, op, &operands)),
        false => executors::execute_on(device, op, &operands),
    }
}

#[inline(always)]
fn kernel(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Array> {
    let mut list = [executors::Operand::Scalar(Scalar::Bool(false)); 3];
    for (place, arg) in list.iter_mut().zip(args) {
        *place = arg.operand()?;
    }
    let args = &list[..args.len()];
    match pending::map(def, args)? {
        Some(later) => Ok(later),
        None => executors::map(def, args),
    }
}

fn compute(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    let at_hand = trace::at_hand(args);
    if !at_hand && trace::wants(args) {
        return Ok(emitted(op, args)?.swap_remove(0));
    }
    if let Op::Call(call) = op {
        return Ok(called(call, args)?.swap_remove(0));
    }
    // What is made of numbers alone is made on the device of new values.
    let is_source = matches!(op, Op::Full(_) | Op::Iota(..));
    if !at_hand || is_source && device::current() != Device::Cpu {
        return elsewhere(op, args);
    }
    let operands = operands(args)?;
    if let (Op::Cast(dtype), [executors::Operand::Array(x)]) = (op, operands.as_slice())
        && let Some(later) = pending::cast(x, *dtype)?
    {
        return Ok(later);
    }
    match watch::on() {
        true => observe::op(op, args, || executors::execute(op, &operands)),
        false => executors::execute(op, &operands),
    }
}

/// The most multiplications of a [`small_product`]: it lets no other thread run meanwhile.
const SMALL_PRODUCT: usize = 1 << 20;

/// The product of two small matrices of one dtype in host memory, outside all traces. `None` of
/// others, and of what is watched. Mixed precision is the caller's business.
pub fn small_product(a: &Value, b: &Value) -> Result<Option<Value>> {
    if watch::on() {
        return Ok(None);
    }
    let op = of_matrices((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    let Some(op) = op else { return Ok(None) };
    if a.shape().count().saturating_mul(b.shape()[1].value()) > SMALL_PRODUCT {
        return Ok(None);
    }
    apply(op, &[Operand::Value(a), Operand::Value(b)], tape::recording()).map(Some)
}

/// Operands of a call in host memory, outside all traces, as the tape and as kernels see them. Both
/// are written when they are looked at: a number that has just been written in two words is not there
/// yet for who copies it as a whole.
pub struct Direct<'a, const N: usize> {
    /// What the tape sees
    pub operands: [Operand<'a>; N],
    seen: [executors::Operand<'a>; N],
}

impl<const N: usize> Default for Direct<'_, N> {
    #[inline(always)]
    fn default() -> Self {
        let number = Scalar::Bool(false);
        Direct {
            operands: [Operand::Scalar(Numeric::Known(number)); N],
            seen: [executors::Operand::Scalar(number); N],
        }
    }
}

impl<'a, const N: usize> Direct<'a, N> {
    /// Makes operand `k` a number.
    #[inline(always)]
    pub fn set_number(&mut self, k: usize, number: Scalar) {
        self.operands[k] = Operand::Scalar(Numeric::Known(number));
        self.seen[k] = executors::Operand::Scalar(number);
    }

    /// Makes operand `k` a tensor.
    #[inline(always)]
    pub fn set_value(&mut self, k: usize, value: &'a Value) {
        self.operands[k] = Operand::Value(value);
        self.seen[k] = executors::Operand::Array(&value.array);
    }
}

/// An elementwise op on few elements in host memory, of one dtype and shape, and numbers that it
/// holds; the caller has seen that no trace is open. The result is given to `take` where it is made.
/// `None`, with nothing done, of others, and where somebody watches.
#[inline(always)]
pub fn map_few<T, const N: usize>(
    def: &'static Elementwise,
    direct: &Direct<'_, N>,
    take: impl FnOnce(Fresh<'_>, Option<Arc<tape::Entry>>) -> T,
) -> Result<Option<T>> {
    let args = &direct.operands;
    debug_assert!(trace::at_hand(args), "operands in host memory, outside all traces");
    if watch::on() {
        return Ok(None);
    }
    let Some(few) = executors::Few::of(def, &direct.seen) else { return Ok(None) };
    let fits = |(i, arg): (usize, &Operand<'_>)| match *arg {
        Operand::Value(_) => true,
        Operand::Scalar(number) => holds(def, number, i, few.dtype()),
    };
    if !args.iter().enumerate().all(fits) || few.bytes() >= pending::least() {
        return Ok(None);
    }
    let result = few.compute()?;
    let entry = match tape::recording() {
        true => tape::entry_of_map(def, args, result.dtype, |list, data| result.keep(list, data)),
        false => None,
    };
    Ok(Some(take(result, entry)))
}

/// Whether a number as operand `i` needs no promotion beside tensors of a dtype.
#[inline]
fn holds(def: &Elementwise, number: Numeric, i: usize, dtype: DType) -> bool {
    number.class() <= dtype.class() && def.fits(number, i, dtype)
}

/// An elementwise op on operands of any dtypes.
pub fn map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Value> {
    if plain_operands(def, args) {
        return apply_map(def, args, tape::recording());
    }
    let _entered = trace::enter_for(def.name, args)?;
    match trace::deferring(args) {
        Some(graph) => {
            graph.whole_one(&|| Call::Op(Op::Map(def)), args, &mut || promoted(def, args))
        }
        None => promoted(def, args),
    }
}

/// An elementwise op on operands that are promoted first.
fn promoted(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Value> {
    // A number that becomes a tensor lies where the operands do.
    let device = tape::device_of(def.name, args)?;
    let _on = (device != device::current()).then(|| device.enter());
    let cx = Eager::new(tape::recording());
    let operands: SmallVec<[Arg; 3]> = small(args.iter().map(|&arg| cx.operand(arg)));
    let result = catch(|| {
        let exprs: SmallVec<[Expr<'_>; 3]> = small(operands.iter().map(|&arg| Expr::new(&cx, arg)));
        def.call(&exprs)
    })?;
    cx.last(result)
}

/// Whether operands need no promotion: one dtype, and numbers that it holds.
fn plain_operands(def: &Elementwise, args: &[Operand<'_>]) -> bool {
    let mut dtype = None;
    for arg in args {
        if let Operand::Value(v) = arg
            && *dtype.get_or_insert(v.dtype()) != v.dtype()
        {
            return false;
        }
    }
    let Some(dtype) = dtype else { return false };
    !def.condition
        && args.iter().enumerate().all(|(i, arg)| match arg {
            Operand::Value(_) => true,
            Operand::Scalar(s) => holds(def, *s, i, dtype),
        })
}

/// An elementwise op whose result replaces its first operand. Where nobody else holds that
/// operand's memory and the result fits, it is computed there and `None` comes back; else the new
/// value.
pub fn map_in_place(
    def: &'static Elementwise,
    first: &Value,
    rest: &[Operand<'_>],
) -> Result<Option<Value>> {
    let mut args: SmallVec<[Operand<'_>; 3]> = SmallVec::new();
    args.push(Operand::Value(first));
    args.extend_from_slice(rest);
    let wants = |arg: &Operand<'_>| matches!(arg, Operand::Value(v) if v.requires_grad());
    let records = tape::recording() && args.iter().any(wants);
    let free = !records && first.array.is_unique() && first.array.is_contiguous();
    // What is watched goes one way only. Where the operand waits itself, the op joins it: the result
    // takes memory of its own, but what it is made of is not written. Others are computed first:
    // memory that is there is written faster than fresh memory.
    if !free
        || pending::waits(&first.array)
        || watch::on()
        || !trace::at_hand(&args)
        || !plain_operands(def, &args)
    {
        return map(def, &args).map(Some);
    }
    let types: SmallVec<[_; 3]> = small(args.iter().map(|arg| arg.ty()));
    let ty = Op::infer_map(def, &types)?;
    if ty.dtype != first.dtype() || !ty.shape.equals(first.shape()) {
        return map(def, &args).map(Some);
    }
    let operands = operands(&args)?;
    // SAFETY: the result's type is the operand's, and the caller's value alone holds the buffer.
    unsafe { executors::map_into(def, &operands, &first.array)? };
    Ok(None)
}

/// What kernels see of operands.
#[inline(always)]
fn operands<'a>(args: &[Operand<'a>]) -> Result<SmallVec<[executors::Operand<'a>; 3]>> {
    let mut operands = SmallVec::new();
    for arg in args {
        operands.push(arg.operand()?);
    }
    Ok(operands)
}

impl<'a> Operand<'a> {
    /// What kernels see.
    pub fn operand(self) -> Result<executors::Operand<'a>> {
        match self {
            Operand::Value(v) => Ok(executors::Operand::Array(&v.array)),
            Operand::Scalar(Numeric::Known(value)) => Ok(executors::Operand::Scalar(value)),
            Operand::Scalar(Numeric::Told(_)) => {
                Err(error::internal("a number of a trace outside of it"))
            }
        }
    }
}
