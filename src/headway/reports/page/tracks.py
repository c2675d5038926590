"""What both readers fill while they read: a time axis, bands, curves and peaks, all of bounded size."""

from collections.abc import Mapping, Sequence

from headway.guard.frame import Action
from headway.reports.page.records import ActionRow, Band, Ceiling, Curve, Forecast, Point, PoolChart, Shape, Start
from headway.reports.page.thin import Thinned, extremes, longest

MOST_CURVES, MOST_STARTS, MOST_ACTIONS, MOST_PHASES = 60, 50, 200, 40
"""Beyond these a recording is cut: nothing that a real run writes comes near them."""


class Clock:
    """The page's time axis: seconds of running time. The time between two processes of a run is left out.

    >>> clock = Clock()
    >>> clock.begin(1000.0), clock.at(1010.0), clock.begin(5000.0), clock.at(5001.0)
    (0.0, 10.0, 10.0, 11.0)
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self._offset = self._began = self._last = 0.0

    def begin(self, unix: float, pid: int | None = None) -> float:
        """A process begins to record."""
        if self.starts:
            self._offset += max(0.0, self._last - self._began)
        self._began = self._last = unix
        if len(self.starts) < MOST_STARTS:
            self.starts.append(Start(self._offset, unix, pid))
        return self._offset

    def at(self, unix: float) -> float:
        """The place of a moment on the axis."""
        if not self.starts:
            self.begin(unix)
        self._last = max(self._last, unix)
        return round(self._offset + max(0.0, unix - self._began), 3)

    @property
    def end(self) -> float:
        """The last moment."""
        return round(self._offset + self._last - self._began, 3)


class Foresight:
    """Keeps the forecasts of a run, of which a few are drawn for each gauge: the first, the last, some between."""

    DRAWN, FAR, BEYOND = 4, 2.0, 1.25

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], list[Forecast]] = {}

    def add(self, pool: str, gauge: str, start: Point, rate: float, seconds: float, text: str, seen: float) -> None:
        """What was foreseen at a moment: growth by `rate` bytes a second, to a limit in some seconds.

        One that looks much further ahead than the run was `seen`, in seconds, is left out.
        """
        if not 0 < seconds <= self.FAR * seen or len(self._made) >= MOST_CURVES:
            return
        made = self._made.setdefault((pool, gauge), [])
        made.append(Forecast(gauge, start, (start[0] + seconds, max(0.0, start[1] + rate * seconds)), text))
        if len(made) > 400:
            del made[1:-1:2]

    def of(self, pool: str, end: float) -> tuple[Forecast, ...]:
        """Those of a pool that are drawn, cut a little beyond the end of the recording."""
        found = []
        for (owner, _), made in self._made.items():
            if owner == pool:
                step = max(1.0, (len(made) - 1) / (self.DRAWN - 1))
                chosen = sorted({min(len(made) - 1, round(at * step)) for at in range(self.DRAWN)})
                found += [_until(made[at], self.BEYOND * end) for at in chosen]
        return tuple(found)


def _until(forecast: Forecast, end: float) -> Forecast:
    """A forecast cut at a time."""
    (t, size), (far, reached) = forecast.start, forecast.end
    if far <= end or far <= t:
        return forecast
    end = max(end, t)
    return Forecast(forecast.curve, (t, size), (end, size + (reached - size) * (end - t) / (far - t)), forecast.text)


class Tracks:
    """Curves by pool and name, bands, and the most that each phase held."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.held: dict[str, dict[str, int]] = {}
        self.passes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.ceilings: dict[tuple[str, str, str], Ceiling] = {}
        self.actions: list[ActionRow] = []
        self.foresight = Foresight()
        self._bands = Thinned[Band](longest)
        self._curves: dict[tuple[str, str], tuple[Thinned[Point], Shape, bool, str]] = {}

    def add(
        self, pool: str, name: str, t: float, value: int | None, shape: Shape = "line", *, about: str = "",
        planned: bool = False,
    ) -> None:  # fmt: skip
        """One point of a curve; unknown values are left out."""
        key = (pool, name)
        if value is None or (key not in self._curves and len(self._curves) >= MOST_CURVES):
            return
        if key not in self._curves:
            self._curves[key] = (Thinned[Point](extremes), shape, planned, about)
        self._curves[key][0].add((t, float(value)))

    def limit(self, pool: str, name: str, size: int, consequence: str, curve: str) -> None:
        """A limit as it stands now."""
        if (pool, name, curve) in self.ceilings or len(self.ceilings) < MOST_CURVES:
            self.ceilings[pool, name, curve] = Ceiling(name, size, consequence, curve)

    def band(self, band: Band) -> None:
        """One pass through a phase."""
        self._bands.add(band)
        if band.phase in self.passes or len(self.passes) < MOST_PHASES:
            self.passes[band.phase] = self.passes.get(band.phase, 0) + 1
            self.seconds[band.phase] = self.seconds.get(band.phase, 0.0) + band.end - band.start

    def hold(self, phase: str, sizes: Mapping[str, int | None]) -> None:
        """What a phase held at most, by what was counted."""
        if phase not in self.held and len(self.held) >= MOST_PHASES:
            return
        held = self.held.setdefault(phase, {})
        for name, size in sizes.items():
            if size is not None:
                held[name] = max(size, held.get(name, size))

    def act(self, action: Action) -> None:
        """An action of the guard."""
        if len(self.actions) < MOST_ACTIONS:
            self.actions.append(
                ActionRow(
                    self.clock.at(action.t), action.step, action.name, action.pool, action.value, action.threshold,
                    action.seconds, action.dry, action.reason,
                )
            )  # fmt: skip

    @property
    def bands(self) -> tuple[Band, ...]:
        return self._bands.rows

    def pools(self, order: Sequence[str] = ()) -> tuple[PoolChart, ...]:
        """A chart for each pool that has curves; those of `order` first."""
        names = list(dict.fromkeys([*order, *(pool for pool, _ in self._curves)]))
        found = []
        for pool in names:
            curves = tuple(
                Curve(name, points.rows, shape, planned, about)
                for (owner, name), (points, shape, planned, about) in self._curves.items()
                if owner == pool
            )
            if curves:
                limits = tuple(limit for (owner, _, _), limit in self.ceilings.items() if owner == pool)
                forecasts = self.foresight.of(pool, self.clock.end)
                found.append(PoolChart(pool, pool_title(pool), curves, limits, forecasts))
        return tuple(found)


def pool_title(pool: str) -> str:
    """A pool in words.

    >>> pool_title("node[0].host"), pool_title("node[0].device[1]"), pool_title("disk:/data")
    ('Memory of the node', 'Memory of device 1', 'Disk of /data')
    """
    if pool.startswith("disk:"):
        return f"Disk of {pool[5:]}"
    words = {"host": "Memory of the node", "unified": "Unified memory", "shm": "Shared memory (/dev/shm)"}
    node, _, kind = pool.partition(".")
    where = "" if node in ("node[0]", "") else f", {node}"
    if kind.startswith("device[") and kind.endswith("]"):
        return f"Memory of device {kind[7:-1]}{where}"
    return words[kind] + where if kind in words else pool
