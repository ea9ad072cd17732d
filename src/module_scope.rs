//! The modules in whose calls nodes are traced, as paths: `GPT`, `GPT/blocks.0`,
//! `GPT/blocks.0/attention`.
//!
//! Scopes are for people: nothing that is computed depends on one. Paths are interned in one table
//! of bounded size, so that a node holds its scope in four bytes.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The module in whose call a node was traced, and whether the node is part of a backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ModuleScope(u32);

/// The bit of what is part of a backward; those above it are the number of the path.
const BACKWARD: u32 = 1;

/// More paths than this are not told apart: what is called below them belongs to its caller.
const LIMIT: usize = 1 << 20;

/// A module by the path of its caller (0 is none) and its name there.
type Call = (u32, Box<str>);

/// The paths so far; the number of one is its position plus one. A caller stands before its callees.
#[derive(Default)]
struct Paths {
    numbers: FxHashMap<Call, u32>,
    calls: Vec<Call>,
}

static PATHS: Mutex<Option<Paths>> = Mutex::new(None);

impl ModuleScope {
    /// No module.
    pub const NONE: ModuleScope = ModuleScope(0);

    /// What a number of [`ModuleScope::number`] stands for.
    pub fn from_number(number: u32) -> ModuleScope {
        ModuleScope(number)
    }

    /// A number that stands for it.
    pub fn number(self) -> u32 {
        self.0
    }

    fn path(self) -> u32 {
        self.0 >> 1
    }

    /// Whether it is part of a backward.
    pub fn is_backward(self) -> bool {
        self.0 & BACKWARD != 0
    }

    /// The backward of what is traced here.
    #[must_use]
    pub fn backward(self) -> ModuleScope {
        ModuleScope(self.0 | BACKWARD)
    }

    /// A module that is called here, by its name.
    #[must_use]
    pub fn child(self, name: &str) -> ModuleScope {
        let mut paths = PATHS.lock();
        let paths = paths.get_or_insert_with(Paths::default);
        let call = (self.path(), Box::from(name));
        let number = match paths.numbers.get(&call) {
            Some(&number) => number,
            None if paths.calls.len() >= LIMIT => return self,
            None => {
                paths.calls.push(call.clone());
                let number = paths.calls.len() as u32;
                paths.numbers.insert(call, number);
                number
            }
        };
        ModuleScope(number << 1 | self.0 & BACKWARD)
    }

    /// The names of the modules, outermost first.
    pub fn names(self) -> Vec<String> {
        let paths = PATHS.lock();
        let mut names = Vec::new();
        let mut at = self.path();
        while let Some((caller, name)) = call(paths.as_ref(), at) {
            names.push(name.to_string());
            at = *caller;
        }
        names.reverse();
        names
    }

    /// The innermost scope that holds both: of nodes that become one. It is part of a backward if
    /// both are.
    #[must_use]
    pub fn join(self, other: ModuleScope) -> ModuleScope {
        if self == other {
            return self;
        }
        let paths = PATHS.lock();
        let (mut a, mut b) = (self.path(), other.path());
        // A caller has a smaller number, so the larger of two that differ is no ancestor.
        while a != b {
            let later = if a > b { &mut a } else { &mut b };
            *later = call(paths.as_ref(), *later).map_or(0, |(caller, _)| *caller);
        }
        ModuleScope(a << 1 | self.0 & other.0 & BACKWARD)
    }
}

fn call(paths: Option<&Paths>, number: u32) -> Option<&Call> {
    paths?.calls.get((number as usize).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_have_paths_and_meet_in_a_caller() {
        let model = ModuleScope::NONE.child("Model");
        let (first, second) = (model.child("blocks.0"), model.child("blocks.1"));
        let attention = first.child("attention");
        assert_eq!(attention.names(), ["Model", "blocks.0", "attention"]);
        assert_eq!(model.child("blocks.0"), first);
        assert_eq!(attention.join(second), model);
        assert_eq!(attention.join(first), first);
        assert_eq!(attention.backward().join(attention), attention);
        assert_eq!(attention.backward().join(second.backward()), model.backward());
        assert_eq!(attention.join(ModuleScope::NONE), ModuleScope::NONE);
        assert_eq!(ModuleScope::NONE.backward().names(), [""; 0]);
    }
}
