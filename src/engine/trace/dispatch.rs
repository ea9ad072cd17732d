//! Dispatch: who takes ops and calls of composites.
//!
//! Eager code computes them (`eager::Computed`), an open trace writes nodes (`eager::Traced`), and
//! a graph defined by hand defers calls whose sizes it does not know (`definition::Deferred`). A
//! graph defined by hand brings its own implementation, so that what applies ops names no module
//! above.

use smallvec::{SmallVec, smallvec};

use super::{Call, Trace, active, node_of, top};
use crate::engine::context;
use crate::engine::tape::{Operand, Results, Value};
use crate::error::{self, Result};
use crate::ops::declare::{Attr, Composite};
use crate::ops::op::Op;
use crate::shape::Shape;

/// Results with their histories.
pub type Values = SmallVec<[Value; 1]>;

/// A composite with what it is called on.
#[derive(Clone, Copy)]
pub struct Called<'a> {
    /// The composite
    pub composite: &'static Composite,
    /// Its attributes
    pub attributes: &'a [Attr],
    /// Its operands
    pub operands: &'a [Operand<'a>],
    /// Whether the tape records it
    pub record: bool,
}

/// One of the three ways in which ops are taken.
pub trait Dispatch: Send + Sync {
    /// The results of an op on operands that need no promotion.
    fn op(&self, op: &Op, args: &[Operand<'_>]) -> Result<Results>;

    /// The results of a composite, saved ones included where they are made.
    fn composite(&self, call: &Called<'_>) -> Result<Values>;

    /// The results of what `make` makes of several ops, such as an index. `call` names it as one,
    /// for those who put it off.
    fn whole(
        &self,
        _call: &dyn Fn() -> Call,
        _operands: &[Operand<'_>],
        make: &mut dyn FnMut() -> Result<Values>,
    ) -> Result<Values> {
        make()
    }

    /// The same with one result.
    fn whole_one(
        &self,
        call: &dyn Fn() -> Call,
        operands: &[Operand<'_>],
        make: &mut dyn FnMut() -> Result<Value>,
    ) -> Result<Value> {
        let mut values = self.whole(call, operands, &mut || Ok(smallvec![make()?]))?;
        values.pop().ok_or_else(|| error::internal("a call without a result"))
    }
}

/// The way of the graph defined by hand that defers calls on these operands, if one does: some size
/// of theirs is open.
#[inline]
pub fn deferring(args: &[Operand<'_>]) -> Option<&'static dyn Dispatch> {
    if !active() { None } else { find_deferring(args) }
}

#[cold]
fn find_deferring(args: &[Operand<'_>]) -> Option<&'static dyn Dispatch> {
    let trace = top()?;
    let dispatch = trace.deferred?;
    if context::HERE.with(|context| context.within_call.get()) {
        return None;
    }
    let open = args.iter().any(|arg| match arg {
        Operand::Value(value) => is_open(&trace, value),
        Operand::Scalar(_) => false,
    });
    open.then_some(dispatch)
}

/// Whether all sizes of a shape are numbers.
pub fn is_sized(shape: &Shape) -> bool {
    shape.dims().iter().all(|dim| dim.known().is_some())
}

fn is_open(trace: &Trace, value: &Value) -> bool {
    match node_of(&value.array) {
        Some((of, id)) => {
            !is_sized(value.shape()) || (std::ptr::eq(&**of, trace) && trace.is_uncertain(id))
        }
        None => false,
    }
}
