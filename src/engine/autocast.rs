//! Mixed precision: calls that somebody wrote, in the dtypes that their declarations ask for.
//!
//! What a call computes inside, and what gradients call, is not touched: a gradient flows through
//! the casts as through any others.

use smallvec::SmallVec;

use super::context::{HERE, Replaced, replace};
use super::eager::{self, apply::apply};
use super::tape::{Operand, Value};
use super::trace::Values;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::declare::{Attr, Composite, Precision};
use crate::ops::op::Op;
use crate::small::small;

/// The dtype of products on this thread, where mixed precision is on.
#[inline]
pub fn current() -> Option<DType> {
    HERE.with(|context| context.narrow.get())
}

/// Sets it, for `with` blocks of Python; gives what it was.
pub fn set(dtype: Option<DType>) -> Result<Option<DType>> {
    if let Some(dtype) = dtype
        && !is_half(dtype)
    {
        let wanted = "expected float16 or bfloat16";
        return Err(error::bad_value("autocast", wanted, format!("got {dtype}")));
    }
    Ok(HERE.with(|context| context.narrow.replace(dtype)))
}

/// Switches it off for as long as the result lives: rules in Python compute what they say.
pub fn suspended() -> Replaced<Option<DType>> {
    replace(|context| &context.narrow, None)
}

/// Calls a composite as somebody wrote it.
pub fn call(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
    record: bool,
) -> Result<Values> {
    let wanted = match (current(), composite.precision) {
        (None, _) | (Some(_), Precision::Follow) => None,
        (Some(narrow), Precision::Narrow) => Some(narrow),
        (Some(_), Precision::Wide) => Some(DType::F32),
    };
    let Some(wanted) = wanted else {
        return eager::call(composite, attributes, operands, record);
    };
    let cast = converted(operands, wanted, record)?;
    let operands: SmallVec<[Operand<'_>; 4]> =
        small(operands.iter().zip(&cast).map(|(&x, cast)| cast.as_ref().map_or(x, Operand::Value)));
    eager::call(composite, attributes, &operands, record)
}

/// The operands that change their dtype. Beside one of float64 none does.
fn converted(
    operands: &[Operand<'_>],
    wanted: DType,
    record: bool,
) -> Result<SmallVec<[Option<Value>; 4]>> {
    let is_double = |x: &Operand<'_>| matches!(x, Operand::Value(v) if v.dtype() == DType::F64);
    let stays = operands.iter().any(is_double);
    let one = |x: &Operand<'_>| match x {
        Operand::Value(value) => {
            let dtype = value.dtype();
            let changes = !stays && dtype != wanted && (dtype == DType::F32 || is_half(dtype));
            changes.then(|| apply(Op::Cast(wanted), &[*x], record)).transpose()
        }
        Operand::Scalar(_) => Ok(None),
    };
    operands.iter().map(one).collect()
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
