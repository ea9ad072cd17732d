//! Sums of products: general products, convolutions, and windows added back.
//!
//! What a sum is made of is said once, by the pairs of elements that meet in it; [`plain`] adds
//! them up in the dtype's registers, [`exact`](super::bounds) in twice the precision of float64.

use crate::dtype::DType;
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec, WindowSpec};
use crate::scalar::Register;

use super::elements::{Elements, each_index};
use super::number::{Arithmetic, narrow, with_register};

/// Visits the pairs of registers whose products make up the element at an index, in order.
pub type Pairs<'a> = dyn Fn(&[usize], &mut dyn FnMut(u64, u64)) + 'a;

/// A general product.
pub fn contract(spec: &Contraction, a: &Elements, b: &Elements, sizes: &[usize]) -> Elements {
    plain(a.dtype, sizes, &contract_pairs(spec, a, b))
}

/// One role of a convolution.
pub fn conv(
    role: ConvRole,
    spec: &ConvSpec,
    a: &Elements,
    b: &Elements,
    sizes: &[usize],
) -> Elements {
    plain(a.dtype, sizes, &conv_pairs(role, spec, a, b))
}

/// Sums in register form, one product after the other.
fn plain(dtype: DType, sizes: &[usize], pairs: &Pairs<'_>) -> Elements {
    with_register!(dtype, T => Elements::make(dtype, sizes, |index| {
        let mut sum = T::ZERO;
        pairs(index, &mut |a, b| sum = sum.plus(T::of_word(a).times(T::of_word(b))));
        narrow(dtype, sum.word())
    }))
}

/// `out[batch, free of a, free of b] = Σ a[..] b[..]` over the contracted axes.
pub fn contract_pairs<'a>(
    spec: &'a Contraction,
    a: &'a Elements,
    b: &'a Elements,
) -> impl Fn(&[usize], &mut dyn FnMut(u64, u64)) + 'a {
    let free = |x: &Elements, batch: &[usize], depth: &[usize]| -> Vec<usize> {
        (0..x.sizes.len()).filter(|i| !batch.contains(i) && !depth.contains(i)).collect()
    };
    let free_a = free(a, &spec.a_batch, &spec.a_contract);
    let free_b = free(b, &spec.b_batch, &spec.b_contract);
    let depth: Vec<usize> = spec.a_contract.iter().map(|&axis| a.sizes[axis]).collect();
    move |index, visit| {
        let (batch, rest) = index.split_at(spec.a_batch.len());
        let (rows, columns) = rest.split_at(free_a.len());
        let mut at_a = vec![0; a.sizes.len()];
        let mut at_b = vec![0; b.sizes.len()];
        set(&mut at_a, &spec.a_batch, batch);
        set(&mut at_b, &spec.b_batch, batch);
        set(&mut at_a, &free_a, rows);
        set(&mut at_b, &free_b, columns);
        each_index(&depth, |k| {
            set(&mut at_a, &spec.a_contract, k);
            set(&mut at_b, &spec.b_contract, k);
            visit(a.register(&at_a), b.register(&at_b));
        });
    }
}

/// Puts the parts of an index where some axes are.
fn set(index: &mut [usize], axes: &[usize], parts: &[usize]) {
    axes.iter().zip(parts).for_each(|(&axis, &i)| index[axis] = i);
}

/// The terms of `Σ x[n, c, p·stride + k·dilation − low] w[o, c, k] g[n, o, p]` with one of the
/// three left out. Padding takes no part.
pub fn conv_pairs<'a>(
    role: ConvRole,
    spec: &'a ConvSpec,
    a: &'a Elements,
    b: &'a Elements,
) -> impl Fn(&[usize], &mut dyn FnMut(u64, u64)) + 'a {
    move |index, visit| match role {
        ConvRole::Output => output_pairs(spec, a, b, index, visit),
        ConvRole::Input => input_pairs(spec, a, b, index, visit),
        ConvRole::Weight => weight_pairs(spec, a, b, index, visit),
    }
}

/// The element at two leading indices and spatial ones, which may lie in the padding: then none.
fn padded(x: &Elements, lead: [usize; 2], spatial: impl Iterator<Item = isize>) -> Option<u64> {
    let mut index = lead.to_vec();
    for (i, &n) in spatial.zip(&x.sizes[2..]) {
        if i < 0 || i >= n as isize {
            return None;
        }
        index.push(i as usize);
    }
    Some(x.register(&index))
}

/// Where tap `k` of the window at place `p` reads, along each axis.
fn reach<'a>(
    spec: &'a ConvSpec,
    p: &'a [usize],
    k: &'a [usize],
) -> impl Iterator<Item = isize> + 'a {
    (0..p.len()).map(|i| {
        (p[i] * spec.stride[i] + k[i] * spec.dilation[i]) as isize - spec.pad_low[i] as isize
    })
}

fn output_pairs(
    spec: &ConvSpec,
    x: &Elements,
    w: &Elements,
    index: &[usize],
    visit: &mut dyn FnMut(u64, u64),
) {
    let (n, o, p) = (index[0], index[1], &index[2..]);
    let channels = w.sizes[1];
    let first = o / (w.sizes[0] / spec.groups) * channels;
    each_index(&w.sizes[1..], |at| {
        let (c, k) = (at[0], &at[1..]);
        let from = padded(x, [n, first + c], reach(spec, p, k));
        from.into_iter().for_each(|from| visit(from, w.register(&[&[o, c], k].concat())));
    });
}

fn input_pairs(
    spec: &ConvSpec,
    g: &Elements,
    w: &Elements,
    index: &[usize],
    visit: &mut dyn FnMut(u64, u64),
) {
    let (n, c, i) = (index[0], index[1], &index[2..]);
    let (outputs, channels) = (w.sizes[0] / spec.groups, w.sizes[1]);
    let group = c / channels;
    let taps = [&[outputs], &w.sizes[2..]].concat();
    each_index(&taps, |at| {
        let (o, k) = (group * outputs + at[0], &at[1..]);
        // `p·stride + k·dilation − low = i` for a whole `p`, or the tap does not touch this
        // element.
        let scaled =
            |j: usize| (i[j] + spec.pad_low[j]) as isize - (k[j] * spec.dilation[j]) as isize;
        let stride = |j: usize| spec.stride[j] as isize;
        if (0..k.len()).any(|j| scaled(j).rem_euclid(stride(j)) != 0) {
            return;
        }
        let from = padded(g, [n, o], (0..k.len()).map(|j| scaled(j).div_euclid(stride(j))));
        let tap = || w.register(&[&[o, c % channels], k].concat());
        from.into_iter().for_each(|from| visit(from, tap()));
    });
}

fn weight_pairs(
    spec: &ConvSpec,
    x: &Elements,
    g: &Elements,
    index: &[usize],
    visit: &mut dyn FnMut(u64, u64),
) {
    let (o, c, k) = (index[0], index[1], &index[2..]);
    let first = o / (g.sizes[1] / spec.groups) * (x.sizes[1] / spec.groups);
    let places = [&g.sizes[..1], &g.sizes[2..]].concat();
    each_index(&places, |at| {
        let (n, p) = (at[0], &at[1..]);
        let from = padded(x, [n, first + c], reach(spec, p, k));
        let place = || g.register(&[&[n, o], p].concat());
        from.into_iter().for_each(|from| visit(from, place()));
    });
}

/// Windows added back to where they were taken from, in the order of their elements.
pub fn fold(spec: &WindowSpec, g: &Elements, sizes: &[usize]) -> Elements {
    let spatial = spec.size.len();
    let lead = sizes.len() - spatial;
    let places = &g.sizes[lead..lead + spatial];
    with_register!(g.dtype, T => Elements::make(g.dtype, sizes, |index| {
        let mut sum = T::ZERO;
        each_index(&spec.size, |k| {
            let mut from = index.to_vec();
            for i in 0..spatial {
                let Some(scaled) = index[lead + i].checked_sub(k[i] * spec.dilation[i]) else {
                    return;
                };
                let place = scaled / spec.stride[i];
                if scaled % spec.stride[i] != 0 || place >= places[i] {
                    return;
                }
                from[lead + i] = place;
            }
            from.extend_from_slice(k);
            sum = sum.plus(T::of_word(g.register(&from)));
        });
        narrow(g.dtype, sum.word())
    }))
}
