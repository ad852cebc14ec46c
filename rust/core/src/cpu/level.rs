//! CPU levels: named sets of instruction-set extensions. Kernels are compiled for each; one is active per process.
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
pub(crate) trait Kernel {
    /// The result of the loop.
    type Output;
    /// Runs the loop.
    fn run(self) -> Self::Output;
}

/// A [`Kernel`] with a requirement that the compiler cannot check: valid pointers, or the registers of a level.
pub(crate) trait RawKernel {
    /// The result of the loop.
    type Output;
    /// Runs the loop.
    ///
    /// # Safety
    /// The requirements of the kernel's type: its pointers are valid for as many elements as it says.
    unsafe fn run(self) -> Self::Output;
}

impl<K: Kernel> RawKernel for K {
    type Output = K::Output;

    #[inline(always)]
    unsafe fn run(self) -> K::Output {
        Kernel::run(self)
    }
}

/// The names of the levels, in ascending order, whether or not this CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum InstructionSet {
    /// The baseline of the compilation target.
    Portable,
    /// The baseline of aarch64.
    Neon,
    /// 256-bit vectors.
    Avx2,
    /// 512-bit vectors and masks.
    Avx512,
}

const ALL: [InstructionSet; InstructionSet::COUNT] =
    [InstructionSet::Portable, InstructionSet::Neon, InstructionSet::Avx2, InstructionSet::Avx512];

impl InstructionSet {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// Returns the level, if this CPU can run it.
    #[must_use]
    pub fn detect(self) -> Option<Level> {
        let is_found = match self {
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
                Self::Avx2.detect().is_some()
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
        };
        is_found.then_some(Level(self))
    }
}

/// A level that this CPU can run. Only [`InstructionSet::detect`] makes one, so holding a level proves that its kernels
/// may run.
///
/// ```
/// use castwise_core::cpu::{InstructionSet, Level};
/// assert!(Level::available().all(|level| level.set().detect() == Some(level)));
/// assert!(InstructionSet::Neon.detect().is_none() || InstructionSet::Avx2.detect().is_none());
/// ```
/// ```compile_fail
/// let level = castwise_core::cpu::Level(castwise_core::cpu::InstructionSet::Avx512);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(InstructionSet);

/// The level in use, as the number of its instruction set plus one; 0 before the first question.
static ACTIVE: AtomicU8 = AtomicU8::new(0);

impl Level {
    /// The level of every CPU.
    pub const PORTABLE: Self = Self(InstructionSet::Portable);

    /// Returns its instruction set.
    #[must_use]
    pub fn set(self) -> InstructionSet {
        self.0
    }

    /// Returns the name by which it is forced and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            InstructionSet::Portable => "portable",
            InstructionSet::Neon => "neon",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }

    /// Returns every level that this CPU can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.into_iter().filter_map(InstructionSet::detect)
    }

    /// Returns the level called `name`, if this CPU can run it.
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

    /// Returns the level in use: the best available one, unless [`Level::activate`] chose another.
    #[must_use]
    #[inline(always)]
    pub fn active() -> Self {
        match ACTIVE.load(Ordering::Relaxed) {
            0 => {
                let best = Self::available().last().unwrap_or(Self::PORTABLE);
                best.activate();
                best
            }
            // Only levels that exist are stored.
            stored => Self(ALL[usize::from(stored - 1)]),
        }
    }

    /// Makes this level the one in use.
    pub fn activate(self) {
        ACTIVE.store(self.0 as u8 + 1, Ordering::Relaxed);
    }

    /// Runs a kernel compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a safe kernel has no requirements.
        unsafe { self.run_raw(kernel) }
    }

    /// Runs a kernel over raw pointers compiled for this level.
    ///
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    #[inline]
    pub(crate) unsafe fn run_raw<K: RawKernel>(self, kernel: K) -> K::Output {
        // SAFETY: a level exists only on a machine that has its features; the rest is the caller's promise.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => <K as Owner<K>>::avx512(kernel),
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => <K as Owner<K>>::avx2(kernel),
                // Told to the compiler, which else would compile kernels for fused multiply-add where there is none.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Neon => std::hint::unreachable_unchecked(),
                _ => run_portable(kernel),
            }
        }
    }

    /// Returns the functions of a kernel, by the numbers of the levels that they are compiled for; each needs the features of
    /// its level, and what the kernel's [`RawKernel::run`] needs.
    pub(crate) fn functions<O: Owner<K>, K: RawKernel>() -> [unsafe fn(K) -> K::Output; InstructionSet::COUNT]
    {
        let portable: unsafe fn(K) -> K::Output = O::portable;
        #[cfg(target_arch = "x86_64")]
        return [portable, portable, O::avx2, O::avx512];
        #[cfg(not(target_arch = "x86_64"))]
        return [portable; InstructionSet::COUNT];
    }

    /// Runs a safe kernel that computes with vectors of 256 bits, compiled for these at most.
    #[inline]
    pub(crate) fn run_narrow<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a safe kernel has no requirements.
        unsafe { self.run_moves(kernel) }
    }

    /// Runs a kernel compiled for 256-bit vectors at most: one that only moves bytes, which wider vectors move no faster, or
    /// one that computes with vectors of 256 bits, by [`Level::run_narrow`].
    ///
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    #[inline]
    pub(crate) unsafe fn run_moves<K: RawKernel>(self, kernel: K) -> K::Output {
        // SAFETY: as for `run_raw`; AVX-512 has the features of AVX2.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 | InstructionSet::Avx2 => <K as Owner<K>>::avx2(kernel),
                _ => run_portable(kernel),
            }
        }
    }
}

/// Runs a kernel compiled for every CPU.
///
/// # Safety
/// As for the kernel's [`RawKernel::run`].
#[inline(always)]
pub(crate) unsafe fn run_portable<K: RawKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { <K as Owner<K>>::portable(kernel) }
}

/// The functions of a kernel, one for each level. An incremental build compiles methods of a trait with the module of the type
/// that has them, the owner: so a changed kernel does not compile all others again, as with plain functions of this module.
///
/// They are not inlined, so that no floating-point operation can move out of a caller's [`super::DefaultEnvironment`].
pub(crate) trait Owner<K: RawKernel> {
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    #[inline(never)]
    unsafe fn portable(kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run() }
    }

    /// # Safety
    /// The features, and as for the kernel's [`RawKernel::run`].
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt")]
    unsafe fn avx2(kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run() }
    }

    /// # Safety
    /// As for [`Owner::avx2`].
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(
        enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512ifma,avx512vl,avx512vbmi"
    )]
    unsafe fn avx512(kernel: K) -> K::Output {
        // SAFETY: the caller's promise.
        unsafe { kernel.run() }
    }
}

impl<O, K: RawKernel> Owner<K> for O {}
