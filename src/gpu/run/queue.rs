//! The thread that gives work to a device and waits for it.
//!
//! Callers only append commands; what has gathered while the device was busy goes to it in one
//! submission. Encoding, compiling and submitting, which may block, happen on this thread alone.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Gpu;
use super::pipeline::Pipeline;
use super::submit::{Flying, Server};
use super::work::{Batch, Download, Job, Recording};
use crate::error::{self, Error, Result};
use crate::executor;
use crate::settings;

/// Commands that may gather before callers wait.
const MOST_PENDING: usize = 1 << 14;

/// Bytes of uploads that may wait with them before callers wait.
const MOST_BYTES: usize = 16 << 20;

/// Submissions on the device at a time.
const MOST_FLYING: usize = 3;

/// Seconds after which a device that does not answer counts as lost, unless the setting says
/// otherwise.
const PATIENCE: u64 = 120;

/// The pause between two looks for an interruption.
pub const PAUSE: Duration = Duration::from_millis(20);

/// What was given to a device.
#[derive(Default)]
pub struct Stream {
    /// What is not submitted yet
    pending: Batch,
    /// Shaders that nobody compiles yet
    shaders: VecDeque<Arc<Pipeline>>,
    /// Batches that were taken
    taken: u64,
    /// Batches that are done
    done: u64,
    /// Shaders and submissions that the driver may be compiling, which it must not while the process
    /// ends: what its compiler keeps is destroyed then
    busy: usize,
    /// Whether the process ends
    is_closing: bool,
}

impl Gpu {
    /// Appends a recording; gives the job of its results.
    pub fn give(&'static self, op: &str, mut recording: Recording) -> Result<Arc<Job>> {
        self.check(op)?;
        self.judge(&mut recording)?;
        let is_full = |stream: &Stream| {
            let Batch { commands, bytes, .. } = &stream.pending;
            commands.len() >= MOST_PENDING || *bytes >= MOST_BYTES
        };
        if is_full(&self.stream.lock()) {
            executor::wait(|| {
                let mut stream = self.stream.lock();
                if is_full(&stream) {
                    self.changed.wait_for(&mut stream, PAUSE);
                }
                self.check(op).map(|()| !is_full(&stream))
            })?;
        }
        let mut stream = self.stream.lock();
        let was_empty = stream.pending.is_empty();
        let job = stream.pending.add(self, recording);
        if was_empty {
            self.changed.notify_all();
        }
        Ok(job)
    }

    /// Waits for all that was given.
    pub fn finish_all(&self) -> Result<()> {
        self.check("wait")?;
        let last = {
            let stream = self.stream.lock();
            stream.taken + u64::from(!stream.pending.is_empty())
        };
        self.wait_until(|stream| stream.done >= last)
    }

    /// Waits for a download.
    pub fn wait_for(&self, download: &Download) -> Result<()> {
        self.wait_until(|_| download.done.lock().is_some())?;
        download.done.lock().take().unwrap_or(Ok(()))
    }

    fn wait_until(&self, is_done: impl Fn(&Stream) -> bool + Send + Sync) -> Result<()> {
        executor::wait(|| {
            let mut stream = self.stream.lock();
            if is_done(&stream) {
                return Ok(true);
            }
            self.changed.wait_for(&mut stream, PAUSE);
            if is_done(&stream) {
                return Ok(true);
            }
            self.check("wait").map(|()| false)
        })
    }

    /// Serves the device for ever.
    pub(super) fn serve(&'static self) {
        let mut server = Server::new(self);
        let mut flying: VecDeque<Flying> = VecDeque::new();
        loop {
            let batch = {
                let mut stream = self.stream.lock();
                loop {
                    let has_work = !stream.pending.is_empty() && !stream.is_closing;
                    if has_work && flying.len() < MOST_FLYING {
                        stream.taken += 1;
                        stream.busy += 1;
                        break Some(std::mem::take(&mut stream.pending));
                    }
                    if !flying.is_empty() {
                        break None;
                    }
                    self.changed.wait(&mut stream);
                }
            };
            match batch {
                Some(batch) => {
                    // There is room for callers again.
                    self.changed.notify_all();
                    let next = server.submit(batch);
                    if next.fresh.is_empty() {
                        self.rest();
                    }
                    flying.push_back(next);
                }
                None => {
                    if let Some(first) = flying.pop_front() {
                        let compiles = !first.fresh.is_empty();
                        server.land(first);
                        if compiles {
                            self.rest();
                        }
                        self.stream.lock().done += 1;
                        self.changed.notify_all();
                    }
                }
            }
        }
    }

    /// Says that the driver is no longer at work for a thread.
    fn rest(&self) {
        self.stream.lock().busy -= 1;
        self.changed.notify_all();
    }

    /// Compiles shaders as they are first seen, for ever, beside the thread that will want them.
    pub(super) fn compile_all(&'static self) {
        loop {
            let next = {
                let mut stream = self.stream.lock();
                loop {
                    match stream.shaders.pop_front() {
                        Some(next) if !stream.is_closing => {
                            stream.busy += 1;
                            break next;
                        }
                        Some(_) | None => self.changed.wait(&mut stream),
                    }
                }
            };
            // What is wrong with a shader is told to whoever dispatches it.
            let _ = catch_unwind(AssertUnwindSafe(|| next.compiled(self).is_ok()));
            self.rest();
        }
    }

    /// Has a shader compiled.
    pub(super) fn prepare(&self, pipeline: Arc<Pipeline>) {
        self.stream.lock().shaders.push_back(pipeline);
        self.changed.notify_all();
    }

    /// Takes no more work, because the process ends: what was not submitted is forgotten. Says
    /// whether the driver's compiler is at work, whose memory must not go before it rests.
    pub fn close(&self) -> bool {
        let mut stream = self.stream.lock();
        stream.is_closing = true;
        self.is_here() && stream.busy > 0
    }

    pub(super) fn temporary(
        &self,
        size: u64,
        usage: wgpu::BufferUsages,
        is_mapped: bool,
    ) -> wgpu::Buffer {
        let desc =
            wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: is_mapped };
        self.raw.create_buffer(&desc)
    }

    pub(super) fn broken(&self, problem: impl std::fmt::Display) -> Error {
        error::device_lost("submit", self.device(), problem)
    }

    /// Waits until a submission is done.
    pub(super) fn arrived(&self, index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let patience = settings::GPU_TIMEOUT.value().and_then(|text| text.parse().ok());
        let patience = Duration::from_secs(patience.unwrap_or(PATIENCE));
        let start = Instant::now();
        loop {
            let timeout = Some(Duration::from_millis(250));
            let wait = wgpu::PollType::Wait { submission_index: index.clone(), timeout };
            match self.raw.poll(wait) {
                Ok(_) => return self.check("wait"),
                Err(_) if start.elapsed() < patience => self.check("wait")?,
                Err(_) => {
                    self.lose(format!("it did not answer for {} seconds", patience.as_secs()));
                    return self.check("wait");
                }
            }
        }
    }
}
