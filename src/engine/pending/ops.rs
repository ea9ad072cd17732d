//! The ops of a chain, and how they are computed: those that are needed, as one group.

use smallvec::SmallVec;

use super::{MOST_ARRAYS, MOST_NUMBERS, MOST_OPS};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::engine::executors::{self, Operand};
use crate::error::{self, Result};
use crate::memory::Buffer;
use crate::ops::element::{ElementOp, ElementProgram, Value};
use crate::shape::Shape;

/// An operand of an op that waits.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The result of an earlier one
    Node(u32),
    /// An array
    Array(u32),
    /// A number
    Number(u32),
}

/// An op that waits.
pub(super) struct Node {
    pub(super) op: ElementOp,
    pub(super) args: SmallVec<[Source; 3]>,
    pub(super) dtype: DType,
}

/// The ops of a chain, and what they read.
#[derive(Default)]
pub(super) struct Ops {
    pub(super) nodes: Vec<Node>,
    pub(super) arrays: Vec<Array>,
    pub(super) numbers: SmallVec<[(Scalar, DType); 4]>,
}

impl Ops {
    /// The bytes of operands that everybody else has dropped.
    pub(super) fn kept(&self) -> usize {
        let kept = self.arrays.iter().filter(|x| x.data.is_sole());
        kept.map(|x| x.data.host_bytes()).sum()
    }

    /// The position of an array among those read.
    pub(super) fn array(&mut self, x: &Array) -> u32 {
        let is_same =
            |y: &Array| y.data.same(&x.data) && y.layout == x.layout && y.dtype == x.dtype;
        let at = self.arrays.iter().position(is_same).unwrap_or_else(|| {
            self.arrays.push(x.clone());
            self.arrays.len() - 1
        });
        at as u32
    }

    /// Computes nodes into memory. Operands of theirs that are not among them are computed too, and
    /// not kept.
    pub(super) fn compute(&self, shape: &Shape, live: &[(usize, Buffer)]) -> Result<()> {
        let outputs: SmallVec<[Array; 4]> = live
            .iter()
            .map(|(node, buffer)| {
                // SAFETY: the block is late, and this thread alone runs the chain.
                let memory = unsafe { buffer.unfinished() };
                Array::new(self.nodes[*node].dtype, shape.clone(), memory.into())
            })
            .collect();
        if let ([(at, _)], [output]) = (live, outputs.as_slice())
            && let Some(args) = self.alone(&self.nodes[*at])
        {
            // SAFETY: the output is of the result's type, and nobody has its address.
            return unsafe { computed_alone(self.nodes[*at].op, &args, output) };
        }
        let needed = self.needed(live);
        let (mut arrays, mut numbers) = (SmallVec::new(), SmallVec::new());
        let (mut array_at, mut number_at) = ([0; MOST_ARRAYS], [0; MOST_NUMBERS]);
        for node in self.nodes.iter().zip(&needed).filter(|(_, needed)| **needed).map(|(n, _)| n) {
            for source in &node.args {
                match *source {
                    Source::Node(_) => {}
                    Source::Array(i) => place(&mut arrays, &mut array_at, i),
                    Source::Number(i) => place(&mut numbers, &mut number_at, i),
                }
            }
        }
        let inputs: SmallVec<[&Array; 8]> =
            arrays.iter().map(|&i| &self.arrays[i as usize]).collect();
        let dtypes: SmallVec<[DType; 8]> = inputs.iter().map(|x| x.dtype).collect();
        let (scalars, scalar_dtypes): (SmallVec<[Scalar; 8]>, SmallVec<[DType; 8]>) =
            numbers.iter().map(|&i| self.numbers[i as usize]).unzip();
        let mut program = ElementProgram::new(&dtypes, &scalar_dtypes);
        let mut values: SmallVec<[Option<Value>; 16]> = SmallVec::new();
        for (node, needed) in self.nodes.iter().zip(&needed) {
            if !needed {
                values.push(None);
                continue;
            }
            let mut args: SmallVec<[Value; 3]> = SmallVec::new();
            for source in &node.args {
                args.push(match *source {
                    Source::Node(i) => match values[i as usize] {
                        Some(value) => value,
                        None => return Err(error::internal("an operand of a chain is missing")),
                    },
                    Source::Array(i) => program.array(array_at[i as usize] - 1),
                    Source::Number(i) => program.number(number_at[i as usize] - 1),
                });
            }
            values.push(Some(program.push(node.op, &args, node.dtype)));
        }
        let results: SmallVec<[Value; 4]> =
            live.iter().filter_map(|(node, _)| values[*node]).collect();
        let program = program.giving(&results);
        let outputs: SmallVec<[&Array; 4]> = outputs.iter().collect();
        // SAFETY: outputs have the chain's shape and are late, so nobody has their addresses.
        unsafe { executors::run_group(&program, &inputs, &scalars, &outputs) }
    }

    /// The operands of an op that needs no other one.
    fn alone(&self, node: &Node) -> Option<SmallVec<[Operand<'_>; 3]>> {
        node.args
            .iter()
            .map(|source| match *source {
                Source::Node(_) => None,
                Source::Array(i) => Some(Operand::Array(&self.arrays[i as usize])),
                Source::Number(i) => Some(Operand::Scalar(self.numbers[i as usize].0)),
            })
            .collect()
    }

    /// Which nodes some nodes need, themselves included.
    fn needed(&self, live: &[(usize, Buffer)]) -> SmallVec<[bool; MOST_OPS]> {
        let mut needed = SmallVec::from_elem(false, self.nodes.len());
        live.iter().for_each(|(node, _)| needed[*node] = true);
        for (at, node) in self.nodes.iter().enumerate().rev() {
            for source in &node.args {
                if let (true, Source::Node(i)) = (needed[at], *source) {
                    needed[i as usize] = true;
                }
            }
        }
        needed
    }
}

/// Computes one op into memory.
///
/// # Safety
/// The output is of the result's type, and nobody else reads or writes it meanwhile.
unsafe fn computed_alone(op: ElementOp, args: &[Operand<'_>], output: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe {
        match (op, args) {
            (ElementOp::Map(def), args) => executors::map_into(def, args, output),
            (ElementOp::Cast, [Operand::Array(x)]) => {
                executors::cast_into(x, output);
                Ok(())
            }
            (ElementOp::Cast, _) => Err(error::internal("a conversion of a number waits")),
        }
    }
}

/// Gives an operand the next place of a program, counted from 1, unless it has one.
fn place(order: &mut SmallVec<[u32; 8]>, places: &mut [usize], i: u32) {
    let place = &mut places[i as usize];
    if *place == 0 {
        order.push(i);
        *place = order.len();
    }
}
