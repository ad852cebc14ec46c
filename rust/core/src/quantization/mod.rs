//! Block-scaled and packed weights: schemes, decoding, encoding.
//!
//! * `scheme`, `recipe`: the tables, `steps`: what recipes compute; `element`: what codes mean; `scale_rule`: powers of two
//!   as scales; `rounded`: dtypes that producers compute in.
//! * `decode`, `encode`: packed codes and scales to floats, and back, tile by tile.
//! * `stored`: a stored weight beside a plain one.
//! * `block_types`: blocks of bytes of llama.cpp, which scales of few bits share with codes.
//! * `lookup`: codes to 16-bit results by tables in registers.
//! * `packing`, `codes`, `swizzle`: orders of codes and of scales.
//! * `rows`, `work`: arrays as rows, and the items that passes go over; `transposed`: those whose rows are not dense.
//! * `real`, `arithmetic`, `scaled`, `ends`, `largest`, `nearest`: tiles of floats, what blocks have, and codes.

mod arithmetic;
mod block_types;
mod codes;
mod decode;
mod element;
mod encode;
mod ends;
mod largest;
mod lookup;
mod nearest;
mod packing;
mod real;
mod recipe;
mod rounded;
mod rows;
mod scale_rule;
mod scaled;
mod scheme;
mod steps;
mod stored;
mod swizzle;
mod transposed;
mod work;

pub use block_types::{
    BLOCK_TYPES, BlockRequest, BlockType, decode_block_type, encode_block_type, find_block_type,
};
pub use codes::{Direction, repack};
pub use decode::{BlockDecoder, Decoding, GlobalUse, Meaning, decode};
pub use element::Element;
pub use encode::{BlockEncoder, Encoded, Encoding, ScaleChoice, block_amax, encode};
pub use packing::Packing;
pub use recipe::{Family, global_scale};
pub use rows::Array;
pub use scale_rule::ScaleRule;
pub use scheme::{ScaleFormat, Scheme, TABLE};
pub use stored::{StoredComparison, compare_stored, report_stored};
pub use swizzle::swizzle;
