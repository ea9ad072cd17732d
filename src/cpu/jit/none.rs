//! No machine code: what other processors and systems have in place of it.

use crate::ops::element::ElementProgram;
use crate::simd::Isa;

/// The most elements of a step.
pub const LONGEST: usize = 64;

/// Machine code, of which there is none.
pub enum Code {}

/// Whether a program may have code.
pub fn is_eligible(_: &ElementProgram, _: usize) -> bool {
    false
}

impl Code {
    /// The code of a program.
    pub fn of(_: &ElementProgram, _: usize, _: Isa) -> Option<Code> {
        None
    }

    /// Elements that are worked on at once.
    pub fn step(&self) -> usize {
        match *self {}
    }

    /// Whether it holds for all elements.
    pub fn is_total(&self) -> bool {
        match *self {}
    }

    /// Bytes of memory that a run needs.
    pub fn spilled(&self) -> usize {
        match *self {}
    }

    /// Works on elements.
    ///
    /// # Safety
    /// Nothing to keep: there is no code.
    pub unsafe fn run(&self, _: &[*mut u8], _: (usize, usize), _: &[u64], _: *mut u8) -> usize {
        match *self {}
    }
}
