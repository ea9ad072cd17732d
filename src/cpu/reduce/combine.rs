//! How reductions combine two numbers, and in which order many.

use crate::cpu::element::Number;

use super::kernels::reduce_columns;

/// An operation that combines two numbers into one.
pub trait Combine<A: Number>: 'static {
    /// The result over no elements.
    const EMPTY: A;
    /// Combined with any number, gives that number.
    const NEUTRAL: A;
    /// Whether [`Combine::pick`] is faster than [`Combine::join`], and wrong about NaN.
    const PICKS: bool = false;
    /// Whether it is too rare to be compiled for more than the lowest instruction set.
    const IS_RARE: bool = false;
    /// Combines two numbers; `a` comes earlier.
    fn join(a: A, b: A) -> A;
    /// Combines two numbers, neither of which is NaN.
    #[inline(always)]
    fn pick(a: A, b: A) -> A {
        Self::join(a, b)
    }
}

/// Addition.
pub struct Sum;
/// Multiplication.
pub struct Prod;
/// The larger number; NaN before any number; the later of two zeros.
pub struct Max;
/// The smaller number; NaN before any number; the later of two zeros.
pub struct Min;

impl<A: Number> Combine<A> for Sum {
    const EMPTY: A = A::ZERO;
    const NEUTRAL: A = A::NOTHING;
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        a.add(b)
    }
}
impl<A: Number> Combine<A> for Prod {
    // Truth values are bytes, and often multiplied.
    const IS_RARE: bool = !A::HAS_NAN && size_of::<A>() > 1;
    const EMPTY: A = A::ONE;
    const NEUTRAL: A = A::ONE;
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        a.mul(b)
    }
}
impl<A: Number> Combine<A> for Max {
    const EMPTY: A = A::LOWEST;
    const NEUTRAL: A = A::LOWEST;
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        choose::<A, Max>(a, b)
    }
    const PICKS: bool = A::HAS_NAN;
    #[inline(always)]
    fn pick(a: A, b: A) -> A {
        if a > b { a } else { b }
    }
}
impl<A: Number> Combine<A> for Min {
    const EMPTY: A = A::HIGHEST;
    const NEUTRAL: A = A::HIGHEST;
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        choose::<A, Min>(a, b)
    }
    const PICKS: bool = A::HAS_NAN;
    #[inline(always)]
    fn pick(a: A, b: A) -> A {
        if a < b { a } else { b }
    }
}

/// An operation whose result is one of its operands.
pub trait Choice<A: Number>: Combine<A> {
    /// Whether `a` is preferred to `b`, if neither is NaN.
    fn wins(a: A, b: A) -> bool;

    /// Whether `x` is preferred to `best`, which came earlier.
    #[inline(always)]
    fn beats(x: A, best: A) -> bool {
        Self::wins(x, best) | (x.is_nan() & !best.is_nan())
    }
}

impl<A: Number> Choice<A> for Max {
    #[inline(always)]
    fn wins(a: A, b: A) -> bool {
        a > b
    }
}
impl<A: Number> Choice<A> for Min {
    #[inline(always)]
    fn wins(a: A, b: A) -> bool {
        a < b
    }
}

#[inline(always)]
fn choose<A: Number, C: Choice<A>>(a: A, b: A) -> A {
    let chosen = if C::wins(a, b) { a } else { b };
    if a.is_nan() { a } else { chosen }
}

/// Combines a sequence in a tree whose shape depends only on its length: the left branch of every
/// node holds the largest power of two below its count. So aligned runs of 2^k items may be
/// combined separately, and their results afterwards.
pub struct Pairwise<A> {
    count: usize,
    depth: usize,
    stack: [A; usize::BITS as usize],
}

impl<A: Number> Pairwise<A> {
    /// No items yet.
    #[inline(always)]
    pub fn new() -> Self {
        Pairwise { count: 0, depth: 0, stack: [A::ZERO; usize::BITS as usize] }
    }

    /// Adds an item at the end.
    #[inline(always)]
    pub fn push<F: Combine<A>>(&mut self, mut item: A) {
        let mut rest = self.count;
        while rest & 1 == 1 {
            self.depth -= 1;
            item = F::join(self.stack[self.depth], item);
            rest >>= 1;
        }
        self.stack[self.depth] = item;
        self.depth += 1;
        self.count += 1;
    }

    /// The result over all items.
    #[inline(always)]
    pub fn finish<F: Combine<A>>(&self) -> A {
        let Some((&last, before)) = self.stack[..self.depth].split_last() else { return F::EMPTY };
        before.iter().rev().fold(last, |right, &left| F::join(left, right))
    }
}

/// [`Pairwise`], for many columns at once.
pub struct Tree<A> {
    count: usize,
    depth: usize,
    width: usize,
    levels: Vec<A>,
}

impl<A: Number> Tree<A> {
    /// A tree with capacity for `items` rows of up to `width` columns.
    pub fn new(items: usize, width: usize) -> Self {
        let levels = items.checked_ilog2().map_or(0, |log| log as usize + 2);
        Tree { count: 0, depth: 0, width, levels: Vec::with_capacity(levels * width) }
    }

    fn level(&mut self, depth: usize) -> *mut A {
        self.levels.as_mut_ptr().wrapping_add(depth * self.width)
    }

    /// The address for the next item.
    pub fn slot(&mut self) -> *mut A {
        self.level(self.depth)
    }

    /// Adds the item that was written to the slot.
    ///
    /// # Safety
    /// `width` numbers were written there.
    pub unsafe fn push<F: Combine<A>>(&mut self, width: usize) {
        let mut rest = self.count;
        while rest & 1 == 1 {
            // SAFETY: both levels are filled.
            unsafe { self.join::<F>(width) };
            rest >>= 1;
        }
        self.depth += 1;
        self.count += 1;
    }

    /// Combines the slot into the level before it, which becomes the slot.
    unsafe fn join<F: Combine<A>>(&mut self, width: usize) {
        self.depth -= 1;
        let (left, right) = (self.level(self.depth), self.level(self.depth + 1));
        // SAFETY: levels are apart; the caller filled both.
        unsafe { reduce_columns::<A, F>(right, &[0], width, left, false) };
    }

    /// The result over all items; the tree is empty afterwards.
    ///
    /// # Safety
    /// At least one item was pushed.
    pub unsafe fn finish<F: Combine<A>>(&mut self, width: usize) -> *const A {
        self.depth -= 1;
        while self.depth > 0 {
            // SAFETY: the levels up to the slot are filled.
            unsafe { self.join::<F>(width) };
        }
        self.count = 0;
        self.level(0)
    }
}
