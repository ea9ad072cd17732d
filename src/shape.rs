//! Sizes and shapes: `Dim`, `Shape`, broadcasting, axes.
//!
//! Rules work on `Dim`s, which are numbers today and may be symbols of a captured graph later, so no
//! rule may look at a size except through [`Dim::known`]. Whatever holds memory has known sizes.

use std::fmt;
use std::ops::{Add, Div, Index, Mul, Sub};

use smallvec::SmallVec;

use crate::error::{self, Result};
use crate::small::small;

/// The most axes a tensor may have.
pub const MAX_RANK: usize = 32;

/// One size. A number below 2^62; the codes above are kept for symbols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(u64);

/// First code that is not a number.
const SYMBOLS: u64 = 1 << 62;

impl Dim {
    /// The size 1.
    pub const ONE: Dim = Dim(1);

    /// A number as a size. Sizes beyond 2^62 cannot be addressed and are clipped to that bound, where
    /// the count of elements refuses them.
    pub const fn new(n: usize) -> Dim {
        let n = n as u64;
        Dim(if n < SYMBOLS { n } else { SYMBOLS - 1 })
    }

    /// The number, unless this is a symbol.
    pub const fn known(self) -> Option<usize> {
        if self.0 < SYMBOLS { Some(self.0 as usize) } else { None }
    }

    /// The number, where the caller works on memory and so every size is known.
    pub const fn value(self) -> usize {
        debug_assert!(self.0 < SYMBOLS);
        self.0 as usize
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::new(n)
    }
}
impl PartialEq<usize> for Dim {
    fn eq(&self, n: &usize) -> bool {
        self.0 == *n as u64
    }
}
impl Add for Dim {
    type Output = Dim;
    fn add(self, b: Dim) -> Dim {
        Dim::new(self.value().saturating_add(b.value()))
    }
}
impl Sub for Dim {
    type Output = Dim;
    /// Stops at zero: a size is never negative.
    fn sub(self, b: Dim) -> Dim {
        Dim::new(self.value().saturating_sub(b.value()))
    }
}
impl Mul for Dim {
    type Output = Dim;
    fn mul(self, b: Dim) -> Dim {
        Dim::new(self.value().saturating_mul(b.value()))
    }
}
impl Div for Dim {
    type Output = Dim;
    /// Rounds down; the divisor is never zero in a rule.
    fn div(self, b: Dim) -> Dim {
        Dim::new(self.value() / b.value().max(1))
    }
}
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A list of axes, normalised to `0..rank`.
pub type Axes = SmallVec<[usize; 6]>;

/// Sizes in a row. Room for four in place keeps a value within two cache lines.
pub type Dims = SmallVec<[Dim; 4]>;

/// The sizes of a tensor, outermost axis first.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Clone for Shape {
    fn clone(&self) -> Shape {
        Shape(SmallVec::from_slice(&self.0))
    }
}

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(SmallVec::new_const())
    }

    /// A shape of known sizes.
    pub fn of(sizes: &[usize]) -> Shape {
        sizes.iter().map(|&n| Dim::new(n)).collect()
    }

    /// A shape from sizes.
    pub fn from_dims(dims: &[Dim]) -> Shape {
        Shape(SmallVec::from_slice(dims))
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The sizes.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The sizes, to change.
    pub fn dims_mut(&mut self) -> &mut Dims {
        &mut self.0
    }

    /// The sizes as numbers, for code that works on memory.
    pub fn sizes(&self) -> SmallVec<[usize; 6]> {
        small(self.0.iter().map(|d| d.value()))
    }

    /// The count of elements (saturating; [`Shape::check`] refuses what does not fit).
    pub fn count(&self) -> usize {
        match self.0.as_slice() {
            [] => 1,
            [n] => n.value(),
            dims if dims.iter().any(|d| *d == 0) => 0,
            dims => dims.iter().fold(1usize, |n, d| n.saturating_mul(d.value())),
        }
    }

    /// Refuses a shape that no memory can hold or that has too many axes.
    pub fn check(&self, op: &str) -> Result<()> {
        if self.rank() > MAX_RANK {
            return Err(error::too_many_axes(op, self.rank(), MAX_RANK));
        }
        let nonzero =
            self.0.iter().filter(|d| **d != 0).try_fold(1usize, |n, d| n.checked_mul(d.value()));
        match nonzero {
            Some(n) if n < 1 << 60 => Ok(()),
            _ => Err(error::too_large(op, self)),
        }
    }

    /// The shape two operands broadcast to; the error names the first axis from the right that
    /// refuses.
    pub fn broadcast(&self, other: &Shape, op: &str) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let (long, short) = if self.rank() >= other.rank() { (self, other) } else { (other, self) };
        let mut out = long.clone();
        for back in 1..=short.rank() {
            let (i, j) = (long.rank() - back, short.rank() - back);
            out.0[i] = match (long.0[i], short.0[j]) {
                (a, b) if a == b => a,
                (a, Dim::ONE) => a,
                (Dim::ONE, b) => b,
                _ => {
                    let (a, b) = (self.0[self.rank() - back], other.0[other.rank() - back]);
                    return Err(error::broadcast(op, self, other, -(back as isize), a, b));
                }
            };
        }
        Ok(out)
    }

    /// Whether this shape can be broadcast to `target` without changing `target`.
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        self.rank() <= target.rank()
            && self.0.iter().rev().zip(target.0.iter().rev()).all(|(a, b)| a == b || *a == Dim::ONE)
    }

    /// The axes over which a value of this shape was repeated to fill `target` (axes of `target`).
    pub fn repeated_axes(&self, target: &Shape) -> Axes {
        let lead = target.rank() - self.rank();
        (0..target.rank())
            .filter(|&i| i < lead || (self.0[i - lead] == Dim::ONE && target.0[i] != Dim::ONE))
            .collect()
    }

    /// The shape after removing axes (or keeping them with size 1).
    pub fn reduce(&self, axes: &[usize], keepdims: bool) -> Shape {
        (0..self.rank())
            .filter_map(|i| match (axes.contains(&i), keepdims) {
                (false, _) => Some(self.0[i]),
                (true, true) => Some(Dim::ONE),
                (true, false) => None,
            })
            .collect()
    }

    /// One axis, counted from either end, as an index.
    pub fn axis(&self, axis: i64, op: &str) -> Result<usize> {
        normalize_axis(axis, self.rank(), op)
    }

    /// Several axes, counted from either end, each at most once, in the order given; `None` is all.
    pub fn axes(&self, axes: Option<&[i64]>, op: &str) -> Result<Axes> {
        let Some(axes) = axes else { return Ok((0..self.rank()).collect()) };
        let mut out = Axes::new();
        for &axis in axes {
            let i = normalize_axis(axis, self.rank(), op)?;
            if out.contains(&i) {
                return Err(error::repeated_axis(op, axis, Tuple(axes)));
            }
            out.push(i);
        }
        Ok(out)
    }
}

/// One axis, counted from either end, as an index below `rank`.
pub fn normalize_axis(axis: i64, rank: usize, op: &str) -> Result<usize> {
    let n = rank as i64;
    if axis < -n || axis >= n {
        return Err(error::bad_axis(op, axis, rank));
    }
    Ok(if axis < 0 { axis + n } else { axis } as usize)
}

impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(dims: I) -> Shape {
        Shape(small(dims.into_iter()))
    }
}
impl Index<usize> for Shape {
    type Output = Dim;
    fn index(&self, i: usize) -> &Dim {
        &self.0[i]
    }
}

/// Formats a list as Python writes a tuple: `(2, 3)`, `(4,)`, `()`.
pub struct Tuple<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Tuple<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, item) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{item}")?;
        }
        f.write_str(if self.0.len() == 1 { ",)" } else { ")" })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Tuple(&self.0).fmt(f)
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_names_the_axis_that_refuses() {
        let error = Shape::of(&[2, 3]).broadcast(&Shape::of(&[4]), "add").unwrap_err();
        let want = "add: shapes (2, 3) and (4,) do not broadcast: axis -1 has sizes 3 and 4";
        assert_eq!(error.to_string(), want);
        let both = Shape::of(&[5, 1, 3]).broadcast(&Shape::of(&[4, 1]), "add").unwrap();
        assert_eq!(both, Shape::of(&[5, 4, 3]));
        assert_eq!(Shape::of(&[0]).broadcast(&Shape::of(&[1]), "add").unwrap(), Shape::of(&[0]));
    }

    #[test]
    fn axes_count_from_either_end_and_only_once() {
        let shape = Shape::of(&[2, 3, 4]);
        assert_eq!(shape.axes(Some(&[-1, 0]), "sum").unwrap().as_slice(), [2, 0]);
        assert_eq!(shape.axes(Some(&[0, -3]), "sum").unwrap_err().code(), "repeated_axis");
        assert_eq!(shape.axis(3, "sum").unwrap_err().code(), "bad_axis");
    }

    #[test]
    fn repeated_axes_are_what_a_sum_must_undo() {
        let axes = Shape::of(&[1, 3]).repeated_axes(&Shape::of(&[2, 5, 3]));
        assert_eq!(axes.as_slice(), [0, 1]);
    }
}
