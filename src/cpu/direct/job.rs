//! One patch: how it is written, and what is then done with it.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::rows::Pieces;
use super::shown::Shown;
use super::{Cut, Lanes, patch};
use crate::cpu::conv::Sides;
use crate::cpu::gemm::Extras;
use crate::cpu::gemm::kernel::{Element, Kernels};
use crate::threads::Pace;

/// Channels between one that is copied and one that is fetched meanwhile.
const AHEAD: isize = 2;

/// What all patches share.
pub struct Job<'a, T: Element> {
    pub x: &'a Sides,
    /// The offset in a patch of what each step of the sum reads, where vectors hold places
    pub offsets: Vec<isize>,
    /// The steps of the sum that places read, where vectors hold rows of the weights
    pub shown: Shown<'a>,
    /// The tiles of each band, once they have been chosen
    pub pieces: Vec<OnceLock<Pieces<T>>>,
    /// The weights, and the distances from a group and from a row to the next
    pub weights: *const T,
    pub group: isize,
    pub row: isize,
    /// The first result; the distances from a sample and from a channel to the next, and along each
    /// axis from a place to the next
    pub out: *mut T,
    pub sample: isize,
    pub next: isize,
    pub apart: SmallVec<[isize; 3]>,
    pub kernels: Kernels<T>,
    pub cut: &'a Cut,
    pub extras: &'a Extras<'a>,
}

// SAFETY: operands are only read; tasks write different results.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    /// Computes the results of a sample, a group, a band, and a part of the group's results.
    ///
    /// # Safety
    /// `memory` has room for a patch and its results.
    pub unsafe fn task(&self, task: usize, memory: *mut T) {
        let cut = self.cut;
        let (rest, part) = (task / cut.parts, task % cut.parts);
        let (item, band) = (rest / cut.bands, rest % cut.bands);
        let (sample, group) = (item / cut.groups, item % cut.groups);
        let places = cut.places(band);
        let rows = (part * cut.each).min(cut.outputs)..((part + 1) * cut.each).min(cut.outputs);
        if rows.is_empty() {
            return;
        }
        let results = memory.wrapping_add(cut.patch);
        // SAFETY: as the caller's.
        unsafe {
            let shown = match cut.there {
                Some(_) => self.channel(sample, group, 0).wrapping_add(places.start),
                None => {
                    self.patch(sample, group, places.start, memory);
                    memory.cast_const()
                }
            };
            match cut.lanes {
                Lanes::Places => {
                    self.multiply(group, &rows, places.len(), shown, results);
                    self.store(item, &rows, &places, results);
                }
                Lanes::Rows if cut.fits_result => {
                    let first = self.result(item, rows.start);
                    let first = first.wrapping_offset(places.start as isize * self.apart[0]);
                    let results = (first, self.apart[self.apart.len() - 1]);
                    self.multiply_rows(group, &rows, band, shown, results);
                }
                Lanes::Rows => {
                    let results = (results, cut.each as isize);
                    self.multiply_rows(group, &rows, band, shown, results);
                    self.store_rows(item, &rows, &places, results.0);
                }
            }
        }
        if let Some(done) = self.extras.epilogue {
            let behind = cut.behind();
            done(item, rows, places.start * behind..places.end * behind);
        }
    }

    /// The first result of a row of weights.
    pub fn result(&self, item: usize, row: usize) -> *mut T {
        let Cut { groups, outputs, .. } = *self.cut;
        let channel = (item % groups * outputs + row) as isize * self.next;
        self.out.wrapping_offset((item / groups) as isize * self.sample + channel)
    }

    /// The first element of a channel of a group.
    fn channel(&self, sample: usize, group: usize, c: usize) -> *const T {
        let own = (group * self.cut.channels + c) as isize * self.x.strides[1];
        let from = sample as isize * self.x.strides[0] + own;
        self.x.ptr.cast::<T>().wrapping_offset(from)
    }

    /// Writes the patch from a place on.
    ///
    /// # Safety
    /// There is room for it.
    unsafe fn patch(&self, sample: usize, group: usize, place: usize, to: *mut T) {
        let (cut, planes) = (self.cut, &self.cut.planes);
        let (lines, by) = (planes.lines(self.x, place), planes.by(self.x));
        let mut pace = Pace::default();
        for c in 0..cut.channels {
            pace.work(planes.channel);
            // SAFETY: inside the patch, and inside the input.
            unsafe {
                let to = to.add(c * planes.channel);
                let from = self.channel(sample, group, c);
                patch::fill::<T, true>(to, from, &lines, by, AHEAD * self.x.strides[1]);
            }
        }
        let done = cut.channels * planes.channel;
        for i in done..cut.patch {
            // SAFETY: as above.
            unsafe { to.add(i).write(T::default()) };
        }
    }
}
