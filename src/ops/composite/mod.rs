//! Composites: formulas over other ops, one declaration each.

use super::declare::Composite;

pub mod reduction;

/// Every composite, file by file.
pub fn tables() -> impl Iterator<Item = &'static Composite> {
    [reduction::TABLE].into_iter().flatten()
}
