//! Makes stages from formats: chooses the decoder or encoder of a row, and the size of its storage.

#![deny(unsafe_code)]

use super::stage::{Decode, Elements, EncodeProduct, InBlocks, Stage};
use crate::codec::decode::{
    Decoder, FloatDecoder, IntegerDecoder, OddIntegerDecoder, PowerDecoder, Through32, TruncatedDecoder,
};
use crate::codec::encode::{BoolEncoder, Encoder, FloatEncoder, IntegerEncoder};
use crate::codec::lane::Lane;
use crate::codec::nearest::{NearestEncoder, PowerEncoder};
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot, Pivot};
use crate::codec::product::{Factor, Product};
use crate::codec::rounding::{Directed, Rounder, Stochastic};
use crate::codec::stochastic::{StochasticEncoder, StochasticTruncatedEncoder};
use crate::format::{Format, Kind, Row};
use crate::kernels::request::{Request, pivot_spec};
use crate::plain::Plain;

/// Makes an encoder a stage that stores codes of `size` bytes.
trait Maker<P: Pivot> {
    fn make<E: Encoder<P> + 'static>(self, encoder: E, size: usize) -> Box<dyn Stage>;
}

/// Encodes lanes of a pivot.
struct Lanes;

impl<P: Pivot<Bits: Plain>> Maker<P> for Lanes {
    fn make<E: Encoder<P> + 'static>(self, encoder: E, size: usize) -> Box<dyn Stage> {
        InBlocks::boxed::<P, E>(encoder, size)
    }
}

/// Encodes exact products of lanes, which the function takes apart, with scales.
struct Exact(fn(u64) -> Factor);

impl Maker<Product> for Exact {
    fn make<E: Encoder<Product> + 'static>(self, encoder: E, size: usize) -> Box<dyn Stage> {
        Box::new(EncodeProduct { encoder, factor: self.0, size })
    }
}

/// Makes the fast encoding stage for a request, if there is one.
pub(crate) fn fast_encoder<P: FloatPivot>(request: &Request) -> Option<Box<dyn Stage>> {
    let Request { target, options, .. } = *request;
    let (rounding, size) = (request.rounding(), target.item_size());
    if request.tells {
        return None;
    }
    match target.kind() {
        Kind::Bool => Some(Lanes.make_for::<P, _>(BoolEncoder::new(&options), size)),
        Kind::Float(spec) if request.is_fast() => {
            if let Some(encoder) = NearestEncoder::new::<P>(&spec, &options, rounding) {
                return Some(Lanes.make_for::<P, _>(encoder, size));
            }
            Some(Lanes.make_for::<P, _>(PowerEncoder::new::<P>(&spec, &options, rounding)?, size))
        }
        Kind::Float(_) => stochastic_encoder::<P>(request),
        _ => None,
    }
}

impl Lanes {
    fn make_for<P: Pivot<Bits: Plain>, E: Encoder<P> + 'static>(
        self,
        encoder: E,
        size: usize,
    ) -> Box<dyn Stage> {
        Maker::<P>::make(self, encoder, size)
    }
}

/// Makes the fast stochastic one.
fn stochastic_encoder<P: FloatPivot>(request: &Request) -> Option<Box<dyn Stage>> {
    let Request { target, options, .. } = *request;
    let (spec, rounding, size) = (target.float()?, request.rounding(), target.item_size());
    if let Some(encoder) = StochasticTruncatedEncoder::new::<P>(&spec, &options, rounding) {
        return Some(Lanes.make_for::<P, _>(encoder, size));
    }
    let encoder = StochasticEncoder::new::<P>(&spec, &options, rounding)?;
    Some(Lanes.make_for::<P, _>(encoder, size))
}

/// Makes the general encoding stage from lanes to a real format; it writes flags.
pub(crate) fn encoder<P: Pivot<Bits: Plain>>(request: &Request) -> Option<Box<dyn Stage>> {
    general::<P, _>(request, Lanes)
}

/// Makes the general one from lanes of 64 bits times scales.
pub(crate) fn product_encoder<P>(request: &Request) -> Option<Box<dyn Stage>>
where
    P: Pivot<Bits = u64, Lane = u64>,
{
    general::<Product, _>(request, Exact(Factor::of::<P>))
}

fn general<P: Pivot, M: Maker<P>>(request: &Request, maker: M) -> Option<Box<dyn Stage>> {
    match request.rounding() {
        Rounding::Stochastic => rounded::<P, _, _>(request, maker, Stochastic),
        rounding => rounded::<P, _, _>(request, maker, Directed::new(rounding)),
    }
}

fn rounded<P: Pivot, M: Maker<P>, R>(request: &Request, maker: M, rounder: R) -> Option<Box<dyn Stage>>
where
    R: Rounder<P::Lane> + 'static,
{
    let (target, size) = (request.target, request.target.item_size());
    Some(match target.kind() {
        Kind::Float(spec) => {
            let rounding = request.rounding();
            maker.make(FloatEncoder::new(&spec, &request.options, rounding, rounder, P::TOP), size)
        }
        Kind::Integer { .. } => {
            maker.make(IntegerEncoder::new(target, request.options.overflow, rounder, P::TOP)?, size)
        }
        Kind::Bool => maker.make(BoolEncoder::new(&request.options), size),
        Kind::Complex { .. } => return None,
    })
}

/// Sizes of elements as bits of a set: those that a decoder is compiled for.
const SIZE_1: usize = 1;
const SIZE_2: usize = 2;
const SIZE_4: usize = 4;
/// (As wide as lanes.)
const SIZE_8: usize = 8;

/// Makes the decoding stage from a real format; `None` if the format is the pivot itself.
///
/// Integers wider than the pivot's significand are rounded to odd.
pub(crate) fn decoder<P: FloatPivot>(source: Format) -> Option<Box<dyn Stage>> {
    let Row { bits, kind, .. } = source.row();
    let is_lane = *bits == <P::Lane as Lane>::WIDTH;
    match *kind {
        Kind::Float(spec) if spec == pivot_spec::<P>() => None,
        Kind::Float(spec) => {
            if let Some(decoder) = TruncatedDecoder::new(&spec) {
                load::<P, _, { SIZE_2 | SIZE_4 }>(source, Through32::<P, _>::new(decoder))
            } else if let Some(decoder) = PowerDecoder::new(&spec) {
                load::<P, _, SIZE_1>(source, Through32::<P, _>::new(decoder))
            } else {
                load::<P, _, { SIZE_1 | SIZE_2 }>(source, Through32::<P, _>::new(FloatDecoder::new(&spec)))
            }
        }
        Kind::Integer { signed: true } if is_lane => {
            load::<P, _, SIZE_8>(source, OddIntegerDecoder::<P, true>::default())
        }
        Kind::Integer { signed: false } if is_lane => {
            load::<P, _, SIZE_8>(source, OddIntegerDecoder::<P, false>::default())
        }
        // By way of float32 is shorter than by 64-bit integers.
        _ if *bits <= Binary32::MANTISSA => {
            let decoder = IntegerDecoder::<Binary32>::new(source.row());
            load::<P, _, { SIZE_1 | SIZE_2 }>(source, Through32::<P, _>::new(decoder))
        }
        _ => load::<P, _, SIZE_4>(source, IntegerDecoder::<P>::new(source.row())),
    }
}

/// Makes the stage of a decoder for elements of one of these sizes, if they are no wider than lanes.
fn load<P: FloatPivot, D, const SIZES: usize>(source: Format, decoder: D) -> Option<Box<dyn Stage>>
where
    D: Decoder<P::Lane> + 'static,
{
    // Constants, so that the compiler meets no loop that is not used.
    match source.item_size() {
        1 if const { SIZES & SIZE_1 != 0 } => Some(Elements::boxed(Decode::<P::Lane, u8, D>::new(decoder))),
        2 if const { SIZES & SIZE_2 != 0 } => Some(Elements::boxed(Decode::<P::Lane, u16, D>::new(decoder))),
        4 if const {
            let is_wider = size_of::<P::Lane>() > size_of::<u32>();
            if is_wider { SIZES & SIZE_4 != 0 } else { SIZES == SIZE_8 }
        } =>
        {
            Some(Elements::boxed(Decode::<P::Lane, u32, D>::new(decoder)))
        }
        8 if const { SIZES == SIZE_8 && size_of::<P::Lane>() == size_of::<u64>() } => {
            Some(Elements::boxed(Decode::<P::Lane, u64, D>::new(decoder)))
        }
        _ => None,
    }
}
