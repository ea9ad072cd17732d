//! Numbers that formulas work out: counts of elements, and arithmetic with hyperparameters.
//!
//! A number is a float that a node has beside its tensors. Where all it is made from is known, its
//! arithmetic is done at once, in float64; in a graph, what comes of sizes or of numbers that are
//! known later is worked out before each run, by the same arithmetic. So a formula that divides by
//! a count need not know whether it is known.

use super::elementwise::{Elementwise, ResultRule, arithmetic, exponential, tables};
use super::emit::{Arg, Emit, Expr};
use crate::dtype::{Compute, DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::shape::{Dim, Shape, hint};

/// How a number comes about.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// It is given
    Input,
    /// It is a size
    Size(Dim),
    /// It is worked out of others (or of one of them, twice the same)
    Calculated(Calculation, [Numeric; 2]),
}

/// Floats are compared by their bits.
impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        let bits = |x: Numeric| match x {
            Numeric::Told(i) => (None, u64::from(i)),
            Numeric::Known(value) => (Some(value.class()), value.as_f64().to_bits()),
        };
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
    /// Any other elementwise op of one or two floats; what a comparison gives is 0 or 1
    Map(&'static Elementwise),
}

impl Calculation {
    /// Those with a name of their own; the others have the names of ops.
    const NAMED: [Calculation; 9] = [
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

    /// The arithmetic of an elementwise op without a condition.
    pub fn of_op(def: &'static Elementwise) -> Calculation {
        let named = [
            (&arithmetic::add, Calculation::Add),
            (&arithmetic::subtract, Calculation::Sub),
            (&arithmetic::multiply, Calculation::Mul),
            (&arithmetic::quotient, Calculation::Div),
            (&arithmetic::pow, Calculation::Pow),
            (&arithmetic::floor, Calculation::Floor),
            (&exponential::sqrt, Calculation::Sqrt),
        ];
        let found = named.into_iter().find(|(op, _)| *op == def);
        found.map_or(Calculation::Map(def), |(_, how)| how)
    }

    /// The arithmetic of a name.
    pub fn from_name(name: &str) -> Option<Calculation> {
        let named = Calculation::NAMED.into_iter().find(|how| how.name() == name);
        let op = |def: &&Elementwise| def.name == name && !def.condition;
        named.or_else(|| tables().find(op).map(Calculation::of_op))
    }

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
            Calculation::Map(def) => computed(def, a, b),
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
            Calculation::Map(def) => def.name,
        }
    }
}

/// An elementwise op of floats on one element of float64.
fn computed(def: &'static Elementwise, a: f64, b: f64) -> f64 {
    let Some(kernel) = def.kernel(Compute::F64) else { unreachable!("{} takes floats", def.name) };
    let [a, b] = [&raw const a, &raw const b].map(<*const f64>::cast::<u8>);
    let mut out = 0u64;
    // SAFETY: one element of each operand; a result is a float64 or the byte of a bool.
    unsafe { kernel((&raw mut out).cast(), &[a, b, b], 1) };
    match def.result {
        ResultRule::Same => f64::from_bits(out),
        ResultRule::Bool => f64::from(u8::from(out != 0)),
    }
}

/// Refuses a size that an integer dtype cannot hold, as a number that is known is refused. Of an
/// open size it is asked.
pub fn admit_size(op: &str, dim: Dim, dtype: DType) -> Result<()> {
    let most = dtype.int_range().and_then(|(_, most)| usize::try_from(most).ok());
    match most.filter(|&most| most < Dim::MOST) {
        Some(most) if !dim.is_at_most(most) => {
            let value = hint(dim).map_or_else(|| dim.to_string(), |n| n.to_string());
            Err(error::overflow(op, value, dtype))
        }
        Some(_) | None => Ok(()),
    }
}

impl Number {
    /// The number, where what it is made from is known. A size that is a symbol is asked for its
    /// number at hand.
    pub fn now(self) -> Option<Scalar> {
        Some(Scalar::Float(match self {
            Number::Input => return None,
            Number::Size(dim) => dim.value() as f64,
            Number::Calculated(how, [a, b]) => how.of(a.known()?.as_f64(), b.known()?.as_f64()),
        }))
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

    /// An elementwise op of numbers that are floats: a number, or where it asks a question the
    /// answer as a tensor of bool without axes.
    pub(super) fn calculated(
        cx: &'e dyn Emit,
        def: &'static Elementwise,
        operands: [Numeric; 2],
    ) -> Expr<'e> {
        let how = Calculation::of_op(def);
        let number = Expr::new(cx, Arg::Number(cx.number(Number::Calculated(how, operands))));
        match def.result {
            ResultRule::Same => number,
            ResultRule::Bool => number.full(DType::Bool, Shape::scalar()),
        }
    }

    /// Arithmetic of two numbers, which is one; on a tensor it is none of this.
    pub fn calculate(self, how: Calculation, b: Expr<'e>) -> Expr<'e> {
        match (self.arg(), b.arg()) {
            (Arg::Number(x), Arg::Number(y)) => {
                self.scalar(self.cx().number(Number::Calculated(how, [x, y])))
            }
            _ => unreachable!("{} is arithmetic of numbers", how.name()),
        }
    }
}
