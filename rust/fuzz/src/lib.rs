//! What fuzz targets share: shapes, strides and elements drawn from an input, and arrays in memory that holds nothing else.

use castwise_core::Format;
use castwise_core::cast::boundary_values;
use castwise_core::cpu::Level;
pub use libfuzzer_sys::arbitrary::{Result, Unstructured};

/// The byte that memory has where nothing is written.
pub const UNTOUCHED: u8 = 0xaa;

/// Elements of an array, at most.
const MOST: usize = 1 << 13;

/// Draws one of some values.
pub fn choose<T: Copy>(input: &mut Unstructured<'_>, values: &[T]) -> Result<T> {
    input.choose(values).copied()
}

/// Draws a format of those that fulfill a condition.
pub fn draw_format(input: &mut Unstructured<'_>, is_valid: impl Fn(&Format) -> bool) -> Result<Format> {
    let formats: Vec<Format> = Format::all().filter(is_valid).collect();
    choose(input, &formats)
}

/// Draws a level of this CPU.
pub fn draw_level(input: &mut Unstructured<'_>) -> Result<Level> {
    let levels: Vec<Level> = Level::available().collect();
    choose(input, &levels)
}

/// Draws a shape of so many axes, short ones mostly.
pub fn draw_shape(input: &mut Unstructured<'_>, axes: usize) -> Result<Vec<usize>> {
    let mut count = 1;
    let mut length = |_| {
        let most = choose(input, &[1, 3, 9, 40, 300, 5000])?.min(MOST / count);
        let length = input.int_in_range(0..=most)?;
        count *= length.max(1);
        Ok(length)
    };
    (0..axes).map(&mut length).collect()
}

/// Where the elements of an array lie, in bytes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The first element.
    pub start: usize,
    /// Between neighbors along each axis.
    pub strides: Vec<isize>,
    /// All memory.
    pub size: usize,
}

impl Place {
    /// Draws the place of an array: axes in any order and direction, with or without gaps, and if elements `may_repeat`
    /// also axes of one element; at any address, up to the end of its memory.
    pub fn draw(
        input: &mut Unstructured<'_>,
        shape: &[usize],
        item: usize,
        may_repeat: bool,
    ) -> Result<Self> {
        let mut strides = vec![0; shape.len()];
        let mut order: Vec<usize> = (0..shape.len()).rev().collect();
        if input.ratio(1, 3)? {
            for last in (1..order.len()).rev() {
                order.swap(last, input.int_in_range(0..=last)?);
            }
        }
        let mut start = if input.ratio(1, 2)? { 0 } else { input.int_in_range(1..=64)? };
        let mut reach = item;
        for axis in order {
            let gap = match input.int_in_range(0..=9)? {
                0..=5 => 0,
                6 => item,
                7 => 3 * item,
                8 => 1,
                _ => input.int_in_range(0..=70)?,
            };
            if may_repeat && input.ratio(1, 12)? {
                continue;
            }
            let stride = reach + gap;
            let extent = stride * shape[axis].saturating_sub(1);
            strides[axis] = stride as isize;
            if input.ratio(1, 8)? {
                strides[axis] = -strides[axis];
                start += extent;
            }
            reach += extent;
        }
        // The last byte is that of the last element.
        let back: usize = strides
            .iter()
            .zip(shape)
            .filter(|(stride, _)| **stride < 0)
            .map(|(stride, length)| stride.unsigned_abs() * length.saturating_sub(1))
            .sum();
        let size = if shape.contains(&0) { start } else { start - back + reach };
        Ok(Self { start, strides, size })
    }

    /// Returns the first byte of each element, in C order.
    pub fn elements(&self, shape: &[usize]) -> Vec<usize> {
        let mut starts = vec![self.start];
        for (&length, &stride) in shape.iter().zip(&self.strides) {
            let steps =
                |start: usize| (0..length).map(move |step| start.wrapping_add_signed(stride * step as isize));
            starts = starts.into_iter().flat_map(steps).collect();
        }
        starts
    }

    /// Returns whether each byte of its memory is of no element.
    pub fn gaps(&self, shape: &[usize], item: usize) -> Vec<bool> {
        let mut gaps = vec![true; self.size];
        for start in self.elements(shape) {
            gaps[start..start + item].fill(false);
        }
        gaps
    }
}

/// Returns memory of exactly so many bytes, so that the sanitizer sees an access to the next one.
pub fn memory(size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    bytes.resize(size, UNTOUCHED);
    bytes
}

/// Draws elements of a format, of all kinds of values or of a few.
pub fn draw_elements(input: &mut Unstructured<'_>, format: Format, count: usize) -> Result<Vec<u8>> {
    let size = format.item_size();
    let seed: u64 = input.arbitrary()?;
    let mut state = seed | 1;
    let mut next = move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    };
    let boundaries = boundary_values(format);
    let picked = |index: u64| {
        let first = index as usize % (boundaries.len() / size) * size;
        boundaries[first..first + size].iter().copied()
    };
    Ok(match input.int_in_range(0..=4)? {
        0 => (0..count * size).map(|_| next() as u8).collect(),
        1 => (0..count).flat_map(|_| picked(next())).collect(),
        2 => (0..count as u64).flat_map(|index| picked(seed.wrapping_add(index))).collect(),
        3 => {
            let few: Vec<u64> = (0..4).map(|_| next()).collect();
            (0..count).flat_map(|_| picked(few[next() as usize % 4])).collect()
        }
        _ => {
            let given = input.bytes(input.len().min(count * size).min(64))?;
            (0..count * size)
                .map(|index| given.get(index % given.len().max(1)).copied().unwrap_or(0))
                .collect()
        }
    })
}

/// Returns memory of a place, with elements.
pub fn placed(place: &Place, shape: &[usize], size: usize, elements: &[u8]) -> Vec<u8> {
    let mut bytes = memory(place.size);
    for (start, element) in place.elements(shape).into_iter().zip(elements.chunks_exact(size)) {
        bytes[start..start + size].copy_from_slice(element);
    }
    bytes
}

/// Returns the elements of a place, one after the other.
pub fn gathered(bytes: &[u8], place: &Place, shape: &[usize], size: usize) -> Vec<u8> {
    place.elements(shape).into_iter().flat_map(|start| bytes[start..start + size].iter().copied()).collect()
}

/// Exchanges the bytes of each number of dense elements.
pub fn swap_bytes(elements: &mut [u8], format: Format) {
    let size = format.component().unwrap_or(format).item_size();
    elements.chunks_exact_mut(size).for_each(<[u8]>::reverse);
}
