//! `List`: the nodes of a graph as plain data.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Host;
use crate::array::Array;
use crate::ops::emit::{Arg, Id};
use crate::ops::number::Number;
use crate::ops::op::{Op, Type};
use crate::site::Site;

/// The operands of a node.
pub type Args = SmallVec<[Arg; 3]>;

/// How a node comes by its value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// It is given
    Input,
    /// It is this array
    Constant(Array),
    /// It is computed
    Op(Op),
    /// Control flow over lists of its own; its results are the [`Kind::Result`]s that name it, and its
    /// own type says nothing
    ControlFlow(Arc<ControlFlow>),
    /// A result of the node that is its only operand: of control flow, or behind the first of an op
    Result(u32),
    /// It is done when the list runs, for its effect; its own value says nothing
    Effect(Arc<Effect>),
    /// The first operand as it is, once the others are there: passes neither merge it nor look
    /// through it, so that what was recomputed on purpose stays apart from its original
    Barrier,
}

/// Control flow: operands go to the inputs of bodies, by position; or a call of the host.
///
/// A body sees nothing else of the list around it: what it reads there is an operand ("capture").
/// Numbers are shared: numeric input `i` of a body is that of the list around it.
#[derive(Clone, Debug)]
pub struct ControlFlow {
    /// Which
    pub kind: ControlFlowKind,
    /// What runs
    pub bodies: SmallVec<[Arc<List>; 2]>,
    /// The types of the results
    pub results: SmallVec<[Type; 2]>,
}

/// The forms of control flow, with the order of their operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ControlFlowKind {
    /// `(index, x…)`: the body at the index (a scalar of int64, clamped) on `x…`; all bodies have the
    /// results' types
    Branch,
    /// `(carry…, captures…)`: while body 0 gives true (a scalar bool), body 1 gives the next carry;
    /// both take all operands. With `history` each carry is also given stacked over the rounds (as it
    /// entered each), and last the count of rounds (a scalar of int64)
    #[allow(missing_docs)]
    While { carry: u32, history: bool },
    /// `(carry…, xs…, captures…)`: body 0 once for each index of the leading axis of `xs`, which
    /// `length` long; it takes the carry, the elements of `xs` at the index, the captures, and gives
    /// the next carry, then what is stacked into the other results. From the end where `reverse`
    #[allow(missing_docs)]
    Scan { carry: u32, xs: u32, length: crate::shape::Dim, reverse: bool },
    /// `(x…)`: code of the user's on data of the host; where there is a body, that on `x…`, and only
    /// the rules are the user's
    Host(Host),
}

impl ControlFlow {
    /// The same over other bodies.
    pub fn with_bodies(&self, bodies: SmallVec<[Arc<List>; 2]>) -> ControlFlow {
        ControlFlow { kind: self.kind.clone(), bodies, results: self.results.clone() }
    }

    /// Whether it, or a body, does something for its effect.
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

/// Something done for its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `(truth)`: an error with this message unless every element is true
    Check(Arc<str>),
    /// `(x…)`: printed, each `{}` of the text replaced by an operand
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
    /// How it comes about
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
    /// The numbers, of which some are given and the others come of them and of sizes
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

    /// Which nodes a result or an effect depends on, themselves included.
    pub fn live(&self) -> Vec<bool> {
        live(&self.nodes, &self.outputs)
    }

    /// The list of its first nodes alone, with everything else as it is.
    pub fn until(&self, count: usize) -> List {
        List {
            nodes: self.nodes[..count].to_vec(),
            outputs: self.outputs.clone(),
            numbers: self.numbers.clone(),
            names: self.names.clone(),
        }
    }
}

/// Which nodes some of them or an effect depend on, themselves included.
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
    /// The values among its operands.
    pub fn reads(&self) -> impl Iterator<Item = Id> + '_ {
        self.args.iter().filter_map(|arg| match *arg {
            Arg::Node(id) => Some(id),
            Arg::Number(_) => None,
        })
    }

    /// Whether it must run even if nobody reads it.
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
