//! The one decision of a cast: which stages its elements pass through. No loops here.
//!
//! | route | stages | when |
//! |---|---|---|
//! | copy | none | same format, and nothing to change |
//! | lookup | one | codes of a byte, on a level with tables of 256 entries |
//! | table | one | many codes of a byte, times one factor |
//! | native | one, after decoding to float32 | floats to machine types and integers of few bits, and between machine types, under default options |
//! | integer | one | integers or bools on both ends |
//! | direct | one | floats of 32 bits or fewer, on levels with vectors for the pair |
//! | pivot | decode, scale, encode | everything else; an end that is the pivot itself needs no stage; vectors encode where they can |

use super::report::measure::Meter;
use super::report::watch::Watch;
use super::request::{Choice, Request, pivot_spec};
use super::stages::assemble;
use super::stages::stage::{Scale, Stage};
use super::stages::{cut, from_float};
use super::stages::{from_integer, integer};
use super::tables::{lookup, table};
use super::vectors::by_chance::{ByChance, by_chance};
use super::vectors::{direct, low_bytes, native};
use crate::codec::lane::Lane;
use crate::codec::options::{NanRule, Overflow, Rounding};
use crate::codec::pivot::{Binary32, Binary64, FloatPivot, SignedWord, UnsignedWord};
use crate::codec::random::Stream;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Kind;

/// What happens to each tile.
pub(crate) struct Plan {
    /// What its stages were chosen for.
    pub(super) level: Level,
    /// Source bytes to lanes (or, where `encode` is absent, to target bytes). Absent: the source is the lanes.
    pub(super) decode: Option<Box<dyn Stage>>,
    /// Bytes of a lane between the stages.
    pub(super) lane_size: usize,
    /// Lanes times scales, in place.
    pub(super) scale: Option<Box<dyn Stage>>,
    /// Lanes to target bytes.
    pub(super) encode: Option<Box<dyn Stage>>,
    /// The encoder writes a flag per element.
    pub(super) flags: bool,
    /// Scales are read, by the scale stage or the encoder.
    pub(super) scaled: bool,
    /// Draws are read; the stream they come from.
    pub(super) stream: Option<Stream>,
    /// Does all that the stages do for dense elements, and draws by itself.
    pub(super) by_chance: Option<Box<dyn ByChance>>,
    /// Compares sources and results, by the flags of the encoder.
    pub(super) meter: Option<Meter>,
    /// Compares them without flags.
    pub(super) watch: Option<Watch>,
    pub(super) source_size: usize,
    pub(super) target_size: usize,
}

impl Plan {
    /// Decides.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex formats, which the caller takes apart into real ones.
    // Not inlined: constants of kernels are computed here, in the environment that the caller has set.
    #[inline(never)]
    pub(crate) fn new(request: &Request, level: Level) -> Result<Self, Error> {
        if let Some(watch) = Watch::new(request, level)? {
            let plain = Self::new(&Request { report: false, ..*request }, level)?;
            return Ok(Self { watch: Some(watch), ..plain });
        }
        Self::with_flags(request, level)
    }

    /// Decides on one way to results, and flags if somebody asks what happened.
    pub(super) fn with_flags(request: &Request, level: Level) -> Result<Self, Error> {
        let Request { source, target, options, report, .. } = *request;
        let unsupported = Error::Unsupported { source, target };
        let mut plan = Self {
            level,
            decode: None,
            lane_size: source.item_size(),
            scale: None,
            encode: None,
            flags: false,
            scaled: request.scaled,
            stream: None,
            by_chance: None,
            meter: None,
            watch: None,
            source_size: source.item_size(),
            target_size: target.item_size(),
        };
        if report {
            let wraps = request.integer_ends() && !request.scaled && options.overflow != Overflow::Saturate;
            plan.meter = Some(Meter::new(source, target, wraps));
        }
        let searches_nan = options.nan == NanRule::Raise;
        if source == target && !request.scaled && !searches_nan && request.keeps_specials() {
            return Ok(plan);
        }
        if let Some(stage) = lookup::known(request, level) {
            plan.encode = Some(stage);
            return Ok(plan);
        }
        plan.choose(request).ok_or(unsupported)?;
        if let Some(stage) = lookup::learn(request, &plan) {
            return Ok(plan.replaced_by(stage));
        }
        if let Some(stage) = table::stage(request, &plan) {
            return Ok(plan.replaced_by(stage));
        }
        Ok(plan)
    }

    /// With one stage that does all of it.
    fn replaced_by(self, stage: Box<dyn Stage>) -> Self {
        Self { decode: None, scale: None, encode: Some(stage), flags: false, scaled: false, ..self }
    }

    /// Fills in the stages.
    fn choose(&mut self, request: &Request) -> Option<()> {
        let Request { source, target, options, .. } = *request;
        if request.is_native() && self.go_native(request) {
            return Some(());
        }
        if request.integer_ends() && !request.scaled {
            let wraps = options.overflow != Overflow::Saturate || target.kind() == Kind::Bool;
            if wraps && !request.watched() {
                let pair = (source, target);
                self.encode =
                    cut::stage(source, target).map(|stage| low_bytes::stage(pair, self.level, stage));
            }
            if self.encode.is_none() {
                self.encode = integer::stage(source, target, options.overflow);
                self.flags = true;
            }
            return Some(());
        }
        if let Some(stage) = direct::stage(request, self.level) {
            self.encode = Some(stage);
            // A factor is part of the stage.
            self.scaled = false;
            return Some(());
        }
        self.route(request)
    }

    /// Whether nothing is to be done to elements, or found out about them.
    pub(super) fn is_copy(&self) -> bool {
        self.decode.is_none() && self.encode.is_none() && !self.is_watched()
    }

    /// Whether somebody compares sources and results.
    pub(super) fn is_watched(&self) -> bool {
        self.meter.is_some() || self.watch.is_some()
    }

    /// Takes the machine's own conversions, if there are some for the pair. Returns whether there are.
    fn go_native(&mut self, request: &Request) -> bool {
        let Request { source, target, options, .. } = *request;
        if target.kind() == Kind::Bool && !request.keeps_specials() {
            return false;
        }
        self.encode = native::stage(source, target, self.level);
        if self.encode.is_some() {
            return true;
        }
        self.encode = match source.float() {
            None => from_integer::stage(source, target)
                .map(|stage| low_bytes::stage((source, target), self.level, stage)),
            Some(spec) if spec == pivot_spec::<Binary64>() => {
                from_float::from_float64(target, options.overflow)
            }
            Some(spec) if spec == pivot_spec::<Binary32>() => {
                from_float::from_float32(target, options.overflow)
            }
            Some(_) => None,
        };
        // Single floats and narrower; float64 they become by decoding alone.
        if self.encode.is_none()
            && source.float().is_some_and(|_| source.row().bits < 32)
            && target.float().is_none()
        {
            self.encode = from_float::from_float32(target, options.overflow);
            // Narrower floats pass through float32, which holds them exactly.
            self.decode = assemble::decoder::<Binary32>(source);
            self.lane_size = size_of::<f32>();
        }
        self.encode.is_some()
    }

    /// Fills in the stages of the pivot route.
    fn route(&mut self, request: &Request) -> Option<()> {
        match request.choice() {
            Choice::Narrow => {
                self.decode = assemble::decoder::<Binary32>(request.source);
                self.through_float::<Binary32>(request)
            }
            Choice::Wide => {
                self.decode = assemble::decoder::<Binary64>(request.source);
                self.through_float::<Binary64>(request)
            }
            Choice::Word { signed: true } => self.finish(request, assemble::encoder::<SignedWord>(request)),
            Choice::Word { signed: false } => {
                self.finish(request, assemble::encoder::<UnsignedWord>(request))
            }
            Choice::Exact => {
                let encode = match (request.source.row().bits, request.source.kind()) {
                    (64, Kind::Integer { signed: true }) => assemble::product_encoder::<SignedWord>(request),
                    (64, Kind::Integer { signed: false }) => {
                        assemble::product_encoder::<UnsignedWord>(request)
                    }
                    _ => {
                        self.decode = assemble::decoder::<Binary64>(request.source);
                        assemble::product_encoder::<Binary64>(request)
                    }
                };
                self.lane_size = 8;
                self.finish(request, encode)
            }
        }
    }

    fn through_float<P: FloatPivot>(&mut self, request: &Request) -> Option<()> {
        self.lane_size = (<P::Lane as Lane>::WIDTH / 8) as usize;
        if self.scaled {
            self.scale = Some(Box::new(Scale));
        }
        let spec = request.target.float();
        let is_pivot = spec == Some(pivot_spec::<P>());
        if is_pivot && !request.watched() && !self.scaled && request.keeps_specials() {
            return Some(());
        }
        if let Some(stage) = direct::from_lanes::<P>(request, self.level) {
            self.encode = Some(stage);
            return Some(());
        }
        let is_single = spec == Some(pivot_spec::<Binary32>());
        if self.lane_size == size_of::<f64>() && is_single && request.is_fast() && request.keeps_specials() {
            self.encode = from_float::from_float64(request.target, request.options.overflow);
            return Some(());
        }
        if let Some(fast) = assemble::fast_encoder::<P>(request) {
            self.encode = Some(fast);
            self.draw(request);
            if self.stream.is_some() && self.lane_size == size_of::<f32>() {
                self.by_chance = by_chance(request, self.level);
            }
            return Some(());
        }
        self.finish(request, assemble::encoder::<P>(request))
    }

    /// The general encoders always tell what happened; nobody may listen.
    fn finish(&mut self, request: &Request, encode: Option<Box<dyn Stage>>) -> Option<()> {
        self.flags = true;
        self.draw(request);
        self.encode = Some(encode?);
        Some(())
    }

    /// Notes the stream of random numbers, if the encoder reads any.
    fn draw(&mut self, request: &Request) {
        let stochastic = request.rounding() == Rounding::Stochastic;
        self.stream = stochastic.then(|| Stream::new(request.options.seed));
    }
}
