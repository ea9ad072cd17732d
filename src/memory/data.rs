//! Where the elements of an array are: one of four kinds.
//!
//! Layers that only move arrays about look at no kind. Kernels of the processor ask for host memory and
//! get it or unwind with an error. Everybody else matches all kinds, so that a new one is asked for by
//! the compiler.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use super::{Buffer, Header};
use crate::device::Device;
use crate::error;

/// Elements, wherever they are. Cloning shares them. One pointer wide: the kind stands in the block.
#[derive(Clone)]
pub struct Data(Buffer);

/// Where elements are.
pub enum Where<'a> {
    /// In host memory
    Host(&'a Buffer),
    /// In the memory of another device
    Device(&'a DeviceBuffer),
    /// Nowhere: a node of a trace will be run for them
    Traced(&'a TracedNode),
    /// With a call that may write them in place, until it is done
    Busy(&'a Arc<Busy>),
}

/// Elements that are not in host memory.
enum Elsewhere {
    Device(DeviceBuffer),
    Traced(TracedNode),
    Busy(Arc<Busy>),
}

/// The block of elements that are elsewhere.
#[repr(C)]
pub(super) struct Away {
    header: Header,
    what: Elsewhere,
}

/// What a layer above keeps behind data, which it alone knows.
type Opaque = Box<dyn Any + Send + Sync>;

/// Memory of another device than the processor. The executor of the device alone looks into it.
pub struct DeviceBuffer {
    device: Device,
    memory: Opaque,
}

impl DeviceBuffer {
    /// The memory, if it is of a type of its executor's.
    pub fn memory<T: 'static>(&self) -> Option<&T> {
        self.memory.downcast_ref()
    }
}

/// A node of a trace, which traces alone know more of.
pub struct TracedNode {
    device: Device,
    node: Opaque,
}

impl TracedNode {
    /// The node, if it is of a type of the traces'.
    pub fn node<T: 'static>(&self) -> Option<&T> {
        self.node.downcast_ref()
    }
}

/// A call that has the memory of a value and may write it. Others wait for the call to end.
pub struct Busy {
    device: Device,
    thread: ThreadId,
    done: Mutex<bool>,
    changed: Condvar,
}

impl Busy {
    /// A call of this thread, under way, on memory of a device.
    pub fn new(device: Device) -> Arc<Busy> {
        let thread = std::thread::current().id();
        Arc::new(Busy { device, thread, done: Mutex::new(false), changed: Condvar::new() })
    }

    /// Whether the call is one of this thread, which must not wait for itself.
    pub fn is_mine(&self) -> bool {
        self.thread == std::thread::current().id()
    }

    /// Waits until the call has ended.
    pub fn wait(&self) {
        let mut done = self.done.lock();
        while !*done {
            self.changed.wait(&mut done);
        }
    }

    /// Lets those who wait go on.
    pub fn end(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }
}

impl From<Buffer> for Data {
    fn from(buffer: Buffer) -> Data {
        Data(buffer)
    }
}

impl Data {
    fn elsewhere(what: Elsewhere) -> Data {
        let header = Header {
            refs: AtomicUsize::new(1),
            data: NonNull::<Header>::dangling().as_ptr().cast(),
            bytes: 0,
            class: None,
            is_away: true,
        };
        Data(Buffer(NonNull::from(Box::leak(Box::new(Away { header, what }))).cast()))
    }

    /// Memory of another device.
    pub fn on(device: Device, memory: impl Any + Send + Sync) -> Data {
        Data::elsewhere(Elsewhere::Device(DeviceBuffer { device, memory: Box::new(memory) }))
    }

    /// A node of a trace that computes on a device.
    pub fn traced(device: Device, node: impl Any + Send + Sync) -> Data {
        Data::elsewhere(Elsewhere::Traced(TracedNode { device, node: Box::new(node) }))
    }

    /// Memory that a call may write.
    pub fn busy(call: Arc<Busy>) -> Data {
        Data::elsewhere(Elsewhere::Busy(call))
    }

    /// Where the elements are.
    #[inline]
    pub fn place(&self) -> Where<'_> {
        if self.is_on_host() {
            return Where::Host(&self.0);
        }
        // SAFETY: only `elsewhere` makes headers that say so, as part of such a block, and the block
        // lives as long as the handle.
        match &unsafe { self.0.0.cast::<Away>().as_ref() }.what {
            Elsewhere::Device(memory) => Where::Device(memory),
            Elsewhere::Traced(node) => Where::Traced(node),
            Elsewhere::Busy(call) => Where::Busy(call),
        }
    }

    /// Whether the elements are in host memory.
    #[inline]
    pub fn is_on_host(&self) -> bool {
        !self.0.header().is_away
    }

    /// The device that they lie on, or will lie on.
    #[inline]
    pub fn device(&self) -> Device {
        match self.place() {
            Where::Host(_) => Device::Cpu,
            Where::Device(memory) => memory.device,
            Where::Traced(node) => node.device,
            Where::Busy(call) => call.device,
        }
    }

    /// The host memory. Whoever asks for what is not there unwinds with an error.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        if !self.is_on_host() {
            self.no_data();
        }
        &self.0
    }

    #[cold]
    fn no_data(&self) -> ! {
        error::throw(match self.place() {
            Where::Device(memory) => error::not_on_host("read", memory.device),
            Where::Host(_) | Where::Traced(_) | Where::Busy(_) => error::no_data("read"),
        })
    }

    /// Whether both are the same memory or the same node.
    pub fn same(&self, other: &Data) -> bool {
        self.0.same(&other.0)
    }

    /// What tells shared data from others while they live.
    pub fn address(&self) -> usize {
        self.0.address()
    }

    /// Whether this is host memory that nobody else holds: it may then be written in place.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.0.is_unique()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::emit::catch;

    fn all() -> [Data; 4] {
        let host = Buffer::alloc(4).expect("room for four bytes");
        [
            host.into(),
            Data::on(Device::Reference, 7_u8),
            Data::traced(Device::Cpu, 8_u8),
            Data::busy(Busy::new(Device::Reference)),
        ]
    }

    #[test]
    fn only_host_memory_has_an_address_to_read() {
        let refusals =
            all().map(|data| catch(|| data.buffer().ptr()).err().map(|error| error.code()));
        assert_eq!(refusals, [None, Some("not_on_host"), Some("no_data"), Some("no_data")]);
        let [_, _, node, _] = all();
        let error = catch(|| node.buffer().ptr()).expect_err("a node has no data");
        assert_eq!(error.code(), "no_data");
        assert_eq!(all().map(|data| data.is_on_host()), [true, false, false, false]);
        assert_eq!(all().map(|data| data.is_unique()), [true, false, false, false]);
    }

    #[test]
    fn every_kind_says_its_device_and_what_it_shares() {
        use Device::{Cpu, Reference};
        let (some, others) = (all(), all());
        assert_eq!(some.each_ref().map(Data::device), [Cpu, Reference, Cpu, Reference]);
        for (i, (data, other)) in some.iter().zip(&others).enumerate() {
            assert!(data.same(&data.clone()) && !data.same(other), "kind {i}");
        }
        let Where::Device(memory) = some[1].place() else { panic!("memory of a device") };
        assert_eq!((memory.memory::<u8>(), memory.memory::<u16>()), (Some(&7), None));
        let Where::Traced(node) = some[2].place() else { panic!("a node") };
        assert_eq!((node.node::<u8>(), node.node::<u16>()), (Some(&8), None));
    }

    #[test]
    fn who_waits_for_a_call_goes_on_when_it_ends() {
        let call = Busy::new(Device::Cpu);
        assert!(call.is_mine());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                call.wait();
                call.is_mine()
            });
            call.end();
            assert!(!waiting.join().expect("no panic"));
        });
    }
}
