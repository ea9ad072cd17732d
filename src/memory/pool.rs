//! Caches of freed blocks: one per thread for small blocks, without a lock, and one shared by all
//! threads for the others. A sanitized build caches no blocks, so that the sanitizer sees each use
//! of freed memory.

use std::cell::{OnceCell, UnsafeCell};
use std::collections::VecDeque;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::class::{self, Class};
use super::counters::Post;
use super::{Header, Kind, counters, late, os};
use crate::error::Result;
use crate::fork::{self, Held, OverFork};

/// A live block with one handle, from the thread's cache, the shared pool or the system.
#[inline]
pub(super) fn obtain(bytes: usize, zeroed: bool) -> Result<NonNull<Header>> {
    if bytes > class::LARGEST {
        return Err(counters::refusal(bytes));
    }
    let class = Class::of(bytes);
    let taken = if cfg!(sanitized) {
        Post::Away.charge(class.size()).then_some(None)
    } else if class.is_small() {
        Cache::take(class)
    } else {
        take_shared(class)
    };
    let Some(cached) = taken else { return refused(bytes, zeroed) };
    let Some(Block(header)) = cached else { return fresh(bytes, class, zeroed) };
    // SAFETY: a cached block belongs to nobody else, and holds at least `bytes` bytes.
    unsafe {
        (*header.as_ptr()).refs = AtomicUsize::new(1);
        (*header.as_ptr()).bytes = bytes;
        if zeroed {
            header.as_ref().data.load(Relaxed).write_bytes(0, bytes);
        }
    }
    Ok(header)
}

/// A block that there is no room for, unless operations that were to run later let memory go.
#[cold]
fn refused(bytes: usize, zeroed: bool) -> Result<NonNull<Header>> {
    match late::relieves() {
        true => obtain(bytes, zeroed),
        false => Err(counters::refusal(bytes)),
    }
}

/// Takes back the block of a dropped buffer.
#[inline]
pub(super) fn give_back(header: NonNull<Header>, class: Class) {
    if cfg!(sanitized) {
        Post::Away.discharge(class.size());
        free_all(vec![(class, Block(header))]);
    } else if class.is_small() {
        Cache::put(class, Block(header));
    } else {
        Post::Away.discharge(class.size());
        put_shared(class, [Block(header)]);
    }
}

/// A charged block of `class` from the system.
#[cold]
fn fresh(bytes: usize, class: Class, zeroed: bool) -> Result<NonNull<Header>> {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.swap(true, Relaxed) {
        fork::install::<Lock>();
    }
    // Cached blocks count against the limit too, so they are freed first.
    let allowed = counters::ceiling().saturating_sub(class.size());
    if counters::held() > allowed {
        Cache::flush();
        let excess = counters::held().saturating_sub(allowed);
        let idle = shared().evict(excess);
        free_all(idle);
    }
    let whole = size_of::<Header>() + class.size();
    let block = os::allocate(whole, zeroed).or_else(|| {
        release_cached();
        os::allocate(whole, zeroed)
    });
    let Some(start) = block else {
        Post::Away.discharge(class.size());
        return refused(bytes, zeroed);
    };
    counters::hold(class.size());
    let header = start.cast::<Header>();
    // SAFETY: the block is ours alone, aligned, and long enough for the header and the data.
    unsafe {
        let data = header.add(1).cast().as_ptr();
        header.write(Header::new(Kind::Pooled, data, bytes, class));
        os::forbid_behind(data, bytes, class.size());
    }
    Ok(header)
}

/// Gives the freed blocks of this thread and of the shared pool back to the system. Other threads
/// keep the few that they hold.
pub fn release_cached() {
    Cache::flush();
    let idle = shared().evict(usize::MAX);
    free_all(idle);
}

fn free_all(blocks: Vec<(Class, Block)>) {
    for (class, Block(header)) in blocks {
        counters::unhold(class.size());
        // SAFETY: a cached block came from `allocate` with this size and belongs to nobody else.
        unsafe { os::free(header.cast(), size_of::<Header>() + class.size()) }
    }
}

/// A block without a handle.
struct Block(NonNull<Header>);

// SAFETY: a block is plain memory that belongs to whoever has this value.
unsafe impl Send for Block {}

/// The small blocks freed on one thread, and the half of the counters that the thread writes.
struct Cache {
    lists: UnsafeCell<[Vec<Block>; class::SMALL_COUNT]>,
    post: OnceCell<Post>,
}

thread_local! {
    static CACHE: Cache = const {
        let lists = UnsafeCell::new([const { Vec::new() }; class::SMALL_COUNT]);
        Cache { lists, post: OnceCell::new() }
    };
}

impl Cache {
    /// Charges a block of `class` and takes one from the caches: `None` when it is refused,
    /// `Some(None)` when no block is cached and the system must be asked.
    #[inline]
    fn take(class: Class) -> Option<Option<Block>> {
        let taken = CACHE.try_with(|cache| {
            if !cache.post().charge(class.size()) {
                return None;
            }
            // SAFETY: only this thread comes here, and nothing below calls back into the cache.
            let list = unsafe { &mut (*cache.lists.get())[class.index()] };
            Some(list.pop().or_else(|| Cache::refill(class, list)))
        });
        // The thread is ending: its cache is gone.
        taken.unwrap_or_else(|_| take_shared(class))
    }

    /// Discharges a block and caches it.
    #[inline]
    fn put(class: Class, block: Block) {
        let mut block = Some(block);
        let cached = CACHE.try_with(|cache| {
            cache.post().discharge(class.size());
            // SAFETY: as in `take`.
            let list = unsafe { &mut (*cache.lists.get())[class.index()] };
            if list.len() == list.capacity() {
                Cache::make_room(class, list);
            }
            list.extend(block.take());
        });
        if cached.is_err() {
            Post::Away.discharge(class.size());
            put_shared(class, block);
        }
    }

    #[inline]
    fn post(&self) -> &Post {
        self.post.get_or_init(Post::take)
    }

    /// How many blocks of a class a thread caches: about 256 KiB of them.
    fn capacity(class: Class) -> usize {
        ((256 << 10) / class.size()).clamp(4, 256)
    }

    #[cold]
    fn refill(class: Class, list: &mut Vec<Block>) -> Option<Block> {
        let mut shared = shared();
        let first = shared.take(class)?;
        let more = Cache::capacity(class) / 2;
        list.reserve_exact(Cache::capacity(class) - list.len());
        list.extend((1..more).map_while(|_| shared.take(class)));
        Some(first)
    }

    #[cold]
    fn make_room(class: Class, list: &mut Vec<Block>) {
        let capacity = Cache::capacity(class);
        if list.len() < capacity {
            list.reserve_exact(capacity - list.len());
        } else {
            put_shared(class, list.drain(..capacity / 2));
        }
    }

    /// Moves all blocks of this thread into the shared pool.
    fn flush() {
        // A thread whose cache is gone has flushed it.
        let _ = CACHE.try_with(Cache::flush_one);
    }

    fn flush_one(&self) {
        // SAFETY: as in `take`.
        let lists = unsafe { &mut *self.lists.get() };
        for list in lists {
            let Some(Block(first)) = list.first() else { continue };
            // SAFETY: a cached block keeps its header.
            let class = unsafe { first.as_ref() }.class;
            put_shared(class, std::mem::take(list));
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.flush_one();
    }
}

/// The freed blocks outside of threads' caches: for each class the oldest first, each with the time
/// at which it came.
struct Shared {
    idle: [VecDeque<(u64, Block)>; class::COUNT],
    bytes: usize,
    clock: u64,
}

static SHARED: Mutex<Shared> =
    Mutex::new(Shared { idle: [const { VecDeque::new() }; class::COUNT], bytes: 0, clock: 0 });

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what [`Cache::take`] does, without a thread's cache.
fn take_shared(class: Class) -> Option<Option<Block>> {
    Post::Away.charge(class.size()).then(|| shared().take(class))
}

/// Adds blocks of one class to the shared pool; the oldest blocks beyond its limit go back to the
/// system.
fn put_shared(class: Class, blocks: impl IntoIterator<Item = Block>) {
    let mut shared = shared();
    for block in blocks {
        shared.clock += 1;
        shared.bytes += class.size();
        let now = shared.clock;
        shared.idle[class.index()].push_back((now, block));
    }
    let excess = shared.bytes.saturating_sub(os::cache_bytes());
    let surplus = if excess > 0 { shared.evict(excess) } else { Vec::new() };
    drop(shared);
    free_all(surplus);
}

impl Shared {
    /// The block of `class` that came last, whose memory is the likeliest to be in a CPU cache.
    fn take(&mut self, class: Class) -> Option<Block> {
        let (_, block) = self.idle[class.index()].pop_back()?;
        self.bytes -= class.size();
        Some(block)
    }

    /// Removes the blocks that have been unused for longest, at least `excess` bytes of them if
    /// there are as many.
    fn evict(&mut self, excess: usize) -> Vec<(Class, Block)> {
        let target = self.bytes.saturating_sub(excess);
        let mut evicted = Vec::new();
        while self.bytes > target {
            let oldest =
                self.idle.iter_mut().filter(|list| !list.is_empty()).min_by_key(|list| list[0].0);
            let Some((_, block)) = oldest.and_then(VecDeque::pop_front) else { break };
            // SAFETY: a cached block keeps its header.
            let class = unsafe { block.0.as_ref() }.class;
            self.bytes -= class.size();
            evicted.push((class, block));
        }
        evicted
    }
}

/// The lock of the shared pool.
struct Lock;

impl OverFork for Lock {
    type Guard = MutexGuard<'static, Shared>;

    fn lock() -> Self::Guard {
        shared()
    }

    fn held() -> &'static Held<Self::Guard> {
        static HELD: Held<MutexGuard<'static, Shared>> = Held::new();
        &HELD
    }
}
