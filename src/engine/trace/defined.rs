//! State of a trace of a graph defined by hand: deferred calls, unknown shapes, keys.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{Calls, DeferredCall, Dispatch, Role, Trace};
use crate::dtype::DType;
use crate::engine::executors::Device;
use crate::engine::tape::Value;
use crate::error::Result;
use crate::graph::List;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Type;
use crate::shape::{Scope, Shape};

impl Trace {
    /// A graph defined by hand that goes on from a list, with its calls and random keys. It defers
    /// calls by `dispatch`.
    pub fn define(
        dispatch: &'static dyn Dispatch,
        device: Device,
        list: List,
        calls: Calls,
        keys: FxHashSet<Id>,
        scope: Scope,
    ) -> Arc<Trace> {
        let mut trace = Trace::make(Role::Definition, false, scope);
        let _ = trace.device.set(device);
        *trace.graph.lock().list_mut() = list;
        if let Some(trace) = Arc::get_mut(&mut trace) {
            trace.deferred = Some(dispatch);
            let state = trace.state.get_mut();
            (state.calls, state.keys) = (calls, keys);
        }
        trace
    }

    /// Whether the shape of a node is not known.
    pub fn is_unresolved(&self, id: Id) -> bool {
        self.state.lock().calls.unresolved.contains(&id)
    }

    /// Whether nodes must not rely on the shape of a node.
    pub fn is_uncertain(&self, id: Id) -> bool {
        let state = self.state.lock();
        state.calls.unresolved.contains(&id) || state.calls.likely.contains(&id)
    }

    /// Notes that the shape of a node rests on sizes taken for likely.
    pub fn doubt(&self, id: Id) {
        let calls = &mut self.state.lock().calls;
        if !calls.unresolved.contains(&id) {
            calls.likely.insert(id);
        }
    }

    /// Whether an input is a random key.
    pub fn is_key(&self, id: Id) -> bool {
        self.state.lock().keys.contains(&id)
    }

    /// The type of an operand that is a node.
    pub fn type_of(&self, arg: Arg) -> Option<Type> {
        match arg {
            Arg::Node(id) => Some(self.read(|graph| graph.list().node(id).ty.clone())),
            Arg::Number(_) => None,
        }
    }

    /// A value of unknown shape.
    pub fn unresolved(self: &Arc<Trace>, dtype: DType) -> Result<Value> {
        let value = self.input(Type::new(dtype, Shape::scalar()))?;
        let id = self.node("graph", &value)?;
        self.state.lock().calls.unresolved.insert(id);
        Ok(value)
    }

    /// Keeps a call.
    pub fn defer(&self, call: DeferredCall) {
        self.state.lock().calls.deferred.push(call);
    }

    /// The calls it keeps.
    pub fn calls(&self) -> Calls {
        self.state.lock().calls.clone()
    }

    /// The list and the calls as they are now.
    pub fn snapshot(&self) -> (List, Calls) {
        let graph = self.graph.lock();
        let list = graph.list().clone();
        (list, self.calls())
    }

    /// The random keys among the nodes.
    pub fn keys(&self) -> FxHashSet<Id> {
        self.state.lock().keys.clone()
    }

    /// Takes back the last nodes, which nobody names.
    pub fn forget_from(&self, start: u32) {
        let mut state = self.state.lock();
        for known in state.constants.values_mut() {
            known.retain(|known| known.id.0 < start);
        }
        state.calls.unresolved.retain(|id| id.0 < start);
        state.calls.likely.retain(|id| id.0 < start);
        state.no_grad.retain(|id, _| id.0 < start);
        state.no_grad.values_mut().for_each(|stop| *stop = stop.filter(|id| id.0 < start));
        let (keys, past) = &mut state.draws;
        keys.retain(|id| id.0 < start);
        *past = (*past).min(keys.len());
        self.graph.lock().list_mut().nodes.truncate(start as usize);
    }
}
