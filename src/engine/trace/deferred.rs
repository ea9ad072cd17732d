//! Calls of a graph defined by hand, as its trace keeps them until they are made.

use std::ops::Range;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::array::Array;
use crate::engine::tape::Value;
use crate::graph::{Kind, List};
use crate::ops::declare::{Attr, Composite};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::shape::Extent;
use crate::site::Site;

/// One item of an index.
#[derive(Clone)]
pub enum Item {
    /// One position; the axis disappears
    Int(Extent),
    /// `start:stop:step`
    Slice(Option<Extent>, Option<Extent>, Option<i64>),
    /// `...`
    Ellipsis,
    /// `None`
    NewAxis,
    /// An integer or bool array
    Array(Value),
    /// An array that is an operand of its own, in an index that is kept for later
    Operand,
    /// Positions along an axis of its own, which a mask without axes makes: one, or none
    Flag(Array),
}

/// A function that was called.
#[derive(Clone)]
pub enum Call {
    /// An op on one or more operands, which it promotes
    Op(Op),
    /// A composite with its attributes
    Composite(&'static Composite, Box<[Attr]>),
    /// `x[items]`: the arrays among the items are further operands
    Get(Vec<Item>),
    /// `x[items] = v`: the arrays among the items are further operands, the last one is `v`
    Set(Vec<Item>),
    /// The gradients of the first operands by the next ones, with seeds for some of the first
    Gradients {
        /// How many results are differentiated
        ys: usize,
        /// By how many values
        xs: usize,
        /// Which of the results have a seed among the last operands
        seeded: Vec<bool>,
        /// Which of the gradients are results
        kept: Vec<bool>,
    },
    /// A variable's new value, which has the variable's type
    Assign(Type),
}

impl Call {
    /// The name in messages and prints.
    pub fn name(&self) -> &str {
        match self {
            Call::Op(op) => op.name(),
            Call::Composite(composite, _) => composite.name,
            Call::Get(_) => "getitem",
            Call::Set(_) => "setitem",
            Call::Gradients { .. } => "gradients",
            Call::Assign(_) => "assign",
        }
    }
}

/// A call of a graph defined by hand, which each run makes.
#[derive(Clone)]
pub struct DeferredCall {
    /// The function
    pub call: Call,
    /// The operands
    pub args: Vec<Arg>,
    /// The nodes that the call wrote; no other call wrote them
    pub nodes: Range<u32>,
    /// Those that are its results
    pub results: SmallVec<[Id; 1]>,
    /// The Python line
    pub site: Site,
}

/// What a graph defined by hand knows besides its list.
#[derive(Clone, Default)]
pub struct Calls {
    /// In order
    pub deferred: Vec<DeferredCall>,
    /// The nodes of unknown shape
    pub unresolved: FxHashSet<Id>,
    /// The nodes whose shape holds if sizes are what was taken for likely, as in `x[:3]`
    pub likely: FxHashSet<Id>,
}

impl Calls {
    /// The call that wrote a node.
    pub fn of(&self, id: Id) -> Option<&DeferredCall> {
        let after = self.deferred.partition_point(|call| call.nodes.start <= id.0);
        let call = &self.deferred[after.checked_sub(1)?];
        call.nodes.contains(&id.0).then_some(call)
    }

    /// The call that must be made for a node. A constant needs none, whoever wrote it.
    pub fn making(&self, list: &List, id: Id) -> Option<&DeferredCall> {
        match list.node(id).kind {
            Kind::Constant(_) => None,
            Kind::Input
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => self.of(id),
        }
    }

    /// The operands of a node: those of its call, where the node itself does not say them.
    pub fn args(&self, list: &List, id: Id) -> SmallVec<[Arg; 4]> {
        match self.of(id) {
            Some(call) if matches!(list.node(id).kind, Kind::Input) => {
                call.args.iter().copied().collect()
            }
            _ => list.node(id).args.iter().copied().collect(),
        }
    }
}
