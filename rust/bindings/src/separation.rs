//! Separates gradients and their targets: repeated ones are worked on once, and nothing is written before it is read.

use std::collections::HashMap;
use std::hash::Hash;

use castwise_core::layout::region::{Region, may_share};
use castwise_core::sort_few::sort_triples;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::array::Array;

/// Which elements an array has, and how they are stored.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Elements {
    region: Region,
    format: usize,
    swapped: bool,
}

impl Elements {
    pub(crate) fn of(array: &Array<'_>) -> Self {
        Self { region: array.region(), format: array.format.index(), swapped: array.swapped }
    }
}

/// Groups leaves that are the same, to be worked on once.
pub(crate) struct Same {
    /// For each leaf its place among the distinct ones.
    pub(crate) leaves: Vec<usize>,
    /// For each distinct one, the first leaf that it is.
    firsts: Vec<usize>,
}

impl Same {
    pub(crate) fn of<Key: Eq + Hash>(keys: impl ExactSizeIterator<Item = Key>) -> Self {
        let mut known = HashMap::with_capacity(keys.len());
        let (mut leaves, mut firsts) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        for (leaf, key) in keys.enumerate() {
            leaves.push(*known.entry(key).or_insert_with(|| {
                firsts.push(leaf);
                firsts.len() - 1
            }));
        }
        Self { leaves, firsts }
    }

    /// Returns the values of the distinct leaves.
    pub(crate) fn chosen<Value>(&self, values: Vec<Value>) -> Vec<Value> {
        let mut firsts = self.firsts.iter().peekable();
        let is_first = |(leaf, _): &(usize, Value)| firsts.next_if(|&first| first == leaf).is_some();
        values.into_iter().enumerate().filter(is_first).map(|(_, value)| value).collect()
    }
}

/// Refuses targets that share memory.
pub(crate) fn refuse_shared(
    path: impl Fn(usize) -> String,
    same: &Same,
    sources: &[Array<'_>],
    targets: &[Array<'_>],
) -> PyResult<()> {
    let regions: Vec<_> = targets.iter().map(Array::region).collect();
    for group in may_share(&regions) {
        for (place, &one) in group.iter().enumerate() {
            for &other in &group[..place] {
                if share_memory(&targets[one], &targets[other])? {
                    let (first, second) = (one.min(other), one.max(other));
                    let in_place = [one, other].map(|index| targets[index].coincides_with(&sources[index]));
                    let (argument, fault) = if in_place == [true; 2] {
                        (
                            "grads",
                            "overlap, so in place some elements would be divided twice; give one of the two, or copies",
                        )
                    } else {
                        (
                            "out",
                            "share memory, so one would be written over the other; give arrays of their own",
                        )
                    };
                    return Err(PyValueError::new_err(format!(
                        "{argument} at '{}' and at '{}' {fault}.",
                        path(same.firsts[first]),
                        path(same.firsts[second])
                    )));
                }
            }
        }
    }
    Ok(())
}

fn share_memory(one: &Array<'_>, other: &Array<'_>) -> PyResult<bool> {
    static SHARES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let shares = SHARES.import(one.object.py(), "numpy", "shares_memory")?;
    shares.call1((&one.object, &other.object))?.is_truthy()
}

/// Copies sources that would be written before they are read. Targets share nothing with each other; so a source that
/// coincides with its own target shares nothing with the others.
pub(crate) fn copy_written(sources: &mut [Array<'_>], targets: &[Array<'_>]) -> PyResult<()> {
    let extents = targets.iter().map(Array::extent).filter(|(low, high)| low < high);
    let mut written: Vec<_> = extents.map(|(low, high)| (low, high, 0)).collect();
    sort_triples(&mut written);
    // For each extent, the furthest end so far.
    let mut ends: Vec<usize> = Vec::with_capacity(written.len());
    for &(_, high, _) in &written {
        ends.push(ends.last().map_or(high, |&end| end.max(high)));
    }
    for (source, target) in sources.iter_mut().zip(targets) {
        let (low, high) = source.extent();
        let before = written.partition_point(|&(start, ..)| start < high);
        let meets = low < high && before > 0 && ends[before - 1] > low;
        if meets && !target.coincides_with(source) {
            *source = source.copy()?;
        }
    }
    Ok(())
}
