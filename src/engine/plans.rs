//! Plans of composites that run without being recorded: planned once, run often.
//!
//! The first call of a formula with operands of some types runs it op by op and leaves a mark; the
//! second makes a plan, and later ones run it. Floats are operands of the plan, unless the formula
//! looks at their values; integers and truth values, which decide sizes and dtypes, are part of the
//! key. A formula of which no two elementwise nodes run as one keeps running op by op.
//!
//! A plan gives the bits of its nodes one by one, so nobody can tell which way a call went.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::executors::{self, Device, Planned};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::graph::Graph;
use crate::graph::numbers::evaluate;
use crate::ops::declare::{Arguments, Attr, Composite, Outputs};
use crate::ops::emit::{Arg, Expr};
use crate::ops::number::Number;
use crate::ops::op::{self, Type};
use crate::ops::rule::Rule;
use crate::passes::derived::derived;
use crate::schedule::Plan;
use crate::shape::{Bindings, Shape};
use crate::site::Origin;

/// Formulas known at a time.
const CAPACITY: usize = 4096;

/// A composite of which this many calls have no plan, and none has one, is not asked about again.
const DULL: u32 = 16;

/// Which formula of a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The body
    Body,
    /// The gradient by these operands, as bits; its operands are the call's, its results, and their
    /// cotangents
    #[allow(missing_docs)]
    Rules { wanted: u64, results: u32, given: u64 },
}

/// An operand of a formula.
#[derive(Clone, Copy)]
pub enum Given<'a> {
    /// An array
    Array(&'a Array),
    /// The type of a value that the formula does not read
    Type(&'a Type),
    /// A number
    Scalar(Scalar),
}

impl<'a> Given<'a> {
    fn ty(self) -> Option<(DType, &'a Shape)> {
        match self {
            Given::Array(array) => Some((array.dtype, array.shape())),
            Given::Type(ty) => Some((ty.dtype, &ty.shape)),
            Given::Scalar(_) => None,
        }
    }
}

/// A call of a formula.
#[derive(Clone, Copy)]
pub struct Formula<'a> {
    /// The composite
    pub composite: &'static Composite,
    /// Its attributes
    pub attributes: &'a [Attr],
    /// Which of its formulas
    pub part: Part,
    /// The operands
    pub operands: &'a [Given<'a>],
}

impl Formula<'_> {
    /// Whether it is a gradient that is worked out first: any plan pays.
    fn is_derived(&self) -> bool {
        matches!(self.part, Part::Rules { .. }) && !self.composite.has_vjp()
    }
}

/// A plan with the numbers it reads.
struct Made {
    planned: Planned,
    /// Of which the first are the floats among the operands
    numbers: Vec<Number>,
}

/// An operand in a key.
#[derive(Debug)]
enum Place {
    /// A tensor of a type; whether its data is there
    Tensor(Type, bool),
    /// This number
    Exactly(Scalar),
    /// Any float
    Float,
}

impl Place {
    fn takes(&self, given: Given<'_>) -> bool {
        match (self, given) {
            (Place::Tensor(ty, present), given) => {
                *present == matches!(given, Given::Array(_))
                    && given
                        .ty()
                        .is_some_and(|(dtype, shape)| dtype == ty.dtype && shape.equals(&ty.shape))
            }
            (Place::Exactly(want), Given::Scalar(value)) => same_bits(*want, value),
            (Place::Float, Given::Scalar(value)) => value.is_float(),
            _ => false,
        }
    }
}

fn same_bits(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// What is known of a formula on operands of some types.
enum State {
    /// It was called once
    Seen,
    /// A plan does not pay
    Plain,
    /// Its plan
    Planned(Arc<Made>),
    /// It looks at these floats (by operand): see the entries that have their values
    ByValue(Floats),
}

/// Some of the floats among the operands, by position.
type Floats = SmallVec<[u32; 4]>;

/// What to do about a call.
enum Answer {
    /// Run it op by op
    Plain,
    /// Run the plan
    Run(Arc<Made>),
    /// Make a plan, for these floats as they are
    Make(Floats),
}

struct Known {
    composite: &'static Composite,
    attributes: Box<[Attr]>,
    part: Part,
    places: SmallVec<[Place; 6]>,
    state: State,
}

impl Known {
    fn is(&self, formula: &Formula<'_>) -> bool {
        std::ptr::eq(self.composite, formula.composite)
            && self.part == formula.part
            && *self.attributes == *formula.attributes
            && self.places.len() == formula.operands.len()
            && self.places.iter().zip(formula.operands).all(|(place, &given)| place.takes(given))
    }
}

#[derive(Default)]
struct Cache {
    known: FxHashMap<u64, SmallVec<[Known; 1]>>,
    count: usize,
    /// By composite: verdicts that a plan does not pay, and whether any pays
    verdicts: FxHashMap<usize, (u32, bool)>,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Default::default);

fn address(composite: &'static Composite) -> usize {
    std::ptr::from_ref(composite).addr()
}

/// The hash of everything but the values of floats.
fn hash(formula: &Formula<'_>) -> u64 {
    let mut state = FxHasher::default();
    address(formula.composite).hash(&mut state);
    formula.part.hash(&mut state);
    formula.attributes.hash(&mut state);
    for given in formula.operands {
        match (given.ty(), given) {
            (Some((dtype, shape)), _) => (dtype, shape).hash(&mut state),
            (None, Given::Scalar(Scalar::Int(i))) => i.hash(&mut state),
            _ => 0u8.hash(&mut state),
        }
    }
    state.finish()
}

impl Cache {
    fn answer(&mut self, key: u64, formula: &Formula<'_>) -> Answer {
        let mut exact = Floats::new();
        let bucket = self.known.get(&key).map_or(&[][..], |bucket| bucket.as_slice());
        for known in bucket.iter().filter(|known| known.is(formula)) {
            match &known.state {
                State::Seen => return Answer::Make(exact),
                State::Plain => return Answer::Plain,
                State::Planned(plan) => return Answer::Run(plan.clone()),
                State::ByValue(floats) => exact = floats.clone(),
            }
        }
        self.insert(key, formula, &exact, State::Seen);
        Answer::Plain
    }

    /// Notes what came of making a plan: `looked` are floats that turned out to matter.
    fn settle(
        &mut self,
        key: u64,
        formula: &Formula<'_>,
        exact: &Floats,
        looked: Floats,
        state: State,
    ) {
        let (plain, pays) = self.verdicts.entry(address(formula.composite)).or_default();
        match state {
            State::Planned(_) => *pays = true,
            State::Seen | State::Plain | State::ByValue(_) => *plain += 1,
        }
        let bucket = self.known.entry(key).or_default();
        let is_mark = |known: &Known| matches!(known.state, State::Seen) && known.is(formula);
        let mark = bucket.iter_mut().find(|known| is_mark(known));
        match (mark, looked.is_empty()) {
            (Some(mark), true) => mark.state = state,
            (Some(mark), false) => {
                let all: Floats = exact.iter().copied().chain(looked).collect();
                mark.state = State::ByValue(all.clone());
                self.insert(key, formula, &all, state);
            }
            (None, _) => {}
        }
    }

    fn insert(&mut self, key: u64, formula: &Formula<'_>, exact: &[u32], state: State) {
        if self.count >= CAPACITY {
            *self = Cache::default();
        }
        self.count += 1;
        let place = |(i, given): (usize, &Given<'_>)| match *given {
            Given::Array(array) => {
                Place::Tensor(Type::new(array.dtype, array.shape().clone()), true)
            }
            Given::Type(ty) => Place::Tensor(ty.clone(), false),
            Given::Scalar(value) if value.is_float() && !exact.contains(&(i as u32)) => {
                Place::Float
            }
            Given::Scalar(value) => Place::Exactly(value),
        };
        self.known.entry(key).or_default().push(Known {
            composite: formula.composite,
            attributes: formula.attributes.into(),
            part: formula.part,
            places: formula.operands.iter().enumerate().map(place).collect(),
            state,
        });
    }
}

/// Runs a formula by its plan. `None` where it has none: the caller runs it op by op.
pub fn run(formula: &Formula<'_>) -> Result<Option<SmallVec<[Array; 2]>>> {
    let (key, answer) = {
        let mut cache = CACHE.lock();
        let dull = cache.verdicts.get(&address(formula.composite));
        let is_dull = dull.is_some_and(|&(plain, pays)| plain >= DULL && !pays);
        if is_dull && !formula.is_derived() {
            return Ok(None);
        }
        let key = hash(formula);
        (key, cache.answer(key, formula))
    };
    match answer {
        Answer::Plain => Ok(None),
        Answer::Run(plan) => run_plan(&plan, formula).map(Some),
        Answer::Make(exact) => {
            let (looked, plan) = make(formula, &exact);
            let (state, plan) = match plan.map(Arc::new) {
                Some(plan) => (State::Planned(plan.clone()), Some(plan)),
                None => (State::Plain, None),
            };
            CACHE.lock().settle(key, formula, &exact, looked, state);
            plan.map(|plan| run_plan(&plan, formula)).transpose()
        }
    }
}

/// Runs a plan. Every float has a number in it, whether or not it uses that.
fn run_plan(made: &Made, formula: &Formula<'_>) -> Result<SmallVec<[Array; 2]>> {
    let present = formula.operands.iter().find_map(|given| match given {
        Given::Array(array) => Some(*array),
        Given::Type(_) | Given::Scalar(_) => None,
    });
    let mut arrays: SmallVec<[&Array; 6]> = SmallVec::new();
    let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
    for given in formula.operands {
        match *given {
            Given::Array(array) => arrays.push(array),
            // No step reads it, so any array may stand there.
            Given::Type(_) => arrays.extend(present),
            Given::Scalar(value) if value.is_float() => numbers.push(value),
            Given::Scalar(_) => {}
        }
    }
    if made.numbers.len() > numbers.len() {
        let all = evaluate(&made.numbers, &numbers, &Bindings::default())?;
        return made.planned.run(&arrays, &all);
    }
    made.planned.run(&arrays, &numbers)
}

/// The floats a formula looks at besides `exact`, and its plan, if that pays.
fn make(formula: &Formula<'_>, exact: &Floats) -> (Floats, Option<Made>) {
    let mut looked = Floats::new();
    loop {
        let constants: Floats = exact.iter().chain(&looked).copied().collect();
        let graph = Graph::keeping(|x| executors::executor(Device::Cpu).has_kernel(x));
        let (floats, built) = trace(formula, &constants, &graph);
        let more: Floats = graph.looked().iter().map(|&i| floats[i as usize]).collect();
        if more.is_empty() {
            let plan =
                built.then(|| Plan::new(&graph, executors::target(Device::Cpu)).ok()).flatten();
            if formula.part == Part::Body && plan.as_ref().is_some_and(Plan::groups_nothing) {
                formula.composite.plain.store(true, Ordering::Relaxed);
            }
            let pays = |plan: &Plan| plan.pays() || formula.is_derived();
            let plan = plan.filter(|plan| pays(plan) && !reads_absent(plan, formula));
            let numbers = graph.into_list().numbers;
            let planned = plan.and_then(|plan| Planned::new(Device::Cpu, plan).ok());
            return (looked, planned.map(|planned| Made { planned, numbers }));
        }
        looked.extend(more);
        looked.sort_unstable();
        looked.dedup();
    }
}

/// Whether a plan reads a value of which only the type is there.
fn reads_absent(plan: &Plan, formula: &Formula<'_>) -> bool {
    let values = formula.operands.iter().filter(|given| !matches!(given, Given::Scalar(_)));
    values
        .enumerate()
        .any(|(i, given)| matches!(given, Given::Type(_)) && plan.reads_input(i as u32))
}

/// Builds a formula's graph: the operand behind each numeric input, and whether it could be built.
fn trace(formula: &Formula<'_>, constants: &Floats, graph: &Graph) -> (Floats, bool) {
    let mut floats = Floats::new();
    let mut args: SmallVec<[Arg; 6]> = SmallVec::new();
    for (i, given) in formula.operands.iter().enumerate() {
        args.push(match *given {
            Given::Array(array) => {
                Arg::Node(graph.input(Type::new(array.dtype, array.shape().clone())))
            }
            Given::Type(ty) => Arg::Node(graph.input(ty.clone())),
            Given::Scalar(value) if value.is_float() => {
                floats.push(i as u32);
                let number = graph.number();
                if constants.contains(&(i as u32)) { Arg::Number(value.into()) } else { number }
            }
            Given::Scalar(value) => Arg::Number(value.into()),
        });
    }
    // The plan is for any caller, so nothing in it belongs to a call around this one.
    let _alone = Origin::leave();
    let built = graph.build(|| match formula.part {
        Part::Body => formula.composite.formula(&Arguments {
            cx: graph,
            attributes: formula.attributes,
            operands: &args,
        }),
        Part::Rules { wanted, results, given } => {
            rules(formula, &args, wanted, (results, given), graph)
        }
    });
    let is_whole = built.is_ok() && !graph.outputs().is_empty();
    (floats, is_whole)
}

/// Runs the gradient rules of a composite with so many results, of which some have a cotangent.
fn rules<'g>(
    formula: &Formula<'_>,
    args: &[Arg],
    wanted: u64,
    (results, given): (u32, u64),
    graph: &'g Graph,
) -> Outputs<'g> {
    let exprs: SmallVec<[Expr<'g>; 6]> = args.iter().map(|&arg| Expr::new(graph, arg)).collect();
    let (results, count) = (results as usize, given.count_ones() as usize);
    let n = args.len() - results - count;
    let call = Arguments { cx: graph, attributes: formula.attributes, operands: &args[..n] };
    let (values, mut cotangents) = (&exprs[n..n + results], exprs[n + results..].iter().copied());
    let next = |k: usize| if given & 1 << k != 0 { cotangents.next() } else { None };
    let cotangents: SmallVec<[Option<Expr<'g>>; 2]> = (0..results).map(next).collect();
    let rule = Rule::new(&exprs[..n], values, &cotangents);
    let wanted: SmallVec<[bool; 4]> = (0..n).map(|i| wanted & 1 << i != 0).collect();
    match formula.is_derived() {
        false => {
            formula.composite.cotangents(&rule, &call, &wanted).into_iter().flatten().collect()
        }
        true => {
            let attributes = formula.attributes.into();
            let call = op::Call { composite: formula.composite, attributes };
            derived(&call, &rule, &wanted).into_iter().flatten().collect()
        }
    }
}
