"""Memory over time of made-up runs, healthy and sick, with every parameter drawn at random.

    python benchmarks/guard_series.py write DIR [--seed 0]     one CSV of each kind, and truth.json beside them
    python benchmarks/guard_series.py rates [--count 50]       so many of each kind through the guard: false alarms,
                                                               misses, how early the catches were

A series is what a sampler would have written: columns t,step,phase,pool,used,limit. A sick one ends where `used`
first reaches `limit`. Kinds are the functions of HEALTHY and SICK: each returns what it adds to a common run.
"""

import argparse
import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from guard_traces import replay
from headway.guard.forecast import Forecast
from headway.guard.frame import Frame, Gauge

GIB = 2**30
HEADER = ("t", "step", "phase", "pool", "used", "limit")


@dataclass
class Run:
    """What all kinds have in common; shares are of the limit. `noise` is of a reading, `varies` of a phase's peak."""

    rng: random.Random
    limit: int
    dt: float
    step_s: float
    steps: int
    base: float
    phases: list[tuple[str, float, float]]
    noise: float
    varies: float
    pool: str = "node[0].host"
    labels: str = "both"
    load_s: float = 20.0
    gaps: float = 0.0
    limits: Callable[[float], float] | None = None
    sick_from: float | None = None
    stands_from: tuple[float, int] | None = None

    @property
    def top(self) -> float:
        return self.base + max(level for _, _, level in self.phases)

    @property
    def seconds(self) -> float:
        return self.load_s + self.steps * self.step_s


Row = tuple[float, int | None, str | None, str, int, int | None]
Added = Callable[[float, int | None, str | None, float], float]
"""(t, step, phase, part of the phase that is over) -> what is held beyond the common run, as a share of the limit."""


def draw(rng: random.Random) -> Run:
    """A run: RL phases of random lengths and levels on a pool of random size."""
    dt = rng.choice((0.5, 1.0, 1.0, 1.0, 2.0, 5.0))
    step_s = dt * rng.uniform(8, 90)
    names = rng.choice((("rollout", "train"), ("rollout", "score", "train", "step", "sync"), ("train",)))
    parts = [rng.uniform(0.2, 1.0) for _ in names]
    high = rng.uniform(0.03, 0.25)
    phases = [(n, p / sum(parts), high * rng.uniform(0.2, 1.0)) for n, p in zip(names, parts, strict=True)]
    return Run(
        rng=rng,
        limit=round(rng.choice((1.5, 12, 48, 64, 121.7, 512, 1500)) * GIB),
        dt=dt,
        step_s=step_s,
        steps=rng.randint(25, 110),
        base=rng.uniform(0.2, 0.5),
        phases=phases,
        noise=rng.choice((0.0005, 0.002, 0.005)),
        varies=rng.choice((0.002, 0.006, 0.012)),
        labels=rng.choice(("both", "both", "both", "step", "none")),
        load_s=rng.choice((0.0, 15.0, 90.0)),
    )


def rows_of(run: Run, added: Added, *, until_full: bool) -> Iterator[Row]:
    """The readings of a run, up to the first that reaches the limit where `until_full`."""
    rng, t = run.rng, 0.0
    shifts: dict[tuple[int, str], float] = {}
    while t < run.seconds:
        step, phase, part, share = _where(run, t, shifts)
        share += added(t, step, phase, part) + rng.gauss(0, run.noise)
        limit = run.limit if run.limits is None else round(run.limits(t) * run.limit)
        used = max(0, round(share * run.limit))
        if rng.random() >= run.gaps or used >= limit:
            named = None if run.labels in ("step", "none") and phase != "load" else phase
            yield (
                round(t, 2), None if run.labels == "none" else step, None if run.labels == "none" else named,
                run.pool, used, limit,
            )  # fmt: skip
        if until_full and used >= limit:
            return
        t += run.dt * (30 if rng.random() < run.gaps / 10 else rng.uniform(0.95, 1.05))


def _where(run: Run, t: float, shifts: dict[tuple[int, str], float]) -> tuple[int | None, str | None, float, float]:
    """Step, phase, the part of it that is over, and the common share held."""
    if t < run.load_s:
        return None, "load", t / run.load_s, run.base * t / run.load_s
    step, within = divmod((t - run.load_s) / run.step_s, 1)
    for name, part, level in run.phases:
        if within < part:
            rise = min(1.0, within / part * (1.0 if name == "rollout" else 4.0))
            shift = shifts.setdefault((int(step), name), run.rng.gauss(0, run.varies))
            return int(step), name, within / part, run.base + (level + shift) * rise
        within -= part
    return int(step), run.phases[-1][0], 1.0, run.base + run.phases[-1][2]


def nothing(*_: object) -> float:
    return 0.0


# Healthy: each of these changes the run and returns what it adds.


def sawtooth(run: Run) -> Added:
    run.base = run.rng.uniform(0.3, 0.9 - run.top + run.base)
    return nothing


def page_cache_left_out(run: Run) -> Added:
    """`used` is without cache, so a little of the kernel's own remains."""
    size, tau = run.rng.uniform(0.005, 0.02), run.seconds / 3
    return lambda t, *_: size * (1 - math.exp(-t / tau))


def page_cache_counted(run: Run) -> Added:
    """`used` with cache: it grows with each write and is reclaimed now and then."""
    top, period = run.rng.uniform(0.65, 0.82), run.rng.uniform(6, 20) * run.step_s
    room = max(top - run.top, 0.02)
    return lambda t, *_: room * min(1.0, (t % period) / period * 1.2)


def late_long_sample(run: Run) -> Added:
    at, top = run.rng.randint(5, run.steps - 1), run.rng.uniform(0.75, 0.93)
    name = run.phases[-1][0]
    edge = run.rng.choice((0.02, 0.2, 1.0))
    room = max(top - run.top, 0.0)
    return lambda _t, step, phase, part: room * min(1.0, part / edge) if (step, phase) == (at, name) else 0.0


def warm_up(run: Run) -> Added:
    size, tau = run.rng.uniform(0.1, 0.35), run.rng.uniform(1, 6) * run.step_s
    return lambda t, *_: size * (1 - math.exp(-max(0.0, t - run.load_s) / tau)) + min(0.0, 0.88 - size - run.top)


def eval_and_save(run: Run) -> Added:
    each, size = run.rng.randint(3, 12), run.rng.uniform(0.05, 0.9 - min(run.top, 0.8))
    name = run.phases[-1][0]
    return lambda _t, step, phase, part: size if step and step % each == 0 and phase == name and part > 0.4 else 0.0


def noisy_flat(run: Run) -> Added:
    run.noise, run.varies = run.rng.uniform(0.01, 0.03), 0.02
    run.base += run.rng.uniform(0, 0.8 - run.top) if run.top < 0.8 else 0.0
    return nothing


def saturates(run: Run) -> Added:
    top, tau = run.rng.uniform(0.7, 0.94), run.seconds * run.rng.uniform(0.08, 0.3)
    room = max(top - run.top, 0.0)
    return lambda t, *_: room * (1 - math.exp(-t / tau))


def start_ramp(run: Run) -> Added:
    run.labels = run.rng.choice(("none", "step"))
    top, ramp = run.rng.uniform(0.5, 0.92), run.rng.uniform(15, 300)
    run.base, run.load_s, run.phases = 0.02, 0.0, [("train", 1.0, 0.01)]
    return lambda t, *_: (top - 0.04) * min(1.0, t / ramp)


def very_short(run: Run) -> Added:
    run.load_s, run.steps = 0.0, 1
    run.step_s = run.dt * run.rng.uniform(2, 14)
    return nothing


def with_gaps(run: Run) -> Added:
    run.gaps = run.rng.uniform(0.05, 0.5)
    return nothing


def limit_changes(run: Run) -> Added:
    at, other = run.seconds * run.rng.uniform(0.2, 0.8), run.rng.uniform(min(1.08 * run.top + 0.06, 0.95), 1.8)
    run.limits = lambda t: 1.0 if t < at else other
    return nothing


def stands_high(run: Run) -> Added:
    """As an engine that takes its share of a device at the start."""
    run.pool, run.noise, run.varies = "node[0].device[0]", 0.0005, 0.0005
    run.base, run.phases = run.rng.uniform(0.86, 0.95), [("train", 1.0, run.rng.uniform(0.0, 0.02))]
    return nothing


def levels_change(run: Run) -> Added:
    """One to three changes of level for good: first optimizer step, first eval, first save."""
    ats = sorted(run.rng.uniform(run.load_s, run.seconds) for _ in range(run.rng.randint(1, 3)))
    size = max(0.88 - run.top, 0.0) / len(ats) * run.rng.uniform(0.3, 1.0)
    return lambda t, *_: size * sum(t >= at for at in ats)


def wanders(run: Run) -> Added:
    """Slow noise that comes back to its middle."""
    state, tau, size = [0.0, 0.0], run.step_s * run.rng.uniform(2, 15), run.rng.uniform(0.01, 0.05)

    def added(t: float, *_: object) -> float:
        passed, state[1] = t - state[1], t
        state[0] += -state[0] * passed / tau + size * math.sqrt(2 * passed / tau) * run.rng.gauss(0, 1)
        return max(-0.15, min(state[0], 0.9 - run.top))

    return added


def high_water(run: Run) -> Added:
    """What an allocator has reserved: the highest of all peaks so far."""
    state = [0.0, -1.0]

    def added(_t: float, step: int | None, *_: object) -> float:
        if step is not None and step != state[1]:
            state[1] = step
            state[0] = max(state[0], min(run.rng.expovariate(1 / 0.05), 0.9 - run.top))
        return state[0]

    return added


def long_tailed(run: Run) -> Added:
    """Peaks that differ much from step to step, as answers do in length."""
    name, room, sizes = run.phases[-1][0], max(0.92 - run.top, 0.0), {}

    def added(_t: float, step: int | None, phase: str | None, part: float) -> float:
        if phase != name or step is None:
            return 0.0
        size = sizes.setdefault(step, min(run.rng.lognormvariate(-3, 0.7), room))
        return size * min(1.0, 3 * part)

    return added


def grows_to_a_cap(run: Run) -> Added:
    """A cache with a maximum, filled at an even rate."""
    top, filled = run.rng.uniform(0.55, 0.76), run.seconds * run.rng.uniform(0.1, 0.7)
    room = max(top - run.top, 0.0)
    return lambda t, *_: room * min(1.0, t / filled)


def collected(run: Run) -> Added:
    """Garbage that grows over many steps and is then collected."""
    top, period = run.rng.uniform(0.65, 0.8), run.step_s * run.rng.uniform(4, 15)
    room = max(top - run.top, 0.0)
    return lambda t, *_: room * ((t % period) / period)


def without_limit(run: Run) -> Added:
    run.limits = lambda _t: 0.0
    return lambda t, *_: 0.9 * t / run.seconds


# Sick: each sets `sick_from`, and reaches the limit.


def _begins(run: Run, early: float, late: float) -> tuple[float, float]:
    """When a leak begins, and how long it takes to the limit."""
    run.sick_from = run.load_s + run.steps * run.step_s * run.rng.uniform(early, late)
    return run.sick_from, (run.seconds - run.sick_from) * run.rng.uniform(0.6, 0.9)


def linear_leak(run: Run) -> Added:
    begins, takes = _begins(run, 0.0, 0.05)
    room = 1.02 - run.top
    return lambda t, *_: room * max(0.0, t - begins) / takes


def one_phase_leak(run: Run) -> Added:
    begins, takes = _begins(run, 0.0, 0.05)
    name, _, level = max(run.phases, key=lambda phase: phase[2])
    room = 1.03 - run.base - level
    return lambda t, _, phase, part: room * max(0.0, t - begins) / takes * min(1, 3 * part) if phase == name else 0.0


def slow_near_limit(run: Run) -> Added:
    run.phases = [(name, part, level * 0.3) for name, part, level in run.phases]
    run.base += run.rng.uniform(0.8, 0.9) - run.top
    run.noise, run.varies = 0.0005, run.rng.choice((0.0005, 0.002))
    begins, takes = _begins(run, 0.0, 0.2)
    room = 1.01 - run.top
    return lambda t, *_: room * max(0.0, t - begins) / takes


def accelerating(run: Run) -> Added:
    begins, takes = _begins(run, 0.0, 0.1)
    room, power = 1.02 - run.top, run.rng.uniform(1.5, 4)
    return lambda t, *_: room * (max(0.0, t - begins) / takes) ** power


def staircase(run: Run) -> Added:
    begins, takes = _begins(run, 0.0, 0.05)
    room, stairs = 1.05 - run.top, run.rng.randint(7, 20)
    return lambda t, *_: room * math.floor(max(0.0, t - begins) / takes * stairs) / stairs


def burst(run: Run) -> Added:
    run.dt, run.noise = run.rng.choice((0.5, 1.0)), 0.001
    run.steps = min(run.steps, round(1500 / run.step_s) + 4)
    begins, _ = _begins(run, 0.4, 0.9)
    takes, room = run.rng.uniform(6, 30) * run.dt, 1.02 - run.base
    return lambda t, *_: room * max(0.0, t - begins) / takes


def late_leak(run: Run) -> Added:
    begins, takes = _begins(run, 0.4, 0.7)
    room = 1.02 - run.top
    return lambda t, *_: room * max(0.0, t - begins) / takes


def noisy_leak(run: Run) -> Added:
    run.noise, run.varies = run.rng.uniform(0.005, 0.02), run.rng.uniform(0.01, 0.03)
    return linear_leak(run)


def unified_leak(run: Run) -> Added:
    run.pool, run.limit = "node[0].unified", round(121.69 * GIB)
    return linear_leak(run)


def leak_by_the_minute(run: Run) -> Added:
    """The step stands still, or is not told, while memory grows."""
    run.steps, run.labels = run.rng.randint(1, 6), run.rng.choice(("both", "step", "none"))
    run.load_s = max(run.load_s, 15.0)
    stands = run.load_s + run.steps * run.step_s
    takes = run.rng.uniform(120, 1500) * max(1.0, run.dt)
    run.sick_from, room = stands, 1.02 - run.base - run.phases[-1][2]
    run.stands_from = (stands, run.steps)
    run.steps += math.ceil(takes * 1.3 / run.step_s)
    return lambda t, *_: room * max(0.0, t - stands) / takes


def foreign_leak(run: Run) -> Added:
    run.labels = "none"
    return linear_leak(run)


def leak_at_each_save(run: Run) -> Added:
    begins, takes = _begins(run, 0.0, 0.05)
    each = run.rng.randint(2, 5)
    saves = max(5, round(takes / run.step_s / each))
    room = 1.05 - run.top
    return lambda t, step, *_: room * (((step or 0) // each) / saves) if t >= begins else 0.0


Kind = Callable[[Run], Added]
HEALTHY: tuple[Kind, ...] = (
    sawtooth, page_cache_left_out, page_cache_counted, late_long_sample, warm_up, eval_and_save, noisy_flat,
    saturates, start_ramp, very_short, with_gaps, limit_changes, stands_high, levels_change, wanders, high_water,
    long_tailed, grows_to_a_cap, collected, without_limit,
)  # fmt: skip
SICK: tuple[Kind, ...] = (
    linear_leak, one_phase_leak, slow_near_limit, accelerating, staircase, burst, late_leak, noisy_leak, unified_leak,
    leak_by_the_minute, foreign_leak, leak_at_each_save,
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Rows of one file and the truth about them: None where it is healthy."""

    kind: str
    rows: list[Row]
    sick_from: float | None
    full_at: float | None
    full_step: int | None
    step_s: float
    dt: float


def make(kind: Kind, seed: int) -> Series:
    """One series of a kind; the same for the same seed."""
    rng = random.Random(f"{kind.__name__} {seed}")
    while True:
        run = draw(rng)
        added = kind(run)
        sick = run.sick_from is not None
        rows = list(_stand_still(run, rows_of(run, added, until_full=sick)))
        if not sick or (rows and (rows[-1][5] or 0) <= rows[-1][4]):
            break
    last = rows[-1] if sick else None
    return Series(
        kind.__name__, rows, run.sick_from, last[0] if last else None, last[1] if last else None, run.step_s, run.dt
    )


def _stand_still(run: Run, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, with the step and the phase as they stood when the run began to hang."""
    held = run.stands_from
    for t, step, phase, pool, used, limit in rows:
        if held is not None and t >= held[0] and step is not None:
            step, phase = held[1], phase and run.phases[-1][0]
        yield t, step, phase, pool, used, limit or None


def beside(series: Series, other: Series) -> Series:
    """Two pools in one file: the rows of a healthy one mixed in, as another pool."""
    end = series.rows[-1][0]
    rows = [(t, None, None, "node[0].device[0]", used, limit) for t, _, _, _, used, limit in other.rows if t <= end]
    return Series(
        f"{series.kind} beside {other.kind}", sorted(series.rows + rows, key=lambda row: row[0]), series.sick_from,
        series.full_at, series.full_step, series.step_s, series.dt,
    )  # fmt: skip


def write(series: Series, path: Path) -> None:
    """The series as CSV, by a temporary name."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(("" if value is None else value for value in row) for row in series.rows)
    temporary.rename(path)


@dataclass(frozen=True)
class Result:
    """How the guard did on one series. `lead` is the part of the sickness that was left at the alarm."""

    kind: str
    sick: bool
    alarms: int
    verdict: str
    lead: float | None
    used: float | None
    forecast_error: float | None


LEAST_LEAD, LEAST_STEPS = 0.05, 2
"""A catch is in time with this part of the leak's duration or so many steps ahead; in a burst with one reading."""


def judge(series: Series) -> Result:
    """Replays a series: "quiet" or "false alarm"; "caught", "early" (before there was a leak), "late" or "missed"."""
    actions, forecasts = replay(list(_frames_of(series.rows)))
    first = actions[0] if actions else None
    used = None if first is None else first.value / max(first.threshold, 1)
    if series.sick_from is None or series.full_at is None:
        return Result(series.kind, False, len(actions), "false alarm" if first else "quiet", None, used, None)
    if first is None or first.t >= series.full_at:
        return Result(series.kind, True, len(actions), "missed", None, used, _error(series, forecasts))
    lead = (series.full_at - first.t) / (series.full_at - series.sick_from)
    burst_ = series.kind.startswith("burst")
    if first.t < series.sick_from:
        verdict = "early"
    elif lead >= LEAST_LEAD or series.full_at - first.t >= LEAST_STEPS * series.step_s or burst_:
        verdict = "caught"
    else:
        verdict = "late"
    return Result(series.kind, True, len(actions), verdict, lead, used, _error(series, forecasts))


def _error(series: Series, forecasts: list[Forecast]) -> float | None:
    """How far off the forecast at a third of the way is, as a part of the whole way; None: there is none by then."""
    assert series.sick_from is not None
    assert series.full_at is not None
    whole = series.full_at - series.sick_from
    known = [found for found in forecasts if found.at <= series.sick_from + whole / 3 + series.step_s]
    if not known or known[-1].expected is None:
        return None
    return (known[-1].expected.t - series.full_at) / (series.full_at - series.rows[0][0])


def _frames_of(rows: list[Row]) -> Iterator[Frame]:
    for t, group in groupby(rows, key=lambda row: row[0]):
        moment = list(group)
        yield Frame(
            t, tuple(Gauge(pool, "cgroup", used, limit) for _, _, _, pool, used, limit in moment),
            phase=moment[0][2], step=moment[0][1],
        )  # fmt: skip


def rates(count: int, seed: int, names: list[str]) -> int:
    """Prints, by kind, how the guard did on `count` series of each; 1 where one was not as it should be."""
    bad = 0
    for kinds in (HEALTHY, SICK):
        total = good = 0
        for kind in kinds:
            if names and kind.__name__ not in names:
                continue
            results = [(number, judge(make(kind, number))) for number in range(seed, seed + count)]
            wrong = [(number, r) for number, r in results if r.verdict not in ("quiet", "caught")]
            total, good = total + count, good + count - len(wrong)
            leads = sorted(r.lead for _, r in results if r.lead is not None)
            errors = sorted(abs(r.forecast_error) for _, r in results if r.forecast_error is not None)
            print(
                f"{kind.__name__:22} {count - len(wrong):4}/{count}"
                + (f"  left at the alarm: median {leads[len(leads) // 2]:.2f}, least {leads[0]:.2f}" if leads else "")
                + (
                    f"; forecast at 1/3: {len(errors)}, {sum(e <= 0.15 for e in errors)} within 15 %"
                    if errors
                    else ""
                )
                + ("  wrong: " + ", ".join(f"{number} {r.verdict}" for number, r in wrong[:6]) if wrong else "")
            )
        bad += total - good
        print(f"{'healthy, without an alarm' if kinds is HEALTHY else 'sick, caught in time'}: {good} of {total}\n")
    return 1 if bad else 0


SMALL = 700
"""Rows that a written series may have, so that the files stay small."""


def small(kind: Kind, seed: int) -> Series:
    """The first series of a kind, from this seed on, that is small."""
    return next(made for number in range(seed, seed + 1000) if len((made := make(kind, number)).rows) <= SMALL)


def write_all(folder: Path, seed: int) -> None:
    """One series of each kind, and two pools in one file; truth.json says which are sick and when they are full."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = {}
    made = [small(kind, seed) for kind in HEALTHY + SICK]
    made.append(beside(small(linear_leak, seed + 1), small(sawtooth, seed)))
    for series in made:
        name = ("healthy" if series.sick_from is None else "sick") + "_" + series.kind.replace(" ", "_") + ".csv"
        write(series, folder / name)
        truth[name] = {"sick_from": series.sick_from, "full_at": series.full_at, "full_step": series.full_step}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write")
    writes.add_argument("folder", type=Path)
    writes.add_argument("--seed", type=int, default=0)
    counts = commands.add_parser("rates")
    counts.add_argument("--count", type=int, default=50)
    counts.add_argument("--seed", type=int, default=0, help="of the first series of each kind")
    counts.add_argument("kinds", nargs="*")
    options = parser.parse_args()
    if options.command == "write":
        write_all(options.folder, options.seed)
        return 0
    return rates(options.count, options.seed, options.kinds)


if __name__ == "__main__":
    raise SystemExit(main())
