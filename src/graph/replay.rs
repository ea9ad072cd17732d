//! Replay: calls of host ops in a run that is repeated, so that the run can be compared with its
//! list.
//!
//! The effect of a call may happen only once. So a run records its calls ([`logged`]). Where the
//! run is repeated ([`Calls::replay`]), an ordered call takes its results from the record: from the
//! next call of the same op on operands of the same bits. Pure calls are made again; their results
//! are compared with the record, which finds code that is not pure.

use std::cell::RefCell;
use std::sync::Arc;

use super::Host;
use super::literal::{bytes_of, from_bytes};
use super::same::difference;
use crate::array::Array;
use crate::error::{self, Result};
use crate::ops::op::Type;

/// The calls that a run made, in order.
#[derive(Clone, Default)]
pub struct Calls(Arc<[Call]>);

/// One call. Its arrays are copies, which no later step writes.
struct Call {
    op: Host,
    operands: Vec<Array>,
    results: Vec<Array>,
}

/// How calls are handled on a thread.
enum Mode {
    /// Calls are made
    Plain,
    /// Calls are made and recorded
    Logging(Vec<Call>),
    /// Calls are replayed; recorded calls from `next` on are still unused
    Replaying { calls: Calls, next: usize },
}

thread_local! {
    static MODE: RefCell<Mode> = const { RefCell::new(Mode::Plain) };
}

/// Sets another mode for a scope, and keeps the mode before.
struct Entered(Option<Mode>);

impl Entered {
    fn new(mode: Mode) -> Entered {
        Entered(Some(MODE.replace(mode)))
    }

    /// Puts back the mode before; returns the mode that it replaces.
    fn leave(mut self) -> Mode {
        MODE.replace(self.0.take().unwrap_or(Mode::Plain))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            MODE.set(before);
        }
    }
}

/// Runs `f`; returns its result and the calls that it made on this thread.
pub fn logged<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Calls)> {
    let entered = Entered::new(Mode::Logging(Vec::new()));
    let found = f()?;
    match entered.leave() {
        Mode::Logging(calls) => Ok((found, Calls(calls.into()))),
        Mode::Plain | Mode::Replaying { .. } => Err(error::internal("a log of calls is gone")),
    }
}

impl Calls {
    /// Runs `f`, in which ordered calls get the results of these calls.
    pub fn replay<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(Mode::Replaying { calls: self.clone(), next: 0 });
        f()
    }

    /// The index of the first call from `next` on with the same op and operands of the same bits.
    fn find(&self, next: usize, op: &Host, operands: &[&Array]) -> Option<usize> {
        let is_same = |call: &Call| {
            let pairs = || call.operands.iter().zip(operands.iter().copied());
            call.op == *op && pairs().all(|(a, b)| difference(a, b).is_none())
        };
        (next..self.0.len()).find(|&i| is_same(&self.0[i]))
    }
}

impl Host {
    /// Makes or replays a call, as the mode of this thread says.
    pub(super) fn called(&self, operands: &[&Array], results: &[Type]) -> Result<Vec<Array>> {
        // The code may run compiled functions, whose calls do not belong to this run.
        match MODE.replace(Mode::Plain) {
            Mode::Plain => self.0.run(operands, results),
            Mode::Logging(mut calls) => {
                let operands_then = copies(operands.iter().copied())?;
                let found = self.0.run(operands, results)?;
                let (op, results) = (self.clone(), copies(found.iter())?);
                calls.push(Call { op, operands: operands_then, results });
                MODE.set(Mode::Logging(calls));
                Ok(found)
            }
            Mode::Replaying { calls, next } => {
                let (found, next) = self.again(&calls, next, operands, results);
                MODE.set(Mode::Replaying { calls, next });
                found
            }
        }
    }

    /// The results of a repeated call, and the index at which the calls after it begin.
    fn again(
        &self,
        calls: &Calls,
        next: usize,
        operands: &[&Array],
        results: &[Type],
    ) -> (Result<Vec<Array>>, usize) {
        if !self.class().has_effect() {
            let known = calls.find(0, self, operands).map(|i| &calls.0[i].results);
            let found = self.0.run(operands, results);
            return (found.and_then(|found| self.is_pure(known, found)), next);
        }
        match calls.find(next, self, operands) {
            Some(i) => (copies(calls.0[i].results.iter()), i + 1),
            None => {
                let what = format!("{}: the run made no such call on these operands", self.name());
                (Err(error::internal(what)), next)
            }
        }
    }

    /// Checks that a pure call has the results that it had before, and returns them.
    fn is_pure(&self, known: Option<&Vec<Array>>, found: Vec<Array>) -> Result<Vec<Array>> {
        let pairs = known.into_iter().flatten().zip(&found).enumerate();
        match pairs.filter_map(|(i, (a, b))| Some((i, difference(a, b)?))).next() {
            Some((i, what)) => Err(error::impure(self.name(), format!("result {i}, {what}"))),
            None => Ok(found),
        }
    }
}

fn copies<'a>(arrays: impl Iterator<Item = &'a Array>) -> Result<Vec<Array>> {
    arrays.map(|x| from_bytes(x.dtype, x.shape(), &bytes_of(x))).collect()
}
