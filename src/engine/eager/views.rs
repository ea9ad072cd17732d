//! Views of one array in host memory: formulas that show its elements otherwise, run at once.
//!
//! `reshape`, `permute_dims`, `squeeze` and the like are formulas as all others, but of what they
//! emit only layouts are needed. So they run on layouts: no value is made in between, and the
//! operand is read where it is.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use super::emissions::{self, Known, Step};
use crate::array::Array;
use crate::dtype::{DType, Numeric};
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace::{self, Called};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::declare::{Arguments, Attr, Composite};
use crate::ops::emit::{Arg, Emit, Id, OrThrow, catch, throw};
use crate::ops::number::Number;
use crate::ops::op::{Op, OperandType, Type};
use crate::ops::origin;
use crate::ops::scan::{self, Scan};
use crate::shape::Dim;
use crate::watch;

/// The emission of views of an array. Value 0 is the array, value `k` what the `k`-th op shows.
struct Viewer<'a> {
    array: &'a Array,
    layouts: RefCell<SmallVec<[Layout; 2]>>,
    /// The last op, where the tape asks for it
    op: RefCell<Option<Op>>,
    records: bool,
    /// The ops so far, where they are kept
    steps: Option<RefCell<Vec<Step>>>,
    /// Whether an op shows nothing, but computes
    computes: Cell<bool>,
}

impl Viewer<'_> {
    fn with<T>(&self, id: Id, f: impl FnOnce(&Layout) -> T) -> T {
        match id.0 {
            0 => f(&self.array.layout),
            k => f(&self.layouts.borrow()[k as usize - 1]),
        }
    }
}

impl Emit for Viewer<'_> {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        let &[Arg::Node(id)] = args else { throw(error::internal("a view of several operands")) };
        let dtype = self.array.dtype;
        let layout = self.with(id, |from| {
            let ty = op.infer(&[OperandType::Tensor(dtype, from.shape())]).or_throw();
            op.view(dtype, from).unwrap_or_else(|| {
                self.computes.set(true);
                Layout::contiguous(ty.shape)
            })
        });
        if let Some(steps) = &self.steps {
            steps.borrow_mut().push(Step::new(&op, args));
        }
        if self.records {
            self.op.replace(Some(op));
        }
        let mut layouts = self.layouts.borrow_mut();
        layouts.push(layout);
        Id(layouts.len() as u32)
    }

    fn result(&self, id: Id, k: usize) -> Id {
        Id(id.0 + k as u32)
    }

    fn scan(&self, _: &Scan<'_>) -> scan::Results {
        throw(error::internal("a scan is no view"))
    }

    fn ty(&self, id: Id) -> Type {
        self.with(id, |layout| Type::new(self.array.dtype, layout.shape().clone()))
    }

    fn dtype(&self, _: Id) -> DType {
        self.array.dtype
    }

    fn rank(&self, id: Id) -> usize {
        self.with(id, |layout| layout.shape().rank())
    }

    fn size(&self, id: Id, axis: usize) -> Option<Dim> {
        self.with(id, |layout| layout.shape().dims().get(axis).copied())
    }

    fn keeps(&self, _: &'static Composite) -> bool {
        false
    }

    fn number(&self, number: Number) -> Numeric {
        trace::number(number)
    }
}

/// Calls a composite that shows `x` otherwise, outside all traces. `None` where that is not all
/// there is to do: for elements that have to be copied, for several steps of the tape, for what is
/// watched and for what is refused, which the ways of all calls do. The view is given to `take`
/// where it is made: to move it would take as long as to make it.
#[inline]
pub fn call<T>(
    composite: &'static Composite,
    attributes: &[Attr],
    x: &Value,
    record: bool,
    take: impl FnOnce(Value) -> T,
) -> Result<Option<T>> {
    if watch::on() {
        return Ok(None);
    }
    let record = record && x.requires_grad();
    let called = Called { composite, attributes, operands: &[Operand::Value(x)], record };
    let known = emissions::known(&called);
    if let Known::Emission(emission) = &known {
        return emission.shown(x, take);
    }
    let cx = Viewer {
        array: &x.array,
        layouts: RefCell::default(),
        op: RefCell::default(),
        records: record,
        steps: matches!(known, Known::Again(_)).then(RefCell::default),
        computes: Cell::new(false),
    };
    let operands = [Arg::Node(Id(0))];
    let arguments = Arguments { cx: &cx, attributes, operands: &operands };
    let result = catch(|| match composite.formula(&arguments)[..] {
        [y] => Some(y.arg()),
        _ => None,
    });
    let Ok(Some(Arg::Node(Id(id)))) = result else { return Ok(None) };
    if let (Known::Again(mark), Some(steps)) = (known, &cx.steps) {
        let emission = (steps.take(), id as usize);
        emissions::keep(mark, &called, origin::of(composite, &arguments), Some(emission));
    }
    if cx.computes.get() {
        return Ok(None);
    }
    let Some(place) = id.checked_sub(1) else { return Ok(Some(take(x.clone()))) };
    let mut layouts = cx.layouts.borrow_mut();
    if cx.records && layouts.len() > 1 {
        return Ok(None);
    }
    let view = x.array.view(layouts.swap_remove(place as usize));
    match cx.op.take() {
        Some(op) => {
            let _within = composite.enter(&arguments);
            tape::record(op, &[Operand::Value(x)], view).map(take).map(Some)
        }
        None => Ok(Some(take(Value::plain(view)))),
    }
}

/// An op that shows `x` otherwise and fits its type. `None`, and `take`, as for [`call`].
#[inline]
pub fn show<T>(
    op: &Op,
    x: &Value,
    record: bool,
    take: impl FnOnce(Value) -> T,
) -> Result<Option<T>> {
    if watch::on() || !trace::at_hand(&[Operand::Value(x)]) {
        return Ok(None);
    }
    let Some(layout) = op.view(x.dtype(), &x.array.layout) else { return Ok(None) };
    let view = x.array.view(layout);
    match record && x.requires_grad() {
        true => tape::record(op.clone(), &[Operand::Value(x)], view).map(take).map(Some),
        false => Ok(Some(take(Value::plain(view)))),
    }
}
