//! What is given to a device: commands in order, and the jobs that they belong to.

use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::device::Gpu;
use super::memory::Buffer;
use super::pipeline::Pipeline;
use crate::error::{Error, Result};
use crate::executor::flight::{self, Failure, Outcome};
use crate::executor::located;
use crate::gpu::kernel::Refusal;
use crate::memory::Buffer as HostBuffer;
use crate::site::Site;

/// A piece of work: an op or a run of a plan.
pub struct Run {
    /// The device, where there is something to wait for
    gpu: Option<&'static Gpu>,
    done: OnceLock<Outcome>,
}

/// Its job.
pub type Job = flight::Job<Run>;

impl Run {
    /// Work that nothing can refuse.
    pub fn done() -> Run {
        Run { gpu: None, done: OnceLock::from(Ok(())) }
    }

    /// Work whose outcome the device will say.
    pub fn pending(gpu: &'static Gpu) -> Run {
        Run { gpu: Some(gpu), done: OnceLock::new() }
    }

    /// Says the outcome, once.
    pub fn end(&self, outcome: Outcome) {
        let _ = self.done.set(outcome);
    }
}

impl flight::Work for Run {
    type Place = Arc<Buffer>;

    fn outcome(&self) -> Option<Outcome> {
        self.done.get().cloned()
    }

    fn settle(&self) -> Outcome {
        if self.done.get().is_none()
            && let Some(gpu) = self.gpu
            && let Err(error) = gpu.finish_all()
        {
            return Err(Failure::new(error, std::thread::current().id()));
        }
        self.done.get().cloned().unwrap_or(Ok(()))
    }

    fn finish(&self) {
        // Whoever waits for a value hears of a lost device there.
        if let Some(gpu) = self.gpu {
            let _ = gpu.finish_all();
        }
    }
}

/// A binding of a dispatch.
#[derive(Clone)]
pub enum Binding {
    /// A whole buffer
    Buffer(Arc<Buffer>),
    /// The faults of the batch
    Faults,
}

/// What a device does in order.
pub enum Command {
    /// A shader is run
    #[allow(missing_docs)]
    Dispatch {
        pipeline: Arc<Pipeline>,
        bindings: SmallVec<[Binding; 8]>,
        words: Vec<u32>,
        groups: [u32; 2],
        /// Which word is the slot, and which slot of the recording it is
        slot: Option<(usize, usize)>,
    },
    /// Host memory is copied to the start of a buffer
    #[allow(missing_docs)]
    Upload { from: HostBuffer, offset: usize, bytes: usize, to: Arc<Buffer> },
    /// The start of a buffer is copied to host memory
    #[allow(missing_docs)]
    Download { from: Arc<Buffer>, bytes: usize, to: Arc<Download> },
}

/// Host memory that a download fills.
pub struct Download {
    /// The memory; nobody else reads or writes it until the download is done
    pub to: HostBuffer,
    /// Set when it is filled, or cannot be
    pub done: Mutex<Option<Result<()>>>,
}

/// Commands that are not given yet.
#[derive(Default)]
pub struct Recording {
    /// In order
    pub commands: Vec<Command>,
    /// Work whose failure is theirs too
    pub needs: Vec<Arc<Job>>,
    /// What slots say
    pub faults: Vec<(Refusal, Site)>,
}

/// A job of a batch: what it needs, and what its slots say.
pub struct Fallible {
    /// The job
    pub job: Arc<Job>,
    /// Work whose failure is its own too
    pub needs: Vec<Arc<Job>>,
    /// The first slot and what each says
    pub first: usize,
    /// What each slot says
    pub faults: Vec<(Refusal, Site)>,
    /// Who gave it
    pub thread: ThreadId,
}

impl Fallible {
    /// Says the outcome, from the words of all slots of the batch, or from what broke the device.
    pub fn end(self, words: &[u32], broken: Option<&Error>) {
        let needed = self.needs.iter().find_map(|job| flight::Work::outcome(&job.work)?.err());
        let outcome = match (broken, needed) {
            (Some(error), _) => Err(Failure::new(error.clone(), self.thread)),
            (None, Some(failure)) => Err(failure),
            (None, None) => {
                let slots = words[4 * self.first..].chunks_exact(4).zip(&self.faults);
                let refused = slots.into_iter().find(|(slot, _)| slot[0] != u32::MAX);
                match refused {
                    Some((slot, (refusal, site))) => {
                        let error = refusal.error([slot[0], slot[1], slot[2], slot[3]]);
                        Err(Failure::new(located(error, *site), self.thread))
                    }
                    None => Ok(()),
                }
            }
        };
        self.job.work.end(outcome.clone());
        self.job.resolve(&outcome);
    }
}

/// Commands that go to the device together.
#[derive(Default)]
pub struct Batch {
    /// In order
    pub commands: Vec<Command>,
    /// Jobs whose outcome the batch decides, in order
    pub jobs: Vec<Fallible>,
    /// Slots of faults
    pub slots: usize,
}

impl Batch {
    /// Whether it does nothing and decides nothing. (The view of a value that may fail is a job
    /// without a command.)
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.jobs.is_empty()
    }

    /// Adds a recording, whose job may fail or not.
    pub fn add(&mut self, gpu: &'static Gpu, recording: Recording) -> Arc<Job> {
        let Recording { mut commands, needs, faults } = recording;
        let first = self.slots;
        for command in &mut commands {
            if let Command::Dispatch { words, slot: Some((at, slot)), .. } = command {
                words[*at] = (first + *slot) as u32;
            }
        }
        self.slots += faults.len();
        self.commands.append(&mut commands);
        if needs.is_empty() && faults.is_empty() {
            return gpu.done.clone();
        }
        let job = Job::new(Run::pending(gpu));
        let thread = std::thread::current().id();
        self.jobs.push(Fallible { job: job.clone(), needs, first, faults, thread });
        job
    }
}
