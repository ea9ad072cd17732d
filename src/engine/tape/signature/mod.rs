//! Signatures: what is known of a composite on operands of some types.
//!
//! A signature is a composite, its attributes and the types of its operands. It is found once for
//! each call, in the one table, and what was worked out for it hangs on it: which operands
//! gradients reach, what the rules read, the plan of the formula, derived gradients and their
//! plans. An entry of the tape holds the signature of its call, so that a sweep asks no table and
//! takes no lock.
//!
//! The first call of a formula runs it op by op; the second makes a plan, and later ones run it. A
//! gradient is derived at the first sweep and planned at the second. A plan gives the bits of its
//! nodes one by one, so nobody can tell which way a call went. Floats are operands of a plan,
//! unless the formula looks at their values: then a signature with these values is interned.
//! Integers and truth values, which decide sizes and dtypes, are part of every signature.
//!
//! The table forgets by age ([`Cache`]). A signature that it let go of lives as long as an entry
//! holds it, and the next call of its kind makes a new one.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHasher;
use smallvec::SmallVec;

use super::{Operand, Value};
use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::Result;
use crate::ops::declare::{Attr, Composite, Kernel};
use crate::ops::emit::Expr;
use crate::ops::op::{Call, Op, OperandType, Type};
use crate::ops::probe::{Mask, OPERANDS, call_residuals};
use crate::ops::rule::Rule;
use crate::passes::derived::{Derivation, Form, derived};
use crate::shape::Shape;
use crate::threads::num_threads;

mod chain;
mod plan;
mod table;

use chain::Chain;
use plan::Planned;

/// The signature of a call on values in host memory. None of one with numbers that a run tells, and
/// with more operands than masks have bits.
#[inline]
pub fn of(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
) -> Option<Arc<Signature>> {
    let is_told = |operand: &Operand<'_>| matches!(operand, Operand::Scalar(Numeric::Told(_)));
    if operands.len() > OPERANDS.count_ones() as usize || operands.iter().any(is_told) {
        return None;
    }
    Some(table::find(composite, attributes, operands))
}

/// An operand of a formula that runs.
#[derive(Clone, Copy)]
pub enum Given<'a> {
    /// An array
    Array(&'a Array),
    /// The type of a value that the formula does not read
    Type(&'a Type),
    /// A number
    Scalar(Scalar),
}

/// An operand of calls of one kind.
pub enum Place {
    /// A tensor
    Tensor(Type),
    /// This number
    Exactly(Scalar),
    /// Any float
    Float,
}

impl Place {
    /// That of an operand; of a float its value where `exactly`.
    pub fn new(operand: Operand<'_>, exactly: bool) -> Place {
        match operand {
            Operand::Value(value) => Place::Tensor(Type::new(value.dtype(), value.shape().clone())),
            Operand::Scalar(Numeric::Known(value)) if exactly || !value.is_float() => {
                Place::Exactly(value)
            }
            Operand::Scalar(_) => Place::Float,
        }
    }

    /// Whether a call with this operand there is of the kind.
    #[inline]
    pub fn takes(&self, operand: Operand<'_>) -> bool {
        match (self, operand) {
            (Place::Tensor(ty), Operand::Value(value)) => {
                value.dtype() == ty.dtype && value.shape().equals(&ty.shape)
            }
            (Place::Exactly(want), Operand::Scalar(Numeric::Known(value))) => {
                same_bits(*want, value)
            }
            (Place::Float, Operand::Scalar(value)) => value.is_float(),
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

/// A plan of a formula, once it pays.
#[derive(Default)]
struct Lazily {
    was_run: AtomicBool,
    plan: OnceLock<Option<Planned>>,
}

/// What to do about a run of a formula.
enum Answer<'a> {
    /// Run it op by op
    OpByOp,
    /// Run its plan
    Run(&'a Planned),
    /// Make a plan
    Make,
}

impl Lazily {
    fn answer(&self) -> Answer<'_> {
        match self.plan.get() {
            Some(Some(plan)) => Answer::Run(plan),
            Some(None) => Answer::OpByOp,
            None if self.was_run.swap(true, Ordering::Relaxed) => Answer::Make,
            None => Answer::OpByOp,
        }
    }

    /// Takes note of what came of making a plan. Of two threads that made one the first is kept.
    fn settle(&self, plan: Option<Planned>) -> Option<&Planned> {
        self.plan.get_or_init(|| plan).as_ref()
    }
}

/// Which gradient of a call: by these operands, of which these values are there, from the
/// cotangents of these results, as bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The operands
    pub wanted: u64,
    /// The operands and, behind them, the results of which the data was saved
    pub present: u64,
    /// The results with a cotangent
    pub given: u64,
}

/// A gradient of a call.
struct Gradient {
    part: Part,
    plan: Lazily,
    derivation: OnceLock<Derivation>,
}

/// What is known of calls of a composite on operands of some types.
pub struct Signature {
    /// The call as a step of the tape
    pub op: Op,
    call: Call,
    places: SmallVec<[Place; 4]>,
    /// The operands that are floats and part of the signature, as bits
    exact: u64,
    /// More floats at which a formula looked, as bits: calls belong to signatures with their values
    looked: AtomicU64,
    /// The operands that gradients reach, as bits
    reaches: u64,
    /// How many threads its plans are for
    threads: usize,
    body: Lazily,
    /// What rules read, by the operands that a gradient is wanted of
    residuals: Chain<(u64, Mask)>,
    gradients: Chain<Gradient>,
}

impl Signature {
    fn new(
        composite: &'static Composite,
        attributes: &[Attr],
        operands: &[Operand<'_>],
        exact: u64,
    ) -> Signature {
        let call = Call { composite, attributes: attributes.into() };
        let op = Op::Call(call.clone());
        let place = |(i, operand): (usize, &Operand<'_>)| Place::new(*operand, is_set(exact, i));
        let reached = (0..operands.len().min(64)).filter(|&i| op.differentiable(i));
        Signature {
            reaches: reached.fold(0, |bits, i| bits | 1 << i),
            places: operands.iter().enumerate().map(place).collect(),
            exact,
            threads: num_threads(),
            looked: AtomicU64::new(0),
            body: Lazily::default(),
            residuals: Chain::default(),
            gradients: Chain::default(),
            call,
            op,
        }
    }

    fn is_of(
        &self,
        composite: &'static Composite,
        attributes: &[Attr],
        operands: &[Operand<'_>],
        exact: u64,
    ) -> bool {
        std::ptr::eq(self.call.composite, composite)
            && self.exact == exact
            && self.threads == num_threads()
            && self.places.len() == operands.len()
            && *self.call.attributes == *attributes
            && self.places.iter().zip(operands).all(|(place, &operand)| place.takes(operand))
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The operands that gradients reach, as bits.
    pub fn reaches(&self) -> u64 {
        self.reaches
    }

    /// What the rules of these operands read.
    pub fn residuals(
        &self,
        flows: u64,
        operands: &[Operand<'_>],
        results: &[Value],
    ) -> Result<Mask> {
        let is_same = |known: &&(u64, Mask)| known.0 == flows;
        if let Some((_, mask)) = self.residuals.iter().find(is_same) {
            return Ok(*mask);
        }
        let types: SmallVec<[OperandType<'_>; 4]> = operands.iter().map(|arg| arg.ty()).collect();
        let ty = |y: &Value| Type::new(y.dtype(), y.shape().clone());
        let results: SmallVec<[Type; 1]> = results.iter().map(ty).collect();
        let mut mask = 0;
        for i in (0..operands.len()).filter(|&i| is_set(flows, i)) {
            mask |= call_residuals(&self.op, &self.call, &types, &results, i)?;
        }
        self.residuals.push((flows, mask));
        Ok(mask)
    }

    /// Runs the formula by its plan. `None` where it has none: the caller runs it op by op. The
    /// signature becomes the one with the values of floats at which the formula looks.
    pub fn run(
        self: &mut Arc<Signature>,
        operands: &[Operand<'_>],
    ) -> Result<Option<SmallVec<[Array; 2]>>> {
        let composite = self.call.composite;
        if !composite.payoff.body.is_worth_planning() {
            return Ok(None);
        }
        let mut given: SmallVec<[Given<'_>; 6]> = SmallVec::new();
        for operand in operands {
            given.push(match *operand {
                Operand::Value(value) => Given::Array(&value.array),
                Operand::Scalar(Numeric::Known(value)) => Given::Scalar(value),
                Operand::Scalar(Numeric::Told(_)) => return Ok(None),
            });
        }
        loop {
            let plan = match self.body.answer() {
                Answer::OpByOp => return Ok(None),
                Answer::Run(plan) => return plan.run(&given).map(Some),
                Answer::Make => plan::of_body(&self.call, &given, self.exact),
            };
            match plan {
                Ok(plan) => {
                    composite.payoff.body.note(plan.is_some());
                    let plan = self.body.settle(plan);
                    return plan.map(|plan| plan.run(&given)).transpose();
                }
                Err(plan::Looked(looked)) => {
                    self.look(looked);
                    *self = table::find(composite, &self.call.attributes, operands);
                    // It was run, with other values.
                    self.body.was_run.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn look(&self, looked: u64) {
        self.looked.fetch_or(looked, Ordering::Relaxed);
    }

    fn gradient(&self, part: Part) -> Option<&Gradient> {
        let find = || self.gradients.iter().find(|gradient| gradient.part == part);
        find().or_else(|| {
            let (plan, derivation) = Default::default();
            self.gradients.push(Gradient { part, plan, derivation });
            find()
        })
    }

    /// The cotangents of the operands wanted, by the plan of the rules. The operands are those of
    /// the call, its results, and the cotangents given.
    pub fn run_gradient(
        &self,
        part: Part,
        results: usize,
        given: &[Given<'_>],
    ) -> Result<Option<SmallVec<[Array; 2]>>> {
        let payoff = &self.call.composite.payoff.gradient;
        // A gradient that is worked out first is always worth it.
        let is_derived = !self.call.composite.has_vjp();
        let has_kernel = self.call.composite.kernel.is_some_and(Kernel::has_exact_gradient);
        if has_kernel || !is_derived && !payoff.is_worth_planning() {
            return Ok(None);
        }
        let Some(gradient) = self.gradient(part) else { return Ok(None) };
        match gradient.plan.answer() {
            Answer::OpByOp => Ok(None),
            Answer::Run(plan) => plan.run(given).map(Some),
            Answer::Make => {
                let derivation = gradient.derivation.get();
                let rules = plan::Rules { part, results, derivation };
                let plan = match plan::of_rules(&self.call, rules, given, self.exact) {
                    Ok(plan) => plan,
                    Err(plan::Looked(looked)) => {
                        self.look(looked);
                        None
                    }
                };
                payoff.note(plan.is_some());
                gradient.plan.settle(plan).map(|plan| plan.run(given)).transpose()
            }
        }
    }

    /// Gives the cotangents of the operands wanted by the rules, in order, where a gradient flows.
    /// A derived gradient is derived once.
    pub fn vjp<'e>(
        &self,
        part: Part,
        rule: &Rule<'_, 'e>,
        wanted: &[bool],
        mut give: impl FnMut(usize, Expr<'e>),
    ) -> Result<()> {
        if self.call.composite.has_vjp() {
            self.op.vjp(rule, wanted, give);
            return Ok(());
        }
        let args: SmallVec<[_; 6]> = rule.args.iter().map(|x| x.arg()).collect();
        let derivation = match self.gradient(part) {
            Some(gradient) => match gradient.derivation.get() {
                Some(derivation) => Some(derivation),
                None => {
                    let form = |place: &Place| match place {
                        Place::Tensor(ty) => Form::Tensor(ty.clone()),
                        Place::Exactly(value) => Form::Known(*value),
                        Place::Float => Form::Open,
                    };
                    let forms: SmallVec<[Form; 6]> = self.places.iter().map(form).collect();
                    let given: SmallVec<[bool; 2]> =
                        rule.given.iter().map(Option::is_some).collect();
                    let made = Derivation::new(&self.call, &forms, &given, wanted)?;
                    match made.looked() {
                        [] => Some(gradient.derivation.get_or_init(|| made)),
                        looked => {
                            self.look(looked.iter().fold(0, |bits, i| bits | 1 << i));
                            None
                        }
                    }
                }
            },
            None => None,
        };
        let found = match derivation {
            Some(derivation) => derivation.write(&self.call, &args, rule, wanted),
            None => derived(&self.call, rule, wanted),
        };
        found.into_iter().enumerate().for_each(|(i, x)| x.into_iter().for_each(|x| give(i, x)));
        Ok(())
    }
}

/// Whether a bit is set.
fn is_set(bits: u64, i: usize) -> bool {
    i < 64 && bits & 1 << i != 0
}

/// The hash of a call; of floats only those that are part of its signature count, as bits.
pub fn hash(
    composite: &'static Composite,
    attributes: &[Attr],
    operands: &[Operand<'_>],
    exact: u64,
) -> u64 {
    let mut state = FxHasher::default();
    std::ptr::from_ref(composite).addr().hash(&mut state);
    attributes.hash(&mut state);
    exact.hash(&mut state);
    num_threads().hash(&mut state);
    for (i, operand) in operands.iter().enumerate() {
        match *operand {
            Operand::Value(value) => hash_type(value.dtype(), value.shape(), &mut state),
            Operand::Scalar(Numeric::Known(Scalar::Float(x))) if is_set(exact, i) => {
                x.to_bits().hash(&mut state);
            }
            Operand::Scalar(Numeric::Known(Scalar::Int(x))) => x.hash(&mut state),
            Operand::Scalar(_) => 0u8.hash(&mut state),
        }
    }
    state.finish()
}

fn hash_type(dtype: DType, shape: &Shape, state: &mut FxHasher) {
    dtype.hash(state);
    shape.hash(state);
}

#[cfg(test)]
mod tests;
