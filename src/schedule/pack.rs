//! Packing: offsets in the arena for regions with their live ranges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most spans of which all pairs are compared. Of more spans, only the largest are compared;
/// the others are placed behind them.
const PAIRS: usize = 600;

/// Bytes that are needed from one step to another.
pub(super) struct Span {
    pub bytes: usize,
    /// The step that needs them first
    pub first: u32,
    /// The step that needs them last
    pub last: u32,
}

/// A way of packing: the order in which spans are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By when they are needed first
    Time,
    /// The largest first
    Size,
    /// Those that live longest first
    LiveRange,
}

/// Offsets of spans, and the bytes of the whole.
pub(super) struct Packing {
    pub offsets: Vec<usize>,
    pub bytes: usize,
}

/// Places spans so that spans of overlapping times do not overlap in memory, in the best of several
/// ways. The way `before` is enough where its bytes come near `least`, a lower bound.
pub(super) fn pack(spans: &[Span], least: usize, before: Option<Way>) -> (Packing, Way) {
    let placed: Vec<u32> =
        (0..spans.len() as u32).filter(|&i| spans[i as usize].bytes > 0).collect();
    if let Some(way) = before {
        let packing = way.pack(spans, &placed);
        if packing.bytes <= least + least / 8 {
            return (packing, way);
        }
    }
    let mut best = (Way::Time.pack(spans, &placed), Way::Time);
    for way in [Way::Size, Way::LiveRange] {
        if best.0.bytes > least {
            let next = way.pack(spans, &placed);
            if next.bytes < best.0.bytes {
                best = (next, way);
            }
        }
    }
    best
}

/// Divides a packing among buffers of at most `most` bytes, each span wholly in one (a larger span
/// has one to itself, or shares it): by span its buffer, and by buffer its bytes. Spans of a buffer
/// are as far apart as they were, so those that did not overlap do not.
pub(super) fn divide(
    spans: &[Span],
    offsets: &mut [usize],
    most: usize,
) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..spans.len()).filter(|&i| spans[i].bytes > 0).collect();
    order.sort_by_key(|&i| offsets[i]);
    // By buffer: where it begins in the packing, and its bytes.
    let mut buffers: Vec<(usize, usize)> = Vec::new();
    let mut buffer = vec![0; spans.len()];
    for i in order {
        let end = offsets[i] + spans[i].bytes;
        let known = buffers.iter().position(|&(start, _)| end - start <= most);
        let k = known.unwrap_or(buffers.len());
        if known.is_none() {
            buffers.push((offsets[i], 0));
        }
        let (start, bytes) = &mut buffers[k];
        *bytes = (*bytes).max(end - *start);
        offsets[i] -= *start;
        buffer[i] = k;
    }
    (buffer, buffers.into_iter().map(|(_, bytes)| bytes).collect())
}

impl Way {
    fn pack(self, spans: &[Span], placed: &[u32]) -> Packing {
        let span = |i: &u32| &spans[*i as usize];
        let size = |i: &u32| Reverse(span(i).bytes);
        let range = |i: &u32| Reverse(span(i).last - span(i).first);
        let mut order = placed.to_vec();
        if self == Way::Time {
            let (offsets, bytes) = first_come(spans, placed);
            return Packing { offsets, bytes };
        }
        order.sort_by_key(|i| (size(i), span(i).first));
        let small = order.split_off(order.len().min(PAIRS));
        if self == Way::LiveRange {
            order.sort_by_key(|i| (range(i), size(i)));
        }
        let (mut offsets, bytes) = best_gap(spans, &order);
        let (behind, more) = first_come(spans, &small);
        small.iter().for_each(|&i| offsets[i as usize] = bytes + behind[i as usize]);
        Packing { offsets, bytes: bytes + more }
    }
}

/// Spans in order of time, each in the smallest free stretch that holds it.
fn first_come(spans: &[Span], placed: &[u32]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; spans.len()];
    let mut order: Vec<u32> = placed.to_vec();
    order.sort_by_key(|&i| spans[i as usize].first);
    // Spans in use, by when they end; free stretches `(offset, bytes)` in order, never touching.
    let mut ends: BinaryHeap<(Reverse<u32>, u32)> = Default::default();
    let mut free: Vec<(usize, usize)> = Vec::new();
    let mut top = 0;
    for &i in &order {
        let span = &spans[i as usize];
        while let Some(&(Reverse(last), old)) = ends.peek() {
            if last >= span.first {
                break;
            }
            ends.pop();
            release(&mut free, (offsets[old as usize], spans[old as usize].bytes));
        }
        let fits = free.iter().enumerate().filter(|(_, f)| f.1 >= span.bytes);
        let at = match fits.min_by_key(|(_, f)| f.1) {
            Some((k, &(at, bytes))) => {
                if bytes == span.bytes {
                    free.remove(k);
                } else {
                    free[k] = (at + span.bytes, bytes - span.bytes);
                }
                at
            }
            // The stretch at the end grows.
            None => {
                let at = free.pop_if(|f| f.0 + f.1 == top).map_or(top, |f| f.0);
                top = at + span.bytes;
                at
            }
        };
        offsets[i as usize] = at;
        ends.push((Reverse(span.last), i));
    }
    (offsets, top)
}

fn release(free: &mut Vec<(usize, usize)>, (mut at, mut bytes): (usize, usize)) {
    let mut k = free.partition_point(|f| f.0 < at);
    if k < free.len() && at + bytes == free[k].0 {
        bytes += free.remove(k).1;
    }
    if k > 0 && free[k - 1].0 + free[k - 1].1 == at {
        k -= 1;
        let before = free.remove(k);
        (at, bytes) = (before.0, before.1 + bytes);
    }
    free.insert(k, (at, bytes));
}

/// Spans in a given order, each in the smallest gap between the placed spans of overlapping times.
fn best_gap(spans: &[Span], order: &[u32]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; spans.len()];
    // The spans placed so far, by offset.
    let mut placed: Vec<(usize, u32)> = Vec::with_capacity(order.len());
    let mut top = 0;
    for &i in order {
        let span = &spans[i as usize];
        let (mut end, mut best) = (0, None::<(usize, usize)>);
        for &(at, other) in &placed {
            let other = &spans[other as usize];
            if other.last < span.first || span.last < other.first {
                continue;
            }
            if at >= end + span.bytes && best.is_none_or(|(gap, _)| at - end < gap) {
                best = Some((at - end, end));
            }
            end = end.max(at + other.bytes);
        }
        let at = best.map_or(end, |(_, at)| at);
        offsets[i as usize] = at;
        top = top.max(at + span.bytes);
        let k = placed.partition_point(|&(offset, _)| offset < at);
        placed.insert(k, (at, i));
    }
    (offsets, top)
}
