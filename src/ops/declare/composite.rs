//! The `composite!` macro.

/// Declares composites: one Rust function each, the table's entry, and (with `vjp`) a gradient.
///
/// ```text
/// composite! {
///     /// First line of the docstring.
///     nn method softmax(x: FloatTensor, axis: Int = -1; keyword: Bool = False) -> One |cx| {
///         formula
///     }
///     vjp(g, y) { x: formula }
/// }
/// ```
/// The namespace is `top`, `nn`, …; `method` or `function` says whether `Tensor` has it too; `|cx|`
/// names the emission for bodies without a tensor to start from. Tensor parameters that `vjp` leaves
/// out have no gradient. `indexes(Axis "axis")` behind the body says what indices among the operands
/// address ([`Indexes`](crate::ops::declare::Indexes)).
#[macro_export]
macro_rules! composite {
    (@method method) => { true };
    (@method function) => { false };
    (@space top) => { "" };
    (@space $space:ident) => { stringify!($space) };
    (@default) => { None };
    (@default $default:expr) => { Some(stringify!($default)) };
    (@indexes) => { $crate::ops::declare::Indexes::Nothing };
    (@indexes $indexes:ident $($parameter:literal)?) => {
        $crate::ops::declare::Indexes::$indexes$(($parameter))?
    };
    (@vjp [$($param:ident: $kind:ident,)*]) => { None };
    (@vjp [$($param:ident: $kind:ident,)*] ($g:ident, $y:ident) $($wrt:ident: $rule:expr),*) => {
        Some({
            #[allow(unused_variables, unused_assignments)]
            fn vjp<'e>(
                rule: &$crate::ops::rule::Rule<'_, 'e>,
                call: &$crate::ops::declare::Arguments<'_, 'e>,
                wrt: usize,
            ) -> Option<$crate::ops::emit::Expr<'e>> {
                use $crate::ops::declare::Kind as _;
                let mut i = 0;
                let mut next = || { i += 1; i - 1 };
                $( let $param = $crate::ops::declare::$kind::read(stringify!($param), call, next()); )*
                let ($g, $y) = (rule.g, rule.y);
                let names: &[&str] = &[$(stringify!($param)),*];
                $( if names[wrt] == stringify!($wrt) { return Some($rule); } )*
                None
            }
            vjp as $crate::ops::declare::VjpRule
        })
    };
    ($(
        $(#[doc = $doc:literal])+
        $space:ident $place:ident $name:ident(
            $($param:ident: $kind:ident $(= $default:expr)?),* $(,)?
            $(; $($kw:ident: $kw_kind:ident $(= $kw_default:expr)?),* $(,)?)?
        ) -> $returns:ident $(|$cx:ident|)? $body:block
        $(indexes($indexes:ident $($parameter:literal)?))?
        $(vjp($g:ident, $y:ident) { $($wrt:ident: $rule:expr),* $(,)? })?
    )*) => {
        $(
            $(#[doc = $doc])+
            #[allow(clippy::too_many_arguments, dead_code)]
            pub fn $name<'e>(
                cx: &'e dyn $crate::ops::emit::Emit,
                $($param: <$crate::ops::declare::$kind as $crate::ops::declare::Kind>::Value<'e>,)*
                $($($kw: <$crate::ops::declare::$kw_kind as $crate::ops::declare::Kind>::Value<'e>,)*)?
            ) -> $crate::ops::declare::Outputs<'e> {
                use $crate::ops::declare::Kind as _;
                let mut operands = smallvec::SmallVec::new();
                let attributes = [
                    $($crate::ops::declare::$kind::write($param, &mut operands),)*
                    $($($crate::ops::declare::$kw_kind::write($kw, &mut operands),)*)?
                ];
                let call = $crate::ops::declare::Arguments {
                    cx, attributes: &attributes, operands: &operands,
                };
                let found = TABLE.iter().find(|c| c.name == stringify!($name));
                found.map(|c| c.call(&call)).unwrap_or_default()
            }
        )*

        /// The composites declared in this file.
        pub static TABLE: &[$crate::ops::declare::Composite] = &[$({
            #[allow(unused_variables, unused_assignments, unused_mut)]
            fn body<'e>(
                call: &$crate::ops::declare::Arguments<'_, 'e>,
            ) -> $crate::ops::declare::Outputs<'e> {
                use $crate::ops::declare::Kind as _;
                let mut i = 0;
                let mut next = || { i += 1; i - 1 };
                $(let $cx = call.cx;)?
                $( let $param = $crate::ops::declare::$kind::read(stringify!($name), call, next()); )*
                $($(
                    let $kw = $crate::ops::declare::$kw_kind::read(stringify!($name), call, next());
                )*)?
                $crate::ops::declare::IntoOutputs::into_outputs($body)
            }
            $crate::ops::declare::Composite {
                name: stringify!($name),
                namespace: $crate::composite!(@space $space),
                doc: concat!($($doc, "\n"),+),
                params: &[
                    $($crate::ops::declare::Param {
                        name: stringify!($param),
                        kind: <$crate::ops::declare::$kind as $crate::ops::declare::Kind>::FORM,
                        default: $crate::composite!(@default $($default)?),
                        keyword_only: false,
                    },)*
                    $($($crate::ops::declare::Param {
                        name: stringify!($kw),
                        kind: <$crate::ops::declare::$kw_kind as $crate::ops::declare::Kind>::FORM,
                        default: $crate::composite!(@default $($kw_default)?),
                        keyword_only: true,
                    },)*)?
                ],
                method: $crate::composite!(@method $place),
                returns: $crate::ops::declare::Returns::$returns,
                body,
                vjp: $crate::composite!(@vjp
                    [$($param: $kind,)* $($($kw: $kw_kind,)*)?]
                    $(($g, $y) $($wrt: $rule),*)?),
                indexes: $crate::composite!(@indexes $($indexes $($parameter)?)?),
                covered: &[$($(stringify!($wrt)),*)?],
                plain: {
                    use std::sync::atomic::AtomicBool;
                    static PLAIN: AtomicBool = AtomicBool::new(false);
                    &PLAIN
                },
            }
        }),*];
    };
}
