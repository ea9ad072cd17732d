//! Scans in formulas: loops over the first axis of operands, whose rounds are formulas too.
//!
//! Every emission runs a scan in its own way ([`Emit::scan`]): a graph writes one node with a body,
//! eager code goes from round to round, a probe looks at one round. The results are the same.

use smallvec::SmallVec;

use super::declare::Outputs;
use super::emit::{Arg, Emit, Expr, Id, OrThrow, throw};
use super::op::{Op, Type};
use super::probe;
use crate::error;
use crate::shape::{Dim, Shape};

/// What one round computes: of the carries, an element of each `x` and the captures, the next
/// carries and behind them what is stacked.
pub type Round<'a> = &'a dyn for<'e> Fn(&'e dyn Emit, &[Expr<'e>]) -> Outputs<'e>;

/// A loop. Its results are the last carries, then what the rounds gave, along a new first axis.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The carries of the first round
    pub carry: &'a [Arg],
    /// What is read element by element, along the first axis
    pub xs: &'a [Arg],
    /// What every round reads
    pub captures: &'a [Arg],
    /// The size of that axis
    pub length: Dim,
    /// Whether the rounds go from the last element to the first
    pub reverse: bool,
    /// A round
    pub round: Round<'a>,
}

/// The results of a scan.
pub type Results = SmallVec<[Id; 4]>;

impl<'a> Scan<'a> {
    /// The same on other operands.
    pub fn on<'b>(&self, operands: &'b [Arg]) -> Scan<'b>
    where
        'a: 'b,
    {
        let (carry, rest) = operands.split_at(self.carry.len());
        let (xs, captures) = rest.split_at(self.xs.len());
        Scan { carry, xs, captures, ..*self }
    }

    /// All operands in order.
    pub fn operands(&self) -> impl Iterator<Item = Arg> + '_ {
        self.carry.iter().chain(self.xs).chain(self.captures).copied()
    }

    /// The types of what a round reads.
    pub fn inputs(&self, ty: impl Fn(Arg) -> Type) -> SmallVec<[Type; 8]> {
        let is_x = self.carry.len()..self.carry.len() + self.xs.len();
        let one = |(i, arg): (usize, Arg)| match is_x.contains(&i) {
            true => element(&ty(arg)),
            false => ty(arg),
        };
        self.operands().enumerate().map(one).collect()
    }

    /// The types of the results, from those of a round's results.
    pub fn results(&self, given: impl Iterator<Item = Type>) -> SmallVec<[Type; 4]> {
        let all = given.enumerate();
        all.map(|(k, ty)| if k < self.carry.len() { ty } else { stacked(&ty, self.length) })
            .collect()
    }
}

/// The type of an operand that is a node.
pub fn node_type(cx: &dyn Emit, arg: Arg) -> Type {
    match arg {
        Arg::Node(id) => cx.ty(id),
        Arg::Number(_) => throw(error::internal("an operand of a scan is a tensor")),
    }
}

/// The type of an element of the first axis.
fn element(all: &Type) -> Type {
    Type::new(all.dtype, Shape::from_dims(&all.shape.dims()[1..]))
}

/// The type of so many along a new first axis.
fn stacked(one: &Type, length: Dim) -> Type {
    let shape = std::iter::once(length).chain(one.shape.dims().iter().copied()).collect();
    Type::new(one.dtype, shape)
}

impl<'e> Expr<'e> {
    /// Runs a scan over operands of this formula; its results.
    pub fn scan(
        self,
        [carry, xs, captures]: [&[Expr<'e>]; 3],
        reverse: bool,
        round: Round<'_>,
    ) -> Outputs<'e> {
        let args = |of: &[Expr<'e>]| -> SmallVec<[Arg; 6]> {
            of.iter().map(|x| x.tensor().arg()).collect()
        };
        let (length, cx) = (xs[0].size(0), self.cx());
        let [carry, xs, captures] = [args(carry), args(xs), args(captures)];
        let scan = Scan { carry: &carry, xs: &xs, captures: &captures, length, reverse, round };
        cx.scan(&scan).into_iter().map(|id| Expr::new(cx, Arg::Node(id))).collect()
    }
}

/// A scan as the ops of its rounds, one after the other.
pub fn unrolled(cx: &dyn Emit, scan: &Scan<'_>) -> Results {
    let expr = |arg: Arg| Expr::new(cx, arg);
    let (n, carries) = (scan.length.value(), scan.carry.len());
    let mut now: SmallVec<[Expr<'_>; 4]> = scan.carry.iter().map(|&arg| expr(arg)).collect();
    let mut rows: Vec<Vec<Expr<'_>>> = Vec::new();
    for round in 0..n {
        let at = if scan.reverse { n - 1 - round } else { round };
        let part = |&x: &Arg| {
            let x = expr(x);
            let rest = Shape::from_dims(&x.shape().dims()[1..]);
            x.narrow(0, at, Dim::ONE).reshape(rest)
        };
        let mut inputs = now;
        inputs.extend(scan.xs.iter().map(part));
        inputs.extend(scan.captures.iter().map(|&arg| expr(arg)));
        let mut found = (scan.round)(cx, &inputs);
        rows.resize(found.len() - carries, Vec::new());
        for (row, y) in rows.iter_mut().zip(found.drain(carries..)) {
            row.push(y.unsqueeze(0));
        }
        now = found.into_iter().collect();
    }
    let mut found: Results = now.iter().map(|x| x.node()).collect();
    if n == 0 {
        let types = probe::scan_types(cx, scan).or_throw();
        let none = |ty: Type| cx.emit(Op::Full(ty), &[Arg::Number(0.into())]);
        found.extend(types.into_iter().skip(carries).map(none));
        return found;
    }
    for mut row in rows {
        if scan.reverse {
            row.reverse();
        }
        found.push(row[0].concat(&row, 0).node());
    }
    found
}
