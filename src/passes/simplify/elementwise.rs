//! Algebra of elementwise ops and casts.

use super::{Rewrite, becomes, give, is_one, known, number, on, op_of, operand};
use crate::dtype::{Class, DType, Scalar};
use crate::graph::{Args, Kind, Node};
use crate::ops::elementwise::{Elementwise, arithmetic, bits, comparison};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Op;
use crate::passes::cse::same_arg;
use crate::shape::Shape;

/// Simplifies an elementwise node.
pub fn map(nodes: &[Node], node: &mut Node, def: &'static Elementwise, fast: bool) -> Rewrite {
    if strip(nodes, node, def) {
        return Rewrite::Again;
    }
    let dtype = taken(nodes, node, def);
    match *node.args.as_slice() {
        [x] => unary(nodes, node, def, x),
        [a, b] => binary(nodes, node, def, &Pair { a, b, dtype, fast }),
        [condition, a, b] => select(nodes, node, condition, a, b),
        _ => Rewrite::Keep,
    }
}

/// The dtype of the operands besides a condition.
fn taken(nodes: &[Node], node: &Node, def: &Elementwise) -> DType {
    let own = node.args[usize::from(def.condition)..].iter().find_map(|arg| match arg {
        Arg::Node(id) => Some(nodes[id.0 as usize].ty.dtype),
        Arg::Number(_) => None,
    });
    own.unwrap_or(node.ty.dtype)
}

/// Replaces operands that only repeat a value by that value, since elementwise ops broadcast by
/// themselves, as long as the result keeps its shape. Returns whether an operand was replaced.
fn strip(nodes: &[Node], node: &mut Node, def: &Elementwise) -> bool {
    let mut changed = false;
    for i in 0..node.args.len() {
        let Arg::Node(id) = node.args[i] else { continue };
        let Some(inner) = pass_through(nodes, &nodes[id.0 as usize]) else { continue };
        if def.is_condition(i) && matches!(inner, Arg::Number(_)) {
            continue;
        }
        let before = std::mem::replace(&mut node.args[i], inner);
        // At least one tensor must stay, because it decides the dtype, and the operands together
        // must keep the shape.
        let has_tensor =
            node.args[usize::from(def.condition)..].iter().any(|arg| matches!(arg, Arg::Node(_)));
        if has_tensor && has_shape(nodes, &node.args, &node.ty.shape) {
            changed = true;
        } else {
            node.args[i] = before;
        }
    }
    changed
}

/// The value that a node repeats, or adds leading axes to.
pub fn repeated(nodes: &[Node], node: &Node) -> Option<Id> {
    match pass_through(nodes, node)? {
        Arg::Node(id) => Some(id),
        Arg::Number(_) => None,
    }
}

/// The operand that a node repeats, adds leading axes to, or fills its result with.
fn pass_through(nodes: &[Node], node: &Node) -> Option<Arg> {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "no op is passed over unless it is known to repeat its operand"
    )]
    match op_of(node)? {
        Op::Broadcast(_) => Some(node.args[0]),
        Op::Full(ty) => match node.args[0] {
            // A number told at run time is a float.
            Arg::Number(value) if value.told().is_none() || ty.dtype.is_float() => {
                Some(node.args[0])
            }
            Arg::Node(_) | Arg::Number(_) => None,
        },
        Op::Reshape(to) => {
            let from = &operand(nodes, node, 0)?.ty.shape;
            leads(from, to).then_some(node.args[0])
        }
        _ => None,
    }
}

/// Whether `to` is `from` with axes of size 1 in front.
pub fn leads(from: &Shape, to: &Shape) -> bool {
    let Some(lead) = to.rank().checked_sub(from.rank()) else { return false };
    to.dims()[lead..].iter().zip(from.dims()).all(|(a, b)| a.same(*b))
        && to.dims()[..lead].iter().all(|&d| is_one(d))
}

fn has_shape(nodes: &[Node], args: &[Arg], shape: &Shape) -> bool {
    let whole =
        |arg: &Arg| matches!(arg, Arg::Node(id) if nodes[id.0 as usize].ty.shape.same(shape));
    args.iter().any(whole) || joint(nodes, args).is_some_and(|joint| joint.same(shape))
}

/// The shape that operands broadcast to.
pub fn joint(nodes: &[Node], args: &[Arg]) -> Option<Shape> {
    let mut shapes = args.iter().filter_map(|arg| match arg {
        Arg::Node(id) => Some(&nodes[id.0 as usize].ty.shape),
        Arg::Number(_) => None,
    });
    let first = shapes.next()?.clone();
    shapes.try_fold(first, |so_far, shape| so_far.broadcast(shape, "simplify").ok())
}

/// Whether a number equals `want` in the registers of a dtype, bit for bit.
fn is(value: Option<Scalar>, dtype: DType, want: f64) -> bool {
    let compute = dtype.compute();
    value.is_some_and(|v| {
        v.register_bits(compute) == Scalar::Float(want).register_bits(compute)
            && (dtype.is_float() || v.as_f64() == want)
    })
}

fn is_op(node: &Node, def: &Elementwise) -> bool {
    matches!(op_of(node), Some(Op::Map(own)) if **own == *def)
}

fn unary(nodes: &[Node], node: &mut Node, def: &Elementwise, x: Arg) -> Rewrite {
    let Some(inner) = operand(nodes, node, 0) else { return Rewrite::Keep };
    let again = |def: &Elementwise| is_op(inner, def);
    let undone =
        [&arithmetic::negative, &comparison::logical_not, &bits::bitwise_invert].contains(&def);
    if undone && again(def) {
        return give(nodes, node, inner.args[0]);
    }
    let whole = [&arithmetic::floor, &arithmetic::ceil, &arithmetic::trunc, &arithmetic::round];
    if whole.contains(&def) && (!node.ty.dtype.is_float() || whole.iter().any(|def| again(def))) {
        return give(nodes, node, x);
    }
    if *def == arithmetic::abs || *def == arithmetic::sign {
        if again(def) {
            return give(nodes, node, x);
        }
        if *def == arithmetic::abs && again(&arithmetic::negative) {
            node.args[0] = inner.args[0];
            return Rewrite::Again;
        }
    }
    if *def == comparison::logical_not {
        // This is exact for NaN too, which is unequal to everything.
        for (own, other) in [
            (&comparison::equal, &comparison::not_equal),
            (&comparison::not_equal, &comparison::equal),
        ] {
            if again(own) {
                node.args = inner.args.clone();
                return becomes(node, Op::Map(other));
            }
        }
    }
    Rewrite::Keep
}

/// The operands of a binary op.
struct Pair {
    a: Arg,
    b: Arg,
    dtype: DType,
    fast: bool,
}

impl Pair {
    fn same(&self) -> bool {
        same_arg(&self.a, &self.b)
    }
}

fn binary(nodes: &[Node], node: &mut Node, def: &Elementwise, pair: &Pair) -> Rewrite {
    let step = match pair.dtype.class() {
        Class::Bool => truth(nodes, node, def, pair),
        Class::Int => whole(nodes, node, def, pair),
        Class::Float => float(nodes, node, def, pair),
    };
    match step {
        Rewrite::Keep if pair.same() => {
            let keeps = [&arithmetic::maximum, &arithmetic::minimum].contains(&def);
            if keeps { give(nodes, node, pair.a) } else { Rewrite::Keep }
        }
        step @ (Rewrite::Keep | Rewrite::Is(_) | Rewrite::Again) => step,
    }
}

fn truth(nodes: &[Node], node: &mut Node, def: &Elementwise, pair: &Pair) -> Rewrite {
    let (a, b) = (known(nodes, pair.a), known(nodes, pair.b));
    let is_and = *def == comparison::logical_and || *def == bits::bitwise_and;
    let is_or = *def == comparison::logical_or || *def == bits::bitwise_or;
    if !is_and && !is_or {
        return Rewrite::Keep;
    }
    if pair.same() {
        return give(nodes, node, pair.a);
    }
    for (value, other) in [(b, pair.a), (a, pair.b)] {
        let Some(value) = value else { continue };
        let value = value.as_f64() != 0.0;
        return match value == is_and {
            true => give(nodes, node, other),
            false => number(node, Scalar::Bool(value)),
        };
    }
    Rewrite::Keep
}

fn whole(nodes: &[Node], node: &mut Node, def: &Elementwise, pair: &Pair) -> Rewrite {
    let (a, b) = (known(nodes, pair.a), known(nodes, pair.b));
    let a_is = |want| is(a, pair.dtype, want);
    let b_is = |want| is(b, pair.dtype, want);
    let adds = [&arithmetic::add, &bits::bitwise_or, &bits::bitwise_xor].contains(&def);
    let times = *def == arithmetic::multiply;
    let takes = *def == arithmetic::subtract;
    let and = *def == bits::bitwise_and;
    let shifts = [&bits::bitwise_left_shift, &bits::bitwise_right_shift].contains(&def);
    let over = *def == arithmetic::floor_divide;
    let power = *def == arithmetic::pow;
    if ((adds || takes || shifts) && b_is(0.0)) || ((times || over || power) && b_is(1.0)) {
        return give(nodes, node, pair.a);
    }
    if (adds && a_is(0.0)) || (times && a_is(1.0)) {
        return give(nodes, node, pair.b);
    }
    if (times || and) && (a_is(0.0) || b_is(0.0))
        || (takes || *def == bits::bitwise_xor) && pair.same()
        || *def == arithmetic::remainder && b_is(1.0)
    {
        return number(node, Scalar::Int(0));
    }
    if power && b_is(0.0) {
        return number(node, Scalar::Int(1));
    }
    if power && let Some(def) = known_power(nodes, node, pair, b) {
        return on(node, Op::Map(def), pair.a);
    }
    if pair.same() && (and || *def == bits::bitwise_or) {
        return give(nodes, node, pair.a);
    }
    Rewrite::Keep
}

fn float(nodes: &[Node], node: &mut Node, def: &Elementwise, pair: &Pair) -> Rewrite {
    let (a, b) = (known(nodes, pair.a), known(nodes, pair.b));
    let a_is = |want| is(a, pair.dtype, want);
    let b_is = |want| is(b, pair.dtype, want);
    let over = *def == arithmetic::quotient;
    if *def == arithmetic::add {
        // `x + 0.0` makes 0.0 of −0.0, so it is not `x`; `x + −0.0` is.
        if b_is(-0.0) {
            return give(nodes, node, pair.a);
        }
        if a_is(-0.0) {
            return give(nodes, node, pair.b);
        }
    }
    let times = *def == arithmetic::multiply;
    if (*def == arithmetic::subtract && b_is(0.0)) || ((times || over) && b_is(1.0)) {
        return give(nodes, node, pair.a);
    }
    if times && a_is(1.0) {
        return give(nodes, node, pair.b);
    }
    if *def == arithmetic::pow && (b_is(0.0) || b_is(-0.0) || a_is(1.0)) {
        return number(node, Scalar::Float(1.0));
    }
    if *def == arithmetic::pow && b_is(1.0) {
        return give(nodes, node, pair.a);
    }
    if *def == arithmetic::pow
        && let Some(def) = known_power(nodes, node, pair, b)
    {
        return on(node, Op::Map(def), pair.a);
    }
    if over
        && keeps_shape(nodes, node, pair.a)
        && let Some(inverse) = b.and_then(|b| inverse(b.as_f64(), pair.dtype))
    {
        node.args[1] = Arg::Number(inverse.into());
        return becomes(node, Op::Map(&arithmetic::multiply));
    }
    if pair.fast { loose(nodes, node, def, pair, (a, b)) } else { Rewrite::Keep }
}

/// The op of the base alone that a power to a number is, if the base has the shape of the node.
fn known_power(
    nodes: &[Node],
    node: &Node,
    pair: &Pair,
    exponent: Option<Scalar>,
) -> Option<&'static Elementwise> {
    let def = arithmetic::known_power(pair.dtype, exponent?.as_f64())?;
    keeps_shape(nodes, node, pair.a).then_some(def)
}

/// Whether an operand alone has the shape of the node.
fn keeps_shape(nodes: &[Node], node: &Node, arg: Arg) -> bool {
    matches!(arg, Arg::Node(id) if nodes[id.0 as usize].ty.shape.same(&node.ty.shape))
}

/// `1 / c` for a power of two `c`, if both are normal numbers of the dtype: then `x / c` and `x ·
/// (1 / c)` are the same real number, rounded once.
fn inverse(c: f64, dtype: DType) -> Option<f64> {
    let (exponent_bits, _) = dtype.float_bits()?;
    let range = (1 << (exponent_bits - 1)) - 2;
    let exponent = (c.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let is_power = c.to_bits() << 12 == 0 && exponent.abs() <= range;
    is_power.then_some(1.0 / c)
}

/// Rewrites that hold for real numbers, and only nearly for floats.
fn loose(
    nodes: &[Node],
    node: &mut Node,
    def: &Elementwise,
    pair: &Pair,
    (a, b): (Option<Scalar>, Option<Scalar>),
) -> Rewrite {
    let a_is = |want| is(a, pair.dtype, want);
    let b_is = |want| is(b, pair.dtype, want);
    let (adds, times) = (*def == arithmetic::add, *def == arithmetic::multiply);
    let takes = *def == arithmetic::subtract;
    if (adds || takes) && (b_is(0.0) || b_is(-0.0)) {
        return give(nodes, node, pair.a);
    }
    if adds && a_is(0.0) {
        return give(nodes, node, pair.b);
    }
    if times && (a_is(0.0) || b_is(0.0)) || takes && pair.same() {
        return number(node, Scalar::Float(0.0));
    }
    if *def == arithmetic::quotient
        && let (Some(b), true) = (b, keeps_shape(nodes, node, pair.a))
    {
        let inverse = 1.0 / b.as_f64();
        if inverse.is_normal() {
            node.args[1] = Arg::Number(inverse.into());
            return becomes(node, Op::Map(&arithmetic::multiply));
        }
    }
    if let (Some(b), Some(inner)) = (b, operand(nodes, node, 0))
        && (adds || times)
        && is_op(inner, def)
        && let Some(c) = inner.args.get(1).and_then(|&c| known(nodes, c))
        && keeps_shape(nodes, node, inner.args[0])
    {
        // (x + c) + b, (x · c) · b
        let (c, b) = (c.as_f64(), b.as_f64());
        let joined = Arg::Number(if adds { c + b } else { c * b }.into());
        node.args = Args::from_slice(&[inner.args[0], joined]);
        return Rewrite::Again;
    }
    negated(nodes, node, pair, (adds, takes))
}

/// `a + (−b)` and `a − (−b)`. Not exact, because the sign of a NaN may differ.
fn negated(nodes: &[Node], node: &mut Node, pair: &Pair, (adds, takes): (bool, bool)) -> Rewrite {
    let Some(inner) = operand(nodes, node, 1) else { return Rewrite::Keep };
    if !(adds || takes) || !is_op(inner, &arithmetic::negative) {
        return Rewrite::Keep;
    }
    node.args = Args::from_slice(&[pair.a, inner.args[0]]);
    becomes(node, Op::Map(if adds { &arithmetic::subtract } else { &arithmetic::add }))
}

fn select(nodes: &[Node], node: &mut Node, condition: Arg, a: Arg, b: Arg) -> Rewrite {
    if same_arg(&a, &b) {
        return give(nodes, node, a);
    }
    if let Some(value) = known(nodes, condition) {
        return give(nodes, node, if value.as_f64() != 0.0 { a } else { b });
    }
    match operand(nodes, node, 0) {
        Some(inner) if is_op(inner, &comparison::logical_not) => {
            node.args = Args::from_slice(&[inner.args[0], b, a]);
            Rewrite::Again
        }
        Some(inner) => bounded(nodes, node, inner, [a, b]),
        None => Rewrite::Keep,
    }
}

/// `x ≥ c ? x : max(x, c)` is `max(c, x)`, which takes its second operand where both are equal, and
/// likewise for the smaller one: what `clip` is, apart from its gradient.
fn bounded(nodes: &[Node], node: &mut Node, condition: &Node, [a, b]: [Arg; 2]) -> Rewrite {
    let Arg::Node(id) = b else { return Rewrite::Keep };
    let extreme = &nodes[id.0 as usize];
    let pairs = [
        (&comparison::greater_equal, &arithmetic::maximum),
        (&comparison::less_equal, &arithmetic::minimum),
    ];
    let is_it =
        |(test, def): &(&Elementwise, &Elementwise)| is_op(condition, test) && is_op(extreme, def);
    let Some((_, def)) = pairs.into_iter().find(is_it) else { return Rewrite::Keep };
    let same = |k: usize| same_arg(&condition.args[k], &extreme.args[k]);
    if !(same(0) && same(1) && same_arg(&a, &extreme.args[0])) {
        return Rewrite::Keep;
    }
    node.args = Args::from_slice(&[extreme.args[1], extreme.args[0]]);
    becomes(node, Op::Map(def))
}

/// Simplifies a cast.
pub fn cast(nodes: &[Node], node: &mut Node) -> Rewrite {
    let Some(x) = operand(nodes, node, 0) else { return Rewrite::Keep };
    if x.ty.dtype == node.ty.dtype {
        return give(nodes, node, node.args[0]);
    }
    match (&x.kind, operand(nodes, x, 0)) {
        // A cast without loss that another cast follows is dropped.
        (Kind::Op(Op::Cast(_)), Some(from))
            if holds(x.ty.dtype, from.ty.dtype)
                && goes_straight(from.ty.dtype, x.ty.dtype, node.ty.dtype) =>
        {
            node.args[0] = x.args[0];
            Rewrite::Again
        }
        _ => Rewrite::Keep,
    }
}

/// Whether one cast gives the same as two. Where a value does not fit, integers wrap and floats
/// saturate; integers go to half precision through float32.
fn goes_straight(from: DType, between: DType, to: DType) -> bool {
    let changes = from.is_int() && between.is_float();
    !changes || if to.is_int() { holds(to, from) } else { holds(DType::F32, from) || to.size() > 2 }
}

/// Whether a dtype holds every value of another.
fn holds(dtype: DType, from: DType) -> bool {
    if dtype == from || from == DType::Bool {
        return true;
    }
    // Integers up to 2^mantissa are exact in a float.
    let mantissa = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        DType::F64 => 53,
        DType::Bool => return false,
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => match (dtype.int_range(), from.int_range()) {
            (Some((low, high)), Some((from_low, from_high))) => {
                return low <= from_low && from_high <= high;
            }
            _ => return false,
        },
    };
    match (from.int_range(), from) {
        (Some((low, high)), _) => (-low).max(high) <= 1 << mantissa,
        (None, DType::F16 | DType::BF16) => matches!(dtype, DType::F32 | DType::F64),
        (None, from) => from == DType::F32 && dtype == DType::F64,
    }
}
