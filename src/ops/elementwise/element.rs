//! Formulas evaluated for one element at a time: plain functions, for who wants to see a value
//! rather than to be fast.

use crate::scalar::Register;
use crate::tile::{Map1, Map2, Map3};

/// A formula on one element of each operand, in words of the register type it was asked for.
pub type ElementFn = fn(&[u64; 3]) -> u64;

/// A formula of one element.
pub fn element1<F: Map1<A>, A: Register>() -> ElementFn
where
    F::Out: Register,
{
    |x| {
        let a = A::of_word(x[0]);
        if F::is_rare(a) { F::rare(a).word() } else { F::map(a).word() }
    }
}

/// A formula of two elements.
pub fn element2<F: Map2<A, B>, A: Register, B: Register>() -> ElementFn
where
    F::Out: Register,
{
    |x| F::map(A::of_word(x[0]), B::of_word(x[1])).word()
}

/// A formula of three elements.
pub fn element3<F: Map3<A, B, C>, A: Register, B: Register, C: Register>() -> ElementFn
where
    F::Out: Register,
{
    |x| F::map(A::of_word(x[0]), B::of_word(x[1]), C::of_word(x[2])).word()
}
