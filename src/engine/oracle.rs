//! What a device computes for one op, held against the reference.

#[cfg(test)]
mod rounding;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::executors;
use super::site::{self, Site};
use crate::array::Array;
use crate::error::Result;
use crate::executor;
use crate::ops::elementwise::arithmetic;
use crate::ops::op::Op;
use crate::reference::{Operand, bounds};
use crate::small::small;

/// Looks at every op that is computed, inside bodies too, and keeps the first difference.
#[derive(Clone)]
pub struct Oracle {
    found: Arc<OnceLock<String>>,
    spoiled: bool,
}

impl Oracle {
    /// Has seen nothing yet. With `spoiled` results are made wrong before they are looked at, for
    /// the tests which show that it is found.
    pub fn new(spoiled: bool) -> Oracle {
        Oracle { found: Arc::default(), spoiled }
    }

    /// Looks at what an op gave at a line. This takes long, so it may be broken off before each op.
    pub fn look(
        &self,
        op: &Op,
        args: &[executors::Operand<'_>],
        got: &Array,
        at: Site,
    ) -> Result<()> {
        executor::interrupted()?;
        if self.found.get().is_some() {
            return Ok(());
        }
        if !got.is_on_host() {
            return self.look_at_copies(op, args, got, at);
        }
        let difference = match self.spoiled && got.dtype.is_float() {
            true => {
                let one = executors::Operand::Scalar(1.into());
                let wrong =
                    executors::map(&arithmetic::add, &[executors::Operand::Array(got), one])?;
                difference(op, args, &wrong)?
            }
            false => difference(op, args, got)?,
        };
        if let Some(what) = difference {
            let line = site::describe(at).map_or(String::new(), |line| format!(" at {line}"));
            let _ = self.found.set(format!("{}{line}: {what}", op.name()));
        }
        Ok(())
    }

    /// The same of values of another device.
    fn look_at_copies(
        &self,
        op: &Op,
        args: &[executors::Operand<'_>],
        got: &Array,
        at: Site,
    ) -> Result<()> {
        let copy = |arg: &executors::Operand<'_>| match *arg {
            executors::Operand::Array(x) => executors::download(x).map(Some),
            executors::Operand::Scalar(_) => Ok(None),
        };
        let copies = args.iter().map(copy).collect::<Result<SmallVec<[Option<Array>; 4]>>>()?;
        let args: SmallVec<[executors::Operand<'_>; 4]> =
            small(args.iter().zip(&copies).map(|(arg, copy)| match copy {
                Some(x) => executors::Operand::Array(x),
                None => *arg,
            }));
        self.look(op, &args, &executors::download(got)?, at)
    }

    /// The first difference: op, line, what the CPU got and what was wanted.
    pub fn found(&self) -> Option<&str> {
        self.found.get().map(String::as_str)
    }
}

/// What is wrong with a result of the CPU, if it is further from the reference than the op's bound.
pub fn difference(op: &Op, args: &[executors::Operand<'_>], got: &Array) -> Result<Option<String>> {
    let operands: SmallVec<[Operand<'_>; 4]> = small(args.iter().map(|&arg| seen(arg)));
    bounds::difference(op, &operands, got, executors::depth)
}

fn seen(arg: executors::Operand<'_>) -> Operand<'_> {
    match arg {
        executors::Operand::Array(x) => Operand::Array(x),
        executors::Operand::Scalar(value) => Operand::Scalar(value),
    }
}
