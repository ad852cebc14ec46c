//! Sources of a byte: whatever becomes of them there are 256 cases, which the general route computes once.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::plan::Plan;
use super::request::Request;
use super::stage::{Span, Stage};
use super::tile::Tile;
use super::vector_loop::{InSteps, Step};
use crate::codec::options::{NanRule, Overflow, Rounding};
use crate::cpu::Level;
use crate::format::Format;
use crate::simd::{TABLE_BYTES, Tables, Vector, with_tables};

/// What becomes of each code, byte by byte: the planes of the results' first to last byte.
struct Table {
    planes: [[u8; TABLE_BYTES]; 8],
}

const ROUNDINGS: usize = 5;
const VARIANTS: usize = ROUNDINGS * 2 * 2;

/// The tables found so far. They stay: there are few formats, and fewer are in use.
static TABLES: [AtomicPtr<Table>; Format::COUNT * Format::COUNT * VARIANTS] =
    [const { AtomicPtr::new(null_mut()) }; Format::COUNT * Format::COUNT * VARIANTS];

/// Where the table of a request is kept; `None` if codes are not all there is to it.
fn place(request: &Request) -> Option<&'static AtomicPtr<Table>> {
    let Request { source, target, options, scaled, .. } = *request;
    let rounding = match request.rounding() {
        Rounding::NearestEven => 0,
        Rounding::NearestAway => 1,
        Rounding::TowardsZero => 2,
        Rounding::TowardsPositive => 3,
        Rounding::TowardsNegative => 4,
        Rounding::Stochastic => return None,
    };
    // Integers have shorter ways to integers and to wide floats.
    let pays = source.float().is_some() || target.float().is_some_and(|_| target.item_size() <= 2);
    if scaled || request.watched() || source.item_size() != 1 || !pays {
        return None;
    }
    let saturate = usize::from(options.overflow == Overflow::Saturate);
    let nan = usize::from(options.nan == NanRule::Zero);
    let variant = (rounding * 2 + saturate) * 2 + nan;
    Some(&TABLES[(source.index() * Format::COUNT + target.index()) * VARIANTS + variant])
}

/// Whether a level looks codes up.
fn has_tables(level: Level) -> bool {
    with_tables!(level, V => V::LEVEL).is_some()
}

/// The stage for a request, if its table has been found before.
pub(super) fn known(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let place = has_tables(level).then(|| place(request))??;
    // SAFETY: what is there was leaked by `learn`, and is never written again.
    let table = unsafe { place.load(Ordering::Acquire).as_ref() }?;
    table.stage(level, request.target.item_size())
}

/// The stage for a request that a plan has been found for.
pub(super) fn learn(request: &Request, plan: &Plan) -> Option<Box<dyn Stage>> {
    let place = has_tables(plan.level).then(|| place(request))??;
    let size = request.target.item_size();
    let found = Box::into_raw(Box::new(Table::new(plan, size)));
    // No lock: it could be held by another thread while a process forks.
    if place.compare_exchange(null_mut(), found, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: it was made above, and nobody else has seen it.
        drop(unsafe { Box::from_raw(found) });
    }
    known(request, plan.level)
}

impl Table {
    /// Runs the plan on every code.
    fn new(plan: &Plan, size: usize) -> Self {
        let mut codes = Tile::<u8>::default();
        for (code, place) in (0..=u8::MAX).zip(&mut codes.0) {
            *place = code;
        }
        let (mut lanes, mut results) = (Tile::<u64>::default(), Tile::<u64>::default());
        let mut flags = Tile::<u8>::default();
        let mut source = codes.0.as_ptr();
        let target = results.0.as_mut_ptr().cast::<u8>();
        let span = Span { count: TABLE_BYTES, flags: flags.0.as_mut_ptr(), ..Span::EMPTY };
        // SAFETY: tiles have room for as many elements; there are no scales or draws in the plan.
        unsafe {
            if let Some(decode) = &plan.decode {
                let target = if plan.encode.is_some() { lanes.0.as_mut_ptr().cast() } else { target };
                decode.run(plan.level, Span { source, target, ..span });
                source = target;
            }
            if let Some(encode) = &plan.encode {
                encode.run(plan.level, Span { source, target, ..span });
            }
        }
        let mut planes = [[0; TABLE_BYTES]; 8];
        for (code, result) in results.0.iter().flat_map(|word| word.to_ne_bytes()).enumerate() {
            if code / size < TABLE_BYTES {
                planes[code % size][code / size] = result;
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
