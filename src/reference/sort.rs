//! Orders: sorting, the positions that sort, and the position of an extreme.

use std::cmp::Ordering;

use crate::dtype::DType;
use crate::ops::attributes::ArgReduction;

use super::elements::{Elements, each_index, position, with_axis, without_axis};
use super::number::{Number, of_element};

/// How two elements order: NaN behind every number in either direction, both zeros equal.
fn order(a: Number, b: Number, descending: bool) -> Ordering {
    let by_size = |order: Ordering| if descending { order.reverse() } else { order };
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        return by_size(a.cmp(&b));
    }
    let (a, b) = (a.as_f64(), b.as_f64());
    let numbers = a.partial_cmp(&b).map(by_size);
    numbers.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The first `k` positions (int64) of the stable order along an axis.
pub fn positions(x: &Elements, k: usize, axis: usize, descending: bool) -> Elements {
    let mut sizes = x.sizes.clone();
    sizes[axis] = k;
    let words = vec![0; sizes.iter().product()];
    let mut out = Elements { dtype: DType::I64, sizes, words };
    each_index(&without_axis(&x.sizes, axis), |line| {
        let number = |i: usize| of_element(x.dtype, x.at(&with_axis(line, axis, i)));
        let mut places: Vec<usize> = (0..x.sizes[axis]).collect();
        places.sort_by(|&i, &j| order(number(i), number(j), descending));
        for (i, &place) in places.iter().take(k).enumerate() {
            let at = position(&out.sizes, &with_axis(line, axis, i));
            out.words[at] = place as u64;
        }
    });
    out
}

/// The elements in order along an axis.
pub fn sort(x: &Elements, axis: usize, descending: bool) -> Elements {
    let places = positions(x, x.sizes[axis], axis, descending);
    Elements::make(x.dtype, &x.sizes, |index| {
        let mut from = index.to_vec();
        from[axis] = places.at(index) as usize;
        x.at(&from)
    })
}

/// The position (int64) of the first largest or smallest element along an axis, which disappears;
/// the first NaN wins.
pub fn arg_reduce(kind: ArgReduction, x: &Elements, axis: usize) -> Elements {
    Elements::make(DType::I64, &without_axis(&x.sizes, axis), |line| {
        let number = |i: usize| of_element(x.dtype, x.at(&with_axis(line, axis, i)));
        let is_nan = |number: Number| number.as_f64().is_nan();
        let mut best = 0;
        for i in 1..x.sizes[axis] {
            let wins = match (is_nan(number(i)), is_nan(number(best))) {
                (_, true) => false,
                (true, false) => true,
                (false, false) => {
                    let descending = kind == ArgReduction::Max;
                    order(number(i), number(best), descending) == Ordering::Less
                }
            };
            if wins {
                best = i;
            }
        }
        best as u64
    })
}
