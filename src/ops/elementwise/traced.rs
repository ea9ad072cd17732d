//! Elementwise formulas as lists of single operations.

use crate::scalar::trace::{Lane, Traced, Value};
use crate::tile::{Map1, Map2, Map3};

/// A formula on values, within a call of [`record`](crate::scalar::trace::record).
pub type TraceFn = fn(&[Value; 3]) -> Value;

/// The operations of a formula of one operand.
pub fn trace1<F: Map1<Traced<T>>, T: Lane>() -> TraceFn
where
    F::Out: Into<Value>,
{
    |x| {
        // What is asked of an element is noted; the formula is that for the others.
        F::is_rare(x[0].typed());
        F::map(x[0].typed()).into()
    }
}

/// The operations of a formula of two operands.
pub fn trace2<F: Map2<Traced<T>, Traced<T>>, T: Lane>() -> TraceFn
where
    F::Out: Into<Value>,
{
    |x| F::map(x[0].typed(), x[1].typed()).into()
}

/// The operations of a formula of a condition and two operands.
pub fn trace3<F: Map3<Traced<bool>, Traced<T>, Traced<T>>, T: Lane>() -> TraceFn
where
    F::Out: Into<Value>,
{
    |x| F::map(x[0].typed(), x[1].typed(), x[2].typed()).into()
}
