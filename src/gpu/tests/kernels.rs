//! Kernels of single ops: valid for every dtype and kind of view, the same text for every size.

use std::collections::BTreeSet;

use smallvec::smallvec;

use super::{DTYPES, validate};
use crate::dtype::DType;
use crate::gpu::kernel::{Dispatch, Input, Kernel, Output, Place, Refusal, View, Word};
use crate::gpu::moves::view_of;
use crate::gpu::op::kernel;
use crate::layout::Layout;
use crate::ops::attributes::{ScatterMode, WindowSpec};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Dim, Shape};
use crate::target::Abilities;

/// How operands lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Dense,
    Strided,
}

fn n(n: usize) -> Dim {
    Dim::new(n)
}

fn view(sizes: &[Dim], lie: Lie) -> View {
    let dense = View::dense(sizes);
    match lie {
        Lie::Dense => dense,
        Lie::Strided => {
            let strides = dense.strides.iter().map(|stride| stride.times(-2)).collect();
            View { strides, offset: Word::Size(n(90_000)), is_dense: false, ..dense }
        }
    }
}

/// An operand of a case: an array of the dtype, an array of indices, or a number.
enum Given {
    Array(Vec<Dim>),
    Indices(Vec<Dim>),
    Number,
}

/// An op, its operands and the sizes of its result; the result's dtype where that is not its
/// operand's.
type Case = (Op, Vec<Given>, Vec<Dim>, Option<DType>);

/// Every op of this kind, on an axis of size `m` beside others.
fn cases(m: Dim) -> Vec<Case> {
    use Given::{Array, Indices, Number};
    let three = n(3);
    let shape = |sizes: &[Dim]| Shape::from_dims(sizes);
    let part = |start, step, size| SliceAxis { start, step, size };
    let at = || -> Box<[SliceAxis]> {
        Box::new([part(n(1), 1, n(2)), part(n(0), 3, m), part(m, -2, n(2))])
    };
    let wide = [n(4), m * n(3), m + n(7)];
    let windows = WindowSpec { size: smallvec![3], stride: smallvec![2], dilation: smallvec![1] };
    let x = || Array(vec![three, m]);
    let mut cases = vec![
        (Op::Reshape(shape(&[m, three])), vec![x()], vec![m, three], None),
        (Op::Permute(smallvec![1, 0]), vec![x()], vec![m, three], None),
        (Op::Broadcast(shape(&[m, three, m])), vec![x()], vec![m, three, m], None),
        (Op::Slice(at()), vec![Array(wide.to_vec())], vec![n(2), m, n(2)], None),
        (Op::Pad(shape(&wide), at()), vec![Array(vec![n(2), m, n(2)]), Number], wide.into(), None),
        (Op::SetItem(at()), vec![Array(wide.to_vec()), Array(vec![m, n(1)])], wide.into(), None),
        (Op::SetItem(at()), vec![Array(wide.to_vec()), Number], wide.into(), None),
        (Op::Concat(1), vec![x(), Array(vec![three, n(2)])], vec![three, m + n(2)], None),
        (Op::Concat(0), (0..9).map(|_| x()).collect(), vec![n(27), m], None),
        (Op::Windows(Box::new(windows)), vec![Array(vec![m + n(2)])], vec![m, n(3)], None),
        (Op::Gather, vec![x(), Indices(vec![m])], vec![m, m], None),
        (Op::Gather, vec![x(), Indices(vec![m]), Indices(vec![n(2), n(1)])], vec![n(2), m], None),
        (Op::Cast(DType::F32), vec![x()], vec![three, m], Some(DType::F32)),
        (Op::Full(Type::new(DType::F32, shape(&[m]))), vec![Number], vec![m], None),
    ];
    let whole = Type::new(DType::F32, shape(&[three, m]));
    cases.push((Op::Iota(whole, 1), vec![], vec![three, m], None));
    let many = (0..8).map(|_| Indices(vec![m]));
    let eight = vec![n(2); 8];
    let operands = [Array(eight)].into_iter().chain(many).collect();
    cases.push((Op::Gather, operands, vec![m], None));
    cases
}

/// The ops whose count of dispatches depends on a size.
fn sized(m: Dim) -> Vec<Case> {
    use Given::{Array, Indices, Number};
    let x = || vec![Array(vec![n(3), m])];
    let (ordered, index) = (vec![n(3), m], Some(DType::I64));
    let scatter = |mode| Op::Scatter(mode);
    vec![
        (Op::Sort { axis: 1, descending: false }, x(), ordered.clone(), None),
        (Op::ArgSort { axis: 1, descending: true }, x(), ordered, index),
        (Op::TopK { k: 2, axis: 1, largest: true }, x(), vec![n(3), n(2)], index),
        (
            scatter(ScatterMode::Set),
            vec![Array(vec![n(3), m]), Array(vec![m]), Indices(vec![m])],
            vec![n(3), m],
            None,
        ),
        (
            scatter(ScatterMode::Add),
            vec![Array(vec![n(3), m]), Number, Indices(vec![m]), Indices(vec![n(1), n(1)])],
            vec![n(3), m],
            None,
        ),
    ]
}

fn made(case: &Case, dtype: DType, lie: Lie) -> crate::error::Result<Kernel> {
    let (op, given, sizes, result) = case;
    let mut inputs = Vec::new();
    for (range, given) in given.iter().enumerate() {
        inputs.push(match given {
            Given::Array(sizes) => Input::Array { range, dtype, view: view(sizes, lie) },
            Given::Indices(sizes) => {
                Input::Array { range, dtype: DType::I64, view: view(sizes, lie) }
            }
            Given::Number => Input::Number(0),
        });
    }
    let ty = Type::new(result.unwrap_or(dtype), Shape::from_dims(sizes));
    kernel(op, &inputs, &Output { range: inputs.len(), ty }, Abilities::default())
}

fn texts(kernel: &Kernel) -> Vec<&str> {
    kernel.dispatches.iter().map(|dispatch| dispatch.text.as_str()).collect()
}

#[test]
fn every_op_has_valid_kernels_for_every_dtype_and_view() {
    let mut seen = BTreeSet::new();
    for case in cases(n(70)).into_iter().chain(sized(n(70))) {
        for dtype in DTYPES {
            for lie in [Lie::Dense, Lie::Strided] {
                let kernel = made(&case, dtype, lie).expect("a kernel");
                assert!(!kernel.dispatches.is_empty());
                for dispatch in &kernel.dispatches {
                    assert!(dispatch.bindings.len() <= 8, "{}", dispatch.text);
                    dispatch.admit("a case").expect("short loops");
                    if seen.insert(dispatch.text.clone()) {
                        validate(&dispatch.text);
                    }
                }
                let faults = |place: &Place| *place == Place::Faults;
                let marks = kernel.dispatches.iter().any(|d| d.bindings.iter().any(faults));
                assert_eq!(marks, kernel.refusal.is_some(), "{:?}", case.0);
            }
        }
    }
    assert!(seen.len() > 140, "{}", seen.len());
}

#[test]
fn texts_hold_no_sizes() {
    let pairs = [(cases(n(5)), cases(n(900))), (sized(n(70)), sized(n(90)))];
    for (small, large) in pairs.iter().flat_map(|(a, b)| a.iter().zip(b)) {
        for lie in [Lie::Dense, Lie::Strided] {
            let [a, b] = [small, large].map(|case| made(case, DType::I16, lie).expect("a kernel"));
            assert_eq!(texts(&a), texts(&b), "{:?}", small.0);
        }
    }
    // Merges of runs of every length are one text, which binds what is read and written in turn.
    let long = made(&sized(n(5000))[0], DType::F32, Lie::Dense).expect("a kernel");
    let distinct: BTreeSet<&str> = texts(&long).into_iter().collect();
    assert_eq!((long.dispatches.len(), distinct.len()), (1 + 1 + 8 + 1, 4));
}

#[test]
fn open_sizes_have_the_same_texts() {
    let open = Dim::named("n");
    for (case, known) in cases(open).iter().zip(&cases(n(5))) {
        let kernel = made(case, DType::F16, Lie::Dense).expect("a kernel");
        let other = made(known, DType::F16, Lie::Dense).expect("a kernel");
        assert_eq!(texts(&kernel), texts(&other), "{:?}", case.0);
    }
    // Where sizes say how many dispatches there are, an open size repeats the same texts.
    for (case, known) in sized(open).iter().zip(&sized(n(5000))) {
        let kernel = made(case, DType::F16, Lie::Dense).expect("a kernel");
        let other = made(known, DType::F16, Lie::Dense).expect("a kernel");
        let [all, some] = [&kernel, &other].map(|kernel| BTreeSet::from_iter(texts(kernel)));
        assert!(some.is_subset(&all), "{:?}", case.0);
        for text in all {
            validate(text);
        }
        assert!(!kernel.repeats.is_empty() && other.repeats.is_empty());
        for repeat in &kernel.repeats {
            assert!(!repeat.range.is_empty() && repeat.range.end <= kernel.dispatches.len());
        }
    }
}

#[test]
fn float64_is_refused() {
    for case in cases(n(5)).iter().chain(&sized(n(5))) {
        let refusal = made(case, DType::F64, Lie::Dense).unwrap_err();
        assert!(refusal.message().contains("use float32"), "{refusal}");
    }
}

#[test]
fn movements_of_views_are_the_layouts_of_the_cpu() {
    let shape = Shape::of(&[3, 1, 5]);
    let strided = Layout::strided(shape.clone(), &[-10, 7, 2], 30);
    let part = |start, step, size| SliceAxis { start: n(start), step, size: n(size) };
    let windows = WindowSpec { size: smallvec![2], stride: smallvec![2], dilation: smallvec![1] };
    let ops: Vec<(Op, Vec<usize>)> = vec![
        (Op::Reshape(Shape::of(&[3, 5])), vec![3, 5]),
        (Op::Reshape(Shape::of(&[1, 3, 5, 1])), vec![1, 3, 5, 1]),
        (Op::Permute(smallvec![2, 0, 1]), vec![5, 3, 1]),
        (Op::Permute(smallvec![1, 0, 2]), vec![1, 3, 5]),
        (Op::Broadcast(Shape::of(&[2, 3, 4, 5])), vec![2, 3, 4, 5]),
        (Op::Slice(Box::new([part(2, -1, 3), part(0, 1, 1), part(1, 3, 2)])), vec![3, 1, 2]),
        (Op::Slice(Box::new([part(1, 1, 2), part(0, 1, 1), part(0, 1, 5)])), vec![2, 1, 5]),
        (Op::Windows(Box::new(windows)), vec![3, 1, 2, 2]),
    ];
    for x in [Layout::contiguous(shape), strided] {
        for (op, sizes) in &ops {
            let of = Shape::of(sizes);
            let found = view_of(op, &View::of(&x), of.dims()).expect("a view");
            let wanted = View::of(&op.view(DType::F32, &x).expect("a view"));
            assert_eq!((&found.sizes, found.offset), (&wanted.sizes, wanted.offset), "{op:?}");
            assert_eq!(found.is_dense, wanted.is_dense, "{op:?}");
            for ((own, other), &size) in found.strides.iter().zip(&wanted.strides).zip(sizes) {
                assert!(size == 1 || own == other, "{op:?}: {found:?} {wanted:?}");
            }
        }
    }
    // What has no strides is copied.
    let turned = View::dense(&[n(2), n(3)]).permute(&[1, 0]);
    assert_eq!(view_of(&Op::Reshape(Shape::of(&[6])), &turned, &[n(6)]), None);
    let sums = Op::Sort { axis: 0, descending: false };
    assert_eq!(view_of(&sums, &turned, &[n(3), n(2)]), None);
}

#[test]
fn words_of_faults_are_the_error() {
    let refusal = Refusal::Outside { op: "gather", sizes: smallvec![n(3), n(5)] };
    let error = refusal.error([17, 1, -9_i32 as u32, u32::MAX]);
    assert!(error.message().contains("index -9"), "{error}");
    let many = made(&cases(n(5))[15], DType::F32, Lie::Dense).expect("a kernel");
    let slots = |dispatch: &Dispatch| dispatch.words.contains(&Word::Slot);
    assert_eq!(many.dispatches.iter().filter(|dispatch| slots(dispatch)).count(), 8 + 2);
}

#[cfg(feature = "example-op")]
#[test]
fn the_example_is_a_difference_of_two_views() {
    for lie in [Lie::Dense, Lie::Strided] {
        let case =
            (Op::Increments(1), vec![Given::Array(vec![n(3), n(6)])], vec![n(3), n(5)], None);
        let kernel = made(&case, DType::I8, lie).expect("a kernel");
        validate(&kernel.dispatches[0].text);
        assert_eq!(kernel.dispatches[0].bindings.len(), 2);
    }
}
