//! A graph over a batch of its inputs.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::error::{self, Result};
use crate::graph::{Args, Graph, Kind, List, Node};
use crate::ops::batch::Batching;
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

/// The graph of `size` examples at once. Input `i` has an axis of examples in front where
/// `mapped[i]`; every result has one.
pub fn batch(graph: &Graph, mapped: &[bool], size: Dim) -> Result<Graph> {
    let list = graph.list();
    let (list, _) = batch_list(&list, mapped, size, &vec![true; list.outputs.len()])?;
    Ok(Graph::from_list(list))
}

/// The list of `size` examples at once, and which results have an axis of examples: those that
/// depend on a mapped input, and those in `force`.
pub(super) fn batch_list(
    list: &List,
    mapped: &[bool],
    size: Dim,
    force: &[bool],
) -> Result<(List, Vec<bool>)> {
    let out = Graph::from_list(List { numbers: list.numbers.clone(), ..List::default() });
    let mut has = Vec::with_capacity(force.len());
    {
        let pass = Pass { out: &out, batching: Batching::new(&out, size), size };
        let given: Vec<Id> = list
            .inputs()
            .zip(mapped)
            .map(|(id, &mapped)| {
                let ty = &list.node(id).ty;
                let ty = if mapped { stacked(ty, size) } else { ty.clone() };
                pass.batching.value(out.input(ty), mapped)
            })
            .collect();
        let results = pass.run(list, &given)?;
        for (id, &force) in results.into_iter().zip(force) {
            let (below, mapped) = pass.batching.below(id);
            has.push(mapped || force);
            let below = if force { pass.spread(id)? } else { below };
            out.output(below);
        }
    }
    Ok((out.into_list(), has))
}

pub(super) fn stacked(ty: &Type, size: Dim) -> Type {
    let shape: Shape = std::iter::once(size).chain(ty.shape.dims().iter().copied()).collect();
    Type::new(ty.dtype, shape)
}

/// The pass that writes into one graph. A value of the list that is read is a value of the batching
/// emission.
pub(super) struct Pass<'g> {
    pub(super) out: &'g Graph,
    pub(super) batching: Batching<'g>,
    pub(super) size: Dim,
}

impl Pass<'_> {
    /// The value below that stands for this one, with an axis of examples in any case.
    pub(super) fn spread(&self, id: Id) -> Result<Id> {
        catch(|| self.batching.mapped(id))
    }

    /// Appends a list and returns its results.
    pub(super) fn run(&self, list: &List, inputs: &[Id]) -> Result<Vec<Id>> {
        let mut inputs = inputs.iter();
        let mut results: FxHashMap<Id, Vec<Id>> = FxHashMap::default();
        let mut names: Vec<Id> = Vec::with_capacity(list.nodes.len());
        for (i, node) in list.nodes.iter().enumerate() {
            self.out.at(node.site);
            names.push(match &node.kind {
                Kind::Input => match inputs.next() {
                    Some(&id) => id,
                    None => return Err(error::internal("an input is missing")),
                },
                Kind::ControlFlow(flow) => {
                    let args: Vec<Id> = node.reads().map(|id| names[id.0 as usize]).collect();
                    results.insert(Id(i as u32), self.flow(flow, &args)?);
                    // Only `Result` nodes read a control-flow op, so its own name is never looked
                    // up.
                    Id(0)
                }
                Kind::Result(k) => match node.reads().next() {
                    Some(of) => results[&of][*k as usize],
                    None => return Err(error::internal("a result node names no node")),
                },
                Kind::Op(op) if op.results() > 1 => {
                    let first = self.node(node, &names)?;
                    let found = (0..op.results()).map(|k| self.batching.result(first, k));
                    results.insert(Id(i as u32), found.collect());
                    first
                }
                Kind::Constant(_) | Kind::Op(_) | Kind::Effect(_) | Kind::Barrier => {
                    self.node(node, &names)?
                }
            });
        }
        Ok(list.outputs.iter().map(|id| names[id.0 as usize]).collect())
    }

    /// Appends a node that has one result.
    fn node(&self, node: &Node, names: &[Id]) -> Result<Id> {
        let name = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(names[id.0 as usize]),
            scalar => scalar,
        };
        let args: SmallVec<[Arg; 4]> = node.args.iter().map(name).collect();
        if let Kind::Op(op) = &node.kind {
            return catch(|| self.batching.emit(op.clone(), &args));
        }
        let below = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(self.batching.below(id).0),
            scalar => scalar,
        };
        let below: Args = args.iter().map(below).collect();
        // A barrier has the type of its first operand. A node with an effect sees all examples.
        let first = match (&node.kind, args.first()) {
            (Kind::Barrier, Some(Arg::Node(id))) => Some(self.batching.below(*id)),
            _ => None,
        };
        let ty = first.map_or_else(|| node.ty.clone(), |(id, _)| self.out.ty(id));
        let id = self.out.push(node.kind.clone(), below, ty);
        Ok(self.batching.value(id, first.is_some_and(|(_, mapped)| mapped)))
    }
}
