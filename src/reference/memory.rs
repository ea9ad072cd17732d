//! The memory of values on the reference: bytes of its own, which nobody else reads.
//!
//! As on a device that works by itself, a value may be asked for before it was computed. The test
//! mode ([`defer`]) makes that so: ops and runs of plans are put into one queue, and done in order
//! when somebody waits for a value.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::array::{Array, Data, Where};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::executor::flight::{self, Failure, Outcome, Value, Work};
use crate::executor::located;
use crate::ops::emit::catch;
use crate::ops::op::Type;
use crate::shape::Shape;
use crate::site::Site;

/// Computes the arrays of one piece of work.
type Compute = Box<dyn FnOnce() -> Outcome<Vec<Array>> + Send>;

/// Work that is done when somebody waits for it.
struct Deferred {
    compute: Mutex<Option<Compute>>,
    done: OnceLock<Outcome<Vec<Array>>>,
}

type Job = flight::Job<Deferred>;
/// A value: a result of a job, by its place among them.
type Memory = Value<Deferred>;

static DEFERRED: AtomicBool = AtomicBool::new(false);
static QUEUE: Mutex<VecDeque<Arc<Job>>> = Mutex::new(VecDeque::new());

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

impl Deferred {
    fn new(compute: Option<Compute>) -> Deferred {
        Deferred { compute: Mutex::new(compute), done: OnceLock::new() }
    }

    fn done(arrays: Vec<Array>) -> Deferred {
        Deferred { compute: Mutex::default(), done: OnceLock::from(Ok(arrays)) }
    }

    /// Does the work, or waits for the thread that does it. Work before it in the queue was begun.
    fn arrays(&self) -> &Outcome<Vec<Array>> {
        self.done.get_or_init(|| match self.compute.lock().take() {
            Some(compute) => compute(),
            None => {
                let thread = std::thread::current().id();
                Err(Failure::new(error::internal("the work of a device was done twice"), thread))
            }
        })
    }
}

fn known(done: &Outcome<Vec<Array>>) -> Outcome {
    done.as_ref().map(drop).map_err(Arc::clone)
}

impl Work for Deferred {
    type Place = usize;

    fn outcome(&self) -> Option<Outcome> {
        self.done.get().map(known)
    }

    /// Does the work and all before it in the queue.
    fn settle(&self) -> Outcome {
        while self.done.get().is_none() {
            let Some(next) = take() else { break };
            next.resolve(&known(next.work.arrays()));
        }
        known(self.arrays())
    }

    fn finish(&self) {
        finish();
    }
}

/// Does all work that was given.
fn finish() {
    let last = QUEUE.lock().back().cloned();
    if let Some(last) = last {
        let _ = last.work.settle();
    }
}

/// Does all work that was given, and raises what nobody was told of.
pub(super) fn synchronize() -> Result<()> {
    finish();
    flight::report(&Deferred::done(Vec::new()))
}

fn array(memory: Memory, dtype: DType, shape: Shape) -> Array {
    Array::new(dtype, shape, Data::on(Device::Reference, memory))
}

/// An operand of work.
enum Operand {
    Host(Array),
    Own(Memory),
}

impl Operand {
    /// What an array is to work that is given now. A value that is known to be lost is refused.
    fn of(x: &Array) -> Result<Operand> {
        match own(x)? {
            Some(memory) => memory.operand().map(Operand::Own),
            None => Ok(Operand::Host(x.clone())),
        }
    }

    /// The array that work reads, once it is there.
    fn read(&self) -> Outcome<Array> {
        let memory = match self {
            Operand::Host(x) => return Ok(x.clone()),
            Operand::Own(memory) => memory,
        };
        memory.job.work.arrays().as_ref().map(|all| all[memory.place].clone()).map_err(Arc::clone)
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
            let compute = move || {
                let own = inputs.iter().map(Operand::read).collect::<Outcome<Vec<Array>>>()?;
                let done = catch(|| work(&own)).and_then(|done| done);
                done.map_err(|refusal| match site {
                    Some(site) => Failure::new(located(refusal, site), thread),
                    None => Failure::new(refusal, thread),
                })
            };
            let job = Job::new(Deferred::new(Some(Box::new(compute))));
            QUEUE.lock().push_back(job.clone());
            job
        }
        false => {
            let own = inputs.iter().map(|x| inside(x)).collect::<Result<Vec<Array>>>()?;
            Job::new(Deferred::done(work(&own)?))
        }
    };
    let value = |(place, ty): (usize, &Type)| {
        array(Value::new(job.clone(), place), ty.dtype, ty.shape.clone())
    };
    Ok(types.iter().enumerate().map(value).collect())
}

/// An array that nobody else holds, as a value of the reference.
pub(super) fn ready(x: Array) -> Array {
    let (dtype, shape) = (x.dtype, x.shape().clone());
    array(Value::new(Job::new(Deferred::done(vec![x])), 0), dtype, shape)
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
    let memory = memory.wait()?;
    match memory.job.work.arrays() {
        Ok(arrays) => Ok(arrays[memory.place].clone()),
        Err(_) => Err(error::internal("a value was waited for and is not there")),
    }
}

/// A new value for what had an old one, or none: should the work fail that computes the new one,
/// the old one stands there again.
pub(super) fn replacing(old: Option<&Array>, new: Array) -> Array {
    let Ok(Some(memory)) = own(&new) else { return new };
    let before = match old {
        None => None,
        Some(old) if old.data.same(&new.data) => return new,
        Some(old) => match own(old) {
            Ok(Some(before)) if old.dtype == new.dtype && old.shape().same(new.shape()) => {
                Some(before)
            }
            // It was given to the work, or a variable changes its shape.
            Ok(_) | Err(_) => return new,
        },
    };
    match flight::replacing(before, memory) {
        Some(memory) => array(memory, new.dtype, new.shape().clone()),
        None => new,
    }
}

/// Whether a value was put where none was by work whose failure was told.
pub(super) fn is_void(x: &Array) -> bool {
    matches!(own(x), Ok(Some(memory)) if memory.standing().is_none())
}
