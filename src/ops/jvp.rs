//! The tangents of ops, as formulas.
//!
//! Most tangents follow from the gradient. An elementwise op's Jacobian is diagonal, so its tangent
//! is its gradient rule with the tangent in place of the cotangent. A linear op's tangent is the op
//! on the operands' tangents. For the others the tangent is [`Tangent::Transposed`]: every gradient
//! rule is linear in the cotangent, and its transpose is the tangent, which the pass finds by
//! differentiating the rule.

use smallvec::SmallVec;

use super::emit::{Arg, Expr};
use super::op::Op;
use super::rule::Rule;
use super::structural::{OpKind, Rate};

/// The values that a tangent's formula reads.
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
    /// Zero: the result does not depend on an operand that has a tangent
    Zero,
    /// This value, which broadcasts to the result's shape
    Is(Expr<'e>),
    /// The transpose of the gradient rule
    Transposed,
}

impl<'e> Forward<'_, 'e> {
    /// The tangent of operand `i`, zeros where it has none.
    pub fn full(&self, i: usize) -> Expr<'e> {
        self.tangents[i].unwrap_or_else(|| self.args[i].zeros_like())
    }

    /// The tangent of a bilinear op: the sum of two terms, each the op with one operand replaced by
    /// its tangent.
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
        match self.kind() {
            OpKind::Map(def) => {
                let term = |i: usize| {
                    def.vjp[i].cotangent(&Rule::of_one(
                        rule.args,
                        &rule.y,
                        &Some(rule.tangents[i]?),
                    ))
                };
                sum((0..rule.args.len()).map(term)).map_or(Tangent::Zero, Tangent::Is)
            }
            OpKind::Call(_) => Tangent::Transposed,
            OpKind::Structural(def) => self.structural_jvp(def.tangent, rule),
        }
    }

    fn structural_jvp<'e>(&self, rate: Rate, rule: &Forward<'_, 'e>) -> Tangent<'e> {
        let on = |tangents: &[Expr<'e>]| {
            let others = rule.args[tangents.len()..].iter();
            let args: SmallVec<[Arg; 6]> = tangents.iter().chain(others).map(|x| x.arg()).collect();
            Tangent::Is(tangents[0].emit_with(self.clone(), &args))
        };
        match rate {
            Rate::Zero => Tangent::Zero,
            Rate::First if !rule.args[0].dtype().is_float() => Tangent::Zero,
            Rate::First => on(&[rule.full(0)]),
            Rate::FirstTwo => {
                let first = rule.full(0);
                on(&[first, rule.tangents[1].unwrap_or_else(|| first.scalar(0.0))])
            }
            Rate::All => {
                let parts: SmallVec<[Expr<'e>; 4]> =
                    (0..rule.args.len()).map(|i| rule.full(i).tensor()).collect();
                on(&parts)
            }
            Rate::Each => rule.product(self).map_or(Tangent::Zero, Tangent::Is),
            Rate::Transposed => Tangent::Transposed,
            Rate::Formula(formula) => formula(self, rule),
        }
    }
}
