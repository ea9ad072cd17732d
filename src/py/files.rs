//! Tensors as bytes: safetensors files, and the contents that pickle keeps.
//!
//! Promises: a file is believed only as far as it was checked; nothing larger than the file is ever
//! allocated for it; other threads run while data is read or written. Bytes are little-endian, as
//! the machines are that this crate is built for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::errors::{OrRaise, to_python};
use super::interrupt::interrupted;
use super::{convert, dtype, tensor};
use crate::array::Array;
use crate::dtype::DType;
use crate::engine::executors;
use crate::engine::tape::Value;
use crate::error::{self, Error};
use crate::shape::Shape;

#[cfg(target_endian = "big")]
compile_error!("files and pickles are written as the little-endian memory they come from");

const LOAD: &str = "load";
const SAVE: &str = "save";

/// The bytes before the header, which count it.
const PREFIX: usize = 8;
/// Headers beyond this are refused, as other readers do.
const HEADER_LIMIT: u64 = 100_000_000;

/// Why a file was not read or written.
enum Failure {
    /// The system refused.
    System(io::Error),
    /// The content is not what it must be, or there is no room for it.
    Content(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::System(error)
    }
}
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Content(error)
    }
}

impl Failure {
    /// As `OSError` with number and path, from which Python chooses the subclass; or as ours.
    fn raise(self, py: Python<'_>, op: &str, path: &Path) -> PyErr {
        let error = match self {
            Failure::Content(error) => {
                return to_python(py, error.note(path.display().to_string()));
            }
            Failure::System(error) => error,
        };
        match error.raw_os_error() {
            Some(number) => {
                let text = error.to_string();
                let text = text.split(" (os error").next().unwrap_or_default().to_string();
                PyOSError::new_err((number, text, path.as_os_str().to_owned()))
            }
            None => to_python(py, malformed(op, error).note(path.display().to_string())),
        }
    }
}

fn malformed(op: &str, facts: impl std::fmt::Display) -> Error {
    error::bad_value(op, "not a safetensors file", facts)
}

fn stored_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn loaded_dtype(name: &str, stored: Dtype) -> Result<DType, Error> {
    DType::ALL.into_iter().find(|dtype| stored_dtype(*dtype) == stored).ok_or_else(|| {
        let facts = format!("tensor {name:?} has dtype {stored}");
        error::bad_value(LOAD, "a dtype that wengert does not have", facts)
    })
}

/// The bytes of a C-order array.
pub fn bytes_of(array: &Array) -> &[u8] {
    // SAFETY: C order without gaps: the elements are these bytes, alive as long as the array.
    unsafe { std::slice::from_raw_parts(array.ptr(), array.count() * array.dtype.size()) }
}

/// The bytes of a fresh C-order array, to fill.
///
/// # Safety
/// Nobody else holds the array.
unsafe fn bytes_to_fill(array: &mut Array) -> &mut [u8] {
    // SAFETY: as for `bytes_of`; the caller holds the array alone.
    unsafe { std::slice::from_raw_parts_mut(array.ptr_mut(), array.count() * array.dtype.size()) }
}

/// Foreign bools may be any byte; ours are 0 and 1.
fn normalise(dtype: DType, bytes: &mut [u8]) {
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}

/// Writes named tensors to a safetensors file. Wide elements come first, so that all are aligned;
/// otherwise in the order given.
#[pyfunction]
fn safetensors_save(
    py: Python<'_>,
    path: PathBuf,
    tensors: &Bound<'_, PyDict>,
    metadata: std::collections::HashMap<String, String>,
) -> PyResult<()> {
    let mut named = Vec::with_capacity(tensors.len());
    for (name, object) in tensors {
        // SAFETY: a live object.
        let Some(handle) = (unsafe { tensor::downcast(object.as_ptr()) }) else {
            return Err(convert::refuse(SAVE, &object));
        };
        let array = executors::download(&tensor::data(py, SAVE, handle)?).or_raise(py)?;
        named.push((name.extract::<String>()?, array));
    }
    named.sort_by_key(|(_, array)| std::cmp::Reverse(array.dtype.size()));
    py.detach(|| write(&path, &named, metadata)).map_err(|failure| failure.raise(py, SAVE, &path))
}

fn write(
    path: &Path,
    named: &[(String, Array)],
    metadata: std::collections::HashMap<String, String>,
) -> Result<(), Failure> {
    let mut end = 0;
    let infos = named.iter().map(|(name, array)| {
        let start = end;
        end += array.count() * array.dtype.size();
        let shape = array.shape().sizes().to_vec();
        let dtype = stored_dtype(array.dtype);
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let metadata = (!metadata.is_empty()).then(|| metadata.into_iter().collect());
    let described = Metadata::new(metadata, infos.collect());
    let described = described.map_err(|e| error::bad_value(SAVE, "cannot be described", e))?;
    let header = serde_json::to_vec(&described);
    let mut header = header.map_err(|e| error::bad_value(SAVE, "cannot be described", e))?;
    header.resize(header.len().next_multiple_of(PREFIX), b' ');

    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (_, array) in named {
        for piece in bytes_of(&executors::contiguous(array)?).chunks(PIECE) {
            interrupted(false)?;
            file.write_all(piece)?;
        }
    }
    Ok(())
}

/// The tensors of a safetensors file by their names, in the order of the file.
#[pyfunction]
fn safetensors_load(py: Python<'_>, path: PathBuf) -> PyResult<Py<PyDict>> {
    let (named, _) = py.detach(|| read(&path)).map_err(|failure| failure.raise(py, LOAD, &path))?;
    let tensors = PyDict::new(py);
    for (name, array) in named {
        tensors.set_item(name, tensor::wrap(py, Value::plain(array))?)?;
    }
    Ok(tensors.unbind())
}

/// The same, and the text that the file has beside them.
#[pyfunction]
fn _safetensors_read(py: Python<'_>, path: PathBuf) -> PyResult<(Py<PyDict>, Py<PyDict>)> {
    let found = py.detach(|| read(&path)).map_err(|failure| failure.raise(py, LOAD, &path))?;
    let (tensors, texts) = (PyDict::new(py), PyDict::new(py));
    for (name, array) in found.0 {
        tensors.set_item(name, tensor::wrap(py, Value::plain(array))?)?;
    }
    for (key, text) in found.1 {
        texts.set_item(key, text)?;
    }
    Ok((tensors.unbind(), texts.unbind()))
}

/// Files of other formats: their first bytes, and who reads them.
const OTHERS: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive: torch.load reads .pt and .pth, numpy.load reads .npz"),
    (b"\x93NUMPY", "an array of NumPy: numpy.load reads it"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: h5py reads it"),
    (b"GGUF", "a GGUF file: the package gguf reads it"),
    (b"\x1f\x8b", "compressed by gzip: decompress it first"),
    (b"version ", "a pointer of Git LFS: `git lfs pull` fetches the file itself"),
];

/// What a file is whose first bytes these are, if it is of another format that we know.
fn other_format(start: &[u8; PREFIX]) -> Option<&'static str> {
    if let Some((_, what)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(what);
    }
    match start {
        [0x80, 2..=5, ..] => Some("a pickle: pickle.load reads it, or torch.load"),
        // Field 1 of an ONNX model is its version, field 2 who made it.
        [0x08, 1..=0x7f, 0x12, ..] => Some("an ONNX model: the package onnx reads it"),
        [_, _, _, _, b'T', b'F', b'L', b'3'] => Some("a TFLite model: TensorFlow reads it"),
        _ => None,
    }
}

/// Reads and writes go in pieces of this many bytes, between which signals are looked for.
const PIECE: usize = 1 << 24;

/// Named tensors, and texts.
type Content = (Vec<(String, Array)>, Vec<(String, String)>);

fn read(path: &Path) -> Result<Content, Failure> {
    // Opening a FIFO waits for a writer, whom nobody could be told to stop waiting for.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(
            error::bad_value(LOAD, "not a regular file", "got a device, FIFO or socket").into()
        );
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut prefix = [0; PREFIX];
    if length < PREFIX as u64 && file.metadata()?.is_file() {
        return Err(malformed(LOAD, format!("{length} bytes")).into());
    }
    file.read_exact(&mut prefix)?;
    let header_length = u64::from_le_bytes(prefix);
    let rest = length.saturating_sub(PREFIX as u64);
    if header_length > rest.min(HEADER_LIMIT) {
        if let Some(what) = other_format(&prefix) {
            return Err(malformed(LOAD, what).into());
        }
        let facts = format!("a header of {header_length} bytes in a file of {length}");
        return Err(malformed(LOAD, facts).into());
    }
    let mut header = vec![0; header_length as usize];
    file.read_exact(&mut header)?;
    // Sizes, offsets without gaps or overlaps, and their agreement are checked while parsing.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| malformed(LOAD, error))?;
    let (said, there) = (metadata.data_len() as u64, rest - header_length);
    if said != there {
        let facts = format!("the header describes {said} bytes of data, the file has {there}");
        return Err(malformed(LOAD, facts).into());
    }
    let texts = metadata.metadata().iter().flatten();
    let texts = texts.map(|(key, text)| (key.clone(), text.clone())).collect();
    let arrays = metadata
        .offset_keys()
        .into_iter()
        .filter_map(|name| metadata.info(&name).map(|info| (name, info)))
        .map(|(name, info)| {
            let array = read_array(&mut file, &name, info)?;
            Ok((name, array))
        })
        .collect::<Result<_, Failure>>()?;
    Ok((arrays, texts))
}

fn read_array(file: &mut File, name: &str, info: &TensorInfo) -> Result<Array, Failure> {
    let dtype = loaded_dtype(name, info.dtype)?;
    let shape = Shape::of(&info.shape);
    shape.check(LOAD)?;
    let mut array = Array::uninit(dtype, shape)?;
    // SAFETY: just made.
    let bytes = unsafe { bytes_to_fill(&mut array) };
    for piece in bytes.chunks_mut(PIECE) {
        interrupted(false)?;
        file.read_exact(piece)?;
    }
    normalise(dtype, bytes);
    Ok(array)
}

/// The elements in C order as bytes; what pickle keeps.
#[pyfunction]
fn _to_bytes<'py>(py: Python<'py>, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: a live object.
    let Some(handle) = (unsafe { tensor::downcast(tensor.as_ptr()) }) else {
        return Err(convert::refuse("to_bytes", tensor));
    };
    let array = executors::download(&tensor::data(py, "to_bytes", handle)?).or_raise(py)?;
    let array = executors::contiguous(&array).or_raise(py)?;
    Ok(PyBytes::new(py, bytes_of(&array)))
}

/// A tensor from its dtype, its shape and what `_to_bytes` gave.
#[pyfunction]
fn _from_bytes(
    py: Python<'_>,
    dtype: &Bound<'_, PyAny>,
    shape: Vec<usize>,
    data: &[u8],
) -> PyResult<Py<PyAny>> {
    const OP: &str = "from_bytes";
    let dtype = dtype::extract(OP, dtype)?;
    let shape = Shape::of(&shape);
    shape.check(OP).or_raise(py)?;
    let wanted = shape.count() * dtype.size();
    if wanted != data.len() {
        let facts = format!("{dtype} {shape} has {wanted} bytes, got {}", data.len());
        return Err(to_python(py, error::bad_value(OP, "the data has another length", facts)));
    }
    let mut array = Array::uninit(dtype, shape).or_raise(py)?;
    // SAFETY: just made.
    let bytes = unsafe { bytes_to_fill(&mut array) };
    bytes.copy_from_slice(data);
    normalise(dtype, bytes);
    tensor::wrap(py, Value::plain(array))
}

/// Adds the functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(safetensors_save, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(safetensors_load, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_safetensors_read, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_to_bytes, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_from_bytes, module)?)
}
