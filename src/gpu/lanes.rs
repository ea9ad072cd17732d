//! What neighbouring invocations of a workgroup have, joined: eight at a time, neighbours first, in
//! an order that no adapter changes. Eight that are one subgroup read each other's registers;
//! others read what each wrote to the workgroup's memory. Both give the same bits.

use super::kernel::WORKGROUP;
use super::shader::{MOST_SHARED, Shader};
use crate::error::Result;
use crate::scalar::wgsl::WgslType;

/// Values of invocations that are joined at a time, in two rounds all of a workgroup. So many
/// neighbours read a cache line of a GPU together, four elements each.
pub const LANES: usize = 8;
const _: () = assert!(LANES * LANES == WORKGROUP);

/// The most registers that are joined at a time, each of two words: what they take of a
/// workgroup's memory is there on every adapter.
pub const MOST_JOINED: usize = 15;
const _: () = assert!(2 * MOST_JOINED * 2 * 4 * WORKGROUP <= MOST_SHARED);

/// Lanes that have parts of one result.
pub struct Lanes {
    /// How many there are: 1, [`LANES`], or all invocations of a workgroup
    count: usize,
    /// How many invocations lie between neighbours
    unit: usize,
    /// Arrays of words that lanes write, of which one round uses those of one side: between two
    /// writes of one array is the barrier of the round between them
    sides: [Vec<String>; 2],
    rounds: usize,
}

impl Lanes {
    /// So many lanes, so many invocations apart.
    pub fn new(count: usize, unit: usize) -> Lanes {
        Lanes { count, unit, sides: [Vec::new(), Vec::new()], rounds: 0 }
    }

    /// What `both` makes of the registers of all lanes, as all of them know it: names of values.
    /// Lines of `both` stand in uniform control flow, as those of this do, and outside of loops.
    pub fn join(
        &mut self,
        shader: &mut Shader,
        types: &[WgslType],
        mut values: Vec<String>,
        mut both: impl FnMut(&mut Shader, &[String], &[String]) -> Result<Vec<String>>,
    ) -> Result<Vec<String>> {
        debug_assert!(types.len() == values.len() && types.len() <= MOST_JOINED);
        let mut stride = 1;
        while stride < self.count {
            if self.unit * stride == 1 && shader.has_subgroups() {
                for distance in [1, 2, 4] {
                    let others = values.iter().map(|value| shader.shuffled(value, distance));
                    let others: Vec<String> = others.collect();
                    values = both(shader, &values, &others)?;
                }
                // The first lane has joined in order, its neighbours perhaps the other way round.
                values = values.iter().map(|value| shader.of_first(value, LANES)).collect();
            } else {
                let mut terms = self.exchanged(shader, types, &values, stride);
                while terms.len() > 1 {
                    let mut next = Vec::with_capacity(terms.len() / 2);
                    for pair in terms.chunks(2) {
                        next.push(both(shader, &pair[0], &pair[1])?);
                    }
                    terms = next;
                }
                values = terms.swap_remove(0);
            }
            stride *= LANES;
        }
        Ok(values)
    }

    /// What the eight lanes have that are joined next, `stride` lanes apart, by lane.
    fn exchanged(
        &mut self,
        shader: &mut Shader,
        types: &[WgslType],
        values: &[String],
        stride: usize,
    ) -> Vec<Vec<String>> {
        let side = &mut self.sides[self.rounds % 2];
        self.rounds += 1;
        let words: usize = types.iter().map(|ty| ty.words()).sum();
        while side.len() < words {
            side.push(shader.shared(WgslType::U32, WORKGROUP));
        }
        let mut free = side.iter();
        let mut take = || free.next().cloned().unwrap_or_default();
        let memory: Vec<(String, String)> = types
            .iter()
            .map(|ty| (take(), if ty.words() == 2 { take() } else { String::new() }))
            .collect();
        for ((ty, (low, high)), value) in types.iter().zip(&memory).zip(values) {
            match ty.words() {
                2 => shader.line(format!("{low}[local] = {value}.x;\n{high}[local] = {value}.y;")),
                _ => shader.line(format!("{low}[local] = bitcast<u32>({value});")),
            }
        }
        shader.barrier();
        let (unit, span) = (self.unit, LANES * stride);
        let base = shader.name(match unit {
            1 => format!("local - local % {span}u"),
            _ => format!("local - local / {unit}u % {span}u * {unit}u"),
        });
        let mut read = |lane: usize, ty: WgslType, (low, high): &(String, String)| {
            let at = format!("{base} + {}u", lane * stride * unit);
            shader.name(match ty.words() {
                2 => format!("vec2<u32>({low}[{at}], {high}[{at}])"),
                _ => format!("bitcast<{}>({low}[{at}])", ty.name()),
            })
        };
        let lane = |k| types.iter().zip(&memory).map(|(&ty, from)| read(k, ty, from)).collect();
        (0..LANES).map(lane).collect()
    }
}
