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
use super::times::Stamps;
use super::work::{Batch, Binding, Command, Download, Fallible, Job, Recording};
use crate::error::{self, Error, Result, unwound};
use crate::executor;
use crate::settings;

/// Commands that may gather before callers wait.
const MOST_PENDING: usize = 1 << 14;

/// Submissions on the device at a time.
const MOST_FLYING: usize = 3;

/// Seconds after which a device that does not answer counts as lost, unless the setting says
/// otherwise.
const PATIENCE: u64 = 120;

/// How long the end of the process waits for a driver that compiles.
const LAST_CALL: Duration = Duration::from_secs(5);

/// The pause between two looks for an interruption.
const PAUSE: Duration = Duration::from_millis(20);

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
    /// Threads for which the driver is at work, which it must not be while the process ends
    busy: usize,
    /// Whether the process ends
    is_closing: bool,
}

/// A submission on its way.
struct Flying {
    index: Option<wgpu::SubmissionIndex>,
    jobs: Vec<Fallible>,
    faults: Option<wgpu::Buffer>,
    downloads: Vec<(wgpu::Buffer, usize, Arc<Download>)>,
    stamps: Stamps,
    /// What could not be submitted
    broken: Option<Error>,
}

impl Gpu {
    /// Appends a recording; gives the job of its results.
    pub fn give(&'static self, op: &str, mut recording: Recording) -> Result<Arc<Job>> {
        self.check(op)?;
        self.judge(&mut recording)?;
        let is_full = |gpu: &Gpu| gpu.stream.lock().pending.commands.len() >= MOST_PENDING;
        if is_full(self) {
            executor::wait(|| {
                let mut stream = self.stream.lock();
                if stream.pending.commands.len() >= MOST_PENDING {
                    self.changed.wait_for(&mut stream, PAUSE);
                }
                self.check(op).map(|()| stream.pending.commands.len() < MOST_PENDING)
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
                    flying.push_back(self.submitted(batch));
                    self.rest();
                }
                None => {
                    if let Some(first) = flying.pop_front() {
                        self.land(first);
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

    /// Lets the threads leave the driver, whose memory goes when the process ends. Work that was not
    /// submitted is forgotten; what runs is not waited for.
    pub(super) fn close(&self) {
        if !self.is_here() {
            return;
        }
        let mut stream = self.stream.lock();
        stream.is_closing = true;
        let end = Instant::now() + LAST_CALL;
        while stream.busy > 0 && !self.changed.wait_until(&mut stream, end).timed_out() {}
    }

    /// Submits a batch. Whatever goes wrong is told to its jobs.
    fn submitted(&'static self, mut batch: Batch) -> Flying {
        let jobs = std::mem::take(&mut batch.jobs);
        let (faults, downloads, stamps) = Default::default();
        let mut flying = Flying { index: None, jobs, faults, downloads, stamps, broken: None };
        let work = AssertUnwindSafe(|| self.encode(&batch, &mut flying));
        let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(unwound(panic)));
        if let Err(problem) = outcome {
            self.lose(problem.message().to_string());
            flying.broken = Some(problem);
            for command in &batch.commands {
                if let Command::Download { to, .. } = command {
                    *to.done.lock() = self.check("wait").err().map(Err);
                }
            }
            flying.downloads.clear();
            flying.stamps = Stamps::default();
        }
        flying
    }

    /// The words of all dispatches, each where a uniform buffer may begin, then what is uploaded.
    fn staged(&self, batch: &Batch) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::with_capacity(batch.commands.len()));
        for command in &batch.commands {
            bytes.resize(bytes.len().next_multiple_of(self.uniform_alignment), 0);
            places.push(bytes.len() as u64);
            match command {
                Command::Dispatch { words, .. } => {
                    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                }
                Command::Upload { from, offset, bytes: count, .. } => {
                    // SAFETY: the buffer has so many bytes behind the offset, and it is not
                    // written as long as the command holds it.
                    let data =
                        unsafe { std::slice::from_raw_parts(from.ptr().add(*offset), *count) };
                    bytes.extend_from_slice(data);
                    bytes.resize(bytes.len().next_multiple_of(4), 0);
                }
                Command::Download { .. } => {}
            }
        }
        (bytes, places)
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

    fn encode(&'static self, batch: &Batch, flying: &mut Flying) -> Result<()> {
        use wgpu::BufferUsages as Usage;
        let (bytes, places) = self.staged(batch);
        let size = (bytes.len() as u64).next_multiple_of(4).max(256) + 256;
        let staged = self.temporary(size, Usage::UNIFORM | Usage::COPY_SRC, true);
        match staged.get_mapped_range_mut(..bytes.len().next_multiple_of(4).max(4) as u64) {
            Ok(mut view) => view.slice(..bytes.len()).copy_from_slice(&bytes),
            Err(problem) => return Err(self.broken(problem)),
        }
        staged.unmap();
        let faults = (batch.slots > 0).then(|| {
            let size = 16 * batch.slots as u64;
            let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
            let made = self.temporary(size, usage, true);
            let filled = made.get_mapped_range_mut(..).map(|mut view| {
                view.slice(..).copy_from_slice(&vec![0xff; size as usize]);
            });
            made.unmap();
            filled.map(|()| made)
        });
        let faults = faults.transpose().map_err(|problem| self.broken(problem))?;
        let mut encoder = self.raw.create_command_encoder(&Default::default());
        let mut pass: Option<wgpu::ComputePass<'static>> = None;
        let mut is_timed = false;
        for (command, &place) in batch.commands.iter().zip(&places) {
            // What is not timed is no part of a timed pass.
            if std::mem::take(&mut is_timed) {
                pass = None;
            }
            match command {
                Command::Dispatch { pipeline, bindings, words, groups, timed, .. } => {
                    let compiled = pipeline.compiled(self)?;
                    let entries: Vec<wgpu::BindGroupEntry<'_>> = bindings
                        .iter()
                        .map(|binding| match binding {
                            Binding::Buffer(buffer) => Some(buffer.resource()),
                            Binding::Faults => faults.as_ref().map(wgpu::Buffer::as_entire_binding),
                        })
                        .chain([Some(wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: &staged,
                            offset: 0,
                            size: std::num::NonZeroU64::new(4 * words.len() as u64),
                        }))])
                        .enumerate()
                        .filter_map(|(i, resource)| {
                            Some(wgpu::BindGroupEntry { binding: i as u32, resource: resource? })
                        })
                        .collect();
                    let group = self.raw.create_bind_group(&wgpu::BindGroupDescriptor {
                        label: None,
                        layout: &self.bind_layout(bindings.len()),
                        entries: &entries,
                    });
                    let stamp = timed.as_ref().map(|timed| flying.stamps.next(self, timed));
                    if stamp.is_some() {
                        pass = None;
                    }
                    let pass = pass.get_or_insert_with(|| {
                        let noted =
                            stamp.as_ref().map(|(set, at)| wgpu::ComputePassTimestampWrites {
                                query_set: set,
                                beginning_of_pass_write_index: Some(*at),
                                end_of_pass_write_index: Some(at + 1),
                            });
                        let desc =
                            wgpu::ComputePassDescriptor { label: None, timestamp_writes: noted };
                        encoder.begin_compute_pass(&desc).forget_lifetime()
                    });
                    pass.set_pipeline(compiled);
                    pass.set_bind_group(0, &group, &[place as u32]);
                    pass.dispatch_workgroups(groups[0], groups[1], 1);
                    is_timed = stamp.is_some();
                }
                Command::Upload { bytes, to, .. } => {
                    pass = None;
                    let size = (*bytes as u64).next_multiple_of(4);
                    encoder.copy_buffer_to_buffer(&staged, place, &to.raw, 0, size);
                }
                Command::Download { from, bytes, to } => {
                    pass = None;
                    let size = (*bytes as u64).next_multiple_of(4);
                    let copy = self.temporary(size, Usage::MAP_READ | Usage::COPY_DST, false);
                    encoder.copy_buffer_to_buffer(&from.raw, 0, &copy, 0, size);
                    flying.downloads.push((copy, *bytes, to.clone()));
                }
            }
        }
        drop(pass);
        if let Some(faults) = &faults {
            let size = faults.size();
            let copy = self.temporary(size, Usage::MAP_READ | Usage::COPY_DST, false);
            encoder.copy_buffer_to_buffer(faults, 0, &copy, 0, size);
            flying.faults = Some(copy);
        }
        flying.stamps.resolve(self, &mut encoder);
        flying.index = Some(self.queue.submit([encoder.finish()]));
        for buffer in flying
            .downloads
            .iter()
            .map(|(copy, ..)| copy)
            .chain(&flying.faults)
            .chain(&flying.stamps.copy)
        {
            buffer.map_async(wgpu::MapMode::Read, .., |_| {});
        }
        self.check("submit")
    }

    pub(super) fn broken(&self, problem: impl std::fmt::Display) -> Error {
        error::device_lost("submit", self.device(), problem)
    }

    /// Waits for a submission and tells what became of it.
    fn land(&self, flying: Flying) {
        let Flying { index, jobs, faults, downloads, stamps, mut broken } = flying;
        if broken.is_none() {
            broken = self.arrived(index).and_then(|()| stamps.record(self)).err();
        }
        let words: Vec<u32> = match faults.as_ref().map(|faults| faults.get_mapped_range(..)) {
            Some(Ok(view)) if broken.is_none() => {
                let word =
                    |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                view.chunks_exact(4).map(word).collect()
            }
            Some(_) | None => Vec::new(),
        };
        // Whoever waits for a download hears of failures of what was given before it.
        for job in jobs {
            job.end(&words, broken.as_ref());
        }
        for (copy, bytes, to) in downloads {
            let outcome = match &broken {
                Some(problem) => Err(problem.clone()),
                None => match copy.get_mapped_range(..) {
                    Ok(view) => {
                        // SAFETY: nobody else reads or writes this memory before `done` is set,
                        // and it has room for so many bytes.
                        unsafe {
                            std::ptr::copy_nonoverlapping(view.as_ptr(), to.to.ptr_mut(), bytes);
                        }
                        Ok(())
                    }
                    Err(problem) => Err(self.broken(problem)),
                },
            };
            *to.done.lock() = Some(outcome);
        }
    }

    /// Waits until a submission is done.
    fn arrived(&self, index: Option<wgpu::SubmissionIndex>) -> Result<()> {
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
