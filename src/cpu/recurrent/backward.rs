//! The steps of a layer against their order: the slopes of all steps, and the cotangents of the
//! first states.

use std::ops::Range;

use smallvec::SmallVec;

use super::cells::{self, Lines};
use super::{Form, Memory, ROWS, Share, Sizes, lines, multiply, pack_by_gates, tall};
use crate::cpu::dense::Real;
use crate::cpu::element::Shared;
use crate::cpu::gemm::kernel::Kernels;
use crate::error::Result;
use crate::threads::{self, Pace};

/// What the gradient of a layer reads and writes: arrays in C order, in the dtype that is calculated
/// in.
pub struct Backward<T: Real> {
    /// The sizes of the layer, and its direction
    pub sizes: Sizes,
    /// The cotangents of all states, and of the last ones and the last cells
    pub g: Shared<T>,
    pub last: [Option<Shared<T>>; 2],
    /// The gates; of a simple net the states
    pub gates: Shared<T>,
    /// The cells, or `U_n h` of gated recurrent units
    pub saved: Option<Shared<T>>,
    /// The first cells; of gated recurrent units the states before all steps
    pub before: Option<Shared<T>>,
    /// The cotangents of gates and of what was saved
    pub of_saved: [Option<Shared<T>>; 2],
    /// How many steps each row has, if not all
    pub lengths: Option<Shared<i64>>,
    /// The weights of the states
    pub weight: Shared<T>,
    /// The slopes by what was fed, and of gated recurrent units those by what the states gave
    pub slopes: [Option<Shared<T>>; 2],
    /// The cotangents of the first states and of the first cells
    pub to: [Option<Shared<T>>; 2],
}

/// Elements of the parts of a thread's memory for some rows: slopes, sums, what goes from step to
/// step beside them, and both of a few rows that have ended.
fn parts<T: Real>(kernels: &Kernels<T>, sizes: Sizes, rows: usize, ends: bool) -> [usize; 4] {
    let wide = sizes.units.next_multiple_of(kernels.width);
    let slopes = tall(kernels, rows.min(ROWS)) * sizes.sums();
    let held = if ends { 2 * rows.min(ROWS) * sizes.units } else { 0 };
    [slopes, tall(kernels, rows) * wide, rows * sizes.units, held]
}

/// The count of parts of memory, and the elements of each.
fn memory<T: Real>(kernels: &Kernels<T>, sizes: Sizes, share: Share, ends: bool) -> (usize, usize) {
    let each = match share {
        Share::Rows(each) => each,
        Share::Units(_) => sizes.rows,
    };
    (sizes.rows.div_ceil(each), parts(kernels, sizes, each, ends).iter().sum())
}

/// The bytes that [`Backward::run`] takes for itself, as the counters of memory count them.
pub fn scratch<T: Real>(sizes: Sizes, ends: bool) -> usize {
    if sizes.steps * sizes.rows == 0 {
        return 0;
    }
    let kernels = T::kernels();
    let (parts, each) = memory(&kernels, sizes, sizes.share::<T>(threads::num_threads()), ends);
    Memory::<T>::counted(1, sizes.packed(kernels.width)) + Memory::<T>::counted(parts, each)
}

impl<T: Real> Backward<T> {
    /// Goes through all steps.
    ///
    /// # Safety
    /// All addresses are valid for the sizes, and the results nobody else's.
    pub unsafe fn run(&self) -> Result<()> {
        let sizes = self.sizes;
        let count = sizes.rows * sizes.units;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: by contract; rows are shared without overlap.
        unsafe {
            if sizes.steps == 0 {
                for (to, from) in self.to.iter().zip(self.last) {
                    let Some(to) = to else { continue };
                    match from {
                        Some(from) => to.at(0).copy_from_nonoverlapping(from.at(0), count),
                        None => std::slice::from_raw_parts_mut(to.at(0), count).fill(T::ZERO),
                    }
                }
                return Ok(());
            }
            let kernels = T::kernels();
            let share = sizes.share::<T>(threads::num_threads());
            let packed = Memory::<T>::new(1, sizes.packed(kernels.width))?;
            pack_by_gates(sizes, self.weight.at(0), packed.part(0));
            let (count, each) = memory(&kernels, sizes, share, self.lengths.is_some());
            let memory = Memory::<T>::new(count, each)?;
            match share {
                Share::Rows(each) => threads::for_each_chunk(sizes.rows, each, |rows| {
                    let at = memory.part(rows.start / each);
                    self.through(&kernels, (packed.part(0), 1), rows, at);
                }),
                Share::Units(parts) => {
                    let packed = (packed.part(0).cast_const(), parts);
                    self.through(&kernels, packed, 0..sizes.rows, memory.part(0));
                }
            }
        }
        Ok(())
    }

    /// Takes some rows through all steps; so many threads share the products of each.
    unsafe fn through(
        &self,
        kernels: &Kernels<T>,
        (packed, threads): (*const T, usize),
        rows: Range<usize>,
        memory: *mut T,
    ) {
        let sizes = self.sizes;
        let (units, width) = (sizes.units, kernels.width);
        let (panels, depth) = (units.div_ceil(width), sizes.sums());
        let ends = self.lengths.is_some();
        let [of_slopes, of_sums, of_beside, _] = parts(kernels, sizes, rows.len(), ends);
        let (slopes, sums) = (memory, memory.wrapping_add(of_slopes));
        let beside = lines(sums.wrapping_add(of_sums), units, 0);
        let held = beside.ptr.wrapping_add(of_beside);
        let sums = lines(sums, panels * width, 0);
        let all = |x: Shared<T>| x.at((rows.start * units) as isize);
        let count = rows.len() * units;
        let mut pace = Pace::default();
        // SAFETY: by contract; the memory is zero.
        unsafe {
            match (sizes.form, self.last) {
                (Form::Lstm | Form::Rnn { .. }, [last, end]) => {
                    if let Some(last) = last {
                        for r in 0..rows.len() {
                            let to = sums.ptr.add(r * sums.row);
                            to.copy_from_nonoverlapping(all(last).add(r * units), units);
                        }
                    }
                    if let Some(end) = end {
                        beside.ptr.copy_from_nonoverlapping(all(end), count);
                    }
                }
                (Form::Gru, [last, _]) => {
                    if let Some(last) = last {
                        beside.ptr.copy_from_nonoverlapping(all(last), count);
                    }
                }
            }
            for s in (0..sizes.steps).rev() {
                pace.work(count * units.div_ceil(4));
                for start in (0..rows.len()).step_by(ROWS) {
                    let n = ROWS.min(rows.len() - start);
                    let part = |x: Lines<T>| Lines { ptr: x.ptr.add(start * x.row), ..x };
                    let (sums, beside) = (part(sums), part(beside));
                    let row = rows.start + start;
                    let ended = self.ended(row..row + n, sizes.at(s));
                    for (k, &r) in ended.iter().enumerate() {
                        let held = held.add(2 * k * units);
                        held.copy_from_nonoverlapping(sums.ptr.add(r * sums.row), units);
                        let beside = beside.ptr.add(r * units);
                        held.add(units).copy_from_nonoverlapping(beside, units);
                    }
                    self.cells([n, units], row, s, [sums, beside], slopes);
                    for &r in &ended {
                        self.no_slopes(row + r, sizes.at(s), slopes.add(r * depth));
                    }
                    let (packed, slopes) = (Shared::reading(packed), Shared::new(slopes));
                    let to = Shared::new(sums.ptr);
                    let each = panels.div_ceil(threads);
                    threads::for_each_chunk(panels, each, |range| {
                        let first = range.start * width;
                        let b = packed.at((first * depth) as isize).cast_const();
                        let c = (to.at(first as isize), sums.row);
                        let a = (slopes.at(0).cast_const(), depth);
                        multiply(kernels, [n, range.len(), depth], a, b, c);
                    });
                    for (k, &r) in ended.iter().enumerate() {
                        let held = held.add(2 * k * units);
                        sums.ptr.add(r * sums.row).copy_from_nonoverlapping(held, units);
                        let to = beside.ptr.add(r * units);
                        to.copy_from_nonoverlapping(held.add(units), units);
                    }
                }
            }
            for r in 0..rows.len() {
                let (sums, beside) = (sums.ptr.add(r * sums.row), beside.ptr.add(r * units));
                if let Some(to) = self.to[0] {
                    let to = std::slice::from_raw_parts_mut(all(to).add(r * units), units);
                    for (u, to) in to.iter_mut().enumerate() {
                        *to = match sizes.form {
                            Form::Gru => *beside.add(u) + *sums.add(u),
                            Form::Lstm | Form::Rnn { .. } => *sums.add(u),
                        };
                    }
                }
                if let Some(to) = self.to[1] {
                    all(to).add(r * units).copy_from_nonoverlapping(beside, units);
                }
            }
        }
    }

    /// Those of some rows that have ended at a step, counted from the first.
    unsafe fn ended(&self, rows: Range<usize>, t: usize) -> SmallVec<[usize; ROWS]> {
        let Some(lengths) = self.lengths else { return SmallVec::new() };
        // SAFETY: by contract.
        let has_ended = |row: usize| unsafe { *lengths.at(row as isize) <= t as i64 };
        let first = rows.start;
        rows.filter(|&row| has_ended(row)).map(|row| row - first).collect()
    }

    /// Whether a row begins with a step: in reverse it does so at its length.
    unsafe fn begins(&self, row: usize, step: usize) -> bool {
        let Some(lengths) = self.lengths.filter(|_| self.sizes.reverse) else { return step == 0 };
        let t = self.sizes.at(step) as i64;
        // SAFETY: by contract.
        step == 0 || unsafe { *lengths.at(row as isize) } == t + 1
    }

    /// Makes the slopes of a row of a step 0, here and among the results.
    unsafe fn no_slopes(&self, row: usize, t: usize, own: *mut T) {
        let wide = self.sizes.sums();
        let at = ((t * self.sizes.rows + row) * wide) as isize;
        let all = self.slopes.iter().flatten().map(|x| x.at(at)).chain([own]);
        // SAFETY: by contract.
        all.for_each(|x| unsafe { std::slice::from_raw_parts_mut(x, wide).fill(T::ZERO) });
    }

    /// The slopes of some rows of a step, from row `row` on; `slopes` gets those by the states too.
    unsafe fn cells(
        &self,
        size: [usize; 2],
        row: usize,
        step: usize,
        [sums, beside]: [Lines<T>; 2],
        slopes: *mut T,
    ) {
        let sizes = self.sizes;
        let (t, units, wide) = (sizes.at(step), sizes.units, sizes.sums());
        let place = |t: usize, x: Shared<T>, elements: usize| {
            lines(x.at(((t * sizes.rows + row) * elements) as isize), elements, units)
        };
        let own = lines(slopes, wide, units);
        let (g, gates) = (place(t, self.g, units), place(t, self.gates, wide));
        let to = self.slopes.map(|x| x.map(|x| place(t, x, wide)));
        let [of_gates, of_cells] = self.of_saved;
        let more = [of_gates.map(|x| place(t, x, wide)), of_cells.map(|x| place(t, x, units))];
        // SAFETY: by contract.
        unsafe {
            match (sizes.form, self.saved, self.before, to) {
                (Form::Lstm, Some(cells), Some(first), [Some(to), _]) => {
                    let cells_here = place(t, cells, units);
                    let mut from = 0;
                    while from < size[0] {
                        let begins = self.begins(row + from, step);
                        let is_like = |r: &usize| self.begins(row + r, step) == begins;
                        let count = (from..size[0]).take_while(is_like).count();
                        let before = match step.checked_sub(1) {
                            Some(step) if !begins => place(sizes.at(step), cells, units),
                            Some(_) | None => place(0, first, units),
                        };
                        let part = |x: Lines<T>| Lines { ptr: x.ptr.add(from * x.row), ..x };
                        let states = [cells_here, before].map(part);
                        let lines = [sums, beside, g, gates].map(part);
                        let more = more.map(|x| x.map(part));
                        cells::lstm_slopes(
                            [count, units],
                            lines,
                            states,
                            more,
                            [own, to].map(part),
                        );
                        from += count;
                    }
                }
                (Form::Gru, Some(m), Some(before), [Some(fed), Some(to)]) => {
                    let states = [place(t, m, units), place(t, before, units)];
                    let to = [own, to, fed];
                    cells::gru_slopes(size, [sums, beside, g, gates], states, more, to);
                }
                (Form::Rnn { relu: true }, _, _, [Some(to), _]) => {
                    cells::rnn_slopes::<T, true>(size, [sums, g, gates], [own, to]);
                }
                (Form::Rnn { relu: false }, _, _, [Some(to), _]) => {
                    cells::rnn_slopes::<T, false>(size, [sums, g, gates], [own, to]);
                }
                (Form::Lstm | Form::Gru | Form::Rnn { .. }, ..) => {
                    unreachable!("they have what their slopes read, and a place for these")
                }
            }
        }
    }
}
