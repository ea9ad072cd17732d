//! Adaptive eager: large elementwise ops wait, and run together when somebody looks.
//!
//! An elementwise op alone reads and writes memory once, so a chain of them on operands that no
//! cache holds costs as much as the memory it moves. Here an op whose result is large is written
//! down instead, in the one open *chain* of its thread; its result is a *late* block (`memory::late`),
//! which has its memory but not its elements. A following op of the same shape joins the chain.
//! Whoever asks for an address of late elements (a kernel, NumPy, a print, a thread) runs the chain
//! first: one group, the register program that plans use, whose outputs are the results that
//! somebody still holds. An intermediate that was dropped is never written.
//!
//! Promises:
//! - **Same bits**: a group and its ops one by one give the same (law 5).
//! - **Errors at their line**: types are inferred and memory is taken when the op is written down.
//!   Data refuses no elementwise op. So running a chain cannot fail.
//! - **Values**: a chain holds its operands, so nobody writes them in place. An in-place write that
//!   finds a large operand held by the chain of its own thread runs the chain first
//!   (`memory::late`) and needs no copy. Memory of another owner does not wait.
//! - **Memory**: results count when they are made, dropped ones are free at once, as if they had
//!   been computed. Beyond that a chain keeps operands that everybody else has dropped, of bounded
//!   size ([`KEPT`]), which it lets go before memory is refused.
//! - **Threads**: one thread runs a chain, others wait for it. It asks for no lock of the
//!   interpreter, and is not broken off by a signal ([`MOST_WORK`] bounds the time), so who waits
//!   may hold any lock.
//!
//! # Policy
//! What waits, and for how long, is decided in this file alone. `chain` carries it out, `ops` has the
//! ops of a chain.

mod chain;
mod ops;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::engine::executors::{self, Operand};
use crate::error::Result;
use crate::executor::Results;
use crate::memory::Buffer;
use crate::ops::element::{ElementOp, ElementProgram, Value};
use crate::ops::elementwise::Elementwise;
use crate::schedule::{self, Plan, Step};
use crate::settings;
use crate::shape::Shape;
use crate::watch;
use chain::{Chain, OPEN, is_whole, keeps, run, table};

/// The bytes of an operand from which ops wait. To wait costs one to two microseconds: of a single op
/// of this size on two threads of an EPYC, 3 %. There, chains of 2 to 12 ops took 0.21 to 0.9 of the
/// time that they take op by op, an update of Adam 0.4 to 0.9, forward and backward of a chain 0.5 to
/// 0.8; sums of eight arrays, each read once, 0.65 to 1.6. benches/GAPS.md has what is not ahead.
const LARGE: usize = 1 << 21;

/// The most ops of a chain, arrays and numbers that it reads.
const MOST_OPS: usize = 32;
const MOST_ARRAYS: usize = 12;
const MOST_NUMBERS: usize = 24;

/// The most work of a chain, in elements times ops: about a quarter of a second, for which Ctrl-C
/// waits.
const MOST_WORK: usize = 1 << 28;

/// The most bytes of operands that a chain holds.
const HELD: usize = 256 << 20;

/// The most bytes of operands that a chain keeps although everybody else has dropped them: a
/// following op then runs the chain.
const KEPT: usize = 64 << 20;

/// The bytes of an operand from which ops wait; 0 until somebody asks.
static LEAST: AtomicUsize = AtomicUsize::new(0);

/// Sets from how many bytes of an operand on ops wait, or what the environment says; gives what it
/// was. For tests.
pub fn set_least(bytes: Option<usize>) -> usize {
    let before = least();
    LEAST.store(bytes.map_or_else(default_least, |bytes| bytes.max(1)), Ordering::Relaxed);
    before
}

/// The bytes of an operand from which ops wait.
#[inline]
pub fn least() -> usize {
    match LEAST.load(Ordering::Relaxed) {
        0 => start(),
        least => least,
    }
}

fn default_least() -> usize {
    match settings::EAGER.value().as_deref() {
        Some("immediate") => usize::MAX,
        _ => LARGE,
    }
}

#[cold]
fn start() -> usize {
    chain::install();
    let least = default_least();
    // Somebody may have set it meanwhile: that stays.
    let _ = LEAST.compare_exchange(0, least, Ordering::Relaxed, Ordering::Relaxed);
    LEAST.load(Ordering::Relaxed)
}

/// An elementwise op on promoted operands in host memory, if it shall wait; `None` where it is to
/// be computed now.
#[inline(always)]
pub fn map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Option<Array>> {
    let least = LEAST.load(Ordering::Relaxed);
    let is_large = |arg: &Operand<'_>| matches!(arg, Operand::Array(x) if has(x, least));
    if args.iter().any(is_large) { map_large(def, args) } else { Ok(None) }
}

/// Whether an array in host memory has so many bytes.
#[inline(always)]
fn has(x: &Array, least: usize) -> bool {
    x.data.host_bytes() >= least && x.count().saturating_mul(x.dtype.size()) >= least
}

/// Whether an array is a result of a chain and not computed yet.
#[inline]
pub fn waits(x: &Array) -> bool {
    x.data.key().is_some()
}

/// A conversion of an array in host memory to another dtype, if it shall wait.
#[inline]
pub fn cast(x: &Array, dtype: DType) -> Result<Option<Array>> {
    if x.dtype == dtype || !has(x, LEAST.load(Ordering::Relaxed)) {
        return Ok(None);
    }
    let mut program = ElementProgram::new(&[x.dtype], &[]);
    let y = program.push(ElementOp::Cast, &[program.array(0)], dtype);
    let program = program.giving(&[y]);
    let group = Waiting { program: &program, arrays: &[x], numbers: &[], shape: x.shape() };
    group.wait().map(only)
}

#[cold]
#[inline(never)]
fn map_large(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Option<Array>> {
    let ty = executors::map_type(def, args)?;
    let changed;
    let (def, args) = match executors::cheaper(def, args) {
        Some((def, args)) => {
            changed = args;
            (def, &changed[..])
        }
        None => (def, args),
    };
    let computes = executors::computes_in(def, args, ty.dtype);
    if def.kernel(computes.compute()).is_none() {
        return Ok(None);
    }
    let (mut arrays, mut dtypes) = (SmallVec::<[&Array; 3]>::new(), SmallVec::<[DType; 3]>::new());
    let (mut numbers, mut kinds) = (SmallVec::<[Scalar; 3]>::new(), SmallVec::<[DType; 3]>::new());
    for (i, arg) in args.iter().enumerate() {
        match *arg {
            Operand::Array(x) => {
                arrays.push(x);
                dtypes.push(x.dtype);
            }
            Operand::Scalar(number) => {
                numbers.push(number);
                kinds.push(if def.is_condition(i) { DType::Bool } else { computes });
            }
        }
    }
    let mut program = ElementProgram::new(&dtypes, &kinds);
    let (mut array, mut number) = (0.., 0..);
    let mut next = |arg: &Operand<'_>| match arg {
        Operand::Array(_) => program.array(array.next().unwrap_or_default()),
        Operand::Scalar(_) => program.number(number.next().unwrap_or_default()),
    };
    let values: SmallVec<[Value; 3]> = args.iter().map(&mut next).collect();
    let y = program.push(ElementOp::Map(def), &values, ty.dtype);
    let program = program.giving(&[y]);
    let group = Waiting { program: &program, arrays: &arrays, numbers: &numbers, shape: &ty.shape };
    group.wait().map(only)
}

/// The results of a plan on arrays in host memory, if it is one group and shall wait.
#[inline]
pub fn plan(plan: &Plan, arrays: &[&Array], numbers: &[Scalar]) -> Result<Option<Results>> {
    let least = LEAST.load(Ordering::Relaxed);
    match plan.steps() {
        [step] if arrays.iter().any(|x| has(x, least)) => group(plan, step, arrays, numbers),
        _ => Ok(None),
    }
}

#[cold]
fn group(plan: &Plan, step: &Step, inputs: &[&Array], given: &[Scalar]) -> Result<Option<Results>> {
    let schedule::Work::Group(group) = &step.work else { return Ok(None) };
    let is_result = |(source, slot): (&schedule::Source, &u32)| match source {
        schedule::Source::Slot(at) => at == slot,
        schedule::Source::Input(_) | schedule::Source::Constant(_) => false,
    };
    let is_all = plan.outputs().len() == step.results.len();
    if !is_all || !plan.outputs().iter().zip(&step.results).all(is_result) {
        return Ok(None);
    }
    let mut arrays: SmallVec<[&Array; 4]> = SmallVec::new();
    let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
    for arg in &step.args {
        match *arg {
            schedule::Operand::Array(schedule::Source::Input(i)) => arrays.push(inputs[i as usize]),
            schedule::Operand::Array(_) => return Ok(None),
            schedule::Operand::Number(schedule::Number::Constant(number)) => numbers.push(number),
            schedule::Operand::Number(schedule::Number::Input(i)) => {
                numbers.push(given[i as usize])
            }
        }
    }
    let (program, shape) = (&*group.program, &group.shape);
    Waiting { program, arrays: &arrays, numbers: &numbers, shape }.wait()
}

fn only(results: Option<Results>) -> Option<Array> {
    results.and_then(|results| results.into_iter().next())
}

/// Ops that may wait.
struct Waiting<'a> {
    program: &'a ElementProgram,
    arrays: &'a [&'a Array],
    numbers: &'a [Scalar],
    /// The shape of the results
    shape: &'a Shape,
}

impl Waiting<'_> {
    /// Joins the chain of this thread, or starts one: the results. `None` where the ops are to be
    /// computed now.
    fn wait(&self) -> Result<Option<Results>> {
        if !self.may_wait() {
            return Ok(None);
        }
        let Ok(mut id) = OPEN.try_with(Cell::get) else { return Ok(None) };
        let count = self.shape.count();
        let alloc = |dtype: DType| Buffer::alloc(count.saturating_mul(dtype.size()));
        let memory: SmallVec<[Buffer; 2]> =
            self.program.dtypes().map(alloc).collect::<Result<_>>()?;
        loop {
            for x in self.arrays {
                if x.data.key().is_some_and(|key| key.chain != id || !is_whole(x, self.shape)) {
                    x.look();
                }
            }
            let mut table = table();
            let at = match table.find(id) {
                Some(at) if table.chains[at].has_room(self) => at,
                _ if id != 0 => {
                    drop(table);
                    OPEN.set(0);
                    run(id);
                    id = 0;
                    continue;
                }
                _ => table.start(self.shape.clone()),
            };
            let chain = &mut table.chains[at];
            OPEN.set(chain.id);
            return chain.push(self, memory).map(Some);
        }
    }

    fn may_wait(&self) -> bool {
        let (least, count) = (least(), self.shape.count());
        let program = self.program;
        let is_result = |(i, x): (usize, &Value)| {
            x.0 as usize >= program.first_result() && !program.results()[..i].contains(x)
        };
        // What is watched is computed under the eyes of who watches.
        !watch::on()
            && count > 0
            && self.arrays.iter().any(|x| has(x, least))
            && program.results().iter().enumerate().all(is_result)
            && program.instructions().len() <= MOST_OPS
            && self.arrays.len() <= MOST_ARRAYS
            && self.numbers.len() <= MOST_NUMBERS
            && count.saturating_mul(program.instructions().len()) <= MOST_WORK
            && self.arrays.iter().map(|x| x.data.host_bytes()).sum::<usize>() <= HELD
            && !self.arrays.iter().any(|x| x.buffer().is_foreign())
    }
}

impl Chain {
    /// Whether ops may join.
    fn has_room(&self, more: &Waiting<'_>) -> bool {
        let ops = &self.ops;
        let bytes = |x: &Array| x.data.host_bytes();
        let is_new = |x: &Array| !waits(x) && !ops.arrays.iter().any(|y| y.data.same(&x.data));
        let held: usize = ops.arrays.iter().map(bytes).sum();
        let new: usize = more.arrays.iter().map(|x| if is_new(x) { bytes(x) } else { 0 }).sum();
        let count = ops.nodes.len() + more.program.instructions().len();
        self.is_open()
            && self.shape == *more.shape
            && count <= MOST_OPS
            && ops.arrays.len() + more.arrays.len() <= MOST_ARRAYS
            && ops.numbers.len() + more.numbers.len() <= MOST_NUMBERS
            && self.shape.count().saturating_mul(count) <= MOST_WORK
            && held + new <= HELD
            && ops.kept() <= KEPT
    }
}

/// Runs the ops that wait on this thread.
pub fn settle() {
    let Ok(id) = OPEN.try_with(Cell::get) else { return };
    if id != 0 {
        run(id);
    }
}

/// Runs the ops that wait on this thread, if they keep operands that everybody else has dropped;
/// says whether they did. Formulas do so when they end: what they made for themselves goes then, as
/// if they had been computed op by op.
#[inline]
pub fn tidy() -> bool {
    OPEN.try_with(Cell::get).is_ok_and(|id| id != 0 && tidy_chain(id))
}

#[cold]
fn tidy_chain(id: u64) -> bool {
    keeps(id) && run(id)
}
