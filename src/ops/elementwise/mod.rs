//! Elementwise ops: one scalar formula each, from which come the kernels for every dtype and
//! instruction set, the WGSL text, the gradient, the Python function, its stub, docs and tests.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use super::declare::{Classes, Param};
use super::emit::{Arg, Expr, OrThrow, throw};
use super::op::Op;
use super::probe::{self, Mask};
use super::rule::ElementRule;
use crate::dtype::{Class, Compute, DType, Scalar};
use crate::error::{self, Result};
use crate::scalar::wgsl::WgslType;
use crate::tile::TileKernel;

pub mod arithmetic;
pub mod bits;
pub mod comparison;
pub mod exponential;
pub mod trigonometric;

/// The dtype of a result from that of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultRule {
    /// The operands' dtype
    Same,
    /// bool
    Bool,
}

/// One elementwise op of the table.
pub struct Elementwise {
    /// The name, in Python too
    pub name: &'static str,
    /// The docstring
    pub doc: &'static str,
    /// One parameter per operand
    pub params: &'static [Param],
    /// The classes of dtypes it takes
    pub classes: Classes,
    /// The result's dtype
    pub result: ResultRule,
    /// Whether the first operand is a bool condition outside the promotion
    pub condition: bool,
    /// The kernel for a register type
    pub kernel: fn(Compute) -> Option<TileKernel>,
    /// The formula in WGSL: the lines of a body over operands `a`, `b`, `c`, and its result
    pub wgsl: fn(WgslType) -> Option<(String, String)>,
    /// The gradient by each operand
    pub vjp: &'static [ElementRule],
    /// Where tests sample each operand
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

    /// What the rule of operand `i` reads.
    pub fn residuals(&self, i: usize) -> Mask {
        self.masks.get_or_init(|| {
            let mut masks = [0; 3];
            for (mask, rule) in masks.iter_mut().zip(self.vjp) {
                *mask = probe::element_residuals(*rule, self.params.len());
            }
            masks
        })[i]
    }

    /// The common dtype of operands (`None` for a scalar), by promotion and weak scalars.
    pub fn promote(&self, operands: &[(Option<DType>, Option<Scalar>)]) -> Result<DType> {
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
        for (_, scalar) in operands {
            if let Some(value) = scalar {
                if !value.fits(dtype) {
                    return Err(error::overflow(self.name, value, dtype));
                }
            }
        }
        Ok(dtype)
    }

    /// Emits the op after promoting its operands; a call on numbers alone makes a tensor first.
    pub fn call<'e>(&'static self, args: &[Expr<'e>]) -> Expr<'e> {
        let operands: smallvec::SmallVec<[_; 3]> = args
            .iter()
            .map(|x| match x.as_scalar() {
                Some(value) => (None, Some(value)),
                None => (Some(x.dtype()), None),
            })
            .collect();
        let dtype = self.promote(&operands).or_throw();
        if let Err(error) = self.check_dtype(dtype) {
            throw(error);
        }
        let mut tensors = 0;
        let mut operands: smallvec::SmallVec<[Arg; 3]> = args
            .iter()
            .enumerate()
            .map(|(i, x)| match x.arg() {
                Arg::Node(_) if self.is_condition(i) => {
                    tensors += 1;
                    x.arg()
                }
                Arg::Node(_) => {
                    tensors += 1;
                    x.cast(dtype).arg()
                }
                scalar => scalar,
            })
            .collect();
        if tensors == 0 || (self.condition && matches!(operands[0], Arg::Scalar(_))) {
            let own = if self.condition { DType::Bool } else { dtype };
            operands[0] = args[0].full(own, crate::shape::Shape::scalar()).arg();
        }
        args[0].emit_with(Op::Map(self), &operands)
    }
}

/// The kernel of a clause for a register type, if the clause covers it.
#[macro_export]
macro_rules! clause_kernel {
    (Float, $kernel:ident, $F:ident, $compute:ident, $($t:ident)?) => {
        match $compute {
            $crate::dtype::Compute::F32 => Some($crate::tile::$kernel::<$F, $($t,)? f32>()),
            $crate::dtype::Compute::F64 => Some($crate::tile::$kernel::<$F, f64>()),
            _ => None,
        }
    };
}

/// Declares elementwise ops. Each clause is a formula for a class of register types, generic over
/// the trait of that class; results are the operands' type or bool.
///
/// ```text
/// elementwise! {
///     /// Hyperbolic tangent of each element.
///     method tanh(x) -> Same { Float: scalar::tanh(x) }
///     domain [-4.0, 4.0];
///     vjp(g, y) { x: g * (1.0 - y * y) }
/// }
/// ```
/// `vjp(g, y) { x: zero }` says that no gradient flows, on purpose; leaving an operand out does not
/// compile.
#[macro_export]
macro_rules! elementwise {
    (@method method) => { true };
    (@method function) => { false };

    (@classes) => { $crate::ops::declare::Classes::NONE };
    (@classes $($class:ident)+) => {
        $crate::ops::declare::Classes::NONE $(.or($crate::elementwise!(@class $class)))+
    };
    (@class Float) => { $crate::ops::declare::Classes::FLOAT };
    (@class Int) => { $crate::ops::declare::Classes::INT };
    (@class Signed) => { $crate::ops::declare::Classes::INT };
    (@class Numeric) => { $crate::ops::declare::Classes::NUMERIC };
    (@class Bool) => { $crate::ops::declare::Classes::BOOL };

    // The formula of a clause as a unit struct, then `$then` for each register type it covers.
    (@formula Float $out:ident ($($x:ident),+) $body:expr) => {
        $crate::elementwise!(@impl $crate::scalar::Float, $out, ($($x),+), $body);
    };
    (@formula Int $out:ident ($($x:ident),+) $body:expr) => {
        $crate::elementwise!(@impl $crate::scalar::Int, $out, ($($x),+), $body);
    };
    (@formula Numeric $out:ident ($($x:ident),+) $body:expr) => {
        $crate::elementwise!(@impl $crate::scalar::Scalar, $out, ($($x),+), $body);
    };
    (@formula Bool $out:ident ($($x:ident),+) $body:expr) => {
        $crate::elementwise!(@impl $crate::scalar::Truth, $out, ($($x),+), $body);
    };

    (@out Same $S:ident) => { $S };
    (@out Bool $S:ident) => { $S::Mask };

    (@impl $bound:path, $out:ident, ($a:ident), $body:expr) => {
        impl<S: $bound> $crate::tile::Map1<S> for F {
            type Out = $crate::elementwise!(@out $out S);
            #[inline(always)]
            fn map($a: S) -> Self::Out { $body }
        }
    };
    (@impl $bound:path, $out:ident, ($a:ident, $b:ident), $body:expr) => {
        impl<S: $bound> $crate::tile::Map2<S, S> for F {
            type Out = $crate::elementwise!(@out $out S);
            #[inline(always)]
            fn map($a: S, $b: S) -> Self::Out { $body }
        }
    };
    // The only ternary form has a condition first.
    (@impl $bound:path, $out:ident, ($c:ident, $a:ident, $b:ident), $body:expr) => {
        impl<S: $bound> $crate::tile::Map3<S::Mask, S, S> for F {
            type Out = $crate::elementwise!(@out $out S);
            #[inline(always)]
            fn map($c: S::Mask, $a: S, $b: S) -> Self::Out { $body }
        }
    };

    (@kernel ($a:ident) $T:ty) => { $crate::tile::kernel1::<F, $T>() };
    (@kernel ($a:ident, $b:ident) $T:ty) => { $crate::tile::kernel2::<F, $T, $T>() };
    (@kernel ($c:ident, $a:ident, $b:ident) $T:ty) => { $crate::tile::kernel3::<F, bool, $T, $T>() };

    (@kernels Float $xs:tt $compute:ident) => {
        match $compute {
            $crate::dtype::Compute::F32 => Some($crate::elementwise!(@kernel $xs f32)),
            $crate::dtype::Compute::F64 => Some($crate::elementwise!(@kernel $xs f64)),
            _ => None,
        }
    };
    (@kernels Int $xs:tt $compute:ident) => {
        match $compute {
            $crate::dtype::Compute::I32 => Some($crate::elementwise!(@kernel $xs i32)),
            $crate::dtype::Compute::I64 => Some($crate::elementwise!(@kernel $xs i64)),
            $crate::dtype::Compute::U32 => Some($crate::elementwise!(@kernel $xs u32)),
            $crate::dtype::Compute::U64 => Some($crate::elementwise!(@kernel $xs u64)),
            _ => None,
        }
    };
    (@kernels Numeric $xs:tt $compute:ident) => {
        match $compute {
            $crate::dtype::Compute::F32 => Some($crate::elementwise!(@kernel $xs f32)),
            $crate::dtype::Compute::F64 => Some($crate::elementwise!(@kernel $xs f64)),
            $crate::dtype::Compute::I32 => Some($crate::elementwise!(@kernel $xs i32)),
            $crate::dtype::Compute::I64 => Some($crate::elementwise!(@kernel $xs i64)),
            $crate::dtype::Compute::U32 => Some($crate::elementwise!(@kernel $xs u32)),
            $crate::dtype::Compute::U64 => Some($crate::elementwise!(@kernel $xs u64)),
            _ => None,
        }
    };
    (@kernels Bool $xs:tt $compute:ident) => {
        match $compute {
            $crate::dtype::Compute::Bool => Some($crate::elementwise!(@kernel $xs bool)),
            _ => None,
        }
    };

    (@print ($a:ident) $ty:expr, $T:ty) => {
        $crate::scalar::wgsl::print1::<$T, _>(|a| <F as $crate::tile::Map1<$T>>::map(a))
    };
    (@print ($a:ident, $b:ident) $ty:expr, $T:ty) => {
        $crate::scalar::wgsl::print2::<$T, _>(|a, b| <F as $crate::tile::Map2<$T, $T>>::map(a, b))
    };
    (@print ($c:ident, $a:ident, $b:ident) $ty:expr, $T:ty) => {
        $crate::scalar::wgsl::print3::<$T, _>(|c, a, b| {
            <F as $crate::tile::Map3<<$T as $crate::scalar::Truth>::Mask, $T, $T>>::map(c, a, b)
        })
    };
    (@wgsl Float $xs:tt $ty:ident) => {
        match $ty {
            $crate::scalar::wgsl::WgslType::F32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::F32)),
            _ => None,
        }
    };
    (@wgsl Int $xs:tt $ty:ident) => {
        match $ty {
            $crate::scalar::wgsl::WgslType::I32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::I32)),
            $crate::scalar::wgsl::WgslType::U32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::U32)),
            _ => None,
        }
    };
    (@wgsl Numeric $xs:tt $ty:ident) => {
        match $ty {
            $crate::scalar::wgsl::WgslType::F32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::F32)),
            $crate::scalar::wgsl::WgslType::I32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::I32)),
            $crate::scalar::wgsl::WgslType::U32 =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::U32)),
            _ => None,
        }
    };
    (@wgsl Bool $xs:tt $ty:ident) => {
        match $ty {
            $crate::scalar::wgsl::WgslType::Bool =>
                Some($crate::elementwise!(@print $xs $ty, $crate::scalar::wgsl::Bool)),
            _ => None,
        }
    };

    (@condition ($a:ident)) => { false };
    (@condition ($a:ident, $b:ident)) => { false };
    (@condition ($c:ident, $a:ident, $b:ident)) => { true };

    (@rule $xs:tt ($g:ident $(, $y:ident)?) zero) => { $crate::ops::rule::ElementRule::Zero };
    (@rule ($($x:ident),+) ($g:ident $(, $y:ident)?) $rule:expr) => {
        $crate::ops::rule::ElementRule::Formula({
            #[allow(unused_variables, unused_assignments)]
            fn formula<'e>(rule: &$crate::ops::rule::Rule<'_, 'e>) -> $crate::ops::emit::Expr<'e> {
                let $g = rule.g;
                $(let $y = rule.y;)?
                let mut i = 0;
                $( let $x = rule.args[i]; i += 1; )+
                $rule
            }
            formula
        })
    };

    ($(
        $(#[doc = $doc:literal])+
        $place:ident $name:ident $xs:tt -> $out:ident { $($class:ident: $body:expr),+ $(,)? }
        domain $([$low:literal, $high:literal]),+;
        vjp $gy:tt { $($wrt:ident: $rule:tt),+ $(,)? }
    )*) => {
        $( $crate::elementwise!(@one $(#[doc = $doc])+ $place $name $xs $out
            { $($class: $body),+ } [$([$low, $high]),+] $gy { $($wrt: $rule),+ }); )*
        /// The elementwise ops declared in this file.
        pub static TABLE: &[&$crate::ops::elementwise::Elementwise] = &[$(&ops::$name),*];
    };
}
