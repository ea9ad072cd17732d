//! Scopes: the values of symbols, and the questions that were asked about them.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::dim::Dim;
use super::poly::{Poly, Symbol};
use super::table::{Keeper, Keeping, PolyId};
use crate::site::Site;

/// How two sizes compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// `a < b`
    Less,
    /// `a <= b`
    LessEqual,
}

impl Relation {
    /// Whether it holds, given `b - a`.
    fn holds(self, difference: i64) -> bool {
        match self {
            Relation::Equal => difference == 0,
            Relation::NotEqual => difference != 0,
            Relation::Less => difference > 0,
            Relation::LessEqual => difference >= 0,
        }
    }

    /// The answer where nothing is known of the symbols: two different expressions are presumed
    /// unequal, and a size is presumed large enough.
    fn presumed(self) -> bool {
        matches!(self, Relation::NotEqual | Relation::LessEqual)
    }
}

/// A condition on sizes on which a graph relies.
#[derive(Clone, Copy, Debug)]
pub struct Constraint {
    /// The relation
    pub relation: Relation,
    /// The left size
    pub left: Dim,
    /// The right size
    pub right: Dim,
    /// The line that asked
    pub site: Site,
}

impl Constraint {
    /// `left relation right` if `truth`, else its negation, in normal form.
    fn new(relation: Relation, left: Dim, right: Dim, truth: bool, site: Site) -> Constraint {
        let (relation, left, right) = match (relation, truth) {
            (_, true) => (relation, left, right),
            (Relation::Equal, false) => (Relation::NotEqual, left, right),
            (Relation::NotEqual, false) => (Relation::Equal, left, right),
            (Relation::Less, false) => (Relation::LessEqual, right, left),
            (Relation::LessEqual, false) => (Relation::Less, right, left),
        };
        let is_symmetric = matches!(relation, Relation::Equal | Relation::NotEqual);
        let (left, right) = match is_symmetric && left.known().is_some() {
            true => (right, left),
            false => (left, right),
        };
        Constraint { relation, left, right, site }
    }

    /// `right - left`.
    fn difference(&self) -> Poly {
        self.right.poly().minus(&self.left.poly())
    }

    /// The symbols in it.
    pub fn symbols(&self) -> Vec<Dim> {
        Dim::of(self.difference()).symbols()
    }

    /// Whether it holds for these values of symbols; `None` where some are missing.
    pub(super) fn holds(
        &self,
        of: &dyn Fn(&Symbol) -> Option<i64>,
        known: &mut FxHashMap<PolyId, i64>,
    ) -> Option<bool> {
        Some(self.relation.holds(self.difference().value(of, known)?))
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.relation {
            Relation::Equal => "==",
            Relation::NotEqual => "!=",
            Relation::Less => "<",
            Relation::LessEqual => "<=",
        };
        write!(f, "{} {sign} {}", self.left, self.right)
    }
}

/// The knowledge of a scope about a symbol.
struct Known {
    /// The hint: the size that the symbol has in the current call; `None` until it is set
    hint: Option<i64>,
    /// A lower bound of the symbol
    least: i64,
    declared: bool,
}

#[derive(Default)]
struct State {
    /// The number of the next symbol
    next: u32,
    symbols: FxHashMap<Symbol, Known>,
    constraints: Vec<Constraint>,
    /// How many questions were answered by hints or by presumption, not by certainty
    asked: u64,
    seen: FxHashSet<(Relation, u64, u64)>,
    /// Sizes that are equal by a constraint, as a union-find forest: each size points towards the
    /// root that stands for its class
    equal: FxHashMap<u64, Dim>,
    /// Hints of expressions, cached
    values: FxHashMap<PolyId, i64>,
    site: Site,
}

/// Symbols with their hints, and the constraints found while the scope is entered.
///
/// Scopes nest: symbols of outer scopes keep their meaning, and a constraint belongs to the
/// innermost scope that owns one of its symbols. A scope may be entered again, also on another
/// thread: passes over a graph run in the scope of its trace.
///
/// Expressions that are made while a scope is entered live as long as the scope. A scope made
/// inside another one shares its keeper, because its expressions may be those of the surrounding
/// graph.
#[derive(Clone)]
pub struct Scope(Arc<Mutex<State>>, Arc<Keeper>);

thread_local! {
    static ENTERED: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// While this lives, the thread is in a scope.
pub struct Entered {
    _keeping: Keeping,
    stays: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.with(|scopes| scopes.borrow_mut().pop());
    }
}

/// The surrounding scopes, innermost first.
fn around() -> Vec<Scope> {
    ENTERED.with(|scopes| scopes.borrow().iter().rev().cloned().collect())
}

impl Default for Scope {
    fn default() -> Scope {
        Scope::new()
    }
}

impl Scope {
    /// A scope without symbols. The numbers of its symbols continue those of the surrounding scope.
    pub fn new() -> Scope {
        let next = around().first().map_or(0, |scope| scope.0.lock().next);
        let keeper = Keeper::entered().unwrap_or_else(Keeper::forever);
        Scope(Arc::new(Mutex::new(State { next, ..State::default() })), keeper)
    }

    /// The same, for a list whose expressions are used nowhere else: they are freed with the scope.
    pub fn owner() -> Scope {
        let scope = Scope::new();
        match Keeper::entered() {
            Some(_) => scope,
            None => Scope(scope.0, Keeper::new()),
        }
    }

    /// Whether the thread is in a scope.
    pub fn is_inside() -> bool {
        ENTERED.with(|scopes| !scopes.borrow().is_empty())
    }

    /// Enters the scope until the guard is dropped. Guards are dropped in reverse order.
    pub fn enter(&self) -> Entered {
        ENTERED.with(|scopes| scopes.borrow_mut().push(self.clone()));
        Entered { _keeping: self.1.enter(), stays: PhantomData }
    }

    /// The keeper of its expressions. Entered alone, the keeper keeps the expressions that are
    /// made, but no question is asked of the scope.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.1
    }

    /// Runs something inside.
    pub fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        f()
    }

    /// A new symbol. Without a hint it takes the first size that it is compared with.
    pub fn symbol(&self, hint: Option<usize>) -> Dim {
        let i = {
            let mut state = self.0.lock();
            state.next += 1;
            state.next - 1
        };
        let dim = Dim::numbered(i);
        self.add(dim, hint, false);
        dim
    }

    /// Adds an existing symbol, such as one of a list that was read from text. New symbols are
    /// numbered after it.
    pub fn admit(&self, symbol: Dim, hint: Option<usize>) {
        if let (None, Some(Symbol::Numbered(i))) = (symbol.known(), symbol.poly().bare()) {
            let mut state = self.0.lock();
            state.next = state.next.max(i + 1);
        }
        self.add(symbol, hint, false);
    }

    /// A declared symbol; the same name is the same symbol.
    pub fn declare(&self, name: &str, hint: Option<usize>) -> Dim {
        let dim = Dim::named(name);
        self.add(dim, hint, true);
        dim
    }

    fn add(&self, dim: Dim, hint: Option<usize>, declared: bool) {
        let Some(symbol) = dim.poly().bare() else { return };
        let hint = hint.map(|n| n as i64);
        self.0.lock().symbols.entry(symbol).or_insert(Known { hint, least: 0, declared });
    }

    /// If exactly one symbol of an expression has no hint, gives it the hint with which the
    /// expression equals `n`, if there is one. Nothing is asked.
    pub fn suppose(&self, dim: Dim, n: usize) {
        self.run(|| {
            let difference = Dim::new(n).poly().minus(&dim.poly());
            let mut symbols = Vec::new();
            difference.symbols(&mut symbols);
            settle(&around(), &difference, &symbols, 0);
        });
    }

    /// Attributes the constraints that follow to a line.
    pub fn at(&self, site: Site) {
        self.0.lock().site = site;
    }

    /// The constraints found so far, in order.
    pub fn constraints(&self) -> Vec<Constraint> {
        self.0.lock().constraints.clone()
    }

    /// How many questions were answered by hints or by presumption, not by certainty.
    pub fn asked(&self) -> u64 {
        self.0.lock().asked
    }

    /// Whether a symbol of this scope was declared.
    pub fn is_declared(&self, symbol: Dim) -> bool {
        let state = self.0.lock();
        symbol.poly().bare().and_then(|s| state.symbols.get(&s)).is_some_and(|s| s.declared)
    }

    /// The symbols of this scope with their hints.
    pub fn symbols(&self) -> Vec<(Dim, Option<usize>)> {
        let state = self.0.lock();
        let pair = |(symbol, known): (&Symbol, &Known)| {
            (Dim::of(Poly::symbol(symbol.clone())), known.hint.map(|n| n.max(0) as usize))
        };
        let mut all: Vec<_> = state.symbols.iter().map(pair).collect();
        all.sort_by_key(|(dim, _)| dim.key());
        all
    }

    fn owns(&self, symbol: &Symbol) -> bool {
        self.0.lock().symbols.contains_key(symbol)
    }
}

/// The hint of an expression in the surrounding scopes; for a number, the number.
pub fn hint(dim: Dim) -> Option<usize> {
    if let Some(n) = dim.known() {
        return Some(n);
    }
    let scopes = around();
    let inner = scopes.first()?;
    let found = inner.0.lock().values.get(&dim.id()).copied();
    if let Some(n) = found {
        return Some(n.max(0) as usize);
    }
    let n = at_hand(&scopes, &dim.poly())?;
    inner.0.lock().values.insert(dim.id(), n);
    Some(n.max(0) as usize)
}

fn at_hand(scopes: &[Scope], poly: &Poly) -> Option<i64> {
    let hint = |symbol: &Symbol| {
        scopes
            .iter()
            .find_map(|scope| scope.0.lock().symbols.get(symbol).map(|known| known.hint))?
    };
    poly.value(&hint, &mut FxHashMap::default())
}

/// Whether two sizes are equal by their form or by a recorded constraint.
pub(super) fn certainly_equal(a: Dim, b: Dim) -> bool {
    let scopes = around();
    !scopes.is_empty() && root(&scopes, a).key() == root(&scopes, b).key()
}

/// The root that stands for all sizes equal to this one.
fn root(scopes: &[Scope], mut dim: Dim) -> Dim {
    let parent =
        |dim: Dim| scopes.iter().find_map(|scope| scope.0.lock().equal.get(&dim.key()).copied());
    while let Some(next) = parent(dim) {
        dim = next;
    }
    dim
}

/// A comparison of any two sizes.
pub(super) fn asked(relation: Relation, a: Dim, b: Dim) -> bool {
    match (a.known(), b.known()) {
        (Some(x), Some(y)) => relation.holds(y as i64 - x as i64),
        _ => decide(relation, a, b),
    }
}

/// A comparison in which at least one side is an expression.
#[cold]
pub(super) fn decide(relation: Relation, a: Dim, b: Dim) -> bool {
    let scopes = around();
    let difference = b.poly().minus(&a.poly());
    if let Some(truth) = certain(&scopes, relation, &difference) {
        return truth;
    }
    if let (Relation::Equal, true) = (relation, certainly_equal(a, b)) {
        return true;
    }
    let mut symbols = Vec::new();
    difference.symbols(&mut symbols);
    let owner = |scope: &&Scope| symbols.iter().any(|symbol| scope.owns(symbol));
    let Some(scope) = scopes.iter().find(owner) else { return relation.presumed() };
    if relation == Relation::Equal {
        settle(&scopes, &difference, &symbols, 2);
    }
    let truth = match at_hand(&scopes, &difference) {
        Some(n) => relation.holds(n),
        // Without hints, sizes are presumed equal, unless one of them is the number 0 or 1.
        None if relation == Relation::Equal => !matches!(a.known().or(b.known()), Some(0 | 1)),
        None => relation.presumed(),
    };
    scope.record(&scopes, relation, a, b, truth);
    truth
}

/// The answer, given `b - a`, if it is the same for all values of the symbols.
fn certain(scopes: &[Scope], relation: Relation, difference: &Poly) -> Option<bool> {
    let symbol = |symbol: &Symbol| {
        let known = |scope: &Scope| scope.0.lock().symbols.get(symbol).map(|known| known.least);
        scopes.iter().find_map(known).unwrap_or(0)
    };
    let above = difference.least(&symbol).unwrap_or(i64::MIN);
    let below = difference.scaled(-1).least(&symbol).unwrap_or(i64::MIN);
    match relation {
        Relation::Equal | Relation::NotEqual => {
            let equal = relation == Relation::Equal;
            match difference.constant() {
                Some(n) => Some((n == 0) == equal),
                None => (above > 0 || below > 0).then_some(!equal),
            }
        }
        Relation::Less if above > 0 => Some(true),
        Relation::Less => (below >= 0).then_some(false),
        Relation::LessEqual if above >= 0 => Some(true),
        Relation::LessEqual => (below > 0).then_some(false),
    }
}

/// If exactly one symbol has no hint, gives it the hint that makes the difference zero, unless that
/// is below `least`.
fn settle(scopes: &[Scope], difference: &Poly, symbols: &[Symbol], least: i64) {
    let mut open = None;
    for symbol in symbols {
        let Some(scope) = scopes.iter().find(|scope| scope.owns(symbol)) else { return };
        let is_open = scope.0.lock().symbols.get(symbol).is_some_and(|known| known.hint.is_none());
        match (is_open, &open) {
            (true, Some(_)) => return,
            (true, None) => open = Some((scope, symbol)),
            (false, _) => {}
        }
    }
    let Some((scope, symbol)) = open else { return };
    let with = |n: i64| {
        let zero = |s: &Symbol| if s == symbol { Some(Poly::from(n)) } else { None };
        at_hand(scopes, &difference.replace(&zero, &mut FxHashMap::default()))
    };
    let (Some(at_zero), Some(at_one)) = (with(0), with(1)) else { return };
    let slope = at_one.saturating_sub(at_zero);
    let Some(n) = at_zero.checked_neg().and_then(|rest| {
        let n = rest.checked_div(slope)?;
        (rest == n.checked_mul(slope)? && with(n) == Some(0)).then_some(n)
    }) else {
        return;
    };
    let mut state = scope.0.lock();
    if let (true, Some(known)) = (n >= least, state.symbols.get_mut(symbol)) {
        known.hint = Some(n);
    }
}

/// The hint of a size, after pinning the size to it.
pub(super) fn pinned(dim: Dim) -> Option<usize> {
    let n = hint(dim)?;
    decide(Relation::Equal, dim, Dim::new(n)).then_some(n)
}

impl Scope {
    fn record(&self, scopes: &[Scope], relation: Relation, a: Dim, b: Dim, truth: bool) {
        let (left, right) = (root(scopes, a), root(scopes, b));
        let mut state = self.0.lock();
        state.asked += 1;
        let constraint = Constraint::new(relation, a, b, truth, state.site);
        let key = (constraint.relation, constraint.left.key(), constraint.right.key());
        if !state.seen.insert(key) {
            return;
        }
        state.constraints.push(constraint);
        if constraint.relation == Relation::Equal && left.key() != right.key() {
            // A number is the root rather than an expression, an older expression rather than a
            // newer one.
            let (old, new) = if left.key() < right.key() { (left, right) } else { (right, left) };
            state.equal.insert(new.key(), old);
        }
        state.learn(&constraint);
    }
}

impl State {
    /// Raises the lower bound of a symbol where a constraint implies it.
    fn learn(&mut self, constraint: &Constraint) {
        let difference = constraint.difference();
        // `right - left = sign symbol + c`
        for sign in [1, -1] {
            let scaled = difference.scaled(sign);
            let c = match scaled.terms().last() {
                Some((monomial, c)) if monomial.is_empty() => *c,
                _ => 0,
            };
            let Some(symbol) = scaled.minus(&c.into()).bare() else { continue };
            let Some(known) = self.symbols.get_mut(&symbol) else { continue };
            known.least = match (constraint.relation, sign) {
                (Relation::Equal, _) => known.least.max(-c),
                (Relation::NotEqual, _) if known.least == -c => 1_i64.saturating_sub(c),
                (Relation::Less, 1) => known.least.max(1_i64.saturating_sub(c)),
                (Relation::LessEqual, 1) => known.least.max(-c),
                _ => known.least,
            };
        }
    }
}
