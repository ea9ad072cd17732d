use super::super::kernel::Kernels;
use super::super::{Cut, Epilogue, PackPrologue, part};
use super::*;
use crate::simd::{Isa, processor};

/// The instruction sets of this machine: kernels of products are compiled for all of them in every
/// build.
fn instruction_sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|&isa| isa <= processor())
}

/// Elements that tests can count with.
trait Counted: Element + PartialEq + std::fmt::Debug {
    fn number(i: usize) -> Self;
}

macro_rules! counted {
    ($($t:ty),*) => { $(
        impl Counted for $t {
            fn number(i: usize) -> $t {
                (i % 251) as $t
            }
        }
    )* };
}
counted!(f32, f64, i32, i64, u8);

/// An operand over memory of its own: element `[i, k]` is the number of its place there.
struct Sample<T> {
    memory: Vec<T>,
    operand: Matrix,
}

impl<T: Counted> Sample<T> {
    fn new(own: &[(usize, isize)], depth: &[(usize, isize)]) -> Sample<T> {
        let (mut low, mut high) = (0, 0);
        for &(n, stride) in own.iter().chain(depth) {
            let reach = (n as isize - 1) * stride;
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        let memory: Vec<T> = (0..(high - low + 1) as usize).map(T::number).collect();
        let operand = Matrix {
            ptr: memory.as_ptr().wrapping_offset(-low).cast(),
            batch: Axis::new([]),
            own: Axis::new(own.iter().copied()),
            depth: Axis::new(depth.iter().copied()),
            made: None,
        };
        Sample { memory, operand }
    }

    fn at(&self, i: usize, k: usize) -> T {
        let at = self.operand.own.at(i) + self.operand.depth.at(k);
        let place = self.operand.ptr.cast::<T>().wrapping_offset(at);
        assert!(self.memory.as_ptr_range().contains(&place));
        // SAFETY: inside the memory.
        unsafe { *place }
    }

    /// Computes elements, as a prologue would.
    fn fill(&self, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]) {
        for (i, own) in own.enumerate() {
            for (k, depth) in depth.clone().enumerate() {
                let at = i as isize * by[0] + k as isize * by[1];
                // SAFETY: the product gave memory for the block.
                unsafe { *to.cast::<T>().offset(at) = self.at(own, depth) };
            }
        }
    }
}

/// Layouts of `n` by `depth` elements: in C order, transposed, reversed, with gaps, repeated, in
/// pieces.
fn samples<T: Counted>(n: usize, depth: usize) -> Vec<Sample<T>> {
    let (along, across) = (n as isize, depth as isize);
    let mut all = vec![
        Sample::new(&[(n, across)], &[(depth, 1)]),
        Sample::new(&[(n, 1)], &[(depth, along)]),
        Sample::new(&[(n, -across)], &[(depth, 1)]),
        Sample::new(&[(n, 1)], &[(depth, -along)]),
        Sample::new(&[(n, 2 * across + 1)], &[(depth, 2)]),
        Sample::new(&[(n, 3)], &[(depth, 3 * along + 2)]),
        Sample::new(&[(n, 0)], &[(depth, 1)]),
        Sample::new(&[(n, 1)], &[(depth, 0)]),
    ];
    if n.is_multiple_of(3) {
        all.push(Sample::new(&[(n / 3, across + 7), (3, 900)], &[(depth, 1)]));
        all.push(Sample::new(&[(3, along), (n / 3, 1)], &[(depth, 5 * along)]));
    }
    if depth.is_multiple_of(5) {
        all.push(Sample::new(&[(n, across + 9)], &[(5, across * along * 2), (depth / 5, 1)]));
        all.push(Sample::new(&[(n, 1)], &[(depth / 5, along * 7), (5, along)]));
    }
    all
}

/// Kernels with panels as wide as a tile, and as one register.
fn both<T: Element>(kernels: Kernels<T>) -> [Kernels<T>; 2] {
    [kernels, kernels.narrow()]
}

/// Packed panels hold the elements of the operand, and nothing is written behind the panels, but for
/// what transposing rows may write.
fn panels_hold<T: Counted>(kernels: Kernels<T>, n: usize, depth: usize) {
    for (which, sample) in samples::<T>(n, depth).iter().enumerate() {
        for made in [None, Some(0), Some(1)] {
            let operand = Matrix { made, ..sample.operand.clone() };
            let (high, width) = (kernels.tiles[0].rows, kernels.width);
            let fill = |_, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]| {
                sample.fill(own, depth, to, by);
            };
            let fill: Option<PackPrologue<'_>> = made.map(|_| &fill as PackPrologue<'_>);
            let mut job = Job::with(kernels, &operand, &operand, std::ptr::null_mut());
            job.fill = [fill, fill];
            let whole = 0..n;
            let (a, b) = (operand.ptr.cast(), operand.ptr.cast());
            let (rows, columns) = (whole.clone(), whole.clone());
            let out = std::ptr::null_mut();
            let tile = Tile { job: &job, a, b, out, batch: 0, rows, columns };
            for first in [0, n / 2] {
                let (own, steps) = (first..n, depth / 3..depth);
                let needed = |panel: usize| own.len().next_multiple_of(panel) * steps.len();
                let mut memory = vec![T::number(250); needed(high).max(needed(width)) + 64];
                let mut spare = vec![T::number(249); job.spare(own.len(), steps.len())];
                let pack = memory.as_mut_ptr();
                // SAFETY: there is room for whole panels.
                let (rows, columns) = unsafe {
                    let rows = match fill {
                        Some(fill) => tile.made_rows(&own, &steps, fill, pack),
                        None => tile.rows(&own, &steps, None, pack),
                    };
                    let read = read(&rows, high, &own, &steps);
                    let rows = (read, used(&memory, needed(high) + SQUARE));
                    memory.fill(T::number(250));
                    let pack = memory.as_mut_ptr();
                    let columns = match fill {
                        Some(fill) => {
                            tile.made_columns(&own, &steps, fill, (pack, spare.as_mut_ptr()))
                        }
                        None => tile.columns(&own, &steps, None, pack),
                    };
                    (
                        rows,
                        (self::read(&columns, width, &own, &steps), used(&memory, needed(width))),
                    )
                };
                let want: Vec<T> = own
                    .clone()
                    .flat_map(|i| steps.clone().map(move |k| (i, k)))
                    .map(|(i, k)| sample.at(i, k))
                    .collect();
                let what = format!("layout {which}, {n} by {depth}, from {first}, made {made:?}");
                assert_eq!(rows.0, want, "rows: {what}");
                assert_eq!(columns.0, want, "columns: {what}");
                assert!(rows.1 && columns.1, "written behind the panels: {what}");
            }
        }
    }
}

/// Whether nothing was written behind the first `needed` elements.
fn used<T: Counted>(memory: &[T], needed: usize) -> bool {
    memory[needed..].iter().all(|x| *x == T::number(250))
}

/// The elements of a block as a kernel reads them.
///
/// # Safety
/// The panels hold these elements.
unsafe fn read<T: Counted>(
    block: &Block<T>,
    panel: usize,
    own: &Range<usize>,
    steps: &Range<usize>,
) -> Vec<T> {
    let mut all = Vec::new();
    for i in 0..own.len() {
        let first = i / panel * panel;
        let panels = if own.len() - first >= panel { &block.0 } else { &block.1 };
        for k in 0..steps.len() {
            let (inside, along) = panels.strides;
            let at = (i - first) as isize * inside + k as isize * along;
            // SAFETY: by contract.
            all.push(unsafe { *panels.at(first).offset(at) });
        }
    }
    all
}

#[test]
fn packed_panels_hold_the_elements_of_their_operand() {
    for isa in instruction_sets() {
        for (n, depth) in [(1, 1), (5, 7), (13, 30), (33, 45), (67, 19), (130, 70), (258, 10)] {
            for kernels in both(f32::kernels_of(isa)) {
                panels_hold::<f32>(kernels, n, depth);
            }
            for kernels in both(f64::kernels_of(isa)) {
                panels_hold::<f64>(kernels, n, depth);
            }
            for kernels in both(i32::kernels_of(isa)) {
                panels_hold::<i32>(kernels, n, depth);
            }
            for kernels in both(i64::kernels_of(isa)) {
                panels_hold::<i64>(kernels, n, depth);
            }
            for kernels in both(u8::kernels_of(isa)) {
                panels_hold::<u8>(kernels, n, depth);
            }
        }
    }
}

/// Small deterministic choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Every element of a result is computed by one tile, given to the epilogue once, and has the right
/// value.
fn tiles_cover<T: Counted>(
    kernels: Kernels<T>,
    choices: &mut Choices,
    [m, n, k]: [usize; 3],
    sum: impl Fn(&[(T, T)]) -> T,
) {
    let (left, right) = (samples::<T>(m, k), samples::<T>(n, k));
    let (left, right) = (&left[choices.below(left.len())], &right[choices.below(right.len())]);
    let made = [choices.below(5), choices.below(5)]
        .map(|made| [Some(0), Some(2)].get(made).copied().flatten());
    let a = Matrix { made: made[0], ..left.operand.clone() };
    let b = Matrix { made: made[1], ..right.operand.clone() };
    let mut out = vec![T::number(250); m * n + 128];
    let told: Vec<std::sync::atomic::AtomicUsize> =
        (0..m * n).map(|_| Default::default()).collect();
    let done = |batch: usize, rows: Range<usize>, columns: Range<usize>| {
        assert_eq!(batch, 0);
        for i in rows {
            for j in columns.clone() {
                told[i * n + j].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    let fill_left = |_, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]| {
        left.fill(own, depth, to, by);
    };
    let fill_right = |_, own: Range<usize>, depth: Range<usize>, to: *mut u8, by: [isize; 2]| {
        right.fill(own, depth, to, by);
    };
    let mut fill: [Option<PackPrologue<'_>>; 2] = [
        made[0].map(|_| &fill_left as PackPrologue<'_>),
        made[1].map(|_| &fill_right as PackPrologue<'_>),
    ];
    // SAFETY: behind what comes first.
    let mut job = Job::with(kernels, &a, &b, unsafe { out.as_mut_ptr().add(64) });
    if job.transposed {
        fill.swap(0, 1);
    }
    (job.fill, job.epilogue) = (fill, Some(&done as Epilogue<'_>));
    let what = format!("{m} {n} {k}, made {made:?}, transposed {}", job.transposed);
    // The cells of a cut cover the result, each element once, and none is larger than
    // [`Job::largest`] says.
    let cut = job.cut();
    if let Cut::Cells(high, wide) = cut {
        let largest = job.largest(&cut);
        let cells = |n: usize, step: usize, parts: usize| {
            (0..parts).map(|i| part(n, step, parts, i)).collect::<Vec<_>>()
        };
        let rows = cells(job.rows, job.kernels.tiles[0].rows, high);
        let columns = cells(job.columns, job.kernels.width, wide);
        for (parts, n, most) in [(rows, job.rows, largest.0), (columns, job.columns, largest.1)] {
            assert_eq!(
                parts.iter().cloned().flatten().collect::<Vec<_>>(),
                (0..n).collect::<Vec<_>>()
            );
            assert!(parts.iter().all(|part| part.len() <= most), "{what}");
        }
    }
    job.run(None).unwrap();
    assert!(told.iter().all(|told| told.load(std::sync::atomic::Ordering::Relaxed) == 1), "{what}");
    let guards = out[..64].iter().chain(&out[64 + m * n..]);
    assert!(guards.copied().all(|x| x == T::number(250)), "{what}");
    for i in 0..m {
        for j in 0..n {
            let terms: Vec<(T, T)> = (0..k).map(|k| (left.at(i, k), right.at(j, k))).collect();
            assert_eq!(out[64 + i * n + j], sum(&terms), "[{i}, {j}] of {what}");
        }
    }
}

#[test]
fn tiles_cover_the_result_once_at_every_instruction_set() {
    for isa in instruction_sets() {
        let mut choices = Choices(isa as u64 + 7);
        for case in 0..40 {
            let mut size = || [3, 20, 70, 300][choices.below(4)];
            let most = [size(), size(), size()];
            let some = most.map(|most| choices.below(most) + 1);
            // So many columns that rows are packed for them.
            let sizes = |width: usize| match case {
                24..27 => [some[0] + 6, 48 * width + case, some[2]],
                // Few columns, and few steps.
                27..34 => [some[0], 1 + case * 7 % (2 * width), some[2]],
                34.. => [some[0], some[1], 1 + case % 4],
                _ => some,
            };
            // Sums of integers below 2^24 are exact in any order.
            let kernels = both(f32::kernels_of(isa))[case % 2];
            tiles_cover(kernels, &mut choices, sizes(kernels.width), |terms| {
                terms.iter().map(|(a, b)| f64::from(a * b)).sum::<f64>() as f32
            });
            let kernels = both(f64::kernels_of(isa))[case % 2];
            tiles_cover(kernels, &mut choices, sizes(kernels.width), |terms| {
                terms.iter().map(|(a, b)| a * b).sum::<f64>()
            });
            let kernels = both(i32::kernels_of(isa))[case % 2];
            tiles_cover(kernels, &mut choices, sizes(kernels.width), |terms| {
                terms.iter().map(|(a, b)| a * b).sum::<i32>()
            });
            let kernels = both(i64::kernels_of(isa))[case % 2];
            tiles_cover(kernels, &mut choices, sizes(kernels.width), |terms| {
                terms.iter().map(|(a, b)| a * b).sum::<i64>()
            });
            let kernels = both(u8::kernels_of(isa))[case % 2];
            tiles_cover(kernels, &mut choices, sizes(kernels.width), |terms| {
                terms.iter().fold(0, |sum, (a, b)| sum | (a & b))
            });
        }
    }
}

/// What the kernels make of rows and columns of one matrix each, which are contiguous along `k` or not.
fn product(kernels: Kernels<f32>, x: &[f32], [m, n, k]: [usize; 3], rows: usize) -> Vec<f32> {
    let operand = |ptr: &f32, own: (usize, isize), depth: (usize, isize)| Matrix {
        ptr: (ptr as *const f32).cast(),
        batch: Axis::new([]),
        own: Axis::new([own]),
        depth: Axis::new([depth]),
        made: None,
    };
    let (a, b) = (operand(&x[0], (m, k as isize), (k, 1)), &x[rows * k]);
    let b = operand(b, (n, 1), (k, (x.len() / k - rows) as isize));
    let mut out = vec![0.0; m * n];
    Job::with(kernels, &a, &b, out.as_mut_ptr()).run(None).unwrap();
    out
}

#[test]
fn an_element_has_the_same_bits_in_every_product() {
    for isa in instruction_sets() {
        let (kernels, mut choices) = (f32::kernels_of(isa), Choices(5));
        for k in [1, 2, 4, 7, 30, 256, 257, 700, 5000] {
            let (rows, columns) = (25, 5 * kernels.width + 3);
            let mut number = || choices.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
            let x: Vec<f32> = (0..(rows + columns) * k).map(|_| number()).collect();
            let whole = product(kernels, &x, [rows, columns, k], rows);
            for (m, n) in [1, 2, 3, 4, 6, 9, 25]
                .into_iter()
                .flat_map(|m| [1, 2, 3, 5, 8, 9, 10, 15, 17, 20, 31, 33].map(|n| (m, n)))
            {
                let part = product(both(kernels)[n % 2], &x, [m, n, k], rows);
                for (i, part) in part.chunks(n).enumerate() {
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    let whole = &whole[i * columns..][..n];
                    assert_eq!(bits(part), bits(whole), "row {i} of {m} × {n} × {k}, {isa:?}");
                }
            }
        }
    }
}
