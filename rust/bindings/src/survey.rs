//! Surveys of arrays for Python.

use castwise_core::cast::num_threads;
use castwise_core::format::Kind;
use castwise_core::survey::{self as core, BlockRow, BlockTable, Blocks, Cell, FewMagnitudes};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{Array, array_of, shown};
use crate::error::to_python;
use crate::numpy::PyUntypedArray;
use crate::runtime::{bytes_of_items, parse_threads, release};

/// Elements of a binade: its number, their count and the sum of their squares. Signed, as what is read may be negative.
type SavedCell = (i64, i128, i128);

/// Blocks with alike maxima: their eighth, how many, and their elements by depth.
type SavedRow = (i16, i128, Vec<SavedCell>);

/// Everything that a survey counted.
type State =
    ([i128; 4], [f64; 2], Vec<SavedCell>, Vec<(u8, i128)>, Option<Vec<(f64, i128)>>, Vec<Vec<SavedRow>>);

/// Zeros, infinities and NaN of an array, its largest and its smallest magnitude, and how many elements have each exponent.
type Magnitudes<'py> = (u64, u64, u64, f64, f64, Bound<'py, PyDict>);

type Column<'py> = Bound<'py, PyUntypedArray>;

/// What a survey counted of an array. Tables add up in any order.
#[pyclass(frozen, eq, module = "castwise._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SurveyTables {
    core: core::Survey,
}

#[pymethods]
impl SurveyTables {
    /// Elements.
    #[getter]
    fn count(&self) -> u64 {
        self.core.count
    }

    /// Zeros of both signs.
    #[getter]
    fn zeros(&self) -> u64 {
        self.core.magnitudes.zeros
    }

    /// Infinities of both signs.
    #[getter]
    fn infinities(&self) -> u64 {
        self.core.magnitudes.infinities
    }

    /// NaN.
    #[getter]
    fn nans(&self) -> u64 {
        self.core.magnitudes.nans
    }

    /// The largest finite magnitude; 0 without.
    #[getter]
    fn largest(&self) -> f64 {
        self.core.magnitudes.largest
    }

    /// The smallest magnitude that is not zero; 0 without.
    #[getter]
    fn smallest(&self) -> f64 {
        self.core.magnitudes.smallest
    }

    /// Finite elements, not zero, by how many bits their significands need.
    #[getter]
    fn significant_bits(&self) -> Vec<(u8, u64)> {
        self.core.significant_bits.iter().map(|(&bits, &count)| (bits, count)).collect()
    }

    /// Finite elements, not zero, by magnitude, the lowest first; None if there are more than 128 different ones.
    #[getter]
    fn values(&self) -> Option<Vec<(f64, u64)>> {
        self.core.few.counts()
    }

    /// Finite elements, not zero, by binade: exponents, counts, and sums of squares in units of four to the exponent.
    fn binade_columns<'py>(&self, py: Python<'py>) -> PyResult<(Column<'py>, Column<'py>, Column<'py>)> {
        let binades = &self.core.magnitudes.binades;
        let exponents: Vec<_> = binades.keys().map(|&exponent| i64::from(exponent)).collect();
        let counts: Vec<_> = binades.values().map(|cell| cell.count).collect();
        let squares: Vec<_> = binades.values().map(Cell::sum_of_squares).collect();
        Ok((array_of(py, &exponents)?, array_of(py, &counts)?, array_of(py, &squares)?))
    }

    /// Blocks of a shape by the eighth of a binade of their maxima: eighths and how many, and for each of them and each
    /// binade below the maximum's the count of elements and the sum of their squares in units of four to its exponent.
    fn block_columns<'py>(
        &self,
        py: Python<'py>,
        shape: (usize, usize),
    ) -> PyResult<(Column<'py>, Column<'py>, Column<'py>, Column<'py>)> {
        let Some(blocks) = Blocks::ALL.into_iter().find(|blocks| blocks.shape() == shape) else {
            let shapes = Blocks::ALL.map(|blocks| format!("{:?}", blocks.shape())).join(", ");
            return Err(PyValueError::new_err(format!(
                "shape={shape:?} is not surveyed; use one of {shapes}."
            )));
        };
        let rows = &self.core.blocks[blocks as usize].rows;
        let eighths: Vec<_> = rows.keys().map(|&eighth| i64::from(eighth)).collect();
        let numbers: Vec<_> = rows.values().map(|row| row.blocks).collect();
        let cells = || rows.values().flat_map(|row| &row.cells);
        let counts: Vec<_> = cells().map(|cell| cell.count).collect();
        let squares: Vec<_> = cells().map(Cell::sum_of_squares).collect();
        Ok((
            array_of(py, &eighths)?,
            array_of(py, &numbers)?,
            array_of(py, &counts)?,
            array_of(py, &squares)?,
        ))
    }

    /// Everything, as plain numbers; restore_survey() takes it.
    fn state(&self) -> State {
        let core::Survey { count, ref magnitudes, .. } = self.core;
        let core::Magnitudes { zeros, infinities, nans, largest, smallest, ref binades, .. } = *magnitudes;
        let saved = |number: i64, cell: &Cell| (number, cell.count.into(), cell.squares as i128);
        let row = |eighth: i16, row: &BlockRow| {
            let cells = (0..).zip(&row.cells).filter(|(_, cell)| cell.count > 0);
            (eighth, row.blocks.into(), cells.map(|(depth, cell)| saved(depth, cell)).collect())
        };
        let binades = binades.iter().map(|(&exponent, cell)| saved(exponent.into(), cell));
        let rows =
            |table: &BlockTable| table.rows.iter().map(|(&eighth, blocks)| row(eighth, blocks)).collect();
        let tables = self.core.blocks.iter().map(rows);
        let magnitudes = [largest, smallest];
        let counts = [count, zeros, infinities, nans].map(i128::from);
        let significant_bits = self.core.significant_bits.iter().map(|(&bits, &count)| (bits, count.into()));
        let few = self.core.few.counts();
        let values = few.map(|few| few.into_iter().map(|(value, count)| (value, count.into())).collect());
        (counts, magnitudes, binades.collect(), significant_bits.collect(), values, tables.collect())
    }

    fn __add__(&self, other: &Bound<'_, Self>) -> Self {
        let mut sum = self.core.clone();
        sum += &other.get().core;
        Self { core: sum }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (State,))> {
        Ok((py.import("castwise._core")?.getattr("restore_survey")?, (self.state(),)))
    }
}

/// Add tables up.
#[pyfunction]
pub(crate) fn sum_surveys(parts: &Bound<'_, PyAny>) -> PyResult<SurveyTables> {
    let mut sum = core::Survey::default();
    for part in parts.try_iter()? {
        sum += &part?.cast::<SurveyTables>()?.get().core;
    }
    Ok(SurveyTables { core: sum })
}

/// What `SurveyTables.state` took apart, put together again; a number that does not agree with the others is named.
#[pyfunction]
pub(crate) fn restore_survey(state: State) -> PyResult<SurveyTables> {
    let (counts, [largest, smallest], binades, significant_bits, values, tables) = state;
    let mut numbers = [0; 4];
    for ((number, count), name) in
        numbers.iter_mut().zip(counts).zip(["elements", "zeros", "infinities", "NaN"])
    {
        *number = natural(count, &|| format!("counts has {count} {name}"))?;
    }
    let mut core = core::Survey::default();
    let magnitudes = &mut core.magnitudes;
    [core.count, magnitudes.zeros, magnitudes.infinities, magnitudes.nans] = numbers;
    (magnitudes.largest, magnitudes.smallest) = (largest, smallest);
    for (exponent, count, squares) in binades {
        let place = || format!("binades has ({exponent}, {count}, {squares})");
        *core.magnitudes.binades.entry(natural(exponent, &place)?) = restored_cell(count, squares, &place)?;
    }
    for (bits, count) in significant_bits {
        let place = || format!("significant_bits has ({bits}, {count})");
        *core.significant_bits.entry(bits) = natural(count, &place)?;
    }
    let value = |(value, count): (f64, i128)| {
        Ok((value, natural(count, &|| format!("values has ({value:?}, {count})"))?))
    };
    let values = values.map(|values| values.into_iter().map(value).collect::<PyResult<Vec<(f64, u64)>>>());
    core.few = FewMagnitudes::new(values.transpose()?);
    if tables.len() != core.blocks.len() {
        let message = format!("blocks has {} tables instead of {}", tables.len(), core.blocks.len());
        return Err(PyValueError::new_err(message));
    }
    for (table, rows) in core.blocks.iter_mut().zip(tables) {
        for (eighth, blocks, cells) in rows {
            let place = || format!("blocks has {blocks} with maxima in the eighth {eighth}");
            let mut row = Box::new(BlockRow { blocks: natural(blocks, &place)?, ..BlockRow::default() });
            for (depth, count, squares) in cells {
                let place = || format!("blocks, eighth {eighth}, has ({depth}, {count}, {squares})");
                let cell = row.cells.get_mut(natural::<usize>(depth, &place)?);
                *cell.ok_or_else(|| out_of_range(&place))? = restored_cell(count, squares, &place)?;
            }
            *table.rows.entry(eighth) = row;
        }
    }
    core::check(&core).map_err(to_python)?;
    Ok(SurveyTables { core })
}

/// A saved number in its type; the place says where one beyond it stands.
fn natural<T: TryFrom<i128>>(number: impl Into<i128>, place: &dyn Fn() -> String) -> PyResult<T> {
    T::try_from(number.into()).map_err(|_| out_of_range(place))
}

#[inline(never)]
fn out_of_range(place: &dyn Fn() -> String) -> PyErr {
    PyValueError::new_err(format!("{}, which is out of range", place()))
}

#[inline(never)]
fn restored_cell(count: i128, squares: i128, place: &dyn Fn() -> String) -> PyResult<Cell> {
    Ok(Cell { count: natural(count, place)?, squares: natural(squares, place)? })
}

/// Count where the magnitudes of an array lie.
#[pyfunction]
#[pyo3(signature = (x, *, threads=None))]
pub(crate) fn survey_array(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<SurveyTables> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let x = real_array(x)?;
    let (shape, place) = (x.shape(), x.place());
    let call = move || {
        // SAFETY: numpy vouched for the memory (see `crate::array`), and the caller keeps the array alive.
        unsafe { core::survey(shape, place.source(), threads) }
    };
    Ok(SurveyTables { core: release(py, x.bytes(), call) })
}

/// Find the magnitudes of each row of a matrix.
#[pyfunction]
pub(crate) fn survey_rows<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Vec<Magnitudes<'py>>> {
    let x = real_array(x)?;
    let Ok(shape) = <[usize; 2]>::try_from(x.shape()) else {
        return Err(PyValueError::new_err(format!("x has shape {}; give a matrix.", shown(x.shape()))));
    };
    let place = x.place();
    // SAFETY: as for `survey_array`.
    let call = move || unsafe { core::magnitudes(shape, place.source()) };
    let rows =
        release(py, bytes_of_items(x.bytes(), shape[0]), call).map_err(to_python)?.into_iter().map(|row| {
            let exponents = PyDict::new(py);
            for (exponent, count) in row.binades() {
                exponents.set_item(exponent, count)?;
            }
            Ok((row.zeros, row.infinities, row.nans, row.largest, row.smallest, exponents))
        });
    rows.collect()
}

/// Reads an array of real numbers.
fn real_array<'py>(x: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let x = Array::from_argument("x", x)?;
    if matches!(x.format.kind(), Kind::Complex { .. }) {
        return Err(PyTypeError::new_err(format!(
            "x has dtype {}; survey its real and imaginary parts: x.view(x.real.dtype).",
            x.format.name()
        )));
    }
    Ok(x)
}
