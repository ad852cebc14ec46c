//! Sources of a byte: whatever becomes of them there are 256 cases, which the general route computes once.

use super::general::results;
use super::kept::{Kept, VARIANTS, variant};
use super::plan::Plan;
use super::request::Request;
use super::stage::Stage;
use super::vector_loop::{InSteps, Step};
use crate::cpu::Level;
use crate::format::Format;
use crate::simd::{TABLE_BYTES, Tables, Vector, with_tables};

/// What becomes of each code, byte by byte: the planes of the results' first to last byte.
struct Table {
    planes: [[u8; TABLE_BYTES]; 8],
}

/// The tables found so far: there are few formats, and fewer are in use.
static TABLES: Kept<Table, { Format::COUNT * Format::COUNT * VARIANTS }> = Kept::new();

/// Where the table of a request is kept; `None` if codes are not all there is to it.
fn place(request: &Request) -> Option<usize> {
    let Request { source, target, scaled, .. } = *request;
    // Integers have shorter ways to integers and to wide floats.
    let pays = source.float().is_some() || target.float().is_some_and(|_| target.item_size() <= 2);
    if scaled || source.item_size() != 1 || !pays {
        return None;
    }
    Some((source.index() * Format::COUNT + target.index()) * VARIANTS + variant(request)?)
}

/// Whether a level looks codes up.
fn has_tables(level: Level) -> bool {
    with_tables!(level, V => V::LEVEL).is_some()
}

/// The stage for a request, if its table has been found before.
pub(super) fn known(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let place = has_tables(level).then(|| place(request))??;
    TABLES.get(place)?.stage(level, request.target.item_size())
}

/// The stage for a request that a plan has been found for.
pub(super) fn learn(request: &Request, plan: &Plan) -> Option<Box<dyn Stage>> {
    let place = has_tables(plan.level).then(|| place(request))??;
    let size = request.target.item_size();
    TABLES.keep(place, Table::new(plan, size)).stage(plan.level, size)
}

impl Table {
    /// Runs the plan on every code.
    fn new(plan: &Plan, size: usize) -> Self {
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        let mut planes = [[0; TABLE_BYTES]; 8];
        for (code, result) in results(plan, &codes).chunks_exact(size).enumerate() {
            for (plane, &byte) in planes.iter_mut().zip(result) {
                plane[code] = byte;
            }
        }
        Self { planes }
    }

    /// The stage for results of this size, if at most their last two bytes vary.
    fn stage(&'static self, level: Level, size: usize) -> Option<Box<dyn Stage>> {
        let low = size.saturating_sub(2);
        if self.planes[..low].iter().flatten().any(|&byte| byte != 0) {
            return None;
        }
        with_tables!(level, V => self.on::<V>(size))?
    }

    fn on<V: Tables>(&'static self, size: usize) -> Option<Box<dyn Stage>> {
        match size {
            1 => InSteps::<V, _, 1>::boxed(ToByte(&self.planes[0])),
            2 => InSteps::<V, _, 2>::boxed(ToMore([&self.planes[0], &self.planes[1]])),
            4 => InSteps::<V, _, 4>::boxed(ToMore([&self.planes[2], &self.planes[3]])),
            _ => InSteps::<V, _, 8>::boxed(ToMore([&self.planes[6], &self.planes[7]])),
        }
    }
}

type Plane = &'static [u8; TABLE_BYTES];

/// From a byte to a byte.
#[derive(Clone, Copy)]
struct ToByte(Plane);

/// From a byte to several, of which only the last two are ever set.
#[derive(Clone, Copy)]
struct ToMore([Plane; 2]);

impl<V: Tables> Step<V, 1> for ToByte {
    const FROM: usize = 1;
    type Ready = V::Table;

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract, and a whole plane.
        unsafe { V::load_table(self.0) }
    }

    #[inline(always)]
    unsafe fn step(table: Self::Ready, source: *const u8) -> [V::Integers; 1] {
        // SAFETY: the trait's contract.
        unsafe { [V::lookup(table, V::load(source))] }
    }
}

impl<V: Tables, const SIZE: usize> Step<V, SIZE> for ToMore {
    const FROM: usize = 1;
    type Ready = [V::Table; 2];

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract, and whole planes.
        unsafe { [V::load_table(self.0[0]), V::load_table(self.0[1])] }
    }

    #[inline(always)]
    unsafe fn step([low, high]: Self::Ready, source: *const u8) -> [V::Integers; SIZE] {
        // SAFETY: the trait's contract.
        unsafe {
            let codes = V::load(source);
            V::spread::<SIZE>(V::lookup(low, codes), V::lookup(high, codes))
        }
    }
}
