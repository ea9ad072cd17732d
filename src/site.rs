//! Provenance: the Python line that made a node, as two small integers, the call of a formula that
//! it is part of, and the module in whose call it was traced.
//!
//! Everything below the engine only carries sites; who can find and spell them is the engine's
//! business, which installs what spells them for refusals. What an [`Origin`] says is read in
//! `ops::origin`; what a [`ModuleScope`] is called, in
//! `module_scope`.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::module_scope::ModuleScope;

/// A code object (by its number in the bindings' table), an instruction offset, an origin and a
/// scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Site {
    /// Number of the code object; 0 is unknown
    pub code: u32,
    /// Offset of the instruction
    pub offset: u32,
    /// The call of a formula that the node is part of
    pub origin: Origin,
    /// The module in whose call the node was traced
    pub scope: ModuleScope,
}

/// A call whose formula makes nodes: a composite, or an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// Number of its name; 0 is none
    pub name: u32,
    /// The axes that it addresses by indices, one bit each; 0 is unknown
    pub axes: u32,
}

impl ModuleScope {
    /// Makes it that of the thread; gives the one before.
    pub fn replace(self) -> ModuleScope {
        RUNNING.with(|running| {
            let before = running.get();
            running.set(Running { scope: self, ..before });
            before.scope
        })
    }

    /// The scope of what is traced on this thread.
    pub fn running() -> ModuleScope {
        RUNNING.get().scope
    }

    /// Makes it that of the thread, until the guard is dropped.
    pub fn enter(self) -> Inside {
        Inside(self.replace(), PhantomData)
    }
}

/// While this lives, nodes made on the thread have one scope.
pub struct Inside(ModuleScope, PhantomData<*const ()>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.replace();
    }
}

/// What runs on a thread, besides the line.
#[derive(Clone, Copy)]
struct Running {
    origin: Origin,
    scope: ModuleScope,
}

impl Running {
    const NOTHING: Running = Running { origin: Origin::NONE, scope: ModuleScope::NONE };
}

thread_local! {
    /// The call whose formula runs on this thread, and the scope of what is traced.
    static RUNNING: Cell<Running> = const { Cell::new(Running::NOTHING) };
}

/// While this lives, nodes made on the thread have one origin.
pub struct Within(Running, PhantomData<*const ()>);

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
        RUNNING.get().origin
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
            if before.origin.is_none() {
                running.set(Running { origin: origin(), ..before });
            }
            Within(before, PhantomData)
        })
    }

    /// Says that no formula runs and that no module is called: what is made now is kept for any
    /// caller.
    pub fn leave() -> Within {
        Within(RUNNING.replace(Running::NOTHING), PhantomData)
    }
}

/// What spells a site as `file.py:12`.
static SPELLING: OnceLock<fn(Site) -> Option<String>> = OnceLock::new();

/// Installs what spells sites, once.
pub fn spell_with(spelling: fn(Site) -> Option<String>) {
    let _ = SPELLING.set(spelling);
}

impl Site {
    /// The same within what runs on this thread: its call where the site has none, and its scope
    /// where it has one.
    #[inline(always)]
    #[must_use]
    pub fn within_running(mut self) -> Site {
        let running = RUNNING.get();
        self.origin = self.origin.or(running.origin);
        if running.scope != ModuleScope::NONE {
            self.scope = running.scope;
        }
        self
    }

    /// The site of the backward of what was made here.
    #[must_use]
    pub fn backward(self) -> Site {
        Site { scope: self.scope.backward(), ..self }
    }

    /// The line as `file.py:12`, if somebody can tell.
    pub fn line(self) -> Option<String> {
        SPELLING.get().and_then(|spell| spell(self))
    }
}
