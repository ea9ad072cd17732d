//! Registers for the operations of a trace, and their instructions.
//!
//! Two vectors of elements go through the operations side by side, so that the processor finds work
//! while it waits for one of them. A value is in a register from where it is made or first read to
//! its last use; where registers are short, the one whose next use is farthest goes to memory, unless
//! memory has it anyway: elements of inputs, numbers and constants are read again.
//!
//! Values that are summed are added to the lanes of their sum, in the order that sums have. A turn
//! then has as many elements as a sum has lanes, so that each vector of these is one of its own.

use super::x86::{Assembler, Condition, General, Opcode, Register, Source, Width};
use crate::cpu::reduce::LANES;
use crate::scalar::trace::{Binary, Id, Operation, Trace, Unary};

/// Vectors that go through the operations side by side.
const COPIES: usize = 2;
/// The most vector registers.
const MOST: usize = Width::Bits512.registers();

/// Bytes of each operand that one turn without sums works on.
pub const fn step(width: Width) -> usize {
    COPIES * width.bytes()
}

/// Bytes of the lanes of a sum.
pub const SUM: usize = LANES * size_of::<f32>();

/// Where the operands of the code are: the place among elements, the bits of numbers, memory for
/// values without a register, and constants. (`rdi` has the table of addresses, `rdx` the place of
/// the end.)
const PLACE: General = General::Rsi;
const NUMBERS: General = General::Rcx;
const SPILLED: General = General::R8;
const CONSTANTS: General = General::R9;

/// Machine code of a trace.
pub struct Emitted {
    /// Constants, then instructions
    pub bytes: Vec<u8>,
    /// Where the instructions begin
    pub entry: usize,
    /// The bytes of memory that the lanes of sums, which come first, and values without a register
    /// need
    pub spilled: usize,
}

/// What becomes of the values of a trace.
pub struct Results<'a> {
    /// Those that are stored
    pub stored: &'a [Id],
    /// Those that are added to the lanes of a sum
    pub summed: &'a [Id],
}

/// A value of one of the vectors; what is the same for all is of the first.
pub type Name = (Id, usize);

/// What a turn does, in order.
#[derive(Clone, Copy)]
enum Item {
    Compute(Id),
    /// Leaves where the mask has a bit set
    Check(Id),
    /// Stores a value as that operand of the table
    Store(Id, usize),
    /// Adds a value, which nothing reads afterwards, to that sum
    Add(Id, usize),
}

struct Emitter<'a> {
    operations: &'a [Operation],
    code: Assembler,
    /// The value in each register
    held: [Option<Name>; MOST],
    /// The register and the place in memory of each value
    register: Vec<[Option<Register>; COPIES]>,
    place: Vec<[Option<i32>; COPIES]>,
    /// The moments at which each value is read, last first
    uses: Vec<[Vec<usize>; COPIES]>,
    /// The place of each constant
    constants: Vec<i32>,
    /// Bytes of memory that are taken, and the most that were
    spilled: i32,
    most: i32,
    /// Sums, and whether their lanes have registers, which are the last
    sums: usize,
    is_held: bool,
    /// The part of a turn: with sums there are several, for vectors one behind the other
    part: usize,
    now: usize,
}

/// The code that reads the inputs and writes what is stored behind them in the table of addresses.
pub fn emit(trace: &Trace, inputs: usize, results: &Results<'_>, width: Width) -> Emitted {
    let operations = &trace.operations[..];
    let Results { stored, summed } = *results;
    let mut is_needed = vec![false; operations.len()];
    stored.iter().chain(summed).chain(&trace.rare).for_each(|&id| is_needed[id as usize] = true);
    for (id, operation) in operations.iter().enumerate().rev() {
        if is_needed[id] {
            operation.operands().for_each(|x| is_needed[x as usize] = true);
        }
    }
    let is_made = |id: &Id| {
        let is_leaf = operations[*id as usize].operands().next().is_none();
        is_needed[*id as usize] && !is_leaf
    };
    let computed = (0..operations.len() as Id).filter(is_made).map(Item::Compute);
    let checks = trace.rare.map(Item::Check);
    let stores = stored.iter().enumerate().map(|(k, &id)| Item::Store(id, inputs + k));
    let adds = summed.iter().enumerate().map(|(k, &id)| Item::Add(id, k));
    let items: Vec<Item> = computed.chain(checks).chain(stores).chain(adds).collect();
    let sums = summed.len();

    let mut emitter = Emitter {
        operations,
        code: Assembler::new(width),
        held: [None; MOST],
        register: vec![[None; COPIES]; operations.len()],
        place: vec![[None; COPIES]; operations.len()],
        uses: vec![[const { Vec::new() }; COPIES]; operations.len()],
        constants: vec![0; operations.len()],
        spilled: 0,
        most: 0,
        sums,
        is_held: sums * SUM / width.bytes() <= width.registers() / 2,
        part: 0,
        now: 0,
    };
    emitter.write_constants(&is_needed);
    let entry = emitter.code.bytes.len();
    emitter.turns(&items);
    Emitted { bytes: emitter.code.bytes, entry, spilled: emitter.most as usize }
}

impl Emitter<'_> {
    fn write_constants(&mut self, is_needed: &[bool]) {
        for (id, operation) in self.operations.iter().enumerate() {
            if let (Operation::Constant(bits), true) = (operation, is_needed[id]) {
                self.constants[id] = self.code.bytes.len() as i32;
                let lanes = self.code.width.bytes() / size_of_val(bits);
                self.code.bytes.extend(bits.to_le_bytes().repeat(lanes));
            }
        }
    }

    /// The moments of a turn are its items, each for one vector after the other.
    fn find_uses(&mut self, items: &[Item]) {
        for moment in (0..items.len() * COPIES).rev() {
            let (item, copy) = (items[moment / COPIES], moment % COPIES);
            let operations = self.operations;
            let mut read = |id: Id| {
                let (id, copy) = name(operations, id, copy);
                let uses = &mut self.uses[id as usize][copy];
                if uses.last() != Some(&moment) {
                    uses.push(moment);
                }
            };
            match item {
                Item::Compute(id) => operations[id as usize].operands().for_each(&mut read),
                Item::Check(id) | Item::Store(id, _) | Item::Add(id, _) => read(id),
            }
        }
    }

    fn name(&self, id: Id, copy: usize) -> Name {
        name(self.operations, id, copy)
    }

    /// All turns: from `rsi` to `rdx`, in bytes, or to the first in which something is rare.
    fn turns(&mut self, items: &[Item]) {
        self.code.origin();
        self.move_lanes(Opcode::LOAD);
        self.code.compare();
        let mut exits = vec![self.code.jump(Condition::NotBelow)];
        let start = self.code.bytes.len();
        let turn = if self.sums > 0 { SUM } else { step(self.code.width) };
        for part in 0..turn / step(self.code.width) {
            self.part = part;
            self.part_of_turn(items, &mut exits);
        }
        self.code.advance(turn as i32);
        self.code.compare();
        let again = self.code.jump(Condition::Below);
        self.code.land(again, start);
        let end = self.code.bytes.len();
        exits.into_iter().for_each(|exit| self.code.land(exit, end));
        self.move_lanes(Opcode::STORE);
        self.code.leave();
    }

    /// The items of a part of a turn. Before and after it nothing but lanes of sums is in registers.
    fn part_of_turn(&mut self, items: &[Item], exits: &mut Vec<usize>) {
        self.find_uses(items);
        self.place.fill([None; COPIES]);
        self.spilled = (self.sums * SUM) as i32;
        for moment in 0..items.len() * COPIES {
            self.now = moment;
            let copy = moment % COPIES;
            match items[moment / COPIES] {
                Item::Compute(id) => self.compute(id, copy),
                Item::Check(id) => {
                    let mask = self.read((id, copy), &[]);
                    self.code.test(mask);
                    exits.push(self.code.jump(Condition::NotZero));
                }
                Item::Store(id, operand) => {
                    let value = self.read(self.name(id, copy), &[]);
                    let place = self.operand(operand, copy);
                    self.code.vector2(Opcode::STORE, value, place);
                }
                Item::Add(id, sum) => self.add(id, copy, sum),
            }
            self.release();
        }
        self.most = self.most.max(self.spilled);
    }

    /// Adds a vector to the lanes of a sum.
    fn add(&mut self, id: Id, copy: usize, sum: usize) {
        let name = self.name(id, copy);
        let vector = sum * SUM / self.code.width.bytes() + self.part * COPIES + copy;
        match self.lanes(vector) {
            Source::Register(lanes) => {
                let value = self.last(name, &[]);
                self.code.vector(Opcode::ADD, lanes, lanes, value);
            }
            place @ Source::Memory(..) => {
                let value = self.read(name, &[]);
                self.code.vector(Opcode::ADD, value, value, place);
                self.code.vector2(Opcode::STORE, value, place);
            }
        }
    }

    /// Where a vector of lanes of the sums is.
    fn lanes(&self, vector: usize) -> Source {
        match self.is_held {
            true => Source::Register((self.code.width.registers() - 1 - vector) as Register),
            false => Source::Memory(SPILLED, None, (vector * self.code.width.bytes()) as i32),
        }
    }

    /// Loads or stores the lanes that have registers.
    fn move_lanes(&mut self, opcode: Opcode) {
        let bytes = self.code.width.bytes();
        for vector in 0..self.sums * SUM / bytes {
            if let Source::Register(lanes) = self.lanes(vector) {
                let place = Source::Memory(SPILLED, None, (vector * bytes) as i32);
                self.code.vector2(opcode, lanes, place);
            }
        }
    }

    /// Registers for values.
    fn values(&self) -> std::ops::Range<usize> {
        let lanes = self.sums * SUM / self.code.width.bytes();
        0..self.code.width.registers() - if self.is_held { lanes } else { 0 }
    }

    /// A vector of an operand of the table.
    fn operand(&mut self, k: usize, copy: usize) -> Source {
        self.code.address((k * size_of::<usize>()) as i32);
        let vector = self.part * COPIES + copy;
        Source::Memory(General::Rax, Some(PLACE), (vector * self.code.width.bytes()) as i32)
    }

    /// The moment at which a value is read next, from now on or after now.
    fn next_use(&self, (id, copy): Name, after: bool) -> Option<usize> {
        let uses = &self.uses[id as usize][copy];
        uses.iter().rev().copied().find(|&moment| moment > self.now || moment == self.now && !after)
    }

    /// Whether now is the last time that a value is read.
    fn dies(&self, name: Name) -> bool {
        self.next_use(name, true).is_none()
    }

    /// Frees the registers of values that nobody reads any more.
    fn release(&mut self) {
        for register in self.values() {
            let Some(name) = self.held[register] else { continue };
            let uses = &mut self.uses[name.0 as usize][name.1];
            while uses.pop_if(|moment| *moment <= self.now).is_some() {}
            if uses.is_empty() {
                self.drop_register(name);
            }
        }
    }

    fn drop_register(&mut self, (id, copy): Name) {
        if let Some(register) = self.register[id as usize][copy].take() {
            self.held[register as usize] = None;
        }
    }

    /// A free register other than those, for a value.
    fn give(&mut self, (id, copy): Name, kept: &[Register]) -> Register {
        let is_free = |&r: &usize| self.held[r].is_none() && !kept.contains(&(r as Register));
        let all = self.values();
        let register = all.clone().find(is_free).unwrap_or_else(|| {
            let farthest = all
                .filter(|&r| !kept.contains(&(r as Register)))
                .max_by_key(|&r| {
                    let next = self.held[r].and_then(|name| self.next_use(name, false));
                    next.unwrap_or(usize::MAX)
                })
                .expect("an instruction keeps few registers");
            self.evict(farthest as Register);
            farthest
        });
        self.held[register] = Some((id, copy));
        self.register[id as usize][copy] = Some(register as Register);
        register as Register
    }

    fn evict(&mut self, register: Register) {
        let Some((id, copy)) = self.held[register as usize] else { return };
        let is_made = self.operations[id as usize].operands().next().is_some();
        if is_made && self.place[id as usize][copy].is_none() {
            let place = self.spilled;
            self.spilled += self.code.width.bytes() as i32;
            self.place[id as usize][copy] = Some(place);
            self.code.vector2(Opcode::STORE, register, Source::Memory(SPILLED, None, place));
        }
        self.drop_register((id, copy));
    }

    /// Where a value is in memory, if an instruction can read it there.
    fn memory(&mut self, (id, copy): Name) -> Option<Source> {
        match self.operations[id as usize] {
            Operation::Constant(_) => {
                Some(Source::Memory(CONSTANTS, None, self.constants[id as usize]))
            }
            Operation::Input(k) => Some(self.operand(k as usize, copy)),
            Operation::Number(_) => None,
            Operation::Unary(..)
            | Operation::Binary(..)
            | Operation::MultiplyAdd(..)
            | Operation::Select(..) => {
                self.place[id as usize][copy].map(|place| Source::Memory(SPILLED, None, place))
            }
        }
    }

    fn in_register(&self, (id, copy): Name) -> Option<Register> {
        self.register[id as usize][copy]
    }

    /// A value in a register.
    fn read(&mut self, name: Name, kept: &[Register]) -> Register {
        if let Some(register) = self.in_register(name) {
            return register;
        }
        let register = self.give(name, kept);
        match self.memory(name) {
            Some(place) => self.code.vector2(Opcode::LOAD, register, place),
            None => {
                let Operation::Number(k) = self.operations[name.0 as usize] else {
                    unreachable!("a value is in a register or in memory")
                };
                let offset = i32::from(k) * size_of::<u64>() as i32;
                let place = Source::Memory(NUMBERS, None, offset);
                self.code.vector2(Opcode::BROADCAST, register, place);
            }
        }
        register
    }

    /// A value as the last operand of an instruction: in memory where it is read once more only, or
    /// is a constant.
    fn last(&mut self, name: Name, kept: &[Register]) -> Source {
        let is_constant = matches!(self.operations[name.0 as usize], Operation::Constant(_));
        if self.in_register(name).is_none()
            && (is_constant || self.dies(name))
            && let Some(place) = self.memory(name)
        {
            return place;
        }
        Source::Register(self.read(name, kept))
    }

    /// The register of a result, which may be that of an operand that dies.
    fn result(&mut self, name: Name, operands: &[Name], kept: &[Register]) -> Register {
        let dying = operands.iter().copied().filter(|&x| self.dies(x));
        let dying: Vec<Name> = dying.collect();
        dying.into_iter().for_each(|x| self.drop_register(x));
        // What dies is overwritten by the instruction that reads it.
        let kept: Vec<Register> =
            kept.iter().copied().filter(|&r| self.held[r as usize].is_some()).collect();
        self.give(name, &kept)
    }

    fn compute(&mut self, id: Id, copy: usize) {
        let target = (id, copy);
        match self.operations[id as usize] {
            Operation::Unary(op, x) => {
                let x = self.name(x, copy);
                match op {
                    Unary::Left(bits) | Unary::Right(bits) => {
                        let from = self.read(x, &[]);
                        let to = self.result(target, &[x], &[from]);
                        self.code.shift(to, from, matches!(op, Unary::Left(_)), bits);
                    }
                    Unary::Root => {
                        let from = self.last(x, &[]);
                        let to = self.result(target, &[x], &kept(&[from]));
                        self.code.vector2(Opcode::ROOT, to, from);
                    }
                    Unary::Nearest | Unary::Floor | Unary::Ceil | Unary::Trunc => {
                        let from = self.last(x, &[]);
                        let to = self.result(target, &[x], &kept(&[from]));
                        self.code.vector2(Opcode::ROUND, to, from);
                        // The mode, and that no inexact result is reported.
                        self.code.byte(match op {
                            Unary::Floor => 9,
                            Unary::Ceil => 10,
                            Unary::Trunc => 11,
                            Unary::Nearest | Unary::Root | Unary::Left(_) | Unary::Right(_) => 8,
                        });
                    }
                }
            }
            Operation::Binary(op, x, y) => {
                let (opcode, kind, commutes) = instruction(op);
                // Of two NaNs the first is the result, so only a constant changes places.
                let is_constant =
                    |x: Id| matches!(self.operations[x as usize], Operation::Constant(_));
                let (x, y) = match is_constant(x) && commutes {
                    true => (y, x),
                    false => (x, y),
                };
                let (x, y) = (self.name(x, copy), self.name(y, copy));
                let first = self.read(x, &self.registers(&[y]));
                let last = self.last(y, &[first]);
                let to = self.result(target, &[x, y], &kept(&[Source::Register(first), last]));
                match kind {
                    Kind::Number => self.code.vector(opcode, to, first, last),
                    Kind::Mask(byte) => self.code.holds((opcode, byte), to, first, last),
                }
            }
            Operation::Select(mask, x, y) => {
                let [mask, x, y] = [mask, x, y].map(|x| self.name(x, copy));
                let by = self.read(mask, &self.registers(&[x, y]));
                let other = self.read(y, &[&[by][..], &self.registers(&[x])].concat());
                let last = self.last(x, &[by, other]);
                let sources = [Source::Register(by), Source::Register(other), last];
                let (to, by) = match self.code.width {
                    Width::Bits256 => (self.result(target, &[mask, x, y], &kept(&sources)), by),
                    Width::Bits512 if self.dies(mask) && mask != x && mask != y => {
                        self.rename(mask, target);
                        (by, by)
                    }
                    Width::Bits512 => {
                        let to = self.give(target, &kept(&sources));
                        self.code.vector2(Opcode::LOAD, to, Source::Register(by));
                        (to, to)
                    }
                };
                self.code.choose(to, by, other, last);
            }
            Operation::MultiplyAdd(x, factor, term) => {
                let names = [x, factor, term].map(|x| self.name(x, copy));
                self.multiply_add(target, names);
            }
            Operation::Input(_) | Operation::Number(_) | Operation::Constant(_) => {}
        }
    }

    /// The destination of a fused product is one of its operands: one that dies, or a copy.
    fn multiply_add(&mut self, target: Name, [x, factor, term]: [Name; 3]) {
        let (x, factor) = match self.dies(factor) && !self.dies(x) {
            true => (factor, x),
            false => (x, factor),
        };
        if self.in_register(term).is_some() && self.dies(term) && term != x && term != factor {
            let (first, sum) = (self.read(x, &self.registers(&[factor, term])), term);
            let to = self.read(sum, &[first]);
            let last = self.last(factor, &[first, to]);
            self.rename(sum, target);
            return self.code.vector(Opcode::MULTIPLY_ADD_231, to, first, last);
        }
        if self.dies(x) && x != factor && x != term {
            let to = self.read(x, &self.registers(&[factor, term]));
            let second = self.read(factor, &[&[to][..], &self.registers(&[term])].concat());
            let last = self.last(term, &[to, second]);
            self.rename(x, target);
            return self.code.vector(Opcode::MULTIPLY_ADD_213, to, second, last);
        }
        let first = self.read(x, &self.registers(&[factor, term]));
        let second = self.read(factor, &[&[first][..], &self.registers(&[term])].concat());
        let sum = self.last(term, &[first, second]);
        // The copy is written before the factors are read.
        let to = self.give(target, &[&[first, second][..], &kept(&[sum])].concat());
        self.code.vector2(Opcode::LOAD, to, sum);
        self.code.vector(Opcode::MULTIPLY_ADD_231, to, first, Source::Register(second));
    }

    /// Lets a register hold another value.
    fn rename(&mut self, from: Name, to: Name) {
        let Some(register) = self.register[from.0 as usize][from.1].take() else { return };
        self.held[register as usize] = Some(to);
        self.register[to.0 as usize][to.1] = Some(register);
    }

    /// The registers of values that have one.
    fn registers(&self, names: &[Name]) -> Vec<Register> {
        names.iter().filter_map(|&name| self.in_register(name)).collect()
    }
}

/// The value that an operation makes for one of the vectors.
pub fn name(operations: &[Operation], id: Id, copy: usize) -> Name {
    match operations[id as usize] {
        Operation::Number(_) | Operation::Constant(_) => (id, 0),
        Operation::Input(_)
        | Operation::Unary(..)
        | Operation::Binary(..)
        | Operation::MultiplyAdd(..)
        | Operation::Select(..) => (id, copy),
    }
}

/// The registers among operands.
fn kept(sources: &[Source]) -> Vec<Register> {
    let register = |source: &Source| match source {
        Source::Register(x) => Some(*x),
        Source::Memory(..) => None,
    };
    sources.iter().filter_map(register).collect()
}

/// What an instruction makes.
enum Kind {
    Number,
    /// All bits of lanes, or none, by a comparison, which a byte at the end may name
    Mask(Option<u8>),
}

/// The instruction of an operation, what it makes, and whether its operands may change places.
fn instruction(op: Binary) -> (Opcode, Kind, bool) {
    match op {
        Binary::Add => (Opcode::ADD, Kind::Number, true),
        Binary::Subtract => (Opcode::SUBTRACT, Kind::Number, false),
        Binary::Multiply => (Opcode::MULTIPLY, Kind::Number, true),
        Binary::Divide => (Opcode::DIVIDE, Kind::Number, false),
        Binary::Smaller => (Opcode::SMALLER, Kind::Number, false),
        Binary::Larger => (Opcode::LARGER, Kind::Number, false),
        // Comparisons that report nothing of quiet NaNs.
        Binary::Less => (Opcode::COMPARE, Kind::Mask(Some(0x11)), false),
        Binary::LessOrEqual => (Opcode::COMPARE, Kind::Mask(Some(0x12)), false),
        Binary::Equal => (Opcode::COMPARE, Kind::Mask(Some(0x00)), true),
        Binary::Unordered => (Opcode::COMPARE, Kind::Mask(Some(0x03)), true),
        Binary::And => (Opcode::AND, Kind::Number, true),
        Binary::Or => (Opcode::OR, Kind::Number, true),
        Binary::Xor => (Opcode::XOR, Kind::Number, true),
        Binary::AddWhole => (Opcode::ADD_WHOLE, Kind::Number, true),
        Binary::SubtractWhole => (Opcode::SUBTRACT_WHOLE, Kind::Number, false),
        Binary::MultiplyWhole => (Opcode::MULTIPLY_WHOLE, Kind::Number, true),
        Binary::SmallerWhole => (Opcode::SMALLER_WHOLE, Kind::Number, true),
        Binary::LargerWhole => (Opcode::LARGER_WHOLE, Kind::Number, true),
        Binary::EqualWhole => (Opcode::EQUAL_WHOLE, Kind::Mask(None), true),
        Binary::MoreWhole => (Opcode::MORE_WHOLE, Kind::Mask(None), false),
    }
}
