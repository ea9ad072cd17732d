//! Instructions of x86-64 with registers of 256 or 512 bits, as bytes. Source: Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 2 (VEX and EVEX prefixes, ModR/M and SIB).

/// A vector register, by its number.
pub type Register = u8;

/// The vector registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// AVX2 with fused multiply-adds
    Bits256,
    /// AVX-512, foundation and instructions on words of 32 bits
    Bits512,
}

impl Width {
    /// Bytes of a register.
    pub const fn bytes(self) -> usize {
        match self {
            Width::Bits256 => 32,
            Width::Bits512 => 64,
        }
    }

    /// How many there are.
    pub const fn registers(self) -> usize {
        match self {
            Width::Bits256 => 16,
            Width::Bits512 => 32,
        }
    }
}

/// General registers of addresses, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum General {
    Rax = 0,
    Rcx = 1,
    Rsi = 6,
    R8 = 8,
    R9 = 9,
}

/// The last operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Register(Register),
    /// At an address, an index and a displacement
    Memory(General, Option<General>, i32),
}

/// A byte before the opcode, as part of the prefix.
#[derive(Clone, Copy)]
enum Before {
    None = 0,
    Byte66 = 1,
    ByteF3 = 2,
}

/// The table that an opcode is in.
#[derive(Clone, Copy)]
enum Table {
    Of0F = 1,
    Of0F38 = 2,
    Of0F3A = 3,
}

/// An instruction with vector registers: a byte of its prefix, a table, and the opcode in it.
#[derive(Clone, Copy)]
pub struct Opcode(Before, Table, u8);

macro_rules! opcodes {
    ($($name:ident: $before:ident $table:ident $opcode:literal;)*) => {
        impl Opcode {
            $(pub const $name: Opcode = Opcode(Before::$before, Table::$table, $opcode);)*
        }
    };
}
opcodes! {
    LOAD: None Of0F 0x10;
    STORE: None Of0F 0x11;
    BROADCAST: Byte66 Of0F38 0x18;
    ADD: None Of0F 0x58;
    MULTIPLY: None Of0F 0x59;
    SUBTRACT: None Of0F 0x5c;
    SMALLER: None Of0F 0x5d;
    DIVIDE: None Of0F 0x5e;
    LARGER: None Of0F 0x5f;
    ROOT: None Of0F 0x51;
    COMPARE: None Of0F 0xc2;
    AND: None Of0F 0x54;
    OR: None Of0F 0x56;
    XOR: None Of0F 0x57;
    ROUND: Byte66 Of0F3A 0x08;
    BLEND: Byte66 Of0F3A 0x4a;
    ADD_WHOLE: Byte66 Of0F 0xfe;
    SUBTRACT_WHOLE: Byte66 Of0F 0xfa;
    MULTIPLY_WHOLE: Byte66 Of0F38 0x40;
    SMALLER_WHOLE: Byte66 Of0F38 0x39;
    LARGER_WHOLE: Byte66 Of0F38 0x3d;
    EQUAL_WHOLE: Byte66 Of0F 0x76;
    MORE_WHOLE: Byte66 Of0F 0x66;
    SHIFT: Byte66 Of0F 0x72;
    // The destination times the last operand, plus the one between.
    MULTIPLY_ADD_213: Byte66 Of0F38 0xa8;
    // The last two operands' product, plus the destination.
    MULTIPLY_ADD_231: Byte66 Of0F38 0xb8;
    TEST: Byte66 Of0F38 0x0e;
    // Of 512 bits alone: bits by a table of three operands' bits, the lanes of a mask register, and
    // a mask register of lanes that have a bit set.
    BITS: Byte66 Of0F3A 0x25;
    LANES: ByteF3 Of0F38 0x38;
    TEST_LANES: Byte66 Of0F38 0x27;
}

/// The mask register that is used.
const MASK: Register = 1;

/// Machine code as it grows.
pub struct Assembler {
    pub bytes: Vec<u8>,
    pub width: Width,
}

impl Assembler {
    /// Without an instruction.
    pub fn new(width: Width) -> Assembler {
        Assembler { bytes: Vec::new(), width }
    }

    /// An instruction of three operands: `first` is what it writes, but where it stores.
    pub fn vector(&mut self, opcode: Opcode, first: Register, second: Register, last: Source) {
        let Opcode(before, table, code) = opcode;
        // The numbers whose upper bits are in the prefix.
        let (base, index) = match last {
            Source::Register(x) => (x, x >> 1),
            Source::Memory(base, index, _) => (base as u8, index.map_or(0, |x| x as u8)),
        };
        let turned = |x: u8, bit: u8, place: u8| (!(x >> bit) & 1) << place;
        let middle = (!second & 15) << 3 | 1 << 2 | before as u8;
        let high = turned(first, 3, 7) | turned(index, 3, 6) | turned(base, 3, 5) | table as u8;
        match self.width {
            Width::Bits256 => self.bytes.extend([0xc4, high, middle, code]),
            Width::Bits512 => {
                let (high, last) = (high | turned(first, 4, 4), 2 << 5 | turned(second, 4, 3));
                self.bytes.extend([0x62, high, middle, last, code]);
            }
        }
        let field = (first & 7) << 3;
        match last {
            Source::Register(x) => self.bytes.push(0xc0 | field | (x & 7)),
            Source::Memory(base, None, offset) => {
                self.bytes.push(0x80 | field | (base as u8 & 7));
                self.bytes.extend(offset.to_le_bytes());
            }
            Source::Memory(base, Some(index), offset) => {
                self.bytes.extend([0x80 | field | 4, (index as u8 & 7) << 3 | (base as u8 & 7)]);
                self.bytes.extend(offset.to_le_bytes());
            }
        }
    }

    /// The same of two operands.
    pub fn vector2(&mut self, opcode: Opcode, first: Register, last: Source) {
        self.vector(opcode, first, 0, last);
    }

    /// Lanes all of whose bits are set where a comparison holds, and none elsewhere.
    pub fn holds(
        &mut self,
        (opcode, byte): (Opcode, Option<u8>),
        to: Register,
        first: Register,
        last: Source,
    ) {
        let place = if self.width == Width::Bits512 { MASK } else { to };
        self.vector(opcode, place, first, last);
        byte.into_iter().for_each(|byte| self.byte(byte));
        if self.width == Width::Bits512 {
            self.vector2(Opcode::LANES, to, Source::Register(MASK));
        }
    }

    /// Lanes of `last` where `by` has all bits set, and of `other` where it has none. With 512 bits
    /// `by` is where the result goes.
    pub fn choose(&mut self, to: Register, by: Register, other: Register, last: Source) {
        match self.width {
            Width::Bits256 => {
                self.vector(Opcode::BLEND, to, other, last);
                self.byte(by << 4);
            }
            Width::Bits512 => {
                debug_assert_eq!(to, by);
                self.vector(Opcode::BITS, to, other, last);
                // Bit `4 by + 2 other + last` is the result.
                self.byte(0b1010_1100);
            }
        }
    }

    /// Compares lanes, all of whose bits are alike, with zero.
    pub fn test(&mut self, lanes: Register) {
        match self.width {
            Width::Bits256 => self.vector2(Opcode::TEST, lanes, Source::Register(lanes)),
            Width::Bits512 => {
                self.vector(Opcode::TEST_LANES, MASK, lanes, Source::Register(lanes));
                self.bytes.extend([0xc5, 0xf8, 0x98, 0xc0 | MASK << 3 | MASK]);
            }
        }
    }

    /// The byte at the end of some instructions.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Shifts lanes: by `bits` to the left, or arithmetically to the right.
    pub fn shift(&mut self, to: Register, from: Register, is_left: bool, bits: u8) {
        self.vector(Opcode::SHIFT, if is_left { 6 } else { 4 }, to, Source::Register(from));
        self.byte(bits);
    }

    /// `rax = [rdi + offset]`
    pub fn address(&mut self, offset: i32) {
        self.bytes.extend([0x48, 0x8b, 0x87]);
        self.bytes.extend(offset.to_le_bytes());
    }

    /// `r9` = the address of the first byte
    pub fn origin(&mut self) {
        let end = self.bytes.len() as i32 + 7;
        self.bytes.extend([0x4c, 0x8d, 0x0d]);
        self.bytes.extend((-end).to_le_bytes());
    }

    /// Compares `rsi` with `rdx`.
    pub fn compare(&mut self) {
        self.bytes.extend([0x48, 0x39, 0xd6]);
    }

    /// `rsi += step`
    pub fn advance(&mut self, step: i32) {
        self.bytes.extend([0x48, 0x81, 0xc6]);
        self.bytes.extend(step.to_le_bytes());
    }

    /// A jump on a condition, whose target [`Assembler::land`] gives.
    pub fn jump(&mut self, condition: Condition) -> usize {
        self.bytes.extend([0x0f, 0x80 | condition as u8]);
        self.bytes.extend([0; 4]);
        self.bytes.len()
    }

    /// Lets a jump end at a place.
    pub fn land(&mut self, jump: usize, target: usize) {
        let offset = target as i32 - jump as i32;
        self.bytes[jump - 4..jump].copy_from_slice(&offset.to_le_bytes());
    }

    /// Returns `rsi`, with the upper halves of vector registers zero.
    pub fn leave(&mut self) {
        self.bytes.extend([0x48, 0x89, 0xf0, 0xc5, 0xf8, 0x77, 0xc3]);
    }
}

/// When a jump is taken.
#[derive(Clone, Copy)]
pub enum Condition {
    Below = 0x2,
    NotBelow = 0x3,
    NotZero = 0x5,
}
