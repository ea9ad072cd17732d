//! The op table: what ops exist, their rules and their scalar formulas.

pub mod attributes;
