//! Gradient rules: formulas in the language of [`Expr`].
//!
//! A rule gives the cotangents of the operands that are wanted, so that what they share is computed
//! once, and nothing for the others. It never accumulates and never undoes broadcasting: the sweep
//! does both.

use smallvec::SmallVec;

use super::emit::{Arg, Expr};

/// What a rule reads: the operands, the result, and the result's cotangent.
///
/// Operands and the result may be absent (their types are known, their values were not saved): which
/// ones a rule reads is found by probing it, see [`super::probe`].
pub struct Rule<'a, 'e> {
    /// The operands
    pub args: &'a [Expr<'e>],
    /// The result
    pub y: Expr<'e>,
    /// The cotangent of the result
    pub g: Expr<'e>,
}

/// The cotangents by operand; none of an operand that is not wanted, or where no gradient flows.
pub type Cotangents<'e> = SmallVec<[Option<Expr<'e>>; 4]>;

/// No cotangent, for as many operands.
pub fn none_of<'e>(wanted: &[bool]) -> Cotangents<'e> {
    SmallVec::from_elem(None, wanted.len())
}

/// In the place of a formula: no gradient flows, on purpose.
#[derive(Clone, Copy)]
pub struct NoGradient;

/// A formula, or the word that there is none.
pub trait IntoCotangent<'e> {
    /// The cotangent, if there is one.
    fn into_cotangent(self) -> Option<Expr<'e>>;
}
impl<'e> IntoCotangent<'e> for Expr<'e> {
    fn into_cotangent(self) -> Option<Expr<'e>> {
        Some(self)
    }
}
impl<'e> IntoCotangent<'e> for NoGradient {
    fn into_cotangent(self) -> Option<Expr<'e>> {
        None
    }
}

/// The gradient of an elementwise op by one operand.
#[derive(Clone, Copy)]
pub enum ElementRule {
    /// None, on purpose: the result or the operand is no float, or nothing is to flow. An op of floats
    /// that is piecewise constant has a formula, zeros
    Zero,
    /// A formula
    Formula(for<'e> fn(&Rule<'_, 'e>) -> Expr<'e>),
}

impl ElementRule {
    /// Whether no gradient flows.
    pub fn is_zero(self) -> bool {
        matches!(self, ElementRule::Zero)
    }

    /// The cotangent of the operand; `None` where no gradient flows. Numbers among the operands are
    /// read as floats, since they stand beside floats: a formula over integers alone would wrap.
    #[inline]
    pub fn cotangent<'e>(self, rule: &Rule<'_, 'e>) -> Option<Expr<'e>> {
        let ElementRule::Formula(formula) = self else { return None };
        let is_whole = |x: &Expr<'e>| matches!(x.arg(), Arg::Number(value) if !value.is_float());
        match rule.args.iter().any(is_whole) {
            true => Some(ElementRule::with_floats(formula, rule)),
            false => Some(formula(rule)),
        }
    }

    fn with_floats<'e>(
        formula: for<'f> fn(&Rule<'_, 'f>) -> Expr<'f>,
        rule: &Rule<'_, 'e>,
    ) -> Expr<'e> {
        let float = |x: &Expr<'e>| match x.arg() {
            Arg::Number(value) => x.scalar(value.as_float()),
            Arg::Node(_) => *x,
        };
        let args: SmallVec<[Expr<'e>; 3]> = rule.args.iter().map(float).collect();
        formula(&Rule { args: &args, ..*rule })
    }
}
