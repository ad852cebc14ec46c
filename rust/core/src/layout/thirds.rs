//! Deinterleaves groups of three elements by tables of bytes in registers, on levels that have them.

use super::channels::Groups;
use crate::cpu::Level;

/// Takes apart as many groups as fill registers; returns those that are left.
///
/// # Safety
/// As for [`deinterleave`](super::channels::deinterleave).
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(unused_variables, reason = "other levels take groups apart in one way")
)]
pub(super) unsafe fn taken(level: Level, size: usize, groups: Groups) -> Groups {
    #[cfg(target_arch = "x86_64")]
    if let (in_registers::GROUP, crate::simd::Vectors::Avx512(vectors)) =
        (groups.elements, crate::simd::Vectors::of(level))
    {
        // SAFETY: the caller's promise.
        return unsafe { in_registers::taken(vectors, size, groups) };
    }
    groups
}

#[cfg(target_arch = "x86_64")]
mod in_registers {
    use super::Groups;
    use crate::cpu::RawKernel;
    use crate::simd::{Avx512, Tables, Vector};

    pub(super) const GROUP: usize = 3;

    /// The places of each channel's bytes in three registers, by the logarithm of an element's size.
    static PLACES: [[[u8; Avx512::BYTES]; GROUP]; 4] = {
        let mut places = [[[0; Avx512::BYTES]; GROUP]; 4];
        let mut i = 0;
        while i < 4 * GROUP * Avx512::BYTES {
            let (byte, channel, log) =
                (i % Avx512::BYTES, i / Avx512::BYTES % GROUP, i / Avx512::BYTES / GROUP);
            let size = 1 << log;
            places[log][channel][byte] = ((byte / size * GROUP + channel) * size + byte % size) as u8;
            i += 1;
        }
        places
    };

    struct Thirds {
        groups: Groups,
        size: usize,
        /// Their features are there.
        _vectors: Avx512,
    }

    /// # Safety
    /// As for [`super::taken`]; groups have three elements.
    pub(super) unsafe fn taken(vectors: Avx512, size: usize, groups: Groups) -> Groups {
        let (step, whole) = (Avx512::BYTES / size, groups.readable());
        if whole < step {
            return groups;
        }
        // SAFETY: the caller's promise.
        unsafe { vectors.run(Thirds { groups, size, _vectors: vectors }) };
        let from = groups.from.wrapping_add(whole * GROUP * size);
        Groups { from, count: groups.count - whole, to: groups.to.wrapping_add(whole * size), ..groups }
    }

    impl RawKernel for Thirds {
        type Output = ();

        #[inline(always)]
        unsafe fn run(self) {
            let Self { groups, size, .. } = self;
            let Groups { from, channels, to, to_stride, .. } = groups;
            let (step, whole) = (Avx512::BYTES / size, groups.readable());
            let places = &PLACES[size.trailing_zeros() as usize];
            // SAFETY: the vectors are there, so their features are; the caller vouches for whole groups, which fill
            // registers. The last ones overlap those before.
            unsafe {
                let places = [
                    Avx512::load(places[0].as_ptr()),
                    Avx512::load(places[1].as_ptr()),
                    Avx512::load(places[2].as_ptr()),
                ];
                for group in (0..whole).step_by(step).map(|group| group.min(whole - step)) {
                    let from = from.add(group * GROUP * size);
                    let table = [
                        Avx512::load(from),
                        Avx512::load(from.add(Avx512::BYTES)),
                        Avx512::load(from.add(2 * Avx512::BYTES)),
                    ];
                    for (channel, &places) in places.iter().enumerate() {
                        if channel < channels {
                            let to = to.wrapping_offset(channel as isize * to_stride);
                            Avx512::store(to.add(group * size), Avx512::lookup::<3>(table, places));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_and_number_of_groups_and_channels() {
        let sizes = [1usize, 2, 4, 8];
        for level in Level::available() {
            for (size, channels) in sizes.into_iter().flat_map(|size| (1..=3).map(move |most| (size, most))) {
                for count in [0, 1, 7, 8, 9, 15, 63, 64, 65, 66, 340] {
                    check(level, size, count, channels);
                }
            }
        }
    }

    fn check(level: Level, size: usize, count: usize, channels: usize) {
        // The buffer has no spare bytes, so that sanitizers see any read beyond it.
        let bytes = (count * 3).saturating_sub(3 - channels) * size;
        let memory: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        let to_stride = count * size + 5;
        let mut found = vec![0u8; channels * to_stride];
        let (to, stride) = (found.as_mut_ptr(), to_stride as isize);
        let groups = Groups { from: memory.as_ptr(), count, elements: 3, channels, to, to_stride: stride };
        // SAFETY: the buffers have these sizes.
        let left = unsafe { taken(level, size, groups) };
        assert!(left.count == count || left.count <= usize::from(channels < 3));
        let mut wanted = vec![0u8; channels * to_stride];
        for (place, element) in memory.chunks_exact(size).enumerate() {
            let (group, channel) = (place / 3, place % 3);
            if channel < channels && group < count - left.count {
                wanted[channel * to_stride + group * size..][..size].copy_from_slice(element);
            }
        }
        assert_eq!(found, wanted, "{size} {count} {channels}");
        assert_eq!(left.from, memory.as_ptr().wrapping_add((count - left.count) * 3 * size));
        assert_eq!(left.to.cast_const(), found.as_ptr().wrapping_add((count - left.count) * size));
    }
}
