//! What tests of passes and plans share.

use smallvec::SmallVec;

use super::{Graph, Kind, number_of};
use crate::array::Array;
use crate::cpu;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops::emit::Arg;

/// The results of a graph whose nodes are computed one at a time.
pub fn one_by_one(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Vec<Array> {
    try_one_by_one(graph, inputs, numbers).unwrap()
}

/// The same, or what the data refused.
pub fn try_one_by_one(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Result<Vec<Array>> {
    let mut inputs = inputs.iter();
    let mut values: Vec<Array> = Vec::new();
    for node in graph.nodes().iter() {
        let value = match &node.kind {
            Kind::Input => (*inputs.next().unwrap()).clone(),
            Kind::Op(op) => {
                let args: SmallVec<[cpu::Operand<'_>; 4]> = node
                    .args
                    .iter()
                    .map(|arg| match *arg {
                        Arg::Node(id) => cpu::Operand::Array(&values[id.0 as usize]),
                        Arg::Scalar(value) => cpu::Operand::Scalar(
                            number_of(value).map_or(value, |i| numbers[i as usize]),
                        ),
                    })
                    .collect();
                cpu::execute(op, &args)?
            }
            Kind::Constant(array) => array.clone(),
            Kind::Barrier => match node.args[0] {
                Arg::Node(id) => values[id.0 as usize].clone(),
                Arg::Scalar(_) => unreachable!("a barrier keeps a value"),
            },
            Kind::Flow(_) | Kind::Part(_) | Kind::Effect(_) => unimplemented!("{:?}", node.kind),
        };
        values.push(value);
    }
    Ok(graph.outputs().iter().map(|id| values[id.0 as usize].clone()).collect())
}
