//! Gradient rules: formulas in the language of [`Expr`].
//!
//! A rule gives the cotangents of the operands that are wanted, so that what they share is computed
//! once, and nothing for the others. It never accumulates and never undoes broadcasting: the sweep
//! does both.

use smallvec::SmallVec;

use super::emit::{Arg, Expr};

/// What a rule reads: the operands, the results, and the results' cotangents.
///
/// Operands and results may be absent (their types are known, their values were not saved): which
/// ones a rule reads is found by probing it, see [`super::probe`].
#[derive(Clone, Copy)]
pub struct Rule<'a, 'e> {
    /// The operands
    pub args: &'a [Expr<'e>],
    /// The first result, which most ops have alone
    pub y: Expr<'e>,
    /// Its cotangent; the number 0 where only other results have one
    pub g: Expr<'e>,
    /// All results
    pub results: &'a [Expr<'e>],
    /// Their cotangents; of a result on which nothing depends there is none
    pub given: &'a [Option<Expr<'e>>],
}

impl<'a, 'e> Rule<'a, 'e> {
    /// Of an op with these operands and results.
    pub fn new(
        args: &'a [Expr<'e>],
        results: &'a [Expr<'e>],
        given: &'a [Option<Expr<'e>>],
    ) -> Rule<'a, 'e> {
        let y = results[0];
        let g = given[0].unwrap_or_else(|| y.scalar(0.0));
        Rule { args, y, g, results, given }
    }

    /// The cotangent of the first result; zeros where only other results have one.
    pub fn cotangent(&self) -> Expr<'e> {
        self.given[0].unwrap_or_else(|| self.y.zeros_like())
    }

    /// Of an op with one result.
    pub fn of_one(args: &'a [Expr<'e>], y: &'a Expr<'e>, g: &'a Option<Expr<'e>>) -> Rule<'a, 'e> {
        Rule::new(args, std::slice::from_ref(y), std::slice::from_ref(g))
    }
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
    /// None, on purpose: the result or the operand is no float, or nothing is to flow. An op of
    /// floats that is piecewise constant has a formula, zeros
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
