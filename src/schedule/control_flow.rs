//! Control flow: one step whose bodies are plans.
//!
//! Carries are double-buffered: a round reads one copy and writes the other.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Options, Plan};
use crate::error::Result;
use crate::graph::{ControlFlow, ControlFlowKind};
use crate::ops::op::Type;
use crate::shape::Dim;
use crate::target::Target;

/// The plans of the bodies of a control-flow op.
pub struct Bodies {
    kind: ControlFlowKind,
    plans: SmallVec<[Arc<Plan>; 2]>,
    results: SmallVec<[Type; 2]>,
    has_effect: bool,
    /// The number of the op among the control-flow ops of the template
    pub number: u32,
}

impl Bodies {
    pub(super) fn new(
        flow: &ControlFlow,
        unfused: bool,
        target: &'static dyn Target,
    ) -> Result<Bodies> {
        let options = Options { unfused, ..Options::new(target) };
        let plans: Result<SmallVec<[Arc<Plan>; 2]>> =
            flow.bodies.iter().map(|body| Plan::of(body, options).map(Arc::new)).collect();
        let has_effect = flow.has_effect();
        Ok(Bodies {
            kind: flow.kind.clone(),
            plans: plans?,
            results: flow.results.clone(),
            has_effect,
            number: 0,
        })
    }

    /// The same bodies with their sizes replaced.
    pub(super) fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Bodies> {
        let kind = match self.kind {
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                ControlFlowKind::Scan { carry, xs, length: size(length), reverse }
            }
            ControlFlowKind::Branch | ControlFlowKind::While { .. } | ControlFlowKind::Host(_) => {
                self.kind.clone()
            }
        };
        let resized = |plan: &Arc<Plan>| plan.resized(size).map(Arc::new);
        let plans: Result<_> = self.plans.iter().map(resized).collect();
        Ok(Bodies {
            kind,
            plans: plans?,
            results: self.results.iter().map(|ty| ty.map_dims(size)).collect(),
            has_effect: self.has_effect,
            number: self.number,
        })
    }

    /// The kind of control flow.
    pub fn kind(&self) -> &ControlFlowKind {
        &self.kind
    }

    /// The plans of the bodies.
    pub fn plans(&self) -> &[Arc<Plan>] {
        &self.plans
    }

    /// The types of the results.
    pub fn results(&self) -> &[Type] {
        &self.results
    }

    /// Whether a body has an effect.
    pub(super) fn has_effect(&self) -> bool {
        self.has_effect
    }

    /// The bytes that a run takes besides operands and results, and whether it may take more.
    pub(super) fn scratch(&self, target: &dyn Target) -> (usize, bool) {
        let open = self.plans.iter().any(|plan| plan.memory.open);
        let inner = self.plans.iter().map(|plan| plan.memory.peak[1]).max().unwrap_or(0);
        let carried = |carry: u32| -> usize {
            let carried = self.results.iter().take(carry as usize);
            let known = carried.filter(|ty| ty.shape.is_known());
            known.map(|ty| target.allocated(target.bytes(ty.dtype, ty.shape.count()))).sum()
        };
        match self.kind {
            // The bytes that host code allocates are not known.
            ControlFlowKind::Host(_) if self.plans.is_empty() => (0, true),
            ControlFlowKind::Branch | ControlFlowKind::Host(_) => (inner, open),
            ControlFlowKind::While { history: true, .. } => (inner, true),
            ControlFlowKind::While { carry, .. } => {
                (inner + carried(carry) + target.allocated(1), open)
            }
            ControlFlowKind::Scan { length, .. } if length.known().is_some_and(|n| n < 2) => {
                (inner, open)
            }
            ControlFlowKind::Scan { carry, .. } => (inner + carried(carry), open),
        }
    }
}
