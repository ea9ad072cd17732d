//! The kind of a node from its name and arguments.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::literal::{
    digits, read_array, read_dim, read_float, read_int, read_operand, read_quoted,
};
use super::{Args, ControlFlowKind, Effect, Kind, Parser, Statement, split, unit};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fork::Lazy;
use crate::ops::declare::{Attr, Composite, Extents, Param, ParamKind};
use crate::ops::elementwise::Elementwise;
use crate::ops::op::{Call, Op, SliceAxis, Type};
use crate::ops::structural::{self, Field, StructuralDef};
use crate::ops::{composite, elementwise};
use crate::shape::{Dim, Dims, Shape};

/// The node that a line describes.
pub enum Read {
    /// A node with its type
    Kind(Kind, Type),
    /// Control flow, whose bodies follow
    ControlFlow(ControlFlowKind),
}

/// The arguments of a line, taken one by one.
pub struct Given<'p, 't> {
    parser: &'p Parser,
    name: &'t str,
    ty: Option<Type>,
    /// The text in the parentheses
    text: &'t str,
    /// The arguments by position, the next one last
    plain: Vec<&'t str>,
    named: Vec<(&'t str, &'t str)>,
    numbers: u32,
    args: Args,
}

impl<'p, 't> Given<'p, 't> {
    /// The arguments of a line; `numbers` is how many numeric inputs there are.
    pub fn new(parser: &'p Parser, line: &Statement<'t>, numbers: u32) -> Result<Given<'p, 't>> {
        let text = line.arguments.unwrap_or("");
        let ty = line.ty.map(|ty| parser.ty(ty)).transpose()?;
        let mut given = Given {
            parser,
            name: line.kind,
            ty,
            text,
            plain: Vec::new(),
            named: Vec::new(),
            numbers,
            args: Args::new(),
        };
        for part in split(text).ok_or_else(|| parser.wants("arguments", text))? {
            match part.split_once('=').filter(|(name, _)| is_name(name)) {
                Some((name, value)) => given.named.push((name, value.trim())),
                None if given.named.is_empty() => given.plain.push(part),
                None => return Err(parser.wants("an argument by name", part)),
            }
        }
        given.plain.reverse();
        Ok(given)
    }

    /// The operands, once all other arguments have been taken; refuses arguments that are left.
    pub fn finish(self) -> Result<Args> {
        let left = self.plain.last().or(self.named.first().map(|(name, _)| name));
        match left {
            Some(more) => Err(self.wants(format!("no more arguments of {}", self.name), more)),
            None => Ok(self.args),
        }
    }

    fn wants(&self, want: impl std::fmt::Display, got: &str) -> Error {
        self.parser.wants(want, got)
    }

    fn ty(&self) -> Result<Type> {
        self.ty.clone().ok_or_else(|| self.wants("a type before the equals sign", self.name))
    }

    /// Adds an operand.
    fn operand(&mut self, text: &str) -> Result<()> {
        let arg = read_operand(text, self.numbers);
        self.args.push(arg.ok_or_else(|| self.wants("an operand such as %0 or 1.0", text))?);
        Ok(())
    }

    /// Adds the arguments by position as operands.
    fn operands(&mut self) -> Result<()> {
        while let Some(text) = self.plain.pop() {
            self.operand(text)?;
        }
        Ok(())
    }

    /// An argument by name, if it is there.
    fn take(&mut self, name: &str) -> Option<&'t str> {
        let i = self.named.iter().position(|(n, _)| *n == name)?;
        Some(self.named.remove(i).1)
    }

    /// Reads an argument by name.
    fn read<T>(&mut self, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        let Some(text) = self.take(name) else {
            return Err(self.wants(format!("argument {name} of {}", self.name), self.text));
        };
        read(text).ok_or_else(|| self.wants(format!("a value of {name}"), text))
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<T> {
        self.read(name, digits)
    }

    fn truth(&mut self, name: &str) -> Result<bool> {
        self.read(name, read_truth)
    }

    /// A tuple of counts.
    fn counts<T: FromIterator<usize>>(&mut self, name: &str) -> Result<T> {
        self.read(name, |text| tuple(text, digits))
    }

    /// A pair of tuples of counts.
    fn pair<T: FromIterator<usize>>(&mut self, name: &str) -> Result<[T; 2]> {
        self.read(name, |text| {
            let both: Vec<T> = tuple(text, |text| tuple(text, digits))?;
            both.try_into().ok()
        })
    }

    fn slices(&mut self) -> Result<Box<[SliceAxis]>> {
        let start: Vec<Dim> = self.read("start", |text| tuple(text, read_dim))?;
        let size: Vec<Dim> = self.read("size", |text| tuple(text, read_dim))?;
        let steps = |text: &str| tuple(text, |step| step.parse().ok());
        let step: Vec<isize> = match self.named.iter().any(|(name, _)| *name == "step") {
            true => self.read("step", steps)?,
            false => vec![1; start.len()],
        };
        if start.len() != size.len() || start.len() != step.len() {
            return Err(self.wants("as many starts as sizes and steps", self.text));
        }
        let axes = start.into_iter().zip(size).zip(step);
        Ok(axes.map(|((start, size), step)| SliceAxis { start, step, size }).collect())
    }

    /// Reads an attribute of a structural op. `axes` is the length of the first tuple that has one
    /// number per axis.
    fn field(&mut self, field: Field<'_>, axes: &mut Option<usize>) -> Result<()> {
        match field {
            Field::Count(name, n) => *n = self.number(name)?,
            Field::Truth(name, value) => *value = self.truth(name)?,
            Field::Choice(name, choice) => {
                let text = self.read(name, |text| Some(text.to_string()))?;
                if !choice.choose(&text) {
                    return Err(self.wants(format!("a value of {name}"), &text));
                }
            }
            Field::Axes(name, axes) => *axes = self.counts(name)?,
            Field::MaybePairs(name, ..) if self.named.iter().all(|(n, _)| *n != name) => {}
            Field::Pairs(name, a, b) | Field::MaybePairs(name, a, b) => {
                [*a, *b] = self.pair(name)?;
            }
            Field::PerAxis(name, list) => {
                *list = self.counts(name)?;
                axes.get_or_insert(list.len());
            }
            Field::Sizes(name, sizes) => *sizes = self.read(name, |text| tuple(text, read_dim))?,
            Field::Slices(at) => *at = self.slices()?,
            Field::ResultDType(dtype) => *dtype = self.ty()?.dtype,
            Field::ResultShape(shape) => *shape = self.ty()?.shape,
            Field::ResultType(ty) => *ty = self.ty()?,
            Field::ResultSizes(sizes) => {
                let found = trailing(&self.ty()?.shape, axes.unwrap_or(0));
                *sizes = found.ok_or_else(|| self.wants("a size for each axis", self.text))?;
            }
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn read_truth(text: &str) -> Option<bool> {
    match text {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// The items of `(1, 2)`.
fn tuple<T, L: FromIterator<T>>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<L> {
    split(text.strip_prefix('(')?.strip_suffix(')')?)?.into_iter().map(read).collect()
}

/// The node that a line describes. Its operands are left in `given`.
pub fn kind(given: &mut Given<'_, '_>) -> Result<Read> {
    let read = match given.name {
        "input" => (Kind::Input, given.ty()?),
        "constant" => {
            let ty = given.ty()?;
            (given.plain, given.named) = Default::default();
            if let Some(size) = ty.shape.dims().iter().find(|size| size.known().is_none()) {
                return Err(given.wants("an array of known sizes", &size.to_string()));
            }
            let array = read_array(&ty, given.text);
            let want =
                || given.wants(format!("the elements of {} {}", ty.dtype, ty.shape), given.text);
            (Kind::Constant(array.ok_or_else(want)??), ty)
        }
        "result" => {
            let index = match given.plain.as_slice() {
                [index, _] => digits(index),
                _ => None,
            };
            let index = index.ok_or_else(|| given.wants("a node and a number", given.text))?;
            given.plain.remove(0);
            given.operands()?;
            (Kind::Result(index), given.ty()?)
        }
        "barrier" => {
            given.operands()?;
            (Kind::Barrier, given.ty()?)
        }
        "check" | "print" => (effect(given)?, unit()),
        "cond" => {
            given.operands()?;
            return Ok(Read::ControlFlow(ControlFlowKind::Branch));
        }
        "while_loop" => {
            given.operands()?;
            let (carry, history) = (given.number("carry")?, given.truth("history")?);
            return Ok(Read::ControlFlow(ControlFlowKind::While { carry, history }));
        }
        "scan" => {
            given.operands()?;
            let (carry, xs) = (given.number("carry")?, given.number("xs")?);
            let length = given.read("length", read_dim)?;
            let reverse = given.truth("reverse")?;
            return Ok(Read::ControlFlow(ControlFlowKind::Scan { carry, xs, length, reverse }));
        }
        "host" => {
            let name = given.plain.last().and_then(|name| read_quoted(name)).unwrap_or_default();
            let name = if name.is_empty() { "an op of the host".into() } else { name };
            return Err(crate::error::bad_graph(
                "parse",
                "text holds no code of an op of the host",
                name,
            ));
        }
        _ => (Kind::Op(op(given)?), given.ty()?),
    };
    Ok(Read::Kind(read.0, read.1))
}

fn effect(given: &mut Given<'_, '_>) -> Result<Kind> {
    let text = match given.plain.is_empty() {
        true => None,
        false => read_quoted(given.plain.remove(0)),
    };
    let text = text.ok_or_else(|| given.wants("a string as the last argument", given.text))?;
    given.operands()?;
    let effect = match given.name {
        "check" => Effect::Check(text.into()),
        _ => Effect::Print(text.into()),
    };
    Ok(Kind::Effect(Arc::new(effect)))
}

/// An op by its name: elementwise, structural, or a composite that stays one node.
fn op(given: &mut Given<'_, '_>) -> Result<Op> {
    static MAPS: Lazy<FxHashMap<&str, &Elementwise>> =
        Lazy::new(|| elementwise::tables().map(|def| (def.name, def)).collect());
    static CALLS: Lazy<FxHashMap<&str, &Composite>> = Lazy::new(|| {
        let own = composite::tables().filter(|composite| composite.stays());
        own.map(|composite| (composite.name, composite)).collect()
    });
    static DEFS: Lazy<FxHashMap<&str, &StructuralDef>> =
        Lazy::new(|| structural::defs().iter().map(|&def| (def.name, def)).collect());
    if let Some(def) = MAPS.get(given.name) {
        given.operands()?;
        return Ok(Op::Map(def));
    }
    if let Some(composite) = CALLS.get(given.name) {
        let mut attributes = Vec::with_capacity(composite.params.len());
        for param in composite.params {
            attributes.push(argument(given, param)?);
        }
        return Ok(Op::Call(Call { composite, attributes: attributes.into() }));
    }
    let Some(def) = DEFS.get(given.name) else {
        return Err(given.wants("the name of an op", given.name));
    };
    given.operands()?;
    structural(given, def)
}

fn structural(given: &mut Given<'_, '_>, def: &StructuralDef) -> Result<Op> {
    let mut op = (def.blank)();
    let mut axes = None;
    for field in (def.fields)(&mut op) {
        given.field(field, &mut axes)?;
    }
    Ok(op)
}

/// The last sizes of a shape.
fn trailing(shape: &Shape, count: usize) -> Option<Dims> {
    let first = shape.rank().checked_sub(count)?;
    Some(shape.dims()[first..].iter().copied().collect())
}

/// The argument of a parameter: an operand, or an attribute of the parameter's kind.
fn argument(given: &mut Given<'_, '_>, param: &Param) -> Result<Attr> {
    let wanted = format!("argument {} of {}", param.name, given.name);
    let text = given.plain.pop().or_else(|| given.take(param.name));
    let Some(text) = text else {
        return match fits(param.kind, &Attr::None) {
            true => Ok(Attr::None),
            false => Err(given.wants(wanted, given.text)),
        };
    };
    match param.kind {
        ParamKind::Tensor(_)
        | ParamKind::MaybeTensor(_)
        | ParamKind::Number
        | ParamKind::MaybeNumber
        | ParamKind::Key => {
            given.operand(text)?;
            Ok(Attr::Operand)
        }
        ParamKind::Tensors => {
            let items = text.strip_prefix('[').and_then(|rest| split(rest.strip_suffix(']')?));
            let items = items.ok_or_else(|| given.wants(wanted, text))?;
            items.iter().try_for_each(|item| given.operand(item))?;
            Ok(Attr::Operands(items.len() as u32))
        }
        kind @ (ParamKind::Bool
        | ParamKind::MaybeBool
        | ParamKind::Int
        | ParamKind::MaybeInt
        | ParamKind::Float
        | ParamKind::MaybeFloat
        | ParamKind::Ints
        | ParamKind::Pairs
        | ParamKind::Shape
        | ParamKind::DType
        | ParamKind::MaybeDType
        | ParamKind::Word(_)
        | ParamKind::Padding
        | ParamKind::Text
        | ParamKind::MaybeDevice) => {
            let attr = attribute(text).filter(|attr| fits(kind, attr));
            attr.ok_or_else(|| given.wants(wanted, text))
        }
    }
}

/// An attribute from its text.
fn attribute(text: &str) -> Option<Attr> {
    if let Some(truth) = read_truth(text) {
        return Some(Attr::Bool(truth));
    }
    if text.starts_with('"') {
        return read_quoted(text).map(|text| Attr::Text(text.into()));
    }
    if text.starts_with('(') {
        let list: Extents = tuple(text, read_int)?;
        return Some(Attr::of_extents(&list));
    }
    if let Some(dtype) = DType::from_name(text) {
        return Some(Attr::DType(dtype));
    }
    let int = text.parse().ok().map(Attr::Int);
    let number = int.or_else(|| read_float(text).map(Attr::Float));
    number.or_else(|| read_int(text).map(Attr::from))
}

fn is_ints(attr: &Attr) -> bool {
    matches!(attr, Attr::Int(_) | Attr::Size(_) | Attr::Ints(_) | Attr::Sizes(_))
}

/// Whether the body of a composite can read an attribute as a parameter of this kind.
fn fits(kind: ParamKind, attr: &Attr) -> bool {
    match kind {
        ParamKind::Tensor(_) | ParamKind::Tensors | ParamKind::Number | ParamKind::Key => false,
        ParamKind::MaybeTensor(_) | ParamKind::MaybeNumber => matches!(attr, Attr::None),
        ParamKind::Bool => matches!(attr, Attr::Bool(_)),
        ParamKind::MaybeBool => matches!(attr, Attr::Bool(_) | Attr::None),
        ParamKind::Int => matches!(attr, Attr::Int(_) | Attr::Size(_)),
        ParamKind::MaybeInt => matches!(attr, Attr::Int(_) | Attr::Size(_) | Attr::None),
        ParamKind::Float => matches!(attr, Attr::Float(_) | Attr::Int(_)),
        ParamKind::MaybeFloat => matches!(attr, Attr::Float(_) | Attr::Int(_) | Attr::None),
        ParamKind::Ints => is_ints(attr) || matches!(attr, Attr::None),
        ParamKind::Pairs | ParamKind::Shape => is_ints(attr),
        ParamKind::DType => matches!(attr, Attr::DType(_)),
        ParamKind::MaybeDType => matches!(attr, Attr::DType(_) | Attr::None),
        ParamKind::Word(words) => matches!(attr, Attr::Text(text) if words.contains(&&**text)),
        ParamKind::Padding => is_ints(attr) || matches!(attr, Attr::Text(_)),
        ParamKind::Text => matches!(attr, Attr::Text(_)),
        ParamKind::MaybeDevice => matches!(attr, Attr::Text(_) | Attr::None),
    }
}
