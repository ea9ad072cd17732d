//! Attention by blocks of scores: the formula's values, whatever a block is, and valid texts.

use std::collections::HashSet;

use super::validate;
use crate::array::Array;
use crate::cpu::testing::{random, values};
use crate::dtype::DType;
use crate::gpu::attention::{BLOCK, kernel};
use crate::gpu::kernel::{Input, Output, Place, View};
use crate::gpu::target::WEBGPU;
use crate::graph::Graph;
use crate::graph::testing::one_by_one;
use crate::ops::composite::attention::in_blocks;
use crate::ops::composite::tables;
use crate::ops::declare::{Arguments, Attr};
use crate::ops::emit::{Arg, Emit};
use crate::ops::op::{Call, Op, OperandType, Type};
use crate::shape::{Dim, Shape};

/// A call: the sizes of queries, keys, values and, if there is one, of the mask with its dtype;
/// whether it is causal.
type Case = (&'static [usize], &'static [usize], &'static [usize], Option<Mask>, bool);
type Mask = (DType, &'static [usize]);

const CASES: [Case; 9] = [
    (&[7, 4], &[7, 4], &[7, 4], None, false),
    (&[7, 4], &[7, 4], &[7, 3], None, true),
    (&[9, 4], &[5, 4], &[5, 4], None, true),
    (&[5, 4], &[9, 4], &[9, 4], None, true),
    (&[2, 3, 7, 4], &[2, 3, 6, 4], &[2, 3, 6, 5], Some((DType::Bool, &[7, 6])), false),
    (&[2, 1, 7, 4], &[3, 6, 4], &[1, 1, 6, 5], Some((DType::F64, &[3, 1, 6])), true),
    (&[2, 7, 4], &[2, 6, 4], &[2, 6, 5], Some((DType::F64, &[2, 7, 1])), true),
    (&[3, 1, 4], &[3, 8, 4], &[3, 8, 2], None, false),
    (&[2, 0, 4], &[2, 3, 4], &[2, 3, 2], None, false),
];

/// The call, or that of its gradients, and the types of the operands in a dtype.
fn call_of(case: &Case, dtype: DType, is_gradient: bool) -> (Call, Vec<Type>) {
    let (q, k, v, mask, causal) = *case;
    let float = |sizes: &[usize]| Type::new(dtype, Shape::of(sizes));
    let mut types = vec![float(q), float(k), float(v)];
    let is_wide = |of: DType| if of.is_float() { dtype } else { of };
    let mask = mask.map(|(of, sizes)| Type::new(is_wide(of), Shape::of(sizes)));
    types.extend(mask.clone());
    let present = |is: bool| if is { Attr::Operand } else { Attr::None };
    let rest = [present(mask.is_some()), Attr::Bool(causal), Attr::None];
    let attributes = [vec![Attr::Operand; 3], rest.to_vec()].concat();
    let forward = named("scaled_dot_product_attention", attributes);
    if !is_gradient {
        return (forward, types);
    }
    let given: Vec<OperandType<'_>> =
        types.iter().map(|ty| OperandType::Tensor(ty.dtype, &ty.shape)).collect();
    let found = Op::Call(forward).infer_all(&given).expect("types");
    let (y, logsums) = (found[0].clone(), found[1].clone());
    let mut all = vec![y.clone()];
    all.extend_from_slice(&types[..3]);
    all.extend([y, logsums.clone()]);
    all.extend(mask.clone());
    all.push(logsums);
    let rest = [present(mask.is_some()), Attr::Operand, Attr::Bool(causal), Attr::None];
    (named("attention_gradients", [vec![Attr::Operand; 6], rest.to_vec()].concat()), all)
}

fn named(name: &str, attributes: Vec<Attr>) -> Call {
    let composite = tables().find(|composite| composite.name == name).expect("a composite");
    Call { composite, attributes: attributes.into() }
}

/// The results by the formula, or by blocks of so many scores.
fn computed(call: &Call, types: &[Type], data: &[Array], most: Option<usize>) -> Vec<Array> {
    let graph = Graph::new();
    let args: Vec<Arg> = types.iter().map(|ty| Arg::Node(graph.input(ty.clone()))).collect();
    let built = graph.build(|| match most {
        Some(most) => in_blocks(call, &graph, &args, &|_| most),
        None => {
            let cx: &dyn Emit = &graph;
            let attributes = &call.attributes[..];
            call.composite.formula(&Arguments { cx, attributes, operands: &args })
        }
    });
    built.expect("a formula");
    one_by_one(&graph, &data.iter().collect::<Vec<_>>(), &[])
}

#[test]
fn blocks_of_any_size_have_the_values_of_the_formula() {
    for case in &CASES {
        for is_gradient in [false, true] {
            let (call, types) = call_of(case, DType::F64, is_gradient);
            let data: Vec<Array> = (types.iter().enumerate())
                .map(|(i, ty)| random(ty.dtype, &ty.shape.sizes(), 7 + i as u64))
                .collect();
            let wanted = computed(&call, &types, &data, None);
            for most in [1, 5, 6, 13, 42, 50, 1000] {
                let found = computed(&call, &types, &data, Some(most));
                assert_eq!(found.len(), wanted.len());
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert_eq!(found.shape(), wanted.shape(), "{call:?} {case:?} {most}");
                    for (x, y) in values(found).into_iter().zip(values(wanted)) {
                        let is_same = x == y || x.is_nan() && y.is_nan();
                        let bound = 1e-12 * y.abs().max(1.0);
                        let what = format!("{x} is not {y}: {call:?} {case:?} {most}");
                        assert!(is_same || (x - y).abs() <= bound, "{what}");
                    }
                }
            }
        }
    }
}

/// Operands and results one behind the other in ranges of their own.
fn made(call: &Call, types: &[Type]) -> crate::gpu::kernel::Kernel {
    let given: Vec<OperandType<'_>> =
        types.iter().map(|ty| OperandType::Tensor(ty.dtype, &ty.shape)).collect();
    let results = Op::Call(call.clone()).infer_all(&given).expect("types");
    let input = |(range, ty): (usize, &Type)| Input::Array {
        range,
        dtype: ty.dtype,
        view: View::dense(ty.shape.dims()),
    };
    let inputs: Vec<Input> = types.iter().enumerate().map(input).collect();
    let outs: Vec<Output> = (results.into_iter().enumerate())
        .map(|(i, ty)| Output { range: types.len() + i, ty })
        .collect();
    kernel(call, &inputs, &outs, &WEBGPU).expect("a kernel")
}

#[test]
fn texts_are_valid_for_every_mask_and_dtype_and_share_what_blocks_have_in_common() {
    let mut texts: HashSet<String> = HashSet::new();
    for case in CASES.iter().filter(|case| case.0[case.0.len() - 2] > 0) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for is_gradient in [false, true] {
                let (call, types) = call_of(case, dtype, is_gradient);
                let kernel = made(&call, &types);
                assert!(kernel.dispatches.iter().all(|dispatch| dispatch.bindings.len() <= 8));
                texts.extend(kernel.dispatches.into_iter().map(|dispatch| dispatch.text));
            }
        }
    }
    texts.iter().for_each(|text| validate(text));
    assert!(texts.len() > 20, "{}", texts.len());
}

/// The bytes of scratch, dispatches and texts of self-attention of 2 × 4 heads of 64.
fn of_length(length: usize, is_gradient: bool) -> (usize, usize, usize) {
    of_heads(&[2, 4, length, 64], false, is_gradient)
}

/// The same of heads of these sizes.
fn of_heads(sizes: &[usize], causal: bool, is_gradient: bool) -> (usize, usize, usize) {
    let case = &CASES[usize::from(causal)];
    let (mut call, mut types) = call_of(case, DType::F32, is_gradient);
    for (i, ty) in types.iter_mut().enumerate() {
        let is_row = is_gradient && i >= 5;
        ty.shape = Shape::of(if is_row { &sizes[..sizes.len() - 1] } else { sizes });
    }
    // Without the cotangent of the sums.
    if is_gradient {
        types.pop();
        let mut attributes = call.attributes.to_vec();
        attributes[7] = Attr::None;
        call.attributes = attributes.into();
    }
    let kernel = made(&call, &types);
    let scratch = kernel.scratch.iter().map(|bytes| bytes.value()).sum();
    let texts: HashSet<&str> =
        kernel.dispatches.iter().map(|dispatch| dispatch.text.as_str()).collect();
    let used = kernel.dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
    assert!(used.clone().all(|place| match *place {
        Place::Scratch(i) => i < kernel.scratch.len(),
        Place::Range(i) => i < types.len() + 3,
        Place::Faults => false,
    }));
    (scratch, kernel.dispatches.len(), texts.len())
}

#[test]
fn scratch_does_not_grow_with_the_square_of_the_length() {
    for is_gradient in [false, true] {
        let (short, _, texts) = of_length(4096, is_gradient);
        let (long, dispatches, same) = of_length(16384, is_gradient);
        let linear = 2 * 4 * 16384 * 64 * 4;
        assert!(long < short + 8 * linear, "{short} {long}");
        assert!(long < 2 * 4 * 16384 * 16384, "{long}");
        assert!(dispatches > 100 && same <= 2 * texts, "{dispatches} {texts} {same}");
    }
}

/// Blocks are computed one after the other, so that their scores take each other's scratch.
#[test]
fn scratch_is_that_of_few_blocks() {
    let heads = [2, 8, 2048, 4];
    let queries = [1, 1, 8192, 4];
    let cases = [
        (heads, false, false, 2),
        (heads, true, false, 2),
        (queries, false, false, 2),
        (queries, true, false, 2),
        (heads, false, true, 4),
    ];
    for (sizes, causal, is_gradient, most) in cases {
        let (scratch, ..) = of_heads(&sizes, causal, is_gradient);
        let scores = BLOCK * size_of::<f32>();
        let rest = 4 * sizes.iter().product::<usize>() * size_of::<f32>();
        let facts = format!("{scratch} {is_gradient} {causal} {sizes:?}");
        assert!(scratch <= most * scores + rest + (8 << 20), "{facts}");
    }
}

#[test]
fn open_lengths_have_one_block() {
    let (call, mut types) = call_of(&CASES[0], DType::F32, false);
    for ty in &mut types {
        ty.shape.dims_mut()[0] = Dim::named("length");
    }
    let kernel = made(&call, &types);
    assert!(kernel.dispatches.len() < 8, "{}", kernel.dispatches.len());
    kernel.dispatches.iter().for_each(|dispatch| validate(&dispatch.text));
}
