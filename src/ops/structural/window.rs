//! Sliding windows, and their transpose, which sums them.

use smallvec::{SmallVec, smallvec};

use super::*;
use crate::error;
use crate::layout::Strides;
use crate::ops::attributes::{PerAxis, WindowSpec};
use crate::shape::Dims;

/// A bound that no window's size, stride or dilation reaches.
pub const FAR: usize = 1 << 31;

fn blank() -> Box<WindowSpec> {
    Box::new(WindowSpec { size: PerAxis::new(), stride: PerAxis::new(), dilation: PerAxis::new() })
}

fn fields(spec: &mut WindowSpec) -> Fields<'_> {
    smallvec![
        Field::PerAxis("size", &mut spec.size),
        Field::PerAxis("stride", &mut spec.stride),
        Field::PerAxis("dilation", &mut spec.dilation),
    ]
}

fn is_in_range(spec: &WindowSpec) -> bool {
    let axes = spec.size.len();
    spec.stride.len() == axes
        && spec.dilation.len() == axes
        && [&spec.size, &spec.stride, &spec.dilation].iter().all(|list| counts(list, 1))
}

/// Whether all numbers are at least `least`, and below [`FAR`].
pub fn counts(list: &[usize], least: usize) -> bool {
    list.iter().all(|n| (least..FAR).contains(n))
}

/// Sliding windows, appended as trailing axes.
pub static WINDOWS: StructuralDef = StructuralDef {
    name: "windows",
    class: Class::View,
    operands: exactly(1),
    blank: || Op::Windows(blank()),
    fields: |op| {
        of!(op, Op::Windows(spec));
        fields(spec)
    },
    in_range: |op| {
        of!(op, Op::Windows(spec));
        is_in_range(spec)
    },
    fits: |op, args| {
        of!(op, Op::Windows(spec));
        spec.size.len() <= rank(args, 0)
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Windows(spec));
        let (dtype, shape) = tensor(op, args, 0)?;
        let lead = shape.rank() - spec.size.len();
        let mut dims: SmallVec<[Dim; 8]> = SmallVec::from_slice(&shape.dims()[..lead]);
        for i in 0..spec.size.len() {
            let reach = (spec.size[i] - 1) * spec.dilation[i] + 1;
            if shape[lead + i].is_below(reach) {
                let facts = format!("window {reach} on axis {} of {shape}", lead + i);
                let what = "the window is larger than the axis";
                return Err(error::bad_shape(op.name(), what, facts));
            }
            dims.push((shape[lead + i] - reach.into()) / spec.stride[i].into() + Dim::ONE);
        }
        dims.extend(spec.size.iter().map(|&n| Dim::new(n)));
        Ok(Type::new(dtype, Shape::from_dims(&dims)))
    },
    cost: cost::free,
    is_expensive: false,
    refuses: false,
    view: |op, _, x| {
        of!(op, Op::Windows(spec));
        Some(windowed(x, spec))
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Windows(spec));
        let (x, shape) = (rule.args[0], rule.args[0].shape());
        let sizes = &shape.dims()[x.rank() - spec.size.len()..];
        Some(rule.g.emit(Op::Fold(spec.clone(), sizes.iter().copied().collect())))
    },
    tangent: Rate::First,
    batch: batch_as_it_is,
};

/// The transpose of windows (col2im): adds the windows into an array with these trailing sizes.
pub static FOLD: StructuralDef = StructuralDef {
    name: "overlap_add",
    class: Class::Movement,
    operands: exactly(1),
    blank: || Op::Fold(blank(), Dims::new()),
    fields: |op| {
        of!(op, Op::Fold(spec, sizes));
        let mut all = fields(spec);
        all.push(Field::ResultSizes(sizes));
        all
    },
    in_range: |op| {
        of!(op, Op::Fold(spec, _));
        is_in_range(spec)
    },
    fits: |op, args| {
        of!(op, Op::Fold(spec, sizes));
        spec.size.len() == sizes.len() && 2 * sizes.len() <= rank(args, 0)
    },
    expects: |op, args, _| {
        of!(op, Op::Fold(spec, sizes));
        shape(args, 0).is_some_and(|x| is_folded(spec, sizes, x))
    },
    infer: |op, args| {
        of!(op, Op::Fold(spec, sizes));
        let (dtype, shape) = tensor(op, args, 0)?;
        let lead = shape.rank() - 2 * spec.size.len();
        let lead = shape.dims()[..lead].iter();
        Ok(Type::new(dtype, lead.chain(sizes).copied().collect()))
    },
    cost: |_, work| work.with(work.count(0)),
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    // The order of additions is part of the op's definition.
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Fold(spec, _));
        Some(rule.g.emit(Op::Windows(spec.clone())))
    },
    tangent: Rate::First,
    batch: batch_as_it_is,
};

/// How many windows fit along an axis; `None` where a size is not known.
pub fn positions(size: Dim, window: Dim, stride: usize, dilation: usize) -> Option<usize> {
    let (size, window) = (size.known()?, window.known()?);
    let reach = window.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    Some(size.checked_sub(reach).map_or(0, |free| free / stride + 1))
}

/// Whether the shape is that of windows over an array with these trailing sizes.
fn is_folded(spec: &WindowSpec, sizes: &[Dim], shape: &Shape) -> bool {
    let axes = spec.size.len();
    let lead = shape.rank() - 2 * axes;
    (0..axes).all(|i| {
        let window = Dim::new(spec.size[i]);
        let found = positions(sizes[i], window, spec.stride[i], spec.dilation[i]);
        let fits = |n: usize| shape[lead + i].known().is_none_or(|have| have == n);
        found.is_none_or(fits) && shape[lead + axes + i].known().is_none_or(|n| n == spec.size[i])
    })
}

/// The layout of windows over the trailing axes: leading axes, positions, axes of one window.
pub fn windowed(x: &Layout, spec: &WindowSpec) -> Layout {
    let (dims, strides) = (x.shape().dims(), x.strides());
    let spatial = spec.size.len();
    let lead = dims.len() - spatial;
    let mut shape: Shape = dims[..lead].iter().copied().collect();
    let mut steps: Strides = strides[..lead].into();
    for i in 0..spatial {
        let window = Dim::new(spec.size[i]);
        let n =
            positions(Dim::new(dims[lead + i].value()), window, spec.stride[i], spec.dilation[i]);
        shape.dims_mut().push(Dim::new(n.unwrap_or(0)));
        steps.push(strides[lead + i] * spec.stride[i] as isize);
    }
    for i in 0..spatial {
        shape.dims_mut().push(Dim::new(spec.size[i]));
        steps.push(strides[lead + i] * spec.dilation[i] as isize);
    }
    Layout::strided(shape, &steps, x.offset())
}
