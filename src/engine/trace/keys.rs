//! The random generator as traces see it: keys that are inputs, fresh at every run.

use std::sync::Arc;

use super::capture::Source;
use super::stack::{at_level, captures, depth};
use super::{Trace, barrier_of};
use crate::array::Array;
use crate::dtype::DType;
use crate::engine::tape::Value;
use crate::error::{self, Result};
use crate::shape::Shape;

impl Trace {
    /// The next random key: one that was drawn before, where the generator was put back.
    fn next_key(self: &Arc<Trace>) -> Result<Value> {
        let known = {
            let (keys, past) = &mut self.state.lock().draws;
            *past += 1;
            keys.get(*past - 1).copied()
        };
        if let Some(id) = known {
            // Apart from what was computed of it the first time.
            return barrier_of(self, id, &[]).map(Value::plain);
        }
        let zero = Value::plain(Array::zeros(DType::U32, Shape::of(&[2]))?);
        let value = self.take_in(None, Source::Key, None, &zero)?.lock().clone();
        let id = self.node("random", &value)?;
        self.state.lock().draws.0.push(id);
        Ok(value)
    }
}

/// A random key for the top trace: an input that is fresh at every run.
pub fn draw_key() -> Result<Value> {
    let level = depth();
    let mut value = at_level(0)?.next_key()?;
    for level in 1..level {
        let source = Source::Outer(value.clone());
        let cell = at_level(level)?.take_in(None, source, None, &value)?;
        value = cell.lock().clone();
    }
    Ok(value)
}

/// The state of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorState {
    /// The key that others derive from
    pub key: [u32; 2],
    /// Keys drawn so far
    pub drawn: u64,
}

/// Set in the count of a generator's state that belongs to a trace.
const OF_TRACE: u64 = 1 << 63;

/// The state of the generator as the open traces see it: which trace, and how many keys it is past.
pub fn random_state() -> Option<GeneratorState> {
    let trace = at_level(0).ok()?;
    let drawn = trace.state.lock().draws.1 as u64 | OF_TRACE;
    Some(GeneratorState { key: [trace.serial as u32, (trace.serial >> 32) as u32], drawn })
}

/// Refuses to seed the generator while a function is captured: its keys are fresh at every call.
pub fn check_seeding() -> Result<()> {
    if !captures() {
        return Ok(());
    }
    let what = "the generator cannot be seeded while a function is captured";
    let facts = "seed it before the call, or draw with keys: wengert.random.key(seed)";
    Err(error::bad_capture("seed", what, facts))
}

/// Puts back a state that [`random_state`] gave: the keys drawn since then are drawn again. `None`
/// where no trace is open and the state is none of a trace.
pub fn set_random_state(state: GeneratorState) -> Result<Option<()>> {
    let now = random_state();
    let is_of_trace = state.drawn & OF_TRACE != 0;
    match now {
        None if !is_of_trace => Ok(None),
        Some(now) if is_of_trace && now.key == state.key => {
            at_level(0)?.state.lock().draws.1 = (state.drawn & !OF_TRACE) as usize;
            Ok(Some(()))
        }
        _ => {
            let what = "a state of the generator outside cannot be set while a function is \
                        captured, nor one of a capture outside of it";
            let facts = "set it before the call, or draw with keys: wengert.random.key(seed)";
            Err(error::bad_capture("set_state", what, facts))
        }
    }
}
