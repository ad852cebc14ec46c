//! Tiles: as many elements as stay in the innermost cache.

/// Elements per tile: few enough for all their scratch memory to stay in the innermost cache.
pub(crate) const TILE: usize = 1024;

/// Aligned to a cache line, so that vectors never straddle two.
#[repr(align(64))]
pub(crate) struct Tile<T, const COUNT: usize = TILE>(pub(crate) [T; COUNT]);

impl<T: Copy + Default, const COUNT: usize> Default for Box<Tile<T, COUNT>> {
    /// Fills memory of the heap, not of the stack, of which a thread of the caller's may have 128 KiB (those of musl do).
    fn default() -> Self {
        let mut tile = Self::new_uninit();
        let first = tile.as_mut_ptr().cast::<T>();
        // SAFETY: the memory has room for `COUNT` elements, which are all that a tile is made of.
        unsafe {
            for index in 0..COUNT {
                first.add(index).write(T::default());
            }
            tile.assume_init()
        }
    }
}
