//! Rematerialisation: values that are computed again where they are read late, so that they need
//! not stay in memory until then.
//!
//! Which values to compute again follows from their placement in memory, which only a plan knows
//! ([`schedule::Plan::within`](crate::schedule)). This module says which nodes may be computed
//! again, and writes the list. A copy reads its operands through barriers, so that no pass merges
//! it with its original, and the list keeps the order of the plan.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::graph::{Args, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::structural::OpKind;

/// The time of a node that never runs.
pub const NEVER: u32 = u32::MAX;

/// The nodes to compute again before a step.
#[derive(Clone, Debug, Default)]
pub struct Again {
    /// The nodes, with those of their operands that are no longer in memory
    pub nodes: Vec<Id>,
    /// A value that has to be computed before them
    pub after: Option<Id>,
}

/// The cost of computing a node again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Price {
    /// A pass over memory
    Cheap,
    /// Much arithmetic for each element
    Expensive,
    /// The node must not be computed twice
    Never,
}

/// The cost of computing a node again. Random bits depend on their key only, so they may be
/// computed again; control-flow ops and effects may not.
pub fn price(kind: &Kind) -> Price {
    match kind {
        Kind::Op(op) => match op.kind() {
            OpKind::Map(_) => Price::Cheap,
            // A call in a plan has a kernel, and kernels exist for composites that take long.
            OpKind::Call(call) if call.composite.results() > 1 => Price::Never,
            OpKind::Call(_) => Price::Expensive,
            OpKind::Structural(def) if def.is_expensive => Price::Expensive,
            OpKind::Structural(_) => Price::Cheap,
        },
        Kind::Barrier => Price::Cheap,
        Kind::Input
        | Kind::Constant(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_) => Price::Never,
    }
}

/// The list with some nodes computed again. `when` says at which time each node runs ([`NEVER`]: it
/// is dropped), `again` which nodes are computed again before a time; later nodes read the copy.
/// `None` where a node would read one that runs later.
pub fn recomputed(list: &List, when: &[u32], again: &BTreeMap<u32, Again>) -> Option<List> {
    let mut writer = Writer {
        list,
        out: List { numbers: list.numbers.clone(), ..List::default() },
        now: vec![Id(NEVER); list.nodes.len()],
    };
    let mut order: Vec<u32> =
        (0..list.nodes.len() as u32).filter(|&i| when[i as usize] != NEVER).collect();
    order.sort_by_key(|&i| when[i as usize]);
    let mut waiting = again.iter().peekable();
    for i in order {
        while let Some((_, again)) = waiting.next_if(|(at, _)| **at <= when[i as usize]) {
            writer.again(again);
        }
        let args = writer.args(&list.nodes[i as usize].args);
        let id = writer.push(Id(i), list.nodes[i as usize].kind.clone(), args);
        if let Some(name) = list.names.get(&Id(i)) {
            writer.out.names.insert(id, name.clone());
        }
    }
    let outputs = list.outputs.iter().map(|id| writer.now[id.0 as usize]).collect();
    let list = List { outputs, ..writer.out };
    let is_before = |id: Id, i: usize| (id.0 as usize) < i;
    let in_order =
        list.nodes.iter().enumerate().all(|(i, node)| node.reads().all(|id| is_before(id, i)));
    (in_order && list.outputs.iter().all(|&id| is_before(id, list.nodes.len()))).then_some(list)
}

struct Writer<'a> {
    list: &'a List,
    out: List,
    /// The current copy of each node
    now: Vec<Id>,
}

impl Writer<'_> {
    fn push(&mut self, of: Id, kind: Kind, args: Args) -> Id {
        let id = self.copy(of, kind, args);
        self.now[of.0 as usize] = id;
        id
    }

    fn copy(&mut self, of: Id, kind: Kind, args: Args) -> Id {
        let node = self.list.node(of);
        self.out.nodes.push(Node { kind, args, ty: node.ty.clone(), site: node.site });
        Id(self.out.nodes.len() as u32 - 1)
    }

    fn args(&self, args: &[Arg]) -> Args {
        let name = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(self.now[id.0 as usize]),
            scalar => scalar,
        };
        args.iter().map(name).collect()
    }

    /// Computes nodes again, from operands behind barriers.
    fn again(&mut self, again: &Again) {
        let mut nodes = again.nodes.clone();
        nodes.sort_unstable_by_key(|id| id.0);
        nodes.dedup();
        let after = again.after.map(|id| self.now[id.0 as usize]);
        // Values behind their barriers, and nodes computed again in this call, which need none.
        let mut behind: FxHashMap<Id, Id> = FxHashMap::default();
        for id in nodes {
            let node = &self.list.nodes[id.0 as usize];
            // Behind its first operand a barrier has those it waited for; the copy need not wait
            // for them.
            let count = if matches!(node.kind, Kind::Barrier) { 1 } else { node.args.len() };
            let mut args = Args::new();
            for arg in &node.args[..count] {
                args.push(match *arg {
                    Arg::Node(x) => Arg::Node(match behind.get(&x) {
                        Some(&known) => known,
                        None => {
                            let values = [Some(self.now[x.0 as usize]), after];
                            let values = values.into_iter().flatten().map(Arg::Node).collect();
                            let fence = self.copy(x, Kind::Barrier, values);
                            behind.insert(x, fence);
                            fence
                        }
                    }),
                    scalar => scalar,
                });
            }
            let made = self.push(id, node.kind.clone(), args);
            behind.insert(id, made);
        }
    }
}
