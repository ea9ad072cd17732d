//! Nodes made under `no_grad` in a trace that is differentiated as a graph.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{Role, Trace, named, node_of, top};
use crate::array::Array;
use crate::engine::{context, tape};
use crate::error::Result;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::Op;

/// Runs a sweep.
pub fn sweeping<T>(sweep: impl FnOnce() -> T) -> T {
    let _sweeping = context::replace(|context| &context.sweeping, true);
    sweep()
}

/// Whether gradients of what is computed of a traced value are those of the graph, whatever the
/// tape says: in a body of control flow, a function under a transform, a graph defined by hand.
pub fn cuts(array: &Array) -> bool {
    match top() {
        Some(trace) => trace.cuts(),
        None => named(array).is_some_and(|name| name.trace.cuts()),
    }
}

impl Trace {
    /// Whether gradients are those of its graph, whatever the tape says: what cuts a history is a
    /// node there.
    pub(super) fn cuts(&self) -> bool {
        self.is_body || self.role == Role::Definition
    }

    /// Whether what is computed now is to have no gradient. Where gradients are those of the graph,
    /// what a sweep gives is part of it like anything else, though it does not record.
    pub fn is_no_grad(&self) -> bool {
        !(tape::recording() || self.cuts() && context::HERE.with(|context| context.sweeping.get()))
    }

    /// For a node that was made without recording what stands for it where it is recorded, if that
    /// is known.
    pub fn stop_of(&self, id: Id) -> Option<Option<Id>> {
        let known = self.state.lock().no_grad.get(&id).copied()?;
        let is_float = self.read(|graph| graph.ty(id)).dtype.is_float();
        Some(if is_float { known } else { Some(id) })
    }

    /// Takes note of what stands for a node that was made without recording.
    pub fn stopped(&self, id: Id, stop: Id) -> Result<Id> {
        self.state.lock().no_grad.insert(id, Some(stop));
        Ok(stop)
    }

    /// The nodes that were made without recording.
    pub fn no_grad_nodes(&self) -> FxHashSet<Id> {
        self.state.lock().no_grad.keys().copied().collect()
    }

    /// Takes note of nodes that were made without recording.
    pub fn mark_no_grad(&self, ids: &[Id]) {
        self.state.lock().no_grad.extend(ids.iter().map(|&id| (id, None)));
    }

    /// Operands of what is recorded: those that were made without recording pass no gradient on.
    pub fn settle(self: &Arc<Trace>, operands: &mut [Arg]) -> Result<()> {
        for arg in operands {
            let Arg::Node(id) = *arg else { continue };
            let stop = match self.stop_of(id) {
                None => continue,
                Some(Some(stop)) => stop,
                Some(None) => {
                    let stop = Op::Map(&arithmetic::stop_gradient);
                    let array = self.add(|graph| catch(|| graph.emit(stop, &[*arg])))?;
                    self.stopped(id, node_of(&array).map_or(id, |(_, stop)| stop))?
                }
            };
            *arg = Arg::Node(stop);
        }
        Ok(())
    }
}
