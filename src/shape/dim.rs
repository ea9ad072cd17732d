//! `Dim`: one size, a number or an expression.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Div, Mul, Rem, Sub};

use super::poly::{Poly, Symbol};
use super::scope::{Relation, asked, certainly_equal, decide, hint, pinned};
use super::table::{PolyId, intern, poly};
use crate::error;

/// One size. A number below 2^62; a code above stands for an expression over symbols.
///
/// Equal expressions have equal codes, and `==` only says that two sizes have the same form, as
/// tables need it. [`Dim::equals`], [`Dim::is_below`] and [`Dim::is_at_most`] ask whether an
/// expression compares so: the surrounding [`Scope`](super::Scope) answers by the hints of its
/// symbols and records the answer as a constraint; without a scope, an expression equals only
/// itself. [`Dim::same`] asks nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dim(u64);

/// First code that is not a number.
const SYMBOLS: u64 = 1 << 62;

/// The prefix of the names of counts of rounds.
pub(super) const ROUNDS: &str = "rounds";

/// An expression with more terms or levels than this is pinned to its hint where there is a scope.
const LARGEST: usize = 64;

impl Dim {
    /// The largest size. No array of this size fits in memory, so sums of a few sizes cannot
    /// overflow.
    pub const MOST: usize = SYMBOLS as usize - 1;

    /// The size 1.
    pub const ONE: Dim = Dim(1);

    /// A number as a size. Sizes beyond 2^62 cannot be addressed; they are clipped to that bound,
    /// and the check of the number of elements refuses them.
    pub const fn new(n: usize) -> Dim {
        let n = n as u64;
        Dim(if n < SYMBOLS { n } else { SYMBOLS - 1 })
    }

    /// The symbol of a declared name; the same name is the same symbol everywhere.
    pub fn named(name: &str) -> Dim {
        Dim::of(Poly::symbol(Symbol::Named(name.into())))
    }

    /// The symbol `s{i}`.
    pub fn numbered(i: u32) -> Dim {
        Dim::of(Poly::symbol(Symbol::Numbered(i)))
    }

    /// The count of rounds of a loop: a symbol that nothing binds before the run.
    pub fn counted(label: u32) -> Dim {
        Dim::named(&format!("{ROUNDS}{label}"))
    }

    /// The first count of rounds that none of these sizes contains. Taking the first keeps the
    /// number of such symbols at the number of loops in one list.
    pub fn uncounted(sizes: impl IntoIterator<Item = Dim>) -> Dim {
        let mut taken = Vec::new();
        sizes.into_iter().for_each(|size| size.poly().symbols(&mut taken));
        let is_free = |label: &u32| {
            let name = format!("{ROUNDS}{label}");
            !taken.iter().any(|symbol| matches!(symbol, Symbol::Named(other) if **other == *name))
        };
        Dim::counted((0..).find(is_free).unwrap_or(u32::MAX))
    }

    /// Whether all symbols in this size are counts of rounds.
    pub fn is_counted(self) -> bool {
        let mut symbols = Vec::new();
        self.poly().symbols(&mut symbols);
        let counts =
            |symbol: &Symbol| matches!(symbol, Symbol::Named(name) if name.starts_with(ROUNDS));
        symbols.iter().all(counts)
    }

    /// The number, unless this is an expression.
    pub const fn known(self) -> Option<usize> {
        if self.0 < SYMBOLS { Some(self.0 as usize) } else { None }
    }

    /// The number. For an expression it is the hint, and the surrounding scope then pins the
    /// expression to it; without a scope it unwinds with an error, as formulas do.
    #[inline]
    pub fn value(self) -> usize {
        if self.0 < SYMBOLS { self.0 as usize } else { read(self) }
    }

    /// Whether this equals another size, as a question: for an expression the surrounding scope
    /// answers and records the answer.
    #[inline]
    pub fn equals(self, b: impl Into<Dim>) -> bool {
        let b = b.into();
        self == b || ((self.0 | b.0) >= SYMBOLS && decide(Relation::Equal, self, b))
    }

    /// Whether this is less than another size, as a question.
    #[inline]
    pub fn is_below(self, b: impl Into<Dim>) -> bool {
        asked(Relation::Less, self, b.into())
    }

    /// Whether this is not more than another size, as a question.
    #[inline]
    pub fn is_at_most(self, b: impl Into<Dim>) -> bool {
        asked(Relation::LessEqual, self, b.into())
    }

    /// Whether this certainly equals another size. It asks nothing, so nothing is recorded.
    #[inline]
    pub fn same(self, b: Dim) -> bool {
        self.0 == b.0 || ((self.0 | b.0) >= SYMBOLS && certainly_equal(self, b))
    }

    /// Whether this is a single symbol.
    pub fn is_symbol(self) -> bool {
        self.known().is_none() && self.poly().bare().is_some()
    }

    /// The symbols in it.
    pub fn symbols(self) -> Vec<Dim> {
        let mut symbols = Vec::new();
        self.poly().symbols(&mut symbols);
        symbols.into_iter().map(|symbol| Dim::of(Poly::symbol(symbol))).collect()
    }

    /// A key that sorts sizes, older expressions first, and finds them in tables: equal only for
    /// sizes of the same form. A size cannot be made from it.
    pub const fn key(self) -> u64 {
        self.0
    }

    /// The smaller size.
    #[must_use]
    pub fn min(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.min(y)),
            _ => Dim::of(self.poly().extreme(&b.poly(), false)),
        }
    }

    /// The larger size.
    #[must_use]
    pub fn max(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.max(y)),
            _ => Dim::of(self.poly().extreme(&b.poly(), true)),
        }
    }

    /// The quotient rounded up.
    #[must_use]
    pub fn div_ceil(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.div_ceil(y.max(1))),
            _ => (self + (b - Dim::ONE)) / b,
        }
    }

    /// The size that two axes broadcast to, if they do.
    pub fn joint(self, b: Dim) -> Option<Dim> {
        match (self.known(), b.known()) {
            _ if self.same(b) => Some(if b.known().is_some() { b } else { self }),
            (_, Some(1)) => Some(self),
            (Some(1), _) => Some(b),
            (Some(_), Some(_)) => None,
            _ => match (hint(self), hint(b)) {
                (Some(1), Some(n)) if n != 1 => self.equals(1).then_some(b),
                (Some(n), Some(1)) if n != 1 => b.equals(1).then_some(self),
                _ => self.equals(b).then_some(if b.known().is_some() { b } else { self }),
            },
        }
    }

    /// Whether an axis of this size can be broadcast to another.
    pub fn grows_to(self, b: Dim) -> bool {
        if self.same(b) || self.known() == Some(1) {
            return true;
        }
        match (self.known(), b.known()) {
            (Some(_), Some(_)) => false,
            _ if hint(self) == Some(1) && hint(b) != Some(1) => self.equals(1),
            _ => self.equals(b),
        }
    }

    /// The expression.
    pub(super) fn poly(self) -> Poly {
        match self.known() {
            Some(n) => Poly::from(n as i64),
            None => (*poly(self.id())).clone(),
        }
    }

    /// The id of the expression.
    pub(super) fn id(self) -> PolyId {
        self.0 - SYMBOLS
    }

    /// A computed size. Coefficients beyond the largest size are refused, because a clipped number
    /// would be a different size. Unwinds with an error, as formulas do.
    fn made(poly: Poly) -> Dim {
        let most = Dim::MOST as i64;
        if poly.terms().iter().any(|(_, n)| !(-most..=most).contains(n)) {
            let facts = format!("got {}", Dim::of(poly));
            error::throw(error::bad_value("size", "its numbers are too large", facts))
        }
        Dim::of(poly)
    }

    /// A size from an expression; a negative number becomes 0.
    pub(super) fn of(poly: Poly) -> Dim {
        if let Some(n) = poly.constant() {
            return Dim::new(n.max(0) as usize);
        }
        let is_large = poly.terms().len() > LARGEST || poly.depth() as usize > LARGEST;
        let dim = Dim(SYMBOLS + intern(poly));
        // A Python loop over an axis may build ever larger expressions, so a large one is pinned to
        // its hint.
        match is_large.then(|| pinned(dim)).flatten() {
            Some(n) => Dim::new(n),
            None => dim,
        }
    }
}

#[cold]
fn read(dim: Dim) -> usize {
    if let Some(n) = pinned(dim) {
        return n;
    }
    error::throw(error::unknown_size("size", dim))
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::new(n)
    }
}
impl Hash for Dim {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl Add for Dim {
    type Output = Dim;
    #[inline]
    fn add(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.saturating_add(y)),
            _ => Dim::made(self.poly().plus(&b.poly())),
        }
    }
}
impl Sub for Dim {
    type Output = Dim;
    /// Saturates at zero: a size is never negative.
    #[inline]
    fn sub(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.saturating_sub(y)),
            _ if b.is_at_most(self) => Dim::made(self.poly().minus(&b.poly())),
            _ => Dim::new(0),
        }
    }
}
impl Mul for Dim {
    type Output = Dim;
    #[inline]
    fn mul(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x.saturating_mul(y)),
            _ => Dim::made(self.poly().times(&b.poly())),
        }
    }
}
impl Div for Dim {
    type Output = Dim;
    /// Rounds down; a divisor of zero counts as 1.
    fn div(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x / y.max(1)),
            (_, None) if b.equals(0) => self,
            _ => Dim::of(self.poly().floor(&b.poly())),
        }
    }
}
impl Rem for Dim {
    type Output = Dim;
    /// A divisor of zero counts as 1.
    fn rem(self, b: Dim) -> Dim {
        match (self.known(), b.known()) {
            (Some(x), Some(y)) => Dim::new(x % y.max(1)),
            (_, None) if b.equals(0) => Dim::new(0),
            _ => Dim::of(self.poly().rem(&b.poly())),
        }
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
