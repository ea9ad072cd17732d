//! Graphs from text: the reverse of [`print`](super::print).
//!
//! The text is read line by line, without recursion, and the list is verified, so every list that
//! is returned keeps the law of graphs. Memory is proportional to the length of the text: an array
//! of one repeated element is one element, and a size is only a number.

mod op;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use super::literal::{self, digits, extent, read_quoted, split};
use super::operands::check_list;
use super::{Args, ControlFlow, ControlFlowKind, Effect, Graph, Kind, List, Node, unit};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{self, Error, Result};
use crate::ops::emit::{Id, catch};
use crate::ops::number::Number;
use crate::ops::op::Type;
use crate::shape::{MAX_RANK, Scope, Shape};
use crate::site::Site;
use op::Given;

/// How deep control flow may be nested.
const DEPTH: usize = 64;

/// The list that a text describes.
pub fn parse(text: &str) -> Result<List> {
    parse_on(text).map(|(list, _)| list)
}

/// The list that a text describes, and its device, which is the CPU unless the text names another.
/// A text gives no sizes for its symbols, so sizes that may be equal are taken to be equal.
pub fn parse_on(text: &str) -> Result<(List, Device)> {
    let mut parser = Parser { open: vec![Open::default()], device: None, line: 0 };
    for line in text.lines() {
        parser.line += 1;
        let line = line.trim();
        if !line.is_empty() && !line.starts_with("# ") && line != "#" {
            parser.read(line)?;
        }
    }
    let finished = parser.open.pop().filter(|_| parser.open.is_empty());
    let Some(open) = finished else {
        return Err(parser.wants("a closing brace", "the end"));
    };
    let graph = Graph::from_list(open.list);
    // Rules that refuse by unwinding are caught here as well.
    match graph.list().symbols() {
        symbols if symbols.is_empty() || Scope::is_inside() => catch(|| graph.verify())??,
        symbols => {
            let scope = Scope::new();
            symbols.into_iter().for_each(|symbol| scope.admit(symbol, None));
            scope.run(|| catch(|| graph.verify()))??;
        }
    }
    let list = graph.into_list();
    check_list(&list)?;
    Ok((list, parser.device.unwrap_or(Device::Cpu)))
}

/// A list being read.
#[derive(Default)]
struct Open {
    list: List,
    /// Whether its `return` line was read
    returned: bool,
    /// The control flow whose bodies are being read
    flow: Option<OpenFlow>,
}

/// A control-flow op some of whose bodies have been read.
struct OpenFlow {
    kind: ControlFlowKind,
    args: Args,
    results: SmallVec<[Type; 2]>,
    bodies: SmallVec<[Arc<List>; 2]>,
}

/// A line `%id: type = kind(arguments) …`, cut into its parts.
struct Statement<'t> {
    id: u32,
    /// The text between colon and equals sign
    ty: Option<&'t str>,
    kind: &'t str,
    /// The text in parentheses
    arguments: Option<&'t str>,
    /// The text in parentheses behind the arrow
    results: Option<&'t str>,
    name: Option<String>,
    opens: bool,
}

struct Parser {
    open: Vec<Open>,
    device: Option<Device>,
    line: usize,
}

impl Parser {
    /// Refuses the line, with the start of the text that was found.
    fn wants(&self, want: impl std::fmt::Display, got: &str) -> Error {
        let start: String = got.chars().take(40).collect();
        let dots = if start.len() < got.len() { "..." } else { "" };
        error::bad_text("parse_graph", self.line, want, format!("{start}{dots}"))
    }

    fn top(&mut self) -> &mut Open {
        // One list stays open until the text ends.
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    fn read(&mut self, line: &str) -> Result<()> {
        if let Some(rest) = line.strip_prefix('}') {
            return self.close(rest.trim_start());
        }
        if self.top().returned {
            return Err(self.wants("the end of the list", line));
        }
        if line.starts_with('%') {
            let statement = self.statement(line)?;
            return self.node(statement);
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "return" => self.results(without_comment(rest)),
            "device" if self.is_start() => {
                let name = without_comment(rest);
                let wanted = || self.wants("the name of a device", name);
                self.device = Some(Device::named(name).ok_or_else(wanted)?);
                Ok(())
            }
            "numbers" if self.top().list.nodes.is_empty() => {
                self.top().list.numbers = self.numbers(without_comment(rest))?;
                Ok(())
            }
            _ => Err(self.wants("a node, return or a closing brace", line)),
        }
    }

    /// Whether nothing has been read yet.
    fn is_start(&self) -> bool {
        let [first] = &self.open[..] else { return false };
        self.device.is_none() && first.list.nodes.is_empty() && first.list.numbers.is_empty()
    }

    /// The table of numbers: a count of numeric inputs, or the text of each entry.
    fn numbers(&self, text: &str) -> Result<Vec<Number>> {
        let wanted = || self.wants("a count of numeric inputs, or what each number is", text);
        if let Some(count) = digits::<u16>(text) {
            return Ok(vec![Number::Input; count.into()]);
        }
        let mut numbers: Vec<Number> = Vec::new();
        for item in split(text).ok_or_else(wanted)? {
            let number = literal::read_number(item, numbers.len() as u32);
            numbers.push(number.ok_or_else(wanted)?);
        }
        Ok(numbers)
    }

    fn results(&mut self, text: &str) -> Result<()> {
        let count = self.top().list.nodes.len();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let id = item.strip_prefix('%').and_then(digits).filter(|id| (*id as usize) < count);
            let id: u32 = id.ok_or_else(|| self.wants("a result such as %0", item))?;
            self.top().list.outputs.push(Id(id));
        }
        self.top().returned = true;
        Ok(())
    }

    /// Cuts a line of a node into its parts.
    fn statement<'t>(&self, line: &'t str) -> Result<Statement<'t>> {
        let (left, rest) = line.split_once('=').ok_or_else(|| self.wants("%id: type = …", line))?;
        let (id, ty) = match left.split_once(':') {
            Some((id, ty)) => (id, Some(ty.trim())),
            None => (left, None),
        };
        let id = id.trim().strip_prefix('%').and_then(digits);
        let id = id.ok_or_else(|| self.wants("an id such as %0", left))?;
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (kind, rest) = rest.split_at(end);
        let mut statement =
            Statement { id, ty, kind, arguments: None, results: None, name: None, opens: false };
        let mut rest = rest.trim_start();
        if rest.starts_with('(') {
            (statement.arguments, rest) = self.group(rest)?;
        }
        if let Some(results) = rest.strip_prefix("->") {
            (statement.results, rest) = self.group(results.trim_start())?;
        }
        if rest.starts_with('"') {
            let end = quoted_end(rest).ok_or_else(|| self.wants("a closing quote", rest))?;
            let name = read_quoted(&rest[..end]);
            statement.name = Some(name.ok_or_else(|| self.wants("a string", rest))?);
            rest = rest[end..].trim_start();
        }
        if let Some(inside) = rest.strip_prefix('{') {
            statement.opens = true;
            rest = inside.trim_start();
        }
        match without_comment(rest) {
            "" => Ok(statement),
            more => Err(self.wants("the end of the line", more)),
        }
    }

    /// The text in the parentheses that a text starts with, and the rest behind them.
    fn group<'t>(&self, text: &'t str) -> Result<(Option<&'t str>, &'t str)> {
        let inside = text.strip_prefix('(').ok_or_else(|| self.wants("parentheses", text))?;
        // The closing parenthesis is the first that is not opened inside: the text before it is
        // balanced.
        let end = closing(inside).ok_or_else(|| self.wants("a closing parenthesis", text))?;
        Ok((Some(&inside[..end]), inside[end + 1..].trim_start()))
    }

    /// Adds the node that a line describes, or opens control flow.
    fn node(&mut self, statement: Statement<'_>) -> Result<()> {
        let next = self.top().list.nodes.len() as u32;
        if statement.id != next {
            return Err(self.wants(format!("%{next}"), &format!("%{}", statement.id)));
        }
        let count = |open: &Open| open.list.numbers.len() as u32;
        let numbers = count(&self.open[0]).max(count(self.top()));
        let mut given = Given::new(self, &statement, numbers)?;
        let kind = op::kind(&mut given)?;
        let args = given.finish()?;
        let is_flow = matches!(kind, op::Read::ControlFlow(_));
        if is_flow != statement.opens || is_flow != statement.results.is_some() {
            let want = if is_flow { "-> (types) {" } else { "no braces" };
            return Err(self.wants(want, statement.kind));
        }
        match kind {
            op::Read::Kind(kind, ty) => {
                self.top().list.nodes.push(Node { kind, args, ty, site: Site::default() });
            }
            op::Read::ControlFlow(kind) => {
                let results = self.types(statement.results.unwrap_or(""))?;
                if self.open.len() >= DEPTH {
                    return Err(self.wants(format!("at most {DEPTH} levels"), statement.kind));
                }
                let bodies = SmallVec::new();
                self.top().flow = Some(OpenFlow { kind, args, results, bodies });
                self.open.push(Open::default());
            }
        }
        if let Some(name) = statement.name {
            // The control-flow op that was just opened belongs to the list below.
            let list = if is_flow { self.open.len() - 2 } else { self.open.len() - 1 };
            self.open[list].list.names.insert(Id(next), name.into());
        }
        Ok(())
    }

    /// `}` or `} {`: a body ends.
    fn close(&mut self, rest: &str) -> Result<()> {
        if self.open.len() < 2 {
            return Err(self.wants("no closing brace: nothing is open", "}"));
        }
        if !self.top().returned {
            return Err(self.wants("return before the brace", "}"));
        }
        let opens = rest.starts_with('{');
        let rest = without_comment(rest.strip_prefix('{').unwrap_or(rest).trim_start());
        if !rest.is_empty() {
            return Err(self.wants("the end of the line", rest));
        }
        let body = self.open.pop().map(|open| open.list).unwrap_or_default();
        let open = self.top();
        let Some(mut flow) = open.flow.take() else {
            return Err(error::internal("a body without its control flow"));
        };
        flow.bodies.push(Arc::new(body));
        if opens {
            open.flow = Some(flow);
            self.open.push(Open::default());
            return Ok(());
        }
        let OpenFlow { kind, args, results, bodies } = flow;
        let wanted = match kind {
            ControlFlowKind::Branch => bodies.len(),
            ControlFlowKind::While { .. } => 2,
            ControlFlowKind::Scan { .. } => 1,
            ControlFlowKind::Host(_) => 0,
        };
        if bodies.len() != wanted {
            let got = format!("{} of {}", bodies.len(), kind.name());
            return Err(self.wants(format!("{wanted} bodies"), &got));
        }
        let kind = Kind::ControlFlow(Arc::new(ControlFlow { kind, bodies, results }));
        open.list.nodes.push(Node { kind, args, ty: unit(), site: Site::default() });
        Ok(())
    }

    /// Several types, separated by commas.
    fn types(&self, text: &str) -> Result<SmallVec<[Type; 2]>> {
        let parts = split(text).ok_or_else(|| self.wants("types", text))?;
        parts.into_iter().map(|part| self.ty(part)).collect()
    }

    /// A type: `float32 (2, 3)`.
    fn ty(&self, text: &str) -> Result<Type> {
        let wanted = || self.wants("a type such as float32 (2, 3)", text);
        let (dtype, shape) = text.split_once(' ').ok_or_else(wanted)?;
        let dtype = DType::from_name(dtype).ok_or_else(wanted)?;
        let shape = read_shape(shape.trim()).ok_or_else(wanted)?;
        if shape.dims().iter().all(|size| size.known().is_some()) {
            shape.check("parse_graph")?;
        }
        Ok(Type::new(dtype, shape))
    }
}

/// Sizes in parentheses.
fn read_shape(text: &str) -> Option<Shape> {
    let sizes = split(text.strip_prefix('(')?.strip_suffix(')')?)?;
    if sizes.len() > MAX_RANK {
        return None;
    }
    sizes.into_iter().map(literal::read_dim).collect()
}

/// The text before a comment.
fn without_comment(text: &str) -> &str {
    match extent(text, '#') {
        Some(end) => text[..end].trim(),
        // The quotes do not close, as may happen in a path.
        None => text.split('#').next().unwrap_or("").trim(),
    }
}

/// The end of the string that a text starts with.
fn quoted_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        if c == '"' && !escaped {
            return Some(i + 1);
        }
        escaped = !escaped && c == '\\';
    }
    None
}

/// The position of the parenthesis that closes one before the text.
fn closing(text: &str) -> Option<usize> {
    let (mut open, mut i) = (0usize, 0);
    while let Some(c) = text[i..].chars().next() {
        match c {
            '"' => {
                i += quoted_end(&text[i..])?;
                continue;
            }
            '(' | '[' => open += 1,
            ')' if open == 0 => return Some(i),
            ')' | ']' => open = open.checked_sub(1)?,
            _ => {}
        }
        i += c.len_utf8();
    }
    None
}
