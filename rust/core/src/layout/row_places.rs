//! The places of rows of elements.

#![deny(unsafe_code)]

/// The places of rows of elements: the first element, and the strides in bytes within a row and from row to row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<P> {
    pub(super) first: P,
    pub(super) stride: isize,
    pub(super) row_stride: isize,
}
