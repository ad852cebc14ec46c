//! Converts the elements of one tensor, a piece at a time.
//!
//! ```text
//! bytes of the source -> unpacked codes -> cast, with a report -> packed codes = bytes of the target
//! ```

use super::packing;
use castwise_core::cast::{Settings, cast_piece};
use castwise_core::error::Error;
use castwise_core::format::Format;
use castwise_core::report::CastReport;

/// The storage of elements in a file.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// Their format.
    pub format: Format,
    /// Whether elements of fewer than eight bits share bytes.
    pub packed: bool,
    /// Whether their byte order is not this machine's.
    pub swapped: bool,
}

impl Elements {
    /// Returns the bits of one element in the file.
    fn bits(self) -> u64 {
        if self.packed { u64::from(self.format.row().bits) } else { 8 * self.format.item_size() as u64 }
    }

    /// Returns the bytes of so many elements in the file.
    #[must_use]
    pub fn bytes(self, count: u64) -> u64 {
        count * self.bits() / 8
    }

    /// Returns the number of elements in so many bytes of the file.
    #[must_use]
    pub fn count(self, bytes: usize) -> u64 {
        bytes as u64 * 8 / self.bits()
    }
}

/// A cast of elements of a file.
#[derive(Clone, Copy, Debug)]
pub struct ElementCast {
    /// Storage in the source.
    pub source: Elements,
    /// Storage in the target.
    pub target: Elements,
    /// How they are cast.
    pub settings: Settings,
}

impl ElementCast {
    /// Returns the bytes of an element where it is largest: in the file or while it is cast.
    pub(super) fn widest(&self) -> u64 {
        self.source.format.item_size().max(self.target.format.item_size()) as u64
    }
}

/// The buffers for elements that share bytes in a file, reused for each piece.
#[derive(Debug, Default)]
pub struct Scratch {
    codes: Vec<u8>,
    results: Vec<u8>,
}

impl ElementCast {
    /// Casts a piece of a tensor, whose first element has the flat index `first`, into as many elements of `target`.
    ///
    /// Returns what was lost, if the settings ask for a report.
    ///
    /// # Errors
    /// As for [`cast_piece`].
    pub fn convert(
        &self,
        first: u64,
        source: &[u8],
        target: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<CastReport>, Error> {
        let Scratch { codes, results } = scratch;
        let count = self.source.count(source.len()) as usize;
        let mut given = source;
        if self.source.packed {
            codes.resize(count, 0);
            packing::unpack(source, self.source.format.row().bits, codes);
            given = codes;
        }
        let cast = |results: &mut [u8]| {
            cast_piece(
                first,
                (given, self.source.format, self.source.swapped),
                (results, self.target.format, self.target.swapped),
                &self.settings,
            )
        };
        if !self.target.packed {
            return cast(target);
        }
        results.resize(count * self.target.format.item_size(), 0);
        let report = cast(results)?;
        packing::pack_nibbles(results, target);
        Ok(report)
    }
}
