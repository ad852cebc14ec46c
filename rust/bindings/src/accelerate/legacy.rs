//! The functions that replace those of numpy's tables: one per pair, as numpy calls them without naming it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use castwise_core::Format;

use super::gain;
use super::pair::{BoundaryValues, FEWEST, Pair};

/// numpy's `PyArray_VectorUnaryFunc`: from, to, count, and two arrays that are not used.
pub(super) type CastFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, isize, *mut c_void, *mut c_void);

/// A pair that is taken over, with the function that it replaces.
struct LegacyCast {
    original: CastFunction,
    pair: Pair,
}

/// The pairs that can be taken over at most are the square of this; of those of today, ours gain for about 600.
const SIDE: usize = 26;

/// A pointer for each pair.
type Pointers<T> = [AtomicPtr<T>; SIDE * SIDE];

/// The pairs taken over, in the order of their places in the tables below.
static PLACES: Mutex<Vec<(Format, Format)>> = Mutex::new(Vec::new());

/// The pairs; never freed, as calls may be under way.
static PAIRS: Pointers<LegacyCast> = [const { AtomicPtr::new(ptr::null_mut()) }; SIDE * SIDE];

/// Their original functions again, for faster access.
static ORIGINALS: Pointers<c_void> = [const { AtomicPtr::new(ptr::null_mut()) }; SIDE * SIDE];

/// The function that numpy calls for the pair of a place: no more than the place, as there are hundreds.
///
/// # Safety
/// As for [`LegacyCast::cast`]; the pair has been stored.
unsafe extern "C" fn entry<const PLACE: usize>(
    from: *mut c_void,
    to: *mut c_void,
    count: isize,
    from_array: *mut c_void,
    to_array: *mut c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { run(from, to, count, from_array, to_array, PLACE) }
}

/// # Safety
/// As for [`entry`] of the place.
#[inline(never)]
unsafe extern "C" fn run(
    from: *mut c_void,
    to: *mut c_void,
    count: isize,
    from_array: *mut c_void,
    to_array: *mut c_void,
    place: usize,
) {
    // Both stores went before the one of the place's function into the slot that numpy got it from.
    if count < FEWEST as isize {
        let original = ORIGINALS[place].load(Ordering::Relaxed);
        // SAFETY: it was stored from such a function; the caller's promise is the original's own condition.
        unsafe {
            let original = std::mem::transmute::<*mut c_void, CastFunction>(original);
            original(from, to, count, from_array, to_array);
        }
    } else {
        let cast = PAIRS[place].load(Ordering::Relaxed);
        // SAFETY: the caller's promise; pairs are never freed.
        unsafe { LegacyCast::cast(from, to, count, from_array, to_array, cast) }
    }
}

/// The functions of a row, or of all rows.
macro_rules! entries {
    ($row:literal) => {
        [
            entry::<{ $row * SIDE + 0 }>,
            entry::<{ $row * SIDE + 1 }>,
            entry::<{ $row * SIDE + 2 }>,
            entry::<{ $row * SIDE + 3 }>,
            entry::<{ $row * SIDE + 4 }>,
            entry::<{ $row * SIDE + 5 }>,
            entry::<{ $row * SIDE + 6 }>,
            entry::<{ $row * SIDE + 7 }>,
            entry::<{ $row * SIDE + 8 }>,
            entry::<{ $row * SIDE + 9 }>,
            entry::<{ $row * SIDE + 10 }>,
            entry::<{ $row * SIDE + 11 }>,
            entry::<{ $row * SIDE + 12 }>,
            entry::<{ $row * SIDE + 13 }>,
            entry::<{ $row * SIDE + 14 }>,
            entry::<{ $row * SIDE + 15 }>,
            entry::<{ $row * SIDE + 16 }>,
            entry::<{ $row * SIDE + 17 }>,
            entry::<{ $row * SIDE + 18 }>,
            entry::<{ $row * SIDE + 19 }>,
            entry::<{ $row * SIDE + 20 }>,
            entry::<{ $row * SIDE + 21 }>,
            entry::<{ $row * SIDE + 22 }>,
            entry::<{ $row * SIDE + 23 }>,
            entry::<{ $row * SIDE + 24 }>,
            entry::<{ $row * SIDE + 25 }>,
        ]
    };
    () => {
        [
            entries!(0),
            entries!(1),
            entries!(2),
            entries!(3),
            entries!(4),
            entries!(5),
            entries!(6),
            entries!(7),
            entries!(8),
            entries!(9),
            entries!(10),
            entries!(11),
            entries!(12),
            entries!(13),
            entries!(14),
            entries!(15),
            entries!(16),
            entries!(17),
            entries!(18),
            entries!(19),
            entries!(20),
            entries!(21),
            entries!(22),
            entries!(23),
            entries!(24),
            entries!(25),
        ]
    };
}

/// A function for each pair.
static ENTRIES: [[CastFunction; SIDE]; SIDE] = entries!();

impl LegacyCast {
    /// Casts, as numpy's legacy cast functions do.
    ///
    /// # Safety
    /// `cast` is valid, `count` is not negative, so many dense elements in native byte order are readable at `from` and
    /// writable at `to`.
    unsafe extern "C" fn cast(
        from: *mut c_void,
        to: *mut c_void,
        count: isize,
        from_array: *mut c_void,
        to_array: *mut c_void,
        cast: *const Self,
    ) {
        // SAFETY: the caller's promise; casts are never changed.
        let Self { original, pair } = unsafe { &*cast };
        // SAFETY: the caller's promise, which is the original's own condition, too.
        unsafe {
            pair.cast(from.cast(), to.cast(), count.cast_unsigned(), |from, to, count| {
                original(from.cast(), to.cast(), count as isize, from_array, to_array);
                0
            });
        }
    }
}

/// Returns our function for a pair of formats, if it is to replace this original.
pub(super) fn take_over(
    source: Format,
    target: Format,
    original: CastFunction,
    boundary_values: &mut BoundaryValues,
) -> Option<CastFunction> {
    let fewest = gain::fewest_in_tables(source, target)?;
    let null = ptr::null_mut();
    // SAFETY: the pair calls this with dense elements. A cast function of numpy takes arrays for the sake of dtypes with
    // parameters; numpy too calls those of numbers without.
    let cast = |from: *mut u8, to: *mut u8, count| unsafe {
        original(from.cast(), to.cast(), count as isize, null, null);
        0
    };
    let pair = Pair::new(source, target, fewest, cast, boundary_values)?;
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    // Two of numpy's types may have one format (long, long long): the first one's function serves both.
    let known = places.iter().position(|known| *known == (source, target));
    let place = known.unwrap_or(places.len());
    let function = *ENTRIES.as_flattened().get(place)?;
    if known.is_none() {
        places.push((source, target));
        ORIGINALS[place].store(original as *mut c_void, Ordering::Release);
        PAIRS[place].store(Box::into_raw(Box::new(LegacyCast { original, pair })), Ordering::Release);
    }
    Some(function)
}
