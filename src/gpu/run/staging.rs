//! Memory through which transfers go: rings of buffers that the host maps and the device copies.
//!
//! A piece is filled, copied and mapped again when the device is done with it, so that a transfer of
//! any length takes no more than its ring. Pieces are made as they are first needed, and stay.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::device::Gpu;
use super::queue::PAUSE;
use crate::error::Result;
use crate::executor;

/// The bytes of a piece: the copy of one takes the device some ten times as long as its submission
/// takes the host, and what the host wrote is in its caches still when the device reads it.
pub const PIECE: usize = 1 << 20;

/// Uploads of more bytes go straight into pieces, and so their callers may wait for the device;
/// fewer bytes are copied and wait with the commands.
pub const SMALL: usize = 1 << 18;

/// A ring of pieces.
pub struct Ring {
    mode: wgpu::MapMode,
    most: usize,
    pieces: Mutex<Pieces>,
    changed: Condvar,
}

#[derive(Default)]
struct Pieces {
    /// Those that may be used; to be written, they are mapped
    free: Vec<wgpu::Buffer>,
    /// How many there are
    made: usize,
}

/// A piece in use. Dropped before the device was asked to copy it, it is gone.
pub struct Piece {
    /// wgpu's buffer
    pub raw: wgpu::Buffer,
    ring: Arc<Ring>,
    is_given: bool,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !self.is_given {
            self.ring.forget();
        }
    }
}

impl Ring {
    /// A ring of so many pieces at most, which the host writes or reads.
    pub fn new(mode: wgpu::MapMode, most: usize) -> Arc<Ring> {
        Arc::new(Ring { mode, most, pieces: Mutex::default(), changed: Condvar::new() })
    }

    /// A piece, where one is free or may be made.
    pub fn take(self: &Arc<Ring>, gpu: &Gpu) -> Option<Piece> {
        use wgpu::BufferUsages as Usage;
        let mut pieces = self.pieces.lock();
        let free = pieces.free.pop();
        if free.is_none() && pieces.made == self.most {
            return None;
        }
        pieces.made += usize::from(free.is_none());
        drop(pieces);
        let raw = free.unwrap_or_else(|| match self.mode {
            wgpu::MapMode::Write => {
                gpu.temporary(PIECE as u64, Usage::MAP_WRITE | Usage::COPY_SRC, true)
            }
            wgpu::MapMode::Read => {
                gpu.temporary(PIECE as u64, Usage::MAP_READ | Usage::COPY_DST, false)
            }
        });
        Some(Piece { raw, ring: self.clone(), is_given: false })
    }

    /// A piece, which is waited for. Only the thread that serves the device gives pieces back, so
    /// it must not wait here.
    pub fn wait(self: &Arc<Ring>, gpu: &Gpu, op: &str) -> Result<Piece> {
        let mut found = self.take(gpu);
        if found.is_none() {
            executor::wait(|| {
                found = self.take(gpu);
                if found.is_none() {
                    let mut pieces = self.pieces.lock();
                    if pieces.free.is_empty() {
                        self.changed.wait_for(&mut pieces, PAUSE);
                    }
                }
                gpu.check(op).map(|()| found.is_some())
            })?;
        }
        found.ok_or_else(|| crate::error::internal("a piece was waited for and is not there"))
    }

    fn put(&self, raw: wgpu::Buffer) {
        self.pieces.lock().free.push(raw);
        self.changed.notify_one();
    }

    fn forget(&self) {
        self.pieces.lock().made -= 1;
        self.changed.notify_one();
    }
}

impl Piece {
    /// Writes the start. The rest is arbitrary.
    pub fn fill(&self, gpu: &Gpu, parts: &[&[u8]]) -> Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let end = length.next_multiple_of(4).max(4) as u64;
        let mut view =
            self.raw.get_mapped_range_mut(..end).map_err(|problem| gpu.broken(problem))?;
        let mut start = 0;
        for part in parts {
            view.slice(start..start + part.len()).copy_from_slice(part);
            start += part.len();
        }
        drop(view);
        self.raw.unmap();
        Ok(())
    }

    /// To be called when what reads a piece that was written is submitted: it returns to its ring
    /// when the device has done that.
    pub fn written(mut self) {
        self.is_given = true;
        let (raw, ring) = (self.raw.clone(), self.ring.clone());
        self.raw.map_async(wgpu::MapMode::Write, .., move |outcome| match outcome {
            Ok(()) => ring.put(raw),
            Err(_) => ring.forget(),
        });
    }

    /// To be called when what was read is no more wanted.
    pub fn read(mut self) {
        self.is_given = true;
        self.raw.unmap();
        self.ring.put(self.raw.clone());
    }
}
