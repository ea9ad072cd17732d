//! The tangents of ops, as formulas.
//!
//! Most are read off the gradient: an elementwise op's Jacobian is diagonal, so its tangent is its
//! gradient rule with the tangent for the cotangent; a linear op's tangent is the op of the tangent.
//! Of the others the tangent is [`Tangent::Transposed`]: every gradient rule is linear in the
//! cotangent, and its transpose is the tangent, which the pass works out by differentiating the rule.

use smallvec::SmallVec;

use super::attributes::*;
use super::emit::{Arg, Expr};
use super::op::Op;
use super::rule::Rule;

/// What a tangent's formula reads.
pub struct Forward<'a, 'e> {
    /// The operands
    pub args: &'a [Expr<'e>],
    /// The result
    pub y: Expr<'e>,
    /// The tangents of operands that have one, in the operand's type
    pub tangents: &'a [Option<Expr<'e>>],
}

/// The tangent of a result.
pub enum Tangent<'e> {
    /// Zero: nothing that has a tangent reaches the result
    Zero,
    /// This, which broadcasts to the result's shape
    Is(Expr<'e>),
    /// The transpose of the gradient rule
    Transposed,
}

impl<'e> Forward<'_, 'e> {
    /// The tangent of operand `i`, zeros where it has none.
    fn full(&self, i: usize) -> Expr<'e> {
        self.tangents[i].unwrap_or_else(|| self.args[i].zeros_like())
    }

    /// The sum of a product's two terms, each the op with one operand's tangent in its place.
    fn product(&self, op: &Op) -> Option<Expr<'e>> {
        let (a, b) = (self.args[0], self.args[1]);
        let term = |x: Expr<'e>, y: Expr<'e>| x.emit_with(op.clone(), &[x.arg(), y.arg()]);
        let left = self.tangents[0].map(|t| term(t, b));
        let right = self.tangents[1].map(|t| term(a, t));
        sum([left, right])
    }
}

fn sum<'e>(terms: impl IntoIterator<Item = Option<Expr<'e>>>) -> Option<Expr<'e>> {
    terms.into_iter().flatten().reduce(|a, b| a + b)
}

impl Op {
    /// The tangent of the result.
    pub fn jvp<'e>(&self, rule: &Forward<'_, 'e>) -> Tangent<'e> {
        let through = |i: usize| self.differentiable(i) && rule.tangents[i].is_some();
        if !(0..rule.args.len()).any(through) || !rule.y.dtype().is_float() {
            return Tangent::Zero;
        }
        let x = rule.args[0];
        let first = || rule.full(0);
        Tangent::Is(match self {
            Op::Map(def) => {
                let term = |i: usize| {
                    def.vjp[i].cotangent(&Rule { args: rule.args, y: rule.y, g: rule.tangents[i]? })
                };
                match sum((0..rule.args.len()).map(term)) {
                    Some(tangent) => tangent,
                    None => return Tangent::Zero,
                }
            }
            Op::Call(_) => return Tangent::Transposed,
            Op::Cast(_) if !x.dtype().is_float() => return Tangent::Zero,
            Op::Cast(_)
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice(_)
            | Op::Windows(_)
            | Op::Fold(..) => first().emit(self.clone()),
            Op::Embed(..) => {
                let t = first();
                t.emit_with(self.clone(), &[t.arg(), t.scalar(0.0).arg()])
            }
            Op::Update(_) => {
                let t = first();
                let value = rule.tangents[1].map_or(t.scalar(0.0), |value| value);
                t.emit_with(self.clone(), &[t.arg(), value.arg()])
            }
            Op::Concat(axis) => {
                let parts: SmallVec<[Expr<'e>; 4]> =
                    (0..rule.args.len()).map(|i| rule.full(i)).collect();
                parts[0].concat(&parts, *axis)
            }
            Op::Gather => first().gather(&rule.args[1..]),
            Op::Scatter(mode) => {
                let base = first();
                let values = rule.tangents[1].map_or(base.scalar(0.0), |values| values);
                let args: SmallVec<[Arg; 6]> = [base, values]
                    .into_iter()
                    .chain(rule.args[2..].iter().copied())
                    .map(Expr::arg)
                    .collect();
                base.emit_with(Op::Scatter(*mode), &args)
            }
            Op::Reduce(kind, axes) => match kind {
                Reduction::Sum => first().reduce(Reduction::Sum, axes),
                Reduction::Prod => return Tangent::Transposed,
                Reduction::Max | Reduction::Min => {
                    // Ties share equally.
                    let hit = x.equal(rule.y.restore(axes)).cast(x.dtype());
                    let total = (hit * first()).reduce(Reduction::Sum, axes);
                    total / hit.reduce(Reduction::Sum, axes)
                }
                Reduction::Any | Reduction::All => return Tangent::Zero,
            },
            Op::Cumulate { kind, .. } => match kind {
                Cumulation::Sum => first().emit(self.clone()),
                Cumulation::Prod | Cumulation::Max | Cumulation::Min => {
                    return Tangent::Transposed;
                }
            },
            Op::Contract(_) | Op::Conv(..) => match rule.product(self) {
                Some(tangent) => tangent,
                None => return Tangent::Zero,
            },
            Op::Sort { axis, descending } => {
                let order = x.emit(Op::ArgSort { axis: *axis, descending: *descending });
                first().take_along(order, *axis)
            }
            Op::ArgReduce(..)
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::Fill(_)
            | Op::Iota(..)
            | Op::RandomBits(_) => return Tangent::Zero,
        })
    }
}
