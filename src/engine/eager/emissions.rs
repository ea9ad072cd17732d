//! Calls that are made again: the ops that their formula emitted the last time, without the
//! formula.
//!
//! On operands of the same types, and the same numbers, a formula emits the same ops, unless it
//! looks at data. So a thread keeps the short emissions of late and runs their ops one by one, which
//! is what running the formula does too: the same results, entries of the tape and refusals. What a
//! call costs beside its kernels is then little more than the comparison.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smallvec::SmallVec;

use super::apply::apply_again;
use crate::engine::tape::signature::{self, Place};
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace::Called;
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::declare::{Attr, Composite};
use crate::ops::emit::{Arg, catch};
use crate::ops::op::Op;
use crate::ops::origin;
use crate::site::Origin;

/// Ops of an emission that is kept: beside more of them a formula takes no time.
pub const LONGEST: usize = 8;

/// Emissions that a thread keeps, one for each of so many groups of calls.
const KEPT: usize = 1024;

/// An op of an emission.
pub struct Step {
    op: Op,
    args: SmallVec<[Arg; 3]>,
}

impl Step {
    /// An op as it is emitted.
    pub fn new(op: &Op, args: &[Arg]) -> Step {
        Step { op: op.clone(), args: args.into() }
    }
}

/// An emission. Its values are the tensors among the operands, and behind them what its ops gave.
pub struct Emission {
    composite: &'static Composite,
    attributes: Box<[Attr]>,
    places: Box<[Place]>,
    record: bool,
    origin: Origin,
    steps: Box<[Step]>,
    /// Which value is the result
    result: usize,
}

/// What a group of calls has: its last call.
#[derive(Default)]
struct Slot {
    mark: Cell<u64>,
    kept: RefCell<Kept>,
}

/// What is kept of a call.
#[derive(Default)]
enum Kept {
    /// Nothing, unless it comes again
    #[default]
    Nothing,
    /// Its emission
    Emission(Rc<Emission>),
    /// Nothing at all: its emission is long, or looks at data
    Never,
}

thread_local! {
    static SLOTS: Box<[Slot]> = (0..KEPT).map(|_| Slot::default()).collect();
}

/// What is known of a call.
pub enum Known {
    /// Its emission
    Emission(Rc<Emission>),
    /// It came before, so the emission is worth keeping
    Again(u64),
    /// Nothing
    New,
}

/// What this thread knows of a call on operands in host memory.
pub fn known(called: &Called<'_>) -> Known {
    let Some(mark) = mark(called) else { return Known::New };
    let found = SLOTS.try_with(|slots| {
        let slot = &slots[group(mark)];
        if slot.mark.replace(mark) != mark {
            *slot.kept.borrow_mut() = Kept::Nothing;
            return Known::New;
        }
        match &*slot.kept.borrow() {
            Kept::Emission(emission) if emission.is_of(called) => Known::Emission(emission.clone()),
            Kept::Never => Known::New,
            // One that another call has the mark of takes its place.
            Kept::Emission(_) | Kept::Nothing => Known::Again(mark),
        }
    });
    // A thread that is ending keeps nothing.
    found.unwrap_or(Known::New)
}

/// Keeps the emission of a call that came again: its ops, and which value was the result. `None`
/// where nothing is to be kept of it.
pub fn keep(mark: u64, called: &Called<'_>, origin: Origin, emission: Option<(Vec<Step>, usize)>) {
    let &Called { composite, attributes, operands, record } = called;
    let made = |(steps, result): (Vec<Step>, usize)| Emission {
        composite,
        attributes: attributes.into(),
        places: operands.iter().map(|&operand| Place::new(operand, true)).collect(),
        record,
        origin,
        steps: steps.into(),
        result,
    };
    let kept = emission.map_or(Kept::Never, |found| Kept::Emission(Rc::new(made(found))));
    let _ = SLOTS.try_with(|slots| {
        let slot = &slots[group(mark)];
        slot.mark.set(mark);
        *slot.kept.borrow_mut() = kept;
    });
}

fn group(mark: u64) -> usize {
    mark as usize % KEPT
}

/// A number for a call, most often of its own. `None` of calls with sizes that are not known.
fn mark(called: &Called<'_>) -> Option<u64> {
    let &Called { composite, attributes, operands, record } = called;
    let is_known = |operand: &Operand<'_>| match operand {
        Operand::Value(x) => x.shape().is_known(),
        Operand::Scalar(number) => number.told().is_none(),
    };
    let is_plain = operands.iter().all(is_known) && !attributes.iter().any(Attr::has_size);
    is_plain.then(|| signature::hash(composite, attributes, operands, u64::MAX) ^ u64::from(record))
}

impl Emission {
    fn is_of(&self, called: &Called<'_>) -> bool {
        std::ptr::eq(self.composite, called.composite)
            && self.is_for(called.operands, called.record)
            && *self.attributes == *called.attributes
    }

    /// Whether calls with its attributes on such operands emit it.
    #[inline]
    pub fn is_for(&self, operands: &[Operand<'_>], record: bool) -> bool {
        self.record == record
            && self.places.len() == operands.len()
            && self.places.iter().zip(operands).all(|(place, &x)| place.takes(x))
    }

    /// Runs the ops on operands that it is kept for.
    pub fn run(&self, operands: &[Operand<'_>]) -> Result<Value> {
        let explained = |error| origin::explain(error, Origin::running());
        let found = catch(|| {
            let _within = self.origin.enter();
            self.results(operands).map_err(explained)
        });
        found.and_then(|found| found).map_err(|error| error.within(self.composite.name))
    }

    /// What the ops show of `x`, the only operand, where they do nothing else. `None`, and `take`, as
    /// for [`call`](super::views::call).
    #[inline]
    pub fn shown<T>(&self, x: &Value, take: impl FnOnce(Value) -> T) -> Result<Option<T>> {
        match &*self.steps {
            [] => Ok(Some(take(x.clone()))),
            [step] if self.result == 1 => {
                let Some(layout) = step.op.view(x.dtype(), &x.array.layout) else {
                    return Ok(None);
                };
                let view = x.array.view(layout);
                if !self.record {
                    return Ok(Some(take(Value::plain(view))));
                }
                let _within = self.origin.enter();
                tape::record(step.op.clone(), &[Operand::Value(x)], view).map(take).map(Some)
            }
            _ if self.record => Ok(None),
            steps => {
                let mut layouts: SmallVec<[Layout; 2]> = SmallVec::new();
                layouts.push(x.array.layout.clone());
                for step in steps {
                    let [Arg::Node(id)] = step.args[..] else { return Ok(None) };
                    let shown = step.op.view(x.dtype(), &layouts[id.0 as usize]);
                    let Some(layout) = shown else { return Ok(None) };
                    layouts.push(layout);
                }
                let view = x.array.view(layouts.swap_remove(self.result));
                Ok(Some(take(Value::plain(view))))
            }
        }
    }

    fn results(&self, operands: &[Operand<'_>]) -> Result<Value> {
        let mut tensors: SmallVec<[&Value; 4]> = SmallVec::new();
        for operand in operands {
            if let Operand::Value(x) = operand {
                tensors.push(x);
            }
        }
        let last = tensors.len() + self.steps.len() - 1;
        let mut found: SmallVec<[Value; 2]> = SmallVec::new();
        for (k, step) in self.steps.iter().enumerate() {
            let mut args: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
            for arg in &step.args {
                args.push(match *arg {
                    Arg::Number(number) => Operand::Scalar(number),
                    Arg::Node(id) => Operand::Value(match tensors.get(id.0 as usize) {
                        Some(x) => x,
                        None => &found[id.0 as usize - tensors.len()],
                    }),
                });
            }
            let value = apply_again(&step.op, &args, self.record)?;
            drop(args);
            if tensors.len() + k == self.result && self.result == last {
                return Ok(value);
            }
            found.push(value);
        }
        match self.result.checked_sub(tensors.len()) {
            None => Ok(tensors[self.result].clone()),
            Some(k) if k < found.len() => Ok(found.swap_remove(k)),
            Some(_) => Err(error::internal("a result that no op gave")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::array;
    use crate::dtype::DType;
    use crate::engine::eager;
    use crate::ops::{Entry, table};

    fn composite(name: &str) -> &'static Composite {
        let named = |entry: &Entry| match entry {
            Entry::Composite(composite) if composite.name == name => Some(*composite),
            Entry::Composite(_) | Entry::Map(_) => None,
        };
        table().iter().find_map(named).expect("a composite of this name")
    }

    fn state(known: &Known) -> &'static str {
        match known {
            Known::Emission(_) => "kept",
            Known::Again(_) => "again",
            Known::New => "new",
        }
    }

    #[test]
    fn an_emission_is_kept_for_calls_that_came_again() {
        let x = Value::plain(array(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        let y = Value::plain(array(DType::F32, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        let along = |axis| [Attr::Operand, axis, Attr::Bool(false), Attr::None];
        let sum = composite("sum");
        let call = |x: &Value, attributes: &[Attr]| {
            let found = eager::call(sum, attributes, &[Operand::Value(x)], false);
            found.unwrap().swap_remove(0).array
        };
        let known = |x: &Value, attributes: &[Attr]| {
            let operands = [Operand::Value(x)];
            state(&known(&Called {
                composite: sum,
                attributes,
                operands: &operands,
                record: false,
            }))
        };
        for (x, axis) in
            [(&x, Attr::Int(1)), (&y, Attr::Int(1)), (&x, Attr::None), (&y, Attr::None)]
        {
            let attributes = along(axis);
            let want = call(x, &attributes);
            for _ in 0..3 {
                assert!(call(x, &attributes).shape() == want.shape());
            }
            assert_eq!(known(x, &attributes), "kept");
        }
        // All four are kept, and what was not called is not.
        for x in [&x, &y] {
            assert_eq!(known(x, &along(Attr::Int(1))), "kept");
            assert_eq!(known(x, &along(Attr::Int(0))), "new");
            assert_eq!(known(x, &along(Attr::Int(0))), "again");
        }
        let wide = along(Attr::None).into_iter().take(3).chain([Attr::DType(DType::F64)]);
        assert_eq!(known(&x, &wide.collect::<Vec<_>>()), "new");
    }

    #[test]
    fn another_call_of_the_same_mark_takes_the_place() {
        let x = Value::plain(array(DType::F32, &[2], &[1.0, 2.0]));
        let operands = [Operand::Value(&x)];
        let called = |composite, attributes| Called {
            composite,
            attributes,
            operands: &operands,
            record: false,
        };
        let attributes = [Attr::Operand, Attr::None, Attr::Bool(false), Attr::None];
        let (sum, prod) =
            (called(composite("sum"), &attributes), called(composite("prod"), &attributes));
        let mark = mark(&sum).unwrap();
        assert_ne!(Some(mark), super::mark(&prod));
        // As if both had the mark of the first.
        keep(mark, &prod, Origin::NONE, Some((Vec::new(), 0)));
        assert_eq!(state(&known(&sum)), "again");
        keep(mark, &sum, Origin::NONE, Some((Vec::new(), 0)));
        assert_eq!(state(&known(&sum)), "kept");
        keep(mark, &sum, Origin::NONE, None);
        assert_eq!(state(&known(&sum)), "new");
    }
}
