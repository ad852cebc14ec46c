//! Rust types whose memory holds the codes of a format.

#![allow(unsafe_code, reason = "says which bits are a value of a type")]

use crate::format::Format;

/// A type whose memory holds one code of a format.
///
/// # Safety
/// The type has the size of the format's elements and no padding. All codes of the format are valid values of the type.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The format of the codes.
    const FORMAT: Format;
}

macro_rules! elements {
    ($($type:ty: $format:ident,)*) => {$(
        // SAFETY: a number of the format's size, as is asserted below, of which all codes are values (of `bool`, 0 and 1).
        unsafe impl Element for $type {
            const FORMAT: Format = Format::$format;
        }

        const _: () = assert!(size_of::<$type>() == Format::$format.item_size());
    )*};
}
elements! {
    bool: BOOL, i8: INT8, i16: INT16, i32: INT32, i64: INT64, u8: UINT8, u16: UINT16, u32: UINT32, u64: UINT64,
    f32: FLOAT32, f64: FLOAT64, [f32; 2]: COMPLEX64, [f64; 2]: COMPLEX128,
}

macro_rules! codes {
    ($($name:ident($bits:ty): $format:ident$(, $text:literal)?;)*) => {$(
        #[doc = concat!("A code of [`Format::", stringify!($format), "`]", $(", ", $text,)? ". Two are equal if their bits are.")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The bits.
            pub $bits,
        );

        // SAFETY: an integer of the format's size, of which all bits are valid.
        unsafe impl Element for $name {
            const FORMAT: Format = Format::$format;
        }

        const _: () = assert!(size_of::<$name>() == Format::$format.item_size());
    )*};
}
codes! {
    F16(u16): FLOAT16;
    Bf16(u16): BFLOAT16;
    F8E3M4(u8): FLOAT8_E3M4;
    F8E4M3(u8): FLOAT8_E4M3, "which has infinities and a maximum of 240";
    F8E4M3Fn(u8): FLOAT8_E4M3FN, "which has no infinity and a maximum of 448";
    F8E4M3Fnuz(u8): FLOAT8_E4M3FNUZ;
    F8E4M3B11Fnuz(u8): FLOAT8_E4M3B11FNUZ;
    F8E5M2(u8): FLOAT8_E5M2;
    F8E5M2Fnuz(u8): FLOAT8_E5M2FNUZ;
    F8E8M0Fnu(u8): FLOAT8_E8M0FNU, "the scales of OCP MX";
    F8E5M3Fnu(u8): FLOAT8_E5M3FNU;
    F6E2M3Fn(u8): FLOAT6_E2M3FN, "in the low bits of a byte";
    F6E3M2Fn(u8): FLOAT6_E3M2FN, "in the low bits of a byte";
    F4E2M1Fn(u8): FLOAT4_E2M1FN, "in the low bits of a byte";
}

#[cfg(feature = "half")]
elements! { half::f16: FLOAT16, half::bf16: BFLOAT16, }

#[cfg(feature = "float8")]
elements! { float8::F8E4M3: FLOAT8_E4M3FN, float8::F8E5M2: FLOAT8_E5M2, }

/// Returns the codes of elements, as bytes.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the trait's contract says that there is no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Returns the codes of elements, as bytes that may be replaced by other codes of the format.
///
/// # Safety
/// The caller writes codes of the format only.
pub(crate) unsafe fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: the trait's contract says that there is no padding, and the caller promises that values stay valid.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}
