//! Graphs: the list of nodes as a value.
//!
//! A graph is append-only and a node names earlier nodes only, so the order of nodes is an order of
//! computation, and whoever walks a graph walks a list: nothing recurses. Graphs are emissions, so
//! every rule and composite builds them by running its formula. [`Graph::verify`] checks the law,
//! [`Graph::print`] writes the list down.
//!
//! An input is a node, or a number: a float that is known only when the graph runs. Formulas pass
//! numbers on without looking at them, so a numeric input is handed to them as a NaN that carries its
//! position ([`Graph::number`]). A look is noticed ([`Graph::looked`]): what a formula emits after one
//! may hold for one value only.

#[cfg(test)]
pub(crate) mod cases;
mod print;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verify;

use std::cell::{Cell, Ref, RefCell};

use smallvec::SmallVec;

use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops::declare::Composite;
use crate::ops::emit::{Arg, Emit, Expr, Id, OrThrow, catch};
use crate::ops::op::{Op, OperandType, Type};
use crate::site::Site;

/// The operands of a node.
pub type Args = SmallVec<[Arg; 3]>;

/// How a node comes by its value.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// It is given
    Input,
    /// It is computed
    Op(Op),
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

/// A list of nodes, some of which are results.
#[derive(Default)]
pub struct Graph {
    nodes: RefCell<Vec<Node>>,
    outputs: RefCell<Vec<Id>>,
    numbers: Cell<u32>,
    looked: RefCell<Vec<u32>>,
    site: Cell<Site>,
    keeps_calls: bool,
}

/// The NaN of the numeric input 0; that of input `i` is `i` above.
const NUMBER: u64 = 0x7ffa_0000_0000_0000;

/// The numeric input that a scalar stands for, if it does.
pub fn number_of(value: Scalar) -> Option<u32> {
    let Scalar::Float(x) = value else { return None };
    let above = x.to_bits().wrapping_sub(NUMBER);
    (above <= u64::from(u32::MAX)).then_some(above as u32)
}

impl Graph {
    /// An empty graph in which composites become their formulas.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// An empty graph in which composites with a gradient of their own stay one node.
    pub fn with_calls() -> Graph {
        Graph { keeps_calls: true, ..Graph::default() }
    }

    /// An empty graph with the numeric inputs of another.
    pub fn with_numbers_of(other: &Graph) -> Graph {
        Graph { numbers: Cell::new(other.numbers()), ..Graph::default() }
    }

    /// Adds an input.
    pub fn input(&self, ty: Type) -> Id {
        self.push(Kind::Input, Args::new(), ty)
    }

    /// Adds a numeric input.
    pub fn number(&self) -> Arg {
        let i = self.numbers.get();
        self.numbers.set(i + 1);
        Arg::Scalar(Scalar::Float(f64::from_bits(NUMBER + u64::from(i))))
    }

    /// Names a value as the next result.
    pub fn output(&self, id: Id) {
        self.outputs.borrow_mut().push(id);
    }

    /// Attributes the nodes that follow to a line.
    pub fn at(&self, site: Site) {
        self.site.set(site);
    }

    /// The nodes in order.
    pub fn nodes(&self) -> Ref<'_, [Node]> {
        Ref::map(self.nodes.borrow(), Vec::as_slice)
    }

    /// The results in order.
    pub fn outputs(&self) -> Ref<'_, [Id]> {
        Ref::map(self.outputs.borrow(), Vec::as_slice)
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many numeric inputs there are.
    pub fn numbers(&self) -> u32 {
        self.numbers.get()
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

    fn push(&self, kind: Kind, args: Args, ty: Type) -> Id {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node { kind, args, ty, site: self.site.get() });
        Id(nodes.len() as u32 - 1)
    }
}

/// What type rules see of an operand.
fn operand_type(nodes: &[Node], arg: Arg) -> OperandType<'_> {
    match arg {
        Arg::Node(id) => {
            let ty = &nodes[id.0 as usize].ty;
            OperandType::Tensor(ty.dtype, &ty.shape)
        }
        Arg::Scalar(value) => OperandType::Scalar(value),
    }
}

impl Emit for Graph {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        let ty = {
            let nodes = self.nodes.borrow();
            let types: SmallVec<[OperandType<'_>; 4]> =
                args.iter().map(|&arg| operand_type(&nodes, arg)).collect();
            op.infer(&types).or_throw()
        };
        self.push(Kind::Op(op), args.into(), ty)
    }

    fn ty(&self, id: Id) -> Type {
        self.nodes.borrow()[id.0 as usize].ty.clone()
    }

    fn keeps(&self, _: &'static Composite) -> bool {
        self.keeps_calls
    }

    fn looks_at(&self, value: Scalar) {
        if let Some(i) = number_of(value) {
            self.looked.borrow_mut().push(i);
        }
    }
}
