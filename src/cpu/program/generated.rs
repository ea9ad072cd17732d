//! When a program gets machine code, and whether that is right.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Program;
use crate::cpu::element::Number;
use crate::cpu::jit::{self, Code, is_eligible};
use crate::cpu::reduce::LANES;
use crate::fork::Lazy;
use crate::ops::element::ElementProgram;
use crate::settings;
use crate::simd::{Isa, isa};

/// The code of a program, made when the program has worked enough to be worth it.
pub struct Generated {
    source: ElementProgram,
    /// How many of its last results are summed
    sums: usize,
    /// Elements that the program has worked on
    seen: AtomicUsize,
    code: OnceLock<Option<Code>>,
}

/// Elements times instructions from which code is made: it takes about as long as to interpret so
/// many.
const WORTH: usize = 1 << 18;

/// Programs that are known.
const MOST: usize = 1 << 10;

/// Where code is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Never,
    Worth,
    Always,
}

fn policy() -> Policy {
    static POLICY: Lazy<Policy> = Lazy::new(|| match settings::JIT.value().as_deref() {
        _ if cfg!(miri) || isa() < Isa::V3 => Policy::Never,
        Some("always") => Policy::Always,
        Some("off") => Policy::Never,
        _ => Policy::Worth,
    });
    *POLICY
}

/// Programs are lowered anew for each plan, and for groups of waiting ops each time: what is known
/// of one stays. Who finds the lock taken does without, so nobody waits for a thread that a child of
/// `fork` does not have.
static PROGRAMS: Lazy<Mutex<Known>> = Lazy::new(Mutex::default);

/// What is known of programs, for each count of results that are summed.
type Known = FxHashMap<ElementProgram, SmallVec<[Arc<Generated>; 1]>>;

impl Generated {
    /// The code that a program, of whose results the last `sums` are summed, may come to have.
    pub fn of(program: &ElementProgram, sums: usize) -> Option<Arc<Generated>> {
        if policy() == Policy::Never || !is_eligible(program, sums) {
            return None;
        }
        let mut programs = PROGRAMS.try_lock()?;
        let known = programs.get(program);
        if let Some(known) = known.and_then(|known| known.iter().find(|it| it.sums == sums)) {
            return Some(known.clone());
        }
        if programs.len() >= MOST {
            programs.clear();
        }
        let (source, seen) = (program.clone(), AtomicUsize::new(0));
        let new = Arc::new(Generated { source, sums, seen, code: OnceLock::new() });
        programs.entry(program.clone()).or_default().push(new.clone());
        Some(new)
    }

    /// The code, for a run over so many elements.
    pub fn code(&self, count: usize) -> Option<&Code> {
        if let Some(code) = self.code.get() {
            return code.as_ref();
        }
        if policy() == Policy::Worth {
            let seen = self.seen.fetch_add(count, Relaxed).saturating_add(count);
            if seen.saturating_mul(self.source.instructions().len()) < WORTH {
                return None;
            }
        }
        // Who comes at the same time makes it too, and the first is kept.
        let code = Code::of(&self.source, self.sums, isa()).filter(|code| self.is_right(code));
        let _ = self.code.set(code);
        self.code.get()?.as_ref()
    }

    /// Whether the code gives what the interpreter does, on elements of all kinds.
    fn is_right(&self, code: &Code) -> bool {
        let Ok(program) = Program::interpreted(&self.source) else { return false };
        let (is_same, steps) = compare(&program, self.sums, code);
        is_same && steps > 0
    }
}

/// Elements of a trial, in pieces as long as the longest step.
const PIECES: usize = 16;
const PIECE: usize = jit::LONGEST;
const TRIED: usize = PIECES * PIECE;

/// Whether code gives the bits of the interpreter in each step that it does not leave to it, and how
/// many these are.
fn compare(program: &Program, sums: usize, code: &Code) -> (bool, usize) {
    let inputs: Vec<Vec<f32>> = (0..program.inputs.len()).map(samples).collect();
    let numbers: Vec<u64> =
        (0..program.scalars.len()).map(|k| (0.75 * k as f32 - 0.5).to_bits().into()).collect();
    let (want, _) = program.trial(&inputs, &numbers, None);
    let (got, done) = program.trial(&inputs, &numbers, Some((code, sums)));
    let is_same = |x: f32, y: f32| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let mut elements = done.iter().flat_map(|&from| from..from + code.step());
    let is_same = elements.all(|i| want.iter().zip(&got).all(|(x, y)| is_same(x[i], y[i])));
    (is_same, done.len())
}

/// Elements of both signs and many sizes; in the second half of the pieces one of each is a zero, an
/// infinity, NaN, very large or not normal.
fn samples(k: usize) -> Vec<f32> {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-41, 3e38, -87.5];
    let sizes = [1.0, 0.01, 3.0, 0.3];
    (0..TRIED)
        .map(|i| match (i / PIECE).checked_sub(PIECES / 2) {
            Some(piece) if i % PIECE == (3 * k + piece) % PIECE => {
                special[(piece + k) % special.len()]
            }
            _ => (((i * 37 + k * 11) % 101) as f32 * 0.083 - 4.1) * sizes[i / PIECE % sizes.len()],
        })
        .collect()
}

/// Elements that are interpreted altogether where they are no whole steps.
const LEAST: usize = 64;

/// Elements that are interpreted where code first met one that it does not hold for; where it meets
/// a second, all that are left of the tile are.
const RARE: usize = 128;

impl Program {
    /// Runs machine code as far as it goes, and interprets what is left: what follows the last whole
    /// step, and where formulas do not hold for some elements.
    ///
    /// # Safety
    /// As for [`Program::interpret`]; `spilled` has as many bytes as the code says.
    pub(super) unsafe fn generate(
        &self,
        code: &Code,
        places: &[*mut u8],
        scalars: &[u64],
        n: usize,
        spilled: *mut u8,
    ) {
        if n < LEAST && !n.is_multiple_of(code.step()) {
            // SAFETY: as the caller's.
            return unsafe { self.interpret(places, n) };
        }
        let addresses = self.addresses(places, 0);
        let mut moved: SmallVec<[*mut u8; 16]> = SmallVec::new();
        let (first, whole) = (self.inputs.len(), n / code.step() * code.step());
        let (mut at, mut stops) = (0, 0);
        while at < n {
            if at < whole {
                // SAFETY: as the caller's; steps that end before the last element.
                at = unsafe { code.run(&addresses, (at, whole), scalars, spilled) };
                if at == n {
                    break;
                }
            }
            // Where something is rare its neighbours tend to be so too.
            let count = if stops == 0 { RARE.min(n - at) } else { n - at };
            stops += 1;
            // All move alike, so that those that share a place still do; an element has four bytes at
            // most, and scalars are the same everywhere.
            let offset = |value: usize| match (first..first + self.scalars.len()).contains(&value) {
                true => 0,
                false => at * size_of::<f32>(),
            };
            moved.clear();
            for (value, &place) in places.iter().enumerate() {
                moved.push(place.wrapping_add(offset(value)));
            }
            // SAFETY: as the caller's, from an element on.
            unsafe { self.interpret(&moved, count) };
            at += count;
        }
    }

    /// The results of a trial, interpreted or by code, and where the steps begin that the code did.
    fn trial(
        &self,
        inputs: &[Vec<f32>],
        numbers: &[u64],
        code: Option<(&Code, usize)>,
    ) -> (Vec<Vec<f32>>, Vec<usize>) {
        let mut tiles = vec![[0.0f32; TRIED]; self.registers.len()];
        let scalars = inputs.len()..inputs.len() + numbers.len();
        for (tile, x) in tiles.iter_mut().zip(inputs) {
            tile.copy_from_slice(x);
        }
        for (tile, &bits) in tiles[scalars].iter_mut().zip(numbers) {
            tile.fill(f32::from_bits(bits as u32));
        }
        let places: Vec<*mut u8> = tiles.iter_mut().map(|tile| tile.as_mut_ptr().cast()).collect();
        let mut done = Vec::new();
        // By sum: its lanes after each step alone, which are the elements of that step.
        let mut summed = vec![Vec::new(); code.map_or(0, |(_, sums)| sums)];
        // SAFETY: each value has a tile of its own, of as many elements; so has what is spilled.
        unsafe {
            match code {
                Some((code, sums)) => {
                    let mut spilled = vec![0.0f32; code.spilled() / size_of::<f32>()];
                    let addresses = self.addresses(&places, sums);
                    for from in (0..TRIED).step_by(code.step()) {
                        spilled[..sums * LANES].fill(<f32 as Number>::NOTHING);
                        let (range, to) = ((from, from + code.step()), spilled.as_mut_ptr());
                        if code.run(&addresses, range, numbers, to.cast()) == range.1 {
                            done.push(from);
                        }
                        for (summed, lanes) in summed.iter_mut().zip(spilled.chunks(LANES)) {
                            summed.extend_from_slice(lanes);
                        }
                    }
                }
                None => self.interpret(&places, TRIED),
            }
        }
        let stored = &self.outputs[..self.outputs.len() - summed.len()];
        let stored = stored.iter().map(|&(x, _)| tiles[x as usize].to_vec());
        (stored.chain(summed).collect(), done)
    }

    /// The addresses that code takes, of those of all values: inputs, then the results that are not
    /// summed.
    pub(super) fn addresses(&self, places: &[*mut u8], sums: usize) -> SmallVec<[*mut u8; 8]> {
        let mut addresses: SmallVec<[*mut u8; 8]> =
            SmallVec::from_slice(&places[..self.inputs.len()]);
        for &(x, _) in &self.outputs[..self.outputs.len() - sums] {
            addresses.push(places[x as usize]);
        }
        addresses
    }
}

#[cfg(all(test, target_arch = "x86_64", unix, not(miri)))]
mod tests {
    use super::*;
    use crate::dtype::{Compute, DType};
    use crate::ops::element::{ElementOp, Value};
    use crate::ops::elementwise::{Elementwise, ResultRule, arithmetic, comparison, tables};

    /// The ops that have a trace, and whether operands are truth values.
    fn traced() -> impl Iterator<Item = &'static Elementwise> {
        tables().filter(|op| op.trace(Compute::F32).is_some())
    }

    /// Pushes an op on values of float32, with a condition or a result as float32 too.
    fn push(program: &mut ElementProgram, op: &'static Elementwise, args: &[Value]) -> Value {
        let mut operands: Vec<Value> = args[..op.params.len()].to_vec();
        if op.is_condition(0) {
            let less = ElementOp::Map(&comparison::less);
            operands[0] = program.push(less, &[args[0], args[1]], DType::Bool);
        }
        let is_mask = op.result == ResultRule::Bool;
        let dtype = if is_mask { DType::Bool } else { DType::F32 };
        let y = program.push(ElementOp::Map(op), &operands, dtype);
        program.push(ElementOp::Cast, &[y], DType::F32)
    }

    /// Tries the code of each level that the processor has; whether there is any that works.
    fn check(program: &ElementProgram) -> bool {
        let mut any = false;
        for sums in 0..=program.results().len() {
            assert!(is_eligible(program, sums), "{}", program.names());
            let levels = [Isa::V3, Isa::V4].into_iter().filter(|&level| level <= isa());
            for code in levels.filter_map(|level| Code::of(program, sums, level)) {
                let lowered = Program::lower(program).unwrap();
                let (is_same, steps) = compare(&lowered, sums, &code);
                assert!(is_same, "{} with {sums} sums", program.names());
                any |= steps > 0;
            }
        }
        any
    }

    #[test]
    fn every_op_with_a_trace_has_the_bits_of_its_kernel() {
        if isa() < Isa::V3 {
            return;
        }
        let mut with_code = 0;
        for op in traced() {
            let mut program = ElementProgram::new(&[DType::F32; 3], &[DType::F32]);
            let values = [program.array(0), program.array(1), program.array(2)];
            let y = push(&mut program, op, &values);
            let add = ElementOp::Map(&arithmetic::add);
            let sum = program.push(add, &[y, program.number(0)], DType::F32);
            with_code += usize::from(check(&program.giving(&[y, sum])));
        }
        assert!(with_code > 40, "{with_code} ops");
    }

    #[test]
    fn programs_of_many_values_have_the_bits_of_the_interpreter() {
        if isa() < Isa::V3 {
            return;
        }
        let ops: Vec<&Elementwise> = traced().collect();
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let mut with_code = 0;
        for _ in 0..400 {
            let (arrays, numbers) = (1 + random(9), random(4));
            let mut program =
                ElementProgram::new(&vec![DType::F32; arrays], &vec![DType::F32; numbers]);
            let mut values: Vec<Value> = (0..arrays).map(|i| program.array(i)).collect();
            values.extend((0..numbers).map(|i| program.number(i)));
            for _ in 0..2 + random(30) {
                // Old values are read late, so that there are more of them than registers.
                let args = [0; 3].map(|_| values[random(values.len())]);
                let op = match random(3) {
                    0 => ops[random(ops.len())],
                    1 => &arithmetic::add,
                    _ => &arithmetic::multiply,
                };
                values.push(push(&mut program, op, &args));
            }
            let results: Vec<Value> = values[arrays + numbers..].to_vec();
            let results = match random(2) {
                0 => &results[results.len() - 1..],
                _ => &results[results.len() - results.len().min(3)..],
            };
            with_code += usize::from(check(&program.clone().giving(results)));
        }
        assert!(with_code > 50, "{with_code} programs");
    }
}
