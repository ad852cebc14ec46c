//! Sources of a byte by tables of 256 entries in registers.

use super::table::Table;
use crate::cpu::Level;
use crate::kernels::request::{Count, Request};
use crate::kernels::stages::stage::Stage;
use crate::kernels::vectors::vector_loop::{Step, in_steps};
use crate::simd::{TABLE_BYTES, Tables, Vectors, with_vectors};

/// Makes the stage for a request without a factor whose results depend on the source code alone, on a level with
/// tables.
pub(crate) fn stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let Request { source, target, scaled, tells, .. } = *request;
    let has_tables = !matches!(Vectors::of(level), Vectors::None);
    // Integers have faster stages to integers and to wide floats under default options.
    let to_narrow_float = target.float().is_some_and(|_| target.item_size() <= 2);
    let pays = source.float().is_some() || to_narrow_float || !request.is_native();
    if !has_tables || !pays || scaled || tells {
        return None;
    }
    of_table(&Table::new(request)?, target.item_size(), level)
}

/// Makes the stage for results of this size, if the level has one.
fn of_table(table: &Table, size: usize, level: Level) -> Option<Box<dyn Stage>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = Vectors::with_short_tables(level) {
        return super::rows::stage(vectors, table, size);
    }
    let planes = &table.planes;
    with_vectors!(Tables, level, vectors: V => match (size, table.sets_last_two(size)) {
        (1, _) => Some(in_steps::<V, _, 1>(vectors, ToByte(planes[0]))),
        (2, _) => Some(in_steps::<V, _, 2>(vectors, ToMore([planes[0], planes[1]]))),
        (4, true) => Some(in_steps::<V, _, 4>(vectors, ToMore([planes[2], planes[3]]))),
        (4, false) => Some(in_steps::<V, _, 4>(vectors, ToFour([planes[0], planes[1], planes[2], planes[3]]))),
        (_, true) => Some(in_steps::<V, _, 8>(vectors, ToMore([planes[6], planes[7]]))),
        _ => None,
    })?
}

/// Makes the stage for a request with one factor and enough elements to pay for a table.
pub(crate) fn scaled_stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let size = request.target.item_size();
    if !request.scaled || request.tells || request.count < Count::Many {
        return None;
    }
    let table = Table::new(request)?;
    Some(of_table(&table, size, level).unwrap_or_else(|| table.one_by_one(size)))
}

type Bytes = [u8; TABLE_BYTES];

/// One byte to one byte.
#[derive(Clone, Copy)]
struct ToByte(Bytes);

/// One byte to several, of which only the last two are ever set.
#[derive(Clone, Copy)]
pub(super) struct ToMore(pub(super) [Bytes; 2]);

/// One byte to four.
#[derive(Clone, Copy)]
struct ToFour([Bytes; 4]);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Tables> Step<V, 1> for ToByte {
    const NAME: &'static str = "ToByte";
    const FROM: usize = 1;
    type Ready = V::Table<4>;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract, and a whole plane.
        unsafe { V::load_table::<4>(self.0.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn step(table: Self::Ready, source: *const u8) -> [V::Integers; 1] {
        [V::lookup::<4>(table, V::load(source))]
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Tables, const SIZE: usize> Step<V, SIZE> for ToMore {
    const NAME: &'static str = "ToMore";
    const FROM: usize = 1;
    type Ready = [V::Table<4>; 2];

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract, and whole planes.
        unsafe { [V::load_table::<4>(self.0[0].as_ptr()), V::load_table::<4>(self.0[1].as_ptr())] }
    }

    #[inline(always)]
    unsafe fn step([low, high]: Self::Ready, source: *const u8) -> [V::Integers; SIZE] {
        let codes = V::load(source);
        V::spread::<SIZE>(V::lookup::<4>(low, codes), V::lookup::<4>(high, codes))
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Tables> Step<V, 4> for ToFour {
    const NAME: &'static str = "ToFour";
    const FROM: usize = 1;
    type Ready = [V::Table<4>; 4];

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract, and whole planes.
        unsafe {
            let [a, b, c, d] = &self.0;
            [
                V::load_table::<4>(a.as_ptr()),
                V::load_table::<4>(b.as_ptr()),
                V::load_table::<4>(c.as_ptr()),
                V::load_table::<4>(d.as_ptr()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn step([a, b, c, d]: Self::Ready, source: *const u8) -> [V::Integers; 4] {
        let codes = V::crosswise(V::load(source));
        let (a, b) = (V::lookup::<4>(a, codes), V::lookup::<4>(b, codes));
        V::interleave([a, b, V::lookup::<4>(c, codes), V::lookup::<4>(d, codes)])
    }
}
