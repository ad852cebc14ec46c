//! Codes of four or six bits that share bytes: the first in the lowest bits, as `DLPack`, ONNX and torch pack them.

/// Unpacks codes, one per byte; `bits` is 4 or 6, and `packed` ends with a code.
pub(super) fn unpack(packed: &[u8], bits: u32, codes: &mut [u8]) {
    if bits == 4 {
        for (pair, byte) in codes.chunks_exact_mut(2).zip(packed) {
            pair[0] = byte & 15;
            pair[1] = byte >> 4;
        }
        return;
    }
    for (four, three) in codes.chunks_exact_mut(4).zip(packed.chunks_exact(3)) {
        let word = u32::from_le_bytes([three[0], three[1], three[2], 0]);
        for (index, code) in four.iter_mut().enumerate() {
            *code = (word >> (6 * index)) as u8 & 63;
        }
    }
}

/// Puts two codes of four bits into each byte.
pub(super) fn pack_nibbles(codes: &[u8], packed: &mut [u8]) {
    for (byte, pair) in packed.iter_mut().zip(codes.chunks_exact(2)) {
        *byte = pair[0] & 15 | pair[1] << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_from_the_lowest_bits_on() {
        for (bits, packed) in [(4, &[0x21u8, 0x43, 0x65][..]), (6, &[0x41, 0x20, 0x0c])] {
            let whole = packed.iter().rev().fold(0u64, |whole, &byte| whole << 8 | u64::from(byte));
            let mut codes = vec![0; packed.len() * 8 / bits as usize];
            unpack(packed, bits, &mut codes);
            for (index, &code) in codes.iter().enumerate() {
                assert_eq!(u64::from(code), (whole >> (bits as usize * index)) & ((1 << bits) - 1));
            }
        }
    }

    #[test]
    fn nibbles_are_packed_and_unpacked() {
        let codes: Vec<u8> = (0..16).chain((0..16).rev()).collect();
        let (mut packed, mut again) = (vec![0; 16], vec![0; 32]);
        pack_nibbles(&codes, &mut packed);
        unpack(&packed, 4, &mut again);
        assert_eq!(again, codes);
    }
}
