//! Converts one code at a time, through the exact product: tables and bounds are made with it.

use super::decode::IntegerValue;
use super::encode::{BoolEncoder, Encoded, Encoder, FloatEncoder, IntegerEncoder};
use super::options::{Options, Rounding};
use super::pivot::{Binary64, Int64, Pivot, Uint64};
use super::product::{Factor, Product};
use super::reference;
use super::rounding::Directed;
use crate::format::{FloatSpec, Format, Kind};

/// The conversion of single codes of a real format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar {
    source: Reader,
    scale: Factor,
    target: Writer,
}

/// Reads the value of a code.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Float(FloatSpec),
    Signed(IntegerValue<u64>),
    Unsigned(IntegerValue<u64>),
}

/// Encodes a product.
#[derive(Clone, Copy, Debug)]
enum Writer {
    Float(FloatEncoder<u128, Directed<u128>>),
    Integer(IntegerEncoder<u128, Directed<u128>>),
    Bool(BoolEncoder),
}

impl Scalar {
    /// Makes the conversion for a pair of real formats and one factor; `None` for other formats and for stochastic
    /// rounding. It computes with floats: call it in [`crate::cpu::DefaultEnvironment`].
    pub(crate) fn new(
        (source, target): (Format, Format),
        options: &Options,
        rounding: Rounding,
        factor: f64,
    ) -> Option<Self> {
        let rounder = Directed::new(rounding);
        Some(Self {
            source: match source.kind() {
                Kind::Float(spec) => Reader::Float(spec),
                Kind::Integer { signed: true } => Reader::Signed(IntegerValue::new(source.row())),
                Kind::Integer { signed: false } | Kind::Bool => {
                    Reader::Unsigned(IntegerValue::new(source.row()))
                }
                Kind::Complex { .. } => return None,
            },
            scale: Factor::of::<Binary64>(factor.to_bits()),
            target: match target.kind() {
                Kind::Float(spec) => {
                    Writer::Float(FloatEncoder::new(&spec, options, rounding, rounder, Product::TOP))
                }
                Kind::Integer { .. } => {
                    Writer::Integer(IntegerEncoder::new(target, options.overflow, rounder, Product::TOP)?)
                }
                Kind::Bool => Writer::Bool(BoolEncoder::new(options)),
                Kind::Complex { .. } => return None,
            },
        })
    }

    /// Converts a code. Bits above the source's are ignored.
    pub(crate) fn convert(&self, code: u64) -> Encoded<u64> {
        let value = match self.source {
            Reader::Float(spec) => Factor::of::<Binary64>(reference::worth(&spec, code).to_bits()),
            Reader::Signed(value) => Factor::of::<Int64>(value.of(code)),
            Reader::Unsigned(value) => Factor::of::<Uint64>(value.of(code)),
        };
        let product = (value, self.scale);
        let encoded = match self.target {
            Writer::Float(encoder) => Encoder::<Product>::encode(&encoder, product, 0),
            Writer::Integer(encoder) => Encoder::<Product>::encode(&encoder, product, 0),
            Writer::Bool(encoder) => Encoder::<Product>::encode(&encoder, product, 0),
        };
        Encoded { code: encoded.code as u64, flags: encoded.flags }
    }
}
