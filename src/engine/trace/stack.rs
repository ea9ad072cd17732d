//! The open traces of a thread: the top one gets its nodes.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Role, Trace, named};
use crate::array::Array;
use crate::engine::context::HERE;
use crate::error::{self, Result};
use crate::shape;

/// A trace on a thread's stack, whose scope of sizes is entered as long as the level is there.
struct Level(Arc<Trace>, shape::Entered);

thread_local! {
    static STACK: RefCell<Vec<Level>> = const { RefCell::new(Vec::new()) };
}

/// Whether a trace is open on this thread.
#[inline]
pub fn active() -> bool {
    HERE.with(|context| context.tracing.get())
}

fn set_active(on: bool) {
    HERE.with(|context| context.tracing.set(on));
}

/// The trace that gets the nodes of this thread.
pub fn top() -> Option<Arc<Trace>> {
    STACK.with(|stack| stack.borrow().last().map(|level| level.0.clone()))
}

/// Where a trace is on this thread's stack.
pub(super) fn position(trace: &Arc<Trace>) -> Option<usize> {
    STACK.with(|stack| stack.borrow().iter().position(|level| Arc::ptr_eq(&level.0, trace)))
}

/// Whether a trace is on this thread's stack.
pub fn is_on_stack(trace: &Arc<Trace>) -> bool {
    position(trace).is_some()
}

/// Whether a function is being captured on this thread, not only a graph defined.
pub(super) fn captures() -> bool {
    STACK.with(|stack| stack.borrow().iter().any(|level| level.0.role == Role::Function))
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
    set_active(STACK.with(|stack| !stack.borrow().is_empty()));
}

/// Runs `f` outside all traces: what it computes are ordinary values.
pub fn suspended<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(Vec<Level>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let kept = std::mem::take(&mut self.0);
            set_active(!kept.is_empty());
            STACK.with(|stack| *stack.borrow_mut() = kept);
        }
    }
    let _restore = Restore(STACK.with(|stack| std::mem::take(&mut *stack.borrow_mut())));
    set_active(false);
    f()
}

/// Whether the numbers of a trace are those of the top one: it is that one, or there are only
/// bodies between.
pub fn speaks_of(trace: &Arc<Trace>) -> bool {
    STACK.with(|stack| {
        let stack = stack.borrow();
        let at = stack.iter().position(|level| Arc::ptr_eq(&level.0, trace));
        at.is_some_and(|at| stack[at + 1..].iter().all(|level| level.0.is_body))
    })
}

impl Trace {
    /// Puts the trace on top of this thread's stack, as long as the result lives.
    pub fn enter(self: &Arc<Trace>) -> Entered {
        self.push();
        Entered(self.clone())
    }

    /// Puts the trace on top of this thread's stack, until [`leave`].
    pub fn push(self: &Arc<Trace>) {
        let level = Level(self.clone(), self.scope.enter());
        STACK.with(|stack| stack.borrow_mut().push(level));
        set_active(true);
    }
}

/// How many traces are open.
pub fn depth() -> usize {
    STACK.with(|stack| stack.borrow().len())
}

/// Whether all traces that were opened since there were so many are bodies.
pub fn only_bodies_since(depth: usize) -> bool {
    STACK.with(|stack| {
        let stack = stack.borrow();
        stack.get(depth..).is_some_and(|new| new.iter().all(|level| level.0.is_body))
    })
}

/// The level of the stack that a value belongs to: 0 for one outside all traces.
pub(super) fn level_of(array: &Array) -> Option<usize> {
    let Some(name) = named(array) else { return Some(0) };
    position(&name.trace).map(|i| i + 1)
}

/// The open trace at a level.
pub(super) fn at_level(level: usize) -> Result<Arc<Trace>> {
    let trace = STACK.with(|stack| stack.borrow().get(level).map(|level| level.0.clone()));
    trace.ok_or_else(|| error::internal("a trace left the stack too early"))
}
