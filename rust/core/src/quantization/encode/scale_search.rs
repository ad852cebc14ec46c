//! The stored scale of least squared error for each block, or the better one of two.
//!
//! For each stored scale that may be the best, each element becomes the nearest value that a code has, and the squares of
//! what is lost are added. [`LANES`] blocks are searched together, a lane each, their elements in order: a block's sum has the
//! same order at every level, whatever is beside it, and no operation is fused. So are its scale and codes the same.
//!
//! # Which scales are tried
//! Let `max` be the largest value of codes, `limit` the middle between it and the value that would follow, `h` a scale and
//! `2h` another. Every value of codes times `2h` that is nearest to a magnitude of at most `limit * h` is one of codes times
//! `h`, or lies above `max * h`, which is not farther from that magnitude. So where the largest magnitude `amax` is not above
//! `limit * h`, the error under `2h` is not less than under `h`. No
//! scale of `2 * amax / limit` or more has to be tried therefore, if its half is a scale. (Of E4M3, halves of the codes up to
//! 15 may not be; all of these are tried.) From there, scales are tried downwards. One that is below `amax / max` loses at
//! least `amax - max * scale` of the largest element, and those below it more: the search of a block ends where the square of
//! that is not below the least sum. Of E4M3, that is 8 codes on average for elements of E2M1; of powers of two, 2 or 3.
//!
//! Where errors are weighted, the first bound holds for each element, and in the second one stands that element which loses
//! most where all become 0.

use super::amaxes::BlockAmaxes;
#[cfg(target_arch = "x86_64")]
use super::error_table::{ErrorTable, TableSearch};
use super::importance::Importance;
use super::operands::ScaleChoice;
use super::scale_errors::{Grid, ROUNDED_UP, StoredScales, inverse, square};
use super::scales::Scales;
use super::source::{Elements, Source};
#[cfg(target_arch = "x86_64")]
use super::source::{Stored, of_bf16};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{Kernel, Level};
use crate::format::Format;
use crate::layout::transpose::transpose;
use crate::quantization::arithmetic::{Area, PIECE};
use crate::quantization::real::Real;
use crate::quantization::steps::BlockScales;
use crate::quantization::work::{Columns, Place};

/// Blocks that are searched together: of more, what sums are made of would not fit into the registers of AVX2.
const LANES: usize = 8;

/// A float32 for each of these blocks, or a code.
type Lanes<T> = [T; LANES];

/// Elements of a block whose squares are added between two accesses to sums.
const CHUNK: usize = 4;

/// Numbers for the elements of blocks, a lane for each block.
type Chunks = [[Lanes<f32>; CHUNK]];

/// Finds scales of least squared error.
pub(super) struct ScaleSearch {
    choice: ScaleChoice,
    importance: Option<Importance>,
    grid: Grid,
    stored: StoredScales,
    /// Whether there are so many elements of bf16 that a table of errors is worth it.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there is no table"))]
    has_table: bool,
}

/// The elements of blocks that are searched together, what weights their errors, and room to read that.
#[derive(Default)]
pub(super) struct Room {
    elements: Vec<[Lanes<f32>; CHUNK]>,
    weights: Vec<[Lanes<f32>; CHUNK]>,
    importance: Vec<f32>,
    /// The errors of bf16, and the numbers of blocks of a band that are not searched by these.
    #[cfg(target_arch = "x86_64")]
    table: ErrorTable,
    #[cfg(target_arch = "x86_64")]
    left_blocks: Vec<usize>,
}

impl ScaleSearch {
    /// Returns the search for elements and stored scales of these formats and weights of a dtype, if there is one: codes may
    /// be of at most this magnitude, scales at least of that.
    pub(super) fn new(
        (choice, importance): (ScaleChoice, Option<Importance>),
        weight: Format,
        (element, max): (Format, f64),
        (stored, least): (Format, f32),
        is_tabled: bool,
    ) -> Option<Self> {
        let stored = StoredScales::new(stored, least)?;
        let grid = Grid::new(element, max, weight);
        let has_table = is_tabled && choice == ScaleChoice::Best && importance.is_none();
        (choice != ScaleChoice::Amax).then_some(Self { choice, importance, grid, stored, has_table })
    }

    /// Whether errors are weighted.
    pub(super) fn is_weighted(&self) -> bool {
        self.importance.is_some()
    }

    /// Replaces the scales of a band, which are those of the largest magnitudes, where others are better.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn improve<T: Real>(
        &self,
        (place, columns, width): (Place, Columns, usize),
        (source, scales): (&Source<T>, &Scales<T>),
        (elements, room): (&mut Elements<T>, &mut Room),
        amaxes: &BlockAmaxes<T>,
        blocks: &mut BlockScales<T>,
    ) {
        let to_four = (self.choice == ScaleChoice::FourOverSix).then(|| {
            let own = blocks.bytes.clone();
            scales.find(place.matrix, 1.5, amaxes, blocks);
            std::mem::replace(&mut blocks.bytes, own)
        });
        let global = scales.of_array(place.matrix).global.to_f64() as f32;
        let divides = scales.recipe.steps.properties.divides_by_global;
        let (divisor, factor) = if divides { (global, 1.0) } else { (1.0, global) };
        let stored = StoredScales { divisor, factor, ..self.stored };
        let most = width.min(columns.count);
        let chunks = (place.rows * most).div_ceil(CHUNK);
        room.elements.resize(chunks, [[0.0; LANES]; CHUNK]);
        room.weights.resize(if self.is_weighted() { chunks } else { 0 }, [[0.0; LANES]; CHUNK]);
        let (shape, codes) = ((place, columns, width), &mut blocks.bytes[..]);
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            let is_done = self.look_up(shape, (source, stored), (&mut elements.stored, room), amaxes, codes);
            #[cfg(not(target_arch = "x86_64"))]
            let is_done = false;
            if !is_done {
                let search = (stored, to_four.as_deref());
                self.search_rows(shape, source, elements, room, (search, amaxes), codes);
            }
        }
        // SAFETY: there is a scale for each block, of a byte.
        unsafe {
            let to = blocks.scale.as_mut_ptr().cast();
            scales.stored.to_real.convert(blocks.bytes.as_ptr(), to, blocks.bytes.len());
        }
    }

    /// Searches all blocks of a band.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn search_rows<T: Real>(
        &self,
        (place, columns, width): (Place, Columns, usize),
        source: &Source<T>,
        Elements { stored: read, values }: &mut Elements<T>,
        room: &mut Room,
        (search, amaxes): ((StoredScales, Option<&[u8]>), &BlockAmaxes<T>),
        codes: &mut [u8],
    ) {
        let level = Level::active();
        let most = width.min(columns.count);
        let group = LANES * width;
        let of_piece = (PIECE / place.rows / group).max(1) * group;
        let mut first = 0;
        for columns in columns.groups(of_piece) {
            // SAFETY: the caller's promise; blocks have at most `MOST_SEARCHED` elements, as was checked, so
            // that a group of them fits into a piece.
            let piece = unsafe { source.load(place, columns, read, values.0.as_mut_ptr()) };
            let weights = self.importance.as_ref().map(|importance| {
                room.importance.resize(place.rows * columns.count, 0.0);
                // SAFETY: as above.
                unsafe { importance.read(place, columns, room.importance.as_mut_ptr()) }
            });
            for start in (0..columns.count).step_by(group) {
                let area = Area { columns: group.min(columns.count - start), ..piece };
                // SAFETY: the areas have so many columns from there on.
                unsafe {
                    spread_rows(level, (area, start), (width, most), &mut room.elements);
                    if let Some(weights) = weights {
                        let area = Area { columns: area.columns, ..weights };
                        spread_rows(level, (area, start), (width, most), &mut room.weights);
                    }
                }
                let numbers: Lanes<usize> = std::array::from_fn(|lane| first + lane);
                let count = area.columns.div_ceil(width);
                self.search_group(search, room, amaxes, &numbers[..count], codes);
                first += count;
            }
        }
    }

    /// Replaces the codes of the blocks of these numbers, whose elements and weights lie in lanes, where others are better.
    fn search_group<T: Real>(
        &self,
        (stored, to_four): (StoredScales, Option<&[u8]>),
        room: &mut Room,
        amaxes: &BlockAmaxes<T>,
        numbers: &[usize],
        codes: &mut [u8],
    ) {
        let (level, grid) = (Level::active(), self.grid);
        let (mut amax, mut own, mut other) = ([0f32; LANES], [0; LANES], [0; LANES]);
        for (lane, &block) in numbers.iter().enumerate() {
            amax[lane] = amaxes.amax[block].to_f64() as f32;
            own[lane] = u32::from(codes[block]);
            other[lane] = to_four.map_or(0, |bytes| u32::from(bytes[block]));
        }
        let to_four = to_four.is_some().then_some(other);
        let (elements, weights) = (&mut room.elements[..], &mut room.weights[..]);
        let farthest = if self.is_weighted() {
            level.run_narrow(FindFarthest { elements, weights, amax })
        } else {
            Farthest { magnitudes: amax, weights: [1.0; LANES] }
        };
        let search = Search { level, elements, weights, farthest, amax, own, to_four, grid, stored };
        for (&block, code) in numbers.iter().zip(level.run_narrow(search)) {
            codes[block] = code as u8;
        }
    }

    /// Replaces codes of a band by the table of errors, and searches the blocks that are left; returns whether there is a table
    /// for its blocks.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    #[cfg(target_arch = "x86_64")]
    unsafe fn look_up<T: Real>(
        &self,
        (place, columns, width): (Place, Columns, usize),
        (source, scales): (&Source<T>, StoredScales),
        (read, room): (&mut Stored, &mut Room),
        amaxes: &BlockAmaxes<T>,
        codes: &mut [u8],
    ) -> bool {
        let Some(amax) = T::f32s(&amaxes.amax) else { return false };
        let has_table = self.has_table && place.rows == 1 && TableSearch::has(Level::active(), width);
        // SAFETY: the level has the instructions.
        if !has_table || !unsafe { room.table.find(self.grid, scales, width) } {
            return false;
        }
        let mut left = std::mem::take(&mut room.left_blocks);
        left.clear();
        let mut first = 0;
        for columns in columns.groups(PIECE / width * width) {
            // Not one that has fewer columns.
            let blocks = first..first + columns.count / width;
            // SAFETY: the caller's promise.
            unsafe {
                let search = TableSearch {
                    table: &room.table,
                    area: source.read(place, columns, read).cast(),
                    width,
                    amax: &amax[blocks.clone()],
                    codes: &mut codes[blocks.clone()],
                    first_block: first,
                    left_blocks: &mut left,
                };
                search.run();
            }
            first = blocks.end;
        }
        left.extend(first..codes.len());
        for numbers in left.chunks(LANES) {
            room.elements.fill([[0.0; LANES]; CHUNK]);
            for (lane, &block) in numbers.iter().enumerate() {
                let before = block * width;
                let part =
                    Columns { start: columns.start + before, count: width.min(columns.count - before) };
                // SAFETY: the caller's promise.
                let first = unsafe { source.read(place, part, read) }.first.cast::<u16>();
                for (column, to) in room.elements.as_flattened_mut()[..part.count].iter_mut().enumerate() {
                    // SAFETY: as above.
                    to[lane] = of_bf16(unsafe { first.add(column).read_unaligned() });
                }
            }
            self.search_group((scales, None), room, amaxes, numbers, codes);
        }
        room.left_blocks = left;
        true
    }
}

/// Moves the elements of blocks side by side, from a column of an area on, to lanes, whose others become 0.
///
/// # Safety
/// The elements are readable, and blocks have `width` columns, of which the area has `most`.
unsafe fn spread_rows<T: Real>(
    level: Level,
    (area, start): (Area<*const T>, usize),
    (width, most): (usize, usize),
    to: &mut Chunks,
) {
    if area.columns < LANES * width || !(area.rows * most).is_multiple_of(CHUNK) {
        to.fill([[0.0; LANES]; CHUNK]);
    }
    for row in 0..area.rows {
        let (from, to) = (area.row(row).wrapping_add(start), &mut to.as_flattened_mut()[row * most..]);
        // SAFETY: the caller's promise.
        unsafe { spread(level, (from, area.columns), width, to) };
    }
}

/// Moves so many elements of blocks side by side to lanes, whose others stay.
///
/// # Safety
/// The elements are readable, and blocks have `width` columns.
unsafe fn spread<T: Real>(
    level: Level,
    (from, columns): (*const T, usize),
    width: usize,
    to: &mut [Lanes<f32>],
) {
    assert!(
        columns <= LANES * width && width.min(columns) <= to.len(),
        "there is a lane for each column of a block"
    );
    let pitch = (width * size_of::<T>()) as isize;
    let whole = if T::IS_SINGLE { columns / width } else { 0 };
    // SAFETY: the caller's promise; there are so many lanes.
    unsafe {
        let lanes = (to.as_mut_ptr().cast(), size_of::<Lanes<f32>>() as isize);
        transpose(level, size_of::<f32>(), (from.cast(), pitch), (whole, width), lanes);
        for column in whole * width..columns {
            to[column % width][column / width] = from.add(column).read_unaligned().to_f64() as f32;
        }
    }
}

/// The search of some blocks for codes of scales, given the largest magnitudes and the codes of the recipe's own scales; of
/// two, those of the others as well.
struct Search<'a> {
    level: Level,
    elements: &'a mut Chunks,
    /// What errors are multiplied by, for each element; or none.
    weights: &'a Chunks,
    farthest: Farthest,
    amax: Lanes<f32>,
    own: Lanes<u32>,
    to_four: Option<Lanes<u32>>,
    grid: Grid,
    stored: StoredScales,
}

impl Kernel for Search<'_> {
    type Output = Lanes<u32>;

    #[inline(always)]
    fn run(self) -> Lanes<u32> {
        let Self { level, elements, weights, farthest, amax, own, to_four, grid, stored } = self;
        // The largest magnitudes come between 1 and 2, so that no square underflows.
        let (mut power, mut top, mut far) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            let exponent = (amax[lane].to_bits() >> Binary32::MANTISSA).min(253);
            power[lane] = f32::from_bits((254 - exponent) << Binary32::MANTISSA);
            top[lane] = amax[lane] * power[lane];
            far[lane] = farthest.magnitudes[lane] * power[lane];
        }
        for chunk in &mut *elements {
            for element in chunk {
                let mut values = *element;
                for lane in 0..LANES {
                    values[lane] = (values[lane] * power[lane]).abs();
                }
                *element = values;
            }
        }
        let twice = grid.twice();
        let (mut codes, mut scales) = ([[0; LANES]; 2], [[0f32; LANES]; 2]);
        let first = to_four.unwrap_or(own);
        for lane in 0..LANES {
            let highest = stored.code_below((amax[lane] * twice).min(grid.most));
            let highest = if top[lane] > 0.0 { highest } else { stored.codes.0 };
            let below = highest.saturating_sub(1).max(stored.codes.0);
            codes[0][lane] = if to_four.is_some() { own[lane] } else { highest };
            codes[1][lane] = if to_four.is_some() { first[lane] } else { below };
            scales[0][lane] = stored.value(codes[0][lane]) * power[lane];
            scales[1][lane] = stored.value(codes[1][lane]) * power[lane];
        }
        let (mut best, mut least, mut of_own) = (codes[0], [f32::INFINITY; LANES], [f32::NAN; LANES]);
        loop {
            let mut clips = 0u32;
            for lane in 0..LANES {
                let lower = scales[0][lane].min(scales[1][lane]);
                clips |= u32::from(top[lane] * ROUNDED_UP > lower * grid.limit);
            }
            let errors = errors(level, clips != 0, (elements, weights), &scales, grid);
            for (error, code) in errors.iter().zip(&codes) {
                for lane in 0..LANES {
                    of_own[lane] = if code[lane] == own[lane] { error[lane] } else { of_own[lane] };
                    let is_less = error[lane] < least[lane];
                    best[lane] = if is_less { code[lane] } else { best[lane] };
                    least[lane] = if is_less { error[lane] } else { least[lane] };
                }
            }
            let mut goes_on = 0u32;
            for lane in 0..LANES {
                // What that element loses under the next scale, as `Errors` has it. NaN ends the search.
                let last = codes[1][lane];
                let next = last.saturating_sub(1).max(stored.codes.0);
                let after = next.saturating_sub(1).max(stored.codes.0);
                (codes[0][lane], codes[1][lane]) = (next, after);
                scales[0][lane] = stored.value(next) * power[lane];
                scales[1][lane] = stored.value(after) * power[lane];
                let lost = far[lane] - grid.max * scales[0][lane];
                let may_be_less = (lost < 0.0) | (lost * lost * farthest.weights[lane] < least[lane]);
                goes_on |= u32::from(may_be_less & (next < last));
            }
            if goes_on == 0 || to_four.is_some() {
                break;
            }
        }
        // Those that were not among the codes that were tried.
        let mut is_left = 0u32;
        for lane in 0..LANES {
            is_left |= u32::from(of_own[lane].is_nan() & (top[lane] > 0.0));
            scales[0][lane] = stored.value(own[lane]) * power[lane];
        }
        if is_left != 0 {
            of_own = errors(level, true, (elements, weights), &scales, grid)[0];
        }
        for lane in 0..LANES {
            let is_less = least[lane] < of_own[lane] * grid.less;
            best[lane] = if is_less { best[lane] } else { own[lane] };
        }
        best
    }
}

/// Returns the sums of squared errors under scales, where magnitudes may be above the largest value of codes or not.
#[inline(always)]
fn errors(
    level: Level,
    clips: bool,
    (elements, weights): (&Chunks, &Chunks),
    scales: &[Lanes<f32>; 2],
    grid: Grid,
) -> [Lanes<f32>; 2] {
    if !weights.is_empty() {
        level.run_narrow(Errors::<true, true> { elements, weights, scales, grid })
    } else if clips {
        level.run_narrow(Errors::<true, false> { elements, weights, scales, grid })
    } else {
        level.run_narrow(Errors::<false, false> { elements, weights, scales, grid })
    }
}

/// The element of each block that loses most where all become 0: its magnitude, and the weight of its error.
struct Farthest {
    magnitudes: Lanes<f32>,
    weights: Lanes<f32>,
}

/// Finds them, given the largest magnitudes, and divides weights by the largest of their block, so that equal ones are 1; where
/// all are 0, they become 1. None is NaN or negative: `Importance::new` refuses these.
struct FindFarthest<'a> {
    elements: &'a Chunks,
    weights: &'a mut Chunks,
    amax: Lanes<f32>,
}

impl Kernel for FindFarthest<'_> {
    type Output = Farthest;

    #[inline(always)]
    fn run(self) -> Farthest {
        let (elements, weights, amax) =
            (self.elements.as_flattened(), self.weights.as_flattened_mut(), self.amax);
        let (mut most, mut least, mut lost) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for weight in &*weights {
            for lane in 0..LANES {
                most[lane] = if weight[lane] > most[lane] { weight[lane] } else { most[lane] };
            }
        }
        for lane in 0..LANES {
            let is_any = most[lane] > 0.0;
            least[lane] = if is_any { 0.0 } else { 1.0 };
            most[lane] = if is_any { most[lane] } else { 1.0 };
        }
        let mut farthest = Farthest { magnitudes: [0.0; LANES], weights: [0.0; LANES] };
        for (element, weight) in elements.iter().zip(weights) {
            let (mut shares, mut losses) = (*weight, *element);
            for lane in 0..LANES {
                let share = shares[lane] / most[lane];
                shares[lane] = if share > least[lane] { share } else { least[lane] };
            }
            for lane in 0..LANES {
                // Of the largest one, so that no square underflows.
                let part = losses[lane] / amax[lane];
                losses[lane] = part * part * shares[lane];
            }
            for lane in 0..LANES {
                let is_more = losses[lane] > lost[lane];
                farthest.magnitudes[lane] =
                    if is_more { element[lane].abs() } else { farthest.magnitudes[lane] };
                farthest.weights[lane] = if is_more { shares[lane] } else { farthest.weights[lane] };
                lost[lane] = if is_more { losses[lane] } else { lost[lane] };
            }
            *weight = shares;
        }
        farthest
    }
}

/// Sums of squared errors under two scales for each block, as one sum waits for its last addition: a function of its own, so
/// that all its numbers stay in registers.
struct Errors<'a, const CLIPS: bool, const WEIGHTED: bool> {
    elements: &'a Chunks,
    weights: &'a Chunks,
    scales: &'a [Lanes<f32>; 2],
    grid: Grid,
}

impl<const CLIPS: bool, const WEIGHTED: bool> Kernel for Errors<'_, CLIPS, WEIGHTED> {
    type Output = [Lanes<f32>; 2];

    #[inline(always)]
    fn run(self) -> [Lanes<f32>; 2] {
        let Self { elements, weights, scales: [first, second], grid } = self;
        let (mut sums, mut others) = ([0f32; LANES], [0f32; LANES]);
        let (mut inverses, mut other_inverses) = ([0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            inverses[lane] = inverse(first[lane]);
            other_inverses[lane] = inverse(second[lane]);
        }
        for (place, chunk) in elements.iter().enumerate() {
            let weights = if WEIGHTED { &weights[place] } else { chunk };
            for lane in 0..LANES {
                let (scale, inverse, mut sum) = (first[lane], inverses[lane], sums[lane]);
                let (other_scale, other_inverse, mut other) =
                    (second[lane], other_inverses[lane], others[lane]);
                for index in 0..CHUNK {
                    let (element, weight) = (chunk[index][lane], weights[index][lane]);
                    let one = square::<CLIPS>(element, scale, inverse, grid);
                    let two = square::<CLIPS>(element, other_scale, other_inverse, grid);
                    sum += if WEIGHTED { one * weight } else { one };
                    other += if WEIGHTED { two * weight } else { two };
                }
                (sums[lane], others[lane]) = (sum, other);
            }
        }
        [sums, others]
    }
}
