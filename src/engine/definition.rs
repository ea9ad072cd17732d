//! Graphs defined by hand: calls on sizes that are not known yet, and the lists that run once they are.
//!
//! A placeholder may leave sizes open, or its rank. A call on such a value is *kept*: which function,
//! which attributes, which operands. Where the sizes are symbols its nodes are written as well, so
//! that shapes are checked and shown; where even the rank is open, or a formula needs a number that
//! nobody knows, the result is *unresolved*: a node without a shape. A run says all sizes: the calls
//! are made again on values of known types in a fresh trace, op by op as eager code would, and give
//! the list that runs. So nothing that is computed depends on what was guessed before.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use super::index::{self, Item};
use super::tape::{Operand, Value};
use super::trace::{self, Role, Trace};
use super::{apply, eager, resolve, site, tape};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::graph::{Kind, List};
use crate::ops::declare::{Attr, Composite, Returns};
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Emit, Id, catch};
use crate::ops::op::{Op, Type};
use crate::passes;
use crate::shape::{Bindings, Dim, Shape};
use crate::site::Site;

/// A function that was called.
#[derive(Clone)]
pub enum Call {
    /// An op on one or more operands, which it promotes
    Op(Op),
    /// A composite with its attributes
    Composite(&'static Composite, Box<[Attr]>),
    /// `x[items]`: the arrays among the items are further operands
    Get(Vec<Item>),
    /// `x[items] = v`: the arrays among the items are further operands, the last one is `v`
    Set(Vec<Item>),
    /// The gradients of the first operands by the next ones, with seeds for some of the first
    Gradients {
        /// How many results are differentiated
        ys: usize,
        /// By how many values
        xs: usize,
        /// Which of the results have a seed among the last operands
        seeded: Vec<bool>,
        /// Which of the gradients are results
        kept: Vec<bool>,
    },
    /// A variable's new value, which has the variable's type
    Assign(Type),
}

impl Call {
    /// The name in messages and prints.
    pub fn name(&self) -> &str {
        match self {
            Call::Op(op) => op.name(),
            Call::Composite(composite, _) => composite.name,
            Call::Get(_) => "getitem",
            Call::Set(_) => "setitem",
            Call::Gradients { .. } => "gradients",
            Call::Assign(_) => "assign",
        }
    }
}

/// A call that is kept.
#[derive(Clone)]
pub struct Kept {
    /// The function
    pub call: Call,
    /// The operands
    pub args: Vec<Arg>,
    /// The nodes that the call wrote; no other call wrote them
    pub nodes: Range<u32>,
    /// Those that are its results
    pub results: SmallVec<[Id; 1]>,
    /// The Python line
    pub site: Site,
}

/// What a graph defined by hand knows besides its list.
#[derive(Clone, Default)]
pub struct Calls {
    /// In order
    pub kept: Vec<Kept>,
    /// The nodes of unknown shape
    pub unresolved: FxHashSet<Id>,
    /// The nodes whose shape holds if sizes are what was taken for likely, as in `x[:3]`
    pub likely: FxHashSet<Id>,
}

impl Calls {
    /// The call that wrote a node.
    pub fn of(&self, id: Id) -> Option<&Kept> {
        let after = self.kept.partition_point(|kept| kept.nodes.start <= id.0);
        let kept = &self.kept[after.checked_sub(1)?];
        kept.nodes.contains(&id.0).then_some(kept)
    }

    /// The call that must be made for a node. A constant needs none, whoever wrote it.
    pub(super) fn making(&self, list: &List, id: Id) -> Option<&Kept> {
        match list.node(id).kind {
            Kind::Constant(_) => None,
            _ => self.of(id),
        }
    }

    /// The operands of a node: those of its call, where the node itself does not say them.
    pub fn args(&self, list: &List, id: Id) -> SmallVec<[Arg; 4]> {
        match self.of(id) {
            Some(kept) if matches!(list.node(id).kind, Kind::Input) => {
                kept.args.iter().copied().collect()
            }
            _ => list.node(id).args.iter().copied().collect(),
        }
    }
}

thread_local! {
    /// Set while a call writes its nodes: what it calls itself is part of it.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs something as part of a call.
fn inside<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _restore = Restore(INSIDE.replace(true));
    f()
}

pub(super) fn is_sized(shape: &Shape) -> bool {
    shape.dims().iter().all(|dim| dim.known().is_some())
}

fn is_open(trace: &Trace, value: &Value) -> bool {
    match trace::node_of(&value.array) {
        Some((of, id)) => {
            !is_sized(value.shape()) || (std::ptr::eq(&**of, trace) && trace.is_uncertain(id))
        }
        None => false,
    }
}

/// The graph that keeps a call on these operands, if one does: some size of theirs is open.
#[inline]
pub fn keeper(args: &[Operand<'_>]) -> Option<Arc<Trace>> {
    if !trace::active() { None } else { find_keeper(args) }
}

#[cold]
fn find_keeper(args: &[Operand<'_>]) -> Option<Arc<Trace>> {
    let trace = trace::top().filter(|trace| trace.role == Role::Definition && !INSIDE.get())?;
    let open = args.iter().any(|arg| match arg {
        Operand::Value(value) => is_open(&trace, value),
        Operand::Scalar(_) => false,
    });
    open.then_some(trace)
}

/// Keeps a call; `native` writes its nodes where ranks are known.
pub fn keep(
    trace: &Arc<Trace>,
    call: Call,
    operands: &[Operand<'_>],
    native: impl FnOnce() -> Result<SmallVec<[Value; 1]>>,
) -> Result<SmallVec<[Value; 1]>> {
    let mut args = Vec::with_capacity(operands.len());
    for operand in operands {
        args.push(match operand {
            Operand::Scalar(value) => Arg::Scalar(*value),
            Operand::Value(value) => Arg::Node(operand_of(trace, &call, value)?),
        });
    }
    let is_unresolved = |arg: &Arg| matches!(arg, Arg::Node(id) if trace.is_unresolved(*id));
    let start = trace.read(|graph| graph.len()) as u32;
    let asked = trace.scope().asked();
    let mut found = None;
    if !args.iter().any(is_unresolved) {
        // What unwinds inside, as formulas do, comes back as a value.
        match catch(|| inside(native)).and_then(|result| result) {
            Ok(values) => {
                if values.len() != 1 && trace.scope().asked() > asked {
                    // How many results there are must not rest on what is likely.
                    probe(trace, &call, &args)?;
                }
                found = Some(own(trace, start, values)?);
            }
            // What was refused because of a likely size may be right for the size that comes.
            Err(error) if error.code() == "unknown_size" || trace.scope().asked() > asked => {
                trace.forget_from(start);
            }
            Err(error) => return Err(error),
        }
    }
    let values = match found {
        Some(values) => values,
        None => unresolved(trace, &call, &args)?,
    };
    let mut results = SmallVec::new();
    for value in &values {
        results.push(trace.node(call.name(), value)?);
    }
    let end = trace.read(|graph| graph.len()) as u32;
    let nodes = start..end;
    match &call {
        // A gradient has the type of what it is the gradient of, whatever came between.
        Call::Gradients { ys, xs, kept, .. } => {
            let by = args[*ys..ys + xs].iter().zip(kept).filter(|(_, kept)| **kept);
            for ((x, _), result) in by.zip(&results) {
                let is_open = |id: Id| {
                    let ty = trace.type_of(Arg::Node(id));
                    trace.is_uncertain(id) || ty.is_some_and(|ty| !is_sized(&ty.shape))
                };
                if matches!(x, Arg::Node(id) if is_open(*id)) {
                    trace.doubt(*result);
                }
            }
        }
        Call::Assign(_) => {}
        Call::Op(_) | Call::Composite(..) | Call::Get(_) | Call::Set(_) => {
            results.iter().for_each(|id| trace.doubt(*id));
            if trace.is_silent() {
                trace.silence(&results);
            }
        }
    }
    trace.keep(Kept { call, args, nodes, results, site: site::current() });
    Ok(values)
}

/// The node of an operand; one that was made without recording passes no gradient on to a call that is
/// recorded.
fn operand_of(trace: &Arc<Trace>, call: &Call, value: &Value) -> Result<Id> {
    let id = trace.node(call.name(), value)?;
    let stop = Op::Map(&arithmetic::stop_gradient);
    let is_stop = matches!(call, Call::Op(op) if *op == stop);
    match trace.stop_of(id).filter(|_| tape::recording() && !is_stop) {
        None => Ok(id),
        Some(Some(known)) => Ok(known),
        Some(None) => {
            let operand = [Operand::Value(value)];
            let native = || Ok(Value::plain(trace::emit(stop.clone(), &operand)?));
            let stopped = keep_one(trace, Call::Op(stop.clone()), &operand, native)?;
            trace.stopped(id, trace.node(call.name(), &stopped)?)
        }
    }
}

/// Results that are nodes of the call: one that is an operand as it is may be another value when the
/// call is made again.
fn own(
    trace: &Arc<Trace>,
    start: u32,
    values: SmallVec<[Value; 1]>,
) -> Result<SmallVec<[Value; 1]>> {
    let mut out = SmallVec::new();
    for mut value in values {
        let id = trace.node("graph", &value)?;
        if id.0 < start {
            let op = Op::Reshape(value.shape().clone());
            value.array = trace.add(|graph| catch(|| graph.emit(op, &[Arg::Node(id)])))?;
        }
        out.push(value);
    }
    Ok(out)
}

/// One result of [`keep`].
pub fn keep_one(
    trace: &Arc<Trace>,
    call: Call,
    operands: &[Operand<'_>],
    native: impl FnOnce() -> Result<Value>,
) -> Result<Value> {
    let mut values = keep(trace, call, operands, || Ok(smallvec![native()?]))?;
    values.pop().ok_or_else(|| error::internal("a call without a result"))
}

/// The results of a call whose shapes are not known.
fn unresolved(trace: &Arc<Trace>, call: &Call, args: &[Arg]) -> Result<SmallVec<[Value; 1]>> {
    let mut values = SmallVec::new();
    match call {
        // A gradient has the type of what it is the gradient of.
        Call::Gradients { ys, xs, kept, .. } => {
            let by = &args[*ys..ys + xs];
            for (x, _) in by.iter().zip(kept).filter(|(_, kept)| **kept) {
                let Arg::Node(id) = *x else { continue };
                let ty = trace.read(|graph| graph.list().node(id).ty.clone());
                values.push(match trace.is_unresolved(id) {
                    true => trace.unresolved(ty.dtype)?,
                    false => trace.input(ty)?,
                });
            }
            return Ok(values);
        }
        Call::Assign(ty) => {
            values.push(trace.input(ty.clone())?);
            return Ok(values);
        }
        Call::Op(_) | Call::Composite(..) | Call::Get(_) | Call::Set(_) => {}
    }
    if let Call::Op(op) = call
        && !matches!(op, Op::Map(_) | Op::Cast(_))
    {
        // Its attributes were worked out from a rank that is not known.
        let what = "the rank is not known before the graph runs";
        return Err(error::bad_graph(op.name(), what, "give the placeholder a shape"));
    }
    for (dtype, shape) in probe(trace, call, args)? {
        values.push(match shape {
            Some(shape) => trace.input(Type::new(dtype, shape))?,
            None => trace.unresolved(dtype)?,
        });
    }
    Ok(values)
}

/// Sizes and ranks with which unknown shapes are tried, to learn what a call gives.
const SIZES: [usize; 2] = [12, 20];
const RANKS: [usize; 6] = [1, 2, 3, 4, 0, 5];

/// What a call gives, as far as it can be told: a dtype, and a shape if that is always the same.
type Likely = SmallVec<[(DType, Option<Shape>); 1]>;

/// The results of a call, found by making it on shapes that might be.
fn probe(trace: &Arc<Trace>, call: &Call, args: &[Arg]) -> Result<Likely> {
    let mut first: Option<Error> = None;
    let mut same = true;
    let mut likely: Option<Likely> = None;
    for (rank, size) in RANKS.into_iter().flat_map(|rank| SIZES.map(|size| (rank, size))) {
        let types = args.iter().map(|arg| {
            let ty = trace.type_of(*arg)?;
            let Arg::Node(id) = arg else { return None };
            let shape = match trace.is_unresolved(*id) {
                true => Shape::of(&[size; 5][..rank]),
                false => ty.shape.map(|dim| if dim.known().is_some() { dim } else { size.into() }),
            };
            Some(Type::new(ty.dtype, shape))
        });
        let types: Vec<Option<Type>> = types.collect();
        let found = in_fresh_trace(|fresh| {
            let mut values = Vec::new();
            for (ty, arg) in types.iter().zip(args) {
                values.push(match (ty, arg) {
                    (Some(ty), _) => Given::Value(fresh.input(ty.clone())?),
                    (None, Arg::Scalar(value)) => Given::Scalar(*value),
                    (None, Arg::Node(_)) => return Err(error::internal("a node has a type")),
                });
            }
            make(fresh, call, &values, &Bindings::default())
        });
        match found {
            Ok(values) => agree(call, &mut likely, &values)?,
            Err(error) => {
                same &= first.as_ref().is_none_or(|first| first.message() == error.message());
                first.get_or_insert(error);
            }
        }
    }
    if let Some(likely) = likely {
        return Ok(likely);
    }
    let error = first.unwrap_or_else(|| error::internal("nothing was tried"));
    let is_one = match call {
        Call::Composite(composite, _) => composite.returns == Returns::One,
        _ => true,
    };
    // What is refused for every shape in the same words is wrong; else a shape may be found that fits.
    if same || !is_one {
        return Err(error);
    }
    let types = args.iter().filter_map(|arg| trace.type_of(*arg)).map(|ty| ty.dtype);
    let common = types.reduce(|a, b| a.promote(b).unwrap_or(a));
    Ok(smallvec![(common.unwrap_or(DType::F32), None)])
}

/// Forgets shapes that differ from those of another try.
fn agree(call: &Call, likely: &mut Option<Likely>, values: &[Value]) -> Result<()> {
    match likely {
        None => {
            let pairs = values.iter().map(|value| (value.dtype(), Some(value.shape().clone())));
            *likely = Some(pairs.collect());
        }
        Some(likely) if likely.len() != values.len() => {
            let what = "the size that says how many results there are";
            return Err(error::unknown_size(call.name(), what));
        }
        Some(likely) => {
            for ((_, shape), value) in likely.iter_mut().zip(values) {
                if shape.as_ref().is_some_and(|shape| shape != value.shape()) {
                    *shape = None;
                }
            }
        }
    }
    Ok(())
}

/// Runs something in a trace of its own, outside of all others, without recording.
pub(super) fn in_fresh_trace<T>(f: impl FnOnce(&Arc<Trace>) -> Result<T>) -> Result<T> {
    let fresh = Trace::new(Role::Function);
    let was = tape::set_recording(false);
    let result = trace::suspended(|| {
        let _entered = fresh.enter();
        f(&fresh)
    });
    tape::set_recording(was);
    result
}

/// An operand of a call that is made again.
#[derive(Clone)]
pub enum Given {
    /// A value of known type
    Value(Value),
    /// A number
    Scalar(Scalar),
}

impl Given {
    fn operand(&self) -> Operand<'_> {
        match self {
            Given::Value(value) => Operand::Value(value),
            Given::Scalar(value) => Operand::Scalar(*value),
        }
    }

    fn value(&self) -> Result<&Value> {
        match self {
            Given::Value(value) => Ok(value),
            Given::Scalar(_) => Err(error::internal("a number is no value")),
        }
    }
}

/// Items with their arrays replaced by operands, in order.
fn with_arrays(items: &[Item], mut arrays: &[Given]) -> Result<Vec<Item>> {
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        out.push(match item {
            Item::Operand => {
                let Some((first, rest)) = arrays.split_first() else {
                    return Err(error::internal("an index lost its arrays"));
                };
                arrays = rest;
                Item::Array(first.value()?.clone())
            }
            Item::Int(_) | Item::Slice(..) | Item::Ellipsis | Item::NewAxis | Item::Array(_) => {
                item.clone()
            }
        });
    }
    Ok(out)
}

/// Makes a call on values of known types, in the trace that is open.
pub(super) fn make(
    trace: &Arc<Trace>,
    call: &Call,
    given: &[Given],
    sizes: &Bindings,
) -> Result<SmallVec<[Value; 1]>> {
    let operands: SmallVec<[Operand<'_>; 4]> = given.iter().map(Given::operand).collect();
    match call {
        Call::Op(Op::Map(def)) => Ok(smallvec![apply::map(def, &operands)?]),
        Call::Op(op) => {
            let op = op.map_dims(|dim| sizes.resolve(dim));
            Ok(smallvec![apply::apply(op, &operands, false)?])
        }
        Call::Composite(composite, attributes) => {
            let mut attributes = attributes.clone();
            let mut known = |dim: &mut Dim| *dim = sizes.resolve(*dim);
            attributes.iter_mut().for_each(|attr| attr.each_dim(&mut known));
            eager::call(composite, &attributes, &operands, false)
        }
        Call::Get(items) => {
            let items = with_arrays(items, &given[1..])?;
            Ok(smallvec![index::get(given[0].value()?, &items)?])
        }
        Call::Set(items) => {
            let (last, rest) = given.split_last().ok_or_else(|| error::internal("no value"))?;
            let items = with_arrays(items, &rest[1..])?;
            let mut x = rest[0].value()?.clone();
            index::set(&mut x, &items, last.operand())?;
            Ok(smallvec![x])
        }
        Call::Gradients { ys, xs, seeded, kept } => {
            let mut ids = SmallVec::<[Id; 8]>::new();
            for x in given {
                ids.push(trace.node("gradients", x.value()?)?);
            }
            let (ys, rest) = ids.split_at(*ys);
            let (xs, seeds) = rest.split_at(*xs);
            let found = differentiate(trace, ys, xs, seeds, seeded)?;
            let mut values = SmallVec::new();
            for ((g, x), _) in found.into_iter().zip(xs).zip(kept).filter(|(_, kept)| **kept) {
                values.push(match g {
                    Some(g) => trace.value(g),
                    None => zeros(trace, *x)?,
                });
            }
            Ok(values)
        }
        Call::Assign(ty) => {
            let x = given[0].value()?;
            check_assign(ty, x)?;
            Ok(smallvec![x.clone()])
        }
    }
}

fn zeros(trace: &Arc<Trace>, id: Id) -> Result<Value> {
    let ty = trace.read(|graph| graph.list().node(id).ty.clone());
    Ok(Value::plain(trace.add(|graph| {
        catch(|| {
            let zero = crate::ops::emit::Expr::new(graph, Arg::Scalar(Scalar::Float(0.0)));
            match zero.full(ty.dtype, ty.shape).arg() {
                Arg::Node(id) => Ok(id),
                Arg::Scalar(_) => Err(error::internal("a tensor is a node")),
            }
        })?
    })?))
}

/// Refuses a new value of another type than the variable's.
pub fn check_assign(ty: &Type, x: &Value) -> Result<()> {
    if x.dtype() != ty.dtype {
        return Err(error::dtype_mismatch(
            "assign",
            format!("{} of the variable", ty.dtype),
            x.dtype(),
        ));
    }
    if is_sized(x.shape()) && *x.shape() != ty.shape {
        let facts = format!("the value has shape {}, the variable {}", x.shape(), ty.shape);
        return Err(error::bad_shape("assign", "an update keeps the shape", facts));
    }
    Ok(())
}

/// Appends gradients of nodes by nodes; scalars have an implicit seed.
fn differentiate(
    trace: &Arc<Trace>,
    ys: &[Id],
    xs: &[Id],
    seeds: &[Id],
    seeded: &[bool],
) -> Result<Vec<Option<Id>>> {
    let mut seeds = seeds.iter();
    let mut pairs = Vec::with_capacity(ys.len());
    for (y, seeded) in ys.iter().zip(seeded) {
        let ty = trace.read(|graph| graph.list().node(*y).ty.clone());
        if !ty.dtype.is_float() {
            return Err(error::gradient_dtype("gradients", ty.dtype));
        }
        let seed = if *seeded { seeds.next() } else { None };
        pairs.push(match seed {
            Some(seed) => {
                let got = trace.read(|graph| graph.list().node(*seed).ty.shape.clone());
                if got != ty.shape {
                    let facts = format!("got {got} for an output of shape {}", ty.shape);
                    let what = "the gradient's shape differs from the output's";
                    return Err(error::bad_shape("gradients", what, facts));
                }
                (*y, Arg::Node(*seed))
            }
            None => {
                if ty.shape.dims().iter().any(|d| d.known().is_some_and(|n| n != 1)) {
                    let facts = format!("got shape {}; pass the cotangents", ty.shape);
                    let what = "only a scalar output has an implicit gradient";
                    return Err(error::gradient("gradients", what, facts));
                }
                (*y, Arg::Scalar(Scalar::Float(1.0)))
            }
        });
    }
    trace.with_graph(|graph| passes::gradients(graph, &pairs, xs))
}

/// Gradients of nodes of a graph by nodes of it; `None` where nothing depends on one.
pub fn gradients(
    trace: &Arc<Trace>,
    ys: &[Value],
    xs: &[Value],
    seeds: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let _entered = trace.enter();
    let op = "gradients";
    let name = |values: &[Value]| -> Result<Vec<Id>> {
        values.iter().map(|value| trace.node(op, value)).collect()
    };
    let (y_ids, x_ids) = (name(ys)?, name(xs)?);
    let given: Vec<Value> = seeds.iter().flatten().cloned().collect();
    let seed_ids = name(&given)?;
    let seeded: Vec<bool> = seeds.iter().map(Option::is_some).collect();
    let kept = depends(trace, &y_ids, &x_ids);
    let operands: Vec<Operand<'_>> =
        ys.iter().chain(xs).chain(&given).map(Operand::Value).collect();
    let open = {
        let (list, calls) = trace.snapshot();
        let live = resolve::needs(&list, &calls, &y_ids, &|_| false).live;
        let is_open = |i: &usize| {
            let id = Id(*i as u32);
            live[*i]
                && (calls.of(id).is_some()
                    || calls.unresolved.contains(&id)
                    || calls.likely.contains(&id)
                    || !is_sized(&list.nodes[*i].ty.shape))
        };
        (0..live.len()).any(|i| is_open(&i))
    };
    let native = || -> Result<SmallVec<[Value; 1]>> {
        let found = differentiate(trace, &y_ids, &x_ids, &seed_ids, &seeded)?;
        let mut values = SmallVec::new();
        for ((g, x), _) in found.into_iter().zip(&x_ids).zip(&kept).filter(|(_, kept)| **kept) {
            values.push(match g {
                Some(g) => trace.value(g),
                None => zeros(trace, *x)?,
            });
        }
        Ok(values)
    };
    let call =
        Call::Gradients { ys: ys.len(), xs: xs.len(), seeded: seeded.clone(), kept: kept.clone() };
    trace.check_open()?;
    let mut values = match open {
        true => keep(trace, call, &operands, native)?,
        false => native()?,
    }
    .into_iter();
    Ok(kept.iter().map(|kept| if *kept { values.next() } else { None }).collect())
}

/// Which of `xs` some of `ys` depend on.
fn depends(trace: &Arc<Trace>, ys: &[Id], xs: &[Id]) -> Vec<bool> {
    let calls = trace.calls();
    let is_between = |list: &List, x: Id| {
        let mut reached = vec![false; list.nodes.len()];
        reached[x.0 as usize] = true;
        for i in x.0 as usize + 1..list.nodes.len() {
            let id = Id(i as u32);
            let node = &list.nodes[i];
            let passes = |k: usize| match (&node.kind, calls.of(id).map(|kept| &kept.call)) {
                (Kind::Op(op), _) | (Kind::Input, Some(Call::Op(op))) => op.differentiable(k),
                _ => true,
            };
            reached[i] = (node.ty.dtype.is_float() || matches!(node.kind, Kind::Flow(_)))
                && calls.args(list, id).iter().enumerate().any(|(k, arg)| {
                    matches!(arg, Arg::Node(id) if reached[id.0 as usize]) && passes(k)
                });
        }
        ys.iter().any(|y| reached[y.0 as usize])
    };
    trace.read(|graph| xs.iter().map(|x| is_between(&graph.list(), *x)).collect())
}
