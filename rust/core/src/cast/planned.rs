//! A cast with its options and its factor that is planned once and run many times, on this thread, over few elements.

use std::fmt;

use crate::codec::options::Options;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Format;
use crate::plan::{Plan, PlanKey, logs_casts};

/// A cast of few dense elements in native byte order.
pub struct PlannedCast {
    plan: Held,
    /// The factor, and the seed of draws.
    given: (Option<f64>, u64),
}

/// Plans with a factor are kept by few others.
enum Held {
    Shared(&'static Plan),
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
        let plan = match Plan::shared(&key) {
            Some(plan) => Held::Shared(plan?),
            None => Held::Own(Box::new(Plan::new(&key, Level::active())?)),
        };
        Ok(Self { plan, given: (factor, options.seed) })
    }

    /// Casts `count` elements, unless they are many, may be refused, or the level is not in use any more;
    /// returns whether it did.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    #[inline]
    pub unsafe fn run(&self, source: *const u8, target: *mut u8, count: usize) -> bool {
        let plan = match &self.plan {
            Held::Shared(plan) => plan,
            Held::Own(plan) => &**plan,
        };
        // SAFETY: the caller's promise.
        plan.route.level == Level::active()
            && !logs_casts()
            && unsafe { plan.cast_few(source, target, count, self.given) }
    }
}
