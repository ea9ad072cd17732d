//! Patches of what windows show: padded, and cut into one plane for each residue of a position by
//! the step, so that the positions that a tap reads for neighbouring results are neighbours.

use smallvec::SmallVec;

use crate::cpu::conv::Sides;
use crate::cpu::gemm::kernel::{Element, prefetch};
use crate::cpu::gemm::pack::copy;
use crate::cpu::sweep::Sweep;
use crate::multiversion;

/// One spatial axis.
pub struct Along {
    /// Results, and positions of what the windows show
    pub places: usize,
    size: usize,
    /// The lowest position that the first result reads, and the distance to the second's
    lowest: isize,
    step: usize,
    /// For each tap the plane that it reads, and by how many places it is away in it
    taps: SmallVec<[(usize, usize); 8]>,
    /// For each plane the residue of its positions by the step, counted from the lowest
    pub residues: SmallVec<[usize; 4]>,
    /// The most places by which a tap is away
    pub reach: usize,
}

impl Along {
    /// How results, taps and `size` positions meet.
    pub fn new(sweep: &Sweep, size: usize) -> Along {
        let step = sweep.step.unsigned_abs();
        let down = (sweep.taps as isize - 1).max(0) * sweep.tap.min(0);
        let mut residues: SmallVec<[usize; 4]> = SmallVec::new();
        let tap = |t: usize| {
            let up = (t as isize * sweep.tap - down) as usize;
            let (away, residue) = (up / step, up % step);
            let plane = residues.iter().position(|&r| r == residue).unwrap_or_else(|| {
                residues.push(residue);
                residues.len() - 1
            });
            (plane, away)
        };
        let taps: SmallVec<[(usize, usize); 8]> = (0..sweep.taps).map(tap).collect();
        Along {
            places: sweep.count,
            size,
            lowest: sweep.base + down,
            step,
            reach: taps.iter().map(|tap| tap.1).max().unwrap_or(0),
            taps,
            residues,
        }
    }

    /// An axis of `places` results, each of which reads the position of its number.
    pub fn plain(places: usize) -> Along {
        Along {
            places,
            size: places,
            lowest: 0,
            step: 1,
            taps: SmallVec::from_elem((0, 0), 1),
            residues: SmallVec::from_elem(0, 1),
            reach: 0,
        }
    }
}

/// How a patch lies in memory: for each channel its planes, one after another.
pub struct Patch {
    pub axes: SmallVec<[Along; 3]>,
    /// Places along the first axis
    pub band: usize,
    /// Elements from a place to the next along each axis of a plane
    pub pitches: SmallVec<[usize; 3]>,
    /// Elements of a plane, and of all planes of a channel
    pub plane: usize,
    pub channel: usize,
}

/// A line of a plane: of its `count` elements from `to` on, `n` from number `start` on are copied
/// from `from` on, and the others are zeros.
pub struct Line {
    to: usize,
    count: usize,
    start: usize,
    n: usize,
    from: isize,
}

impl Patch {
    /// A patch of some places along the first axis, and all along the others. Lines are padded to
    /// multiples of `unit` elements.
    pub fn new(axes: SmallVec<[Along; 3]>, band: usize, unit: usize) -> Patch {
        let pitches = pitches(&axes, unit);
        let plane = (band + axes[0].reach) * pitches[0];
        let channel = plane * axes.iter().map(|along| along.residues.len()).product::<usize>();
        Patch { axes, band, pitches, plane, channel }
    }

    /// The offset in the planes of a channel of what each tap reads, in C order.
    pub fn taps(&self) -> Vec<isize> {
        let mut at: SmallVec<[(usize, usize); 64]> = SmallVec::from_elem((0, 0), 1);
        for (along, pitch) in self.axes.iter().zip(&self.pitches) {
            let steps = |&(before, offset): &(usize, usize)| {
                along.taps.iter().map(move |&(plane, away)| {
                    (before * along.residues.len() + plane, offset + away * pitch)
                })
            };
            at = at.iter().flat_map(steps).collect();
        }
        at.iter().map(|&(plane, offset)| (plane * self.plane + offset) as isize).collect()
    }

    /// The lines of a channel's planes, in a patch from a place on.
    pub fn lines(&self, x: &Sides, place: usize) -> Vec<Line> {
        let mut lines = Vec::new();
        self.add_lines(&mut lines, x, 0, 0, place, (0, 0));
        lines
    }

    /// Adds the lines from an axis on. `plane` counts the planes of the axes before; `from` and `to`
    /// are the places in what is read, and in the first of the planes.
    fn add_lines(
        &self,
        lines: &mut Vec<Line>,
        x: &Sides,
        axis: usize,
        plane: usize,
        place: usize,
        (from, to): (isize, usize),
    ) {
        let along = &self.axes[axis];
        let stride = x.spatial[axis].1;
        let count = along.reach + if axis == 0 { self.band } else { along.places };
        for (i, residue) in along.residues.iter().enumerate() {
            let plane = plane * along.residues.len() + i;
            // The position of a line: `(place + i) · step + residue + lowest`.
            let base = (place * along.step + residue) as isize + along.lowest;
            let start = ((-base).max(0) as usize).div_ceil(along.step).min(count);
            let end = (along.size as isize - base).max(0) as usize;
            let end = end.div_ceil(along.step).clamp(start, count);
            let at = |i: usize| from + (base + (i * along.step) as isize) * stride;
            if axis + 1 == self.axes.len() {
                let to = to + plane * self.plane;
                let count = if axis == 0 { count } else { self.pitches[axis - 1] };
                lines.push(Line { to, count, start, n: end - start, from: at(start) });
                continue;
            }
            let pitch = self.pitches[axis];
            for i in 0..count {
                let to = to + i * pitch;
                if (start..end).contains(&i) {
                    self.add_lines(lines, x, axis + 1, plane, 0, (at(i), to));
                    continue;
                }
                // Zeros in every plane of the axes behind.
                let behind: usize =
                    self.axes[axis + 1..].iter().map(|along| along.residues.len()).product();
                lines.extend((plane * behind..(plane + 1) * behind).map(|plane| Line {
                    to: to + plane * self.plane,
                    count: pitch,
                    start: 0,
                    n: 0,
                    from: 0,
                }));
            }
        }
    }

    /// The distance of two positions that are neighbours in a line.
    pub fn by(&self, x: &Sides) -> isize {
        let (along, axis) = (self.axes.last(), x.spatial.last());
        along.zip(axis).map_or(1, |(along, axis)| along.step as isize * axis.1)
    }
}

/// The pitches of a patch of these axes, whose lines are multiples of `unit` elements.
pub fn pitches(axes: &[Along], unit: usize) -> SmallVec<[usize; 3]> {
    let last = axes.len() - 1;
    let padded = |i: usize| {
        let size = axes[i].places + axes[i].reach;
        if i == last { size.next_multiple_of(unit) } else { size }
    };
    (0..axes.len()).map(|i| (i + 1..axes.len()).map(padded).product()).collect()
}

/// Writes zeros, of which there are few.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn zeros<T: Element>(to: *mut T, n: usize) {
    // SAFETY: by contract.
    unsafe {
        match n {
            0 => {}
            1 => to.write(T::default()),
            2 => to.cast::<[T; 2]>().write_unaligned([T::default(); 2]),
            _ => (0..n).for_each(|i| to.add(i).write(T::default())),
        }
    }
}

multiversion! {
    /// Writes the lines of a channel's planes; `Z` says that the zeros among them are written too.
    /// Elements that are copied are `by` apart. What lies `next` elements behind them is fetched
    /// meanwhile: the lines of another channel, which the processor does not see coming.
    ///
    /// # Safety
    /// The lines lie inside `to`, what they copy inside what `from` belongs to.
    pub unsafe fn fill[T; const Z: bool](
        to: *mut T,
        from: *const T,
        lines: &[Line],
        by: isize,
        next: isize,
    )
    where [T: Element]
    {
        for line in lines {
            let ahead = from.wrapping_offset(line.from + next);
            for at in (0..line.n as isize * by).step_by((64 / size_of::<T>()).max(by as usize)) {
                prefetch(ahead.wrapping_offset(at));
            }
            // SAFETY: by contract.
            unsafe {
                let to = to.add(line.to);
                if Z {
                    zeros(to, line.start);
                }
                copy(to.add(line.start), from.wrapping_offset(line.from), line.n, by);
                if Z {
                    let end = line.start + line.n;
                    zeros(to.add(end), line.count - end);
                }
            }
        }
    }
}
