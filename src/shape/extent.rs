//! `Extent`: an int that a caller gave where a size may stand.

use std::fmt;

use super::bindings::Bindings;
use super::dim::Dim;
use crate::error::{self, Error, Result};

/// A number of any sign and magnitude, or a size that is an expression.
///
/// The two stay apart until a number has been checked, so that no number can pass for the code of
/// an expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// A number as it was given
    Number(i64),
    /// An expression; a known size is a `Number`
    Size(Dim),
}

impl Extent {
    /// The number. An expression is asked for its hint, on which the trace then relies.
    pub fn now(self) -> i64 {
        match self {
            Extent::Number(n) => n,
            Extent::Size(dim) => dim.value() as i64,
        }
    }

    /// The number, unless this is an expression.
    #[inline]
    pub fn known(self) -> Option<i64> {
        match self {
            Extent::Number(n) => Some(n),
            Extent::Size(_) => None,
        }
    }

    /// Whether this is a number below another.
    #[inline]
    pub fn is_below(self, n: i64) -> bool {
        self.known().is_some_and(|own| own < n)
    }

    /// As a size, for the argument `name`; a number that cannot be a size is refused.
    #[inline]
    pub fn size(self, op: &str, name: &str) -> Result<Dim> {
        match self {
            Extent::Number(n) => Dim::checked(n, op, name),
            Extent::Size(dim) => Ok(dim),
        }
    }

    /// The distance of a negative number from zero. No axis is as long as the largest distance.
    #[inline]
    pub fn below_zero(self) -> Option<Dim> {
        self.known().filter(|n| *n < 0).map(|n| Dim::new(n.unsigned_abs() as usize))
    }

    /// With symbols replaced.
    #[must_use]
    pub fn resolve(self, sizes: &Bindings) -> Extent {
        match self {
            Extent::Number(_) => self,
            Extent::Size(dim) => sizes.resolve(dim).into(),
        }
    }
}

impl From<i64> for Extent {
    #[inline]
    fn from(n: i64) -> Extent {
        Extent::Number(n)
    }
}

impl From<Dim> for Extent {
    #[inline]
    fn from(dim: Dim) -> Extent {
        match dim.known() {
            Some(n) => Extent::Number(n as i64),
            None => Extent::Size(dim),
        }
    }
}

impl Dim {
    /// A number given by a caller as a size, for the argument `name`, if it can be a size.
    #[inline]
    pub fn checked(n: i64, op: &str, name: &str) -> Result<Dim> {
        match usize::try_from(n) {
            Ok(size) if size <= Dim::MOST => Ok(Dim::new(size)),
            _ => Err(Dim::refused(n, op, name)),
        }
    }

    #[cold]
    fn refused(n: i64, op: &str, name: &str) -> Error {
        let what = match n < 0 {
            true => format!("{name} must be at least 0"),
            false => format!("{name} must be at most {}", Dim::MOST),
        };
        error::bad_value(op, what, format!("got {n}"))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Number(n) => n.fmt(f),
            Extent::Size(dim) => dim.fmt(f),
        }
    }
}
impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
