//! A cast that is taken over: what ours does, and what it leaves to the original.

use std::ffi::c_int;

use castwise_core::Format;
use castwise_core::cast::{HostAgreement, Prepared, boundary_values};
use castwise_core::cpu::DefaultEnvironment;

/// From this many elements on, our function is faster than an original that works element by element.
pub(super) const FEWEST: usize = 64;

/// The same if the original takes about a nanosecond an element.
pub(super) const FEWEST_SIMPLE: usize = 512;

/// The same if the original is vectorized.
pub(super) const FEWEST_VECTORS: usize = 1024;

/// Bytes of source that are checked and then cast while they are in a near cache.
const PIECE: usize = 1 << 16;

/// Elements that go to the original function together with one on which hosts may differ.
const SMALL_PIECE: usize = 256;

/// A pair of formats that is taken over.
pub(super) struct Pair {
    prepared: Prepared,
    agreement: Option<HostAgreement>,
    source_size: usize,
    target_size: usize,
    /// Fewer elements than this are left to the original.
    fewest: usize,
}

impl Pair {
    /// Makes the pair, if some path of ours gives the original's results.
    pub(super) fn new(
        source: Format,
        target: Format,
        fewest: usize,
        original: impl Fn(*mut u8, *mut u8, usize) -> c_int,
        boundary_values: &mut BoundaryValues,
    ) -> Option<Self> {
        let agreement = HostAgreement::new(source, target);
        let elements = boundary_values.where_hosts_agree(source, agreement);
        let (source_size, target_size) = (source.item_size(), target.item_size());
        let through = Format::named(if source.component().is_some() { "complex64" } else { "float32" })?;
        [None, Some(through)].into_iter().find_map(|through| {
            let prepared = Prepared::new(source, through, target).ok()?;
            let pair = Self { prepared, agreement, source_size, target_size, fewest };
            pair.agrees(elements, &original).then_some(pair)
        })
    }

    /// Returns whether the original function gives the same bits for all these elements.
    fn agrees(&self, elements: &[u8], original: impl Fn(*mut u8, *mut u8, usize) -> c_int) -> bool {
        let count = elements.len() / self.source_size;
        // 128-bit words: the original needs aligned elements.
        let mut source = vec![0u128; elements.len().div_ceil(size_of::<u128>())];
        let mut theirs = vec![0u128; (count * self.target_size).div_ceil(size_of::<u128>())];
        let mut ours = theirs.clone();
        let _environment = DefaultEnvironment::enter();
        let from = source.as_mut_ptr().cast::<u8>();
        // SAFETY: the three are long enough for so many elements, and apart.
        unsafe {
            from.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
            if original(from, theirs.as_mut_ptr().cast(), count) != 0 {
                return false;
            }
            self.prepared.convert(from, ours.as_mut_ptr().cast(), count);
        }
        ours == theirs
    }

    /// The bytes of an element of the source and of the target.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.source_size, self.target_size)
    }

    /// Casts dense elements, and leaves to the original what is its own: few elements, overlap, another floating-point
    /// environment, and values on which hosts differ. Returns 0, or what the original returns if it fails.
    ///
    /// # Safety
    /// `count` elements in native byte order are readable at `source` and writable at `target`. The original may be called
    /// with any of them.
    pub(super) unsafe fn cast(
        &self,
        source: *mut u8,
        target: *mut u8,
        count: usize,
        original: impl Fn(*mut u8, *mut u8, usize) -> c_int,
    ) -> c_int {
        let (start, result) = (source.addr(), target.addr());
        let apart = start + count * self.source_size <= result || result + count * self.target_size <= start;
        if count < self.fewest || !apart || !DefaultEnvironment::is_in_force() {
            return original(source, target, count);
        }
        let Some(agreement) = self.agreement else {
            // SAFETY: the caller's promise, and the look at the overlap.
            unsafe { self.prepared.convert(source, target, count) };
            return 0;
        };
        // SAFETY: as above.
        unsafe { self.run_where_hosts_agree(agreement, (source, target, count), original) }
    }

    /// Casts pieces on which all hosts agree, and leaves the others to the original function: large pieces first.
    ///
    /// # Safety
    /// As for [`Pair::cast`], for elements that do not overlap.
    unsafe fn run_where_hosts_agree(
        &self,
        agreement: HostAgreement,
        (source, target, elements): (*mut u8, *mut u8, usize),
        original: impl Fn(*mut u8, *mut u8, usize) -> c_int,
    ) -> c_int {
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
                        let status = original(from, to, count);
                        if status != 0 {
                            return status;
                        }
                        misses += 1;
                    }
                }
                done += count;
            }
        }
        0
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
