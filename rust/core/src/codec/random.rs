//! Counter-based randomness: the draw for an element is a pure function of the seed and the element's index.

/// `SplitMix64`'s finalizer (Steele, Lea and Flood, 2014): a bijection that mixes all bits.
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The stream that a seed selects.
#[must_use]
pub fn stream(seed: u64) -> u64 {
    mix(seed ^ 0x6a09_e667_f3bc_c909)
}

/// The 64 uniform bits that belong to `index` in a stream.
#[inline(always)]
#[must_use]
pub fn draw(stream: u64, index: u64) -> u64 {
    mix(stream.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
