//! Memory of a device: buffers from a pool, and the values in them.
//!
//! Work is done in the order in which it was given, so a buffer that nobody holds any more can be
//! given out again at once: whoever writes it comes after whoever read it. Work that is recorded and
//! not given yet is in no order, and so a recording holds what its commands touch ([`Recording`]).
//!
//! [`Recording`]: super::work::Recording

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// How many values lie in it
    holders: AtomicUsize,
    gpu: &'static Gpu,
}

/// A range of a buffer, as a shader sees it.
#[derive(Clone)]
pub struct Span {
    /// The buffer
    pub buffer: Arc<Buffer>,
    /// Its first byte
    pub start: u64,
    /// Its length
    pub bytes: u64,
}

impl From<Arc<Buffer>> for Span {
    fn from(buffer: Arc<Buffer>) -> Span {
        Span { start: 0, bytes: buffer.bytes, buffer }
    }
}

impl Span {
    /// Whether both begin at the same byte. Spans that a step is given overlap nowhere else.
    fn is(&self, other: &Span) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer) && self.start == other.start
    }
}

/// The buffer of a value, which knows how many values it has.
pub struct Place {
    /// The buffer
    pub buffer: Arc<Buffer>,
    is_counted: bool,
}

impl Place {
    /// The place of a value in a buffer.
    pub fn new(buffer: Arc<Buffer>) -> Place {
        buffer.holders.fetch_add(1, Ordering::Relaxed);
        Place { buffer, is_counted: true }
    }

    /// The place of a value that is written over, which is remembered as long as that may fail.
    pub fn uncounted(&self) -> Place {
        Place { buffer: self.buffer.clone(), is_counted: false }
    }

    /// Whether no other value lies in the buffer.
    fn is_sole(&self) -> bool {
        self.is_counted && self.buffer.holders.load(Ordering::Acquire) == 1
    }
}

impl Clone for Place {
    fn clone(&self) -> Place {
        match self.is_counted {
            true => Place::new(self.buffer.clone()),
            false => self.uncounted(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_counted {
            self.buffer.holders.fetch_sub(1, Ordering::Release);
        }
    }
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
}

/// The length of a buffer for so many bytes: an eighth of a power of two at most is wasted.
fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(LEAST);
    let step = (bytes.next_power_of_two() / 8).max(LEAST);
    bytes.next_multiple_of(step)
}

impl Gpu {
    /// The length of the buffer in which so many bytes lie that a shader binds.
    pub fn rounded(&self, bytes: u64) -> Result<u64> {
        let most = self.target.limits().largest as u64;
        if bytes > most {
            let facts = format!("an array takes {bytes} bytes, a shader can bind {most}");
            return Err(error::device_memory("allocate", self.device(), facts));
        }
        Ok(self.length(bytes, most))
    }

    /// The length of the buffer of so many bytes, of which shaders bind parts.
    pub fn rounded_arena(&self, bytes: u64) -> Result<u64> {
        let most = self.largest_buffer;
        if bytes > most {
            let facts = format!("values of a run take {bytes} bytes, a buffer has {most} at most");
            return Err(error::device_memory("allocate", self.device(), facts));
        }
        self.rounded(bytes).or_else(|_| Ok(self.length(bytes, most)))
    }

    fn length(&self, bytes: u64, most: u64) -> u64 {
        class(bytes).min(most.next_multiple_of(4)).max(bytes.next_multiple_of(4))
    }

    /// A buffer of at least so many bytes, whose contents are arbitrary.
    pub fn buffer(&'static self, bytes: u64) -> Result<Arc<Buffer>> {
        self.sized(self.rounded(bytes)?)
    }

    /// A buffer of a length. Before it is refused for want of memory, what is only kept is let go,
    /// and work in flight is waited for, since it holds what it replaces.
    pub fn sized(&'static self, bytes: u64) -> Result<Arc<Buffer>> {
        self.check("allocate")?;
        if let Ok(buffer) = self.reserve(bytes) {
            return Ok(buffer);
        }
        let constants = std::mem::take(&mut *self.constants.lock());
        drop(constants);
        if let Ok(buffer) = self.reserve(bytes) {
            return Ok(buffer);
        }
        self.finish_all()?;
        self.reserve(bytes)
    }

    /// A buffer from the pool, or a new one where the limit allows it.
    fn reserve(&'static self, bytes: u64) -> Result<Arc<Buffer>> {
        let mut pool = self.pool.lock();
        let raw = match pool.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(raw) => raw,
            None => {
                if pool.limit.is_some_and(|limit| pool.reserved + bytes > limit) {
                    self.trim(&mut pool);
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
                    self.trim(&mut pool);
                    self.create(bytes)
                })?;
                pool.reserved += bytes;
                raw
            }
        };
        pool.used += bytes;
        pool.buffers += 1;
        pool.peak = pool.peak.max(pool.used);
        Ok(Arc::new(Buffer { raw, bytes, holders: AtomicUsize::new(0), gpu: self }))
    }

    /// Lets go of buffers that nobody holds, and of bind groups, which hold theirs.
    fn trim(&self, pool: &mut Pool) {
        self.groups.lock().clear();
        for (bytes, buffers) in pool.free.drain() {
            pool.reserved -= bytes * buffers.len() as u64;
        }
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

/// An array whose memory is held.
#[derive(Clone)]
pub struct Held {
    /// The element type
    pub dtype: DType,
    /// Where the elements lie in the span
    pub layout: Layout,
    /// The memory
    pub span: Span,
}

impl Held {
    /// The same elements under another layout.
    pub fn seen(&self, layout: Layout) -> Held {
        Held { layout, ..self.clone() }
    }

    /// As a value of a job. Values lie in buffers of their own.
    pub fn value(self, job: Arc<Job<Run>>, device: Device) -> Array {
        let memory = Memory::new(job, Place::new(self.span.buffer));
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

/// Whether an array fills a buffer from its start in which no other value lies, so that its memory
/// may be written over.
pub fn is_sole(x: &Array) -> bool {
    let is_whole = x.layout.is_contiguous() && x.layout.offset() == 0;
    is_whole && x.data.is_sole() && matches!(own(x), Ok(Some(memory)) if memory.place.is_sole())
}

/// Spans in the order in which shaders first bind them; the number of each operand's.
#[derive(Default)]
pub struct Ranges(pub SmallVec<[Span; 6]>);

impl Ranges {
    /// The number of a span.
    pub fn of(&mut self, span: &Span) -> usize {
        let known = self.0.iter().position(|known| known.is(span));
        known.unwrap_or_else(|| {
            self.0.push(span.clone());
            self.0.len() - 1
        })
    }
}

/// Constants of plans on a device, by the addresses of their host memory.
#[derive(Default)]
pub struct Constants {
    known: FxHashMap<usize, Constant>,
    bytes: u64,
    /// Counts uses
    time: u64,
}

struct Constant {
    host: Array,
    held: Held,
    /// When it was used last
    used: u64,
}

/// The most bytes of constants that are kept on a device.
const MOST_CONSTANTS: u64 = 256 << 20;

impl Constants {
    /// The constant on the device, if it is there.
    pub fn get(&mut self, x: &Array) -> Option<Held> {
        self.time += 1;
        let known = self.known.get_mut(&x.data.address())?;
        let is_it = known.host.data.same(&x.data) && known.host.layout == x.layout;
        known.used = self.time;
        is_it.then(|| known.held.clone())
    }

    /// Keeps a constant. Those of plans that are gone leave first, then those that were not used for
    /// longest.
    pub fn keep(&mut self, x: &Array, held: &Held) {
        let bytes = held.span.buffer.bytes;
        if self.bytes + bytes > MOST_CONSTANTS {
            self.known.retain(|_, known| !known.host.data.is_sole());
            self.bytes = self.known.values().map(|known| known.held.span.buffer.bytes).sum();
        }
        while self.bytes + bytes > MOST_CONSTANTS {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
            let Some(key) = oldest.map(|(&key, _)| key) else { break };
            if let Some(old) = self.known.remove(&key) {
                self.bytes -= old.held.span.buffer.bytes;
            }
        }
        let (host, held, used) = (x.clone(), held.clone(), self.time);
        let old = self.known.insert(x.data.address(), Constant { host, held, used });
        self.bytes += bytes;
        self.bytes -= old.map_or(0, |old| old.held.span.buffer.bytes);
    }
}
