//! Weights as codes that share scales: memory that Rust owns.

#![allow(unsafe_code, reason = "vouches for the memory of tensors and vectors")]

use std::fmt;

use smallvec::SmallVec;

use crate::elements::{self, bytes_of_mut};
use crate::error::Error;
use crate::format::Format;
use crate::quantization::{
    self, Array, Decoding, Element, Encoded, Encoding, Family, GlobalUse, Meaning, Packing, ScaleFormat,
    Scheme,
};
use crate::tensor::{Tensor, c_order};

/// A weight as packed codes and scales, made by [`quantize`].
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Quantized {
    /// The name of the scheme.
    pub scheme: &'static str,
    /// The shape of the weight.
    pub shape: Vec<usize>,
    /// Codes. Each row is a little-endian stream of bits and begins at a byte. Integers of fewer than 8 bits are stored with
    /// an excess of half of their range, as compressed-tensors and GPTQ store them.
    pub data: Vec<u8>,
    /// Scales, one for each block, in C order. The scales of the MX schemes are codes of `float8_e8m0fnu`.
    pub scale: Vec<u8>,
    /// The format of the scales.
    pub scale_format: Format,
    /// The shape of the scales.
    pub scale_shape: Vec<usize>,
    /// The factor of all scales of NVFP4.
    pub global_scale: Option<f32>,
}

/// Quantizes a weight, or a stack of weights, by a scheme. The first recipe of the scheme computes scales and codes.
///
/// `scheme` is a name of [`schemes`]. `threads` is the largest number of threads.
///
/// # Errors
/// [`Error::UnknownOption`] for the name of a scheme; [`Error::InvalidOption`] for a tensor without rows and columns, for
/// one that is no real float, and for an element that is not finite.
///
/// # Examples
/// ```
/// use castwise_core::{Tensor, quantize};
/// let weight: Vec<f32> = (0..64).map(|index| index as f32 / 64.0).collect();
/// let quantized = quantize(&Tensor::of(&weight, &[2, 32])?, "nvfp4", 1)?;
/// assert_eq!((quantized.data.len(), quantized.scale.len()), (32, 4));
/// let mut decoded = vec![0f32; 64];
/// quantized.dequantize(&mut decoded, 1)?;
/// assert!(weight.iter().zip(&decoded).all(|(x, y)| (x - y).abs() < 0.2));
/// # Ok::<(), castwise_core::Error>(())
/// ```
pub fn quantize(tensor: &Tensor<'_>, scheme: &str, threads: usize) -> Result<Quantized, Error> {
    let scheme = Scheme::find(scheme)?;
    let x = tensor.array();
    let &[ref stack @ .., rows, columns] = tensor.shape() else {
        return Err(Error::InvalidOption {
            message: format!("tensor has {} axes; give it rows and columns.", tensor.shape().len()),
        });
    };
    let format = tensor.format();
    if format.float().is_none() {
        return Err(Error::InvalidOption {
            message: format!("tensor holds {}; give it a real float.", format.name()),
        });
    }
    let is_wide = format.item_size() > size_of::<f32>();
    let scale_format = match scheme.scale {
        // No scale has more than 32 bits.
        ScaleFormat::Weight if is_wide => Format::FLOAT32,
        ScaleFormat::Weight => format,
        ScaleFormat::Format(name) => Format::constant(name),
    };
    let bytes = columns.saturating_mul(scheme.bits as usize).div_ceil(8);
    let blocks = |length: usize, part: usize| if part == 0 { 1 } else { length.div_ceil(part) };
    let of_stack = |row_items: usize, items: usize| [stack, &[row_items, items]].concat();
    let data_shape = of_stack(rows, bytes);
    let scale_shape = of_stack(blocks(rows, scheme.block.0), blocks(columns, scheme.block.1));
    let mut data = zeros(c_order(&data_shape, Format::UINT8)?.1)?;
    let mut scale = zeros(c_order(&scale_shape, scale_format)?.1)?;
    let is_empty = tensor.shape().contains(&0);
    let is_needed = !is_empty && (scheme.global_scale || is_wide);
    // SAFETY: a tensor's elements are readable.
    let amax = if is_needed { unsafe { quantization::block_amax(&x, threads)? } } else { 0.0 };
    // The encoder names an element that is not finite.
    let amax = if amax.is_finite() { amax } else { 1.0 };
    if amax > f64::from(f32::MAX) {
        return Err(Error::InvalidOption {
            message: format!(
                "tensor has a value of magnitude {amax:e}, for which float32 has no scale; divide the tensor first."
            ),
        });
    }
    let recipe = scheme.recipes().next().unwrap_or_default();
    let global_scale = scheme.global_scale.then(|| quantization::global_scale(amax, recipe, format, None));
    let global_scale = global_scale.transpose()?;
    let mut level = global_scale.unwrap_or_default();
    let encoding = Encoding {
        offset: excess(scheme),
        amax: global_scale.map(|_| amax),
        global_scale: global_scale.map(|_| same_for_each(&mut level, stack)),
        ..Encoding::new(x, scheme)
    };
    let to = Encoded {
        data: dense("data", &mut data, &data_shape, Format::UINT8)?,
        scale: dense("scale", &mut scale, &scale_shape, scale_format)?,
        zero_point: None,
        bias: None,
    };
    if !is_empty {
        // SAFETY: a tensor's elements are readable; they and `level`, which outlives the call, are only read, and may lie
        // anywhere. The vectors have the bytes of their shapes, and nothing else points to them.
        unsafe { quantization::encode(encoding, &to, threads)? };
    }
    Ok(Quantized {
        scheme: scheme.name,
        shape: tensor.shape().to_vec(),
        data,
        scale,
        scale_format,
        scale_shape,
        global_scale,
    })
}

impl Quantized {
    /// Decodes all codes into a slice in C order. Each real product of a code and its scales is rounded once.
    ///
    /// `threads` is the largest number of threads.
    ///
    /// # Errors
    /// [`Error::Length`] if the slice has another number of elements; [`Error::InvalidOption`] if it does not hold floats,
    /// or if a field was replaced by a value that does not fit the others.
    pub fn dequantize<T: elements::Element>(&self, target: &mut [T], threads: usize) -> Result<(), Error> {
        let scheme = Scheme::find(self.scheme)?;
        let needed = c_order(&self.shape, T::FORMAT)?.1 / size_of::<T>();
        if target.len() != needed {
            return Err(Error::Length { argument: "target", length: target.len(), needed });
        }
        if T::FORMAT.float().is_none() {
            return Err(Error::InvalidOption {
                message: format!("target holds {}; give a slice of a real float.", T::FORMAT.name()),
            });
        }
        let &[ref stack @ .., rows, columns] = &self.shape[..] else {
            return Err(Error::InvalidOption {
                message: format!("shape has {} axes; give it rows and columns.", self.shape.len()),
            });
        };
        let data_shape = [stack, &[rows, columns.saturating_mul(scheme.bits as usize).div_ceil(8)]].concat();
        let data = read_only("data", &self.data, &data_shape, Format::UINT8)?;
        let scale = read_only("scale", &self.scale, &self.scale_shape, self.scale_format)?;
        if needed == 0 {
            return Ok(());
        }
        if self.global_scale.is_some() != scheme.global_scale {
            return Err(Error::InvalidOption {
                message: format!(
                    "global_scale {:?} is not valid with scheme {:?}; use the one that quantize() returned.",
                    self.global_scale, scheme.name
                ),
            });
        }
        let factor = self.global_scale.or((scheme.unit != 1.0).then_some(scheme.unit));
        let mut level = factor.unwrap_or_default();
        let decoding = Decoding {
            data,
            high: None,
            meaning: match scheme.element {
                Element::Format(name) => Meaning::Format(Format::constant(name)),
                Element::Map(map) => Meaning::Map(map.iter().map(|&bits| f32::from_bits(bits)).collect()),
            },
            bits: scheme.bits,
            packing: Packing::Dense,
            block: scheme.block,
            scale: Some(scale),
            scale_divides: false,
            global_scale: factor.map(|_| (same_for_each(&mut level, stack), GlobalUse::Multiply)),
            offset: excess(scheme),
            zero_point: None,
            bias: None,
            group_index: None,
            divisor: None,
            exact: true,
            narrow: false,
        };
        // SAFETY: a decoding writes values of the target's format only.
        let bytes = unsafe { bytes_of_mut(target) };
        let out = dense("target", bytes, &self.shape, T::FORMAT)?;
        // SAFETY: all arrays have the bytes of their shapes, and `target` is borrowed mutably, so that it overlaps none.
        unsafe { quantization::decode(decoding, &out, threads) }
    }
}

impl fmt::Debug for Quantized {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Quantized");
        text.field("scheme", &self.scheme).field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// Returns the names of all schemes.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    quantization::TABLE.iter().map(|scheme| scheme.name)
}

/// What is added to codes before they are packed.
fn excess(scheme: &Scheme) -> i32 {
    let is_short = scheme.family == Family::Integer && scheme.bits < u8::BITS;
    if is_short { 1 << (scheme.bits - 1) } else { 0 }
}

/// Returns so many zeros.
fn zeros(bytes: usize) -> Result<Vec<u8>, Error> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes).map_err(|_| Error::InvalidOption {
        message: format!("a result has {bytes} bytes, more than there is memory; quantize a part at a time."),
    })?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// Returns an array in C order of bytes that may be written, if it has as many.
fn dense(argument: &'static str, bytes: &mut [u8], shape: &[usize], format: Format) -> Result<Array, Error> {
    array_of(argument, (bytes.as_mut_ptr(), bytes.len()), shape, format)
}

/// Returns an array in C order of bytes that are only read, if it has as many.
fn read_only(argument: &'static str, bytes: &[u8], shape: &[usize], format: Format) -> Result<Array, Error> {
    array_of(argument, (bytes.as_ptr().cast_mut(), bytes.len()), shape, format)
}

fn array_of(
    argument: &'static str,
    (pointer, length): (*mut u8, usize),
    shape: &[usize],
    format: Format,
) -> Result<Array, Error> {
    let (strides, needed) = c_order(shape, format)?;
    if length != needed {
        return Err(Error::Length { argument, length, needed });
    }
    Ok(Array { pointer, shape: shape.into(), strides, format })
}

/// Returns an array with one float32 for all matrices of a stack.
fn same_for_each(level: &mut f32, stack: &[usize]) -> Array {
    let strides: SmallVec<[isize; 4]> = stack.iter().map(|_| 0).collect();
    Array { pointer: (&raw mut *level).cast(), shape: stack.into(), strides, format: Format::FLOAT32 }
}
