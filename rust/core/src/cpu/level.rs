//! CPU levels: a few named clusters of instruction sets. One is chosen per process; kernels are compiled for each.
//!
//! | level | needs | as in |
//! |---|---|---|
//! | `portable` | the target's baseline | any CPU |
//! | `neon` | aarch64's baseline | any arm64 |
//! | `avx2` | AVX2, FMA, F16C, BMI1/2, LZCNT | Haswell 2013, Zen 2017 |
//! | `avx512` | those, POPCNT, AVX-512 F/BW/CD/DQ/IFMA/VL/VBMI | Ice Lake 2019, Zen 4 2022 |

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::Error;

/// A loop that is compiled once per level.
///
/// `run` is `#[inline(always)]` in every implementation, so that it becomes part of the function that carries the
/// level's features.
pub trait Kernel {
    /// What the loop leaves.
    type Output;
    /// The loop.
    fn run(self) -> Self::Output;
}

/// A cluster of instruction sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// The baseline of the compilation target.
    Portable,
    /// The baseline of aarch64.
    Neon,
    /// 256-bit vectors.
    Avx2,
    /// 512-bit vectors and masks.
    Avx512,
}

const ALL: [Level; Level::COUNT] = [Level::Portable, Level::Neon, Level::Avx2, Level::Avx512];

/// The level in use, plus one; 0 before the first question.
static ACTIVE: AtomicU8 = AtomicU8::new(0);

impl Level {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// The name by which it is forced and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this CPU can run it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("lzcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("popcnt")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512cd")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512ifma")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Every level this CPU can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.into_iter().filter(|level| level.is_available())
    }

    /// The level called `name`, if this CPU can run it.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing the levels that it can run.
    pub fn parse(name: &str) -> Result<Self, Error> {
        Self::available().find(|level| level.name() == name).ok_or_else(|| Error::UnknownOption {
            argument: "cpu level",
            value: format!("{name:?}"),
            valid: Self::available().map(Self::name).collect(),
        })
    }

    /// The level in use: the best available one, unless [`Level::activate`] chose another.
    #[must_use]
    pub fn active() -> Self {
        match ACTIVE.load(Ordering::Relaxed) {
            0 => {
                let best = Self::available().last().unwrap_or(Self::Portable);
                best.activate();
                best
            }
            stored => ALL[usize::from(stored - 1)],
        }
    }

    /// Makes this level the one in use. One that is not available runs as the portable one.
    pub fn activate(self) {
        ACTIVE.store(self as u8 + 1, Ordering::Relaxed);
    }

    /// Runs a kernel compiled for this level.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        if self >= Self::Avx2 && self.is_available() {
            // SAFETY: `is_available` has just found the features that the two functions are compiled for (the
            // detection is one load of a cached word).
            return unsafe { if self == Self::Avx512 { run_avx512(kernel) } else { run_avx2(kernel) } };
        }
        run_portable(kernel)
    }
}

/// Not inlined, as its siblings are not, so that no floating-point operation can move out of a caller's
/// [`super::DefaultEnvironment`].
#[inline(never)]
pub(crate) fn run_portable<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt")]
pub(crate) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(
    enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512ifma,avx512vl,avx512vbmi"
)]
pub(crate) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
