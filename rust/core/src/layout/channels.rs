//! Deinterleaves channels: the red, green and blue of pixels, to one plane each.

use super::shuffle::{Shuffle, deinterleaved};

/// Channels that are deinterleaved together, at most: three colors and transparency.
pub(super) const CHANNELS: usize = 4;

/// Groups of adjacent elements (one per channel), and the planes that some channels go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) from: *const u8,
    pub(super) count: usize,
    /// Elements of a group, [`CHANNELS`] at most.
    pub(super) elements: usize,
    /// How many of them are taken: the first ones.
    pub(super) channels: usize,
    pub(super) to: *mut u8,
    /// From channel to channel, in bytes.
    pub(super) to_stride: isize,
}

/// Copies the first elements of all groups to adjacent places, the second ones `to_stride` bytes further, and so on.
///
/// # Safety
/// The groups are readable, except elements of the last one that are not taken; the places of taken elements are
/// writable. The two do not overlap.
pub(super) unsafe fn deinterleave(size: usize, groups: Groups) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => groups.of_elements::<u8, 16>(),
            2 => groups.of_elements::<u16, 8>(),
            4 => groups.of_elements::<u32, 4>(),
            8 => groups.of_elements::<u64, 2>(),
            _ => unreachable!("real formats take 1, 2, 4 or 8 bytes"),
        }
    }
}

impl Groups {
    /// Returns how many groups are readable as a whole.
    pub(super) fn readable(&self) -> usize {
        self.count.saturating_sub(usize::from(self.channels < self.elements))
    }

    /// # Safety
    /// As for [`deinterleave`]; elements have this size.
    unsafe fn of_elements<T: Shuffle<N>, const N: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.elements {
                2 => self.apart::<T, N, 2>(),
                3 => self.apart::<T, N, 3>(),
                CHANNELS => self.apart::<T, N, CHANNELS>(),
                _ => unreachable!("groups have 2 to {CHANNELS} elements"),
            }
        }
    }

    /// # Safety
    /// As for [`deinterleave`]; there are K elements, of this size.
    unsafe fn apart<T: Shuffle<N>, const N: usize, const K: usize>(self) {
        let Groups { from, count, channels, to, to_stride, .. } = self;
        let from = from.cast::<T>();
        let to = |channel: usize| to.wrapping_offset(channel as isize * to_stride).cast::<T>();
        // The last vectors overlap the ones before.
        let readable = self.readable();
        let whole = if readable < N { 0 } else { readable };
        for group in (0..whole).step_by(N).map(|group| group.min(whole - N)) {
            // SAFETY: N groups from here on are among the caller's readable ones.
            unsafe {
                let vectors = std::array::from_fn(|place| T::load(from.add(group * K + place * N)));
                for (channel, &vector) in deinterleaved::<T, N, K>(vectors).iter().enumerate() {
                    if channel < channels {
                        T::store(to(channel).add(group), vector);
                    }
                }
            }
        }
        for group in whole..count {
            for channel in 0..channels {
                // SAFETY: the promise of `deinterleave`'s caller for an element that is taken.
                unsafe {
                    let element = from.add(group * K + channel).read_unaligned();
                    to(channel).add(group).write_unaligned(element);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANNELS, Groups, deinterleave};

    #[test]
    fn every_size_and_number_of_words_and_channels() {
        let sizes = [1, 2, 4, 8];
        for (size, elements) in
            sizes.into_iter().flat_map(|size| (2..=CHANNELS).map(move |most| (size, most)))
        {
            for (count, channels) in [0, 1, 2, 3, 7, 16, 17, 40, 341]
                .into_iter()
                .flat_map(|count| (1..=elements).map(move |channels| (count, channels)))
            {
                check(size, elements, count, channels);
            }
        }
    }

    fn check(size: usize, elements: usize, count: usize, channels: usize) {
        // The buffer has no spare bytes, so that sanitizers see any read beyond it.
        let bytes = (count * elements).saturating_sub(elements - channels) * size;
        let memory: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        let to_stride = count * size + 5;
        let mut found = vec![0u8; channels * to_stride];
        let (to, stride) = (found.as_mut_ptr(), to_stride as isize);
        let groups = Groups { from: memory.as_ptr(), count, elements, channels, to, to_stride: stride };
        // SAFETY: the vectors have these sizes.
        unsafe { deinterleave(size, groups) };
        let mut wanted = vec![0u8; channels * to_stride];
        for (place, element) in memory.chunks_exact(size).enumerate() {
            let (group, channel) = (place / elements, place % elements);
            if channel < channels {
                wanted[channel * to_stride + group * size..][..size].copy_from_slice(element);
            }
        }
        assert_eq!(found, wanted, "{size} {elements} {count} {channels}");
    }
}
