//! Gradients of composites: the declared one, or one derived by the sweep over their formula.
//!
//! A derived gradient is first built as a list, over the operands and the cotangents of the
//! results. Then it is written where the rule was asked for: computed, recorded or appended.
//! Composites inside the formula stay calls meanwhile, so that their own gradients are used.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{gradients, needed};
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::{self, Result};
use crate::graph::numbers::renamed;
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List, numeric_input};
use crate::ops::declare::Arguments;
use crate::ops::emit::{Arg, Emit, Expr, Id, OrThrow, catch, throw};
use crate::ops::number::Number;
use crate::ops::op::{Call, Op, Type};
use crate::ops::rule::{Cotangents, Rule, none_of};
use crate::ops::scan::{Round, Scan};
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
        let form = |&arg: &Arg| match arg {
            Arg::Node(id) => Form::Tensor(cx.ty(id)),
            Arg::Number(Numeric::Told(_)) => Form::Open,
            Arg::Number(Numeric::Known(value)) => Form::Known(value),
        };
        let forms: SmallVec<[Form; 6]> = args.iter().map(form).collect();
        let given: SmallVec<[bool; 2]> = rule.given.iter().map(Option::is_some).collect();
        let derivation = Derivation::new(call, &forms, &given, wanted).or_throw();
        if derivation.looked().is_empty() {
            return derivation.write(call, &args, rule, wanted);
        }
        // The formula decides by the value of a number: it gets the value if that is known here,
        // and a tensor, whose value it cannot read, if not.
        for &i in derivation.looked() {
            args[i] = known(cx, args[i]);
        }
    }
}

/// A number that a formula looks at: its value; or, where the value is not known, a tensor, because
/// no formula looks at the value of a tensor.
fn known(cx: &dyn Emit, arg: Arg) -> Arg {
    let number = match arg {
        Arg::Number(value) => value.told(),
        Arg::Node(_) => None,
    };
    match number.and_then(|i| cx.looks_at(i)) {
        Some(value) => Arg::Number(value.into()),
        None => Expr::new(cx, arg).full(DType::F32, Shape::scalar()).arg(),
    }
}

#[cfg(test)]
thread_local! {
    static DERIVATIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many gradients this thread has derived.
#[cfg(test)]
pub fn derivations() -> usize {
    DERIVATIONS.with(std::cell::Cell::get)
}

/// The facts about an operand that a derivation uses.
pub enum Form {
    /// A tensor of this type
    Tensor(Type),
    /// This number
    Known(Scalar),
    /// Any float
    Open,
}

/// The value for an input of a derivation's list.
enum Source {
    /// An operand
    Operand(usize),
    /// The cotangent of a result, in the result's dtype
    Cotangent(usize, DType),
}

/// A gradient as a list, over operands of some types.
pub struct Derivation {
    list: List,
    inputs: Vec<Source>,
    /// The operands that are its numeric inputs, in order
    numbers: SmallVec<[usize; 2]>,
    /// The cotangents of the operands wanted
    found: Vec<Option<Id>>,
    looked: SmallVec<[usize; 2]>,
}

impl Derivation {
    /// The gradient by the operands wanted, from cotangents of the results for which one is given.
    pub fn new(call: &Call, forms: &[Form], given: &[bool], wanted: &[bool]) -> Result<Derivation> {
        #[cfg(test)]
        DERIVATIONS.with(|count| count.set(count.get() + 1));
        let graph = Graph::with_calls();
        let (mut inputs, mut numbers) = (Vec::new(), SmallVec::new());
        let mut operands: SmallVec<[Arg; 6]> = SmallVec::new();
        for (i, form) in forms.iter().enumerate() {
            operands.push(match form {
                Form::Tensor(ty) => {
                    inputs.push(Source::Operand(i));
                    Arg::Node(graph.input(ty.clone()))
                }
                Form::Open => {
                    numbers.push(i);
                    numeric_input(graph.given())
                }
                Form::Known(value) => Arg::Number((*value).into()),
            });
        }
        let results = results(&graph, call, &operands)?;
        let looked = graph.looked().iter().map(|&k| numbers[k as usize]).collect();
        let mut seeds: Vec<(Id, Arg)> = Vec::new();
        for (k, (&y, &is_given)) in results.iter().zip(given).enumerate() {
            let Type { dtype, shape } = graph.ty(y);
            if is_given && dtype.is_float() {
                inputs.push(Source::Cotangent(k, dtype));
                seeds.push((y, Arg::Node(graph.input(Type::new(dtype, shape)))));
            }
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

    /// The operands of form [`Form::Open`] at whose value the formula looked. If there are any, the
    /// list must not be used.
    pub fn looked(&self) -> &[usize] {
        &self.looked
    }

    /// Emits the nodes that the cotangents need, on operands of the forms that the list was made
    /// for; zeros for a wanted operand that no cotangent reaches.
    pub fn write<'e>(
        &self,
        call: &Call,
        args: &[Arg],
        rule: &Rule<'_, 'e>,
        wanted: &[bool],
    ) -> Cotangents<'e> {
        let cx = rule.y.cx();
        let inputs: SmallVec<[Arg; 8]> = self
            .inputs
            .iter()
            .map(|source| match *source {
                Source::Operand(i) => args[i],
                Source::Cotangent(k, dtype) => match rule.given[k] {
                    Some(g) => g.cast(dtype).arg(),
                    None => unreachable!("it is given"),
                },
            })
            .collect();
        let attributes = &call.attributes;
        let _within = call.composite.enter(&Arguments { cx, attributes, operands: args });
        let list = &self.list;
        let mut given = self.numbers.iter().map(|&i| match args[i] {
            Arg::Number(value) => value,
            Arg::Node(_) => unreachable!("it is a number"),
        });
        let mut numbers: Vec<Numeric> = Vec::with_capacity(list.numbers.len());
        for number in &list.numbers {
            numbers.push(match *number {
                Number::Input => given.next().unwrap_or_else(|| unreachable!("one for each")),
                Number::Size(_) => cx.number(*number),
                Number::Calculated(how, args) => {
                    cx.number(Number::Calculated(how, args.map(|x| renamed(x, &numbers))))
                }
            });
        }
        let names: FxHashMap<Id, Arg> = list.inputs().zip(inputs).collect();
        let ends: Vec<Id> = self.found.iter().flatten().copied().collect();
        let needed = needed(list, &ends, |_| false);
        let names = replay(cx, list, names, &numbers, &needed);
        let mut cotangents = none_of(wanted);
        for (i, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
            let zeros = || rule.args[i].zeros_like();
            cotangents[i] = Some(self.found[i].map_or_else(zeros, |id| Expr::new(cx, names[&id])));
        }
        cotangents
    }
}

/// Emits the nodes of a list that are needed, given what its inputs and numbers are there. The names
/// of its values.
fn replay(
    cx: &dyn Emit,
    list: &List,
    mut names: FxHashMap<Id, Arg>,
    numbers: &[Numeric],
    needed: &[bool],
) -> FxHashMap<Id, Arg> {
    let mut results: FxHashMap<Id, Results> = FxHashMap::default();
    for (i, node) in list.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        let id = Id(i as u32);
        let name = |arg: &Arg| match *arg {
            Arg::Node(id) => names[&id],
            Arg::Number(value) => Arg::Number(renamed(value, numbers)),
        };
        match &node.kind {
            Kind::Op(op) => {
                let args: SmallVec<[Arg; 6]> = node.args.iter().map(name).collect();
                let found = emit(cx, op, &args);
                names.insert(id, found[0]);
                if found.len() > 1 {
                    results.insert(id, found);
                }
            }
            Kind::ControlFlow(flow) => {
                let args: SmallVec<[Arg; 6]> = node.args.iter().map(name).collect();
                results.insert(id, scan(cx, flow, &args, numbers));
            }
            Kind::Result(k) => {
                let of = node.reads().next().and_then(|of| results.get(&of));
                let found = of.map(|found: &Results| found[*k as usize]);
                names.extend(found.map(|arg| (id, arg)));
            }
            Kind::Input | Kind::Constant(_) | Kind::Effect(_) | Kind::Barrier => {}
        }
    }
    names
}

/// Emits a scan, the one control flow that formulas write.
fn scan(cx: &dyn Emit, flow: &ControlFlow, args: &[Arg], numbers: &[Numeric]) -> Results {
    let ControlFlowKind::Scan { carry, xs, length, reverse } = flow.kind else {
        throw(error::internal("a formula with control flow that is no scan"))
    };
    let body = &flow.bodies[0];
    let round: Round<'_> = &|cx, inputs| {
        let names = body.inputs().zip(inputs.iter().map(|x| x.arg())).collect();
        let names = replay(cx, body, names, numbers, &body.live());
        body.outputs.iter().map(|id| Expr::new(cx, names[id])).collect()
    };
    let (carry, rest) = args.split_at(carry as usize);
    let (xs, captures) = rest.split_at(xs as usize);
    let found = cx.scan(&Scan { carry, xs, captures, length, reverse, round });
    found.into_iter().map(Arg::Node).collect()
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
