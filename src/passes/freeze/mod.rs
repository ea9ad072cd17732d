//! Freezing: the constants of a list are worked into what reads them, once, before it runs.
//!
//! Calls that scale and shift by constants become their formulas, what follows from constants alone
//! is computed, and factors and summands move along chains of ops that are linear in what varies:
//!
//! ```text
//! (w ∗ x + b) · c   becomes   (w · c) ∗ x + b · c        product, convolution, its transpose
//! w ∗ (x · c)       becomes   (w · c) ∗ x
//! (y + b) + d       becomes   y + (b + d)
//! ```
//!
//! So the normalisation of a batch by kept statistics costs nothing behind a convolution or a
//! product, and neither does a scale of scores. The result is another list: equal up to rounding,
//! not to the bit. A factor that is not finite, or a product of constants that is not, stays where
//! it was. Values that somebody else reads too stay as they are.

mod factor;
mod linear;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use super::expand::{expand_where, expanded};
use super::pipeline::Options;
use super::rebuild::{push, rebuild};
use super::{Evaluator, constant_folding, dead};
use crate::error::Result;
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List, Node};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Call, Op, Type};

/// The list with its constants worked into what reads them.
pub fn freeze(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    let list = without_linear_calls(list, evaluator)?;
    let list = dead::dead(list, options)?;
    let list = constant_folding::fold_frozen(list, options, evaluator)?;
    let list = into_bodies(list, options, evaluator)?;
    let list = linear::joined(list, evaluator)?;
    dead::dead(list, options)
}

/// Control flow whose bodies have the constants among its operands as constants of their own, and
/// are frozen.
fn into_bodies(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    rebuild(list, |nodes, mut node| {
        if let Kind::ControlFlow(flow) = &node.kind
            && let Some([operands, kept]) = operands(flow)
            // Where numbers are among the operands, inputs of bodies have other positions.
            && node.reads().count() == node.args.len()
        {
            let constant = |id: Id| Some(nodes[id.0 as usize].clone()).filter(is_constant);
            let known: Vec<Option<Node>> = node.reads().skip(operands).map(constant).collect();
            let mut bodies = SmallVec::new();
            for body in &flow.bodies {
                let body = with_constants(body, &known, kept)?;
                bodies.push(Arc::new(freeze(body, options, evaluator)?));
            }
            node.kind = Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)));
        }
        Ok(push(nodes, node))
    })
}

fn is_constant(node: &Node) -> bool {
    matches!(node.kind, Kind::Constant(_))
}

/// The position of the operand that is the first input of the bodies, and how many inputs differ
/// from round to round. `None` for bodies that are not what runs.
fn operands(flow: &ControlFlow) -> Option<[usize; 2]> {
    match flow.kind {
        ControlFlowKind::Branch => Some([1, 0]),
        ControlFlowKind::While { carry, .. } => Some([0, carry as usize]),
        ControlFlowKind::Scan { carry, xs, .. } => Some([0, (carry + xs) as usize]),
        ControlFlowKind::Host(_) => None,
    }
}

/// The body with constants in place of inputs, but for the first `kept`. The inputs stay.
fn with_constants(body: &List, known: &[Option<Node>], kept: usize) -> Result<List> {
    let mut input = 0;
    rebuild(body.clone(), |nodes, node| {
        let is_input = matches!(node.kind, Kind::Input);
        let id = push(nodes, node);
        if !is_input {
            return Ok(id);
        }
        input += 1;
        match known.get(input - 1).and_then(Option::as_ref).filter(|_| input > kept) {
            Some(constant) => Ok(push(nodes, constant.clone())),
            None => Ok(id),
        }
    })
}

/// The list with the formulas of calls that are linear in what varies, given their constants.
fn without_linear_calls(list: List, evaluator: &dyn Evaluator) -> Result<List> {
    let known = known(&list);
    let mut opens = vec![false; list.nodes.len()];
    for (node, opens) in list.nodes.iter().zip(&mut opens) {
        if let Kind::Op(Op::Call(call)) = &node.kind {
            *opens = !evaluator.has_kernel(call.composite) && is_linear(&list, node, &known)?;
        }
    }
    if !opens.contains(&true) {
        return Ok(list);
    }
    let expands = |i: usize, _: &Call| opens[i];
    let body = |body: &Graph| Ok(Graph::from_list(body.list().clone()));
    Ok(expand_where(&Graph::from_list(list), &expands, &body)?.into_list())
}

/// Which nodes follow from constants alone.
fn known(list: &List) -> Vec<bool> {
    let mut known: Vec<bool> = Vec::with_capacity(list.nodes.len());
    for node in &list.nodes {
        known.push(match &node.kind {
            Kind::Constant(_) => true,
            Kind::Op(_) => node.args.iter().all(|arg| match arg {
                Arg::Node(id) => known[id.0 as usize],
                Arg::Number(value) => value.told().is_none(),
            }),
            Kind::Input
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => false,
        });
    }
    known
}

/// Whether the formula of a call moves, scales, shifts or multiplies what varies by constants, and
/// does nothing else to it.
fn is_linear(list: &List, node: &Node, known: &[bool]) -> Result<bool> {
    let given: Vec<bool> = node.reads().map(|id| known[id.0 as usize]).collect();
    if !given.contains(&true) || !given.contains(&false) {
        return Ok(false);
    }
    let types: Vec<&Type> = node.reads().map(|id| &list.node(id).ty).collect();
    let formula = expanded(node, &types)?;
    let mut varies: Vec<bool> = Vec::with_capacity(formula.nodes.len());
    let mut given = given.iter();
    for node in &formula.nodes {
        let which: SmallVec<[bool; 4]> = node
            .args
            .iter()
            .map(|arg| matches!(arg, Arg::Node(id) if varies[id.0 as usize]))
            .collect();
        let some = which.contains(&true);
        varies.push(match &node.kind {
            Kind::Input => given.next() == Some(&false),
            Kind::Constant(_) => false,
            Kind::Op(op) if some && !is_linear_in(op, &which) => return Ok(false),
            Kind::Op(_) => some,
            Kind::ControlFlow(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
                return Ok(false);
            }
        });
    }
    Ok(true)
}

/// Whether an op is linear, but for a shift, in the operands that vary.
fn is_linear_in(op: &Op, varies: &[bool]) -> bool {
    let one = varies.iter().filter(|&&varies| varies).count() == 1;
    #[allow(clippy::wildcard_enum_match_arm, reason = "what is not known to be linear is not")]
    match op {
        Op::Map(def) if **def == arithmetic::add || **def == arithmetic::subtract => one,
        Op::Map(def) if **def == arithmetic::multiply => one,
        Op::Map(def) if **def == arithmetic::quotient => one && varies[0],
        Op::Map(def) => **def == arithmetic::negative,
        Op::Contract(_) | Op::Conv(..) => one,
        Op::Cast(_) => true,
        op => op.is_movement(),
    }
}

/// The node behind an operand.
fn operand(nodes: &[Node], arg: Arg) -> Option<&Node> {
    match arg {
        Arg::Node(id) => Some(&nodes[id.0 as usize]),
        Arg::Number(_) => None,
    }
}

/// The id of an operand that is a node.
fn node_of(arg: Arg) -> Option<Id> {
    match arg {
        Arg::Node(id) => Some(id),
        Arg::Number(_) => None,
    }
}
