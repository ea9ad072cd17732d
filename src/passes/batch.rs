//! A graph over a batch of its inputs.

use super::renamed;
use crate::error::{self, Result};
use crate::graph::{Graph, Kind};
use crate::ops::batch::Batching;
use crate::ops::emit::{Emit, Id, catch};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

/// The graph of `size` examples at once. Input `i` has an axis of examples in front where
/// `mapped[i]`; every result has one.
pub fn batch(graph: &Graph, mapped: &[bool], size: Dim) -> Result<Graph> {
    let out = Graph::with_numbers_of(graph);
    let mut mapped = mapped.iter().copied();
    let results: Vec<Id> = {
        let batching = Batching::new(&out, size);
        let mut names: Vec<Id> = Vec::with_capacity(graph.len());
        for node in graph.nodes().iter() {
            out.at(node.site);
            names.push(match &node.kind {
                Kind::Input => {
                    let is_mapped = mapped.next().unwrap_or(false);
                    let ty = if is_mapped { stacked(&node.ty, size) } else { node.ty.clone() };
                    batching.value(out.input(ty), is_mapped)
                }
                Kind::Constant(array) => batching.value(out.constant(array.clone()), false),
                Kind::Flow(_) | Kind::Part(_) | Kind::Effect(_) | Kind::Barrier => {
                    return Err(error::internal(format!("{} in a batch", node.kind.name())));
                }
                Kind::Op(op) => catch(|| batching.emit(op.clone(), &renamed(&node.args, &names)))?,
            });
        }
        let results = graph.outputs();
        let all = results.iter().map(|id| catch(|| batching.mapped(names[id.0 as usize])));
        all.collect::<Result<_>>()?
    };
    results.into_iter().for_each(|id| out.output(id));
    Ok(out)
}

fn stacked(ty: &Type, size: Dim) -> Type {
    let shape: Shape = std::iter::once(size).chain(ty.shape.dims().iter().copied()).collect();
    Type::new(ty.dtype, shape)
}
