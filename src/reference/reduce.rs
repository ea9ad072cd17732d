//! Reductions along axes, and running ones: one element after the other, in C order.

use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::{Cumulation, Reduction};
use crate::ops::op::Op;
use crate::scalar::Register;

use super::elements::{Elements, each_index, position, with_axis, without_axis};
use super::number::{Arithmetic, narrow, widen, with_register};

/// What makes one number of two; the first comes earlier.
type Join<T> = fn(T, T) -> T;

/// The join of a reduction, and what it gives over nothing. Largest and smallest have no such
/// value.
fn join<T: Arithmetic>(kind: Reduction) -> (Join<T>, T) {
    match kind {
        Reduction::Sum | Reduction::Any => (T::plus, T::ZERO),
        Reduction::Prod | Reduction::All => (T::times, T::ONE),
        Reduction::Max => (T::larger, T::ZERO),
        Reduction::Min => (T::smaller, T::ZERO),
    }
}

/// Reduces along axes, which disappear.
pub fn reduce(
    op: &Op,
    kind: Reduction,
    x: &Elements,
    axes: &[usize],
    sizes: &[usize],
) -> Result<Elements> {
    if matches!(kind, Reduction::Any | Reduction::All) && x.dtype != DType::Bool {
        return Err(error::wrong_dtype(op.name(), "x", x.dtype, "bool"));
    }
    let terms = terms(x, axes, sizes);
    let words = with_register!(x.dtype, T => {
        let (join, empty) = join::<T>(kind);
        let one = |terms: &Vec<u64>| {
            let all = terms.iter().map(|&word| T::of_word(word)).reduce(join);
            narrow(x.dtype, all.unwrap_or(empty).word())
        };
        terms.iter().map(one).collect()
    });
    Ok(Elements { dtype: x.dtype, sizes: sizes.to_vec(), words })
}

/// The registers that are joined into each element of the result, in C order.
pub fn terms(x: &Elements, axes: &[usize], sizes: &[usize]) -> Vec<Vec<u64>> {
    let mut terms = vec![Vec::new(); sizes.iter().product()];
    each_index(&x.sizes, |index| {
        terms[position(sizes, &kept(index, axes))].push(x.register(index));
    });
    terms
}

/// An index without the reduced axes.
fn kept(index: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..index.len()).filter(|axis| !axes.contains(axis)).map(|axis| index[axis]).collect()
}

/// A running sum or product of floats, in float64; a sum of float64 with what its additions lost.
struct Carry {
    kind: Reduction,
    value: f64,
    lost: f64,
}

impl Carry {
    fn new(kind: Reduction) -> Carry {
        let value = if kind == Reduction::Sum { -0.0 } else { 1.0 };
        Carry { kind, value, lost: 0.0 }
    }

    /// The result with one more element, in memory form.
    fn next(&mut self, dtype: DType, word: u64) -> u64 {
        let is_double = dtype == DType::F64;
        let x =
            if is_double { f64::from_bits(word) } else { f32::of_word(widen(dtype, word)).into() };
        let before = self.value;
        self.value = if self.kind == Reduction::Sum { before + x } else { before * x };
        if !is_double {
            return narrow(dtype, (self.value as f32).word());
        }
        if self.kind == Reduction::Sum {
            let part = self.value - before;
            self.lost += (before - (self.value - part)) + (x - part);
        }
        // Beside an infinity what is lost is NaN.
        let is_lost = self.lost.abs() > 0.0;
        (if is_lost { self.value + self.lost } else { self.value }).to_bits()
    }
}

/// The running reduction along an axis, from its end where `reverse`.
pub fn cumulate(kind: Cumulation, x: Elements, axis: usize, reverse: bool) -> Elements {
    let kind = match kind {
        Cumulation::Sum => Reduction::Sum,
        Cumulation::Prod => Reduction::Prod,
        Cumulation::Max => Reduction::Max,
        Cumulation::Min => Reduction::Min,
    };
    let (n, dtype) = (x.sizes[axis], x.dtype);
    let mut out = x;
    if dtype.is_float() && matches!(kind, Reduction::Sum | Reduction::Prod) {
        each_index(&without_axis(&out.sizes.clone(), axis), |line| {
            let mut carry = Carry::new(kind);
            for i in (0..n).map(|i| if reverse { n - 1 - i } else { i }) {
                let at = position(&out.sizes, &with_axis(line, axis, i));
                out.words[at] = carry.next(dtype, out.words[at]);
            }
        });
        return out;
    }
    each_index(&without_axis(&out.sizes.clone(), axis), |line| {
        let places = (0..n).map(|i| if reverse { n - 1 - i } else { i });
        with_register!(dtype, T => {
            let (join, _) = join::<T>(kind);
            let mut carry: Option<T> = None;
            for i in places {
                let at = position(&out.sizes, &with_axis(line, axis, i));
                let own = T::of_word(widen(dtype, out.words[at]));
                let so_far = carry.map_or(own, |carry| join(carry, own));
                out.words[at] = narrow(dtype, so_far.word());
                carry = Some(so_far);
            }
        });
    });
    out
}
