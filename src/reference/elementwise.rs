//! Elementwise ops and casts.

use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::elementwise::Elementwise;

use super::Operand;
use super::elements::Elements;
use super::number::{narrow, of_element, of_scalar, widen};

/// The formula of the table for each element of the result, whose dtype and sizes are given.
pub fn map(
    def: &Elementwise,
    args: &[Operand<'_>],
    result: DType,
    sizes: &[usize],
) -> Result<Elements> {
    let numeric = args[usize::from(def.condition)..].iter().find_map(|arg| match arg {
        Operand::Array(x) => Some(x.dtype),
        Operand::Scalar(_) => None,
    });
    // With numbers only beside a condition, they have the result's dtype.
    let dtype = numeric.unwrap_or(result);
    let Some(formula) = def.element(dtype.compute()) else {
        return Err(error::internal(format!("{} has no formula for {dtype}", def.name)));
    };
    let operand = |(i, arg): (usize, &Operand<'_>)| match *arg {
        Operand::Array(x) => Elements::read(x),
        Operand::Scalar(value) => {
            let dtype = if def.is_condition(i) { DType::Bool } else { dtype };
            Elements::scalar(dtype, of_scalar(value).word(dtype))
        }
    };
    let operands: Vec<Elements> = args.iter().enumerate().map(operand).collect();
    Ok(Elements::make(result, sizes, |index| {
        let mut registers = [0; 3];
        for (register, x) in registers.iter_mut().zip(&operands) {
            *register = widen(x.dtype, x.broadcast_at(index));
        }
        narrow(result, formula(&registers))
    }))
}

/// The same values in another dtype.
pub fn cast(x: &Elements, to: DType) -> Elements {
    if x.dtype == to {
        return x.clone();
    }
    Elements::make(to, &x.sizes, |index| of_element(x.dtype, x.at(index)).word(to))
}
