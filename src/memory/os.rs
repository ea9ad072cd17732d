//! Blocks from the system: small blocks from the allocator, large ones as pages of their own.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::ALIGN;
use crate::fork::Lazy;

/// From this size on a block has pages of its own.
const MAPPED: usize = 64 << 10;

/// Memory from the system, zero when `zeroed`; `None` when there is none left.
pub(super) fn allocate(bytes: usize, zeroed: bool) -> Option<NonNull<u8>> {
    if bytes > MAPPED && pages::AVAILABLE {
        return pages::map(bytes);
    }
    let layout = layout(bytes);
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } })
}

/// Gives memory back to the system.
///
/// # Safety
/// `ptr` came from [`allocate`] with the same `bytes`, and nobody uses it any more.
pub(super) unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
    if bytes > MAPPED && pages::AVAILABLE {
        // SAFETY: by contract.
        return unsafe { pages::unmap(ptr, bytes) };
    }
    // SAFETY: by contract.
    unsafe { dealloc(ptr.as_ptr(), layout(bytes)) }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGN).expect("blocks are far smaller than the address space")
}

/// Under a sanitizer, forbids reading and writing the last `size - used` bytes of a block.
///
/// # Safety
/// The block is `size` bytes long and belongs to the caller.
#[inline(always)]
pub(super) unsafe fn forbid_behind(data: *mut u8, used: usize, size: usize) {
    #[cfg(sanitized)]
    {
        unsafe extern "C" {
            fn __asan_poison_memory_region(start: *const u8, bytes: usize);
        }
        // SAFETY: the sanitizer only marks the range, which lies in the caller's block.
        unsafe { __asan_poison_memory_region(data.add(used), size - used) }
    }
    let _ = (data, used, size);
}

/// The bytes of memory and swap that this process may use, read once; huge where the system does
/// not say.
pub(super) fn machine_bytes() -> usize {
    machine().0
}

/// The most bytes of freed blocks to cache: a quarter of the memory.
pub(super) fn cache_bytes() -> usize {
    machine().1 / 4
}

/// Memory with swap, and memory alone.
fn machine() -> (usize, usize) {
    static MACHINE: Lazy<(usize, usize)> = Lazy::new(|| {
        let (memory, swap) = read_machine().unwrap_or((4 << 30, usize::MAX >> 2));
        (memory + swap, memory)
    });
    *MACHINE
}

/// Memory and swap in bytes, at most what the control group grants.
#[cfg(all(target_os = "linux", not(miri)))]
fn read_machine() -> Option<(usize, usize)> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<usize> {
        let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim_end_matches("kB").trim().parse::<usize>().ok()? << 10)
    };
    let granted = |file: &str| -> usize {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse().unwrap_or(usize::MAX)
    };
    let memory = field("MemTotal:")?.min(granted("/sys/fs/cgroup/memory.max"));
    let swap = field("SwapTotal:").unwrap_or(0).min(granted("/sys/fs/cgroup/memory.swap.max"));
    Some((memory, swap))
}

/// The memory in bytes. These systems grow swap on demand, so it counts as unlimited.
#[cfg(all(unix, not(target_os = "linux"), not(miri)))]
fn read_machine() -> Option<(usize, usize)> {
    // SAFETY: plain queries.
    let (count, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (count > 0 && size > 0).then(|| (count as usize * size as usize, usize::MAX >> 2))
}

#[cfg(any(not(unix), miri))]
fn read_machine() -> Option<(usize, usize)> {
    None
}

#[cfg(all(unix, not(miri)))]
mod pages {
    use std::ptr::{self, NonNull};

    /// The size of a huge page, and the alignment of blocks that can use one.
    const HUGE: usize = 2 << 20;

    /// Not under a sanitizer, which watches only the allocator.
    pub(super) const AVAILABLE: bool = !cfg!(sanitized);

    /// Zero pages; from 2 MiB on aligned to huge pages, which are asked for.
    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        if bytes < HUGE {
            return map_plain(bytes);
        }
        let (bytes, page) = (round_to_page(bytes), round_to_page(1));
        // Reserve enough to find an aligned start inside, then cut off both ends.
        let start = map_plain(bytes + HUGE - page)?;
        let head = start.as_ptr().align_offset(HUGE);
        let tail = HUGE - page - head;
        // SAFETY: the cut-off pages lie in the mapping made above, which nobody else knows; what
        // stays is `bytes` long. Advice changes no contents.
        unsafe {
            let aligned = start.add(head);
            if head > 0 {
                libc::munmap(start.as_ptr().cast(), head);
            }
            if tail > 0 {
                libc::munmap(aligned.add(bytes).as_ptr().cast(), tail);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(aligned.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
            Some(aligned)
        }
    }

    fn map_plain(bytes: usize) -> Option<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing of
        // ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
    }

    fn round_to_page(bytes: usize) -> usize {
        // SAFETY: a plain query.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        bytes.next_multiple_of(page)
    }

    /// # Safety
    /// `ptr` came from [`map`] with the same `bytes`, and nobody uses it any more.
    pub(super) unsafe fn unmap(ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: by contract. Failure would leave the pages mapped, which harms nobody.
        unsafe { libc::munmap(ptr.as_ptr().cast(), round_to_page(bytes)) };
    }
}

#[cfg(any(not(unix), miri))]
mod pages {
    use std::ptr::NonNull;

    pub(super) const AVAILABLE: bool = false;

    pub(super) fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(super) unsafe fn unmap(_: NonNull<u8>, _: usize) {}
}
