//! Numbers, strings, arrays and types as text that reads back to the same bits.
//!
//! Numbers have the fewest digits that identify them. A NaN is `nan`, one with another sign or
//! payload `nan(0x…)`. Integers that only uint64 holds end in `u`. Arrays of few elements are
//! nested lists, an array of one repeated element is `all=…`, and all other arrays are their bytes
//! in base 64, little end first.

use std::fmt::Write;

use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error::Result;
use crate::layout::Layout;
use crate::memory::Buffer;
use crate::ops::emit::{Arg, Id};
use crate::ops::number::{Calculation, Number};
use crate::ops::op::Type;
use crate::scalar::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::shape::{Dim, Extent, Shape};

/// The most elements that an array is written with one by one.
const INLINE: usize = 64;

/// The longest text of a size.
const LONGEST_SIZE: usize = 1 << 12;

/// An operand: `%3`, a number, or `#0` for a numeric input.
pub fn operand(arg: Arg) -> String {
    match arg {
        Arg::Node(id) => format!("%{}", id.0),
        Arg::Number(Numeric::Known(value)) => scalar(value),
        Arg::Number(number @ Numeric::Told(_)) => number.to_string(),
    }
}

/// The operand that a text stands for; `numbers` is the count of entries in the table of numbers.
pub fn read_operand(text: &str, numbers: u32) -> Option<Arg> {
    if let Some(id) = text.strip_prefix('%') {
        return Some(Arg::Node(Id(digits(id)?)));
    }
    if let Some(i) = text.strip_prefix('#') {
        return digits(i).filter(|i| *i < numbers).map(super::numeric_input);
    }
    read_scalar(text).map(|value| Arg::Number(value.into()))
}

/// A number.
pub fn scalar(value: Scalar) -> String {
    match value {
        Scalar::Bool(_) | Scalar::Int(_) => value.to_string(),
        Scalar::Uint(n) => format!("{n}u"),
        Scalar::Float(x) => float(x),
    }
}

/// The number that a text stands for.
pub fn read_scalar(text: &str) -> Option<Scalar> {
    match text {
        "True" => return Some(Scalar::Bool(true)),
        "False" => return Some(Scalar::Bool(false)),
        _ => {}
    }
    if let Some(n) = text.strip_suffix('u') {
        return n.parse().ok().map(Scalar::Uint);
    }
    let int = text.parse().ok().map(Scalar::Int);
    int.or_else(|| read_float(text).map(Scalar::Float))
}

/// A float, distinguished from an integer by its point or exponent.
pub fn float(x: f64) -> String {
    match x.is_nan() && x.to_bits() != f64::NAN.to_bits() {
        true => format!("nan({:#x})", x.to_bits()),
        false => format!("{x:?}").to_lowercase(),
    }
}

/// The float that a text stands for.
pub fn read_float(text: &str) -> Option<f64> {
    match nan_bits(text) {
        Some(bits) => Some(f64::from_bits(bits)).filter(|x| x.is_nan()),
        None => plain_float(text)?.parse().ok(),
    }
}

/// The text, if it is a float without a payload. (Rust's parser accepts a few more spellings.)
fn plain_float(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
    (is_number || matches!(text, "inf" | "-inf" | "nan")).then_some(text)
}

/// The bits of `nan(0x…)`.
fn nan_bits(text: &str) -> Option<u64> {
    let bits = text.strip_prefix("nan(0x")?.strip_suffix(')')?;
    u64::from_str_radix(bits, 16).ok()
}

/// Digits alone, without a sign.
pub fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = text.starts_with(|c: char| c.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// A string in quotes.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The string that a quoted one stands for.
pub fn read_quoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '"' => return None,
            '\\' => match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'u' => {
                    let (code, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                    chars = rest.chars();
                    char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                }
                c @ ('"' | '\\') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

/// A type: `float32 (2, 3)`.
pub fn ty(ty: &Type) -> String {
    format!("{} {}", ty.dtype, ty.shape)
}

/// The size that a text stands for: a number, or an expression over symbols.
pub fn read_dim(text: &str) -> Option<Dim> {
    let starts_well = !text.starts_with('-') && text.len() <= LONGEST_SIZE;
    digits(text).map(Dim::new).or_else(|| starts_well.then(|| Dim::parse(text)).flatten())
}

/// The integer or size that a text stands for.
pub fn read_int(text: &str) -> Option<Extent> {
    let number = text.parse().ok().map(Extent::Number);
    number.or_else(|| read_dim(text).map(Extent::from))
}

/// The table of numbers of a list: only their count if all are given, or else each entry.
pub fn numbers(table: &[Number]) -> String {
    if table.iter().all(|number| matches!(number, Number::Input)) {
        return table.len().to_string();
    }
    let entry = |number: &Number| match *number {
        Number::Input => "input".into(),
        Number::Size(dim) => format!("size({dim})"),
        Number::Calculated(how, [a, b]) => {
            format!("{}({}, {})", how.name(), operand(Arg::Number(a)), operand(Arg::Number(b)))
        }
    };
    table.iter().map(entry).collect::<Vec<String>>().join(", ")
}

/// An entry of the table of numbers that has `earlier` entries before it.
pub fn read_number(text: &str, earlier: u32) -> Option<Number> {
    if text == "input" {
        return Some(Number::Input);
    }
    let (name, inside) = text.strip_suffix(')')?.split_once('(')?;
    if name == "size" {
        return read_dim(inside).map(Number::Size);
    }
    let how = Calculation::from_name(name)?;
    let (a, b) = inside.split_once(',')?;
    let scalar = |text: &str| match read_operand(text.trim(), earlier)? {
        Arg::Number(value) => Some(value),
        Arg::Node(_) => None,
    };
    Some(Number::Calculated(how, [scalar(a)?, scalar(b)?]))
}

/// The elements in C order, little end first.
pub fn bytes_of(array: &Array) -> Vec<u8> {
    let (sizes, strides) = (array.shape().sizes(), array.layout.strides());
    let (count, size) = (array.count(), array.dtype.size());
    // The length of a run of elements that are contiguous in memory.
    let run = if array.is_contiguous() { count } else { count.min(1) };
    let mut out = Vec::with_capacity(count * size);
    let mut index = vec![0usize; sizes.len()];
    while out.len() < count * size {
        let at: isize = index.iter().zip(&strides).map(|(&i, &step)| i as isize * step).sum();
        let first = array.ptr().wrapping_offset(at * size as isize);
        // SAFETY: the elements of the run lie in the array's buffer, and every byte is set.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(first, run * size) });
        for (i, n) in index.iter_mut().zip(&sizes).rev() {
            *i = (*i + 1) % n;
            if *i > 0 {
                break;
            }
        }
    }
    out
}

/// The elements that determine an array: all of them in C order, or one that is repeated.
pub enum Elements {
    /// One element
    All(Vec<u8>),
    /// All of them
    Each(Vec<u8>),
}

/// The elements of an array. A broadcast of one element stays one element.
pub fn elements(array: &Array) -> Elements {
    let repeats = !array.is_contiguous() && array.layout.strides().iter().all(|&step| step == 0);
    if repeats && array.count() > INLINE {
        let one = array.view(Layout::contiguous_at(Shape::scalar(), array.layout.offset()));
        return Elements::All(bytes_of(&one));
    }
    let bytes = bytes_of(array);
    let size = array.dtype.size();
    let same = bytes.chunks_exact(size).all(|element| *element == bytes[..size]);
    match same && array.count() > INLINE {
        true => Elements::All(bytes[..size].to_vec()),
        false => Elements::Each(bytes),
    }
}

/// An array: `[[1.0, 2.0], [3.0, 4.0]]`, `all=0.0`, `base64="AACAPw=="`. Where `short`, bytes are
/// written as `...`, which does not read back.
pub fn array(array: &Array, short: bool) -> String {
    let dtype = array.dtype;
    match elements(array) {
        Elements::All(bytes) => format!("all={}", element(dtype, &bytes)),
        Elements::Each(bytes) if bytes.is_empty() => "[]".into(),
        Elements::Each(bytes) if array.count() <= INLINE => {
            let each = bytes.chunks_exact(dtype.size()).map(|bytes| element(dtype, bytes));
            nested(&array.shape().sizes(), &mut each.collect::<Vec<_>>().into_iter())
        }
        Elements::Each(_) if short => "...".into(),
        Elements::Each(bytes) => format!("base64=\"{}\"", base64(&bytes)),
    }
}

/// Elements in nested brackets. The recursion is as deep as the array has axes.
fn nested(sizes: &[usize], elements: &mut impl Iterator<Item = String>) -> String {
    let Some((&n, rest)) = sizes.split_first() else {
        return elements.next().unwrap_or_default();
    };
    let parts: Vec<String> = (0..n).map(|_| nested(rest, elements)).collect();
    format!("[{}]", parts.join(", "))
}

/// One element.
fn element(dtype: DType, bytes: &[u8]) -> String {
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(bits);
    // The sign of an integer is the highest bit of its own width.
    let signed = || {
        let shift = 64 - 8 * bytes.len() as u32;
        ((bits << shift) as i64 >> shift).to_string()
    };
    let single = |x: f32, is_plain: bool| match x.is_nan() && !is_plain {
        true => format!("nan({bits:#x})"),
        false => format!("{x:?}").to_lowercase(),
    };
    match dtype {
        DType::Bool => if bits == 0 { "False" } else { "True" }.into(),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => signed(),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => bits.to_string(),
        DType::F16 => single(f16_to_f32(bits as u16), bits == quiet_nan(dtype)),
        DType::BF16 => single(bf16_to_f32(bits as u16), bits == quiet_nan(dtype)),
        DType::F32 => single(f32::from_bits(bits as u32), bits == quiet_nan(dtype)),
        DType::F64 => float(f64::from_bits(bits)),
    }
}

/// The bits of the NaN that is written without a payload.
fn quiet_nan(dtype: DType) -> u64 {
    match dtype {
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        DType::F32 => u64::from(f32::NAN.to_bits()),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F64 => f64::NAN.to_bits(),
    }
}

/// The bits of the element that a text stands for.
fn read_element(dtype: DType, text: &str) -> Option<u64> {
    let int = |text: &str| -> Option<u64> {
        let (low, high) = dtype.int_range()?;
        text.parse().ok().filter(|n: &i128| (low..=high).contains(n)).map(|n| n as u64)
    };
    if dtype.is_float() && text == "nan" {
        return Some(quiet_nan(dtype));
    }
    let width = 8 * dtype.size() as u32;
    if dtype.is_float()
        && let Some(bits) = nan_bits(text)
    {
        return Some(bits).filter(|bits| width == 64 || bits >> width == 0);
    }
    let single = || plain_float(text)?.parse::<f32>().ok();
    match dtype {
        DType::Bool => match text {
            "True" => Some(1),
            "False" => Some(0),
            _ => None,
        },
        DType::F16 => single().map(|x| u64::from(f32_to_f16(x))),
        DType::BF16 => single().map(|x| u64::from(f32_to_bf16(x))),
        DType::F32 => single().map(|x| u64::from(x.to_bits())),
        DType::F64 => read_float(text).map(f64::to_bits),
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => int(text),
    }
}

/// The array of a type that a text stands for; `None` where the text stands for none.
pub fn read_array(ty: &Type, text: &str) -> Option<Result<Array>> {
    let (sizes, size) = (ty.shape.sizes(), ty.dtype.size());
    if let Some(one) = text.strip_prefix("all=") {
        let bits = read_element(ty.dtype, one)?.to_le_bytes();
        return Some(from_bytes(ty.dtype, &Shape::scalar(), &bits[..size]).map(|one| {
            // One element in memory, however large the text says the array is.
            let strides = vec![0; sizes.len()];
            one.view(Layout::strided(ty.shape.clone(), &strides, 0))
        }));
    }
    let count = ty.shape.count();
    let bytes = match text.strip_prefix("base64=") {
        Some(coded) => read_base64(coded.strip_prefix('"')?.strip_suffix('"')?)?,
        None if count == 0 => (text == "[]").then(Vec::new)?,
        None => {
            let mut bytes = Vec::new();
            read_nested(ty.dtype, &sizes, text, &mut bytes)?;
            bytes
        }
    };
    let fits = bytes.len() == count.saturating_mul(size);
    let truths = ty.dtype != DType::Bool || bytes.iter().all(|&byte| byte <= 1);
    (fits && truths).then(|| from_bytes(ty.dtype, &ty.shape, &bytes))
}

/// The array of these bytes.
pub fn from_bytes(dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<Array> {
    let array = Array {
        dtype,
        layout: Layout::contiguous(shape.clone()),
        data: Buffer::alloc(bytes.len())?.into(),
    };
    // SAFETY: the buffer is fresh and as long as the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), array.ptr_mut(), bytes.len()) };
    Ok(array)
}

/// Appends the elements of nested brackets. The recursion is as deep as the array has axes.
fn read_nested(dtype: DType, sizes: &[usize], text: &str, out: &mut Vec<u8>) -> Option<()> {
    let Some((&n, rest)) = sizes.split_first() else {
        let bits = read_element(dtype, text)?.to_le_bytes();
        out.extend_from_slice(&bits[..dtype.size()]);
        return Some(());
    };
    let items = split(text.strip_prefix('[')?.strip_suffix(']')?)?;
    if items.len() != n {
        return None;
    }
    items.into_iter().try_for_each(|item| read_nested(dtype, rest, item, out))
}

/// The parts of a text between its outer commas, trimmed; a comma at the end adds none. `None`
/// where brackets or quotes do not close.
pub fn split(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = extent(rest, ',')?;
        parts.push(rest[..end].trim());
        rest = rest.get(end + 1..).unwrap_or("").trim();
    }
    Some(parts)
}

/// How far a text goes before `stop` outside brackets and quotes, or to its end. `None` where
/// brackets or quotes do not close.
pub fn extent(text: &str, stop: char) -> Option<usize> {
    let (mut open, mut in_quotes, mut escaped) = (0usize, false, false);
    for (i, c) in text.char_indices() {
        if in_quotes {
            in_quotes = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        if open == 0 && c == stop {
            return Some(i);
        }
        match c {
            '"' => in_quotes = true,
            '(' | '[' => open += 1,
            ')' | ']' => open = open.checked_sub(1)?,
            _ => {}
        }
    }
    (open == 0 && !in_quotes).then_some(text.len())
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in base 64, padded with `=`.
fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| group.get(i).map_or(0, |b| u32::from(*b));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= group.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// The bytes of a text in base 64.
fn read_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0;
        for &c in group {
            let value = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let bits = (bits << (6 * (4 - group.len()))).to_be_bytes();
        out.extend_from_slice(&bits[1..group.len()]);
    }
    Some(out)
}
