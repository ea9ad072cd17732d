//! Gathers and scatters against loops over their elements.

use super::*;
use crate::cpu::testing::{array, bytes, gather, layouts, random, values};
use crate::dtype::DType;
use crate::ops::attributes::ScatterMode;

fn ints(sizes: &[usize], values: &[i64]) -> Array {
    array(DType::I64, sizes, &values.iter().map(|&v| v as f64).collect::<Vec<_>>())
}

/// Deterministic indices in `-size..size`.
fn indices(sizes: &[usize], size: i64, seed: i64) -> Array {
    let count = sizes.iter().product::<usize>() as i64;
    ints(
        sizes,
        &(0..count).map(|i| (i * 7 + seed * 3 + i * i) % (2 * size) - size).collect::<Vec<_>>(),
    )
}

fn wrapped(index: f64, size: usize) -> usize {
    (if index < 0.0 { index + size as f64 } else { index }) as usize
}

#[test]
fn rows_are_picked_from_every_layout_and_dtype() {
    for dtype in DType::ALL {
        let x = random(dtype, &[5, 3, 4], 1);
        let i = indices(&[2, 6], 5, 1);
        let (all, at) = (values(&x), values(&i));
        let want: Vec<f64> =
            (0..12 * 12).map(|e| all[wrapped(at[e / 12], 5) * 12 + e % 12]).collect();
        for x in layouts(&x) {
            for i in layouts(&i) {
                let y = gather(&x, &[&i]).unwrap();
                assert_eq!((y.dtype, y.shape()), (dtype, &Shape::of(&[2, 6, 3, 4])));
                assert_eq!(values(&y), want);
            }
        }
    }
}

#[test]
fn several_indices_broadcast_and_may_cover_every_axis() {
    let x = random(DType::F32, &[4, 6], 2);
    let (i, j) = (indices(&[3, 1], 4, 2), indices(&[5], 6, 3));
    let (all, a, b) = (values(&x), values(&i), values(&j));
    let want: Vec<f64> =
        (0..15).map(|e| all[wrapped(a[e / 5], 4) * 6 + wrapped(b[e % 5], 6)]).collect();
    for x in layouts(&x) {
        let y = gather(&x, &[&i, &j]).unwrap();
        assert_eq!(values(&y), want);
    }
}

#[test]
fn large_gathers_and_scatters_do_not_depend_on_threads() {
    let threads = threads::num_threads();
    let x = random(DType::F32, &[50, 300], 3);
    let i = indices(&[4000], 50, 1);
    let v = crate::cpu::testing::noise(DType::F32, &[4000, 300], 4);
    let (flat, k) = (random(DType::F32, &[70], 5), indices(&[300_000], 70, 2));
    let u = crate::cpu::testing::noise(DType::F32, &[300_000], 6);
    let run = || {
        let (rows, places) = (Shape::of(&[4000]), Shape::of(&[300_000]));
        let add = |base: &Array, i: &Array, shape: &Shape, v: &Array, mode| {
            bytes(&scatter("put", base.clone(), &[i], shape, v, mode).unwrap())
        };
        [
            bytes(&gather(&x, &[&i]).unwrap()),
            add(&x, &i, &rows, &v, ScatterMode::Add),
            add(&x, &i, &rows, &v, ScatterMode::Set),
            add(&flat, &k, &places, &u, ScatterMode::Add),
            add(&flat, &k, &places, &u, ScatterMode::Set),
        ]
    };
    let many = run();
    threads::set_num_threads(1);
    let one = run();
    threads::set_num_threads(threads);
    assert!(many == one);
    // And against a plain loop in index order.
    let (mut want, at, v) = (values(&flat), values(&k), values(&u));
    (0..at.len()).for_each(|e| want[wrapped(at[e], 70)] = v[e]);
    assert!(values(&array(DType::F32, &[70], &want)) == want);
    let got: Vec<f32> =
        one[4].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(got.iter().map(|&v| v as f64).collect::<Vec<_>>(), want);
}

#[test]
fn counts_of_many_indices_are_those_of_a_loop() {
    let i = indices(&[200_000], 70, 2);
    let mut want = vec![0.0; 70];
    values(&i).into_iter().for_each(|i| want[wrapped(i, 70)] += 1.0);
    for dtype in [DType::I64, DType::F32, DType::U16] {
        // One number for all, and one each.
        for one in [array(dtype, &[1], &[1.0]), array(dtype, &[200_000], &vec![1.0; 200_000])] {
            for i in layouts(&i) {
                let base = Array::zeros(dtype, Shape::of(&[70])).unwrap();
                let shape = Shape::of(&[200_000]);
                let found = scatter("put", base, &[&i], &shape, &one, ScatterMode::Add).unwrap();
                assert_eq!(values(&found), want, "{dtype}");
            }
        }
    }
}

#[test]
fn long_slices_with_gaps_are_picked_whole() {
    let x = random(DType::F32, &[150, 5, 3], 1);
    let (i, all) = (indices(&[40], 5, 1), values(&x));
    let at = values(&i);
    // The axis in the middle first: slices of elements fifteen and of elements three apart.
    let turned = x.view(x.layout.permuted(&[1, 2, 0]));
    let want: Vec<f64> = (0..40 * 3 * 150)
        .map(|e| {
            let (i, j, k) = (e / 450, e / 150 % 3, e % 150);
            all[k * 15 + wrapped(at[i], 5) * 3 + j]
        })
        .collect();
    assert_eq!(values(&gather(&turned, &[&i]).unwrap()), want);
}

#[test]
fn the_last_of_several_values_stays_and_sums_take_all() {
    for dtype in DType::ALL {
        let base = random(dtype, &[3, 2], 5);
        let i = ints(&[4], &[1, -1, 1, 2]);
        let v = random(dtype, &[4, 2], 6);
        let (old, new) = (values(&base), values(&v));
        for v in layouts(&v) {
            for base in layouts(&base) {
                let shape = Shape::of(&[4]);
                let set =
                    scatter("put", base.clone(), &[&i], &shape, &v, ScatterMode::Set).unwrap();
                let want = [old[0], old[1], new[4], new[5], new[6], new[7]];
                assert_eq!(values(&set), want);
                let add =
                    scatter("put", base.clone(), &[&i], &shape, &v, ScatterMode::Add).unwrap();
                for (e, got) in values(&add).into_iter().enumerate() {
                    let terms = [vec![], vec![0, 2], vec![1, 3]][e / 2].clone();
                    let sum: f64 = old[e] + terms.iter().map(|t| new[t * 2 + e % 2]).sum::<f64>();
                    let want = if dtype == DType::Bool { sum.min(1.0) } else { sum };
                    assert_eq!(got, want, "{dtype}");
                }
                // The base is shared, so it is as it was.
                assert_eq!(values(&base), old);
            }
        }
    }
}

#[test]
fn a_base_of_ones_own_is_written_in_place_and_values_repeat() {
    let base = random(DType::F64, &[4, 3], 7);
    let address = base.ptr();
    let one = array(DType::F64, &[1], &[9.0]);
    let i = ints(&[2], &[0, -1]);
    let out = scatter("put", base, &[&i], &Shape::of(&[2]), &one, ScatterMode::Set).unwrap();
    assert_eq!(out.ptr(), address);
    let got = values(&out);
    assert!(got[..3].iter().chain(&got[9..]).all(|&v| v == 9.0));
}

#[test]
fn an_index_outside_is_refused_before_anything_is_written() {
    let x = random(DType::F32, &[3, 4], 8);
    for (i, bad) in [([0, 3, 1], 3), ([-4, 9, 0], -4), ([0, 1, i64::MIN], i64::MIN)] {
        let i = ints(&[3], &i);
        let error = gather(&x, &[&i]).err().unwrap();
        let want = format!("gather: index {bad} is out of bounds for axis 0 with size 3");
        assert_eq!(error.to_string(), want);
        let before = values(&x);
        let base = x.clone();
        assert!(scatter("put", base, &[&i], &Shape::of(&[3]), &x, ScatterMode::Set).is_err());
        assert_eq!(values(&x), before);
    }
    let (i, j) = (ints(&[1], &[2]), ints(&[1], &[4]));
    let error = gather(&x, &[&i, &j]).err().unwrap();
    assert_eq!(error.to_string(), "gather: index 4 is out of bounds for axis 1 with size 4");
    // Nothing is picked, so nothing can be outside.
    let none = gather(&x, &[&ints(&[0], &[])]).unwrap();
    assert_eq!(none.shape(), &Shape::of(&[0, 4]));
    let empty = Array::zeros(DType::F32, Shape::of(&[0, 4])).unwrap();
    assert!(gather(&empty, &[&ints(&[1], &[0])]).is_err());
}
