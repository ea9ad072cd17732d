//! Convolutions, and gradients of their inputs, from patches of what the windows show, which stay
//! in the cache.
//!
//! A patch is padded, and cut into one plane for each residue of a position by the step, so that
//! the positions that a tap reads for neighbouring results are neighbours. The kernels of products
//! read them there, by a list of offsets. Either vectors hold neighbouring places ([`places`]):
//! results are computed for all columns of a plane, those beyond a row of results included, and
//! copied out without them. Or vectors hold neighbouring rows of the weights ([`rows`]), which are
//! packed so, and results are transposed when they are copied out: nothing is computed in vain, which
//! pays where there are places enough for the packing.
//!
//! Promises: the bits of the product that [`conv`](super::conv) makes of the same operands.

mod job;
pub(super) mod patch;
mod places;
mod rows;
mod shown;

use std::ops::Range;
use std::sync::OnceLock;

use smallvec::SmallVec;

use super::conv::Sides;
use super::gemm::kernel::{Element, Kernels};
use super::gemm::scratch::{Scratch, counted};
use super::gemm::{Axis, Extras, Matrix, Packed, SPAN, packed};
use super::innermost::is_innermost;
use super::sweep::Sweep;
use crate::array::Array;
use crate::error::Result;
use crate::ops::emit::OrThrow;
use crate::threads;
use job::Job;
use patch::{Along, Patch};
use shown::Shown;

/// Bytes of a patch and its results, which stay in the L2 cache.
const PATCH: usize = 512 << 10;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 19;

/// The sums `Σ_{c, t} w[g, r, c, t] x[n, g · channels + c, position(q, t)]` for every sample `n`,
/// group `g`, row `r` of its weights and place `q`. Positions outside of `x` are zeros.
pub struct Windows<'a> {
    /// What the windows show
    pub x: &'a Sides,
    /// The address of the first weight
    pub weights: *const u8,
    /// The distances from a group and from a row of weights to the next
    pub steps: [isize; 2],
    /// The weights of a row: channels, then taps
    pub depth: Axis,
    /// Groups, channels of a group, and its rows
    pub groups: usize,
    pub channels: usize,
    pub rows: usize,
    /// By spatial axis: places, taps and positions
    pub sweeps: SmallVec<[Sweep; 3]>,
    /// The weights, packed before
    pub packed: Option<&'a Packed>,
}

impl Windows<'_> {
    /// The weights as the columns of a product, one matrix for each group.
    pub fn matrix(&self) -> Matrix {
        let [group, row] = self.steps;
        Matrix {
            ptr: self.weights,
            batch: Axis::new([(self.groups, group)]),
            own: Axis::new([(self.rows, row)]),
            depth: self.depth.clone(),
            made: None,
        }
    }

    fn panels<T: Element>(&self) -> Option<*const T> {
        self.packed.and_then(|packed| packed.panels(&self.matrix()))
    }
}

// SAFETY: operands are only read.
unsafe impl Sync for Windows<'_> {}

/// Steps of a sum in the time in which its result is copied, and in which it is transposed.
const COPIED: usize = 4;
const TRANSPOSED: usize = 16;

/// What vectors hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lanes {
    /// Neighbouring places
    Places,
    /// Neighbouring rows of the weights
    Rows,
}

/// How the work is cut, which operands alone decide, beside the number of threads.
struct Cut {
    planes: Patch,
    /// The distance of two channels where what windows show is read where it lies, without a patch
    there: Option<isize>,
    samples: usize,
    groups: usize,
    /// Channels of a group, and its results
    channels: usize,
    outputs: usize,
    /// Steps of the sum
    depth: usize,
    /// How many patches there are of a sample and a group
    bands: usize,
    lanes: Lanes,
    /// Parts into which the results of a group are cut, rows of a part, and of all in whole tiles
    /// or vectors
    parts: usize,
    each: usize,
    rows: usize,
    /// Columns of a band, padded to whole tiles
    columns: usize,
    /// Elements of a patch, and of its results
    patch: usize,
    results: usize,
    /// Whether the kernels can read the weights where they are
    in_place: bool,
    /// Whether they write results where they belong, which have their channels innermost
    fits_result: bool,
}

impl Cut {
    /// `None` where the product of views is better.
    fn new<T: Element>(
        kernels: &Kernels<T>,
        windows: &Windows<'_>,
        is_innermost: bool,
    ) -> Option<Cut> {
        let &Windows { x, ref sweeps, groups, channels, rows: outputs, .. } = windows;
        // Offsets of the steps of a sum are listed, so their number comes first.
        let taps = sweeps.iter().try_fold(1usize, |n, sweep| n.checked_mul(sweep.taps))?;
        let depth = channels.checked_mul(taps)?;
        if depth == 0 || depth > SPAN {
            return None;
        }
        let kept = windows.panels::<T>().is_some();
        let there = (kept && is_plain(windows)).then_some(x.strides[1]);
        let axes: SmallVec<[Along; 3]> = match there {
            Some(_) => {
                SmallVec::from_iter([Along::plain(sweeps.iter().map(|s| s.count).product())])
            }
            None => sweeps.iter().zip(&x.spatial).map(|(s, x)| Along::new(s, x.0)).collect(),
        };
        let residues: usize = axes.iter().map(|along| along.residues.len()).product();
        let places: usize = axes.iter().map(|along| along.places).product();
        let samples = x.sizes[0];
        let high = kernels.tiles[0].rows;
        // Where no two taps read the same positions and results lie side by side, windows repeat
        // nothing; few places do not pay for the patch.
        let repeats = kept || taps != residues || sweeps.iter().any(|sweep| sweep.apart != 1);
        if !repeats || places < kernels.width && !kept || outputs == 0 || samples * places == 0 {
            return None;
        }
        let pitches = patch::pitches(&axes, 1);
        // Places are computed with those in vain, rows likewise. Packing a vector takes as long as
        // multiplying it with as many places as it has elements, and to copy a result takes as long
        // as so many steps of its sum.
        let columns = (axes[0].places * pitches[0]).next_multiple_of(kernels.width) * samples;
        let steps = samples * places + if kept { 0 } else { kernels.width };
        let places_cost = outputs * columns * (depth + COPIED);
        let rows_cost = outputs.next_multiple_of(kernels.lanes) * steps * (depth + TRANSPOSED);
        let lanes = match is_innermost || places_cost > rows_cost {
            true => Lanes::Rows,
            // The product of views reads places where they lie too.
            false if there.is_some() => return None,
            false => Lanes::Places,
        };
        // Rows come in whole tiles, or in whole panels. Parts of them are whole tiles or panels, or
        // halves of panels, which are vectors.
        let (whole, unit) = match lanes {
            Lanes::Places => (high, high),
            Lanes::Rows
                if kernels.width == 2 * kernels.lanes && outputs.is_multiple_of(kernels.lanes) =>
            {
                (kernels.width, kernels.lanes)
            }
            Lanes::Rows => (kernels.width, kernels.width),
        };
        let (first, rows) = (&axes[0], outputs.next_multiple_of(whole));
        let behind: usize = axes[1..].iter().map(|along| along.places).product();
        let results = match lanes {
            Lanes::Places => pitches[0],
            Lanes::Rows => behind,
        };
        let shown = if there.is_some() { 0 } else { channels * residues * pitches[0] };
        let line = (shown + rows * results) * size_of::<T>();
        let halo = shown * first.reach * size_of::<T>();
        let most = (PATCH.saturating_sub(halo) / line.max(1)).clamp(1, first.places);
        let wanted = threads::num_threads();
        let work = samples * groups * outputs * places * depth;
        // Several bands, of several samples, are as many for each thread.
        let mut bands = match first.places.div_ceil(most) {
            1 => 1,
            bands if work < CHUNK || (samples * groups).is_multiple_of(wanted) => bands,
            bands => bands.next_multiple_of(wanted).min(first.places),
        };
        let tasks = samples * groups * bands;
        let parts = match work < CHUNK || tasks >= wanted {
            true => 1,
            false => wanted.div_ceil(tasks).min(outputs.div_ceil(unit)),
        };
        // Without a patch, whose halo would be written twice, more bands cost nothing.
        if there.is_some() && work >= CHUNK && tasks * parts < wanted {
            bands = (bands * wanted.div_ceil(tasks * parts)).min(first.places);
        }
        // Where halos are much of the work, windows cost less.
        let band = first.places.div_ceil(bands);
        if band < first.places && band < first.reach {
            return None;
        }
        let (bands, planes) = (first.places.div_ceil(band), Patch::new(axes, band, 1));
        let mut columns = (band * pitches[0]).next_multiple_of(kernels.width);
        // Rows of a tile that are a page apart would evict each other.
        if (columns * size_of::<T>()).is_multiple_of(2048) {
            columns += kernels.width;
        }
        let reach: usize =
            planes.axes.iter().zip(&pitches).map(|(along, pitch)| along.reach * pitch).sum();
        // The last tile reads beyond the last plane.
        let slack = match lanes {
            Lanes::Places => (columns + reach).saturating_sub(planes.plane),
            Lanes::Rows => 0,
        };
        let each = outputs.div_ceil(unit).div_ceil(parts) * unit;
        let fits_result = is_innermost && outputs.is_multiple_of(unit);
        // Sums are contiguous, and the last tile reads no row that is not there.
        let rest = outputs % high;
        let fits = rest == 0 || kernels.tiles.iter().any(|tile| tile.rows == rest);
        let dense = windows.depth.stride() == Some(1);
        Some(Cut {
            there,
            samples,
            groups,
            channels,
            outputs,
            depth,
            bands,
            lanes,
            parts,
            each,
            rows,
            columns,
            patch: match there {
                Some(_) => 0,
                // So that rows of results start with a cache line.
                None => (channels * planes.channel + slack).next_multiple_of(kernels.width),
            },
            results: match lanes {
                Lanes::Places => each * columns,
                Lanes::Rows if fits_result => 0,
                Lanes::Rows => each * band * behind,
            },
            fits_result,
            in_place: match lanes {
                Lanes::Places => dense && fits,
                Lanes::Rows => kept,
            },
            planes,
        })
    }

    /// Elements that a thread works in.
    fn size(&self) -> usize {
        self.patch + self.results
    }

    /// The places along the first axis of a band.
    fn places(&self, band: usize) -> Range<usize> {
        let each = self.planes.band;
        band * each..self.planes.axes[0].places.min((band + 1) * each)
    }

    /// Places that one along the first axis has behind it.
    fn behind(&self) -> usize {
        self.planes.axes[1..].iter().map(|along| along.places).product()
    }

    fn tasks(&self) -> usize {
        self.samples * self.groups * self.bands * self.parts
    }

    /// The offsets in a patch of what the taps of a channel read, and of the next channel's.
    fn taps(&self) -> (Vec<isize>, isize) {
        match self.there {
            Some(by) => (vec![0], by),
            None => (self.planes.taps(), self.planes.channel as isize),
        }
    }

    /// The offset in a patch of what each step of the sum reads.
    fn offsets(&self) -> Vec<isize> {
        let (taps, by) = self.taps();
        let channel = |c: usize| taps.iter().map(move |tap| c as isize * by + tap);
        (0..self.channels).flat_map(channel).collect()
    }
}

/// Whether windows of one tap show each position once, side by side: then places can be read where
/// they are.
fn is_plain(windows: &Windows<'_>) -> bool {
    let shows = |(sweep, x): (&Sweep, &(usize, isize))| {
        let Sweep { count, taps, base, step, to, apart, .. } = *sweep;
        (taps, base, step, to, apart) == (1, 0, 1, 0, 1) && count == x.0
    };
    windows.sweeps.iter().zip(&windows.x.spatial).all(shows)
        && Axis::new(windows.x.spatial.iter().copied()).stride() == Some(1)
}

/// The bytes of scratch of [`sums`], as the memory counters count them; `None` where that is not how
/// a convolution is computed.
pub fn scratch<T: Element>(windows: &Windows<'_>, is_innermost: bool) -> Option<usize> {
    let cut = Cut::new(&T::kernels(), windows, is_innermost)?;
    let weights = counted(weights_bytes::<T>(&cut), 1);
    Some(weights + counted(cut.size() * size_of::<T>(), parts(&cut)))
}

/// Threads that have work.
fn parts(cut: &Cut) -> usize {
    cut.tasks().min(threads::num_threads())
}

/// Bytes of the weights in the order in which the kernels read them; none where they lie so.
fn weights_bytes<T: Element>(cut: &Cut) -> usize {
    if cut.in_place {
        return 0;
    }
    cut.groups * cut.rows * cut.depth * size_of::<T>()
}

/// Computes the sums, where the sweeps say; false, with nothing done, where the product of views is
/// better.
///
/// # Safety
/// `out` is in C order, of samples, rows of all groups and places, or has its channels innermost,
/// where there is one group; nobody else reads or writes what
/// the sweeps reach of it. For the options see [`Extras`].
pub unsafe fn sums<T: Element>(
    windows: &Windows<'_>,
    out: &Array,
    extras: &Extras<'_>,
) -> Result<bool> {
    let kernels = T::kernels();
    let Some(cut) = Cut::new(&kernels, windows, is_innermost(&out.layout)) else {
        return Ok(false);
    };
    let weights = Scratch::new(weights_bytes::<T>(&cut), 1)?;
    let weights = weights.lend(weights_bytes::<T>(&cut))?;
    let size = cut.size() * size_of::<T>();
    let packed = weights.ptr().cast::<T>();
    let (ptr, [group, row]) = match (cut.in_place, cut.lanes) {
        (true, Lanes::Places) => (windows.weights.cast::<T>(), windows.steps),
        (true, Lanes::Rows) => (windows.panels().unwrap_or(packed.cast_const()), [0, 0]),
        (false, _) => {
            let steps = [(cut.rows * cut.depth) as isize, cut.depth as isize];
            (packed.cast_const(), steps)
        }
    };
    let strides = out.layout.strides();
    let at = |(sweep, stride): (&Sweep, &isize)| sweep.to as isize * stride;
    let first: isize = windows.sweeps.iter().zip(&strides[2..]).map(at).sum();
    let apart = |(sweep, stride): (&Sweep, &isize)| sweep.apart as isize * stride;
    let job = Job::<T> {
        x: windows.x,
        offsets: match cut.lanes {
            Lanes::Places => cut.offsets(),
            Lanes::Rows => Vec::new(),
        },
        shown: Shown::new(windows, &cut, kernels.width),
        pieces: (0..cut.bands).map(|_| OnceLock::new()).collect(),
        weights: ptr,
        group,
        row,
        // SAFETY: by contract.
        out: unsafe { out.ptr_mut() }.cast::<T>().wrapping_offset(first),
        sample: strides[0],
        next: strides[1],
        apart: match cut.there {
            Some(_) => SmallVec::from_elem(1, 1),
            None => windows.sweeps.iter().zip(&strides[2..]).map(apart).collect(),
        },
        kernels,
        cut: &cut,
        extras,
    };
    if !cut.in_place {
        // SAFETY: the memory is as large as the weights.
        unsafe {
            match cut.lanes {
                Lanes::Places => job.pack(windows, packed),
                Lanes::Rows => packed::pack(kernels, &windows.matrix(), packed),
            }
        }
    }
    let scratch = Scratch::new(size, parts(&cut))?;
    let work = cut.outputs * cut.depth * cut.columns / cut.parts;
    threads::for_each_chunk(cut.tasks(), (CHUNK / work.max(1)).max(1), |tasks| {
        let part = scratch.lend(size).or_throw();
        for task in tasks {
            // SAFETY: the part is this call's; every task has results of its own.
            unsafe { job.task(task, part.ptr().cast()) };
        }
    });
    Ok(true)
}
