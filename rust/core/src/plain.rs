//! Types as which memory of a host may be read.

/// A type for which all bits are valid values.
///
/// # Safety
/// All bit patterns are valid, and there is no padding.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: true of the machine's numbers, and of arrays of them.
        unsafe impl Plain for $type {}
    )*};
}
plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 f32 f64 [u64; 2] [u64; 4]);
