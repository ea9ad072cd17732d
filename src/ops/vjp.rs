//! The gradients of ops, as formulas.

use smallvec::SmallVec;

use super::declare::Arguments;
use super::emit::{Arg, Expr};
use super::op::Op;
use super::rule::Rule;
use super::structural::OpKind;

impl Op {
    /// The cotangent of operand `wrt`; `None` where no gradient flows. In elementwise ops it has the
    /// result's shape (the sweep undoes broadcasting), in the others the operand's.
    pub fn vjp<'e>(&self, rule: &Rule<'_, 'e>, wrt: usize) -> Option<Expr<'e>> {
        match self.kind() {
            OpKind::Map(def) => def.vjp[wrt].cotangent(rule),
            OpKind::Call(call) => {
                let operands: SmallVec<[Arg; 6]> = rule.args.iter().map(|x| x.arg()).collect();
                let (cx, attributes) = (rule.g.cx(), &call.attributes);
                let arguments = Arguments { cx, attributes, operands: &operands };
                call.composite.cotangent(rule, &arguments, call.position(wrt))
            }
            OpKind::Structural(def) => (def.vjp)(self, rule, wrt),
        }
    }
}
