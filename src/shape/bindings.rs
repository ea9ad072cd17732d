//! Sizes bound to symbols.

use std::cell::RefCell;

use rustc_hash::FxHashMap;

use super::Shape;
use super::dim::Dim;
use super::poly::Symbol;
use super::scope::Constraint;
use super::table::PolyId;

/// Sizes for symbols: numbers, or expressions over other symbols.
#[derive(Debug, Default)]
pub struct Bindings {
    sizes: FxHashMap<Symbol, Dim>,
    known: RefCell<FxHashMap<PolyId, Dim>>,
}

impl Bindings {
    /// Sizes for some symbols.
    pub fn of(pairs: impl IntoIterator<Item = (Dim, Dim)>) -> Bindings {
        let mut bindings = Bindings::default();
        pairs.into_iter().for_each(|(symbol, size)| bindings.bind(symbol, size));
        bindings
    }

    /// Binds a symbol, replacing an earlier binding. An expression is not a symbol and is ignored.
    pub fn bind(&mut self, symbol: Dim, size: Dim) {
        if let (None, Some(symbol)) = (symbol.known(), symbol.poly().bare()) {
            self.sizes.insert(symbol, size);
            self.known.borrow_mut().clear();
        }
    }

    /// Binds the symbols that stand alone in a shape to the sizes of another shape of the same
    /// rank. Fails with the first axis that does not fit: another number, or a symbol that is bound
    /// to another size. The axes behind it are bound all the same. Expressions are skipped:
    /// [`Bindings::fits`] checks the sizes that they must have.
    pub fn fit(&mut self, pattern: &Shape, sizes: &Shape) -> Result<(), usize> {
        let mut misfit = Ok(());
        for (axis, (&want, &got)) in pattern.dims().iter().zip(sizes.dims()).enumerate() {
            let bound = match want.known() {
                Some(_) => Some(want),
                None => match want.poly().bare() {
                    Some(symbol) => self.sizes.get(&symbol).copied(),
                    None => continue,
                },
            };
            match bound {
                Some(bound) if !bound.same(got) => misfit = misfit.and(Err(axis)),
                Some(_) => {}
                None => self.bind(want, got),
            }
        }
        misfit
    }

    /// Whether a shape with its symbols bound equals another.
    pub fn fits(&self, pattern: &Shape, sizes: &Shape) -> bool {
        pattern.map(|dim| self.resolve(dim)).same(sizes)
    }

    /// A size with its symbols replaced; unbound symbols stay.
    pub fn resolve(&self, dim: Dim) -> Dim {
        if dim.known().is_some() {
            return dim;
        }
        if let Some(&found) = self.known.borrow().get(&dim.id()) {
            return found;
        }
        let of = |symbol: &Symbol| self.sizes.get(symbol).map(|size| size.poly());
        let found = Dim::of(dim.poly().replace(&of, &mut FxHashMap::default()));
        self.known.borrow_mut().insert(dim.id(), found);
        found
    }

    /// The value of a size, if all its symbols are bound to numbers.
    pub fn size(&self, dim: Dim) -> Option<usize> {
        self.resolve(dim).known()
    }

    /// The first constraint that does not hold. A constraint with a symbol that is not bound to a
    /// number is skipped.
    pub fn broken(&self, constraints: &[Constraint]) -> Option<usize> {
        let of = |symbol: &Symbol| self.sizes.get(symbol)?.known().map(|n| n as i64);
        let mut known = FxHashMap::default();
        constraints.iter().position(|constraint| constraint.holds(&of, &mut known) == Some(false))
    }
}
