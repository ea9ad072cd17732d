//! From listed values to steps: kernels that do several ops, and registers.

use smallvec::SmallVec;

use super::build::{Builder, Form, Node, Port, Work};
use super::kernels::Ops;
use super::{Constant, Output, Rows, Step, Value, padded};
use crate::cpu::{reduce, softmax};
use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::ops::elementwise::{Elementwise, arithmetic, exponential};

/// Elements of a tile: a few registers of so many stay in the innermost cache.
pub(super) const TILE: usize = 2048;
/// The same where nothing but the result is written, and no row is repeated.
const LONE_TILE: usize = 8192;
/// The same where no element is written at all, as rows come to numbers, or by one kernel that goes
/// from row to row.
const READ_TILE: usize = 1 << 16;
/// Shorter rows that all rows read are repeated for the whole tile, so that an op is one call.
const LONG: usize = 256;
/// The most bytes of all registers.
pub(super) const MOST: usize = 512 << 10;

impl Ops {
    /// The op of the table that begins with, or is, such ops.
    pub fn of(def: &'static Elementwise) -> Option<Ops> {
        let known = [
            (&arithmetic::add, Ops::Add),
            (&arithmetic::subtract, Ops::Subtract),
            (&arithmetic::multiply, Ops::Multiply),
            (&arithmetic::quotient, Ops::Divide),
            (&exponential::exp, Ops::Exp),
        ];
        known.into_iter().find(|(own, _)| *own == def).map(|(_, ops)| ops)
    }

    fn commutes(self) -> bool {
        matches!(self, Ops::Add | Ops::Multiply)
    }

    /// These ops, then one with a shared row.
    fn then(self, op: Ops) -> Option<Ops> {
        match (self, op) {
            (Ops::Multiply, Ops::Multiply) => Some(Ops::MultiplyTwice),
            (Ops::MultiplyTwice, Ops::Add) => Some(Ops::MultiplyTwiceAdd),
            _ => None,
        }
    }

    /// A difference with a number of the row, then these ops.
    fn after_difference(self) -> Option<Ops> {
        match self {
            Ops::Multiply => Some(Ops::SubtractMultiply),
            Ops::MultiplyTwice => Some(Ops::SubtractMultiplyTwice),
            Ops::MultiplyTwiceAdd => Some(Ops::SubtractMultiplyTwiceAdd),
            Ops::Add
            | Ops::Subtract
            | Ops::Divide
            | Ops::SubtractMultiply
            | Ops::SubtractMultiplyTwice
            | Ops::SubtractMultiplyTwiceAdd
            | Ops::SubtractExp
            | Ops::Exp => None,
        }
    }

    /// How many numbers of a row they take.
    fn singles(self) -> usize {
        let takes_two = matches!(
            self,
            Ops::SubtractMultiply | Ops::SubtractMultiplyTwice | Ops::SubtractMultiplyTwiceAdd
        );
        if takes_two { 2 } else { 1 }
    }
}

/// How often each value is read.
pub(super) fn uses(nodes: &[Node], results: &[(Value, DType)]) -> Vec<u32> {
    let mut uses = vec![0; nodes.len()];
    results.iter().for_each(|(x, _)| uses[x.0 as usize] += 1);
    for (i, node) in nodes.iter().enumerate().rev() {
        if uses[i] > 0 {
            node.args.iter().for_each(|&x| uses[x as usize] += 1);
        }
    }
    uses
}

/// Lets kernels do several ops at a time.
fn fuse(nodes: &mut [Node], results: &[(Value, DType)]) {
    let uses = uses(nodes, results);
    for i in 0..nodes.len() {
        if let Some(made) = fused(nodes, i, &uses) {
            nodes[i] = made;
        }
    }
}

/// Lets differences with a number of the row be made again by all that read them, squares that are
/// summed and products, instead of being written and read.
fn repeat_differences(nodes: &mut [Node], results: &[(Value, DType)]) {
    let uses = uses(nodes, results);
    for i in 0..nodes.len() {
        if !matches!(nodes[i].work, Work::Rows(Ops::Subtract)) {
            continue;
        }
        let (own, x, from) = (i as u16, nodes[i].args[0], nodes[i].args[1]);
        let mut made: SmallVec<[(usize, Node); 2]> = SmallVec::new();
        let mut reads = 0;
        for (k, node) in nodes.iter().enumerate().filter(|(k, _)| uses[*k] > 0) {
            let again = match node.work {
                Work::FoldPairs(_) if node.args[..] == [own, own] => {
                    let kernel = reduce::fold_of_distances(node.dtype);
                    kernel.map(|kernel| node.made(Work::FoldPairs(kernel), &[x, from]))
                }
                Work::Rows(ops) if node.args[0] == own && !node.args[1..].contains(&own) => {
                    let args: SmallVec<[u16; 5]> =
                        [x, from].into_iter().chain(node.args[1..].iter().copied()).collect();
                    ops.after_difference().map(|ops| node.made(Work::Rows(ops), &args))
                }
                Work::Port(_)
                | Work::Number(_)
                | Work::Map { .. }
                | Work::Spread
                | Work::Fold { .. }
                | Work::FoldPairs(_)
                | Work::Rows(_)
                | Work::Softmax(_) => None,
            };
            if let Some(again) = again {
                reads += node.args.iter().filter(|&&arg| arg == own).count();
                made.push((k, again));
            }
        }
        if reads == uses[i] as usize {
            made.into_iter().for_each(|(k, again)| nodes[k] = again);
        }
    }
}

fn fused(nodes: &[Node], i: usize, uses: &[u32]) -> Option<Node> {
    let node = &nodes[i];
    let at = |x: u16| &nodes[x as usize];
    match node.work {
        Work::Map { op: Some(Ops::Exp), .. } if node.form == Form::Whole => {
            let x = node.args[0];
            let is_shifted = matches!(at(x).work, Work::Rows(Ops::Subtract));
            let made = || node.made(Work::Rows(Ops::SubtractExp), &at(x).args);
            (is_shifted && uses[x as usize] == 1).then(made)
        }
        Work::Map { op: Some(op), .. } if node.form == Form::Whole => {
            op.kernel(node.dtype)?;
            let [a, b] = [node.args[0], node.args[1]];
            let orders: &[[u16; 2]] = if op.commutes() { &[[a, b], [b, a]] } else { &[[a, b]] };
            for &[x, other] in orders {
                if matches!(at(other).work, Work::Spread) && at(x).form == Form::Whole {
                    return Some(node.made(Work::Rows(op), &[x, at(other).args[0]]));
                }
            }
            for &[x, other] in orders {
                if at(other).form == Form::Shared
                    && let Work::Rows(before) = at(x).work
                    && uses[x as usize] == 1
                    && let Some(ops) = before.then(op)
                {
                    let mut args: SmallVec<[u16; 5]> = at(x).args.clone();
                    args.push(other);
                    return Some(node.made(Work::Rows(ops), &args));
                }
            }
            None
        }
        Work::Fold { kind: Reduction::Sum, .. } => {
            let x = node.args[0];
            let Work::Map { op: Some(Ops::Multiply), .. } = at(x).work else { return None };
            let is_whole = at(x).args.iter().all(|&arg| at(arg).form == Form::Whole);
            if uses[x as usize] != 1 || !is_whole {
                return None;
            }
            let kernel = reduce::fold_of_products(node.dtype)?;
            Some(node.made(Work::FoldPairs(kernel), &at(x).args))
        }
        Work::Port(_)
        | Work::Number(_)
        | Work::Map { .. }
        | Work::Spread
        | Work::Fold { .. }
        | Work::FoldPairs(_)
        | Work::Rows(_)
        | Work::Softmax(_) => None,
    }
}

/// Lets one kernel do all of a softmax, of which nothing but the result is read elsewhere.
fn fuse_softmax(nodes: &mut [Node], n: usize, results: &[(Value, DType)]) {
    let uses = uses(nodes, results);
    for i in 0..nodes.len() {
        let at = |x: u16| (&nodes[x as usize], uses[x as usize]);
        let Work::Rows(Ops::Divide) = nodes[i].work else { continue };
        let [(powers, 2), (sum, 1)] = [nodes[i].args[0], nodes[i].args[1]].map(at) else {
            continue;
        };
        let is_sum = matches!(sum.work, Work::Fold { kind: Reduction::Sum, round: None, .. });
        if !is_sum || sum.args[0] != nodes[i].args[0] {
            continue;
        }
        let Work::Rows(Ops::SubtractExp) = powers.work else { continue };
        let (x, (largest, 1)) = (powers.args[0], at(powers.args[1])) else { continue };
        let is_largest = matches!(largest.work, Work::Fold { kind: Reduction::Max, .. });
        if is_largest
            && largest.args[0] == x
            && let Some(kernel) = softmax::of_rows(nodes[i].dtype, n)
        {
            nodes[i] = nodes[i].made(Work::Softmax(kernel), &[x]);
        }
    }
}

pub(super) fn finish(builder: Builder, results: &[(Value, DType)]) -> Option<Rows> {
    let Builder { n, mut nodes, ports } = builder;
    fuse(&mut nodes, results);
    repeat_differences(&mut nodes, results);
    fuse_softmax(&mut nodes, n, results);
    let uses = uses(&nodes, results);
    let is_written = |(i, node): (usize, &Node)| {
        let is_by_row = matches!(node.work, Work::Port(_) | Work::Softmax(_));
        uses[i] > 0 && node.form == Form::Whole && !is_by_row
    };
    // What is shared is repeated, what does not lie so is copied.
    let is_there = |(i, node): (usize, &Node)| match (node.form, &node.work) {
        (Form::Shared, _) => uses[i] == 0,
        (Form::Whole, &Work::Port(k)) => ports[k].lies(n),
        _ => true,
    };
    let are_there = nodes.iter().enumerate().all(is_there);
    let tile = match nodes.iter().enumerate().filter(|&x| is_written(x)).count() {
        0 if n >= LONG && are_there => READ_TILE,
        0 | 1 if n >= LONG => LONE_TILE,
        _ => TILE,
    };
    let rows = (tile / n).max(1);
    let widest = nodes.iter().map(|node| node.dtype.compute().size()).max()?;
    let last = last_uses(&nodes, &uses, results);
    let mut lower = Lower {
        n,
        rows,
        room: [
            (rows * n * widest).next_multiple_of(64),
            (padded(rows) * widest).next_multiple_of(64),
        ],
        free: [Vec::new(), Vec::new()],
        scratch: 0,
        last: &last,
        nodes: &nodes,
        ports: &ports,
        homes: vec![0; nodes.len()],
        constants: Vec::new(),
        steps: Vec::new(),
    };
    // Constants keep their registers, so they come first.
    for is_constant in [true, false] {
        for i in 0..nodes.len() {
            let own = matches!(nodes[i].form, Form::Number | Form::Shared);
            if uses[i] > 0 && own == is_constant {
                lower.node(i);
            }
        }
    }
    let Lower { homes, constants, steps, scratch, .. } = lower;
    let stride = |node: &Node| match node.form {
        Form::Whole => n * node.dtype.compute().size(),
        Form::Single => node.dtype.compute().size(),
        Form::Shared | Form::Number if repeats(n, rows) => n * node.dtype.compute().size(),
        Form::Shared | Form::Number => 0,
    };
    let strides = nodes.iter().map(stride).collect();
    let mut outputs: Vec<Output> = Vec::with_capacity(results.len());
    for &(x, dtype) in results {
        let node = &nodes[x.0 as usize];
        if !matches!(node.form, Form::Whole | Form::Single) {
            return None;
        }
        let is_computed = !matches!(node.work, Work::Port(_));
        let is_first = outputs.iter().all(|other| other.value != x.0);
        let is_single = node.form == Form::Single;
        // Numbers are computed for more rows than there may be.
        let may_bind = is_computed && is_first && !is_single && dtype.compute().dtype() == dtype;
        let before = before(&nodes, &last, x.0);
        outputs.push(Output { value: x.0, dtype, is_single, may_bind, before });
    }
    (scratch <= MOST).then_some(Rows {
        n,
        rows,
        ports,
        constants,
        steps,
        outputs,
        homes,
        strides,
        scratch,
    })
}

/// Whether shared rows are repeated for the whole tile.
fn repeats(n: usize, rows: usize) -> bool {
    rows == 1 || n < LONG
}

/// The last value that reads each; results are read last of all.
pub(super) fn last_uses(nodes: &[Node], uses: &[u32], results: &[(Value, DType)]) -> Vec<usize> {
    let mut last = vec![0; nodes.len()];
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| uses[*i] > 0) {
        node.args.iter().for_each(|&x| last[x as usize] = i);
    }
    results.iter().for_each(|(x, _)| last[x.0 as usize] = usize::MAX);
    last
}

/// Values that may be computed in the memory of `x`: each is read for the last time by the next,
/// element by element. So memory outside the cache is asked for early, where the op that makes the
/// value takes long enough to wait for it; plain arithmetic is faster in a register.
fn before(nodes: &[Node], last: &[usize], mut x: u16) -> SmallVec<[u16; 4]> {
    let mut found = SmallVec::new();
    loop {
        let node = &nodes[x as usize];
        let goes = |&&arg: &&u16| {
            let own = &nodes[arg as usize];
            let is_alike = own.dtype.compute().size() == node.dtype.compute().size();
            let is_long = match own.work {
                Work::Map { op, .. } => matches!(op, None | Some(Ops::Exp)),
                Work::Rows(ops) => ops == Ops::SubtractExp,
                Work::Port(_)
                | Work::Number(_)
                | Work::Spread
                | Work::Fold { .. }
                | Work::FoldPairs(_)
                | Work::Softmax(_) => false,
            };
            own.form == Form::Whole && is_long && is_alike && last[arg as usize] == x as usize
        };
        match node.args.iter().find(goes) {
            Some(&arg) if matches!(node.work, Work::Map { .. } | Work::Rows(_)) => x = arg,
            Some(_) | None => return found,
        }
        found.push(x);
    }
}

/// Gives values registers, and lists steps.
struct Lower<'a> {
    n: usize,
    rows: usize,
    /// Bytes of a register of elements, and of one of numbers
    room: [usize; 2],
    free: [Vec<usize>; 2],
    scratch: usize,
    last: &'a [usize],
    nodes: &'a [Node],
    ports: &'a [Port],
    homes: Vec<usize>,
    constants: Vec<Constant>,
    steps: Vec<Step>,
}

impl Lower<'_> {
    fn take(&mut self, is_single: bool) -> usize {
        let kind = usize::from(is_single);
        self.free[kind].pop().unwrap_or_else(|| {
            self.scratch += self.room[kind];
            self.scratch - self.room[kind]
        })
    }

    /// Frees the registers of operands that nobody reads again.
    fn release(&mut self, i: usize) {
        let nodes = self.nodes;
        let mut args = nodes[i].args.clone();
        args.sort_unstable();
        args.dedup();
        for x in args {
            let node = &nodes[x as usize];
            let is_constant = matches!(node.form, Form::Number | Form::Shared);
            if self.last[x as usize] == i && !is_constant && !self.is_direct(x as usize) {
                self.free[usize::from(node.form == Form::Single)].push(self.homes[x as usize]);
            }
        }
    }

    /// Whether what a port reads is read where it lies.
    fn is_direct(&self, i: usize) -> bool {
        let node = &self.nodes[i];
        let Work::Port(k) = node.work else { return false };
        let port = &self.ports[k];
        port.is_wide()
            && match node.form {
                Form::Whole => port.lies(self.n) || port.col == 1 && self.rows == 1,
                // Numbers are computed for more rows than there may be.
                Form::Single | Form::Number => false,
                Form::Shared => port.col == 1 && (self.rows == 1 || !repeats(self.n, self.rows)),
            }
    }

    fn node(&mut self, i: usize) {
        let nodes = self.nodes;
        let node = &nodes[i];
        let (to, args) = (i as u16, &node.args);
        let is_single = node.form == Form::Single;
        let is_direct = self.is_direct(i);
        // A kernel may write over an operand whose elements are as wide, and reads all of a block
        // before it writes any.
        let width = |x: u16| nodes[x as usize].dtype.compute().size();
        let is_elementwise =
            matches!(node.work, Work::Map { .. } | Work::Rows(_) | Work::Softmax(_));
        let is_even = args.iter().all(|&x| width(x) == width(to));
        let may_share = is_elementwise && is_even;
        if may_share {
            self.release(i);
        }
        if !is_direct {
            self.homes[i] = self.take(is_single);
        }
        if !may_share {
            self.release(i);
        }
        let of = |k: usize| args.get(k).copied().unwrap_or(args[0]);
        match node.work {
            Work::Port(port) if node.form == Form::Shared => {
                let times = match (is_direct, repeats(self.n, self.rows)) {
                    (true, _) => 0,
                    (false, true) => self.rows,
                    (false, false) => 1,
                };
                self.constants.push(Constant::Row { value: to, port, times });
            }
            Work::Port(port) => {
                self.steps.push(Step::Load { port, to, is_single, is_direct });
            }
            Work::Number(bits) => {
                // As often as those need it that read it: for each row, or for each element.
                let reads = |node: &Node| node.form == Form::Whole && node.args.contains(&to);
                let whole = match (nodes.iter().any(reads), repeats(self.n, self.rows)) {
                    (false, _) => 0,
                    (true, true) => self.rows * self.n,
                    (true, false) => self.n,
                };
                let width = node.dtype.compute().width();
                let count = whole.max(padded(self.rows));
                self.constants.push(Constant::Number { value: to, bits, width, count });
            }
            Work::Map { kernel, round, .. } => {
                let is_shared =
                    |&x: &u16| matches!(nodes[x as usize].form, Form::Number | Form::Shared);
                let by_row = !repeats(self.n, self.rows) && args.iter().any(is_shared);
                let args = [of(0), of(1), of(2)];
                self.steps.push(Step::Map { kernel, round, args, to, is_single, by_row });
            }
            Work::Spread => {
                let width = node.dtype.compute().width();
                self.steps.push(Step::Spread { from: args[0], to, width });
            }
            Work::Fold { kernel, round, .. } => {
                self.steps.push(Step::Fold { kernel, round, x: args[0], to });
            }
            Work::FoldPairs(kernel) => {
                self.steps.push(Step::FoldPairs { kernel, x: [of(0), of(1)], to });
            }
            Work::Softmax(kernel) => {
                self.steps.push(Step::Softmax { kernel, x: args[0], to });
            }
            Work::Rows(ops) => {
                let Some(kernel) = ops.kernel(node.dtype) else { return };
                let behind = 1 + ops.singles();
                let (singles, shared) = ([of(1), of(behind - 1)], [of(behind), of(behind + 1)]);
                self.steps.push(Step::Rows { kernel, x: of(0), singles, shared, to });
            }
        }
    }
}
