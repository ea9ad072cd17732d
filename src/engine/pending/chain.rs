//! Chains: ops of one thread that wait, the table of all of them, and their runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use smallvec::SmallVec;

use super::ops::{Node, Ops, Source};
use super::{Waiting, tidy};
use crate::array::Array;
use crate::error::{self, Result};
use crate::executor::Results;
use crate::fork::{self, Held, OverFork};
use crate::memory::Buffer;
use crate::memory::late::{self, Key, Late, Work};
use crate::shape::Shape;
use crate::threads;

/// Ops that run together.
pub(super) struct Chain {
    pub(super) id: u64,
    pub(super) shape: Shape,
    /// Shared with the run alone
    pub(super) ops: Arc<Ops>,
    /// The result of each op, as long as somebody may hold it
    results: Vec<Option<Late>>,
    /// The thread that runs them now, in which process of a line of forks
    pub(super) runner: Option<(ThreadId, usize)>,
}

/// All chains that are open or running.
pub(super) struct Table {
    pub(super) chains: Vec<Chain>,
    last: u64,
}

static TABLE: Mutex<Table> = Mutex::new(Table { chains: Vec::new(), last: 0 });

/// Tells that a thread has ended to run a chain.
static ENDED: Condvar = Condvar::new();

thread_local! {
    /// The chain that ops of this thread join; 0 is none.
    pub(super) static OPEN: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.chains.iter().position(|chain| chain.id == id)
    }

    pub(super) fn start(&mut self, shape: Shape) -> usize {
        self.last += 1;
        let (ops, results) = (Arc::default(), Vec::new());
        let chain = Chain { id: self.last, shape, ops, results, runner: None };
        self.chains.push(chain);
        self.chains.len() - 1
    }
}

/// Lets others compute what waits, and locks the table over forks.
pub(super) fn install() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.swap(true, Ordering::Relaxed) {
        late::install(&Chains);
        fork::install::<Lock>();
    }
}

/// Whether an array shows all elements of its block, as an array of this shape in C order.
pub(super) fn is_whole(x: &Array, shape: &Shape) -> bool {
    x.is_contiguous() && x.layout.offset() == 0 && x.shape() == shape
}

impl Chain {
    /// Whether ops may be added.
    pub(super) fn is_open(&self) -> bool {
        self.runner.is_none() && Arc::strong_count(&self.ops) == 1
    }

    /// Adds ops, whose results have this fresh memory.
    pub(super) fn push(
        &mut self,
        more: &Waiting<'_>,
        memory: SmallVec<[Buffer; 2]>,
    ) -> Result<Results> {
        let Some(ops) = Arc::get_mut(&mut self.ops) else {
            return Err(error::internal("an op joins a chain that runs"));
        };
        let program = more.program;
        let mut sources: SmallVec<[Source; 8]> = SmallVec::new();
        for x in more.arrays {
            // What waits elsewhere was computed before, and what is computed stays so.
            sources.push(match x.data.key() {
                Some(key) if key.chain == self.id => Source::Node(key.node),
                _ => Source::Array(ops.array(x)),
            });
        }
        for (&number, &dtype) in more.numbers.iter().zip(program.numbers()) {
            ops.numbers.push((number, dtype));
            sources.push(Source::Number(ops.numbers.len() as u32 - 1));
        }
        let first = ops.nodes.len();
        for instruction in program.instructions() {
            let args = instruction.args.iter().map(|x| sources[x.0 as usize]).collect();
            sources.push(Source::Node(ops.nodes.len() as u32));
            ops.nodes.push(Node { op: instruction.op, args, dtype: instruction.dtype });
            self.results.push(None);
        }
        let mut results = Results::new();
        for (buffer, x) in memory.into_iter().zip(program.results()) {
            let node = first + x.0 as usize - program.first_result();
            // SAFETY: the memory is fresh.
            let buffer = unsafe { buffer.postponed(Key { chain: self.id, node: node as u32 }) };
            self.results[node] = Some(buffer.late());
            results.push(Array::new(ops.nodes[node].dtype, self.shape.clone(), buffer.into()));
        }
        Ok(results)
    }

    /// How many results somebody holds.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.results.iter().flatten().count()
    }

    /// A run of this thread.
    fn started(&mut self) -> (Running, Shape) {
        self.runner = Some((thread::current().id(), fork::generation()));
        let (ops, live) = (self.ops.clone(), self.live());
        (Running { id: self.id, ops, live, is_done: false }, self.shape.clone())
    }

    /// The results that somebody holds, which the run holds too from now on.
    fn live(&mut self) -> SmallVec<[(usize, Buffer); 4]> {
        let mut live = SmallVec::new();
        for (at, result) in self.results.iter_mut().enumerate() {
            // SAFETY: a block is forgotten under the lock of the table, which the caller holds.
            match result.as_ref().and_then(|late| unsafe { late.upgraded() }) {
                Some(buffer) => live.push((at, buffer)),
                None => *result = None,
            }
        }
        live
    }
}

/// Whether a chain keeps operands that everybody else has dropped.
pub(super) fn keeps(id: u64) -> bool {
    table().chains.iter().any(|chain| chain.id == id && chain.ops.kept() > 0)
}

/// A chain that runs. When the run ends, its results are computed; if it unwinds, its ops wait as
/// before.
struct Running {
    id: u64,
    ops: Arc<Ops>,
    live: SmallVec<[(usize, Buffer); 4]>,
    is_done: bool,
}

/// Runs a chain, or waits until another thread has. False where there is none, or this thread is
/// running it already.
pub(super) fn run(id: u64) -> bool {
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
    let (mut running, shape) = table.chains[at].started();
    drop(table);
    // What breaks off other work does not break off this, and no code of Python's runs meanwhile.
    let done = threads::apart(|| running.ops.compute(&shape, &running.live));
    running.is_done = done.is_ok();
    drop(running);
    if let Err(refusal) = done {
        error::throw(refusal);
    }
    true
}

/// A run that unwinds at once.
#[cfg(test)]
pub(super) fn unwound(id: u64) {
    let mut table = table();
    let at = table.find(id).expect("an open chain");
    let running = table.chains[at].started();
    drop(table);
    drop(running);
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut table = table();
        if let Some(at) = table.find(self.id) {
            if self.is_done {
                // SAFETY: the elements are computed, and the chain is gone under the same lock.
                self.live.iter().for_each(|(_, buffer)| unsafe { buffer.finish() });
                table.chains.swap_remove(at);
            } else {
                table.chains[at].runner = None;
                // The chain has them still, so nothing is let go here.
                self.ops = Arc::default();
            }
        }
        ENDED.notify_all();
        // Operands and results are let go when the table is unlocked: a block that was not computed
        // looks for itself there.
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
        chain.results[key.node as usize] = None;
        if chain.runner.is_none() && chain.results.iter().all(Option::is_none) {
            let gone = table.chains.swap_remove(at);
            drop(table);
            drop(gone);
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
        tidy()
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
