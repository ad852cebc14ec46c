//! Codes of 1 to 8 bits in their containers.
//!
//! | packing | where code j is |
//! |---|---|
//! | dense | bits `j * b` and up of a little-endian stream (compressed-tensors, GPTQ, MLX, ModelOpt, gpt-oss) |
//! | high-first | as dense, 4 bits, with the nibbles of each byte swapped (bitsandbytes, `ComfyUI`) |
//! | padded | `32 / b` codes to a word of 32 bits, whose top bits are unused (compressed-tensors until 2025) |
//! | awq | 4 bits; code `[0, 2, 4, 6, 1, 3, 5, 7][i]` of eight is nibble i of their word |
//! | halves-n | 4 bits; of n codes, byte j holds code j, low, and code `j + n / 2` (GGUF) |

use crate::cpu::{Level, RawKernel};
use crate::error::Error;

/// The order of codes in their containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// A little-endian bit stream.
    Dense,
    /// Nibbles, the first one in the high half of a byte.
    HighFirst,
    /// Words of 32 bits that hold whole codes only.
    Padded,
    /// Words of eight nibbles in AWQ's order.
    Awq,
    /// Blocks of so many nibbles, first all low ones, then all high ones.
    Halves(usize),
}

/// The code that each nibble of a word holds.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

const NAMES: [(&str, Packing); 6] = [
    ("dense", Packing::Dense),
    ("high-first", Packing::HighFirst),
    ("padded", Packing::Padded),
    ("awq", Packing::Awq),
    ("halves-16", Packing::Halves(16)),
    ("halves-32", Packing::Halves(32)),
];

impl Packing {
    /// Returns the packing of a name, for codes of so many bits.
    ///
    /// # Errors
    /// [`Error::UnknownOption`], or [`Error::InvalidOption`] for bits that it has no codes of.
    pub fn parse(name: &str, bits: u32) -> Result<Self, Error> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let &(_, packing) = found.ok_or_else(|| Error::UnknownOption {
            argument: "layout",
            value: format!("{name:?}"),
            valid: NAMES.iter().map(|&(known, _)| known).collect(),
        })?;
        let valid = match packing {
            Self::Dense => (1..=8).contains(&bits),
            Self::Padded => (2..=8).contains(&bits),
            _ => bits == 4,
        };
        if valid {
            return Ok(packing);
        }
        Err(Error::InvalidOption {
            message: format!(
                "bits={bits} is not valid with layout={name:?}; only \"dense\" takes 1 to 8 bits."
            ),
        })
    }

    /// The fewest codes after which codes begin at a container of 4 bytes, or at a block.
    pub(super) fn unit(self, bits: u32) -> usize {
        match self {
            Self::Padded => 32 / bits as usize,
            _ => 32,
        }
    }

    /// Returns the bytes of so many codes from the start of a row, without the rest of the last container.
    pub(super) fn bytes(self, bits: u32, count: usize) -> usize {
        match self {
            Self::Dense | Self::HighFirst => count.saturating_mul(bits as usize).div_ceil(8),
            Self::Padded => count.div_ceil(32 / bits as usize) * 4,
            Self::Awq => count.div_ceil(8) * 4,
            Self::Halves(block) => count.div_ceil(block) * block / 2,
        }
    }
}

/// Codes in bytes, and in containers.
#[derive(Clone, Copy)]
struct Span<const BITS: usize> {
    packed: *mut u8,
    codes: *mut u8,
    count: usize,
}

/// Codes of a group that fills whole bytes.
const GROUP: usize = 8;

struct UnpackDense<const BITS: usize>(Span<BITS>);

impl<const BITS: usize> RawKernel for UnpackDense<BITS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { packed, codes, count } = self.0;
        let whole = count - count % GROUP;
        for group in 0..whole / GROUP {
            let mut word = [0; GROUP];
            // SAFETY: the caller of `unpack` vouches for the bytes of `count` codes, and for as many codes.
            unsafe {
                packed.add(group * BITS).copy_to_nonoverlapping(word.as_mut_ptr(), BITS);
                let word = u64::from_le_bytes(word);
                for place in 0..GROUP {
                    *codes.add(group * GROUP + place) = (word >> (BITS * place)) as u8 & mask(BITS);
                }
            }
        }
        for index in whole..count {
            let (byte, bit) = (index * BITS / 8, index * BITS % 8);
            // SAFETY: as above; the second byte is only read if the code has bits in it.
            unsafe {
                let low = u16::from(*packed.add(byte));
                let high = if bit + BITS > 8 { u16::from(*packed.add(byte + 1)) } else { 0 };
                *codes.add(index) = ((low | high << 8) >> bit) as u8 & mask(BITS);
            }
        }
    }
}

struct PackDense<const BITS: usize>(Span<BITS>);

impl<const BITS: usize> RawKernel for PackDense<BITS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { packed, codes, count } = self.0;
        for group in 0..count.div_ceil(GROUP) {
            let here = GROUP.min(count - group * GROUP);
            let mut word = 0u64;
            // SAFETY: the caller of `pack` vouches for `count` codes and the bytes that they fill.
            unsafe {
                for place in 0..here {
                    let code = *codes.add(group * GROUP + place) & mask(BITS);
                    word |= u64::from(code) << (BITS * place);
                }
                let bytes = (here * BITS).div_ceil(8);
                packed.add(group * BITS).copy_from_nonoverlapping(word.to_le_bytes().as_ptr(), bytes);
            }
        }
    }
}

/// Nibbles of whole bytes, both ways; `HIGH` is 4 where the first one is the high one.
struct Nibbles<const PACK: bool, const HIGH: u32>(Span<4>);

impl<const PACK: bool, const HIGH: u32> RawKernel for Nibbles<PACK, HIGH> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { packed, codes, count } = self.0;
        let (first, second) = (HIGH, 4 - HIGH);
        for byte in 0..count / 2 {
            // SAFETY: as for `UnpackDense` and `PackDense`.
            unsafe {
                let pair = codes.add(2 * byte);
                if PACK {
                    *packed.add(byte) = (*pair & 0x0f) << first | (*pair.add(1) & 0x0f) << second;
                } else {
                    let both = *packed.add(byte);
                    *pair = both >> first & 0x0f;
                    *pair.add(1) = both >> second & 0x0f;
                }
            }
        }
        if count % 2 == 1 {
            // SAFETY: as above.
            unsafe {
                let (last, byte) = (codes.add(count - 1), packed.add(count / 2));
                if PACK { *byte = (*last & 0x0f) << first } else { *last = *byte >> first & 0x0f }
            }
        }
    }
}

/// Nibbles of whole blocks, both ways: the codes of a first half are the low ones of its bytes.
struct Halves<const PACK: bool, const HALF: usize>(Span<4>);

impl<const PACK: bool, const HALF: usize> RawKernel for Halves<PACK, HALF> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { packed, codes, count } = self.0;
        for block in 0..count / (2 * HALF) {
            for place in 0..HALF {
                // SAFETY: as for `UnpackDense` and `PackDense`.
                unsafe {
                    let byte = packed.add(block * HALF + place);
                    let (low, high) =
                        (codes.add(2 * block * HALF + place), codes.add((2 * block + 1) * HALF + place));
                    if PACK {
                        *byte = *low & 0x0f | *high << 4;
                    } else {
                        (*low, *high) = (*byte & 0x0f, *byte >> 4);
                    }
                }
            }
        }
    }
}

/// Moves the codes of whole blocks of halves; returns how many they are, 0 for another packing.
///
/// # Safety
/// As for [`unpack`] or [`pack`].
unsafe fn halves<const PACK: bool>(level: Level, packing: Packing, span: Span<4>) -> usize {
    let (Packing::Halves(block), count) = (packing, span.count) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe {
        match block {
            16 => level.run_raw(Halves::<PACK, 8>(span)),
            32 => level.run_raw(Halves::<PACK, 16>(span)),
            _ => return 0,
        }
    }
    count / block * block
}

const fn mask(bits: usize) -> u8 {
    (u8::MAX as u32 >> (8 - bits)) as u8
}

/// Returns the byte, and the bit in it, of a code in the packings that have no loop of their own.
fn place(packing: Packing, bits: u32, index: usize) -> (usize, u32) {
    match packing {
        Packing::Padded => {
            let per_word = 32 / bits as usize;
            let bit = (index % per_word) as u32 * bits;
            (index / per_word * 4 + (bit / 8) as usize, bit % 8)
        }
        Packing::Awq => {
            let nibble = AWQ_ORDER.iter().position(|&code| code == index % 8).unwrap_or_default();
            (index / 8 * 4 + nibble / 2, nibble as u32 % 2 * 4)
        }
        Packing::Halves(block) => {
            let (half, within) = (block / 2, index % block);
            (index / block * half + within % half, (within / half) as u32 * 4)
        }
        Packing::Dense | Packing::HighFirst => (index * bits as usize / 8, 0),
    }
}

/// Unpacks or packs codes of a constant number of bits.
///
/// # Safety
/// As for [`unpack`], or [`pack`].
unsafe fn dense<const BITS: usize, const PACK: bool>(
    level: Level,
    packed: *mut u8,
    codes: *mut u8,
    count: usize,
) {
    let span = Span { packed, codes, count };
    // SAFETY: passed on.
    unsafe {
        if PACK { level.run_raw(PackDense::<BITS>(span)) } else { level.run_raw(UnpackDense::<BITS>(span)) }
    }
}

/// Does the same for codes of `bits` bits.
///
/// # Safety
/// As for [`dense`].
unsafe fn dense_of<const PACK: bool>(level: Level, bits: u32, packed: *mut u8, codes: *mut u8, count: usize) {
    let dense = match bits {
        1 => dense::<1, PACK>,
        2 => dense::<2, PACK>,
        3 => dense::<3, PACK>,
        4 => dense::<4, PACK>,
        5 => dense::<5, PACK>,
        6 => dense::<6, PACK>,
        7 => dense::<7, PACK>,
        _ => dense::<8, PACK>,
    };
    // SAFETY: passed on.
    unsafe { dense(level, packed, codes, count) }
}

/// Unpacks codes to bytes, from the start of a unit.
///
/// # Safety
/// The bytes of `count` codes are readable, and as many codes writable, apart from them.
pub(super) unsafe fn unpack(
    level: Level,
    (packing, bits): (Packing, u32),
    packed: *const u8,
    codes: *mut u8,
    count: usize,
) {
    let packed = packed.cast_mut();
    // SAFETY: the caller's promise. No kernel writes to what is packed.
    unsafe {
        match packing {
            Packing::Dense if bits == 8 => codes.copy_from_nonoverlapping(packed, count),
            Packing::Dense if bits == 4 => level.run_raw(Nibbles::<false, 0>(Span { packed, codes, count })),
            Packing::Dense => dense_of::<false>(level, bits, packed, codes, count),
            Packing::HighFirst => level.run_raw(Nibbles::<false, 4>(Span { packed, codes, count })),
            _ => {
                for index in halves::<false>(level, packing, Span { packed, codes, count })..count {
                    let (byte, bit) = place(packing, bits, index);
                    let low = u16::from(*packed.add(byte));
                    let high = if bit + bits > 8 { u16::from(*packed.add(byte + 1)) } else { 0 };
                    *codes.add(index) = ((low | high << 8) >> bit) as u8 & mask(bits as usize);
                }
            }
        }
    }
}

/// Packs the low bits of codes, from the start of a unit. Of the last byte, other bits become 0.
///
/// # Safety
/// As for [`unpack`], the other way round.
pub(super) unsafe fn pack(
    level: Level,
    (packing, bits): (Packing, u32),
    codes: *const u8,
    packed: *mut u8,
    count: usize,
) {
    let codes = codes.cast_mut();
    // SAFETY: the caller's promise. No kernel writes to the codes.
    unsafe {
        match packing {
            Packing::Dense if bits == 8 => packed.copy_from_nonoverlapping(codes, count),
            Packing::Dense if bits == 4 => level.run_raw(Nibbles::<true, 0>(Span { packed, codes, count })),
            Packing::Dense => dense_of::<true>(level, bits, packed, codes, count),
            Packing::HighFirst => level.run_raw(Nibbles::<true, 4>(Span { packed, codes, count })),
            _ => {
                let done = halves::<true>(level, packing, Span { packed, codes, count });
                let begin = packing.bytes(bits, done);
                packed.add(begin).write_bytes(0, packing.bytes(bits, count) - begin);
                for index in done..count {
                    let (byte, bit) = place(packing, bits, index);
                    let code = u16::from(*codes.add(index) & mask(bits as usize)) << bit;
                    *packed.add(byte) |= code as u8;
                    if bit + bits > 8 {
                        *packed.add(byte + 1) |= (code >> 8) as u8;
                    }
                }
            }
        }
    }
}

/// Adds bits from a second stream, of one bit each, above the bits of codes.
///
/// # Safety
/// As for [`unpack`]; the scratch has as many bytes as there are codes.
pub(super) unsafe fn add_high_bits(
    level: Level,
    bits: u32,
    high: *const u8,
    (codes, scratch): (*mut u8, *mut u8),
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        unpack(level, (Packing::Dense, 1), high, scratch, count);
        for index in 0..count {
            *codes.add(index) |= *scratch.add(index) << bits;
        }
    }
}
