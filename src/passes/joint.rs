//! A list with its gradient behind it, and the forward and backward lists it is cut into.

use rustc_hash::FxHashMap;

use super::grad::gradients;
use super::{graft, needed, stripped};
use crate::error::{self, Result};
use crate::graph::{ControlFlowKind, Graph, Kind, List, Node};
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::number::Number;
use crate::ops::op::{Op, Type};
use crate::shape::{Dim, Shape};

/// A body with its gradient behind it.
pub(super) struct Joint {
    pub(super) graph: Graph,
    /// How many nodes the body has
    length: usize,
    pub(super) inputs: Vec<Id>,
    /// The cotangents of the results that have one
    pub(super) seeds: Vec<Option<Id>>,
    /// The cotangents of the inputs that are wanted and have one
    pub(super) grads: Vec<Option<Id>>,
}

impl Joint {
    /// Takes the gradient of a body by the inputs `wanted`, where `given` says which results have a
    /// cotangent.
    pub(super) fn new(body: &List, wanted: &[bool], given: &[bool]) -> Result<Joint> {
        let (length, outputs) = (body.nodes.len(), body.outputs.clone());
        let inputs: Vec<Id> = body.inputs().collect();
        let graph = Graph::from_list(body.clone());
        let seed = |(&id, &given): (&Id, &bool)| given.then(|| graph.input(graph.ty(id)));
        let seeds: Vec<Option<Id>> = outputs.iter().zip(given).map(seed).collect();
        let pairs: Vec<(Id, Arg)> = outputs
            .iter()
            .zip(&seeds)
            .filter_map(|(&id, seed)| seed.map(|seed| (id, Arg::Node(seed))))
            .collect();
        let by: Vec<usize> = (0..inputs.len()).filter(|&i| wanted[i]).collect();
        let ids: Vec<Id> = by.iter().map(|&i| inputs[i]).collect();
        let mut grads = vec![None; inputs.len()];
        for (i, g) in by.into_iter().zip(gradients(&graph, &pairs, &ids)?) {
            grads[i] = g;
        }
        Ok(Joint { graph, length, inputs, seeds, grads })
    }

    /// The gradients that exist.
    pub(super) fn wanted(&self) -> Vec<Id> {
        self.grads.iter().flatten().copied().collect()
    }

    /// Whether a node runs forward: a node of the body, or a result of a control-flow op of the
    /// body that the gradient of that op added.
    fn is_forward(&self, id: Id, node: &Node) -> bool {
        let of_body = |id: Id| (id.0 as usize) < self.length;
        of_body(id) || (matches!(node.kind, Kind::Result(_)) && node.reads().all(of_body))
    }

    /// The values of the body that the gradient reads: which of the inputs in `at_hand`, and the
    /// residuals, which are all others. A node that is computed `again` is replaced by its
    /// operands.
    pub(super) fn residuals(&self, at_hand: &[bool], again: &[bool]) -> (Vec<bool>, Vec<Id>) {
        let list = self.graph.list();
        let ragged = ragged(&list);
        let place: FxHashMap<Id, usize> =
            self.inputs.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let stays = |id: Id| {
            let node = list.node(id);
            let made_again = matches!(node.kind, Kind::Constant(_) | Kind::ControlFlow(_))
                || ragged[id.0 as usize]
                || again.get(id.0 as usize).is_some_and(|again| *again);
            self.is_forward(id, node) && !made_again
        };
        let needed = needed(&list, &self.wanted(), stays);
        let mut used = vec![false; self.inputs.len()];
        let mut residuals = Vec::new();
        for i in (0..needed.len()).filter(|&i| needed[i]) {
            let id = Id(i as u32);
            match place.get(&id) {
                Some(&input) if at_hand[input] => used[input] = true,
                _ if stays(id) => residuals.push(id),
                _ => {}
            }
        }
        (used, residuals)
    }

    /// The nodes of the body that are computed again instead of saved: those that only move data
    /// that is available, and those that depend only on the inputs in `fixed`.
    pub(super) fn made_again(&self, fixed: &[bool]) -> Vec<bool> {
        let list = self.graph.list();
        let mut constant = vec![false; self.length];
        for (&id, &fixed) in self.inputs.iter().zip(fixed) {
            constant[id.0 as usize] = fixed;
        }
        let mut again = vec![false; self.length];
        for (i, node) in list.nodes[..self.length].iter().enumerate() {
            let Kind::Op(op) = &node.kind else { continue };
            constant[i] = fixed.contains(&true) && node.reads().all(|id| constant[id.0 as usize]);
            #[allow(
                clippy::wildcard_enum_match_arm,
                reason = "no op is taken for free unless it is known to be"
            )]
            let is_free = match op {
                Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) => true,
                Op::Full(_) | Op::Iota(..) => node.reads().next().is_none(),
                _ => false,
            };
            again[i] = constant[i] || is_free;
        }
        again
    }

    /// The body, with `more` values of it as further results.
    pub(super) fn forward(&self, body: &List, more: &[Id]) -> List {
        let list = self.graph.list();
        let mut nodes = list.nodes[..self.length].to_vec();
        let mut outputs = body.outputs.clone();
        // A control-flow op keeps its original form where none of the results that its gradient
        // added are asked for.
        let asked = |id: Id| more.iter().any(|&part| list.node(part).reads().any(|of| of == id));
        for (i, node) in body.nodes.iter().enumerate() {
            if matches!(node.kind, Kind::ControlFlow(_)) && !asked(Id(i as u32)) {
                nodes[i].kind = node.kind.clone();
            }
        }
        for &id in more {
            outputs.push(if (id.0 as usize) < self.length {
                id
            } else {
                nodes.push(list.node(id).clone());
                Id(nodes.len() as u32 - 1)
            });
        }
        List { nodes, outputs, numbers: list.numbers.clone(), names: body.names.clone() }
    }
}

/// The nodes whose sizes are known only at run time: the history of a `while_loop`, and nodes
/// computed from one. These sizes differ from one round of a loop to the next and from one branch
/// to another, so such values cannot be stacked.
fn ragged(list: &List) -> Vec<bool> {
    let mut ragged = vec![false; list.nodes.len()];
    for (i, node) in list.nodes.iter().enumerate() {
        let reads = node.reads().any(|id| ragged[id.0 as usize]);
        ragged[i] = match &node.kind {
            Kind::Input | Kind::Constant(_) | Kind::Effect(_) => false,
            Kind::Op(_) | Kind::ControlFlow(_) | Kind::Barrier => reads,
            Kind::Result(part) => match node.reads().next().map(|id| &list.node(id).kind) {
                Some(Kind::ControlFlow(flow)) => match flow.kind {
                    ControlFlowKind::Branch | ControlFlowKind::Host(_) => reads,
                    ControlFlowKind::While { carry, .. } => *part >= carry,
                    ControlFlowKind::Scan { carry, .. } => reads && *part >= carry,
                },
                _ => reads,
            },
        };
    }
    ragged
}

/// A gradient body as it is written: its inputs stand for values of a [`Joint`].
pub(super) struct Backward {
    pub(super) graph: Graph,
    pub(super) names: FxHashMap<Id, Id>,
}

impl Backward {
    pub(super) fn new(numbers: Vec<Number>) -> Backward {
        let list = List { numbers, ..List::default() };
        Backward { graph: Graph::from_list(list), names: FxHashMap::default() }
    }

    /// An input that stands for a value.
    pub(super) fn stand_in(&mut self, joint: &Graph, id: Id) -> Id {
        let input = self.graph.input(joint.ty(id));
        self.names.insert(id, input);
        input
    }

    /// The gradients of a joint, in the order of [`Joint::wanted`].
    ///
    /// A value of the body that no input stands for is computed again. An ordered host op may not
    /// be called again, so that is an error.
    pub(super) fn grads(&self, joint: &Joint) -> Result<Vec<Option<Id>>> {
        let list = joint.graph.list();
        let needed = needed(&list, &joint.wanted(), |id| self.names.contains_key(&id));
        let again =
            (0..joint.length).filter(|&i| needed[i] && !self.names.contains_key(&Id(i as u32)));
        for i in again {
            if let Some(name) = calls_in_order(&list.nodes[i]) {
                let facts = "let a scan do the rounds, which keeps what they gave";
                let what = "the gradient of the loop around would call it again, and it is ordered";
                return Err(error::gradient(name, what, facts));
            }
        }
        let mut found = graft(&self.graph, &list, self.names.clone(), &joint.wanted()).into_iter();
        Ok(joint.grads.iter().map(|g| g.and_then(|_| found.next())).collect())
    }
}

/// The name of the ordered host op that a node calls, or that its bodies call for their results.
fn calls_in_order(node: &Node) -> Option<&'static str> {
    let Kind::ControlFlow(flow) = &node.kind else { return None };
    match &flow.kind {
        ControlFlowKind::Host(op) if op.class().has_effect() => Some(op.name()),
        ControlFlowKind::Host(_)
        | ControlFlowKind::Branch
        | ControlFlowKind::While { .. }
        | ControlFlowKind::Scan { .. } => {
            flow.bodies.iter().find_map(|body| stripped(body).nodes.iter().find_map(calls_in_order))
        }
    }
}

/// The node of an expression.
pub(super) fn node(expr: impl FnOnce() -> Arg) -> Result<Id> {
    match catch(expr)? {
        Arg::Node(id) => Ok(id),
        Arg::Number(_) => Err(error::internal("a value is a node")),
    }
}

/// Zeros of a type.
pub(super) fn zeros(graph: &Graph, ty: &Type) -> Result<Id> {
    let zero = Expr::new(graph, Arg::Number(0.into()));
    node(|| zero.full(ty.dtype, ty.shape.clone()).arg())
}

/// A type with one more axis in front.
pub(super) fn stacked(ty: &Type, length: Dim) -> Type {
    let shape: Shape = std::iter::once(length).chain(ty.shape.dims().iter().copied()).collect();
    Type::new(ty.dtype, shape)
}

/// Which inputs of a list these values read.
pub(super) fn read_inputs(list: &List, wanted: &[Id]) -> Vec<bool> {
    let needed = needed(list, wanted, |_| false);
    list.inputs().map(|id| needed[id.0 as usize]).collect()
}
