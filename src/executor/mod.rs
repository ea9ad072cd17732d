//! Executors: they run ops and plans.
//!
//! An [`Executor`] runs single ops as they come, and lowers plans. An [`Executable`] is the lowered
//! template of a plan; it runs every plan of that template, whatever its sizes.

pub mod flight;

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::array::{Array, Operand};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::ops::emit::OrThrow;
use crate::ops::op::{Call, Op, OperandType, Type};
use crate::ops::origin;
use crate::passes::Evaluator;
use crate::schedule::{Plan, Template};
use crate::site::Site;
use crate::target::Target;
use crate::threads;

/// Results of a plan.
pub type Results = SmallVec<[Array; 2]>;

/// Callbacks into the layers above.
pub struct Hooks {
    /// Prints a text, with each `{}` replaced by an operand
    pub print: fn(&str, &[Array]) -> Result<()>,
    /// Fails with an exception that came from outside, such as Ctrl-C's. The argument says whether
    /// tensors are without their values meanwhile; then no code may run that looks at them
    pub interrupted: fn(bool) -> Result<()>,
    /// Does something that takes long and holds up nobody else meanwhile
    pub aside: fn(&mut (dyn FnMut() + Send)),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Installs the hooks, once.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
    threads::set_watch(|| {
        let given = STEPS.with(|steps| steps.0.get().1);
        HOOKS.get().map_or(Ok(()), |hooks| (hooks.interrupted)(given)).or_throw();
    });
}

/// The hooks, if they are installed.
pub fn hooks() -> Option<&'static Hooks> {
    HOOKS.get()
}

/// Waits for something, while other threads go on. `is_done` is asked again and again, and waits a
/// little each time; an interruption ends the wait.
pub fn wait(mut is_done: impl FnMut() -> Result<bool> + Send) -> Result<()> {
    let mut outcome = Ok(());
    let mut work = || {
        outcome = loop {
            match is_done() {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(refusal) => break Err(refusal),
            }
            let given = STEPS.with(|steps| steps.0.get().1);
            if let Err(signal) = hooks().map_or(Ok(()), |hooks| (hooks.interrupted)(given)) {
                break Err(signal);
            }
        };
    };
    match hooks() {
        Some(hooks) => (hooks.aside)(&mut work),
        None => work(),
    }
    outcome
}

/// A refusal of a node, in the words of the call that made it, and with its line.
#[cold]
pub fn located(refusal: Error, site: Site) -> Error {
    let refusal = origin::explain(refusal, site.origin).explained();
    match site.line() {
        Some(line) => refusal.note(format!("made at {line}")),
        None => refusal,
    }
}

/// How many steps run between two checks for an interruption.
const PACE: u32 = 16;

thread_local! {
    static STEPS: Steps = const { Steps(Cell::new((0, false))) };
}

/// The state of the runs on a thread: steps since the last check for an interruption, and whether a
/// run was given arrays to write over.
pub struct Steps(Cell<(u32, bool)>);

impl Steps {
    /// The state of this thread, for a series of steps: finding it costs as much as the check.
    #[inline]
    pub fn with<T>(work: impl FnOnce(&Steps) -> T) -> T {
        STEPS.with(work)
    }

    /// Fails if the run is to be interrupted. It is called before every step up to the first that
    /// writes donated memory, and every loop runs before that step. So an interrupted run has
    /// written no donated memory.
    #[inline]
    pub fn interruption(&self) -> Result<()> {
        let (steps, given) = self.0.get();
        if steps < PACE {
            self.0.set((steps + 1, given));
            return Ok(());
        }
        self.0.set((0, given));
        hooks().map_or(Ok(()), |hooks| (hooks.interrupted)(given))
    }
}

/// Fails if the run is to be interrupted; for a single step.
pub fn interruption() -> Result<()> {
    Steps::with(Steps::interruption)
}

/// Fails if work beside a run, such as a check of its results, is to be interrupted. Tensors may be
/// without their values meanwhile.
pub fn interrupted() -> Result<()> {
    HOOKS.get().map_or(Ok(()), |hooks| (hooks.interrupted)(true))
}

/// Marks, until it is dropped, that a run was given arrays to write over.
pub struct Giving(bool);

impl Giving {
    /// Sets the mark.
    pub fn new(given: bool) -> Giving {
        Steps::with(|Steps(cell)| {
            let (steps, before) = cell.get();
            cell.set((steps, before || given));
            Giving(before)
        })
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        Steps::with(|Steps(cell)| cell.set((cell.get().0, self.0)));
    }
}

/// An operand of a run.
pub enum Input<'a> {
    /// An array that is only read
    Lent(&'a Array),
    /// An array that the run may write a result over, if nobody else holds it; the run then takes
    /// it. After an error it is still here
    Given(Option<Array>),
}

impl Input<'_> {
    /// The array, if it is still there.
    pub fn array(&self) -> Result<&Array> {
        match self {
            Input::Lent(array) => Ok(array),
            Input::Given(Some(array)) => Ok(array),
            Input::Given(None) => Err(error::internal("a plan was run on an array given before")),
        }
    }
}

/// Refuses an op for which a target has no kernel.
pub fn admit(target: &dyn Target, op: &Op, args: &[OperandType<'_>]) -> Result<()> {
    let mut dtypes: SmallVec<[DType; 4]> = SmallVec::new();
    for arg in args {
        match arg {
            OperandType::Tensor(dtype, _) => dtypes.push(*dtype),
            OperandType::Scalar(_) => {}
        }
    }
    let result = op.infer(args)?;
    target.refusal(op, &dtypes, result.dtype).map_or(Ok(()), Err)
}

/// A template lowered for a target.
///
/// A device may run a plan after the call has returned. The results are then device values whose
/// work is in flight (see [`Executor::replacing`]).
pub trait Executable: Send + Sync {
    /// The template that was lowered.
    fn template(&self) -> &Arc<Template>;

    /// Computes the results of a plan of this template. The inputs have the types the plan was made
    /// for.
    fn run(&self, plan: &Arc<Plan>, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results>;

    /// The same, where some results may be in the memory of inputs that were given.
    fn run_with(
        &self,
        plan: &Arc<Plan>,
        inputs: &mut [Input<'_>],
        numbers: &[Scalar],
    ) -> Result<Results>;
}

/// An executor computes on one kind of device.
///
/// Work on a device may be in flight: a call returns before its data is known to be accepted, and a
/// failure is found later. Such a failure is raised in three places: at the next wait of the thread
/// that submitted the work, at every wait for a value that depends on the work, and where such a
/// value is an operand of further work. Waits are downloads and
/// [`synchronize`](Executor::synchronize).
pub trait Executor: Evaluator + Send + Sync {
    /// The target that plans for it are made for.
    fn target(&self) -> &'static dyn Target;

    /// Allocates memory for a value, not initialised.
    fn allocate(&self, ty: &Type) -> Result<Array>;

    /// Uploads a value from host memory.
    fn upload(&self, x: &Array) -> Result<Array>;

    /// Downloads a value to host memory.
    fn download(&self, x: &Array) -> Result<Array>;

    /// Runs one op on values, which may still be in flight. An error that is found later names
    /// `site`.
    fn execute(&self, op: &Op, args: &[Operand<'_>], site: Site) -> Result<Array>;

    /// Computes the results of a call of a composite that it has a kernel for.
    fn call(&self, call: &Call, _args: &[Operand<'_>], _site: Site) -> Result<Results> {
        Err(error::internal(format!("no kernel of {}", call.composite.name)))
    }

    /// Lowers the template of a plan.
    fn lower(&self, plan: &Plan) -> Result<Arc<dyn Executable>>;

    /// A value of state: it replaces `old`, or nothing. If the work of the new value fails later,
    /// the old value is back in its place as soon as the failure has been raised.
    fn replacing(&self, old: Option<&Array>, new: Array) -> Array;

    /// Whether nobody else holds the memory of a value, so that a run which is given it may write a
    /// result there.
    fn is_sole(&self, _x: &Array) -> bool {
        false
    }

    /// Whether the work of a value that replaced nothing has failed.
    fn is_void(&self, x: &Array) -> bool;

    /// Waits for all submitted work.
    fn synchronize(&self) -> Result<()>;
}
