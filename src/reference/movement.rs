//! Ops that move elements and compute nothing: by words, so every bit stays.

use crate::ops::attributes::WindowSpec;
use crate::ops::op::SliceAxis;

use super::elements::{Elements, each_index, position};

/// Axis `i` of the result is axis `axes[i]` of `x`.
pub fn permute(x: &Elements, axes: &[usize]) -> Elements {
    let sizes: Vec<usize> = axes.iter().map(|&axis| x.sizes[axis]).collect();
    let mut from = vec![0; axes.len()];
    Elements::make(x.dtype, &sizes, |index| {
        axes.iter().zip(index).for_each(|(&axis, &i)| from[axis] = i);
        x.at(&from)
    })
}

/// Axes of size 1 are repeated and leading ones added.
pub fn broadcast(x: &Elements, sizes: &[usize]) -> Elements {
    Elements::make(x.dtype, sizes, |index| x.broadcast_at(index))
}

/// The index in the whole of an index in its slice.
fn inside(at: &[SliceAxis], index: &[usize]) -> Vec<usize> {
    at.iter()
        .zip(index)
        .map(|(a, &i)| a.start.value().wrapping_add_signed(i as isize * a.step))
        .collect()
}

/// The sizes of a slice.
fn slice_sizes(at: &[SliceAxis]) -> Vec<usize> {
    at.iter().map(|a| a.size.value()).collect()
}

/// Strided parts of every axis.
pub fn slice(x: &Elements, at: &[SliceAxis]) -> Elements {
    Elements::make(x.dtype, &slice_sizes(at), |index| x.at(&inside(at, index)))
}

/// A base with a slice of it replaced by what broadcasts to the slice.
pub fn replace(base: Elements, at: &[SliceAxis], value: &Elements) -> Elements {
    let mut out = base;
    each_index(&slice_sizes(at), |index| {
        let to = position(&out.sizes, &inside(at, index));
        out.words[to] = value.broadcast_at(index);
    });
    out
}

/// Operands behind each other along an axis.
pub fn concat(parts: &[Elements], axis: usize, sizes: &[usize]) -> Elements {
    Elements::make(parts[0].dtype, sizes, |index| {
        let mut from = index.to_vec();
        let mut rest = parts.iter();
        loop {
            match rest.next() {
                Some(part) if from[axis] < part.sizes[axis] => return part.at(&from),
                Some(part) => from[axis] -= part.sizes[axis],
                None => unreachable!("the result is as long as its parts"),
            }
        }
    })
}

/// Windows over the trailing axes: leading axes, positions, elements of the window.
pub fn windows(x: &Elements, spec: &WindowSpec, sizes: &[usize]) -> Elements {
    let spatial = spec.size.len();
    let lead = x.sizes.len() - spatial;
    Elements::make(x.dtype, sizes, |index| {
        let (places, window) = index.split_at(lead + spatial);
        let mut from = places.to_vec();
        for k in 0..spatial {
            from[lead + k] = places[lead + k] * spec.stride[k] + window[k] * spec.dilation[k];
        }
        x.at(&from)
    })
}
