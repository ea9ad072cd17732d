//! Running a formula on types alone, to find its result's type and the operands it reads.

use std::cell::RefCell;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::declare::{Arguments, Composite};
use super::emit::{Arg, Emit, Expr, Id, OrThrow, catch, throw};
use super::number::Number;
use super::op::{Call, Op, OperandType, Type, Types};
use super::rule::{ElementRule, Rule};
use super::scan::{self, Scan, node_type};
use super::structural::OpKind;
use crate::cache::Cache;
use crate::dtype::{Numeric, Scalar};
use crate::error::{self, Result};
use crate::fork::Lazy;
use crate::shape::hint;

/// Which values a rule reads: bit `i` for operand `i`, [`RESULT`] for the result.
pub type Mask = u64;

/// The first result's bit in a [`Mask`]; further results have the bits below it, in falling order.
pub const RESULT: Mask = 1 << 63;

/// The bits of operands in a [`Mask`].
pub const OPERANDS: Mask = (1 << 48) - 1;

/// An emission that keeps types only.
#[derive(Default)]
struct Probe {
    types: RefCell<Vec<Type>>,
    read: RefCell<Vec<bool>>,
}

impl Probe {
    fn push(&self, ty: Type) -> Id {
        let mut types = self.types.borrow_mut();
        types.push(ty);
        self.read.borrow_mut().push(false);
        Id(types.len() as u32 - 1)
    }

    fn operand(&self, ty: OperandType<'_>) -> Arg {
        match ty {
            OperandType::Tensor(dtype, shape) => {
                Arg::Node(self.push(Type::new(dtype, shape.clone())))
            }
            OperandType::Scalar(value) => Arg::Number(value),
        }
    }

    fn mark(&self, arg: Arg) {
        if let Arg::Node(id) = arg {
            self.read.borrow_mut()[id.0 as usize] = true;
        }
    }

    /// The types of a scan's results, from those of what a round reads.
    fn round(&self, scan: &Scan<'_>, inputs: SmallVec<[Type; 8]>) -> SmallVec<[Type; 4]> {
        let input = |ty| Expr::new(self, Arg::Node(self.push(ty)));
        let inputs: SmallVec<[Expr<'_>; 8]> = inputs.into_iter().map(input).collect();
        let found = (scan.round)(self, &inputs);
        scan.results(found.iter().map(|x| self.ty(x.node())))
    }

    fn was_read(&self, arg: Arg) -> bool {
        matches!(arg, Arg::Node(id) if self.read.borrow()[id.0 as usize])
    }
}

impl Emit for Probe {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        args.iter().for_each(|&arg| self.mark(arg));
        let found = {
            let types = self.types.borrow();
            let operands: Vec<OperandType<'_>> =
                args.iter().map(|&arg| operand_type(&types, arg)).collect();
            op.infer_all(&operands).or_throw()
        };
        let first = Id(self.types.borrow().len() as u32);
        for ty in found {
            self.push(ty);
        }
        first
    }

    fn result(&self, id: Id, k: usize) -> Id {
        Id(id.0 + k as u32)
    }

    /// One round tells the types of all.
    fn scan(&self, scan: &Scan<'_>) -> scan::Results {
        scan.operands().for_each(|arg| self.mark(arg));
        let found = self.round(scan, scan.inputs(|arg| node_type(self, arg)));
        let is_carry =
            found.iter().zip(scan.carry).all(|(ty, &arg)| node_type(self, arg).equals(ty));
        if !is_carry || found.len() < scan.carry.len() {
            throw(error::internal("a round of a scan changes the type of a carry"));
        }
        found.into_iter().map(|ty| self.push(ty)).collect()
    }

    fn ty(&self, id: Id) -> Type {
        self.types.borrow()[id.0 as usize].clone()
    }

    fn keeps(&self, _: &'static Composite) -> bool {
        false
    }

    fn number(&self, number: Number) -> Numeric {
        // Types do not depend on the number, so no question is asked of the scope, and any float
        // will do.
        Numeric::from(match number {
            Number::Size(dim) => Scalar::Float(hint(dim).unwrap_or(1) as f64),
            other @ (Number::Input | Number::Calculated(..)) => {
                other.now().unwrap_or(Scalar::Float(f64::NAN))
            }
        })
    }
}

fn operand_type(types: &[Type], arg: Arg) -> OperandType<'_> {
    match arg {
        Arg::Node(id) => {
            OperandType::Tensor(types[id.0 as usize].dtype, &types[id.0 as usize].shape)
        }
        Arg::Number(value) => OperandType::Scalar(value),
    }
}

/// The types of the results of a composite's call node.
pub fn call_types(call: &Call, args: &[OperandType<'_>]) -> Result<Types> {
    let probe = Probe::default();
    let operands: Vec<Arg> = args.iter().map(|&ty| probe.operand(ty)).collect();
    let arguments = Arguments { cx: &probe, attributes: &call.attributes, operands: &operands };
    let found = catch(|| {
        let found = call.composite.formula(&arguments);
        found.iter().map(|x| x.tensor().arg()).collect::<SmallVec<[Arg; 2]>>()
    })?;
    let ty = |arg: Arg| match arg {
        Arg::Node(id) => Ok(probe.ty(id)),
        Arg::Number(_) => Err(error::internal("a composite without a tensor result")),
    };
    let types: Types = found.into_iter().map(ty).collect::<Result<_>>()?;
    match types.len() == call.composite.results() {
        true => Ok(types),
        false => Err(error::internal(format!("{} has other results", call.composite.name))),
    }
}

/// The types of the results of a scan in an emission.
pub fn scan_types(cx: &dyn Emit, scan: &Scan<'_>) -> Result<SmallVec<[Type; 4]>> {
    let probe = Probe::default();
    catch(|| probe.round(scan, scan.inputs(|arg| node_type(cx, arg))))
}

impl Op {
    /// The values that the gradient rule of operand `wrt` reads: the tape must save them.
    ///
    /// Structural ops state them in their definitions (a test compares these with
    /// [`probed_residuals`]); elementwise rules are probed once, a composite's rule once per
    /// attributes and ranks.
    pub fn residuals(
        &self,
        args: &[OperandType<'_>],
        results: &[Type],
        wrt: usize,
    ) -> Result<Mask> {
        match self.kind() {
            OpKind::Call(call) => call_residuals(self, call, args, results, wrt),
            OpKind::Map(_) | OpKind::Structural(_) => {
                Ok(self.declared_residuals(args.len(), wrt).unwrap_or_default())
            }
        }
    }

    /// The same of an op that is no call, whose declaration says so without the types.
    pub fn declared_residuals(&self, args: usize, wrt: usize) -> Option<Mask> {
        match self.kind() {
            OpKind::Map(def) => Some(def.residuals(wrt)),
            OpKind::Call(_) => None,
            OpKind::Structural(def) => Some((def.residuals)(self, args, wrt)),
        }
    }
}

/// A composite's residuals, probed once per attributes and ranks.
pub fn call_residuals(
    op: &Op,
    call: &Call,
    args: &[OperandType<'_>],
    results: &[Type],
    wrt: usize,
) -> Result<Mask> {
    // The values that a derived gradient reads are known only once it is derived, at the first
    // backward, so all operands are saved.
    if !call.composite.has_vjp() {
        return Ok(OPERANDS);
    }
    type Key = (Call, SmallVec<[u8; 6]>, usize);
    static KNOWN: Lazy<Mutex<Cache<Key, Mask>>> = Lazy::new(|| Mutex::new(Cache::new(4096)));
    let rank = |arg: &OperandType<'_>| match arg {
        OperandType::Tensor(_, shape) => shape.rank() as u8 + 1,
        OperandType::Scalar(_) => 0,
    };
    let key = (call.clone(), args.iter().map(rank).collect(), wrt);
    if let Some(mask) = KNOWN.lock().get(&key) {
        return Ok(*mask);
    }
    let mask = probed_residuals(op, args, results, wrt)?;
    let _evicted = KNOWN.lock().insert(key, mask);
    Ok(mask)
}

/// The values that the gradient rule of operand `wrt` reads, found by running it on types.
pub fn probed_residuals(
    op: &Op,
    args: &[OperandType<'_>],
    results: &[Type],
    wrt: usize,
) -> Result<Mask> {
    let probe = Probe::default();
    let operands: Vec<Arg> = args.iter().map(|&ty| probe.operand(ty)).collect();
    let node = |ty: &Type| Arg::Node(probe.push(ty.clone()));
    let values: SmallVec<[Arg; 2]> = results.iter().map(node).collect();
    let given: SmallVec<[Arg; 2]> = results.iter().map(node).collect();
    catch(|| {
        let exprs: Vec<Expr<'_>> = operands.iter().map(|&arg| Expr::new(&probe, arg)).collect();
        let ys: Vec<Expr<'_>> = values.iter().map(|&arg| Expr::new(&probe, arg)).collect();
        let gs: Vec<Option<Expr<'_>>> =
            given.iter().map(|&arg| Some(Expr::new(&probe, arg))).collect();
        let rule = Rule::new(&exprs, &ys, &gs);
        let wanted: SmallVec<[bool; 8]> = (0..args.len()).map(|i| i == wrt).collect();
        op.vjp(&rule, &wanted, |_, cotangent| probe.mark(cotangent.arg()));
    })?;
    let read = operands.iter().enumerate().filter(|(_, arg)| probe.was_read(**arg));
    let mask = read.fold(0, |mask, (i, _)| mask | 1 << i);
    let read = values.iter().enumerate().filter(|(_, y)| probe.was_read(**y));
    Ok(read.fold(mask, |mask, (k, _)| mask | RESULT >> k))
}

/// The residuals of an elementwise rule, which do not depend on the types.
pub fn element_residuals(rule: ElementRule, arity: usize) -> Mask {
    if rule.is_zero() {
        return 0;
    }
    let probe = Probe::default();
    let ty = Type::new(crate::dtype::DType::F32, crate::shape::Shape::scalar());
    let args: Vec<Arg> = (0..arity + 2).map(|_| Arg::Node(probe.push(ty.clone()))).collect();
    let exprs: Vec<Expr<'_>> = args.iter().map(|&arg| Expr::new(&probe, arg)).collect();
    let found = catch(|| {
        let g = Some(exprs[arity + 1]);
        let operands = Rule::of_one(&exprs[..arity], &exprs[arity], &g);
        rule.cotangent(&operands).iter().for_each(|x| probe.mark(x.arg()));
    });
    // A rule that does not run on float scalars counts as reading everything.
    let all = found.is_err();
    let mask =
        (0..arity).filter(|&i| all || probe.was_read(args[i])).fold(0, |mask, i| mask | 1 << i);
    if all || probe.was_read(args[arity]) { mask | RESULT } else { mask }
}
