"""Headers of `.npy` arrays: those that numpy writes, and what one side writes the other reads."""

from __future__ import annotations

import io
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise._core import parse_literal
from checkpoint_samples import assert_same, floats

RECORDS: dict[str, Any] = {
    "latin": [("größe", "<f4")],
    "beyond latin": [("Ω", "<f4"), ("名", "<i8", (2, 3))],
    "beyond the first plane": [("😀", "<f4")],
    "beyond latin, nested": [("größe", [("λ", "<f8"), ("日本", ">i2")])],
    "a title": [(("Länge λ", "length"), "<f4")],
    "quotes": [("it's", "<f4"), ("\"both'", "<i2"), ("back\\slash", "u1"), ("new\nline", "u1")],
    "half a pair": [("\ud800", "<f4")],
    "controls": [("a\x80\x9fb", "<f4"), ("ж\x85", "<f4")],
    "gaps": {"names": ["a", "ж"], "formats": ["<i4", "<i2"], "offsets": [0, 8], "itemsize": 32},
    "11,000 bytes": [(f"field_{index:0200}", "<f4") for index in range(50)],
    "90,000 bytes": [(f"field_{index:0200}", "<f4") for index in range(400)],
    "90,000 bytes beyond latin": [(f"поле_{index:0200}", "<f4") for index in range(400)],
    "deep": None,
    "dates": [("t", "M8[ns]"), ("d", "m8[25us]"), ("s", "U3")],
}
nested = np.dtype("<f4")
for _ in range(90):
    nested = np.dtype([("a", nested)])
RECORDS["deep"] = nested


def saved_by_numpy(array: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that older releases cannot read it
        np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
def test_records_are_written_and_read_as_by_numpy(tmp_path: Path, record: Any) -> None:
    path, archive = tmp_path / "u.npy", tmp_path / "u.npz"
    for shape in ((), (3,), (2, 3), (0, 2)):
        array = np.zeros(shape, record)
        array.view("u1" if shape else array.dtype)[...] = 7 if shape else array
        for laid_out in (array, np.asfortranarray(array)):
            written = saved_by_numpy(laid_out)
            checkpoint.save(path, laid_out, overwrite=True)
            assert path.read_bytes() == written
            checkpoint.save(archive, {"ж": laid_out}, overwrite=True)
            with zipfile.ZipFile(archive) as members:
                assert members.read("ж.npy") == written
            for loaded in (checkpoint.load(path), checkpoint.load(archive)["ж"]):
                assert saved_by_numpy(loaded) == written
            with np.load(archive, max_header_size=10**6) as by_numpy:
                assert by_numpy["ж"].dtype == array.dtype
    for source in (path, archive):
        (info,) = checkpoint.inspect(source).tensors
        assert (info.kind, info.shape) == ("other", (0, 2))
        out = tmp_path / f"out{source.suffix}"
        checkpoint.cast_file(source, out, "bfloat16")
        assert out.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_what_could_not_be_read_is_not_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"wide{suffix}"
    path.write_bytes(b"old")
    wide = [(f"field_{index:0200}", "<f4") for index in range(5_000)]
    deep = np.dtype([("a", np.dtype([("b", nested)]))])
    for _ in range(10):
        deep = np.dtype([("a", deep)])
    overlapping = {"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 2]}
    refused = [(wide, "1,048,576"), (deep, "200 deep"), (overlapping, "overlapping")]
    for record, message in refused:
        array = np.zeros(2, record)
        with pytest.raises(checkpoint.CheckpointError, match=f"array 'wide'.*{message}"):
            checkpoint.save(path, array if suffix == ".npy" else {"wide": array}, overwrite=True)
        assert path.read_bytes() == b"old"
    (tmp_path / "numpy.npy").write_bytes(saved_by_numpy(np.zeros(2, wide)))
    for action in (checkpoint.load, checkpoint.inspect):
        with pytest.raises(checkpoint.CheckpointError, match=r"1,048,576.*max_header_size"):
            action(tmp_path / "numpy.npy")


def test_headers_of_python_2_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.npy"
    written = saved_by_numpy(floats(6).reshape(2, 3))
    path.write_bytes(written.replace(b"(2, 3), }  ", b"(2L, 3L), }"))
    with pytest.warns(UserWarning, match="Python 2"):
        by_numpy = np.load(path)
    assert_same(checkpoint.load(path), by_numpy)


LITERALS = [
    "{'a': [(((1),),), 'b\\'\"', \"c'\", ()], 3: True, (1, 2): {}, (1): [False], 'd': (1, 2,)}",
    *("()", "(1)", "(1,)", "[ ]", "{}", "'\\u0436\\n\\x41'", " 12 ", "(\n1,\n2)", "('(', '[1,')"),
]
INVALID = [
    *("", ",", "(", "(1", "(1,", "(,)", "(1,,)", "[1}", "{1}", "{1:}", "{1: 2", "{1: 2, 3}", "1 2"),
    *("1 + 1", "-1", "None", "b'a'", "f'a'", "'a' 'b'", "x", "1j", "1.5", "'a", "{[]: 1}", "()()"),
    *("'\\x1'", "TrueFalse", "1True", "'\n'", "[" * 201 + "]" * 201),
]


@pytest.mark.parametrize("text", LITERALS)
def test_literals_have_pythons_value(text: str) -> None:
    assert parse_literal(text) == eval(text, {"__builtins__": {}})  # noqa: S307
    assert repr(parse_literal(text)) == repr(eval(text, {"__builtins__": {}}))  # noqa: S307


@pytest.mark.parametrize("text", ["'" + "\\'" * (1 << 19), "'\\\"" * (1 << 18)])
def test_texts_that_do_not_end_take_linear_time(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match="is not a part of a literal"):
        parse_literal(text)
    assert time.process_time() - start < 5  # of hours, by a regular expression


@pytest.mark.parametrize("text", INVALID)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, SyntaxError)):
        parse_literal(text)
