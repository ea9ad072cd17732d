//! The memory of values on the reference: bytes of its own, which nobody else reads.
//!
//! As on a device that works by itself, a value may be asked for before it was computed. The test
//! mode ([`defer`]) makes that so: ops and runs of plans are put into one queue, and done in order
//! when somebody waits for a value.
//!
//! What a piece of work refuses is a [`Failure`]. Work that reads its results fails for the same
//! reason and does nothing. The next wait of the thread that gave the work raises its first
//! failure, whatever it waits for, and every wait for a value that follows from a failure raises
//! that. A value that [replaced](replacing) another is that other one again as soon as the failure
//! was raised.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::array::{Array, Data, Where};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{self, Error, Result};
use crate::executor::located;
use crate::ops::emit::catch;
use crate::ops::op::Type;
use crate::shape::Shape;
use crate::site::Site;

/// Why a piece of work gave nothing. Work that follows from it shares the failure.
struct Failure {
    error: Error,
    /// Who gave the work
    thread: ThreadId,
    /// Whether it was raised for somebody
    reported: AtomicBool,
}

impl Failure {
    fn is_reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// The error, to be raised. All work that was given is done before, so that what follows from
    /// the failure is known, and work that is given afterwards finds the state of before. Of later
    /// failures none is raised on its own: had this one come at its line, there would be none.
    fn report(&self) -> Error {
        finish();
        self.reported.store(true, Ordering::Relaxed);
        let here = std::thread::current().id();
        for failure in UNREPORTED.lock().iter().filter(|failure| failure.thread == here) {
            failure.reported.store(true, Ordering::Relaxed);
        }
        self.error.clone()
    }
}

type Outcome<T> = std::result::Result<T, Arc<Failure>>;

/// Computes the arrays of one piece of work.
type Work = Box<dyn FnOnce() -> Outcome<Vec<Array>> + Send>;

/// A piece of work: an op or a run of a plan.
struct Job {
    work: Mutex<Option<Work>>,
    done: OnceLock<Outcome<Vec<Array>>>,
    /// What results of it replace, until it is done
    replaced: Mutex<Vec<Arc<Replaced>>>,
}

/// What stood where a value is put, for as long as its work may fail.
type Replaced = Mutex<Option<Before>>;

#[derive(Clone)]
enum Before {
    Nothing,
    Value(Memory),
}

impl Job {
    fn new(work: Option<Work>) -> Arc<Job> {
        let (done, replaced) = (OnceLock::new(), Mutex::default());
        Arc::new(Job { work: Mutex::new(work), done, replaced })
    }

    fn done(arrays: Vec<Array>) -> Arc<Job> {
        let (work, replaced) = (Mutex::default(), Mutex::default());
        Arc::new(Job { work, done: OnceLock::from(Ok(arrays)), replaced })
    }

    /// Does the work, or waits for the thread that does it. Work before it in the queue was begun.
    fn finish(&self) -> &Outcome<Vec<Array>> {
        let outcome = self.done.get_or_init(|| match self.work.lock().take() {
            Some(work) => work(),
            None => {
                let thread = std::thread::current().id();
                Err(failed(error::internal("the work of a device was done twice"), thread))
            }
        });
        // What is replaced for good is freed now, and chains of replaced values stay short.
        for replaced in std::mem::take(&mut *self.replaced.lock()) {
            let mut before = replaced.lock();
            let old = match outcome {
                Ok(_) => before.take(),
                Err(_) => match &*before {
                    Some(Before::Value(memory)) => memory.before().and_then(|b| before.replace(b)),
                    Some(Before::Nothing) | None => None,
                },
            };
            drop(before);
            drop(old);
        }
        outcome
    }

    /// Does the work and all before it in the queue.
    fn settle(&self) -> &Outcome<Vec<Array>> {
        while self.done.get().is_none() {
            let Some(next) = take() else { break };
            next.finish();
        }
        self.finish()
    }
}

/// The memory of one value: result `place` of a job.
#[derive(Clone)]
struct Memory {
    job: Arc<Job>,
    place: usize,
    replaced: Option<Arc<Replaced>>,
}

impl Memory {
    fn of(job: Arc<Job>, place: usize) -> Memory {
        Memory { job, place, replaced: None }
    }

    fn array(self, dtype: DType, shape: Shape) -> Array {
        Array::new(dtype, shape, Data::on(Device::Reference, self))
    }

    /// What it replaced, if its work has failed.
    fn before(&self) -> Option<Before> {
        self.job.done.get()?.as_ref().err()?;
        self.replaced.as_ref()?.lock().clone()
    }

    /// The value that stands here for work that is given now: what was replaced by work whose
    /// failure was told. `None` for nothing.
    fn standing(&self) -> Option<Memory> {
        let mut memory = self.clone();
        loop {
            let is_void =
                matches!(memory.job.done.get(), Some(Err(failure)) if failure.is_reported());
            match memory.before() {
                Some(Before::Value(old)) if is_void => memory = old,
                Some(Before::Nothing) if is_void => return None,
                Some(_) | None => return Some(memory),
            }
        }
    }

    /// The array that work reads, once it is there.
    fn read(&self) -> Outcome<Array> {
        self.job.finish().as_ref().map(|arrays| arrays[self.place].clone()).map_err(Arc::clone)
    }
}

static DEFERRED: AtomicBool = AtomicBool::new(false);
static QUEUE: Mutex<VecDeque<Arc<Job>>> = Mutex::new(VecDeque::new());
static UNREPORTED: Mutex<Vec<Arc<Failure>>> = Mutex::new(Vec::new());

/// Whether work waits until somebody waits for it; gives what it was. For tests.
pub fn defer(on: bool) -> bool {
    DEFERRED.swap(on, Ordering::Relaxed)
}

/// Whether it does now.
pub(super) fn is_deferred() -> bool {
    DEFERRED.load(Ordering::Relaxed)
}

fn take() -> Option<Arc<Job>> {
    QUEUE.lock().pop_front()
}

/// A failure of work that a thread gave.
fn failed(error: Error, thread: ThreadId) -> Arc<Failure> {
    let failure = Arc::new(Failure { error, thread, reported: AtomicBool::new(false) });
    UNREPORTED.lock().push(failure.clone());
    failure
}

/// Raises the first failure of this thread's work that nobody was told of.
fn report() -> Result<()> {
    match unreported() {
        Some(failure) => Err(failure.report()),
        None => Ok(()),
    }
}

fn unreported() -> Option<Arc<Failure>> {
    let mut unreported = UNREPORTED.lock();
    unreported.retain(|failure| !failure.is_reported());
    if unreported.is_empty() {
        return None;
    }
    let here = std::thread::current().id();
    let first = unreported.iter().position(|failure| failure.thread == here)?;
    Some(unreported.remove(first))
}

/// Does all work that was given.
fn finish() {
    let last = QUEUE.lock().back().cloned();
    if let Some(last) = last {
        last.settle();
    }
}

/// Does all work that was given, and raises what nobody was told of.
pub(super) fn synchronize() -> Result<()> {
    finish();
    report()
}

/// An operand of work.
enum Operand {
    Host(Array),
    Own(Memory),
}

impl Operand {
    /// What an array is to work that is given now. A value that is known to be lost is refused.
    fn of(x: &Array) -> Result<Operand> {
        let Some(memory) = own(x)? else { return Ok(Operand::Host(x.clone())) };
        let Some(memory) = memory.standing() else { return Err(error::no_data("read")) };
        match memory.job.done.get() {
            Some(Err(failure)) => {
                report()?;
                Err(failure.report())
            }
            Some(Ok(_)) | None => Ok(Operand::Own(memory)),
        }
    }

    fn read(&self) -> Outcome<Array> {
        match self {
            Operand::Host(x) => Ok(x.clone()),
            Operand::Own(memory) => memory.read(),
        }
    }
}

/// The values that `work` computes from the arrays inside of the inputs; they are of these types.
/// The site is what a failure names that comes later, where `work` does not name lines itself.
pub(super) fn submit(
    types: &[Type],
    inputs: &[&Array],
    site: Option<Site>,
    work: impl FnOnce(&[Array]) -> Result<Vec<Array>> + Send + 'static,
) -> Result<Vec<Array>> {
    let job = match is_deferred() {
        true => {
            let inputs = inputs.iter().map(|x| Operand::of(x)).collect::<Result<Vec<Operand>>>()?;
            let thread = std::thread::current().id();
            let work = move || {
                let own = inputs.iter().map(Operand::read).collect::<Outcome<Vec<Array>>>()?;
                let done = catch(|| work(&own)).and_then(|done| done);
                done.map_err(|refusal| match site {
                    Some(site) => failed(located(refusal, site), thread),
                    None => failed(refusal, thread),
                })
            };
            let job = Job::new(Some(Box::new(work)));
            QUEUE.lock().push_back(job.clone());
            job
        }
        false => {
            let own = inputs.iter().map(|x| inside(x)).collect::<Result<Vec<Array>>>()?;
            Job::done(work(&own)?)
        }
    };
    let value = |(place, ty): (usize, &Type)| {
        Memory::of(job.clone(), place).array(ty.dtype, ty.shape.clone())
    };
    Ok(types.iter().enumerate().map(value).collect())
}

/// An array that nobody else holds, as a value of the reference.
pub(super) fn ready(x: Array) -> Array {
    let (dtype, shape) = (x.dtype, x.shape().clone());
    Memory::of(Job::done(vec![x]), 0).array(dtype, shape)
}

/// The memory of a value of the reference; none for an array of the host, which is how constants of
/// plans are uploaded.
fn own(x: &Array) -> Result<Option<&Memory>> {
    let memory = match x.data.place() {
        Where::Host(_) => return Ok(None),
        Where::Device(memory) => memory.memory::<Memory>(),
        Where::Traced(_) | Where::Busy(_) => return Err(error::no_data("read")),
    };
    memory.map(Some).ok_or_else(|| error::not_on_host("read", x.device()))
}

/// The array inside a value of the reference, once it is there; another array as it is. This is a
/// wait.
pub(super) fn inside(x: &Array) -> Result<Array> {
    let Some(memory) = own(x)? else { return Ok(x.clone()) };
    // What was asked for before was asked for in order: so no job waits for one behind it.
    memory.job.settle();
    report()?;
    let Some(memory) = memory.standing() else { return Err(error::no_data("read")) };
    match memory.job.settle() {
        Ok(arrays) => Ok(arrays[memory.place].clone()),
        Err(failure) => Err(failure.report()),
    }
}

/// A new value for what had an old one, or none: should the work fail that computes the new one,
/// the old one stands there again.
pub(super) fn replacing(old: Option<&Array>, new: Array) -> Array {
    let Ok(Some(memory)) = own(&new) else { return new };
    if memory.job.done.get().is_some_and(|done| done.is_ok()) {
        return new;
    }
    let before = match old {
        None => Before::Nothing,
        Some(old) if old.data.same(&new.data) => return new,
        Some(old) => match own(old) {
            Ok(Some(memory)) if old.dtype == new.dtype && old.shape().same(new.shape()) => {
                Before::Value(memory.clone())
            }
            // It was given to the work, or a variable changes its shape.
            Ok(_) | Err(_) => return new,
        },
    };
    let replaced = Arc::new(Mutex::new(Some(before)));
    let memory = Memory { replaced: Some(replaced.clone()), ..memory.clone() };
    let job = memory.job.clone();
    job.replaced.lock().push(replaced);
    if job.done.get().is_some() {
        job.finish();
    }
    memory.array(new.dtype, new.shape().clone())
}

/// Whether a value was put where none was by work whose failure was told.
pub(super) fn is_void(x: &Array) -> bool {
    matches!(own(x), Ok(Some(memory)) if memory.standing().is_none())
}
