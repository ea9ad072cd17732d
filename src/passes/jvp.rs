//! Forward mode: a graph that also gives the tangents of its results.

use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::derived::vjp;
use super::expand::{expand_for, has_calls};
use super::{gradients, graft};
use crate::error::{self, Result};
use crate::graph::{Args, Graph, Kind, List, Node};
use crate::ops::declare::Composite;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::jvp::{Forward, Tangent};
use crate::ops::op::{Op, Type};
use crate::ops::rule::Rule;

/// A graph with tangents.
pub struct Tangents {
    /// Its inputs: those of the original, then the tangents of those that have one. Its results:
    /// those of the original, then the tangents of those that have one
    pub graph: Graph,
    /// Which results have a tangent; that of the others is zero
    pub has: Vec<bool>,
}

/// The graph's results and their tangents, where input `i` has a tangent if `has[i]`.
pub fn jvp(graph: &Graph, has: &[bool]) -> Result<Tangents> {
    let list = graph.list();
    let (takes, gives) = (list.inputs().count(), list.outputs.len());
    let (dual, has) = dual_list(&list, has, &all(takes), &all(gives), &vec![false; gives])?;
    Ok(Tangents { graph: Graph::from_list(dual), has })
}

/// One group of `n` values.
pub(super) fn all(n: usize) -> Vec<Range<usize>> {
    std::iter::once(0..n).collect()
}

/// A value and its tangent, if it has one.
#[derive(Clone, Copy)]
pub(super) struct Dual {
    pub(super) x: Id,
    pub(super) t: Option<Id>,
}

/// The order of values in groups, where each group is followed by the tangents of its members.
pub(super) struct Places {
    /// The position of each value
    pub(super) values: Vec<usize>,
    /// The position of its tangent
    pub(super) tangents: Vec<Option<usize>>,
    count: usize,
}

impl Places {
    pub(super) fn new(groups: &[Range<usize>], has: &[bool]) -> Places {
        let n = has.len();
        let mut places = Places { values: vec![0; n], tangents: vec![None; n], count: 0 };
        for group in groups {
            for i in group.clone() {
                places.values[i] = places.count;
                places.count += 1;
            }
            for i in group.clone().filter(|&i| has[i]) {
                places.tangents[i] = Some(places.count);
                places.count += 1;
            }
        }
        places
    }

    /// Values and tangents in this order.
    pub(super) fn arrange<T: Clone>(
        &self,
        value: impl Fn(usize) -> T,
        tangent: impl Fn(usize) -> T,
    ) -> Vec<T> {
        let mut out: Vec<Option<T>> = vec![None; self.count];
        for (i, (&at, t)) in self.values.iter().zip(&self.tangents).enumerate() {
            out[at] = Some(value(i));
            if let Some(at) = *t {
                out[at] = Some(tangent(i));
            }
        }
        out.into_iter().flatten().collect()
    }
}

/// A list with tangents, and which results have one (those in `force` in any case). Inputs and
/// results are in these groups, each followed by its tangents.
pub(super) fn dual_list(
    list: &List,
    has: &[bool],
    inputs: &[Range<usize>],
    outputs: &[Range<usize>],
    force: &[bool],
) -> Result<(List, Vec<bool>)> {
    // Composites without a declared gradient, or with several results, are expanded and take the
    // tangent of their formula.
    let own = |composite: &'static Composite| composite.has_vjp() && composite.results() == 1;
    let expanded = match has_calls(list, &own) {
        true => Some(expand_for(&Graph::from_list(list.clone()), &own)?.into_list()),
        false => None,
    };
    let list = expanded.as_ref().unwrap_or(list);
    let out = Graph::from_list(List { numbers: list.numbers.clone(), ..List::default() });
    let types: Vec<&Type> = list.inputs().map(|id| &list.node(id).ty).collect();
    let places = Places::new(inputs, has);
    let order = places.arrange(|i| types[i].clone(), |i| types[i].clone());
    let ids: Vec<Id> = order.into_iter().map(|ty| out.input(ty)).collect();
    let given: Vec<Dual> = (0..types.len())
        .map(|i| Dual { x: ids[places.values[i]], t: places.tangents[i].map(|at| ids[at]) })
        .collect();
    let pass = Pass { out: &out };
    let results = pass.run(list, &given)?;
    let has: Vec<bool> =
        results.iter().zip(force).map(|(dual, &force)| force || dual.t.is_some()).collect();
    let tangents: Vec<Option<Id>> = results
        .iter()
        .zip(&has)
        .map(|(&dual, &has)| has.then(|| pass.tangent(dual)).transpose())
        .collect::<Result<_>>()?;
    let places = Places::new(outputs, &has);
    for id in places.arrange(|i| Some(results[i].x), |i| tangents[i]).into_iter().flatten() {
        out.output(id);
    }
    Ok((out.into_list(), has))
}

/// The pass that writes into one graph.
pub(super) struct Pass<'g> {
    pub(super) out: &'g Graph,
}

impl<'g> Pass<'g> {
    /// Appends a list and returns its results.
    pub(super) fn run(&self, list: &List, inputs: &[Dual]) -> Result<Vec<Dual>> {
        let mut inputs = inputs.iter();
        let mut results: FxHashMap<Id, Vec<Dual>> = FxHashMap::default();
        let mut duals: Vec<Dual> = Vec::with_capacity(list.nodes.len());
        for (i, node) in list.nodes.iter().enumerate() {
            let id = Id(i as u32);
            self.out.at(node.site);
            let dual = match (&node.kind, inputs.len()) {
                (Kind::Input, 0) => return Err(error::internal("an input is missing")),
                (Kind::Input, _) => inputs.as_slice()[0],
                (Kind::ControlFlow(flow), _) => {
                    let args: Vec<Dual> = node.reads().map(|id| duals[id.0 as usize]).collect();
                    results.insert(id, self.flow(flow, &args)?);
                    // Only `Result` nodes read a control-flow op, so its own name is never looked
                    // up.
                    Dual { x: Id(0), t: None }
                }
                (Kind::Result(k), _) => match node.reads().next() {
                    Some(of) => results[&of][*k as usize],
                    None => return Err(error::internal("a result node names no node")),
                },
                _ => self.node(node, &duals)?,
            };
            if matches!(node.kind, Kind::Input) {
                inputs.next();
            }
            if let Some(name) = list.names.get(&id) {
                self.out.name(dual.x, name.clone());
            }
            duals.push(dual);
        }
        Ok(list.outputs.iter().map(|id| duals[id.0 as usize]).collect())
    }

    /// Appends a node that has one result.
    fn node(&self, node: &Node, duals: &[Dual]) -> Result<Dual> {
        let primal = |arg: &Arg| match *arg {
            Arg::Node(id) => Arg::Node(duals[id.0 as usize].x),
            scalar => scalar,
        };
        let args: Args = node.args.iter().map(primal).collect();
        let tangent = |arg: &Arg| match *arg {
            Arg::Node(id) => duals[id.0 as usize].t,
            Arg::Number(_) => None,
        };
        let tangents: SmallVec<[Option<Id>; 4]> = node.args.iter().map(tangent).collect();
        let x = self.out.push(node.kind.clone(), args.clone(), node.ty.clone());
        let t = match &node.kind {
            Kind::Op(op) => self.op(op, &args, x, &tangents)?,
            Kind::Barrier => tangents[0].map(|t| {
                let mut args = args;
                args[0] = Arg::Node(t);
                self.out.push(Kind::Barrier, args, node.ty.clone())
            }),
            Kind::Input
            | Kind::Constant(_)
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_) => None,
        };
        Ok(Dual { x, t })
    }

    /// The tangent of an op's result.
    fn op(&self, op: &Op, args: &[Arg], y: Id, tangents: &[Option<Id>]) -> Result<Option<Id>> {
        if tangents.iter().all(Option::is_none) {
            return Ok(None);
        }
        let expr = |arg: Arg| Expr::new(self.out, arg);
        let operands: SmallVec<[Expr<'_>; 4]> = args.iter().map(|&arg| expr(arg)).collect();
        let moved: SmallVec<[Option<Expr<'_>>; 4]> =
            tangents.iter().map(|t| t.map(|t| expr(Arg::Node(t)))).collect();
        let y = expr(Arg::Node(y));
        let found = catch(|| match op.jvp(&Forward { args: &operands, y, tangents: &moved }) {
            Tangent::Zero => Ok(None),
            Tangent::Is(t) => Ok(Some(t.cast(y.dtype()).broadcast(y.shape()).arg())),
            Tangent::Transposed => Err(()),
        })?;
        match found {
            Ok(None) => Ok(None),
            Ok(Some(Arg::Node(t))) => Ok(Some(t)),
            Ok(Some(Arg::Number(_))) => Err(error::internal("a tangent is a node")),
            Err(()) => self.transposed(op, args, y.arg(), tangents),
        }
    }

    /// The tangent of an op's result as the transpose of its gradient rule: that rule `v(g)` is
    /// linear, so the tangent is the gradient of `⟨v(g), t⟩` by `g`.
    fn transposed(
        &self,
        op: &Op,
        args: &[Arg],
        y: Arg,
        tangents: &[Option<Id>],
    ) -> Result<Option<Id>> {
        let rules = Graph::with_numbers_of(self.out);
        let mut given: Vec<Id> = Vec::new();
        let mut stand_in = |arg: Arg| match arg {
            Arg::Number(_) => arg,
            Arg::Node(id) => {
                given.push(id);
                Arg::Node(rules.input(self.out.ty(id)))
            }
        };
        let operands: SmallVec<[Arg; 4]> = args.iter().map(|&arg| stand_in(arg)).collect();
        let moved: SmallVec<[Option<Arg>; 4]> =
            tangents.iter().map(|t| t.map(|t| stand_in(Arg::Node(t)))).collect();
        let y = stand_in(y);
        let g = rules.input(match y {
            Arg::Node(id) => rules.ty(id),
            Arg::Number(_) => return Err(error::internal("a result is a node")),
        });
        let exprs: SmallVec<[Expr<'_>; 4]> =
            operands.iter().map(|&arg| Expr::new(&rules, arg)).collect();
        let (y, cotangent) = (Expr::new(&rules, y), Some(Expr::new(&rules, Arg::Node(g))));
        let rule = Rule::of_one(&exprs, &y, &cotangent);
        let mut seeds: Vec<(Id, Arg)> = Vec::new();
        let moves = |(i, t): (usize, &Option<Arg>)| t.is_some() && op.differentiable(i);
        let wanted: SmallVec<[bool; 4]> = moved.iter().enumerate().map(moves).collect();
        catch(|| {
            vjp(op, &rule, &wanted, |i, x| {
                let fitted = x.sum_to(&exprs[i].shape()).cast(exprs[i].dtype()).arg();
                if let (Some(t), Arg::Node(id)) = (moved[i], fitted) {
                    seeds.push((id, t));
                }
            });
        })?;
        let found = gradients(&rules, &seeds, &[g])?;
        self.out.looks_at_all(&rules.looked());
        let Some(t) = found[0] else { return Ok(None) };
        let list = rules.list();
        let map = list.inputs().zip(given).collect();
        Ok(graft(self.out, &list, map, &[t]).pop())
    }

    /// The tangent of a value; zeros where it has none.
    pub(super) fn tangent(&self, dual: Dual) -> Result<Id> {
        if let Some(t) = dual.t {
            return Ok(t);
        }
        match catch(|| Expr::new(self.out, Arg::Node(dual.x)).zeros_like().arg())? {
            Arg::Node(id) => Ok(id),
            Arg::Number(_) => Err(error::internal("zeros are a node")),
        }
    }
}
