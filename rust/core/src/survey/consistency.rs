//! Whether what a survey counts agrees: every table has the same elements, and the extremes are in the binades at the ends.

#![deny(unsafe_code)]

use super::outcome::{BlockRow, Blocks, Cell, DEPTH, FewMagnitudes, Magnitudes, SQUARE_BITS, Survey};
use super::sorted_map::SortedMap;
use super::tables::{LOWEST, eighth_of, field_of};
use crate::error::Error;

/// The smallest exponent of a float64 that is not subnormal.
const LOWEST_NORMAL: i16 = LOWEST + 1;

/// Checks a survey that was put together from numbers of unknown origin.
///
/// # Errors
/// [`Error::InvalidOption`] for tables that no array has; it names two numbers that disagree, and no remedy.
pub fn check(survey: &Survey) -> Result<(), Error> {
    let Survey { count, magnitudes: Magnitudes { zeros, infinities, nans, ref binades, .. }, .. } = *survey;
    let others: u128 = [zeros, infinities, nans].map(u128::from).iter().sum();
    let Some(elements) = u128::from(count).checked_sub(others) else {
        return Err(fault(format!(
            "counts has {count} elements, of these {zeros} zeros, {infinities} infinities and {nans} NaN"
        )));
    };
    check_total("binades", binades.values().map(|cell| cell.count), elements)?;
    check_total("significant_bits", survey.significant_bits.values().copied(), elements)?;
    if let Some(bits) = survey.significant_bits.keys().find(|bits| !(1..=53).contains(*bits)) {
        return Err(fault(format!("significant_bits has {bits} bits, and float64 has 1 to 53")));
    }
    check_few(survey)?;
    for (exponent, cell) in binades.iter() {
        check_squares(format_args!("binades, exponent {exponent}"), cell)?;
    }
    check_extremes(&survey.magnitudes)?;
    let normal = binades.iter().filter(|(exponent, _)| **exponent >= LOWEST_NORMAL);
    let normal = normal.map(|(_, cell)| u128::from(cell.count)).sum();
    Blocks::ALL.into_iter().try_for_each(|blocks| check_blocks(survey, blocks, normal))
}

fn fault(message: String) -> Error {
    Error::InvalidOption { message }
}

fn check_total(name: &str, counts: impl Iterator<Item = u64>, elements: u128) -> Result<(), Error> {
    let total: u128 = counts.map(u128::from).sum();
    if total == elements {
        return Ok(());
    }
    Err(fault(format!("{name} has {total} elements, and there are {elements} that are finite and not zero")))
}

/// Few magnitudes are those of the binades, and many are so many elements at least.
fn check_few(survey: &Survey) -> Result<(), Error> {
    let mut counts = SortedMap::<i16, u128>::default();
    let binades = || survey.magnitudes.binades().map(|(exponent, count)| (exponent, u128::from(count)));
    let Some(few) = survey.few.counts() else {
        let elements: u128 = binades().map(|(_, count)| count).sum();
        if elements > FewMagnitudes::MOST as u128 {
            return Ok(());
        }
        return Err(fault(format!("values is None, and {elements} elements have few magnitudes")));
    };
    for (value, count) in few {
        if !(value > 0.0 && value < f64::INFINITY) {
            return Err(fault(format!("values has {value:?}, which is no finite magnitude above 0")));
        }
        *counts.entry(exponent_of(value.to_bits())) += u128::from(count);
    }
    if counts.into_iter().eq(binades()) {
        return Ok(());
    }
    Err(fault("values has other elements than binades".to_owned()))
}

/// A square is from 1 to 4, in units of the exponent's.
fn check_squares(place: std::fmt::Arguments<'_>, &Cell { count, squares }: &Cell) -> Result<(), Error> {
    let least = u128::from(count) << SQUARE_BITS;
    if (least..=least * 4).contains(&squares) {
        return Ok(());
    }
    Err(fault(format!("{place}: the squares of {count} elements add up to {squares}")))
}

/// Looks at bits, as the host may take subnormal numbers for zero.
fn check_extremes(magnitudes: &Magnitudes) -> Result<(), Error> {
    let [smallest, largest] = [magnitudes.smallest, magnitudes.largest].map(f64::to_bits);
    let exponents = |bits| if bits == 0 { None } else { Some(exponent_of(bits)) };
    let ends = [magnitudes.binades.keys().next(), magnitudes.binades.keys().next_back()];
    let is_finite = largest < f64::INFINITY.to_bits();
    if smallest <= largest
        && is_finite
        && [smallest, largest].map(exponents) == ends.map(Option::<&i16>::copied)
    {
        return Ok(());
    }
    Err(fault(format!(
        "magnitudes has {:?} as the largest and {:?} as the smallest, and binades does not begin and end there",
        magnitudes.largest, magnitudes.smallest
    )))
}

fn exponent_of(magnitude: u64) -> i16 {
    match field_of(magnitude) {
        0 => magnitude.ilog2() as i16 + LOWEST_NORMAL - 52,
        field => field as i16 + LOWEST,
    }
}

fn check_blocks(survey: &Survey, blocks: Blocks, normal: u128) -> Result<(), Error> {
    let (height, width) = blocks.shape();
    let name =
        format!("blocks of {height} x {}", if width == 0 { "all".to_owned() } else { width.to_string() });
    let rows = &survey.blocks[blocks as usize].rows;
    let cells = rows.values().flat_map(|row| &row.cells);
    check_total(&name, cells.map(|cell| cell.count), normal)?;
    for (eighth, row) in rows.iter() {
        let elements: u128 = row.cells.iter().map(|cell| u128::from(cell.count)).sum();
        let most = if width == 0 { u128::MAX } else { u128::from(row.blocks) * (height * width) as u128 };
        if row.blocks == 0 || row.cells[0].count < row.blocks || elements > most {
            let BlockRow { blocks, ref cells } = **row;
            return Err(fault(format!(
                "{name}, eighth {eighth}: {blocks} blocks have {elements} elements, {} in the binades of their maxima",
                cells[0].count
            )));
        }
        for (depth, cell) in row.cells[..DEPTH - 1].iter().enumerate() {
            check_squares(format_args!("{name}, eighth {eighth}, {depth} binades down"), cell)?;
        }
    }
    let largest = survey.magnitudes.largest;
    match rows.keys().next_back() {
        Some(&eighth) if eighth != eighth_of(largest.to_bits()) => Err(fault(format!(
            "{name}: the largest maximum is in the eighth {eighth}, and magnitudes has {largest:?} as the largest"
        ))),
        _ => Ok(()),
    }
}
