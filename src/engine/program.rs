//! Programs: lists that run, with their plans.
//!
//! A program keeps the list as it was traced, and makes a plan from it by passes, expansion of
//! composites, and scheduling. Programs are shared by threads. Plans are made once for a number of
//! threads.

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::check::{self, Held};
use super::config::{self, Check, Config};
use super::executors::{self, Device, Planned};
use super::{interpret, site};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::executor::Input;
use crate::graph::numbers::evaluate;
use crate::graph::replay::{Calls, logged};
use crate::graph::{Graph, Kind, List, Node, admit, admit_found, live};
use crate::ops::emit::{Arg, Id};
use crate::passes::expand::has_calls;
use crate::passes::{Report, expand_for, inlined, pipeline, report, reported, without_stops};
use crate::schedule::{Options, Plan};
use crate::shape::{Bindings, Dim, Scope};
use crate::target::Target;
use crate::watch;

/// The most plans for different sizes that a program keeps.
const PLANS: usize = 64;

/// The most rematerialised lists that a program keeps to stay within its budget.
const TIGHTER: usize = 8;

/// A list that runs.
pub struct Program {
    list: Arc<List>,
    /// The list before it was frozen, if it was
    source: Option<Arc<List>>,
    config: Config,
    /// The device that it runs on
    device: Device,
    optimized: OnceLock<Optimized>,
    /// The symbols among its sizes
    symbols: Vec<Dim>,
    /// The scope of these symbols, which passes ask about them
    scope: Scope,
    /// Results that may take the memory of inputs, by position: `(input, result)`
    donated: Vec<(u32, u32)>,
    /// By input: whether its memory may be taken
    donates: Vec<bool>,
    plans: Mutex<Plans>,
}

/// The plans of a program, which are made for as many threads as there are.
#[derive(Default)]
struct Plans {
    /// How many blocks run at a time, see [`Target::lanes`]
    lanes: usize,
    /// For all sizes
    template: Option<Arc<Planned>>,
    /// Rematerialised lists that keep within the budget, latest last
    tighter: Vec<Tighter>,
    /// By the sizes of the symbols, latest last
    sized: Vec<(Sizes, Arc<Planned>)>,
}

type Sizes = SmallVec<[usize; 4]>;

/// A list with rematerialised nodes, made for some sizes, with its plan for all sizes.
#[derive(Clone)]
struct Tighter {
    sizes: Sizes,
    list: Arc<List>,
    template: Arc<Planned>,
}

/// The result of the passes.
#[derive(Clone)]
pub struct Optimized {
    /// The list after the passes
    pub list: List,
    /// The list with its composites expanded, where no pass expanded them: this list is planned
    /// instead
    expanded: Option<List>,
}

impl Optimized {
    /// The list that is planned.
    fn planned(&self) -> &List {
        self.expanded.as_ref().unwrap_or(&self.list)
    }
}

impl Program {
    /// The program of a list with these symbols for a device, compiled with the settings of this
    /// thread.
    pub fn new(device: Device, list: List, symbols: Vec<Dim>, scope: Scope) -> Program {
        let (config, optimized) = (config::current(), OnceLock::new());
        let (list, source) = (list.into(), None);
        let (donated, donates) = (Vec::new(), Vec::new());
        Program {
            list,
            source,
            config,
            device,
            optimized,
            symbols,
            scope,
            donated,
            donates,
            plans: Mutex::default(),
        }
    }

    /// The same, whose list is another one that was frozen.
    pub fn frozen_from(self, source: Arc<List>) -> Program {
        Program { source: Some(source), ..self }
    }

    /// The program of another list over the same sizes.
    pub fn with_list(&self, list: List) -> Program {
        let config = self.config.clone();
        let (symbols, scope) = (self.symbols.clone(), self.scope.clone());
        Program { config, ..Program::new(self.device, list, symbols, scope) }
    }

    /// The same, where results may take the memory of inputs: `(input, result)` by position.
    pub fn donating(self, donated: Vec<(u32, u32)>) -> Program {
        if !self.config.passes.is_on("donate") {
            return self;
        }
        let mut donates = vec![false; self.list.inputs().count()];
        donated.iter().for_each(|&(input, _)| donates[input as usize] = true);
        Program { donated, donates, ..self }
    }

    /// Whether a result may take the memory of an input.
    pub fn donates(&self, input: u32) -> bool {
        self.donates.get(input as usize).copied().unwrap_or(false)
    }

    /// The device that it runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The scope of its symbols.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The list as it was traced, and then frozen, if it is: what a run computes to the bit.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// The list as it was traced.
    pub fn source(&self) -> &List {
        self.source.as_deref().unwrap_or(&self.list)
    }

    /// The list as it was traced, without gradient stops, and without calls that exist for their
    /// rules. A program needs neither: all its gradients have been taken, see `cut`.
    fn unmarked(&self) -> Result<List> {
        without_stops(inlined((*self.list).clone()))
    }

    /// The list after the passes.
    pub fn optimized(&self) -> Result<&Optimized> {
        if let Some(optimized) = self.optimized.get() {
            return Ok(optimized);
        }
        let work = || {
            let executor = executors::executor(self.device);
            let list = pipeline(self.unmarked()?, &self.config.passes, executor)?;
            let kernels = |composite| executor.has_kernel(composite);
            let expanded = match has_calls(&list, &kernels) {
                true => Some(expand_for(&Graph::from_list(list.clone()), &kernels)?.list().clone()),
                false => None,
            };
            Ok(Optimized { list, expanded })
        };
        let optimized = self.scope.run(work)?;
        Ok(self.optimized.get_or_init(|| optimized))
    }

    /// The plans made so far, none of which is left where the number of threads has changed.
    fn plans(&self) -> MutexGuard<'_, Plans> {
        let (mut plans, lanes) = (self.plans.lock(), executors::target(self.device).lanes());
        if plans.lanes != lanes {
            let old = std::mem::replace(&mut *plans, Plans { lanes, ..Plans::default() });
            // Plans may hold what is Python's, so they go out of the lock.
            MutexGuard::unlocked(&mut plans, || drop(old));
        }
        plans
    }

    /// The plan for sizes of the symbols, if it was made.
    fn known(&self, sizes: &[usize]) -> Option<Arc<Planned>> {
        let plans = self.plans();
        let known = plans.sized.iter().rev().find(|(known, _)| known.as_slice() == sizes);
        known.map(|(_, planned)| planned.clone())
    }

    /// Whether a run takes little time, see [`Plan::is_light`]. False before there is a plan.
    pub fn is_light(&self, sizes: &[usize], elements: usize) -> bool {
        self.known(sizes).is_some_and(|known| known.plan.is_light(elements))
    }

    /// The plan for sizes of the symbols, in their order. It is made on the first call.
    pub fn plan(&self, sizes: &[usize]) -> Result<Arc<Plan>> {
        Ok(self.planned(sizes)?.plan.clone())
    }

    /// The same plan, with its executable.
    fn planned(&self, sizes: &[usize]) -> Result<Arc<Planned>> {
        if let Some(planned) = self.known(sizes) {
            return Ok(planned);
        }
        // Planning makes sizes of its own, such as counts of elements.
        let _keeping = self.scope.keeper().enter();
        let template = &self.template()?;
        let mut planned = self.resized(template, sizes)?;
        if let Some(budget) = self.config.budget
            && planned.plan.peak_bytes() > budget
        {
            planned = self.within(template, sizes, budget)?;
            planned.plan.check_budget(budget, &site::describe)?;
        }
        if self.config.check.is_on() {
            planned.plan.verify()?;
        }
        let mut plans = self.plans();
        if plans.sized.len() >= PLANS {
            plans.sized.remove(0);
        }
        plans.sized.push((SmallVec::from_slice(sizes), planned.clone()));
        Ok(planned)
    }

    fn resized(&self, template: &Arc<Planned>, sizes: &[usize]) -> Result<Arc<Planned>> {
        if self.symbols.is_empty() {
            return Ok(template.clone());
        }
        let bound = self.bind(sizes);
        let plan = template.plan.resized(&|dim| bound.resolve(dim))?;
        Ok(Arc::new(template.with_plan(plan)))
    }

    /// The plan for sizes that exceed the budget unless some values are computed again.
    fn within(
        &self,
        template: &Arc<Planned>,
        sizes: &[usize],
        budget: usize,
    ) -> Result<Arc<Planned>> {
        if !self.config.passes.is_on("remat") {
            return self.resized(template, sizes);
        }
        let tighter = self.plans().tighter.clone();
        for known in &tighter {
            let planned = self.resized(&known.template, sizes)?;
            // For these very sizes nothing better was found before.
            if planned.plan.peak_bytes() <= budget || known.sizes.as_slice() == sizes {
                return Ok(planned);
            }
        }
        let (list, bound) = (self.optimized()?.planned(), self.bind(sizes));
        let options = self.options();
        let within = Plan::within(list, options, &|dim| bound.resolve(dim), budget)?;
        let (list, template, plan) = within.parts();
        let template = Arc::new(Planned::new(self.device, template)?);
        let planned = Arc::new(template.with_plan(plan));
        let mut plans = self.plans();
        if plans.tighter.len() >= TIGHTER {
            plans.tighter.remove(0);
        }
        plans.tighter.push(Tighter { sizes: sizes.into(), list: list.into(), template });
        Ok(planned)
    }

    /// The reports of the passes, which run once more for it. Of rematerialisation the latest is
    /// reported.
    pub fn reports(&self) -> Result<Vec<Report>> {
        let optimized = self.optimized()?;
        let executor = executors::executor(self.device);
        let work = || reported(self.unmarked()?, &self.config.passes, executor);
        let (_, mut reports) = self.scope.run(work)?;
        if let Some(source) = &self.source {
            reports.insert(0, report("freeze", source, &self.list));
        }
        if let Some(tighter) = self.plans().tighter.last() {
            reports.push(report("remat", optimized.planned(), &tighter.list));
        }
        Ok(reports)
    }

    /// The plan for all sizes: its steps and groups. Other sizes only change the memory.
    fn template(&self) -> Result<Arc<Planned>> {
        if let Some(template) = &self.plans().template {
            return Ok(template.clone());
        }
        let list = self.optimized()?.planned();
        let spoiled = self.config.passes.spoiled_for_schedule(list);
        let list = spoiled.as_ref().unwrap_or(list);
        // Planned outside the scope: groups are found in tables, where sizes are compared as they
        // are written.
        let plan = Plan::of(list, self.options())?;
        let planned = Arc::new(Planned::new(self.device, plan)?);
        Ok(self.plans().template.get_or_insert(planned).clone())
    }

    /// The list of some of its nodes as results, after the passes, with composites expanded of which
    /// a target has no kernel.
    pub(super) fn list_for(&self, target: &dyn Target, outputs: Vec<Id>) -> Result<List> {
        let work = || {
            let mut list = self.unmarked()?;
            list.outputs = outputs;
            let kernels = |composite| target.has_kernel(composite);
            let expand = |list: List| -> Result<List> {
                match has_calls(&list, &kernels) {
                    true => Ok(expand_for(&Graph::from_list(list), &kernels)?.list().clone()),
                    false => Ok(list),
                }
            };
            expand(pipeline(expand(list)?, &self.config.passes, executors::executor(Device::Cpu))?)
        };
        self.scope.run(work)
    }

    /// The options of plans.
    fn options(&self) -> Options<'_> {
        let unfused = !self.config.passes.is_on("fuse");
        Options { target: executors::target(self.device), donated: &self.donated, unfused }
    }

    /// The symbols bound to sizes.
    pub fn bind(&self, sizes: &[usize]) -> Bindings {
        Bindings::of(self.symbols.iter().copied().zip(sizes.iter().map(|&n| Dim::new(n))))
    }

    /// Computes the results for sizes of the symbols and values of the numeric inputs. Where values
    /// are checked on the way, the list runs node by node as it was traced.
    pub fn run(
        &self,
        inputs: &[&Array],
        sizes: &[usize],
        given: &[Scalar],
    ) -> Result<SmallVec<[Array; 2]>> {
        if watch::checking() {
            return interpret::run(self.device, &self.list, inputs, &self.bind(sizes), given);
        }
        let planned = self.planned(sizes)?;
        admit("call", planned.plan.inputs().iter(), inputs.iter().copied())?;
        let numbers = self.numbers(sizes, given)?;
        if !self.compares()? {
            return planned.run(inputs, &numbers);
        }
        let (found, calls) = logged(|| planned.run(inputs, &numbers))?;
        let inputs: Vec<Array> = inputs.iter().map(|&x| x.clone()).collect();
        self.held(&inputs, sizes, given, calls).check(&found)?;
        Ok(found)
    }

    /// The same; the memory of given inputs may become that of results.
    pub fn run_with(
        &self,
        inputs: &mut [Input<'_>],
        sizes: &[usize],
        given: &[Scalar],
    ) -> Result<SmallVec<[Array; 2]>> {
        if watch::checking() {
            let lent = inputs.iter().map(Input::array).collect::<Result<Vec<&Array>>>()?;
            return interpret::run(self.device, &self.list, &lent, &self.bind(sizes), given);
        }
        let (planned, numbers) = (self.planned(sizes)?, self.numbers(sizes, given)?);
        admit_found("call", planned.plan.inputs().iter(), inputs.iter().map(Input::array))?;
        if !self.compares()? {
            return planned.run_with(inputs, &numbers);
        }
        let copies = check::copies(inputs)?;
        let (found, calls) = logged(|| planned.run_with(inputs, &numbers))?;
        if let Err(error) = self.held(&copies, sizes, given, calls).check(&found) {
            for (input, copy) in inputs.iter_mut().zip(copies) {
                if let Input::Given(place @ None) = input {
                    *place = Some(copy);
                }
            }
            return Err(error);
        }
        Ok(found)
    }

    /// Whether every run is compared with the list.
    pub fn is_checked(&self) -> bool {
        self.config.check.is_on()
    }

    /// Whether results are compared with those of the list, which have the same bits on some devices
    /// only.
    fn compares(&self) -> Result<bool> {
        let keeps_bits = executors::target(self.device).keeps_bits();
        match self.config.check {
            Check::Reference if !keeps_bits => Err(error::not_compared("call", self.device)),
            Check::Off => Ok(false),
            Check::List | Check::Reference => Ok(keeps_bits),
        }
    }

    fn held<'a>(
        &'a self,
        inputs: &'a [Array],
        sizes: &[usize],
        given: &'a [Scalar],
        calls: Calls,
    ) -> Held<'a> {
        let options = &self.config.passes;
        let (list, scope, sizes) = (&*self.list, &self.scope, self.bind(sizes));
        let by_reference = self.config.check == Check::Reference;
        let device = self.device;
        Held { list, options, scope, device, inputs, sizes, given, calls, by_reference }
    }

    fn numbers(&self, sizes: &[usize], given: &[Scalar]) -> Result<Vec<Scalar>> {
        let table = &self.optimized()?.planned().numbers;
        match table.is_empty() {
            true => Ok(Vec::new()),
            false => evaluate(table, given, &self.bind(sizes)),
        }
    }
}

/// A function with its gradient: the forward program, which also gives the residuals, and the
/// backward program, which reads them.
pub struct Differentiable {
    /// The results, then the residuals
    pub forward: Program,
    /// `(residuals…, cotangents of results…)`: the cotangents of inputs
    pub backward: Program,
    /// How many residuals there are
    pub residuals: usize,
}

/// Moves the results of early control flow that only late nodes read to the front part of the list.
/// Returns the list, the count of nodes in that part, and the new ids.
fn with_early_parts(list: &List, count: usize) -> (List, usize, Vec<Id>) {
    let is_early = |node: &Node| {
        matches!(node.kind, Kind::Result(_)) && node.reads().all(|id| (id.0 as usize) < count)
    };
    let (parts, rest): (Vec<usize>, Vec<usize>) =
        (count..list.nodes.len()).partition(|&i| is_early(&list.nodes[i]));
    let order: Vec<usize> = (0..count).chain(parts.iter().copied()).chain(rest).collect();
    let mut names = vec![Id(0); order.len()];
    let mut nodes = Vec::with_capacity(order.len());
    for (place, &i) in order.iter().enumerate() {
        names[i] = Id(place as u32);
        let mut node = list.nodes[i].clone();
        for arg in &mut node.args {
            if let Arg::Node(id) = arg {
                *id = names[id.0 as usize];
            }
        }
        nodes.push(node);
    }
    // Named nodes and results were before the cut already, so their ids stay.
    (List { nodes, ..list.clone() }, count + parts.len(), names)
}

/// Cuts a list in two: the first `count` nodes, and the nodes after them, which compute
/// `gradients`. The `seeds` are inputs that come after the cut.
pub fn cut(
    device: Device,
    list: &List,
    symbols: &[Dim],
    scope: &Scope,
    count: usize,
    seeds: &[Id],
    gradients: &[Id],
) -> Differentiable {
    let (list, count, names) = with_early_parts(list, count);
    let list = &list;
    let renamed = |ids: &[Id]| -> Vec<Id> { ids.iter().map(|id| names[id.0 as usize]).collect() };
    let (seeds, gradients) = (&renamed(seeds), &renamed(gradients));
    let is_late = |id: Id| id.0 as usize >= count;
    let mut residuals: Vec<Id> = Vec::new();
    let mut place: Vec<Option<Id>> = vec![None; list.nodes.len()];
    let live = live(&list.nodes, gradients);
    // What is constant both parts have by themselves.
    let mut constants: Vec<Id> = Vec::new();
    let mut need = |id: Id| {
        if is_late(id) || place[id.0 as usize].is_some() {
            return;
        }
        let of = match list.node(id).kind {
            Kind::Constant(_) => &mut constants,
            Kind::Input
            | Kind::Op(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => &mut residuals,
        };
        place[id.0 as usize] = Some(Id(of.len() as u32));
        of.push(id);
    };
    for (i, node) in list.nodes.iter().enumerate().skip(count) {
        if live[i] {
            for arg in &node.args {
                if let Arg::Node(id) = arg {
                    need(*id);
                }
            }
        }
    }
    gradients.iter().for_each(|id| need(*id));
    let mut backward = List { numbers: list.numbers.clone(), ..List::default() };
    for id in residuals.iter().chain(seeds) {
        let mut node = list.node(*id).clone();
        node.kind = Kind::Input;
        node.args.clear();
        place[id.0 as usize] = Some(Id(backward.nodes.len() as u32));
        backward.nodes.push(node);
    }
    for id in constants {
        place[id.0 as usize] = Some(Id(backward.nodes.len() as u32));
        backward.nodes.push(list.node(id).clone());
    }
    let moved = |id: Id, place: &[Option<Id>]| {
        place[id.0 as usize].unwrap_or_else(|| unreachable!("%{} is not there yet", id.0))
    };
    for (i, node) in list.nodes.iter().enumerate().skip(count) {
        if !live[i] || place[i].is_some() {
            continue;
        }
        let mut node = node.clone();
        for arg in &mut node.args {
            if let Arg::Node(id) = arg {
                *id = moved(*id, &place);
            }
        }
        place[i] = Some(Id(backward.nodes.len() as u32));
        backward.nodes.push(node);
    }
    backward.outputs = gradients.iter().map(|id| moved(*id, &place)).collect();
    let mut forward = list.until(count);
    forward.names.retain(|id, _| !is_late(*id));
    let kept = residuals.len();
    forward.outputs.extend(residuals);
    Differentiable {
        forward: Program::new(device, forward, symbols.to_vec(), scope.clone()),
        backward: Program::new(device, backward, symbols.to_vec(), scope.clone()),
        residuals: kept,
    }
}
