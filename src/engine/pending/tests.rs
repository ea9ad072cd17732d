//! Which results of a chain are computed, and when.

use super::chain::{OPEN, table};
use super::*;
use crate::layout::Layout;
use crate::ops::elementwise::arithmetic::{add, multiply};

fn array(values: &[f32]) -> Array {
    let out = Array::uninit(DType::F32, Shape::of(&[values.len()])).expect("room");
    // SAFETY: the array is fresh and as long as the values.
    unsafe { out.ptr_mut().cast::<f32>().copy_from(values.as_ptr(), values.len()) };
    out
}

fn values(x: &Array) -> Vec<f32> {
    // SAFETY: the array is one of those above, or as long.
    unsafe { std::slice::from_raw_parts(x.ptr().cast(), x.count()).to_vec() }
}

fn waiting(def: &'static Elementwise, a: &Array, b: &Array) -> Array {
    let args = [Operand::Array(a), Operand::Array(b)];
    let y = map(def, &args).expect("the types agree").expect("it waits");
    assert!(waits(&y));
    y
}

/// The ops of the open chain, and how many of their results somebody holds.
fn open() -> Option<(usize, usize)> {
    let table = table();
    let chain = &table.chains[table.find(OPEN.get())?];
    Some((chain.ops.nodes.len(), chain.held()))
}

#[test]
fn dropped_results_are_not_computed_and_held_ones_are_at_once() {
    set_least(Some(1));
    let (a, b) = (array(&[1.0, 2.0]), array(&[3.0, 5.0]));
    let x = waiting(&add, &a, &b);
    let y = waiting(&multiply, &x, &b);
    drop(x);
    let z = waiting(&add, &y, &y);
    assert_eq!(open(), Some((3, 2)));
    assert_eq!(values(&z), [24.0, 70.0]);
    assert!(!waits(&y) && open().is_none());
    assert_eq!(values(&y), [12.0, 35.0]);
    assert!(z.is_unique() && a.is_unique());
}

#[test]
fn a_chain_without_results_is_gone_with_its_operands() {
    set_least(Some(1));
    let (a, b) = (array(&[1.0]), array(&[2.0]));
    let x = waiting(&add, &a, &b);
    assert!(!a.data.is_sole());
    drop(x);
    assert!(a.data.is_sole() && open().is_none());
}

#[test]
fn another_shape_another_layout_and_foreign_memory_end_a_chain() {
    set_least(Some(1));
    let (a, b) = (array(&[1.0, 2.0]), array(&[3.0, 5.0]));
    let x = waiting(&add, &a, &b);
    let wide = Array { layout: Layout::contiguous(Shape::of(&[2, 1])), ..x.clone() };
    let y = waiting(&add, &wide, &wide);
    assert!(!waits(&x) && waits(&y));
    static BYTES: [f32; 2] = [1.0, 1.0];
    // SAFETY: nobody writes there.
    let theirs = unsafe { Buffer::external(BYTES.as_ptr().cast(), 8, Box::new(())) };
    let theirs = Array::new(DType::F32, Shape::of(&[2]), theirs.into());
    let args = [Operand::Array(&theirs), Operand::Array(&a)];
    assert!(map(&add, &args).expect("the types agree").is_none());
    assert_eq!(values(&y), [8.0, 14.0]);
}

#[test]
fn a_run_that_unwinds_leaves_its_ops_waiting() {
    set_least(Some(1));
    let (a, b) = (array(&[1.0, 2.0]), array(&[3.0, 5.0]));
    let x = waiting(&add, &a, &b);
    let y = waiting(&multiply, &x, &b);
    chain::unwound(OPEN.get());
    assert!(waits(&x) && waits(&y));
    drop(x);
    assert_eq!(values(&y), [12.0, 35.0]);
}

#[test]
fn a_write_finds_an_operand_of_its_own_chain_free() {
    set_least(Some(1));
    let a = Array::zeros(DType::F32, Shape::of(&[1 << 15])).expect("room");
    let x = waiting(&add, &a, &a);
    assert!(a.is_unique() && !waits(&x));
}
