use super::*;
use crate::cpu::jit;
use crate::cpu::program::run;
use crate::cpu::testing::{array, bytes, layouts, noise, reduce};
use crate::ops::attributes::Reduction;
use crate::ops::element::ElementOp;
use crate::ops::elementwise::arithmetic;
use crate::simd::Isa;

/// Shapes and axes with pieces of a block of all kinds: whole blocks, whole lines of lanes, rectangles
/// of short rows, and what is left over.
const CASES: [(&[usize], &[usize]); 16] = [
    (&[33], &[0]),
    (&[63], &[0]),
    (&[64], &[0]),
    (&[65], &[0]),
    (&[1023], &[0]),
    (&[1024], &[0]),
    (&[1025], &[0]),
    (&[3, 5000], &[1]),
    (&[4, 1, 3136], &[0, 2]),
    (&[2, 3, 1088], &[0, 2]),
    (&[3, 2, 320], &[0, 2]),
    (&[5, 3, 784], &[0, 2]),
    (&[90, 2, 7, 7], &[0, 2, 3]),
    (&[300, 3, 5], &[0, 2]),
    (&[7, 2, 3, 40], &[0, 2, 3]),
    (&[6, 5, 3, 100], &[0, 3]),
];

const MULTIPLY: ElementOp = ElementOp::Map(&arithmetic::multiply);
const ADD: ElementOp = ElementOp::Map(&arithmetic::add);

/// Of `a`, `b` and `w`, repeated along axes that are summed, as an array or a number:
/// `a w + k`, which is stored too; `(a w + k) b`; `b w`; and `b`.
fn source(is_number: bool) -> (ElementProgram, usize) {
    let mut program = match is_number {
        true => ElementProgram::new(&[DType::F32; 2], &[DType::F32; 2]),
        false => ElementProgram::new(&[DType::F32; 3], &[DType::F32]),
    };
    let (a, b) = (program.array(0), program.array(1));
    let w = if is_number { program.number(1) } else { program.array(2) };
    let k = program.number(0);
    let scaled = program.push(MULTIPLY, &[a, w], DType::F32);
    let moved = program.push(ADD, &[scaled, k], DType::F32);
    let product = program.push(MULTIPLY, &[moved, b], DType::F32);
    let other = program.push(MULTIPLY, &[b, w], DType::F32);
    (program.giving(&[moved, moved, product, other, b]), 4)
}

/// What the program gives when each result is stored first and summed then.
fn one_by_one(
    source: &ElementProgram,
    (shape, axes): (&Shape, &[usize]),
    inputs: &[&Array],
    numbers: &[Scalar],
) -> (Array, Vec<f32>) {
    let all = source.results().iter().map(|&x| {
        let y = Array::uninit(DType::F32, shape.clone()).unwrap();
        match inputs.get(x.0 as usize) {
            // SAFETY: the array is this test's.
            Some(x) => unsafe { crate::cpu::copy::copy_into(&y, x) },
            None => {
                let program = Program::interpreted(&source.clone().giving(&[x])).unwrap();
                // SAFETY: as above.
                unsafe { run(&program, inputs, numbers, &[&y]) };
            }
        }
        y
    });
    let all: Vec<Array> = all.collect();
    let sums = all[1..].iter().flat_map(|y| {
        let sum = reduce(Reduction::Sum, y, axes).unwrap();
        let count = sum.count();
        // SAFETY: a fresh array in C order.
        unsafe { std::slice::from_raw_parts(sum.ptr().cast::<f32>(), count) }.to_vec()
    });
    let sums = sums.collect();
    (all[0].clone(), sums)
}

/// The code for each level that the processor has.
fn codes(source: &ElementProgram, sums: usize) -> Vec<Code> {
    let levels = [Isa::V3, Isa::V4].into_iter().filter(|level| level.is_available());
    let levels = levels.filter(|_| !cfg!(miri) && jit::is_eligible(source, sums));
    levels.map(|level| Code::of(source, sums, level).unwrap()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    // Which NaN it is depends on the order of operands, which nobody promises.
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

fn check(a: &Array, b: &Array, (shape, axes): (&Shape, &[usize])) {
    let own: Vec<usize> = (0..shape.rank())
        .map(|axis| if axes.contains(&axis) { 1 } else { shape[axis].value() })
        .collect();
    let (w, numbers) = (noise(DType::F32, &own, 3), [Scalar::Float(0.25)]);
    let inputs = [a, b, &w];
    let (by_arrays, sums) = source(false);
    let (stored, want) = one_by_one(&by_arrays, (shape, axes), &inputs, &numbers);
    for is_number in [false, true] {
        let source = source(is_number).0;
        // Once with what is summed, and once with what is stored alone.
        for sums in [sums, 0] {
            let source = match sums {
                0 => source.clone().giving(&source.results()[..1]),
                _ => source.clone(),
            };
            let summing = Summing::lower(&source, sums).unwrap();
            for code in codes(&source, sums) {
                let y = Array::uninit(DType::F32, shape.clone()).unwrap();
                let mut got = vec![0.0; if sums == 0 { 0 } else { want.len() }];
                let (arrays, repeated) = inputs.split_at(if is_number { 2 } else { 3 });
                let given = Given { arrays, numbers: &numbers, repeated };
                // SAFETY: the result is fresh.
                unsafe { summing.run_by(&code, (shape, axes), given, &[&y], &mut got) };
                let facts = format!("{shape} {axes:?} {:?}, steps of {}", a.layout, code.step());
                assert_eq!(bits(&got), bits(&want[..got.len()]), "{facts}");
                assert!(bytes(&y) == bytes(&stored), "{facts}");
            }
        }
    }
}

#[test]
fn sums_have_the_bits_of_those_that_are_made_later() {
    for (sizes, axes) in CASES {
        let shape = Shape::of(sizes);
        let (a, b) = (noise(DType::F32, sizes, 1), noise(DType::F32, sizes, 2));
        for other in layouts(&a) {
            check(&other, &b, (&shape, axes));
            check(&b, &other, (&shape, axes));
        }
    }
}

#[test]
fn elements_of_all_kinds_are_summed_alike() {
    let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3e38, -3e38, 1e-41];
    for n in [40, 64, 100, 1000, 2112] {
        let zeros = array(DType::F32, &[n], &vec![-0.0; n]);
        for (k, &x) in special.iter().enumerate() {
            for at in [0, 31, n - 1] {
                let mut values = vec![-0.0; n];
                values[at] = x;
                values[n / 2] = special[(k + at) % special.len()];
                let values = array(DType::F32, &[n], &values);
                check(&values, &zeros, (&Shape::of(&[n]), &[0]));
                check(&zeros, &values, (&Shape::of(&[n]), &[0]));
            }
        }
    }
}

#[test]
fn a_stored_result_may_lie_over_an_input() {
    let (source, sums) = source(false);
    let (shape, numbers) = (Shape::of(&[5, 1, 448]), [Scalar::Float(0.25)]);
    let sizes = [5, 1, 448];
    let (a, b) = (noise(DType::F32, &sizes, 1), noise(DType::F32, &sizes, 2));
    let w = noise(DType::F32, &[1, 1, 1], 3);
    let inputs = [&a, &b, &w];
    let (stored, want) = one_by_one(&source, (&shape, &[0, 2]), &inputs, &numbers);
    let summing = Summing::lower(&source, sums).unwrap();
    for code in codes(&source, sums) {
        let y = crate::cpu::copy::contiguous(&noise(DType::F32, &sizes, 1)).unwrap();
        let mut got = vec![0.0; want.len()];
        // SAFETY: the result is this test's, and lies as the input whose memory it is.
        unsafe {
            let given = Given { arrays: &[&y, &b, &w], numbers: &numbers, repeated: &[] };
            summing.run_by(&code, (&shape, &[0, 2]), given, &[&y], &mut got);
        }
        assert_eq!(bits(&got), bits(&want));
        assert!(bytes(&y) == bytes(&stored));
    }
}
