//! The steps of a layer, in their order.

use std::ops::Range;

use super::cells::{self, Lines};
use super::{ABREAST, Form, Memory, ROWS, Share, Sizes, lines, multiply, pack_by_units, tall};
use crate::cpu::dense::{Real, Store};
use crate::cpu::element::{Number, Shared};
use crate::cpu::gemm::kernel::Kernels;
use crate::error::Result;
use crate::threads::{self, Pace};

/// What a layer reads and writes: arrays in C order, in the dtype that is calculated in.
pub struct Forward<T: Real> {
    /// The sizes
    pub sizes: Sizes,
    /// The first states, and cells if there are any
    pub h: Shared<T>,
    pub c: Option<Shared<T>>,
    /// The weights of the states
    pub weight: Shared<T>,
    /// What is added to what is fed, and to the products with the states
    pub biases: [Option<Vec<T>>; 2],
    /// What is fed (steps, rows, gates · units), which gates take the place of
    pub gates: Shared<T>,
    /// The cells, or `U_n h` of gated recurrent units
    pub saved: Option<Shared<T>>,
    /// How many steps each row has, if not all
    pub lengths: Option<Shared<i64>>,
    /// The states of all steps, and the last ones, of any floating dtype
    pub y: Output<T>,
    pub last: Output<T>,
    /// The last cells
    pub end: Option<Output<T>>,
}

/// A result in C order, of any floating dtype.
pub struct Output<T: Real> {
    pub ptr: Shared<u8>,
    pub size: usize,
    pub store: Store<T>,
}

impl<T: Real> Output<T> {
    /// Writes so many elements from `at` on.
    ///
    /// # Safety
    /// They are in the result, and this call's.
    pub unsafe fn write(&self, at: usize, from: *const T, count: usize) {
        let to = self.ptr.at((at * self.size) as isize);
        // SAFETY: by contract.
        unsafe { (self.store)(to, count, from, count, [1, count], T::ONE) };
    }
}

/// How the work is laid out.
struct Plan<T: Real> {
    kernels: Kernels<T>,
    share: Share,
    /// Blocks of units whose sums are computed together
    together: usize,
}

impl<T: Real> Plan<T> {
    fn new(sizes: Sizes) -> Plan<T> {
        let (kernels, share) = (T::kernels(), sizes.share::<T>(threads::num_threads()));
        let rows = match share {
            Share::Rows(each) => each,
            Share::Units(_) => sizes.rows,
        };
        // A single row is multiplied by several panels at a time.
        let together = match (rows, sizes.form.gates()) {
            (1, gates) if gates < ABREAST => ABREAST,
            _ => 1,
        };
        Plan { kernels, share, together }
    }

    /// Elements of one copy of the states of so many rows.
    fn states(&self, sizes: Sizes, rows: usize) -> usize {
        tall(&self.kernels, rows) * sizes.units
    }

    /// Elements of the sums that are computed at a time.
    fn sums(&self, sizes: Sizes, rows: usize) -> usize {
        let columns = sizes.form.gates() * self.together * self.kernels.width;
        tall(&self.kernels, rows.min(ROWS)) * columns
    }

    /// The parts of memory, and the elements of each: two copies of the states, and sums.
    fn memory(&self, sizes: Sizes) -> (usize, usize) {
        match self.share {
            Share::Rows(each) => {
                (sizes.rows.div_ceil(each), 2 * self.states(sizes, each) + self.sums(sizes, each))
            }
            // The first part has the states.
            Share::Units(parts) => {
                let states = 2 * self.states(sizes, sizes.rows);
                (parts + 1, states.max(self.sums(sizes, sizes.rows)))
            }
        }
    }
}

/// The bytes that [`Forward::run`] takes for itself, as the counters of memory count them.
pub fn scratch<T: Real>(sizes: Sizes) -> usize {
    if sizes.steps * sizes.rows == 0 {
        return 0;
    }
    let plan = Plan::<T>::new(sizes);
    let (parts, each) = plan.memory(sizes);
    Memory::<T>::counted(1, sizes.packed(plan.kernels.width)) + Memory::<T>::counted(parts, each)
}

/// One step of some rows.
#[derive(Clone, Copy)]
struct Step<T> {
    /// Its place in the sequence, and that of the step before it
    t: usize,
    before: Option<usize>,
    /// The states before it, and behind it
    from: *const T,
    to: *mut T,
}

impl<T: Real> Forward<T> {
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
        // SAFETY: by contract; rows and units are shared without overlap.
        unsafe {
            if sizes.steps == 0 {
                self.last.write(0, self.h.at(0), count);
                if let (Some(end), Some(c)) = (&self.end, self.c) {
                    end.write(0, c.at(0), count);
                }
                return Ok(());
            }
            let plan = Plan::<T>::new(sizes);
            let packed = Memory::<T>::new(1, sizes.packed(plan.kernels.width))?;
            pack_by_units(sizes, self.weight.at(0), packed.part(0));
            let (parts, each) = plan.memory(sizes);
            let memory = Memory::<T>::new(parts, each)?;
            match plan.share {
                Share::Rows(each) => threads::for_each_chunk(sizes.rows, each, |rows| {
                    let at = memory.part(rows.start / each);
                    self.through(&plan, packed.part(0), rows, (at, None));
                }),
                Share::Units(parts) => {
                    let own = (memory.part(0), Some((&memory, parts)));
                    self.through(&plan, packed.part(0), 0..sizes.rows, own);
                }
            }
            if let (Some(end), Some(cells)) = (&self.end, self.saved) {
                let last = sizes.at(sizes.steps - 1);
                end.write(0, cells.at((last * count) as isize), count);
            }
            if let Some(lengths) = self.lengths {
                self.forget(lengths);
            }
        }
        Ok(())
    }

    /// Takes some rows through all steps. Where `shared` has parts of memory for the sums, threads
    /// share each step.
    unsafe fn through(
        &self,
        plan: &Plan<T>,
        packed: *const T,
        rows: Range<usize>,
        (memory, shared): (*mut T, Option<(&Memory<T>, usize)>),
    ) {
        let sizes = self.sizes;
        let (units, states) = (sizes.units, plan.states(sizes, rows.len()));
        let copies = [memory, memory.wrapping_add(states)];
        let sums = memory.wrapping_add(2 * states);
        let blocks = units.div_ceil(plan.kernels.width * plan.together);
        let packed = Shared::reading(packed);
        let mut pace = Pace::default();
        // SAFETY: by contract.
        unsafe {
            let count = rows.len() * units;
            copies[0].copy_from_nonoverlapping(self.h.at((rows.start * units) as isize), count);
            let mut before = None;
            for s in 0..sizes.steps {
                pace.work(count * sizes.form.gates() * units.div_ceil(ABREAST * ABREAST));
                let (from, to, t) = (copies[s % 2], copies[(s + 1) % 2], sizes.at(s));
                let step = Step { t, before, from: from.cast_const(), to };
                match shared {
                    None => {
                        for block in 0..blocks {
                            self.block(plan, packed.at(0), &rows, block, step, sums);
                        }
                    }
                    Some((memory, parts)) => {
                        let (from, to) = (Shared::reading(step.from), Shared::new(step.to));
                        let each = blocks.div_ceil(parts);
                        threads::for_each_chunk(blocks, each, |range| {
                            let step = Step { t, before, from: from.at(0), to: to.at(0) };
                            let sums = memory.part(1 + range.start / each);
                            for block in range {
                                self.block(plan, packed.at(0), &rows, block, step, sums);
                            }
                        });
                    }
                }
                self.y.write((t * sizes.rows + rows.start) * units, to, count);
                if let Some(lengths) = self.lengths {
                    self.end(lengths, &rows, step);
                }
                before = Some(t);
            }
            self.last.write(rows.start * units, copies[sizes.steps % 2], count);
        }
    }

    /// Makes what was saved 0 behind the ends of rows. Until then the next step reads it.
    unsafe fn forget(&self, lengths: Shared<i64>) {
        let sizes = self.sizes;
        let saved = self.saved.map(|x| (x, sizes.units));
        let gates = saved.map(|_| (self.gates, sizes.sums()));
        for place in 0..sizes.steps * sizes.rows {
            let (t, row) = (place / sizes.rows, place % sizes.rows);
            // SAFETY: by contract.
            unsafe {
                if *lengths.at(row as isize) > t as i64 {
                    continue;
                }
                for (to, n) in [saved, gates].into_iter().flatten() {
                    let to = to.at((place * n) as isize);
                    std::slice::from_raw_parts_mut(to, n).fill(T::ZERO);
                }
            }
        }
    }

    /// Puts back the states and cells of rows that have ended; what they give is 0.
    unsafe fn end(&self, lengths: Shared<i64>, rows: &Range<usize>, step: Step<T>) {
        let (sizes, units) = (self.sizes, self.sizes.units);
        let zeros = [T::ZERO; 64];
        for (own, row) in rows.clone().enumerate() {
            // SAFETY: by contract.
            unsafe {
                if *lengths.at(row as isize) > step.t as i64 {
                    continue;
                }
                let (from, to) = (step.from.add(own * units), step.to.add(own * units));
                to.copy_from_nonoverlapping(from, units);
                let place = |t: usize| (t * sizes.rows + row) * units;
                for at in (0..units).step_by(zeros.len()) {
                    let n = zeros.len().min(units - at);
                    self.y.write(place(step.t) + at, zeros.as_ptr(), n);
                }
                if let (Form::Lstm, Some(cells), Some(c)) = (sizes.form, self.saved, self.c) {
                    let from = match step.before {
                        Some(before) => cells.at(place(before) as isize),
                        None => c.at((row * units) as isize),
                    };
                    cells.at(place(step.t) as isize).copy_from_nonoverlapping(from, units);
                }
            }
        }
    }

    /// The sums of some units of a step, and what follows from them.
    unsafe fn block(
        &self,
        plan: &Plan<T>,
        packed: *const T,
        rows: &Range<usize>,
        block: usize,
        step: Step<T>,
        sums: *mut T,
    ) {
        let (sizes, width) = (self.sizes, plan.kernels.width);
        let (units, gates) = (sizes.units, sizes.form.gates());
        let first = block * plan.together;
        let count = plan.together.min(units.div_ceil(width) - first);
        let packed = packed.wrapping_add(first * gates * units * width);
        let wide = count * gates * width;
        for start in (0..rows.len()).step_by(ROWS) {
            let n = ROWS.min(rows.len() - start);
            // SAFETY: by contract.
            unsafe {
                let from = step.from.add(start * units);
                let size = [n, count * gates, units];
                multiply(&plan.kernels, size, (from, units), packed, (sums, wide));
                for i in 0..count {
                    let unit = (first + i) * width;
                    let sums = lines(sums.add(i * gates * width), wide, width);
                    let size = [n, width.min(units - unit)];
                    self.cells(size, [rows.start + start, start, unit], step, sums);
                }
            }
        }
    }

    /// What follows from the sums of some rows (by their place among all, and among those of the
    /// step) and units.
    unsafe fn cells(
        &self,
        size: [usize; 2],
        [row, own, unit]: [usize; 3],
        step: Step<T>,
        sums: Lines<T>,
    ) {
        let sizes = self.sizes;
        let (units, wide) = (sizes.units, sizes.sums());
        let at = |t: usize, elements: usize| (t * sizes.rows + row) * elements + unit;
        let gates = lines(self.gates.at(at(step.t, wide) as isize), wide, units);
        let to = lines(step.to.wrapping_add(own * units + unit), units, 0);
        let saved = |t: usize, x: Shared<T>| lines(x.at(at(t, units) as isize), units, 0);
        // What is added where there is no bias changes nothing.
        let mut nothing = [<T as Number>::NOTHING; crate::cpu::gemm::kernel::TILE_WIDTH];
        let nothing = lines(nothing.as_mut_ptr(), 0, 0);
        let [bias, own_bias] = self.biases.each_ref().map(|bias| match bias {
            Some(bias) => lines(bias.as_ptr().wrapping_add(unit).cast_mut(), 0, units),
            None => nothing,
        });
        // SAFETY: by contract.
        unsafe {
            match (sizes.form, self.saved, self.c) {
                (Form::Lstm, Some(cells), Some(c)) => {
                    let before = match step.before {
                        Some(before) => saved(before, cells),
                        None => saved(0, c),
                    };
                    let states = [before, saved(step.t, cells), to];
                    cells::lstm(size, [sums, gates, bias], states);
                }
                (Form::Gru, Some(own_sums), _) => {
                    let from = step.from.wrapping_add(own * units + unit).cast_mut();
                    let states = [lines(from, units, 0), saved(step.t, own_sums), to];
                    cells::gru(size, [sums, gates, bias, own_bias], states);
                }
                (Form::Rnn { relu: true }, ..) => {
                    cells::rnn::<T, true>(size, [sums, gates, bias, to]);
                }
                (Form::Rnn { relu: false }, ..) => {
                    cells::rnn::<T, false>(size, [sums, gates, bias, to]);
                }
                (Form::Lstm | Form::Gru, ..) => unreachable!("they have saved values"),
            }
        }
    }
}
