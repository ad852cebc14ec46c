//! The map from paths to Python objects. The lock is never held while Python code runs.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use castwise_core::codec::options::Named;
use castwise_core::spelling;
use castwise_logic::policy_map::{Classes, Engine, Key, Matching, Overlap, Pattern, PolicyMap};
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyRecursionError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use crate::error::to_python;

/// A value, and what is found out about its key later.
struct Held {
    value: Py<PyAny>,
    late: Arc<Late>,
}

/// Matchers of a key that most maps never need.
struct Late {
    /// The key as `re` compiled it, if only `re` can match it: to find out whether it is valid, or for the first path.
    compiled: PyOnceLock<Py<PyAny>>,
    /// The key as a matcher for all paths, made when the usual matcher cannot judge one.
    wide: OnceLock<Pattern>,
}

/// An ordered map from keys to objects, looked up by exact key, then by regular expression.
///
/// Safe to use and change from several threads at once; every call sees the map as it was at one moment.
#[pyclass(name = "PolicyMap", module = "castwise._core", frozen)]
pub(crate) struct PyPolicyMap {
    map: Mutex<PolicyMap<Held>>,
    /// The same keys and values, changed together with the map, while its lock is held: most paths are keys, and finding
    /// one takes a third of the time of a call of `lookup`.
    #[pyo3(get)]
    exact: Py<PyDict>,
    matching: Matching,
    overlap: Overlap,
    /// Whether keys must be such that no path needs `re`, which may take exponential time.
    linear: bool,
}

/// Keys and values.
type Items = Vec<(String, Py<PyAny>)>;

/// Class, arguments and state, for pickles.
type Reduced<'py> = (Bound<'py, PyAny>, (&'static str, &'static str), Items);

/// A key that matches, with its value: what is left of a lookup when the lock is given back.
struct Match {
    key: String,
    value: Py<PyAny>,
}

impl PyPolicyMap {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, PolicyMap<Held>>> {
        self.map.lock_py_attached(py).map_err(|_| {
            PyValueError::new_err("the map was left half changed by an earlier error; make a new one.")
        })
    }

    /// Makes what is held for a key; `ValueError` with the position if it is not a regular expression.
    fn hold(py: Python<'_>, key: &str, pattern: &Pattern, value: Py<PyAny>) -> PyResult<Held> {
        let late = Late { compiled: PyOnceLock::new(), wide: OnceLock::new() };
        let held = Held { value, late: Arc::new(late) };
        if !pattern.is_valid() {
            held.late.compiled.get_or_try_init(py, || Self::compile(py, key))?;
        }
        Ok(held)
    }

    /// Compiles a key by `re`.
    fn compile(py: Python<'_>, key: &str) -> PyResult<Py<PyAny>> {
        let re = py.import(intern!(py, "re"))?;
        match re.call_method1(intern!(py, "compile"), (key,)) {
            Ok(compiled) => Ok(compiled.unbind()),
            Err(error) if error.is_instance(py, &re.getattr(intern!(py, "error"))?) => {
                let value = error.value(py);
                let position: Option<usize> = value.getattr("pos")?.extract()?;
                let reason = format!("{} at position {}", value.getattr("msg")?, position.unwrap_or(0));
                Err(invalid(py, key, &reason)?)
            }
            // Python cannot compile some valid expressions.
            Err(error)
                if error.is_instance_of::<PyOverflowError>(py)
                    || error.is_instance_of::<PyRecursionError>(py) =>
            {
                Err(too_large(py, key, &error.value(py).to_string())?)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a key at the end, unless it is there; returns its value, and what was refused.
    fn add(&self, key: &Bound<'_, PyString>, value: Py<PyAny>) -> PyResult<(Py<PyAny>, Option<Held>)> {
        let (py, text) = (key.py(), &*key_text(key)?);
        // A str of a class of its own may run code when it is compared.
        let plain = if key.is_exact_instance_of::<PyString>() { key } else { &PyString::new(py, text) };
        let translated = named_characters(py, text)?;
        let mut pattern = Pattern::new(&translated, self.matching);
        let held = Self::hold(py, text, &pattern, value.clone_ref(py))?;
        if self.linear {
            pattern.prepare();
            if pattern.engine() == Engine::Python {
                return Err(match Self::compile(py, text) {
                    Ok(_) => not_linear(py, text)?,
                    Err(error) => error,
                });
            }
        }
        let mut map = self.lock(py)?;
        if let Err(refused) = map.insert(text, pattern, held) {
            let found = map.get(text).map_or(value, |held| held.value.clone_ref(py));
            drop(map); // before `refused`, whose objects may run code when they go
            return Ok((found, Some(refused)));
        }
        if let Err(error) = self.exact.bind(py).set_item(plain, &value) {
            let removed = map.remove(text);
            drop(map);
            drop(removed);
            return Err(error);
        }
        Ok((value, None))
    }

    /// The exact key and the others that match, in the order of insertion.
    fn matches(&self, path: &Bound<'_, PyString>, all: bool) -> PyResult<(Option<Match>, Vec<Match>)> {
        let py = path.py();
        let held =
            |key: &Key<Held>| Match { key: key.text.to_string(), value: key.value.value.clone_ref(py) };
        let undecided = |key: &Key<Held>| match key.engine() {
            Engine::Python => Undecided::Compiled(Arc::clone(&key.value.late)),
            _ => Undecided::Wide(Arc::clone(&key.value.late)),
        };
        let (exact, judged) = {
            let mut map = self.lock(py)?;
            match path.to_cow() {
                Ok(text) => {
                    let found = map.find(&text, all);
                    let judged = found.matches.iter().map(|&(key, sure)| (held(key), sure, undecided(key)));
                    (found.exact.map(held), judged.collect::<SmallVec<[_; 2]>>())
                }
                // Half a surrogate pair: no key is such a text, and only Python can look for a match.
                Err(_) => (None, map.keys().map(|key| (held(key), false, undecided(key))).collect()),
            }
        };
        let mut matches = Vec::with_capacity(judged.len());
        for (found, sure, undecided) in judged {
            if sure || self.ask(&found.key, &undecided, path)? {
                matches.push(found);
            }
        }
        Ok((exact, matches))
    }

    /// Whether a path matches a key that the usual matcher cannot judge; by `re` where nothing else can.
    fn ask(&self, key: &str, undecided: &Undecided, path: &Bound<'_, PyString>) -> PyResult<bool> {
        let py = path.py();
        let result = match undecided {
            Undecided::Compiled(late) => {
                let pattern = late.compiled.get_or_try_init(py, || Self::compile(py, key))?;
                pattern.bind(py).call_method1(self.matching.name(), (path,))?
            }
            Undecided::Wide(late) => {
                if let Ok(text) = path.to_cow() {
                    let classes = python_classes(py)?;
                    let translated = named_characters(py, key)?;
                    let pattern =
                        late.wide.get_or_init(|| Pattern::wide(&translated, self.matching, classes));
                    if let Some(matches) = pattern.matches(&text) {
                        return Ok(matches);
                    }
                }
                if self.linear {
                    return Err(not_linear_for(py, key, path)?);
                }
                py.import(intern!(py, "re"))?.call_method1(self.matching.name(), (key, path))?
            }
        };
        Ok(!result.is_none())
    }
}

/// How to decide whether a key matches.
enum Undecided {
    /// By `re`, which the key is for.
    Compiled(Arc<Late>),
    /// By a matcher that knows Python's character classes, if it can, else by `re`.
    Wide(Arc<Late>),
}

/// Returns this Python's character classes, by its own `re`, because versions differ.
fn python_classes(py: Python<'_>) -> PyResult<&'static Classes> {
    static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();
    CLASSES.get_or_try_init(py, || {
        let re = py.import("re")?;
        let all = PyString::new(py, &('\0'..=char::MAX).collect::<String>());
        let items = |class: &str| -> PyResult<String> {
            let runs: Vec<String> = re.call_method1("findall", (class, &all))?.extract()?;
            Ok(runs.iter().fold(String::new(), |mut items, run| {
                if let Some((low, high)) = run.chars().next().zip(run.chars().next_back()) {
                    let _ = write!(items, r"\x{{{:x}}}-\x{{{:x}}}", u32::from(low), u32::from(high));
                }
                items
            }))
        };
        Ok(Classes { digit: items(r"\d+")?, space: items(r"\s+")?, word: items(r"\w+")? })
    })
}

/// A text as Python writes it.
fn quoted(py: Python<'_>, text: &str) -> PyResult<String> {
    PyString::new(py, text).repr()?.extract()
}

fn key_text<'a>(key: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, str>> {
    key.to_cow().map_err(|_| {
        let shown = key.repr().map_or_else(|_| String::new(), |text| text.to_string());
        PyValueError::new_err(format!(
            "key {shown} holds half a surrogate pair, which is not a character; leave it out."
        ))
    })
}

/// A key as errors show it.
fn shortened(py: Python<'_>, key: &str) -> PyResult<String> {
    if key.len() > LONGEST_QUOTED { Ok(format!("of {} bytes", key.len())) } else { quoted(py, key) }
}

fn invalid(py: Python<'_>, key: &str, reason: &str) -> PyResult<PyErr> {
    Ok(PyValueError::new_err(format!(
        "key {} is not a regular expression: {reason}; escape characters that stand for themselves with a backslash.",
        shortened(py, key)?
    )))
}

fn too_large(py: Python<'_>, key: &str, reason: &str) -> PyResult<PyErr> {
    Ok(PyValueError::new_err(format!(
        "key {} is not a regular expression that Python compiles: {reason}; write it with fewer groups and repetitions.",
        shortened(py, key)?
    )))
}

fn not_linear(py: Python<'_>, key: &str) -> PyResult<PyErr> {
    Ok(PyValueError::new_err(format!(
        "key {} cannot be matched in linear time, as patterns of names must be: it looks ahead or behind, refers back, has a \
         possessive or atomic part, or is too large or too deep; write it without that, or name what it excludes in a key \
         of its own.",
        shortened(py, key)?
    )))
}

fn not_linear_for(py: Python<'_>, key: &str, path: &Bound<'_, PyString>) -> PyResult<PyErr> {
    Ok(PyValueError::new_err(format!(
        "key {} cannot be matched in linear time with {}, as patterns of names must be, because that is not of ASCII \
         characters in one line; write the key without what depends on that, such as \\b or (?i).",
        quoted(py, key)?,
        path.repr()?
    )))
}

/// Returns a key with the code points in the place of `\N{NAME}`, as Python's table of names has them.
fn named_characters<'a>(py: Python<'_>, key: &'a str) -> PyResult<Cow<'a, str>> {
    if !key.contains(r"\N{") {
        return Ok(Cow::Borrowed(key));
    }
    let lookup = py.import(intern!(py, "unicodedata"))?.getattr(intern!(py, "lookup"))?;
    let (mut text, mut rest) = (String::with_capacity(key.len()), key);
    while let Some(place) = rest.find('\\') {
        let (before, escape) = rest.split_at(place);
        text.push_str(before);
        let name = escape.strip_prefix(r"\N{").and_then(|after| after.split_once('}'));
        let character =
            name.and_then(|(name, _)| lookup.call1((name,)).and_then(|found| found.extract::<char>()).ok());
        if let (Some(character), Some((_, after))) = (character, name) {
            let _ = write!(text, r"\U{:08x}", u32::from(character));
            rest = after;
        } else {
            let length = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            text.push_str(&escape[..length]);
            rest = &escape[length..];
        }
    }
    text.push_str(rest);
    Ok(Cow::Owned(text))
}

/// Longer keys are not quoted in errors.
const LONGEST_QUOTED: usize = 1000;

#[pymethods]
impl PyPolicyMap {
    #[new]
    #[pyo3(signature = (r#match = "fullmatch", on_overlap = "raise", *, linear = false))]
    fn new(py: Python<'_>, r#match: &str, on_overlap: &str, linear: bool) -> PyResult<Self> {
        let matching = Matching::parse(r#match).map_err(to_python)?;
        let overlap = Overlap::parse(on_overlap).map_err(to_python)?;
        let exact = PyDict::new(py).unbind();
        Ok(Self { map: Mutex::new(PolicyMap::new()), exact, matching, overlap, linear })
    }

    /// Add a key at the end. `KeyError` if it is there, `ValueError` with the position if it is not a regular expression.
    fn insert(&self, key: &Bound<'_, PyString>, value: Py<PyAny>) -> PyResult<()> {
        let (_, refused) = self.add(key, value)?;
        refused.map_or(Ok(()), |_| Err(PyKeyError::new_err(key.clone().unbind())))
    }

    /// Take a key out and return its value. `KeyError` if it is not there.
    fn remove(&self, py: Python<'_>, key: &str) -> PyResult<Py<PyAny>> {
        let mut map = self.lock(py)?;
        let removed = map.remove(key).ok_or_else(|| PyKeyError::new_err(key.to_owned()))?;
        let forgotten = self.exact.bind(py).del_item(key);
        drop(map);
        forgotten.map(|()| removed.value)
    }

    /// Take out the key that was inserted last, with its value. `KeyError` if the map is empty.
    fn pop_last(&self, py: Python<'_>) -> PyResult<(String, Py<PyAny>)> {
        let mut map = self.lock(py)?;
        let (key, held) = map.pop_last().ok_or_else(|| PyKeyError::new_err("the map is empty"))?;
        let forgotten = self.exact.bind(py).del_item(&*key);
        drop(map);
        forgotten.map(|()| (key.into(), held.value))
    }

    /// The value of a key, which is added with `value` if it is not there.
    fn setdefault(&self, key: &Bound<'_, PyString>, value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        Ok(self.add(key, value)?.0)
    }

    /// The key and value that decide for a path: the key that is the path, else one that matches; None if none does.
    ///
    /// Raises `ValueError` naming the keys if several match and the map is to raise.
    fn find(&self, path: &Bound<'_, PyString>) -> PyResult<Option<(String, Py<PyAny>)>> {
        let py = path.py();
        let (exact, mut matches) = self.matches(path, false)?;
        if let Some(exact) = exact {
            return Ok(Some((exact.key, exact.value)));
        }
        let keys: SmallVec<[&str; 2]> = matches.iter().map(|found| found.key.as_str()).collect();
        let winner = self.overlap.winner(&keys);
        drop(keys);
        if let Ok(winner) = winner {
            return Ok(winner.map(|place| matches.swap_remove(place)).map(|found| (found.key, found.value)));
        }
        let keys: Vec<String> =
            matches.iter().map(|found| quoted(py, &found.key)).collect::<PyResult<_>>()?;
        Err(PyValueError::new_err(format!(
            "{} is matched by {} keys, {}; make them exclude each other, or choose by on_overlap.",
            path.repr()?,
            keys.len(),
            keys.join(" and ")
        )))
    }

    /// The value that `find` gives, without its key.
    fn lookup(&self, path: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let Ok(text) = path.cast::<PyString>() else {
            let message = format!("path={} must be a str, such as a layer's path.", path.repr()?);
            return Err(PyTypeError::new_err(message));
        };
        Ok(self.find(text)?.map(|(_, value)| value))
    }

    /// For one path: the deciding key (None: none, or too many), whether it is the path itself, and all that match.
    fn explain(&self, path: &Bound<'_, PyString>) -> PyResult<(Option<String>, bool, Vec<String>)> {
        let (exact, matches) = self.matches(path, true)?;
        let mut keys: Vec<String> = matches.into_iter().map(|found| found.key).collect();
        if let Some(exact) = exact {
            keys.insert(0, exact.key.clone());
            return Ok((Some(exact.key), true, keys));
        }
        let texts: Vec<&str> = keys.iter().map(String::as_str).collect();
        let winner = self.overlap.winner(&texts).ok().flatten();
        Ok((winner.map(|place| keys[place].clone()), false, keys))
    }

    /// The texts of the groups of a key that matches a path, as `re.Match.groups` gives them.
    fn groups(&self, key: &str, path: &Bound<'_, PyString>) -> PyResult<Vec<Option<String>>> {
        let (py, text) = (path.py(), &*key_text(path)?);
        let texts =
            |groups: Vec<Option<&str>>| groups.into_iter().map(|group| group.map(str::to_owned)).collect();
        let late = {
            let map = self.lock(py)?;
            let found = map.key(key).ok_or_else(|| PyKeyError::new_err(key.to_owned()))?;
            if found.engine() == Engine::Exact {
                return Ok(Vec::new());
            }
            if let Some(groups) = found.groups(text) {
                return Ok(texts(groups));
            }
            Arc::clone(&found.value.late)
        };
        if let Some(groups) = late.wide.get().and_then(|wide| wide.groups(text)) {
            return Ok(texts(groups));
        }
        if self.linear {
            return Err(not_linear_for(py, key, path)?);
        }
        let compiled = late.compiled.get_or_try_init(py, || Self::compile(py, key))?.bind(py);
        let found = compiled.call_method1(self.matching.name(), (path,))?;
        if found.is_none() {
            return Err(PyValueError::new_err(format!(
                "{} does not match {}.",
                quoted(py, key)?,
                path.repr()?
            )));
        }
        found.call_method0(intern!(py, "groups"))?.try_iter()?.map(|group| group?.extract()).collect()
    }

    /// The value of a key, or None.
    fn get(&self, key: &Bound<'_, PyString>) -> PyResult<Option<Py<PyAny>>> {
        let py = key.py();
        let Ok(key) = key.to_cow() else { return Ok(None) }; // half a surrogate pair is not a key
        let map = self.lock(py)?;
        Ok(map.get(&key).map(|held| held.value.clone_ref(py)))
    }

    /// Keys and values, in the order of insertion.
    fn items(&self, py: Python<'_>) -> PyResult<Items> {
        let map = self.lock(py)?;
        Ok(map.keys().map(|key| (key.text.to_string(), key.value.value.clone_ref(py))).collect())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else { return Ok(false) };
        let other = other.get();
        if (self.matching, self.overlap) != (other.matching, other.overlap) {
            return Ok(false);
        }
        let (own, others) = (self.items(py)?.into_pyobject(py)?, other.items(py)?.into_pyobject(py)?);
        own.eq(others)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        let own = slf.get();
        let arguments = (own.matching.name(), own.overlap.name());
        Ok((slf.get_type().into_any(), arguments, own.items(slf.py())?))
    }

    fn __setstate__(&self, py: Python<'_>, items: Items) -> PyResult<()> {
        items.into_iter().try_for_each(|(key, value)| self.insert(&PyString::new(py, &key), value))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A map in use by another thread is alive; the next collection visits it.
        let Ok(map) = self.map.try_lock() else { return Ok(()) };
        visit.call(&self.exact)?;
        map.keys().try_for_each(|key| visit.call(&key.value.value))
    }

    fn __clear__(&self) {
        if let Ok(mut map) = self.map.try_lock() {
            let cleared = std::mem::take(&mut *map);
            drop(map); // before what was in it, whose going may run code
            drop(cleared);
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.len())
    }
}

/// For each of `wanted` the place of the text that contains what is spelled most like it; None if there are no texts, or it
/// would take too long.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "detached from Python, which owns what it gave")]
pub(crate) fn nearest_texts(
    py: Python<'_>,
    wanted: Vec<String>,
    texts: Vec<Bound<'_, PyString>>,
) -> Vec<Option<usize>> {
    let texts: Vec<String> = texts.iter().map(|text| text.to_string_lossy().into_owned()).collect();
    py.detach(|| spelling::nearest_of_each(&wanted, &texts))
}
