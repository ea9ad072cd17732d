//! Templates of plans, lowered for the CPU: each elementwise program becomes a register program.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cpu::program::Program;
use crate::error::Result;
use crate::schedule::{Bodies, Group, Template};

/// A template with its register programs.
pub struct Lowered {
    template: Arc<Template>,
    /// Indexed by their numbers in the template
    programs: Vec<Program>,
    bodies: Vec<SmallVec<[Lowered; 2]>>,
}

impl Lowered {
    /// Lowers a template and the templates of its control-flow bodies.
    pub fn new(template: &Arc<Template>) -> Result<Lowered> {
        let programs = template.programs.iter().map(|program| Program::lower(program));
        let bodies = template.bodies.iter().map(|bodies| bodies.iter().map(Lowered::new).collect());
        Ok(Lowered {
            programs: programs.collect::<Result<_>>()?,
            bodies: bodies.collect::<Result<_>>()?,
            template: template.clone(),
        })
    }

    pub(super) fn template(&self) -> &Arc<Template> {
        &self.template
    }

    /// The program of a group.
    pub(super) fn program(&self, group: &Group) -> &Program {
        &self.programs[group.number as usize]
    }

    /// The lowered templates of the bodies of a control-flow op.
    pub(super) fn bodies(&self, bodies: &Bodies) -> &[Lowered] {
        &self.bodies[bodies.number as usize]
    }
}
