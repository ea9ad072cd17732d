//! Schedules: graphs as plans.
//!
//! A [`Plan`] is a list of steps over slots. Elementwise nodes of one shape become one step, a
//! register program that keeps what lies between them in the innermost cache ([`group`]); every other
//! node is a step of its own. A step gives the bits of its nodes one by one, because every
//! instruction of a program rounds to its dtype.
//!
//! Where results lie is planned too ([`memory`]): what lives and dies within a run shares one arena,
//! results of the plan have memory of their own, views lie in what they show. So the most bytes that
//! a run holds at once are known before it starts ([`Plan::peak_bytes`]).

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
mod liveness;
mod load;
mod memory;
mod order;
mod pack;
mod print;
mod product;
mod prologue;
mod resize;
pub mod shader;
#[cfg(test)]
mod tests;
mod verify;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

pub use block_fusion::BlockFusion;
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

/// The most steps of a plan that is light.
const LIGHT: usize = 64;

/// Where a plan finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An input of the plan, by position
    Input(u32),
    /// What a step has put into a slot
    Slot(u32),
    /// An array that the plan holds, by position
    Constant(u32),
}

/// A number that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Part of the plan
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
    /// Of several reasons the one that nothing could mend is told.
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

/// What plans for all sizes of a list have in common: what there is to compile (the elementwise programs
/// of its steps, and the templates of the bodies of its control flow), and all else that no size decides.
/// What steps read and write is shared by steps themselves ([`StepTemplate`]).
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
    /// Steps that may be done row by row together, by their places in the plan for open sizes
    sets: Vec<block_fusion::Set>,
    /// Operands of products that may be made while they are packed
    fed: Vec<prologue::Fed>,
    /// What the first resizing found best
    layout_hint: OnceLock<memory::LayoutHint>,
}

impl Template {
    /// Puts the steps in another order, or forgets what only plans of other sizes ask: there are none.
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

/// What a step does.
#[derive(Clone)]
pub enum Work {
    /// Elementwise nodes at once
    Group(Group),
    /// A product and the elementwise nodes that read it
    Product(Box<Product>),
    /// Steps that depend on each other row by row, done block by block
    BlockFusion(Box<BlockFusion>),
    /// One op
    Op(Op),
    /// Control flow, whose bodies are plans
    ControlFlow(Arc<Bodies>),
    /// Something done for its effect
    Effect(Arc<Effect>),
    /// The first operand as it is
    Alias,
}

/// What of a step is the same for all sizes.
#[derive(Clone)]
pub struct StepTemplate {
    /// What it reads: for a program the arrays, then the numbers
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
    /// What it reads and gives, which plans for other sizes share
    pub template: Arc<StepTemplate>,
    /// What it does, over sizes of the plan
    pub work: Work,
    /// The slots it reads last
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

/// What to do, in order: a template arranged for some sizes, which may be open. All but the template is
/// worked out anew for other sizes.
#[cfg_attr(test, derive(Clone))]
pub struct Plan {
    target: &'static dyn Target,
    template: Arc<Template>,
    steps: Vec<Step>,
    inputs: SmallVec<[Type; 4]>,
    slots: Vec<Type>,
    memory: Memory,
    /// What is computed again to keep within a budget
    recomputed: Option<Recomputed>,
    /// Elements that a run reads and writes; none where steps may take longer than that says
    elements: Option<usize>,
}

/// What a plan is made for, and what it may do with its operands.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What it is made for
    pub target: &'static dyn Target,
    /// `(input, output)`: pairs of one type; the output may take the memory of the input, which
    /// nobody reads after the run
    pub donated: &'a [(u32, u32)],
    /// Every node is a step of its own
    pub unfused: bool,
}

impl Options<'_> {
    /// Plans for a target that write over nothing.
    pub fn new(target: &'static dyn Target) -> Options<'static> {
        Options { target, donated: &[], unfused: false }
    }
}

impl Plan {
    /// The plan that computes a graph's results. Calls without a kernel must have been expanded.
    pub fn new(graph: &Graph, target: &'static dyn Target) -> Result<Plan> {
        Plan::of(&graph.list(), Options::new(target))
    }

    /// The plan that computes a list's results and does its effects. Refuses what is beyond the target.
    pub fn of(list: &List, options: Options<'_>) -> Result<Plan> {
        let mut plan = group::plan(list, options)?;
        plan.building()?.donated = options.donated.into();
        if !options.unfused {
            let readers = product::Readers::new(&plan);
            plan.building()?.fed = plan.fed(&readers);
            plan.join_products(&readers, options.donated);
            plan.building()?.sets = block_fusion::sets(&plan);
        }
        plan.number()?;
        let found = plan.arrange(options, None);
        // Plans for other sizes start from the order of this one; one of known sizes has no others.
        let order = found.filter(|_| !plan.is_known()).map(|found| found.order);
        plan.building()?.follow(order.as_deref());
        plan.admit()?;
        plan.checked()?;
        Ok(plan)
    }

    /// Numbers what there is to compile.
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
                Work::BlockFusion(_) | Work::Op(_) | Work::Effect(_) | Work::Alias => {}
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

    /// The template, which no other plan has yet.
    fn building(&mut self) -> Result<&mut Template> {
        let shared = || error::internal("a template is built that other plans share");
        Arc::get_mut(&mut self.template).ok_or_else(shared)
    }

    /// Whether all sizes are numbers.
    fn is_known(&self) -> bool {
        self.slots.iter().chain(&self.inputs).all(|ty| ty.shape.is_known())
    }

    /// In tests and checked builds every plan has to keep the law.
    fn checked(&self) -> Result<()> {
        match cfg!(test) || cfg!(debug_assertions) {
            true => self.verify().map_err(|error| error.note(self.to_string())),
            false => Ok(()),
        }
    }

    /// What it is made for.
    pub fn target(&self) -> &'static dyn Target {
        self.target
    }

    /// What there is to compile.
    pub fn template(&self) -> &Arc<Template> {
        &self.template
    }

    /// The arrays that it holds.
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

    /// Where results lie.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What is computed again to keep within a budget, if anything is.
    pub fn recomputed(&self) -> Option<Recomputed> {
        self.recomputed
    }

    /// Whether this is faster than its nodes one by one: enough of them became one step. Between
    /// small arrays a saved dispatch hardly repays the set-up of a program, a saved pass over large
    /// ones does.
    pub fn pays(&self) -> bool {
        let Limits { large, setup, .. } = *self.target.limits();
        let saved = |step: &Step| match &step.work {
            Work::Group(group) => {
                let count = if group.shape.is_known() { group.shape.count() } else { 0 };
                group.len().saturating_sub(1) * (1 + count / large)
            }
            Work::Product(product) => product.groups().count(),
            Work::BlockFusion(fusion) => fusion.blocks() * fusion.steps().len(),
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => 0,
        };
        self.steps.iter().map(saved).sum::<usize>() >= setup
    }

    /// Whether no shape could make it pay: nothing was grouped.
    pub fn groups_nothing(&self) -> bool {
        let grouped = |step: &Step| match &step.work {
            Work::Group(group) => group.len() > 1,
            Work::Product(_) | Work::BlockFusion(_) => true,
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => false,
        };
        !self.steps.iter().any(grouped)
    }

    /// Whether a run takes little time: few steps, over at most so many elements, none of which calls
    /// Python or goes on for longer.
    pub fn is_light(&self, elements: usize) -> bool {
        self.elements.is_some_and(|count| count <= elements)
    }

    /// What [`Plan::is_light`] compares.
    fn count_elements(&self) -> Option<usize> {
        let is_plain = |step: &Step| match &step.work {
            Work::Op(op) => !matches!(op, Op::Contract(_) | Op::Conv(..)),
            Work::Group(..) | Work::Alias => true,
            Work::Product(_) | Work::BlockFusion(_) | Work::ControlFlow(_) | Work::Effect(_) => {
                false
            }
        };
        if self.steps.len() > LIGHT || !self.is_known() || !self.steps.iter().all(is_plain) {
            return None;
        }
        Some(self.slots.iter().chain(&self.inputs).map(|ty| ty.shape.count()).sum())
    }

    /// Whether a step reads an input, or it is a result.
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
