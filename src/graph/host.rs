//! Host ops: user code that takes arrays and gives arrays.
//!
//! For a `wengert.Function` only the rules are user code: the op itself computes a list of nodes.
//!
//! A graph holds a host op as it holds control flow
//! ([`ControlFlowKind::Host`](super::ControlFlowKind::Host)): the engine drives it, and it has any
//! number of results. Its code runs outside of wengert, on host memory. Its rules are lists of
//! ordinary nodes, which passes write into the graph beside the call.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{ControlFlow, ControlFlowKind, Kind, List};
use crate::array::Array;
use crate::error::{self, Error, Result};
use crate::ops::op::Type;
use crate::shape::Dim;

pub use crate::ops::op::Types;

/// The effect of a call, besides its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EffectClass {
    /// Nothing: calls may be merged, moved, computed again and left out
    Pure,
    /// Something: each call happens once, in the order of the program
    Ordered,
    /// Something that the same calls of other processes wait for; ordered
    Collective,
}

impl EffectClass {
    /// The classes.
    pub const ALL: [EffectClass; 3] =
        [EffectClass::Pure, EffectClass::Ordered, EffectClass::Collective];

    /// The class with this name; `op` is for the error.
    pub fn named(op: &str, name: &str) -> Result<EffectClass> {
        let found = EffectClass::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| {
            let names = EffectClass::ALL.map(|class| format!("\"{}\"", class.name()));
            let what = format!("an effect is {}", names.join(" or "));
            error::bad_value(op, what, format!("got \"{name}\""))
        })
    }

    /// The name in programs, prints and messages.
    pub fn name(self) -> &'static str {
        match self {
            EffectClass::Pure => "pure",
            EffectClass::Ordered => "ordered",
            EffectClass::Collective => "collective",
        }
    }

    /// Whether a call runs once and in its place, whether or not its results are read.
    pub fn has_effect(self) -> bool {
        match self {
            EffectClass::Pure => false,
            EffectClass::Ordered | EffectClass::Collective => true,
        }
    }
}

/// A rule of a host op as nodes.
#[derive(Clone)]
pub struct Formula {
    /// Its inputs are the arguments of the rule, then the values that it reads outside
    pub list: Arc<List>,
    /// Values that the rule reads outside; only the engine knows their type
    pub outside: Vec<Arc<dyn Any + Send + Sync>>,
    /// For each operand (of a gradient) or result (of tangents and batches), its position among the
    /// results of the list, if it has one
    pub places: Vec<Option<usize>>,
}

/// The types of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Of the operands
    pub operands: Types,
    /// Of the results
    pub results: Types,
}

/// An op whose code is user code.
pub trait HostOp: Send + Sync {
    /// The name in messages, prints and profiles.
    fn name(&self) -> &'static str;

    /// The effect of a call, besides its results.
    fn class(&self) -> EffectClass;

    /// Equal for equal ops: pure calls of equal ops on the same operands are merged.
    fn key(&self) -> usize;

    /// The op as a handle that keeps the object with its code alive.
    fn kept(&self) -> Host;

    /// The op as a handle that does not: the caller keeps the object with its code alive.
    fn lent(&self) -> Host;

    /// The address of that object, while it lives.
    fn object(&self) -> Option<*mut c_void>;

    /// The types of the results.
    fn infer(&self, operands: &[Type]) -> Result<Types>;

    /// Runs the code on host memory. Its results are not checked yet.
    fn run(&self, operands: &[&Array], results: &[Type]) -> Result<Vec<Array>>;

    /// Whether there is a gradient rule.
    fn has_vjp(&self) -> bool;

    /// The gradient rule. The list takes operands, results and the cotangents of the results
    /// `given`, and gives cotangents of operands in `wanted`. `None` without a rule.
    fn vjp(&self, call: &Signature, given: &[bool], wanted: &[bool]) -> Result<Option<Formula>>;

    /// The rule of tangents. The list takes operands, results and the tangents of the operands in
    /// `has`, and gives tangents of results. `None` without a rule.
    fn jvp(&self, call: &Signature, has: &[bool]) -> Result<Option<Formula>>;

    /// The rule of batches of `size` examples. The list takes operands, which have a leading axis
    /// of examples where `mapped`, and gives results, all of which have one. `None` without a rule.
    fn batch(&self, call: &Signature, mapped: &[bool], size: Dim) -> Result<Option<Formula>>;
}

/// A host op in a graph.
#[derive(Clone)]
pub struct Host(pub Arc<dyn HostOp>);

impl PartialEq for Host {
    fn eq(&self, other: &Host) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for Host {}

impl Hash for Host {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.class().name())
    }
}

impl Host {
    /// The name in messages, prints and profiles.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The effect of a call, besides its results.
    pub fn class(&self) -> EffectClass {
        self.0.class()
    }

    /// Runs the code on host memory; the results have these types, each in memory of its own.
    pub fn run(&self, operands: &[&Array], results: &[Type]) -> Result<Vec<Array>> {
        let found = self.called(operands, results)?;
        if found.len() != results.len() {
            let facts = format!("got {}, wanted {}", found.len(), results.len());
            let what = "the function gave another count of results than its type rule";
            return Err(error::bad_value(self.name(), what, facts));
        }
        for (i, (y, ty)) in found.iter().zip(results).enumerate() {
            if y.dtype != ty.dtype {
                let got = format!("got {} for result {i}", y.dtype);
                return Err(error::host_dtype(self.name(), got, ty.dtype));
            }
            if !y.shape().same(&ty.shape) {
                let facts = format!("result {i}: wanted {}, got {}", ty.shape, y.shape());
                let what = "the function gave another shape than its type rule";
                return Err(error::bad_shape(self.name(), what, facts));
            }
        }
        Ok(found)
    }

    /// The rule of a gradient; refused where there is none.
    pub fn vjp(&self, call: &Signature, given: &[bool], wanted: &[bool]) -> Result<Formula> {
        self.0.vjp(call, given, wanted)?.ok_or_else(|| self.without_gradient())
    }

    /// The error for a gradient without a rule.
    pub fn without_gradient(&self) -> Error {
        error::no_rule(self.name())
    }

    /// Refuses a rule that reads values outside, which passes cannot write into a list.
    pub fn closed(&self, formula: Formula, what: &str) -> Result<Formula> {
        match formula.outside.is_empty() {
            true => Ok(formula),
            false => Err(error::open_rule(self.name(), what)),
        }
    }
}

impl List {
    /// Whether a node is a host op, in bodies too.
    pub fn calls_host(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| matches!(&node.kind, Kind::ControlFlow(flow) if calls_host(flow)))
    }

    /// The list with its host ops replaced, in bodies too.
    pub fn with_hosts(mut self, f: &mut dyn FnMut(&Host) -> Host) -> List {
        for node in &mut self.nodes {
            let Kind::ControlFlow(flow) = &node.kind else { continue };
            if !calls_host(flow) {
                continue;
            }
            let kind = match &flow.kind {
                ControlFlowKind::Host(op) => ControlFlowKind::Host(f(op)),
                kind @ (ControlFlowKind::Branch
                | ControlFlowKind::While { .. }
                | ControlFlowKind::Scan { .. }) => kind.clone(),
            };
            let mut bodies = SmallVec::new();
            for body in &flow.bodies {
                bodies.push(Arc::new((**body).clone().with_hosts(f)));
            }
            node.kind = Kind::ControlFlow(Arc::new(ControlFlow {
                kind,
                bodies,
                results: flow.results.clone(),
            }));
        }
        self
    }
}

fn calls_host(flow: &ControlFlow) -> bool {
    matches!(flow.kind, ControlFlowKind::Host(_))
        || flow.bodies.iter().any(|body| body.calls_host())
}
