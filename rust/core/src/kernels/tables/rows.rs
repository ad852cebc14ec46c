//! Sources of a byte by tables of 16 entries in registers, for levels whose tables are that short.
//!
//! A table of 256 results is 16 rows of 16, by the upper and the lower four bits of the code. Within a row of floats,
//! exponent and mantissa move as one number, so most rows differ by a constant, and some are constant:
//!
//! ```text
//! result = first[row] + shape[class[row]][lower four bits]        each byte of the result by itself
//! ```
//! Constant rows are class 0; the shape of another is the sum of the steps up to it. A lookup of a step gives 0 in lower
//! classes, because the top bit of their index is set.

use smallvec::SmallVec;

use super::table::Table;
use crate::kernels::stages::stage::Stage;
use crate::kernels::vectors::vector_loop::{Step, in_steps};
use crate::simd::{Avx2, Vector, short_tables};

type Integers = <Avx2 as Vector>::Integers;

/// Rows of a table, and entries of a row.
const ROW: usize = 16;

/// Steps that take one register of indices: a signed byte numbers as many classes above 0.
const STEPS_AT_ONCE: usize = 8;

/// A table of results of `PLANES` bytes, with `STEPS` classes above 0; of bytes or of registers.
#[derive(Clone, Copy)]
pub(super) struct Rows<T, const PLANES: usize, const STEPS: usize> {
    first: [T; PLANES],
    /// What added to a code makes it the index for a step: its lower four bits, plus 16 for each class that it is above
    /// the step's. The first is for the first steps, the second for the others.
    classes: [T; 2],
    steps: [[T; PLANES]; STEPS],
}

type Row = [u8; ROW];

/// Whether rows are equal: in registers, where `==` would be a call for each.
#[inline(always)]
fn is_same<const PLANES: usize>(one: &[Row; PLANES], other: &[Row; PLANES]) -> bool {
    let different = |(a, b): (&Row, &Row)| (0..ROW).fold(0, |found, place| found | (a[place] ^ b[place]));
    one.iter().zip(other).fold(0, |found, pair| found | different(pair)) == 0
}

impl<const PLANES: usize, const STEPS: usize> Rows<Row, PLANES, STEPS> {
    /// Finds the classes; `None` if there are more.
    pub(super) fn of(planes: &[[u8; ROW * ROW]; PLANES]) -> Option<Self> {
        let first = planes.map(|plane| -> Row { std::array::from_fn(|row| plane[ROW * row]) });
        // On the stack, because tables of blocks are made again and again.
        let mut shapes = SmallVec::<[[Row; PLANES]; STEPS_AT_ONCE]>::from_elem([Row::default(); PLANES], 1);
        let mut classes = [Row::default(); 2];
        for row in 0..ROW {
            let shape: [Row; PLANES] = std::array::from_fn(|plane| {
                std::array::from_fn(|place| planes[plane][ROW * row + place].wrapping_sub(first[plane][row]))
            });
            let class = shapes.iter().position(|known| is_same(known, &shape)).unwrap_or_else(|| {
                shapes.push(shape);
                shapes.len() - 1
            });
            for (part, of_rows) in classes.iter_mut().enumerate() {
                // From -8 to 7, the ends for those beyond.
                let above = (class as i32 - 1 - (part * STEPS_AT_ONCE) as i32).clamp(-8, 7);
                of_rows[row] = (16 * (above - row as i32)) as u8;
            }
        }
        let mut steps = [[Row::default(); PLANES]; STEPS];
        for (class, pair) in shapes.windows(2).enumerate() {
            let step = steps.get_mut(class)?;
            for (plane, step) in step.iter_mut().enumerate() {
                *step =
                    std::array::from_fn(|place| pair[1][plane][place].wrapping_sub(pair[0][plane][place]));
            }
        }
        Some(Self { first, classes, steps })
    }

    /// The same tables for fewer classes; `None` if there are more.
    fn with_steps<const FEWER: usize>(&self) -> Option<Rows<Row, PLANES, FEWER>> {
        let (steps, others) = self.steps.split_first_chunk()?;
        let zero = [Row::default(); PLANES];
        let Self { first, classes, .. } = *self;
        // A step between two classes is not zero.
        others.iter().all(|step| is_same(step, &zero)).then_some(Rows { first, classes, steps: *steps })
    }

    /// Loads the tables.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn registers(&self) -> Rows<Integers, PLANES, STEPS> {
        // No `map`: the instructions of a level are not inlined into closures.
        let zero = Avx2::splat8(0);
        let mut ready = Rows {
            first: [zero; PLANES],
            classes: [
                short_tables::load_nibbles(&self.classes[0]),
                short_tables::load_nibbles(&self.classes[1]),
            ],
            steps: [[zero; PLANES]; STEPS],
        };
        for plane in 0..PLANES {
            ready.first[plane] = short_tables::load_nibbles(&self.first[plane]);
            for step in 0..STEPS {
                ready.steps[step][plane] = short_tables::load_nibbles(&self.steps[step][plane]);
            }
        }
        ready
    }

    /// Looks up each byte of the results.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn lookup(ready: &Rows<Integers, PLANES, STEPS>, codes: Integers) -> [Integers; PLANES] {
        let row = Avx2::and(Avx2::shr16(codes, 4), Avx2::splat8(0x0f));
        let mut index = codes;
        let mut results = ready.first;
        for result in &mut results {
            *result = short_tables::lookup_nibbles(*result, row);
        }
        for (step, tables) in ready.steps.iter().enumerate() {
            index = if step % STEPS_AT_ONCE == 0 {
                Avx2::add8(codes, short_tables::lookup_nibbles(ready.classes[step / STEPS_AT_ONCE], row))
            } else {
                short_tables::sub_saturated_signed8(index, Avx2::splat8(ROW as u8))
            };
            // No `zip`, here and in other loops over registers: an incremental build does not inline it.
            for (plane, result) in results.iter_mut().enumerate() {
                *result = Avx2::add8(*result, short_tables::lookup_nibbles(tables[plane], index));
            }
        }
        results
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<const STEPS: usize> Step<Avx2, 1> for Rows<Row, 1, STEPS> {
    const NAME: &'static str = "Rows";
    const FROM: usize = 1;
    type Ready = Rows<Integers, 1, STEPS>;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        self.registers()
    }

    #[inline(always)]
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [Integers; 1] {
        Self::lookup(&ready, Avx2::load(source))
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<const STEPS: usize> Step<Avx2, 2> for Rows<Row, 2, STEPS> {
    const NAME: &'static str = "Rows";
    const FROM: usize = 1;
    type Ready = Rows<Integers, 2, STEPS>;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        self.registers()
    }

    #[inline(always)]
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [Integers; 2] {
        let [low, high] = Self::lookup(&ready, Avx2::in_order(Avx2::load(source)));
        short_tables::zip8(low, high)
    }
}

/// To four bytes, of which only the last two are ever set.
// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<const STEPS: usize> Step<Avx2, 4> for Rows<Row, 2, STEPS> {
    const NAME: &'static str = "Rows";
    const FROM: usize = 1;
    type Ready = Rows<Integers, 2, STEPS>;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        self.registers()
    }

    #[inline(always)]
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [Integers; 4] {
        let [low, high] = Self::lookup(&ready, Avx2::crosswise(Avx2::load(source)));
        Avx2::interleave([Avx2::splat8(0), Avx2::splat8(0), low, high])
    }
}

/// To four bytes.
// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<const STEPS: usize> Step<Avx2, 4> for Rows<Row, 4, STEPS> {
    const NAME: &'static str = "Rows";
    const FROM: usize = 1;
    type Ready = Rows<Integers, 4, STEPS>;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        self.registers()
    }

    #[inline(always)]
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [Integers; 4] {
        Avx2::interleave(Self::lookup(&ready, Avx2::crosswise(Avx2::load(source))))
    }
}

/// The tables of results of a byte, of two, and of four of which only the last two are ever set.
enum AnySteps {
    One(Rows<Row, 1, ROW>),
    Two(Rows<Row, 2, ROW>),
    LastTwo(Rows<Row, 2, ROW>),
}

/// Makes the stage of tables with at most so many classes.
fn with_steps<const STEPS: usize>(vectors: Avx2, rows: &AnySteps) -> Option<Box<dyn Stage>> {
    Some(match rows {
        AnySteps::One(rows) => in_steps::<Avx2, _, 1>(vectors, rows.with_steps::<STEPS>()?),
        AnySteps::Two(rows) => in_steps::<Avx2, _, 2>(vectors, rows.with_steps::<STEPS>()?),
        AnySteps::LastTwo(rows) => in_steps::<Avx2, _, 4>(vectors, rows.with_steps::<STEPS>()?),
    })
}

/// Makes the stage for results of this size, if it is 1 or 2, or 4 with only the last two bytes ever set or with few
/// classes.
pub(super) fn stage(vectors: Avx2, table: &Table, size: usize) -> Option<Box<dyn Stage>> {
    let [a, b, c, d, ..] = table.planes;
    let rows = match size {
        1 => AnySteps::One(Rows::of(&[a])?),
        2 => AnySteps::Two(Rows::of(&[a, b])?),
        4 if table.sets_last_two(size) => AnySteps::LastTwo(Rows::of(&[c, d])?),
        4 => return Some(in_steps::<Avx2, _, 4>(vectors, Rows::<Row, 4, 4>::of(&[a, b, c, d])?)),
        _ => return None,
    };
    with_steps::<2>(vectors, &rows)
        .or_else(|| with_steps::<3>(vectors, &rows))
        .or_else(|| with_steps::<4>(vectors, &rows))
        .or_else(|| with_steps::<6>(vectors, &rows))
        .or_else(|| with_steps::<10>(vectors, &rows))
        .or_else(|| with_steps::<ROW>(vectors, &rows))
}
