//! Factors and summands along chains of ops that are linear in what varies.

use smallvec::smallvec;

use super::factor::{Calculator, Factor};
use super::{node_of, operand};
use crate::array::Array;
use crate::error::Result;
use crate::graph::{Args, Kind, List, Node};
use crate::ops::attributes::ConvRole;
use crate::ops::elementwise::{Elementwise, arithmetic};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::passes::Evaluator;
use crate::passes::rebuild::{push, rebuild};

/// A factor moves at most this many ops up its chain.
const DEPTH: usize = 16;

/// The list with factors and summands joined to the constants that they meet.
pub fn joined(list: List, evaluator: &dyn Evaluator) -> Result<List> {
    let mut counts = vec![0u32; list.nodes.len()];
    for id in list.nodes.iter().flat_map(Node::reads).chain(list.outputs.iter().copied()) {
        counts[id.0 as usize] += 1;
    }
    let mut chains = Chains { reads: Vec::new(), calculator: Calculator(evaluator) };
    let mut counts = counts.into_iter();
    rebuild(list, |nodes, node| {
        let id = chains.place(nodes, node);
        // Nodes in between are read once, by the next of the chain.
        chains.reads.resize(nodes.len(), 1);
        chains.reads[id.0 as usize] = counts.next().unwrap_or(0);
        Ok(id)
    })
}

/// The chains of a list that is made anew.
struct Chains<'e> {
    /// By node: how often it is read
    reads: Vec<u32>,
    calculator: Calculator<'e>,
}

/// The nodes made so far.
type Nodes = Vec<Node>;

impl Chains<'_> {
    /// Puts a node behind the others, joined to the constants that its operands meet.
    fn place(&self, nodes: &mut Nodes, node: Node) -> Id {
        let found = match &node.kind {
            Kind::Op(Op::Map(def)) if node.args.len() == 2 && node.ty.dtype.is_float() => {
                self.elementwise(nodes, &node, def)
            }
            Kind::Op(Op::Contract(_) | Op::Conv(..)) => self.product(nodes, &node),
            Kind::Op(_)
            | Kind::Input
            | Kind::Constant(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => None,
        };
        found.unwrap_or_else(|| push(nodes, node))
    }

    fn elementwise(&self, nodes: &mut Nodes, node: &Node, def: &'static Elementwise) -> Option<Id> {
        let (x, constant, is_swapped) = self.sides(nodes, node)?;
        if *def == arithmetic::multiply {
            let factor = self.calculator.factor(constant, &node.ty)?;
            return self.scaled(nodes, x, &factor, DEPTH);
        }
        if *def == arithmetic::quotient && !is_swapped {
            let factor = self.calculator.factor(constant, &node.ty)?;
            return self.scaled(nodes, x, &self.calculator.inverse(&factor)?, DEPTH);
        }
        if *def == arithmetic::add {
            return self.shifted(nodes, node, x, constant);
        }
        if *def == arithmetic::subtract && !is_swapped {
            let shift = self.calculator.map(&arithmetic::negative, &[&constant])?;
            return self.shifted(nodes, node, x, shift);
        }
        None
    }

    /// The operand of an elementwise op that varies, of its result's type, and the constant; and
    /// whether the constant comes first.
    fn sides(&self, nodes: &[Node], node: &Node) -> Option<(Id, Array, bool)> {
        let dtype = node.ty.dtype;
        for (k, other) in [(0, 1), (1, 0)] {
            let Some(constant) = self.calculator.constant(nodes, node.args[other], dtype) else {
                continue;
            };
            let x = node_of(node.args[k])?;
            let ty = &nodes[x.0 as usize].ty;
            let is_same = ty.dtype == dtype && ty.shape.same(&node.ty.shape);
            let varies = self.calculator.constant(nodes, node.args[k], dtype).is_none();
            return (is_same && varies).then_some((x, constant, k == 1));
        }
        None
    }

    /// Whether only one node reads a value, so that it may be computed otherwise.
    fn is_free(&self, id: Id) -> bool {
        // What was made for this very chain has not been counted yet.
        self.reads.get(id.0 as usize).is_none_or(|&reads| reads == 1)
    }

    /// `x + shift`, where a summand of `x` takes it up.
    fn shifted(&self, nodes: &mut Nodes, node: &Node, x: Id, shift: Array) -> Option<Id> {
        let inner = nodes[x.0 as usize].clone();
        let Kind::Op(Op::Map(def)) = inner.kind else { return None };
        let is_sum = *def == arithmetic::add || *def == arithmetic::subtract;
        if !is_sum || !self.is_free(x) {
            return None;
        }
        let (y, first, is_swapped) = self.sides(nodes, &inner)?;
        let sum = match (*def == arithmetic::subtract, is_swapped) {
            (false, _) => self.calculator.map(&arithmetic::add, &[&first, &shift])?,
            (true, false) => self.calculator.map(&arithmetic::subtract, &[&shift, &first])?,
            (true, true) => return None,
        };
        let sum = constant(nodes, sum, node);
        Some(add(nodes, y, sum, node))
    }

    /// `x · factor`, where a constant that `x` is computed with takes it up.
    fn scaled(&self, nodes: &mut Nodes, x: Id, factor: &Factor, depth: usize) -> Option<Id> {
        let depth = depth.checked_sub(1)?;
        let node = nodes[x.0 as usize].clone();
        let Kind::Op(op) = &node.kind else { return None };
        if !self.is_free(x) || factor.values.dtype != node.ty.dtype {
            return None;
        }
        #[allow(clippy::wildcard_enum_match_arm, reason = "nothing else takes up a factor")]
        match op {
            Op::Contract(spec) => {
                let rank = |k: usize| operand(nodes, node.args[k]).map(|x| x.ty.shape.rank());
                let ranks = [rank(0)?, rank(1)?];
                for k in [1, 0] {
                    let Some(w) = self.calculator.weights(nodes, node.args[k]) else { continue };
                    let w = self.calculator.behind_product(spec, k, ranks, &w, factor)?;
                    return self.with_weights(nodes, &node, k, w);
                }
                if factor.axis.is_some() {
                    return None;
                }
                let mut sides = [0, 1].into_iter();
                sides.find_map(|k| self.onto(nodes, &node, k, factor, depth))
            }
            Op::Conv(role @ (ConvRole::Output | ConvRole::Input), spec) => {
                let w = self.calculator.weights(nodes, node.args[1])?;
                let w = self.calculator.around_convolution(*role, spec, &w, factor, false)?;
                self.with_weights(nodes, &node, 1, w)
            }
            Op::Map(def) if node.args.len() == 2 => {
                let (y, own, is_swapped) = self.sides(nodes, &node)?;
                let by = self.calculator.placed(factor, node.ty.shape.rank())?;
                let times = |x: &Array| self.calculator.map(&arithmetic::multiply, &[x, &by]);
                if **def == arithmetic::multiply {
                    let both = times(&own)?;
                    let both = self.calculator.is_finite(&both).then_some(both)?;
                    let both = constant(nodes, both, &node);
                    let args = smallvec![Arg::Node(y), Arg::Node(both)];
                    return Some(push(nodes, Node { args, ..node }));
                }
                let is_sum = **def == arithmetic::add || **def == arithmetic::subtract;
                if !is_sum || (is_swapped && **def == arithmetic::subtract) {
                    return None;
                }
                let shift = times(&own)?;
                let y = self.scaled(nodes, y, factor, depth)?;
                let shift = constant(nodes, shift, &node);
                let args = smallvec![Arg::Node(y), Arg::Node(shift)];
                Some(push(nodes, Node { args, ..node }))
            }
            Op::Permute(axes) => {
                let axis = factor.axis.map(|axis| axes[axis]);
                let factor = Factor { axis, values: factor.values.clone() };
                self.onto(nodes, &node, 0, &factor, depth)
            }
            op if op.is_movement() && factor.axis.is_none() => {
                self.onto(nodes, &node, 0, factor, depth)
            }
            _ => None,
        }
    }

    /// A node whose operand `k` is scaled.
    fn onto(
        &self,
        nodes: &mut Nodes,
        node: &Node,
        k: usize,
        factor: &Factor,
        depth: usize,
    ) -> Option<Id> {
        let x = self.scaled(nodes, node_of(node.args[k])?, factor, depth)?;
        let mut node = node.clone();
        node.args[k] = Arg::Node(x);
        Some(push(nodes, node))
    }

    /// A product whose operand is scaled by a constant: with other weights instead.
    fn product(&self, nodes: &mut Nodes, node: &Node) -> Option<Id> {
        let Kind::Op(op) = &node.kind else { return None };
        for k in [1, 0] {
            let Some(w) = self.calculator.weights(nodes, node.args[k]) else { continue };
            let scaled = node_of(node.args[1 - k])?;
            let inner = &nodes[scaled.0 as usize];
            let Kind::Op(Op::Map(def)) = inner.kind else { return None };
            let divides = *def == arithmetic::quotient;
            if !(divides || *def == arithmetic::multiply) || !self.is_free(scaled) {
                return None;
            }
            let (x, factor, is_swapped) = self.sides(nodes, inner)?;
            let factor = self.calculator.factor(factor, &inner.ty)?;
            let factor = match divides {
                true if is_swapped => return None,
                true => self.calculator.inverse(&factor)?,
                false => factor,
            };
            #[allow(clippy::wildcard_enum_match_arm, reason = "there are two kinds of products")]
            let w = match op {
                Op::Contract(spec) => self.calculator.before_product(spec, k, &w, &factor)?,
                Op::Conv(role, spec) if k == 1 => {
                    self.calculator.around_convolution(*role, spec, &w, &factor, true)?
                }
                _ => return None,
            };
            let mut node = node.clone();
            node.args[1 - k] = Arg::Node(x);
            return self.with_weights(nodes, &node, k, w);
        }
        None
    }

    fn with_weights(&self, nodes: &mut Nodes, node: &Node, k: usize, w: Array) -> Option<Id> {
        let w = constant(nodes, w, node);
        let mut node = node.clone();
        node.args[k] = Arg::Node(w);
        Some(push(nodes, node))
    }
}

/// A new constant, which belongs to the line of a node.
fn constant(nodes: &mut Nodes, array: Array, like: &Node) -> Id {
    let ty = Type::new(array.dtype, array.shape().clone());
    let (kind, args) = (Kind::Constant(array), Args::new());
    push(nodes, Node { kind, args, ty, site: like.site })
}

fn add(nodes: &mut Nodes, x: Id, shift: Id, like: &Node) -> Id {
    let kind = Kind::Op(Op::Map(&arithmetic::add));
    let args = smallvec![Arg::Node(x), Arg::Node(shift)];
    push(nodes, Node { kind, args, ..like.clone() })
}
