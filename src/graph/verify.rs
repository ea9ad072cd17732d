//! The law of graphs, checked.

use smallvec::SmallVec;

use super::{
    ControlFlow, ControlFlowKind, Graph, Host, Kind, List, Node, operand_type, operands,
    result_types,
};
use crate::dtype::DType;
use crate::error::{self, Error, Result};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, OperandType, Type, Types};
use crate::ops::structural::OpKind;
use crate::shape::{Dim, Shape};

impl Graph {
    /// Checks that every node names earlier nodes only, has the operands its op takes, attributes
    /// that fit them and the type they give, and that results exist.
    pub fn verify(&self) -> Result<()> {
        let nodes = self.nodes();
        for (i, node) in nodes.iter().enumerate() {
            check(&nodes[..i], node).map_err(|what| broken(i, node, what))?;
        }
        match self.outputs().iter().find(|id| id.0 as usize >= nodes.len()) {
            Some(id) => Err(error::bad_graph("verify", "a result does not exist", at(*id))),
            None => Ok(()),
        }
    }
}

impl List {
    /// The first node, in bodies too, whose op refuses its operands, with the op's error.
    pub fn refusal(&self) -> Option<(&Node, Error)> {
        self.nodes.iter().enumerate().find_map(|(i, node)| match &node.kind {
            Kind::Op(op) => {
                let type_of = |&arg: &Arg| operand_type(&self.nodes[..i], arg);
                let types: SmallVec<[OperandType<'_>; 4]> = node.args.iter().map(type_of).collect();
                op.infer(&types).err().map(|error| (node, error))
            }
            Kind::ControlFlow(flow) => flow.bodies.iter().find_map(|body| body.refusal()),
            Kind::Input | Kind::Constant(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
                None
            }
        })
    }
}

fn at(id: Id) -> String {
    format!("%{}", id.0)
}

fn broken(i: usize, node: &Node, what: Error) -> Error {
    let name = node.kind.name();
    error::bad_graph("verify", format!("node %{i} ({name}) breaks the law"), what.message())
}

pub(super) fn law(what: &str, facts: impl std::fmt::Display) -> Error {
    error::bad_graph("node", what, facts)
}

fn check(earlier: &[Node], node: &Node) -> Result<()> {
    let later =
        node.args.iter().find(|arg| matches!(arg, Arg::Node(id) if id.0 as usize >= earlier.len()));
    if let Some(Arg::Node(id)) = later {
        return Err(law("an operand does not stand before it", at(*id)));
    }
    let op = match &node.kind {
        Kind::Op(op) => op,
        Kind::Input | Kind::Constant(_) if node.args.is_empty() => return Ok(()),
        Kind::Input | Kind::Constant(_) => {
            return Err(law("it has operands", node.args.len()));
        }
        Kind::ControlFlow(flow) => return check_flow(earlier, flow, &node.args),
        Kind::Result(i) => return check_part(earlier, *i as usize, node),
        Kind::Effect(_) => return Ok(()),
        Kind::Barrier => {
            let Some(Arg::Node(x)) = node.args.first() else {
                return Err(law("a barrier without an operand", node.args.len()));
            };
            return same_type(&earlier[x.0 as usize].ty, &node.ty);
        }
    };
    let (least, most) = op.arity();
    if node.args.len() < least || most.is_some_and(|most| node.args.len() > most) {
        return Err(law("wrong count of operands", node.args.len()));
    }
    let types: SmallVec<[OperandType<'_>; 4]> =
        node.args.iter().map(|&arg| operand_type(earlier, arg)).collect();
    operands::check_attributes(op)?;
    check_axes(op, &types)?;
    same_type(&op.infer(&types)?, &node.ty)
}

fn same_type(want: &Type, got: &Type) -> Result<()> {
    if want.equals(got) {
        return Ok(());
    }
    let facts = format!("{} {} instead of {} {}", got.dtype, got.shape, want.dtype, want.shape);
    Err(law("wrong type", facts))
}

fn all_equal(a: &[Type], b: &[Type]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

/// A `Kind::Result` names control flow or an op and one of its results, and has that result's type.
/// Of an op this is not the first result, which is the op's own value.
fn check_part(earlier: &[Node], i: usize, node: &Node) -> Result<()> {
    let types: Types = match node.args.as_slice() {
        [Arg::Node(id)] => match &earlier[id.0 as usize].kind {
            Kind::ControlFlow(flow) => flow.results.iter().cloned().collect(),
            Kind::Op(op) if op.results() > 1 && i > 0 => {
                result_types(earlier, op, &earlier[id.0 as usize].args)?
            }
            other @ (Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier) => return Err(law("a part of what has none", other.name())),
        },
        args => return Err(law("wrong count of operands", args.len())),
    };
    match types.get(i) {
        Some(ty) => same_type(ty, &node.ty),
        None => Err(law("there are fewer results", format!("{i} of {}", types.len()))),
    }
}

/// Bodies keep the law themselves, take the operands and give the results.
fn check_flow(earlier: &[Node], flow: &ControlFlow, args: &[Arg]) -> Result<()> {
    for body in &flow.bodies {
        for (i, node) in body.nodes.iter().enumerate() {
            check(&body.nodes[..i], node).map_err(|what| broken(i, node, what))?;
        }
    }
    let types: Vec<&Type> = args
        .iter()
        .filter_map(|arg| match arg {
            Arg::Node(id) => Some(&earlier[id.0 as usize].ty),
            Arg::Number(_) => None,
        })
        .collect();
    if let ControlFlowKind::Scan { carry, xs, length, .. } = flow.kind {
        check_lengths(flow, &types, carry as usize, xs as usize, length)?;
    }
    let gives = |body: &List| -> Vec<Type> {
        body.outputs.iter().map(|id| body.node(*id).ty.clone()).collect()
    };
    let (takes, want): (Vec<Type>, Vec<Type>) = match &flow.kind {
        ControlFlowKind::Host(op) if flow.bodies.is_empty() => return check_host(op, flow, &types),
        ControlFlowKind::Host(_) => {
            (types.iter().map(|&ty| ty.clone()).collect(), flow.results.to_vec())
        }
        ControlFlowKind::Branch => {
            (types.iter().skip(1).map(|&ty| ty.clone()).collect(), flow.results.to_vec())
        }
        ControlFlowKind::While { carry, .. } => {
            let all: Vec<Type> = types.iter().map(|&ty| ty.clone()).collect();
            (all.clone(), all.into_iter().take(*carry as usize).collect())
        }
        ControlFlowKind::Scan { carry, xs, .. } => {
            let (carry, xs) = (*carry as usize, *xs as usize);
            let one = |(i, ty): (usize, &&Type)| {
                let stacked = (carry..carry + xs).contains(&i);
                let dims = ty.shape.dims();
                let shape = Shape::from_dims(if stacked { &dims[1..] } else { dims });
                Type::new(ty.dtype, shape)
            };
            let row = |(i, ty): (usize, &Type)| {
                let dims = ty.shape.dims();
                Type::new(ty.dtype, Shape::from_dims(if i < carry { dims } else { &dims[1..] }))
            };
            (
                types.iter().enumerate().map(one).collect(),
                flow.results.iter().enumerate().map(row).collect(),
            )
        }
    };
    for (i, body) in flow.bodies.iter().enumerate() {
        let inputs: Vec<Type> = body.inputs().map(|id| body.node(id).ty.clone()).collect();
        if !all_equal(&inputs, &takes) {
            return Err(law("a body takes other operands", format!("{inputs:?}, {takes:?}")));
        }
        let is_condition = i == 0 && matches!(flow.kind, ControlFlowKind::While { .. });
        let truth = || vec![Type::new(DType::Bool, Shape::scalar())];
        let want = if is_condition { truth() } else { want.clone() };
        let got = gives(body);
        if !all_equal(&got, &want) {
            return Err(law("a body gives other results", format!("{got:?}, {want:?}")));
        }
    }
    Ok(())
}

/// A call of a host op has the result types of its type rule. Calls with open sizes were checked
/// where they were made.
fn check_host(op: &Host, flow: &ControlFlow, types: &[&Type]) -> Result<()> {
    if types.iter().any(|ty| !ty.shape.is_known()) {
        return Ok(());
    }
    let types: Vec<Type> = types.iter().map(|&ty| ty.clone()).collect();
    let want = op.0.infer(&types)?;
    match all_equal(&want, &flow.results) {
        true => Ok(()),
        false => Err(law(
            "other results than its type rule says",
            format!("{want:?}, {:?}", flow.results),
        )),
    }
}

/// The arrays that are scanned over, and those that are stacked, are as long as the scan.
fn check_lengths(
    flow: &ControlFlow,
    types: &[&Type],
    carry: usize,
    xs: usize,
    length: Dim,
) -> Result<()> {
    let (Some(rows), Some(stacked)) = (types.get(carry..carry + xs), flow.results.get(carry..))
    else {
        return Err(law("wrong count of operands", types.len()));
    };
    let differs = |ty: &&Type| !ty.shape.dims().first().is_some_and(|first| first.equals(length));
    match rows.iter().copied().chain(stacked).find(differs) {
        Some(ty) => Err(law("another length than that of the scan", format!("{ty:?}, {length}"))),
        None => Ok(()),
    }
}

/// Refuses axes and slices outside the operands, which type rules take for granted.
fn check_axes(op: &Op, args: &[OperandType<'_>]) -> Result<()> {
    let fits = match op.kind() {
        OpKind::Map(_) | OpKind::Call(_) => true,
        OpKind::Structural(def) => (def.fits)(op, args),
    };
    if fits { Ok(()) } else { Err(law("attributes do not fit the operands", format!("{op:?}"))) }
}
