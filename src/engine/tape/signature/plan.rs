//! Plans of composites: formulas that run without being recorded, scheduled once and run often.

use smallvec::SmallVec;

use super::{Given, Part, is_set};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::engine::executors::{self, Device};
use crate::engine::pending;
use crate::error::Result;
use crate::graph::numbers::evaluate;
use crate::graph::{Graph, Kind, List};
use crate::ops::declare::{Arguments, Outputs};
use crate::ops::emit::{Arg, Expr, Id};
use crate::ops::number::Number;
use crate::ops::op::{Call, Type};
use crate::ops::rule::{Cotangents, Rule};
use crate::passes::derived::{Derivation, derived};
use crate::passes::{Options, alone};
use crate::schedule::Plan;
use crate::shape::Bindings;
use crate::site::Origin;

/// A plan with the numbers it reads.
pub(super) struct Planned {
    plan: executors::Planned,
    /// Of which the first are the floats among the operands
    numbers: Vec<Number>,
}

/// Floats at which a formula looked, as bits.
pub(super) struct Looked(pub(super) u64);

/// A plan, if one pays; or the floats that have to be part of the signature first.
type Found = std::result::Result<Option<Planned>, Looked>;

/// The gradient rules of a call with so many results.
pub(super) struct Rules<'a> {
    pub(super) part: Part,
    pub(super) results: usize,
    pub(super) derivation: Option<&'a Derivation>,
}

impl Planned {
    /// Computes the results. Every float has a number in the plan, whether or not that uses it.
    pub(super) fn run(&self, given: &[Given<'_>]) -> Result<SmallVec<[Array; 2]>> {
        let present = given.iter().find_map(|given| match given {
            Given::Array(array) => Some(*array),
            Given::Type(_) | Given::Scalar(_) => None,
        });
        let mut arrays: SmallVec<[&Array; 6]> = SmallVec::new();
        let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
        for given in given {
            match *given {
                Given::Array(array) => arrays.push(array),
                // No step reads it, so any array may stand there.
                Given::Type(_) => arrays.extend(present),
                Given::Scalar(value) if value.is_float() => numbers.push(value),
                Given::Scalar(_) => {}
            }
        }
        if self.numbers.len() > numbers.len() {
            numbers =
                evaluate(&self.numbers, &numbers, &Bindings::default())?.into_iter().collect();
        }
        match pending::plan(&self.plan.plan, &arrays, &numbers)? {
            Some(later) => Ok(later),
            None => self.plan.run(&arrays, &numbers),
        }
    }
}

/// The plan of a body whose floats are fixed where `exact` says so.
pub(super) fn of_body(call: &Call, given: &[Given<'_>], exact: u64) -> Found {
    let pays = |plan: &Plan, dropped| {
        if dropped == 0 && plan.groups_nothing() {
            call.composite.payoff.body.never();
        }
        plan.pays(dropped)
    };
    let formula = Formula { call, rules: None };
    made(&formula, given, exact, pays)
}

/// The same of gradient rules.
pub(super) fn of_rules(call: &Call, rules: Rules<'_>, given: &[Given<'_>], exact: u64) -> Found {
    // A gradient that is worked out first is worth any plan.
    let is_derived = !call.composite.has_vjp();
    let formula = Formula { call, rules: Some(rules) };
    made(&formula, given, exact, |plan, dropped| is_derived || plan.pays(dropped))
}

/// A body, or gradient rules.
struct Formula<'a> {
    call: &'a Call,
    rules: Option<Rules<'a>>,
}

impl Formula<'_> {
    fn run<'g>(&self, graph: &'g Graph, operands: &[Arg]) -> Outputs<'g> {
        let (composite, attributes) = (self.call.composite, &self.call.attributes);
        match &self.rules {
            None => composite.formula(&Arguments { cx: graph, attributes, operands }),
            Some(rules) => cotangents(self.call, rules, operands, graph),
        }
    }
}

fn made(
    formula: &Formula<'_>,
    given: &[Given<'_>],
    exact: u64,
    pays: impl FnOnce(&Plan, usize) -> bool,
) -> Found {
    let graph = Graph::keeping(|x| executors::executor(Device::Cpu).has_kernel(x));
    let mut floats: SmallVec<[usize; 4]> = SmallVec::new();
    let mut args: SmallVec<[Arg; 6]> = SmallVec::new();
    for (i, given) in given.iter().enumerate() {
        args.push(match *given {
            Given::Array(array) => {
                Arg::Node(graph.input(Type::new(array.dtype, array.shape().clone())))
            }
            Given::Type(ty) => Arg::Node(graph.input(ty.clone())),
            Given::Scalar(value) if value.is_float() => {
                floats.push(i);
                let number = graph.number();
                if is_set(exact, i) { Arg::Number(value.into()) } else { number }
            }
            Given::Scalar(value) => Arg::Number(value.into()),
        });
    }
    // The plan is for any caller, so nothing in it belongs to a call around this one.
    let _alone = Origin::leave();
    let built = graph.build(|| formula.run(&graph, &args)).is_ok() && !graph.outputs().is_empty();
    let looked = graph.looked().iter().fold(0, |bits, &k| bits | 1 << floats[k as usize].min(63));
    if looked & !exact != 0 {
        return Err(Looked(looked & !exact));
    }
    if !built {
        return Ok(None);
    }
    let numbers = graph.list().numbers.clone();
    let written = count_ops(&graph);
    let graph = simpler(graph);
    let dropped = written.saturating_sub(count_ops(&graph));
    let plan = Plan::new(&graph, executors::target(Device::Cpu)).ok();
    let plan = plan.filter(|plan| pays(plan, dropped) && !reads_absent(plan, given));
    let plan = plan.and_then(|plan| executors::Planned::new(Device::Cpu, plan).ok());
    Ok(plan.map(|plan| Planned { plan, numbers }))
}

/// The formula as a captured one is simplified. It stays as it is written where a result would then be
/// an operand, a view of one, or another result: plans of formulas compute what they give.
fn simpler(graph: Graph) -> Graph {
    let list = graph.into_list();
    let (options, executor) = (Options::default(), executors::executor(Device::Cpu));
    let simplified = ["simplify", "dead"]
        .into_iter()
        .try_fold(list.clone(), |list, pass| alone(pass, list, &options, executor));
    Graph::from_list(match simplified {
        Ok(simple) if owns(&simple) == owns(&list) => simple,
        Ok(_) | Err(_) => list,
    })
}

/// How many ops a graph has.
fn count_ops(graph: &Graph) -> usize {
    graph.list().nodes.iter().filter(|node| matches!(node.kind, Kind::Op(_))).count()
}

/// Which results have memory that is no operand's and no other result's.
fn owns(list: &List) -> SmallVec<[bool; 4]> {
    let is_own = |(i, id): (usize, &Id)| {
        let is_computed =
            matches!(&list.nodes[id.0 as usize].kind, Kind::Op(op) if !op.is_movement());
        is_computed && !list.outputs[..i].contains(id)
    };
    list.outputs.iter().enumerate().map(is_own).collect()
}

/// Whether a plan reads a value of which only the type is there.
fn reads_absent(plan: &Plan, given: &[Given<'_>]) -> bool {
    let values = given.iter().filter(|given| !matches!(given, Given::Scalar(_)));
    values
        .enumerate()
        .any(|(i, given)| matches!(given, Given::Type(_)) && plan.reads_input(i as u32))
}

/// Runs the gradient rules of a composite of whose results some have a cotangent.
fn cotangents<'g>(call: &Call, rules: &Rules<'_>, args: &[Arg], graph: &'g Graph) -> Outputs<'g> {
    let exprs: SmallVec<[Expr<'g>; 6]> = args.iter().map(|&arg| Expr::new(graph, arg)).collect();
    let (results, count) = (rules.results, rules.part.given.count_ones() as usize);
    let n = args.len() - results - count;
    let (values, mut given) = (&exprs[n..n + results], exprs[n + results..].iter().copied());
    let next = |k: usize| if is_set(rules.part.given, k) { given.next() } else { None };
    let given: SmallVec<[Option<Expr<'g>>; 2]> = (0..results).map(next).collect();
    let rule = Rule::new(&exprs[..n], values, &given);
    let wanted: SmallVec<[bool; 4]> = (0..n).map(|i| is_set(rules.part.wanted, i)).collect();
    let attributes = &call.attributes;
    let found: Cotangents<'g> = match (call.composite.has_vjp(), rules.derivation) {
        (true, _) => {
            let arguments = Arguments { cx: graph, attributes, operands: &args[..n] };
            call.composite.cotangents(&rule, &arguments, &wanted)
        }
        (false, Some(derivation)) => derivation.write(call, &args[..n], &rule, &wanted),
        (false, None) => derived(call, &rule, &wanted),
    };
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::shape::Shape;

    /// The ops of a formula of one operand after it was made simpler.
    fn left(formula: impl Fn(Expr<'_>) -> Expr<'_>) -> usize {
        let graph = Graph::new();
        let x = graph.input(Type::new(DType::F32, Shape::of(&[3])));
        graph.output(formula(Expr::new(&graph, Arg::Node(x))).node());
        let simple = simpler(graph);
        simple.verify().unwrap();
        count_ops(&simple)
    }

    /// As `clip` says it.
    fn at_least_one(x: Expr<'_>) -> Expr<'_> {
        let least = x.scalar(Scalar::Float(1.0));
        x.greater_equal(least).select(x, x.maximum(least))
    }

    #[test]
    fn formulas_are_simplified_unless_a_result_would_be_an_operand() {
        assert_eq!(left(at_least_one), 1);
        assert_eq!(left(|x| (x * 1.0) * 2.0), 1);
        assert_eq!(left(|x| x * 1.0), 1);
    }
}
