//! The streaming engine of checkpoints for Python, which decides names and formats only.

use std::fs::File;
use std::ops::Range;
use std::{io, iter};

use castwise_core::cast::{self, Settings};
use castwise_core::format::Kind;
use castwise_core::parse::find;
use castwise_logic::checkpoint::{self, Elements, Failure, Items, Job, Rearranging, Scratch, Tuning};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyEOFError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::cast_options::CastOptions;
use crate::error::to_python;
use crate::keywords::Keywords;
use crate::names::unknown_format;
use crate::report::CastReport;
use crate::runtime::parse_threads;

/// A cast of the elements of one tensor as they stand in files.
#[pyclass(frozen, module = "castwise._core")]
#[derive(Debug)]
pub(crate) struct ElementCast {
    core: checkpoint::ElementCast,
}

#[pymethods]
impl ElementCast {
    /// Make a cast from one format to another.
    ///
    /// `source_packed` and `target_packed` say that elements share bytes, `source_order` is "<" or ">". The options are
    /// those of `cast`; without `report` nothing is counted.
    #[new]
    #[pyo3(
        signature = (source, target, **options),
        text_signature = "(source, target, *, source_packed=False, target_packed=False, source_order='<', \
                          target_order='<', rounding=None, overflow='ieee', nan='keep', seed=None, report=False)"
    )]
    fn new(
        py: Python<'_>,
        source: &str,
        target: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let keywords = Keywords::new(py, "ElementCast", options)?;
        let [rounding, overflow, nan, seed] = ["rounding", "overflow", "nan", "seed"]
            .map(|name| keywords.read::<Option<Bound<'_, PyAny>>>(name, None));
        let (rounding, overflow, nan, seed) = (rounding?, overflow?, nan?, seed?);
        let options = CastOptions {
            rounding: rounding.as_ref().map(Bound::as_borrowed),
            overflow: overflow.as_ref().map(Bound::as_borrowed),
            nan: nan.as_ref().map(Bound::as_borrowed),
            seed: seed.as_ref().map(Bound::as_borrowed),
        };
        let options = options.parse(py)?;
        let packed = (keywords.read("source_packed", false)?, keywords.read("target_packed", false)?);
        let orders: [String; 2] =
            [keywords.read("source_order", "<".to_owned())?, keywords.read("target_order", "<".to_owned())?];
        let report = keywords.read("report", false)?;
        keywords.finish()?;
        let source = elements("source", source, packed.0, &orders[0])?;
        let target = elements("target", target, packed.1, &orders[1])?;
        let settings = Settings { options, report, threads: 1 };
        let is_complex = |side: &Elements| matches!(side.format.kind(), Kind::Complex { .. });
        if is_complex(&source) && !is_complex(&target) {
            let error = castwise_core::Error::Unsupported { source: source.format, target: target.format };
            return Err(to_python(error));
        }
        Ok(Self { core: checkpoint::ElementCast { source, target, settings } })
    }

    /// Cast a piece of a tensor, whose first element has the flat index `first`.
    ///
    /// Returns the bytes to write and the report, None without one.
    fn convert<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        data: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, Option<CastReport>)> {
        let mut result = vec![0; self.core.target.bytes(self.core.source.count(data.len())) as usize];
        let outcome = py.detach(|| self.core.convert(first, data, &mut result, &mut Scratch::default()));
        let report = outcome.map_err(to_python)?;
        Ok((PyBytes::new(py, &result), report.map(CastReport::new)))
    }
}

fn elements(argument: &str, name: &str, packed: bool, order: &str) -> PyResult<Elements> {
    let format = find(name).ok_or_else(|| unknown_format(argument, name))?;
    let packed_bits = matches!(format.row().bits, 4 | 6) && format.kind() != Kind::Bool;
    if packed && !packed_bits {
        return Err(PyValueError::new_err(format!("elements of {format:?} do not share bytes.")));
    }
    let swapped = match order {
        "<" => cfg!(target_endian = "big"),
        ">" => cfg!(target_endian = "little"),
        _ => {
            return Err(PyValueError::new_err(format!("order={order:?} is not valid; use \"<\" or \">\".")));
        }
    };
    Ok(Elements { format, packed, swapped })
}

/// The reports of all tensors, or the position of the one that failed, "read", "cast" or "write", and why: an errno, None
/// where the file ends early, or an exception.
type Outcome = (Vec<Option<CastReport>>, Option<(usize, &'static str, Option<i32>, Option<PyErr>)>);

/// Jobs are taken from Python so many at a time, then twice as many: workers are soon busy, and Python is soon done even
/// where its other threads have to be waited for each time.
const JOBS_AT_ONCE: Range<usize> = 64..4096;

/// Convert the tensors of one open file into another, in pieces, several at a time.
///
/// `source` and `target` are descriptors (handles, on Windows). A job is the offset of a tensor in the source, its
/// offset in the target, the range of its elements (bytes, if they are copied) as first, a multiple of 1,024, and number,
/// and an `ElementCast` or None. The first jobs are under way while later ones are made. `poll` is called now and then,
/// between pieces, with the number of bytes taken so far; what it or the iterator of jobs raises ends the run, and so does
/// a signal's handler.
#[pyfunction]
#[pyo3(signature = (source, target, jobs, threads=None, poll=None))]
pub(crate) fn convert_tensors(
    py: Python<'_>,
    source: isize,
    target: isize,
    jobs: &Bound<'_, PyAny>,
    threads: Option<&Bound<'_, PyAny>>,
    poll: Option<&Bound<'_, PyAny>>,
) -> PyResult<Outcome> {
    let jobs = jobs.try_iter()?.unbind();
    let threads = threads.map_or_else(|| Ok(cast::num_threads()), parse_threads)?;
    let (source, target) = (opened(source, false)?, opened(target, true)?);
    let poll = poll.map(|poll| poll.clone().unbind());
    let mut at_once = JOBS_AT_ONCE.start;
    let batches = iter::from_fn(|| {
        let batch =
            Python::attach(|py| jobs.bind(py).clone().take(at_once).map(job).collect::<PyResult<Vec<_>>>());
        at_once = (2 * at_once).min(JOBS_AT_ONCE.end);
        batch.map(|jobs| (!jobs.is_empty()).then_some(jobs)).transpose()
    });
    let outcome = py.detach(|| {
        checkpoint::convert_tensors(&source, &target, batches, Tuning::of(threads), |taken| {
            Python::attach(|py| {
                py.check_signals()?;
                poll.as_ref().map_or(Ok(()), |poll| poll.call1(py, (taken,)).map(|_| ()))
            })
        })
    });
    let failure = match outcome? {
        Ok(reports) => {
            return Ok((reports.into_iter().map(|one| one.map(CastReport::from)).collect(), None));
        }
        Err(Failure::Read(job, error)) => (job, "read", errno(&error), None),
        Err(Failure::Write(job, error)) => (job, "write", errno(&error), None),
        Err(Failure::Cast(job, error)) => (job, "cast", None, Some(to_python(error))),
    };
    Ok((Vec::new(), Some(failure)))
}

fn job(given: PyResult<Bound<'_, PyAny>>) -> PyResult<Job> {
    let (source, target, (first, count), cast): (u64, u64, (u64, u64), Option<PyRef<'_, ElementCast>>) =
        given?.extract()?;
    Ok(Job { source, target, first, count, cast: cast.map(|cast| cast.core) })
}

/// The number of every system for a failure of a device.
const EIO: i32 = 5;

/// An open file under a descriptor of its own: what a thread still writes when another has closed the file goes nowhere
/// else.
#[pyclass(frozen, module = "castwise._core")]
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
}

#[pymethods]
impl OpenFile {
    /// Duplicate a descriptor (a handle, on Windows).
    #[new]
    fn new(descriptor: isize) -> PyResult<Self> {
        Ok(Self { file: opened(descriptor, true)? })
    }

    /// Write bytes at an offset, as threads may at the same time. What lies before is on its way to the disk then.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let data = PyBuffer::<u8>::get(data)?;
        if !data.is_c_contiguous() {
            return Err(PyValueError::new_err("data is not contiguous; give a copy of it in C order."));
        }
        if data.len_bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the buffer is contiguous and not empty, and its owner keeps the memory as long as the buffer is held; the
        // caller lets nobody write to it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), data.len_bytes()) };
        let written = py.detach(|| checkpoint::write_at(&self.file, bytes, offset));
        written.map_err(|error| os_error(py, &error))
    }
}

/// Makes the exception for an error of the system.
fn os_error(py: Python<'_>, error: &io::Error) -> PyErr {
    let Some(number) = errno(error) else {
        let is_full = error.kind() == io::ErrorKind::WriteZero;
        let text = if is_full { "no more can be written".to_owned() } else { error.to_string() };
        return PyOSError::new_err((EIO, text));
    };
    // Windows has numbers beside those of `errno`, and texts for them.
    let (module, function) = if cfg!(windows) { ("ctypes", "FormatError") } else { ("os", "strerror") };
    match py.import(module).and_then(|module| module.call_method1(function, (number,))) {
        Ok(text) if cfg!(windows) => PyOSError::new_err((py.None(), text.unbind(), py.None(), number)),
        Ok(text) => PyOSError::new_err((number, text.unbind())),
        Err(error) => error,
    }
}

/// Copy the items of a tensor to where they stand in another file, by other strides.
///
/// `source` is a descriptor (a handle, on Windows), the byte at which the first item begins, and the bytes from item to
/// item along each axis; `target` is a descriptor and strides, of which no two items overlap; `items` are the bytes of one
/// and their number along each axis. Blocks of about `block_bytes` are read and written. Raises `EOFError` if the source
/// ends early.
#[pyfunction]
pub(crate) fn rearrange_items(
    py: Python<'_>,
    source: (isize, u64, Vec<usize>),
    target: (isize, Vec<usize>),
    items: (usize, Vec<usize>),
    block_bytes: usize,
) -> PyResult<()> {
    let ((from, begin, from_strides), (to, to_strides), (item, shape)) = (source, target, items);
    if item == 0 || from_strides.len() != shape.len() || to_strides.len() != shape.len() {
        return Err(PyValueError::new_err("an item has bytes, and there is a stride for each axis."));
    }
    let (from, to) = (opened(from, false)?, opened(to, true)?);
    let from = Items { file: &from, begin, strides: &from_strides };
    let to = Items { file: &to, begin: 0, strides: &to_strides };
    let poll = || {
        Python::attach(|py| {
            py.check_signals()?;
            Ok(())
        })
    };
    match py.detach(|| checkpoint::rearrange(&shape, item, from, to, block_bytes, poll)) {
        Ok(()) => Ok(()),
        Err(Rearranging::Stopped(error)) => Err(error),
        Err(Rearranging::Read(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(PyEOFError::new_err(()))
        }
        Err(Rearranging::Read(error) | Rearranging::Write(error)) => Err(os_error(py, &error)),
    }
}

/// Returns the system's number for an error; `None` where a file ends early.
fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// Duplicates the descriptor of an open file, so that it is closed on its own.
#[cfg(unix)]
fn opened(descriptor: isize, _writes: bool) -> PyResult<File> {
    use std::os::fd::BorrowedFd;
    if descriptor < 0 {
        return Err(PyValueError::new_err("a descriptor is not negative."));
    }
    // SAFETY: the caller keeps the descriptor open for the length of the call; a wrong one gives an error at its first
    // use, which is the duplication here.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor as i32) };
    Ok(borrowed.try_clone_to_owned()?.into())
}

/// Opens an open file again, to read or to write, so that it is closed on its own and has its own position.
#[cfg(windows)]
fn opened(handle: isize, writes: bool) -> PyResult<File> {
    use std::os::windows::io::BorrowedHandle;
    // SAFETY: the caller keeps the handle open for the length of the call; a wrong one gives an error at its first use,
    // which is here.
    let borrowed = unsafe { BorrowedHandle::borrow_raw(handle as *mut _) };
    Ok(checkpoint::reopened(borrowed, writes)?)
}
