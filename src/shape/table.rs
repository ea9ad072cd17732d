//! The intern table of size expressions: a code for each, and who retains it.
//!
//! Polynomials and atoms are interned, so equal ones have equal ids. An id is given out once in the
//! life of the process: the id of a freed expression is refused, and never read as another
//! expression. An entry lives as long as a larger entry contains it, or a keeper holds it. Keepers
//! belong to the owners of lists: the scope of a graph, of a captured function or of a session's
//! plan keeps the expressions that are made or found while it is entered, and a size object of the
//! user's keeps its own expression.
//!
//! Expressions that are made where no keeper is entered stay forever, and so do those that contain
//! counts of rounds: bodies of control flow go from list to list and onto the tape, and nothing
//! there says who keeps their sizes. There are few of these: counts are numbered anew in every list
//! (`Dim::uncounted`), and sizes of eager code are numbers.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::dim::{Dim, ROUNDS};
use super::poly::{Atom, Poly, Symbol};
use crate::error;
use crate::fork::Lazy;

/// The id of a polynomial.
pub type PolyId = u64;
/// The id of an atom.
pub type AtomId = u64;

/// The keeper of entries that stay forever.
const FOREVER: u64 = u64::MAX;

/// The numbered symbols below this one stay forever, because every scope uses them.
const COMMON: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Poly(PolyId),
    Atom(AtomId),
}

struct Entry<T> {
    what: T,
    /// How many keepers and larger entries need it
    needs: usize,
    /// The keeper that asked for it last
    last: u64,
    /// Whether it contains counts of rounds
    counts: bool,
}

impl<T> Entry<T> {
    fn new(what: T, stays: bool) -> Entry<T> {
        Entry { what, needs: usize::from(stays), last: 0, counts: false }
    }
}

#[derive(Default)]
struct Table {
    /// The latest id
    latest: u64,
    polys: FxHashMap<PolyId, Entry<Arc<Poly>>>,
    ids: FxHashMap<Arc<Poly>, PolyId>,
    /// Atoms, each with its nesting depth of operations that are not polynomial
    atoms: FxHashMap<AtomId, Entry<(Atom, u32)>>,
    atom_ids: FxHashMap<Atom, AtomId>,
    kept: FxHashMap<u64, FxHashSet<Item>>,
}

static TABLE: Lazy<Mutex<Table>> = Lazy::new(Default::default);

thread_local! {
    static ENTERED: RefCell<Vec<Arc<Keeper>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps expressions alive as long as it lives.
#[derive(Debug)]
pub struct Keeper(u64);

/// While this lives, one keeper keeps the expressions that the thread makes.
pub struct Keeping(PhantomData<*const ()>);

impl Keeper {
    fn number() -> u64 {
        static LATEST: AtomicU64 = AtomicU64::new(0);
        LATEST.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A keeper that keeps nothing yet.
    pub fn new() -> Arc<Keeper> {
        Arc::new(Keeper(Keeper::number()))
    }

    /// The keeper that is entered. A nested scope shares it, because expressions made inside may be
    /// used outside.
    pub fn entered() -> Option<Arc<Keeper>> {
        ENTERED.with(|keepers| keepers.borrow().last().cloned())
    }

    /// A keeper whose expressions stay forever.
    pub fn forever() -> Arc<Keeper> {
        Arc::new(Keeper(FOREVER))
    }

    /// Enters the keeper until the guard is dropped. Guards are dropped in reverse order.
    pub fn enter(self: &Arc<Keeper>) -> Keeping {
        ENTERED.with(|keepers| keepers.borrow_mut().push(self.clone()));
        Keeping(PhantomData)
    }

    /// Keeps the expression that a size is.
    pub fn keep(&self, dim: Dim) {
        if dim.known().is_none() && !TABLE.lock().keep(self.0, Item::Poly(dim.id())) {
            gone()
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.0 != FOREVER {
            TABLE.lock().leave(self.0);
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        ENTERED.with(|keepers| keepers.borrow_mut().pop());
    }
}

/// A size that keeps its own expression alive.
#[derive(Debug)]
pub struct Retained(Option<PolyId>);

impl Retained {
    /// Keeps the expression that a size is.
    pub fn new(dim: Dim) -> Retained {
        if dim.known().is_some() {
            return Retained(None);
        }
        match TABLE.lock().polys.get_mut(&dim.id()) {
            Some(entry) => entry.needs += 1,
            None => gone(),
        }
        Retained(Some(dim.id()))
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            TABLE.lock().release(vec![Item::Poly(id)]);
        }
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    /// The counter of an entry and its last keeper.
    fn needs(&mut self, item: Item) -> Option<(&mut usize, &mut u64)> {
        match item {
            Item::Poly(id) => self.polys.get_mut(&id).map(|e| (&mut e.needs, &mut e.last)),
            Item::Atom(id) => self.atoms.get_mut(&id).map(|e| (&mut e.needs, &mut e.last)),
        }
    }

    /// Makes a keeper keep an entry, if there is one.
    fn keep(&mut self, keeper: u64, item: Item) -> bool {
        let Some((_, last)) = self.needs(item) else { return false };
        if *last == keeper {
            return true;
        }
        *last = keeper;
        if self.kept.entry(keeper).or_default().insert(item)
            && let Some((needs, _)) = self.needs(item)
        {
            *needs += 1;
        }
        true
    }

    /// Makes the entered keeper keep an entry.
    fn keep_here(&mut self, item: Item) {
        let keeper = ENTERED.with(|keepers| keepers.borrow().last().map(|k| k.0));
        self.keep(keeper.unwrap_or(FOREVER), item);
    }

    /// The entries that an entry contains.
    fn parts(&self, item: Item) -> Vec<Item> {
        match item {
            Item::Poly(id) => {
                let entry = self.polys.get(&id);
                entry.map_or(Vec::new(), |e| e.what.atoms().map(Item::Atom).collect())
            }
            Item::Atom(id) => {
                let operands = self.atoms.get(&id).map_or([None, None], |e| e.what.0.operands());
                operands.into_iter().flatten().map(Item::Poly).collect()
            }
        }
    }

    /// Releases all entries of a keeper.
    fn leave(&mut self, keeper: u64) {
        if let Some(items) = self.kept.remove(&keeper) {
            self.release(items.into_iter().collect());
        }
    }

    /// Lowers the count of each of these entries by one. An entry that nothing needs is freed, and
    /// the entries that it contains are released in turn.
    fn release(&mut self, mut items: Vec<Item>) {
        while let Some(item) = items.pop() {
            let Some((needs, _)) = self.needs(item) else { continue };
            *needs -= 1;
            if *needs > 0 {
                continue;
            }
            items.extend(self.parts(item));
            match item {
                Item::Poly(id) => {
                    let entry = self.polys.remove(&id);
                    entry.and_then(|entry| self.ids.remove(&entry.what));
                }
                Item::Atom(id) => {
                    let entry = self.atoms.remove(&id);
                    entry.and_then(|entry| self.atom_ids.remove(&entry.what.0));
                }
            }
        }
        // A table that has become much smaller gives its memory back.
        if self.polys.capacity() > 1024 && self.polys.capacity() / 8 > self.polys.len() {
            self.polys.shrink_to(512);
            self.ids.shrink_to(512);
            self.atoms.shrink_to(512);
            self.atom_ids.shrink_to(512);
        }
    }

    /// The id of a polynomial; `None` where one of its atoms has been freed.
    fn intern(&mut self, poly: Poly) -> Option<PolyId> {
        let id = match self.ids.get(&poly) {
            Some(&id) => id,
            None => {
                let mut stays = false;
                for atom in poly.atoms() {
                    let entry = self.atoms.get(&atom)?;
                    stays |= entry.counts || (poly.is_single() && entry.what.0.is_common());
                }
                for atom in poly.atoms() {
                    self.atoms.get_mut(&atom)?.needs += 1;
                }
                let (poly, id) = (Arc::new(poly), self.number());
                self.polys.insert(id, Entry::new(poly.clone(), stays));
                self.ids.insert(poly, id);
                id
            }
        };
        self.keep_here(Item::Poly(id));
        Some(id)
    }

    fn intern_atom(&mut self, atom: Atom) -> Option<AtomId> {
        let id = match self.atom_ids.get(&atom) {
            Some(&id) => id,
            None => {
                let (mut depth, mut counts) = (0, atom.counts());
                for id in atom.operands().into_iter().flatten() {
                    let poly = self.polys.get(&id)?.what.clone();
                    counts |= poly.atoms().any(|a| self.atoms.get(&a).is_some_and(|e| e.counts));
                    depth = depth.max(1 + self.depth(&poly)?);
                }
                for id in atom.operands().into_iter().flatten() {
                    self.polys.get_mut(&id)?.needs += 1;
                }
                let id = self.number();
                let mut entry = Entry::new((atom.clone(), depth), counts || atom.is_common());
                entry.counts = counts;
                self.atoms.insert(id, entry);
                self.atom_ids.insert(atom, id);
                id
            }
        };
        self.keep_here(Item::Atom(id));
        Some(id)
    }

    fn depth(&self, poly: &Poly) -> Option<u32> {
        poly.atoms().try_fold(0, |depth, id| Some(depth.max(self.atoms.get(&id)?.what.1)))
    }
}

impl Atom {
    /// Its operands.
    fn operands(&self) -> [Option<PolyId>; 2] {
        match *self {
            Atom::Symbol(_) => [None, None],
            Atom::Floor(a, b) | Atom::Rem(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                [Some(a), Some(b)]
            }
        }
    }

    /// Whether it is a count of rounds.
    fn counts(&self) -> bool {
        matches!(self, Atom::Symbol(Symbol::Named(name)) if name.starts_with(ROUNDS))
    }

    /// Whether it is a symbol that stays forever.
    fn is_common(&self) -> bool {
        matches!(self, Atom::Symbol(Symbol::Numbered(i)) if *i < COMMON)
    }
}

/// Unwinds with an error, as formulas do.
#[cold]
fn gone() -> ! {
    error::throw(error::internal("a size outlived what it was made for"))
}

/// The id of a polynomial.
pub fn intern(poly: Poly) -> PolyId {
    let id = TABLE.lock().intern(poly);
    id.unwrap_or_else(|| gone())
}

/// The id of an atom.
pub fn intern_atom(atom: Atom) -> AtomId {
    let id = TABLE.lock().intern_atom(atom);
    id.unwrap_or_else(|| gone())
}

/// A polynomial by its id, if it has not been freed.
pub fn find(id: PolyId) -> Option<Arc<Poly>> {
    TABLE.lock().polys.get(&id).map(|entry| entry.what.clone())
}

/// A polynomial by its id.
pub fn poly(id: PolyId) -> Arc<Poly> {
    find(id).unwrap_or_else(|| gone())
}

/// An atom by its id.
pub fn atom(id: AtomId) -> Atom {
    let found = TABLE.lock().atoms.get(&id).map(|entry| entry.what.0.clone());
    found.unwrap_or_else(|| gone())
}

/// The nesting depth of operations that are not polynomial.
pub fn depth(poly: &Poly) -> u32 {
    let depth = TABLE.lock().depth(poly);
    depth.unwrap_or_else(|| gone())
}

/// How many expressions and atoms there are.
pub fn interned() -> usize {
    let table = TABLE.lock();
    table.polys.len() + table.atoms.len()
}
