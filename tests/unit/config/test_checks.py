"""Keys that are fine alone and contradict each other; beside each, a near miss that does not."""

import pytest

from headway.config.checks import contradictions
from headway.config.keys import sections
from headway.config.sections import RunSpec

TASK = {"model": {"path": "tiny-llama", "init": "random"}, "data": {"task": "gcd"}}
FILE = {**TASK, "data": {"file": "d.jsonl"}, "reward": {"kind": "exact"}}


def changed(base: dict, keys: dict) -> RunSpec:
    """`base` with other values for some `section.key`."""
    tables = {name: dict(base.get(name, {})) for name in sections() if name != "lora"}
    for key, value in keys.items():
        section, name = key.split(".")
        tables[section][name] = value
    return RunSpec.model_validate(tables)


CONTRADICTIONS = [
    (TASK, {"data.task": None}, ("data.task", "data.file"), "both unset"),
    (TASK, {"data.file": "d.jsonl"}, ("data.task", "data.file"), "one source"),
    (FILE, {"data.params": {"a": 1}}, ("data.task", "data.file", "data.params"), "only a reasoning-gym dataset"),
    (FILE, {"data.file": "d.csv"}, ("data.file",), "must be one of .jsonl, .json, .parquet"),
    (TASK, {"data.template": "prompt"}, ("data.template",), "has no {prompt}"),
    (TASK, {"data.system": "s", "data.format": "text"}, ("data.system", "data.format"), "has no system message"),
    (FILE, {"reward.kind": "task"}, ("reward.kind", "data.task"), "data.task is not set"),
    (
        TASK,
        {"reward.kind": "function"},
        ("reward.kind", "reward.function"),
        'needs reward.function = "module:function"',
    ),
    (TASK, {"reward.function": "m:f"}, ("reward.kind", "reward.function"), 'not called with kind = "task"'),
    (
        TASK,
        {"reward.kind": "function", "reward.function": "m.f"},
        ("reward.function",),
        'must be "module:function", such as',
    ),
    (
        TASK,
        {"reward.kind": "function", "reward.function": "m.2:f"},
        ("reward.function",),
        'must be "module:function", such as',
    ),
    (TASK, {"reward.folder": "f"}, ("reward.folder", "reward.function"), "is not; set it"),
    (TASK, {"reward.extract": "pattern"}, ("reward.extract", "reward.pattern"), "needs reward.pattern"),
    (TASK, {"reward.pattern": "(a)"}, ("reward.extract", "reward.pattern"), 'not used with extract = "whole"'),
    (
        TASK,
        {"reward.extract": "pattern", "reward.pattern": "(a"},
        ("reward.pattern",),
        "is not a regular expression (missing ), unterminated subpattern at position 0)",
    ),
    (TASK, {"reward.extract": "pattern", "reward.pattern": "a"}, ("reward.pattern",), "has no group"),
    (TASK, {"reward.format_pattern": "*"}, ("reward.format_pattern",), "is not a regular expression"),
    (TASK, {"reward.format_weight": 0.5}, ("reward.format_weight", "reward.format_pattern"), "which format"),
    (TASK, {"rollout.top_k": 1}, ("rollout.top_k",), "nothing is learned"),
    (TASK, {"rollout.stop": ("a", "")}, ("rollout.stop",), "would end every answer"),
    (TASK, {"train.updates": 3}, ("train.updates", "rollout.prompts"), "set updates = 2, or prompts = 9"),
    (TASK, {"train.updates": 16}, ("train.updates", "rollout.prompts"), "set updates = 8, or prompts = 16"),
    (TASK, {"train.updates": 10**5}, ("train.updates", "rollout.prompts"), "set updates = 8, or prompts = 100000"),
    (TASK, {"train.betas": (0.9, 1.0)}, ("train.betas",), "below 1"),
    (TASK, {"eval.every": 5, "eval.problems": 0}, ("eval.every", "eval.problems"), "evaluates nothing"),
    (TASK, {"eval.file": "e.jsonl"}, ("eval.file", "data.file"), "goes with data.file"),
    (FILE, {"eval.file": "e.txt"}, ("eval.file",), "must be one of .jsonl, .json, .parquet"),
    (FILE, {"eval.file": "e.jsonl", "eval.problems": 0}, ("eval.file", "eval.problems"), "is not read"),
]


@pytest.mark.parametrize(("base", "keys", "named", "text"), CONTRADICTIONS)
def test_contradiction(base, keys, named, text):
    (found,) = contradictions(changed(base, keys))
    assert found.keys == named
    assert text in found.text


NEAR_MISSES = [
    (TASK, {}),
    (FILE, {}),
    (TASK, {"data.params": {"max_value": 30}}),
    (FILE, {"data.file": "d.PARQUET", "eval.file": "e.json"}),
    (TASK, {"data.system": "s"}),
    (TASK, {"reward.kind": "function", "reward.function": "package.module:function"}),
    (TASK, {"reward.extract": "pattern", "reward.pattern": "answer: (.*)"}),
    (TASK, {"reward.format_pattern": ".*", "reward.format_weight": 0.5}),
    (TASK, {"rollout.top_k": 2, "rollout.samples": 2, "rollout.stop": (" ",)}),
    (TASK, {"train.updates": 8}),
    (TASK, {"train.betas": (0.0, 0.999)}),
    (TASK, {"eval.every": 5, "eval.problems": 1}),
    (TASK, {"eval.problems": 0}),
]


@pytest.mark.parametrize(("base", "keys"), NEAR_MISSES)
def test_near_miss(base, keys):
    assert list(contradictions(changed(base, keys))) == []
