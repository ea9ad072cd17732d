//! Guards: texts that look at a flag before they write.

use super::{DTYPES, on, program, validate};
use crate::gpu::group::{Operand, dispatch};
use crate::gpu::guard::{COPY, MERGE, VERDICT, guarded};
use crate::gpu::kernel::{Place, View, WORKGROUP};
use crate::gpu::lanes::{LANES, Lanes};
use crate::gpu::shader::Shader;
use crate::layout::Layout;
use crate::ops::elementwise::arithmetic;
use crate::scalar::wgsl::WgslType;
use crate::shape::{Dim, Shape};
use crate::target::Abilities;

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

/// Where invocations need each other none leaves alone.
#[test]
fn guarded_workgroups_leave_as_a_whole() {
    for has_subgroups in [false, true] {
        for count in [1, LANES, WORKGROUP] {
            let mut shader = Shader::able(Abilities { has_subgroups, ..Abilities::LEAST });
            let memory = shader.memory(Place::Range(0));
            let value = vec![shader.name(format!("{memory}[local]"))];
            let both = |shader: &mut Shader, a: &[String], b: &[String]| {
                Ok(vec![shader.name(format!("{} + {}", a[0], b[0]))])
            };
            let mut lanes = Lanes::new(count, 1);
            let sum = lanes.join(&mut shader, &[WgslType::U32], value, both).unwrap();
            shader.line(format!("{memory}[local] = {};", sum[0]));
            let flagged = guarded(shader.grouped(Dim::ONE, Dim::new(0))).unwrap().text;
            validate(&flagged);
            let look = flagged.find("failed[0]").expect("the flag is looked at");
            let together = flagged.find("workgroupUniformLoad(&has_failed) != 0u { return; }");
            assert_eq!(together.is_some(), count > 1, "{flagged}");
            assert!(together.is_none_or(|at| look < at), "{flagged}");
        }
    }
}
