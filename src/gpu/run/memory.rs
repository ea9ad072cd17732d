//! Memory of a device: buffers from a pool, and the values in them.
//!
//! Work is done in the order in which it was given, so a buffer that nobody holds any more can be
//! given out again at once: whoever writes it comes after whoever read it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::device::Gpu;
use super::work::Run;
use crate::array::{Array, Data, Where};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::executor::flight::{Job, Value};
use crate::layout::Layout;
use crate::memory::Stats;
use crate::target::Target;

/// The least bytes of a buffer, which is also what buffers are a multiple of.
const LEAST: u64 = 256;

/// A buffer, which returns to its pool.
pub struct Buffer {
    /// wgpu's
    pub raw: wgpu::Buffer,
    /// Its length
    pub bytes: u64,
    gpu: &'static Gpu,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // In a child of fork the lock may be held by a thread that is not there.
        if self.gpu.is_here() {
            let mut pool = self.gpu.pool.lock();
            pool.used -= self.bytes;
            pool.buffers -= 1;
            pool.free.entry(self.bytes).or_default().push(self.raw.clone());
        }
    }
}

/// Buffers that nobody holds, and counts.
#[derive(Default)]
pub struct Pool {
    free: FxHashMap<u64, Vec<wgpu::Buffer>>,
    /// Bytes of buffers that are held
    used: u64,
    /// How many are
    buffers: usize,
    /// The most that were
    peak: u64,
    /// Bytes of all buffers
    reserved: u64,
    /// The most bytes that may be reserved
    limit: Option<u64>,
}

impl Pool {
    /// What is held and kept.
    pub fn stats(&self) -> Stats {
        Stats {
            live_bytes: self.used as usize,
            cached_bytes: (self.reserved - self.used) as usize,
            peak_bytes: self.peak as usize,
            limit: self.limit.map(|limit| limit as usize),
            live_buffers: self.buffers,
        }
    }

    /// Forgets the most bytes that were held.
    pub fn reset_peak(&mut self) {
        self.peak = self.used;
    }

    /// Sets the most bytes that may be reserved.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Lets go of buffers that nobody holds.
    pub fn trim(&mut self) {
        for (bytes, buffers) in self.free.drain() {
            self.reserved -= bytes * buffers.len() as u64;
        }
    }
}

/// The length of a buffer for so many bytes: an eighth of a power of two at most is wasted.
fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(LEAST);
    let step = (bytes.next_power_of_two() / 8).max(LEAST);
    bytes.next_multiple_of(step)
}

impl Gpu {
    /// A buffer of at least so many bytes, whose contents are arbitrary.
    pub fn buffer(&'static self, bytes: u64) -> Result<Arc<Buffer>> {
        self.check("allocate")?;
        let most = self.target.limits().largest as u64;
        if bytes > most {
            let facts = format!("an array takes {bytes} bytes, a shader can bind {most}");
            return Err(error::device_memory("allocate", self.device(), facts));
        }
        let bytes = class(bytes).min(most.next_multiple_of(4)).max(bytes.next_multiple_of(4));
        let mut pool = self.pool.lock();
        let raw = match pool.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(raw) => raw,
            None => {
                if pool.limit.is_some_and(|limit| pool.reserved + bytes > limit) {
                    pool.trim();
                }
                if let Some(limit) = pool.limit
                    && pool.reserved + bytes > limit
                {
                    let facts = format!(
                        "{} bytes are in use, {bytes} more are wanted, the limit is {limit}",
                        pool.used
                    );
                    return Err(error::device_memory("allocate", self.device(), facts));
                }
                let raw = self.create(bytes).or_else(|_| {
                    pool.trim();
                    self.create(bytes)
                })?;
                pool.reserved += bytes;
                raw
            }
        };
        pool.used += bytes;
        pool.buffers += 1;
        pool.peak = pool.peak.max(pool.used);
        Ok(Arc::new(Buffer { raw, bytes, gpu: self }))
    }

    fn create(&self, size: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let scope = self.raw.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let desc = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let raw = self.raw.create_buffer(&desc);
        match super::device::ready(scope.pop()).flatten() {
            Some(_) => {
                let facts = format!("{size} bytes could not be allocated");
                Err(error::device_memory("allocate", self.device(), facts))
            }
            None => Ok(raw),
        }
    }
}

/// A value on a device.
pub type Memory = Value<Run>;

/// An array whose buffer is held.
#[derive(Clone)]
pub struct Held {
    /// The element type
    pub dtype: DType,
    /// Where the elements lie in the buffer
    pub layout: Layout,
    /// The buffer
    pub buffer: Arc<Buffer>,
}

impl Held {
    /// The same elements under another layout.
    pub fn seen(&self, layout: Layout) -> Held {
        Held { layout, ..self.clone() }
    }

    /// As a value of a job.
    pub fn value(self, job: Arc<Job<Run>>, device: Device) -> Array {
        let memory = Memory::new(job, self.buffer);
        Array { dtype: self.dtype, layout: self.layout, data: Data::on(device, memory) }
    }
}

/// The memory of a value of a device; none for an array of the host, which is how constants of
/// plans are uploaded.
pub fn own(x: &Array) -> Result<Option<&Memory>> {
    let memory = match x.data.place() {
        Where::Host(_) => return Ok(None),
        Where::Device(memory) => memory.memory::<Memory>(),
        Where::Traced(_) | Where::Busy(_) => return Err(error::no_data("read")),
    };
    memory.map(Some).ok_or_else(|| error::not_on_host("read", x.device()))
}

/// Buffers in the order in which shaders first bind them; the number of each operand's.
#[derive(Default)]
pub struct Ranges(pub SmallVec<[Arc<Buffer>; 6]>);

impl Ranges {
    /// The number of a buffer.
    pub fn of(&mut self, buffer: &Arc<Buffer>) -> usize {
        let known = self.0.iter().position(|known| Arc::ptr_eq(known, buffer));
        known.unwrap_or_else(|| {
            self.0.push(buffer.clone());
            self.0.len() - 1
        })
    }
}
