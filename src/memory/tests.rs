//! Tests of buffers, pool and counters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;

/// Runs a test in a process of its own, where nothing else allocates: this test program again, with
/// that test alone.
#[cfg(all(unix, not(miri)))]
pub fn alone<F: FnOnce()>(test: F) {
    const MARK: &str = "WENGERT_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return test();
    }
    let path = std::any::type_name::<F>();
    let name = path.split_once("::").unwrap().1.trim_end_matches("::{{closure}}");
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let output =
        program.args([name, "--exact", "--test-threads=1"]).env(MARK, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{name}:\n{text}");
}

/// Runs a piece of a test in a forked child; an alarm ends a deadlock there.
#[cfg(all(unix, not(miri)))]
fn in_a_child(test: impl FnOnce()) {
    // SAFETY: the child runs the test only, and leaves without anybody's handlers.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
            libc::_exit(i32::from(result.is_err()));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child failed");
    }
}

fn bytes_of(buffer: &Buffer) -> &[u8] {
    // SAFETY: the tests fill what they read.
    unsafe { std::slice::from_raw_parts(buffer.ptr(), buffer.bytes()) }
}

fn fill(buffer: &Buffer, byte: u8) {
    // SAFETY: the tests hold the buffer alone.
    unsafe { buffer.ptr_mut().write_bytes(byte, buffer.bytes()) };
}

#[test]
fn buffers_are_aligned_and_hold_what_was_asked() {
    let sizes = [0, 1, 63, 64, 65, 4096, 65_536, 65_537, 70_000];
    let large: &[usize] = if cfg!(miri) { &[] } else { &[2 << 20, (3 << 20) + 1, 33 << 20] };
    for &bytes in sizes.iter().chain(large) {
        for _ in 0..2 {
            let buffer = Buffer::alloc(bytes).unwrap();
            assert_eq!((buffer.ptr() as usize % ALIGN, buffer.bytes()), (0, bytes));
            fill(&buffer, 0xA5);
            drop(buffer);
            let zero = Buffer::zeroed(bytes).unwrap();
            assert_eq!((zero.ptr() as usize % ALIGN, zero.bytes()), (0, bytes));
            assert!(bytes_of(&zero).iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn handles_share_one_block() {
    let a = Buffer::zeroed(100).unwrap();
    assert!(a.is_unique());
    let b = a.clone();
    assert!(a.same(&b) && a.ptr() == b.ptr() && !a.is_unique() && !b.is_unique());
    let other = Buffer::alloc(100).unwrap();
    assert!(!a.same(&other) && a.ptr() != other.ptr());
    drop(a);
    assert!(b.is_unique());
}

#[test]
fn foreign_memory_is_shared_until_the_last_handle_and_never_unique() {
    struct Owner(Vec<u8>, Arc<AtomicBool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let owner = Box::new(Owner(vec![1, 2, 3], dropped.clone()));
    let ptr = owner.0.as_ptr();
    // SAFETY: the vector lives in the owner, and nobody writes to it.
    let a = unsafe { Buffer::external(ptr, 3, owner) };
    assert_eq!((a.ptr(), bytes_of(&a), a.is_unique()), (ptr, &[1, 2, 3][..], false));
    let b = a.clone();
    drop(a);
    assert!(!dropped.load(Ordering::Relaxed));
    std::thread::spawn(move || drop(b)).join().unwrap();
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn many_threads_pass_buffers_around_and_nobody_sees_foreign_bytes() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (send, receive) = std::sync::mpsc::channel::<(Buffer, u8)>();
            scope.spawn(move || {
                for (buffer, byte) in receive {
                    assert!(bytes_of(&buffer).iter().all(|&b| b == byte));
                }
            });
            scope.spawn(move || {
                for i in 0..rounds {
                    let byte = (i as u8).wrapping_add(thread);
                    let buffer = Buffer::alloc([8, 64, 500, 70_000][i % 4]).unwrap();
                    fill(&buffer, byte);
                    let kept = buffer.clone();
                    send.send((buffer, byte)).unwrap();
                    assert!(bytes_of(&kept).iter().all(|&b| b == byte));
                }
            });
        }
    });
}

#[cfg(all(unix, not(miri)))]
mod in_a_process_of_their_own {
    use super::*;

    #[test]
    fn counters_return_to_where_they_were_and_the_peak_is_exact() {
        alone(|| {
            let before = stats();
            reset_peak();
            let small = Buffer::alloc(65).unwrap();
            let large = Buffer::zeroed(1_000_000).unwrap();
            let rounded = 1 << 20;
            assert_eq!(stats().live_bytes - before.live_bytes, 128 + rounded);
            assert_eq!(stats().live_buffers - before.live_buffers, 2);
            drop((small, large));
            drop(Buffer::alloc(200).unwrap());
            let after = stats();
            assert_eq!(after.live_bytes, before.live_bytes);
            assert_eq!(after.live_buffers, before.live_buffers);
            assert_eq!(after.peak_bytes, before.live_bytes + 128 + rounded);
            reset_peak();
            assert_eq!(stats().peak_bytes, before.live_bytes);
        });
    }

    #[test]
    fn counters_return_to_where_they_were_with_many_threads() {
        alone(|| {
            let before = stats();
            std::thread::scope(|scope| {
                let mut threads = Vec::new();
                for _ in 0..8 {
                    let (send, receive) = std::sync::mpsc::channel::<Buffer>();
                    threads.push(scope.spawn(move || receive.into_iter().for_each(drop)));
                    threads.push(scope.spawn(move || {
                        let mut kept = Vec::new();
                        for i in 0..5000 {
                            kept.push(Buffer::alloc((i * 37) % 9000).unwrap());
                            send.send(Buffer::alloc(64).unwrap()).unwrap();
                            if i % 100 == 99 {
                                kept.clear();
                            }
                        }
                    }));
                }
                // Joined one by one, because the scope does not wait for the thread-local
                // destructors.
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            let after = stats();
            assert_eq!(
                (after.live_bytes, after.live_buffers),
                (before.live_bytes, before.live_buffers)
            );
            assert!(after.peak_bytes > before.live_bytes);
            // The threads have ended, so their blocks are in the shared pool, from which they can
            // be released.
            release_cached();
            assert_eq!(stats().cached_bytes, 0);
        });
    }

    #[test]
    fn freed_blocks_are_used_again_and_can_be_released() {
        alone(|| {
            for bytes in [64, 100_000, 8 << 20] {
                let buffer = Buffer::alloc(bytes).unwrap();
                let ptr = buffer.ptr();
                drop(buffer);
                assert!(stats().cached_bytes >= bytes);
                let again = Buffer::alloc(bytes - 1).unwrap();
                assert_eq!(again.ptr(), ptr);
                drop(again);
                release_cached();
                assert_eq!(stats().cached_bytes, 0);
            }
        });
    }

    #[test]
    fn a_limit_refuses_before_allocating_and_cached_blocks_make_room() {
        alone(|| {
            let base = stats().live_bytes;
            set_limit(Some(base + (10 << 20)));
            assert_eq!(stats().limit, Some(base + (10 << 20)));
            let six = Buffer::alloc(6 << 20).unwrap();
            let refused = Buffer::zeroed(5 << 20).err().expect("11 of 10 MiB");
            assert_eq!(
                (refused.code(), refused.kind()),
                ("out_of_memory", crate::error::Kind::Memory)
            );
            let live = base + (6 << 20);
            let limit = base + (10 << 20);
            let message =
                format!("out of memory: 5242880 bytes asked for, {live} bytes live, limit {limit}");
            assert_eq!(refused.message(), message);
            let now = stats();
            assert_eq!((now.live_bytes, now.cached_bytes, now.peak_bytes), (live, 0, live));
            drop(six);
            let five = Buffer::alloc(5 << 20).unwrap();
            assert_eq!(stats().cached_bytes, 0, "6 MiB cached and 5 live would be above the limit");
            set_limit(Some(0));
            assert!(Buffer::alloc(0).is_err());
            set_limit(None);
            assert_eq!((stats().limit, Buffer::alloc(0).is_ok()), (None, true));
            drop(five);
        });
    }

    #[test]
    fn what_the_machine_does_not_have_is_refused() {
        alone(|| {
            let before = stats();
            for bytes in
                [usize::MAX, usize::MAX / 2, (1 << 47) + 1, 1 << 47, os::machine_bytes() + 1]
            {
                assert_eq!(Buffer::alloc(bytes).err().unwrap().code(), "out_of_memory");
                assert_eq!(Buffer::zeroed(bytes).err().unwrap().code(), "out_of_memory");
            }
            assert_eq!(stats(), before);
        });
    }

    #[test]
    fn a_system_without_memory_is_the_same_error() {
        alone(|| {
            let before = stats();
            let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
            // SAFETY: limits this child only.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
            assert_eq!(Buffer::alloc(2 << 30).err().unwrap().code(), "out_of_memory");
            assert_eq!(stats().live_bytes, before.live_bytes);
            // Cached blocks are returned to the system when that makes an allocation succeed.
            drop(Buffer::alloc(400 << 20).unwrap());
            assert!(Buffer::alloc(500 << 20).is_ok());
        });
    }

    #[test]
    fn the_cache_lets_go_what_waited_longest() {
        alone(|| {
            let buffers: Vec<Buffer> = (1..=3).map(|i| Buffer::alloc(i << 20).unwrap()).collect();
            buffers.into_iter().for_each(drop);
            assert_eq!(stats().cached_bytes, 6 << 20);
            // 5 MiB more under a limit of 9 MiB: the oldest blocks (1 and 2 MiB) go, 3 MiB stay.
            set_limit(Some(stats().live_bytes + (9 << 20)));
            let five = Buffer::alloc(5 << 20).unwrap();
            assert_eq!(stats().cached_bytes, 3 << 20);
            drop(five);
        });
    }

    #[test]
    fn a_child_allocates_at_once_whatever_other_threads_do_at_the_fork() {
        alone(|| {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            drop(Buffer::alloc(100_000).unwrap());
                        }
                    });
                }
                for _ in 0..100 {
                    in_a_child(|| {
                        let buffers: Vec<Buffer> = [10, 100_000, 4 << 20]
                            .into_iter()
                            .map(|bytes| Buffer::alloc(bytes).unwrap())
                            .collect();
                        buffers.iter().for_each(|buffer| fill(buffer, 7));
                    });
                }
                stop.store(true, Ordering::Relaxed);
            });
        });
    }
}
