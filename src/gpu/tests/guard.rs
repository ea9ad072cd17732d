//! Guards: texts that look at a flag before they write.

use super::{DTYPES, on, program, validate};
use crate::gpu::group::{Operand, dispatch};
use crate::gpu::guard::{COPY, MERGE, VERDICT, guarded};
use crate::gpu::kernel::View;
use crate::layout::Layout;
use crate::ops::elementwise::arithmetic;
use crate::shape::Shape;

#[test]
fn what_decides_and_copies_is_valid() {
    for text in [VERDICT, MERGE, COPY] {
        validate(text);
    }
}

/// Over an operand, beside the operands, of every dtype; the flag is looked at first.
#[test]
fn every_guarded_group_is_valid() {
    for dtype in DTYPES.into_iter().filter(|dtype| arithmetic::add.classes.contains(dtype.class()))
    {
        let program = program(&arithmetic::add, dtype);
        let dense = Layout::contiguous(Shape::of(&[5, 4]));
        let apart = on(&program, &[5, 4], &[dense.clone(), dense.clone()]);
        let operand = |range| Operand::new(range, View::of(&dense));
        let sizes = Shape::of(&[5, 4]);
        let over = dispatch(&program, sizes.dims(), &[operand(0), operand(1)], &[0]).unwrap();
        for plain in [apart, over] {
            let flagged = guarded(plain.clone()).unwrap();
            validate(&flagged.text);
            assert_eq!(flagged.bindings, plain.bindings);
            let body = flagged.text.split("fn main(").nth(1).unwrap();
            let first = body.lines().nth(2).unwrap();
            assert_eq!(first, "    if failed[0] != 0u { return; }");
            assert!(guarded(flagged).is_err(), "a flag is not bound twice");
        }
    }
}
