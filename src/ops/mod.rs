//! The op table: what ops exist, their types, gradients and scalar formulas.

use crate::fork::Lazy;
pub mod attributes;
pub mod batch;
#[macro_use]
pub mod declare;
pub mod composite;
pub mod element;
#[macro_use]
pub mod elementwise;
pub mod emit;
#[cfg(feature = "example-op")]
pub mod example;
pub mod jvp;
pub mod number;
pub mod op;
pub mod origin;
pub mod probe;
pub mod rule;
pub mod scan;
pub mod structural;
pub mod vjp;

use declare::{Composite, Param, Unlike};
use elementwise::{Elementwise, Place};

/// One row of the table: a name users call.
#[derive(Clone, Copy)]
pub enum Entry {
    /// An elementwise op
    Map(&'static Elementwise),
    /// A composite
    Composite(&'static Composite),
}

impl Entry {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Entry::Map(def) => def.name,
            Entry::Composite(def) => def.name,
        }
    }

    /// Its other names.
    pub fn synonyms(self) -> &'static [&'static str] {
        match self {
            Entry::Map(def) => def.synonyms,
            Entry::Composite(def) => def.synonyms,
        }
    }

    /// Why PyTorch's names of parameters are refused, where they are.
    pub fn unlike(self) -> Option<Unlike> {
        match self {
            Entry::Map(_) => None,
            Entry::Composite(def) => def.unlike,
        }
    }

    /// Whether users call it.
    pub fn is_public(self) -> bool {
        match self {
            Entry::Map(_) => true,
            Entry::Composite(composite) => composite.is_public(),
        }
    }

    /// The Python module below the top one; empty is the top.
    pub fn namespace(self) -> &'static str {
        match self {
            Entry::Map(_) => "",
            Entry::Composite(def) => def.namespace,
        }
    }

    /// The docstring.
    pub fn doc(self) -> &'static str {
        match self {
            Entry::Map(def) => def.doc,
            Entry::Composite(def) => def.doc,
        }
    }

    /// The parameters.
    pub fn params(self) -> &'static [Param] {
        match self {
            Entry::Map(def) => def.params,
            Entry::Composite(def) => def.params,
        }
    }

    /// Whether `Tensor` has it as a method.
    pub fn is_method(self) -> bool {
        match self {
            Entry::Map(def) => def.place == Place::Method,
            Entry::Composite(def) => def.method,
        }
    }
}

/// Every op that users call, elementwise ones first.
pub fn table() -> &'static [Entry] {
    static TABLE: Lazy<Vec<Entry>> = Lazy::new(|| {
        let maps = elementwise::tables().filter(|def| def.place != Place::Hidden);
        maps.map(Entry::Map).chain(composite::tables().map(Entry::Composite)).collect()
    });
    &TABLE
}
