//! Rectangles of codes of a byte to results of two bytes, by a table that stays in registers from row to row.

use super::lookup::ToMore;
use crate::cpu::{Level, RawKernel};
use crate::kernels::vectors::vector_loop::Step;
use crate::simd::{MOST_BYTES, Rest, TABLE_BYTES, Vector, Vectors, with_vectors};

/// The low and the high bytes of the results of all codes.
pub(crate) type Planes = [[u8; TABLE_BYTES]; 2];

/// A rectangle of codes, and of results, in blocks that lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct Rectangle {
    pub(crate) codes: *const u8,
    pub(crate) pitch: isize,
    pub(crate) target: *mut u8,
    pub(crate) target_pitch: isize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Columns of the first block, and of the others but the last.
    pub(crate) first: usize,
    pub(crate) width: usize,
}

/// Rows that are looked up with one load of a table: as many streams as the machine fetches ahead.
const TOGETHER: usize = 4;

struct RectangleLoop<'a, V, S> {
    /// Of each block.
    steps: &'a [S],
    rectangle: Rectangle,
    _vectors: V,
}

impl<V: Vector, S: Step<V, 2>> RawKernel for RectangleLoop<'_, V, S> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Rectangle { codes, pitch, target, target_pitch, rows, columns, first, width } = self.rectangle;
        for top in (0..rows).step_by(TOGETHER) {
            let (mut start, mut end) = (0, first.min(columns));
            for step in self.steps {
                // SAFETY: the vectors are there; the caller of `look_up` vouches for the rectangle. The codes that do not
                // fill a register are padded.
                unsafe {
                    let ready = step.ready();
                    for row in top..(top + TOGETHER).min(rows) {
                        let codes = codes.offset(row as isize * pitch);
                        let target = target.offset(row as isize * target_pitch);
                        let mut column = start;
                        while column + V::BYTES <= end {
                            let [a, b] = S::step(ready, codes.add(column));
                            V::store(target.add(2 * column), a);
                            V::store(target.add(2 * column + V::BYTES), b);
                            column += V::BYTES;
                        }
                        if column < end {
                            let mut last = Rest([0; MOST_BYTES]);
                            V::store(last.0.as_mut_ptr(), V::load_first(codes.add(column), end - column));
                            let [a, b] = S::step(ready, last.0.as_ptr());
                            let (target, rest) = (target.add(2 * column), 2 * (end - column));
                            V::store_first(target, a, rest.min(V::BYTES));
                            V::store_first(target.wrapping_add(V::BYTES), b, rest.saturating_sub(V::BYTES));
                        }
                    }
                }
                (start, end) = (end, (end + width).min(columns));
            }
        }
    }
}

/// Whether a level looks up the codes of floats, or of any numbers: rows of a short table differ by constants only for
/// floats, of which most rows are multiples of one.
pub(crate) fn pays(level: Level, is_float: bool) -> bool {
    let long: Option<()> = with_vectors!(Tables, level, _vectors => ());
    long.is_some() || (is_float && !matches!(Vectors::of(level), Vectors::None))
}

/// Looks up the codes of a rectangle by the tables of its blocks; returns whether it did: tables that are short hold the
/// multiples of floats, unless some are infinite or subnormal.
///
/// # Safety
/// The codes are readable, and results of 2 bytes writable.
pub(crate) unsafe fn look_up(level: Level, tables: &[Planes], rectangle: Rectangle) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = Vectors::with_short_tables(level) {
        let tables = tables.iter().map(super::rows::Rows::<_, 2, 4>::of);
        return convert_rectangle(vectors, tables, rectangle);
    }
    let tables = tables.iter().map(|&planes| Some(ToMore(planes)));
    with_vectors!(Tables, level, vectors => convert_rectangle(vectors, tables, rectangle)).unwrap_or(false)
}

/// # Safety
/// As for [`look_up`].
unsafe fn convert_rectangle<V: Vector, S: Step<V, 2>>(
    vectors: V,
    tables: impl ExactSizeIterator<Item = Option<S>>,
    rectangle: Rectangle,
) -> bool {
    let mut steps = Vec::with_capacity(tables.len());
    for step in tables {
        let Some(step) = step else { return false };
        steps.push(step);
    }
    vectors.run(RectangleLoop { steps: &steps, rectangle, _vectors: vectors });
    true
}
