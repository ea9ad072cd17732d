//! `List`: the nodes of a graph as plain data.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Host;
use crate::array::Array;
use crate::error::{self, Error};
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::ops::op::{Op, Type};
use crate::shape::Shape;
use crate::site::Site;

/// The operands of a node.
pub type Args = SmallVec<[Arg; 3]>;

/// How a node gets its value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// An input: the value is given
    Input,
    /// This array
    Constant(Array),
    /// The result of an op
    Op(Op),
    /// A control-flow op over bodies. Its results are the [`Kind::Result`]s that name it; its own
    /// type means nothing
    ControlFlow(Arc<ControlFlow>),
    /// A result of the node that is its only operand: any result of control flow, or one behind the
    /// first of an op
    Result(u32),
    /// An effect, which runs when the list runs; its own value means nothing
    Effect(Arc<Effect>),
    /// The first operand unchanged, available once the others are computed. Passes neither merge a
    /// barrier nor look through it, so values that are recomputed on purpose stay apart from the
    /// originals
    Barrier,
}

/// A control-flow op, or a call of a host op. Operands go to the inputs of bodies, by position.
///
/// A body sees nothing else of the list around it: every value that it reads from there is an
/// operand (a "capture"). Numbers are shared: numeric input `i` of a body is that of the list
/// around it.
#[derive(Clone, Debug)]
pub struct ControlFlow {
    /// The kind
    pub kind: ControlFlowKind,
    /// The bodies
    pub bodies: SmallVec<[Arc<List>; 2]>,
    /// The types of the results
    pub results: SmallVec<[Type; 2]>,
}

/// The kinds of control flow, with the order of their operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ControlFlowKind {
    /// `(index, x…)`: the body at the index (a scalar of int64, clamped) on `x…`; all bodies have
    /// the results' types
    Branch,
    /// `(carry…, captures…)`: while body 0 gives true (a scalar bool), body 1 gives the next carry;
    /// both take all operands. With `history` further results are each carry stacked over the
    /// rounds (as it entered each round), and last the count of rounds (a scalar of int64)
    #[allow(missing_docs)]
    While { carry: u32, history: bool },
    /// `(carry…, xs…, captures…)`: body 0 runs once for each index of the leading axis of `xs`,
    /// which is `length` long. It takes the carry, the elements of `xs` at the index, and the
    /// captures. It gives the next carry, then the elements that are stacked into the other
    /// results. With `reverse` the indices run from the end
    #[allow(missing_docs)]
    Scan { carry: u32, xs: u32, length: crate::shape::Dim, reverse: bool },
    /// `(x…)`: user code on host memory. Where there is a body, the body runs on `x…` instead, and
    /// only the rules are user code
    Host(Host),
}

impl ControlFlow {
    /// The same op over other bodies.
    pub fn with_bodies(&self, bodies: SmallVec<[Arc<List>; 2]>) -> ControlFlow {
        ControlFlow { kind: self.kind.clone(), bodies, results: self.results.clone() }
    }

    /// Whether the op, or one of its bodies, has an effect.
    pub fn has_effect(&self) -> bool {
        let own = match &self.kind {
            ControlFlowKind::Host(op) => op.class().has_effect(),
            ControlFlowKind::Branch
            | ControlFlowKind::While { .. }
            | ControlFlowKind::Scan { .. } => false,
        };
        own || self.bodies.iter().any(|body| body.nodes.iter().any(Node::has_effect))
    }
}

impl ControlFlowKind {
    /// The name in messages and prints.
    pub fn name(&self) -> &'static str {
        match self {
            ControlFlowKind::Branch => "cond",
            ControlFlowKind::While { .. } => "while_loop",
            ControlFlowKind::Scan { .. } => "scan",
            ControlFlowKind::Host(op) => op.name(),
        }
    }
}

/// An op that runs for its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `(truth)`: raises an error with this message unless every element is true
    Check(Arc<str>),
    /// `(x…)`: prints the text, with each `{}` replaced by an operand
    Print(Arc<str>),
}

impl Effect {
    /// The name in messages and prints.
    pub fn name(&self) -> &'static str {
        match self {
            Effect::Check(_) => "check",
            Effect::Print(_) => "print",
        }
    }

    /// The error of a check whose element `i`, in C order, of a value of this shape is false.
    pub fn failed(message: &str, shape: &Shape, i: usize) -> Error {
        let facts = match shape.rank() {
            0 => "got false".to_owned(),
            _ => format!("element {i} (in C order) of shape {shape} is false"),
        };
        error::bad_value("check", message, facts)
    }
}

impl Kind {
    /// The name in messages, prints and pictures.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Constant(_) => "constant",
            Kind::Op(op) => op.name(),
            Kind::ControlFlow(flow) => flow.kind.name(),
            Kind::Result(_) => "result",
            Kind::Effect(effect) => effect.name(),
            Kind::Barrier => "barrier",
        }
    }
}

/// One value of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// How it gets its value
    pub kind: Kind,
    /// The operands
    pub args: Args,
    /// Dtype and shape
    pub ty: Type,
    /// The Python line that made it
    pub site: Site,
}

/// Nodes in order of computation, some of which are results.
#[derive(Clone, Default)]
pub struct List {
    /// The nodes; each names earlier ones only
    pub nodes: Vec<Node>,
    /// The results
    pub outputs: Vec<Id>,
    /// The table of numbers: some are given, the others are calculated from them and from sizes
    pub numbers: Vec<Number>,
    /// Names given to nodes, for people
    pub names: FxHashMap<Id, Arc<str>>,
}

impl List {
    /// The inputs in order.
    pub fn inputs(&self) -> impl Iterator<Item = Id> + '_ {
        let inputs = self.nodes.iter().enumerate().filter(|(_, n)| matches!(n.kind, Kind::Input));
        inputs.map(|(i, _)| Id(i as u32))
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Which nodes a result or an effect depends on, results and effects included.
    pub fn live(&self) -> Vec<bool> {
        live(&self.nodes, &self.outputs)
    }

    /// The list of the first `count` nodes, with everything else unchanged.
    pub fn until(&self, count: usize) -> List {
        List {
            nodes: self.nodes[..count].to_vec(),
            outputs: self.outputs.clone(),
            numbers: self.numbers.clone(),
            names: self.names.clone(),
        }
    }
}

/// Which nodes the `wanted` ones or an effect depend on, `wanted` and effects included.
pub fn live(nodes: &[Node], wanted: &[Id]) -> Vec<bool> {
    let mut live = vec![false; nodes.len()];
    wanted.iter().for_each(|id| live[id.0 as usize] = true);
    for (i, node) in nodes.iter().enumerate().rev() {
        live[i] |= node.has_effect();
        if live[i] {
            node.reads().for_each(|id| live[id.0 as usize] = true);
        }
    }
    live
}

impl Node {
    /// The nodes among its operands.
    pub fn reads(&self) -> impl Iterator<Item = Id> + '_ {
        self.args.iter().filter_map(|arg| match *arg {
            Arg::Node(id) => Some(id),
            Arg::Number(_) => None,
        })
    }

    /// Whether the node must run even if no node reads it.
    pub fn has_effect(&self) -> bool {
        match &self.kind {
            Kind::Effect(_) => true,
            Kind::ControlFlow(flow) => flow.has_effect(),
            Kind::Input | Kind::Constant(_) | Kind::Op(_) | Kind::Result(_) | Kind::Barrier => {
                false
            }
        }
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} nodes", self.nodes.len())
    }
}
