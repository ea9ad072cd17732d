//! Chains beside the same programs over tiles.

use super::*;
use crate::cpu::program::{Program, run_part};
use crate::cpu::testing::{bytes, noise};
use crate::cpu::{self, Operand, copy};
use crate::layout::Layout;
use crate::ops::elementwise::tables;
use crate::ops::op::Op;

/// Values with ties of zeros, infinities and NaN.
fn number(i: usize) -> f32 {
    match i % 11 {
        3 => 0.0,
        4 => -0.0,
        5 => f32::INFINITY,
        7 => f32::NAN,
        n => (n as f32 - 5.0) * 0.37 + (i % 7) as f32,
    }
}

fn op(name: &str) -> &'static Elementwise {
    tables().find(|def| def.name == name).unwrap()
}

#[test]
fn a_chain_has_the_bits_of_its_program() {
    let kinds = ["add", "subtract", "multiply", "divide", "maximum", "minimum"];
    let bounds = [2.5, 0.0, -0.0, f32::NAN, f32::NEG_INFINITY];
    let all = kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a, b)));
    for (k, (first, last)) in all.enumerate() {
        let (bound, by) = (bounds[k % 5], ["minimum", "maximum"][k / 5 % 2]);
        for (columns, turned) in [1, 5, 16, 31, 50, 200].into_iter().zip([false, true].repeat(3)) {
            // Of rows with gaps, in place: an operand has one element a row, one is a row, one
            // is a matrix.
            let mut program = ElementProgram::new(&[DType::F32; 4], &[DType::F32]);
            let [x, a, y, z] = std::array::from_fn(|i| program.array(i));
            let mut value = x;
            let others = [a, y, z, program.number(0)];
            for (name, other) in [*first, *last, *first, by].into_iter().zip(others) {
                let args = if turned { [other, value] } else { [value, other] };
                value = program.push(ElementOp::Map(op(name)), &args, DType::F32);
            }
            let chained = Program::lower(&program.giving(&[value])).unwrap();
            assert!(chained.chain.is_some());
            let plain = Program { chain: None, ..chained.clone() };
            let (rows, pitch) = (if turned { 3 } else { 13 }, columns + 4);
            let a: Vec<f32> = (0..rows).map(|i| number(i + 2)).collect();
            let y: Vec<f32> = (0..rows * columns).map(|i| number(i * 3 + 1)).collect();
            let [want, got] = [&plain, &chained].map(|program| {
                let mut x: Vec<f32> = (0..rows * pitch).map(number).collect();
                let side = |ptr: *const f32, row: usize, col| Matrix {
                    ptr: ptr.cast_mut().cast(),
                    dtype: DType::F32,
                    row: row as isize,
                    col,
                };
                let to = side(x.as_mut_ptr(), pitch, 1);
                let (a, z) = (side(a.as_ptr(), 1, 0), side(y.as_ptr(), 0, 1));
                let inputs = [to, a, side(y.as_ptr(), columns, 1), z];
                let bits = [u64::from(f32::to_bits(bound))];
                // SAFETY: the rectangles are those of the vectors.
                unsafe { run_part(program, &inputs, &bits, &[to], (rows, columns)) };
                let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
                x.iter().map(bits).collect::<Vec<_>>()
            });
            assert_eq!(want, got, "{first} {last} {by} {bound} {columns} {turned}");
        }
    }
}

#[test]
fn an_op_on_columns_and_rows_has_the_bits_of_one_on_all_elements() {
    let noise = |sizes: &[usize], seed| noise(DType::F32, sizes, seed);
    let run = |def: &'static Elementwise, a: Operand<'_>, b: Operand<'_>| {
        let y = cpu::execute(&Op::Map(def), &[a, b]).unwrap();
        bytes(&y).to_vec()
    };
    let names = ["add", "subtract", "multiply", "divide", "maximum", "minimum"];
    // The last is written around the caches.
    let sizes = [[3, 2], [40, 12], [200, 33], [64, 1024], [7, 3000], [16400, 256]];
    for ([rows, columns], name) in sizes.into_iter().flat_map(|n| names.map(|name| (n, name))) {
        let (def, x) = (op(name), noise(&[rows, columns], 1));
        let sides = [noise(&[rows, 1], 2), noise(&[1, columns], 3), noise(&[1, 1], 4)];
        for side in sides.iter().filter(|_| rows < 10_000 || name == "divide") {
            let strides = side.layout.broadcast_strides(x.shape());
            let wide = side.view(Layout::strided(x.shape().clone(), &strides, 0));
            let wide = copy::contiguous(&wide).unwrap();
            let all = [&x, side, &wide].map(Operand::Array);
            assert!(run(def, all[0], all[1]) == run(def, all[0], all[2]), "{name} {columns}");
            assert!(run(def, all[1], all[0]) == run(def, all[2], all[0]), "{name} {columns}");
        }
    }
}

#[test]
fn what_is_no_chain_is_none() {
    let mut program = ElementProgram::new(&[DType::F32; 2], &[]);
    let (x, y) = (program.array(0), program.array(1));
    let sum = program.push(ElementOp::Map(op("add")), &[x, y], DType::F32);
    let twice = program.push(ElementOp::Map(op("add")), &[sum, sum], DType::F32);
    assert!(Chain::of(&program.giving(&[twice])).is_none());
    let mut program = ElementProgram::new(&[DType::F32], &[]);
    let x = program.array(0);
    let y = program.push(ElementOp::Map(op("exp")), &[x], DType::F32);
    assert!(Chain::of(&program.giving(&[y])).is_none());
}
