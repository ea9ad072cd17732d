//! Keys of plain numbers on values in host memory: views, made directly.

use smallvec::SmallVec;

use super::plan::slice_axis;
use crate::array::Array;
use crate::engine::tape::{Value, recording};
use crate::engine::trace::Item;
use crate::layout::{Layout, Strides};
use crate::shape::{Dim, Dims, Extent, MAX_RANK, Shape};

/// Rows that a plain key names: `x[i]`, or `x[a:b]`.
#[derive(Clone, Copy)]
pub enum Rows {
    /// One, without the axis
    One(i64),
    /// Those between bounds, where there are any
    Between(Option<i64>, Option<i64>),
}

/// What such a key takes of a value in host memory, outside all traces. `None` of what has no rows
/// in C order or not that one, and of what is recorded. It is in place where it is called, so that
/// the view is written where it stays.
#[inline(always)]
pub fn rows(x: &Value, rows: Rows) -> Option<Value> {
    let size = x.shape().dims().first()?.value();
    if !x.array.is_contiguous() || x.requires_grad() && recording() {
        return None;
    }
    // Sizes are below 2^62.
    let from_end = |i: i64| if i < 0 { i.saturating_add(size as i64) } else { i };
    let clip = |i: i64| from_end(i).clamp(0, size as i64) as usize;
    let part = match rows {
        Rows::One(i) => {
            let i = from_end(i);
            if i < 0 || i >= size as i64 {
                return None;
            }
            x.array.row(i as usize)
        }
        Rows::Between(start, stop) => {
            let (start, stop) = (start.map_or(0, clip), stop.map_or(size, clip));
            // An empty part begins at the first row, as slices of other kinds do.
            if start < stop { x.array.rows(start, stop - start) } else { x.array.rows(0, 0) }
        }
    };
    Some(Value::plain(part))
}

/// A part of a key of plain numbers.
#[derive(Clone, Copy)]
pub enum Key {
    /// One position; the axis disappears
    One(i64),
    /// `start:stop:step`
    Between(Option<i64>, Option<i64>, i64),
    /// `...`
    Rest,
    /// `None`
    New,
}

impl Key {
    /// An item of plain numbers.
    fn of(item: &Item) -> Option<Key> {
        let bound = |bound: Option<Extent>| bound.map_or(Some(None), |n| n.known().map(Some));
        match item {
            Item::Int(i) => i.known().map(Key::One),
            Item::Slice(start, stop, step) => {
                Some(Key::Between(bound(*start)?, bound(*stop)?, step.unwrap_or(1)))
            }
            Item::Ellipsis => Some(Key::Rest),
            Item::NewAxis => Some(Key::New),
            Item::Array(_) | Item::Operand | Item::Flag(_) => None,
        }
    }
}

/// What a key takes of an array in host memory, outside all traces: `take` is given sizes, strides and
/// the position of the first element. `None` of a key that does not fit.
#[inline]
pub fn taken<T>(
    x: &Array,
    keys: &[Key],
    take: impl FnOnce(&[Dim], &[isize], usize) -> T,
) -> Option<T> {
    let (shape, layout) = (x.shape(), &x.layout);
    let (mut named, mut rests) = (0, 0);
    for key in keys {
        match key {
            Key::One(_) | Key::Between(..) => named += 1,
            Key::Rest => rests += 1,
            Key::New => {}
        }
    }
    if named > shape.rank() || rests > 1 || shape.rank() + keys.len() > MAX_RANK {
        return None;
    }
    let rest = shape.rank() - named;
    let implicit = if rests == 0 { &[Key::Rest][..] } else { &[] };
    let (from, mut strides, mut dims) = (layout.strides(), Strides::new(), Dims::new());
    let (mut offset, mut axis) = (0, 0);
    for key in keys.iter().chain(implicit) {
        match *key {
            Key::One(i) => {
                let size = shape[axis].value() as i64;
                let i = if i < 0 { i.saturating_add(size) } else { i };
                if i < 0 || i >= size {
                    return None;
                }
                offset += i as isize * from[axis];
                axis += 1;
            }
            // What is asked for most.
            Key::Between(start, stop, 1) => {
                let size = shape[axis].value() as i64;
                let clip = |i: i64| if i < 0 { i.saturating_add(size).max(0) } else { i.min(size) };
                let (start, stop) = (start.map_or(0, clip), stop.map_or(size, clip));
                // An empty part begins at the first place, as those of other steps do.
                let (start, count) = if start < stop { (start, stop - start) } else { (0, 0) };
                offset += start as isize * from[axis];
                strides.push(from[axis]);
                dims.push(Dim::new(count as usize));
                axis += 1;
            }
            Key::Between(start, stop, step) => {
                let bound = |n: Option<i64>| n.map(Extent::Number);
                let at = slice_axis("getitem", shape[axis], bound(start), bound(stop), Some(step))
                    .ok()?;
                offset += at.start.value() as isize * from[axis];
                strides.push(from[axis] * at.step);
                dims.push(at.size);
                axis += 1;
            }
            Key::New => {
                strides.push(0);
                dims.push(Dim::ONE);
            }
            Key::Rest => {
                for k in axis..axis + rest {
                    strides.push(from[k]);
                    dims.push(shape[k]);
                }
                axis += rest;
            }
        }
    }
    let offset = layout.offset().wrapping_add_signed(offset);
    Some(take(&dims, &strides, offset))
}

/// The same of basic items; `None` of others too.
pub fn viewed(x: &Value, items: &[Item]) -> Option<Value> {
    let mut keys: SmallVec<[Key; 4]> = SmallVec::new();
    for item in items {
        keys.push(Key::of(item)?);
    }
    let view = |dims: &[Dim], strides: &[isize], offset| {
        x.array.view(Layout::strided(Shape::from_dims(dims), strides, offset))
    };
    taken(&x.array, &keys, view).map(Value::plain)
}
