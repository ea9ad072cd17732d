//! What the engine does now on a thread: its ambient state, in one place.
//!
//! Each part is changed for the time of a scope, and put back when the scope ends, however it ends:
//! work may unwind, for an error, a signal or a defect. `with` blocks of Python alone set and put
//! back by themselves. Lists that scopes grow (open traces, streams of keys, settings) stand with
//! their owners.

use std::cell::Cell;

use crate::dtype::DType;
use crate::site::Site;

/// The state of a thread.
pub(super) struct Context {
    /// Whether ops are recorded on the tape
    pub(super) recording: Cell<bool>,
    /// Whether a trace is open
    pub(super) tracing: Cell<bool>,
    /// Whether a sweep runs: what it computes is not what somebody wrote under `no_grad`
    pub(super) sweeping: Cell<bool>,
    /// Whether a call writes its nodes: what it calls itself is part of it
    pub(super) within_call: Cell<bool>,
    /// The dtype of products under mixed precision, where it is on
    pub(super) narrow: Cell<Option<DType>>,
    /// The line that started the work, while the interpreter's lock is released
    pub(super) line: Cell<Option<Site>>,
}

thread_local! {
    /// The state of this thread.
    pub(super) static HERE: Context = const {
        Context {
            recording: Cell::new(true),
            tracing: Cell::new(false),
            sweeping: Cell::new(false),
            within_call: Cell::new(false),
            narrow: Cell::new(None),
            line: Cell::new(None),
        }
    };
}

/// A part of the context.
type Part<T> = fn(&Context) -> &Cell<T>;

/// A part of the context that was replaced. Dropped, it puts back what was there.
#[must_use]
pub struct Replaced<T: Copy> {
    part: Part<T>,
    was: T,
}

impl<T: Copy> Drop for Replaced<T> {
    fn drop(&mut self) {
        HERE.with(|context| (self.part)(context).set(self.was));
    }
}

/// Replaces a part of the context for as long as the result lives.
pub(super) fn replace<T: Copy>(part: Part<T>, value: T) -> Replaced<T> {
    Replaced { part, was: HERE.with(|context| part(context).replace(value)) }
}

/// Records ops, or does not, for as long as the result lives.
pub fn recording_as(on: bool) -> Replaced<bool> {
    replace(|context| &context.recording, on)
}

/// Whether this thread records.
#[inline]
pub fn recording() -> bool {
    HERE.with(|context| context.recording.get())
}

/// Switches recording on this thread, for `with` blocks of Python; gives what it was.
pub fn set_recording(on: bool) -> bool {
    HERE.with(|context| context.recording.replace(on))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn a_scope_that_unwinds_puts_back_what_was_there() {
        let state = || HERE.with(|c| (c.recording.get(), c.sweeping.get(), c.within_call.get()));
        let before = state();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _recording = recording_as(false);
            let _sweeping = replace(|context| &context.sweeping, true);
            let _within = replace(|context| &context.within_call, true);
            assert_eq!(state(), (false, true, true));
            resume_unwind(Box::new("broken off"));
        }));
        assert!(unwound.is_err());
        assert_eq!(state(), before);
    }
}
