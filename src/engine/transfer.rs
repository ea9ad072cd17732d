//! Values taken to another device: a copy, whose gradient is the copy back.

use std::ffi::c_void;
use std::sync::Arc;

use super::executors::{self, Device};
use super::tape::{self, HostRule, Operand, Value, record_host};
use super::trace;
use crate::error::{self, Result};

/// The rule of a transfer: the cotangent goes back to where the operand lies.
struct Back(Device);

impl HostRule for Back {
    fn name(&self) -> &str {
        "to"
    }

    fn object(&self) -> Option<*mut c_void> {
        None
    }

    fn backward(&self, g: &Value, record: bool) -> Result<Vec<Option<Value>>> {
        Ok(vec![Some(taken(g, self.0, record)?)])
    }
}

/// The value on a device: itself, or a copy. A graph computes on one device, so there are no nodes of
/// this kind: inside a trace it is refused.
pub fn transfer(x: &Value, to: Device) -> Result<Value> {
    taken(x, to, tape::recording())
}

fn taken(x: &Value, to: Device, record: bool) -> Result<Value> {
    if x.device() == to {
        return Ok(x.clone());
    }
    if trace::wants(&[Operand::Value(x)]) {
        return Err(error::one_device("to", x.device(), to));
    }
    let array = executors::transfer(&x.array, to)?;
    match record && x.requires_grad() {
        true => Ok(record_host(Arc::new(Back(x.device())), std::slice::from_ref(x), array)),
        false => Ok(Value::plain(array)),
    }
}

/// Data that no tensor holds yet, on a device: constants of a formula, arrays of other libraries.
pub fn placed(x: Value, on: Device) -> Result<Value> {
    match x.array.buffer.is_named() {
        true => Ok(x),
        false => Ok(Value { array: executors::transfer(&x.array, on)?, ..x }),
    }
}
