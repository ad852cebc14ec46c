//! Plans: everything that is decided about a cast before an element is read, once for each pair of formats, level and
//! set of options.

pub(crate) mod operands;
pub(crate) mod refusal_check;

use std::cell::RefCell;
use std::io::{Write, stderr};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cached_once::CachedOnce;
use crate::codec::options::{Named, NanRule, Options, Overflow, Rounding};
use crate::cpu::{DefaultEnvironment, InstructionSet, Level};
use crate::error::Error;
use crate::format::{Format, Specials};
use crate::kernels::request::{Count, Request};
use crate::layout::Layout;
use crate::plan::operands::Parts;
use crate::plan::refusal_check::RefusalCheck;
use crate::report::collector::Collector;
use crate::route::Route;
use crate::tuning::{FACTOR_PLAN, ONE_BY_ONE};

/// What a plan depends on, and is cached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanKey {
    pub(crate) source: Format,
    pub(crate) target: Format,
    /// The seed is 0: plans do not depend on it.
    options: Options,
    report: bool,
    scale: Scale,
}

/// What elements are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    No,
    /// A factor for each element, or one that is not worth a plan of its own.
    Each,
    /// The bits of the one factor, and the class of the number of elements.
    One(u64, Count),
}

impl PlanKey {
    /// Makes the key for `count` elements; `factor` is the one for all, if they are scaled and there is one.
    pub(crate) fn new(
        (source, target): (Format, Format),
        options: &Options,
        (scaled, factor): (bool, Option<f64>),
        (report, count): (bool, usize),
    ) -> Self {
        let scale = match factor {
            _ if !scaled => Scale::No,
            Some(factor) => Scale::One(factor.to_bits(), Count::of(count)),
            None => Scale::Each,
        };
        Self { source, target, options: Options { seed: 0, ..*options }, report, scale }
    }

    /// Makes the key of a plain cast.
    pub(crate) fn plain(source: Format, target: Format) -> Self {
        Self::new((source, target), &Options::default(), (false, None), (false, 0))
    }

    /// Makes the request for the route, which gives every element a result.
    fn request(&self, parts: &Parts) -> Request {
        let Options { rounding, overflow, nan, seed } = self.options;
        let overflow = if overflow == Overflow::Raise { Overflow::Ieee } else { overflow };
        let nan = if nan == NanRule::Raise { NanRule::Keep } else { nan };
        let (factor, count) = match self.scale {
            Scale::One(bits, count) => (Some(f64::from_bits(bits)), count),
            _ => (None, Count::Few),
        };
        Request {
            source: parts.source,
            target: parts.target,
            options: Options { rounding, overflow, nan, seed },
            scaled: self.scale != Scale::No,
            factor,
            tells: false,
            count,
        }
    }

    /// Returns the number of its options among all variants; `None` with one factor.
    #[inline(always)]
    fn variant(&self) -> Option<usize> {
        let scaled = match self.scale {
            Scale::No => 0,
            Scale::Each => 1,
            Scale::One(..) => return None,
        };
        let rounding = self.options.rounding.map_or(0, |rounding| 1 + rounding as usize);
        let digits = [
            (rounding, 1 + Rounding::COUNT),
            (self.options.overflow as usize, Overflow::COUNT),
            (self.options.nan as usize, NanRule::COUNT),
            (usize::from(self.report), 2),
            (scaled, 2),
        ];
        Some(digits.into_iter().fold(0, |number, (digit, base)| number * base + digit))
    }
}

/// How many numbers [`PlanKey::variant`] returns.
const VARIANTS: usize = (1 + Rounding::COUNT) * Overflow::COUNT * NanRule::COUNT * 2 * 2;

/// The plans of a pair of formats on a level.
type Variants = CachedOnce<Plan, VARIANTS>;

static PLANS: CachedOnce<Variants, { InstructionSet::COUNT * Format::COUNT * Format::COUNT }> =
    CachedOnce::new();

/// The last plans with a factor that a thread has made, with their keys.
#[derive(Default)]
struct RecentPlans {
    plans: [Option<(PlanKey, Rc<Plan>)>; 4],
    /// Where the next one goes.
    next: usize,
    /// The last key of a small cast that got no plan of its own.
    seen: Option<PlanKey>,
}

impl RecentPlans {
    #[inline]
    fn get(&self, key: &PlanKey, level: Level) -> Option<&Rc<Plan>> {
        let is_it = |known: &&(PlanKey, Rc<Plan>)| known.0 == *key && known.1.route.level == level;
        self.plans.iter().flatten().find(is_it).map(|(_, plan)| plan)
    }
}

thread_local! {
    static RECENT: RefCell<RecentPlans> = RefCell::default();
}

/// Whether plans are written to the standard error as they are found.
static LOG: AtomicBool = AtomicBool::new(false);

/// Starts or stops writing the plan of each cast to the standard error, as [`crate::cast::explain`] describes it with
/// types, on
/// one line.
pub fn log_casts(on: bool) {
    LOG.store(on, Ordering::Relaxed);
}

/// Returns whether plans are written.
#[inline]
pub(crate) fn logs_casts() -> bool {
    LOG.load(Ordering::Relaxed)
}

#[cold]
fn log(found: Result<&Plan, &Error>) {
    if let Ok(plan) = found {
        // A closed standard error is ignored.
        let _ = writeln!(stderr(), "castwise: {}", plan.describe(true).replace('\n', "; "));
    }
}

/// A plan.
pub(crate) struct Plan {
    pub(crate) parts: Parts,
    /// From sources to results.
    pub(crate) route: Route,
    /// How refused elements are found.
    pub(crate) refusal_check: Option<RefusalCheck>,
    /// How losses are found, for a report.
    pub(crate) collector: Option<Collector>,
}

/// A plan that is kept for good, or a recent one with a factor.
pub(crate) enum PlanRef {
    Cached(&'static Plan),
    Recent(Rc<Plan>),
}

impl Deref for PlanRef {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        match self {
            Self::Cached(plan) => plan,
            Self::Recent(plan) => plan,
        }
    }
}

impl Plan {
    /// Finds or makes the plan of a key, for `count` elements, on the level in use, or for few on the one with the same
    /// results that is quicker.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex to real; [`Error::NoZero`] for NaN as zero in a format without zero.
    // A call, whose result goes through memory, takes a twentieth of a small cast.
    #[inline(always)]
    pub(crate) fn find(key: &PlanKey, count: usize) -> Result<PlanRef, Error> {
        let found = match key.variant() {
            Some(variant) => Self::cached(key, variant, Self::level_for(count)).map(PlanRef::Cached),
            None => Self::recent(key, count < FACTOR_PLAN),
        };
        if logs_casts() {
            log(found.as_deref());
        }
        found
    }

    /// Calls a function with the plan that [`Plan::find`] gives.
    ///
    /// # Errors
    /// As for [`Plan::find`].
    #[inline]
    pub(crate) fn with<T>(key: &PlanKey, count: usize, call: impl Fn(&Self) -> T) -> Result<T, Error> {
        // Without an owner of the plan, whose move would take as long as a small cast's loop.
        match key.variant() {
            _ if logs_casts() => {}
            Some(variant) => return Self::cached(key, variant, Self::level_for(count)).map(call),
            None => {
                let level = Level::active();
                let call = |recent: &RecentPlans| recent.get(key, level).map(|plan| call(plan));
                if let Some(result) = RECENT.with_borrow(call) {
                    return Ok(result);
                }
            }
        }
        Self::find(key, count).map(|plan| call(&plan))
    }

    /// Finds or makes the plan of a plain cast on the level in use.
    ///
    /// # Errors
    /// As for [`Plan::find`].
    #[inline]
    pub(crate) fn plain(source: Format, target: Format) -> Result<&'static Self, Error> {
        let found = Self::cached(&PlanKey::plain(source, target), 0, Level::active());
        if logs_casts() {
            log(found.as_deref());
        }
        found
    }

    /// Finds or makes a plan that is kept for good; `None` for keys with one factor.
    pub(crate) fn shared(key: &PlanKey, level: Level) -> Option<Result<&'static Self, Error>> {
        key.variant().map(|variant| Self::cached(key, variant, level))
    }

    /// Returns the level on which `count` elements are cast soonest, without factors.
    #[inline(always)]
    pub(crate) fn level_for(count: usize) -> Level {
        if count <= ONE_BY_ONE { Level::PORTABLE } else { Level::active() }
    }

    #[inline(always)]
    fn cached(key: &PlanKey, variant: usize, level: Level) -> Result<&'static Self, Error> {
        let place =
            (level.set() as usize * Format::COUNT + key.source.index()) * Format::COUNT + key.target.index();
        let known = PLANS.get(place).and_then(|plans| plans.get(variant));
        known.map_or_else(|| Self::make_cached(key, level, (place, variant)), Ok)
    }

    #[cold]
    fn make_cached(
        key: &PlanKey,
        level: Level,
        (place, variant): (usize, usize),
    ) -> Result<&'static Self, Error> {
        let plan = Self::new(key, level)?;
        let plans = PLANS.get(place).unwrap_or_else(|| PLANS.store(place, Variants::new()));
        Ok(plans.store(variant, plan))
    }

    /// Finds or makes the plan for one factor; for few elements, returns the plan for any factors until the factor
    /// occurs a second time.
    #[inline(never)]
    fn recent(key: &PlanKey, is_small: bool) -> Result<PlanRef, Error> {
        let level = Level::active();
        RECENT.with_borrow_mut(|recent| {
            if let Some(plan) = recent.get(key, level) {
                return Ok(PlanRef::Recent(Rc::clone(plan)));
            }
            let RecentPlans { plans, next, seen } = recent;
            if is_small && seen.replace(*key) != Some(*key) {
                let each = PlanKey { scale: Scale::Each, ..*key };
                return Self::cached(&each, each.variant().unwrap_or_default(), level).map(PlanRef::Cached);
            }
            let plan = Rc::new(Self::new(key, level)?);
            plans[*next] = Some((*key, Rc::clone(&plan)));
            *next = (*next + 1) % plans.len();
            Ok(PlanRef::Recent(plan))
        })
    }

    /// Describes the plan, a line for each part; `verbose` adds the types of loops.
    pub(crate) fn describe(&self, verbose: bool) -> String {
        let Self { parts, route, refusal_check, collector } = self;
        let level = route.level.name();
        let complex = |part| Format::all().find(|format| format.component() == Some(part)).unwrap_or(part);
        let source = if parts.components == 2 { complex(parts.source) } else { parts.source };
        let is_complex = parts.components == 2 || parts.real_to_complex;
        let target = if is_complex { complex(parts.target) } else { parts.target };
        let mut lines = vec![format!("{} -> {} on {level}", source.name(), target.name())];
        if parts.components == 2 {
            let (source, target) = (parts.source.name(), parts.target.name());
            lines.push(format!("each of the two parts of complex numbers: {source} -> {target}"));
        }
        if parts.real_to_complex {
            lines.push("imaginary parts of +0".to_owned());
        }
        lines.push(format!("route: {}", route.describe(verbose)));
        if let Some(refusal_check) = refusal_check {
            let look = if refusal_check.safe.is_some() {
                "a look at the codes; where that is not enough, "
            } else {
                ""
            };
            lines.push(format!(
                "refuses: {look}a flag for each element: {}",
                refusal_check.close.describe(verbose)
            ));
        }
        if let Some(collector) = collector {
            lines.push(format!("reports: {}", collector.describe(verbose)));
        }
        lines.join("\n")
    }

    /// Makes the plan.
    ///
    /// # Errors
    /// As for [`Plan::find`].
    pub(crate) fn new(key: &PlanKey, level: Level) -> Result<Self, Error> {
        DefaultEnvironment::compute((key, level), |(key, level)| {
            let parts = Parts::of(key.source, key.target)?;
            require_zero(parts.target, key.options.nan)?;
            let request = key.request(&parts);
            let refusal_check = RefusalCheck::new(&request, &key.options, level)?;
            let collector = if key.report { Some(Collector::new(&request, level)?) } else { None };
            let tells = collector.as_ref().is_some_and(Collector::needs_flags);
            let route = Route::new(&Request { tells, ..request }, level)?;
            Ok(Self { parts, route, refusal_check, collector })
        })
    }

    /// Returns whether the cast is unscaled, without report and draws.
    pub(crate) fn is_simple(&self) -> bool {
        let Route { scaled, draws, .. } = self.route;
        self.collector.is_none() && !scaled && !draws
    }

    /// Returns the bytes of a source element.
    pub(crate) fn source_size(&self) -> usize {
        self.parts.source.item_size() * self.parts.components
    }

    /// Returns the bytes of a target element.
    pub(crate) fn target_size(&self) -> usize {
        let parts = if self.parts.real_to_complex { 2 } else { self.parts.components };
        self.parts.target.item_size() * parts
    }

    /// Returns the layout of dense elements.
    pub(crate) fn dense(&self, count: usize) -> Layout {
        let components = self.parts.components;
        let [from, to] = [self.source_size(), self.target_size()].map(|size| size / components);
        Layout::dense(count * components, from, to)
    }
}

/// Refuses to make zeros of NaN in a format without zero.
fn require_zero(target: Format, nan: NanRule) -> Result<(), Error> {
    let has_zero = target.float().is_none_or(|spec| spec.specials != Specials::ExponentOnly);
    if nan != NanRule::Zero || has_zero {
        return Ok(());
    }
    Err(Error::NoZero { target })
}
