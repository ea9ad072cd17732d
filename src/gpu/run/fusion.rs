//! Fusions of a plan on a device, and where their results go.

use smallvec::SmallVec;

use super::executor::{Given, Into};
use super::key::What;
use super::memory::Held;
use super::plan::{Frame, Tape};
use crate::error::{self, Result};
use crate::ops::op::{OperandType, Type};
use crate::schedule::{self, Product, Step};

impl Tape<'_> {
    /// A product with its epilogue.
    pub(super) fn product(
        &mut self,
        frame: &mut Frame<'_>,
        product: &Product,
        args: &[Option<Held>],
        step: &Step,
    ) -> Result<Vec<Held>> {
        let Some(after) = &product.after else {
            return Err(error::internal("a product without an epilogue"));
        };
        let shape = match after.group.shape.is_known() {
            true => after.group.shape.clone(),
            false => {
                let factors = args.iter().flatten().take(2);
                let types: SmallVec<[OperandType<'_>; 2]> =
                    factors.map(|x| OperandType::Tensor(x.dtype, x.layout.shape())).collect();
                product.op.infer(&types)?.shape
            }
        };
        let types = after.group.program.dtypes().map(|dtype| Type::new(dtype, shape.clone()));
        let (types, what) = (types.collect(), What::Product(Box::new(product.clone()), shape));
        self.fused(frame, &what, types, args, step)
    }

    /// A fusion, whose results are of these types.
    pub(super) fn fused(
        &mut self,
        frame: &mut Frame<'_>,
        what: &What,
        types: Vec<Type>,
        args: &[Option<Held>],
        step: &Step,
    ) -> Result<Vec<Held>> {
        let (given, into) = (self.given(args, step), self.into(frame, step)?);
        let made = self.gpu.record(what, &given, &types, step.site, &into, &mut self.recording)?;
        Ok(made.into_vec())
    }

    /// The operands of a step: its arrays, and its numbers.
    pub(super) fn given<'h>(
        &self,
        args: &'h [Option<Held>],
        step: &Step,
    ) -> SmallVec<[Given<'h>; 8]> {
        let given = args.iter().zip(&step.args).filter_map(|(held, arg)| match (held, *arg) {
            (Some(held), _) => Some(Given::Held(held)),
            (None, schedule::Operand::Number(number)) => Some(Given::Number(self.number(number))),
            (None, schedule::Operand::Array(_)) => None,
        });
        given.collect()
    }

    /// Where the plan puts the results of a fusion.
    pub(super) fn into(&mut self, frame: &mut Frame<'_>, step: &Step) -> Result<Into> {
        let mut into = Into::default();
        for &slot in &step.results {
            let place = self.place(frame, slot)?;
            if let Some((_, true)) = place {
                into.flag = self.gpu.verdict(&mut self.recording)?;
            }
            into.spans.push(place.map(|(span, _)| span));
        }
        Ok(into)
    }
}
