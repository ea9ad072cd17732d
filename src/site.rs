//! Provenance: the Python line that made a node, as two small integers, and the call of a formula
//! that it is part of.
//!
//! Everything below the engine only carries sites; who can find and spell them is the engine's
//! business, which installs what spells them for refusals. What an [`Origin`] says is read in
//! `ops::origin`.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// A code object (by its number in the bindings' table), an instruction offset, and an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Site {
    /// Number of the code object; 0 is unknown
    pub code: u32,
    /// Offset of the instruction
    pub offset: u32,
    /// The call of a formula that the node is part of
    pub origin: Origin,
}

/// A call whose formula makes nodes: a composite, or an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// Number of its name; 0 is none
    pub name: u32,
    /// The axes that it addresses by indices, one bit each; 0 is unknown
    pub axes: u32,
}

thread_local! {
    /// The call whose formula runs on this thread.
    static RUNNING: Cell<Origin> = const { Cell::new(Origin::NONE) };
}

/// While this lives, nodes made on the thread have one origin.
pub struct Within(Origin, PhantomData<*const ()>);

impl Drop for Within {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

impl Origin {
    /// No call.
    pub const NONE: Origin = Origin { name: 0, axes: 0 };

    /// The call whose formula runs on this thread.
    #[inline]
    pub fn running() -> Origin {
        RUNNING.get()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.name == 0
    }

    /// This one, or else another.
    #[inline]
    #[must_use]
    pub fn or(self, other: Origin) -> Origin {
        if self.is_none() { other } else { self }
    }

    /// Says that its formula runs, until the guard is dropped. What a formula calls belongs to the
    /// outermost call, which is the one that somebody wrote.
    pub fn enter(self) -> Within {
        Origin::enter_with(|| self)
    }

    /// The same of a call that is asked for where it is the outermost.
    #[inline]
    pub fn enter_with(origin: impl FnOnce() -> Origin) -> Within {
        RUNNING.with(|running| {
            let before = running.get();
            if before.is_none() {
                running.set(origin());
            }
            Within(before, PhantomData)
        })
    }

    /// Says that no formula runs: what is made now is kept for any caller.
    pub fn leave() -> Within {
        Within(RUNNING.replace(Origin::NONE), PhantomData)
    }
}

/// What spells a site as `file.py:12`.
static SPELLING: OnceLock<fn(Site) -> Option<String>> = OnceLock::new();

/// Installs what spells sites, once.
pub fn spell_with(spelling: fn(Site) -> Option<String>) {
    let _ = SPELLING.set(spelling);
}

impl Site {
    /// The line as `file.py:12`, if somebody can tell.
    pub fn line(self) -> Option<String> {
        SPELLING.get().and_then(|spell| spell(self))
    }
}
