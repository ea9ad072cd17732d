//! Graphs: the list of nodes as a value.
//!
//! A graph is append-only, and a node names earlier nodes only. So the order of nodes is an order
//! of computation, and a walk over a graph is a loop over a list, without recursion. Graphs are
//! emissions: every rule and composite builds them by running its formula. [`Graph::verify`] checks
//! the law, [`Graph::print`] writes the list as text, [`parse()`] reads the text back.
//!
//! An input is a node, or a number: a float that is known only when the graph runs. Formulas pass
//! numbers on without looking at their values, so a formula receives a numeric input as its
//! position in the list's table of numbers ([`Graph::number`]). A formula that does look at a value
//! is recorded ([`Graph::looked`]): the nodes that it emits afterwards may hold for one value only.

mod admit;
#[cfg(test)]
pub(crate) mod cases;
pub mod dot;
mod host;
mod list;
mod literal;
pub mod numbers;
mod operands;
pub mod parse;
pub mod print;
pub mod replay;
mod resize;
mod same;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verify;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

pub use admit::{admit, admit_found};
pub use host::{EffectClass, Formula, Host, HostOp, Signature, Types};
pub use list::{Args, ControlFlow, ControlFlowKind, Effect, Kind, List, Node, live};
pub use parse::{parse, parse_on};
pub use resize::resize;
pub use same::difference;

use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::Result;
use crate::module_scope::ModuleScope;
use crate::ops::declare::Composite;
use crate::ops::emit::{Arg, Emit, Expr, Id, OrThrow, catch};
use crate::ops::number::Number;
use crate::ops::op::{Op, OperandType, Type};
use crate::ops::scan::{self, Scan, node_type};
use crate::shape::{Dim, Shape};
use crate::site::Site;

/// A list that grows while formulas run.
#[derive(Default)]
pub struct Graph {
    list: RefCell<List>,
    looked: RefCell<Vec<u32>>,
    site: Cell<Site>,
    keeps: Option<fn(&'static Composite) -> bool>,
}

/// The operand for entry `i` of the table of numbers.
pub fn numeric_input(i: u32) -> Arg {
    Arg::Number(Numeric::Told(i))
}

impl Graph {
    /// An empty graph in which composites are replaced by their formulas.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// An empty graph in which calls of these composites stay one node, unless they are inline.
    pub fn keeping(keeps: fn(&'static Composite) -> bool) -> Graph {
        Graph { keeps: Some(keeps), ..Graph::default() }
    }

    /// An empty graph in which all calls stay one node, but inline ones.
    pub fn with_calls() -> Graph {
        Graph::keeping(|_| true)
    }

    /// An empty graph with the numeric inputs of another.
    pub fn with_numbers_of(other: &Graph) -> Graph {
        let graph = Graph::new();
        graph.list.borrow_mut().numbers = other.list().numbers.clone();
        graph
    }

    /// A graph that continues a list.
    pub fn from_list(list: List) -> Graph {
        Graph { list: RefCell::new(list), ..Graph::with_calls() }
    }

    /// The list as it is now.
    pub fn list(&self) -> Ref<'_, List> {
        self.list.borrow()
    }

    /// The list, to change.
    pub fn list_mut(&self) -> RefMut<'_, List> {
        self.list.borrow_mut()
    }

    /// Gives the list up.
    pub fn into_list(self) -> List {
        self.list.into_inner()
    }

    /// Adds an input.
    pub fn input(&self, ty: Type) -> Id {
        self.push(Kind::Input, Args::new(), ty)
    }

    /// Adds a constant.
    pub fn constant(&self, array: Array) -> Id {
        let ty = Type::new(array.dtype, array.shape().clone());
        self.push(Kind::Constant(array), Args::new(), ty)
    }

    /// Adds a control-flow op; returns its results.
    pub fn flow(&self, flow: ControlFlow, args: &[Arg]) -> SmallVec<[Id; 2]> {
        let results = flow.results.clone();
        let id = self.push(Kind::ControlFlow(Arc::new(flow)), args.into(), unit());
        let part =
            |(i, ty)| self.push(Kind::Result(i as u32), SmallVec::from_slice(&[Arg::Node(id)]), ty);
        results.into_iter().enumerate().map(part).collect()
    }

    /// Gives a control-flow op more results, behind those that it has. Nodes that name it keep
    /// their meaning.
    pub fn widen(&self, id: Id, flow: ControlFlow) {
        let kind = self.with_own_numbers(Kind::ControlFlow(Arc::new(flow)));
        self.list.borrow_mut().nodes[id.0 as usize].kind = kind;
    }

    /// Result `i` of a node that has several.
    pub fn part(&self, of: Id, i: usize) -> Id {
        let (found, ty) = {
            let nodes = self.nodes();
            let is_it = |node: &Node| {
                matches!(node.kind, Kind::Result(part) if part as usize == i)
                    && node.args.first() == Some(&Arg::Node(of))
            };
            let later = nodes[of.0 as usize..].iter();
            let found = later.enumerate().find(|(_, node)| is_it(node));
            let node = &nodes[of.0 as usize];
            let ty = match &node.kind {
                Kind::ControlFlow(flow) => flow.results[i].clone(),
                Kind::Op(op) => result_types(&nodes, op, &node.args).or_throw().swap_remove(i),
                Kind::Input
                | Kind::Constant(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => unit(),
            };
            (found.map(|(after, _)| Id(of.0 + after as u32)), ty)
        };
        let args = || SmallVec::from_slice(&[Arg::Node(of)]);
        found.unwrap_or_else(|| self.push(Kind::Result(i as u32), args(), ty))
    }

    /// Records that formulas looked at numeric inputs in another graph.
    pub fn looks_at_all(&self, inputs: &[u32]) {
        self.looked.borrow_mut().extend_from_slice(inputs);
    }

    /// Adds an effect.
    pub fn effect(&self, effect: Effect, args: &[Arg]) -> Id {
        self.push(Kind::Effect(Arc::new(effect)), args.into(), unit())
    }

    /// Adds a barrier: `x` unchanged, available once `after` are computed.
    pub fn barrier(&self, x: Id, after: &[Id]) -> Id {
        let args = std::iter::once(&x).chain(after).map(|&id| Arg::Node(id)).collect();
        let ty = self.ty(x);
        self.push(Kind::Barrier, args, ty)
    }

    /// Adds a node of this kind, with these operands and this type.
    pub fn push(&self, kind: Kind, args: Args, ty: Type) -> Id {
        let kind = self.with_own_numbers(kind);
        let site = self.site.get().within_running();
        let mut list = self.list.borrow_mut();
        list.nodes.push(Node { kind, args, ty, site });
        Id(list.nodes.len() as u32 - 1)
    }

    /// Adds a numeric input.
    pub fn number(&self) -> Arg {
        numeric_input(self.given())
    }

    /// Makes a value the next result.
    pub fn output(&self, id: Id) {
        self.list.borrow_mut().outputs.push(id);
    }

    /// Gives a node a name, for people.
    pub fn name(&self, id: Id, name: impl Into<Arc<str>>) {
        self.list.borrow_mut().names.insert(id, name.into());
    }

    /// Attributes the nodes that follow to a Python line.
    pub fn at(&self, site: Site) {
        self.site.set(site);
    }

    /// Says that a node belongs to no module.
    pub fn put_outside(&self, id: Id) {
        self.list.borrow_mut().nodes[id.0 as usize].site.scope = ModuleScope::NONE;
    }

    /// The nodes in order.
    pub fn nodes(&self) -> Ref<'_, [Node]> {
        Ref::map(self.list.borrow(), |list| list.nodes.as_slice())
    }

    /// The results in order.
    pub fn outputs(&self) -> Ref<'_, [Id]> {
        Ref::map(self.list.borrow(), |list| list.outputs.as_slice())
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.list.borrow().nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many numbers there are.
    pub fn numbers(&self) -> u32 {
        self.list.borrow().numbers.len() as u32
    }

    /// The numeric inputs that formulas looked at.
    pub fn looked(&self) -> Ref<'_, [u32]> {
        Ref::map(self.looked.borrow(), Vec::as_slice)
    }

    /// Runs a formula whose values are the results.
    pub fn build<'g>(&'g self, formula: impl FnOnce() -> SmallVec<[Expr<'g>; 1]>) -> Result<()> {
        catch(|| {
            for x in formula() {
                if let Arg::Node(id) = x.tensor().arg() {
                    self.output(id);
                }
            }
        })
    }
}

/// The type of nodes whose own value means nothing, such as effects.
fn unit() -> Type {
    Type::new(DType::Bool, Shape::scalar())
}

/// The types of all results of a node.
pub fn result_types(nodes: &[Node], op: &Op, args: &[Arg]) -> Result<Types> {
    let types: SmallVec<[OperandType<'_>; 4]> =
        args.iter().map(|&arg| operand_type(nodes, arg)).collect();
    op.infer_all(&types)
}

/// An operand as type rules see it.
fn operand_type(nodes: &[Node], arg: Arg) -> OperandType<'_> {
    match arg {
        Arg::Node(id) => {
            let ty = &nodes[id.0 as usize].ty;
            OperandType::Tensor(ty.dtype, &ty.shape)
        }
        Arg::Number(value) => OperandType::Scalar(value),
    }
}

impl Emit for Graph {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        let ty = {
            let nodes = self.nodes();
            let types: SmallVec<[OperandType<'_>; 4]> =
                args.iter().map(|&arg| operand_type(&nodes, arg)).collect();
            op.infer(&types).or_throw()
        };
        self.push(Kind::Op(op), args.into(), ty)
    }

    fn result(&self, id: Id, k: usize) -> Id {
        if k == 0 { id } else { self.part(id, k) }
    }

    /// One node, whose body is a round.
    fn scan(&self, scan: &Scan<'_>) -> scan::Results {
        let body = Graph { keeps: self.keeps, ..Graph::with_numbers_of(self) };
        body.at(self.site.get());
        let inputs = scan.inputs(|arg| node_type(self, arg));
        let inputs: SmallVec<[Id; 8]> = inputs.into_iter().map(|ty| body.input(ty)).collect();
        let round = || {
            let inputs: SmallVec<[Expr<'_>; 8]> =
                inputs.iter().map(|&id| Expr::new(&body, Arg::Node(id))).collect();
            (scan.round)(&body, &inputs)
        };
        body.build(round).or_throw();
        let results = scan.results(body.outputs().iter().map(|&id| body.ty(id)));
        self.looks_at_all(&body.looked());
        let kind = ControlFlowKind::Scan {
            carry: scan.carry.len() as u32,
            xs: scan.xs.len() as u32,
            length: scan.length,
            reverse: scan.reverse,
        };
        let bodies = smallvec![Arc::new(body.into_list())];
        let args: Args = scan.operands().collect();
        let flow = ControlFlow { kind, bodies, results: results.into_iter().collect() };
        self.flow(flow, &args).into_iter().collect()
    }

    fn ty(&self, id: Id) -> Type {
        self.list.borrow().nodes[id.0 as usize].ty.clone()
    }

    fn keeps(&self, composite: &'static Composite) -> bool {
        self.keeps.is_some_and(|keeps| keeps(composite))
    }

    fn number(&self, number: Number) -> Numeric {
        self.define(number)
    }

    fn size_behind(&self, value: Numeric) -> Option<Dim> {
        match self.list.borrow().numbers.get(value.told()? as usize) {
            Some(Number::Size(dim)) => Some(*dim),
            _ => None,
        }
    }

    fn looks_at(&self, number: u32) -> Option<Scalar> {
        self.look(number)
    }
}
