//! Polynomials with integer coefficients, in a normal form: equal polynomials have the same form.
//!
//! An atom is a symbol, or an operation that is not polynomial (floor division, remainder, minimum,
//! maximum) on two polynomials. Polynomials and atoms are interned (see [`super::table`]), so an
//! integer stands for each. Every scope numbers its symbols from the start, which keeps the table
//! small.

use std::cmp::Ordering;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::table::{self, AtomId, PolyId, atom, intern, intern_atom, poly};

/// The name of an unknown size.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Symbol {
    /// `s0`, `s1`, …
    Numbered(u32),
    /// A declared name
    Named(Arc<str>),
}

/// A factor of a monomial.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// An unknown size
    Symbol(Symbol),
    /// A quotient rounded down
    Floor(PolyId, PolyId),
    /// The remainder of that
    Rem(PolyId, PolyId),
    /// The smaller
    Min(PolyId, PolyId),
    /// The larger
    Max(PolyId, PolyId),
}

/// A product of atoms, sorted. A repeated atom is a power; the empty product is 1.
pub type Monomial = SmallVec<[AtomId; 2]>;

/// A sum of monomials with coefficients, largest monomial first, without zero coefficients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Poly {
    terms: SmallVec<[(Monomial, i64); 2]>,
}

/// Larger degrees first, then lexicographically: multiplication by a monomial keeps this order.
fn order(a: &Monomial, b: &Monomial) -> Ordering {
    b.len().cmp(&a.len()).then_with(|| a.cmp(b))
}

/// The quotient of two monomials, if all the divisor's atoms occur in the first.
fn without(a: &Monomial, b: &Monomial) -> Option<Monomial> {
    let mut rest = a.clone();
    for atom in b {
        let place = rest.iter().position(|x| x == atom)?;
        rest.remove(place);
    }
    Some(rest)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.saturating_abs() } else { gcd(b, a % b) }
}

impl From<i64> for Poly {
    fn from(n: i64) -> Poly {
        Poly::sum([(Monomial::new(), n)])
    }
}

impl Poly {
    /// A symbol.
    pub fn symbol(symbol: Symbol) -> Poly {
        Poly::of(Atom::Symbol(symbol))
    }

    fn of(atom: Atom) -> Poly {
        Poly { terms: SmallVec::from_iter([(SmallVec::from_slice(&[intern_atom(atom)]), 1)]) }
    }

    fn sum(terms: impl IntoIterator<Item = (Monomial, i64)>) -> Poly {
        let mut all: SmallVec<[(Monomial, i64); 2]> = terms.into_iter().collect();
        all.sort_by(|a, b| order(&a.0, &b.0));
        let mut out: SmallVec<[(Monomial, i64); 2]> = SmallVec::new();
        for (monomial, n) in all {
            match out.last_mut() {
                Some(last) if last.0 == monomial => last.1 = last.1.saturating_add(n),
                _ => out.push((monomial, n)),
            }
        }
        out.retain(|(_, n)| *n != 0);
        // A saturated coefficient must have a negation.
        out.iter_mut().for_each(|(_, n)| *n = (*n).max(-i64::MAX));
        Poly { terms: out }
    }

    /// The terms, the largest first.
    pub fn terms(&self) -> &[(Monomial, i64)] {
        &self.terms
    }

    /// The number, if the polynomial is one.
    pub fn constant(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(monomial, n)] if monomial.is_empty() => Some(*n),
            _ => None,
        }
    }

    /// The term without atoms.
    fn rest(&self) -> i64 {
        self.terms.last().filter(|(monomial, _)| monomial.is_empty()).map_or(0, |(_, n)| *n)
    }

    /// The symbol, if the polynomial is a single one.
    pub fn bare(&self) -> Option<Symbol> {
        match self.single()? {
            Atom::Symbol(symbol) => Some(symbol),
            Atom::Floor(..) | Atom::Rem(..) | Atom::Min(..) | Atom::Max(..) => None,
        }
    }

    /// The atom, if the polynomial is a single one.
    fn single(&self) -> Option<Atom> {
        match self.terms.as_slice() {
            [(monomial, 1)] if monomial.len() == 1 => Some(atom(monomial[0])),
            _ => None,
        }
    }

    /// The nesting depth of operations that are not polynomial.
    pub fn depth(&self) -> u32 {
        table::depth(self)
    }

    /// The atoms that occur, each as often as it occurs.
    pub fn atoms(&self) -> impl Iterator<Item = AtomId> + '_ {
        self.terms.iter().flat_map(|(monomial, _)| monomial.iter().copied())
    }

    /// Whether the polynomial is a single atom.
    pub fn is_single(&self) -> bool {
        matches!(self.terms.as_slice(), [(monomial, 1)] if monomial.len() == 1)
    }

    /// `self + b`.
    pub fn plus(&self, b: &Poly) -> Poly {
        Poly::sum(self.terms.iter().chain(&b.terms).cloned())
    }

    /// `self n`.
    pub fn scaled(&self, n: i64) -> Poly {
        Poly::sum(self.terms.iter().map(|(monomial, x)| (monomial.clone(), x.saturating_mul(n))))
    }

    /// `self - b`.
    pub fn minus(&self, b: &Poly) -> Poly {
        self.plus(&b.scaled(-1))
    }

    /// `self b`.
    pub fn times(&self, b: &Poly) -> Poly {
        let product = |(x, n): &(Monomial, i64), (y, m): &(Monomial, i64)| {
            let mut monomial: Monomial = x.iter().chain(y).copied().collect();
            monomial.sort_unstable();
            (monomial, n.saturating_mul(*m))
        };
        Poly::sum(self.terms.iter().flat_map(|x| b.terms.iter().map(move |y| product(x, y))))
    }

    /// The polynomial whose product with `b` is `self`, if there is one, by long division.
    fn exact(&self, b: &Poly) -> Option<Poly> {
        let (lead, n) = b.terms.first()?;
        let (mut left, mut quotient) = (self.clone(), Poly::default());
        while let Some((monomial, m)) = left.terms.first() {
            if m % n != 0 {
                return None;
            }
            let part = Poly::sum([(without(monomial, lead)?, m / n)]);
            left = left.minus(&part.times(b));
            quotient = quotient.plus(&part);
        }
        Some(quotient)
    }

    /// `⌊self / b⌋`; a divisor below 1 counts as 1.
    pub fn floor(&self, b: &Poly) -> Poly {
        let Some(n) = b.constant() else {
            return self
                .exact(b)
                .unwrap_or_else(|| Poly::of(Atom::Floor(intern(self.clone()), intern(b.clone()))));
        };
        let n = n.max(1);
        // Terms whose coefficient the divisor divides leave the floor.
        let whole = |(monomial, c): &(Monomial, i64)| {
            (c % n == 0 || monomial.is_empty()).then(|| (monomial.clone(), c.div_euclid(n)))
        };
        let outside = Poly::sum(self.terms.iter().filter_map(whole));
        let inside = self.minus(&outside.scaled(n));
        if inside.constant().is_some() {
            return outside;
        }
        let r = inside.rest();
        // ⌊(⌊p / m⌋ + r) / n⌋ = ⌊(p + r m) / (m n)⌋
        if let Some(Atom::Floor(p, m)) = inside.minus(&r.into()).single()
            && let Some(m) = poly(m).constant()
        {
            let inner = poly(p).plus(&r.saturating_mul(m).into());
            return outside.plus(&inner.floor(&m.saturating_mul(n).into()));
        }
        // ⌊(g p + r) / (g m)⌋ = ⌊(p + ⌊r / g⌋) / m⌋
        let g = inside.terms.iter().filter(|t| !t.0.is_empty()).fold(n, |g, t| gcd(g, t.1));
        let reduced = Poly::sum(inside.terms.iter().map(|(x, c)| (x.clone(), c.div_euclid(g))));
        let divisor = Poly::from(n / g);
        if g > 1 {
            return outside.plus(&reduced.floor(&divisor));
        }
        outside.plus(&Poly::of(Atom::Floor(intern(reduced), intern(divisor))))
    }

    /// `self - ⌊self / b⌋ b`; a divisor below 1 counts as 1.
    pub fn rem(&self, b: &Poly) -> Poly {
        let Some(n) = b.constant() else {
            return match self.exact(b) {
                Some(_) => Poly::default(),
                None => Poly::of(Atom::Rem(intern(self.clone()), intern(b.clone()))),
            };
        };
        let n = n.max(1);
        let reduced = Poly::sum(self.terms.iter().map(|(x, c)| (x.clone(), c.rem_euclid(n))));
        match reduced.single() {
            _ if reduced.constant().is_some() => reduced,
            Some(Atom::Rem(_, m)) if poly(m).constant() == Some(n) => reduced,
            _ => Poly::of(Atom::Rem(intern(reduced), intern(n.into()))),
        }
    }

    /// The larger of two, or the smaller.
    pub fn extreme(&self, b: &Poly, larger: bool) -> Poly {
        let difference = self.minus(b);
        let is_above = |p: &Poly| p.least(&|_| 0).is_some_and(|n| n >= 0);
        match (is_above(&difference), is_above(&difference.scaled(-1))) {
            (true, _) => return if larger { self.clone() } else { b.clone() },
            (_, true) => return if larger { b.clone() } else { self.clone() },
            (false, false) => {}
        }
        let (x, y) = (intern(self.clone()), intern(b.clone()));
        let (x, y) = (x.min(y), x.max(y));
        Poly::of(if larger { Atom::Max(x, y) } else { Atom::Min(x, y) })
    }

    /// A lower bound of the value, given lower bounds of the symbols.
    pub fn least(&self, of: &dyn Fn(&Symbol) -> i64) -> Option<i64> {
        let mut sum = 0_i64;
        for (monomial, n) in &self.terms {
            let mut product = *n;
            for &id in monomial {
                let least = least_atom(&atom(id), of)?;
                if *n < 0 || (least < 0 && monomial.len() > 1) {
                    return None;
                }
                product = product.saturating_mul(least);
            }
            sum = sum.saturating_add(product);
        }
        Some(sum)
    }

    /// The value, given the values of symbols; `known` caches the values of subexpressions.
    pub fn value(
        &self,
        of: &dyn Fn(&Symbol) -> Option<i64>,
        known: &mut FxHashMap<PolyId, i64>,
    ) -> Option<i64> {
        let mut sum = 0_i64;
        for (monomial, n) in &self.terms {
            let mut product = *n;
            for &id in monomial {
                product = product.saturating_mul(atom_value(&atom(id), of, known)?);
            }
            sum = sum.saturating_add(product);
        }
        Some(sum)
    }

    /// The polynomial with some symbols replaced by polynomials.
    pub fn replace(
        &self,
        of: &dyn Fn(&Symbol) -> Option<Poly>,
        known: &mut FxHashMap<PolyId, Poly>,
    ) -> Poly {
        let mut sum = Poly::default();
        for (monomial, n) in &self.terms {
            let mut product = Poly::from(*n);
            for &id in monomial {
                product = product.times(&replace_atom(atom(id), of, known));
            }
            sum = sum.plus(&product);
        }
        sum
    }

    /// Adds the symbols that occur to `out`.
    pub fn symbols(&self, out: &mut Vec<Symbol>) {
        for &id in self.terms.iter().flat_map(|(monomial, _)| monomial) {
            match atom(id) {
                Atom::Symbol(symbol) if out.contains(&symbol) => {}
                Atom::Symbol(symbol) => out.push(symbol),
                Atom::Floor(a, b) | Atom::Rem(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                    poly(a).symbols(out);
                    poly(b).symbols(out);
                }
            }
        }
    }
}

fn least_atom(atom: &Atom, of: &dyn Fn(&Symbol) -> i64) -> Option<i64> {
    let least = |id: PolyId| poly(id).least(of);
    match *atom {
        Atom::Symbol(ref symbol) => Some(of(symbol)),
        Atom::Floor(a, b) => match (least(a)?, poly(b).constant()) {
            (a, Some(b)) => Some(a.div_euclid(b.max(1))),
            (a, None) => (a >= 0).then_some(0),
        },
        Atom::Rem(..) => Some(0),
        Atom::Min(a, b) => Some(least(a)?.min(least(b)?)),
        Atom::Max(a, b) => match (least(a), least(b)) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        },
    }
}

fn atom_value(
    atom: &Atom,
    of: &dyn Fn(&Symbol) -> Option<i64>,
    known: &mut FxHashMap<PolyId, i64>,
) -> Option<i64> {
    let mut value = |id: PolyId| match known.get(&id) {
        Some(&n) => Some(n),
        None => {
            let n = poly(id).value(of, known)?;
            known.insert(id, n);
            Some(n)
        }
    };
    Some(match *atom {
        Atom::Symbol(ref symbol) => of(symbol)?,
        Atom::Floor(a, b) => value(a)?.div_euclid(value(b)?.max(1)),
        Atom::Rem(a, b) => value(a)?.rem_euclid(value(b)?.max(1)),
        Atom::Min(a, b) => value(a)?.min(value(b)?),
        Atom::Max(a, b) => value(a)?.max(value(b)?),
    })
}

fn replace_atom(
    atom: Atom,
    of: &dyn Fn(&Symbol) -> Option<Poly>,
    known: &mut FxHashMap<PolyId, Poly>,
) -> Poly {
    let mut replaced = |id: PolyId| match known.get(&id) {
        Some(found) => found.clone(),
        None => {
            let found = poly(id).replace(of, known);
            known.insert(id, found.clone());
            found
        }
    };
    match atom {
        Atom::Symbol(symbol) => of(&symbol).unwrap_or_else(|| Poly::symbol(symbol)),
        Atom::Floor(a, b) => replaced(a).floor(&replaced(b)),
        Atom::Rem(a, b) => replaced(a).rem(&replaced(b)),
        Atom::Min(a, b) => replaced(a).extreme(&replaced(b), false),
        Atom::Max(a, b) => replaced(a).extreme(&replaced(b), true),
    }
}
