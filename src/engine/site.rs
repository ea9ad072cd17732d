//! The provider of sites (Python lines), and their text.
//!
//! The engine only stores sites. Who knows about frames (the bindings) installs a provider.

use std::sync::OnceLock;

use super::context;
pub use crate::site::Site;

/// Finds the running line, and spells a site as `file.py:12`.
pub struct Provider {
    /// The line running now on this thread: the code object and the offset of a [`Site`]
    pub current: fn() -> (u32, u32),
    /// The spelling of a site
    pub describe: fn(Site) -> Option<String>,
    /// The same with the text of the line: `file.py:12: y = f(x)`
    pub quote: fn(Site) -> Option<String>,
}

static PROVIDER: OnceLock<Provider> = OnceLock::new();

/// Installs the provider, once.
pub fn install(provider: Provider) {
    crate::site::spell_with(provider.describe);
    let _ = PROVIDER.set(provider);
}

/// The line running now (unknown without a provider), the call whose formula runs, and the
/// scope of what is traced. In place, so that it is written where it stays.
#[inline(always)]
pub fn current() -> Site {
    let site = match (context::HERE.with(|context| context.line.get()), PROVIDER.get()) {
        (Some(site), _) => site,
        (None, Some(provider)) => {
            // Two numbers come back in registers; a site would be read before it is written.
            let (code, offset) = (provider.current)();
            Site { code, offset, ..Site::default() }
        }
        (None, None) => Site::default(),
    };
    site.within_running()
}

/// Runs `f` with every node attributed to `site`.
pub fn pinned<T>(site: Site, f: impl FnOnce() -> T) -> T {
    let _line = context::replace(|context| &context.line, Some(site));
    f()
}

/// The spelling of a site, if it is known.
pub fn describe(site: Site) -> Option<String> {
    PROVIDER.get().and_then(|provider| (provider.describe)(site))
}

/// The spelling of a site with the text of its line, if it is known.
pub fn quote(site: Site) -> Option<String> {
    PROVIDER.get().and_then(|provider| (provider.quote)(site))
}
