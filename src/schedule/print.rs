//! Plans as text: one line a step, with the plans of bodies under their control flow.

use std::fmt::{self, Display, Write};

use super::{Cut, Number, Operand, Plan, Source, Work};
use crate::shape::Tuple;

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Input(i) => write!(f, "in{i}"),
            Source::Slot(i) => write!(f, "s{i}"),
            Source::Constant(i) => write!(f, "k{i}"),
        }
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Array(source) => source.fmt(f),
            Operand::Number(Number::Constant(value)) => value.fmt(f),
            Operand::Number(Number::Input(i)) => write!(f, "#{i}"),
        }
    }
}

impl Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Result => f.write_str("result"),
            Cut::Opaque(reader) => write!(f, "read by {reader}"),
            Cut::Shape => f.write_str("read in another shape"),
            Cut::Order => f.write_str("read with something computed from it"),
            Cut::Size => f.write_str("full"),
        }
    }
}

impl Display for Plan {
    /// `s2 = subtract, exp, multiply (4, 5) (in0, s1, 2.0)  free s1  # read by sum` a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let slots = |slots: &[u32]| {
                let names: Vec<String> = slots.iter().map(|slot| format!("s{slot}")).collect();
                names.join(", ")
            };
            let mut line = match step.results.is_empty() {
                true => String::new(),
                false => format!("{} = ", slots(&step.results)),
            };
            match &step.work {
                Work::Group(group) => {
                    write!(line, "{} {} ", group.program.names(), group.shape)?;
                }
                Work::Product(_) => write!(line, "{} ", step.name())?,
                Work::BlockFusion(fusion) => {
                    let blocks = fusion.blocks();
                    let names: Vec<&str> = fusion.reductions().map(|kind| kind.name()).collect();
                    let carried = if names.is_empty() { "" } else { " to " };
                    write!(line, "block fusion in {blocks} blocks{carried}{} ", names.join(", "))?;
                }
                Work::RowFusion(fusion) => {
                    write!(line, "{} {} ", step.name(), fusion.sizes)?;
                }
                Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => {
                    line += step.name_of_work();
                }
            }
            let args: Vec<String> = step.args.iter().map(ToString::to_string).collect();
            write!(line, "({})", args.join(", "))?;
            if !step.last.is_empty() {
                write!(line, "  free {}", slots(&step.last))?;
            }
            if step.results.iter().any(|&slot| self.is_channels_last(slot)) {
                line += "  channels last";
            }
            if let Some(cut) = step.reason() {
                write!(line, "  # {cut}")?;
            }
            writeln!(f, "{line}")?;
            let inner = match &step.work {
                Work::ControlFlow(bodies) => {
                    bodies.plans().iter().flat_map(|plan| lines(plan)).collect()
                }
                Work::BlockFusion(fusion) => lines(fusion.body()),
                Work::Group(_)
                | Work::Product(_)
                | Work::RowFusion(_)
                | Work::Op(_)
                | Work::Effect(_)
                | Work::Alias => Vec::new(),
            };
            for line in inner {
                writeln!(f, "    {line}")?;
            }
        }
        writeln!(f, "return {}", Tuple(&self.template.outputs))
    }
}

fn lines(plan: &Plan) -> Vec<String> {
    plan.to_string().lines().map(str::to_owned).collect()
}
