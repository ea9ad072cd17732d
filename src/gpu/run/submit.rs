//! What the thread that serves a device has of its own: batches become submissions.
//!
//! A batch is one submission, unless what it transfers fills the rings ([`staging`](super::staging)):
//! then it is several, in order.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::device::Gpu;
use super::pipeline::Pipeline;
use super::staging::{PIECE, Piece, Ring};
use super::times::Stamps;
use super::work::{Batch, Binding, Bindings, Bound, Command, Download, Fallible, Source};
use crate::error::{self, Error, Result, unwound};
use crate::memory::Buffer as HostBuffer;

/// Pieces for words and small uploads: one for each submission on its way and one to be filled.
const WORDS: usize = 4;

/// Pieces that are read back: the device fills some while the host reads others.
const READS: usize = 4;

/// Bind groups that are kept: a run of a plan finds those of the run before, since it is given the
/// same buffers again.
const MOST_GROUPS: usize = 1 << 12;

/// Bind groups by what they bind and the count of words behind it.
pub type Groups = FxHashMap<(Bindings, usize), wgpu::BindGroup>;

/// The bytes that say that no slot refuses anything, as many as are copied at a time.
const UNSET: usize = 1 << 14;

/// The thread's part of a device.
pub struct Server {
    gpu: &'static Gpu,
    /// The words of the dispatches of a submission
    words: wgpu::Buffer,
    unset: wgpu::Buffer,
    /// Slots of a batch
    slots: Option<wgpu::Buffer>,
    /// What is gathered for a piece
    gathered: [Vec<u8>; 2],
    writes: Arc<Ring>,
    reads: Arc<Ring>,
    /// Submissions whose pieces of words may not have returned
    sent: VecDeque<wgpu::SubmissionIndex>,
    /// Pieces that the device fills, in order
    reading: VecDeque<Reading>,
    /// How many of them were read before
    read: u64,
}

/// A piece that the device fills.
struct Reading {
    piece: Piece,
    /// The submission that does; none as long as it is not submitted
    index: Option<wgpu::SubmissionIndex>,
    /// Where its bytes go: the memory, its first byte there, and how many they are
    parts: Vec<(HostBuffer, usize, usize)>,
    used: usize,
}

/// A batch on its way.
pub struct Flying {
    /// Its last submission
    pub index: Option<wgpu::SubmissionIndex>,
    /// Jobs whose outcome it decides
    pub jobs: Vec<Fallible>,
    /// What its slots say, when it is done
    pub slots: Option<HostBuffer>,
    /// What is filled, when it is done
    pub downloads: Vec<Arc<Download>>,
    /// Times that it notes
    pub stamps: Stamps,
    /// What could not be submitted
    pub broken: Option<Error>,
    /// Shaders that the driver compiles as it runs them, for the first time
    pub fresh: Vec<Arc<Pipeline>>,
    /// Pieces that are read when it is done, counted from the first of all
    reads: u64,
}

/// A submission that is put together.
struct Part {
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    is_timed: bool,
    /// Pieces that it copies to buffers
    pieces: Vec<Piece>,
}

impl Part {
    fn new(gpu: &Gpu) -> Part {
        let encoder = gpu.raw.create_command_encoder(&Default::default());
        Part { encoder, pass: None, is_timed: false, pieces: Vec::new() }
    }

    /// The encoder, outside of passes.
    fn copies(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        &mut self.encoder
    }
}

impl Server {
    /// That of a device.
    pub fn new(gpu: &'static Gpu) -> Server {
        use wgpu::BufferUsages as Usage;
        let words = gpu.temporary(PIECE as u64, Usage::UNIFORM | Usage::COPY_DST, false);
        let unset = gpu.temporary(UNSET as u64, Usage::COPY_SRC, true);
        match unset.get_mapped_range_mut(..) {
            Ok(mut view) => view.slice(..).copy_from_slice(&[0xff; UNSET]),
            Err(problem) => gpu.lose(problem.to_string()),
        }
        unset.unmap();
        Server {
            gpu,
            words,
            unset,
            slots: None,
            gathered: Default::default(),
            writes: Ring::new(wgpu::MapMode::Write, WORDS),
            reads: Ring::new(wgpu::MapMode::Read, READS),
            sent: VecDeque::new(),
            reading: VecDeque::new(),
            read: 0,
        }
    }

    /// Submits a batch. Whatever goes wrong is told to its jobs.
    pub fn submit(&mut self, mut batch: Batch) -> Flying {
        let jobs = std::mem::take(&mut batch.jobs);
        let download = |command: &Command| match command {
            Command::Download { to, .. } => Some(to.clone()),
            Command::Dispatch { .. } | Command::Upload { .. } => None,
        };
        let downloads = batch.commands.iter().filter_map(download).collect();
        let (index, slots, stamps, broken, fresh) = Default::default();
        let mut flying = Flying { index, jobs, slots, downloads, stamps, broken, fresh, reads: 0 };
        let work = AssertUnwindSafe(|| self.encode(batch, &mut flying));
        let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(unwound(panic)));
        if let Err(problem) = outcome {
            self.gpu.lose(problem.message().to_string());
            flying.broken = Some(problem);
            flying.stamps = Stamps::default();
        }
        flying.reads = self.read + self.reading.len() as u64;
        flying
    }

    /// How many of these commands have room in a piece, at least one. Their words, each where a
    /// uniform buffer may begin, and behind them their uploads are gathered; where each lies.
    fn gather(&mut self, commands: &[Command]) -> Vec<u64> {
        let [words, data] = &mut self.gathered;
        words.clear();
        data.clear();
        let alignment = self.gpu.uniform_alignment;
        let mut places = Vec::with_capacity(commands.len());
        for command in commands {
            let (own, start, bytes) = match command {
                Command::Dispatch { words: own, .. } => {
                    (true, words.len().next_multiple_of(alignment), 4 * own.len())
                }
                Command::Upload { from: Source::Bytes(bytes), .. } => {
                    (false, data.len(), bytes.len().next_multiple_of(4))
                }
                Command::Upload { .. } | Command::Download { .. } => (false, data.len(), 0),
            };
            // What is bound must not pass the end of the piece, and the data begin behind words.
            let end = if own { start + bytes + data.len() } else { words.len() + start + bytes };
            if !places.is_empty() && end + alignment > PIECE {
                break;
            }
            places.push(start as u64);
            match command {
                Command::Dispatch { words: own, .. } => {
                    words.resize(start, 0);
                    words.extend(own.iter().flat_map(|word| word.to_le_bytes()));
                }
                Command::Upload { from: Source::Bytes(bytes), .. } => {
                    data.extend_from_slice(bytes);
                    data.resize(data.len().next_multiple_of(4), 0);
                }
                Command::Upload { .. } | Command::Download { .. } => {}
            }
        }
        places
    }

    fn encode(&mut self, batch: Batch, flying: &mut Flying) -> Result<()> {
        let Batch { mut commands, slots, .. } = batch;
        let mut part = Part::new(self.gpu);
        if slots > 0 {
            self.reset(16 * slots, &mut part);
        }
        while !commands.is_empty() {
            let places = self.gather(&commands);
            let later = commands.split_off(places.len());
            let sent = self.send(&mut part)?;
            for (command, place) in std::mem::replace(&mut commands, later).into_iter().zip(places)
            {
                self.add(command, place, sent.as_ref(), &mut part, flying)?;
            }
            // Not before: what was read back may have filled its ring and ended the part.
            part.pieces.extend(sent.map(|(piece, _)| piece));
            if !commands.is_empty() {
                self.finish(&mut part, flying);
            }
        }
        if let Some(from) = self.slots.clone().filter(|_| slots > 0) {
            let to = HostBuffer::alloc(16 * slots)?;
            self.read_back(&from, 16 * slots, &to, None, &mut part, flying)?;
            flying.slots = Some(to);
        }
        flying.stamps.resolve(self.gpu, part.copies());
        self.finish(&mut part, flying);
        self.gpu.check("submit")
    }

    /// Has the slots of a batch say nothing.
    fn reset(&mut self, bytes: usize, part: &mut Part) {
        use wgpu::BufferUsages as Usage;
        let known = self.slots.take().filter(|known| known.size() >= bytes as u64);
        let slots = known.unwrap_or_else(|| {
            self.gpu.groups.lock().clear();
            let size = bytes.next_power_of_two().max(1 << 12) as u64;
            self.gpu.temporary(size, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST, false)
        });
        for start in (0..bytes).step_by(UNSET) {
            let size = (bytes - start).min(UNSET) as u64;
            part.encoder.copy_buffer_to_buffer(&self.unset, 0, &slots, start as u64, size);
        }
        self.slots = Some(slots);
    }

    /// Puts what is gathered into a piece, and has the words copied from it; it, and where the
    /// uploads begin there.
    fn send(&mut self, part: &mut Part) -> Result<Option<(Piece, u64)>> {
        let gpu = self.gpu;
        let [words, data] = &self.gathered;
        if words.is_empty() && data.is_empty() {
            return Ok(None);
        }
        let piece = loop {
            if let Some(piece) = self.writes.take(gpu) {
                break piece;
            }
            match self.sent.pop_front() {
                Some(index) => gpu.arrived(Some(index))?,
                None => return Err(gpu.broken("no memory for transfers returned")),
            }
        };
        piece.fill(gpu, &[words, data])?;
        let length = words.len() as u64;
        if length > 0 {
            part.copies().copy_buffer_to_buffer(&piece.raw, 0, &self.words, 0, length);
        }
        Ok(Some((piece, length)))
    }

    /// Adds a command, whose words or data are at a place.
    fn add(
        &mut self,
        command: Command,
        place: u64,
        sent: Option<&(Piece, u64)>,
        part: &mut Part,
        flying: &mut Flying,
    ) -> Result<()> {
        // What is not timed is no part of a timed pass.
        if std::mem::take(&mut part.is_timed) {
            part.pass = None;
        }
        match command {
            Command::Dispatch { pipeline, bindings, words, groups, timed, .. } => {
                let compiled = pipeline.compiled(self.gpu)?;
                let group = self.group(bindings, words.len());
                let stamp = timed.as_ref().map(|timed| flying.stamps.next(self.gpu, timed));
                part.is_timed = stamp.is_some();
                if part.is_timed {
                    part.pass = None;
                }
                let encoder = &mut part.encoder;
                let pass = part.pass.get_or_insert_with(|| {
                    let noted = stamp.as_ref().map(|(set, at)| wgpu::ComputePassTimestampWrites {
                        query_set: set,
                        beginning_of_pass_write_index: Some(*at),
                        end_of_pass_write_index: Some(at + 1),
                    });
                    let desc = wgpu::ComputePassDescriptor { label: None, timestamp_writes: noted };
                    encoder.begin_compute_pass(&desc).forget_lifetime()
                });
                pass.set_pipeline(compiled);
                pass.set_bind_group(0, &group, &[place as u32]);
                pass.dispatch_workgroups(groups[0], groups[1], 1);
                if self.gpu.compiles_late && !pipeline.ran.load(Relaxed) {
                    flying.fresh.push(pipeline);
                }
            }
            Command::Upload { from, bytes, to, start } => {
                let size = (bytes as u64).next_multiple_of(4);
                let (raw, at) = match (&from, sent) {
                    (Source::Bytes(_), Some((piece, base))) => (&piece.raw, base + place),
                    (Source::Bytes(_), None) => return Err(error::internal("an upload is lost")),
                    (Source::Piece(piece), _) => (&piece.raw, 0),
                };
                part.copies().copy_buffer_to_buffer(raw, at, &to.raw, start as u64, size);
                if let Source::Piece(piece) = from {
                    part.pieces.push(piece);
                }
            }
            Command::Download { from, bytes, to } => {
                let Bound { raw, .. } = from;
                self.read_back(&raw, bytes, &to.to, Some(&to), part, flying)?;
            }
        }
        Ok(())
    }

    /// The bind group of a dispatch with so many words, which is kept.
    fn group(&self, bindings: Bindings, words: usize) -> wgpu::BindGroup {
        let key = (bindings, words);
        let mut known = self.gpu.groups.lock();
        if let Some(group) = known.get(&key) {
            return group.clone();
        }
        let own = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.words,
            offset: 0,
            size: NonZeroU64::new(4 * words as u64),
        });
        let resources = key.0.iter().map(|binding| match binding {
            Binding::Buffer(buffer) => Some(buffer.resource()),
            Binding::Faults => self.slots.as_ref().map(wgpu::Buffer::as_entire_binding),
        });
        let entries: SmallVec<[wgpu::BindGroupEntry<'_>; 9]> = resources
            .chain([Some(own)])
            .zip(0..)
            .filter_map(|(resource, binding)| {
                Some(wgpu::BindGroupEntry { binding, resource: resource? })
            })
            .collect();
        let group = self.gpu.raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.gpu.bind_layout(key.0.len()),
            entries: &entries,
        });
        drop(entries);
        if known.len() >= MOST_GROUPS {
            known.clear();
        }
        known.insert(key, group.clone());
        group
    }

    /// Has the start of a buffer copied to the host, in pieces. Where nobody waits for a download
    /// any more, what is left of it is left out.
    fn read_back(
        &mut self,
        from: &wgpu::Buffer,
        bytes: usize,
        to: &HostBuffer,
        download: Option<&Arc<Download>>,
        part: &mut Part,
        flying: &mut Flying,
    ) -> Result<()> {
        let mut start = 0;
        // One handle is the command's, one that of the batch on its way.
        let is_wanted = || download.is_none_or(|download| Arc::strong_count(download) > 2);
        while start < bytes && is_wanted() {
            let room = |reading: &Reading| reading.index.is_none() && reading.used < PIECE;
            if !self.reading.back().is_some_and(room) {
                let piece = match self.reads.take(self.gpu) {
                    Some(piece) => piece,
                    None => {
                        self.finish(part, flying);
                        self.read_first()?;
                        continue;
                    }
                };
                self.reading.push_back(Reading { piece, index: None, parts: Vec::new(), used: 0 });
            }
            let Some(reading) = self.reading.back_mut() else { break };
            let count = (bytes - start).min(PIECE - reading.used);
            let size = count.next_multiple_of(4) as u64;
            let (at, used) = (start as u64, reading.used as u64);
            part.copies().copy_buffer_to_buffer(from, at, &reading.piece.raw, used, size);
            reading.parts.push((to.clone(), start, count));
            reading.used += size as usize;
            start += count;
        }
        Ok(())
    }

    /// Submits a part, and begins another.
    fn finish(&mut self, part: &mut Part, flying: &mut Flying) {
        let mut done = std::mem::replace(part, Part::new(self.gpu));
        done.pass = None;
        let index = self.gpu.queue.submit([done.encoder.finish()]);
        done.pieces.into_iter().for_each(Piece::written);
        for reading in self.reading.iter_mut().rev().take_while(|r| r.index.is_none()) {
            reading.piece.raw.map_async(wgpu::MapMode::Read, .., |_| {});
            reading.index = Some(index.clone());
        }
        if let Some(copy) = &flying.stamps.copy {
            copy.map_async(wgpu::MapMode::Read, .., |_| {});
        }
        if self.sent.len() > WORDS {
            self.sent.pop_front();
        }
        self.sent.push_back(index.clone());
        flying.index = Some(index);
    }

    /// Waits for the first piece that is filled, and reads it.
    fn read_first(&mut self) -> Result<()> {
        let Some(Reading { piece, index, parts, .. }) = self.reading.pop_front() else {
            return Err(self.gpu.broken("no memory for transfers returned"));
        };
        self.read += 1;
        self.gpu.arrived(index)?;
        let view = piece.raw.get_mapped_range(..).map_err(|problem| self.gpu.broken(problem))?;
        let mut from = 0;
        for (to, start, count) in parts {
            let Range { start: first, end } = from..from + count;
            let bytes = &view[first..end];
            // SAFETY: the memory has room for these bytes, and nobody else reads or writes it before
            // the batch is done.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr_mut().add(start), count);
            }
            from += count.next_multiple_of(4);
        }
        drop(view);
        piece.read();
        Ok(())
    }

    /// Waits for a batch and tells what became of it.
    pub fn land(&mut self, flying: Flying) {
        let Flying { index, jobs, slots, downloads, stamps, mut broken, fresh, reads } = flying;
        if broken.is_none() {
            broken = self.gpu.arrived(index).and_then(|()| stamps.record(self.gpu)).err();
        }
        fresh.iter().for_each(|pipeline| pipeline.ran.store(true, Relaxed));
        while self.read < reads {
            if let Err(problem) = self.read_first() {
                broken.get_or_insert(problem);
            }
        }
        let words: Vec<u32> = match slots {
            Some(slots) if broken.is_none() => {
                // SAFETY: the memory was filled, and nobody else knows it.
                let bytes = unsafe { std::slice::from_raw_parts(slots.ptr(), slots.bytes()) };
                bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
            }
            Some(_) | None => Vec::new(),
        };
        // Whoever waits for a download hears of failures of what was given before it.
        for job in jobs {
            job.end(&words, broken.as_ref());
        }
        for to in downloads {
            *to.done.lock() = Some(broken.clone().map_or(Ok(()), Err));
        }
    }
}
