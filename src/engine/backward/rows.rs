//! Cotangents of tables that are only looked up in: rows with their indices, as long as nothing
//! else is added.

use std::sync::Arc;

use super::sweep::Sweep;
use crate::array::Array;
use crate::dtype::Scalar;
use crate::engine::eager::apply::apply;
use crate::engine::tape::{Entry, Leaf, Link, Operand, Rows, Value};
use crate::engine::trace;
use crate::error::Result;
use crate::ops::elementwise::arithmetic;
use crate::ops::op::Op;
use crate::shape::Shape;

use super::saved::check_saved;

/// What lookups in one table gave, in their order in the sweep.
pub(super) struct Lookups {
    leaf: Arc<Leaf>,
    parts: Vec<Rows>,
}

impl Lookups {
    /// All rows behind each other.
    pub(super) fn join(self) -> Result<(Arc<Leaf>, Rows)> {
        Ok((self.leaf, join(self.parts)?))
    }
}

impl Sweep {
    /// Keeps the cotangent of a lookup as rows, if it goes to a leaf whose gradient may be
    /// row-sparse and is nothing else so far. False where it has to be added to a whole table.
    pub(super) fn add_rows(&mut self, entry: &Entry, g: &Value) -> Result<bool> {
        let Link::Leaf(leaf) = &entry.links[0] else { return Ok(false) };
        let key = leaf.as_ptr() as usize;
        if self.gives_some() || trace::active() || self.leaves.contains_key(&key) {
            return Ok(false);
        }
        let Some(leaf) = leaf.upgrade().filter(|leaf| leaf.takes_rows()) else { return Ok(false) };
        let (shape, index) = {
            let values = entry.saved.lock();
            check_saved("backward", entry, &values)?;
            let [table, index] = &values.args[..] else { return Ok(false) };
            (table.ty().shape, index.array().cloned())
        };
        let Some(index) = index else { return Ok(false) };
        let rows = lookup(&shape, index, g)?;
        match self.rows.get_mut(&key) {
            Some(found) => found.parts.push(rows),
            None => {
                self.leaf_order.push(key);
                self.rows.insert(key, Lookups { leaf, parts: vec![rows] });
            }
        }
        Ok(true)
    }

    /// Makes the rows of a leaf dense, if there are any: something else is to be added.
    pub(super) fn spread_rows(&mut self, key: usize) -> Result<()> {
        if let Some(found) = self.rows.remove(&key) {
            let (leaf, rows) = found.join()?;
            let sum = Value::plain(rows.dense(&leaf.ty)?);
            self.leaves.insert(key, (leaf, sum));
        }
        Ok(())
    }
}

/// The rows of one lookup: `g` is (indices…, row…).
fn lookup(table: &Shape, index: Array, g: &Value) -> Result<Rows> {
    let (size, row) = (table.dims()[0], &table.dims()[1..]);
    let count = index.shape().elements();
    let flat = |x: &Value, shape: Shape| apply(Op::Reshape(shape), &[Operand::Value(x)], false);
    let indices = flat(&Value::plain(index), Shape::from_dims(&[count]))?;
    // The lookup has refused what is outside the table; what is left counts from the end.
    let size = Operand::Scalar(Scalar::Int(size.value() as i64).into());
    let operands = [Operand::Value(&indices), size];
    let indices = apply(Op::Map(&arithmetic::remainder), &operands, false)?.array;
    let shape: Shape = std::iter::once(count).chain(row.iter().copied()).collect();
    Ok(Rows { indices, values: flat(g, shape)?.array })
}

/// Rows behind each other.
pub(super) fn join(mut parts: Vec<Rows>) -> Result<Rows> {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return Ok(only);
    }
    let behind = |part: fn(&Rows) -> &Array| -> Result<Array> {
        let values: Vec<Value> =
            parts.iter().map(|rows| Value::plain(part(rows).clone())).collect();
        let operands: Vec<Operand<'_>> = values.iter().map(Operand::Value).collect();
        Ok(apply(Op::Concat(0), &operands, false)?.array)
    };
    Ok(Rows { indices: behind(|rows| &rows.indices)?, values: behind(|rows| &rows.values)? })
}
