//! Templates of plans, lowered for the CPU: each elementwise program becomes a register program.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::fused_sums::FusedSums;
use super::prepared::Prepared;
use super::rows::{self, BlockRows};
use crate::array::Array;
use crate::cpu;
use crate::cpu::program::Program;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::layout::Strides;
use crate::ops::op::Op;
use crate::schedule::{Bodies, Group, Operand, Plan, Source, Template, Work};

/// The most plans of a template whose steps are kept prepared.
const PREPARED: usize = 64;

/// A plan, and its prepared steps if there are any.
type Known = (Weak<Plan>, Option<Arc<Prepared>>);

/// The plan of a block, the strides of its operands, and the row program made of it if there is
/// one.
struct KnownRows {
    plan: Weak<Plan>,
    strides: SmallVec<[Strides; 4]>,
    made: Option<Arc<BlockRows>>,
}

/// The plan of a block, and how it sums groups as they are made, if it does.
type KnownSums = (Weak<Plan>, Option<Arc<FusedSums>>);

/// A template with its register programs.
pub struct Lowered {
    template: Arc<Template>,
    /// Indexed by their numbers in the template
    programs: Vec<Program>,
    bodies: Vec<SmallVec<[Lowered; 2]>>,
    /// The prepared steps of plans, latest last
    prepared: Mutex<Vec<Known>>,
    /// The row programs of plans of blocks, latest last
    rows: Mutex<Vec<KnownRows>>,
    /// The fused sums of plans of blocks, latest last
    sums: Mutex<Vec<KnownSums>>,
    /// Constants of the template that products read, packed once
    packed: Vec<(u32, cpu::Packed)>,
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
            prepared: Mutex::default(),
            rows: Mutex::default(),
            sums: Mutex::default(),
            packed: Vec::new(),
        })
    }

    /// Packs the constants that products of a plan read as their second operand. They take memory
    /// as long as the executable lives; those for which there is no room are packed in every run.
    pub fn with_packed(mut self, plan: &Plan) -> Result<Lowered> {
        for step in plan.steps() {
            let (op, arg) = match &step.work {
                Work::Op(op) => (op, step.args.get(1)),
                Work::Product(product) if product.before[1].is_none() => {
                    (&product.op, product.parts(&step.args).0[1].0.first())
                }
                Work::Product(_)
                | Work::Group(_)
                | Work::BlockFusion(_)
                | Work::RowFusion(_)
                | Work::ControlFlow(_)
                | Work::Effect(_)
                | Work::Alias => continue,
            };
            let Some(&Operand::Array(Source::Constant(i))) = arg else { continue };
            let x = &plan.constants()[i as usize];
            if self.packed((i, x), op).is_none()
                && let Some(packed) = cpu::packed(op, x)?
            {
                self.packed.push((i, packed));
            }
        }
        Ok(self)
    }

    /// A constant in the form in which a product reads its second operand, if there is such.
    pub(super) fn packed(&self, (i, x): (u32, &Array), op: &Op) -> Option<&cpu::Packed> {
        let is_it =
            |(constant, packed): &&(u32, cpu::Packed)| *constant == i && cpu::reads(op, x, packed);
        self.packed.iter().find(is_it).map(|(_, packed)| packed)
    }

    pub(super) fn template(&self) -> &Arc<Template> {
        &self.template
    }

    /// The program of a group.
    pub(super) fn program(&self, group: &Group) -> &Program {
        self.numbered(group.number as usize)
    }

    /// The program with a number.
    pub(super) fn numbered(&self, number: usize) -> &Program {
        &self.programs[number]
    }

    /// The prepared steps of a plan of this template. They are prepared once.
    pub(super) fn prepared(&self, plan: &Arc<Plan>) -> Option<Arc<Prepared>> {
        let mut all = self.prepared.lock();
        // A plan that is only held weakly keeps its address, so addresses name plans.
        if let Some((_, known)) = all.iter().rev().find(|(p, _)| p.as_ptr() == Arc::as_ptr(plan)) {
            return known.clone();
        }
        all.retain(|(plan, _)| plan.strong_count() > 0);
        if all.len() >= PREPARED {
            all.remove(0);
        }
        let made = Prepared::new(self, plan);
        all.push((Arc::downgrade(plan), made.clone()));
        made
    }

    /// The row program of the plan of a block whose operands lie as these do, if it has one. It is
    /// made once, unless numbers are told.
    pub(super) fn rows(
        &self,
        plan: &Arc<Plan>,
        parts: &[&Array],
        numbers: &[Scalar],
    ) -> Option<Arc<BlockRows>> {
        let make = || rows::of_block(plan, parts, numbers).map(Arc::new);
        if !numbers.is_empty() {
            return make();
        }
        let strides: SmallVec<[Strides; 4]> = parts.iter().map(|x| x.layout.strides()).collect();
        let mut all = self.rows.lock();
        let is_it = |known: &&KnownRows| {
            known.plan.as_ptr() == Arc::as_ptr(plan) && known.strides == strides
        };
        if let Some(known) = all.iter().rev().find(is_it) {
            return known.made.clone();
        }
        all.retain(|known| known.plan.strong_count() > 0);
        if all.len() >= PREPARED {
            all.remove(0);
        }
        let made = make();
        all.push(KnownRows { plan: Arc::downgrade(plan), strides, made: made.clone() });
        made
    }

    /// How the plan of a block sums groups as they are made, if it does.
    pub(super) fn fused_sums(&self, plan: &Arc<Plan>) -> Option<Arc<FusedSums>> {
        let mut all = self.sums.lock();
        if let Some((_, known)) = all.iter().rev().find(|(p, _)| p.as_ptr() == Arc::as_ptr(plan)) {
            return known.clone();
        }
        all.retain(|(plan, _)| plan.strong_count() > 0);
        if all.len() >= PREPARED {
            all.remove(0);
        }
        let made = FusedSums::of(plan).map(Arc::new);
        all.push((Arc::downgrade(plan), made.clone()));
        made
    }

    /// The lowered templates of the bodies of a control-flow op.
    pub(super) fn bodies(&self, bodies: &Bodies) -> &[Lowered] {
        &self.bodies[bodies.number as usize]
    }
}
