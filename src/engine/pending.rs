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
//!   ([`Work::settle`]) and needs no copy. Memory of another owner does not wait.
//! - **Memory**: results count when they are made, dropped ones are free at once, as if they had
//!   been computed. Beyond that a chain keeps operands that everybody else has dropped, of bounded
//!   size ([`KEPT`]), which it lets go before memory is refused.
//! - **Threads**: one thread runs a chain, others wait for it. It asks for no lock of the
//!   interpreter, and is not broken off by a signal ([`MOST_WORK`] bounds the time), so who waits
//!   may hold any lock.
//!
//! # Policy
//! What waits, and for how long, is decided here alone, by the constants below.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use smallvec::SmallVec;

use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::engine::executors::{self, Operand};
use crate::error::{self, Result};
use crate::fork::{self, Held, OverFork};
use crate::memory::late::{self, Key, Late, Work};
use crate::memory::{Buffer, Where};
use crate::ops::element::{ElementOp, ElementProgram, Value};
use crate::ops::elementwise::Elementwise;
use crate::ops::op::Type;
use crate::settings;
use crate::shape::Shape;
use crate::threads;
use crate::watch;

/// The bytes of a result from which ops wait.
const LARGE: usize = 1 << 20;

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

/// The bytes of a result from which ops wait; 0 until somebody asks.
static LEAST: AtomicUsize = AtomicUsize::new(0);

/// Sets from how many bytes of a result on ops wait, or what the environment says; gives what it
/// was. For tests.
pub fn set_least(bytes: Option<usize>) -> usize {
    let before = least();
    LEAST.store(bytes.map_or_else(default_least, |bytes| bytes.max(1)), Ordering::Relaxed);
    before
}

fn least() -> usize {
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
    late::install(&Chains);
    fork::install::<Lock>();
    let least = default_least();
    // Somebody may have set it meanwhile: that stays.
    let _ = LEAST.compare_exchange(0, least, Ordering::Relaxed, Ordering::Relaxed);
    LEAST.load(Ordering::Relaxed)
}

/// An operand of an op that waits.
#[derive(Clone, Copy)]
enum Source {
    /// The result of an earlier one
    Node(u32),
    /// An array
    Array(u32),
    /// A number
    Number(u32),
}

/// An op that waits.
struct Node {
    op: ElementOp,
    args: SmallVec<[Source; 3]>,
    dtype: DType,
    /// The result, as long as somebody may hold it
    result: Option<Late>,
}

/// The ops of a chain, and what they read.
#[derive(Default)]
struct Ops {
    nodes: Vec<Node>,
    arrays: Vec<Array>,
    numbers: SmallVec<[(Scalar, DType); 4]>,
}

/// Ops that run together.
struct Chain {
    id: u64,
    shape: Shape,
    ops: Ops,
    /// The thread that runs them now, in which process of a line of forks
    runner: Option<(ThreadId, usize)>,
}

/// All chains that are open or running.
struct Table {
    chains: Vec<Chain>,
    last: u64,
}

static TABLE: Mutex<Table> = Mutex::new(Table { chains: Vec::new(), last: 0 });

/// Tells that a thread has ended to run a chain.
static ENDED: Condvar = Condvar::new();

thread_local! {
    /// The chain that ops of this thread join; 0 is none.
    static OPEN: Cell<u64> = const { Cell::new(0) };
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn find(&self, id: u64) -> Option<usize> {
        self.chains.iter().position(|chain| chain.id == id)
    }

    fn start(&mut self, shape: Shape) -> usize {
        self.last += 1;
        let chain = Chain { id: self.last, shape, ops: Ops::default(), runner: None };
        self.chains.push(chain);
        self.chains.len() - 1
    }
}

/// An elementwise op on promoted operands in host memory, if it shall wait; `None` where it is to
/// be computed now.
#[inline(always)]
pub fn map(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Option<Array>> {
    let least = LEAST.load(Ordering::Relaxed);
    let is_large =
        |arg: &Operand<'_>| matches!(arg, Operand::Array(x) if x.data.host_bytes() >= least);
    if args.iter().any(is_large) { map_large(def, args) } else { Ok(None) }
}

/// Whether an array is a result of a chain and not computed yet.
#[inline]
pub fn waits(x: &Array) -> bool {
    key(x).is_some()
}

#[inline]
fn key(x: &Array) -> Option<Key> {
    match x.data.place() {
        Where::Host(buffer) => buffer.key(),
        Where::Device(_) | Where::Traced(_) | Where::Busy(_) => None,
    }
}

/// A conversion of an array in host memory to another dtype, if it shall wait.
#[inline]
pub fn cast(x: &Array, dtype: DType) -> Result<Option<Array>> {
    if x.dtype == dtype || x.data.host_bytes() < LEAST.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let ty = Type::new(dtype, x.shape().clone());
    wait(ElementOp::Cast, &[Operand::Array(x)], ty, dtype)
}

#[cold]
#[inline(never)]
fn map_large(def: &'static Elementwise, args: &[Operand<'_>]) -> Result<Option<Array>> {
    let ty = executors::map_type(def, args)?;
    let changed;
    let (def, args) = match executors::cheaper(def, args) {
        Some((def, second)) => {
            changed = [args[0], second];
            (def, &changed[..])
        }
        None => (def, args),
    };
    let computes = executors::computes_in(def, args, ty.dtype);
    match def.kernel(computes.compute()) {
        Some(_) => wait(ElementOp::Map(def), args, ty, computes),
        None => Ok(None),
    }
}

/// An op that computes in a dtype and gives a type, if it shall wait.
#[cold]
fn wait(op: ElementOp, args: &[Operand<'_>], ty: Type, computes: DType) -> Result<Option<Array>> {
    let count = ty.shape.count();
    let bytes = count.saturating_mul(ty.dtype.size());
    let is_foreign =
        |arg: &Operand<'_>| matches!(arg, Operand::Array(x) if x.buffer().is_foreign());
    let is_too_much = count > MOST_WORK || bytes_of(args, |_| true) > HELD;
    // What is watched is computed under the eyes of who watches.
    if watch::on() || bytes < least() || is_too_much || args.iter().any(is_foreign) {
        return Ok(None);
    }
    let Ok(mut id) = OPEN.try_with(Cell::get) else { return Ok(None) };
    let mut buffer = Some(Buffer::alloc(bytes)?);
    loop {
        for arg in args {
            if let Operand::Array(x) = arg
                && key(x).is_some_and(|key| key.chain != id || !is_whole(x, &ty.shape))
            {
                x.buffer().ptr();
            }
        }
        let mut table = table();
        let at = match table.find(id) {
            Some(at) if table.chains[at].has_room(args, &ty.shape, count) => at,
            _ if id != 0 => {
                drop(table);
                OPEN.set(0);
                run(id);
                id = 0;
                continue;
            }
            _ => table.start(ty.shape.clone()),
        };
        let chain = &mut table.chains[at];
        OPEN.set(chain.id);
        let result = chain.push(op, args, computes, ty.dtype, buffer.take());
        drop(table);
        return result.map(|buffer| Some(Array::new(ty.dtype, ty.shape, buffer.into())));
    }
}

/// The bytes that some operands hold.
fn bytes_of(args: &[Operand<'_>], counts: impl Fn(&Array) -> bool) -> usize {
    args.iter()
        .map(|arg| match *arg {
            Operand::Array(x) if counts(x) => x.data.host_bytes(),
            Operand::Array(_) | Operand::Scalar(_) => 0,
        })
        .sum()
}

/// Whether an array shows all elements of its block, as an array of this shape in C order.
fn is_whole(x: &Array, shape: &Shape) -> bool {
    x.is_contiguous() && x.layout.offset() == 0 && x.shape() == shape
}

impl Chain {
    /// Whether an op that gives this shape may join.
    fn has_room(&self, args: &[Operand<'_>], shape: &Shape, count: usize) -> bool {
        let ops = &self.ops;
        let bytes = |x: &Array| x.data.host_bytes();
        let kept = |x: &&Array| x.data.is_sole();
        let is_new = |x: &Array| !waits(x) && !ops.arrays.iter().any(|y| y.data.same(&x.data));
        let more = bytes_of(args, is_new);
        self.runner.is_none()
            && self.shape == *shape
            && ops.nodes.len() < MOST_OPS
            && ops.arrays.len() + args.len() <= MOST_ARRAYS
            && ops.numbers.len() + args.len() <= MOST_NUMBERS
            && count * (ops.nodes.len() + 1) <= MOST_WORK
            && ops.arrays.iter().map(bytes).sum::<usize>() + more <= HELD
            && ops.arrays.iter().filter(kept).map(bytes).sum::<usize>() <= KEPT
    }

    /// Adds an op, whose result has this fresh memory.
    fn push(
        &mut self,
        op: ElementOp,
        args: &[Operand<'_>],
        computes: DType,
        dtype: DType,
        buffer: Option<Buffer>,
    ) -> Result<Buffer> {
        let Some(buffer) = buffer else {
            return Err(error::internal("the memory of an op that waits was used"));
        };
        let ops = &mut self.ops;
        let mut sources: SmallVec<[Source; 3]> = SmallVec::new();
        for (i, arg) in args.iter().enumerate() {
            sources.push(match *arg {
                Operand::Scalar(number) => {
                    let is_condition = matches!(op, ElementOp::Map(def) if def.is_condition(i));
                    let dtype = if is_condition { DType::Bool } else { computes };
                    ops.numbers.push((number, dtype));
                    Source::Number(ops.numbers.len() as u32 - 1)
                }
                // What waits elsewhere was computed before, and what is computed stays so.
                Operand::Array(x) => match key(x) {
                    Some(key) if key.chain == self.id => Source::Node(key.node),
                    _ => Source::Array(ops.array(x)),
                },
            });
        }
        let key = Key { chain: self.id, node: ops.nodes.len() as u32 };
        // SAFETY: the memory is fresh.
        let buffer = unsafe { buffer.postponed(key) };
        ops.nodes.push(Node { op, args: sources, dtype, result: Some(buffer.late()) });
        Ok(buffer)
    }
}

impl Ops {
    /// The position of an array among those read.
    fn array(&mut self, x: &Array) -> u32 {
        let is_same =
            |y: &Array| y.data.same(&x.data) && y.layout == x.layout && y.dtype == x.dtype;
        let at = self.arrays.iter().position(is_same).unwrap_or_else(|| {
            self.arrays.push(x.clone());
            self.arrays.len() - 1
        });
        at as u32
    }

    /// Computes nodes into memory. Operands of theirs that are not among them are computed too, and
    /// not kept.
    fn compute(&self, shape: &Shape, live: &[(usize, Buffer)]) -> Result<()> {
        let outputs: SmallVec<[Array; 4]> = live
            .iter()
            .map(|(node, buffer)| {
                // SAFETY: the block is late, and this thread alone runs the chain.
                let memory = unsafe { buffer.unfinished() };
                Array::new(self.nodes[*node].dtype, shape.clone(), memory.into())
            })
            .collect();
        if let ([(at, _)], [output]) = (live, outputs.as_slice())
            && let Some(args) = self.alone(&self.nodes[*at])
        {
            // SAFETY: the output is of the result's type, and nobody has its address.
            return unsafe { computed_alone(self.nodes[*at].op, &args, output) };
        }
        let needed = self.needed(live);
        let (mut arrays, mut numbers) = (SmallVec::new(), SmallVec::new());
        let (mut array_at, mut number_at) = ([0; MOST_ARRAYS], [0; MOST_NUMBERS]);
        for node in self.nodes.iter().zip(&needed).filter(|(_, needed)| **needed).map(|(n, _)| n) {
            for source in &node.args {
                match *source {
                    Source::Node(_) => {}
                    Source::Array(i) => place(&mut arrays, &mut array_at, i),
                    Source::Number(i) => place(&mut numbers, &mut number_at, i),
                }
            }
        }
        let inputs: SmallVec<[&Array; 8]> =
            arrays.iter().map(|&i| &self.arrays[i as usize]).collect();
        let dtypes: SmallVec<[DType; 8]> = inputs.iter().map(|x| x.dtype).collect();
        let (scalars, scalar_dtypes): (SmallVec<[Scalar; 8]>, SmallVec<[DType; 8]>) =
            numbers.iter().map(|&i| self.numbers[i as usize]).unzip();
        let mut program = ElementProgram::new(&dtypes, &scalar_dtypes);
        let mut values: SmallVec<[Option<Value>; 16]> = SmallVec::new();
        for (node, needed) in self.nodes.iter().zip(&needed) {
            if !needed {
                values.push(None);
                continue;
            }
            let mut args: SmallVec<[Value; 3]> = SmallVec::new();
            for source in &node.args {
                args.push(match *source {
                    Source::Node(i) => match values[i as usize] {
                        Some(value) => value,
                        None => return Err(error::internal("an operand of a chain is missing")),
                    },
                    Source::Array(i) => program.array(array_at[i as usize] - 1),
                    Source::Number(i) => program.number(number_at[i as usize] - 1),
                });
            }
            values.push(Some(program.push(node.op, &args, node.dtype)));
        }
        let results: SmallVec<[Value; 4]> =
            live.iter().filter_map(|(node, _)| values[*node]).collect();
        let program = program.giving(&results);
        let outputs: SmallVec<[&Array; 4]> = outputs.iter().collect();
        // SAFETY: outputs have the chain's shape and are late, so nobody has their addresses.
        unsafe { executors::run_group(&program, &inputs, &scalars, &outputs) }
    }

    /// The operands of an op that needs no other one.
    fn alone(&self, node: &Node) -> Option<SmallVec<[Operand<'_>; 3]>> {
        node.args
            .iter()
            .map(|source| match *source {
                Source::Node(_) => None,
                Source::Array(i) => Some(Operand::Array(&self.arrays[i as usize])),
                Source::Number(i) => Some(Operand::Scalar(self.numbers[i as usize].0)),
            })
            .collect()
    }

    /// Which nodes some nodes need, themselves included.
    fn needed(&self, live: &[(usize, Buffer)]) -> SmallVec<[bool; MOST_OPS]> {
        let mut needed = SmallVec::from_elem(false, self.nodes.len());
        live.iter().for_each(|(node, _)| needed[*node] = true);
        for (at, node) in self.nodes.iter().enumerate().rev() {
            for source in &node.args {
                if let (true, Source::Node(i)) = (needed[at], *source) {
                    needed[i as usize] = true;
                }
            }
        }
        needed
    }
}

/// Computes one op into memory.
///
/// # Safety
/// The output is of the result's type, and nobody else reads or writes it meanwhile.
unsafe fn computed_alone(op: ElementOp, args: &[Operand<'_>], output: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe {
        match (op, args) {
            (ElementOp::Map(def), args) => executors::map_into(def, args, output),
            (ElementOp::Cast, [Operand::Array(x)]) => {
                executors::cast_into(x, output);
                Ok(())
            }
            (ElementOp::Cast, _) => Err(error::internal("a conversion of a number waits")),
        }
    }
}

/// Gives an operand the next place of a program, counted from 1, unless it has one.
fn place(order: &mut SmallVec<[u32; 8]>, places: &mut [usize], i: u32) {
    let place = &mut places[i as usize];
    if *place == 0 {
        order.push(i);
        *place = order.len();
    }
}

/// Runs the ops that wait on this thread.
pub fn settle() {
    let Ok(id) = OPEN.try_with(Cell::get) else { return };
    if id != 0 {
        run(id);
    }
}

/// A chain that runs. When the run ends, its results are computed; if it unwinds, its ops wait as
/// before.
struct Running {
    id: u64,
    ops: Ops,
    /// The results that somebody holds
    live: SmallVec<[(usize, Buffer); 4]>,
    is_done: bool,
}

/// Runs a chain, or waits until another thread has. False where there is none, or this thread is
/// running it already.
fn run(id: u64) -> bool {
    let mut table = table();
    let at = loop {
        let Some(at) = table.find(id) else { return false };
        match table.chains[at].runner {
            // A child of a fork does not have the threads of its parent.
            Some((runner, process)) if process == fork::generation() => {
                if runner == thread::current().id() {
                    return false;
                }
                table = ENDED.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            _ => break at,
        }
    };
    let chain = &mut table.chains[at];
    chain.runner = Some((thread::current().id(), fork::generation()));
    let shape = chain.shape.clone();
    let mut ops = std::mem::take(&mut chain.ops);
    let mut live = SmallVec::new();
    for (at, node) in ops.nodes.iter_mut().enumerate() {
        // SAFETY: a block is forgotten under the lock that we hold.
        match node.result.as_ref().and_then(|late| unsafe { late.upgraded() }) {
            Some(buffer) => live.push((at, buffer)),
            None => node.result = None,
        }
    }
    drop(table);
    let mut running = Running { id, ops, live, is_done: false };
    // What may break off other work does not break off this: results are looked at without Python.
    let done = threads::apart(|| running.ops.compute(&shape, &running.live));
    running.is_done = done.is_ok();
    drop(running);
    if let Err(refusal) = done {
        error::throw(refusal);
    }
    true
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut table = table();
        if let Some(at) = table.find(self.id) {
            if self.is_done {
                for (node, buffer) in &self.live {
                    self.ops.nodes[*node].result = None;
                    // SAFETY: its elements are computed, and the chain is gone.
                    unsafe { buffer.finish() };
                }
                table.chains.swap_remove(at);
            } else {
                let chain = &mut table.chains[at];
                chain.ops = std::mem::take(&mut self.ops);
                chain.runner = None;
            }
        }
        ENDED.notify_all();
        // Operands and results are let go after the lock.
    }
}

/// The chains of all threads, to the memory layer.
struct Chains;

impl Work for Chains {
    fn compute(&self, key: Key) {
        run(key.chain);
    }

    fn forget(&self, key: Key) {
        let mut table = table();
        let Some(at) = table.find(key.chain) else { return };
        let chain = &mut table.chains[at];
        if let Some(node) = chain.ops.nodes.get_mut(key.node as usize) {
            node.result = None;
            if chain.ops.nodes.iter().all(|node| node.result.is_none()) {
                let gone = table.chains.swap_remove(at);
                drop(table);
                drop(gone);
            }
        }
    }

    fn settle(&self, block: &Buffer) {
        let Ok(id) = OPEN.try_with(Cell::get) else { return };
        let holds = |x: &Array| x.buffer().same(block);
        let is_held = |chain: &Chain| chain.id == id && chain.ops.arrays.iter().any(holds);
        if id != 0 && table().chains.iter().any(is_held) {
            run(id);
        }
    }

    fn relieve(&self) -> bool {
        OPEN.try_with(Cell::get).is_ok_and(|id| id != 0 && run(id))
    }
}

/// The lock of the table.
struct Lock;

impl OverFork for Lock {
    type Guard = MutexGuard<'static, Table>;

    fn lock() -> Self::Guard {
        table()
    }

    fn held() -> &'static Held<Self::Guard> {
        static HELD: Held<MutexGuard<'static, Table>> = Held::new();
        &HELD
    }
}
