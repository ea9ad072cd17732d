//! Sizes and shapes: `Dim`, `Shape`, broadcasting, axes.
//!
//! A `Dim` is a number or, while a graph is built for sizes that vary, an expression over symbols.
//! Arithmetic works on both. A question such as [`Dim::equals`], or [`Dim::value`], asks for more
//! than an expression says. Inside a [`Scope`] the answer is that for the hints (the sizes of the
//! current call), and it is recorded as a [`Constraint`], so a formula need not know whether sizes
//! are symbolic. Everything that holds memory has known sizes.

mod bindings;
mod dim;
mod extent;
mod poly;
mod scope;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::ops::Index;

use smallvec::SmallVec;

use crate::error::{self, Result};
use crate::small::small;

pub use bindings::Bindings;
pub use dim::Dim;
pub use extent::Extent;
pub use scope::{Constraint, Entered, Relation, Scope, hint};
pub use table::{Keeper, Keeping, Retained, interned};
pub use text::is_name;

/// The most axes a tensor may have.
pub const MAX_RANK: usize = 32;

/// A list of axes, normalised to `0..rank`.
pub type Axes = SmallVec<[usize; 6]>;

/// A list of sizes. Inline capacity for four keeps a value within two cache lines.
pub type Dims = SmallVec<[Dim; 4]>;

/// The sizes of a tensor, outermost axis first.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Shape {
        match self.0.spilled() {
            // SAFETY: a short list is its own numbers, which are no one's to free: a copy of its
            // bytes is another list. Shapes are cloned with every value; a copy of as many bytes as
            // there are sizes would be a call.
            false => Shape(unsafe { std::ptr::read(&raw const self.0) }),
            true => Shape(SmallVec::from_slice(&self.0)),
        }
    }
}

impl Shape {
    /// Whether its sizes need no memory of their own.
    #[inline]
    pub fn is_short(&self) -> bool {
        !self.0.spilled()
    }

    /// Makes the shape of a scalar a copy of a short shape, which is its bytes, from where that is to
    /// where this stays. A [`clone`](Shape::clone) has two ways, so its result lies in a place of its own
    /// before it is moved to where it stays, in other pieces than it was written in: the processor
    /// waits for the memory then, longer than for all the rest.
    #[inline(always)]
    pub fn set_short(&mut self, shape: &Shape) {
        assert!(self.is_short() && shape.is_short(), "short shapes");
        // SAFETY: as for `clone`; what was here has no memory of its own to free.
        unsafe { std::ptr::copy_nonoverlapping(shape, self, 1) }
    }

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

    /// Whether all sizes are numbers.
    pub fn is_known(&self) -> bool {
        self.0.iter().all(|d| d.known().is_some())
    }

    /// Whether this equals another shape, as a question: see [`Dim::equals`]. (`==` compares
    /// forms.)
    pub fn equals(&self, other: &Shape) -> bool {
        let each = || self.0.iter().zip(&other.0).all(|(a, b)| a.equals(*b));
        self == other || (self.rank() == other.rank() && each())
    }

    /// Whether this certainly equals another shape, without asking anything about symbols.
    pub fn same(&self, other: &Shape) -> bool {
        let each = || self.0.iter().zip(&other.0).all(|(a, b)| a.same(*b));
        self == other || (self.rank() == other.rank() && each())
    }

    /// The count of elements as a size.
    #[inline]
    pub fn elements(&self) -> Dim {
        let known = self.0.iter().try_fold(1_usize, |n, d| Some(n.saturating_mul(d.known()?)));
        known.map_or_else(|| self.expression(), Dim::new)
    }

    #[cold]
    fn expression(&self) -> Dim {
        if self.0.iter().any(|d| d.known() == Some(0)) {
            return Dim::new(0);
        }
        self.0.iter().fold(Dim::ONE, |n, &d| n * d)
    }

    /// The same with every size replaced.
    pub fn map(&self, f: impl FnMut(Dim) -> Dim) -> Shape {
        self.0.iter().copied().map(f).collect()
    }

    /// The count of elements, saturating; [`Shape::check`] refuses a shape whose count does not
    /// fit.
    pub fn count(&self) -> usize {
        match self.0.as_slice() {
            [] => 1,
            [n] => n.value(),
            dims if dims.iter().any(|d| d.equals(0)) => 0,
            dims => dims.iter().fold(1usize, |n, d| n.saturating_mul(d.value())),
        }
    }

    /// Refuses a shape that no memory can hold or that has too many axes.
    pub fn check(&self, op: &str) -> Result<()> {
        if self.rank() > MAX_RANK {
            return Err(error::too_many_axes(op, self.rank(), MAX_RANK));
        }
        // A symbol counts as its hint; other sizes are checked when it is bound.
        let sizes = || self.0.iter().filter_map(|d| d.known().or_else(|| hint(*d)));
        let nonzero = sizes().filter(|n| *n != 0).try_fold(1usize, |n, d| n.checked_mul(d));
        match nonzero {
            Some(n) if n < 1 << 60 => Ok(()),
            _ => Err(error::too_large(op, self)),
        }
    }

    /// The shape two operands broadcast to; the error names the first axis from the right that does
    /// not fit.
    pub fn broadcast(&self, other: &Shape, op: &str) -> Result<Shape> {
        if self.same(other) {
            return Ok(self.clone());
        }
        let (long, short) = if self.rank() >= other.rank() { (self, other) } else { (other, self) };
        let mut out = long.clone();
        for back in 1..=short.rank() {
            let (i, j) = (long.rank() - back, short.rank() - back);
            let Some(size) = long.0[i].joint(short.0[j]) else {
                let (a, b) = (self.0[self.rank() - back], other.0[other.rank() - back]);
                return Err(error::broadcast(op, self, other, -(back as isize), a, b));
            };
            out.0[i] = size;
        }
        Ok(out)
    }

    /// Whether this shape can be broadcast to `target` without changing `target`.
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        self.rank() <= target.rank()
            && self.0.iter().rev().zip(target.0.iter().rev()).all(|(a, b)| a.grows_to(*b))
    }

    /// The axes over which a value of this shape was repeated to fill `target` (axes of `target`).
    pub fn repeated_axes(&self, target: &Shape) -> Axes {
        let lead = target.rank() - self.rank();
        (0..target.rank())
            .filter(|&i| {
                i < lead || (self.0[i - lead].same(Dim::ONE) && !target.0[i].same(Dim::ONE))
            })
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

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Shape {
        Shape(dims)
    }
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
