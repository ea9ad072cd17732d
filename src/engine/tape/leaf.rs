//! Leaves: tensors whose gradient is wanted, the place that it goes to, and hooks on gradients.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Rows, Shared, Value};
use crate::engine::executors;
use crate::error::{self, Result};
use crate::ops::op::Type;

/// Code of the user's that runs on a cotangent in the sweep; it may replace it.
pub trait HookRule: Send + Sync {
    /// Runs it.
    fn call(&self, g: &Value) -> Result<Option<Value>>;
    /// The address of the object that holds the code, for whoever collects cycles.
    fn object(&self) -> *mut c_void;
}

/// A hook, shared with the sweep that runs it.
pub type Hook = Arc<dyn HookRule>;

/// The hooks of one value, by their handles.
#[derive(Default)]
pub struct Hooks(Mutex<Vec<(u64, Hook)>>);

/// Hooks and host rules alive: while there are none, a sweep fails halfway only where memory runs
/// out or a signal breaks it off, and frees what it has used as it goes.
pub(super) static HOST_CALLS: AtomicI64 = AtomicI64::new(0);

/// Whether a sweep may call code of the user's.
pub fn host_calls() -> bool {
    HOST_CALLS.load(Ordering::Relaxed) > 0
}

impl Hooks {
    /// Adds a hook; the number removes it again.
    pub fn add(&self, hook: Hook) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        HOST_CALLS.fetch_add(1, Ordering::Relaxed);
        self.0.lock().push((id, hook));
        id
    }

    /// Removes a hook.
    pub fn remove(&self, id: u64) {
        let removed = {
            let mut hooks = self.0.lock();
            let at = hooks.iter().position(|(i, _)| *i == id);
            at.map(|at| hooks.remove(at))
        };
        // Out of the lock: dropping code of the user's may run some, and a collection of cycles.
        if removed.is_some() {
            HOST_CALLS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The numbers of the hooks, in order.
    pub fn numbers(&self) -> SmallVec<[u64; 2]> {
        self.0.lock().iter().map(|(number, _)| *number).collect()
    }

    /// The objects that hold the hooks' code.
    pub fn objects(&self) -> SmallVec<[*mut c_void; 2]> {
        self.0.lock().iter().map(|(_, hook)| hook.object()).collect()
    }

    /// Runs the hooks in order.
    pub fn run(&self, mut g: Value) -> Result<Value> {
        let hooks: SmallVec<[Hook; 2]> =
            self.0.lock().iter().map(|(_, hook)| hook.clone()).collect();
        for hook in hooks {
            if let Some(replaced) = hook.call(&g)? {
                g = fitting(replaced, &g)?;
            }
        }
        Ok(g)
    }
}

/// What a hook gave in the place of a gradient, if it is of the gradient's type.
fn fitting(replaced: Value, g: &Value) -> Result<Value> {
    let op = "register_hook";
    if !replaced.shape().same(g.shape()) {
        let facts = format!("got {}, wanted {}", replaced.shape(), g.shape());
        return Err(error::bad_shape(op, "the hook returned a gradient of another shape", facts));
    }
    executors::common(op, [&replaced.array, &g.array])?;
    if replaced.dtype() != g.dtype() {
        return Err(error::dtype_mismatch(
            "register_hook: the hook's gradient",
            replaced.dtype(),
            g.dtype(),
        ));
    }
    Ok(replaced)
}

impl Drop for Hooks {
    fn drop(&mut self) {
        HOST_CALLS.fetch_sub(self.0.get_mut().len() as i64, Ordering::Relaxed);
    }
}

/// A tensor whose gradient is wanted, with the place it goes to.
pub struct Leaf {
    /// The tensor's type, which is its gradient's
    pub ty: Type,
    /// `.grad`
    grad: Mutex<Option<Gradient>>,
    /// Whether it may be row-sparse
    rows: AtomicBool,
    /// Hooks on its gradient
    pub hooks: Hooks,
    /// What it stands for, inside a trace
    pub(in crate::engine) link: Option<Box<dyn StandsFor>>,
    /// What a trace did with the gradient first
    first: AtomicU8,
    /// A frozen function of which its value is a constant, for errors
    frozen_in: OnceLock<Box<str>>,
}

/// What `.grad` is.
#[derive(Clone)]
pub enum Gradient {
    /// A tensor, in a cell that its handles share
    Dense(Shared),
    /// Rows of a table; leaves of traces have none
    Rows(Box<Rows>),
}

/// The leaf outside of a trace for which one inside stands.
pub trait StandsFor: Send + Sync {
    /// The leaf outside.
    fn real(&self) -> &Arc<Leaf>;
    /// Its gradient, as the trace sees it at its start.
    fn gradient(&self) -> Result<Option<Shared>>;
}

/// What happened to a gradient first, in a trace that has a leaf of its own for one outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nothing
    Nothing,
    /// It was read: the trace depends on it
    Read,
    /// It was replaced: the trace does not depend on it
    Written,
}

impl Leaf {
    /// A leaf without a gradient yet.
    pub fn new(ty: Type) -> Leaf {
        let (grad, hooks) = (Mutex::default(), Hooks::default());
        let (first, frozen_in) = (AtomicU8::new(First::Nothing as u8), OnceLock::new());
        let rows = AtomicBool::new(false);
        Leaf { ty, grad, rows, hooks, link: None, first, frozen_in }
    }

    /// From now on its gradient may be row-sparse, where lookups alone make it.
    pub fn allow_rows(&self) {
        self.rows.store(true, Ordering::Relaxed);
    }

    /// Whether its gradient may be row-sparse. What hooks are given is dense.
    pub fn takes_rows(&self) -> bool {
        self.rows.load(Ordering::Relaxed) && self.hooks.0.lock().is_empty()
    }

    /// Says that the value is a constant of a frozen function.
    pub fn freeze(&self, function: &str) {
        let _ = self.frozen_in.set(function.into());
    }

    /// A frozen function of which the value is, or was, a constant.
    pub fn frozen_in(&self) -> Option<&str> {
        self.frozen_in.get().map(|name| &**name)
    }

    /// Takes note of what a trace does first; true for a first read.
    fn note(&self, now: First) -> bool {
        let before = First::Nothing as u8;
        let order = Ordering::Relaxed;
        self.link.is_some()
            && self.first.compare_exchange(before, now as u8, order, order).is_ok()
            && now == First::Read
    }

    /// The gradient.
    pub fn held(&self) -> Result<Option<Gradient>> {
        if self.note(First::Read) {
            let outside = self.link.as_ref().map_or(Ok(None), |link| link.gradient())?;
            *self.grad.lock() = outside.map(Gradient::Dense);
        }
        // A gradient whose work failed on its device is none.
        let mut grad = self.grad.lock();
        let is_void = match &*grad {
            None => false,
            Some(Gradient::Dense(cell)) => executors::is_void(&cell.lock().array),
            Some(Gradient::Rows(rows)) => rows.is_void(),
        };
        if is_void {
            *grad = None;
        }
        Ok(grad.clone())
    }

    /// The cell of the gradient. One that is row-sparse becomes dense.
    pub fn gradient(&self) -> Result<Option<Shared>> {
        loop {
            let rows = match self.held()? {
                None => return Ok(None),
                Some(Gradient::Dense(cell)) => return Ok(Some(cell)),
                Some(Gradient::Rows(rows)) => rows,
            };
            let cell = Arc::new(Mutex::new(Value::plain(rows.dense(&self.ty)?)));
            let mut grad = self.grad.lock();
            // Another thread may have added rows meanwhile.
            if matches!(&*grad, Some(Gradient::Rows(now)) if now.same(&rows)) {
                let old = grad.replace(Gradient::Dense(cell.clone()));
                drop(grad);
                drop(old);
                return Ok(Some(cell));
            }
        }
    }

    /// Replaces the cell of the gradient.
    pub fn set_gradient(&self, cell: Option<Shared>) {
        self.set(cell.map(Gradient::Dense));
    }

    /// Replaces the gradient.
    pub fn set(&self, gradient: Option<Gradient>) {
        self.note(First::Written);
        let old = std::mem::replace(&mut *self.grad.lock(), gradient);
        drop(old);
    }

    /// The gradient as a trace left it, and what it did with it first.
    pub fn first_use(&self) -> (First, Option<Shared>) {
        let first = match self.first.load(Ordering::Relaxed) {
            0 => First::Nothing,
            1 => First::Read,
            _ => First::Written,
        };
        let cell = match &*self.grad.lock() {
            Some(Gradient::Dense(cell)) => Some(cell.clone()),
            Some(Gradient::Rows(_)) | None => None,
        };
        (first, cell)
    }

    /// Runs the hooks of the leaf and, inside a trace, of the one it stands for.
    pub fn run_hooks(&self, g: Value) -> Result<Value> {
        match self.real() {
            Some(real) => self.hooks.run(real.hooks.run(g)?),
            None => self.hooks.run(g),
        }
    }
}
