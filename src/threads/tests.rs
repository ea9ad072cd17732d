//! Tests of the pool and of what breaks a job off.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::pool::{Cut, lock};
use super::*;

/// The number of threads is one for all tests: those that set it take turns.
fn with_threads(threads: usize) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = lock(&TURN);
    set_num_threads(threads);
    turn
}

fn hits(chunks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    parallel_for(chunks, &|i| {
        counts[i].fetch_add(1, Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_chunk_runs_once() {
    for threads in [1, 2, 5] {
        let _turn = with_threads(threads);
        for chunks in [0, 1, 2, 3, 100] {
            assert_eq!(hits(chunks), vec![1; chunks]);
        }
        for _ in 0..200 {
            assert_eq!(hits(7), [1; 7]);
        }
    }
}

#[test]
fn shares_cover_all_chunks_in_order() {
    for threads in [1, 2, 3, 7, MOST] {
        for chunks in [0, 1, 2, 6, 7, 100, usize::MAX] {
            let cut = Cut { chunks, threads };
            let mut end = 0;
            for share in 0..threads {
                let chunks_of = cut.share(share);
                assert_eq!(chunks_of.start, end);
                // Even: none has more than one chunk more than another.
                assert!((chunks / threads..=chunks.div_ceil(threads)).contains(&chunks_of.len()));
                end = chunks_of.end;
            }
            assert_eq!(end, chunks);
        }
    }
}

#[test]
fn ranges_cover_the_count_and_do_not_depend_on_threads() {
    for threads in [1, 3] {
        let _turn = with_threads(threads);
        let ranges = Mutex::new(Vec::new());
        for_each_chunk(10, 4, |range| lock(&ranges).push((range.start, range.end)));
        let mut ranges = ranges.into_inner().unwrap();
        ranges.sort();
        assert_eq!(ranges, [(0, 4), (4, 8), (8, 10)]);
    }
    for_each_chunk(0, 4, |_| panic!("there is nothing to do"));
}

#[test]
fn workers_help() {
    let _turn = with_threads(3);
    let inside = AtomicUsize::new(0);
    // Each chunk waits for another thread: this ends only if two threads work at once. Another
    // test's job may hold the pool, in which case we try again.
    let met = (0..1000).any(|_| {
        let met = AtomicBool::new(false);
        parallel_for(2, &|_| {
            inside.fetch_add(1, SeqCst);
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {
                if inside.load(SeqCst) == 2 {
                    met.store(true, SeqCst);
                }
                thread::yield_now();
            }
            inside.fetch_sub(1, SeqCst);
        });
        met.into_inner()
    });
    assert!(met);
}

#[test]
fn nested_and_concurrent_jobs_finish() {
    let _turn = with_threads(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let total = AtomicUsize::new(0);
                    parallel_for(4, &|i| {
                        parallel_for(3, &|j| {
                            total.fetch_add(i * 3 + j, Relaxed);
                        });
                    });
                    assert_eq!(total.into_inner(), 66);
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let _turn = with_threads(3);
    for _ in 0..20 {
        let caught = catch_unwind(|| {
            parallel_for(50, &|i| {
                if i == 17 {
                    std::panic::resume_unwind(Box::new("chunk 17"));
                }
            });
        });
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"chunk 17"));
        assert_eq!(hits(20), [1; 20]);
    }
}

#[test]
fn workers_leave_a_job_that_was_broken_off() {
    let _turn = with_threads(2);
    let caller = thread::current().id();
    // Either side breaks off; the other side's chunk, a job inside it, ends only at a pause.
    for breaks in [true, false] {
        let met = AtomicBool::new(false);
        let chunk = |_: usize| {
            let is_caller = thread::current().id() == caller;
            if !is_caller {
                met.store(true, SeqCst);
            }
            let start = Instant::now();
            while !met.load(SeqCst) && start.elapsed() < Duration::from_millis(20) {
                thread::yield_now();
            }
            if is_caller == breaks || !met.load(SeqCst) {
                resume_unwind(Box::new("the reason"));
            }
            // What is caught inside does not hide that the job is broken off.
            let endless = || in_stretches(0..usize::MAX, 1, |_| thread::yield_now());
            let inner = catch_unwind(|| parallel_for(2, &|_| endless()));
            assert_eq!(inner.unwrap_err().downcast_ref(), Some(&"the job was broken off"));
        };
        // Another test's job may hold the pool, in which case no worker comes and we try again.
        let came = (0..1000).any(|_| {
            let caught = catch_unwind(AssertUnwindSafe(|| parallel_for(2, &chunk)));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"the reason"));
            met.load(SeqCst)
        });
        assert!(came, "no worker came");
    }
}

#[test]
fn code_of_others_is_not_broken_off_with_the_job() {
    let _turn = with_threads(1);
    looking(
        |_| Looks { watch: true, job: true },
        || {
            let seen = apart(|| LOOKS.get());
            assert!(!seen.watch && !seen.job);
            assert!(LOOKS.get().watch && LOOKS.get().job);
        },
    );
}

#[cfg(all(unix, not(miri)))]
#[test]
fn a_forked_child_has_workers_of_its_own() {
    let _turn = with_threads(3);
    assert_eq!(hits(10), [1; 10]);
    // SAFETY: the child runs our code only, and leaves without running anybody's handlers.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            set_num_threads(3);
            let fine = hits(100) == [1; 100] && Pool::current().workers.load(Relaxed) == 2;
            libc::_exit(if fine { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
}
