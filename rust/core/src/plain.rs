//! Types that memory of a host may be read as.

/// A type of which any bits are a value.
///
/// # Safety
/// They are, and there is no padding among them.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: so are the machine's numbers, and arrays of them.
        unsafe impl Plain for $type {}
    )*};
}
plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 f32 f64 [u64; 2] [u64; 4]);
