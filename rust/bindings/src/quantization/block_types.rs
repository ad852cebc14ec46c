//! Blocks of bytes of llama.cpp: dense numpy arrays that the caller has made, to the core.

use castwise_core::format::Format;
use castwise_core::quantization::{self as core, BLOCK_TYPES, BlockRequest, BlockType};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::{Array, Order, shown, target_fault};
use crate::error::to_python;
use crate::runtime::release;

/// An address that another thread may use.
struct Address(*mut u8);
// SAFETY: it is only followed in calls whose caller holds the arrays, and that pass it on.
unsafe impl Send for Address {}

impl Address {
    /// Returns the address; a method, so that closures capture the whole.
    fn get(self) -> *mut u8 {
        self.0
    }
}

/// Return name, elements, bytes, bits of a code and place of the scale of each type.
#[pyfunction]
pub(crate) fn block_types(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, BLOCK_TYPES.iter().map(|row| (row.name, row.elements, row.bytes, row.bits, row.scale)))
}

/// Quantize float32 to blocks of a type; return the first block with NaN or a scale that no float16 holds, or None.
///
/// `importance` has a float32 number for each column of a matrix, which weights the errors of its elements.
#[pyfunction]
#[pyo3(signature = (x, blocks, name, importance = None, best = false))]
pub(crate) fn encode_block_type(
    x: &Bound<'_, PyAny>,
    blocks: &Bound<'_, PyAny>,
    name: &str,
    importance: Option<&Bound<'_, PyAny>>,
    best: bool,
) -> PyResult<Option<usize>> {
    let (row, count, source, target) = operands(x, blocks, name, true)?;
    let columns = Array::of_numpy("x", x)?.shape().last().copied().unwrap_or(0);
    let numbers = importance.map(|numbers| numbers_of_columns(numbers, columns)).transpose()?;
    let call = move || {
        let (x, blocks) = (source.get(), target.get());
        let request = BlockRequest { columns, importance: numbers.as_deref(), is_best: best };
        // SAFETY: numpy vouched for memory of so many dense blocks, which `operands` counted, and which are apart; the
        // target is writeable.
        unsafe { core::encode_block_type(row, x.cast(), blocks, count, &request) }
    };
    Ok(release(blocks.py(), count * row.elements * 4, call))
}

/// Decode blocks of a type to float32.
#[pyfunction]
pub(crate) fn decode_block_type(
    blocks: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    name: &str,
) -> PyResult<()> {
    let (row, count, out_address, blocks_address) = operands(out, blocks, name, false)?;
    let call = move || {
        let (out, blocks) = (out_address.get(), blocks_address.get());
        // SAFETY: as for `encode_block_type`.
        unsafe { core::decode_block_type(row, blocks, out.cast(), count) };
    };
    release(out.py(), count * row.elements * 4, call);
    Ok(())
}

/// Copies numbers of the columns of a matrix.
fn numbers_of_columns(numbers: &Bound<'_, PyAny>, columns: usize) -> PyResult<Vec<f32>> {
    let array = Array::of_numpy("importance", numbers)?;
    let fits = array.format == Format::FLOAT32
        && !array.swapped
        && array.is_in_order(Order::C)
        && array.shape() == [columns];
    if !fits {
        return Err(PyValueError::new_err(format!(
            "importance of shape {} does not fit; give float32 in C order, one for each of {columns} columns.",
            shown(array.shape()),
        )));
    }
    let mut copy = vec![0f32; columns];
    // SAFETY: numpy vouched for memory of so many dense float32; the copy is as long.
    unsafe {
        let source = array.pointer().cast_const();
        source.copy_to_nonoverlapping(copy.as_mut_ptr().cast(), size_of_val(&copy[..]));
    }
    Ok(copy)
}

/// Checks elements and blocks, of which one is written; returns how many blocks there are, and where both begin.
fn operands(
    elements: &Bound<'_, PyAny>,
    blocks: &Bound<'_, PyAny>,
    name: &str,
    encodes: bool,
) -> PyResult<(&'static BlockType, usize, Address, Address)> {
    let row = core::find_block_type(name).map_err(to_python)?;
    let argument = if encodes { "x" } else { "out" };
    let (x, bytes) = (Array::of_numpy(argument, elements)?, Array::of_numpy("blocks", blocks)?);
    let count = bytes.bytes() / row.bytes;
    let target = if encodes { &bytes } else { &x };
    let fits = (x.format, bytes.format) == (Format::FLOAT32, Format::UINT8)
        && !x.swapped
        && [&x, &bytes].iter().all(|array| array.is_in_order(Order::C))
        && (x.bytes(), bytes.bytes()) == (count * row.elements * 4, count * row.bytes)
        && x.shape().last().is_none_or(|columns| columns.is_multiple_of(row.elements));
    if !fits || x.may_overlap(&bytes) || target_fault(target, None).is_some() {
        return Err(PyValueError::new_err(format!(
            "{argument} of shape {} and blocks of shape {} do not fit; give float32 in rows of whole blocks of {}, and \
             apart from it uint8 with {} for each block, both in C order, and a writeable target.",
            shown(x.shape()),
            shown(bytes.shape()),
            row.elements,
            row.bytes
        )));
    }
    Ok((row, count, Address(x.pointer()), Address(bytes.pointer())))
}
