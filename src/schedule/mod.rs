//! Schedules: plans made from graphs.
//!
//! A [`Plan`] is a list of steps over slots. Elementwise nodes of one shape become one step, a
//! register program whose intermediate values stay in the innermost cache ([`group`]). Every other
//! node starts as a step of its own; products then take in the groups around them ([`product`]),
//! and steps that depend on each other row by row become one ([`block_fusion`]). A step gives the
//! same bits as its nodes one by one, because every instruction of a program rounds to its dtype.
//!
//! The placement of results is planned too ([`memory`]). Values that live and die within a run
//! share one arena, results of the plan have dedicated buffers, and views lie in the memory of the
//! value that they show. So the most bytes that a run holds at once are known before it starts
//! ([`Plan::peak_bytes`]).

mod admit;
mod arrangement;
mod assemble;
pub mod block_fusion;
mod budget;
mod choose;
mod control_flow;
mod donate;
mod explain;
mod group;
mod layouts;
mod liveness;
mod load;
mod memory;
mod order;
mod pack;
mod print;
mod product;
mod prologue;
mod resize;
#[cfg(test)]
mod tests;
mod verify;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

pub use assemble::{Sequel, number_dtype};
pub use block_fusion::BlockFusion;
pub use block_fusion::rows::RowFusion;
pub use budget::{Recomputed, Within};
pub use control_flow::Bodies;
pub use explain::Alive;
pub use memory::{DedicatedBuffer, Memory, Placement};
pub use product::{Epilogue, Given, Product};
pub use prologue::Prologue;

use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::graph::{Effect, Graph, List};
use crate::ops::element::ElementProgram;
use crate::ops::emit::Id;
use crate::ops::op::{Op, Type};
use crate::shape::Shape;
use crate::site::Site;
use crate::target::{Limits, Target};

/// The most steps of a light plan ([`Plan::is_light`]).
const LIGHT: usize = 64;

/// Where a plan finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An input of the plan, by position
    Input(u32),
    /// A slot, which a step fills
    Slot(u32),
    /// An array that the plan holds, by position
    Constant(u32),
}

/// A number that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A constant of the plan
    Constant(Scalar),
    /// A numeric input of the plan, by position
    Input(u32),
}

/// An operand of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// An array
    Array(Source),
    /// A number
    Number(Number),
}

/// Why a group ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its results are results of the plan
    Result,
    /// A reader is not elementwise
    Opaque(&'static str),
    /// A reader works on another shape
    Shape,
    /// A reader needs something else that is computed from this group
    Order,
    /// It has as many instructions or operands as a program may have
    Size,
}

impl Cut {
    /// The rank of a reason. Of several reasons to end a group, the highest is reported: the one
    /// that is hardest to remove.
    fn weight(self) -> u8 {
        match self {
            Cut::Result => 0,
            Cut::Order => 1,
            Cut::Size => 2,
            Cut::Shape => 3,
            Cut::Opaque(_) => 4,
        }
    }
}

/// Elementwise nodes at once.
#[derive(Clone)]
pub struct Group {
    /// The ops
    pub program: Arc<ElementProgram>,
    /// The shape of the results, to which operands broadcast
    pub shape: Shape,
    /// The number of the program in the template
    pub number: u32,
}

/// The part of a plan that is the same for all sizes of a list. It holds the code to compile (the
/// elementwise programs of the steps, and the templates of the bodies of control flow) and
/// everything else that no size decides. The operands and results of steps are shared by the steps
/// themselves ([`StepTemplate`]).
#[derive(Default)]
pub struct Template {
    /// The programs, by their numbers
    pub programs: Vec<Arc<ElementProgram>>,
    /// The bodies of control flow, by its number
    pub bodies: Vec<SmallVec<[Arc<Template>; 2]>>,
    outputs: SmallVec<[Source; 2]>,
    constants: Vec<Array>,
    /// Pairs `(input, output)` of which the output may take the memory of the input
    donated: SmallVec<[(u32, u32); 2]>,
    /// By node of the list: where its value is, if a step gives it
    places: Vec<Option<Source>>,
    /// Sets of steps that may become block fusions, by their positions in the plan for open sizes
    sets: Vec<block_fusion::Set>,
    /// Operands of products that a prologue may compute
    fed: Vec<prologue::Fed>,
    /// The layout hint that the first resizing found
    layout_hint: OnceLock<memory::LayoutHint>,
}

impl Template {
    /// Renumbers the steps of the sets for another order. Without an order there are no plans for
    /// other sizes, and the fields that only those plans would read are cleared.
    fn follow(&mut self, order: Option<&[u32]>) {
        let Some(order) = order else {
            self.fed.clear();
            return self.sets.clear();
        };
        let mut place = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(&step, at)| place[step as usize] = at);
        self.sets.iter_mut().for_each(|set| set.follow(&place));
    }
}

impl Group {
    fn new(program: ElementProgram, shape: Shape) -> Group {
        Group { program: Arc::new(program), shape, number: 0 }
    }

    /// The same ops on operands of another shape.
    fn reshaped(&self, shape: Shape) -> Group {
        Group { shape, ..self.clone() }
    }

    /// How many ops it does.
    fn len(&self) -> usize {
        self.program.instructions().len()
    }
}

/// The work of a step.
#[derive(Clone)]
pub enum Work {
    /// Elementwise nodes at once
    Group(Group),
    /// A product with its prologues and its epilogue
    Product(Box<Product>),
    /// Steps that depend on each other row by row, run block by block
    BlockFusion(Box<BlockFusion>),
    /// Steps that compute rows, as one program
    RowFusion(Box<RowFusion>),
    /// One op
    Op(Op),
    /// Control flow, whose bodies are plans
    ControlFlow(Arc<Bodies>),
    /// Something done for its effect
    Effect(Arc<Effect>),
    /// The first operand, unchanged
    Alias,
}

/// The fields of a step that are the same for all sizes.
#[derive(Clone)]
pub struct StepTemplate {
    /// The operands: for a program the arrays, then the numbers
    pub args: SmallVec<[Operand; 4]>,
    /// The slots it fills
    pub results: SmallVec<[u32; 2]>,
    /// Why it ends here
    pub cut: Cut,
    /// The nodes it computes
    pub nodes: SmallVec<[Id; 4]>,
    /// The Python line of its last node
    pub site: Site,
}

/// One step of a plan.
#[derive(Clone)]
pub struct Step {
    /// The operands and results, which plans for other sizes share
    pub template: Arc<StepTemplate>,
    /// The work, at the sizes of the plan
    pub work: Work,
    /// The slots that no later step and no result reads
    pub last: SmallVec<[u32; 2]>,
}

impl Step {
    fn new(work: Work, template: StepTemplate) -> Step {
        Step { template: Arc::new(template), work, last: SmallVec::new() }
    }
}

impl Deref for Step {
    type Target = StepTemplate;

    fn deref(&self) -> &StepTemplate {
        &self.template
    }
}

/// Steps in the order in which they run: a template arranged for some sizes, which may be open.
/// Everything but the template is worked out again for other sizes.
#[cfg_attr(test, derive(Clone))]
pub struct Plan {
    target: &'static dyn Target,
    template: Arc<Template>,
    steps: Vec<Step>,
    inputs: SmallVec<[Type; 4]>,
    slots: Vec<Type>,
    memory: Memory,
    /// The rematerialisation that keeps the plan within a budget, if any
    recomputed: Option<Recomputed>,
    /// Elements that a run reads and writes; `None` where their count does not bound the time of a
    /// run
    elements: Option<usize>,
}

/// The target of a plan, and what the plan may do with its operands.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The target
    pub target: &'static dyn Target,
    /// Donations `(input, output)`, pairs of one type: the output may take the memory of the input,
    /// which nobody reads after the run
    pub donated: &'a [(u32, u32)],
    /// Every node is a step of its own
    pub unfused: bool,
}

impl Options<'_> {
    /// Options for a target, without donations.
    pub fn new(target: &'static dyn Target) -> Options<'static> {
        Options { target, donated: &[], unfused: false }
    }
}

impl Plan {
    /// The plan that computes a graph's results. Calls without a kernel must have been expanded.
    pub fn new(graph: &Graph, target: &'static dyn Target) -> Result<Plan> {
        Plan::of(&graph.list(), Options::new(target))
    }

    /// The plan that computes a list's results and runs its effects. Refuses what is beyond the
    /// limits of the target.
    pub fn of(list: &List, options: Options<'_>) -> Result<Plan> {
        let mut plan = group::plan(list, options)?;
        plan.building()?.donated = options.donated.into();
        if !options.unfused {
            let readers = product::Readers::new(&plan);
            plan.building()?.fed = plan.fed(&readers);
            plan.join_products(&readers, options.donated);
            plan.building()?.sets = block_fusion::sets(&plan);
            plan.fuse_rows();
        }
        plan.number()?;
        let found = plan.arrange(options, None);
        // Plans for other sizes start from the order of this one. A plan of known sizes has no such
        // plans.
        let order = found.filter(|_| !plan.is_known()).map(|found| found.order);
        plan.building()?.follow(order.as_deref());
        plan.admit()?;
        plan.checked()?;
        Ok(plan)
    }

    /// Numbers the programs and bodies that have to be compiled.
    fn number(&mut self) -> Result<()> {
        let mut template = Template::default();
        let number = |group: &mut Group, programs: &mut Vec<Arc<ElementProgram>>| {
            group.number = programs.len() as u32;
            programs.push(group.program.clone());
        };
        for step in &mut self.steps {
            match &mut step.work {
                Work::Group(group) => number(group, &mut template.programs),
                Work::Product(product) => {
                    product.groups_mut().for_each(|group| number(group, &mut template.programs));
                }
                Work::ControlFlow(bodies) => {
                    let number = template.bodies.len() as u32;
                    let templates = bodies.plans().iter().map(|plan| plan.template.clone());
                    template.bodies.push(templates.collect());
                    match Arc::get_mut(bodies) {
                        Some(bodies) => bodies.number = number,
                        None => return Err(error::internal("a body of two plans")),
                    }
                }
                Work::BlockFusion(_)
                | Work::RowFusion(_)
                | Work::Op(_)
                | Work::Effect(_)
                | Work::Alias => {}
            }
        }
        let own = self.building()?;
        for fed in &mut own.fed {
            fed.single.iter_mut().for_each(|group| number(group, &mut template.programs));
        }
        let Template { programs, bodies, .. } = template;
        (own.programs, own.bodies) = (programs, bodies);
        Ok(())
    }

    /// The template, which no other plan shares yet.
    fn building(&mut self) -> Result<&mut Template> {
        let shared = || error::internal("a template is built that other plans share");
        Arc::get_mut(&mut self.template).ok_or_else(shared)
    }

    /// Whether all sizes are numbers.
    fn is_known(&self) -> bool {
        self.slots.iter().chain(&self.inputs).all(|ty| ty.shape.is_known())
    }

    /// Verifies the plan in tests and debug builds.
    fn checked(&self) -> Result<()> {
        match cfg!(test) || cfg!(debug_assertions) {
            true => self.verify().map_err(|error| error.note(self.to_string())),
            false => Ok(()),
        }
    }

    /// The target that the plan is made for.
    pub fn target(&self) -> &'static dyn Target {
        self.target
    }

    /// The part of the plan that plans for other sizes share.
    pub fn template(&self) -> &Arc<Template> {
        &self.template
    }

    /// The constant arrays.
    pub fn constants(&self) -> &[Array] {
        &self.template.constants
    }

    /// The steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The types of the inputs.
    pub fn inputs(&self) -> &[Type] {
        &self.inputs
    }

    /// Where the results are.
    pub fn outputs(&self) -> &[Source] {
        &self.template.outputs
    }

    /// The types of the slots.
    pub fn slots(&self) -> &[Type] {
        &self.slots
    }

    /// The placement of results.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The rematerialisation that keeps the plan within a budget, if any.
    pub fn recomputed(&self) -> Option<Recomputed> {
        self.recomputed
    }

    /// Whether the plan is faster than its nodes one by one, and so many more that were dropped before,
    /// which takes enough of them, or enough that share a step. For small arrays a saved dispatch
    /// hardly repays the set-up of a program; for large arrays a saved pass does.
    pub fn pays(&self, dropped: usize) -> bool {
        let Limits { large, setup, .. } = *self.target.limits();
        let saved = |step: &Step| match &step.work {
            Work::Group(group) => {
                let count = if group.shape.is_known() { group.shape.count() } else { 0 };
                group.len().saturating_sub(1) * (1 + count / large)
            }
            Work::Product(product) => product.groups().count(),
            Work::BlockFusion(fusion) => fusion.blocks() * fusion.steps().len(),
            Work::RowFusion(fusion) => fusion.program.stages.len(),
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => 0,
        };
        self.steps.iter().map(saved).sum::<usize>() + dropped >= setup
    }

    /// Whether the plan could pay at no shape, because nothing was grouped.
    pub fn groups_nothing(&self) -> bool {
        let grouped = |step: &Step| match &step.work {
            Work::Group(group) => group.len() > 1,
            Work::Product(_) | Work::BlockFusion(_) | Work::RowFusion(_) => true,
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => false,
        };
        !self.steps.iter().any(grouped)
    }

    /// Whether a run takes little time: it has few steps over at most `elements` elements, and no
    /// step calls Python or takes longer than its elements suggest.
    pub fn is_light(&self, elements: usize) -> bool {
        self.elements.is_some_and(|count| count <= elements)
    }

    /// The count that [`Plan::is_light`] compares; `None` where no count makes the plan light.
    fn count_elements(&self) -> Option<usize> {
        let is_plain = |step: &Step| match &step.work {
            Work::Op(op) => !matches!(op, Op::Contract(_) | Op::Conv(..)),
            Work::Group(..) | Work::RowFusion(_) | Work::Alias => true,
            Work::Product(_) | Work::BlockFusion(_) | Work::ControlFlow(_) | Work::Effect(_) => {
                false
            }
        };
        if self.steps.len() > LIGHT || !self.is_known() || !self.steps.iter().all(is_plain) {
            return None;
        }
        Some(self.slots.iter().chain(&self.inputs).map(|ty| ty.shape.count()).sum())
    }

    /// Whether a step reads the input, or the input is a result of the plan.
    pub fn reads_input(&self, i: u32) -> bool {
        let input = Source::Input(i);
        let reads = |step: &Step| step.args.contains(&Operand::Array(input));
        self.steps.iter().any(reads) || self.outputs().contains(&input)
    }

    /// The type of a value.
    pub fn ty(&self, source: Source) -> Type {
        match source {
            Source::Input(i) => self.inputs[i as usize].clone(),
            Source::Slot(i) => self.slots[i as usize].clone(),
            Source::Constant(i) => {
                let array = &self.constants()[i as usize];
                Type::new(array.dtype, array.shape().clone())
            }
        }
    }
}
