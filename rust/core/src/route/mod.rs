//! Chooses the stages that the elements of a cast pass through, and runs them. No loops here.
//!
//! | route | stages | when |
//! |---|---|---|
//! | copy | none | same format, and nothing to change |
//! | lookup | one | codes of a byte, on levels with vectors |
//! | table | one | many codes of a byte, times one factor |
//! | native | one, after decoding to float32 | floats to machine types and integers of few bits, and between machine types, under default options |
//! | integer | one | integers or bools on both ends |
//! | direct | one | floats of 32 bits or fewer, and integers to floats of 16 bits, on levels with vectors for the pair |
//! | pivot | decode, scale, encode | everything else; an end that is the pivot itself needs no stage; vectors encode where they can |

pub(crate) mod work;

use crate::codec::lane::Lane;
use crate::codec::options::{Overflow, Rounding};
use crate::codec::pivot::{Binary32, Binary64, FloatPivot, Int64, Uint64};
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Kind;
use crate::kernels::request::{Choice, Request, pivot_format, pivot_spec};
use crate::kernels::stages::assemble;
use crate::kernels::stages::stage::{Scale, Span, Stage};
use crate::kernels::stages::{from_float, wrap};
use crate::kernels::stages::{from_integer, integer};
use crate::kernels::tables::lookup;
use crate::kernels::vectors::stochastic_stage::{StochasticStage, stochastic_stage};
use crate::kernels::vectors::{direct, native};

use work::Work;

/// How a route goes, in a word; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Copy,
    /// Each code is looked up.
    Table,
    /// From source to target in one stage.
    Direct,
    /// Through lanes that hold a pivot.
    Pivot(Choice),
}

/// The stages that a tile passes through.
pub(crate) struct Route {
    pub(crate) way: Way,
    pub(crate) request: Request,
    /// The level that its stages were chosen for.
    pub(crate) level: Level,
    /// Source bytes to lanes (or, where `encode` is absent, to target bytes). Absent: the source is the lanes.
    pub(crate) decode: Option<Box<dyn Stage>>,
    /// Bytes of a lane between the stages.
    pub(crate) lane_size: usize,
    /// Lanes times scales, in place.
    pub(crate) scale: Option<Box<dyn Stage>>,
    /// Lanes to target bytes.
    pub(crate) encode: Option<Box<dyn Stage>>,
    /// The encoder writes a flag per element.
    pub(crate) flags: bool,
    /// Scales are read, by the scale stage or the encoder.
    pub(crate) scaled: bool,
    /// Draws are read.
    pub(crate) draws: bool,
    /// Does the work of all stages for dense elements, with draws in registers.
    pub(crate) stochastic: Option<Box<dyn StochasticStage>>,
    pub(crate) source_size: usize,
    pub(crate) target_size: usize,
}

impl Route {
    /// Chooses the stages.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex formats, which the caller takes apart into real ones.
    // Not inlined: constants of kernels are computed here, in the environment that the caller has set.
    #[inline(never)]
    pub(crate) fn new(request: &Request, level: Level) -> Result<Self, Error> {
        if request.source == request.target && !request.scaled && request.keeps_specials() {
            return Ok(Self::empty(request, level));
        }
        Self::through_stages(request, level)
    }

    /// Makes a route without stages.
    fn empty(request: &Request, level: Level) -> Self {
        let Request { source, target, scaled, .. } = *request;
        Self {
            way: Way::Copy,
            request: *request,
            level,
            decode: None,
            lane_size: source.item_size(),
            scale: None,
            encode: None,
            flags: false,
            scaled,
            draws: false,
            stochastic: None,
            source_size: source.item_size(),
            target_size: target.item_size(),
        }
    }

    /// Chooses stages even where a copy would have the same results, because they flag NaN.
    ///
    /// # Errors
    /// As for [`Route::new`].
    pub(crate) fn through_stages(request: &Request, level: Level) -> Result<Self, Error> {
        let mut route = Self { way: Way::Direct, ..Self::empty(request, level) };
        let one = (direct::from_integers(request, level).map(|stage| (stage, Way::Direct)))
            .or_else(|| lookup::stage(request, level).map(|stage| (stage, Way::Table)))
            .or_else(|| direct::scaled_bytes(request, level).map(|stage| (stage, Way::Direct)))
            .or_else(|| lookup::scaled_stage(request, level).map(|stage| (stage, Way::Table)));
        if let Some((stage, way)) = one {
            return Ok(Self { encode: Some(stage), scaled: false, way, ..route });
        }
        let Request { source, target, .. } = *request;
        route.choose(request).ok_or(Error::Unsupported { source, target })?;
        Ok(route)
    }

    /// Fills in the stages.
    fn choose(&mut self, request: &Request) -> Option<()> {
        let Request { source, target, options, .. } = *request;
        if request.is_native() && self.go_native(request) {
            return Some(());
        }
        if request.integer_ends() && !request.scaled {
            let wraps = options.overflow != Overflow::Saturate || target.kind() == Kind::Bool;
            if wraps && !request.tells {
                self.encode = wrap::stage(source, target).map(|stage| self.in_registers(request, stage));
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

    /// Describes what happens to elements; `verbose` adds the types of the stages.
    pub(crate) fn describe(&self, verbose: bool) -> String {
        let words = self.words();
        let stages = [&self.decode, &self.scale, &self.encode].into_iter().flatten();
        let stages: Vec<_> = stages.map(|stage| stage.name()).collect();
        if !verbose || stages.is_empty() {
            return words;
        }
        let drawn = if self.stochastic.is_some() { "draws in registers; else " } else { "" };
        format!("{words} ({drawn}{})", stages.join(", then "))
    }

    fn words(&self) -> String {
        let Request { source, target, scaled, .. } = self.request;
        let target = target.name();
        let is_drawn = self.request.rounding() == Rounding::Stochastic;
        let write = match () {
            () if is_drawn => format!("round to {target} by random draws"),
            () if source.integer_range().is_some() && self.request.target.integer_range().is_some() => {
                format!("convert to {target}")
            }
            () if self.request.widens() && !scaled => format!("write as {target}, which is exact"),
            () => format!("round to {target}"),
        };
        match self.way {
            Way::Copy => "a copy".to_owned(),
            Way::Table if scaled => format!("look up the {target} of each code, times the scale, in a table"),
            Way::Table => format!("look up the {target} of each code in a table"),
            Way::Direct if scaled => format!("multiply by the scale and {write}, in one loop"),
            Way::Direct => format!("{write}, in one loop"),
            Way::Pivot(Choice::Exact) => format!("multiply by the scale exactly, and {write}"),
            Way::Pivot(choice) => {
                let pivot = match choice {
                    Choice::Narrow => "float32",
                    Choice::Wide => "float64",
                    Choice::Int64 { .. } | Choice::Exact => source.name(),
                };
                let steps = [
                    self.decode.as_ref().map(|_| format!("decode to {pivot}")),
                    scaled.then(|| "multiply by the scale".to_owned()),
                    self.encode.as_ref().map(|_| write),
                ];
                steps.into_iter().flatten().collect::<Vec<_>>().join(", then ")
            }
        }
    }

    /// Returns whether elements are copied unchanged.
    pub(crate) fn is_copy(&self) -> bool {
        self.decode.is_none() && self.encode.is_none()
    }

    /// Fills in the machine's own conversions, if the pair has any. Returns whether it has.
    fn go_native(&mut self, request: &Request) -> bool {
        let Request { source, target, options, .. } = *request;
        if target.kind() == Kind::Bool && !request.keeps_specials() {
            return false;
        }
        self.encode = native::stage(source, target, options.overflow, self.level);
        if self.encode.is_some() {
            return true;
        }
        self.encode = match source.float() {
            None => from_integer::stage(source, target).map(|stage| self.in_registers(request, stage)),
            Some(spec) if spec == pivot_spec::<Binary64>() => {
                from_float::from_float64(target, options.overflow)
                    .map(|stage| self.in_registers(request, stage))
            }
            Some(spec) if spec == pivot_spec::<Binary32>() => {
                from_float::from_float32(target, options.overflow)
            }
            Some(_) if target.kind() == Kind::Bool => wrap::truth_stage(source),
            Some(_) => None,
        };
        // Narrower floats pass through float32, which holds them exactly; to float64 where a lookup makes them float32.
        let narrow = source.float().filter(|_| source.row().bits < 32);
        if let (None, Some(_), Some(single)) = (&self.encode, narrow, pivot_format::<Binary32>()) {
            let by_lookup = lookup::stage(&Request::plain(source, single), self.level);
            let decode = match target.float() {
                None => by_lookup.or_else(|| assemble::decoder::<Binary32>(source)),
                Some(_) => by_lookup,
            };
            let encode = native::stage(single, target, options.overflow, self.level)
                .or_else(|| from_float::from_float32(target, options.overflow));
            if let (Some(decode), Some(encode)) = (decode, encode) {
                (self.decode, self.encode) = (Some(decode), Some(encode));
                self.way = Way::Pivot(Choice::Narrow);
                self.lane_size = size_of::<f32>();
            }
        }
        self.encode.is_some()
    }

    /// Makes a stage for single elements one for registers, where that is faster.
    fn in_registers(
        &self,
        &Request { source, target, .. }: &Request,
        elements: Box<dyn Stage>,
    ) -> Box<dyn Stage> {
        native::in_registers((source, target), self.level, elements)
    }

    /// Fills in the stages of the pivot route.
    fn route(&mut self, request: &Request) -> Option<()> {
        self.way = Way::Pivot(request.choice());
        match request.choice() {
            Choice::Narrow => {
                let plain = Request::plain(request.source, pivot_format::<Binary32>()?);
                self.decode = lookup::stage(&plain, self.level)
                    .or_else(|| assemble::decoder::<Binary32>(request.source));
                self.through_float::<Binary32>(request)
            }
            Choice::Wide => {
                self.decode = assemble::decoder::<Binary64>(request.source);
                self.through_float::<Binary64>(request)
            }
            Choice::Int64 { signed: true } => self.finish(request, assemble::encoder::<Int64>(request)),
            Choice::Int64 { signed: false } => self.finish(request, assemble::encoder::<Uint64>(request)),
            Choice::Exact => {
                let encode = match (request.source.row().bits, request.source.kind()) {
                    (64, Kind::Integer { signed: true }) => assemble::product_encoder::<Int64>(request),
                    (64, Kind::Integer { signed: false }) => assemble::product_encoder::<Uint64>(request),
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
        if is_pivot && !request.tells && !self.scaled && request.keeps_specials() {
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
            return Some(());
        }
        self.finish(request, assemble::encoder::<P>(request))
    }

    /// The general encoders always write flags, whether or not they are read. (Where draws are in registers, they are
    /// not.)
    fn finish(&mut self, request: &Request, encode: Option<Box<dyn Stage>>) -> Option<()> {
        self.draw(request);
        self.flags = self.stochastic.is_none();
        self.encode = Some(encode?);
        Some(())
    }

    /// Notes whether the encoder reads random numbers, and whether vectors draw them.
    fn draw(&mut self, request: &Request) {
        self.draws = request.rounding() == Rounding::Stochastic;
        if self.draws && self.lane_size == size_of::<f32>() {
            self.stochastic = stochastic_stage(request, self.level);
        }
    }

    /// Runs the stages from dense source elements to dense target elements.
    ///
    /// # Safety
    /// `count` elements are readable at the source and writable at the target; `count` is at most
    /// [`TILE`](crate::kernels::tile::TILE). Where the route reads scales or draws, as many are in `work`.
    pub(crate) unsafe fn convert(
        &self,
        (source, target): (*const u8, *mut u8),
        count: usize,
        work: &mut Work,
    ) {
        let level = self.level;
        let lanes = work.lanes.0.as_mut_ptr().cast::<u8>();
        let mut span = Span {
            source,
            target: lanes,
            count,
            scales: work.scales.0.as_ptr(),
            draws: if self.lane_size == size_of::<u64>() {
                work.wide_draws.0.as_ptr().cast()
            } else {
                work.draws.0.as_ptr().cast()
            },
            flags: work.flags.0.as_mut_ptr(),
        };
        // SAFETY: every tile has room for `count` elements of up to 8 bytes.
        unsafe {
            match (&self.decode, &self.encode) {
                (Some(decode), Some(_)) => {
                    decode.run(level, span);
                    span.source = lanes;
                }
                (Some(decode), None) => decode.run(level, Span { target, ..span }),
                (None, None) => {
                    span.source.copy_to(target, count * self.source_size);
                    work.flags.0[..count].fill(0);
                }
                (None, Some(_)) => {}
            }
            if let Some(scale) = &self.scale {
                if span.source != lanes.cast_const() {
                    span.source.copy_to_nonoverlapping(lanes, count * self.lane_size);
                    span.source = lanes;
                }
                scale.run(level, span);
            }
            if let Some(encode) = &self.encode {
                encode.run(level, Span { target, ..span });
            }
        }
    }
}
