//! Control flow of plans on a device, driven by the host.

use super::executor::Given;
use super::memory::Held;
use super::plan::Tape;
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::graph::ControlFlowKind;
use crate::layout::Layout;
use crate::ops::op::{Op, SliceAxis, Type};
use crate::schedule::Bodies;
use crate::shape::{Dim, Shape};
use crate::site::Site;

impl Tape<'_> {
    /// Control flow, whose conditions the host reads.
    pub(super) fn flow(&mut self, args: Vec<Held>, flow: &Bodies) -> Result<Vec<Held>> {
        match *flow.kind() {
            ControlFlowKind::Host(_) if !flow.plans().is_empty() => {
                self.plan(&flow.plans()[0], &args, &[])
            }
            ControlFlowKind::Host(ref op) => {
                let given = args.into_iter().map(|x| self.look(x)).collect::<Result<Vec<_>>>()?;
                let found = op.run(&given.iter().collect::<Vec<&Array>>(), flow.results())?;
                found.iter().map(|y| self.gpu.held(y, &mut self.recording)).collect()
            }
            ControlFlowKind::Branch => {
                let last = flow.plans().len() as i64 - 1;
                let i = self.integer(args[0].clone())?.clamp(0, last) as usize;
                self.plan(&flow.plans()[i], &args[1..], &[])
            }
            ControlFlowKind::While { carry, history } => {
                let (mut now, captures) =
                    (args[..carry as usize].to_vec(), &args[carry as usize..]);
                let mut rounds: Vec<Vec<Held>> = Vec::new();
                let mut count = 0;
                loop {
                    let given = [&now, captures].concat();
                    let condition = self.plan(&flow.plans()[0], &given, &[])?.swap_remove(0);
                    if self.integer(condition)? == 0 {
                        break;
                    }
                    let next = self.plan(&flow.plans()[1], &given, &[])?;
                    drop(given);
                    let before = std::mem::replace(&mut now, next);
                    count += 1;
                    match history {
                        true => rounds.push(before),
                        false => self.forget(before),
                    }
                }
                if history {
                    for k in 0..carry as usize {
                        let one = Type::new(now[k].dtype, now[k].layout.shape().clone());
                        let all: Vec<Held> = rounds.iter().map(|round| round[k].clone()).collect();
                        let all = self.stack(&all, &one)?;
                        now.push(all);
                    }
                    let one = Op::Full(Type::new(DType::I64, Shape::scalar()));
                    now.push(self.op(
                        &one,
                        &[Given::Number(Scalar::Int(count))],
                        Site::default(),
                    )?);
                }
                Ok(now)
            }
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                let (carry, xs) = (carry as usize, xs as usize);
                let given = args[carry..carry + xs].first().map(|x| x.layout.shape()[0]);
                let Some(n) = given.unwrap_or(length).known() else {
                    return Err(error::unknown_size("scan", length));
                };
                let mut now = args[..carry].to_vec();
                let stacked = flow.results().len() - carry;
                let mut all: Vec<Vec<Held>> = vec![Vec::new(); stacked];
                for round in 0..n {
                    let at = if reverse { n - 1 - round } else { round };
                    let mut given = now;
                    for x in &args[carry..carry + xs] {
                        given.push(self.element(x, at)?);
                    }
                    given.extend_from_slice(&args[carry + xs..]);
                    let mut made = self.plan(&flow.plans()[0], &given, &[])?;
                    self.forget(given);
                    for (all, one) in all.iter_mut().zip(made.split_off(carry)) {
                        all.push(one);
                    }
                    now = made;
                }
                for (k, mut rows) in all.into_iter().enumerate() {
                    if reverse {
                        rows.reverse();
                    }
                    let ty = &flow.results()[carry + k];
                    let one: Shape = ty.shape.dims()[1..].iter().copied().collect();
                    let rows = self.stack(&rows, &Type::new(ty.dtype, one))?;
                    now.push(rows);
                }
                Ok(now)
            }
        }
    }

    /// Element `i` of the leading axis.
    fn element(&mut self, x: &Held, i: usize) -> Result<Held> {
        let at = x.layout.shape().dims().iter().enumerate().map(|(axis, &size)| match axis {
            0 => SliceAxis { start: Dim::new(i), size: Dim::new(1), step: 1 },
            _ => SliceAxis { start: Dim::new(0), size, step: 1 },
        });
        let slice = Op::Slice(at.collect());
        let part = self.op(&slice, &[Given::Held(x)], Site::default())?;
        let rest: Shape = x.layout.shape().dims()[1..].iter().copied().collect();
        self.op(&Op::Reshape(rest), &[Given::Held(&part)], Site::default())
    }

    /// Arrays of one type along a new leading axis.
    fn stack(&mut self, rows: &[Held], one: &Type) -> Result<Held> {
        let with = |n: usize| -> Shape {
            std::iter::once(Dim::new(n)).chain(one.shape.dims().iter().copied()).collect()
        };
        if rows.is_empty() {
            let layout = Layout::contiguous(with(0));
            return Ok(Held { dtype: one.dtype, layout, span: self.gpu.buffer(0)?.into() });
        }
        let mut parts = Vec::new();
        for x in rows {
            parts.push(self.op(&Op::Reshape(with(1)), &[Given::Held(x)], Site::default())?);
        }
        let parts: Vec<Given<'_>> = parts.iter().map(Given::Held).collect();
        self.op(&Op::Concat(0), &parts, Site::default())
    }
}
