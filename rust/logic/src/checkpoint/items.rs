//! Copies items of any size from one order to another.

use smallvec::SmallVec;

use castwise_core::cast::{Settings, Source, Target, cast};
use castwise_core::codec::options::Options;
use castwise_core::error::Error;
use castwise_core::format::{Format, Kind};
use castwise_core::sort_few::sort_few;

/// The sizes of the integers as which items are copied, the largest first.
const UNITS: [usize; 4] = [8, 4, 2, 1];

/// Returns the format of unsigned integers of so many bytes.
fn unsigned(bytes: usize) -> Option<Format> {
    let bits = 8 * bytes as u32;
    Format::all().find(|format| format.row().bits == bits && format.kind() == Kind::Integer { signed: false })
}

/// Copies all items of a shape to where they stand by other strides, all in bytes from the begin of a slice.
///
/// # Errors
/// [`Error::InvalidOption`] if an item is beyond a slice, or the items of the target are not without gaps.
pub(super) fn copy_items(
    shape: &[usize],
    item: usize,
    (source, from): (&[u8], &[usize]),
    (target, to): (&mut [u8], &[usize]),
) -> Result<(), Error> {
    if shape.contains(&0) {
        return Ok(());
    }
    let is_dense = dense(shape, item, to) && target.len() == shape.iter().product::<usize>() * item;
    if item == 0 || reach(shape, item, from).is_none_or(|reach| reach > source.len()) || !is_dense {
        return Err(Error::InvalidOption { message: "items are beyond their memory.".into() });
    }
    let unit = UNITS.into_iter().find(|&unit| item.is_multiple_of(unit)).unwrap_or(1);
    let Some(format) = unsigned(unit) else { unreachable!("the table has integers of {unit} bytes") };
    let lengths: SmallVec<[usize; 4]> = shape.iter().copied().chain([item / unit]).collect();
    let strides = |strides: &[usize]| -> SmallVec<[isize; 4]> {
        strides.iter().map(|&stride| stride as isize).chain([unit as isize]).collect()
    };
    let (from, to) = (strides(from), strides(to));
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    let source = Source { pointer: source.as_ptr(), strides: &from, format, swapped: false };
    let target = Target { pointer: target.as_mut_ptr(), strides: &to, format, swapped: false, fresh: false };
    // SAFETY: all items are within the slices, as was checked, in units of the size of the format; those of the target do
    // not overlap, being without gaps, and a `&mut` overlaps nothing else.
    #[expect(unsafe_code, reason = "arrays in slices")]
    let copied = unsafe { cast(&lengths, source, target, None, &settings) };
    copied.map(|_| ())
}

/// Returns the bytes up to the end of the last item; `None` if they are too many to count.
fn reach(shape: &[usize], item: usize, strides: &[usize]) -> Option<usize> {
    (shape.len() == strides.len()).then_some(())?;
    shape.iter().zip(strides).try_fold(item, |reach, (&length, &stride)| {
        (length - 1).checked_mul(stride).and_then(|steps| reach.checked_add(steps))
    })
}

/// Returns whether items are without gaps and overlaps, in any order of the axes.
fn dense(shape: &[usize], item: usize, strides: &[usize]) -> bool {
    let axes = shape.iter().zip(strides).filter(|&(&length, _)| length > 1);
    let mut axes: SmallVec<[(usize, usize); 4]> = axes.map(|(&length, &stride)| (stride, length)).collect();
    sort_few(&mut axes, |near, far| near <= far);
    let mut next = item;
    shape.len() == strides.len()
        && axes.into_iter().all(|(stride, length)| {
            let follows = stride == next;
            next = next.saturating_mul(length);
            follows
        })
}

#[cfg(test)]
mod tests {
    use super::copy_items;

    #[test]
    fn items_of_any_size_are_copied() {
        for item in [1, 2, 3, 4, 6, 8, 16] {
            let (rows, columns) = (5, 7);
            let source: Vec<u8> = (0..rows * columns * item).map(|byte| byte as u8).collect();
            let mut target = vec![0; source.len()];
            let (from, to) = ([columns * item, item], [item, rows * item]);
            copy_items(&[rows, columns], item, (&source, &from), (&mut target, &to)).unwrap();
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let (a, b) = ((row * columns + column) * item, (column * rows + row) * item);
                assert_eq!(source[a..a + item], target[b..b + item]);
            }
        }
    }

    #[test]
    fn what_is_beyond_the_memory_is_refused() {
        let mut target = [0; 12];
        for (source, from, to) in [(11, [4, 1], [4, 1]), (12, [usize::MAX, 1], [4, 1]), (12, [4, 1], [4, 2])]
        {
            let source = vec![0; source];
            assert!(copy_items(&[3, 4], 1, (&source, &from), (&mut target, &to)).is_err());
        }
    }
}
