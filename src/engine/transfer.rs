//! Values taken to another device: a copy, whose gradient is the copy back.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::smallvec;

use super::executors::{self, Device};
use super::tape::{self, HostRule, Operand, Value, record_host};
use super::trace;
use crate::array::Where;
use crate::error::Result;

/// The rule of a transfer: the cotangent goes back to where the operand lies.
struct Back(Device);

impl HostRule for Back {
    fn name(&self) -> &str {
        "to"
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, given: &[Option<Value>], record: bool) -> Result<Vec<Option<Value>>> {
        given.iter().map(|g| g.as_ref().map(|g| taken(g, self.0, record)).transpose()).collect()
    }
}

/// The value on a device: itself, or a copy. In a captured function, a result that is moved at the
/// end of each run.
pub fn transfer(x: &Value, to: Device) -> Result<Value> {
    taken(x, to, tape::recording())
}

fn taken(x: &Value, to: Device, record: bool) -> Result<Value> {
    if x.device() == to {
        return Ok(x.clone());
    }
    let array = match trace::wants(&[Operand::Value(x)]) {
        true => trace::moved("to", x, to)?,
        false => executors::transfer(&x.array, to)?,
    };
    match record && x.requires_grad() {
        true => {
            let rule = Arc::new(Back(x.device()));
            Ok(record_host(rule, std::slice::from_ref(x), smallvec![array]).swap_remove(0))
        }
        false => Ok(Value::plain(array)),
    }
}

/// Data that no tensor holds yet, on a device: constants of a formula, arrays of other libraries.
pub fn placed(x: Value, on: Device) -> Result<Value> {
    match x.array.data.place() {
        Where::Host(_) => Ok(Value { array: executors::transfer(&x.array, on)?, ..x }),
        Where::Device(_) | Where::Traced(_) | Where::Busy(_) => Ok(x),
    }
}
