//! Lists the values of a row program.

use smallvec::SmallVec;

use super::fuse::finish;
use super::{RowProgram, turned};
use crate::cpu::gemm::Axis;
use crate::cpu::program::register_bits;
use crate::cpu::reduce::{self, FoldPairs, FoldRows};
use crate::cpu::softmax::OfRows;
use crate::dtype::{DType, Scalar};
use crate::ops::attributes::Reduction;
use crate::ops::element::ElementOp;
use crate::tile::{self, TileKernel};

use super::kernels::Ops;

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An element for each of every row
    Whole,
    /// A number for each row
    Single,
    /// A row that all rows read
    Shared,
    /// One number
    Number,
}

/// A value, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub(super) u16);

/// How an operand of the program is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Which operand it is
    pub input: usize,
    /// Its dtype
    pub dtype: DType,
    /// Where the first element is, in elements from the first of the operand
    pub delta: isize,
    /// The positions of rows
    pub lead: Axis,
    /// Elements from one of a row to the next
    pub col: isize,
}

impl Port {
    /// Whether its elements are as registers hold them.
    pub(super) fn is_wide(&self) -> bool {
        self.dtype.compute().dtype() == self.dtype
    }

    /// Whether rows of `n` elements lie one behind the other as registers hold them.
    pub(super) fn lies(&self, n: usize) -> bool {
        self.is_wide() && self.col == 1 && self.lead.stride() == Some(n as isize)
    }
}

/// How a value is made.
#[derive(Clone)]
pub(super) enum Work {
    /// Read by a port
    Port(usize),
    /// A number, as register bits
    Number(u64),
    /// An elementwise op; `op` where a kernel may do it together with others
    Map { kernel: TileKernel, round: Option<TileKernel>, op: Option<Ops> },
    /// The number of a row for each of its elements
    Spread,
    /// A reduction of each row
    Fold { kind: Reduction, kernel: FoldRows, round: Option<TileKernel> },
    /// The sum of products of two rows, or of squares of a row less its number
    FoldPairs(FoldPairs),
    /// Ops on elements, one or two numbers of the row, and shared rows
    Rows(Ops),
    /// All that a softmax does
    Softmax(OfRows),
}

/// A value in the making.
#[derive(Clone)]
pub(super) struct Node {
    pub work: Work,
    pub args: SmallVec<[u16; 5]>,
    pub form: Form,
    pub dtype: DType,
}

/// Lists the values of a row program in order.
pub struct Builder {
    pub(super) n: usize,
    pub(super) nodes: Vec<Node>,
    pub(super) ports: Vec<Port>,
}

impl Builder {
    /// A program over rows of `n` elements, at least 2.
    pub fn new(n: usize) -> Builder {
        Builder { n, nodes: Vec::new(), ports: Vec::new() }
    }

    /// The form of a value.
    pub fn form(&self, x: Value) -> Form {
        self.nodes[x.0 as usize].form
    }

    fn push(&mut self, work: Work, args: &[Value], form: Form, dtype: DType) -> Value {
        let args = args.iter().map(|x| x.0).collect();
        self.nodes.push(Node { work, args, form, dtype });
        Value((self.nodes.len() - 1) as u16)
    }

    /// What a port reads.
    pub fn port(&mut self, port: Port, form: Form) -> Value {
        let known = |node: &Node| matches!(node.work, Work::Port(k) if node.form == form && self.ports[k] == port);
        if let Some(i) = self.nodes.iter().position(known) {
            return Value(i as u16);
        }
        let dtype = port.dtype;
        self.ports.push(port);
        self.push(Work::Port(self.ports.len() - 1), &[], form, dtype)
    }

    /// A number, rounded to a dtype.
    pub fn number(&mut self, value: Scalar, dtype: DType) -> Value {
        self.push(Work::Number(register_bits(value, dtype)), &[], Form::Number, dtype)
    }

    /// An elementwise op, computed in a dtype and rounded to another; `None` where it has no
    /// kernel.
    pub fn map(
        &mut self,
        op: ElementOp,
        args: &[Value],
        computes_in: DType,
        dtype: DType,
    ) -> Option<Value> {
        let forms = || args.iter().map(|&x| self.form(x));
        let is_single = forms().all(|form| matches!(form, Form::Single | Form::Number));
        let is_single = is_single && forms().any(|form| form == Form::Single);
        let form = if is_single { Form::Single } else { Form::Whole };
        let work = match op {
            ElementOp::Cast => {
                let from = self.nodes[args[0].0 as usize].dtype;
                if from.compute() == dtype.compute() && dtype.compute().dtype() == dtype {
                    // It is in the register of the wider dtype already.
                    return Some(args[0]);
                }
                Work::Map { kernel: tile::cast(from.compute(), dtype), round: None, op: None }
            }
            ElementOp::Map(def) => Work::Map {
                kernel: def.kernel(computes_in.compute())?,
                round: tile::round_through(dtype),
                op: Ops::of(def).filter(|_| matches!(dtype, DType::F32 | DType::F64)),
            },
        };
        let mut own: SmallVec<[Value; 3]> = SmallVec::from_slice(args);
        if !is_single {
            for x in &mut own {
                *x = self.whole(*x);
            }
        }
        Some(self.push(work, &own, form, dtype))
    }

    /// A value with an element for each of every row, or a shared row or number as it is.
    pub fn whole(&mut self, x: Value) -> Value {
        if self.form(x) != Form::Single {
            return x;
        }
        let known =
            |node: &Node| matches!(node.work, Work::Spread) && node.args.as_slice() == [x.0];
        match self.nodes.iter().position(known) {
            Some(i) => Value(i as u16),
            None => {
                let dtype = self.nodes[x.0 as usize].dtype;
                self.push(Work::Spread, &[x], Form::Whole, dtype)
            }
        }
    }

    /// A reduction of each row in a dtype; `None` where it has no kernel.
    pub fn fold(&mut self, kind: Reduction, x: Value, dtype: DType) -> Option<Value> {
        let x = self.whole(x);
        if self.form(x) != Form::Whole {
            return None;
        }
        let kernel = reduce::fold_of_rows(kind, dtype.compute().dtype())?;
        let round = tile::round_through(dtype);
        Some(self.push(Work::Fold { kind, kernel, round }, &[x], Form::Single, dtype))
    }

    /// The program that gives these values, in dtypes; `None` where its registers would not stay in
    /// a near cache.
    pub fn finish(self, results: &[(Value, DType)]) -> Option<RowProgram> {
        match turned::takes(self.n) {
            true => turned::finish(self, results).map(RowProgram::Turned),
            false => finish(self, results).map(RowProgram::Rows),
        }
    }
}

impl Node {
    /// The same value, made in another way.
    pub fn made(&self, work: Work, args: &[u16]) -> Node {
        Node { work, args: args.iter().copied().collect(), form: self.form, dtype: self.dtype }
    }
}
