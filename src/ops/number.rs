//! Numbers that formulas work out: counts of elements, and arithmetic with hyperparameters.
//!
//! A number is a float that a node has beside its tensors. Where all it is made from is known, its
//! arithmetic is done at once, in float64; in a graph, what comes of sizes or of numbers that are
//! known later is worked out before each run, by the same arithmetic. So a formula that divides by a
//! count need not know whether it is known.

use super::emit::{Arg, Expr};
use crate::dtype::{DType, Scalar};
use crate::shape::{Dim, Shape};

/// How a number comes about.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// It is given
    Input,
    /// It is a size
    Size(Dim),
    /// It is worked out of others (or of one of them, twice the same)
    Calculated(Calculation, [Scalar; 2]),
}

/// Floats are compared by their bits, since numbers of a table are NaNs.
impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        let bits = |x: Scalar| (x.class(), x.as_f64().to_bits());
        match (self, other) {
            (Number::Input, Number::Input) => true,
            (Number::Size(a), Number::Size(b)) => a.key() == b.key(),
            (Number::Calculated(f, a), Number::Calculated(g, b)) => {
                f == g && a.map(bits) == b.map(bits)
            }
            (Number::Input | Number::Size(_) | Number::Calculated(..), _) => false,
        }
    }
}

/// Arithmetic on numbers, in float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Calculation {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a b`
    Mul,
    /// `a / b`
    Div,
    /// `a` to the power of `b`
    Pow,
    /// The larger
    Max,
    /// The smaller
    Min,
    /// The root of `a`
    Sqrt,
    /// `a` rounded down
    Floor,
}

impl Calculation {
    /// Every one of them.
    pub const ALL: [Calculation; 9] = [
        Calculation::Add,
        Calculation::Sub,
        Calculation::Mul,
        Calculation::Div,
        Calculation::Pow,
        Calculation::Max,
        Calculation::Min,
        Calculation::Sqrt,
        Calculation::Floor,
    ];

    /// The result.
    pub fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Calculation::Add => a + b,
            Calculation::Sub => a - b,
            Calculation::Mul => a * b,
            Calculation::Div => a / b,
            Calculation::Pow => a.powf(b),
            Calculation::Max => a.max(b),
            Calculation::Min => a.min(b),
            Calculation::Sqrt => a.sqrt(),
            Calculation::Floor => a.floor(),
        }
    }

    /// The name in prints.
    pub fn name(self) -> &'static str {
        match self {
            Calculation::Add => "add",
            Calculation::Sub => "sub",
            Calculation::Mul => "mul",
            Calculation::Div => "div",
            Calculation::Pow => "pow",
            Calculation::Max => "max",
            Calculation::Min => "min",
            Calculation::Sqrt => "sqrt",
            Calculation::Floor => "floor",
        }
    }
}

impl Number {
    /// The number, where what it is made from is known. A size that is a symbol is asked for its
    /// number at hand.
    pub fn now(self) -> Scalar {
        match self {
            Number::Input => Scalar::Float(f64::NAN),
            Number::Size(dim) => Scalar::Float(dim.value() as f64),
            Number::Calculated(how, [a, b]) => Scalar::Float(how.of(a.as_f64(), b.as_f64())),
        }
    }
}

impl<'e> Expr<'e> {
    /// A size as a number of this formula.
    pub fn count(self, dim: Dim) -> Expr<'e> {
        match dim.known() {
            Some(n) => self.scalar(n as f64),
            None => self.scalar(self.cx().number(Number::Size(dim))),
        }
    }

    /// A size beside integers: a number, or a tensor of int64 without axes.
    pub fn whole(self, dim: Dim) -> Expr<'e> {
        match dim.known() {
            Some(n) => self.scalar(n as i64),
            None => self.count(dim).full(DType::I64, Shape::scalar()),
        }
    }

    /// Arithmetic of two numbers, which is one; on a tensor it is none of this.
    pub fn calculate(self, how: Calculation, b: Expr<'e>) -> Expr<'e> {
        match (self.arg(), b.arg()) {
            (Arg::Scalar(x), Arg::Scalar(y)) => {
                self.scalar(self.cx().number(Number::Calculated(how, [x, y])))
            }
            _ => unreachable!("{} is arithmetic of numbers", how.name()),
        }
    }
}
