//! Settings of the compiler, for each thread.

use std::cell::RefCell;
use std::sync::LazyLock;

use crate::passes::Options;

/// How programs made from now on are compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What passes may do
    pub passes: Options,
    /// The most bytes a call may need; more is refused before anything is computed
    pub budget: Option<usize>,
    /// Whether every run is held against the list, see [`check`](super::check)
    pub check: bool,
}

impl Default for Config {
    fn default() -> Config {
        static CHECK: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("WENGERT_CHECK").is_some_and(|value| value == "1"));
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
