"""Find the variables and layers in a layer's attributes, also in lists and dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from castwise.autocast._variable import AutoCastVariable


class Holder:
    """An object with variables and other holders in its attributes."""

    _variables: list[AutoCastVariable]
    _trainable: bool

    def __setattr__(self, name: str, value: object) -> None:
        previous = vars(self).get(name)
        if isinstance(value, AutoCastVariable | Holder):
            self._check_new(name, value)
        super().__setattr__(name, value)
        if previous is not value and self._forgets_replaced():
            self._forget(previous, [value] if isinstance(value, AutoCastVariable) else [])

    def __delattr__(self, name: str) -> None:
        previous = vars(self).get(name)
        super().__delattr__(name)
        self._forget(previous, [])

    def _check_new(self, name: str, value: AutoCastVariable | Holder) -> None:
        """Raise ValueError if the holder accepts no further variable or holder."""

    def _forgets_replaced(self) -> bool:
        """Tell whether a variable is forgotten when its attribute gets another value."""
        return False

    def _forget(self, value: object, instead: list[AutoCastVariable]) -> None:
        """Forget a variable that is no longer an attribute; `instead` takes its place."""
        if not isinstance(value, AutoCastVariable):
            return
        if not any(value is other for other in vars(self).values()):
            places = [instead if variable is value else [variable] for variable in self._variables]
            self._variables[:] = [variable for place in places for variable in place]

    @property
    def trainable(self) -> bool:
        """Whether an optimizer is to change its weights; setting it sets all below, too."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for member in _members_below(self):
            if isinstance(member, Holder):
                member._trainable = bool(value)
            else:
                member.trainable = bool(value)

    @property
    def variables(self) -> list[AutoCastVariable]:
        """Its weights, trainable ones first, then those of the layers that it holds."""
        return [member for member in _members_below(self) if isinstance(member, AutoCastVariable)]

    @property
    def weights(self) -> list[AutoCastVariable]:
        """The same as `variables`."""
        return self.variables

    @property
    def trainable_variables(self) -> list[AutoCastVariable]:
        """The weights that an optimizer is to change."""
        return [member for member in self.variables if member.trainable] if self._trainable else []

    @property
    def trainable_weights(self) -> list[AutoCastVariable]:
        """The same as `trainable_variables`."""
        return self.trainable_variables


def _members_below(top: Holder) -> Iterator[Holder | AutoCastVariable]:
    """Yield the holder, its variables, then its layers with theirs; each once."""
    ids: set[int] = set()

    def walk(holder: Holder) -> Iterator[Holder | AutoCastVariable]:
        ids.add(id(holder))
        yield holder
        members = list(held_by(holder))
        variables = [value for value in members if isinstance(value, AutoCastVariable)]
        for variable in sorted(variables, key=lambda variable: not variable.trainable):
            if id(variable) not in ids:
                ids.add(id(variable))
                yield variable
        for value in members:
            if isinstance(value, Holder) and id(value) not in ids:
                yield from walk(value)

    return walk(top)


def held_by(holder: Holder) -> Iterator[Holder | AutoCastVariable]:
    """Yield variables and holders in the attributes, in order: first those of `_variables`."""
    ids: set[int] = set()

    def walk(value: object) -> Iterator[Holder | AutoCastVariable]:
        if isinstance(value, AutoCastVariable | Holder):
            yield value
        elif isinstance(value, Mapping | list | tuple) and id(value) not in ids:
            ids.add(id(value))
            for child in list(value.values() if isinstance(value, Mapping) else value):
                yield from walk(child)

    attributes = vars(holder)
    for name in sorted(attributes, key=lambda name: name != "_variables"):
        yield from walk(attributes[name])
