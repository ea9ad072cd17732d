//! The gradients of ops, as formulas.

use smallvec::SmallVec;

use super::declare::Arguments;
use super::emit::{Arg, Expr};
use super::op::Op;
use super::rule::Rule;
use super::structural::OpKind;

impl Op {
    /// Passes the cotangents of the wanted operands to `give`, in order, for operands that have a
    /// gradient. In elementwise ops they have the result's shape (the sweep sums over broadcast
    /// axes), in the others the operand's.
    pub fn vjp<'e>(
        &self,
        rule: &Rule<'_, 'e>,
        wanted: &[bool],
        mut give: impl FnMut(usize, Expr<'e>),
    ) {
        if let Op::Call(call) = self {
            let operands: SmallVec<[Arg; 6]> = rule.args.iter().map(|x| x.arg()).collect();
            let (cx, attributes) = (rule.g.cx(), &call.attributes);
            let arguments = Arguments { cx, attributes, operands: &operands };
            let found = call.composite.cotangents(rule, &arguments, wanted).into_iter().enumerate();
            return found.for_each(|(i, x)| x.into_iter().for_each(|x| give(i, x)));
        }
        for (i, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
            self.vjp_of(rule, i).into_iter().for_each(|x| give(i, x));
        }
    }

    /// The cotangent of one operand of an op that is not a call. The rules of such ops share no
    /// work between operands.
    #[inline]
    pub fn vjp_of<'e>(&self, rule: &Rule<'_, 'e>, wrt: usize) -> Option<Expr<'e>> {
        match self.kind() {
            OpKind::Map(def) => def.vjp[wrt].cotangent(rule),
            OpKind::Call(_) => None,
            OpKind::Structural(def) => (def.vjp)(self, rule, wrt),
        }
    }
}
