//! Advanced indexing: int64 arrays on the leading axes pick (gather) or receive (scatter) slices.

use crate::error::{Error, Result};
use crate::ops::attributes::ScatterMode;
use crate::ops::op::Op;

use super::elements::{Elements, each_index, position};
use super::number::{Arithmetic, narrow, widen, with_register};
use crate::scalar::Register;

/// `x[i, j, …]`, whose sizes are those of the indices, then those of the axes without one.
pub fn gather(op: &Op, x: &Elements, indices: &[Elements], sizes: &[usize]) -> Result<Elements> {
    let rank = sizes.len() - (x.sizes.len() - indices.len());
    check(op, x, indices, &sizes[..rank])?;
    Ok(Elements::make(x.dtype, sizes, |index| {
        let (which, rest) = index.split_at(rank);
        x.at(&picked(x, indices, which, rest))
    }))
}

/// A base with values put or added at what a gather would read, in the order of the indices. A
/// value that is added is rounded at once.
pub fn scatter(
    op: &Op,
    base: Elements,
    values: &Elements,
    indices: &[Elements],
    mode: ScatterMode,
) -> Result<Elements> {
    let shape = index_sizes(indices);
    check(op, &base, indices, &shape)?;
    let region: Vec<usize> = shape.iter().chain(&base.sizes[indices.len()..]).copied().collect();
    let dtype = base.dtype;
    let mut out = base;
    each_index(&region, |index| {
        let (which, rest) = index.split_at(shape.len());
        let at = position(&out.sizes, &picked(&out, indices, which, rest));
        let value = values.broadcast_at(index);
        out.words[at] = match mode {
            ScatterMode::Set => value,
            ScatterMode::Add => {
                let [a, b] = [out.words[at], value].map(|word| widen(dtype, word));
                let sum = with_register!(dtype, T => T::of_word(a).plus(T::of_word(b)).word());
                narrow(dtype, sum)
            }
        };
    });
    Ok(out)
}

/// The sizes to which index arrays broadcast.
fn index_sizes(indices: &[Elements]) -> Vec<usize> {
    let rank = indices.iter().map(|index| index.sizes.len()).max().unwrap_or(0);
    let mut sizes = vec![1; rank];
    for index in indices {
        let lead = rank - index.sizes.len();
        for (size, &n) in sizes[lead..].iter_mut().zip(&index.sizes) {
            if n != 1 {
                *size = n;
            }
        }
    }
    sizes
}

/// The index that index arrays give for one place, negative ones counted from the end, and the
/// rest.
fn picked(x: &Elements, indices: &[Elements], which: &[usize], rest: &[usize]) -> Vec<usize> {
    let one = |(index, &size): (&Elements, &usize)| {
        let i = index.broadcast_at(which) as i64;
        (if i < 0 { i + size as i64 } else { i }) as usize
    };
    indices.iter().zip(&x.sizes).map(one).chain(rest.iter().copied()).collect()
}

/// Refuses the first index that leaves its axis, if any index is used.
fn check(op: &Op, x: &Elements, indices: &[Elements], shape: &[usize]) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    for (axis, index) in indices.iter().enumerate() {
        let size = x.sizes[axis];
        let bad = |i: &i64| *i < -(size as i64) || *i >= size as i64;
        if let Some(i) = index.words.iter().map(|&word| word as i64).find(bad) {
            return Err(Error::outside(op.name(), i, axis, size, indices.len()));
        }
    }
    Ok(())
}
