//! A cast with its options and its factor that is planned once and run many times, on this thread, over few elements.

use std::fmt;

use crate::codec::options::Options;
use crate::cpu::Level;
use crate::error::Error;
use crate::exec::small::SmallCast;
use crate::format::Format;
use crate::plan::{Plan, PlanKey, logs_casts};

/// A cast of few dense elements in native byte order.
pub struct PlannedCast {
    plan: Held,
    /// The factor, and the seed of draws.
    given: (Option<f64>, u64),
}

enum Held {
    /// Of the level in use, and for the fewest elements.
    Shared(&'static Plan, &'static Plan),
    /// Plans with a factor are kept by few others.
    Own(Box<Plan>),
}

impl fmt::Debug for PlannedCast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedCast").field("factor", &self.given.0).finish_non_exhaustive()
    }
}

impl PlannedCast {
    /// Plans the cast, on the level in use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex to real.
    pub fn new(pair: (Format, Format), options: &Options, factor: Option<f64>) -> Result<Self, Error> {
        let key = PlanKey::new(pair, options, (factor.is_some(), factor), (false, 0));
        let shared = |level| Plan::shared(&key, level);
        let plan = match (shared(Level::active()), shared(Plan::level_for(1))) {
            (Some(plan), Some(few)) => Held::Shared(plan?, few?),
            _ => Held::Own(Box::new(Plan::new(&key, Level::active())?)),
        };
        Ok(Self { plan, given: (factor, options.seed) })
    }

    /// Casts `count` elements, unless they are many, may be refused, or the level is not in use any more;
    /// returns whether it did.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    #[inline(always)]
    pub unsafe fn convert(&self, source: *const u8, target: *mut u8, count: usize) -> bool {
        let (plan, few) = match &self.plan {
            Held::Shared(plan, few) => (*plan, *few),
            Held::Own(plan) => (&**plan, &**plan),
        };
        if plan.route.level != Level::active() || logs_casts() {
            return false;
        }
        let plan = if few.route.level == Plan::level_for(count) { few } else { plan };
        // SAFETY: the caller's promise.
        unsafe { SmallCast(plan).cast_few(source, target, count, self.given) }
    }
}
