use super::*;
use crate::cpu::samples::{Sample, array, bools, bytes, every_element, layouts, noise, values};
use crate::cpu::testing::{argsort, sort, topk};
use crate::threads::set_num_threads;

/// NaN after everything, else as numbers compare.
fn order<T: Sample>(a: T, b: T, descending: bool) -> std::cmp::Ordering {
    let (a, b) = (a.widen(), b.widen());
    let compared = match descending {
        false => a.partial_cmp(&b),
        true => b.partial_cmp(&a),
    };
    compared.unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

fn is_nan<A: PartialOrd>(a: A) -> bool {
    a.partial_cmp(&a).is_none()
}

/// The stable order of every line along an axis, as positions in the shape of `x`.
fn naive<T: Sample>(sizes: &[usize], axis: usize, x: &[T], descending: bool) -> Vec<i64> {
    let step: usize = sizes[axis + 1..].iter().product();
    let n = sizes[axis];
    let mut out = vec![0; x.len()];
    for line in 0..x.len() / n.max(1) {
        let start = line / step * step * n + line % step;
        let mut positions: Vec<usize> = (0..n).collect();
        positions.sort_by(|&a, &b| order(x[start + a * step], x[start + b * step], descending));
        for (i, position) in positions.into_iter().enumerate() {
            out[start + i * step] = position as i64;
        }
    }
    out
}

/// The elements of `x` at positions along an axis.
fn take<T: Copy>(sizes: &[usize], axis: usize, x: &[T], positions: &[i64]) -> Vec<T> {
    let step: usize = sizes[axis + 1..].iter().product();
    let n = sizes[axis];
    let line = |i: usize| i / (step * n) * (step * n) + i % step;
    positions.iter().enumerate().map(|(i, &at)| x[line(i) + at as usize * step]).collect()
}

fn as_bytes<T: Sample>(x: &[T]) -> Vec<u8> {
    bytes(&array(&[x.len()], x))
}

fn check<T: Sample>() {
    let cases: &[(&[usize], usize)] = &[
        (&[1], 0),
        (&[40], 0),
        (&[9, 30], 1),
        (&[30, 9], 0),
        (&[2, 500, 3], 1),
        (&[0, 4], 0),
        (&[4, 0], 0),
    ];
    for &(sizes, axis) in cases {
        let mut numbers = noise(sizes.iter().product(), 50.0, 1.0);
        if T::DTYPE.is_float() {
            for (i, x) in numbers.iter_mut().enumerate() {
                match i % 11 {
                    3 => *x = -0.0,
                    5 => *x = 0.0,
                    7 => *x = f64::NAN,
                    8 => *x = f64::NEG_INFINITY,
                    9 => *x = f64::INFINITY,
                    _ => {}
                }
            }
        }
        let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
        let x = array(sizes, &elements);
        for descending in [false, true] {
            let want = naive(sizes, axis, &elements, descending);
            let sorted = as_bytes(&take(sizes, axis, &elements, &want));
            for y in layouts(&x) {
                let about = format!("{} {sizes:?} {axis} {descending} {:?}", T::DTYPE, y.layout);
                assert_eq!(values::<i64>(&argsort(&y, axis, descending).unwrap()), want, "{about}");
                assert_eq!(bytes(&sort(&y, axis, descending).unwrap()), sorted, "{about}");
            }
        }
    }
}

#[test]
fn sorts_are_stable_and_nan_is_last() {
    every_element!(T => check::<T>());
}

fn check_long<T: Sample>(numbers: &[f64]) {
    let elements: Vec<T> = numbers.iter().map(|&x| T::of(x)).collect();
    let sizes = [elements.len()];
    for descending in [false, true] {
        let want = naive(&sizes, 0, &elements, descending);
        let sorted = take(&sizes, 0, &elements, &want);
        for threads in [1, 2] {
            set_num_threads(threads);
            assert!(
                values::<i64>(&argsort(&array(&sizes, &elements), 0, descending).unwrap()) == want
            );
            assert!(
                values::<T>(&sort(&array(&sizes, &elements), 0, descending).unwrap()) == sorted
            );
        }
    }
}

#[test]
fn long_rows_of_every_width_and_spread() {
    let n = LONG + 1234;
    for numbers in [noise(n, 1e9, 1e-3), noise(n, 1.0, 1e-12), noise(n, 20.0, 1.0), vec![3.0; n]] {
        check_long::<f32>(&numbers);
        check_long::<f64>(&numbers);
        check_long::<i32>(&numbers);
        check_long::<u64>(&numbers);
        check_long::<i16>(&numbers);
        check_long::<u8>(&numbers);
    }
}

#[test]
fn middling_rows() {
    for n in [255, 256, 257, 4095, 4097] {
        check_long::<f32>(&noise(n, 1e4, 1e-6));
        check_long::<i64>(&noise(n, 1e15, 1.0));
        check_long::<i8>(&noise(n, 100.0, 1.0));
    }
}

#[test]
fn the_best_few_come_first_and_ties_go_to_the_lower_position() {
    let numbers: Vec<f32> = noise(3000, 40.0, 1.0).into_iter().map(|x| x as f32).collect();
    for (sizes, axis) in [([3, 1000], 1), ([1000, 3], 0)] {
        for largest in [false, true] {
            let all = naive(&sizes, axis, &numbers, largest);
            for k in [0, 1, 5, 124, 125, 1000] {
                let got = topk(&array(&sizes, &numbers), k, axis, largest).unwrap();
                assert_eq!(got.shape().sizes()[axis], k);
                let step = if axis == 0 { 3 } else { 1 };
                let first = |i: &usize| i / step % 1000 < k;
                let want: Vec<i64> = (0..3000).filter(first).map(|i| all[i]).collect();
                assert_eq!(values::<i64>(&got), want, "{k} {largest}");
            }
        }
    }
}

#[test]
fn false_comes_before_true() {
    let x = bools(&[4], &[true, false, true, false]);
    assert_eq!(bytes(&sort(&x, 0, false).unwrap()), [0, 0, 1, 1]);
    assert_eq!(values::<i64>(&argsort(&x, 0, true).unwrap()), [0, 2, 1, 3]);
}

/// Sorts items with the help of as many spare ones; whether this machine can.
type Way<I> = fn(&mut [I], &mut [I]) -> bool;

/// Every way to sort items, on numbers of many kinds.
fn check_items<I: Item + std::fmt::Debug>(of: impl Fn(u64) -> I) {
    let ways: [Way<I>; 2] = [
        |items, spare| {
            radix::sort(items, spare);
            true
        },
        quick::sort,
    ];
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 32
    };
    let long = LONG + 1234;
    for n in (0..40).chain([63, 64, 65, 127, 129, 255, 256, 257, 1000, 5000, long]) {
        let noise: Vec<u64> = (0..n).map(|_| next()).collect();
        let mut rising = noise.clone();
        rising.sort_unstable();
        let falling = rising.iter().rev().copied().collect();
        let few = noise.iter().map(|x| x % 3).collect();
        // The largest and the least item, and many that are one of them.
        let ends = noise.iter().map(|x| if x % 2 == 0 { 0 } else { u64::MAX }).collect();
        let mostly = noise.iter().map(|&x| if x % 8 > 0 { 1 << 31 } else { x }).collect();
        for numbers in [noise, rising, falling, few, ends, mostly, vec![5; n]] {
            let items: Vec<I> = numbers.into_iter().map(&of).collect();
            let mut want = items.clone();
            want.sort_unstable();
            for threads in [1, 2] {
                set_num_threads(threads);
                for way in ways {
                    let (mut got, mut spare) = (items.clone(), items.clone());
                    assert!(
                        !way(&mut got, &mut spare) || got == want,
                        "{n} {:?}",
                        &items[..n.min(9)]
                    );
                }
            }
        }
    }
}

#[test]
fn items_are_sorted_by_digits_and_in_vectors() {
    check_items::<u8>(|x| x as u8);
    check_items::<u16>(|x| x as u16);
    check_items::<u32>(|x| x as u32);
    check_items::<u64>(|x| x.wrapping_mul(0x1_0000_0001));
}
