//! Programs over every layout, dtype and cut, compared with plain loops.

use super::*;
use crate::layout::Layout;
use crate::ops::elementwise::arithmetic;
use crate::scalar;
use crate::shape::Shape;
use crate::tile::{Map2, Map3, formula2, formula3};

struct Sub;
impl<S: scalar::Scalar> Map2<S, S> for Sub {
    type Out = S;
    fn map(a: S, b: S) -> S {
        a - b
    }
}
struct Mul;
impl<S: scalar::Scalar> Map2<S, S> for Mul {
    type Out = S;
    fn map(a: S, b: S) -> S {
        a * b
    }
}
struct Less;
impl<S: scalar::Scalar> Map2<S, S> for Less {
    type Out = S::Mask;
    fn map(a: S, b: S) -> S::Mask {
        a.lt(b)
    }
}
struct Where;
impl<S: scalar::Scalar> Map3<S::Mask, S, S> for Where {
    type Out = S;
    fn map(c: S::Mask, a: S, b: S) -> S {
        S::select(c, a, b)
    }
}

fn sub() -> TileKernel {
    formula2::<Sub, f32>()
}
fn mul() -> TileKernel {
    formula2::<Mul, f32>()
}
fn less() -> TileKernel {
    formula2::<Less, f32>()
}
fn select() -> TileKernel {
    formula3::<Where, f32>()
}

/// An array of `f(0), f(1), …` as a dtype, in C order.
fn array(dtype: DType, sizes: &[usize], f: impl Fn(usize) -> f32) -> Array {
    let out = Array::uninit(dtype, Shape::of(sizes)).unwrap();
    let values: Vec<f32> = (0..out.count()).map(f).collect();
    // SAFETY: the array is fresh and `values` has its count.
    unsafe {
        crate::cpu::convert::store(dtype, out.ptr_mut(), 1, values.as_ptr().cast(), values.len())
    };
    out
}

fn numbers(i: usize) -> f32 {
    (i.wrapping_mul(2654435761) % 20011) as f32 / 97.0 - 100.3
}

fn bytes(x: &Array) -> &[u8] {
    assert!(x.is_contiguous());
    // SAFETY: the elements are initialised.
    unsafe { std::slice::from_raw_parts(x.ptr(), x.count() * x.dtype.size()) }
}

fn floats(x: &Array) -> Vec<f32> {
    bytes(x).chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// The value at each index of `shape`, read through the layout one element at a time.
fn naive(x: &Array, shape: &[usize]) -> Vec<f32> {
    let strides = x.layout.broadcast_strides(&Shape::of(shape));
    let own = crate::layout::row_major(shape);
    (0..shape.iter().product())
        .map(|i| {
            let offset: isize = (0..shape.len())
                .map(|a| (i / own[a] as usize % shape[a]) as isize * strides[a])
                .sum();
            // SAFETY: the layout keeps inside its buffer.
            unsafe { *x.ptr().cast::<f32>().offset(offset) }
        })
        .collect()
}

fn view(x: &Array, sizes: &[usize], strides: &[isize], offset: usize) -> Array {
    x.view(Layout::strided(Shape::of(sizes), strides, offset))
}

/// [`super::map`] by a kernel in the name of an op that no chain has.
///
/// # Safety
/// As for that.
unsafe fn map(kernel: TileKernel, args: &[MapOperand], out: &Array) {
    // SAFETY: as the caller's.
    unsafe { super::map(&arithmetic::pow, kernel, args, out) }
}

/// `a - b` in a fresh array.
fn difference(a: &Array, b: &Array, shape: &[usize]) -> Array {
    let out = Array::uninit(a.dtype, Shape::of(shape)).unwrap();
    // SAFETY: the output is fresh.
    unsafe { map(sub(), &[MapOperand::Array(a), MapOperand::Array(b)], &out) };
    out
}

/// Arrays that broadcast to `(rows, cols)` in every kind of layout.
fn layouts(rows: usize, cols: usize) -> Vec<Array> {
    let (r, c) = (rows as isize, cols as isize);
    let x = array(DType::F32, &[4 * rows * cols + 3 * (rows + cols) + 8], numbers);
    vec![
        view(&x, &[rows, cols], &[c, 1], 0),
        view(&x, &[rows, cols], &[c, 1], 3),
        view(&x, &[rows, cols], &[1, r], 0),
        view(&x, &[rows, cols], &[2 * c + 1, 2], 1),
        view(&x, &[rows, cols], &[-c, -1], rows * cols),
        view(&x, &[rows, cols], &[c, -1], cols),
        view(&x, &[rows, cols], &[-1, r], rows),
        view(&x, &[rows, 1], &[1, 1], 2),
        view(&x, &[rows, 1], &[3, 1], 2),
        view(&x, &[cols], &[1], 5),
        view(&x, &[cols], &[-2], 2 * cols),
        view(&x, &[1, 1], &[9, 9], 4),
        view(&x, &[], &[], 6),
        view(&x, &[rows, cols], &[0, 0], 7),
    ]
}

#[test]
fn every_layout_computes_the_same_as_a_plain_loop() {
    for (rows, cols) in
        [(1, 1), (1, 16), (7, 5), (3, 1500), (1500, 3), (70, 90), (300, 310), (0, 4), (4, 0)]
    {
        let all = layouts(rows, cols);
        for a in &all {
            for b in &all {
                let out = difference(a, b, &[rows, cols]);
                let (x, y) = (naive(a, &[rows, cols]), naive(b, &[rows, cols]));
                let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
                assert_eq!(floats(&out), want, "({rows}, {cols}) {:?} {:?}", a.layout, b.layout);
            }
        }
    }
}

#[test]
fn inner_axes_permute_in_any_order() {
    let x = array(DType::F32, &[6 * 35 * 40], numbers);
    let y = array(DType::F32, &[6, 35, 40], |i| i as f32);
    for strides in
        [[1400, 40, 1], [1, 6, 210], [35, 1, 210], [40, 240, 1], [1400, 1, 35], [1, 240, 6]]
    {
        let view = view(&x, &[6, 35, 40], &strides, 0);
        let want: Vec<f32> =
            naive(&view, &[6, 35, 40]).iter().enumerate().map(|(i, v)| v - i as f32).collect();
        assert_eq!(floats(&difference(&view, &y, &[6, 35, 40])), want, "{strides:?}");
    }
}

#[test]
fn scalars_and_mixed_registers() {
    for n in [0, 1, 16, 63, 64, 65, 3000] {
        let a = array(DType::F32, &[n], numbers);
        let mask = Array::uninit(DType::Bool, Shape::of(&[n])).unwrap();
        let out = Array::uninit(DType::F32, Shape::of(&[n])).unwrap();
        let three = MapOperand::Scalar(Scalar::Int(3), DType::F32);
        // SAFETY: the outputs are fresh.
        unsafe {
            map(less(), &[MapOperand::Array(&a), three], &mask);
            map(select(), &[MapOperand::Array(&mask), three, MapOperand::Array(&a)], &out);
        }
        let want: Vec<f32> = floats(&a).iter().map(|&x| if x < 3.0 { 3.0 } else { x }).collect();
        assert_eq!(floats(&out), want);
    }
}

#[test]
fn an_output_may_be_the_memory_of_an_input() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let a = array(dtype, &[3000], numbers);
        let b = array(dtype, &[3000], |i| numbers(i + 77));
        let want = difference(&a, &b, &[3000]);
        // SAFETY: nobody else reads `a`.
        unsafe { map(sub(), &[MapOperand::Array(&a), MapOperand::Array(&b)], &a) };
        assert_eq!(bytes(&a), bytes(&want), "{dtype}");
    }
}

/// `((a - b) * a < b ? a : (a - b)) * s` and `a - b`, step by step and as one program.
fn both_ways(dtype: DType, a: &Array, b: &Array, s: Scalar, shape: &[usize]) -> [Array; 4] {
    let fresh = |dtype| Array::uninit(dtype, Shape::of(shape)).unwrap();
    let [d, m, w, y] = [dtype; 4].map(fresh);
    let c = fresh(DType::Bool);
    let x = MapOperand::Array;
    let mut builder = Builder::new(&[dtype, dtype], &[dtype]);
    let (va, vb, vs) = (builder.input(0), builder.input(1), builder.scalar(0));
    let vd = builder.push(sub(), &[va, vb], dtype);
    let vm = builder.push(mul(), &[vd, va], dtype);
    let vc = builder.push(less(), &[vm, vb], DType::Bool);
    let vw = builder.push(select(), &[vc, va, vd], dtype);
    let vy = builder.push(mul(), &[vw, vs], dtype);
    let program = builder.finish(&[vy, vd]);
    assert!(program.registers() < 7, "{} registers", program.registers());
    let fused = [fresh(dtype), fresh(dtype)];
    // SAFETY: the outputs are fresh.
    unsafe {
        map(sub(), &[x(a), x(b)], &d);
        map(mul(), &[x(&d), x(a)], &m);
        map(less(), &[x(&m), x(b)], &c);
        map(select(), &[x(&c), x(a), x(&d)], &w);
        map(mul(), &[x(&w), MapOperand::Scalar(s, dtype)], &y);
        run(&program, &[a, b], &[s], &[&fused[0], &fused[1]]);
    }
    let [fused_y, fused_d] = fused;
    [y, d, fused_y, fused_d]
}

#[test]
fn a_fused_program_gives_the_bits_of_its_ops() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [[1, 5], [40, 70], [2, 3000], [5000, 2]] {
            let n = shape[0] * shape[1];
            let a = array(dtype, &shape, numbers);
            let flat = array(dtype, &[n + 3], |i| numbers(i + 1));
            let turned = view(&flat, &shape, &[1, shape[0] as isize], 3);
            let row = view(&flat, &[shape[1]], &[1], 0);
            for b in [&a, &turned, &row] {
                let [y, d, fused_y, fused_d] = both_ways(dtype, &a, b, Scalar::Float(0.3), &shape);
                assert_eq!(bytes(&y), bytes(&fused_y), "{dtype} {shape:?}");
                assert_eq!(bytes(&d), bytes(&fused_d), "{dtype} {shape:?}");
            }
        }
    }
}

#[test]
fn a_donated_input_is_read_before_it_is_overwritten() {
    // The first output is written before the last instruction reads the input it replaces.
    let a = array(DType::F32, &[5000], numbers);
    let b = array(DType::F32, &[5000], |i| numbers(3 * i));
    let mut builder = Builder::new(&[DType::F32; 2], &[]);
    let (va, vb) = (builder.input(0), builder.input(1));
    let d = builder.push(sub(), &[va, vb], DType::F32);
    let m = builder.push(mul(), &[va, vb], DType::F32);
    let program = builder.finish(&[d, m]);
    let want: Vec<(f32, f32)> =
        floats(&a).iter().zip(floats(&b)).map(|(a, b)| (a - b, a * b)).collect();
    // SAFETY: nobody else reads the inputs, each of which is replaced by an output.
    unsafe { run(&program, &[&a, &b], &[], &[&a, &b]) };
    assert_eq!(floats(&a).into_iter().zip(floats(&b)).collect::<Vec<_>>(), want);
}

#[test]
fn inputs_and_scalars_can_be_outputs() {
    let a = array(DType::F32, &[50, 40], numbers);
    let turned = view(&a, &[40, 50], &[1, 40], 0);
    let mut builder = Builder::new(&[DType::F32], &[DType::F16]);
    let (x, s) = (builder.input(0), builder.scalar(0));
    let half = builder.cast(x, DType::BF16);
    let program = builder.finish(&[x, s, half, half]);
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::BF16];
    let out = dtypes.map(|dtype| Array::uninit(dtype, Shape::of(&[40, 50])).unwrap());
    // SAFETY: the outputs are fresh.
    unsafe { run(&program, &[&turned], &[Scalar::Float(0.1)], &out.each_ref()) };
    assert_eq!(floats(&out[0]), naive(&turned, &[40, 50]));
    assert!(bytes(&out[1]).chunks(2).all(|c| c == 0x2e66u16.to_le_bytes()));
    assert_eq!(bytes(&out[2]), bytes(&out[3]));
}

#[test]
fn scalars_round_to_their_dtype() {
    let bits = |x: f64, dtype| register_bits(Scalar::Float(x), dtype);
    assert_eq!(bits(0.1, DType::F32) as u32, 0.1f32.to_bits());
    assert_eq!(bits(0.1, DType::F16) as u32, 0.099975586f32.to_bits());
    assert_eq!(bits(1e12, DType::I32) as u32 as i32, i32::MAX);
    assert_eq!(bits(f64::NAN, DType::U64), 0);
    assert_eq!(register_bits(Scalar::Int(300), DType::U8), 44);
    assert_eq!(register_bits(Scalar::Uint(u64::MAX), DType::F16) as u32, f32::INFINITY.to_bits());
    assert_eq!(register_bits(Scalar::Bool(true), DType::BF16) as u32, 1f32.to_bits());
}

#[test]
fn the_count_of_threads_does_not_matter() {
    let shape = [700, 500];
    let a = array(DType::F16, &shape, numbers);
    let b = view(&array(DType::F16, &[350_000], |i| numbers(i + 5)), &shape, &[1, 700], 0);
    let before = threads::num_threads();
    let results = [1, 2, 3].map(|n| {
        threads::set_num_threads(n);
        both_ways(DType::F16, &a, &b, Scalar::Float(1.7), &shape)
    });
    threads::set_num_threads(before);
    for other in &results[1..] {
        assert!(results[0].iter().zip(other).all(|(x, y)| bytes(x) == bytes(y)));
    }
}

#[test]
fn results_streamed_past_the_caches_are_the_same() {
    let n = STREAM / 4 + 3 * TILE + 5;
    let a = array(DType::F32, &[n], numbers);
    let b = array(DType::F32, &[n], |i| numbers(i + 9));
    let [y, d, fused_y, fused_d] = both_ways(DType::F32, &a, &b, Scalar::Float(0.7), &[n]);
    // Small pieces are not streamed.
    for start in [0, n / 3, n - 2000] {
        let part = |x: &Array| view(x, &[2000], &[1], start);
        let want = both_ways(DType::F32, &part(&a), &part(&b), Scalar::Float(0.7), &[2000]);
        assert_eq!(bytes(&part(&y)), bytes(&want[0]));
        assert_eq!(bytes(&part(&d)), bytes(&want[1]));
    }
    assert!(bytes(&y) == bytes(&fused_y) && bytes(&d) == bytes(&fused_d));
}

#[test]
fn a_large_transposed_operand_gives_the_same_past_the_caches() {
    // Rows that start at cache lines, and rows that do not.
    for columns in [2048, 2048 + 5] {
        let rows = STREAM / 4 / 2048 + 70;
        let x = array(DType::F32, &[rows, columns], numbers);
        let y = array(DType::F32, &[columns, rows], |i| numbers(i + 9));
        let mut builder = Builder::new(&[DType::F32; 2], &[]);
        let value = builder.push(sub(), &[builder.input(0), builder.input(1)], DType::F32);
        let program = builder.finish(&[value]);
        let found = Array::uninit(DType::F32, Shape::of(&[rows, columns])).unwrap();
        let turned = view(&y, &[rows, columns], &[1, rows as isize], 0);
        // SAFETY: the output is fresh and has the shape of the inputs.
        unsafe { run(&program, &[&x, &turned], &[], &[&found]) };
        for row in (0..rows).step_by(61) {
            let line = |x: &Array| view(x, &[columns], &[1], row * columns);
            let across = view(&y, &[columns], &[rows as isize], row);
            let want = Array::uninit(DType::F32, Shape::of(&[columns])).unwrap();
            // SAFETY: as above.
            unsafe { run(&program, &[&line(&x), &across], &[], &[&want]) };
            assert_eq!(bytes(&line(&found)), bytes(&want), "row {row}");
        }
    }
}

#[test]
fn a_number_for_each_row_of_several_planes() {
    // Images and their channels: enough for threads, one row alone, and rows of one element.
    for sizes in [[6, 5, 700], [40, 3, 130], [300, 1, 33], [7, 9, 1], [2, 2, 3]] {
        let [planes, rows, columns] = sizes;
        let x = array(DType::F32, &sizes, numbers);
        for (shape, strides) in [
            (vec![rows, 1], vec![1, 1]),
            (vec![planes, rows, 1], vec![rows as isize, 1, 1]),
            (vec![planes, 1, columns], vec![columns as isize, 0, 1]),
            (vec![planes, 1, 1], vec![2, 1, 1]),
        ] {
            let c = view(
                &array(DType::F32, &[2 * planes * rows * columns], |i| numbers(i + 3)),
                &shape,
                &strides,
                1,
            );
            let mut builder = ElementProgram::new(&[DType::F32; 2], &[DType::F32]);
            let [a, b] = [builder.array(0), builder.array(1)];
            let sum = builder.push(ElementOp::Map(&arithmetic::subtract), &[a, b], DType::F32);
            let last = builder.number(0);
            let y = builder.push(ElementOp::Map(&arithmetic::maximum), &[sum, last], DType::F32);
            let program = Program::lower(&builder.giving(&[y])).unwrap();
            assert!(program.chain.is_some());
            let found = Array::uninit(DType::F32, Shape::of(&sizes)).unwrap();
            // SAFETY: the output is fresh and has the shape of the inputs.
            unsafe { run(&program, &[&x, &c], &[Scalar::Float(-20.0)], &[&found]) };
            let (x, c) = (naive(&x, &sizes), naive(&c, &sizes));
            let want: Vec<f32> = x.iter().zip(&c).map(|(x, c)| (x - c).max(-20.0)).collect();
            assert_eq!(floats(&found), want, "{sizes:?} {shape:?}");
        }
    }
}

#[test]
fn results_lie_in_any_order() {
    // Channels of images, their rows apart, and axes in another order; a number for all of each.
    for (sizes, strides, room) in [
        (vec![8, 1, 700], vec![2100, 700, 1], 16800),
        (vec![300, 7], vec![20, 1], 6000),
        (vec![40, 1], vec![33, 1], 1320),
        (vec![30, 50], vec![1, 30], 1500),
        (vec![5, 6, 33], vec![33, 165, 1], 990),
    ] {
        let x = array(DType::F32, &sizes, numbers);
        let c = array(DType::F32, &vec![1; sizes.len()], |_| 0.75);
        let count = sizes.iter().product::<usize>();
        for ops in [1, 2] {
            // One result alone may be a chain; of two, one lies in C order.
            let mut builder = ElementProgram::new(&[DType::F32; 2], &[]);
            let [a, b] = [builder.array(0), builder.array(1)];
            let first = builder.push(ElementOp::Map(&arithmetic::subtract), &[a, b], DType::F32);
            let second =
                builder.push(ElementOp::Map(&arithmetic::multiply), &[b, first], DType::F32);
            let program = Program::lower(&builder.giving(&[second, first][..ops])).unwrap();
            let around = array(DType::F32, &[room], |_| -7.0);
            let placed = view(&around, &sizes, &strides, 0);
            let plain = Array::uninit(DType::F32, Shape::of(&sizes)).unwrap();
            // SAFETY: the outputs are fresh and have the shape of the first input.
            unsafe { run(&program, &[&x, &c], &[], &[&placed, &plain][..ops]) };
            let of = |f: fn(f32) -> f32| naive(&x, &sizes).into_iter().map(f).collect::<Vec<_>>();
            assert_eq!(naive(&placed, &sizes), of(|x| 0.75 * (x - 0.75)), "{sizes:?}");
            if ops == 2 {
                assert_eq!(floats(&plain), of(|x| x - 0.75), "{sizes:?}");
            }
            let untouched = floats(&around).into_iter().filter(|&y| y == -7.0).count();
            assert_eq!(untouched, room - count, "{sizes:?}: nothing is written between");
        }
    }
}

#[test]
fn short_blocks_of_many_large_operands_give_the_same() {
    // ((a - b) * c - d) * e, of which the last block is not whole.
    let count = FAR / (WIDE * 4) + SHORT / 2 + 3;
    let x: Vec<Array> =
        (0..5).map(|k| array(DType::F32, &[count], |i| numbers(i * 5 + k))).collect();
    let mut builder = Builder::new(&[DType::F32; 5], &[]);
    let mut value = builder.input(0);
    for k in 1..5 {
        let kernel = if k % 2 == 1 { sub() } else { mul() };
        value = builder.push(kernel, &[value, builder.input(k)], DType::F32);
    }
    let program = builder.finish(&[value]);
    let run_on = |x: &[&Array], count: usize| {
        let y = Array::uninit(DType::F32, Shape::of(&[count])).unwrap();
        // SAFETY: the output is fresh and has the shape of the inputs.
        unsafe { run(&program, x, &[], &[&y]) };
        y
    };
    let whole = run_on(&x.iter().collect::<Vec<_>>(), count);
    for first in [0, count - 5000] {
        let part = |x: &Array| {
            let y = array(DType::F32, &[5000], |_| 0.0);
            // SAFETY: so many elements lie there.
            unsafe { y.ptr_mut().copy_from(x.ptr().add(first * 4), 5000 * 4) };
            y
        };
        let parts: Vec<Array> = x.iter().map(part).collect();
        let few = run_on(&parts.iter().collect::<Vec<_>>(), 5000);
        assert_eq!(bytes(&few), bytes(&part(&whole)));
    }
}
