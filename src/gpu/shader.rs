//! The parts of a shader: bindings, words, functions, and lines.
//!
//! A shader computes one result. Its function `element(i)` gives the lane of element `i`; the entry
//! point calls it for as many elements as one invocation owns, which fill whole words, and writes
//! them.

use std::fmt::Write;

use smallvec::SmallVec;

use super::element::{
    element, element_of_vectors, functions, is_wide, lane_type, loaded, register, stored,
};
use super::kernel::{Dispatch, Input, Place, View, WORKGROUP, Word};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::elementwise::Elementwise;
use crate::scalar::wgsl::WgslType;
use crate::shape::{Dim, Dims};
use crate::target::Abilities;

/// A shader that is being written.
#[derive(Default)]
pub struct Shader {
    words: Vec<Word>,
    places: SmallVec<[(Place, &'static str); 8]>,
    functions: String,
    /// The lines of `element`, each indented
    body: String,
    /// Names of local values that were given
    names: usize,
    /// Arrays of a workgroup, and their bytes
    shared: String,
    shared_bytes: usize,
    /// Whether eight neighbouring invocations always belong to one subgroup
    has_subgroups: bool,
    /// Whether invocations read registers of their neighbours
    is_shuffling: bool,
    /// The word that is always zero, once something is hidden behind it
    zero: Option<String>,
}

/// How a text begins that reads memory as floats of 16 bits.
pub const F16: &str = "enable f16;\n\n";

/// The most bytes of workgroup memory of a text: what every adapter has, less the word of a guard.
pub const MOST_SHARED: usize = 16_384 - 4;

/// How every entry point goes on where `local` is known.
pub const START: &str = "    let group = at.y * groups.x + at.x;\n";

/// The elements of an invocation, so that no two invocations write one word.
pub fn lanes(dtype: DType) -> usize {
    (4 / dtype.size()).max(1)
}

/// The lines that write the lanes of word `at` of a memory, or one lane that is two words.
pub fn written(memory: &str, at: &str, dtype: DType, lanes: &[String]) -> String {
    if is_wide(dtype) {
        let part = |(j, part)| format!("    {memory}[{at} * 2u + {j}u] = {}.{part};\n", lanes[0]);
        return ["x", "y"].into_iter().enumerate().map(part).collect();
    }
    let part = |(e, lane): (usize, &String)| match e {
        0 => lane.clone(),
        _ => format!("({lane} << {}u)", 8 * dtype.size() * e),
    };
    let word: Vec<String> = lanes.iter().enumerate().map(part).collect();
    format!("    {memory}[{at}] = {};\n", word.join(" | "))
}

impl Shader {
    /// A shader without anything.
    pub fn new() -> Shader {
        Shader::default()
    }

    /// A shader for devices that are able to do so much.
    pub fn able(abilities: Abilities) -> Shader {
        Shader { has_subgroups: abilities.has_subgroups, ..Shader::default() }
    }

    /// A new word of the uniform buffer, as an expression. (Words that are equal at some sizes are
    /// not at others, and one text serves all.)
    pub fn word(&mut self, word: Word) -> String {
        let i = self.words.len();
        self.words.push(word);
        format!("words[{}].{}", i / 4, ["x", "y", "z", "w"][i % 4])
    }

    /// A size, as an expression.
    pub fn size(&mut self, size: Dim) -> String {
        self.word(Word::Size(size))
    }

    /// The name of the memory at a place, an array of words.
    pub fn memory(&mut self, place: Place) -> String {
        self.memory_as(place, "u32")
    }

    /// The same, where the text reads other elements than words; a place has one type of element.
    pub fn memory_as(&mut self, place: Place, ty: &'static str) -> String {
        let at = self.places.iter().position(|(known, _)| *known == place);
        let i = at.unwrap_or_else(|| {
            self.places.push((place, ty));
            self.places.len() - 1
        });
        debug_assert!(self.places[i].1 == ty, "{place:?} as {ty} and {}", self.places[i].1);
        format!("m{i}")
    }

    /// An array of a workgroup's own memory, of so many elements of a type; gives the name. It
    /// holds nothing yet. Only texts of [`grouped`](Shader::grouped) and [`entry`](Shader::entry)
    /// may share.
    pub fn shared(&mut self, ty: WgslType, length: usize) -> String {
        let name = format!("shared{}", self.shared.lines().count());
        self.shared_bytes += 4 * ty.words() * length;
        debug_assert!(self.shared_bytes <= MOST_SHARED, "{} bytes are shared", self.shared_bytes);
        let _ = writeln!(self.shared, "var<workgroup> {name}: array<{}, {length}>;", ty.name());
        name
    }

    /// Whether eight neighbouring invocations always belong to one subgroup.
    pub fn has_subgroups(&self) -> bool {
        self.has_subgroups
    }

    /// The same value of the invocation of this subgroup whose number has the bit `distance`
    /// changed; a name. It stands in uniform control flow.
    pub fn shuffled(&mut self, value: &str, distance: usize) -> String {
        self.is_shuffling = true;
        self.name(format!("subgroupShuffleXor({value}, {distance}u)"))
    }

    /// The same value of the first of the `among` neighbours to which an invocation belongs; a
    /// name. It stands in uniform control flow.
    pub fn of_first(&mut self, value: &str, among: usize) -> String {
        self.is_shuffling = true;
        self.name(format!("subgroupShuffle({value}, lane & {}u)", u32::MAX - (among as u32 - 1)))
    }

    /// Waits until all invocations of the workgroup are here, and what they wrote to its memory is
    /// there. Conditions of branches and loops around it, and of returns before it, must be made
    /// of constants, uniform words and `group`: compilers in browsers refuse others.
    pub fn barrier(&mut self) {
        self.line("workgroupBarrier();");
    }

    /// Adds a line to `element`.
    pub fn line(&mut self, line: impl std::fmt::Display) {
        for line in line.to_string().lines() {
            let _ = writeln!(self.body, "    {line}");
        }
    }

    /// Adds a function, or whatever else stands outside of functions, once.
    pub fn function(&mut self, text: &str) {
        if !self.functions.contains(text) {
            self.functions += text;
        }
    }

    /// Names a value; gives the name.
    pub fn name(&mut self, value: impl std::fmt::Display) -> String {
        let name = format!("t{}", self.names);
        self.names += 1;
        self.line(format!("let {name} = {value};"));
        name
    }

    /// A name for a float whose bits went through a word that compilers do not know, so that they
    /// cannot simplify what is made of it. (Most treat `(a + b) - a` as `b`.)
    pub fn opaque(&mut self, value: impl std::fmt::Display) -> String {
        let zero = self.zero.take().unwrap_or_else(|| self.word(Word::Bits(0)));
        let name = self.name(format!("bitcast<f32>(bitcast<u32>({value}) ^ {zero})"));
        self.zero = Some(zero);
        name
    }

    /// A variable with a first value; gives the name.
    pub fn variable(&mut self, value: impl std::fmt::Display) -> String {
        let name = format!("t{}", self.names);
        self.names += 1;
        self.line(format!("var {name} = {value};"));
        name
    }

    /// The register form of a dtype, and the functions that its loads and stores call.
    pub fn register(&mut self, dtype: DType) -> Result<WgslType> {
        self.function(functions(dtype));
        register(dtype)
    }

    /// The lane of an element of an operand: its bits in memory. A number has one element, which
    /// takes `dtype`; arrays have it already.
    pub fn lane(&mut self, input: &Input, dtype: DType, at: &str) -> String {
        match input {
            Input::Array { range, dtype, .. } => self.lane_at(Place::Range(*range), *dtype, at),
            Input::Number(number) => {
                let half = |is_high| Word::Number { number: *number, dtype, is_high };
                match is_wide(dtype) {
                    true => {
                        format!("vec2<u32>({}, {})", self.word(half(false)), self.word(half(true)))
                    }
                    false => self.word(half(false)),
                }
            }
        }
    }

    /// The lane of element `at` in the memory of a place.
    pub fn lane_at(&mut self, place: Place, dtype: DType, at: &str) -> String {
        let at = self.name(at);
        let known = self.places.iter().position(|&(known, ty)| known == place && ty == "vec4<u32>");
        if let Some(i) = known {
            return format!("({})", element_of_vectors(dtype, &format!("m{i}"), &at));
        }
        let memory = self.memory(place);
        format!("({})", element(dtype, &memory, &at))
    }

    /// The register of an element of an operand.
    pub fn load(&mut self, input: &Input, dtype: DType, at: &str) -> Result<String> {
        self.register(dtype)?;
        let lane = self.lane(input, dtype, at);
        Ok(format!("({})", loaded(dtype, &lane)))
    }

    /// The register of element `at` in the memory of a place.
    pub fn load_at(&mut self, place: Place, dtype: DType, at: &str) -> Result<String> {
        self.register(dtype)?;
        let lane = self.lane_at(place, dtype, at);
        Ok(format!("({})", loaded(dtype, &lane)))
    }

    /// The lane of a register, which is rounded to the dtype.
    pub fn stored(&mut self, dtype: DType, value: &str) -> Result<String> {
        self.register(dtype)?;
        Ok(stored(dtype, value))
    }

    /// An elementwise op of the table on registers of operands of a dtype. Each op is a function of
    /// its own, so that its text is the same in every shader.
    pub fn call(&mut self, def: &Elementwise, dtype: DType, args: &[&str]) -> Result<String> {
        let ty = self.register(dtype)?;
        let Some(text) = def.text(ty) else {
            return Err(error::bad_graph("shader", "has no text for this dtype", def.name));
        };
        let types = (0..args.len()).map(|k| if def.is_condition(k) { WgslType::Bool } else { ty });
        let params: SmallVec<[String; 3]> =
            types.zip(["a", "b", "c"]).map(|(ty, name)| format!("{name}: {}", ty.name())).collect();
        let name = format!("{}_{}", def.name, ty.suffix());
        let call = format!("{name}({})", args.join(", "));
        let head = format!("fn {name}({}) -> {} {{\n", params.join(", "), text.ty.name());
        if !self.functions.contains(&head) {
            let lines: String = text.body.lines().map(|line| format!("    {line}\n")).collect();
            let end = format!("    return {};\n}}\n\n", text.result);
            self.functions += &(head + &lines + &end);
        }
        Ok(call)
    }

    /// The index along each axis of element `i` in C order; names of values.
    pub fn indices(&mut self, i: &str, sizes: &[Dim]) -> SmallVec<[String; 6]> {
        let mut names: SmallVec<[String; 6]> = SmallVec::from_elem("0u".into(), sizes.len());
        let mut rest = i.to_owned();
        for axis in (0..sizes.len()).rev() {
            if sizes[axis] == Dim::ONE {
                continue;
            }
            if sizes[..axis].iter().all(|size| *size == Dim::ONE) {
                names[axis] = rest;
                break;
            }
            let size = self.size(sizes[axis]);
            names[axis] = self.name(format!("{rest} % {size}"));
            rest = self.name(format!("{rest} / {size}"));
        }
        names
    }

    /// The position in its range of the element at an index.
    pub fn position(&mut self, view: &View, index: &[String]) -> String {
        let mut at = self.word(view.offset);
        for (i, &stride) in index.iter().zip(&view.strides) {
            // Axes along which elements are repeated are part of the structure.
            if stride != Word::Size(Dim::new(0)) && i != "0u" {
                let stride = self.word(stride);
                let _ = write!(at, " + {i} * {stride}");
            }
        }
        format!("({at})")
    }

    /// The position of element `i` in C order of a view.
    pub fn position_of(&mut self, view: &View, i: &str) -> String {
        if view.is_dense {
            return format!("({} + {i})", self.word(view.offset));
        }
        let sizes: Dims = view.sizes.clone();
        let index = self.indices(i, &sizes);
        self.position(view, &index)
    }

    /// The lane of an operand at an index of a shape to which it broadcasts.
    pub fn lane_of(
        &mut self,
        input: &Input,
        dtype: DType,
        sizes: &[Dim],
        index: &[String],
    ) -> String {
        match input {
            Input::Array { view, .. } => {
                let at = self.position(&view.broadcast(sizes), index);
                self.lane(input, dtype, &at)
            }
            Input::Number(_) => self.lane(input, dtype, ""),
        }
    }

    /// The dispatch of a shader whose `element(i)` writes what it has to, for each `i` below
    /// `count`.
    pub fn each(mut self, count: Dim, rounds: Dim) -> Dispatch {
        self.functions += &format!("fn element(i: u32) {{\n{}}}\n", self.body);
        let all = self.size(count);
        let body = format!("    if id >= {all} {{ return; }}\n    element(id);\n");
        self.entry(&body, count, rounds)
    }

    /// The dispatch of a shader whose `element(i)` gives `lane` for each of `count` elements of the
    /// memory of a place, from its start, in loops of at most so many rounds for each.
    pub fn finish(
        self,
        place: Place,
        dtype: DType,
        count: Dim,
        lane: &str,
        rounds: Dim,
    ) -> Dispatch {
        self.finish_part(place, dtype, [Dim::new(0), count], lane, rounds)
    }

    /// The same for `part[1]` elements from element `part[0]` on. Elements before them that share a
    /// word with them are computed too; those behind them that do are lost.
    pub fn finish_part(
        mut self,
        place: Place,
        dtype: DType,
        part: [Dim; 2],
        lane: &str,
        rounds: Dim,
    ) -> Dispatch {
        let (per, ty) = (lanes(dtype), lane_type(dtype));
        let text = format!("fn element(i: u32) -> {ty} {{\n{}    return {lane};\n}}\n", self.body);
        self.functions += &text;
        let memory = self.memory(place);
        let [start, count] = part;
        let mut invocations = count.div_ceil(Dim::new(per));
        let (all, mut body) = (self.size(start + count), String::new());
        if start == Dim::new(0) {
            body += &format!("    let word = id;\n    let first = id * {per}u;\n");
        } else {
            invocations = invocations + Dim::ONE;
            let base = self.size(start / Dim::new(per));
            body += &format!("    let word = {base} + id;\n    let first = word * {per}u;\n");
        }
        body += &format!("    if first >= {all} {{ return; }}\n");
        if is_wide(dtype) {
            body += "    let e0 = element(first);\n";
        } else {
            for e in 0..per {
                let _ = match e {
                    0 => writeln!(body, "    let e0 = element(first);"),
                    _ => writeln!(body, "    let e{e} = element(min(first + {e}u, {all} - 1u));"),
                };
            }
        }
        let found: Vec<String> = (0..per).map(|e| format!("e{e}")).collect();
        body += &written(&memory, "word", dtype, &found);
        self.entry(&body, invocations, rounds * Dim::new(per))
    }

    /// Takes the lines that were added so far.
    pub fn taken(&mut self) -> String {
        std::mem::take(&mut self.body)
    }

    /// Makes the lines so far a function that gives several lanes, the fields of `out`.
    pub fn close(&mut self, name: &str, params: &str, fields: &str) {
        let body = std::mem::take(&mut self.body);
        let text = format!(
            "struct Out {{ {fields} }}\n\nfn {name}({params}) -> Out {{\n    var out: \
             Out;\n{body}    return out;\n}}\n"
        );
        self.functions += &text;
    }

    /// The dispatch of a shader whose lines are run by each invocation `local` of so many
    /// workgroups `group`. Lines may return early only behind the last barrier.
    pub fn grouped(mut self, groups: Dim, rounds: Dim) -> Dispatch {
        self.functions += &format!("fn element(group: u32, local: u32) {{\n{}}}\n", self.body);
        let all = self.size(groups);
        // Whole workgroups leave, so that barriers are in uniform control flow.
        let body = format!("    if group >= {all} {{ return; }}\n    element(group, local);\n");
        self.end(&body, groups * Dim::new(WORKGROUP), rounds)
    }

    /// The dispatch of a shader whose entry point has these lines, for invocations that are
    /// numbered by `id`; there may be more invocations than are wanted.
    pub fn entry(self, body: &str, invocations: Dim, rounds: Dim) -> Dispatch {
        let body = format!("    let id = group * {WORKGROUP}u + local;\n{body}");
        self.end(&body, invocations, rounds)
    }

    /// The dispatch of a shader whose entry point has these lines, run by each invocation `local` of
    /// workgroups `group`.
    fn end(mut self, body: &str, invocations: Dim, rounds: Dim) -> Dispatch {
        let mut text = String::new();
        let mut head = "@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: \
                        vec3<u32>"
            .to_owned();
        let mut own = "";
        if self.is_shuffling {
            // Which invocations are a subgroup is for the device to say.
            self.functions.insert_str(0, "var<private> lane: u32;\n\n");
            head += ", @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_size) width: u32, \
                     @builtin(subgroup_invocation_id) own_lane: u32";
            own = "    let local = subgroup * width + own_lane;\n    lane = own_lane;\n";
        } else {
            head += ", @builtin(local_invocation_index) local: u32";
        }
        if self.places.iter().any(|(_, ty)| ty.contains("f16")) {
            text += F16;
        }
        for (i, (_, ty)) in self.places.iter().enumerate() {
            let _ = writeln!(
                text,
                "@group(0) @binding({i}) var<storage, read_write> m{i}: array<{ty}>;"
            );
        }
        let (at, vectors) = (self.places.len(), self.words.len().div_ceil(4).max(1));
        let _ = writeln!(
            text,
            "@group(0) @binding({at}) var<uniform> words: array<vec4<u32>, {vectors}>;\n"
        );
        if !self.shared.is_empty() {
            text += &format!("{}\n", self.shared);
        }
        text += &self.functions;
        let _ = write!(
            text,
            "\n@compute @workgroup_size({WORKGROUP})\nfn main({head}) {{\n{own}{START}{body}}}\n"
        );
        let bindings = self.places.iter().map(|(place, _)| *place).collect();
        Dispatch { text, words: self.words, bindings, invocations, rounds }
    }
}
