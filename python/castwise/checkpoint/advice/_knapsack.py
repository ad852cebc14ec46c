"""Choose one option of each group: the least cost in all whose weights fit under a limit.

The multiple-choice knapsack. Options above the lower convex hull of their group are in no solution
of the relaxed problem; its edges, sorted by slope and taken from the steepest on, solve it (Sinha
and Zoltners, "The multiple-choice knapsack problem", 1979). What that leaves between its bound and
the whole solution is searched exactly, among options whose reduced cost is within the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

# Partial solutions that the exact search looks at, at most.
_NODES = 50_000

# Groups whose options are tried together, at most.
_DEPTH = 500

# Sums of costs differ by that, relatively, without one being less.
_ROUNDING = 1e-9


class Option(NamedTuple):
    """What a group may become: what it costs, and what counts towards the limit."""

    cost: float
    weight: float


class Edge(NamedTuple):
    """A step of a group along its hull, from an option to the next heavier one."""

    group: int
    start: int
    end: int
    cost: float
    weight: float

    @property
    def slope(self) -> float:
        """How much a unit of weight saves."""
        return -self.cost / self.weight


@dataclass(frozen=True, slots=True)
class Solution:
    """The choice of an option for each group, by its index, with their sums."""

    indices: tuple[int, ...]
    cost: float
    weight: float
    gap: float  # by how much the cost is above the least one, at most; 0 if it is proved


def hull(options: Sequence[Option]) -> list[int]:
    """Return the options on the lower convex hull, from the lightest on; each costs less."""
    order = sorted(
        range(len(options)), key=lambda index: (options[index].weight, options[index].cost)
    )
    corners: list[int] = []
    for index in order:
        option = options[index]
        if corners and option.cost >= options[corners[-1]].cost:
            continue
        while len(corners) > 1 and not _turns(options[corners[-2]], options[corners[-1]], option):
            corners.pop()
        corners.append(index)
    return corners


def _turns(light: Option, middle: Option, heavy: Option) -> bool:
    """Return True if the middle one is below the line between the others."""
    # Slopes are compared by products: equal weights would divide by 0.
    light_slope = (light.cost - middle.cost) * (heavy.weight - middle.weight)
    heavy_slope = (middle.cost - heavy.cost) * (middle.weight - light.weight)
    return light_slope > heavy_slope


def edges(groups: Sequence[Sequence[Option]], hulls: Sequence[Sequence[int]]) -> list[Edge]:
    """Return the steps of all groups along their hulls, those that save most by weight first."""
    steps: list[Edge] = []
    for number, (options, indices) in enumerate(zip(groups, hulls, strict=True)):
        for start, end in pairwise(indices):
            cost = options[end].cost - options[start].cost
            steps.append(
                Edge(number, start, end, cost, options[end].weight - options[start].weight)
            )
    return sorted(steps, key=lambda edge: -edge.slope)


def solve(groups: Sequence[Sequence[Option]], limit: float) -> Solution | None:
    """Choose an option of each group; None if even the lightest ones are above the limit."""
    hulls = [hull(options) for options in groups]
    indices = [corners[0] for corners in hulls]
    weight = sum(options[index].weight for options, index in zip(groups, indices, strict=True))
    if weight > limit:
        return None
    cost = sum(options[index].cost for options, index in zip(groups, indices, strict=True))
    least_cost, slope, is_full = cost, 0.0, False
    relaxed_weight = weight
    for edge in edges(groups, hulls):
        if not is_full and relaxed_weight + edge.weight > limit:
            # The relaxed problem takes a part of this step, and stops.
            least_cost += edge.cost * (limit - relaxed_weight) / edge.weight
            slope, is_full = edge.slope, True
        if not is_full:
            relaxed_weight += edge.weight
            least_cost += edge.cost
        if weight + edge.weight <= limit and indices[edge.group] == edge.start:
            indices[edge.group] = edge.end
            weight, cost = weight + edge.weight, cost + edge.cost
    if not is_full:
        return Solution(tuple(indices), cost, weight, 0.0)
    solution = Solution(tuple(indices), cost, weight, max(cost - least_cost, 0.0))
    return _MarginSearch(groups, limit, slope, solution).finish()


class _MarginSearch:
    """The search for the least cost among options whose reduced cost is within the gap."""

    def __init__(
        self, groups: Sequence[Sequence[Option]], limit: float, slope: float, solution: Solution
    ) -> None:
        self._groups, self._limit, self._slope = groups, limit, slope
        self._best = solution
        reduced_costs = [
            [option.cost + slope * option.weight for option in options] for options in groups
        ]
        least = [min(costs) for costs in reduced_costs]
        self._least_cost = sum(least) - slope * limit
        gap = max(solution.cost - self._least_cost, 0.0)  # which rounding may leave below 0
        self._candidates = [
            sorted(
                (cost - low, index)
                for index, cost in enumerate(costs)
                if cost - low <= gap * (1 + _ROUNDING)
            )
            for costs, low in zip(reduced_costs, least, strict=True)
        ]
        # Those with the most at stake first.
        self._order = sorted(
            (number for number, rows in enumerate(self._candidates) if len(rows) > 1),
            key=lambda number: -self._candidates[number][-1][0],
        )
        self._indices = [rows[0][1] for rows in self._candidates]
        single_options = [
            options[index]
            for options, index, rows in zip(groups, self._indices, self._candidates, strict=True)
            if len(rows) == 1
        ]
        self._weight = sum(option.weight for option in single_options)
        self._cost = sum(option.cost for option in single_options)
        lightest = [
            min(groups[number][index].weight for _, index in self._candidates[number])
            for number in self._order
        ]
        self._lightest_after = [*accumulate(reversed(lightest), initial=0.0)][::-1]
        self._nodes = 1

    def finish(self) -> Solution:
        """Return the best solution, with the gap that is left."""
        is_whole = len(self._order) <= _DEPTH and (
            self._weight + self._lightest_after[0] > self._limit
            or self._descend(0, 0.0, self._weight)
        )
        gap = 0.0 if is_whole else max(self._best.cost - self._least_cost, 0.0)
        return Solution(self._best.indices, self._best.cost, self._best.weight, gap)

    def _descend(self, place: int, reduced_cost: float, weight: float) -> bool:
        """Try all options of the groups from a place on; False if there are too many."""
        if place == len(self._order):
            # The exact sum takes long: only where that of reduced costs may be less.
            about = self._least_cost + reduced_cost + self._slope * (self._limit - weight)
            if about <= self._best.cost * (1 + _ROUNDING):
                self._keep(weight)
            return True
        number = self._order[place]
        base, lightest = self._least_cost + reduced_cost, self._lightest_after[place + 1]
        for more, index in self._candidates[number]:
            if base + more >= self._best.cost * (1 - _ROUNDING):
                break
            self._indices[number] = index
            self._nodes += 1
            if self._nodes > _NODES:
                return False
            heavier = weight + self._groups[number][index].weight
            # Options that are too heavy are seen here, before a call.
            fits = heavier + lightest <= self._limit
            if fits and not self._descend(place + 1, reduced_cost + more, heavier):
                return False
        return True

    def _keep(self, weight: float) -> None:
        cost = self._cost + sum(
            self._groups[number][self._indices[number]].cost for number in self._order
        )
        if cost < self._best.cost:
            self._best = Solution(tuple(self._indices), cost, weight, 0.0)


def front(groups: Sequence[Sequence[Option]]) -> list[Option]:
    """Return the sums of the relaxed solutions, from the lightest on."""
    hulls = [hull(options) for options in groups]
    lightest = [options[corners[0]] for options, corners in zip(groups, hulls, strict=True)]
    cost, weight = (
        sum(option.cost for option in lightest),
        sum(option.weight for option in lightest),
    )
    points = [Option(cost, weight)]
    for edge in edges(groups, hulls):
        cost, weight = cost + edge.cost, weight + edge.weight
        points.append(Option(cost, weight))
    return points
