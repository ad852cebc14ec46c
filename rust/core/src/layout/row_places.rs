//! Where rows of elements lie.

#![deny(unsafe_code)]

/// Where rows of elements lie, in bytes: the first element, and from each to the next, in a row and from row to row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<P> {
    pub(super) first: P,
    pub(super) stride: isize,
    pub(super) row_stride: isize,
}
