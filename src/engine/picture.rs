//! Lists for people: as Graphviz source, and line by line, with Python lines and costs.

use super::executors::{self, Device};
use super::site;
use crate::graph::dot::{self, Group, Picture};
use crate::graph::{Graph, List, Node};
use crate::ops::emit::Id;
use crate::passes::cost;
use crate::passes::expand::has_calls;
use crate::schedule::{Plan, Step};
use crate::site::Site;

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
    /// The name of what it computes
    pub op: String,
    /// Its attributes and numbers, without what it reads
    pub attributes: String,
    /// Its type; empty where it has no value of its own
    pub ty: String,
    /// The nodes that it reads
    pub operands: Vec<u32>,
    /// Its name
    pub name: Option<String>,
    /// Where it was made
    pub site: Site,
    /// What it costs if it is computed alone; of control flow, 0
    pub flops: u64,
    /// The bytes that it reads and writes then
    pub bytes: u64,
    /// The bytes of its value, where its sizes are known
    pub size: Option<usize>,
    /// How many nodes its bodies have
    pub inside: usize,
    /// Whether it is a result
    pub is_result: bool,
}

/// The nodes of a list, one by one.
pub fn rows(list: &List) -> Vec<Row> {
    let row = |i: usize| {
        let id = Id(i as u32);
        let tooltip = picture(&[]).tooltip(list, id);
        let node = list.node(id);
        let cost = cost::of_node(&list.nodes, node);
        Row {
            text: tooltip.lines().next().unwrap_or_default().into(),
            tooltip,
            colour: dot::colour(node),
            op: node.kind.name().into(),
            attributes: dot::attributes(node),
            ty: dot::type_text(node),
            operands: node.reads().map(|id| id.0).collect(),
            name: list.names.get(&id).map(|name| name.to_string()),
            site: node.site,
            flops: cost.flops,
            bytes: cost.bytes,
            size: node.ty.shape.is_known().then(|| node.ty.shape.count() * node.ty.dtype.size()),
            inside: dot::inside(node),
            is_result: list.outputs.contains(&id),
        }
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
