//! Values whose work is in flight, and what its failures do to them.
//!
//! What a piece of work refuses is a [`Failure`]. Work that reads its results fails for the same
//! reason and does nothing. The next wait of the thread that gave the work raises its first
//! failure, whatever it waits for, and every wait for a value that follows from a failure raises
//! that. A value that [replaced](replacing) another is that other one again as soon as the failure
//! was raised.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::error::{self, Error, Result};

/// Why a piece of work gave nothing. Work that follows from it shares the failure.
pub struct Failure {
    error: Error,
    /// Who gave the work
    thread: ThreadId,
    /// Whether it was raised for somebody
    reported: AtomicBool,
}

/// What became of work.
pub type Outcome<T = ()> = std::result::Result<T, Arc<Failure>>;

/// A device's way to do work.
pub trait Work: Send + Sync + Sized + 'static {
    /// Where a value of the work lies
    type Place: Clone + Send + Sync + 'static;

    /// The outcome, as soon as it is known.
    fn outcome(&self) -> Option<Outcome>;

    /// The outcome, for which it is waited.
    fn settle(&self) -> Outcome;

    /// Waits for all work that was given to the device.
    fn finish(&self);
}

/// A piece of work: an op or a run of a plan.
pub struct Job<W: Work> {
    /// The device's part
    pub work: W,
    /// What results of it replace, until it is done
    replaced: Mutex<Vec<Arc<Replaced<W>>>>,
}

/// What stood where a value is put, for as long as its work may fail.
type Replaced<W> = Mutex<Option<Before<W>>>;

enum Before<W: Work> {
    Nothing,
    Value(Value<W>),
}

impl<W: Work> Clone for Before<W> {
    fn clone(&self) -> Before<W> {
        match self {
            Before::Nothing => Before::Nothing,
            Before::Value(value) => Before::Value(value.clone()),
        }
    }
}

impl<W: Work> Job<W> {
    /// A job.
    pub fn new(work: W) -> Arc<Job<W>> {
        Arc::new(Job { work, replaced: Mutex::default() })
    }

    /// To be called when the outcome is known. What is replaced for good is freed then, and chains
    /// of replaced values stay short.
    pub fn resolve(&self, outcome: &Outcome) {
        for replaced in std::mem::take(&mut *self.replaced.lock()) {
            let mut before = replaced.lock();
            let old = match outcome {
                Ok(()) => before.take(),
                Err(_) => match &*before {
                    Some(Before::Value(value)) => value.before().and_then(|b| before.replace(b)),
                    Some(Before::Nothing) | None => None,
                },
            };
            drop(before);
            drop(old);
        }
    }
}

/// A value of a job.
pub struct Value<W: Work> {
    /// The job
    pub job: Arc<Job<W>>,
    /// Where the value lies
    pub place: W::Place,
    replaced: Option<Arc<Replaced<W>>>,
}

impl<W: Work> Clone for Value<W> {
    fn clone(&self) -> Value<W> {
        let Value { job, place, replaced } = self;
        Value { job: job.clone(), place: place.clone(), replaced: replaced.clone() }
    }
}

impl<W: Work> Value<W> {
    /// A value of a job.
    pub fn new(job: Arc<Job<W>>, place: W::Place) -> Value<W> {
        Value { job, place, replaced: None }
    }

    /// What it replaced, if its work has failed.
    fn before(&self) -> Option<Before<W>> {
        self.job.work.outcome()?.err()?;
        self.replaced.as_ref()?.lock().clone()
    }

    /// The value that stands here for work that is given now: what was replaced by work whose
    /// failure was told. `None` for nothing.
    pub fn standing(&self) -> Option<Value<W>> {
        let mut value = self.clone();
        loop {
            let outcome = value.job.work.outcome();
            let is_void = matches!(outcome, Some(Err(failure)) if failure.is_reported());
            match value.before() {
                Some(Before::Value(old)) if is_void => value = old,
                Some(Before::Nothing) if is_void => return None,
                Some(_) | None => return Some(value),
            }
        }
    }

    /// What the value is to work that is given now. One that is known to be lost is refused.
    pub fn operand(&self) -> Result<Value<W>> {
        let value = self.standing().ok_or_else(|| error::no_data("read"))?;
        match value.job.work.outcome() {
            Some(Err(failure)) => {
                report(&value.job.work)?;
                Err(failure.report(&value.job.work))
            }
            Some(Ok(())) | None => Ok(value),
        }
    }

    /// The value once its work is done. This is a wait.
    pub fn wait(&self) -> Result<Value<W>> {
        // What was asked for before was asked for in order: so no job waits for one behind it.
        let _ = self.job.work.settle();
        report(&self.job.work)?;
        let value = self.standing().ok_or_else(|| error::no_data("read"))?;
        match value.job.work.settle() {
            Ok(()) => Ok(value),
            Err(failure) => Err(failure.report(&value.job.work)),
        }
    }
}

/// A new value for what had an old one, or none: should the work fail that computes the new one,
/// the old one stands there again. `None` where there is nothing to remember.
pub fn replacing<W: Work>(old: Option<&Value<W>>, new: &Value<W>) -> Option<Value<W>> {
    if matches!(new.job.work.outcome(), Some(Ok(()))) {
        return None;
    }
    let before = old.map_or(Before::Nothing, |old| Before::Value(old.clone()));
    let replaced = Arc::new(Mutex::new(Some(before)));
    let value = Value { replaced: Some(replaced.clone()), ..new.clone() };
    value.job.replaced.lock().push(replaced);
    if let Some(outcome) = value.job.work.outcome() {
        value.job.resolve(&outcome);
    }
    Some(value)
}

static UNREPORTED: Mutex<Vec<Arc<Failure>>> = Mutex::new(Vec::new());

impl Failure {
    /// A failure of work that a thread gave.
    pub fn new(error: Error, thread: ThreadId) -> Arc<Failure> {
        let failure = Arc::new(Failure { error, thread, reported: AtomicBool::new(false) });
        UNREPORTED.lock().push(failure.clone());
        failure
    }

    fn is_reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// The error, to be raised. All work that was given is done before, so that what follows from
    /// the failure is known, and work that is given afterwards finds the state of before. Of later
    /// failures none is raised on its own: had this one come at its line, there would be none.
    fn report(&self, device: &impl Work) -> Error {
        device.finish();
        self.reported.store(true, Ordering::Relaxed);
        let here = std::thread::current().id();
        for failure in UNREPORTED.lock().iter().filter(|failure| failure.thread == here) {
            failure.reported.store(true, Ordering::Relaxed);
        }
        self.error.clone()
    }
}

/// Raises the first failure of this thread's work that nobody was told of; all work of the device
/// is done before.
pub fn report(device: &impl Work) -> Result<()> {
    match unreported() {
        Some(failure) => Err(failure.report(device)),
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
