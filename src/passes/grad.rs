//! The reverse sweep over a graph: gradients appended as nodes.
//!
//! The same sweep as the engine's over its tape, with the same rules and the same order of additions,
//! so it gives the same bits.

use smallvec::SmallVec;

use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::graph::{Args, Graph, Kind};
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::{Op, Type};
use crate::ops::rule::Rule;

/// Appends the gradients of `outputs` (with their cotangents; a number is repeated) by `inputs`;
/// `None` where nothing depends on the input.
pub fn gradients(graph: &Graph, outputs: &[(Id, Arg)], inputs: &[Id]) -> Result<Vec<Option<Id>>> {
    let mut sweep = Sweep { graph, reaches: reaches(graph, inputs), sums: vec![None; graph.len()] };
    for &(id, seed) in outputs {
        let ty = graph.ty(id);
        catch(|| {
            let seed = Expr::new(graph, seed);
            let seed = match seed.arg() {
                Arg::Scalar(_) => seed.full(ty.dtype, ty.shape.clone()),
                Arg::Node(_) => seed.cast(ty.dtype),
            };
            sweep.add(id, seed);
        })?;
    }
    let last = outputs.iter().map(|(id, _)| id.0 + 1).max().unwrap_or(0);
    for id in (0..last).rev().map(Id) {
        if sweep.reaches[id.0 as usize] && sweep.sums[id.0 as usize].is_some() {
            catch(|| sweep.step(id))
                .map_err(|error| error.note(format!("in the gradient of node %{}", id.0)))?;
        }
    }
    inputs.iter().map(|id| sweep.sums[id.0 as usize].map(node).transpose()).collect()
}

fn node(arg: Arg) -> Result<Id> {
    match arg {
        Arg::Node(id) => Ok(id),
        Arg::Scalar(_) => Err(error::internal("a cotangent is a node")),
    }
}

/// The nodes through which a gradient can reach one of the inputs.
fn reaches(graph: &Graph, inputs: &[Id]) -> Vec<bool> {
    let mut reaches = vec![false; graph.len()];
    inputs.iter().for_each(|id| reaches[id.0 as usize] = true);
    for (i, node) in graph.nodes().iter().enumerate() {
        let Kind::Op(op) = &node.kind else { continue };
        let through = node.args.iter().enumerate().any(|(k, arg)| match arg {
            Arg::Node(id) => reaches[id.0 as usize] && op.differentiable(k),
            Arg::Scalar(_) => false,
        });
        reaches[i] |= through && node.ty.dtype.is_float();
    }
    reaches
}

struct Sweep<'g> {
    graph: &'g Graph,
    reaches: Vec<bool>,
    /// The cotangent of each node so far
    sums: Vec<Option<Arg>>,
}

impl<'g> Sweep<'g> {
    /// Runs the rules of one node.
    fn step(&mut self, id: Id) {
        let (op, args): (Op, Args) = {
            let nodes = self.graph.nodes();
            let node = &nodes[id.0 as usize];
            self.graph.at(node.site);
            let Kind::Op(op) = &node.kind else { return };
            (op.clone(), node.args.clone())
        };
        let Some(g) = self.sums[id.0 as usize] else { return };
        let exprs: SmallVec<[Expr<'g>; 4]> =
            args.iter().map(|&arg| Expr::new(self.graph, arg)).collect();
        let y = Expr::new(self.graph, Arg::Node(id));
        let rule = Rule { args: &exprs, y, g: Expr::new(self.graph, g) };
        for (i, arg) in args.iter().enumerate() {
            let Arg::Node(operand) = *arg else { continue };
            if !self.reaches[operand.0 as usize] || !op.differentiable(i) {
                continue;
            }
            if i == 0 && self.add_part(operand, &op, &rule) {
                continue;
            }
            if let Some(cotangent) = op.vjp(&rule, i) {
                self.add(operand, cotangent);
            }
        }
    }

    /// Adds a cotangent, in the value's shape and dtype.
    fn add(&mut self, id: Id, cotangent: Expr<'g>) {
        let ty = self.graph.ty(id);
        let cotangent = cotangent.sum_to(&ty.shape).cast(ty.dtype);
        let sum = &mut self.sums[id.0 as usize];
        *sum = Some(
            match *sum {
                Some(sum) => Expr::new(self.graph, sum) + cotangent,
                None => cotangent,
            }
            .arg(),
        );
    }

    /// Adds the cotangent of a part in place, so that a loop over `x[t]` stays linear.
    fn add_part(&mut self, id: Id, op: &Op, rule: &Rule<'_, 'g>) -> bool {
        let sum = |sweep: &Sweep<'g>| match sweep.sums[id.0 as usize] {
            Some(sum) => Expr::new(sweep.graph, sum),
            None => {
                let Type { dtype, shape } = sweep.graph.ty(id);
                rule.g.scalar(Scalar::Float(0.0)).full(dtype, shape)
            }
        };
        let added = match op {
            Op::Slice(at) => {
                let sum = sum(self);
                let part = sum.emit(Op::Slice(at.clone())) + rule.g;
                sum.emit_with(Op::Update(at.clone()), &[sum.arg(), part.arg()])
            }
            Op::Gather => sum(self).scatter(ScatterMode::Add, rule.g, &rule.args[1..]),
            _ => return false,
        };
        self.sums[id.0 as usize] = Some(added.arg());
        true
    }
}
