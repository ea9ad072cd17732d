//! Keys of plain numbers on values in host memory: views, made directly.

use smallvec::SmallVec;

use super::plan::{place, slice_axis, span};
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
    let part = match rows {
        Rows::One(i) => x.array.row(place(size, i)?),
        Rows::Between(start, stop) => {
            let (start, count) = span(size, start, stop);
            x.array.rows(start, count)
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
                offset += place(shape[axis].value(), i)? as isize * from[axis];
                axis += 1;
            }
            Key::Between(start, stop, step) => {
                let (start, step, size) = match step {
                    // What is asked for most.
                    1 => {
                        let (start, size) = span(shape[axis].value(), start, stop);
                        (start, 1, Dim::new(size))
                    }
                    _ => {
                        let [start, stop] = [start, stop].map(|n| n.map(Extent::Number));
                        let at =
                            slice_axis("getitem", shape[axis], start, stop, Some(step)).ok()?;
                        (at.start.value(), at.step, at.size)
                    }
                };
                offset += start as isize * from[axis];
                strides.push(from[axis] * step);
                dims.push(size);
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
