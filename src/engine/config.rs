//! Settings of the compiler, for each thread.

use std::cell::RefCell;

use crate::fork::Lazy;
use crate::passes::Options;
use crate::settings;

/// How programs made from now on are compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What passes may do
    pub passes: Options,
    /// The most bytes a call may need; more is refused before anything is computed
    pub budget: Option<usize>,
    /// What every run is held against, see [`check`](super::check)
    pub check: Check,
}

/// What a run is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Nothing
    #[default]
    Off,
    /// The list, node by node on the same device: to the bit
    List,
    /// The same, and each op on its own operands against the reference: within the op's bound
    Reference,
}

impl Check {
    /// The check of a name, as the environment gives it.
    pub fn named(name: &str) -> Option<Check> {
        match name {
            "" | "0" => Some(Check::Off),
            "1" => Some(Check::List),
            "reference" => Some(Check::Reference),
            _ => None,
        }
    }

    /// Whether anything is checked.
    pub fn is_on(self) -> bool {
        self != Check::Off
    }
}

impl Default for Config {
    fn default() -> Config {
        static CHECK: Lazy<Check> = Lazy::new(|| {
            settings::CHECK.value().and_then(|v| Check::named(&v)).unwrap_or_default()
        });
        Config { passes: Options::default(), budget: None, check: *CHECK }
    }
}

thread_local! {
    static CURRENT: RefCell<Config> = RefCell::default();
}

/// The settings of this thread.
pub fn current() -> Config {
    CURRENT.with_borrow(Config::clone)
}

/// Replaces the settings of this thread; gives what they were.
pub fn replace(config: Config) -> Config {
    CURRENT.replace(config)
}
