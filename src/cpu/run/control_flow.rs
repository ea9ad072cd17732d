//! Control-flow ops and host ops, run on the CPU.
//!
//! A round reads one copy of the carries and writes the other; the last round of a scan writes to
//! the memory that the surrounding plan wants the results in. Operands of a scan are read, and its
//! stacked results written, element by element in place.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Lowered;
use super::prepared::Prepared;
use crate::array::Array;
use crate::cpu;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::{Results, interruption};
use crate::graph::ControlFlowKind;
use crate::layout::Layout;
use crate::ops::op::Type;
use crate::schedule::Bodies;
use crate::shape::{Dim, Shape};

/// For each result the array to write to, or `None` where a fresh one is to be made.
type Targets = SmallVec<[Option<Array>; 2]>;

/// A control-flow op with the lowered templates of its bodies.
struct Run<'a> {
    flow: &'a Bodies,
    lowered: &'a [Lowered],
    /// By body: its prepared steps, if there are any
    prepared: SmallVec<[Option<Arc<Prepared>>; 2]>,
}

/// Computes the results, in the targets where they are given.
pub(super) fn run(
    lowered: &[Lowered],
    flow: &Bodies,
    args: &[&Array],
    numbers: &[Scalar],
    targets: Targets,
) -> Result<Results> {
    let bodies = lowered.iter().zip(flow.plans());
    let prepared = bodies.map(|(lowered, plan)| lowered.prepared(plan)).collect();
    Run { flow, lowered, prepared }.run(args, numbers, targets)
}

impl Run<'_> {
    /// Runs a body, into these arrays where they are given.
    fn body(
        &self,
        i: usize,
        args: &[&Array],
        numbers: &[Scalar],
        into: &[Option<Array>],
    ) -> Result<Results> {
        let (lowered, prepared) = (&self.lowered[i], self.prepared[i].as_deref());
        lowered.run_into(&self.flow.plans()[i], prepared, args, numbers, into)
    }

    fn run(&self, args: &[&Array], numbers: &[Scalar], targets: Targets) -> Result<Results> {
        match *self.flow.kind() {
            ControlFlowKind::Host(_) if !self.lowered.is_empty() => {
                self.body(0, args, numbers, &targets)
            }
            ControlFlowKind::Host(ref op) => {
                let found = op.run(args, self.flow.results())?;
                deliver(found.into(), &targets)
            }
            ControlFlowKind::Branch => {
                let last = self.lowered.len() as i64 - 1;
                let body = integer(args[0])?.clamp(0, last) as usize;
                self.body(body, &args[1..], numbers, &targets)
            }
            ControlFlowKind::While { carry, history: false } => {
                self.repeat(args, numbers, carry as usize, targets)
            }
            ControlFlowKind::While { carry, history: true } => {
                self.repeat_and_keep(args, numbers, carry as usize, targets)
            }
            ControlFlowKind::Scan { .. } => self.scan(args, numbers, targets),
        }
    }

    /// Whether the condition of a loop holds.
    fn holds(&self, operands: &[&Array], numbers: &[Scalar], into: &Array) -> Result<bool> {
        let truth = self.body(0, operands, numbers, &[Some(into.clone())])?;
        Ok(first_byte(&truth[0]) != 0)
    }

    /// A loop that returns only its last carries.
    fn repeat(
        &self,
        args: &[&Array],
        numbers: &[Scalar],
        carry: usize,
        targets: Targets,
    ) -> Result<Results> {
        let mut there = filled(targets.clone(), self.flow.results())?;
        let mut spare = fresh(&self.flow.results()[..carry])?;
        let truth = Array::uninit(DType::Bool, Shape::scalar())?;
        let (captures, mut first) = (&args[carry..], true);
        loop {
            // A body without steps would never check for an interruption.
            interruption()?;
            let mut operands: SmallVec<[&Array; 8]> = SmallVec::new();
            match first {
                true => operands.extend_from_slice(&args[..carry]),
                false => operands.extend(there.iter()),
            }
            operands.extend_from_slice(captures);
            if !self.holds(&operands, numbers, &truth)? {
                break;
            }
            self.body(1, &operands, numbers, &some(&spare))?;
            drop(operands);
            std::mem::swap(&mut there, &mut spare);
            first = false;
        }
        if first {
            there = args[..carry].iter().map(|&x| x.clone()).collect();
        }
        deliver(there, &targets)
    }

    /// A loop that also returns each carry stacked over the rounds, and the count of rounds.
    fn repeat_and_keep(
        &self,
        args: &[&Array],
        numbers: &[Scalar],
        carry: usize,
        targets: Targets,
    ) -> Result<Results> {
        let truth = Array::uninit(DType::Bool, Shape::scalar())?;
        let mut now: Results = args[..carry].iter().map(|&x| x.clone()).collect();
        let mut rounds: Vec<Results> = Vec::new();
        loop {
            interruption()?;
            let mut operands: SmallVec<[&Array; 8]> = now.iter().collect();
            operands.extend_from_slice(&args[carry..]);
            if !self.holds(&operands, numbers, &truth)? {
                break;
            }
            let next = self.body(1, &operands, numbers, &[])?;
            drop(operands);
            rounds.push(std::mem::replace(&mut now, next));
        }
        for k in 0..carry {
            let one = Type::new(args[k].dtype, args[k].shape().clone());
            let all = Array::uninit(one.dtype, stacked(&one.shape, rounds.len()))?;
            for (i, round) in rounds.iter().enumerate() {
                // SAFETY: fresh.
                unsafe { cpu::copy::copy_into(&element(&all, i), &round[k]) };
            }
            now.push(all);
        }
        now.push(cpu::fill_i64(rounds.len() as i64)?);
        deliver(now, &targets)
    }

    fn scan(&self, args: &[&Array], numbers: &[Scalar], targets: Targets) -> Result<Results> {
        let ControlFlowKind::Scan { carry, xs, length, reverse } = *self.flow.kind() else {
            return Err(error::internal("a scan of another kind"));
        };
        let (carry, xs) = (carry as usize, xs as usize);
        let given = args[carry..carry + xs].first().map(|x| x.shape()[0]);
        let Some(n) = given.unwrap_or(length).known() else {
            return Err(error::unknown_size("scan", length));
        };
        let types: SmallVec<[Type; 2]> = self
            .flow
            .results()
            .iter()
            .enumerate()
            .map(|(k, ty)| with_length(ty, k >= carry, n))
            .collect();
        let results = filled(targets, &types)?;
        let spare = if n > 1 { fresh(&types[..carry])? } else { Results::new() };
        for round in 0..n {
            interruption()?;
            let at = if reverse { n - 1 - round } else { round };
            // The carries alternate between the two copies, so that the last round writes the
            // results.
            let (to, from) = match (n - 1 - round) % 2 {
                0 => (&results, &spare),
                _ => (&spare, &results),
            };
            let mut into: Targets = to[..carry].iter().cloned().map(Some).collect();
            into.extend(results[carry..].iter().map(|y| Some(element(y, at))));
            let elements: SmallVec<[Array; 4]> =
                args[carry..carry + xs].iter().map(|x| element(x, at)).collect();
            let mut operands: SmallVec<[&Array; 8]> = SmallVec::new();
            match round {
                0 => operands.extend_from_slice(&args[..carry]),
                _ => operands.extend(from[..carry].iter()),
            }
            operands.extend(elements.iter());
            operands.extend_from_slice(&args[carry + xs..]);
            self.body(0, &operands, numbers, &into)?;
        }
        if n == 0 {
            for (to, from) in results.iter().zip(&args[..carry]) {
                // SAFETY: the targets are no operands.
                unsafe { cpu::copy::copy_into(to, from) };
            }
        }
        Ok(results)
    }
}

/// Element `i` of the leading axis, as a view.
fn element(x: &Array, i: usize) -> Array {
    let rest: Shape = x.shape().dims()[1..].iter().copied().collect();
    if x.is_contiguous() {
        let offset = x.layout.offset() + i * rest.count();
        return x.view(Layout::contiguous_at(rest, offset));
    }
    let strides = x.layout.strides();
    let offset = x.layout.offset().wrapping_add_signed(i as isize * strides[0]);
    x.view(Layout::strided(rest, &strides[1..], offset))
}

fn stacked(one: &Shape, n: usize) -> Shape {
    std::iter::once(Dim::new(n)).chain(one.dims().iter().copied()).collect()
}

/// The type of a scan's result once the length is known.
fn with_length(ty: &Type, is_stacked: bool, n: usize) -> Type {
    let mut ty = ty.clone();
    if is_stacked {
        ty.shape.dims_mut()[0] = Dim::new(n);
    }
    ty
}

fn some(arrays: &[Array]) -> Targets {
    arrays.iter().cloned().map(Some).collect()
}

fn fresh(types: &[Type]) -> Result<Results> {
    types.iter().map(|ty| Array::uninit(ty.dtype, ty.shape.clone())).collect()
}

/// The targets, with fresh arrays where there is none.
fn filled(targets: Targets, types: &[Type]) -> Result<Results> {
    let one = |(target, ty): (Option<Array>, &Type)| match target {
        Some(array) => Ok(array),
        None => Array::uninit(ty.dtype, ty.shape.clone()),
    };
    targets.into_iter().zip(types).map(one).collect()
}

/// The results, copied to their targets where they are given and the result is not there yet.
fn deliver(results: Results, targets: &[Option<Array>]) -> Result<Results> {
    let put = |(result, target): (Array, &Option<Array>)| match target {
        Some(target) => {
            if target.ptr() != result.ptr() {
                // SAFETY: the targets are no operands, and nobody reads them yet.
                unsafe { cpu::copy::copy_into(target, &result) };
            }
            target.clone()
        }
        None => result,
    };
    Ok(results.into_iter().zip(targets).map(put).collect())
}

fn first_byte(x: &Array) -> u8 {
    // SAFETY: the array is a scalar.
    unsafe { *x.ptr() }
}

/// A scalar of int64.
fn integer(x: &Array) -> Result<i64> {
    let x = cpu::cast(x, DType::I64)?;
    // SAFETY: the array is a scalar of int64.
    Ok(unsafe { x.ptr().cast::<i64>().read() })
}
