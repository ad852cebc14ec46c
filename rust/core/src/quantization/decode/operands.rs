//! What is decoded, and what blocks and columns have.

use crate::cast::Prepared;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::quantization::packing::Packing;
use crate::quantization::real::format;
use crate::quantization::rows::{Array, Rows};
use crate::quantization::work::Extent;

/// What codes mean.
#[derive(Clone, Debug)]
pub enum Meaning {
    /// Values of a format.
    Format(Format),
    /// Indices into so many values.
    Map(Vec<f32>),
}

/// What a scale of the whole array does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalUse {
    /// Scales are multiplied by it.
    Multiply,
    /// Scales are divided by it.
    Divide,
    /// Products are multiplied by its reciprocal, rounded to float32; divided by it for exact results.
    After,
}

/// The operands of a decoding. Each array has the axes of the stack, then rows, then those of a row's items.
#[derive(Clone, Debug)]
pub struct Decoding {
    /// Containers of packed codes, of 1 or 4 bytes.
    pub data: Array,
    /// A second stream, of one more bit for each code.
    pub high: Option<Array>,
    /// What codes mean.
    pub meaning: Meaning,
    /// Bits of a code in `data`.
    pub bits: u32,
    /// Where codes are in their containers.
    pub packing: Packing,
    /// Rows and columns that share a scale; 0: a whole axis.
    pub block: (usize, usize),
    /// A scale for each block; without it they are 1.
    pub scale: Option<Array>,
    /// Codes are divided by their scales.
    pub scale_divides: bool,
    /// A float32 for each matrix of the stack.
    pub global_scale: Option<(Array, GlobalUse)>,
    /// Subtracted from every code.
    pub offset: i32,
    /// Subtracted from the codes of each block.
    pub zero_point: Option<Array>,
    /// Added to the products of each block.
    pub bias: Option<Array>,
    /// The block of each column, int32 or int64.
    pub group_index: Option<Array>,
    /// Divides the results of each row.
    pub divisor: Option<Array>,
    /// The real value is rounded once; else every operation is rounded to float32.
    pub exact: bool,
    /// Products are rounded to the format of the results before a bias is added.
    pub narrow: bool,
}

pub(super) fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidOption { message })
}

/// What each block of a matrix has.
pub(super) struct PerBlock {
    pub(super) items: Rows,
    /// From their format to float32.
    pub(super) cast: Prepared,
}

impl PerBlock {
    pub(super) fn new(argument: &str, array: &Array, extent: &Extent, grouped: bool) -> Result<Self, Error> {
        let real = match array.format.kind() {
            Kind::Float(_) => array.format.row().bits <= 32,
            Kind::Integer { .. } => array.format.row().bits <= 16,
            _ => false,
        };
        if !real {
            return refuse(format!(
                "{argument} has dtype {}; use a float of at most 32 bits, or an integer of at most 16.",
                array.format.name()
            ));
        }
        let count = extent.check(argument, array, extent.row_blocks())?;
        if !grouped && count != extent.column_blocks() {
            return refuse(format!(
                "{argument} has {count} items per row, {} columns in blocks of {} need {}; give one for each block.",
                extent.columns,
                extent.block.1,
                extent.column_blocks()
            ));
        }
        let cast = Prepared::new(array.format, None, format::<f32>())?;
        Ok(Self { items: Rows::new(array, extent.stack.len()), cast })
    }
}

/// Reads the block of each column.
///
/// # Safety
/// The elements are readable.
pub(super) unsafe fn group_index(
    array: &Array,
    extent: &Extent,
    widths: [Option<usize>; 3],
) -> Result<Vec<u32>, Error> {
    let size = array.format.item_size();
    let signed = array.format.kind() == Kind::Integer { signed: true };
    if !signed || size < 4 || array.shape[..] != [extent.columns] {
        return refuse(format!(
            "group_index has dtype {} and shape {:?}; give an int32 or int64 for each of {} columns.",
            array.format.name(),
            array.shape,
            extent.columns
        ));
    }
    let groups = widths.into_iter().flatten().min().unwrap_or(0);
    (0..extent.columns)
        .map(|column| {
            let item = array.pointer.wrapping_offset(column as isize * array.strides[0]);
            // SAFETY: the caller's promise; the element has so many bytes.
            let group = unsafe {
                if size == 4 {
                    i64::from(item.cast::<i32>().read_unaligned())
                } else {
                    item.cast::<i64>().read_unaligned()
                }
            };
            let valid = u32::try_from(group).ok().filter(|&group| (group as usize) < groups);
            valid.map_or_else(
                || refuse(format!("group_index[{column}]={group} is not one of {groups} blocks; give 0 or more, and less.")),
                Ok,
            )
        })
        .collect()
}

/// Reads a float for each row.
///
/// # Safety
/// The elements are readable.
pub(super) unsafe fn per_row(array: &Array, extent: &Extent) -> Result<Vec<f32>, Error> {
    if array.format.float().is_none() || array.format.row().bits > 32 || array.shape[..] != [extent.rows] {
        return refuse(format!(
            "divisor has dtype {} and shape {:?}; give a float of at most 32 bits for each of {} rows.",
            array.format.name(),
            array.shape,
            extent.rows
        ));
    }
    let cast = Prepared::new(array.format, None, format::<f32>())?;
    let mut values = vec![0f32; extent.rows];
    for (row, value) in values.iter_mut().enumerate() {
        let item = array.pointer.wrapping_offset(row as isize * array.strides[0]);
        // SAFETY: the caller's promise for one element.
        unsafe { cast.convert(item, (&raw mut *value).cast(), 1) };
    }
    Ok(values)
}
