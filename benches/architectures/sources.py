# ruff: noqa: D102, PLR0911, PLR0912, S101 - one case for each kind of node of a syntax tree
"""Follow the constructors of models through Python source, without importing any of it.

An expression stands for the set of values that it may have: what no source decides (the
configuration, the format, the machine) makes both branches of a condition count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any


class Mark(Enum):
    """What is known of a value that no constant states."""

    UNKNOWN = "unknown"
    INDEX = "the number of a layer, an expert or a block"
    QUANT = "the statement of the quantization"


UNKNOWN, INDEX, QUANT = Mark
Values = tuple[Any, ...]
ANY: Values = (UNKNOWN,)
DEPTH = 60
"""Calls in calls; constructors nest less deep, and a recursion ends here."""
MANY = 16
"""Values of one expression that are told apart."""

MACHINE = {
    **dict.fromkeys(("is_cuda", "is_cuda_alike", "is_first_rank", "is_last_rank"), True),
    **dict.fromkeys(
        [
            "is_rocm",
            "is_hip",
            "is_npu",
            "is_xpu",
            "is_cpu",
            "is_musa",
            "is_mps",
            "is_tpu",
            "is_hpu",
            "is_out_of_tree",
        ],
        False,
    ),
}
"""What asks for the machine: one process with one GPU of NVIDIA."""


@dataclass(eq=False, slots=True)
class External:
    """A name of a package whose source is not read."""

    name: str


@dataclass(eq=False)
class Items:
    """A list, a tuple or a module of numbered modules."""

    values: list[Values]
    is_layers: bool = False
    is_module: bool = False


@dataclass(eq=False)
class Table:
    """A dict, or a module of named modules."""

    values: dict[Any, Values]
    is_module: bool = False


@dataclass(eq=False)
class Function:
    """A function, with the variables around it and the object that it is bound to."""

    file: File
    node: ast.FunctionDef | ast.Lambda
    scope: dict[str, Values]
    instance: Any = None
    owner: Class | None = None


@dataclass(eq=False)
class Partial:
    """A function with its first arguments."""

    function: Any
    args: list[Values]
    keywords: dict[str, Values]


@dataclass(eq=False)
class Class:
    """A class of the source."""

    file: File
    node: ast.ClassDef
    scope: dict[str, Values]

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def members(self) -> dict[str, ast.AST]:
        statements: dict[str, ast.AST] = {}
        for statement in _flat(self.node.body):
            statements.update(dict.fromkeys(_targets(statement), statement))
        return statements


@dataclass(eq=False)
class Instance:
    """An object; `bound` holds the arguments of the constructor that the engine's layers end in."""

    kind: Class | External
    base: str = ""
    bound: dict[str, Values] = field(default_factory=dict)
    attributes: dict[str, Values] = field(default_factory=dict)


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """List statements, those of conditions too; the first branch comes last and wins."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flat(statement.orelse)
            yield from _flat(statement.body)
        elif isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _flat(handler.body)
            yield from _flat(statement.body)
        elif isinstance(statement, ast.With):
            yield from _flat(statement.body)
        else:
            yield statement


def _targets(statement: ast.AST) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(name.asname or name.name.split(".")[0]) for name in statement.names]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    return []


@dataclass(eq=False)
class File:
    """A module of the source."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text())

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        statements: dict[str, ast.stmt] = {}
        for statement in _flat(self.tree.body):
            statements.update(dict.fromkeys(_targets(statement), statement))
        return statements

    @cached_property
    def stars(self) -> list[ast.ImportFrom]:
        return [
            statement
            for statement in _flat(self.tree.body)
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        ]

    def absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        up = statement.level - (self.path.name == "__init__.py")
        return ".".join([*parts[: len(parts) - up], *filter(None, [statement.module])])


class _Return(Exception):  # noqa: N818  (no error)
    """The end of a branch: what follows is never reached."""


def union(*sets: Values) -> Values:
    """Return the values of sets, each once."""
    members: list[Any] = []
    for value in (value for values in sets for value in values):
        if not any(value is other or _is_same(value, other) for other in members):
            members.append(value)
    return tuple(members[:MANY]) if len(members) <= MANY else (*members[:MANY], UNKNOWN)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Class) and isinstance(other, Class):
        return value.node is other.node
    return type(value) is type(other) and isinstance(value, str | int) and value == other


class Interpreter:
    """Run constructors.

    Parameters
    ----------
    roots
        The folders of the packages by their names.
    ends
        Classes whose constructors are not followed: their arguments are recorded.
    natives
        Functions in whose place a method of this name runs: `(interpreter, args, keywords)`.

    """

    def __init__(
        self, roots: Mapping[str, Path], ends: Sequence[str], natives: Mapping[str, Any]
    ) -> None:
        self.roots, self.ends, self.natives = roots, ends, natives
        self.registry: Mapping[str, Class] = {}
        self.depth = 0
        self.uncertain = 0
        self._values: dict[tuple[int, str], Values] = {}

    # Names

    @cache  # noqa: B019  (one interpreter a process and engine)
    def file(self, name: str) -> File | None:
        root, *rest = name.split(".")
        if root not in self.roots:
            return None
        stem = self.roots[root].joinpath(*rest)
        for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
            if path.is_file():
                return File(name, path)
        return None

    def look_up(self, file: File, name: str) -> Values:
        """Return what a name of a module stands for."""
        key = (id(file), name)
        if key in self._values:
            return self._values[key]
        self._values[key] = ANY  # of a name that needs itself
        statement = file.names.get(name)
        if statement is None:
            for star in file.stars:
                source = self.file(file.absolute(star))
                if source is not None and (imports := self.look_up(source, name)) != ANY:
                    self._values[key] = imports
                    return imports
            del self._values[key]
            return self.builtin(name)
        values = self.define(file, statement, name, {}, None)
        self._values[key] = values
        return values

    def builtin(self, name: str) -> Values:
        return (External(name),) if name in {"object", "list", "tuple", "dict", "set"} else ANY

    def define(
        self, file: File, statement: ast.AST, name: str, scope: dict[str, Values], owner: Any
    ) -> Values:
        """Return what a statement makes a name stand for."""
        if isinstance(statement, ast.ClassDef):
            return (Class(file, statement, scope),)
        if isinstance(statement, ast.FunctionDef):
            return (Function(file, statement, scope, owner=owner),)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    return (External(alias.name if alias.asname else name),)
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return self.member(External(file.absolute(statement)), alias.name)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            return self.eval(statement.value, scope, file)
        return ANY

    def member(self, value: External, name: str) -> Values:
        file = self.file(value.name)
        if file is not None and (name in file.names or file.stars):
            values = self.look_up(file, name)
            if values != ANY or name in file.names:
                return values
        return (External(f"{value.name}.{name}"),)

    # Classes

    def bases(self, kind: Class) -> list[Any]:
        classes: list[Any] = []
        for base in kind.node.bases:
            call = base
            while isinstance(call, ast.Call):  # a function of a class that returns a class
                call = call.args[0] if call.args else call.func
            if isinstance(call, ast.Subscript):
                call = call.value
            values = self.eval(call, kind.scope, kind.file)
            classes += [value for value in values if isinstance(value, Class | External)][:1]
        return classes

    def mro(self, kind: Any) -> list[Any]:
        """Return a class and its bases in the order of look-ups."""
        orders = self.__dict__.setdefault("_mros", {})
        if not isinstance(kind, Class):
            return [kind]
        key = id(kind.node)
        if key not in orders:
            orders[key] = [kind]
            bases = self.bases(kind)
            orders[key] = [kind, *_merge([*[list(self.mro(base)) for base in bases], bases])]
        return [kind, *orders[key][1:]]

    def is_module(self, kind: Any) -> bool:
        return any(
            isinstance(base, External)
            and base.name.rpartition(".")[2] in {"Module", "ModuleList", "PreTrainedModel"}
            for base in self.mro(kind)
        )

    def class_member(self, kind: Any, name: str, after: Any = None, instance: Any = None) -> Values:
        """Return a member of a class or of its bases, those after one if it is named."""
        order = self.mro(kind)
        if after is not None:
            places = [i for i, base in enumerate(order) if _is_same(base, after) or base is after]
            order = order[places[0] + 1 :] if places else []
        for base in order:
            if isinstance(base, Class) and name in base.members:
                statement = base.members[name]
                values = self.define(base.file, statement, name, base.scope, base)
                decorators = {
                    ast.unparse(decorator) for decorator in getattr(statement, "decorator_list", ())
                }
                if "property" in decorators or any("cached_property" in d for d in decorators):
                    bound = [
                        Function(v.file, v.node, v.scope, instance, base)
                        for v in values
                        if isinstance(v, Function)
                    ]
                    return union(*(self.call(function, [], {}) for function in bound)) or ANY
                if instance is not None and "staticmethod" not in decorators:
                    return tuple(
                        Function(v.file, v.node, v.scope, instance, base)
                        if isinstance(v, Function)
                        else v
                        for v in values
                    )
                return values
        return ()

    # Calls

    def bind(
        self, function: Function, args: list[Values], keywords: dict[str, Values]
    ) -> dict[str, Values]:
        """Return the variables of a call."""
        node = function.node.args
        scope: dict[str, Values] = {}
        names = [argument.arg for argument in (*node.posonlyargs, *node.args)]
        first = [] if function.instance is None else [(function.instance,)]
        for name, values in zip(names, [*first, *args], strict=False):
            scope[name] = values
        if node.vararg is not None:
            rest = [*first, *args][len(names) :]
            scope[node.vararg.arg] = (Items(rest),)
        extra_keywords: dict[Any, Values] = {}
        parameter_names = {*names, *(argument.arg for argument in node.kwonlyargs)}
        for name, values in keywords.items():
            if name in parameter_names:
                scope[name] = values
            else:
                extra_keywords[name] = values
        if node.kwarg is not None:
            scope[node.kwarg.arg] = (Table(extra_keywords),)
        defaults = list(zip(reversed(names), reversed(node.defaults), strict=False)) + [
            (argument.arg, default)
            for argument, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
            if default is not None
        ]
        for name, default in defaults:
            if name not in scope:
                scope[name] = self.eval(default, function.scope, function.file)
        for name in parameter_names:
            scope.setdefault(name, (QUANT,) if name == "quant_config" else ANY)
        return scope

    def call(self, function: Any, args: list[Values], keywords: dict[str, Values]) -> Values:
        """Return what a call returns."""
        if isinstance(function, Partial):
            return self.call(
                function.function, [*function.args, *args], {**function.keywords, **keywords}
            )
        name = _name(function)
        if name in MACHINE:
            return (MACHINE[name],)
        if name in self.natives:
            return self.natives[name](self, args, keywords)  # type: ignore[no-any-return]
        if isinstance(function, Class):
            return (self.construct(function, args, keywords),)
        if isinstance(function, External):
            return self.call_external(function, args, keywords)
        if not isinstance(function, Function) or self.depth > DEPTH:
            return ANY
        scope = {**function.scope, **self.bind(function, args, keywords)}
        scope["__class__"] = (function.owner,)
        self.depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.eval(function.node.body, scope, function.file)
            results: list[Values] = []
            self.run(function.node.body, scope, function.file, results)
            return union(*results) if results else (None,)
        finally:
            self.depth -= 1

    def call_external(
        self, function: External, args: list[Values], keywords: dict[str, Values]
    ) -> Values:
        name = function.name.rpartition(".")[2]
        if name == "partial" and args:
            return tuple(Partial(value, args[1:], keywords) for value in args[0])
        if name in {"ModuleList", "Sequential", "list", "tuple"}:
            values = args[0] if len(args) == 1 else (Items(args),)
            parts = [part for value in values for part in self.iterate(value)]
            return (Items(parts, is_module=name in {"ModuleList", "Sequential"}),)
        if name in {"ModuleDict", "dict", "OrderedDict"}:
            tables = [value for value in (args[0] if args else ()) if isinstance(value, Table)]
            members = {key: values for table in tables for key, values in table.values.items()}
            return (Table({**members, **keywords}, is_module=name == "ModuleDict"),)
        if name in {"empty", "zeros", "ones", "rand", "randn"}:
            shape = keywords.get("size") or keywords.get("shape") or _shape(args)
            return (Instance(function, "tensor", {"axes": shape}),)
        if function.name.startswith(("torch.nn.", "mlx.nn.")) or "transformers" in function.name:
            data = {"data": args[0]} if args else {}
            return (Instance(function, name, {**data, **keywords}),)
        return ANY

    def construct(self, kind: Class, args: list[Values], keywords: dict[str, Values]) -> Any:
        instance = Instance(kind)
        if self.depth > DEPTH:
            return UNKNOWN
        if not self.is_module(kind):
            fields = [
                statement.target.id
                for statement in kind.node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            ]
            instance.attributes = {**dict(zip(fields, args, strict=False)), **keywords}
            return instance
        names = {base.name for base in self.mro(kind) if isinstance(base, Class)}
        if "SupportsQuant" in names:  # its `__new__` takes the statement from the arguments
            instance.attributes["quant_config"] = keywords.get("quant_config", (QUANT,))
        if "CustomOp" not in names:
            self.construct_base(instance, kind, None, args, keywords)
        return instance

    def construct_base(
        self,
        instance: Instance,
        kind: Any,
        after: Any,
        args: list[Values],
        keywords: dict[str, Values],
    ) -> None:
        """Run the constructor of a class, or the next one after a class."""
        order = self.mro(kind)
        if after is not None:
            places = [i for i, base in enumerate(order) if base is after or _is_same(base, after)]
            order = order[places[0] + 1 :] if places else []
        for base in order:
            if not isinstance(base, Class) or "__init__" not in base.members:
                continue
            statement = base.members["__init__"]
            if not isinstance(statement, ast.FunctionDef):
                return
            function = Function(base.file, statement, base.scope, instance, base)
            if base.name in self.ends:
                instance.base = instance.base or base.name
                instance.bound = self.bind(function, args, keywords)
                return
            self.call(function, args, keywords)
            return

    # Statements

    def run(
        self, body: Sequence[ast.stmt], scope: dict[str, Values], file: File, out: list[Values]
    ) -> bool:
        """Run statements; True if their end is never reached."""
        return any(self.step(statement, scope, file, out) for statement in body)

    def step(
        self, statement: ast.stmt, scope: dict[str, Values], file: File, out: list[Values]
    ) -> bool:
        match statement:
            case ast.Return():
                out.append(
                    (None,) if statement.value is None else self.eval(statement.value, scope, file)
                )
                return True
            case ast.Raise():
                return True
            case ast.Assign():
                values = self.eval(statement.value, scope, file)
                for target in statement.targets:
                    self.assign(target, values, scope, file)
            case ast.AnnAssign():
                if statement.value is not None:
                    self.assign(
                        statement.target, self.eval(statement.value, scope, file), scope, file
                    )
            case ast.AugAssign():
                left = ast.copy_location(
                    ast.BinOp(_load(statement.target), statement.op, statement.value), statement
                )
                self.assign(statement.target, self.eval(left, scope, file), scope, file)
            case ast.Expr():
                self.eval(statement.value, scope, file)
            case ast.If():
                return self.branch(statement, scope, file, out)
            case ast.For():
                self.loop(statement, scope, file, out)
            case ast.While():
                self.maybe([statement.body], scope, file, out)
            case ast.With():
                for item in statement.items:
                    values = self.eval(item.context_expr, scope, file)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, values, scope, file)
                return self.run(statement.body, scope, file, out)
            case ast.Try():
                is_end = self.run(statement.body, scope, file, out)
                self.maybe([handler.body for handler in statement.handlers], scope, file, out)
                return is_end
            case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                for name in _targets(statement):
                    scope[name] = self.define(file, statement, name, scope, None)
        return False

    def branch(
        self, statement: ast.If, scope: dict[str, Values], file: File, out: list[Values]
    ) -> bool:
        truth = self.truth(statement.test, scope, file)
        if truth is True:
            return self.run(statement.body, scope, file, out)
        if truth is False:
            return self.run(statement.orelse, scope, file, out)
        return self.maybe([statement.body, statement.orelse], scope, file, out)

    def maybe(
        self,
        bodies: Sequence[Sequence[ast.stmt]],
        scope: dict[str, Values],
        file: File,
        out: list[Values],
    ) -> bool:
        """Run each body, of which no source says which one runs."""
        scopes = []
        self.uncertain += 1
        for body in bodies:
            inner = dict(scope)
            if not self.run(body, inner, file, out):
                scopes.append(inner)
        self.uncertain -= 1
        if len(bodies) == 1:
            scopes.append(dict(scope))
        for name in {name for inner in scopes for name in inner}:
            scope[name] = union(*(inner[name] for inner in scopes if name in inner))
        return not scopes

    def loop(
        self, statement: ast.For, scope: dict[str, Values], file: File, out: list[Values]
    ) -> None:
        for part in self.parts(statement.iter, scope, file):
            self.assign(statement.target, part, scope, file)
            self.run(statement.body, scope, file, out)

    def parts(self, node: ast.expr, scope: dict[str, Values], file: File) -> list[Values]:
        """Return what a loop goes over: the elements of what is known, else one index."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "range":
                return [(INDEX,)]
            if node.func.id == "enumerate":
                inner = self.parts(node.args[0], scope, file)
                return [(Items([(INDEX,), part]),) for part in inner]
            if node.func.id == "zip":
                columns = [self.parts(arg, scope, file) for arg in node.args]
                return [(Items(list(part)),) for part in zip(*columns, strict=False)]
        return [p for value in self.eval(node, scope, file) for p in self.iterate(value)]

    def iterate(self, value: Any) -> list[Values]:
        if isinstance(value, Items):
            return value.values[:MANY]
        if isinstance(value, Table):
            return [(key,) for key in value.values]
        return [ANY]

    def assign(
        self, target: ast.expr, values: Values, scope: dict[str, Values], file: File
    ) -> None:
        match target:
            case ast.Name():
                scope[target.id] = values
            case ast.Attribute():
                for value in self.eval(target.value, scope, file):
                    if isinstance(value, Instance):
                        self.set_attribute(value, target.attr, values)
            case ast.Tuple() | ast.List():
                self.unpack(target.elts, values, scope, file)
            case ast.Subscript():
                keys = self.eval(target.slice, scope, file)
                for value in self.eval(target.value, scope, file):
                    if isinstance(value, Table):
                        for key in keys:
                            value.values[key] = union(value.values.get(key, ()), values)
                    elif isinstance(value, Items):
                        value.values.append(values)

    def set_attribute(self, value: Instance, name: str, values: Values) -> None:
        before = value.attributes.get(name, ()) if self.uncertain else ()
        value.attributes[name] = union(before, values)

    def unpack(
        self, targets: list[ast.expr], values: Values, scope: dict[str, Values], file: File
    ) -> None:
        layers = [value for value in values if isinstance(value, Items) and value.is_layers]
        for place, target in enumerate(targets):
            if layers:  # `make_layers` returns numbers beside the modules
                name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                number = re.search(r"start|end", name)
                self.assign(target, ANY if number else tuple(layers), scope, file)
                continue
            parts = [
                value.values[place]
                for value in values
                if isinstance(value, Items) and place < len(value.values)
            ]
            self.assign(target, union(*parts) if parts else ANY, scope, file)

    # Expressions

    def truth(self, node: ast.expr, scope: dict[str, Values], file: File) -> bool | None:
        """Return whether a condition holds; None if no source decides it."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                inner = self.truth(node.operand, scope, file)
                return None if inner is None else not inner
            case ast.BoolOp():
                parts = [self.truth(value, scope, file) for value in node.values]
                ends = isinstance(node.op, ast.Or)
                if ends in parts:
                    return ends
                return None if None in parts else not ends
            case ast.Compare(ops=[op]):
                left = self.eval(node.left, scope, file)
                right = self.eval(node.comparators[0], scope, file)
                return _agree(_compare(op, a, b) for a in left for b in right)
            case ast.Compare() | ast.UnaryOp():
                return None
        return _agree(_truth(value) for value in self.eval(node, scope, file))

    def eval(self, node: ast.expr, scope: dict[str, Values], file: File) -> Values:
        """Return the values that an expression may have."""
        match node:
            case ast.Constant():
                return (node.value,)
            case ast.Name():
                if node.id in scope:
                    return scope[node.id]
                return self.look_up(file, node.id)
            case ast.Attribute():
                values = self.eval(node.value, scope, file)
                return union(*(self.attribute(value, node.attr) for value in values))
            case ast.JoinedStr():
                return self.text(node, scope, file)
            case ast.Call():
                return self.eval_call(node, scope, file)
            case ast.IfExp():
                truth = self.truth(node.test, scope, file)
                body = () if truth is False else self.eval(node.body, scope, file)
                orelse = () if truth is True else self.eval(node.orelse, scope, file)
                return union(body, orelse)
            case ast.BoolOp():
                results: Values = ()
                for part in node.values:
                    values = self.eval(part, scope, file)
                    truths = [(value, _truth(value)) for value in values]
                    stops = isinstance(node.op, ast.Or)
                    results = union(
                        results, tuple(v for v, truth in truths if truth in (None, stops))
                    )
                    if all(truth is stops for _, truth in truths):
                        return results
                return union(results, tuple(v for v, truth in truths if truth is not stops))
            case ast.Lambda():
                return (Function(file, node, scope),)
            case ast.List() | ast.Tuple() | ast.Set():
                parts: list[Values] = []
                for part in node.elts:
                    if isinstance(part, ast.Starred):
                        for value in self.eval(part.value, scope, file):
                            parts += self.iterate(value)
                    else:
                        parts.append(self.eval(part, scope, file))
                return (Items(parts),)
            case ast.Dict():
                return (self.table(node, scope, file),)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return (Items(self.comprehend(node.generators, node.elt, dict(scope), file)),)
            case ast.DictComp():
                pair = ast.Tuple([node.key, node.value], ast.Load())
                members: dict[Any, Values] = {}
                for values in self.comprehend(node.generators, pair, dict(scope), file):
                    for key in values[0].values[0]:
                        members[key] = values[0].values[1]
                return (Table(members),)
            case ast.Subscript():
                return self.subscript(node, scope, file)
            case ast.BinOp():
                return self.operate(node, scope, file)
            case ast.NamedExpr():
                values = self.eval(node.value, scope, file)
                self.assign(node.target, values, scope, file)
                return values
            case ast.Compare() | ast.UnaryOp():
                truth = self.truth(node, scope, file)
                return ANY if truth is None else (truth,)
            case ast.Starred() | ast.Await():
                return self.eval(node.value, scope, file)
        return ANY

    def table(self, node: ast.Dict, scope: dict[str, Values], file: File) -> Table:
        members: dict[Any, Values] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            values = self.eval(part, scope, file)
            if key is None:
                for value in values:
                    members.update(value.values if isinstance(value, Table) else {})
            else:
                for name in self.eval(key, scope, file):
                    members[name] = values
        return Table(members)

    def comprehend(
        self,
        generators: list[ast.comprehension],
        element: ast.expr,
        scope: dict[str, Values],
        file: File,
    ) -> list[Values]:
        if not generators:
            return [self.eval(element, scope, file)]
        first, *rest = generators
        elements = []
        for part in self.parts(first.iter, scope, file):
            self.assign(first.target, part, scope, file)
            if all(self.truth(test, scope, file) is not False for test in first.ifs):
                elements += self.comprehend(rest, element, scope, file)
        return elements

    def text(self, node: ast.JoinedStr, scope: dict[str, Values], file: File) -> Values:
        texts = [""]
        for part in node.values:
            if isinstance(part, ast.Constant):
                ends = [str(part.value)]
            else:
                assert isinstance(part, ast.FormattedValue)
                values = self.eval(part.value, scope, file)
                guess = "#" if _is_index(part.value) else "?"
                ends = [
                    value
                    if isinstance(value, str)
                    else ("#" if value is INDEX or isinstance(value, int) else guess)
                    for value in values
                ]
            texts = [text + end for text in texts for end in dict.fromkeys(ends)][:MANY]
        return tuple(dict.fromkeys(texts))

    def operate(self, node: ast.BinOp, scope: dict[str, Values], file: File) -> Values:
        lefts, rights = self.eval(node.left, scope, file), self.eval(node.right, scope, file)
        results: list[Any] = []
        for a in lefts:
            for b in rights:
                if isinstance(node.op, ast.Add) and isinstance(a, str):
                    results.append(
                        a + b if isinstance(b, str) else a + ("#" if b is INDEX else "?")
                    )
                elif isinstance(node.op, ast.Add) and isinstance(a, Items) and isinstance(b, Items):
                    results.append(Items(a.values + b.values))
                elif isinstance(node.op, ast.Mult) and isinstance(a, Items):
                    results.append(a)
                elif isinstance(node.op, ast.BitOr):
                    results.append(_merge_records(a, b))
                else:
                    results.append(INDEX if INDEX in (a, b) else UNKNOWN)
        return union(tuple(results))

    def subscript(self, node: ast.Subscript, scope: dict[str, Values], file: File) -> Values:
        keys = self.eval(node.slice, scope, file)
        items: Values = ()
        for value in self.eval(node.value, scope, file):
            if isinstance(value, Table):
                members = [value.values[k] for k in keys if _hashable(k) and k in value.values]
                items = union(items, *(members or value.values.values()))
            elif isinstance(value, Items):
                members = [
                    value.values[key]
                    for key in keys
                    if isinstance(key, int) and -len(value.values) <= key < len(value.values)
                ]
                items = union(items, *(members or value.values))
            elif isinstance(value, Class | External):
                items = union(items, (value,))  # a generic class
            else:
                items = union(items, ANY)
        return items or ANY

    def attribute(self, value: Any, name: str) -> Values:
        """Return an attribute of a value."""
        if name == "__class__" and isinstance(value, Instance):
            return (value.kind,)
        if isinstance(value, Instance):
            if name in value.attributes:
                return value.attributes[name]
            members = self.class_member(value.kind, name, instance=value)
            if members:
                return members
        if isinstance(value, Class):
            members = self.class_member(value, name)
            if members:
                return members
        if isinstance(value, External):
            if name in MACHINE:
                return (External(name),)
            return self.member(value, name)
        if isinstance(value, str | Items | Table) and not name.startswith("_"):
            return (_Method(value, name),)
        if name in MACHINE:
            return (MACHINE[name],) if name.endswith("rank") else (External(name),)
        return (QUANT,) if name == "quant_config" else ANY

    def eval_call(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        if isinstance(node.func, ast.Name) and node.func.id not in scope:
            special = getattr(self, f"builtin_{node.func.id}", None)
            if special is not None:
                return special(node, scope, file)  # type: ignore[no-any-return]
        args: list[Values] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                for value in self.eval(arg.value, scope, file):
                    args += self.iterate(value)
            else:
                args.append(self.eval(arg, scope, file))
        keywords: dict[str, Values] = {}
        for keyword in node.keywords:
            values = self.eval(keyword.value, scope, file)
            if keyword.arg is not None:
                keywords[keyword.arg] = values
            else:
                for value in values:
                    if isinstance(value, Table):
                        for key, part in value.values.items():
                            keywords[key] = union(keywords.get(key, ()), part)
        if (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Call)
            and isinstance(node.func.value.func, ast.Name)
            and node.func.value.func.id == "super"
        ):
            return self.call_super(node.func, args, keywords, scope, file)
        functions = self.eval(node.func, scope, file)
        results = []
        for function in functions:
            if isinstance(function, _Method):
                results.append(function.call(args))
            elif function is UNKNOWN or function is QUANT:
                results.append((self.opaque(node, args, keywords),))
            elif (
                isinstance(function, Function)
                and isinstance(function.node, ast.FunctionDef)
                and function.node.name == "__init__"
                and function.instance is None
                and args
            ):
                for instance in args[0]:
                    if isinstance(instance, Instance):
                        self.construct_base(instance, function.owner, None, args[1:], keywords)
            else:
                results.append(self.call(function, args, keywords))
        return union(*results) or ANY

    def opaque(self, node: ast.Call, args: list[Values], keywords: dict[str, Values]) -> Any:
        """Return what a call of something unknown makes: a module, if it gets a prefix."""
        if {"prefix", "quant_config"} & keywords.keys() and not isinstance(
            node.func, ast.Attribute
        ):
            instance = Instance(External(ast.unparse(node.func)), "opaque")
            instance.bound = dict(keywords)
            return instance
        return UNKNOWN

    def call_super(
        self,
        function: ast.Attribute,
        args: list[Values],
        keywords: dict[str, Values],
        scope: dict[str, Values],
        file: File,
    ) -> Values:
        call = function.value
        assert isinstance(call, ast.Call)
        owner = scope.get("__class__", (None,))[0]
        if call.args:
            owner = self.eval(call.args[0], scope, file)[0]
        me = next(iter(scope.get("self", ())), None)
        if not isinstance(me, Instance) or not isinstance(owner, Class):
            return ANY
        if function.attr == "__init__":
            self.construct_base(me, me.kind, owner, args, keywords)
            return (None,)
        methods = self.class_member(me.kind, function.attr, owner, me)
        return union(*(self.call(value, args, keywords) for value in methods)) or ANY

    # Builtin functions

    def builtin_getattr(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        names = self.eval(node.args[1], scope, file)
        members: Values = ()
        for value in self.eval(node.args[0], scope, file):
            for name in names:
                members = union(
                    members, self.attribute(value, name) if isinstance(name, str) else ANY
                )
        return members

    def builtin_setattr(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        new_values = self.eval(node.args[2], scope, file)
        for value in self.eval(node.args[0], scope, file):
            for name in self.eval(node.args[1], scope, file):
                if isinstance(value, Instance) and isinstance(name, str):
                    value.attributes[name] = union(value.attributes.get(name, ()), new_values)
        return (None,)

    def builtin_hasattr(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        return ANY

    def builtin_isinstance(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        return ANY

    def builtin_str(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        values = self.eval(node.args[0], scope, file) if node.args else ("",)
        return tuple("#" if v is INDEX else v if isinstance(v, str) else "?" for v in values)

    def builtin_type(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        values = self.eval(node.args[0], scope, file)
        return tuple(v.kind if isinstance(v, Instance) else UNKNOWN for v in values)

    def builtin_super(self, node: ast.Call, scope: dict[str, Values], file: File) -> Values:
        return scope.get("self", ANY)


@dataclass(eq=False)
class _Method:
    """A method of a text, a list or a dict."""

    value: Any
    name: str

    def call(self, args: list[Values]) -> Values:
        match self.value:
            case str():
                return self._call_text(args)
            case Items():
                if self.name == "append" and args:
                    self.value.values.append(args[0])
                elif self.name in {"extend", "__iadd__"} and args:
                    for value in args[0]:
                        self.value.values += value.values if isinstance(value, Items) else [ANY]
                return ANY
            case Table():
                if self.name == "items":
                    return (Items([(Items([(k,), v]),) for k, v in self.value.values.items()]),)
                if self.name == "values":
                    return (Items(list(self.value.values.values())),)
                if self.name == "get" and args:
                    hits = [self.value.values[k] for k in args[0] if k in self.value.values]
                    return union(*(hits or self.value.values.values())) or ANY
                if self.name == "update" and args:
                    for value in args[0]:
                        if isinstance(value, Table):
                            self.value.values.update(value.values)
        return ANY

    def _call_text(self, args: list[Values]) -> Values:
        plain = [_plain(arg) for arg in args]
        if None in plain or self.name == "join" or not hasattr(self.value, self.name):
            return ANY
        try:
            result = getattr(self.value, self.name)(*plain)
        except (TypeError, ValueError, IndexError, KeyError):
            return ANY
        return (Items([(part,) for part in result]) if isinstance(result, list) else result,)


def _plain(values: Values) -> Any:
    """Return the one text, number or tuple of texts that values are; None if they are not."""
    if len(values) != 1:
        return None
    if isinstance(values[0], Items):
        parts = tuple(_plain(part) for part in values[0].values)
        return None if None in parts else parts
    return values[0] if isinstance(values[0], str | int) else None


def _merge_records(a: Any, b: Any) -> Any:
    """Return the union of two dicts, or of two objects of dicts."""
    if isinstance(a, Table) and isinstance(b, Table):
        return Table({**a.values, **b.values})
    if isinstance(a, Instance) and isinstance(b, Instance):
        record = Instance(a.kind)
        for name in dict.fromkeys([*a.attributes, *b.attributes]):
            tables = [
                value
                for one in (a, b)
                for value in one.attributes.get(name, ())
                if isinstance(value, Table)
            ]
            record.attributes[name] = (
                Table({key: values for table in tables for key, values in table.values.items()}),
            )
        return record
    return a if isinstance(a, Instance) else b if isinstance(b, Instance) else UNKNOWN


def _merge(lists: list[list[Any]]) -> list[Any]:
    """Merge the orders of bases (C3); of a contradiction the first wins."""
    merged_order: list[Any] = []
    lists = [list(order) for order in lists if order]
    while lists:
        heads = [order[0] for order in lists]
        head = next(
            (h for h in heads if not any(_key(h) in map(_key, o[1:]) for o in lists)), heads[0]
        )
        merged_order.append(head)
        lists = [
            rest
            for order in lists
            if (rest := [base for base in order if _key(base) != _key(head)])
        ]
    return merged_order


def _key(base: Any) -> Any:
    return id(base.node) if isinstance(base, Class) else base.name


def _shape(args: list[Values]) -> Values:
    """Return the shape of a tensor of these sizes."""
    if len(args) == 1 and any(isinstance(value, Items) for value in args[0]):
        return args[0]
    return (Items(args),)


def _name(function: Any) -> str:
    match function:
        case Class():
            return function.node.name
        case Function(node=ast.FunctionDef()):
            return function.node.name  # type: ignore[union-attr]
        case External():
            return function.name.rpartition(".")[2]
    return ""


def _load(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _hashable(value: Any) -> bool:
    return value.__hash__ is not None


def _is_index(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return (
        re.search(r"(?:^|[._])(?:i|j|n|idx|index|layer_?id|layer_?idx|layer_num|num)$", text)
        is not None
    )


def _truth(value: Any) -> bool | None:
    if value is UNKNOWN or value is INDEX:
        return None
    if isinstance(value, Items | Table):
        return None
    return True if isinstance(value, Mark) else bool(value)


def _compare(op: ast.cmpop, a: Any, b: Any) -> bool | None:
    if UNKNOWN in (a, b) or INDEX in (a, b):
        return None
    match op:
        case ast.Is() | ast.IsNot():
            if a is None or b is None:
                is_same = a is b
                return is_same if isinstance(op, ast.Is) else not is_same
        case ast.In() | ast.NotIn() if isinstance(a, str):
            if isinstance(b, str):
                return (a in b) == isinstance(op, ast.In)
            if isinstance(b, Items) and all(isinstance(v, str) for vs in b.values for v in vs):
                return any(a in values for values in b.values) == isinstance(op, ast.In)
        case ast.Eq() | ast.NotEq():
            if isinstance(a, str | int | None) and isinstance(b, str | int | None):
                if isinstance(a, str) and isinstance(b, str) and ("?" in a + b or "#" in a + b):
                    return None
                return (a == b) == isinstance(op, ast.Eq)
    return None


def _agree(truths: Iterable[bool | None]) -> bool | None:
    distinct_truths = set(truths)
    return distinct_truths.pop() if len(distinct_truths) == 1 else None
