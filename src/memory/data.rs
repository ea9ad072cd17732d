//! The place of an array's elements: one of four kinds.
//!
//! Layers that only pass arrays on look at no kind. CPU kernels ask for host memory and get it, or
//! unwind with an error. All other code matches every kind, so that the compiler points to it when
//! a kind is added.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use super::class::Class;
use super::late::Key;
use super::{Buffer, Header, Kind};
use crate::device::Device;
use crate::error;

/// Elements of any kind. Cloning shares them. One pointer wide: the block's header says the kind.
#[derive(Clone)]
pub struct Data(Buffer);

/// The place of elements.
pub enum Where<'a> {
    /// In host memory
    Host(&'a Buffer),
    /// In the memory of another device
    Device(&'a DeviceBuffer),
    /// Nowhere yet: a node of a trace will compute them
    Traced(&'a TracedNode),
    /// With a call that may write them in place, until the call ends
    Busy(&'a Arc<Busy>),
}

/// Elements that are not in host memory.
enum Elsewhere {
    Device(DeviceBuffer),
    Traced(TracedNode),
    Busy(Arc<Busy>),
}

/// The block behind a handle of elements that are not in host memory.
#[repr(C)]
pub(super) struct Away {
    header: Header,
    what: Elsewhere,
}

/// A value of a layer above, whose type only that layer knows.
type Opaque = Box<dyn Any + Send + Sync>;

/// Memory of a device other than the CPU. Only the device's executor looks into it.
pub struct DeviceBuffer {
    device: Device,
    memory: Opaque,
}

impl DeviceBuffer {
    /// The memory, if it has this type of its executor's.
    pub fn memory<T: 'static>(&self) -> Option<&T> {
        self.memory.downcast_ref()
    }
}

/// A node of a trace; only traces know its type.
pub struct TracedNode {
    device: Device,
    node: Opaque,
}

impl TracedNode {
    /// The node, if it has this type of the traces'.
    pub fn node<T: 'static>(&self) -> Option<&T> {
        self.node.downcast_ref()
    }
}

/// A call that has taken the memory of a value and may write it. Readers wait for the call to end.
pub struct Busy {
    device: Device,
    thread: ThreadId,
    done: Mutex<bool>,
    changed: Condvar,
}

impl Busy {
    /// A call of this thread that is running, on memory of a device.
    pub fn new(device: Device) -> Arc<Busy> {
        let thread = std::thread::current().id();
        Arc::new(Busy { device, thread, done: Mutex::new(false), changed: Condvar::new() })
    }

    /// Whether this thread made the call; it must not wait for itself.
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

    /// Ends the call and wakes the waiting threads.
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
        let nowhere = NonNull::<Header>::dangling().as_ptr().cast();
        let header = Header::new(Kind::Away, nowhere, 0, Class::of(0));
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

    /// The place of the elements.
    #[inline]
    pub fn place(&self) -> Where<'_> {
        if self.is_on_host() {
            return Where::Host(&self.0);
        }
        // SAFETY: only `elsewhere` makes headers that say so, as part of such a block, and the
        // block lives as long as the handle.
        match &unsafe { self.0.0.cast::<Away>().as_ref() }.what {
            Elsewhere::Device(memory) => Where::Device(memory),
            Elsewhere::Traced(node) => Where::Traced(node),
            Elsewhere::Busy(call) => Where::Busy(call),
        }
    }

    /// Whether the elements are in host memory.
    #[inline]
    pub fn is_on_host(&self) -> bool {
        !self.0.header().is(Kind::Away)
    }

    /// The device that the elements are on, or will be on.
    #[inline]
    pub fn device(&self) -> Device {
        match self.place() {
            Where::Host(_) => Device::Cpu,
            Where::Device(memory) => memory.device,
            Where::Traced(node) => node.device,
            Where::Busy(call) => call.device,
        }
    }

    /// The host memory. Unwinds with an error where the elements are not on the host.
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

    /// The bytes of host memory; 0 where the elements are elsewhere.
    #[inline]
    pub fn host_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// What will compute the elements, if they are not computed yet.
    #[inline]
    pub fn key(&self) -> Option<Key> {
        self.0.key()
    }

    /// Whether both are the same memory or the same node.
    pub fn same(&self, other: &Data) -> bool {
        self.0.same(&other.0)
    }

    /// An address that is equal for handles that share their data, as long as they live.
    pub fn address(&self) -> usize {
        self.0.address()
    }

    /// Whether this has no other handle, wherever the elements are.
    pub fn is_sole(&self) -> bool {
        self.0.is_sole()
    }

    /// Whether this is host memory with no other handle: then it may be written in place.
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
