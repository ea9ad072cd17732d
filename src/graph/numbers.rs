//! The table of numbers of a list: which are given, and how the others are calculated from them and
//! from sizes.
//!
//! An operand that is a number names an entry by its position ([`Numeric::Told`]). Entries name
//! earlier ones only, so one walk calculates them all, with the same float64 arithmetic as eager
//! code.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{ControlFlow, Graph, Kind, List};
use crate::dtype::{Numeric, Scalar};
use crate::error::{self, Result};
use crate::ops::emit::Arg;
use crate::ops::number::Number;
use crate::shape::Bindings;

/// The values of a table, given the values of its inputs in order and the sizes of symbols.
pub fn evaluate(table: &[Number], given: &[Scalar], sizes: &Bindings) -> Result<Vec<Scalar>> {
    let mut given = given.iter();
    let mut values: Vec<Scalar> = Vec::with_capacity(table.len());
    for number in table {
        let value = match *number {
            Number::Input => *given.next().ok_or_else(|| error::internal("a number is missing"))?,
            Number::Size(dim) => match sizes.size(dim) {
                Some(n) => Scalar::Float(n as f64),
                None => return Err(error::unknown_size("call", dim)),
            },
            Number::Calculated(how, args) => {
                let [a, b] = args.map(|x| valued(x, &values));
                Scalar::Float(how.of(a?.as_f64(), b?.as_f64()))
            }
        };
        values.push(value);
    }
    Ok(values)
}

/// The value of a number, given the values of the table.
pub fn valued(x: Numeric, values: &[Scalar]) -> Result<Scalar> {
    match x {
        Numeric::Known(value) => Ok(value),
        Numeric::Told(i) => {
            values.get(i as usize).copied().ok_or_else(|| error::internal("a number is missing"))
        }
    }
}

/// A number under its name in another list.
pub fn renamed(x: Numeric, names: &[Numeric]) -> Numeric {
    x.told().and_then(|i| names.get(i as usize).copied()).unwrap_or(x)
}

impl Graph {
    /// Adds a number that is given at run time; returns its position in the table.
    pub fn given(&self) -> u32 {
        let numbers = &mut self.list.borrow_mut().numbers;
        numbers.push(Number::Input);
        numbers.len() as u32 - 1
    }

    /// Adds an entry and returns its number. An entry that exists already is not added twice, and a
    /// known number is returned as its value.
    pub fn define(&self, number: Number) -> Numeric {
        let is_open = match number {
            Number::Input => true,
            Number::Size(dim) => dim.known().is_none(),
            Number::Calculated(_, args) => args.iter().any(|x| x.told().is_some()),
        };
        // A symbolic size is not asked for its value.
        if !is_open && let Some(now) = number.now() {
            return Numeric::Known(now);
        }
        let mut list = self.list.borrow_mut();
        let same = |other: &Number| number != Number::Input && *other == number;
        let known = list.numbers.iter().position(same);
        let i = known.unwrap_or(list.numbers.len());
        if known.is_none() {
            list.numbers.push(number);
        }
        Numeric::Told(i as u32)
    }

    /// Looks at the value of an entry, and records the inputs that it depends on. An entry that
    /// depends on sizes alone is known, and a look pins its sizes.
    pub(super) fn look(&self, i: u32) -> Option<Scalar> {
        let number = self.list.borrow().numbers.get(i as usize).copied()?;
        match number {
            Number::Input => {
                self.looked.borrow_mut().push(i);
                None
            }
            Number::Size(_) => number.now(),
            Number::Calculated(how, args) => {
                // Both arguments are looked at, whether or not the first is known.
                let [a, b] = args.map(|x| match x {
                    Numeric::Known(value) => Some(value),
                    Numeric::Told(i) => self.look(i),
                });
                Number::Calculated(how, [a?.into(), b?.into()]).now()
            }
        }
    }

    /// Imports the table of another list, given numbers for its inputs and sizes for its symbols.
    /// Returns the number here for each entry there.
    pub fn import_numbers(
        &self,
        table: &[Number],
        inputs: &[Numeric],
        sizes: &Bindings,
    ) -> Result<Vec<Numeric>> {
        let mut inputs = inputs.iter();
        let mut names: Vec<Numeric> = Vec::with_capacity(table.len());
        for number in table {
            let missing = || error::internal("a number is missing");
            names.push(match *number {
                Number::Input => *inputs.next().ok_or_else(missing)?,
                Number::Size(dim) => self.define(Number::Size(sizes.resolve(dim))),
                Number::Calculated(how, args) => {
                    self.define(Number::Calculated(how, args.map(|x| renamed(x, &names))))
                }
            });
        }
        Ok(names)
    }
}

impl Graph {
    /// The numbers here for the entries of a list whose table began as this graph's.
    pub fn numbers_of(&self, list: &List) -> Vec<Numeric> {
        let mine = self.list().numbers.clone();
        let same = list.numbers.len() <= mine.len() && list.numbers == mine[..list.numbers.len()];
        let inputs = (0..).zip(&mine).filter(|(_, number)| matches!(number, Number::Input));
        let inputs: Vec<Numeric> = inputs.map(|(i, _)| Numeric::Told(i)).collect();
        match same {
            true => Vec::new(),
            false => self
                .import_numbers(&list.numbers, &inputs, &Bindings::default())
                .unwrap_or_default(),
        }
    }

    /// A kind of node whose bodies use this graph's table of numbers.
    pub(super) fn with_own_numbers(&self, kind: Kind) -> Kind {
        let Kind::ControlFlow(flow) = &kind else { return kind };
        let names: Vec<Vec<Numeric>> =
            flow.bodies.iter().map(|body| self.numbers_of(body)).collect();
        if names.iter().all(Vec::is_empty) {
            return kind;
        }
        let mut bodies = SmallVec::new();
        for (body, names) in flow.bodies.iter().zip(names) {
            let mut body = (**body).clone();
            body.rename_numbers(&names);
            body.numbers = self.list().numbers.clone();
            bodies.push(Arc::new(body));
        }
        Kind::ControlFlow(Arc::new(flow.with_bodies(bodies)))
    }
}

impl List {
    /// The values of the list's numbers, given the values of its numeric inputs and the sizes of
    /// symbols.
    pub fn evaluate_numbers(&self, given: &[Scalar], sizes: &Bindings) -> Result<Vec<Scalar>> {
        evaluate(&self.numbers, given, sizes)
    }

    /// Replaces every number by its new name, in bodies too. The table is the caller's.
    pub fn rename_numbers(&mut self, names: &[Numeric]) {
        for node in &mut self.nodes {
            for arg in &mut node.args {
                if let Arg::Number(value) = arg {
                    *value = renamed(*value, names);
                }
            }
            if let Kind::ControlFlow(flow) = &node.kind {
                let mut bodies = SmallVec::new();
                for body in &flow.bodies {
                    let mut body = (**body).clone();
                    body.rename_numbers(names);
                    bodies.push(Arc::new(body));
                }
                let results = flow.results.clone();
                node.kind = Kind::ControlFlow(Arc::new(ControlFlow {
                    kind: flow.kind.clone(),
                    bodies,
                    results,
                }));
            }
        }
    }
}
