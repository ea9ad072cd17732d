//! Admission of values to a list: the only check of their types. The code behind it does not look
//! at types again.

use crate::array::Array;
use crate::error::{self, Result};
use crate::ops::op::Type;
use crate::shape::{Bindings, Dim};

/// Refuses values that a list does not take, given the types of its inputs in order: another count,
/// dtype, rank or size. Kernels rely on this check and would otherwise read memory that is not
/// theirs.
///
/// Sizes that are not numbers yet are resolved in the current scope. Counts of rounds may have any
/// size, but the same one throughout.
pub fn admit<'a>(
    op: &str,
    takes: impl ExactSizeIterator<Item = &'a Type>,
    given: impl ExactSizeIterator<Item = &'a Array>,
) -> Result<()> {
    admit_found(op, takes, given.map(Ok))
}

/// The same for values that may be missing.
pub fn admit_found<'a>(
    op: &str,
    takes: impl ExactSizeIterator<Item = &'a Type>,
    given: impl ExactSizeIterator<Item = Result<&'a Array>>,
) -> Result<()> {
    if takes.len() != given.len() {
        let facts = format!("got {} for {}", given.len(), takes.len());
        return Err(error::bad_value(op, "every input needs one value", facts));
    }
    let mut rounds = None;
    for (i, (ty, array)) in takes.zip(given).enumerate() {
        let array = array?;
        let (takes, got) = (ty.shape.dims(), array.shape().dims());
        if ty.dtype != array.dtype || !(takes == got || fits(takes, got, &mut rounds)) {
            return Err(refusal(op, i, ty, array));
        }
    }
    Ok(())
}

fn fits(takes: &[Dim], got: &[Dim], rounds: &mut Option<Bindings>) -> bool {
    let mut one = |want: Dim, got: Dim| {
        if want.known().is_some() || !want.is_counted() {
            return want.equals(got);
        }
        let rounds = rounds.get_or_insert_default();
        let bound = rounds.resolve(want);
        if bound.known().is_none() {
            rounds.bind(want, got);
            return true;
        }
        bound.equals(got)
    };
    takes.len() == got.len() && (0..takes.len()).all(|i| one(takes[i], got[i]))
}

#[cold]
fn refusal(op: &str, i: usize, ty: &Type, array: &Array) -> error::Error {
    let takes = format!("input {i} takes {} {}", ty.dtype, ty.shape);
    match ty.dtype == array.dtype {
        true => error::bad_shape(op, &takes, format!("got shape {}", array.shape())),
        false => error::dtype_mismatch(op, format!("{} of input {i}", ty.dtype), array.dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::shape::Shape;

    #[test]
    fn only_values_of_the_right_count_dtype_rank_and_sizes_enter() {
        let ty = Type::new(DType::F32, Shape::of(&[2, 3]));
        let array = |dtype, sizes: &[usize]| Array::zeros(dtype, Shape::of(sizes)).unwrap();
        let code = |arrays: &[Array]| {
            admit("call", [&ty].into_iter(), arrays.iter()).map_err(|error| error.code())
        };
        assert_eq!(code(&[array(DType::F32, &[2, 3])]), Ok(()));
        assert_eq!(code(&[]), Err("bad_value"));
        assert_eq!(code(&[array(DType::F64, &[2, 3])]), Err("dtype_mismatch"));
        for sizes in [&[3, 2][..], &[2], &[2, 3, 1], &[6]] {
            assert_eq!(code(&[array(DType::F32, sizes)]), Err("bad_shape"));
        }
    }

    #[test]
    fn a_count_of_rounds_is_one_size_throughout() {
        let ty = Type::new(DType::F32, Shape::from_dims(&[Dim::counted(7), Dim::new(2)]));
        let array = |n| Array::zeros(DType::F32, Shape::of(&[n, 2])).unwrap();
        let code = |n, m| {
            let arrays = [array(n), array(m)];
            admit("call", [&ty, &ty].into_iter(), arrays.iter()).map_err(|error| error.code())
        };
        assert_eq!(code(5, 5), Ok(()));
        assert_eq!(code(5, 4), Err("bad_shape"));
    }
}
