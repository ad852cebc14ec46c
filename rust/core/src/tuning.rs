//! Sizes at which one way of doing the same becomes faster than another. No result depends on them.
//!
//! A change of one is measured by `benches/cast.py`, `options.py`, `threads.py` and `unscale.py`, beside the records in
//! `benches/record/`. What a kernel alone knows stands beside it.

/// Bytes of a cache line; stores that straddle two are slower.
pub(crate) const CACHE_LINE: usize = 64;

/// Bytes that stay in the second cache of a core, beside what else is in use: what is read twice is taken in such parts.
pub(crate) const SECOND_CACHE: usize = 1 << 17;

/// Bytes, read and written, for which another thread pays.
pub(crate) const BYTES_PER_THREAD: usize = 1 << 22;

/// Bytes, read and written, from which on results that are written to a tile first bypass the caches, where they would not
/// stay.
pub(crate) const STREAM_TILES: usize = 1 << 25;

/// The same, of results that are stored as they are computed.
pub(crate) const STREAM_RESULTS: usize = 1 << 24;

/// Bytes by which long sources are fetched ahead. The machine does so too, but not far enough where few results are
/// written: at 16 Mi elements bfloat16 to `float8_e4m3fn` takes 0.6 to 0.7 of the time with it.
pub(crate) const PREFETCH: usize = 1 << 13;

/// Elements from which on an extra call, or step, pays for stores that do not straddle cache lines.
pub(crate) const ALIGNED_STORES: usize = 1 << 12;

/// Elements, up to which they are cast one by one on the portable level: in registers they would pass through memory.
pub(crate) const ONE_BY_ONE: usize = 4;

/// Elements of a small cast of arrays that are not dense, at most; less than a tile.
pub(crate) const SMALL_CAST: usize = 512;

/// Elements, below which a factor gets a plan of its own only when it occurs a second time.
pub(crate) const FACTOR_PLAN: usize = 1 << 5;

/// Elements with one factor, from which on they are worth a cast of their own.
pub(crate) const FACTOR_CAST: usize = 1 << 12;

/// Bytes of a row, from which on it is worth a call of its own in place of a copy to a tile.
pub(crate) const ROW_IN_PLACE: usize = 1024;

/// Bytes of a row, from which on a call of `memcpy` pays.
pub(crate) const ROW_COPY: usize = 512;

/// Bytes of adjacent elements, from which on they are moved together.
pub(crate) const ADJACENT: usize = 16;

/// Elements, above which transposed arrays are walked in blocks.
pub(crate) const TRANSPOSED_BLOCKS: usize = 8 * 1024;

/// Elements of a run of a block, below which single elements are faster.
pub(crate) const BLOCK_RUN: usize = 16;

/// Bytes of a result that is copied to many places, up to which several are copied at a time.
pub(crate) const SMALL_COPY: usize = 1 << 12;
