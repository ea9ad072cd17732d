//! How the results of a convolution, its taps and the positions that these read meet along an axis.

use smallvec::SmallVec;

use super::conv::Sides;
use crate::ops::attributes::ConvSpec;

/// How results, taps and positions meet along one axis: result number `q` lies at `to + q · apart`,
/// and its tap `t`, whose weight has the number `first + t · skip`, reads the position
/// `base + q · step + t · tap`, and takes no part where there is none.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    pub count: usize,
    pub taps: usize,
    pub first: usize,
    pub skip: usize,
    pub base: isize,
    pub step: isize,
    pub tap: isize,
    pub to: usize,
    pub apart: usize,
}

impl Sweep {
    /// A convolution along axis `i` whose results are `count` positions.
    pub fn output(i: usize, count: usize, taps: usize, spec: &ConvSpec) -> Sweep {
        Sweep {
            count,
            taps,
            first: 0,
            skip: 1,
            base: -(spec.pad_low[i] as isize),
            step: spec.stride[i] as isize,
            tap: spec.dilation[i] as isize,
            to: 0,
            apart: 1,
        }
    }

    /// The taps of a result that read one of `n` positions.
    pub fn inside(&self, q: usize, n: usize) -> std::ops::Range<usize> {
        let at = self.base + q as isize * self.step;
        let (low, high) = match self.tap > 0 {
            true => (-at, n as isize - 1 - at),
            false => (at - (n as isize - 1), at),
        };
        let tap = self.tap.unsigned_abs() as isize;
        let start = low.max(0).unsigned_abs().div_ceil(tap.unsigned_abs());
        let end = if high < 0 { 0 } else { (high / tap) as usize + 1 };
        let end = end.min(self.taps);
        start.min(end)..end
    }

    /// The results all of whose taps read one of `n` positions: a range.
    pub fn whole(&self, n: usize) -> std::ops::Range<usize> {
        let reach = self.tap * (self.taps as isize - 1).max(0);
        let (low, high) = (self.base + reach.min(0), self.base + reach.max(0));
        let start = (-low).max(0).unsigned_abs().div_ceil(self.step.unsigned_abs());
        let last = n as isize - 1 - high;
        let end = if last < 0 { 0 } else { (last / self.step) as usize + 1 };
        let end = end.min(self.count);
        start.min(end)..end
    }
}

/// Calls `f` with every index of an array of these sizes, in C order.
pub fn each_index(sizes: impl Iterator<Item = usize>, mut f: impl FnMut(&[usize])) {
    let sizes: SmallVec<[usize; 3]> = sizes.collect();
    each_index_of(&sizes, &mut f);
}

/// [`each_index`], compiled once for all visitors.
fn each_index_of(sizes: &[usize], f: &mut dyn FnMut(&[usize])) {
    if sizes.contains(&0) {
        return;
    }
    let mut index: SmallVec<[usize; 3]> = SmallVec::from_elem(0, sizes.len());
    loop {
        f(&index);
        let Some(i) = (0..sizes.len()).rev().find(|&i| index[i] + 1 < sizes[i]) else { return };
        index[i] += 1;
        index[i + 1..].fill(0);
    }
}

/// The transpose of a convolution along axis `i` with so many taps: the positions `r`, `r + stride`,
/// … of its input.
fn phase(r: usize, i: usize, taps: usize, spec: &ConvSpec) -> Sweep {
    let (stride, dilation) = (spec.stride[i], spec.dilation[i]);
    let at = (r + spec.pad_low[i]) as isize;
    let reach = |k: usize| at - (k * dilation) as isize;
    let hits = |k: &usize| reach(*k).rem_euclid(stride as isize) == 0;
    let skip = stride / gcd(stride, dilation);
    let first = (0..taps.min(skip)).find(hits).unwrap_or(taps);
    Sweep {
        count: spec.input[i].value().saturating_sub(r).div_ceil(stride),
        taps: (taps - first).div_ceil(skip),
        first: if first < taps { first } else { 0 },
        skip,
        base: reach(first).div_euclid(stride as isize),
        step: 1,
        tap: -((skip * dilation / stride) as isize),
        to: r,
        apart: stride,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The transpose of a convolution with weights `ws`: for each axis its phases, of which there are at
/// most as many as the axis has elements.
pub fn phases(ws: &Sides, spec: &ConvSpec) -> Vec<Vec<Sweep>> {
    let count = |i: usize| spec.stride[i].min(spec.input[i].value());
    (0..spec.input.len())
        .map(|i| (0..count(i)).map(|r| phase(r, i, ws.spatial[i].0, spec)).collect())
        .collect()
}

/// The number of combinations of one phase per axis.
pub fn combinations(phases: &[Vec<Sweep>]) -> usize {
    phases.iter().map(Vec::len).product()
}

/// The combination number `at`: one phase per axis.
pub fn chosen(phases: &[Vec<Sweep>], at: usize) -> SmallVec<[Sweep; 3]> {
    let mut rest = at;
    let mut chosen: SmallVec<[Sweep; 3]> = SmallVec::new();
    for phases in phases.iter().rev() {
        chosen.insert(0, phases[rest % phases.len()]);
        rest /= phases.len();
    }
    chosen
}
