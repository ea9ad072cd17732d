//! Elementwise programs of steps: one builder for groups of nodes and for single steps.

use smallvec::SmallVec;

use super::{Group, Number, Operand, Plan, Source, Step, Work};
use crate::dtype::{DType, Scalar};
use crate::ops::element::{ElementOp, ElementProgram, Value};
use crate::ops::elementwise::Elementwise;
use crate::ops::op::Op;

/// An operand of an elementwise op.
pub(super) enum Read<K> {
    /// An array or an earlier result, known by a key
    Array(K),
    /// A number, rounded to a dtype
    Number(Number, DType),
}

/// Ops on values that are known by keys, such as nodes of a list or sources of a plan.
pub(super) struct Assembly<K> {
    arrays: SmallVec<[(K, DType); 8]>,
    numbers: SmallVec<[(Number, DType); 4]>,
    ops: SmallVec<[Made<K>; 4]>,
}

struct Made<K> {
    key: K,
    op: ElementOp,
    args: SmallVec<[Read<K>; 3]>,
    dtype: DType,
}

/// A program with its operands: arrays by their keys, and numbers.
pub(super) struct Assembled<K> {
    pub program: ElementProgram,
    pub arrays: SmallVec<[K; 8]>,
    pub numbers: SmallVec<[Number; 4]>,
}

impl<K: Copy + PartialEq> Assembly<K> {
    pub(super) fn new() -> Assembly<K> {
        Assembly { arrays: SmallVec::new(), numbers: SmallVec::new(), ops: SmallVec::new() }
    }

    /// Adds an op that gives `key`. `dtype_of` gives the dtypes of arrays.
    pub(super) fn push(
        &mut self,
        key: K,
        op: ElementOp,
        args: SmallVec<[Read<K>; 3]>,
        dtype: DType,
        dtype_of: impl Fn(K) -> DType,
    ) {
        for arg in &args {
            match *arg {
                Read::Array(x) => {
                    let is_made = self.ops.iter().any(|made| made.key == x);
                    if !is_made && self.arrays.iter().all(|&(known, _)| known != x) {
                        self.arrays.push((x, dtype_of(x)));
                    }
                }
                Read::Number(value, dtype) => {
                    if self.number(value, dtype).is_none() {
                        self.numbers.push((value, dtype));
                    }
                }
            }
        }
        self.ops.push(Made { key, op, args, dtype });
    }

    fn number(&self, value: Number, dtype: DType) -> Option<usize> {
        self.numbers.iter().position(|&(v, d)| d == dtype && same(v, value))
    }

    /// The program whose results are these values.
    pub(super) fn finish(self, results: &[K]) -> Assembled<K> {
        let arrays: SmallVec<[DType; 8]> = self.arrays.iter().map(|&(_, dtype)| dtype).collect();
        let numbers: SmallVec<[DType; 4]> = self.numbers.iter().map(|&(_, dtype)| dtype).collect();
        let mut program = ElementProgram::new(&arrays, &numbers);
        let mut values: SmallVec<[(K, Value); 8]> =
            self.arrays.iter().enumerate().map(|(k, &(x, _))| (x, program.array(k))).collect();
        let value_of = |values: &[(K, Value)], key: K| {
            let found = values.iter().find(|(x, _)| *x == key);
            found.unwrap_or_else(|| unreachable!("a value is read before it is computed")).1
        };
        for Made { key, op, args, dtype } in &self.ops {
            let args: SmallVec<[Value; 3]> = args
                .iter()
                .map(|arg| match *arg {
                    Read::Array(x) => value_of(&values, x),
                    Read::Number(value, dtype) => match self.number(value, dtype) {
                        Some(k) => program.number(k),
                        None => unreachable!("every number was collected"),
                    },
                })
                .collect();
            let value = program.push(*op, &args, *dtype);
            values.push((*key, value));
        }
        let results: SmallVec<[Value; 4]> =
            results.iter().map(|&key| value_of(&values, key)).collect();
        Assembled {
            program: program.giving(&results),
            arrays: self.arrays.iter().map(|&(x, _)| x).collect(),
            numbers: self.numbers.iter().map(|&(value, _)| value).collect(),
        }
    }
}

fn same(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Constant(Scalar::Float(a)), Number::Constant(Scalar::Float(b))) => {
            a.to_bits() == b.to_bits()
        }
        _ => a == b,
    }
}

/// The dtype of the `i`-th operand of an elementwise op where the operand is a number: the dtype of
/// the op's arrays, or of its result if all operands are numbers; bool for a condition.
pub fn number_dtype(
    def: &Elementwise,
    i: usize,
    arrays: impl Iterator<Item = Option<DType>>,
    result: DType,
) -> DType {
    if def.is_condition(i) {
        return DType::Bool;
    }
    let own = arrays.skip(usize::from(def.condition)).flatten().next();
    own.unwrap_or(result)
}

/// Elementwise work with its operands: the arrays of the program, then its numbers.
pub struct Sequel {
    /// The program and its shape
    pub group: Group,
    /// What the program reads
    pub operands: SmallVec<[Operand; 4]>,
}

impl Plan {
    /// The program of an elementwise step; `None` for other steps.
    pub fn elementwise(&self, step: &Step) -> Option<Sequel> {
        let what = match &step.work {
            Work::Group(group) => {
                return Some(Sequel { group: group.clone(), operands: step.args.clone() });
            }
            Work::Op(Op::Map(def)) => ElementOp::Map(def),
            Work::Op(Op::Cast(_)) => ElementOp::Cast,
            Work::Product(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::Op(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => return None,
        };
        let result = &self.slots[step.results[0] as usize];
        let own = |arg: &Operand| match *arg {
            Operand::Array(source) => Some(self.ty(source).dtype),
            Operand::Number(_) => None,
        };
        let read = |(i, arg): (usize, &Operand)| match (*arg, &what) {
            (Operand::Array(source), _) => Read::Array(source),
            (Operand::Number(value), ElementOp::Map(def)) => {
                let arrays = step.args.iter().map(own);
                Read::Number(value, number_dtype(def, i, arrays, result.dtype))
            }
            (Operand::Number(value), ElementOp::Cast) => Read::Number(value, result.dtype),
        };
        let args = step.args.iter().enumerate().map(read).collect();
        let key = Source::Slot(step.results[0]);
        let mut assembly = Assembly::new();
        assembly.push(key, what, args, result.dtype, |source| self.ty(source).dtype);
        let Assembled { program, arrays, numbers } = assembly.finish(&[key]);
        let arrays = arrays.into_iter().map(Operand::Array);
        let operands = arrays.chain(numbers.into_iter().map(Operand::Number)).collect();
        let group = Group::new(program, result.shape.clone());
        Some(Sequel { group, operands })
    }
}
