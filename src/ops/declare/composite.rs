//! The `composite!` macro.

/// Declares composites: one Rust function each, the table's entry, and (with `vjp`) a gradient.
///
/// ```text
/// composite! {
///     /// First line of the docstring.
///     nn method softmax(x: FloatTensor, axis: Int = -1; keyword: Bool = False) -> One |cx| {
///         formula
///     }
///     kernel(Softmax) batch(rule)
///     vjp(g, y; shared = formula) { x: formula, indices: zero }
/// }
/// ```
/// The namespace is `top`, `nn`, …; `method` or `function` says whether `Tensor` has it too; `|cx|`
/// names the emission for bodies without a tensor to start from. `-> One inline` says that a call
/// of it is the ops that it emits (movement, creation, plain reductions, products, promotion); all
/// others stay calls until they are planned. `-> One view` says besides that its first parameter is
/// its only operand, whose elements it shows otherwise.
///
/// Behind the body, in this order:
/// - `also(cat, concatenate)` says under which other names users find it: those that other
///   libraries give to the same thing.
/// - `unlike("…")` refuses the argument names that are PyTorch's alone
///   ([`Unlike`](crate::ops::declare::Unlike)); `unlike(correction, "…")` takes them where
///   `correction` is given.
/// - `precision(Narrow)` says in which dtypes mixed precision calls it
///   ([`Precision`](crate::ops::declare::Precision)).
/// - `kernel(Softmax)` names the [`Kernel`](crate::ops::declare::Kernel) that executors may have
///   for it.
/// - `batch(rule)` names the function by which a call on many examples stays a call
///   ([`BatchRule`](crate::ops::batch::BatchRule)).
/// - `indexes(Axis "axis")` says what indices among the operands address
///   ([`Indexes`](crate::ops::declare::Indexes)).
/// - `vjp` has a formula for each parameter that is a tensor, or `zero` where no gradient flows:
///   one that is left out does not compile. `vjp(g, y, s: g_s)` names the second result and its
///   cotangent, if it has one, and so on: behind the results that a user is given, the values that
///   are saved, which the body gives behind them. What stands after the semicolon is computed when
///   a formula first reads it, once for all.
#[macro_export]
macro_rules! composite {
    (@method method) => { true };
    (@method function) => { false };
    (@space top) => { "" };
    (@space $space:ident) => { stringify!($space) };
    (@count) => { 0 };
    (@count $first:ident $($rest:ident)*) => { 1 + $crate::composite!(@count $($rest)*) };
    (@inline) => { false };
    (@inline inline) => { true };
    (@inline view) => { true };
    (@views) => { false };
    (@views inline) => { false };
    (@views view) => { true };
    (@default) => { None };
    (@default $default:expr) => { Some(stringify!($default)) };
    (@unlike) => { None };
    (@unlike $text:literal) => {
        Some($crate::ops::declare::Unlike { text: $text, unless: None })
    };
    (@unlike $unless:ident $text:literal) => {
        Some($crate::ops::declare::Unlike { text: $text, unless: Some(stringify!($unless)) })
    };
    (@precision) => { $crate::ops::declare::Precision::Follow };
    (@precision $precision:ident) => { $crate::ops::declare::Precision::$precision };
    (@kernel) => { None };
    (@kernel $kernel:ident) => { Some($crate::ops::declare::Kernel::$kernel) };
    (@batch) => { None };
    (@batch $rule:ident) => { Some($rule) };
    (@indexes) => { $crate::ops::declare::Indexes::Nothing };
    (@indexes $indexes:ident $($parameter:literal)?) => {
        $crate::ops::declare::Indexes::$indexes$(($parameter))?
    };
    (@vjp $params:expr, [$($param:ident: $kind:ident,)*]) => { None };
    (@vjp $params:expr, [$($param:ident: $kind:ident,)*]
        ($g:ident, $y:ident $(, $saved:ident: $g_saved:ident)* $(; $($shared:ident = $value:expr),+)?)
        $($wrt:ident: $rule:expr),*
    ) => {
        Some({
            #[allow(unused_variables, unused_assignments, unused_mut)]
            fn cotangents<'e>(
                rule: &$crate::ops::rule::Rule<'_, 'e>,
                call: &$crate::ops::declare::Arguments<'_, 'e>,
                wanted: &[bool],
            ) -> $crate::ops::rule::Cotangents<'e> {
                use $crate::ops::declare::Kind as _;
                #[allow(unused_imports)]
                use $crate::ops::rule::NoGradient as zero;
                let mut i = 0;
                let mut next = || { i += 1; i - 1 };
                $( let $param = $crate::ops::declare::$kind::read(stringify!($param), call, next()); )*
                let ($g, $y) = (rule.cotangent(), rule.y);
                let mut saved = rule.results.iter().zip(rule.given).skip(1);
                $( let Some((&$saved, &$g_saved)) = saved.next() else { unreachable!("it is saved") }; )*
                $($(let $shared = std::cell::LazyCell::new(|| $value);)+)?
                let mut found = $crate::ops::rule::none_of(wanted);
                $(
                    let at = const { $crate::ops::declare::position($params, stringify!($wrt)) };
                    if let Some(operand) = call.operand_of(at) && wanted[operand] {
                        found[operand] = $crate::ops::rule::IntoCotangent::into_cotangent($rule);
                    }
                )*
                found
            }
            const {
                let rules = &[$((stringify!($wrt), stringify!($rule))),*];
                $crate::ops::declare::Vjp::new($params, rules, cotangents)
            }
        })
    };
    ($(
        $(#[doc = $doc:literal])+
        $space:ident $place:ident $name:ident(
            $($param:ident: $kind:ident $(= $default:expr)?),* $(,)?
            $(; $($kw:ident: $kw_kind:ident $(= $kw_default:expr)?),* $(,)?)?
        ) -> $returns:ident $(($count:literal))? $($inline:ident)? $(|$cx:ident|)? $body:block
        $(also($($synonym:ident),+))?
        $(unlike($($unless:ident,)? $unlike:literal))?
        $(precision($precision:ident))?
        $(kernel($kernel:ident))?
        $(batch($batch:ident))?
        $(indexes($indexes:ident $($parameter:literal)?))?
        $(vjp($g:ident, $y:ident $(, $saved:ident: $g_saved:ident)*
            $(; $($shared:ident = $value:expr),+ $(,)?)?) {
            $($wrt:ident: $rule:expr),* $(,)?
        })?
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
            const PARAMS: &[$crate::ops::declare::Param] = &[
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
            ];
            const RETURNS: $crate::ops::declare::Returns =
                $crate::ops::declare::Returns::$returns$(($count))?;
            $crate::ops::declare::Composite {
                name: stringify!($name),
                namespace: $crate::composite!(@space $space),
                synonyms: &[$($(stringify!($synonym)),+)?],
                doc: concat!($($doc, "\n"),+),
                params: PARAMS,
                unlike: $crate::composite!(@unlike $($($unless)? $unlike)?),
                method: $crate::composite!(@method $place),
                returns: RETURNS,
                saved: $crate::ops::declare::saved(
                    $crate::composite!(@count $($($saved)*)?), RETURNS,
                ),
                inline: $crate::ops::declare::inlined(
                    $crate::composite!(@inline $($inline)?), RETURNS,
                ),
                views: $crate::ops::declare::shows(
                    $crate::composite!(@views $($inline)?), PARAMS, RETURNS,
                ),
                body,
                vjp: $crate::composite!(@vjp PARAMS,
                    [$($param: $kind,)* $($($kw: $kw_kind,)*)?]
                    $(($g, $y $(, $saved: $g_saved)* $(; $($shared = $value),+)?) $($wrt: $rule),*)?),
                requires_grad: $crate::ops::declare::find(PARAMS, "requires_grad"),
                precision: $crate::composite!(@precision $($precision)?),
                kernel: $crate::composite!(@kernel $($kernel)?),
                batch: $crate::composite!(@batch $($batch)?),
                indexes: $crate::composite!(@indexes $($indexes $($parameter)?)?),
                payoff: {
                    use $crate::ops::declare::Payoff;
                    static PAYOFF: Payoff = Payoff::unknown();
                    &PAYOFF
                },
                number: {
                    use std::sync::atomic::AtomicU32;
                    static NUMBER: AtomicU32 = AtomicU32::new(0);
                    &NUMBER
                },
            }
        }),*];
    };
}
