//! Stages from formats: which decoder or encoder a row asks for, over which storage.

use std::marker::PhantomData;

use super::stage::{Decode, Encode, EncodeProduct, Stage, Storage};
use crate::cast::request::{Request, pivot_spec};
use crate::codec::decode::{
    Decoder, FloatDecoder, IntegerDecoder, OddIntegerDecoder, PowerDecoder, Through32, TruncatedDecoder,
};
use crate::codec::encode::{BoolEncoder, Encoder, FloatEncoder, IntegerEncoder};
use crate::codec::lane::Lane;
use crate::codec::nearest::{NearestEncoder, PowerEncoder, TruncatedEncoder};
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot, Pivot};
use crate::codec::product::Product;
use crate::codec::rounding::{Directed, Rounder, Stochastic};
use crate::codec::stochastic::{StochasticEncoder, StochasticTruncatedEncoder};
use crate::format::{Format, Kind, Row};

/// How an encoder becomes a stage.
pub(in crate::cast) trait Maker {
    /// What the encoder encodes from.
    type Pivot: Pivot;
    /// The stage that stores codes as `T`.
    fn make<T: Storage, E: Encoder<Self::Pivot> + 'static>(encoder: E) -> Box<dyn Stage>;
}

/// Lanes of `P`, with flags.
pub(in crate::cast) struct Watched<P>(PhantomData<P>);

impl<P: Pivot> Maker for Watched<P> {
    type Pivot = P;
    fn make<T: Storage, E: Encoder<P> + 'static>(encoder: E) -> Box<dyn Stage> {
        Box::new(Encode::<P, T, E, true>::new(encoder))
    }
}

/// Lanes of `P`, without flags.
pub(in crate::cast) struct Unwatched<P>(PhantomData<P>);

impl<P: Pivot> Maker for Unwatched<P> {
    type Pivot = P;
    fn make<T: Storage, E: Encoder<P> + 'static>(encoder: E) -> Box<dyn Stage> {
        Box::new(Encode::<P, T, E, false>::new(encoder))
    }
}

/// Lanes of `P` times scales, exactly, with flags.
pub(in crate::cast) struct Exact<P>(PhantomData<P>);

impl<P: Pivot<Bits = u64, Lane = u64>> Maker for Exact<P> {
    type Pivot = Product;
    fn make<T: Storage, E: Encoder<Product> + 'static>(encoder: E) -> Box<dyn Stage> {
        Box::new(EncodeProduct::<P, T, E>::new(encoder))
    }
}

/// The stage of an encoder, over the target's storage.
pub(super) fn store<M: Maker, E: Encoder<M::Pivot> + 'static>(
    target: Format,
    encoder: E,
) -> Option<Box<dyn Stage>> {
    match target.item_size() {
        1 => Some(M::make::<u8, E>(encoder)),
        2 => Some(M::make::<u16, E>(encoder)),
        4 => Some(M::make::<u32, E>(encoder)),
        8 => Some(M::make::<u64, E>(encoder)),
        _ => None,
    }
}

/// The stage without flags that does what a request asks for in fewer steps than the general one, if there is one.
pub(in crate::cast) fn fast_encoder<P: FloatPivot>(request: &Request) -> Option<Box<dyn Stage>> {
    let Request { target, options, .. } = *request;
    match target.kind() {
        Kind::Bool if !request.watched() => store::<Unwatched<P>, _>(target, BoolEncoder::new(&options)),
        Kind::Float(spec) if request.is_fast() => {
            let rounding = request.rounding();
            if let Some(encoder) = TruncatedEncoder::new::<P>(&spec, &options, rounding) {
                return store::<Unwatched<P>, _>(target, encoder);
            }
            if let Some(encoder) = NearestEncoder::new::<P>(&spec, &options, rounding) {
                return store::<Unwatched<P>, _>(target, encoder);
            }
            let encoder = PowerEncoder::new::<P>(&spec, &options, rounding)?;
            store::<Unwatched<P>, _>(target, encoder)
        }
        Kind::Float(_) if !request.watched() => {
            stochastic_encoder::<P, true>(request).or_else(|| stochastic_encoder::<P, false>(request))
        }
        _ => None,
    }
}

/// The same in the rounding by chance, to formats that treat all signs alike, or not.
fn stochastic_encoder<P: FloatPivot, const ALIKE: bool>(request: &Request) -> Option<Box<dyn Stage>> {
    let Request { target, options, .. } = *request;
    let (spec, rounding) = (target.float()?, request.rounding());
    if let Some(encoder) = StochasticTruncatedEncoder::<_, ALIKE>::new::<P>(&spec, &options, rounding) {
        return store::<Unwatched<P>, _>(target, encoder);
    }
    let encoder = StochasticEncoder::<_, ALIKE>::new::<P>(&spec, &options, rounding)?;
    store::<Unwatched<P>, _>(target, encoder)
}

/// The general encoding stage to a real format.
pub(in crate::cast) fn encoder<M: Maker>(request: &Request) -> Option<Box<dyn Stage>> {
    match request.rounding() {
        Rounding::Stochastic => rounded::<M, _>(request, Stochastic),
        rounding => rounded::<M, _>(request, Directed::new(rounding)),
    }
}

fn rounded<M: Maker, R>(request: &Request, rounder: R) -> Option<Box<dyn Stage>>
where
    R: Rounder<<M::Pivot as Pivot>::Lane> + 'static,
{
    let (target, top) = (request.target, M::Pivot::TOP);
    match target.kind() {
        Kind::Float(spec) => {
            let rounding = request.rounding();
            let encoder = FloatEncoder::new(&spec, &request.options, rounding, rounder, top);
            store::<M, _>(target, encoder)
        }
        Kind::Integer { .. } => {
            store::<M, _>(target, IntegerEncoder::new(target, request.options.overflow, rounder, top)?)
        }
        Kind::Bool => store::<M, _>(target, BoolEncoder::new(&request.options)),
        Kind::Complex { .. } => None,
    }
}

/// The decoding stage from a real format; `None` if the format is the pivot already.
///
/// Integers wider than the pivot's significand are rounded to odd.
pub(in crate::cast) fn decoder<P: FloatPivot>(source: Format) -> Option<Box<dyn Stage>> {
    let Row { bits, kind, .. } = source.row();
    match *kind {
        Kind::Float(spec) if spec == pivot_spec::<P>() => None,
        Kind::Float(spec) => {
            if let Some(decoder) = TruncatedDecoder::new(&spec) {
                load::<P, _>(source, Through32::<P, _>::new(decoder))
            } else if let Some(decoder) = PowerDecoder::new(&spec) {
                load::<P, _>(source, Through32::<P, _>::new(decoder))
            } else {
                load::<P, _>(source, Through32::<P, _>::new(FloatDecoder::new(&spec)))
            }
        }
        Kind::Integer { signed: true } if *bits == <P::Lane as Lane>::WIDTH => {
            load::<P, _>(source, OddIntegerDecoder::<P, true>::default())
        }
        Kind::Integer { signed: false } if *bits == <P::Lane as Lane>::WIDTH => {
            load::<P, _>(source, OddIntegerDecoder::<P, false>::default())
        }
        // float32 is a shorter way to float64 than 64-bit integers are.
        _ if *bits <= Binary32::MANTISSA => {
            let decoder = IntegerDecoder::<Binary32>::new(source.row());
            load::<P, _>(source, Through32::<P, _>::new(decoder))
        }
        _ => load::<P, _>(source, IntegerDecoder::<P>::new(source.row())),
    }
}

fn load<P: FloatPivot, D: Decoder<P::Lane> + 'static>(source: Format, decoder: D) -> Option<Box<dyn Stage>> {
    match source.item_size() {
        1 => Some(Box::new(Decode::<P::Lane, u8, D>::new(decoder))),
        2 => Some(Box::new(Decode::<P::Lane, u16, D>::new(decoder))),
        4 => Some(Box::new(Decode::<P::Lane, u32, D>::new(decoder))),
        8 => Some(Box::new(Decode::<P::Lane, u64, D>::new(decoder))),
        _ => None,
    }
}
