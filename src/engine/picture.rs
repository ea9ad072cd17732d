//! Lists for people: as Graphviz source, and line by line, with Python lines and costs.

use super::executors::{self, Device};
use super::site;
use crate::graph::dot::{Group, Picture};
use crate::graph::{Graph, List, Node};
use crate::ops::emit::Id;
use crate::passes::cost;
use crate::passes::expand::has_calls;
use crate::schedule::{Plan, Step};

/// The list as Graphviz source, with boxes around groups of nodes.
pub fn dot(list: &List, groups: &[Group]) -> String {
    list.dot(&picture(groups))
}

/// What a plan of the list runs as one, where that is more than one node. A composite without a
/// kernel has no place in a plan, so a list with such has no groups: expand it first.
pub fn groups(device: Device, list: &List) -> Vec<Group> {
    if has_calls(list, &|composite| executors::executor(device).has_kernel(composite)) {
        return Vec::new();
    }
    // A list that cannot be planned as it stands, such as one of open sizes, is drawn without
    // groups.
    let Ok(plan) = Plan::new(&Graph::from_list(list.clone()), executors::target(device)) else {
        return Vec::new();
    };
    let steps = plan.steps().iter().filter(|step| step.nodes.len() > 1);
    let label = |step: &Step| match step.reason() {
        Some(cut) => format!("{}, ends: {cut}", step.name()),
        None => step.name(),
    };
    steps.map(|step| Group { label: label(step), nodes: step.nodes.to_vec() }).collect()
}

/// A node for people.
pub struct Row {
    /// `%3: float32 (2,) = exp(%2)`
    pub text: String,
    /// The same, its line and its cost
    pub tooltip: String,
    /// The colour of its kind
    pub colour: &'static str,
}

/// The nodes of a list, one by one.
pub fn rows(list: &List) -> Vec<Row> {
    let row = |i: usize| {
        let id = Id(i as u32);
        let tooltip = picture(&[]).tooltip(list, id);
        let text = tooltip.lines().next().unwrap_or_default().into();
        Row { text, tooltip, colour: crate::graph::dot::colour(list.node(id)) }
    };
    (0..list.nodes.len()).map(row).collect()
}

fn picture(groups: &[Group]) -> Picture<'_> {
    Picture { describe: &site::describe, cost: &cost_text, groups }
}

/// What a node costs if it is computed alone.
fn cost_text(nodes: &[Node], node: &Node) -> Option<String> {
    let cost = cost::of_node(nodes, node);
    (cost.bytes + cost.flops > 0)
        .then(|| format!("{} operations, {} bytes", cost.flops, cost.bytes))
}
