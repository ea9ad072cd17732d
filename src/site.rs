//! Provenance: the Python line that made a node, as two small integers.
//!
//! Everything below the engine only carries sites; who can find and spell them is the engine's
//! business.

/// A code object (by its number in the border's table) and an instruction offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Site {
    /// Number of the code object; 0 is unknown
    pub code: u32,
    /// Offset of the instruction
    pub offset: u32,
}
