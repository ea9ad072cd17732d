//! The global generator: a seed and a count of keys drawn, state like any other.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::executors;
use super::executors::{Device, device};
use super::tape::Value;
use super::trace;
pub use super::trace::GeneratorState as State;
use super::transfer::placed;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::shape::Shape;

static GLOBAL: Mutex<State> = Mutex::new(State { key: [0, 0], drawn: 0 });

/// The key of a seed.
pub fn seed_key(seed: u64) -> [u32; 2] {
    [(seed >> 32) as u32, seed as u32]
}

/// The global state.
pub fn state() -> State {
    *GLOBAL.lock()
}

/// Replaces the global state.
pub fn set_state(state: State) {
    *GLOBAL.lock() = state;
}

/// The next key of the global generator.
pub fn next_key() -> [u32; 2] {
    let mut state = GLOBAL.lock();
    let before = *state;
    let key = next_of(&mut state);
    let drawn = DRAWN.get();
    let row = if drawn.after == Some(before) { drawn.row + 1 } else { 1 };
    DRAWN.set(Drawn { total: drawn.total + 1, after: Some(*state), row });
    key
}

/// What a thread drew from the global generator.
#[derive(Clone, Copy)]
struct Drawn {
    /// Keys in all, without those given back
    total: u64,
    /// The state behind the last one
    after: Option<State>,
    /// How many of the last ones followed each other, with none of another thread between them
    row: u64,
}

thread_local! {
    static DRAWN: Cell<Drawn> = const { Cell::new(Drawn { total: 0, after: None, row: 0 }) };
}

/// A call that may draw keys. Unless it is [`done`](Attempt::done) it gives back those that this
/// thread drew, so that a call that fails leaves the generator as it was. Keys that another thread
/// drew meanwhile are in use: then nothing is given back, since no key may come twice.
pub struct Attempt {
    before: u64,
    done: bool,
}

impl Attempt {
    /// Begins a call.
    #[must_use]
    #[inline]
    pub fn begin() -> Attempt {
        Attempt { before: DRAWN.get().total, done: false }
    }

    /// Ends a call that succeeded.
    #[inline]
    pub fn done(mut self) {
        self.done = true;
    }

    /// Makes a call.
    #[inline]
    pub fn make<T, E>(
        call: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let attempt = Attempt::begin();
        let result = call()?;
        attempt.done();
        Ok(result)
    }
}

impl Drop for Attempt {
    #[inline]
    fn drop(&mut self) {
        if !self.done {
            self.give_back();
        }
    }
}

impl Attempt {
    #[cold]
    fn give_back(&self) {
        let drawn = DRAWN.get();
        let mine = drawn.total - self.before;
        if mine == 0 {
            return;
        }
        let mut state = GLOBAL.lock();
        if drawn.after == Some(*state) && drawn.row >= mine {
            state.drawn = state.drawn.wrapping_sub(mine);
            let (total, row) = (self.before, drawn.row - mine);
            DRAWN.set(Drawn { total, after: Some(*state), row });
        }
    }
}

/// The next key of a generator: a block of the counter sequence under the seed's key.
pub fn next_of(state: &mut State) -> [u32; 2] {
    let n = state.drawn;
    state.drawn = n.wrapping_add(1);
    // The high bit keeps drawn keys apart from keys split by hand.
    executors::threefry(state.key, [(n >> 32) as u32 | 1 << 31, n as u32])
}

/// A state as programs hold it: the two words of the key, then the lower and the upper half of the
/// count of keys drawn.
pub fn state_value(state: State) -> Result<Array> {
    let array = Array::uninit(DType::U32, Shape::of(&[4]))?;
    let words = [state.key[0], state.key[1], state.drawn as u32, (state.drawn >> 32) as u32];
    // SAFETY: the array is fresh and holds four uint32.
    unsafe { array.ptr_mut().cast::<[u32; 4]>().write(words) };
    Ok(array)
}

/// A key as a value: uint32 of shape (2,).
pub fn key_value(key: [u32; 2]) -> Result<Value> {
    let array = Array::uninit(DType::U32, Shape::of(&[2]))?;
    // SAFETY: the array is fresh and holds two uint32.
    unsafe { array.ptr_mut().cast::<[u32; 2]>().write(key) };
    Ok(Value::plain(array))
}

/// The next key as a value: one of those next_of_stream; else, while a function is captured, an
/// input that is fresh at every run.
pub fn draw() -> Result<Value> {
    draw_on(device::current())
}

/// The same on a device; in a trace on that of the trace.
pub fn draw_on(device: Device) -> Result<Value> {
    placed(drawn()?, device)
}

/// The same as data that goes to where the call runs: in host memory, unless a trace is open.
pub fn drawn() -> Result<Value> {
    if let Some(key) = next_of_stream() {
        return key;
    }
    match trace::active() {
        true => trace::draw_key(),
        false => key_value(next_key()),
    }
}

/// Keys that stand in for those of the generator on this thread.
struct KeyStream {
    serial: u64,
    /// How many traces were open: of those opened since then it serves bodies alone
    depth: usize,
    /// None where draws are only counted
    keys: Option<Vec<Value>>,
    next: usize,
    /// How many were drawn; those before are drawn again after a state was put back
    drawn: usize,
}

thread_local! {
    static KEY_STREAMS: RefCell<Vec<KeyStream>> = const { RefCell::new(Vec::new()) };
}

/// From now on keys are drawn from these; without any, draws are counted, and all keys are zeros.
pub fn open_key_stream(keys: Option<Vec<Value>>) {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let stream = KeyStream { serial, depth: trace::depth(), keys, next: 0, drawn: 0 };
    KEY_STREAMS.with(|all| all.borrow_mut().push(stream));
}

/// Closes the last key stream: how many keys were drawn.
pub fn close_key_stream() -> usize {
    KEY_STREAMS.with(|all| all.borrow_mut().pop()).map_or(0, |stream| stream.drawn)
}

impl KeyStream {
    fn serves(&self) -> bool {
        trace::only_bodies_since(self.depth)
    }
}

fn next_of_stream() -> Option<Result<Value>> {
    let (key, is_again) = KEY_STREAMS.with(|all| {
        let mut all = all.borrow_mut();
        let stream = all.last_mut().filter(|stream| stream.serves())?;
        let key = match &stream.keys {
            Some(keys) => keys.get(stream.next).cloned().map(Ok),
            None => Some(key_value([0, 0]).and_then(beside).and_then(trace::lift)),
        };
        let is_again = stream.next < stream.drawn;
        stream.next += 1;
        stream.drawn = stream.drawn.max(stream.next);
        Some((key, is_again))
    })?;
    let Some(key) = key else {
        let what = "the function draws more random numbers than when it was checked";
        let facts = "draw the same number of times in each call, or pass keys and draw with key=";
        return Some(Err(error::bad_capture("random", what, facts)));
    };
    // Apart from what was computed of it the first time.
    Some(key.and_then(|key| if is_again { trace::barrier(&key, &[]) } else { Ok(key) }))
}

/// A key on the device of the open trace.
fn beside(key: Value) -> Result<Value> {
    placed(key, trace::top().map_or_else(device::current, |trace| trace.device()))
}

/// Set in the count of a state that belongs to a key stream.
const OF_STREAM: u64 = 1 << 62;

/// The state of the generator as this thread sees it.
pub fn seen_state() -> State {
    let of_stream = KEY_STREAMS.with(|all| {
        let all = all.borrow();
        let stream = all.last().filter(|stream| stream.serves())?;
        let key = [stream.serial as u32, (stream.serial >> 32) as u32];
        Some(State { key, drawn: stream.next as u64 | OF_STREAM })
    });
    of_stream.or_else(trace::random_state).unwrap_or_else(state)
}

/// Puts back a state that [`seen_state`] gave.
pub fn set_seen_state(new: State) -> Result<()> {
    let now = seen_state();
    if (now.drawn | new.drawn) & OF_STREAM == 0 {
        if trace::set_random_state(new)?.is_none() {
            set_state(new);
        }
        return Ok(());
    }
    if now.drawn & new.drawn & OF_STREAM == 0 || now.key != new.key {
        let what = "a state of the generator outside of control flow cannot be set inside, nor one \
                    of the inside elsewhere";
        let facts = "draw with keys: wengert.random.key(seed)";
        return Err(error::bad_capture("set_state", what, facts));
    }
    KEY_STREAMS.with(|all| {
        if let Some(stream) = all.borrow_mut().last_mut() {
            stream.next = (new.drawn & !OF_STREAM) as usize;
        }
    });
    Ok(())
}
