//! How pairs of formats are compared.

#![deny(unsafe_code)]

use crate::format::{FloatSpec, Format};

/// The format in which the components of two arrays are compared.
pub(super) struct Common {
    /// The formats of the components of both arrays.
    pub(super) components: [Format; 2],
    /// How many components an element has in each array.
    pub(super) parts: [usize; 2],
    /// The codes that are compared.
    pub(super) codes: Codes,
    /// The layout of these codes, if they are real floats.
    pub(super) float: Option<FloatSpec>,
}

/// The codes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// Those of the arrays, which have the same format.
    Same,
    /// Those of float32, which holds both.
    Single,
    /// Those of float64.
    Double,
}

impl Common {
    pub(super) fn of(first: Format, second: Format) -> Self {
        let components = [first, second].map(|format| format.component().unwrap_or(format));
        let parts = [first, second].map(|format| if format.component().is_some() { 2 } else { 1 });
        let [Some(double), Some(single)] = ["float64", "float32"].map(|name| Format::named(name)?.float())
        else {
            unreachable!("the table has both")
        };
        let floats = components.map(Format::float);
        let (codes, float) = match floats {
            _ if components[0] == components[1] => (Codes::Same, floats[0]),
            [Some(one), Some(other)] if one.fits_in(&single) && other.fits_in(&single) => {
                (Codes::Single, Some(single))
            }
            [Some(_), Some(_)] => (Codes::Double, Some(double)),
            _ => (Codes::Double, None),
        };
        Self { components, parts, codes, float: float.filter(|_| parts == [1, 1]) }
    }

    /// Returns whether elements are pairs of components.
    pub(super) fn is_complex(&self) -> bool {
        self.parts != [1, 1]
    }
}
