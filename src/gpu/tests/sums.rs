//! Texts of ops that sum: valid for every dtype and kind, the same for every size.

use smallvec::smallvec;

use super::{DTYPES, validate};
use crate::dtype::DType;
use crate::gpu::epilogue::Epilogue;
use crate::gpu::group::Operand;
use crate::gpu::kernel::{Input, Kernel, Output, View};
use crate::gpu::op::{is_product, kernel, product};
use crate::gpu::target::{Shaders, WEBGPU};
use crate::ops::attributes::*;
use crate::ops::element::{ElementOp, ElementProgram, Value};
use crate::ops::op::{Op, OperandType, Type};
use crate::shape::{Dim, Shape};
use crate::target::{Abilities, Target, Tiling};

const REDUCTIONS: [Reduction; 6] = [
    Reduction::Sum,
    Reduction::Prod,
    Reduction::Max,
    Reduction::Min,
    Reduction::Any,
    Reduction::All,
];

/// The kernel of an op on operands of these sizes, without gaps or turned, if it takes the dtype.
fn made(op: &Op, dtype: DType, operands: &[&[Dim]], is_turned: bool) -> Option<Kernel> {
    made_with(op, dtype, operands, is_turned, &WEBGPU)
}

fn made_with(
    op: &Op,
    dtype: DType,
    operands: &[&[Dim]],
    is_turned: bool,
    target: &'static Shaders,
) -> Option<Kernel> {
    let shapes: Vec<Shape> = operands.iter().map(|dims| Shape::from_dims(dims)).collect();
    let types: Vec<OperandType<'_>> =
        shapes.iter().map(|shape| OperandType::Tensor(dtype, shape)).collect();
    let ty = op.infer(&types).ok()?;
    let view = |dims: &[Dim]| {
        let mut view = View::dense(dims);
        if is_turned {
            let turned: Vec<Dim> = dims.iter().rev().copied().collect();
            view.strides = View::dense(&turned).strides.into_iter().rev().collect();
            view.is_dense = false;
        }
        view
    };
    let input = |(range, dims): (usize, &&[Dim])| Input::Array { range, dtype, view: view(dims) };
    let inputs: Vec<Input> = operands.iter().enumerate().map(input).collect();
    let out = Output { range: operands.len(), ty };
    let kernel = kernel(op, &inputs, std::slice::from_ref(&out), target).expect("a kernel");
    for dispatch in &kernel.dispatches {
        validate(&dispatch.text);
    }
    if is_product(op) {
        with_epilogues(op, &inputs, &out.ty, target.abilities());
    }
    Some(kernel)
}

/// The same with epilogues that read a vector, and the first operand of the product, and give two
/// results.
fn with_epilogues(op: &Op, inputs: &[Input], ty: &Type, abilities: Abilities) {
    let n = inputs.len();
    let (dtype, sizes) = (ty.dtype, ty.shape.dims());
    for to in [dtype, DType::Bool, DType::I8, DType::F16, DType::U64] {
        let mut program = ElementProgram::new(&[dtype; 3], &[dtype]);
        let made: Vec<Value> = [program.array(1), program.array(0), program.number(0)]
            .map(|x| program.push(ElementOp::Cast, &[x], to))
            .into();
        let own = program.array(2);
        let program = program.giving(&[made[0], made[1], own]);
        let vector = View::dense(&sizes[sizes.len() - 1..]);
        let dense = View::dense(&[]);
        let operands = vec![Operand::new(n, vector), Operand::new(0, dense)];
        let results = (n + 1..n + 4).collect();
        let epilogue = Epilogue { program: &program, raw: 1, operands, sizes, results };
        let kernel = product(op, inputs, &epilogue, abilities).expect("a kernel");
        for dispatch in &kernel.dispatches {
            assert!(dispatch.bindings.len() <= 8, "{}", dispatch.text);
            validate(&dispatch.text);
        }
    }
}

/// Every op that sums with the sizes of its operands, which grow with `n`.
fn ops(n: usize) -> Vec<(Op, Vec<Vec<usize>>)> {
    let mut all = Vec::new();
    for kind in REDUCTIONS {
        for axes in [&[][..], &[0], &[1], &[2], &[0, 2], &[0, 1, 2]] {
            let axes = axes.iter().copied().collect();
            all.push((Op::Reduce(kind, axes), vec![vec![2 * n, 3 * n, 4 * n]]));
        }
    }
    for kind in [ArgReduction::Max, ArgReduction::Min] {
        all.push((Op::ArgReduce(kind, 1), vec![vec![2 * n, 3 * n]]));
        all.push((Op::ArgReduce(kind, 0), vec![vec![2 * n, 3 * n]]));
    }
    for kind in [Cumulation::Sum, Cumulation::Prod, Cumulation::Max, Cumulation::Min] {
        for (axis, reverse) in [(0, false), (1, true)] {
            all.push((Op::Cumulate { kind, axis, reverse }, vec![vec![2 * n, 3 * n]]));
        }
    }
    let contraction = |a_batch: &[usize], b_batch: &[usize], a: &[usize], b: &[usize]| {
        let axes = |axes: &[usize]| axes.iter().copied().collect();
        Op::Contract(Box::new(Contraction {
            a_batch: axes(a_batch),
            b_batch: axes(b_batch),
            a_contract: axes(a),
            b_contract: axes(b),
        }))
    };
    let matrix = contraction(&[], &[], &[1], &[0]);
    all.push((matrix.clone(), vec![vec![8 * n, 16 * n], vec![16 * n, 12 * n]]));
    all.push((matrix, vec![vec![7 * n, 15 * n], vec![15 * n, 5 * n]]));
    let batched = contraction(&[0], &[2], &[1, 3], &[0, 3]);
    let sizes = [vec![2 * n, 3 * n, 4 * n, 5 * n], vec![3 * n, 7 * n, 2 * n, 5 * n]];
    all.push((batched, sizes.to_vec()));
    for role in [ConvRole::Output, ConvRole::Input, ConvRole::Weight] {
        for axes in 1..=3 {
            for (groups, stride, dilation, pad) in [(1, 1, 1, 0), (1, 1, 2, 2), (2, 2, 1, 1)] {
                let (size, kernel) = (8 * n, 3);
                let places = (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
                let per = |n: usize| PerAxis::from_elem(n, axes);
                let dims = |n: usize| (0..axes).map(|_| Dim::new(n)).collect();
                let spec = ConvSpec {
                    stride: per(stride),
                    pad_low: per(pad),
                    pad_high: per(pad),
                    dilation: per(dilation),
                    groups,
                    input: dims(size),
                    kernel: dims(kernel),
                };
                let of = |a: usize, b: usize, n: usize| [vec![a, b], vec![n; axes]].concat();
                let x = of(n, 4 * groups, size);
                let w = of(6 * groups, 4, kernel);
                let g = of(n, 6 * groups, places);
                let operands = match role {
                    ConvRole::Output => vec![x, w],
                    ConvRole::Input => vec![g, w],
                    ConvRole::Weight => vec![x, g],
                };
                all.push((Op::Conv(role, Box::new(spec)), operands));
            }
        }
    }
    let spec =
        WindowSpec { size: smallvec![3, 2], stride: smallvec![2, 1], dilation: smallvec![1, 2] };
    let sizes = [Dim::new(4 * n + 1), Dim::new(5 * n + 2)];
    let fold = Op::Fold(Box::new(spec), sizes.into_iter().collect());
    all.push((fold, vec![vec![2 * n, 2 * n, 5 * n, 3, 2]]));
    all
}

#[test]
fn every_op_that_sums_has_valid_kernels_for_every_dtype_it_takes() {
    let mut count = 0;
    for (op, sizes) in ops(1) {
        let dims: Vec<Vec<Dim>> =
            sizes.iter().map(|sizes| sizes.iter().map(|&n| Dim::new(n)).collect()).collect();
        let operands: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
        for dtype in DTYPES {
            for is_turned in [false, true] {
                count += usize::from(made(&op, dtype, &operands, is_turned).is_some());
            }
        }
    }
    assert!(count > 1000, "{count}");
}

/// Devices with float16 of their own that tile products.
const fn tiling(tiling: Tiling) -> Shaders {
    let abilities = Abilities { has_f16: true, has_subgroups: true, tiling, ..Abilities::LEAST };
    Shaders::new("webgpu", 8, 128 << 20, 256 << 20).able(abilities)
}

static UNTILED: Shaders = tiling(Tiling::Never);
static LARGE_TILED: Shaders = tiling(Tiling::Large);
static TILED: Shaders = tiling(Tiling::Always);

/// Sums of many parts, of rows in registers too, need a barrier less where there are subgroups.
#[test]
fn many_parts_are_joined_by_a_workgroup() {
    let barriers = |op: &Op, dtype, target| {
        let kernel = made_with(op, dtype, &[&[5, 100_003].map(Dim::new)], false, target)?;
        let [_, last] = &kernel.dispatches[..] else { panic!("one dispatch for all parts") };
        let shuffles = last.text.matches("subgroupShuffleXor").count();
        assert_eq!(shuffles > 0, target.abilities().has_subgroups, "{}", last.text);
        Some(last.text.matches("workgroupBarrier").count())
    };
    let kinds = REDUCTIONS.map(|kind| Op::Reduce(kind, [1].into_iter().collect()));
    let places = [ArgReduction::Max, ArgReduction::Min].map(|kind| Op::ArgReduce(kind, 1));
    let mut count = 0;
    for op in kinds.iter().chain(&places) {
        for dtype in DTYPES {
            if let Some(found) = barriers(op, dtype, &WEBGPU) {
                assert_eq!(barriers(op, dtype, &UNTILED), Some(found / 2), "{op:?} {dtype}");
                assert!(found == 2 || found == 4 || found == 8, "{found}");
                count += 1;
            }
        }
    }
    assert!(count > 60, "{count}");
}

#[test]
fn products_have_valid_kernels_in_every_variant() {
    let (mut tiled, mut native) = (0, 0);
    for (op, sizes) in ops(7).into_iter().filter(|(op, _)| is_product(op)) {
        let dims: Vec<Vec<Dim>> =
            sizes.iter().map(|sizes| sizes.iter().map(|&n| Dim::new(n)).collect()).collect();
        let operands: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
        for target in [&UNTILED, &TILED] {
            let dtypes = [DType::F32, DType::F16, DType::I64, DType::U8];
            for (dtype, is_turned) in dtypes.into_iter().flat_map(|x| [(x, false), (x, true)]) {
                let Some(kernel) = made_with(&op, dtype, &operands, is_turned, target) else {
                    continue;
                };
                let text = &kernel.dispatches[0].text;
                tiled += usize::from(text.contains("var<workgroup>"));
                native += usize::from(text.starts_with("enable f16;"));
                assert!(dtype == DType::F16 || !text.contains("enable f16;"), "{text}");
            }
        }
    }
    assert!(tiled > 12 && native > 4, "{tiled} {native}");
}

/// Tiles are for products that fill them, and of which there are many.
#[test]
fn large_products_take_tiles() {
    let (matrix, _) = ops(1).into_iter().find(|(op, _)| is_product(op)).unwrap();
    let is_tiled = |m: usize, k: usize, n: usize| {
        let (a, b) = ([m, k].map(Dim::new), [k, n].map(Dim::new));
        let kernel = made_with(&matrix, DType::F32, &[&a, &b], false, &LARGE_TILED).unwrap();
        kernel.dispatches[0].text.contains("var<workgroup>")
    };
    assert!(is_tiled(256, 16, 256) && is_tiled(33, 16, 1024));
    assert!(!is_tiled(64, 16, 64) && !is_tiled(1, 16, 4096) && !is_tiled(1024, 70_000, 1024));
}

/// The operands with every size a symbol of its own.
fn open(sizes: &[Vec<usize>]) -> Vec<Vec<Dim>> {
    let mut known: Vec<usize> = Vec::new();
    let mut dim = |n: usize| {
        let at = known.iter().position(|&m| m == n).unwrap_or_else(|| {
            known.push(n);
            known.len() - 1
        });
        Dim::named(&format!("open{at}"))
    };
    sizes.iter().map(|sizes| sizes.iter().map(|&n| dim(n)).collect()).collect()
}

#[test]
fn open_sizes_have_kernels_too() {
    let mut count = 0;
    for (op, sizes) in ops(1) {
        // The sizes of convolutions are partly numbers.
        if matches!(op, Op::Conv(..) | Op::Fold(..)) {
            continue;
        }
        let dims = open(&sizes);
        let operands: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
        for dtype in [DType::F32, DType::I64, DType::I8, DType::Bool] {
            count += usize::from(made(&op, dtype, &operands, false).is_some());
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn sizes_choose_variants_and_are_no_text() {
    let mut count = 0;
    for ((small, sizes), (large, others)) in ops(3).into_iter().zip(ops(5)) {
        // How many parts these have, none or some, their sizes decide.
        let is_cut = matches!(small, Op::Conv(ConvRole::Weight, _)) || sizes[0].len() == 4;
        if is_cut && !matches!(small, Op::Conv(ConvRole::Output | ConvRole::Input, _)) {
            continue;
        }
        for dtype in [DType::F32, DType::Bool, DType::I64] {
            let texts = |op: &Op, sizes: &[Vec<usize>]| -> Option<Vec<String>> {
                let dims: Vec<Vec<Dim>> = sizes
                    .iter()
                    .map(|sizes| sizes.iter().map(|&n| Dim::new(n)).collect())
                    .collect();
                let operands: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
                let kernel = made(op, dtype, &operands, false)?;
                Some(kernel.dispatches.into_iter().map(|dispatch| dispatch.text).collect())
            };
            let texts = [texts(&small, &sizes), texts(&large, &others)];
            count += usize::from(texts[0].is_some());
            assert_eq!(texts[0], texts[1], "{}", small.name());
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn long_sums_fit_into_the_rounds_of_a_dispatch() {
    let vector = |n: usize| vec![Dim::new(n)];
    let contract = Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    };
    let long: [(Op, Vec<Vec<Dim>>); 4] = [
        (Op::Reduce(Reduction::Sum, smallvec![0]), vec![vector(1 << 26)]),
        (Op::ArgReduce(ArgReduction::Max, 0), vec![vector(1 << 26)]),
        (Op::Cumulate { kind: Cumulation::Sum, axis: 0, reverse: false }, vec![vector(1 << 26)]),
        (
            Op::Contract(Box::new(contract)),
            vec![vec![Dim::new(500), Dim::new(1 << 18)], vec![Dim::new(1 << 18), Dim::new(500)]],
        ),
    ];
    for (op, sizes) in long {
        let operands: Vec<&[Dim]> = sizes.iter().map(Vec::as_slice).collect();
        let kernel = made(&op, DType::F32, &operands, false).expect("float32 is taken");
        assert!(kernel.dispatches.len() > 1, "{}", op.name());
        for dispatch in &kernel.dispatches {
            dispatch.admit(op.name()).expect("few rounds");
        }
    }
}
