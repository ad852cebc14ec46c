"""The documented divergences are those of today: both sides of each row, with the real packages."""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import functools
import importlib.util
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras_systems
import ml_dtypes
import numpy as np
import peers
import pytest
import readme
import tf2_sides
import tf24_sides
from castwise import autocast
from castwise.adapters.keras import install
from castwise.compat import jmp as our_jmp
from castwise.compat.keras import Variable
from castwise.compat.keras.mixed_precision import LossScaleOptimizer as KerasOptimizer
from castwise.compat.tf_keras import layers as our_tf_layers
from castwise.compat.tf_keras import mixed_precision
from castwise.compat.torch import GradScaler

DOCUMENT = readme.PACKAGE / "compat" / "divergences.md"
HEADER = ["call", "original", "castwise", "why"]
COMMON = {"copy": copy, "json": json, "ml_dtypes": ml_dtypes, "np": np}


@dataclass(frozen=True)
class Row:
    """One line of a table: a call, and what the document says of it."""

    dialect: str
    call: str
    original: str
    castwise: str
    why: str

    def __str__(self) -> str:
        return f"{self.dialect}: {self.call}"


@dataclass(frozen=True)
class Outcome:
    """What a call did: the `repr` of its value, or the exception."""

    text: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error else self.text

    @property
    def kind(self) -> Any:
        """Compare two of these: values by their text, exceptions by their type."""
        return type(self.error) if self.error else self.text


# ------------------------------------------------------------------------ reading the tables


def cells(line: str) -> list[str]:
    r"""Split a line of a table; `\|` is a bar within a cell."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def code(cell: str) -> str:
    """What stands in backticks, as a whole cell; more of them where it has some of its own."""
    found = re.fullmatch(r"(`+)(.+?)\1", cell, re.DOTALL)
    assert found, f"not code: {cell}"
    inner = found[2]
    padded = inner.startswith(" `") or inner.endswith("` ")
    return inner[1:-1] if padded else inner


def tables(text: str) -> dict[str, list[Row]]:
    """Every table of the document, by its heading."""
    found: dict[str, list[Row]] = {}
    heading, inside = "", False
    for line in text.splitlines():
        if line.startswith("#"):
            heading, inside = line.lstrip("# "), False
        elif line.startswith("|"):
            row = cells(line)
            if row == HEADER:
                assert heading not in found, f"two tables under {heading}"
                found[heading], inside = [], True
            elif not set("".join(row)) <= set("-: "):
                assert inside, f"a table with another header under {heading}: {line}"
                assert len(row) == len(HEADER), f"not four cells: {line}"
                found[heading].append(Row(heading, code(row[0]), *row[1:]))
        else:
            inside = False
    return found


# ------------------------------------------------------------------------------- both sides


def names_of(module: Any, names: str = "") -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split()}


def keras_names(system: keras_systems.System) -> dict[str, Any]:
    policies = system.dtype_policies
    public = [name for name in dir(policies) if name.endswith(("Policy", "PolicyMap"))]
    return (
        names_of(policies, " ".join(public))
        | names_of(policies, "get serialize deserialize")
        | {"config": system.config}
    )


@functools.cache
def sgd() -> Any:
    """The optimizer of numpy that the tests of loss scales use."""
    path = Path(__file__).parents[1] / "helpers" / "loss_scale" / "optimizers.py"
    spec = importlib.util.spec_from_file_location("optimizers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SGD


def array(values: Any, dtype: str = "float32") -> Any:
    return np.array(values, dtype)


def real_keras_scales() -> dict[str, Any]:
    optimizers = peers.keras().optimizers
    names = names_of(optimizers, "LossScaleOptimizer SGD")
    return names | {"variable": lambda values: peers.keras().Variable(array(values))}


def our_keras_scales() -> dict[str, Any]:
    return {"LossScaleOptimizer": KerasOptimizer, "SGD": sgd(), "variable": array}


def real_tf_scales() -> dict[str, Any]:
    tf, tf_keras = peers.tensorflow(), peers.tf_keras()
    return {
        "LossScaleOptimizer": tf_keras.mixed_precision.LossScaleOptimizer,
        "SGD": tf_keras.optimizers.legacy.SGD,
        "value": tf.constant,
        "variable": tf.Variable,
    }


def our_tf_scales() -> dict[str, Any]:
    names = names_of(mixed_precision, "LossScaleOptimizer")
    return names | {"SGD": sgd(), "value": array, "variable": array}


def torch_names(grad_scaler: Any, make: Any, parameter: Any) -> dict[str, Any]:
    def unscaled(scale: float, *grads: Any) -> Any:
        parameters = [parameter(grad) for grad in grads]
        optimizer = SimpleNamespace(param_groups=[{"params": parameters}])
        scaler = grad_scaler("cpu", scale)
        scaler.scale(make([1.0]))
        scaler.unscale_(optimizer)
        return grads[0].tolist()

    return {"GradScaler": grad_scaler, "array": make, "unscaled": unscaled}


def real_torch() -> dict[str, Any]:
    torch = peers.torch()

    def parameter(grad: Any) -> Any:
        made = torch.zeros_like(grad)
        made.grad = grad
        return made

    return torch_names(torch.amp.GradScaler, torch.tensor, parameter)


def our_torch() -> dict[str, Any]:
    return torch_names(GradScaler, array, lambda grad: SimpleNamespace(grad=grad))


TF_NAMES = "Policy global_policy set_global_policy policy_scope get_policy serialize deserialize"
TF24_NAMES = "Policy set_policy global_policy get_layer_policy FixedLossScale DynamicLossScale"


def real_keras() -> dict[str, Any]:
    keras_systems.State().enter(keras_systems.original())
    return keras_names(keras_systems.original())


def our_keras() -> dict[str, Any]:
    keras_systems.State().enter(keras_systems.OURS)
    return keras_names(keras_systems.OURS)


def real_tf() -> dict[str, Any]:
    tf2_sides.reset(tf2_sides.real_tf_keras())
    return names_of(peers.tf_keras().src.mixed_precision.policy, TF_NAMES)


def our_tf() -> dict[str, Any]:
    tf2_sides.reset(tf2_sides.our_tf_keras())
    return names_of(mixed_precision, TF_NAMES)


def real_tf24() -> dict[str, Any]:
    tf24_sides.real().set_policy(None)
    return names_of(peers.tf24(), TF24_NAMES)


def our_tf24() -> dict[str, Any]:
    tf24_sides.ours().set_policy(None)
    return names_of(mixed_precision.experimental, TF24_NAMES)


def layer_names(base: Any, scope: Callable[[Any], Any]) -> dict[str, Any]:
    def call(self: Any, x: Any) -> Any:
        return x

    def inside(dtype: Any, function: Callable[[], Any]) -> Any:
        with scope(dtype):
            return function()

    return {"Layer": base, "Echo": type("Echo", (base,), {"call": call}), "inside": inside}


def real_keras_layers() -> dict[str, Any]:
    names, keras = real_keras(), peers.keras()
    scope = keras.src.backend.common.variables.AutocastScope
    own = {"AutocastScope": scope, "Variable": keras.Variable}
    return names | own | layer_names(keras.layers.Layer, scope)


def our_keras_layers() -> dict[str, Any]:
    own = {"AutocastScope": autocast.AutocastScope, "Variable": Variable}
    return our_keras() | own | layer_names(autocast.Layer, autocast.AutocastScope)


def real_tf_layers() -> dict[str, Any]:
    names, tf = real_tf(), peers.tensorflow()
    scope = peers.tf_keras().src.mixed_precision.autocast_variable.enable_auto_cast_variables
    return names | layer_names(peers.tf_keras().layers.Layer, lambda name: scope(tf.as_dtype(name)))


def our_tf_layer_names() -> dict[str, Any]:
    return our_tf() | layer_names(our_tf_layers.Layer, autocast.enable_auto_cast_variables)


def keras_alone() -> dict[str, Any]:
    real_keras()
    keras = peers.keras()

    def in_force(policy: Any) -> Any:
        keras.config.set_dtype_policy(policy)
        return keras.config.dtype_policy()

    return {"keras": keras, "in_force": in_force}


def keras_with_castwise() -> dict[str, Any]:
    our_keras()
    names = keras_alone()

    def in_force(policy: Any) -> Any:
        with install():
            return names["in_force"](policy)

    return {**names, "in_force": in_force}


# Each brings the global state back to that of a fresh process, and gives the names in scope.
DIALECTS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "Keras 3": (real_keras, our_keras),
    "Keras 3, loss scales": (real_keras_scales, our_keras_scales),
    "TF 2": (real_tf, our_tf),
    "TF 2, loss scales": (real_tf_scales, our_tf_scales),
    "TF 2.4, experimental": (real_tf24, our_tf24),
    "jmp": (lambda: {"jmp": peers.jmp()}, lambda: {"jmp": our_jmp}),
    "torch": (real_torch, our_torch),
    "Keras 3, layers": (real_keras_layers, our_keras_layers),
    "TF 2, layers": (real_tf_layers, our_tf_layer_names),
    "castwise in Keras 3": (keras_alone, keras_with_castwise),
}


def done(call: str, scope: dict[str, Any]) -> Outcome:
    """Run the statements, and tell what the last of them, an expression, gave."""
    *statements, last = ast.parse(call).body
    assert isinstance(last, ast.Expr), f"the last is not an expression: {call}"
    names = COMMON | scope
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(ast.Module(statements, []), call, "exec"), names)  # noqa: S102
            return Outcome(repr(eval(compile(ast.Expression(last.value), call, "eval"), names)))  # noqa: S307
        except Exception as error:
            return Outcome(error=error)


def named_exception(text: str) -> type[BaseException] | None:
    """The exception of this name, if it is one."""
    module, _, name = text.rpartition(".")
    modules = {"": builtins, "re": re, "dataclasses": dataclasses}
    home = peers.tensorflow().errors if module == "tf.errors" else modules.get(module)
    found = getattr(home, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def describes(cell: str, outcome: Outcome) -> bool:
    """Whether a cell is right about an outcome."""
    text, _, words = cell.partition(" saying ")
    wanted = named_exception(code(text))
    if wanted is None:
        return outcome.error is None and outcome.text == code(text)
    said = all(word in str(outcome.error) for word in re.findall('"(.+?)"', words))
    return type(outcome.error) is wanted and said


def check(row: Row) -> None:
    """Compare both cells with what is done today, and the two sides with each other."""
    real, ours = DIALECTS[row.dialect]
    original, mine = done(row.call, real()), done(row.call, ours())
    for side in (real, ours):
        side()
    problems = [
        f"{side}: the document says {cell}, it is {outcome}"
        for side, cell, outcome in (
            ("original", row.original, original),
            ("castwise", row.castwise, mine),
        )
        if not describes(cell, outcome)
    ]
    if original.kind == mine.kind:
        problems.append(f"no divergence: both give {mine}")
    assert not problems, "\n".join(problems)


TABLES = tables(DOCUMENT.read_text("utf-8"))
ROWS = [row for table in TABLES.values() for row in table]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_divergence_is_as_documented(row: Row) -> None:
    check(row)


def test_every_dialect_has_its_table() -> None:
    assert list(TABLES) == list(DIALECTS)
    assert all(len(table) > 3 for table in TABLES.values())


def test_every_row_is_a_row_of_its_own_and_says_why() -> None:
    assert not [call for call, count in Counter(map(str, ROWS)).items() if count > 1]
    for row in ROWS:
        assert re.search(r"[A-Za-z].*\.$", row.why), f"no sentence: {row}"


# ------------------------------------------------------- what the tests above would not let by


WRONG_ROWS = [
    ("no divergence", "1 + 1", "`2`", "`2`"),
    ("no divergence", "get('abc')", "`ValueError`", "`ValueError`"),
    ("original: the document says `1`", "hash(get('bool')) and 1", "`1`", "`1`"),
    ("castwise: the document says `2`", "hash(get('bool')) and 1", "`TypeError`", "`2`"),
    ("castwise: the document says", "deserialize({'class_name': 'Foo'})", "`'Foo'`", "`TypeError`"),
    (
        "castwise: the document says",
        "deserialize({'class_name': 'Foo'})",
        "`'Foo'`",
        '`ValueError` saying "Bar"',
    ),
]


@pytest.mark.parametrize(("problem", "call", "original", "mine"), WRONG_ROWS)
def test_a_wrong_row_fails(problem: str, call: str, original: str, mine: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(Row("Keras 3", call, original, mine, ""))


def test_bars_and_backticks_in_cells() -> None:
    line = r"""| `get('a\|b')` | `` `1` `` | `ValueError` saying "x" | Why. |"""
    assert cells(line) == ["`get('a|b')`", "`` `1` ``", '`ValueError` saying "x"', "Why."]
    assert [code(cell) for cell in cells(line)[:2]] == ["get('a|b')", "`1`"]
    for broken in ("| `1` | `1` |", "| call | is |"):
        text = "## Keras 3\n\n| call | original | castwise | why |\n|---|---|---|---|\n" + broken
        with pytest.raises(AssertionError, match="not four cells"):
            tables(text)
    with pytest.raises(AssertionError, match="another header"):
        tables("## Keras 3\n\n| call | is |\n|---|---|\n")
