//! The global generator: a seed and a count of keys drawn, state like any other.

use parking_lot::Mutex;

use super::tape::Value;
use super::trace;
use crate::array::Array;
use crate::cpu;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;

/// The state of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The key that others derive from
    pub key: [u32; 2],
    /// Keys drawn so far
    pub drawn: u64,
}

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
    next_of(&mut GLOBAL.lock())
}

/// The next key of a generator: a block of the counter sequence under the seed's key.
pub fn next_of(state: &mut State) -> [u32; 2] {
    let n = state.drawn;
    state.drawn = n.wrapping_add(1);
    // The high bit keeps drawn keys apart from keys split by hand.
    cpu::threefry(state.key, [(n >> 32) as u32 | 1 << 31, n as u32])
}

/// A key as a value: uint32 of shape (2,).
pub fn key_value(key: [u32; 2]) -> Result<Value> {
    let array = Array::uninit(DType::U32, Shape::of(&[2]))?;
    // SAFETY: the array is fresh and holds two uint32.
    unsafe { array.ptr_mut().cast::<[u32; 2]>().write(key) };
    Ok(Value::plain(array))
}

/// The next key as a value; while a function is captured, an input that is fresh at every run.
pub fn draw() -> Result<Value> {
    match trace::active() {
        true => trace::draw_key(),
        false => key_value(next_key()),
    }
}
