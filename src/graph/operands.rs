//! Checks, for lists that come from outside, of what kernels assume about operands. A list that
//! keeps the law and passes them reads and writes its own memory only.
//!
//! The front ends make only nodes that pass. Conditions on sizes that are not known are left until
//! the sizes are known.

use smallvec::SmallVec;

use super::verify::law;
use super::{Kind, List, operand_type};
use crate::error::Result;
use crate::ops::op::{Op, OperandType, Type};
use crate::ops::structural::OpKind;

/// Refuses a list that keeps the law but has an op on operands that its kernel does not expect.
pub fn check_list(list: &List) -> Result<()> {
    let mut lists = vec![list];
    while let Some(list) = lists.pop() {
        for node in &list.nodes {
            match &node.kind {
                Kind::Op(op) => {
                    let types: SmallVec<[OperandType<'_>; 4]> =
                        node.args.iter().map(|&arg| operand_type(&list.nodes, arg)).collect();
                    check(op, &types, &node.ty)?;
                }
                Kind::ControlFlow(flow) => lists.extend(flow.bodies.iter().map(|body| &**body)),
                Kind::Input
                | Kind::Constant(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => {}
            }
        }
    }
    Ok(())
}

/// Refuses operands that the op's kernel does not expect; `ty` is the type of the result.
fn check(op: &Op, args: &[OperandType<'_>], ty: &Type) -> Result<()> {
    let holds = match op.kind() {
        OpKind::Map(_) | OpKind::Call(_) => true,
        OpKind::Structural(def) => (def.in_range)(op) && (def.expects)(op, args, ty),
    };
    if holds { Ok(()) } else { Err(law("the operands are not what it takes", format!("{op:?}"))) }
}

/// Refuses attributes that type rules cannot work with. It is called before them.
pub fn check_attributes(op: &Op) -> Result<()> {
    let holds = match op.kind() {
        OpKind::Map(_) | OpKind::Call(_) => true,
        OpKind::Structural(def) => (def.in_range)(op),
    };
    if holds { Ok(()) } else { Err(law("attributes out of range", format!("{op:?}"))) }
}
