"""Series of any length in bounded memory: what stands out is kept, what lies between goes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from headway.reports.page.records import Band, Point

MOST = 2000
"""Points of a series, about."""

Row = TypeVar("Row")


class Thinned(Generic[Row]):
    """Takes rows one by one and keeps about `most`: of each run of neighbours, those that `pick` chooses.

    A run is one row until there are too many; then it grows with their number, so that old and new rows stand equally
    dense. `pick` must choose at most two of any number.

    >>> series = Thinned[Point](extremes, most=4)
    >>> for t in range(1000):
    ...     series.add((t, 99.0 if t == 500 else t % 2))
    >>> len(series.rows) <= 8, (500, 99.0) in series.rows
    (True, True)
    """

    def __init__(self, pick: Callable[[Sequence[Row]], list[Row]], most: int = MOST) -> None:
        self._pick, self._most, self._run, self._count = pick, most, 1, 0
        self._kept: list[Row] = []
        self._waiting: list[Row] = []

    def add(self, row: Row) -> None:
        """Take one more row into account."""
        self._waiting.append(row)
        self._count += 1
        if len(self._waiting) < self._run:
            return
        self._kept += self._pick(self._waiting) if self._run > 1 else self._waiting
        self._waiting = []
        if len(self._kept) >= 2 * self._most:
            self._run = -(-2 * self._count // self._most)
            self._kept = thin(self._kept, self._pick, self._most)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What is kept, in the order in which it came."""
        return tuple(thin([*self._kept, *self._waiting], self._pick, self._most))


def thin(rows: Sequence[Row], pick: Callable[[Sequence[Row]], list[Row]], most: int = MOST) -> list[Row]:
    """At most `most` of the rows: equal runs of neighbours, of each what `pick` chooses. The last row stays.

    >>> thin([(t, t % 10) for t in range(100)], extremes, most=10)[-1]
    (99, 9)
    """
    if len(rows) <= most:
        return list(rows)
    run = -(-2 * len(rows) // max(2, most - 1))
    kept = [row for at in range(0, len(rows), run) for row in pick(rows[at : at + run])]
    return kept if kept[-1] == rows[-1] else [*kept, rows[-1]]


def extremes(points: Sequence[Point]) -> list[Point]:
    """The lowest and the highest of some points, in their order.

    >>> extremes([(0, 5), (1, 9), (2, 3), (3, 4)])
    [(1, 9), (2, 3)]
    """
    low = min(range(len(points)), key=lambda at: points[at][1])
    high = max(range(len(points)), key=lambda at: points[at][1])
    return [points[at] for at in sorted({low, high})]


def longest(bands: Sequence[Band]) -> list[Band]:
    """One band in place of several: the phase that took longest, over the time of all.

    >>> longest([Band("rollout", 1, 0.0, 1.0), Band("train", 1, 1.0, 4.0)])
    [Band(phase='train', step=1, start=0.0, end=4.0, finished=True)]
    """
    held: dict[str, float] = {}
    for band in bands:
        held[band.phase] = held.get(band.phase, 0.0) + band.end - band.start
    phase = max(held, key=lambda name: held[name])
    step = next(band.step for band in bands if band.phase == phase)
    return [Band(phase, step, bands[0].start, bands[-1].end, all(band.finished for band in bands))]


def curve_points(points: Iterable[Point], most: int = MOST) -> tuple[Point, ...]:
    """The points of a series, thinned."""
    series = Thinned[Point](extremes, most)
    for point in points:
        series.add(point)
    return series.rows
