"""Read how much errors count: a number for each weight, or for each of its input channels.

`advise` takes the first, and `quantize` the second: the mean square of the inputs of a channel, by
which the squared errors of its elements are multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo
from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers import open_checkpoint
from castwise.checkpoint.containers.registry import WHOLE_MODELS, model_format
from castwise.checkpoint.containers.whole_models import ModelFormat
from castwise.checkpoint.files.source_files import read_file
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.results.summary import ImportanceUse
from castwise.models.model import Model
from castwise.text.parsed_files import MOST_BYTES, parse_bytes
from castwise.text.wording import argument

_NPZ = ".npz"
# What llama-imatrix wrote before it wrote the format of models: no names tell its numbers' counts.
OLD_SUFFIXES = (".dat", ".imatrix")
_NUMBERS = ("float", "int", "uint")
_MATRIX = 2
# The number of an expert, in whose place stacks have an axis.
_EXPERT = r"(?<=experts\.)([0-9]+)\."
# Its queries have other inputs than its keys and values, and some engines join all three.
_CROSS_ATTENTION = (
    r"(?i)cross_?att|encoder_attn|encoder_decoder_att|encdecatt|multihead_attn|\battn2\b"
)
_KEPT_ENTRIES = 4  # those of the experts of a layer, whose weights take turns, are three
_NO_NUMBERS = "the file has no numbers of it"
_UNCOUNTED = "the file counted no inputs of"

Array = NDArray[Any]


class Importance(Mapping[str, Any]):
    """The numbers of a file, by the names of weights; those of arrays are read when asked for."""

    def __init__(
        self,
        path: Path,  # the file
        names: Iterable[str],  # of the weights
        read: Callable[[str], Any],  # returns what the file has of a weight
        *,
        # Whether its kind of files has numbers of input channels alone, as sums and counts
        is_by_channel: bool = False,
    ) -> None:
        self.path, self.is_by_channel = path, is_by_channel
        self._names = dict.fromkeys(names)
        self._read = read
        # As numbers of input channels. A row of what all experts have is read for each of them.
        self.rows = lru_cache(_KEPT_ENTRIES)(self._rows)

    @classmethod
    def open(cls, path: Path) -> Importance:
        """Open a file: JSON, `.npz`, `.safetensors`, or what llama-imatrix writes."""
        suffix = path.suffix.lower()
        if suffix in OLD_SUFFIXES:
            raise CheckpointError(
                f"{path}: castwise does not read {suffix}, which llama-imatrix wrote before; it "
                f"converts the file: llama-imatrix --in-file {path.name} -o imatrix"
                f"{next(iter(WHOLE_MODELS))}"
            )
        if suffix not in {_NPZ, SAFETENSORS, *WHOLE_MODELS}:
            rows = _parsed(path)
            return cls(path, rows, rows.__getitem__)
        with open_checkpoint(path, decodes=True) as checkpoint:
            tensors = StoredTensors(checkpoint.shards)
            if suffix == _NPZ:  # closed, it is not opened again
                arrays = {name: tensors.read(name) for name in tensors}
                return cls(path, arrays, arrays.__getitem__)
            model, file = model_format(checkpoint.suffix), checkpoint.file
            if model is None or file is None:
                return cls(path, tensors, tensors.read)
            parts = model.mean_squares(file)
            return cls(path, parts, partial(_means, path, tensors, parts), is_by_channel=True)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  (of a file)
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _rows(self, name: str) -> NDArray[np.float32]:
        """Return the numbers of a weight, a row for each expert; NaN where no input was counted."""
        subject = f"{self.path}: the importance of {name!r}"
        array = _numbers(subject, self._read(name))
        if array.ndim not in {1, _MATRIX} or not array.size:
            raise CheckpointError(
                f"{subject} has the shape {array.shape}; give a number for each input channel of "
                "the weight, of stacked experts a row for each"
            )
        with np.errstate(over="ignore"):
            rows = np.atleast_2d(array).astype(np.float32)
        for index, row in enumerate(rows):
            if self.is_by_channel and np.isnan(row).all():
                continue  # `_means` refuses other NaN
            place = f" (expert {index})" if len(rows) > 1 else ""
            wrong = np.flatnonzero(~(np.isfinite(row) & (row >= 0)))
            if wrong.size:
                value = np.atleast_2d(array)[index, wrong[0]]
                raise CheckpointError(
                    f"{subject}{place} is {value} for channel {wrong[0]}; use numbers that are "
                    "finite in float32 and not negative"
                )
            if not row.any():
                raise CheckpointError(
                    f"{subject}{place} is 0 for every channel; give a number above 0 for at least "
                    "one, or leave the weight out"
                )
        return rows


def _means(
    path: Path, tensors: StoredTensors, parts: Mapping[str, tuple[str, str]], name: str
) -> NDArray[np.float32]:
    """Divide sums of squared inputs by counts, as llama.cpp does; NaN where there are none."""
    # `parts` names the tensors of sums and of counts, by the names of weights.
    sums, counts = (tensors.read(part) for part in parts[name])
    subject = f"{path}: the importance of {name!r}"
    experts = len(sums) if sums.ndim == _MATRIX else 1
    is_stored_so = {sums.dtype, counts.dtype} == {np.dtype(np.float32)}
    if not is_stored_so or sums.ndim not in {1, _MATRIX} or counts.size != experts:
        raise CheckpointError(
            f"{subject} has sums of shape {sums.shape} ({sums.dtype}) and counts of shape "
            f"{counts.shape} ({counts.dtype}), and needs a row of float32 and a count for each "
            "expert; make the file again"
        )
    for kind, values in (("sums", sums), ("counts", counts)):
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if wrong.size:
            raise CheckpointError(
                f"{subject} has {kind} of {wrong[0]}; they are finite and not negative: make "
                "the file again"
            )
    sums, counts = sums.reshape(experts, -1), counts.reshape(experts, 1)
    means = np.full_like(sums, np.nan)
    with np.errstate(over="ignore"):  # what is infinite is refused
        np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        rows = parse_bytes(read_file(path, MOST_BYTES), path)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(rows, dict):
        raise CheckpointError(f"{path} is not a JSON object of names and numbers")
    return rows


def as_array(value: Any) -> Array:  # noqa: ANN401  (of a file)
    """Return a value of a file as an array; one of objects if lists have several lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.asarray(value, object)


def are_numbers(array: Array) -> bool:
    """Return True if an array holds integers or real floats."""
    try:
        return finfo(array.dtype).kind in _NUMBERS
    except TypeError:
        return False


def _numbers(subject: str, value: Any) -> Array:  # noqa: ANN401  (of a file)
    array = as_array(value)
    if not are_numbers(array):
        raise CheckpointError(f"{subject} is of dtype {array.dtype}; use numbers such as 0.5")
    return array


class ChannelNumbers(NamedTuple):
    """The numbers of the input channels of a weight: those of an entry of a file, or of a row."""

    file: Importance
    entry: str
    row: int | None

    def of(self, expert: int) -> NDArray[np.float32] | None:
        """Return the numbers of a matrix, of a stack that of an expert; None if it has none."""
        row = self.file.rows(self.entry)[expert if self.row is None else self.row]
        return None if np.isnan(row[0]) else row


class SearchedWeight(NamedTuple):
    """A weight whose scales are searched."""

    model: Model  # of its component
    prefix: str  # the folder of that, with a slash at its end
    info: TensorInfo
    channels: int  # of its inputs
    experts: int  # 1 for a single matrix
    has_ones: bool = False  # whether channels count 1 where no inputs were counted

    @property
    def name(self) -> str:
        return self.prefix + self.info.name


# A weight has those of its own name, of its experts' common name, or of the name that a file of the
# whole model gives it. If there are none, it has those of the weights that are multiplied by the
# same inputs, if these agree: those that the rules of an engine for the model join with it, but in
# cross attention. Names alone do not tell it.
class ImportanceMatch:
    """Finds the numbers of weights in a file, and takes note of what has none, and of no use."""

    def __init__(self, file: Importance) -> None:
        self._file = file
        formats = (model_format(suffix) for suffix in WHOLE_MODELS)
        self._formats: Sequence[ModelFormat] = [
            row for row in formats if row is not None and any(map(row.is_stored_name, file))
        ]
        self._component: SearchedWeight | None = None  # the first that a file's own name fits
        self._used: set[str] = set()
        self._unweighted: dict[str, str] = {}
        self._count = 0

    def use(self) -> ImportanceUse:
        """Return what was found, after all weights."""
        unused = [name for name in self._file if name not in self._used]
        if not self._count:
            first = next(iter(self._file), None)
            raise CheckpointError(
                f"{self._file.path} has numbers of no weight whose scales are searched"
                + ("" if first is None else f"; its first name is {first!r}")
                + "; name weights as the model does, or leave "
                + argument("importance")
                + " out"
            )
        return ImportanceUse(str(self._file.path), self._count, self._unweighted, unused)

    def find(self, weight: SearchedWeight) -> ChannelNumbers | None:
        numbers = self._choose(weight)
        if numbers is None:
            self._unweighted[weight.name] = _NO_NUMBERS
            return None
        experts = range(weight.experts)
        uncounted = [index for index in experts if numbers.of(index) is None]
        if uncounted:
            numbers_text = ", ".join(map(str, uncounted))
            which = "it" if weight.experts == 1 else f"its experts {numbers_text}"
            ones = ", whose channels count 1 each" if weight.has_ones else ""
            self._unweighted[weight.name] = f"{_UNCOUNTED} {which}{ones}"
        if len(uncounted) < weight.experts:
            self._count += 1
        elif not weight.has_ones:
            return None
        return numbers

    def _choose(self, weight: SearchedWeight) -> ChannelNumbers | None:
        name = weight.info.name
        for names in self._own_names(weight, name):
            if candidates := self._numbers_of(weight, names):
                self._check_equal(weight, candidates)
                return candidates[0]
        if re.search(_CROSS_ATTENTION, name) is not None:
            return None
        partners = [other for other in weight.model.engine_partners(name) if other != name]
        names = [
            entry
            for other in partners
            for entries in self._own_names(weight, other)
            for entry in entries
        ]
        names += [entry for _, sharing in self._stored_names(weight, name) for entry in sharing]
        candidates = self._numbers_of(weight, names, are_own=False)
        return candidates[0] if candidates and _are_equal(candidates) else None

    def _own_names(
        self, weight: SearchedWeight, name: str
    ) -> Iterator[list[tuple[str, int | None]]]:
        """Yield the names under which a weight may have numbers, the surest first, with a row."""
        whole, row = _of_all_experts(name)
        yield [(weight.prefix + name, None)]
        if row is not None:
            yield [(weight.prefix + whole, row)]
        yield [entry for entries, _ in self._stored_names(weight, name) for entry in entries]

    def _stored_names(
        self, weight: SearchedWeight, name: str
    ) -> Iterator[tuple[list[tuple[str, int | None]], list[tuple[str, int | None]]]]:
        """Yield what files of whole models call a weight, and what has the same inputs there."""
        whole, row = _of_all_experts(name)
        for model in self._formats:
            names = model.input_names(whole, weight.model.stated_type)
            yield [(entry, row) for entry in names.own], [(entry, row) for entry in names.sharing]

    def _numbers_of(
        self,
        weight: SearchedWeight,
        names: Iterable[tuple[str, int | None]],
        *,
        are_own: bool = True,
    ) -> list[ChannelNumbers]:
        """Return what the file has under some names; those of others only if they fit."""
        candidates = [
            numbers
            for entry in names
            if entry[0] in self._file
            and (self._fits(weight, numbers := ChannelNumbers(self._file, *entry)) or are_own)
        ]
        for numbers in candidates:
            self._check_component(weight, numbers)
            self._check_shape(weight, numbers)
        self._used.update(numbers.entry for numbers in candidates)
        return candidates

    def _fits(self, weight: SearchedWeight, numbers: ChannelNumbers) -> bool:
        experts, channels = self._file.rows(numbers.entry).shape
        is_right = experts == weight.experts if numbers.row is None else experts > numbers.row
        return bool(is_right and channels == weight.channels)

    def _check_component(self, weight: SearchedWeight, numbers: ChannelNumbers) -> None:
        """Refuse names that say nothing of components, where those of two have them."""
        if not any(row.is_stored_name(numbers.entry) for row in self._formats):
            return
        self._component = weight if self._component is None else self._component
        other = self._component
        if other.prefix != weight.prefix:
            raise CheckpointError(
                f"{self._file.path}: {numbers.entry!r} is a name of llama.cpp, which does not say "
                f"of which folder, and such names fit {other.name!r} and {weight.name!r}; quantize "
                "the folders one at a time, or name weights as these two are"
            )

    def _check_shape(self, weight: SearchedWeight, numbers: ChannelNumbers) -> None:
        if self._fits(weight, numbers):
            return
        experts, channels = self._file.rows(numbers.entry).shape
        stack = f" of each of {weight.experts:,} experts" if weight.experts > 1 else ""
        text = f"{experts:,} x {channels:,}" if experts > 1 else f"{channels:,}"
        raise CheckpointError(
            f"{self._file.path}: the importance of {numbers.entry!r} is {text} numbers, and "
            f"{weight.name!r} of shape {weight.info.shape} has {weight.channels:,} input channels"
            f"{stack}; give a number for each, or leave the weight out"
        )

    def _check_equal(self, weight: SearchedWeight, candidates: Sequence[ChannelNumbers]) -> None:
        if not _are_equal(candidates):
            names = " and ".join(repr(numbers.entry) for numbers in candidates[:2])
            raise CheckpointError(
                f"{self._file.path}: {names} may both be the importance of {weight.name!r}, and "
                "differ; name it as the model does"
            )


def _of_all_experts(name: str) -> tuple[str, int | None]:
    """Return the name that all experts of a layer have in common, and the number of one."""
    match = re.search(_EXPERT, name)
    if match is None:
        return name, None
    return name[: match.start()] + name[match.end() :], int(match[1])


def _are_equal(candidates: Sequence[ChannelNumbers]) -> bool:
    first, *others = ((numbers.file.rows(numbers.entry), numbers.row) for numbers in candidates)
    return all(
        row == first[1] and np.array_equal(rows, first[0], equal_nan=True) for rows, row in others
    )
