//! Convolutions as general products, and windows added back to where they were taken from.
//!
//! Channels of groups are batches of products. Without padding the elements of windows are strided
//! axes like others; with padding, and for the transposed convolution, they are read where they
//! lie, and are zero outside.

use super::epilogue::Target;
use super::kernel::{Input, Kernel, Output, Place, Word, count};
use super::product::{Product, Side, Window, kernel};
use super::shader::Shader;
use super::terms::{Join, Source, Strides, read, register, zero};
use crate::error::Result;
use crate::ops::attributes::{ConvRole, ConvSpec, Reduction, WindowSpec};
use crate::shape::{Dim, Dims};
use crate::target::Abilities;

/// A tensor of a convolution: samples, groups, channels of a group, spatial axes.
struct Grouped {
    source: Source,
    /// The strides of the first axis and of the second; one of them is cut into groups
    first: Word,
    second: Word,
    spatial: Strides,
    sizes: Dims,
}

impl Grouped {
    fn of(input: &Input) -> Result<Grouped> {
        let source = Source::of(input)?;
        let axes: Vec<usize> = (2..source.view.sizes.len()).collect();
        let (spatial, sizes) = (source.strides(&axes), source.sizes(&axes));
        let (first, second) = (source.view.strides[0], source.view.strides[1]);
        Ok(Grouped { source, first, second, spatial, sizes })
    }

    fn side(self, batch: &[Word], free: &[Word], terms: &[Word]) -> Side {
        Side { source: self.source, batch: batch.into(), free: free.into(), terms: terms.into() }
    }
}

/// A stride and those of the spatial axes.
fn with(stride: Word, spatial: &[Word]) -> Strides {
    std::iter::once(stride).chain(spatial.iter().copied()).collect()
}

/// The kernel of one role of a convolution.
pub fn conv(
    role: ConvRole,
    spec: &ConvSpec,
    inputs: &[Input],
    to: Target<'_>,
    abilities: Abilities,
) -> Result<Kernel> {
    let (a, b) = (Grouped::of(&inputs[0])?, Grouped::of(&inputs[1])?);
    let groups = Dim::new(spec.groups);
    let result = to.sizes();
    let still = Word::Size(Dim::new(0));
    let axes = spec.stride.len();
    let by = |n: usize| Word::signed(n as isize);
    let is_padded = spec.pad_low.iter().chain(&spec.pad_high).any(|&pad| pad > 0);
    let low = |axis: usize| Word::signed(-(spec.pad_low[axis] as isize));
    // The factors of places and of elements of windows.
    let (steps, dilations): (Vec<Word>, Vec<Word>) =
        (0..axes).map(|axis| (by(spec.stride[axis]), by(spec.dilation[axis]))).unzip();
    let times = |strides: &[Word], by: &[usize]| -> Strides {
        strides.iter().zip(by).map(|(stride, &n)| stride.times(n as isize)).collect()
    };
    let none = Strides::from_elem(still, axes);
    let product = match role {
        ConvRole::Output => {
            let (x, w) = (a, b);
            let (outputs, channels) = (w.source.view.sizes[0] / groups, w.source.view.sizes[1]);
            let windows = match is_padded {
                true => (0..axes)
                    .map(|axis| Window {
                        size: x.sizes[axis],
                        stride: x.spatial[axis],
                        column: (axis, steps[axis]),
                        term: (axis + 1, dilations[axis]),
                        start: low(axis),
                        divisor: None,
                    })
                    .collect(),
                false => Vec::new(),
            };
            let (free, taps) = match is_padded {
                true => (none.clone(), none),
                false => (times(&x.spatial, &spec.stride), times(&x.spatial, &spec.dilation)),
            };
            let terms = std::iter::once(channels).chain(w.sizes.iter().copied()).collect();
            let batch = [x.first, x.second.scaled(channels)];
            let (group, own) = (w.first.scaled(outputs), w.first);
            let taps_of_w = with(w.second, &w.spatial);
            let taps_of_x = with(x.second, &taps);
            Product {
                batch: [result[0], groups].into_iter().collect(),
                rows: std::iter::once(outputs).collect(),
                columns: result[2..].into(),
                terms,
                a: w.side(&[still, group], &[own], &taps_of_w),
                b: x.side(&batch, &free, &taps_of_x),
                windows,
            }
        }
        ConvRole::Weight => {
            let (x, g) = (a, b);
            let outputs = g.source.view.sizes[1] / groups;
            let channels = x.source.view.sizes[1] / groups;
            let windows = match is_padded {
                true => (0..axes)
                    .map(|axis| Window {
                        size: x.sizes[axis],
                        stride: x.spatial[axis],
                        column: (axis + 1, dilations[axis]),
                        term: (axis + 1, steps[axis]),
                        start: low(axis),
                        divisor: None,
                    })
                    .collect(),
                false => Vec::new(),
            };
            let (taps, places) = match is_padded {
                true => (none.clone(), none),
                false => (times(&x.spatial, &spec.dilation), times(&x.spatial, &spec.stride)),
            };
            let samples = g.source.view.sizes[0];
            let terms = std::iter::once(samples).chain(g.sizes.iter().copied()).collect();
            let columns = std::iter::once(channels).chain(result[2..].iter().copied()).collect();
            let (group_g, own_g) = (g.second.scaled(outputs), g.second);
            let terms_of_g = with(g.first, &g.spatial);
            let group_x = x.second.scaled(channels);
            let (free_x, terms_of_x) = (with(x.second, &taps), with(x.first, &places));
            Product {
                batch: std::iter::once(groups).collect(),
                rows: std::iter::once(outputs).collect(),
                columns,
                terms,
                a: g.side(&[group_g], &[own_g], &terms_of_g),
                b: x.side(&[group_x], &free_x, &terms_of_x),
                windows,
            }
        }
        ConvRole::Input => {
            let (g, w) = (a, b);
            let (outputs, channels) = (w.source.view.sizes[0] / groups, w.source.view.sizes[1]);
            let windows = (0..axes)
                .map(|axis| Window {
                    size: g.sizes[axis],
                    stride: g.spatial[axis],
                    column: (axis, Word::Size(Dim::ONE)),
                    term: (axis + 1, dilations[axis].times(-1)),
                    start: by(spec.pad_low[axis]),
                    divisor: (spec.stride[axis] > 1).then(|| steps[axis]),
                })
                .collect();
            let terms = std::iter::once(outputs).chain(w.sizes.iter().copied()).collect();
            let batch = [g.first, g.second.scaled(outputs)];
            let (group, own) = (w.first.scaled(outputs), w.second);
            let taps_of_w = with(w.first, &w.spatial);
            let taps_of_g = with(g.second, &none);
            Product {
                batch: [result[0], groups].into_iter().collect(),
                rows: std::iter::once(channels).collect(),
                columns: result[2..].into(),
                terms,
                a: w.side(&[still, group], &[own], &taps_of_w),
                b: g.side(&batch, &none, &taps_of_g),
                windows,
            }
        }
    };
    kernel(product, to, abilities)
}

/// The kernel of windows that are added back. Terms are added one after the other, in the order of
/// a window's elements, as everywhere.
pub fn fold(spec: &WindowSpec, g: &Input, out: &Output) -> Result<Kernel> {
    let g = Source::of(g)?;
    let (result, spatial) = (out.ty.shape.dims(), spec.size.len());
    let lead = result.len() - spatial;
    let join = Join::of(Reduction::Sum, g.dtype);
    let mut shader = Shader::new();
    shader.register(join.dtype)?;
    let index = shader.indices("i", result);
    let mut base = shader.word(g.view.offset);
    base += &format!(" + {}", shader.offset(&g.view.strides[..lead], &index[..lead]));
    let base = shader.name(base);
    let sum = shader.variable(zero(register(g.dtype)));
    let taps: Dims = g.view.sizes[lead + spatial..].into();
    let all = shader.size(count(&taps));
    shader.line(format!("for (var j = 0u; j < {all}; j++) {{"));
    let tap = shader.indices("j", &taps);
    let (mut inside, mut places) = (Vec::new(), Vec::new());
    for axis in 0..spatial {
        let dilation = shader.size(Dim::new(spec.dilation[axis]));
        let stride = shader.size(Dim::new(spec.stride[axis]));
        let size = shader.size(g.view.sizes[lead + axis]);
        let moved = shader.name(format!("{} * {dilation}", tap[axis]));
        let from = shader.name(format!("{} - {moved}", index[lead + axis]));
        let place = shader.name(format!("{from} / {stride}"));
        inside.push(format!(
            "{moved} <= {} && {from} % {stride} == 0u && {place} < {size}",
            index[lead + axis]
        ));
        places.push(place);
    }
    shader.line(format!("if {} {{", inside.join(" && ")));
    places.extend(tap);
    let offset = shader.offset(&g.view.strides[lead..], &places);
    let value = shader.load_at(g.place, read(g.dtype), &format!("{base} + {offset}"))?;
    let joined = join.call(&mut shader, &sum, &value)?;
    shader.line(format!("{sum} = {joined};\n}}\n}}"));
    let dtype = read(out.ty.dtype);
    let lane = shader.narrowed(dtype, &sum)?;
    let (to, rounds) = (Place::Range(out.range), count(&taps));
    Ok(Kernel::of(shader.finish(to, dtype, count(result), &lane, rounds)))
}
