//! The floating-point environment: rounding direction, flush-to-zero, denormals-are-zero, trapped exceptions.
//!
//! It belongs to the thread, and a host process may have changed it (`torch.set_flush_denormal`, `fesetround`,
//! libraries built with `-ffast-math`). Rust, and every kernel here, assume the default one. So it is made the
//! default around every cast, and put back.

use std::hint::black_box;
use std::marker::PhantomData;

/// Keeps this thread in the default environment until it is dropped.
#[derive(Debug)]
pub struct DefaultEnvironment {
    saved: Word,
    /// Not `Send`: it must be dropped on the thread that made it.
    here: PhantomData<*const ()>,
}

impl DefaultEnvironment {
    /// Returns whether this thread is in the default environment already.
    #[must_use]
    #[inline]
    pub fn is_in_force() -> bool {
        read() & CONTROL_MASK == DEFAULT & CONTROL_MASK
    }

    /// Saves the environment and sets the default one.
    #[must_use]
    pub fn enter() -> Self {
        let saved = read();
        if saved & CONTROL_MASK != DEFAULT & CONTROL_MASK {
            write(DEFAULT);
        }
        Self { saved, here: PhantomData }
    }

    /// Calls a function with an argument in the default environment.
    ///
    /// The compiler does not know that arithmetic depends on the environment, and may move code without memory
    /// accesses, even calls, out of the scope of [`Self::enter`]. Here it cannot: the argument is hidden from it until
    /// the environment is entered, and the result is needed before it is left.
    pub fn compute<A, R>(argument: A, function: impl FnOnce(A) -> R) -> R {
        let _environment = Self::enter();
        black_box(function(black_box(argument)))
    }
}

impl Drop for DefaultEnvironment {
    fn drop(&mut self) {
        // This also hides the kernels' exception flags from the host.
        if read() != self.saved {
            write(self.saved);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Word = u32;
    /// Round to nearest, all exceptions masked, no FTZ, no DAZ.
    pub(super) const DEFAULT: Word = 0x1f80;
    /// All but the sticky exception flags.
    pub(super) const CONTROL_MASK: Word = 0xffc0;
    /// FTZ, DAZ, round up: each alone, and together.
    #[cfg(test)]
    pub(super) const HOSTILE: [Word; 4] = [0x9f80, 0x1fc0, 0x5f80, 0xdfc0];

    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: SSE is part of x86-64; the instruction stores 4 bytes to the local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: SSE is part of x86-64; the word is a former value of the register or its default, so no reserved
        // bit is set. It restores the environment Rust assumes, or the host's on the way out, when no float code of
        // ours runs any more.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    /// FPCR below FPSR, which has the sticky exception flags.
    pub(super) type Word = u64;
    /// Round to nearest, no traps, no flushing, NaNs propagate.
    pub(super) const DEFAULT: Word = 0;
    /// All of FPCR, whose upper half is reserved.
    pub(super) const CONTROL_MASK: Word = 0xffff_ffff;
    /// FZ and FZ16, DN, AHP (float16 without infinities), round up: each alone, and together.
    #[cfg(test)]
    pub(super) const HOSTILE: [Word; 5] =
        [1 << 24 | 1 << 19, 1 << 25, 1 << 26, 1 << 22, 1 << 24 | 1 << 19 | 1 << 25 | 1 << 26 | 1 << 22];

    pub(super) fn read() -> Word {
        let (control, status): (u64, u64);
        // SAFETY: both are readable at every exception level that runs user code.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) control, out(reg) status, options(nostack, preserves_flags));
        }
        control & CONTROL_MASK | status << 32
    }

    pub(super) fn write(word: Word) {
        // SAFETY: the word has former values of the registers or their defaults.
        unsafe {
            asm!("msr fpcr, {}", "msr fpsr, {}", in(reg) word & CONTROL_MASK, in(reg) word >> 32, options(nostack));
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    /// The control register is not known here, or has no emulation: the environment is assumed to be the default one.
    pub(super) type Word = u32;
    pub(super) const DEFAULT: Word = 0;
    pub(super) const CONTROL_MASK: Word = 0;

    pub(super) fn read() -> Word {
        DEFAULT
    }

    pub(super) fn write(_word: Word) {}
}

use register::{CONTROL_MASK, DEFAULT, Word, read, write};

#[cfg(all(test, not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::register::HOSTILE;
    use super::{DEFAULT, DefaultEnvironment, black_box, read, write};

    /// Calls a function in an environment, and computes nothing else in it.
    fn within<R>(word: super::Word, function: impl FnOnce() -> R) -> R {
        write(word);
        let result = black_box(function());
        write(DEFAULT);
        result
    }

    fn third_of_a_subnormal(x: f32) -> u32 {
        (black_box(x) / black_box(3.0)).to_bits()
    }

    #[test]
    fn flags_that_are_raised_inside_are_hidden() {
        let before = read();
        let (product, inside) = DefaultEnvironment::compute(f32::MAX, |x| {
            let product = black_box(x) * black_box(2.0);
            (black_box(product), read())
        });
        assert!(product.is_infinite() && inside != before, "the multiplication overflows, and says so");
        assert_eq!(read(), before);
    }

    #[test]
    fn what_a_host_has_set_is_put_aside_and_put_back() {
        let wanted = third_of_a_subnormal(1e-40);
        for hostile in HOSTILE {
            let (in_force, inside, after) = within(hostile, || {
                let in_force = DefaultEnvironment::is_in_force();
                let inside = DefaultEnvironment::compute(1e-40, third_of_a_subnormal);
                (in_force, inside, read())
            });
            assert!(!in_force && DefaultEnvironment::is_in_force());
            assert_eq!(inside, wanted, "{hostile:#x}");
            assert_eq!(after & super::CONTROL_MASK, hostile, "as the host left it");
        }
        let all = HOSTILE[HOSTILE.len() - 1];
        assert_ne!(within(all, || third_of_a_subnormal(1e-40)), wanted, "the words are not hostile at all");
    }
}
