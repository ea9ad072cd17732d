use super::kernels::{fold_columns, fold_rows};
use super::*;
use crate::cpu::element::Number;
use crate::cpu::samples::{Sample, array, bools, bytes, every_element, layouts, noise, values};
use crate::cpu::testing::{arg_reduce, reduce};
use crate::ops::attributes::ArgReduction;
use crate::simd::Isa;
use crate::threads::set_num_threads;

/// Shapes and axes on both sides of every bound that selects a loop.
const CASES: &[(&[usize], &[usize])] = &[
    (&[], &[]),
    (&[5], &[]),
    (&[1], &[0]),
    (&[33], &[0]),
    (&[64], &[0]),
    (&[1500], &[0]),
    (&[7, 9], &[1]),
    (&[9, 7], &[0]),
    (&[3, 100], &[1]),
    (&[100, 3], &[0]),
    (&[1100, 7], &[0]),
    (&[5, 33], &[1]),
    (&[70, 65], &[1]),
    (&[70, 65], &[0, 1]),
    (&[130, 90], &[0]),
    (&[90, 130], &[1]),
    (&[4, 5, 6], &[1]),
    (&[4, 50, 6], &[0, 2]),
    // Rows in pieces shorter and longer than a block, of several blocks that are gathered at once;
    // columns of which few lie in a line.
    (&[90, 2, 49], &[0, 2]),
    (&[3, 2, 1500], &[0, 2]),
    (&[5, 2, 320], &[0, 2]),
    (&[3, 2, 1088], &[0, 2]),
    (&[7, 3, 5], &[0]),
    (&[30, 3, 9], &[2]),
    // What is left over after lines of lanes, where elements lie behind it and where none do.
    (&[5, 77], &[1]),
    (&[3, 1100], &[1]),
    (&[6, 7, 30], &[0, 2]),
    (&[2, 3, 4, 5], &[2, 3]),
    (&[2, 3, 4, 1], &[2]),
    (&[2, 0, 3], &[1]),
    (&[0, 3], &[1]),
    (&[2, 0, 40], &[2]),
];

const KINDS: [Reduction; 4] = [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min];

/// The elements behind each output, in C order.
fn groups<V: Copy>(sizes: &[usize], axes: &[usize], values: &[V]) -> Vec<Vec<V>> {
    let kept: Vec<usize> = (0..sizes.len()).filter(|a| !axes.contains(a)).collect();
    let mut groups = vec![Vec::new(); kept.iter().map(|&a| sizes[a]).product()];
    for (i, &v) in values.iter().enumerate() {
        let index = |a: usize| i / sizes[a + 1..].iter().product::<usize>() % sizes[a];
        groups[kept.iter().fold(0, |at, &a| at * sizes[a] + index(a))].push(v);
    }
    groups
}

fn is_refused(kind: Reduction, sizes: &[usize], axes: &[usize]) -> bool {
    let is_choice = matches!(kind, Reduction::Max | Reduction::Min);
    is_choice && axes.iter().any(|&a| sizes[a] == 0)
}

fn check_values<T: Sample>() {
    for &(sizes, axes) in CASES {
        let n = sizes.iter().product();
        for kind in KINDS {
            if is_refused(kind, sizes, axes) {
                continue;
            }
            // Products of powers of two are exact; half of the factors are 1.
            let numbers = match kind {
                Reduction::Prod => noise(n, 1.0, 1.0)
                    .into_iter()
                    .map(|x| if x > 0.0 { 2.0 } else { 1.0 })
                    .collect(),
                Reduction::Sum
                | Reduction::Max
                | Reduction::Min
                | Reduction::Any
                | Reduction::All => noise(n, 9.0, 1.0),
            };
            let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
            let got: Vec<T> = values(&reduce(kind, &array(sizes, &elements), axes).unwrap());
            let want: Vec<T> =
                groups(sizes, axes, &elements).iter().map(|group| naive(kind, group)).collect();
            assert_eq!(got, want, "{kind:?} {} {sizes:?} {axes:?}", T::DTYPE);
        }
    }
}

/// In f64 where that is exact, else by wrapping arithmetic on integers.
fn naive<T: Sample>(kind: Reduction, group: &[T]) -> T {
    let numbers = group.iter().map(|&x| x.number());
    match kind {
        Reduction::Sum if T::DTYPE.is_float() => T::of(numbers.fold(0.0, |a, b| a + b)),
        Reduction::Prod if T::DTYPE.is_float() => T::of(numbers.product()),
        Reduction::Sum => T::narrow(group.iter().fold(T::of(0.0).widen(), |a, b| a.add(b.widen()))),
        Reduction::Prod => {
            T::narrow(group.iter().fold(T::of(1.0).widen(), |a, b| a.mul(b.widen())))
        }
        Reduction::Max => {
            group.iter().copied().reduce(|a, b| if b.widen() > a.widen() { b } else { a }).unwrap()
        }
        Reduction::Min | Reduction::Any | Reduction::All => {
            group.iter().copied().reduce(|a, b| if b.widen() < a.widen() { b } else { a }).unwrap()
        }
    }
}

#[test]
fn every_kind_dtype_and_shape_agrees_with_a_plain_loop() {
    every_element!(T => check_values::<T>());
}

#[test]
fn any_and_all() {
    for &(sizes, axes) in CASES {
        for bias in [-0.9, 0.0, 0.9] {
            let n: usize = sizes.iter().product();
            let truth: Vec<bool> = noise(n, 1.0, 0.01).into_iter().map(|x| x > bias).collect();
            let x = bools(sizes, &truth);
            let groups = groups(sizes, axes, &truth);
            let any: Vec<u8> = groups.iter().map(|g| g.contains(&true).into()).collect();
            let all: Vec<u8> = groups.iter().map(|g| (!g.contains(&false)).into()).collect();
            assert_eq!(values::<u8>(&reduce(Reduction::Any, &x, axes).unwrap()), any);
            assert_eq!(values::<u8>(&reduce(Reduction::All, &x, axes).unwrap()), all);
            assert_eq!(values::<u8>(&reduce(Reduction::Sum, &x, axes).unwrap()), any);
        }
    }
    let x = array(&[2], &[1i32, 0]);
    assert_eq!(reduce(Reduction::Any, &x, &[0]).err().unwrap().code(), "bad_dtype");
}

fn check_bits<T: Sample>() {
    for &(sizes, axes) in CASES {
        let numbers = noise(sizes.iter().product(), 3.0, 1e-9);
        let x = array(sizes, &numbers.into_iter().map(T::of).collect::<Vec<T>>());
        for kind in KINDS {
            if is_refused(kind, sizes, axes) {
                continue;
            }
            let want = bytes(&reduce(kind, &x, axes).unwrap());
            for y in layouts(&x) {
                assert_eq!(
                    bytes(&reduce(kind, &y, axes).unwrap()),
                    want,
                    "{kind:?} {axes:?} {:?}",
                    y.layout
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_layout() {
    every_element!(T => check_bits::<T>());
}

#[test]
fn bits_of_large_reductions_do_not_depend_on_layout_or_threads() {
    let n = 600_000;
    let numbers: Vec<f32> = noise(n, 1.0, 1e-9).into_iter().map(|x| x as f32).collect();
    let cases: &[(&[usize], &[usize])] = &[
        (&[n], &[0]),
        (&[300, 2000], &[0]),
        (&[300, 2000], &[1]),
        (&[300, 2000], &[0, 1]),
        (&[n / 3, 3], &[0]),
    ];
    for &(sizes, axes) in cases {
        let x = array(sizes, &numbers);
        set_num_threads(1);
        let want = bytes(&reduce(Reduction::Sum, &x, axes).unwrap());
        for threads in [1, 2, 5] {
            set_num_threads(threads);
            for y in layouts(&x) {
                assert_eq!(
                    bytes(&reduce(Reduction::Sum, &y, axes).unwrap()),
                    want,
                    "{axes:?} {:?}",
                    y.layout
                );
            }
        }
        set_num_threads(2);
    }
}

#[test]
fn repeated_elements_are_joined_as_if_copied() {
    let x = array(&[40, 50], &noise(2000, 1.0, 1e-9));
    for (strides, axes) in [([0, 1], [0]), ([50, 0], [1]), ([0, 0], [1]), ([0, 1], [1])] {
        let view = x.view(Layout::strided(Shape::of(&[40, 50]), &strides, 3));
        let copy = array(&[40, 50], &values::<f64>(&view));
        let (a, b) = (reduce(Reduction::Sum, &view, &axes), reduce(Reduction::Sum, &copy, &axes));
        assert_eq!(bytes(&a.unwrap()), bytes(&b.unwrap()));
    }
}

#[test]
fn overlapping_windows() {
    // Windows of 3 with step 2 over 4 lines of 21 elements: 10 positions each.
    let x = array(&[4, 21], &noise(84, 9.0, 1.0));
    let windows = x.view(Layout::strided(Shape::of(&[4, 10, 3]), &[21, 2, 1], 0));
    let got: Vec<f64> = values(&reduce(Reduction::Max, &windows, &[2]).unwrap());
    let all: Vec<f64> = values(&windows);
    let want: Vec<f64> =
        all.chunks(3).map(|w| w.iter().copied().fold(f64::MIN, f64::max)).collect();
    assert_eq!(got, want);
}

#[test]
fn float32_sums_are_accurate() {
    let n = 10_000_000;
    let numbers: Vec<f32> = noise(n, 0.5, 1e-9).into_iter().map(|x| (x + 0.5) as f32).collect();
    let exact: f64 = numbers.iter().map(|&x| f64::from(x)).sum();
    for (sizes, axes) in
        [(vec![n], vec![0]), (vec![n, 1], vec![0]), (vec![n / 1000, 1000], vec![0, 1])]
    {
        let got =
            values::<f32>(&reduce(Reduction::Sum, &array(&sizes, &numbers), &axes).unwrap())[0];
        assert!(
            ((f64::from(got) - exact) / exact).abs() < 4e-7,
            "{sizes:?}: {got} instead of {exact}"
        );
    }
    let columns =
        values::<f32>(&reduce(Reduction::Sum, &array(&[n / 2, 2], &numbers), &[0]).unwrap());
    for (column, &got) in columns.iter().enumerate() {
        let exact: f64 = numbers.iter().skip(column).step_by(2).map(|&x| f64::from(x)).sum();
        assert!(((f64::from(got) - exact) / exact).abs() < 4e-7, "{got} instead of {exact}");
    }
    let one = array(&[1], &[1f32]);
    let ones = one.view(Layout::strided(Shape::of(&[20_000_000]), &[0], 0));
    assert_eq!(values::<f32>(&reduce(Reduction::Sum, &ones, &[0]).unwrap()), [2e7]);
}

#[test]
fn half_types_are_rounded_once() {
    let numbers = noise(4000, 1.0, 1e-9);
    for (sizes, axes) in [([40, 100], [1]), ([40, 100], [0]), ([400, 10], [1])] {
        fn check<T: Sample>(sizes: &[usize], axes: &[usize], numbers: &[f64]) {
            let halves: Vec<T> = numbers.iter().map(|&x| T::of(x)).collect();
            let singles: Vec<f32> = halves.iter().map(|x| x.number() as f32).collect();
            let sums: Vec<f32> =
                values(&reduce(Reduction::Sum, &array(sizes, &singles), axes).unwrap());
            let want: Vec<T> = sums.into_iter().map(|x| T::of(x.into())).collect();
            assert_eq!(
                values::<T>(&reduce(Reduction::Sum, &array(sizes, &halves), axes).unwrap()),
                want
            );
        }
        use crate::cpu::element::{BF16, F16};
        check::<F16>(&sizes, &axes, &numbers);
        check::<BF16>(&sizes, &axes, &numbers);
    }
}

#[test]
fn nan_and_signed_zeros() {
    for n in [2, 20, 100, 3000] {
        for at in [0, 1, n / 2, n - 1] {
            for (sizes, axis) in [([1, n], 1), ([n, 1], 0)] {
                let mut numbers = vec![1f32; n];
                numbers[at] = f32::NAN;
                let x = array(&sizes, &numbers);
                for kind in KINDS {
                    assert!(
                        values::<f32>(&reduce(kind, &x, &[axis]).unwrap())[0].is_nan(),
                        "{kind:?} {n} {at}"
                    );
                }
            }
        }
        let zeros = reduce(Reduction::Sum, &array(&[n], &vec![-0f32; n]), &[0]).unwrap();
        assert!(values::<f32>(&zeros)[0].is_sign_negative());
    }
    let empty = reduce(Reduction::Sum, &array::<f32>(&[0], &[]), &[0]).unwrap();
    assert_eq!(values::<f32>(&empty)[0].to_bits(), 0);
}

#[test]
fn the_largest_and_the_smallest_among_nan_and_infinities() {
    // Stretches of 64 columns and what is left; few rows at a time where columns are many.
    largest_and_smallest_of(150, 130);
    largest_and_smallest_of(150, 1100);
}

fn largest_and_smallest_of(rows: usize, columns: usize) {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN];
    let mut x: Vec<f32> = noise(rows * columns, 1.0, 1e-3).into_iter().map(|x| x as f32).collect();
    for (i, x) in x.iter_mut().enumerate() {
        // Columns with no special number, with all that are not NaN, and with all.
        let (row, column) = (i / columns, i % columns);
        match (column % 3, row % 5) {
            (1, 0) => *x = special[1 + (row + column) % 6],
            (2, 0) => *x = special[(row + column) % 7],
            _ => {}
        }
    }
    let naive = |numbers: &mut dyn Iterator<Item = f32>, sign: f32| {
        numbers.reduce(|a, b| if a.is_nan() || sign * a > sign * b { a } else { b }).unwrap()
    };
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    for (kind, sign) in [(Reduction::Max, 1.0), (Reduction::Min, -1.0)] {
        let found = values::<f32>(&reduce(kind, &array(&[rows, columns], &x), &[0]).unwrap());
        for (column, found) in found.into_iter().enumerate() {
            let want = naive(&mut (0..rows).map(|row| x[row * columns + column]), sign);
            assert!(same(found, want), "{kind:?} of column {column}: {found} for {want}");
        }
        // As rows the lanes are joined at the end, so that the sign of a zero is another matter.
        let found = values::<f32>(&reduce(kind, &array(&[columns, rows], &x), &[1]).unwrap());
        for (row, found) in found.into_iter().enumerate() {
            let want = naive(&mut x[row * rows..(row + 1) * rows].iter().copied(), sign);
            let is_it = same(found, want) || (found == 0.0 && want == 0.0);
            assert!(is_it, "{kind:?} of row {row}: {found} for {want}");
        }
    }
}

/// Elements next to which a sum is read, or which are summed beside it, take no part.
#[test]
fn neighbours_change_no_bit() {
    let bit = |x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
    let bits = |x: Vec<f32>| x.into_iter().map(bit).collect::<Vec<u32>>();
    for n in [33, 63, 64, 65, 100, 300, 1023, 1024, 1500, 2000] {
        const ROWS: usize = 7;
        let mut x: Vec<f32> = noise(ROWS * n, 1.0, 1e-9).into_iter().map(|x| x as f32).collect();
        // What follows the rest of a row is no number, or infinite.
        (x[n], x[3 * n + 1], x[5 * n]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for kind in KINDS {
            let whole = reduce(kind, &array(&[ROWS, n], &x), &[1]).unwrap();
            for (row, whole) in values::<f32>(&whole).into_iter().enumerate() {
                let own = array(&[1, n], &x[row * n..(row + 1) * n]);
                let own = values::<f32>(&reduce(kind, &own, &[1]).unwrap());
                assert_eq!(bits(own), bits(vec![whole]), "{kind:?} of row {row} of {n}");
            }
            // The first columns of many, and alone; a single one would be a row.
            for few in 2..=9 {
                const COLUMNS: usize = 40;
                let many: Vec<f32> = (0..n * COLUMNS).map(|i| x[i * 7919 % (ROWS * n)]).collect();
                let some =
                    many.chunks(COLUMNS).flat_map(|row| row[..few].to_vec()).collect::<Vec<_>>();
                let many = reduce(kind, &array(&[n, COLUMNS], &many), &[0]).unwrap();
                let alone = reduce(kind, &array(&[n, few], &some), &[0]).unwrap();
                let (many, alone) = (values::<f32>(&many), values::<f32>(&alone));
                assert_eq!(bits(many[..few].to_vec()), bits(alone), "{kind:?} {n} {few}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let x: Vec<f32> = noise(5000, 1.0, 1e-9).into_iter().map(|x| x as f32).collect();
    let mut seen = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut out = vec![0f32; 5 + 1000];
        let offsets: Vec<isize> = (0..5).map(|row| row * 1000).collect();
        // SAFETY: 5 rows of 1000 numbers.
        unsafe {
            fold_rows::at::<f32, f32, Sum>(isa)(x.as_ptr(), 1000, 5, 1000, out.as_mut_ptr());
            fold_columns::at::<f32, Sum>(isa)(
                x.as_ptr(),
                &offsets,
                1000,
                out[5..].as_mut_ptr(),
                true,
            );
        }
        seen.push(out);
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

fn check_positions<T: Sample>() {
    for &(sizes, axes) in CASES {
        let [axis] = axes else { continue };
        if sizes.contains(&0) {
            continue;
        }
        let numbers = noise(sizes.iter().product(), 9.0, 1.0);
        let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
        let groups = groups(sizes, axes, &elements);
        for kind in [ArgReduction::Max, ArgReduction::Min] {
            let want: Vec<i64> = groups.iter().map(|group| first(kind, group)).collect();
            for y in layouts(&array(sizes, &elements)) {
                let got = arg_reduce(kind, &y, *axis).unwrap();
                assert_eq!(
                    values::<i64>(&got),
                    want,
                    "{kind:?} {} {axes:?} {:?}",
                    T::DTYPE,
                    y.layout
                );
            }
        }
    }
}

/// The position of the first best element; NaN comes before numbers.
fn first<T: Sample>(kind: ArgReduction, group: &[T]) -> i64 {
    let mut best = 0;
    for (i, x) in group.iter().enumerate() {
        let (x, champion) = (x.widen(), group[best].widen());
        let wins = if kind == ArgReduction::Max { x > champion } else { x < champion };
        if wins || x.is_nan() && !champion.is_nan() {
            best = i;
        }
    }
    best as i64
}

#[test]
fn positions_of_the_extremes() {
    every_element!(T => check_positions::<T>());
}

#[test]
fn positions_of_nan_infinities_and_ties() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let rows: &[&[f64]] = &[
        &[1.0, nan, 2.0, nan],
        &[inf, inf, 0.0, -inf],
        &[-inf, -inf, -inf, -inf],
        &[-0.0, 0.0, 0.0, -0.0],
        &[nan, inf, nan, 5.0],
    ];
    for repeat in [1, 20, 600] {
        for row in rows {
            let row = row.repeat(repeat);
            for kind in [ArgReduction::Max, ArgReduction::Min] {
                let want = first(kind, &row);
                assert_eq!(
                    values::<i64>(&arg_reduce(kind, &array(&[row.len()], &row), 0).unwrap()),
                    [want]
                );
                // As one of many columns.
                let wide: Vec<f64> = row.iter().flat_map(|&x| [x; 40]).collect();
                let got = arg_reduce(kind, &array(&[row.len(), 40], &wide), 0).unwrap();
                assert_eq!(values::<i64>(&got), [want; 40]);
            }
        }
    }
}

#[test]
fn parts_have_the_bits_of_the_whole() {
    for dtype in DType::ALL {
        for (lines, width) in [(33, 1), (5000, 1), (3072, 1), (130, 7), (64, 70), (1000, 3)] {
            let x = crate::cpu::testing::noise(dtype, &[lines, width], 3);
            for kind in [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min] {
                let want = Array::uninit(dtype, Shape::of(&[width])).unwrap();
                let got = Array::uninit(dtype, Shape::of(&[width])).unwrap();
                let group = group(lines, width).unwrap();
                let partial = partial(kind, dtype, lines, width).unwrap();
                let at = |line: usize| x.ptr().wrapping_add(line * width * dtype.size());
                // SAFETY: the results are fresh, and all lines are inside the array.
                unsafe {
                    reduce_into(kind, &x, &[0], &want).unwrap();
                    // Two chunks, the later one first, in uneven steps.
                    let cut = lines / 2 / group * group;
                    for (mut line, end) in [(cut, lines), (0, cut)] {
                        let mut chunk = partial.chunk(line);
                        while line < end {
                            let n = (line % 37 + 1).min(end - line);
                            chunk.push(at(line), n);
                            line += n;
                        }
                        chunk.end();
                    }
                    partial.finish(&got);
                }
                use crate::cpu::testing::bytes;
                assert!(bytes(&got) == bytes(&want), "{kind:?} {dtype} {lines} {width}");
            }
        }
    }
}
