//! IEEE half precision times a factor, by the machine's own conversions.
//!
//! | operation | AVX2 + F16C | AVX-512 | latency, ports on Zen 4 / Ice Lake |
//! |---|---|---|---|
//! | halves to singles | `vcvtph2ps ymm, xmm` | `vcvtph2ps zmm, ymm` | 4 to 6, 1 per cycle / 6 to 7, 1 |
//! | singles to halves | `vcvtps2ph xmm, ymm` | `vcvtps2ph ymm, zmm` | 4 to 6, 1 per cycle / 6 to 8, 1 |
//!
//! Both ignore the host's flush-to-zero for halves, and keep the payload of a NaN, which [`super::fused`] clears.

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64 as arch;
    use std::marker::PhantomData;

    use super::super::gradient_loop::Loop;
    use crate::codec::pivot::{Binary32, FloatPivot};
    use crate::cpu::{Kernel, Level};

    /// What a level does with a few halves at once.
    ///
    /// # Safety
    /// Every operation needs the level's features; loads and stores need `LANES` elements at the pointer.
    trait Halves: Send + Sync + 'static {
        const LANES: usize;
        type Singles: Copy;
        type Words: Copy;
        unsafe fn splat(value: f32) -> Self::Singles;
        unsafe fn zero() -> Self::Words;
        unsafe fn load(source: *const u16) -> Self::Singles;
        unsafe fn times(a: Self::Singles, b: Self::Singles) -> Self::Singles;
        /// The larger of `most` and the magnitude, as bits.
        unsafe fn largest(most: Self::Words, a: Self::Singles) -> Self::Words;
        unsafe fn store_halves(target: *mut u16, a: Self::Singles);
        unsafe fn store_singles(target: *mut f32, a: Self::Singles);
        unsafe fn reduce(most: Self::Words) -> u32;
    }

    const SIGN: i32 = Binary32::SIGN as i32;

    pub(super) struct Avx2;

    // Each operation is a few instructions of the level, in an unsafe function whose contract is the trait's.
    impl Halves for Avx2 {
        const LANES: usize = 8;
        type Singles = arch::__m256;
        type Words = arch::__m256i;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self::Singles {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn zero() -> Self::Words {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm256_setzero_si256() }
        }
        #[inline(always)]
        unsafe fn load(source: *const u16) -> Self::Singles {
            // SAFETY: the trait's contract; the load is an unaligned one.
            unsafe { arch::_mm256_cvtph_ps(arch::_mm_loadu_si128(source.cast())) }
        }
        #[inline(always)]
        unsafe fn times(a: Self::Singles, b: Self::Singles) -> Self::Singles {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn largest(most: Self::Words, a: Self::Singles) -> Self::Words {
            // SAFETY: the trait's contract.
            unsafe {
                let bits = arch::_mm256_castps_si256(a);
                arch::_mm256_max_epu32(most, arch::_mm256_and_si256(bits, arch::_mm256_set1_epi32(!SIGN)))
            }
        }
        #[inline(always)]
        unsafe fn store_halves(target: *mut u16, a: Self::Singles) {
            // SAFETY: the trait's contract; the store is an unaligned one.
            unsafe {
                let codes = arch::_mm256_cvtps_ph::<{ arch::_MM_FROUND_TO_NEAREST_INT }>(a);
                arch::_mm_storeu_si128(target.cast(), codes);
            }
        }
        #[inline(always)]
        unsafe fn store_singles(target: *mut f32, a: Self::Singles) {
            // SAFETY: the trait's contract; the store is an unaligned one.
            unsafe { arch::_mm256_storeu_ps(target, a) }
        }
        #[inline(always)]
        unsafe fn reduce(most: Self::Words) -> u32 {
            let mut words = [0u32; 8];
            // SAFETY: the trait's contract; the store is an unaligned one to as many words.
            unsafe { arch::_mm256_storeu_si256(words.as_mut_ptr().cast(), most) };
            words.into_iter().fold(0, u32::max)
        }
    }

    pub(super) struct Avx512;

    impl Halves for Avx512 {
        const LANES: usize = 16;
        type Singles = arch::__m512;
        type Words = arch::__m512i;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self::Singles {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn zero() -> Self::Words {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm512_setzero_si512() }
        }
        #[inline(always)]
        unsafe fn load(source: *const u16) -> Self::Singles {
            // SAFETY: the trait's contract; the load is an unaligned one.
            unsafe { arch::_mm512_cvtph_ps(arch::_mm256_loadu_si256(source.cast())) }
        }
        #[inline(always)]
        unsafe fn times(a: Self::Singles, b: Self::Singles) -> Self::Singles {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn largest(most: Self::Words, a: Self::Singles) -> Self::Words {
            // SAFETY: the trait's contract.
            unsafe {
                let bits = arch::_mm512_castps_si512(a);
                arch::_mm512_max_epu32(most, arch::_mm512_and_si512(bits, arch::_mm512_set1_epi32(!SIGN)))
            }
        }
        #[inline(always)]
        unsafe fn store_halves(target: *mut u16, a: Self::Singles) {
            // SAFETY: the trait's contract; the store is an unaligned one.
            unsafe {
                let codes = arch::_mm512_cvtps_ph::<{ arch::_MM_FROUND_TO_NEAREST_INT }>(a);
                arch::_mm256_storeu_si256(target.cast(), codes);
            }
        }
        #[inline(always)]
        unsafe fn store_singles(target: *mut f32, a: Self::Singles) {
            // SAFETY: the trait's contract; the store is an unaligned one.
            unsafe { arch::_mm512_storeu_ps(target, a) }
        }
        #[inline(always)]
        unsafe fn reduce(most: Self::Words) -> u32 {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm512_reduce_max_epu32(most) }
        }
    }

    /// The loop of a level, to singles or back to halves.
    pub(super) struct Half<H, const SINGLE: bool> {
        pub(super) factor: f32,
        pub(super) vectors: PhantomData<H>,
    }

    struct HalfLoop<H> {
        factor: f32,
        source: *const u16,
        target: *mut u8,
        count: usize,
        vectors: PhantomData<H>,
    }

    struct ToHalves<H>(HalfLoop<H>);
    struct ToSingles<H>(HalfLoop<H>);

    impl<H: Halves> HalfLoop<H> {
        /// # Safety
        /// The level's features, and `count` elements at each pointer.
        #[inline(always)]
        unsafe fn run<T: Copy + Default>(self, store: impl Fn(*mut T, H::Singles)) -> u32 {
            let Self { factor, source, target, count, .. } = self;
            let target = target.cast::<T>();
            let whole = count - count % H::LANES;
            // SAFETY: the caller's promise for what is below `count`; the rest goes through arrays of 16 elements.
            unsafe {
                let factor = H::splat(factor);
                let mut most = H::zero();
                for i in (0..whole).step_by(H::LANES) {
                    let product = H::times(H::load(source.add(i)), factor);
                    most = H::largest(most, product);
                    store(target.add(i), product);
                }
                if whole < count {
                    let (mut codes, mut results) = ([0u16; 16], [T::default(); 16]);
                    let bytes = codes.as_mut_ptr().cast::<u8>();
                    source.add(whole).cast::<u8>().copy_to_nonoverlapping(bytes, 2 * (count - whole));
                    let product = H::times(H::load(codes.as_ptr()), factor);
                    most = H::largest(most, product);
                    store(results.as_mut_ptr(), product);
                    let bytes = (count - whole) * size_of::<T>();
                    results.as_ptr().cast::<u8>().copy_to_nonoverlapping(target.add(whole).cast(), bytes);
                }
                H::reduce(most)
            }
        }
    }

    impl<H: Halves> Kernel for ToHalves<H> {
        type Output = u32;

        #[inline(always)]
        fn run(self) -> u32 {
            // SAFETY: `Half` is only made for its level, and run by `Level::run` of it; its caller vouches for the
            // pointers, and the loop stores within them.
            unsafe { self.0.run(|target: *mut u16, singles| H::store_halves(target, singles)) }
        }
    }

    impl<H: Halves> Kernel for ToSingles<H> {
        type Output = u32;

        #[inline(always)]
        fn run(self) -> u32 {
            // SAFETY: as above.
            unsafe { self.0.run(|target: *mut f32, singles| H::store_singles(target, singles)) }
        }
    }

    impl<H: Halves, const SINGLE: bool> Loop for Half<H, SINGLE> {
        unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> u32 {
            let (factor, vectors) = (self.factor, PhantomData::<H>);
            let span = HalfLoop { factor, source: source.cast(), target, count, vectors };
            if SINGLE { level.run(ToSingles(span)) } else { level.run(ToHalves(span)) }
        }
    }
}

use super::gradient_loop::Loop;
use crate::cpu::Level;
use crate::format::{FloatSpec, Specials};

/// The loop from halves to singles or halves, if the level has one.
pub(super) fn stage(source: &FloatSpec, single: bool, factor: f32, level: Level) -> Option<Box<dyn Loop>> {
    let FloatSpec { signed, exponent_bits, mantissa_bits, bias, specials } = *source;
    let is_half = signed && (exponent_bits, mantissa_bits, bias, specials) == (5, 10, 15, Specials::Ieee);
    #[cfg(target_arch = "x86_64")]
    if is_half && level.is_available() {
        use std::marker::PhantomData;

        use x86::{Avx2, Avx512, Half};
        return match (level, single) {
            (Level::Avx512, true) => Some(Box::new(Half::<Avx512, true> { factor, vectors: PhantomData })),
            (Level::Avx512, false) => Some(Box::new(Half::<Avx512, false> { factor, vectors: PhantomData })),
            (Level::Avx2, true) => Some(Box::new(Half::<Avx2, true> { factor, vectors: PhantomData })),
            (Level::Avx2, false) => Some(Box::new(Half::<Avx2, false> { factor, vectors: PhantomData })),
            _ => None,
        };
    }
    let _ = (is_half, single, factor, level);
    None
}
