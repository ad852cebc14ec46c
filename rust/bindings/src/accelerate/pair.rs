//! The pairs of formats that are taken over: the function that numpy calls, and what it does.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use castwise_core::Format;
use castwise_core::cast::{HostAgreement, Prepared, boundary_values};
use castwise_core::cpu::DefaultEnvironment;

use super::gain::{gains, is_vectors};

/// numpy's `PyArray_VectorUnaryFunc`: from, to, count, and two arrays that are not used.
pub(super) type CastFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, isize, *mut c_void, *mut c_void);

/// From this many elements on, our function is faster than an original that works element by element. (For strided
/// arrays, numpy calls once per element.)
const FEWEST: isize = 64;

/// The same if the original is vectorized.
const FEWEST_VECTORS: isize = 1024;

/// Bytes of source that are checked and then cast while they are in a near cache.
const PIECE: usize = 1 << 16;

/// Elements that go to the original function together with one on which hosts may differ.
const SMALL_PIECE: usize = 256;

/// A pair that is taken over.
pub(super) struct Pair {
    original: CastFunction,
    prepared: Prepared,
    agreement: Option<HostAgreement>,
    source_size: usize,
    target_size: usize,
    /// Fewer elements than this are left to the original.
    fewest: isize,
}

/// The pairs that can be taken over at most are the square of this; of those of today, ours gain for about 600.
const SIDE: usize = 26;

/// A pointer for each pair.
type Pointers<T> = [AtomicPtr<T>; SIDE * SIDE];

/// The pairs taken over, in the order of their places in the tables below.
static PLACES: Mutex<Vec<(Format, Format)>> = Mutex::new(Vec::new());

/// The pairs; never freed, as calls may be under way.
static PAIRS: Pointers<Pair> = [const { AtomicPtr::new(ptr::null_mut()) }; SIDE * SIDE];

/// Their original functions again, for faster access.
static ORIGINALS: Pointers<c_void> = [const { AtomicPtr::new(ptr::null_mut()) }; SIDE * SIDE];

/// The function that numpy calls for the pair of a place: no more than the place, as there are hundreds.
///
/// # Safety
/// As for [`Pair::cast`]; the pair has been stored.
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
    if count < FEWEST {
        let original = ORIGINALS[place].load(Ordering::Relaxed);
        // SAFETY: it was stored from such a function; the caller's promise is the original's own condition.
        unsafe {
            let original = std::mem::transmute::<*mut c_void, CastFunction>(original);
            original(from, to, count, from_array, to_array);
        }
    } else {
        let pair = PAIRS[place].load(Ordering::Relaxed);
        // SAFETY: the caller's promise; pairs are never freed.
        unsafe { Pair::cast(from, to, count, from_array, to_array, pair) }
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

impl Pair {
    /// Makes the pair, if ours is faster and some path of ours gives the original's results.
    fn new(
        source: Format,
        target: Format,
        original: CastFunction,
        boundary_values: &mut BoundaryValues,
    ) -> Option<Self> {
        if !gains(source, target) {
            return None;
        }
        let agreement = HostAgreement::new(source, target);
        let elements = boundary_values.where_hosts_agree(source, agreement);
        let (source_size, target_size) = (source.item_size(), target.item_size());
        let fewest = if is_vectors(source, target) { FEWEST_VECTORS } else { FEWEST };
        let through = Format::named(if source.component().is_some() { "complex64" } else { "float32" })?;
        [None, Some(through)].into_iter().find_map(|through| {
            let prepared = Prepared::new(source, through, target).ok()?;
            let pair = Self { original, prepared, agreement, source_size, target_size, fewest };
            pair.agrees(elements).then_some(pair)
        })
    }

    /// Returns our function for a pair of formats, if it is to replace this original.
    pub(super) fn take_over(
        source: Format,
        target: Format,
        original: CastFunction,
        boundary_values: &mut BoundaryValues,
    ) -> Option<CastFunction> {
        let pair = Self::new(source, target, original, boundary_values)?;
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        // Two of numpy's types may have one format (long, long long): the first one's function serves both.
        let known = places.iter().position(|known| *known == (source, target));
        let place = known.unwrap_or(places.len());
        let function = *ENTRIES.as_flattened().get(place)?;
        if known.is_none() {
            places.push((source, target));
            ORIGINALS[place].store(original as *mut c_void, Ordering::Release);
            PAIRS[place].store(Box::into_raw(Box::new(pair)), Ordering::Release);
        }
        Some(function)
    }

    /// Returns whether the original function gives the same bits for all these elements.
    fn agrees(&self, elements: &[u8]) -> bool {
        let count = elements.len() / self.source_size;
        // 128-bit words: the original needs aligned elements.
        let mut source = vec![0u128; elements.len().div_ceil(size_of::<u128>())];
        let mut theirs = vec![0u128; (count * self.target_size).div_ceil(size_of::<u128>())];
        let mut ours = theirs.clone();
        let _environment = DefaultEnvironment::enter();
        let (from, null) = (source.as_mut_ptr().cast::<u8>(), ptr::null_mut());
        // SAFETY: the three are long enough for so many elements, and apart. A cast function of numpy takes arrays
        // for the sake of dtypes with parameters; numpy too calls those of numbers without.
        unsafe {
            from.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
            (self.original)(from.cast(), theirs.as_mut_ptr().cast(), count as isize, null, null);
            self.prepared.convert(from, ours.as_mut_ptr().cast(), count);
        }
        ours == theirs
    }

    /// Casts, as numpy's legacy cast functions do.
    ///
    /// # Safety
    /// `pair` is valid, `count` is not negative, so many dense elements in native byte order are readable at `from` and writable at `to`.
    unsafe extern "C" fn cast(
        from: *mut c_void,
        to: *mut c_void,
        count: isize,
        from_array: *mut c_void,
        to_array: *mut c_void,
        pair: *const Self,
    ) {
        // SAFETY: the caller's promise; pairs are never changed.
        let pair = unsafe { &*pair };
        let elements = count.cast_unsigned();
        let (source, target) = (from.cast::<u8>(), to.cast::<u8>());
        let (start, result) = (source.addr(), target.addr());
        let apart =
            start + elements * pair.source_size <= result || result + elements * pair.target_size <= start;
        if count < pair.fewest || !apart || !DefaultEnvironment::is_in_force() {
            // SAFETY: the caller's promise is the original's own condition.
            unsafe { (pair.original)(from, to, count, from_array, to_array) };
            return;
        }
        // SAFETY: the caller's promise, and the look at the overlap.
        unsafe {
            match pair.agreement {
                None => pair.prepared.convert(source, target, elements),
                Some(agreement) => {
                    pair.run_where_hosts_agree(agreement, (source, target, elements), |from, to, count| {
                        (pair.original)(from.cast(), to.cast(), count as isize, from_array, to_array);
                    });
                }
            }
        }
    }

    /// Casts pieces on which all hosts agree, and leaves the others to the original function: large pieces first.
    ///
    /// # Safety
    /// As for [`Pair::cast`], for elements that do not overlap.
    unsafe fn run_where_hosts_agree(
        &self,
        agreement: HostAgreement,
        (source, target, elements): (*mut u8, *mut u8, usize),
        original: impl Fn(*mut u8, *mut u8, usize),
    ) {
        let large = PIECE / self.source_size;
        for start in (0..elements).step_by(large) {
            let end = elements.min(start + large);
            let (mut done, mut length) = (start, large);
            // After two such pieces in a row most others are alike, and no further ones are checked.
            let mut misses = 0;
            while done < end {
                let count = if misses < 2 { length.min(end - done) } else { end - done };
                // SAFETY: elements `done..done + count` are among those promised by the caller.
                unsafe {
                    let from = source.add(done * self.source_size);
                    let to = target.add(done * self.target_size);
                    if misses < 2 && agreement.holds(from, count) {
                        self.prepared.convert(from, to, count);
                        misses = 0;
                    } else if count > SMALL_PIECE && misses < 2 {
                        length = SMALL_PIECE;
                        continue;
                    } else {
                        original(from, to, count);
                        misses += 1;
                    }
                }
                done += count;
            }
        }
    }
}

/// The boundary values of one source format, and those of them on which hosts agree.
#[derive(Default)]
pub(super) struct BoundaryValues {
    source: Option<Format>,
    elements: Vec<u8>,
    agreed: Vec<(HostAgreement, Vec<u8>)>,
}

impl BoundaryValues {
    /// The boundary values of the source for which the original function is not needed.
    fn where_hosts_agree(&mut self, source: Format, agreement: Option<HostAgreement>) -> &[u8] {
        if self.source != Some(source) {
            *self = Self { source: Some(source), elements: boundary_values(source), agreed: Vec::new() };
        }
        let Some(agreement) = agreement else { return &self.elements };
        let known = self.agreed.iter().position(|(other, _)| *other == agreement);
        let index = known.unwrap_or_else(|| {
            let elements = self.elements.chunks_exact(source.item_size());
            // SAFETY: a chunk is one element.
            let kept = elements.filter(|element| unsafe { agreement.holds(element.as_ptr(), 1) });
            self.agreed.push((agreement, kept.flatten().copied().collect()));
            self.agreed.len() - 1
        });
        &self.agreed[index].1
    }
}
