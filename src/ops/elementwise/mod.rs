//! Elementwise ops: one scalar formula each. The kernels for every dtype and instruction set, the
//! WGSL text, the gradient, the Python function, its stub, docs and tests come from it and its
//! declaration.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use smallvec::SmallVec;

use super::declare::{Classes, Param};
use super::emit::{Arg, Expr, OrThrow, throw};
use super::op::Op;
use super::probe::{self, Mask};
use super::rule::ElementRule;
use crate::dtype::{Class, Compute, DType, Numeric, Scalar};
use crate::error::{self, Result};

use crate::scalar::wgsl::WgslType;
use crate::shape::Shape;
use crate::small::small;
use crate::tile::TileKernel;
use element::ElementFn;
use text::Text;
use traced::TraceFn;

#[macro_use]
mod macros;

pub mod arithmetic;
pub mod bits;
pub mod comparison;
pub mod element;
pub mod exponential;
pub mod text;
pub mod traced;
pub mod trigonometric;

/// Every elementwise op, file by file.
pub fn tables() -> impl Iterator<Item = &'static Elementwise> {
    let files = [
        arithmetic::TABLE,
        comparison::TABLE,
        bits::TABLE,
        exponential::TABLE,
        trigonometric::TABLE,
        #[cfg(feature = "example-op")]
        super::example::elementwise::TABLE,
    ];
    files.into_iter().flatten().copied()
}

/// How a result's dtype follows from that of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultRule {
    /// The operands' dtype
    Same,
    /// bool
    Bool,
}

/// Where an op is in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A function and a method of `Tensor`
    Method,
    /// A function
    Function,
    /// Nowhere: other ops are built on it
    Hidden,
}

/// One elementwise op of the table.
pub struct Elementwise {
    /// The name, in Python too
    pub name: &'static str,
    /// Other names of it, in Python
    pub synonyms: &'static [&'static str],
    /// Where it is in Python
    pub place: Place,
    /// The docstring
    pub doc: &'static str,
    /// One parameter per operand
    pub params: &'static [Param],
    /// The classes of dtypes it takes
    pub classes: Classes,
    /// The result's dtype
    pub result: ResultRule,
    /// Whether the first operand is a bool condition, which takes no part in promotion
    pub condition: bool,
    /// Instances of the formula
    pub instance: fn(Want) -> Option<Instance>,
    /// The gradient rule of each operand
    pub vjp: &'static [ElementRule],
    /// The interval from which tests sample each operand
    pub domain: &'static [(f64, f64)],
    /// The residuals of each rule, found on first use
    pub masks: OnceLock<[Mask; 3]>,
}

impl PartialEq for Elementwise {
    fn eq(&self, other: &Elementwise) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for Elementwise {}
impl Hash for Elementwise {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
impl std::fmt::Debug for Elementwise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Elementwise {
    /// Whether operand `i` is a condition, which must be bool.
    pub fn is_condition(&self, i: usize) -> bool {
        self.condition && i == 0
    }

    /// The kernel for a register type.
    pub fn kernel(&self, compute: Compute) -> Option<TileKernel> {
        match (self.instance)(Want::Kernel(compute)) {
            Some(Instance::Kernel(kernel)) => Some(kernel),
            _ => None,
        }
    }

    /// The formula on one element at a time, for a register type.
    pub fn element(&self, compute: Compute) -> Option<ElementFn> {
        match (self.instance)(Want::Element(compute)) {
            Some(Instance::Element(element)) => Some(element),
            _ => None,
        }
    }

    /// The formula as WGSL for operands of a type (a condition is always bool).
    pub fn text(&self, ty: WgslType) -> Option<Text> {
        match (self.instance)(Want::Text(ty)) {
            Some(Instance::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The formula as single operations on lanes of a register type.
    pub fn trace(&self, compute: Compute) -> Option<TraceFn> {
        match (self.instance)(Want::Trace(compute)) {
            Some(Instance::Trace(trace)) => Some(trace),
            _ => None,
        }
    }

    /// The values that the gradient rule of operand `i` reads.
    pub fn residuals(&self, i: usize) -> Mask {
        self.masks.get_or_init(|| {
            let mut masks = [0; 3];
            for (mask, rule) in masks.iter_mut().zip(self.vjp) {
                *mask = probe::element_residuals(*rule, self.params.len());
            }
            masks
        })[i]
    }

    /// Whether a number as operand `i` can stand beside tensors of a dtype. A power of integers
    /// takes no negative integer exponent.
    #[inline]
    pub fn fits(&self, value: Numeric, i: usize, dtype: DType) -> bool {
        let is_power = i == 1 && std::ptr::eq(self, &arithmetic::pow);
        let refused =
            is_power && dtype.is_int() && matches!(value, Numeric::Known(Scalar::Int(..0)));
        value.fits(dtype) && !refused
    }

    /// The common dtype of operands (`None` for a scalar), by promotion and weak scalars.
    pub fn promote(&self, operands: &[(Option<DType>, Option<Numeric>)]) -> Result<DType> {
        let mut dtype: Option<DType> = None;
        for (i, (tensor, _)) in operands.iter().enumerate() {
            let Some(d) = *tensor else { continue };
            if self.is_condition(i) {
                continue;
            }
            dtype = Some(match dtype {
                None => d,
                Some(so_far) => {
                    so_far.promote(d).ok_or_else(|| error::no_promotion(self.name, so_far, d))?
                }
            });
        }
        let mut weak: Option<Class> = None;
        for (i, (_, scalar)) in operands.iter().enumerate() {
            if let (Some(value), false) = (scalar, self.is_condition(i)) {
                weak = weak.max(Some(value.class()));
            }
        }
        let dtype = match (dtype, weak) {
            (Some(dtype), Some(class)) => dtype.promote_weak(class),
            (Some(dtype), None) => dtype,
            (None, Some(class)) => DType::Bool.promote_weak(class),
            (None, None) => return Err(error::internal("an op without operands")),
        };
        for (i, (_, scalar)) in operands.iter().enumerate() {
            if let Some(value) = scalar
                && !self.fits(*value, i, dtype)
            {
                if value.fits(dtype) {
                    let facts = format!("got {value} beside {dtype}; cast to a float first");
                    return Err(error::bad_value(
                        self.name,
                        "no negative powers of integers",
                        facts,
                    ));
                }
                return Err(error::overflow(self.name, value, dtype));
            }
        }
        Ok(dtype)
    }

    /// The operands unchanged, where they need no promotion: tensors of one dtype that the op
    /// takes, and numbers that fit it.
    fn plain(&self, args: &[Expr<'_>]) -> Option<[Arg; 3]> {
        if self.condition {
            return None;
        }
        let mut dtype: Option<DType> = None;
        let mut out = [Arg::Number(Numeric::Known(Scalar::Bool(false))); 3];
        for (place, x) in out.iter_mut().zip(args) {
            *place = x.arg();
            if let Arg::Node(_) = x.arg() {
                let own = x.dtype();
                if *dtype.get_or_insert(own) != own {
                    return None;
                }
            }
        }
        let dtype = dtype.filter(|d| self.classes.contains(d.class()))?;
        let fits = |(i, x): (usize, &Expr<'_>)| match x.arg() {
            Arg::Number(s) => s.class() <= dtype.class() && self.fits(s, i, dtype),
            Arg::Node(_) => true,
        };
        args.iter().enumerate().all(fits).then_some(out)
    }

    /// The operands, if all are numbers and the op computes with floats.
    fn numbers(&self, args: &[Expr<'_>], dtype: DType) -> Option<[Numeric; 2]> {
        if self.condition || !dtype.is_float() {
            return None;
        }
        let number = |x: &Expr<'_>| match x.arg() {
            Arg::Number(value) => Some(value),
            Arg::Node(_) => None,
        };
        let first = number(args.first()?)?;
        Some([first, args.get(1).map_or(Some(first), number)?])
    }

    /// Emits the op after promoting its operands. If all operands are floats without a tensor, the
    /// result is a number, computed in float64; other calls on numbers alone make a tensor of one
    /// operand first.
    pub fn call<'e>(&'static self, args: &[Expr<'e>]) -> Expr<'e> {
        if let Some(plain) = self.plain(args) {
            return args[0].emit_with(Op::Map(self), &plain[..args.len()]);
        }
        let operands: SmallVec<[_; 3]> = args
            .iter()
            .map(|x| match x.arg() {
                Arg::Number(value) => (None, Some(value)),
                Arg::Node(_) => (Some(x.dtype()), None),
            })
            .collect();
        let dtype = self.promote(&operands).or_throw();
        if let Err(error) = self.check_dtype(dtype) {
            throw(error);
        }
        if let Some(numbers) = self.numbers(args, dtype) {
            return Expr::calculated(args[0].cx(), self, numbers);
        }
        let operand = |i: usize, x: &Expr<'e>| match x.arg() {
            Arg::Node(_) if !self.is_condition(i) => x.cast(dtype).arg(),
            plain @ (Arg::Node(_) | Arg::Number(_)) => plain,
        };
        let mut operands: SmallVec<[Arg; 3]> =
            small(args.iter().enumerate().map(|(i, x)| operand(i, x)));
        // A node needs a tensor for its condition, and one more tensor, which decides the result's
        // dtype.
        let scalar = |i: usize| matches!(operands[i], Arg::Number(_));
        let lone = (usize::from(self.condition)..operands.len()).all(scalar);
        let unconditional = self.condition && scalar(0);
        let tensor = |i: usize, dtype: DType| args[i].full(dtype, Shape::scalar()).arg();
        if lone {
            let first = usize::from(self.condition);
            operands[first] = tensor(first, dtype);
        }
        if unconditional {
            operands[0] = tensor(0, DType::Bool);
        }
        args[0].emit_with(Op::Map(self), &operands)
    }
}

/// The instance of a formula that is asked for.
#[derive(Clone, Copy)]
pub enum Want {
    /// The kernel for a register type
    Kernel(Compute),
    /// The function of one element for a register type
    Element(Compute),
    /// The text for a WGSL type
    Text(WgslType),
    /// The operations for a register type
    Trace(Compute),
}

/// One instance of a formula.
pub enum Instance {
    /// The compiled kernel
    Kernel(TileKernel),
    /// The function of one element
    Element(ElementFn),
    /// The WGSL text
    Text(Text),
    /// The function that notes the operations
    Trace(TraceFn),
}
