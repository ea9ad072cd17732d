//! Texts of groups: valid for every op and dtype, the same for every size.

use smallvec::smallvec;

mod attention;
mod guard;
mod kernels;
mod rows;
mod sums;

use super::group::{Operand, dispatch};
use super::kernel::{Dispatch, Place, View, WORKGROUP};
use super::lanes::{LANES, Lanes, MOST_JOINED};
use super::shader::Shader;
use crate::dtype::{DType, Scalar};
use crate::graph::Graph;
use crate::layout::Layout;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::elementwise::{self, arithmetic, exponential};
use crate::ops::emit::{Arg, Emit, Expr};
use crate::ops::op::Type;
use crate::scalar::wgsl::WgslType;
use crate::shape::{Dim, Shape};
use crate::target::Abilities;

const DTYPES: [DType; 12] = [
    DType::Bool,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
];

/// Validates a text, and translates it for every backend that devices run on. Refuses constants
/// that browsers refuse: infinities and NaN.
pub(super) fn validate(source: &str) {
    use naga::back::{hlsl, msl, spv};
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    for constant in source.split("bitcast<f32>(0x").skip(1) {
        let bits = u32::from_str_radix(&constant[..8], 16).expect("eight digits");
        assert!(f32::from_bits(bits).is_finite(), "a constant is not finite\n{source}");
    }
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
    let features = [
        ("enable f16;", Capabilities::SHADER_FLOAT16),
        ("@builtin(subgroup_id)", Capabilities::SUBGROUP),
    ];
    let own = features.into_iter().filter(|(word, _)| source.contains(word));
    let capabilities = own.map(|(_, capability)| capability).collect();
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}\n{source}", e.emit_to_string(source)));
    spv::write_vec(&module, &info, &spv::Options::default(), None)
        .unwrap_or_else(|e| panic!("SPIR-V: {e}\n{source}"));
    let options = msl::Options { fake_missing_bindings: true, ..msl::Options::default() };
    msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("MSL: {e}\n{source}"));
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let options = hlsl::Options { fake_missing_bindings: true, ..hlsl::Options::default() };
    hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(&module, &info, None)
        .unwrap_or_else(|e| panic!("HLSL: {e}\n{source}"));
}

/// The program of one op on arrays of a dtype.
fn program(def: &'static elementwise::Elementwise, dtype: DType) -> ElementProgram {
    let arrays: Vec<DType> = (0..def.params.len())
        .map(|i| if def.is_condition(i) { DType::Bool } else { dtype })
        .collect();
    let mut program = ElementProgram::new(&arrays, &[]);
    let args: Vec<_> = (0..arrays.len()).map(|i| program.array(i)).collect();
    let graph = Graph::new();
    let inputs: Vec<Expr<'_>> = arrays.iter().map(|&dtype| input(&graph, dtype, &[2])).collect();
    graph.build(|| smallvec![def.call(&inputs)]).expect("the op takes the dtype");
    let result = graph.ty(graph.outputs()[0]).dtype;
    let y = program.push(ElementOp::Map(def), &args, result);
    program.giving(&[y])
}

fn input<'g>(graph: &'g Graph, dtype: DType, sizes: &[usize]) -> Expr<'g> {
    Expr::new(graph, Arg::Node(graph.input(Type::new(dtype, Shape::of(sizes)))))
}

/// A program on operands of these layouts, each in a range of its own.
fn on(program: &ElementProgram, sizes: &[usize], layouts: &[Layout]) -> Dispatch {
    let operands: Vec<Operand> = layouts.iter().enumerate().map(operand).collect();
    let results: Vec<usize> = (layouts.len()..layouts.len() + program.results().len()).collect();
    dispatch(program, Shape::of(sizes).dims(), &operands, &results).expect("a shader")
}

fn operand((range, layout): (usize, &Layout)) -> Operand {
    Operand::new(range, View::of(layout))
}

#[test]
fn every_op_has_a_valid_shader_for_every_dtype_it_takes() {
    let mut count = 0;
    let dense = Layout::contiguous(Shape::of(&[5, 4]));
    let turned = Layout::strided(Shape::of(&[5, 4]), &[1, 5], 3);
    for def in elementwise::tables() {
        for dtype in DTYPES.into_iter().filter(|dtype| def.classes.contains(dtype.class())) {
            let program = program(def, dtype);
            let n = def.params.len();
            for layout in [&dense, &turned] {
                validate(&on(&program, &[5, 4], &vec![layout.clone(); n]).text);
            }
            count += 1;
        }
    }
    assert!(count > 400, "{count}");
}

#[test]
fn every_conversion_has_a_valid_shader() {
    for from in DTYPES {
        for to in DTYPES.into_iter().filter(|to| *to != from) {
            let mut program = ElementProgram::new(&[from], &[]);
            let y = program.push(ElementOp::Cast, &[program.array(0)], to);
            let program = program.giving(&[y]);
            let dense = Layout::contiguous(Shape::of(&[9]));
            validate(&on(&program, &[9], &[dense]).text);
        }
    }
}

/// `exp(a * n) + b`, with the product as a second result.
fn chain() -> ElementProgram {
    let mut program = ElementProgram::new(&[DType::F32, DType::F16], &[DType::F32]);
    let (a, b, n) = (program.array(0), program.array(1), program.number(0));
    let product = program.push(ElementOp::Map(&arithmetic::multiply), &[a, n], DType::F32);
    let e = program.push(ElementOp::Map(&exponential::exp), &[product], DType::F32);
    let wide = program.push(ElementOp::Cast, &[b], DType::F32);
    let sum = program.push(ElementOp::Map(&arithmetic::add), &[e, wide], DType::F32);
    program.giving(&[sum, product])
}

#[test]
fn sizes_strides_and_numbers_are_words_and_no_text() {
    let program = chain();
    let of = |rows: usize, cols: usize| {
        let dense = Layout::contiguous(Shape::of(&[rows, cols]));
        let row = Layout::strided(Shape::of(&[rows, cols]), &[-(cols as isize), 2], rows * cols);
        on(&program, &[rows, cols], &[dense, row])
    };
    let (a, b) = (of(3, 5), of(70, 900));
    validate(&a.text);
    assert_eq!(a.text, b.text);
    // Packs, last element, the number; two sizes; an offset and two strides, an offset.
    let (half, minus) = (0.5_f32.to_bits(), -5_i32 as u32);
    let words = |of: &Dispatch, n: f64| of.words(&[Scalar::Float(n)], 0);
    assert_eq!(words(&a, 0.5), [4, 14, half, 5, 15, minus, 2, 0]);
    let (two, minus) = ((-2_f32).to_bits(), -900_i32 as u32);
    assert_eq!(words(&b, -2.0), [15_750, 62_999, two, 900, 63_000, minus, 2, 0]);
}

#[test]
fn operands_and_results_that_share_a_range_are_bound_once() {
    let program = chain();
    let dense = Layout::contiguous(Shape::of(&[40]));
    let operands = [(0, &dense), (1, &dense)].map(operand);
    let shape = Shape::of(&[40]);
    // The product is written over the first operand, which has its dtype.
    let over = dispatch(&program, shape.dims(), &operands, &[2, 0]).expect("a shader");
    validate(&over.text);
    assert!(over.text.contains("var<storage, read_write> m0: array<vec4<u32>>;"));
    assert!(over.text.contains("@group(0) @binding(3) var<uniform>"), "{}", over.text);
    // A range with two dtypes is bound as words.
    let both = dispatch(&program, shape.dims(), &operands, &[2, 1]).expect("a shader");
    validate(&both.text);
    assert!(
        both.text.contains("m1: array<u32>;") && both.text.contains("m1[pack * 4u + 3u] = o1.w;")
    );
}

#[test]
fn numbers_of_two_words_take_two() {
    let mut program = ElementProgram::new(&[DType::I64], &[DType::I64, DType::F32]);
    let (x, n) = (program.array(0), program.number(0));
    let y = program.push(ElementOp::Map(&arithmetic::add), &[x, n], DType::I64);
    let wide = program.push(ElementOp::Cast, &[y], DType::F32);
    let number = program.number(1);
    let z = program.push(ElementOp::Map(&arithmetic::multiply), &[wide, number], DType::F32);
    let program = program.giving(&[z, y]);
    let dense = Layout::contiguous(Shape::of(&[6]));
    let numbers = [Scalar::Int(-2), Scalar::Float(1.5)];
    let found = on(&program, &[6], std::slice::from_ref(&dense));
    validate(&found.text);
    assert_eq!(
        found.words(&numbers, 0),
        [2, 5, u32::MAX - 1, u32::MAX, 1.5_f32.to_bits(), 0, 0, 0]
    );
    // In place, and over memory of another dtype.
    let operand = [operand((0, &dense))];
    for results in [[1, 0], [0, 1]] {
        let shape = Shape::of(&[6]);
        validate(&dispatch(&program, shape.dims(), &operand, &results).expect("a shader").text);
    }
}

#[test]
fn large_groups_are_dispatched_in_two_dimensions() {
    let mut program = ElementProgram::new(&[DType::I8], &[]);
    let y = program.push(ElementOp::Cast, &[program.array(0)], DType::F32);
    let program = program.giving(&[y]);
    for count in [1, 4 * 64 * 65_535, 4 * 64 * 65_535 + 1, 1_000_000_007, 1 << 31] {
        let found = on(&program, &[count], &[Layout::contiguous(Shape::of(&[count]))]);
        let [x, y] = found.groups().map(|n| n as usize);
        assert!(x <= 65_535 && y <= 65_535 && x * y * WORKGROUP * 4 >= count, "{count}");
        assert_eq!(found.words(&[], 0)[0], count.div_ceil(4) as u32);
        assert!((x * y - x) * WORKGROUP * 4 < count, "{count}: rows without work");
    }
}

#[test]
fn workgroups_share_memory_and_leave_as_a_whole() {
    let reversed = |groups: usize| {
        let mut shader = Shader::new();
        let memory = shader.memory(Place::Range(0));
        let shared = shader.shared(WgslType::U32, WORKGROUP);
        shader.line(format!("{shared}[local] = {memory}[group * {WORKGROUP}u + local];"));
        shader.barrier();
        let other = format!("{shared}[{}u - local]", WORKGROUP - 1);
        shader.line(format!("{memory}[group * {WORKGROUP}u + local] = {other};"));
        shader.grouped(Dim::new(groups), Dim::new(0))
    };
    for groups in [0, 1, 65_535, 65_536, 200_003] {
        let found = reversed(groups);
        validate(&found.text);
        assert_eq!(found.text, reversed(7).text);
        assert_eq!(found.invocations.value(), groups * WORKGROUP);
        assert_eq!(found.words(&[], 0)[0], groups as u32);
        let [x, y] = found.groups().map(|n| n as usize);
        assert!(x <= 65_535 && x * y >= groups && x * y < groups + y, "{groups}: {x} x {y}");
    }
}

/// As many registers at a time as may be, time and again: the memory suffices, and a round writes
/// none that another invocation may still read.
#[test]
fn lanes_share_memory_round_by_round() {
    for (count, unit) in [(1, 1), (LANES, 1), (LANES, WORKGROUP / LANES), (WORKGROUP, 1)] {
        for has_subgroups in [false, true] {
            let mut shader = Shader::able(Abilities { has_subgroups, ..Abilities::LEAST });
            let (mut lanes, memory) = (Lanes::new(count, unit), shader.memory(Place::Range(0)));
            let mut values: Vec<String> = Vec::new();
            for k in 0..MOST_JOINED {
                values.push(shader.name(format!("vec2<u32>({memory}[{k}], local)")));
            }
            for _ in 0..3 {
                let add = |shader: &mut Shader, a: &[String], b: &[String]| {
                    let pairs = a.iter().zip(b);
                    Ok(pairs.map(|(a, b)| shader.name(format!("{a} + {b}"))).collect())
                };
                let types = [WgslType::U64; MOST_JOINED];
                values = lanes.join(&mut shader, &types, values, add).unwrap();
            }
            shader.line(format!("{memory}[local] = {}.x + {}.y;", values[0], values[1]));
            let text = shader.grouped(Dim::ONE, Dim::new(0)).text;
            validate(&text);
            let mut written: Vec<Vec<&str>> = vec![Vec::new()];
            for line in text.lines().map(str::trim) {
                match line.split_once("[local] = ") {
                    Some((array, _)) if array.starts_with("shared") => {
                        written.last_mut().unwrap().push(array);
                    }
                    _ if line == "workgroupBarrier();" => written.push(Vec::new()),
                    _ => {}
                }
            }
            let through_registers = usize::from(has_subgroups && unit == 1);
            let rounds =
                count.ilog(LANES) as usize - through_registers.min(count.ilog(LANES) as usize);
            assert_eq!(written.len(), 3 * rounds + 1, "{text}");
            for (before, after) in written.iter().zip(&written[1..]) {
                assert!(before.iter().all(|array| !after.contains(array)), "{text}");
            }
        }
    }
}

#[test]
fn what_has_no_shader_is_refused() {
    let double = program(&arithmetic::add, DType::F64);
    let dense = Layout::contiguous(Shape::of(&[3]));
    let operands = [(0, &dense), (1, &dense)].map(operand);
    let refusal = dispatch(&double, Shape::of(&[3]).dims(), &operands, &[2]).unwrap_err();
    assert!(refusal.message().contains("WGSL has no such type"), "{refusal}");
    let program = program(&arithmetic::negative, DType::I8);
    let huge = Layout::contiguous(Shape::of(&[(1 << 31) + 1]));
    let operand = [operand((0, &huge))];
    let refusal = dispatch(&program, huge.shape().dims(), &operand, &[1]).unwrap_err();
    assert!(refusal.message().contains("too many elements"), "{refusal}");
}

#[test]
fn the_text_of_a_group() {
    let mut program = ElementProgram::new(&[DType::F32, DType::U8], &[DType::F32]);
    let (x, mask, n) = (program.array(0), program.array(1), program.number(0));
    let wide = program.push(ElementOp::Cast, &[mask], DType::F32);
    let y = program.push(ElementOp::Map(&arithmetic::multiply), &[x, n], DType::F32);
    let z = program.push(ElementOp::Map(&arithmetic::add), &[y, wide], DType::F32);
    let program = program.giving(&[z]);
    let x = Layout::contiguous(Shape::of(&[6, 4]));
    let mask = Layout::contiguous(Shape::of(&[4]));
    let text = on(&program, &[6, 4], &[x, mask]).text;
    validate(&text);
    assert_eq!(text, include_str!("tests/group.wgsl"), "{text}");
}
