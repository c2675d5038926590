"""Curves over steps from metrics.jsonl and evaluations.jsonl, and sample answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from headway.reports.page.files import number, size_of
from headway.reports.page.records import Curve, MetricChart, Point, Sample, Shape
from headway.reports.page.thin import Thinned, extremes

SAMPLES, SAMPLE_TEXT = 6, 1200
"""Answers that are shown of the beginning and of the end, and characters of each."""


class _Series(Struct, frozen=True):
    key: str
    name: str
    scale: float = 1.0


class _Chart(Struct, frozen=True):
    title: str
    unit: str
    series: tuple[_Series, ...]
    evaluations: tuple[_Series, ...] = ()


CHARTS = (
    _Chart(
        "Reward", "", (_Series("reward", "reward"), _Series("correct", "correct")),
        (_Series("correct", "held out, correct"), _Series("reward", "held out, reward")),
    ),
    _Chart(
        "Answer length", "tokens", (_Series("answer_tokens", "mean"), _Series("answer_tokens_max", "longest")),
        (_Series("answer_tokens", "held out, mean"),),
    ),
    _Chart("Cut-off answers", "%", (_Series("answer_truncated", "cut at the longest allowed", 100.0),)),
    _Chart(
        "Throughput", "tokens a second",
        (_Series("rollout_tokens_per_s", "generated"), _Series("train_tokens_per_s", "trained")),
    ),
    _Chart(
        "Time of a step", "seconds",
        (_Series("seconds", "step"), _Series("seconds_rollout", "rollout"), _Series("seconds_train", "train"),
         _Series("seconds_score", "score")),
    ),
    _Chart("Groups with equal rewards", "%", (_Series("frac_reward_zero_std", "nothing to learn from", 100.0),)),
    _Chart("Answers that could not be scored", "", (_Series("reward_failures", "failed rewards"),)),
    _Chart("Gradient norm", "", (_Series("grad_norm", "before clipping"),)),
    _Chart("Divergence from the reference", "nats a token", (_Series("kl", "KL"),)),
    _Chart("Entropy", "nats a token", (_Series("entropy", "entropy"),)),
)  # fmt: skip
"""What is drawn, in this order; a chart whose series are all absent, or 0 throughout, is left out."""


class Metrics(Struct, frozen=True):
    """The charts, and what the head of the page needs: the last step, its row, and how many lines were not whole."""

    charts: tuple[MetricChart, ...] = ()
    steps: int = 0
    last: dict[str, float] = {}
    evaluations: tuple[dict[str, float], ...] = ()
    bad: int = 0


def read_metrics(
    rows: Iterable[Mapping[str, Any] | None], evaluations: Iterable[Mapping[str, Any] | None]
) -> Metrics:
    """Charts of metrics, in bounded memory. Rows that are none are counted."""
    series: dict[tuple[str, str], Thinned[Point]] = {}
    bad, steps, last = 0, 0, {}
    for row in rows:
        step = None if row is None else number(row.get("step"))
        if row is None or step is None:
            bad += 1
            continue
        steps, last = max(steps, int(step)), {name: found for name in row if (found := number(row[name])) is not None}
        for chart in CHARTS:
            for each in chart.series:
                _add(series, (chart.title, each.name), step, row.get(each.key), each.scale)
    held_out: list[dict[str, float]] = []
    for row in evaluations:
        step = None if row is None else number(row.get("step"))
        if row is None or step is None:
            bad += 1
            continue
        held_out.append({name: found for name in row if (found := number(row[name])) is not None})
        held_out = held_out if len(held_out) <= 4000 else [held_out[0], *held_out[2::2]]
        for chart in CHARTS:
            for each in chart.evaluations:
                _add(series, (chart.title, each.name), step, row.get(each.key), each.scale)
    return Metrics(tuple(_charts(series)), steps, last, tuple(held_out), bad)


def _add(
    series: dict[tuple[str, str], Thinned[Point]], key: tuple[str, str], step: float, value: Any, scale: float
) -> None:
    found = number(value)
    if found is not None:
        series.setdefault(key, Thinned(extremes)).add((step, round(found * scale, 6)))


def _charts(series: Mapping[tuple[str, str], Thinned[Point]]) -> Iterable[MetricChart]:
    for chart in CHARTS:
        curves = []
        shapes: list[tuple[_Series, Shape]] = [(each, "line") for each in chart.series]
        shapes += [(each, "points") for each in chart.evaluations]
        for each, shape in shapes:
            points = series[chart.title, each.name].rows if (chart.title, each.name) in series else ()
            if points and any(value for _, value in points):
                curves.append(Curve(each.name, points, shape))
        if any(curve.shape == "line" for curve in curves):
            yield MetricChart(chart.title, chart.unit, tuple(curves))


def samples(rows: Iterable[Mapping[str, Any]]) -> tuple[Sample, ...]:
    """A few of the first answers and of the last, evaluations left out where there are rollouts."""
    found = [
        Sample(
            step=size_of(row.get("step")) or 0, phase=str(row.get("phase"))[:40], reward=number(row.get("reward")),
            finish=str(row.get("finish"))[:40], text=cut(text), prompt=_text(row, "prompt"),
            label=_text(row, "label"), failure=_text(row, "failure"),
        )
        for row in rows
        if isinstance(text := row.get("response", row.get("text")), str)
    ]  # fmt: skip
    chosen = [each for each in found if each.phase == "rollout"] or found
    return tuple(chosen if len(chosen) <= 2 * SAMPLES else [*chosen[:SAMPLES], *chosen[-SAMPLES:]])


def _text(row: Mapping[str, Any], key: str) -> str:
    """A text of a row, cut; empty where there is none, as in rows of older versions."""
    found = row.get(key)
    return cut(found) if isinstance(found, str) else ""


def cut(text: str, most: int = SAMPLE_TEXT) -> str:
    """A text of bounded length, with what was left out said.

    >>> cut("abcdef", 4)
    'abcd ... (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most:,} more characters)"
