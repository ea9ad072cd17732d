//! Gradients of composites: the declared one, or one derived by the sweep over their formula.
//!
//! A derived gradient is first built as a list, over the operands and the cotangents of the
//! results. Then it is written where the rule was asked for: computed, recorded or appended.
//! Composites inside the formula stay calls meanwhile, so that their own gradients are used.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{gradients, needed};
use crate::dtype::{DType, Numeric};
use crate::error::{self, Result};
use crate::graph::numbers::renamed;
use crate::graph::{Graph, Kind, List, numeric_input};
use crate::ops::declare::Arguments;
use crate::ops::emit::{Arg, Emit, Expr, Id, OrThrow, catch};
use crate::ops::number::Number;
use crate::ops::op::{Call, Op, Type};
use crate::ops::rule::{Cotangents, Rule, none_of};
use crate::shape::Shape;

/// Passes the cotangents of the wanted operands to `give`, in order, where the op has a gradient:
/// see [`Op::vjp`].
pub fn vjp<'e>(
    op: &Op,
    rule: &Rule<'_, 'e>,
    wanted: &[bool],
    mut give: impl FnMut(usize, Expr<'e>),
) {
    if let Op::Call(call) = op
        && !call.composite.has_vjp()
    {
        let found = derived(call, rule, wanted).into_iter().enumerate();
        return found.for_each(|(i, x)| x.into_iter().for_each(|x| give(i, x)));
    }
    op.vjp(rule, wanted, give);
}

/// The cotangents of a composite's operands by its formula.
pub fn derived<'e>(call: &Call, rule: &Rule<'_, 'e>, wanted: &[bool]) -> Cotangents<'e> {
    let cx = rule.y.cx();
    let mut args: SmallVec<[Arg; 6]> = rule.args.iter().map(|x| x.arg()).collect();
    loop {
        let derivation = Derivation::new(cx, call, &args, rule, wanted).or_throw();
        if derivation.looked.is_empty() {
            let (attributes, operands) = (&call.attributes, &args);
            let _within = call.composite.enter(&Arguments { cx, attributes, operands });
            return derivation.write(rule, wanted);
        }
        // The formula decides by the value of a number: it gets the value if that is known here,
        // and a tensor, whose value it cannot read, if not.
        for i in derivation.looked {
            args[i] = known(cx, args[i]);
        }
    }
}

/// A number that a formula looks at: its value; or, where the value is not known, a tensor, because
/// no formula looks at the value of a tensor.
fn known(cx: &dyn Emit, arg: Arg) -> Arg {
    let told = match arg {
        Arg::Number(value) => value.told(),
        Arg::Node(_) => None,
    };
    match told.and_then(|i| cx.looks_at(i)) {
        Some(value) => Arg::Number(value.into()),
        None => Expr::new(cx, arg).full(DType::F32, Shape::scalar()).arg(),
    }
}

/// A gradient as a list.
struct Derivation {
    list: List,
    /// The arguments for its inputs, in order
    inputs: Vec<Arg>,
    /// The values of its numeric inputs, in order
    numbers: Vec<Numeric>,
    /// The cotangents of the operands wanted
    found: Vec<Option<Id>>,
    /// The operands that are numbers at which the formula looked
    looked: SmallVec<[usize; 2]>,
}

impl Derivation {
    fn new(
        cx: &dyn Emit,
        call: &Call,
        args: &[Arg],
        rule: &Rule<'_, '_>,
        wanted: &[bool],
    ) -> Result<Derivation> {
        let graph = Graph::with_calls();
        let (mut inputs, mut numbers, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut operands: SmallVec<[Arg; 6]> = SmallVec::new();
        for (i, &arg) in args.iter().enumerate() {
            operands.push(match arg {
                Arg::Node(id) => {
                    inputs.push(arg);
                    Arg::Node(graph.input(cx.ty(id)))
                }
                Arg::Number(value) if value.told().is_some() => {
                    numbers.push(value);
                    places.push(i);
                    numeric_input(graph.given())
                }
                Arg::Number(_) => arg,
            });
        }
        let results = results(&graph, call, &operands)?;
        let looked = graph.looked().iter().map(|&k| places[k as usize]).collect();
        let mut seeds: Vec<(Id, Arg)> = Vec::new();
        for (&y, g) in results.iter().zip(rule.given) {
            let Some(g) = g else { continue };
            let Type { dtype, shape } = graph.ty(y);
            if !dtype.is_float() {
                continue;
            }
            inputs.push(g.cast(dtype).arg());
            seeds.push((y, Arg::Node(graph.input(Type::new(dtype, shape)))));
        }
        let by: Vec<Id> = operands
            .iter()
            .zip(wanted)
            .filter_map(|(arg, &wanted)| match arg {
                Arg::Node(id) if wanted => Some(*id),
                Arg::Node(_) | Arg::Number(_) => None,
            })
            .collect();
        let mut gradients = gradients(&graph, &seeds, &by)?.into_iter();
        let is_wanted = |(arg, &wanted): (&Arg, &bool)| wanted && matches!(arg, Arg::Node(_));
        let found = operands.iter().zip(wanted);
        let found = found.map(|x| if is_wanted(x) { gradients.next().flatten() } else { None });
        let found = found.collect();
        Ok(Derivation { list: graph.into_list(), inputs, numbers, found, looked })
    }

    /// Emits the nodes that the cotangents need; zeros for a wanted operand that no cotangent
    /// reaches.
    fn write<'e>(&self, rule: &Rule<'_, 'e>, wanted: &[bool]) -> Cotangents<'e> {
        let cx = rule.y.cx();
        let list = &self.list;
        let mut given = self.numbers.iter();
        let mut numbers: Vec<Numeric> = Vec::with_capacity(list.numbers.len());
        for number in &list.numbers {
            numbers.push(match *number {
                Number::Input => *given.next().unwrap_or_else(|| unreachable!("one for each")),
                Number::Size(_) => cx.number(*number),
                Number::Calculated(how, args) => {
                    cx.number(Number::Calculated(how, args.map(|x| renamed(x, &numbers))))
                }
            });
        }
        let mut names: FxHashMap<Id, Arg> =
            list.inputs().zip(self.inputs.iter().copied()).collect();
        let mut results: FxHashMap<Id, Results> = FxHashMap::default();
        let ends: Vec<Id> = self.found.iter().flatten().copied().collect();
        let needed = needed(list, &ends, |_| false);
        for (i, node) in list.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
            let op = match &node.kind {
                Kind::Op(op) => op,
                Kind::Result(k) => {
                    let of = node.reads().next().and_then(|of| results.get(&of));
                    let found = of.map(|found: &Results| found[*k as usize]);
                    names.extend(found.map(|arg| (Id(i as u32), arg)));
                    continue;
                }
                Kind::Input
                | Kind::Constant(_)
                | Kind::ControlFlow(_)
                | Kind::Effect(_)
                | Kind::Barrier => continue,
            };
            let name = |arg: &Arg| match *arg {
                Arg::Node(id) => names[&id],
                Arg::Number(value) => Arg::Number(renamed(value, &numbers)),
            };
            let args: SmallVec<[Arg; 6]> = node.args.iter().map(name).collect();
            let found = emit(cx, op, &args);
            names.insert(Id(i as u32), found[0]);
            if found.len() > 1 {
                results.insert(Id(i as u32), found);
            }
        }
        let mut cotangents = none_of(wanted);
        for (i, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
            let zeros = || rule.args[i].zeros_like();
            cotangents[i] = Some(self.found[i].map_or_else(zeros, |id| Expr::new(cx, names[&id])));
        }
        cotangents
    }
}

/// The results of an op.
type Results = SmallVec<[Arg; 2]>;

/// Emits an op. A call becomes its formula, unless the emission keeps calls of that composite.
fn emit(cx: &dyn Emit, op: &Op, args: &[Arg]) -> Results {
    if let Op::Call(call) = op
        && !cx.keeps(call.composite)
    {
        let (attributes, operands) = (&call.attributes, args);
        let found = call.composite.formula(&Arguments { cx, attributes, operands });
        return found.iter().map(|x| Arg::Node(x.node())).collect();
    }
    let first = cx.emit(op.clone(), args);
    (0..op.results()).map(|k| Arg::Node(cx.result(first, k))).collect()
}

/// The results of a composite's formula.
fn results(graph: &Graph, call: &Call, operands: &[Arg]) -> Result<SmallVec<[Id; 2]>> {
    let arguments = Arguments { cx: graph, attributes: &call.attributes, operands };
    let found = catch(|| call.composite.formula(&arguments))?;
    let node = |x: &Expr<'_>| match catch(|| x.tensor().arg())? {
        Arg::Node(id) => Ok(id),
        Arg::Number(_) => Err(error::internal("a tensor is a node")),
    };
    found.iter().map(node).collect()
}
