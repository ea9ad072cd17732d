//! Reductions of arrays that arrive block by block and never exist as a whole.
//!
//! The array is seen as lines of one width, and all lines are combined into one. Lines arrive in
//! *chunks*, from several threads; within a chunk they arrive in order. The lines of a group are
//! combined into one item, and at the end the items are combined in the order that
//! [`reduce_into`](super::reduce_into) has.

use std::marker::PhantomData;

use crate::array::Array;
use crate::cpu::element::{Element, Number, Shared, with_element};
use crate::dtype::DType;
use crate::memory::check_room;
use crate::ops::attributes::Reduction;
use crate::ops::emit::OrThrow;

use super::columns::BLOCK as COLUMN_BLOCK;
use super::combine::{Combine, Max, Min, Pairwise, Prod, Sum, Tree};
use super::kernels::{BLOCK, narrow, reduce_columns, reduce_rows};
use super::{FEW, unsigned, with_fold};

/// A reduction of lines that arrive in chunks.
pub trait Partial: Sync {
    /// Starts a chunk at a line, which is a multiple of the [`group`]. No line belongs to two
    /// chunks.
    fn chunk(&self, line: usize) -> Box<dyn Chunk + '_>;

    /// Writes the result, after all lines have arrived.
    ///
    /// # Safety
    /// `out` is in C order, of the result's type, and nobody else reads or writes it.
    unsafe fn finish(&self, out: &Array);
}

/// Takes the lines of a chunk, in order.
pub trait Chunk {
    /// Adds the next lines.
    ///
    /// # Safety
    /// The lines can be read, in C order.
    unsafe fn push(&mut self, x: *const u8, lines: usize);

    /// Ends the chunk.
    fn end(&mut self);
}

/// How many lines make one item of the tree that combines `lines` lines of `width` elements; `None`
/// where the order of combining has no groups.
pub fn group(lines: usize, width: usize) -> Option<usize> {
    match width {
        0 => None,
        _ if lines <= FEW => None,
        1 => Some(BLOCK),
        _ => Some(COLUMN_BLOCK),
    }
}

/// A reduction of `lines` lines of `width` elements into one, where they have a [`group`].
pub fn partial(
    kind: Reduction,
    dtype: DType,
    lines: usize,
    width: usize,
) -> Option<Box<dyn Partial>> {
    group(lines, width)?;
    Some(joined(kind, dtype, lines, width))
}

/// The sum of `lines` lines of `width` elements, both at least 1. Its chunks start at multiples of
/// [`lines_together`].
pub fn sum_of_lines(dtype: DType, lines: usize, width: usize) -> Box<dyn Partial> {
    // Few lines are combined one after the other, whatever their width.
    joined(Reduction::Sum, dtype, lines, width)
}

/// The fewest lines of a sum in one chunk.
pub fn lines_together(lines: usize, width: usize) -> usize {
    group(lines, width).unwrap_or(lines.max(1))
}

fn joined(kind: Reduction, dtype: DType, lines: usize, width: usize) -> Box<dyn Partial> {
    let is_row = width == 1 && lines > FEW;
    with_fold!(kind, dtype, T, F => match is_row {
        true => Box::new(Line::<T, F>::new(lines)) as Box<dyn Partial>,
        false => Box::new(Columns::<T, F>::new(lines, width)),
    })
}

/// Items that different threads write.
struct Items<A> {
    all: Vec<A>,
    start: Shared<A>,
}

impl<A: Number> Items<A> {
    /// Unwinds with an error where memory cannot hold them.
    fn new(count: usize) -> Items<A> {
        check_room(count.saturating_mul(size_of::<A>())).or_throw();
        let mut all = vec![A::ZERO; count];
        let start = Shared::new(all.as_mut_ptr());
        Items { all, start }
    }

    /// The address of an item. Each item is written by one chunk.
    fn at(&self, i: usize) -> *mut A {
        debug_assert!(i < self.all.len());
        self.start.at(i as isize)
    }
}

/// Lines of one element.
struct Line<T: Element, F> {
    items: Items<T::Number>,
    fold: PhantomData<fn() -> F>,
}

impl<T: Element, F: Combine<T::Number>> Line<T, F> {
    fn new(lines: usize) -> Self {
        Line { items: Items::new(lines.div_ceil(BLOCK)), fold: PhantomData }
    }
}

impl<T: Element, F: Combine<T::Number>> Partial for Line<T, F> {
    fn chunk(&self, line: usize) -> Box<dyn Chunk + '_> {
        Box::new(LineChunk { line: self, item: line / BLOCK, rest: Vec::new() })
    }

    unsafe fn finish(&self, out: &Array) {
        let mut tree = Pairwise::new();
        self.items.all.iter().for_each(|&item| tree.push::<F>(item));
        // SAFETY: the result is one element.
        unsafe { *out.ptr_mut().cast::<T>() = T::narrow(tree.finish::<F>()) };
    }
}

struct LineChunk<'a, T: Element, F> {
    line: &'a Line<T, F>,
    item: usize,
    /// Elements of a group that is not complete
    rest: Vec<T>,
}

impl<T: Element, F: Combine<T::Number>> LineChunk<'_, T, F> {
    unsafe fn fold(&mut self, x: *const T, n: usize) {
        // SAFETY: the elements can be read by the caller's word; the item belongs to this chunk.
        unsafe { reduce_rows::<T, T::Number, F>(x, 0, 1, n, self.line.items.at(self.item)) };
        self.item += 1;
    }
}

impl<T: Element, F: Combine<T::Number>> Chunk for LineChunk<'_, T, F> {
    unsafe fn push(&mut self, x: *const u8, mut lines: usize) {
        let mut x = x.cast::<T>();
        while lines > 0 {
            let n = lines.min(BLOCK - self.rest.len());
            // SAFETY: there are so many elements.
            unsafe {
                if n == BLOCK {
                    self.fold(x, BLOCK);
                } else {
                    self.rest.extend_from_slice(std::slice::from_raw_parts(x, n));
                }
                x = x.add(n);
            }
            lines -= n;
            if self.rest.len() == BLOCK {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            // SAFETY: the elements are there.
            unsafe { self.fold(rest.as_ptr(), rest.len()) };
        }
        self.rest = rest;
        self.rest.clear();
    }
}

/// Lines of several elements.
struct Columns<T: Element, F> {
    items: Items<T::Number>,
    width: usize,
    fold: PhantomData<fn() -> (T, F)>,
}

impl<T: Element, F: Combine<T::Number>> Columns<T, F> {
    fn new(lines: usize, width: usize) -> Self {
        let items = Items::new(lines.div_ceil(COLUMN_BLOCK).saturating_mul(width));
        Columns { items, width, fold: PhantomData }
    }
}

impl<T: Element, F: Combine<T::Number>> Partial for Columns<T, F> {
    fn chunk(&self, line: usize) -> Box<dyn Chunk + '_> {
        Box::new(ColumnChunk { columns: self, line })
    }

    unsafe fn finish(&self, out: &Array) {
        let count = self.items.all.len() / self.width;
        let mut tree = Tree::new(count, self.width);
        for item in self.items.all.chunks_exact(self.width) {
            // SAFETY: the slot holds a line; so does the item.
            unsafe {
                reduce_columns::<T::Number, F>(item.as_ptr(), &[0], self.width, tree.slot(), true);
                tree.push::<F>(self.width);
            }
        }
        // SAFETY: the result is a line.
        unsafe { narrow::<T>(tree.finish::<F>(self.width), self.width, out.ptr_mut().cast()) };
    }
}

struct ColumnChunk<'a, T: Element, F> {
    columns: &'a Columns<T, F>,
    line: usize,
}

impl<T: Element, F: Combine<T::Number>> Chunk for ColumnChunk<'_, T, F> {
    unsafe fn push(&mut self, x: *const u8, lines: usize) {
        let width = self.columns.width;
        let (mut x, end) = (x.cast::<T>(), self.line + lines);
        let offsets: [isize; PASS] = std::array::from_fn(|i| (i * width) as isize);
        while self.line < end {
            let within = self.line % COLUMN_BLOCK;
            let n = (end - self.line).min(COLUMN_BLOCK - within).min(PASS);
            let item = self.columns.items.at(self.line / COLUMN_BLOCK * width);
            // SAFETY: so many lines can be read; the item belongs to this chunk.
            unsafe {
                reduce_columns::<T, F>(x, &offsets[..n], width, item, within == 0);
                x = x.add(n * width);
            }
            self.line += n;
        }
    }

    fn end(&mut self) {}
}

/// Lines that are combined in one pass.
const PASS: usize = 16;
