//! Permutations and reshapes move across elementwise nodes until they meet and cancel.

use smallvec::SmallVec;

use super::{beside, is_elementwise};
use crate::error::Result;
use crate::graph::{Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Op;
use crate::passes::rebuild::{push, rebuild};
use crate::passes::simplify::place;

/// The view that a node is, or that all its operands share.
#[derive(Clone, Copy)]
struct View {
    /// The node of the view, whose op and operand define it
    by: Id,
    /// Whether the node is elementwise work on operands that are views, not the view itself
    is_work: bool,
}

pub fn cancel(list: List) -> Result<List> {
    let views = views(&list);
    let sinks = sinking(&list, &views);
    if !sinks.iter().any(|&sinks| sinks) {
        return Ok(list);
    }
    let mut sinks = sinks.into_iter();
    rebuild(list, |nodes, mut node| {
        let sinks = sinks.next().unwrap_or(false);
        if let (true, Some((view, sources))) = (sinks, sources(nodes, &node)) {
            let core = Id(nodes.len() as u32);
            let back = beside(&node, view, &[Arg::Node(core)], node.ty.clone());
            for (arg, source) in node.args.iter_mut().zip(&sources) {
                if let Some(source) = source {
                    *arg = Arg::Node(*source);
                    node.ty.shape = nodes[source.0 as usize].ty.shape.clone();
                }
            }
            nodes.push(node);
            return Ok(push(nodes, back));
        }
        Ok(if class(&node).is_some() { place(nodes, node, false) } else { push(nodes, node) })
    })
}

/// The operand of the view behind each operand of an elementwise node.
type Sources = SmallVec<[Option<Id>; 3]>;

/// The common view of a node's operands, and the operands of these views; `None` for operands
/// without axes. Views may have been rewritten or dropped by earlier steps; then there is no view
/// to sink.
fn sources(nodes: &[Node], node: &Node) -> Option<(Op, Sources)> {
    let mut found: Option<Id> = None;
    let mut sources = Sources::new();
    for arg in &node.args {
        let operand = match *arg {
            Arg::Node(id) if nodes[id.0 as usize].ty.shape.same(&node.ty.shape) => id,
            Arg::Node(_) | Arg::Number(_) => {
                sources.push(None);
                continue;
            }
        };
        let view = &nodes[operand.0 as usize];
        class(view)?;
        match (found, first(view)) {
            (Some(other), _) if !alike(nodes, other, operand) => return None,
            (_, Arg::Node(x)) => sources.push(Some(x)),
            (_, Arg::Number(_)) => return None,
        }
        found = Some(operand);
    }
    match &nodes[found?.0 as usize].kind {
        Kind::Op(op) => Some((op.clone(), sources)),
        Kind::Input
        | Kind::Constant(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    }
}

fn first(node: &Node) -> Arg {
    node.args[0]
}

/// Which kind of movement may sink.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Permute,
    Reshape,
}

fn class(node: &Node) -> Option<Class> {
    match node.kind {
        Kind::Op(Op::Permute(_)) => Some(Class::Permute),
        Kind::Op(Op::Reshape(_)) => Some(Class::Reshape),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    }
}

/// For each node its view: the node itself, or the view it would have if its work were done on the
/// operands of its operands' views.
fn views(list: &List) -> Vec<Option<View>> {
    let mut views: Vec<Option<View>> = Vec::with_capacity(list.nodes.len());
    for (i, node) in list.nodes.iter().enumerate() {
        let view = if class(node).is_some() {
            Some(View { by: Id(i as u32), is_work: false })
        } else if is_elementwise(node) {
            common(list, &views, node).map(|by| View { by, is_work: true })
        } else {
            None
        };
        views.push(view);
    }
    views
}

/// The view that all operands with axes share.
fn common(list: &List, views: &[Option<View>], node: &Node) -> Option<Id> {
    let mut found: Option<Id> = None;
    for arg in &node.args {
        let Arg::Node(id) = *arg else { continue };
        let operand = list.node(id);
        if operand.ty.shape.rank() == 0 && node.ty.shape.rank() > 0 {
            continue;
        }
        let view = views[id.0 as usize]?.by;
        if !operand.ty.shape.same(&node.ty.shape) {
            return None;
        }
        match found {
            Some(other) if !alike(&list.nodes, other, view) => return None,
            _ => found = Some(view),
        }
    }
    found
}

/// Whether two views move values of one shape in the same way.
fn alike(nodes: &[Node], a: Id, b: Id) -> bool {
    if a == b {
        return true;
    }
    let (a, b) = (&nodes[a.0 as usize], &nodes[b.0 as usize]);
    let ways = match (&a.kind, &b.kind) {
        (Kind::Op(Op::Permute(p)), Kind::Op(Op::Permute(q))) => p == q,
        (Kind::Op(Op::Reshape(p)), Kind::Op(Op::Reshape(q))) => p.same(q),
        _ => false,
    };
    ways && match (first(a), first(b)) {
        (Arg::Node(x), Arg::Node(y)) => {
            nodes[x.0 as usize].ty.shape.same(&nodes[y.0 as usize].ty.shape)
        }
        _ => false,
    }
}

/// The elementwise nodes whose readers are all views of the same class, or nodes that sink too, and
/// whose operands sink with them.
fn sinking(list: &List, views: &[Option<View>]) -> Vec<bool> {
    let mut sinks: Vec<bool> =
        views.iter().map(|view| view.is_some_and(|view| view.is_work)).collect();
    list.outputs.iter().for_each(|id| sinks[id.0 as usize] = false);
    // A node ruled out in one direction may rule out others in the other direction. Two rounds find
    // nearly all of them. The operands come last, because without that condition a node would read
    // a value that does not exist.
    for _ in 0..2 {
        readers_sink(list, views, &mut sinks);
        operands_sink(list, views, &mut sinks);
    }
    sinks
}

fn readers_sink(list: &List, views: &[Option<View>], sinks: &mut [bool]) {
    let mut is_read = vec![false; list.nodes.len()];
    for (i, node) in list.nodes.iter().enumerate().rev() {
        sinks[i] &= is_read[i];
        for arg in &node.args {
            let Arg::Node(id) = *arg else { continue };
            is_read[id.0 as usize] = true;
            let Some(view) = views[id.0 as usize].filter(|view| view.is_work) else { continue };
            let meets = class(node) == class(list.node(view.by));
            let follows = sinks[i] && node.ty.shape.same(&list.node(id).ty.shape);
            sinks[id.0 as usize] &= meets || follows;
        }
    }
}

fn operands_sink(list: &List, views: &[Option<View>], sinks: &mut [bool]) {
    for (i, node) in list.nodes.iter().enumerate() {
        sinks[i] &= node.args.iter().all(|arg| match *arg {
            Arg::Node(id) if list.node(id).ty.shape.same(&node.ty.shape) => {
                sinks[id.0 as usize] || views[id.0 as usize].is_some_and(|view| !view.is_work)
            }
            Arg::Node(_) | Arg::Number(_) => true,
        });
    }
}
