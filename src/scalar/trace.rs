//! Formulas as lists of single operations: numbers that note down what is done with them.
//!
//! A formula instantiated with [`Traced`] numbers gives, within a call of [`record`], a [`Trace`]:
//! operations on lanes of 32 bits, from which code for a processor is made. Promises: the operations
//! are those of the native formula for processors with fused multiply-adds, so they give its bits; a
//! formula that needs what no operation says ([`Float::fmod`], angles, shifts by variable amounts)
//! gives no trace. Elements for which a formula does not hold ([`Float::is_beyond`]) are noted as one
//! truth value, [`Trace::rare`].

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

use rustc_hash::FxHashMap;

use super::{Float, Int, Mask, Scalar};

/// The result of an operation, by its number.
pub type Id = u16;

/// An operation on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// Sums, differences, products and quotients of binary32
    Add,
    /// See [`Binary::Add`]
    Subtract,
    /// See [`Binary::Add`]
    Multiply,
    /// See [`Binary::Add`]
    Divide,
    /// The first where it is smaller, else the second
    Smaller,
    /// The first where it is larger, else the second
    Larger,
    /// All bits set where the comparison of binary32 holds, else none
    Less,
    /// See [`Binary::Less`]
    LessOrEqual,
    /// See [`Binary::Less`]
    Equal,
    /// Whether either is NaN
    Unordered,
    /// Of bits
    And,
    /// See [`Binary::And`]
    Or,
    /// See [`Binary::And`]
    Xor,
    /// Of integers, which wrap
    AddWhole,
    /// See [`Binary::AddWhole`]
    SubtractWhole,
    /// See [`Binary::AddWhole`]
    MultiplyWhole,
    /// The smaller of two signed integers
    SmallerWhole,
    /// The larger of two signed integers
    LargerWhole,
    /// All bits set where two integers are equal, else none
    EqualWhole,
    /// Where the first of two signed integers is larger
    MoreWhole,
}

/// An operation on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// The square root
    Root,
    /// The nearest whole number, ties to even
    Nearest,
    /// The largest whole number not above
    Floor,
    /// The smallest whole number not below
    Ceil,
    /// The whole part
    Trunc,
    /// Shift of an integer to the left
    Left(u8),
    /// Arithmetic shift of an integer to the right
    Right(u8),
}

/// What makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An element of an input
    Input(u16),
    /// A number of each run
    Number(u16),
    /// The same bits for all elements
    Constant(u32),
    /// Of one value
    Unary(Unary, Id),
    /// Of two values
    Binary(Binary, Id, Id),
    /// `x · factor + term`, rounded once
    MultiplyAdd(Id, Id, Id),
    /// `a` where the mask's bits are set, else `b`
    Select(Id, Id, Id),
}

impl Operation {
    /// The values that it reads.
    pub fn operands(self) -> impl Iterator<Item = Id> {
        let all = match self {
            Operation::Input(_) | Operation::Number(_) | Operation::Constant(_) => [None; 3],
            Operation::Unary(_, x) => [Some(x), None, None],
            Operation::Binary(_, x, y) => [Some(x), Some(y), None],
            Operation::MultiplyAdd(x, y, z) | Operation::Select(x, y, z) => {
                [Some(x), Some(y), Some(z)]
            }
        };
        all.into_iter().flatten()
    }
}

/// The operations of formulas, operands first.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What makes each value
    pub operations: Vec<Operation>,
    /// The mask of elements for which the formulas do not hold
    pub rare: Option<Id>,
    /// Whether everything was an operation
    is_whole: bool,
    known: FxHashMap<Operation, Id>,
}

impl Trace {
    /// The number of an operation, which is noted if it is new.
    fn intern(&mut self, operation: Operation) -> Id {
        if let Some(&id) = self.known.get(&operation) {
            return id;
        }
        if self.operations.len() >= MOST {
            self.is_whole = false;
            return 0;
        }
        let id = self.operations.len() as Id;
        self.operations.push(operation);
        self.known.insert(operation, id);
        id
    }

    /// The bits of a value that is the same for all elements.
    fn constant(&self, id: Id) -> Option<u32> {
        let Operation::Constant(bits) = self.operations[id as usize] else { return None };
        Some(bits)
    }

    /// What a value is the sum of, if one of these is a constant.
    fn summands(&self, id: Id) -> Option<(Id, u32)> {
        let Operation::Binary(Binary::AddWhole, x, c) = self.operations[id as usize] else {
            return None;
        };
        Some((x, self.constant(c)?))
    }

    /// The operation, with what is known of it worked out: the signs of constants, and whole numbers
    /// that are added one after the other.
    fn folded(&mut self, operation: Operation) -> Operation {
        let Operation::Binary(op, x, y) = operation else { return operation };
        let Some(bits) = self.constant(y) else { return operation };
        let by = match (op, self.constant(x)) {
            (Binary::Xor, Some(x)) => return Operation::Constant(x ^ bits),
            (Binary::AddWhole, _) => bits,
            (Binary::SubtractWhole, _) => bits.wrapping_neg(),
            _ => return operation,
        };
        let (x, before) = self.summands(x).unwrap_or((x, 0));
        let sum = self.intern(Operation::Constant(by.wrapping_add(before)));
        Operation::Binary(Binary::AddWhole, x, sum)
    }
}

/// The most operations of a trace.
const MOST: usize = 1 << 12;

thread_local! {
    static TRACE: RefCell<Trace> = RefCell::default();
}

/// What formulas do that `f` asks of values of its making; `None` where something is no operation.
pub fn record<R>(f: impl FnOnce() -> R) -> Option<(R, Trace)> {
    let outer = TRACE.replace(Trace { is_whole: true, ..Trace::default() });
    let result = f();
    let trace = TRACE.replace(outer);
    trace.is_whole.then_some((result, trace))
}

/// A value of either kind, within the call of [`record`] that made it.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    id: Id,
    is_mask: bool,
}

impl Value {
    /// Element of an input of binary32.
    pub fn input(k: u16) -> Value {
        Value { id: note(Operation::Input(k)), is_mask: false }
    }

    /// Number of each run, of binary32.
    pub fn number(k: u16) -> Value {
        Value { id: note(Operation::Number(k)), is_mask: false }
    }

    /// The value's number.
    pub fn id(self) -> Id {
        self.id
    }

    /// Whether this is a truth value.
    pub fn is_mask(self) -> bool {
        self.is_mask
    }

    /// 1 where this truth value is true, else 0.
    pub fn of_mask(self) -> Value {
        let mask = self.typed::<bool>();
        Traced::<f32>::select(mask, Scalar::whole(1), Scalar::whole(0)).into()
    }

    /// The value as a number to compute with; `T` must be its type.
    pub fn typed<T: Lane>(self) -> Traced<T> {
        assert_eq!(self.is_mask, T::IS_MASK, "a value of the other kind");
        Traced { id: self.id, lane: PhantomData }
    }
}

/// The types of values.
pub trait Lane: Copy + 'static {
    /// Whether values are masks
    const IS_MASK: bool;
}
impl Lane for f32 {
    const IS_MASK: bool = false;
}
impl Lane for i32 {
    const IS_MASK: bool = false;
}
impl Lane for bool {
    const IS_MASK: bool = true;
}

/// A value of a type, within the call of [`record`] that made it.
#[derive(Clone, Copy, Debug)]
pub struct Traced<T> {
    id: Id,
    lane: PhantomData<T>,
}

impl<T: Lane> From<Traced<T>> for Value {
    fn from(x: Traced<T>) -> Value {
        Value { id: x.id, is_mask: T::IS_MASK }
    }
}

/// The number of an operation, which is noted if it is new.
#[inline(never)]
fn note(operation: Operation) -> Id {
    TRACE.with_borrow_mut(|trace| {
        let operation = trace.folded(operation);
        trace.intern(operation)
    })
}

/// What is no operation.
#[inline(never)]
fn give_up<T: Lane>() -> Traced<T> {
    TRACE.with_borrow_mut(|trace| trace.is_whole = false);
    constant(0)
}

fn traced<T: Lane>(operation: Operation) -> Traced<T> {
    Traced { id: note(operation), lane: PhantomData }
}

fn constant<T: Lane>(bits: u32) -> Traced<T> {
    traced(Operation::Constant(bits))
}

impl<T: Lane> Traced<T> {
    fn unary<U: Lane>(self, op: Unary) -> Traced<U> {
        traced(Operation::Unary(op, self.id))
    }

    fn binary<U: Lane>(self, op: Binary, other: Self) -> Traced<U> {
        traced(Operation::Binary(op, self.id, other.id))
    }

    fn choose(mask: Traced<bool>, a: Self, b: Self) -> Self {
        traced(Operation::Select(mask.id, a.id, b.id))
    }

    /// The same bits as another type.
    fn cast<U: Lane>(self) -> Traced<U> {
        Traced { id: self.id, lane: PhantomData }
    }
}

macro_rules! operators {
    ($($trait:ident::$method:ident $op:ident for $($lane:ident)*;)*) => {
        $($(
            impl $trait for Traced<$lane> {
                type Output = Self;
                fn $method(self, other: Self) -> Self {
                    self.binary(Binary::$op, other)
                }
            }
        )*)*
    };
}
operators! {
    Add::add Add for f32;
    Sub::sub Subtract for f32;
    Mul::mul Multiply for f32;
    Div::div Divide for f32;
    Add::add AddWhole for i32;
    Sub::sub SubtractWhole for i32;
    Mul::mul MultiplyWhole for i32;
    BitAnd::bitand And for i32 bool;
    BitOr::bitor Or for i32 bool;
    BitXor::bitxor Xor for i32 bool;
}

impl Neg for Traced<f32> {
    type Output = Self;
    fn neg(self) -> Self {
        self.binary(Binary::Xor, constant(1 << 31))
    }
}

impl Neg for Traced<i32> {
    type Output = Self;
    fn neg(self) -> Self {
        constant::<i32>(0) - self
    }
}

macro_rules! not {
    ($($lane:ident)*) => {$(
        impl Not for Traced<$lane> {
            type Output = Self;
            fn not(self) -> Self {
                self.binary(Binary::Xor, constant(u32::MAX))
            }
        }
    )*};
}
not!(i32 bool);

impl Mask for Traced<bool> {}

impl Scalar for Traced<f32> {
    type Mask = Traced<bool>;

    fn whole(n: i64) -> Self {
        Self::lit(n as f64)
    }

    fn lt(self, other: Self) -> Traced<bool> {
        self.binary(Binary::Less, other)
    }

    fn le(self, other: Self) -> Traced<bool> {
        self.binary(Binary::LessOrEqual, other)
    }

    fn eq(self, other: Self) -> Traced<bool> {
        self.binary(Binary::Equal, other)
    }

    fn select(mask: Traced<bool>, a: Self, b: Self) -> Self {
        Self::choose(mask, a, b)
    }

    fn maximum(self, other: Self) -> Self {
        Self::choose(self.is_nan(), self, self.binary(Binary::Larger, other))
    }

    fn minimum(self, other: Self) -> Self {
        Self::choose(self.is_nan(), self, self.binary(Binary::Smaller, other))
    }

    fn abs(self) -> Self {
        self.binary(Binary::And, constant(i32::MAX as u32))
    }

    fn sign(self) -> Self {
        let zero = Self::whole(0);
        let one = Self::select(self.gt(zero), Self::whole(1), Self::whole(-1));
        Self::select(self.is_nan(), self, Self::select(self.eq(zero), zero, one))
    }
}

/// 1.5 · 2²³, whose last digit counts ones.
const ORIGIN: f64 = 12_582_912.0;

impl Float for Traced<f32> {
    type Bits = Traced<i32>;
    const DOUBLE: bool = false;
    const FUSES: bool = true;

    fn lit(value: f64) -> Self {
        constant((value as f32).to_bits())
    }

    fn of_bits(bits: Traced<i32>) -> Self {
        bits.cast()
    }

    fn bits(self) -> Traced<i32> {
        self.cast()
    }

    fn of_small(n: Traced<i32>) -> Self {
        let origin = Self::lit(ORIGIN);
        Self::of_bits(origin.bits() + n) - origin
    }

    fn round_small(self) -> (Self, Traced<i32>) {
        let origin = Self::lit(ORIGIN);
        let shifted = self + origin;
        (shifted - origin, shifted.bits() - origin.bits())
    }

    fn quarter_turns(self) -> (Traced<i32>, Self, Self) {
        (give_up(), self, self)
    }

    fn is_far(self) -> bool {
        give_up::<bool>();
        false
    }

    fn is_beyond(self, limit: f64) -> bool {
        let mask = self.abs().gt(Self::lit(limit));
        let so_far = TRACE.with_borrow(|trace| trace.rare);
        let rare = so_far.map_or(mask, |id| mask | Traced { id, lane: PhantomData });
        TRACE.with_borrow_mut(|trace| trace.rare = Some(rare.id));
        false
    }

    fn far_quarter_turns(self) -> (Traced<i32>, Self, Self) {
        self.quarter_turns()
    }

    fn lost(self, other: Self, product: Self) -> Self {
        self.multiply_add(other, -product)
    }

    fn multiply_add(self, factor: Self, term: Self) -> Self {
        traced(Operation::MultiplyAdd(self.id, factor.id, term.id))
    }

    fn round_product(self, factor: Self) -> (Self, Traced<i32>) {
        let origin = Self::lit(ORIGIN);
        let shifted = self.multiply_add(factor, origin);
        (shifted - origin, shifted.bits() - origin.bits())
    }

    fn at_least(self, low: Self) -> Self {
        low.binary(Binary::Larger, self)
    }

    fn at_most(self, high: Self) -> Self {
        high.binary(Binary::Smaller, self)
    }

    fn sqrt(self) -> Self {
        self.unary(Unary::Root)
    }

    fn floor(self) -> Self {
        self.unary(Unary::Floor)
    }

    fn ceil(self) -> Self {
        self.unary(Unary::Ceil)
    }

    fn trunc(self) -> Self {
        self.unary(Unary::Trunc)
    }

    fn round(self) -> Self {
        self.unary(Unary::Nearest)
    }

    fn fmod(self, _: Self) -> Self {
        give_up()
    }

    fn is_nan(self) -> Traced<bool> {
        self.binary(Binary::Unordered, self)
    }
}

impl Scalar for Traced<i32> {
    type Mask = Traced<bool>;

    fn whole(n: i64) -> Self {
        constant(n as u32)
    }

    fn lt(self, other: Self) -> Traced<bool> {
        other.binary(Binary::MoreWhole, self)
    }

    fn le(self, other: Self) -> Traced<bool> {
        !other.lt(self)
    }

    fn eq(self, other: Self) -> Traced<bool> {
        self.binary(Binary::EqualWhole, other)
    }

    fn select(mask: Traced<bool>, a: Self, b: Self) -> Self {
        Self::choose(mask, a, b)
    }

    fn maximum(self, other: Self) -> Self {
        self.binary(Binary::LargerWhole, other)
    }

    fn minimum(self, other: Self) -> Self {
        self.binary(Binary::SmallerWhole, other)
    }

    fn abs(self) -> Self {
        Self::select(self.lt(Self::whole(0)), -self, self)
    }

    fn sign(self) -> Self {
        self.maximum(Self::whole(-1)).minimum(Self::whole(1))
    }
}

impl Int for Traced<i32> {
    fn left(self, bits: u32) -> Self {
        self.unary(Unary::Left(bits as u8))
    }

    fn right(self, bits: u32) -> Self {
        self.unary(Unary::Right(bits as u8))
    }

    fn shift_left(self, _: Self) -> Self {
        give_up()
    }

    fn shift_right(self, _: Self) -> Self {
        give_up()
    }

    fn floor_divide(self, _: Self) -> Self {
        give_up()
    }

    fn remainder(self, _: Self) -> Self {
        give_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_worked_out() {
        let ([sum, minus], trace) = record(|| {
            let x = Value::input(0).typed::<f32>().bits();
            let sum = ((x + Traced::whole(5)) - Traced::whole(3)) + Traced::whole(-7);
            [sum.id, (-Traced::<f32>::lit(2.0)).id]
        })
        .unwrap();
        let of = |id: Id| trace.operations[id as usize];
        assert_eq!(of(minus), Operation::Constant((-2f32).to_bits()));
        let Operation::Binary(Binary::AddWhole, x, by) = of(sum) else { panic!("{:?}", of(sum)) };
        assert_eq!((of(x), of(by)), (Operation::Input(0), Operation::Constant(-5i32 as u32)));
    }
}
