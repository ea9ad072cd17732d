//! The backward pass of attention: weights are computed again, block by block.
//!
//! Tasks are blocks of keys, and each goes through the blocks of queries. The cotangents of its
//! keys and values are the task's own; those of queries are shared, and each gets its terms in the
//! order of the keys: a task adds its terms to a block of queries when the task before it has.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use crate::array::Array;
use crate::cpu::dense::{Real, Store};
use crate::cpu::element::Shared;
use crate::cpu::gemm::panels::{Panels, Strided, product};
use crate::cpu::gemm::scratch::{self, Scratch};
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::{Buffer, block_bytes};
use crate::ops::emit::OrThrow;
use crate::shape::Shape;
use crate::threads::{self, Pace};

use super::block::{self, LANES};
use super::{Matrix, OP, Problem, Sizes, in_order, panels};

/// What backward reads besides the operands.
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// The result, (…, L, F)
    pub y: &'a Array,
    /// The log-sums, (…, L)
    pub logsums: &'a Array,
    /// The cotangent of the result
    pub g: &'a Array,
    /// The cotangent of the log-sums
    pub g_logsums: Option<&'a Array>,
}

/// The cotangents of `q`, `k`, `v` and a floating mask, as far as they are wanted, into results
/// that are there; that of the mask has the shape of the scores, (…, L, S).
///
/// # Safety
/// They are in C order, of the results' types, and nobody else reads or writes them.
pub unsafe fn backward_into(
    operands: [&Array; 3],
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
    saved: Saved<'_>,
    to: [Option<&Array>; 4],
) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        if operands[0].dtype == DType::F64 {
            typed::<f64>(operands, mask, causal, scale, saved, to)
        } else {
            typed::<f32>(operands, mask, causal, scale, saved, to)
        }
    }
}

/// A result that is written.
struct Target<T: Real> {
    ptr: Shared<u8>,
    size: usize,
    store: Store<T>,
    /// Elements from row to row
    row: usize,
}

impl<T: Real> Target<T> {
    /// Writes rows and columns from there on.
    ///
    /// # Safety
    /// They are inside the result, and this call's.
    unsafe fn write(
        &self,
        at: [usize; 2],
        (from, step): (*const T, usize),
        size: [usize; 2],
        factor: T,
    ) {
        let offset = (at[0] * self.row + at[1]) * self.size;
        // SAFETY: by contract.
        unsafe { (self.store)(self.ptr.at(offset as isize), self.row, from, step, size, factor) };
    }
}

/// The gradient of a problem.
struct Gradient<T: Real> {
    problem: Problem<T>,
    g: Matrix<T>,
    y: Matrix<T>,
    logsums: Matrix<T>,
    g_logsums: Option<Matrix<T>>,
    targets: [Option<Target<T>>; 4],
}

unsafe fn typed<T: Real>(
    operands: [&Array; 3],
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
    saved: Saved<'_>,
    to: [Option<&Array>; 4],
) -> Result<()> {
    let target = |x: &Array| -> Result<Target<T>> {
        let row = x.shape()[x.shape().rank() - 1].value();
        // SAFETY: by contract.
        let ptr = Shared::new(unsafe { x.ptr_mut() });
        Ok(Target { ptr, size: x.dtype.size(), store: T::storer(x.dtype, OP, "g")?, row })
    };
    let [q, k, v, scores] = to.map(|x| x.map(target).transpose());
    let gradient = Gradient {
        problem: Problem::<T>::new(operands, mask, causal, scale)?,
        g: Matrix::new(saved.g, "g")?,
        y: Matrix::new(saved.y, "y")?,
        logsums: Matrix::column(saved.logsums, "logsums")?,
        g_logsums: saved.g_logsums.map(|g| Matrix::column(g, "g")).transpose()?,
        targets: [q?, k?, v?, scores?],
    };
    gradient.run()
}

/// Where the parts of one example are packed.
#[derive(Clone, Copy)]
struct Places<T> {
    /// Scaled queries and cotangents of the result, row by row
    q: *mut T,
    g: *mut T,
    /// Keys and values, transposed; keys in panels
    k_across: *mut T,
    v_across: *mut T,
    k: *mut T,
    /// The log-sums, and what is taken from the cotangents of weights
    logsums: *mut T,
    offsets: *mut T,
    /// The cotangents of scaled queries
    dq: *mut T,
}

/// The parts of a thread's workspace.
struct Workspace<T> {
    weights: *mut T,
    slopes: *mut T,
    dk: *mut T,
    dv: *mut T,
}

/// The bytes that [`backward`] takes for itself, as the counters of memory count them.
pub fn backward_scratch(dtype: DType, q: &Shape, v: &Shape, causal: bool) -> usize {
    fn bytes<T: Real>(sizes: &Sizes<T>) -> usize {
        let (item, group) = (sizes.backward_item(), sizes.group(sizes.backward_item()));
        let size = sizes.backward_workspace() * size_of::<T>();
        let packed = block_bytes(group * item * size_of::<T>());
        packed + scratch::counted(size, sizes.backward_parts(group))
    }
    if dtype == DType::F64 {
        bytes::<f64>(&Sizes::new(q, v, causal))
    } else {
        bytes::<f32>(&Sizes::new(q, v, causal))
    }
}

impl<T: Real> Sizes<T> {
    /// Elements that the parts of one example take.
    fn backward_item(&self) -> usize {
        let places = self.places(std::ptr::null_mut());
        places.dq as usize / size_of::<T>() + self.tall() * self.wide(self.e)
    }

    /// Queries, rounded up to whole blocks.
    fn tall(&self) -> usize {
        self.l.next_multiple_of(self.queries)
    }

    fn places(&self, start: *mut T) -> Places<T> {
        let (l, s, e, f) = (self.tall(), self.wide(self.s), self.wide(self.e), self.wide(self.f));
        let mut at = start;
        let mut take = |n: usize| {
            let place = at;
            at = at.wrapping_add(n);
            place
        };
        Places {
            q: take(l * e),
            g: take(l * f),
            k_across: take(s * self.e),
            v_across: take(s * self.f),
            k: take(s * e),
            logsums: take(l),
            offsets: take(l),
            dq: take(l * e),
        }
    }

    /// Elements that a thread works in.
    fn backward_workspace(&self) -> usize {
        let (e, f) = (self.wide(self.e), self.wide(self.f));
        let rows = 2 * self.queries * self.f.next_multiple_of(LANES);
        let packing = (self.step * self.e.max(self.f)).max(rows);
        (2 * self.queries * self.step + self.step * (e + f)).max(packing)
    }

    /// Threads that have work.
    fn backward_parts(&self, group: usize) -> usize {
        let [rows, columns] = self.blocks();
        threads::num_threads().min(group * rows.max(columns)).max(1)
    }
}

impl<T: Real> Gradient<T> {
    fn run(&self) -> Result<()> {
        let p = &self.problem;
        let [rows, columns] = p.blocks();
        let (item, group) = (p.backward_item(), p.group(p.backward_item()));
        let packed = Buffer::alloc(group * item * size_of::<T>())?;
        // SAFETY: fresh.
        let packed = Shared::new(unsafe { packed.ptr_mut() }.cast::<T>());
        let size = p.backward_workspace() * size_of::<T>();
        let scratch = Scratch::new(size, p.backward_parts(group))?;
        let mut done: Vec<AtomicUsize> = Vec::new();
        let found = done.try_reserve_exact(group * columns);
        found.map_err(|_| crate::memory::refusal(group * columns * size_of::<AtomicUsize>()))?;
        for first in (0..p.items).step_by(group) {
            let items = group.min(p.items - first);
            let place = |i: usize| p.places(packed.at((i * item) as isize));
            in_order(items * rows, 4 * p.queries * (p.e + p.f), |task| {
                let (i, row) = (task / rows, task % rows * p.queries);
                let part = scratch.lend(size).or_throw();
                // SAFETY: these rows of this example are this task's.
                unsafe { self.pack_rows(first + i, row, place(i), part.ptr().cast()) };
            });
            in_order(items * columns, 4 * p.keys * (p.e + p.f), |task| {
                let (i, j) = (task / columns, task % columns * p.keys);
                let part = scratch.lend(size).or_throw();
                // SAFETY: these keys of this example are this task's.
                unsafe { self.pack_keys(first + i, j, place(i), part.ptr().cast()) };
            });
            done.clear();
            done.extend((0..items * columns).map(|_| AtomicUsize::new(0)));
            let work = p.keys * p.l * (3 * p.e + 2 * p.f);
            // Tasks of the same keys of all examples follow each other, so that whom a task waits
            // for began long before.
            in_order(items * columns, work, |task| {
                let (i, column) = (task % items, task / items);
                let before = (column > 0).then(|| &done[task - items]);
                let order = Order { before, done: &done[task] };
                let part = scratch.lend(size).or_throw();
                // SAFETY: these keys of this example are this task's; queries in order.
                unsafe {
                    self.keys(first + i, column * p.keys, place(i), part.ptr().cast(), order);
                }
            });
            let Some(target) = &self.targets[0] else { continue };
            in_order(items * rows, 4 * p.queries * p.e, |task| {
                let (i, row) = (task / rows, task % rows * p.queries);
                let n = p.queries.min(p.l - row);
                let wide = p.wide(p.e);
                // SAFETY: as above.
                unsafe {
                    let from = place(i).dq.add(row * wide);
                    let at = [(first + i) * p.l + row, 0];
                    target.write(at, (from, wide), [n, p.e], p.scale);
                }
            });
        }
        Ok(())
    }

    /// Whether the cotangents of scores are wanted.
    fn wants_slopes(&self) -> bool {
        self.targets[0].is_some() || self.targets[1].is_some() || self.targets[3].is_some()
    }

    /// Packs what belongs to the queries of a block.
    unsafe fn pack_rows(&self, item: usize, i: usize, to: Places<T>, temp: *mut T) {
        let p = &self.problem;
        let n = p.queries.min(p.l - i);
        let (e, f) = (p.wide(p.e), p.wide(p.f));
        let tall = if i + n == p.l { p.tall() - i } else { n };
        // SAFETY: by contract.
        unsafe {
            let zeros = |x: *mut T, n: usize| std::slice::from_raw_parts_mut(x, n).fill(T::ZERO);
            zeros(to.q.add(i * e), tall * e);
            zeros(to.g.add(i * f), tall * f);
            zeros(to.dq.add(i * e), tall * e);
            zeros(to.offsets.add(i), tall);
            zeros(to.logsums.add(i), tall);
            p.q.read((to.q.add(i * e), e), [item, i, 0], [n, p.e], p.scale);
            self.g.read((to.g.add(i * f), f), [item, i, 0], [n, p.f], T::ONE);
            self.logsums.read((to.logsums.add(i), 1), [item, i, 0], [n, 1], T::ONE);
            if let Some(g) = &self.g_logsums {
                g.read((to.offsets.add(i), 1), [item, i, 0], [n, 1], T::ONE);
            }
            // Rows of `y` and of `g` in whole lanes, with zeros behind them.
            let lanes = p.f.next_multiple_of(LANES);
            zeros(temp, 2 * n * lanes);
            let g = temp.add(n * lanes);
            self.y.read((temp, lanes), [item, i, 0], [n, p.f], T::ONE);
            self.g.read((g, lanes), [item, i, 0], [n, p.f], T::ONE);
            block::offsets::<T>(temp, g, lanes, n, to.offsets.add(i));
        }
    }

    /// Packs keys and values of a block.
    unsafe fn pack_keys(&self, item: usize, j: usize, to: Places<T>, temp: *mut T) {
        let p = &self.problem;
        let n = p.keys.min(p.s - j);
        // SAFETY: by contract.
        unsafe {
            p.transpose(&p.k, [item, j], [n, p.e], to.k_across.add(j * p.e), temp);
            if !self.wants_slopes() {
                return;
            }
            let width = p.kernels.width;
            p.pack_panels(&p.k, [item, j], [n, p.e], (to.k.add(j * width), p.wide(p.s)));
            p.transpose(&p.v, [item, j], [n, p.f], to.v_across.add(j * p.f), temp);
        }
    }

    /// The queries that may attend to keys from `j` on, from the start of a block.
    fn queries(&self, j: usize) -> Range<usize> {
        let p = &self.problem;
        let first = if p.causal { j / p.queries * p.queries } else { 0 };
        first.min(p.l)..p.l
    }

    /// Computes the cotangents of the keys and values from key `j` on, and the share of these keys
    /// in those of the queries.
    unsafe fn keys(
        &self,
        item: usize,
        j: usize,
        at: Places<T>,
        workspace: *mut T,
        order: Order<'_>,
    ) {
        let p = &self.problem;
        let keys = p.keys.min(p.s - j);
        let (e, f) = (p.wide(p.e), p.wide(p.f));
        let tall = p.queries;
        // SAFETY: the workspace is as large as `backward_workspace` says.
        unsafe {
            let weights = workspace;
            let slopes = weights.add(tall * p.step);
            let dk = slopes.add(tall * p.step);
            let workspace = Workspace { weights, slopes, dk, dv: dk.add(p.step * e) };
            // What no score is written to is multiplied too, for nobody.
            std::slice::from_raw_parts_mut(weights, 2 * tall * p.step).fill(T::ZERO);
            std::slice::from_raw_parts_mut(dk, p.step * (e + f)).fill(T::ZERO);
            let mut pace = Pace::default();
            let queries = self.queries(j);
            self.close_before(item, j, queries.start);
            for i in queries.step_by(p.queries) {
                let rows = p.queries.min(p.l - i);
                let n = keys.min(p.reach(i + rows).saturating_sub(j));
                pace.multiplied(rows * n * (3 * p.e + 2 * p.f));
                self.block(item, [i, j], [rows, n], at, &workspace, order);
                order.done(i + rows);
            }
            let at = [item * p.s + j, 0];
            if let Some(target) = &self.targets[1] {
                target.write(at, (workspace.dk, e), [keys, p.e], T::ONE);
            }
            if let Some(target) = &self.targets[2] {
                target.write(at, (workspace.dv, f), [keys, p.f], T::ONE);
            }
        }
        order.done(usize::MAX);
    }

    /// Waits for the turn of a task to add to the cotangents of the queries up to `end`.
    fn wait(&self, order: Order<'_>, end: usize) {
        if self.targets[0].is_some() {
            order.wait(end);
        }
    }

    /// Writes zeros as the cotangents of scores of queries before `end`, which do not reach key
    /// `j`.
    unsafe fn close_before(&self, item: usize, j: usize, end: usize) {
        let p = &self.problem;
        let Some(target) = &self.targets[3] else { return };
        let keys = p.keys.min(p.s - j);
        let zeros = [T::ZERO; super::KEYS];
        for i in 0..end {
            // SAFETY: this row of these keys is the caller's.
            unsafe {
                target.write([item * p.l + i, j], (zeros.as_ptr(), 0), [1, keys], T::ONE);
            }
        }
    }

    /// The share of one block of scores.
    unsafe fn block(
        &self,
        item: usize,
        [i, j]: [usize; 2],
        [rows, n]: [usize; 2],
        at: Places<T>,
        workspace: &Workspace<T>,
        order: Order<'_>,
    ) {
        let p = &self.problem;
        let (step, width) = (p.step, p.kernels.width);
        let (e, f, filled) = (p.wide(p.e), p.wide(p.f), n.next_multiple_of(LANES));
        let kernels = &p.kernels;
        // SAFETY: by contract.
        unsafe {
            let logsums = at.logsums.add(i);
            // What attends to nothing has weights all the same, and they are NaN.
            let empty = (0..rows).any(|r| *logsums.add(r) == -T::infinity());
            if !empty && p.is_closed(item, [i, j], [rows, n]) {
                self.write_slopes(item, [i, j], [rows, n], std::ptr::null());
                return self.wait(order, i + rows);
            }
            let dense = |ptr: *mut T, row: usize| Strided {
                ptr: ptr.cast_const(),
                strides: (row as isize, 1),
            };
            let across =
                |ptr: *mut T| Strided { ptr: ptr.cast_const(), strides: (1, step as isize) };
            let (q, g) = (dense(at.q.add(i * e), e), dense(at.g.add(i * f), f));
            let k_across = panels(at.k_across.add(j * p.e), p.e * width, width);
            let size = [rows, n, p.e];
            product(kernels, size, q, k_across, (workspace.weights, step), true);
            p.mask(workspace.weights, item, [i, j], [rows, n]);
            if self.wants_slopes() {
                let v_across = panels(at.v_across.add(j * p.f), p.f * width, width);
                let size = [rows, n, p.f];
                product(kernels, size, g, v_across, (workspace.slopes, step), true);
                let closed = p.mask.as_ref().is_none_or(|mask| mask.shift.is_none());
                block::slopes::<T>(
                    [workspace.weights, workspace.slopes],
                    step,
                    [rows, filled],
                    [logsums, at.offsets.add(i)],
                    closed,
                );
            } else {
                block::weights::<T>(workspace.weights, step, [rows, filled], logsums);
            }
            // Rows of queries and of cotangents, as panels that lie beside each other.
            let beside = |ptr: *mut T, row: usize| panels(ptr.cast_const(), width, row);
            if self.targets[2].is_some() {
                let size = [n, p.f, rows];
                let g = beside(at.g.add(i * f), f);
                product(kernels, size, across(workspace.weights), g, (workspace.dv, f), false);
            }
            if self.targets[1].is_some() {
                let size = [n, p.e, rows];
                let q = beside(at.q.add(i * e), e);
                product(kernels, size, across(workspace.slopes), q, (workspace.dk, e), false);
            }
            self.write_slopes(item, [i, j], [rows, n], workspace.slopes);
            self.wait(order, i + rows);
            if self.targets[0].is_some() {
                let size = [rows, p.e, n];
                let k: Panels<T> = panels(at.k.add(j * width), p.wide(p.s) * width, width);
                let to = (at.dq.add(i * e), e);
                product(kernels, size, dense(workspace.slopes, step), k, to, false);
            }
        }
    }

    /// Writes the cotangents of a block of scores, and zeros for keys behind the reach of its
    /// queries; zeros alone, where there are none.
    unsafe fn write_slopes(
        &self,
        item: usize,
        [i, j]: [usize; 2],
        [rows, n]: [usize; 2],
        slopes: *const T,
    ) {
        let p = &self.problem;
        let Some(target) = &self.targets[3] else { return };
        let zeros = [T::ZERO; super::KEYS];
        let keys = p.keys.min(p.s - j);
        let row = item * p.l + i;
        // SAFETY: by contract.
        unsafe {
            let (from, step) = match slopes.is_null() {
                true => (zeros.as_ptr(), 0),
                false => (slopes, p.step),
            };
            target.write([row, j], (from, step), [rows, n], T::ONE);
            target.write([row, j + n], (zeros.as_ptr(), 0), [rows, keys - n], T::ONE);
        }
    }
}

/// The order in which tasks add to the cotangents of queries.
#[derive(Clone, Copy)]
struct Order<'a> {
    /// The queries up to which the task of the keys before has added its terms
    before: Option<&'a AtomicUsize>,
    /// Those of this task
    done: &'a AtomicUsize,
}

impl Order<'_> {
    /// Waits until the task before has been at the queries up to `end`. It is being run: tasks
    /// begin in order.
    fn wait(self, end: usize) {
        let Some(before) = self.before else { return };
        let mut turns = 0_u32;
        while before.load(Acquire) < end {
            threads::pause();
            turns += 1;
            // That task's thread may have lost its core to somebody: to us, perhaps.
            if turns > 1000 { thread::yield_now() } else { spin_loop() }
        }
    }

    fn done(self, end: usize) {
        self.done.store(end, Release);
    }
}
