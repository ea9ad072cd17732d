//! The `elementwise!` macro.

/// Declares elementwise ops. Each clause is a formula for a class of register types, generic over
/// the trait of that class; results are the operands' type or bool.
///
/// ```text
/// elementwise! {
///     /// Hyperbolic tangent of each element.
///     Method tanh(x) -> Same { Float: scalar::tanh(x) }
///     domain [-4.0, 4.0];
///     vjp(g, y) { x: (g * (1.0 - y * y)) }
/// }
/// ```
/// `=> except(test, formula)` after the formula of one operand gives another one for rare elements;
/// it is no part of the WGSL text. `=> beyond(test, formula)` says besides that it holds for all
/// elements, so that those beside a rare one may be computed by it too. `also(absolute)` behind the
/// formulas gives other names, which other libraries have for the same thing. `x: zero` says that
/// no gradient flows, on purpose; leaving an operand out does not compile. `Hidden` instead of
/// `Method` or `Function` keeps the op out of Python. The form with three operands takes a
/// condition first.
macro_rules! elementwise {
    ($(
        $(#[doc = $doc:literal])+
        $place:ident $name:ident $xs:tt $(as $python:literal)? -> $out:ident {
            $($class:ident: $body:expr $(=> $when:ident($test:expr, $rare:expr))?),+ $(,)?
        }
        $(also($($synonym:ident),+))?
        domain $([$low:literal, $high:literal]),+;
        vjp $gy:tt { $($wrt:ident: $rule:tt),+ $(,)? }
    )*) => {
        $(
            $(#[doc = $doc])+
            #[allow(non_upper_case_globals)]
            pub static $name: $crate::ops::elementwise::Elementwise = {
                use $crate::ops::elementwise::{Elementwise, Instance, Place, ResultRule, Want};
                #[allow(unused_imports)]
                use std::num::Wrapping as W;
                fn instance(want: Want) -> Option<Instance> {
                    $({
                        struct F;
                        elementwise!(@formula $class $out $xs $body $(, $when, $test, $rare)?);
                        let found: Option<Instance> = elementwise!(@instance $class $xs want);
                        if found.is_some() {
                            return found;
                        }
                    })+
                    None
                }
                Elementwise {
                    name: elementwise!(@name $name $($python)?),
                    synonyms: &[$($(stringify!($synonym)),+)?],
                    place: Place::$place,
                    doc: concat!($($doc, "\n"),+),
                    params: elementwise!(@params $xs),
                    classes: $crate::ops::declare::Classes::NONE
                        $(.or(elementwise!(@class $class)))+,
                    result: ResultRule::$out,
                    condition: elementwise!(@condition $xs),
                    instance,
                    vjp: &[$(elementwise!(@rule $xs $gy $rule)),+],
                    domain: &[$(($low, $high)),+],
                    masks: std::sync::OnceLock::new(),
                }
            };
            elementwise!(@arity $xs, $($wrt),+);
            elementwise!(@method $name $xs);
        )*
        /// The elementwise ops declared in this file.
        pub static TABLE: &[&$crate::ops::elementwise::Elementwise] = &[$(&$name),*];
    };

    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $python:literal) => { $python };
    (@params ($($x:ident),+)) => {
        &[$($crate::ops::declare::Param {
            name: stringify!($x),
            kind: $crate::ops::declare::ParamKind::Tensor($crate::ops::declare::Classes::ANY),
            default: None,
            keyword_only: false,
        }),+]
    };
    (@class Float) => { $crate::ops::declare::Classes::FLOAT };
    (@class Int) => { $crate::ops::declare::Classes::INT };
    (@class Numeric) => { $crate::ops::declare::Classes::NUMERIC };
    (@class Bool) => { $crate::ops::declare::Classes::BOOL };

    // The formula of a clause, as an implementation on the clause's unit struct. Truth values are
    // masks, natively and in WGSL.
    (@formula Float $out:ident $xs:tt $body:expr $(, $when:ident, $test:expr, $rare:expr)?) => {
        elementwise!(
            @impl [S: $crate::scalar::Float] [S] [S::Mask] $out $xs $body $(, $when, $test, $rare)?
        );
    };
    (@formula Int $out:ident $xs:tt $body:expr) => {
        elementwise!(@impl [S: $crate::scalar::Int] [S] [S::Mask] $out $xs $body);
    };
    (@formula Numeric $out:ident $xs:tt $body:expr) => {
        elementwise!(@impl [S: $crate::scalar::Scalar] [S] [S::Mask] $out $xs $body);
    };
    (@formula Bool $out:ident $xs:tt $body:expr) => {
        elementwise!(@impl [M: $crate::scalar::Mask] [M] [M] $out $xs $body);
    };
    (@holds except) => { false };
    (@holds beyond) => { true };
    (@out Same [$s:ty] [$m:ty]) => { $s };
    (@out Bool [$s:ty] [$m:ty]) => { $m };
    (@impl [$($bound:tt)+] [$s:ty] [$m:ty] $out:ident ($a:ident) $body:expr
        $(, $when:ident, $test:expr, $rare:expr)?
    ) => {
        impl<$($bound)+> $crate::tile::Map1<$s> for F {
            type Out = elementwise!(@out $out [$s] [$m]);
            #[inline(always)]
            fn map($a: $s) -> Self::Out { $body }
            $(
                const RARE_HOLDS: bool = elementwise!(@holds $when);
                #[inline(always)]
                fn is_rare($a: $s) -> bool { $test }
                #[inline(always)]
                fn rare($a: $s) -> Self::Out { $rare }
            )?
        }
    };
    (@impl [$($bound:tt)+] [$s:ty] [$m:ty] $out:ident ($a:ident, $b:ident) $body:expr) => {
        impl<$($bound)+> $crate::tile::Map2<$s, $s> for F {
            type Out = elementwise!(@out $out [$s] [$m]);
            #[inline(always)]
            fn map($a: $s, $b: $s) -> Self::Out { $body }
        }
    };
    (@impl [$($bound:tt)+] [$s:ty] [$m:ty] $out:ident ($c:ident, $a:ident, $b:ident) $body:expr) => {
        impl<$($bound)+> $crate::tile::Map3<$m, $s, $s> for F {
            type Out = elementwise!(@out $out [$s] [$m]);
            #[inline(always)]
            fn map($c: $m, $a: $s, $b: $s) -> Self::Out { $body }
        }
    };

    // The instances of a clause: which register types, WGSL types and lanes its class covers.
    (@instance Float $xs:tt $want:ident) => {
        elementwise!(@match $xs $want [F32 f32, F64 f64] [F32 f32] [F32 f32])
    };
    (@instance Int $xs:tt $want:ident) => {
        elementwise!(@match $xs $want [I32 W<i32>, I64 W<i64>, U32 W<u32>, U64 W<u64>]
            [I32 i32, U32 u32, I64 i64, U64 u64] [])
    };
    (@instance Numeric $xs:tt $want:ident) => {
        elementwise!(@match $xs $want
            [I32 W<i32>, I64 W<i64>, U32 W<u32>, U64 W<u64>, F32 f32, F64 f64]
            [F32 f32, I32 i32, U32 u32, I64 i64, U64 u64] [F32 f32])
    };
    (@instance Bool $xs:tt $want:ident) => {
        elementwise!(@match $xs $want [Bool bool] [Bool bool] [Bool bool])
    };
    (@match $xs:tt $want:ident [$($compute:ident $t:ty),+] [$($text:ident $word:ident),+]
        [$($lane:ident $traced:ident),*]
    ) => {
        match $want {
            $(Want::Kernel($crate::dtype::Compute::$compute) =>
                Some(Instance::Kernel(elementwise!(@kernel $xs $t))),
            Want::Element($crate::dtype::Compute::$compute) =>
                Some(Instance::Element(elementwise!(@element $xs $t))),)+
            $(Want::Text($crate::scalar::wgsl::WgslType::$text) =>
                Some(elementwise!(@print $xs $word)),)+
            $(Want::Trace($crate::dtype::Compute::$lane) =>
                Some(Instance::Trace(elementwise!(@trace $xs $traced))),)*
            _ => None,
        }
    };
    (@kernel ($a:ident) $t:ty) => { $crate::tile::formula1::<F, $t>() };
    (@kernel ($a:ident, $b:ident) $t:ty) => { $crate::tile::formula2::<F, $t>() };
    (@kernel ($c:ident, $a:ident, $b:ident) $t:ty) => { $crate::tile::formula3::<F, $t>() };
    (@element ($a:ident) $t:ty) => { $crate::ops::elementwise::element::element1::<F, $t>() };
    (@element ($a:ident, $b:ident) $t:ty) => {
        $crate::ops::elementwise::element::element2::<F, $t, $t>()
    };
    (@element ($c:ident, $a:ident, $b:ident) $t:ty) => {
        $crate::ops::elementwise::element::element3::<F, bool, $t, $t>()
    };
    (@print ($a:ident) $t:ident) => {
        $crate::ops::elementwise::text::print1::<F, $t>()
    };
    (@print ($a:ident, $b:ident) $t:ident) => {
        $crate::ops::elementwise::text::print2::<F, $t>()
    };
    (@print ($c:ident, $a:ident, $b:ident) $t:ident) => {
        $crate::ops::elementwise::text::print3::<F, $t>()
    };
    (@trace ($a:ident) $t:ident) => {
        $crate::ops::elementwise::traced::trace1::<F, $t>()
    };
    (@trace ($a:ident, $b:ident) $t:ident) => {
        $crate::ops::elementwise::traced::trace2::<F, $t>()
    };
    (@trace ($c:ident, $a:ident, $b:ident) $t:ident) => {
        $crate::ops::elementwise::traced::trace3::<F, $t>()
    };

    (@condition ($a:ident)) => { false };
    (@condition ($a:ident, $b:ident)) => { false };
    (@condition ($c:ident, $a:ident, $b:ident)) => { true };

    // One rule per operand, in order: anything else does not compile.
    (@arity ($a:ident), $x:ident) => {};
    (@arity ($a:ident, $b:ident), $x:ident, $y:ident) => {};
    (@arity ($c:ident, $a:ident, $b:ident), $z:ident, $x:ident, $y:ident) => {};
    (@rule $xs:tt $gy:tt zero) => { $crate::ops::rule::ElementRule::Zero };
    (@rule ($($x:ident),+) ($g:ident $(, $y:ident)?) $rule:tt) => {
        $crate::ops::rule::ElementRule::Formula({
            #[allow(unused_variables, unused_parens)]
            fn formula<'e>(
                rule: &$crate::ops::rule::Rule<'_, 'e>,
            ) -> $crate::ops::emit::Expr<'e> {
                let $g = rule.g;
                $(let $y = rule.y;)?
                let mut args = rule.args.iter().copied();
                $( let $x = args.next().unwrap_or(rule.g); )+
                $rule
            }
            formula
        })
    };

    (@method $name:ident ($a:ident)) => {
        impl<'e> $crate::ops::emit::Expr<'e> {
            /// The elementwise op of this name.
            pub fn $name(self) -> $crate::ops::emit::Expr<'e> {
                $name.call(&[self])
            }
        }
    };
    (@method $name:ident ($a:ident, $b:ident)) => {
        impl<'e> $crate::ops::emit::Expr<'e> {
            /// The elementwise op of this name.
            #[allow(clippy::should_implement_trait)]
            pub fn $name(self, b: $crate::ops::emit::Expr<'e>) -> $crate::ops::emit::Expr<'e> {
                $name.call(&[self, b])
            }
        }
    };
    (@method $name:ident ($c:ident, $a:ident, $b:ident)) => {
        impl<'e> $crate::ops::emit::Expr<'e> {
            /// The elementwise op of this name, with `self` as its condition.
            pub fn $name(
                self,
                a: $crate::ops::emit::Expr<'e>,
                b: $crate::ops::emit::Expr<'e>,
            ) -> $crate::ops::emit::Expr<'e> {
                $name.call(&[self, a, b])
            }
        }
    };
}
