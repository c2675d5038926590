"""All rules, in the order in which their notes are told, and `lint`, which asks each of them."""

from headway.facts.workload import Workload
from headway.foreign.found import Found
from headway.foreign.lint import (
    batch_arithmetic,
    broken_json,
    cap_below_sample,
    empty_value,
    engine_start,
    eval_above_cap,
    expandable_segments,
    flag_twice,
    intervals,
    kills_others,
    no_load,
    ray_monitor,
    reference_at_zero,
    save_path,
    undefined_variable,
    unknown_flag,
)
from headway.foreign.lint.rule import LintNote, Rule, Subject
from headway.foreign.shell import Script

RULES: tuple[Rule, ...] = (
    batch_arithmetic.RULE,
    broken_json.RULE,
    empty_value.RULE,
    engine_start.RULE,
    unknown_flag.RULE,
    undefined_variable.RULE,
    flag_twice.RULE,
    expandable_segments.RULE,
    cap_below_sample.RULE,
    eval_above_cap.RULE,
    reference_at_zero.RULE,
    no_load.RULE,
    save_path.RULE,
    intervals.RULE,
    ray_monitor.RULE,
    kills_others.RULE,
)
"""What keeps a run from starting first, then what ends it or costs memory, then what it costs others."""

ORDER = {"error": 0, "warning": 1, "note": 2}
MOST = 100


def lint(
    found: Found,
    script: Script,
    workload: Workload | None = None,
    at_step: int | None = None,
    refusals: tuple[str, ...] = (),
) -> tuple[LintNote, ...]:
    """Everything that the rules say to a launch, errors first.

    `at_step` is how many steps were done when the run ended, for what was due then. `refusals` are the planner's
    words on an engine that does not start.

    >>> from headway.foreign.readers import settings_of
    >>> from headway.foreign.shell import read_text
    >>> script = read_text("ray stop --force\\npython3 train.py --rollout-batch-size 8")
    >>> [(note.rule, note.line) for note in lint(settings_of(script), script)]
    [('kills-others', 1), ('intervals', 2)]
    """
    subject = Subject(found, script, workload, at_step, refusals)
    notes = [note for rule in RULES for note in rule.notes(subject)]
    return tuple(sorted(dict.fromkeys(notes), key=lambda note: ORDER[note.severity])[:MOST])
