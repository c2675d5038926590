"""How long a run takes, in one line."""

from rich.text import Text

from headway.plan.planned import Planned


def time_line(planned: Planned, done: int = 0) -> Text | None:
    """A step and the whole run, what that comes from and how far it may be off; None where nothing tells.

    `done`: steps that a run which goes on has behind it.
    """
    found = planned.time
    if found is None:
        return None
    steps = planned.workload.steps
    left = max(1, steps - done)
    of = f"the last {left:,} steps" if done else f"{steps:,} steps"
    whole = "" if found.run is None or left <= 1 else f", {roughly(found.run * left / steps)} for {of}"
    parts = f" (rollout {roughly(found.rollout)}, training {roughly(found.train)})" if found.rollout else ""
    step = roughly(found.step)
    about = "" if step.startswith("under") else "about "
    return Text(
        f"Time: {about}{step} a step{parts}{whole}, with answers at their longest; "
        f"from {found.basis}, within a factor of {found.factor:g}"
    )


def roughly(seconds: float) -> str:
    """A time to two digits at most, because an estimate knows no more.

    >>> roughly(0.04), roughly(7.3), roughly(184), roughly(7400), roughly(400_000), roughly(2_000_000)
    ('under 0.1 s', '7.3 s', '3.1 min', '2.1 h', '4.6 days', '23 days')
    """
    if seconds < 0.1:
        return "under 0.1 s"
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 1.5 * size or size == 1:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    raise AssertionError
