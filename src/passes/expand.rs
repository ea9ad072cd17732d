//! Composites replaced by their formulas.

use std::sync::Arc;

use super::{carry_over, map_bodies, renamed};
use crate::error::{self, Result};
use crate::graph::{Graph, Kind};
use crate::ops::declare::Arguments;
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::Op;

/// The same values without call nodes.
pub fn expand(graph: &Graph) -> Result<Graph> {
    let out = Graph::with_numbers_of(graph);
    let mut names: Vec<Id> = Vec::with_capacity(graph.len());
    for node in graph.nodes().iter() {
        out.at(node.site);
        let args = renamed(&node.args, &names);
        names.push(match &node.kind {
            Kind::Input => out.input(node.ty.clone()),
            Kind::Op(Op::Call(call)) => {
                let arguments =
                    Arguments { cx: &out, attributes: &call.attributes, operands: &args };
                match catch(|| (call.composite.body)(&arguments)[0].tensor().arg())? {
                    Arg::Node(id) => id,
                    Arg::Scalar(_) => return Err(error::internal("a tensor is a node")),
                }
            }
            Kind::Op(op) => catch(|| out.emit(op.clone(), &args))?,
            Kind::Flow(flow) => {
                let flow = Arc::new(map_bodies(flow, expand)?);
                out.push(Kind::Flow(flow), args.into_iter().collect(), node.ty.clone())
            }
            Kind::Constant(_) | Kind::Part(_) | Kind::Effect(_) | Kind::Barrier => {
                out.push(node.kind.clone(), args.into_iter().collect(), node.ty.clone())
            }
        });
    }
    carry_over(graph, &out, &names);
    Ok(out)
}
