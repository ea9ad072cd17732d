//! What is given to a device: commands in order, and the jobs that they belong to.

use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::device::Gpu;
use super::memory::{Buffer, Place, Span};
use super::pipeline::Pipeline;
use super::staging::Piece;
use super::times::Timed;
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
    /// Flags on the device: one is set if the work fails. They are needed until it is known not to
    flags: Mutex<Flags>,
}

/// Words on the device that are not 0 where work has failed, each at the start of a buffer.
pub type Flags = SmallVec<[Arc<Buffer>; 2]>;

/// Its job.
pub type Job = flight::Job<Run>;

impl Run {
    /// Work that nothing can refuse.
    pub fn done() -> Run {
        Run { gpu: None, done: OnceLock::from(Ok(())), flags: Mutex::default() }
    }

    /// Work whose outcome the device will say.
    pub fn pending(gpu: &'static Gpu, flags: Flags) -> Run {
        Run { gpu: Some(gpu), done: OnceLock::new(), flags: Mutex::new(flags) }
    }

    /// Says the outcome, once.
    pub fn end(&self, outcome: Outcome) {
        let is_ok = outcome.is_ok();
        let _ = self.done.set(outcome);
        if is_ok {
            let flags = std::mem::take(&mut *self.flags.lock());
            drop(flags);
        }
    }

    /// The flags of which one is set if the work fails; none where it is known not to.
    pub fn flags(&self) -> Flags {
        self.flags.lock().clone()
    }
}

impl flight::Work for Run {
    type Place = Place;

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

/// A range of a buffer that commands touch. It does not hold the buffer: the recording does, until
/// the commands are given.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Bound {
    /// wgpu's buffer
    pub raw: wgpu::Buffer,
    start: u64,
    bytes: u64,
}

impl Bound {
    /// As an entry of a bind group.
    pub fn resource(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.raw,
            offset: self.start,
            size: std::num::NonZeroU64::new(self.bytes),
        })
    }
}

/// A binding of a dispatch.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Binding {
    /// A range of a buffer
    Buffer(Bound),
    /// The faults of the batch
    Faults,
}

/// The bindings of a dispatch.
pub type Bindings = SmallVec<[Binding; 8]>;

/// What a device does in order.
// Nearly all are dispatches, so that boxes would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum Command {
    /// A shader is run
    #[allow(missing_docs)]
    Dispatch {
        pipeline: Arc<Pipeline>,
        bindings: Bindings,
        words: Vec<u32>,
        groups: [u32; 2],
        /// Which word is the slot, and which slot of the recording it is
        slot: Option<(usize, usize)>,
        /// What its times are noted for, if somebody takes times
        timed: Option<Arc<Timed>>,
    },
    /// Bytes of the host are copied to a buffer, from this byte on
    #[allow(missing_docs)]
    Upload { from: Source, bytes: usize, to: Bound, start: usize },
    /// The start of a buffer is copied to host memory
    #[allow(missing_docs)]
    Download { from: Bound, bytes: usize, to: Arc<Download> },
}

/// Bytes that are uploaded.
pub enum Source {
    /// They wait for a piece of a ring
    Bytes(Vec<u8>),
    /// They are at the start of a piece
    Piece(Piece),
}

/// Host memory that a download fills.
pub struct Download {
    /// The memory; nobody else reads or writes it until the download is done
    pub to: HostBuffer,
    /// Set when it is filled, or cannot be
    pub done: Mutex<Option<Result<()>>>,
}

/// Commands that are not given yet.
///
/// What their buffers are given out for next must come behind them. So a recording holds the buffers
/// that its commands touch until it is given; those that nobody else holds any more it may use again
/// itself.
#[derive(Default)]
pub struct Recording {
    /// In order
    pub commands: Vec<Command>,
    /// Work whose failure is theirs too
    pub needs: Vec<Arc<Job>>,
    /// What slots say
    pub faults: Vec<(Refusal, Site)>,
    /// A flag that says whether anything has failed that was recorded or needed before, and how many
    /// slots there were then
    pub flag: Option<(Arc<Buffer>, usize)>,
    /// The flags of its job
    pub flags: Flags,
    /// What the next dispatches are part of, if somebody takes times
    pub timed: Option<Arc<Timed>>,
    /// Buffers that commands touch, by their addresses
    kept: FxHashMap<usize, Arc<Buffer>>,
    /// Buffers that nobody else holds
    spare: Vec<Arc<Buffer>>,
}

impl Recording {
    /// A buffer of at least so many bytes, whose contents are arbitrary.
    pub fn buffer(&mut self, gpu: &'static Gpu, bytes: usize) -> Result<Arc<Buffer>> {
        let rounded = gpu.rounded(bytes as u64)?;
        self.sized(gpu, rounded)
    }

    /// A buffer of a length, whose contents are arbitrary.
    pub fn sized(&mut self, gpu: &'static Gpu, bytes: u64) -> Result<Arc<Buffer>> {
        match self.spare.iter().position(|spare| spare.bytes == bytes) {
            Some(i) => Ok(self.spare.swap_remove(i)),
            None => gpu.sized(bytes),
        }
    }

    /// A range for a command.
    pub fn bound(&mut self, span: &Span) -> Bound {
        let Span { buffer, start, bytes } = span;
        self.kept.entry(Arc::as_ptr(buffer).addr()).or_insert_with(|| buffer.clone());
        Bound { raw: buffer.raw.clone(), start: *start, bytes: *bytes }
    }

    /// To be called with a buffer that is wanted no more: if nobody else wants it, later commands
    /// may write it.
    pub fn release(&mut self, buffer: Arc<Buffer>) {
        // One holder is here, the other among what is kept.
        if Arc::strong_count(&buffer) == 2
            && let Some(kept) = self.kept.remove(&Arc::as_ptr(&buffer).addr())
        {
            self.spare.push(kept);
        }
    }
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
    /// Bytes of the host that the commands hold
    pub bytes: usize,
}

impl Batch {
    /// Whether it does nothing and decides nothing. (The view of a value that may fail is a job
    /// without a command.)
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.jobs.is_empty()
    }

    /// Adds a recording, whose job may fail or not.
    pub fn add(&mut self, gpu: &'static Gpu, recording: Recording) -> Arc<Job> {
        let Recording { mut commands, needs, faults, flags, .. } = recording;
        let first = self.slots;
        for command in &mut commands {
            match command {
                Command::Dispatch { words, slot: Some((at, slot)), .. } => {
                    words[*at] = (first + *slot) as u32;
                }
                Command::Upload { from: Source::Bytes(bytes), .. } => self.bytes += bytes.len(),
                Command::Dispatch { .. } | Command::Upload { .. } | Command::Download { .. } => {}
            }
        }
        self.slots += faults.len();
        self.commands.append(&mut commands);
        if needs.is_empty() && faults.is_empty() {
            return gpu.done.clone();
        }
        let job = Job::new(Run::pending(gpu, flags));
        let thread = std::thread::current().id();
        self.jobs.push(Fallible { job: job.clone(), needs, first, faults, thread });
        job
    }
}
