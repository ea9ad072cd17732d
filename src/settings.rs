//! Settings from the environment: every variable whose name starts with `WENGERT_`, in one table.
//!
//! Promises: nothing else in the crate reads such a variable; [`check`], which the import of the
//! package calls, refuses unknown names and values. An empty value stands for none.

use std::env;

use crate::error::{self, Result};

/// What values a variable may have.
#[derive(Clone, Copy, Debug)]
enum Allowed {
    /// One of these words
    Words(&'static [&'static str]),
    /// A whole number from 1 up to this one
    Count(usize),
    /// Any text; who reads it refuses what means nothing
    Text,
}

/// A variable of the environment.
#[derive(Debug)]
pub struct Setting {
    name: &'static str,
    allowed: Allowed,
}

const SWITCH: Allowed = Allowed::Words(&["0", "1"]);

/// The adapter that `gpu` names: its number, or a part of its name.
pub static ADAPTER: Setting = Setting { name: "WENGERT_ADAPTER", allowed: Allowed::Text };
/// Where compiled shaders are kept on disk: `off`, `on` (the platform's folder), or a folder.
pub static CACHE: Setting = Setting { name: "WENGERT_CACHE", allowed: Allowed::Text };
/// What compiled runs are held against.
pub static CHECK: Setting =
    Setting { name: "WENGERT_CHECK", allowed: Allowed::Words(&["0", "1", "reference"]) };
/// When eager code computes elementwise ops on large tensors: when somebody looks, as it does unless
/// this is set, or (`immediate`) at once.
pub static EAGER: Setting =
    Setting { name: "WENGERT_EAGER", allowed: Allowed::Words(&["adaptive", "immediate"]) };
/// The highest instruction set to use.
pub static ISA: Setting =
    Setting { name: "WENGERT_ISA", allowed: Allowed::Words(&["base", "v3", "v4"]) };
/// Whether elementwise programs on a CPU get machine code of their own: not at all, where that is
/// worth it, or always.
pub static JIT: Setting =
    Setting { name: "WENGERT_JIT", allowed: Allowed::Words(&["off", "on", "always"]) };
/// How many threads work on a job.
pub static NUM_THREADS: Setting =
    Setting { name: "WENGERT_NUM_THREADS", allowed: Allowed::Count(1 << 12) };
/// Which adapters come first: fast ones, or those that save power.
pub static POWER: Setting =
    Setting { name: "WENGERT_POWER", allowed: Allowed::Words(&["high", "low"]) };

/// How matrix products are computed on a GPU: in blocks of registers, or in tiles of workgroup
/// memory; unset, as suits the adapter.
pub static PRODUCTS: Setting =
    Setting { name: "WENGERT_PRODUCTS", allowed: Allowed::Words(&["blocks", "tiles"]) };

/// Whether shaders on a GPU make use of subgroups where the adapter has them.
pub static SUBGROUPS: Setting =
    Setting { name: "WENGERT_SUBGROUPS", allowed: Allowed::Words(&["on", "off"]) };

/// The bytes of the largest buffer of a GPU that is used, where its adapter allows more.
pub static GPU_BUFFER: Setting =
    Setting { name: "WENGERT_GPU_BUFFER", allowed: Allowed::Count(usize::MAX) };

/// Seconds after which a GPU that does not answer counts as lost.
pub static GPU_TIMEOUT: Setting =
    Setting { name: "WENGERT_GPU_TIMEOUT", allowed: Allowed::Count(1 << 20) };

/// What the engine reads.
static READ: [&Setting; 12] = [
    &ADAPTER,
    &CACHE,
    &CHECK,
    &EAGER,
    &GPU_BUFFER,
    &GPU_TIMEOUT,
    &ISA,
    &JIT,
    &NUM_THREADS,
    &POWER,
    &PRODUCTS,
    &SUBGROUPS,
];

/// What the build and the tests read, which may be set while the engine runs.
static ELSEWHERE: [Setting; 7] = [
    Setting { name: "WENGERT_ONE_ISA", allowed: SWITCH },
    Setting { name: "WENGERT_SANITIZE", allowed: SWITCH },
    Setting { name: "WENGERT_TEST_ALONE", allowed: SWITCH },
    Setting { name: "WENGERT_TEST_FULL", allowed: SWITCH },
    Setting { name: "WENGERT_TEST_GPU", allowed: SWITCH },
    Setting { name: "WENGERT_TEST_PENDING", allowed: SWITCH },
    Setting { name: "WENGERT_UPDATE_SNAPSHOTS", allowed: SWITCH },
];

impl Setting {
    /// The name of the variable.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The value, if it is set to one that is allowed.
    pub fn value(&self) -> Option<String> {
        let text = env::var(self.name).ok()?.trim().to_string();
        self.allowed.contains(&text).then_some(text)
    }
}

impl Allowed {
    fn contains(self, text: &str) -> bool {
        match self {
            Allowed::Words(words) => words.contains(&text),
            Allowed::Count(most) => text.parse().is_ok_and(|n: usize| (1..=most).contains(&n)),
            Allowed::Text => !text.is_empty(),
        }
    }

    fn describe(self) -> String {
        match self {
            Allowed::Words(words) => words.join(", "),
            Allowed::Count(most) => format!("whole numbers from 1 to {most}"),
            Allowed::Text => "any text".into(),
        }
    }
}

/// Every setting that the engine reads: its name, its value if it has one, what values it may have.
pub fn all() -> impl Iterator<Item = (&'static str, Option<String>, String)> {
    READ.iter().map(|setting| (setting.name, setting.value(), setting.allowed.describe()))
}

/// Refuses variables of this package that nothing reads, and values that they cannot have.
pub fn check() -> Result<()> {
    let mut given: Vec<(String, String)> = env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into(), value.to_string_lossy().into()))
        .filter(|(name, _): &(String, String)| name.starts_with("WENGERT_"))
        .collect();
    given.sort();
    for (name, value) in given {
        let known = READ.into_iter().chain(&ELSEWHERE).find(|setting| setting.name == name);
        let Some(setting) = known else {
            let names: Vec<&str> = READ.iter().map(|setting| setting.name).collect();
            return Err(error::unknown_setting(name, names.join(", ")));
        };
        let value = value.trim();
        if !value.is_empty() && !setting.allowed.contains(value) {
            return Err(error::bad_setting(name, value, setting.allowed.describe()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_words_or_counts() {
        assert!(ISA.allowed.contains("v3") && !ISA.allowed.contains("V3"));
        let count = NUM_THREADS.allowed;
        assert!(count.contains("1") && count.contains("4096"));
        for text in ["0", "-1", "4097", "two", "1.0", ""] {
            assert!(!count.contains(text), "{text}");
        }
    }
}
