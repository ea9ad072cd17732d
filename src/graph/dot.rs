//! Graphs as Graphviz source: a box for each node, coloured by kind, an arrow for each operand.
//!
//! Control flow is a box around the boxes of its bodies, with dashed arrows where operands go in
//! and results come out. Groups of nodes (those that a plan runs as one step) are boxes with
//! labels. Text that does not fit a box (the whole node, its line, its cost) is in its tooltip.
//! With `newrank` Graphviz ranks all nodes at once; if it ranked box by box, it would give up where
//! boxes depend on each other in both directions.

use std::fmt::Write;

use super::literal;
use super::print::{parts, summary};
use super::{ControlFlow, ControlFlowKind, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::structural::{Class, OpKind};
use crate::site::Site;

/// The most characters of a line in a box.
const WIDTH: usize = 48;

/// The nodes above which arrows carry no types: Graphviz lays out labels as nodes of their own, and
/// takes minutes for a thousand of them.
const LARGE: usize = 300;

/// Nodes of the outer list that share a box.
pub struct Group {
    /// The label of the box
    pub label: String,
    /// The nodes
    pub nodes: Vec<Id>,
}

/// What a picture shows besides the list itself.
pub struct Picture<'a> {
    /// Writes a site as text
    pub describe: &'a dyn Fn(Site) -> Option<String>,
    /// The cost of a node of a list, in words
    pub cost: &'a dyn Fn(&[Node], &Node) -> Option<String>,
    /// Boxes around nodes; a node is in one at most
    pub groups: &'a [Group],
}

impl Picture<'_> {
    /// The node in full, its line and its cost.
    pub fn tooltip(&self, list: &List, id: Id) -> String {
        let node = list.node(id);
        let mut lines = vec![match has_value(node) {
            true => format!("%{}: {} = {}", id.0, literal::ty(&node.ty), summary(node)),
            false => format!("%{} = {}", id.0, summary(node)),
        }];
        lines.extend((self.describe)(node.site));
        lines.extend((self.cost)(&list.nodes, node));
        lines.join("\n")
    }
}

impl List {
    /// The list as Graphviz source.
    pub fn dot(&self, picture: &Picture<'_>) -> String {
        let mut text = String::from(
            "digraph graph_ {\n  \
             graph [fontname=\"Helvetica\", fontsize=10, color=\"#888888\", newrank=true];\n  \
             node [fontname=\"Helvetica\", fontsize=10, shape=box, style=\"filled,rounded\", \
             color=\"#666666\", margin=\"0.1,0.05\", height=0.3];\n  \
             edge [fontname=\"Helvetica\", fontsize=8, color=\"#666666\", arrowsize=0.6];\n",
        );
        let is_large = size(self) > LARGE;
        if is_large {
            text.push_str("  graph [nslimit=1, nslimit1=1, mclimit=0.2];\n");
        }
        let mut dot = Dot { text: &mut text, picture, is_large };
        dot.list(self, "n", 2);
        dot.groups(self);
        text.push_str("}\n");
        text
    }
}

struct Dot<'a> {
    text: &'a mut String,
    picture: &'a Picture<'a>,
    is_large: bool,
}

/// How many nodes a list has, with those of its bodies.
fn size(list: &List) -> usize {
    list.nodes.len() + list.nodes.iter().map(inside).sum::<usize>()
}

/// How many nodes the bodies of a node have.
pub fn inside(node: &Node) -> usize {
    match &node.kind {
        Kind::ControlFlow(flow) => flow.bodies.iter().map(|body| size(body)).sum(),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => 0,
    }
}

/// The attributes and numbers of a node, without what it reads.
pub fn attributes(node: &Node) -> String {
    let own: Vec<String> = parts(node, true).into_iter().filter(|p| !p.contains('%')).collect();
    own.join(", ")
}

/// The type of a node; empty where it has no value of its own.
pub fn type_text(node: &Node) -> String {
    if has_value(node) { literal::ty(&node.ty) } else { String::new() }
}

impl Dot<'_> {
    /// The nodes of a list, whose names in the picture start with `prefix`.
    fn list(&mut self, list: &List, prefix: &str, indent: usize) {
        for (i, node) in list.nodes.iter().enumerate() {
            let id = Id(i as u32);
            match &node.kind {
                // A host op without bodies is a box like any other op.
                Kind::ControlFlow(flow) if !flow.bodies.is_empty() => {
                    self.flow(list, id, flow, prefix, indent);
                }
                Kind::Input
                | Kind::Constant(_)
                | Kind::Op(_)
                | Kind::ControlFlow(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => self.node(list, id, prefix, indent),
            }
            for arg in &node.args {
                if let Arg::Node(from) = arg {
                    self.edge(list, *from, &format!("{prefix}{i}"), prefix, indent);
                }
            }
        }
    }

    fn node(&mut self, list: &List, id: Id, prefix: &str, indent: usize) {
        let node = list.node(id);
        let mut lines = vec![node.kind.name().to_string()];
        if let Some(name) = list.names.get(&id) {
            lines[0] += &format!(" {}", literal::quoted(name));
        }
        let below = [clipped(&attributes(node)), type_text(node)];
        lines.extend(below.into_iter().filter(|line| !line.is_empty()));
        if let Some(i) = list.outputs.iter().position(|output| *output == id) {
            lines.push(format!("result {i}"));
        }
        let tooltip = self.picture.tooltip(list, id);
        let border =
            if list.outputs.contains(&id) { ", penwidth=2, color=\"#222222\"" } else { "" };
        let _ = writeln!(
            self.text,
            "{:indent$}{prefix}{} [label=\"{}\", tooltip=\"{}\", fillcolor=\"{}\"{border}];",
            "",
            id.0,
            escaped(&lines.join("\n")),
            escaped(&tooltip),
            colour(node),
        );
    }

    /// An arrow from one node to another, labelled with the type of the value.
    fn edge(&mut self, list: &List, from: Id, to: &str, prefix: &str, indent: usize) {
        let node = list.node(from);
        let label = match has_value(node) && !self.is_large {
            true => format!(" [label=\"{}\"]", escaped(&literal::ty(&node.ty))),
            false => String::new(),
        };
        let _ = writeln!(self.text, "{:indent$}{prefix}{} -> {to}{label};", "", from.0);
    }

    /// A box with the control flow's own node and a box for each body.
    fn flow(&mut self, list: &List, id: Id, flow: &ControlFlow, prefix: &str, indent: usize) {
        let name = format!("{prefix}{}", id.0);
        let label = escaped(flow.kind.name());
        let _ = writeln!(
            self.text,
            "{:indent$}subgraph \"cluster_{name}\" {{ label=\"{label}\"; style=\"rounded\";",
            ""
        );
        self.node(list, id, prefix, indent + 2);
        for (i, body) in flow.bodies.iter().enumerate() {
            let inner = format!("{name}_{i}_");
            let label = body_label(&flow.kind, i);
            let _ = writeln!(
                self.text,
                "{:indent$}  subgraph \"cluster_{inner}\" {{ label=\"{label}\"; style=\"dashed\";",
                ""
            );
            self.list(body, &inner, indent + 4);
            let _ = writeln!(self.text, "{:indent$}  }}", "");
            for output in &body.outputs {
                let _ = writeln!(
                    self.text,
                    "{:indent$}  {inner}{} -> {name} [style=dashed];",
                    "", output.0
                );
            }
        }
        let _ = writeln!(self.text, "{:indent$}}}", "");
        // The index of a branch goes to no body.
        let first = usize::from(flow.kind == ControlFlowKind::Branch);
        let tensors = list.node(id).args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(*id),
            Arg::Number(_) => None,
        });
        let given: Vec<Id> = tensors.skip(first).collect();
        for (i, body) in flow.bodies.iter().enumerate() {
            for (from, to) in given.iter().zip(body.inputs()) {
                let _ = writeln!(
                    self.text,
                    "{:indent$}{prefix}{} -> {name}_{i}_{} [style=dashed];",
                    "", from.0, to.0
                );
            }
        }
    }

    fn groups(&mut self, list: &List) {
        for (i, group) in self.picture.groups.iter().enumerate() {
            let label = escaped(&group.label);
            let _ = write!(
                self.text,
                "  subgraph \"cluster_group_{i}\" {{ label=\"{label}\"; tooltip=\"{label}\"; \
                 style=\"filled,rounded\"; fillcolor=\"#f4f4f4\";"
            );
            for id in group.nodes.iter().filter(|id| (id.0 as usize) < list.nodes.len()) {
                let _ = write!(self.text, " n{};", id.0);
            }
            self.text.push_str(" }\n");
        }
    }
}

/// Whether a node has a value of its own, and so a type that means something.
fn has_value(node: &Node) -> bool {
    !matches!(node.kind, Kind::ControlFlow(_) | Kind::Effect(_))
}

fn body_label(kind: &ControlFlowKind, i: usize) -> String {
    match (kind, i) {
        (ControlFlowKind::Branch, _) => format!("branch {i}"),
        (ControlFlowKind::While { .. }, 0) => "condition".into(),
        (ControlFlowKind::While { .. }, _) => "body".into(),
        (ControlFlowKind::Scan { .. }, _) => "step".into(),
        (ControlFlowKind::Host(_), _) => "forward".into(),
    }
}

fn clipped(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into(),
    }
}

/// A text for a quoted Graphviz string, in which backslashes and HTML entities are special.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '&' => out += "&amp;",
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// The colour of a kind of node.
pub fn colour(node: &Node) -> &'static str {
    match &node.kind {
        Kind::Input => "#cfe3f7",
        Kind::Constant(_) => "#e0e0e0",
        Kind::ControlFlow(_) | Kind::Result(_) => "#e6d5f0",
        Kind::Effect(_) => "#f7cfcf",
        Kind::Barrier => "#ffffff",
        Kind::Op(op) => match op.kind() {
            OpKind::Map(_) => "#fdf3cd",
            OpKind::Call(_) => "#fbe0c8",
            OpKind::Structural(def) => match def.class {
                Class::Elementwise => "#fdf3cd",
                Class::View | Class::Movement => "#f5f5f5",
                Class::Reduction => "#d5ebd5",
                Class::Product => "#bfe0c8",
                Class::Selection => "#d8eef0",
                Class::Creation => "#e0e0e0",
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::parse;

    fn dot(text: &str, groups: &[Group]) -> String {
        let describe = |_: Site| Some("a \"b\" & \\c.py:1".to_string());
        let cost = |_: &[Node], node: &Node| Some(format!("{} flops", node.args.len()));
        parse(text).unwrap().dot(&Picture { describe: &describe, cost: &cost, groups })
    }

    #[test]
    fn nodes_edges_groups_and_tooltips() {
        let text = "\
%0: float32 (2, 3) = input \"the \\\"x\\\"\"
%1: float32 (2, 3) = multiply(%0, 2.0)
%2: float32 (2,) = sum(%1, axis=(1,))
return %2
";
        let groups = [Group { label: "group \"0\"".into(), nodes: vec![Id(1), Id(2), Id(9)] }];
        let dot = dot(text, &groups);
        for want in [
            "n0 [label=\"input \\\"the \\\\\\\"x\\\\\\\"\\\"\\nfloat32 (2, 3)\"",
            "n1 [label=\"multiply\\n2.0\\nfloat32 (2, 3)\"",
            "tooltip=\"%1: float32 (2, 3) = multiply(%0, 2.0)\\na \\\"b\\\" &amp; \\\\c.py:1\\n2 flops\"",
            "n0 -> n1 [label=\"float32 (2, 3)\"];",
            "axis=(1,)\\nfloat32 (2,)\\nresult 0\"",
            "{ label=\"group \\\"0\\\"\"; tooltip=\"group \\\"0\\\"\"; style=\"filled,rounded\"; fillcolor=\"#f4f4f4\"; n1; n2; }",
        ] {
            assert!(dot.contains(want), "{want}\n{dot}");
        }
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }

    #[test]
    fn bodies_are_boxes_with_dashed_arrows() {
        let text = "\
%0: int64 () = input
%1: float32 (2,) = input
%2 = cond(%0, %1) -> (float32 (2,)) {
  %0: float32 (2,) = input
  return %0
} {
  %0: float32 (2,) = input
  %1: float32 (2,) = exp(%0)
  return %1
}
%3: float32 (2,) = result(%2, 0)
return %3
";
        let dot = dot(text, &[]);
        for want in [
            "subgraph \"cluster_n2\" { label=\"cond\"",
            "subgraph \"cluster_n2_1_\" { label=\"branch 1\"",
            "n2_1_0 -> n2_1_1 [label=\"float32 (2,)\"];",
            "n2_1_1 -> n2 [style=dashed];",
            "n1 -> n2_0_0 [style=dashed];",
            "n1 -> n2_1_0 [style=dashed];",
            "n2 -> n3;",
        ] {
            assert!(dot.contains(want), "{want}\n{dot}");
        }
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }
}
