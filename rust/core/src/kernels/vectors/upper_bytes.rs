//! Floats of 16 bits to those of 8 bits that have the same exponents: their upper bytes, rounded by the lower ones.

use super::float_source::{Bf16Source, OddBf16};
use super::shapes::f16_spec;
use super::to_byte::{Codes, boxed, rounded};
use crate::codec::odd_bf16::OddBf16Rule;
use crate::cpu::Level;
use crate::format::FloatSpec;
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::halves::SIGN;
use crate::simd::{Vector, Vectors, or_masked};

/// Codes of 8 bits that float16's upper bytes are (e5m2): the lower ones are their fraction bits.
#[derive(Clone, Copy)]
struct UpperBytes<const NEAREST_EVEN: bool> {
    rule: OddBf16Rule,
    /// Larger magnitudes are clamped to this, the code of overflows of the sign where it is larger: finite ones of the
    /// other sign are below it.
    limit: u16,
}

impl<V: Vector, const NEAREST_EVEN: bool> Codes<V> for UpperBytes<NEAREST_EVEN> {
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn codes(
        Self { rule, limit }: Self,
        [first, second]: [OddBf16<V::Integers>; 2],
        one: V::Integers,
    ) -> V::Integers {
        let sign = SIGN;
        // No `map`: the instructions of a level are not inlined into closures.
        let magnitudes = [V::and(first.cut, V::splat16(!sign)), V::and(second.cut, V::splat16(!sign))];
        let limit = V::splat16(limit);
        let fixed = [
            or_masked::<V>(V::min16(magnitudes[0], limit), first.cut, V::splat16(sign)),
            or_masked::<V>(V::min16(magnitudes[1], limit), second.cut, V::splat16(sign)),
        ];
        let infinity = f16_spec().infinity_code().unwrap_or_default() as u16;
        rounded::<V, true, NEAREST_EVEN>(&rule, magnitudes, fixed, [first.cut, second.cut], infinity, one)
    }
}

/// Makes the stage from a format of 16 bits to one of 8 with the same exponents, on levels without long tables.
pub(super) fn stage(request: &Request, source: &FloatSpec, level: Level) -> Option<Box<dyn Stage>> {
    let spec = request.target.float()?;
    let alike = FloatSpec { mantissa_bits: source.mantissa_bits.checked_sub(u8::BITS)?, ..*source };
    let rule = OddBf16Rule::new(&spec, &request.options, request.rounding()).filter(|_| spec == alike)?;
    let limit = (rule.limit[0].max(rule.limit[1]) - rule.lowest) * rule.factor - rule.offset;
    let vectors = Vectors::with_short_tables(level)?;
    Some(if rule.nearest_even {
        boxed(vectors, Bf16Source, UpperBytes::<true> { rule, limit })
    } else {
        boxed(vectors, Bf16Source, UpperBytes::<false> { rule, limit })
    })
}
