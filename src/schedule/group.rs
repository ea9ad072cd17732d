//! Grouping: which nodes become one step.
//!
//! Nodes are grouped by their *stage*. Along an edge between two elementwise nodes of one shape the
//! stage may stay the same; along any other edge it rises by one. Every node has the latest stage
//! that its readers allow. Elementwise nodes of one stage and shape are a group. No path leaves a
//! group and comes back, because the stage would rise on the way. Steps in order of stage compute
//! every value before it is read. One walk over the list finds all stages.
//!
//! Nodes over large arrays share a group only if they read each other or the same array. Unrelated
//! nodes gain nothing from sharing a pass, and their operands and results would wait in memory
//! until all of the group can run. The same holds for nodes that read reductions of rows of large
//! arrays, where a target fuses rows: a row fusion takes in the group and all that it reads.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::admit::admit;
use super::assemble::{Assembled, Assembly, Read, number_dtype};
use super::block_fusion::rows::are_rows;
use super::{
    Bodies, Cut, Group, Memory, Number, Operand, Options, Plan, Source, Step, StepTemplate,
    Template, Work,
};
use crate::array::Array;
use crate::dtype::{DType, Numeric};
use crate::error::{self, Result};
use crate::graph::{Kind, List, Node, result_types};
use crate::ops::element::ElementOp;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::shape::Shape;
use crate::target::Target;

/// The elementwise op of a node that may stand in a group.
fn element(node: &Node) -> Option<ElementOp> {
    match &node.kind {
        Kind::Op(Op::Map(def)) => Some(ElementOp::Map(def)),
        Kind::Op(Op::Cast(_)) => Some(ElementOp::Cast),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    }
}

/// A shape that equals another where they are certainly the same. Plain equality asks about
/// symbols, and a group must hold for all sizes.
#[derive(Clone, Copy, Hash)]
struct Certain<'g>(&'g Shape);

impl PartialEq for Certain<'_> {
    fn eq(&self, other: &Certain<'_>) -> bool {
        self.0.same(other.0)
    }
}

impl Eq for Certain<'_> {}

/// Whether a node is no step of its own.
fn is_given(kind: &Kind) -> bool {
    match kind {
        Kind::Input | Kind::Constant(_) | Kind::Result(_) => true,
        Kind::Op(_) | Kind::ControlFlow(_) | Kind::Effect(_) | Kind::Barrier => false,
    }
}

/// Whether an edge ends a group.
fn crosses(nodes: &[Node], from: Id, to: &Node) -> bool {
    let from = &nodes[from.0 as usize];
    element(from).is_none() || element(to).is_none() || !from.ty.shape.same(&to.ty.shape)
}

/// The operand of a node in a program. Loads broadcast and scalars fill, so nodes that only do that
/// are skipped.
fn operand(nodes: &[Node], mut arg: Arg) -> (Arg, Option<DType>) {
    loop {
        let Arg::Node(id) = arg else { return (arg, None) };
        let node = &nodes[id.0 as usize];
        match &node.kind {
            Kind::Op(Op::Broadcast(_)) => arg = node.args[0],
            Kind::Op(Op::Full(ty)) if matches!(node.args[0], Arg::Number(_)) => {
                return (node.args[0], Some(ty.dtype));
            }
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => return (arg, None),
        }
    }
}

/// The steps of a list in an order in which they can run, each node by itself where `unfused`.
/// Placement is left open.
pub(super) fn plan(list: &List, options: Options<'_>) -> Result<Plan> {
    admit(list, options.target)?;
    Scheduler::new(&list.nodes, &list.outputs, options).plan()
}

struct Scheduler<'g> {
    nodes: &'g [Node],
    outputs: &'g [Id],
    /// Whether every node is a step of its own
    unfused: bool,
    target: &'static dyn Target,
    /// Whether a result depends on the node
    live: Vec<bool>,
    stage: Vec<u32>,
    /// The unit (a group or a single op) of each node
    unit: Vec<u32>,
    /// The nodes of each unit, in order
    units: Vec<SmallVec<[Id; 4]>>,
    /// Whether a unit was closed because it was full
    full: Vec<bool>,
    /// Where the value of each node is, once a step gives it
    place: Vec<Option<Source>>,
    slots: Vec<Type>,
    constants: Vec<Array>,
}

impl<'g> Scheduler<'g> {
    fn new(nodes: &'g [Node], outputs: &'g [Id], options: Options<'_>) -> Scheduler<'g> {
        let mut scheduler = Scheduler {
            nodes,
            outputs,
            unfused: options.unfused,
            target: options.target,
            live: vec![false; nodes.len()],
            stage: vec![u32::MAX; nodes.len()],
            unit: vec![u32::MAX; nodes.len()],
            units: Vec::new(),
            full: Vec::new(),
            place: vec![None; nodes.len()],
            slots: Vec::new(),
            constants: Vec::new(),
        };
        scheduler.stages();
        scheduler.group();
        scheduler.split();
        scheduler
    }

    /// Gives every live node the latest stage that its readers allow, counted back from `u32::MAX`.
    fn stages(&mut self) {
        self.outputs.iter().for_each(|id| self.live[id.0 as usize] = true);
        // Effects keep the order in which they are written.
        let mut next_effect = u32::MAX;
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.has_effect() {
                self.live[i] = true;
                self.stage[i] = self.stage[i].min(next_effect - 1);
                next_effect = self.stage[i];
            }
            if !self.live[i] {
                continue;
            }
            for &arg in &node.args {
                let (Arg::Node(id), _) = self.read(node, arg) else { continue };
                let latest = self.stage[i] - u32::from(crosses(self.nodes, id, node));
                let at = id.0 as usize;
                self.live[at] = true;
                self.stage[at] = self.stage[at].min(latest);
            }
        }
    }

    /// The operand that a node reads. An elementwise node becomes part of a program, and so reads
    /// past broadcasts and fills.
    fn read(&self, node: &Node, arg: Arg) -> (Arg, Option<DType>) {
        match element(node) {
            Some(_) => operand(self.nodes, arg),
            None => (arg, None),
        }
    }

    /// Puts nodes into units, and units into an order in which they can run.
    fn group(&mut self) {
        let (nodes, limits) = (self.nodes, self.target.limits());
        let mut order: Vec<usize> = (0..nodes.len()).filter(|&i| self.live[i]).collect();
        order.sort_by_key(|&i| self.stage[i]);
        let kin = self.kin();
        // The open group of each stage, shape and kin.
        let mut open: FxHashMap<(u32, u32, Certain<'g>), usize> = FxHashMap::default();
        // The arrays that each unit reads.
        let mut reads: Vec<SmallVec<[Id; 8]>> = Vec::new();
        for i in order {
            let node = &nodes[i];
            if is_given(&node.kind) {
                continue;
            }
            let key = (self.stage[i], kin[i], Certain(&node.ty.shape));
            let mut unit = self.units.len();
            if element(node).is_some() && !self.unfused {
                let fits = |u: usize| {
                    self.units[u].len() < limits.instructions
                        && reads[u].len() + node.args.len() <= limits.operands
                };
                match open.get(&key) {
                    Some(&u) if fits(u) => unit = u,
                    Some(&u) => {
                        self.full[u] = true;
                        open.insert(key, unit);
                    }
                    None => drop(open.insert(key, unit)),
                }
            }
            if unit == self.units.len() {
                self.units.push(SmallVec::new());
                self.full.push(false);
                reads.push(SmallVec::new());
            }
            self.unit[i] = unit as u32;
            self.units[unit].push(Id(i as u32));
            for &arg in &node.args {
                if let (Arg::Node(x), _) = self.read(node, arg)
                    && self.unit[x.0 as usize] != unit as u32
                    && !reads[unit].contains(&x)
                {
                    reads[unit].push(x);
                }
            }
        }
    }

    /// Cuts units that read and write more ranges than a step may. The nodes before the cut depend
    /// on none behind it, so both units stay at the unit's position in the order.
    fn split(&mut self) {
        let most = self.target.limits().buffers;
        if most == usize::MAX {
            return;
        }
        let mut readers: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.live[*i]) {
            for &arg in &node.args {
                if let (Arg::Node(x), _) = self.read(node, arg) {
                    readers[x.0 as usize].push(i as u32);
                }
            }
        }
        let units = std::mem::take(&mut self.units);
        let full = std::mem::take(&mut self.full);
        for (unit, full) in units.into_iter().zip(full) {
            let mut rest = unit.as_slice();
            while !rest.is_empty() {
                let fits = |&count: &usize| self.ranges(&rest[..count], &readers) <= most;
                let count = match element(&self.nodes[rest[0].0 as usize]) {
                    Some(_) => (1..=rest.len()).rev().find(fits).unwrap_or(1),
                    None => rest.len(),
                };
                let (part, after) = rest.split_at(count);
                for id in part {
                    self.unit[id.0 as usize] = self.units.len() as u32;
                }
                self.units.push(SmallVec::from_slice(part));
                self.full.push(full || !after.is_empty());
                rest = after;
            }
        }
    }

    /// How many arrays a step of these nodes reads and writes.
    fn ranges(&self, part: &[Id], readers: &[SmallVec<[u32; 4]>]) -> usize {
        let mut read: SmallVec<[Id; 8]> = SmallVec::new();
        let mut written = 0;
        for id in part {
            let node = &self.nodes[id.0 as usize];
            for &arg in &node.args {
                if let (Arg::Node(x), _) = self.read(node, arg)
                    && !part.contains(&x)
                    && !read.contains(&x)
                {
                    read.push(x);
                }
            }
            let is_read = readers[id.0 as usize].iter().any(|&reader| !part.contains(&Id(reader)));
            written += usize::from(is_read || self.outputs.contains(id));
        }
        read.len() + written
    }

    /// For each elementwise node the first node of its kin: of one stage and shape, they read each
    /// other or the same array. All small nodes are one kin, but for those of the kin of a node that
    /// belongs to rows of a large array.
    fn kin(&self) -> Vec<u32> {
        let nodes = self.nodes;
        let mut kin: Vec<u32> = (0..nodes.len() as u32).collect();
        // The first reader of each array in each stage.
        let mut readers: FxHashMap<(Id, u32), u32> = FxHashMap::default();
        for (i, node) in nodes.iter().enumerate() {
            if !self.live[i] || element(node).is_none() {
                continue;
            }
            let shape = &node.ty.shape;
            for &arg in &node.args {
                let (Arg::Node(x), _) = self.read(node, arg) else { continue };
                let at = x.0 as usize;
                let other = match !crosses(nodes, x, node) && self.stage[at] == self.stage[i] {
                    true => x.0,
                    false if !nodes[at].ty.shape.same(shape) => continue,
                    false => *readers.entry((x, self.stage[i])).or_insert(i as u32),
                };
                let (a, b) = (first(&mut kin, other), first(&mut kin, i as u32));
                kin[a.max(b) as usize] = a.min(b);
            }
        }
        let kin: Vec<u32> = (0..nodes.len() as u32).map(|i| first(&mut kin, i)).collect();
        let mut is_apart = vec![false; nodes.len()];
        for (node, &first) in nodes.iter().zip(&kin) {
            let is_known = is_apart[first as usize];
            is_apart[first as usize] = is_known
                || element(node).is_some()
                    && (self.is_large(&node.ty.shape) || self.is_of_large_rows(node));
        }
        kin.into_iter().map(|i| if is_apart[i as usize] { i } else { u32::MAX }).collect()
    }

    fn is_large(&self, shape: &Shape) -> bool {
        !shape.is_known() || shape.count() >= self.target.limits().large
    }

    /// Whether an elementwise node reads a reduction of a large array that a row fusion may take in.
    fn is_of_large_rows(&self, node: &Node) -> bool {
        let Some(limits) = self.target.limits().rows else { return false };
        let operand = |arg: Arg| match arg {
            Arg::Node(id) => Some(&self.nodes[id.0 as usize]),
            Arg::Number(_) => None,
        };
        node.args.iter().any(|&arg| {
            let mut from = operand(self.read(node, arg).0);
            while let Some(shown) = from
                && matches!(shown.kind, Kind::Op(Op::Reshape(_)))
            {
                from = operand(shown.args[0]);
            }
            if let Some(Node { kind: Kind::Op(Op::Reduce(_, axes)), args, .. }) = from
                && let Some(rows) = operand(args[0])
            {
                return self.is_large(&rows.ty.shape) && are_rows(&rows.ty.shape, axes, &limits);
            }
            false
        })
    }

    fn plan(mut self) -> Result<Plan> {
        let mut inputs: SmallVec<[Type; 4]> = SmallVec::new();
        for (node, place) in self.nodes.iter().zip(&mut self.place) {
            match &node.kind {
                Kind::Input => {
                    *place = Some(Source::Input(inputs.len() as u32));
                    inputs.push(node.ty.clone());
                }
                Kind::Constant(array) => {
                    *place = Some(Source::Constant(self.constants.len() as u32));
                    self.constants.push(array.clone());
                }
                Kind::Op(_)
                | Kind::ControlFlow(_)
                | Kind::Result(_)
                | Kind::Effect(_)
                | Kind::Barrier => {}
            }
        }
        let (read_outside, cuts) = self.readers();
        let mut steps: Vec<Step> = Vec::with_capacity(self.units.len());
        for (unit, &cut) in cuts.iter().enumerate() {
            let step = match self.units[unit].as_slice() {
                [id] if self.reads_plainly(*id) => self.single(*id, cut)?,
                _ => self.fuse(unit, &read_outside, cut)?,
            };
            steps.push(step);
        }
        let outputs: SmallVec<[Source; 2]> =
            self.outputs.iter().filter_map(|&id| self.find(id)).collect();
        let places = (0..self.nodes.len() as u32).map(|i| self.find(Id(i))).collect();
        let constants = self.constants;
        let template = Template { outputs, constants, places, ..Template::default() };
        Ok(Plan {
            target: self.target,
            template: Arc::new(template),
            steps,
            inputs,
            slots: self.slots,
            memory: Memory::default(),
            recomputed: None,
            elements: None,
        })
    }

    /// Where a value is. A node that names a result of another node (`Kind::Result`) is in one of
    /// the slots of that node.
    fn find(&self, id: Id) -> Option<Source> {
        let node = &self.nodes[id.0 as usize];
        let (Kind::Result(i), Some(&Arg::Node(flow))) = (&node.kind, node.args.first()) else {
            return self.place[id.0 as usize];
        };
        match self.place[flow.0 as usize] {
            Some(Source::Slot(first)) => Some(Source::Slot(first + i)),
            Some(Source::Input(_) | Source::Constant(_)) | None => None,
        }
    }

    /// Whether a node reads its operands directly, none of them past a broadcast or fill.
    fn reads_plainly(&self, id: Id) -> bool {
        let node = &self.nodes[id.0 as usize];
        node.args.iter().all(|&arg| matches!(arg, Arg::Number(_)) || self.read(node, arg).0 == arg)
    }

    /// Which nodes are read outside their unit, and why each unit ends.
    fn readers(&self) -> (Vec<bool>, Vec<Cut>) {
        let mut outside = vec![false; self.nodes.len()];
        let mut cuts = vec![Cut::Result; self.units.len()];
        self.outputs.iter().for_each(|id| outside[id.0 as usize] = true);
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.live[*i]) {
            for &arg in &node.args {
                let (Arg::Node(x), _) = self.read(node, arg) else { continue };
                let from = self.unit[x.0 as usize];
                if from == self.unit[i] || from == u32::MAX {
                    continue;
                }
                outside[x.0 as usize] = true;
                let (known, cut) = (&mut cuts[from as usize], self.cut(from, x, node));
                if cut.weight() > known.weight() {
                    *known = cut;
                }
            }
        }
        (outside, cuts)
    }

    fn cut(&self, unit: u32, x: Id, reader: &Node) -> Cut {
        if element(&self.nodes[x.0 as usize]).is_none() {
            return Cut::Result;
        }
        match element(reader) {
            None => Cut::Opaque(reader.kind.name()),
            _ if !self.nodes[x.0 as usize].ty.shape.same(&reader.ty.shape) => Cut::Shape,
            _ if self.full[unit as usize] => Cut::Size,
            _ => Cut::Order,
        }
    }

    /// A slot for each result of a node.
    fn fill_slots(&mut self, id: Id) -> Result<SmallVec<[u32; 2]>> {
        let node = &self.nodes[id.0 as usize];
        let first = self.slots.len();
        match &node.kind {
            Kind::ControlFlow(flow) => self.slots.extend(flow.results.iter().cloned()),
            Kind::Effect(_) => {}
            Kind::Op(op) if op.results() > 1 => {
                self.slots.extend(result_types(self.nodes, op, &node.args)?);
            }
            Kind::Op(_) | Kind::Barrier | Kind::Input | Kind::Constant(_) | Kind::Result(_) => {
                self.slots.push(node.ty.clone());
            }
        }
        self.place[id.0 as usize] = Some(Source::Slot(first as u32));
        Ok((first as u32..self.slots.len() as u32).collect())
    }

    fn array(&self, id: Id) -> Operand {
        match self.find(id) {
            Some(source) => Operand::Array(source),
            None => unreachable!("%{} is read before it is computed", id.0),
        }
    }

    /// The step of one node.
    fn single(&mut self, id: Id, cut: Cut) -> Result<Step> {
        let node = &self.nodes[id.0 as usize];
        let work = match &node.kind {
            Kind::Op(op) => Work::Op(op.clone()),
            Kind::ControlFlow(flow) => {
                Work::ControlFlow(Arc::new(Bodies::new(flow, self.unfused, self.target)?))
            }
            Kind::Effect(effect) => Work::Effect(effect.clone()),
            Kind::Barrier => Work::Alias,
            Kind::Input | Kind::Constant(_) | Kind::Result(_) => {
                return Err(error::internal(format!("{} is no step", node.kind.name())));
            }
        };
        let args = node.args.iter().map(|&arg| match arg {
            Arg::Number(value) => Operand::Number(number(value)),
            Arg::Node(x) => self.array(x),
        });
        let args = args.collect();
        let (results, nodes, site) = (self.fill_slots(id)?, smallvec::smallvec![id], node.site);
        Ok(Step::new(work, StepTemplate { args, results, cut, nodes, site }))
    }

    /// The step of a group: one program.
    fn fuse(&mut self, unit: usize, read_outside: &[bool], cut: Cut) -> Result<Step> {
        let nodes = self.nodes;
        let ids = self.units[unit].clone();
        let mut assembly = Assembly::new();
        for &id in &ids {
            let node = &nodes[id.0 as usize];
            let Some(op) = element(node) else {
                return Err(error::internal("a group of other than elementwise nodes"));
            };
            let args = (0..node.args.len()).map(|i| self.operand(node, i)).collect();
            assembly.push(id, op, args, node.ty.dtype, |x| nodes[x.0 as usize].ty.dtype);
        }
        let results: SmallVec<[Id; 4]> =
            ids.iter().copied().filter(|id| read_outside[id.0 as usize]).collect();
        let Assembled { program, arrays, numbers } = assembly.finish(&results);
        let arrays = arrays.into_iter().map(|id| self.array(id));
        let args = arrays.chain(numbers.into_iter().map(Operand::Number)).collect();
        let last = &nodes[ids[ids.len() - 1].0 as usize];
        let mut slots: SmallVec<[u32; 2]> = SmallVec::new();
        for &id in &results {
            slots.extend(self.fill_slots(id)?);
        }
        let work = Work::Group(Group::new(program, last.ty.shape.clone()));
        Ok(Step::new(work, StepTemplate { args, results: slots, cut, site: last.site, nodes: ids }))
    }

    /// Operand `i` of an elementwise node, as a program reads it.
    fn operand(&self, node: &Node, i: usize) -> Read<Id> {
        match (self.read(node, node.args[i]), element(node)) {
            ((Arg::Node(x), _), _) => Read::Array(x),
            ((Arg::Number(value), Some(dtype)), _) => Read::Number(number(value), dtype),
            ((Arg::Number(value), None), Some(ElementOp::Map(def))) => {
                let dtype = |arg: &Arg| match *arg {
                    Arg::Node(id) => Some(self.nodes[id.0 as usize].ty.dtype),
                    Arg::Number(_) => None,
                };
                let own = number_dtype(def, i, node.args.iter().map(dtype), node.ty.dtype);
                Read::Number(number(value), own)
            }
            ((Arg::Number(value), None), _) => Read::Number(number(value), node.ty.dtype),
        }
    }
}

/// The first node of a node's kin; shortens the path to it (union-find).
fn first(kin: &mut [u32], mut i: u32) -> u32 {
    while kin[i as usize] != i {
        let next = kin[i as usize];
        kin[i as usize] = kin[next as usize];
        i = next;
    }
    i
}

fn number(value: Numeric) -> Number {
    match value {
        Numeric::Known(value) => Number::Constant(value),
        Numeric::Told(i) => Number::Input(i),
    }
}
