//! The one table of signatures.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{Signature, hash};
use crate::cache::{Cache, Evicted};
use crate::engine::tape::Operand;
use crate::fork::{self, Held, Lazy, OverFork};
use crate::ops::declare::{Attr, Composite};

/// Signatures in the table at a time, about.
pub(super) const CAPACITY: usize = 4096;

/// Signatures of one hash.
type Bucket = SmallVec<[Arc<Signature>; 1]>;

type Table = Cache<u64, Bucket>;

static TABLE: Lazy<Mutex<Table>> = Lazy::new(|| {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.swap(true, Ordering::Relaxed) {
        fork::install::<Lock>();
    }
    Mutex::new(Cache::new(CAPACITY))
});

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Signatures that a thread used last, one for each of so many groups of calls.
const RECENT: usize = 256;

thread_local! {
    static OF_LATE: RefCell<[Option<Arc<Signature>>; RECENT]> =
        const { RefCell::new([const { None }; RECENT]) };
}

/// The group of a call: by what tells calls of one program from one another most often.
fn group(composite: &'static Composite, operands: &[Operand<'_>]) -> usize {
    let mut mark = std::ptr::from_ref(composite).addr() >> 4;
    for operand in operands {
        if let Operand::Value(x) = operand {
            let sizes = x.shape().dims().iter().filter_map(|d| d.known());
            mark = sizes.fold(mark, |mark, n| mark.wrapping_mul(31) ^ n);
        }
    }
    (mark ^ mark >> 9) % RECENT
}

/// The signature of a call on values in host memory and numbers that are known.
pub(super) fn find(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
) -> Arc<Signature> {
    let at = group(composite, operands);
    let is_same = |x: &&Arc<Signature>| {
        let exact = x.exact;
        x.looked.load(Ordering::Relaxed) & !exact == 0
            && x.is_of(composite, attributes, operands, exact)
    };
    let recent = OF_LATE.try_with(|of_late| of_late.borrow()[at].as_ref().filter(is_same).cloned());
    // A thread that is ending keeps nothing.
    if let Some(found) = recent.ok().flatten() {
        return found;
    }
    let found = find_in_table(composite, attributes, operands);
    let before = OF_LATE.try_with(|of_late| of_late.borrow_mut()[at].replace(found.clone()));
    // What goes may be the last of its kind, and is dropped out of the list.
    drop(before);
    found
}

/// The same, from the table.
fn find_in_table(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
) -> Arc<Signature> {
    let mut exact = 0;
    loop {
        let key = hash(composite, attributes, operands, exact);
        let is_same =
            |signature: &&Arc<Signature>| signature.is_of(composite, attributes, operands, exact);
        let find = |bucket: &Bucket| bucket.iter().find(is_same).cloned();
        let found = table().get(&key).and_then(|bucket| find(bucket));
        let signature = match found {
            Some(signature) => signature,
            None => {
                // It is made out of the lock, and what has to go for it is dropped out of it.
                let made = Arc::new(Signature::new(composite, attributes, operands, exact));
                let (signature, _evicted) = add(key, made, find);
                signature
            }
        };
        match signature.looked.load(Ordering::Relaxed) & !exact {
            0 => return signature,
            more => exact |= more,
        }
    }
}

/// Adds a signature, unless another thread has.
fn add(
    key: u64,
    made: Arc<Signature>,
    find: impl Fn(&Bucket) -> Option<Arc<Signature>>,
) -> (Arc<Signature>, Option<Evicted<u64, Bucket>>) {
    let mut table = table();
    let Some(bucket) = table.get(&key) else {
        let evicted = table.insert(key, std::iter::once(made.clone()).collect());
        return (made, Some(evicted));
    };
    if let Some(signature) = find(bucket) {
        return (signature, None);
    }
    bucket.push(made.clone());
    (made, None)
}

/// How many signatures the table holds.
#[cfg(test)]
pub(super) fn count() -> usize {
    table().len()
}

/// The lock of the table.
struct Lock;

impl OverFork for Lock {
    type Guard = MutexGuard<'static, Table>;

    fn lock() -> Self::Guard {
        table()
    }

    fn held() -> &'static Held<Self::Guard> {
        static HELD: Held<MutexGuard<'static, Table>> = Held::new();
        &HELD
    }
}
