"""Maps against the Keras that they were written for: by `search` up to 3.11, by `fullmatch` since.

Each version is installed into a folder of its own, and answers thousands of generated questions in
one process.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import castwise.dtype_policies
import pytest
from keras_release import ask

pytestmark = [pytest.mark.frameworks, pytest.mark.network]
VERSIONS = {"3.4.0": "search", "3.11.0": "search", "3.12.0": "fullmatch"}
WORKER = Path(__file__).parents[1] / "helpers" / "policies" / "keras_version_worker.py"

LITERALS = ("a", "b", "ab", "enc", "dense_1", "x/y", "/", "1", "é", "A", "layer-0", " ")
ATOMS = (
    *LITERALS,
    *LITERALS,
    *(
        ".",
        ".*",
        ".+",
        r"\d",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        "[ab]",
        "[^ab]",
        "[a-e]",
        "[^/]",
        r"[\w-]",
    ),
    *(
        r"\.",
        r"\/",
        r"\x61",
        r"\u00e9",
        r"\n",
        r"\D",
        "[]a]",
        "[a-]",
        "[^^]",
        r"[\]]",
        r"[\d_]",
        "é",
    ),
)
ANCHORS = ("^", "$", r"\A", r"\Z", r"\b", r"\B", "(?=a)", "(?!b)", "(?<=a)", "(?<!/)", "(?=.*b)")
COUNTS = (
    "*",
    "+",
    "?",
    "{2}",
    "{1,2}",
    "{0}",
    "{,2}",
    "{1,}",
    "*?",
    "+?",
    "??",
    "*+",
    "++",
    "{1,2}?",
)
GROUPS = (
    "({})",
    "(?:{})",
    "(?P<n>{})",
    "(?i:{})",
    "(?s:{})",
    "(?-i:{})",
    "(?>{})",
    "(?x: {} )",
    "(?m:{})",
)
BACK = (r"\1", "(?P=n)", "(?(1)a|b)")
FLAGS = ("(?i)", "(?s)", "(?x)", "(?m)", "(?a)", "(?u)", "(?is)", "(?ai)")
CHARACTERS = (
    "a",
    "b",
    "c",
    "e",
    "n",
    "1",
    "_",
    "/",
    ".",
    "-",
    "A",
    "B",
    "é",
    "É",
    "\n",
    " ",
    "ß",
    "K",
    "٣",
)


def pattern(chance: random.Random, depth: int = 2) -> str:
    """Make up an expression; not all are valid."""
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(ATOMS)
    parts = []
    for _ in range(chance.randint(1, 3)):
        roll = chance.random()
        part = pattern(chance, depth - 1)
        if roll < 0.12:
            part = f"{part}|{pattern(chance, depth - 1)}"
        if roll < 0.3:
            part = chance.choice(GROUPS).format(part)
        elif roll < 0.42:
            part = chance.choice(ANCHORS) + part
        elif roll < 0.48:
            part += chance.choice(ANCHORS)
        elif roll < 0.53:
            part = f"({part}){chance.choice(BACK)}"
        if chance.random() < 0.25:
            part = part if roll < 0.3 or len(part) == 1 else f"(?:{part})"
            part += chance.choice(COUNTS)
        parts.append(part)
    flags = chance.choice(FLAGS) if depth == 2 and chance.random() < 0.08 else ""
    return flags + "".join(parts)


def valid_key(chance: random.Random) -> str:
    """Make up a key: usually an expression that is valid, sometimes a plain path."""
    while True:
        key = chance.choice(LITERALS) if chance.random() < 0.1 else pattern(chance)
        try:
            re.compile(key)
        except re.error:
            continue
        return key


def path_for(chance: random.Random, keys: list[str]) -> str:
    """Make up a path that has a chance to match: characters, and pieces of the keys."""
    pieces = [
        chance.choice((*CHARACTERS, *LITERALS))
        if chance.random() < 0.7
        else re.sub(r"[^\w/-]", "", chance.choice(keys))[:6]
        for _ in range(chance.randint(0, 4))
    ]
    return chance.choice(keys) if chance.random() < 0.05 else "".join(pieces)


@cache
def questions() -> list[tuple[list[str], list[str]]]:
    """Make up maps, each with some paths to look up; the same in every run."""
    chance = random.Random(20150827)
    cases: list[tuple[list[str], list[str]]] = []
    for _ in range(2500):
        keys = list(dict.fromkeys(valid_key(chance) for _ in range(chance.randint(1, 4))))
        cases.append((keys, [path_for(chance, keys) for _ in range(8)]))
    # Keys that are wide enough to overlap.
    wide = (
        "a.*",
        ".*b",
        "[ab/]+",
        "(a|b).*",
        r"\w+",
        ".+",
        "(?=a).*",
        "a?b?",
        r"(a|b)\1?",
        "[^/]*",
    )
    for _ in range(300):
        keys = chance.sample(wide, 3)
        cases.append((keys, [path_for(chance, keys) for _ in range(8)]))
    # The table in which the versions differ, and a prefix as old maps have them.
    table = ("dense_1", "enc", "enc/.*", "enc/att/.*", "^x$", "a|ab", "dense.1", "(?i)Enc/.*", "")
    asked = (
        *(
            "dense_10",
            "model/dense_1/x",
            "enc/att",
            "xenc/dense_1",
            "enc/",
            "enc",
            "enc/x\ny",
            "x\n",
        ),
        *("enc/att/q", "enc/att/.*", "ab", "abc", "ENC/x", "", "x", "anything"),
    )
    cases += [([key], list(asked)) for key in table]
    cases += [([key, other], list(asked)) for key in table for other in table if key != other]
    return cases


POLICIES: tuple[tuple[str, list[Any]], ...] = (
    ("DTypePolicy", ["mixed_float16"]),
    ("FloatDTypePolicy", ["float32"]),
    ("QuantizedDTypePolicy", ["int8", "mixed_bfloat16"]),
    ("QuantizedFloat8DTypePolicy", ["float8", "mixed_bfloat16", 512]),
    ("DTypePolicyMap", ["mixed_float16"]),
)


@pytest.fixture(scope="session", params=VERSIONS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Install one version of Keras without what it depends on, and ask it everything at once."""
    version = request.param
    folder = tmp_path_factory.mktemp(f"keras-{version}")
    question = {
        "lookups": questions(),
        "serialize": POLICIES,
        "load": [config_of(*policy) for policy in POLICIES],
    }
    answer = ask(f"keras=={version}", folder, WORKER, question)
    assert answer["version"] == version
    return answer


def made(class_name: str, arguments: list[Any]) -> Any:
    """Make a policy of castwise."""
    return getattr(castwise.dtype_policies, class_name)(*arguments)


def config_of(class_name: str, arguments: list[Any]) -> Any:
    """Write the config of a policy of castwise."""
    return castwise.dtype_policies.serialize(made(class_name, arguments))


def test_lookups(answers: Any) -> None:
    """Every path in every map gives what that version gives."""
    match = VERSIONS[answers["version"]]
    float8 = castwise.dtype_policies.QuantizedFloat8DTypePolicy
    counts = {"key": 0, "default": 0, "ValueError": 0}
    for (keys, paths), wanted in zip(questions(), answers["lookups"], strict=True):
        policy_map = castwise.dtype_policies.DTypePolicyMap("float32", match=match)
        for number, key in enumerate(keys):
            policy_map[key] = float8("float8", "float32", number + 1)
        for path, answer in zip(paths, wanted, strict=True):
            found: int | str
            try:
                found = getattr(policy_map[path], "amax_history_length", 0) - 1
            except ValueError:
                found = "ValueError"
            assert found == answer, f"{match}: {path!r} in {keys}: castwise {found}, not {answer}"
            counts["default" if found == -1 else "key" if isinstance(found, int) else found] += 1
    assert all(count > 300 for count in counts.values()), counts


def test_configs(answers: Any) -> None:
    """Configs of that version load here, and ours load there."""
    for policy, config, loaded in zip(POLICIES, answers["serialize"], answers["load"], strict=True):
        ours = made(*policy)
        assert castwise.dtype_policies.deserialize(config) == ours
        assert config == config_of(*policy)
        assert loaded == [
            *(type(ours).__name__, ours.name, ours.compute_dtype, ours.variable_dtype),
            *(ours.quantization_mode, []),
        ]
