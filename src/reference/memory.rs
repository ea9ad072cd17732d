//! The memory of values on the reference: bytes of its own, which nobody else reads.
//!
//! As on a device that works by itself, a value may be asked for before it was computed. The test mode
//! ([`defer`]) makes that so: ops and plans are put into one queue, and done when somebody waits for a
//! value. What they refuse comes out at that wait, and again at every later one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::array::{Array, Data, Where};
use crate::device::Device;
use crate::error::{self, Result};
use crate::ops::op::Type;

/// Computes the arrays of one piece of work.
type Work = Box<dyn FnOnce() -> Result<Vec<Array>> + Send>;

/// A piece of work: an op or a run of a plan.
struct Job {
    work: Mutex<Option<Work>>,
    done: OnceLock<Result<Vec<Array>>>,
}

impl Job {
    fn done(arrays: Vec<Array>) -> Arc<Job> {
        Arc::new(Job { work: Mutex::default(), done: OnceLock::from(Ok(arrays)) })
    }

    fn wait(&self) -> &Result<Vec<Array>> {
        self.done.get_or_init(|| match self.work.lock().take() {
            Some(work) => work(),
            None => Err(error::internal("the work of a device was done twice")),
        })
    }
}

/// The memory of one value: result `place` of a job.
#[derive(Clone)]
struct Memory {
    job: Arc<Job>,
    place: usize,
}

static DEFERRED: AtomicBool = AtomicBool::new(false);
static QUEUE: Mutex<VecDeque<Arc<Job>>> = Mutex::new(VecDeque::new());

/// Whether work waits until somebody waits for it; gives what it was. For tests.
pub fn defer(on: bool) -> bool {
    DEFERRED.swap(on, Ordering::Relaxed)
}

/// The values that `work` computes, which are of these types. What `work` reads it holds itself.
pub(super) fn submit(
    types: &[Type],
    work: impl FnOnce() -> Result<Vec<Array>> + Send + 'static,
) -> Result<Vec<Array>> {
    let job = match DEFERRED.load(Ordering::Relaxed) {
        true => {
            let job = Job { work: Mutex::new(Some(Box::new(work))), done: OnceLock::new() };
            let job = Arc::new(job);
            QUEUE.lock().push_back(job.clone());
            job
        }
        false => Job::done(work()?),
    };
    let value = |(place, ty): (usize, &Type)| {
        let memory = Memory { job: job.clone(), place };
        Array::new(ty.dtype, ty.shape.clone(), Data::on(Device::Reference, memory))
    };
    Ok(types.iter().enumerate().map(value).collect())
}

/// An array that nobody else holds, as a value of the reference.
pub(super) fn ready(x: Array) -> Array {
    let (dtype, shape) = (x.dtype, x.shape().clone());
    let memory = Memory { job: Job::done(vec![x]), place: 0 };
    Array::new(dtype, shape, Data::on(Device::Reference, memory))
}

/// The array inside a value of the reference, once it is there; another array as it is, which is
/// how constants of plans are uploaded.
pub(super) fn inside(x: &Array) -> Result<Array> {
    let memory = match x.data.place() {
        Where::Host(_) => return Ok(x.clone()),
        Where::Device(memory) => memory.memory::<Memory>(),
        Where::Traced(_) | Where::Busy(_) => return Err(error::no_data("read")),
    };
    let Some(memory) = memory else {
        return Err(error::not_on_host("read", x.device()));
    };
    // What was asked for before was asked for in order: so no job waits for one behind it.
    while memory.job.done.get().is_none() {
        let Some(next) = QUEUE.lock().pop_front() else { break };
        let _ = next.wait();
    }
    match memory.job.wait() {
        Ok(arrays) => Ok(arrays[memory.place].clone()),
        Err(error) => Err(error.clone()),
    }
}
