//! Admission: what a target refuses. Of a list these are the ops that it has no kernel for, of a
//! plan the sizes that it cannot hold. One error names every offending place.

use smallvec::SmallVec;

use super::liveness::arrays;
use super::{Plan, Source, Step, Work};
use crate::dtype::DType;
use crate::error::{self, Error, Result};
use crate::graph::{Kind, List, Node};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::target::{Limits, Target, signature};

/// Refuses a list with ops that the target cannot compute, those of bodies included.
pub(super) fn admit(list: &List, target: &dyn Target) -> Result<()> {
    let (mut first, mut places) = (None, Vec::new());
    collect(list, target, &mut first, &mut places)?;
    match first {
        None => Ok(()),
        Some(refusal) => Err(places.into_iter().fold(refusal, Error::note)),
    }
}

fn collect(
    list: &List,
    target: &dyn Target,
    first: &mut Option<Error>,
    places: &mut Vec<String>,
) -> Result<()> {
    for node in &list.nodes {
        let op = match &node.kind {
            Kind::Op(op) => op,
            Kind::ControlFlow(flow) => {
                flow.bodies.iter().try_for_each(|body| collect(body, target, first, places))?;
                continue;
            }
            Kind::Input | Kind::Constant(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
                continue;
            }
        };
        let operands = dtypes(list, node);
        let Some(refusal) = target.refusal(op, &operands, node.ty.dtype) else { continue };
        if let Op::Call(call) = op {
            let what = format!("{} was not expanded", call.composite.name);
            return Err(error::internal(what));
        }
        first.get_or_insert(refusal);
        let place = format!("{} of {}", op.name(), signature(&operands, node.ty.dtype));
        places.push(match node.site.line() {
            Some(line) => format!("{place} made at {line}"),
            None => place,
        });
    }
    Ok(())
}

/// The dtypes of the arrays that a node reads.
fn dtypes(list: &List, node: &Node) -> SmallVec<[DType; 4]> {
    let dtype = |arg: &Arg| match *arg {
        Arg::Node(id) => Some(list.node(id).ty.dtype),
        Arg::Number(_) => None,
    };
    node.args.iter().filter_map(dtype).collect()
}

impl Plan {
    /// Refuses values that are larger than a range may be, and steps that bind more ranges than
    /// they may. Inputs lie where their owner put them, who may repeat elements, so their sizes are
    /// looked at when they are there. Steps are not split to fit: a fusion that does not fit is not
    /// made, and a single op that does not fit is refused.
    pub(super) fn admit(&self) -> Result<()> {
        let Limits { largest, buffers, .. } = *self.target.limits();
        if (largest, buffers) == (usize::MAX, usize::MAX) {
            return Ok(());
        }
        let mut places: Vec<(&Step, String)> = Vec::new();
        // By slot: the input or constant that it is a view of.
        let mut shown: Vec<Option<Source>> = vec![None; self.slots.len()];
        for (step, &is_view) in self.steps.iter().zip(&self.memory.views) {
            let mut bound: SmallVec<[Source; 8]> = SmallVec::new();
            for source in arrays(step) {
                let source = match source {
                    Source::Slot(slot) => shown[slot as usize].unwrap_or(source),
                    Source::Input(_) | Source::Constant(_) => source,
                };
                if !bound.contains(&source) {
                    bound.push(source);
                }
            }
            if is_view {
                shown[step.results[0] as usize] = bound.first().copied();
                continue;
            }
            bound.extend(step.results.iter().map(|&slot| Source::Slot(slot)));
            let is_kernel = match &step.work {
                Work::Op(op) => !self.target.binds_in_parts(op),
                Work::Group(_) | Work::Product(_) | Work::BlockFusion(_) | Work::RowFusion(_) => {
                    true
                }
                Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => false,
            };
            if is_kernel && bound.len() > buffers {
                let facts = format!("it binds {} ranges, {buffers} are allowed", bound.len());
                places.push((step, facts));
            }
            for source in bound.into_iter().filter(|source| !matches!(source, Source::Input(_))) {
                let ty = self.ty(source);
                if ty.shape.is_known() {
                    let bytes = self.target.bytes(ty.dtype, ty.shape.count());
                    if bytes > largest {
                        let Type { dtype, shape } = ty;
                        let facts = format!("{dtype} {shape} takes {bytes} bytes, {largest} fit");
                        places.push((step, facts));
                    }
                }
            }
        }
        let Some((step, facts)) = places.first() else { return Ok(()) };
        let refusal = error::beyond_limits(step.name(), self.target.name(), facts);
        Err(places.iter().fold(refusal, |refusal, (step, facts)| {
            refusal.note(match step.site.line() {
                Some(line) => format!("{}: {facts}, made at {line}", step.name()),
                None => format!("{}: {facts}", step.name()),
            })
        }))
    }
}
