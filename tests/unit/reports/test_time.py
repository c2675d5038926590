"""The line that says how long a run takes."""

import pytest

from headway.facts import machines
from headway.facts.shapes import table
from headway.foreign.presets import workload
from headway.plan.planned import examine
from headway.reports.time import roughly, time_line


@pytest.mark.parametrize(("done", "left"), [(0, 100), (60, 40), (99, 1), (250, 1)])
def test_a_run_that_goes_on_takes_the_time_of_the_steps_that_are_left(done: int, left: int) -> None:
    planned = examine(workload(table()["qwen3-0.6b"], "headway", ["steps=100"]), machines.by_name("h100-80"))
    assert planned.time is not None
    line = time_line(planned, done)
    assert line is not None
    of = f"the last {left} steps" if done else f"{left} steps"
    assert (f", {roughly(planned.time.run * left / 100)} for {of}," in line.plain) == (left > 1)
    assert ("steps" in line.plain) == (left > 1)
