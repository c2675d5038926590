"""Scripts of verl, TRL, OpenRLHF and Megatron-LM against what they say, and anything at all against the readers."""

import json
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.facts import machines
from headway.facts.shapes import by_name
from headway.foreign import megatron_lm, openrlhf, runs, trl, verl
from headway.foreign.found import KEYS, Found
from headway.foreign.shell import read_script, read_text
from headway.plan.plan import plan

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts_other"
ROWS = [json.loads(line) for line in (SCRIPTS / "truth.jsonl").read_text().splitlines() if line.strip()]
READERS = (verl.read, openrlhf.read, trl.read, megatron_lm.read)
PIECES = (
    "'", '"', "${", "$((", "]", "{a: [1,", "--", "=", " ", "\n", "\\\n", "actor_rollout_ref.model.path=", "~a.b",
    "--config x.yaml", "$(date)", "++", "data.train_batch_size=[[[[", "1e999", "--zero_stage", "nan", "#", "((", "$@",
)  # fmt: skip


def read(script) -> Found | None:
    return next((found for each in READERS if (found := each(script)) is not None), None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["path"])
def test_every_literal_value_is_read(row):
    found = read(read_script(SCRIPTS / row["path"]))
    assert found is not None
    assert set(found.settings) | set(found.unknown) == set(KEYS)
    assert not set(found.settings) & set(found.unknown)
    told = {key: found.settings.get(key, f"unknown: {found.unknown.get(key)}") for key in row["truth"]}
    assert told == row["truth"]
    assert set(row.get("unknowable", ())) <= set(found.unknown)


def test_what_only_looks_like_training_is_left_alone():
    assert read(read_script(SCRIPTS / "not-a-trainer.sh")) is None


def test_every_script_plans():
    """Each run has its lines, and what was assumed is told in words."""
    seen = set()
    for row in ROWS:
        found = read(read_script(SCRIPTS / row["path"]))
        assert found is not None
        model = by_name(found.model) or by_name(found.model.rpartition("/")[2])
        shape = model or by_name("qwen3-30b-a3b" if "moe" in row["path"] else "qwen3-4b")
        assert shape is not None
        run = runs.workload(found, shape)
        nodes = run.layout.nodes + (1 if run.engine is not None and not run.engine.colocated else 0)
        ledger = plan(run, machines.by_name(f"{nodes}x8xh100-80" if nodes > 1 else "8xh100-80"))
        assert sum(line.bytes for line in ledger.lines) > 0
        assert all(key.partition(" ")[0] for key in run.unknown)
        seen.add(found.system)
    assert seen == {"verl", "trl", "openrlhf", "megatron"}


def test_reading_one_script_is_quick():
    path = SCRIPTS / "verl-arrays.sh"
    read(read_script(path))
    start = time.perf_counter()
    for _ in range(5):
        read(read_script(path))
    assert (time.perf_counter() - start) / 5 < 0.06


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([row["path"] for row in ROWS]), st.integers(0, 10**6))
def test_scripts_changed_at_random_are_read_or_refused(path, seed):
    rng = random.Random(seed)
    text = (SCRIPTS / path).read_text()
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(PIECES) + text[start + rng.choice((0, 0, 1, 5, 40)) :]
    start = time.perf_counter()
    found = read(read_text(text, "script.sh", (SCRIPTS / path).resolve(), SCRIPTS.resolve()))
    if found is not None:
        assert set(found.settings) | set(found.unknown) == set(KEYS)
        with suppress(InputError):
            runs.workload(found, by_name("qwen3-4b"))
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    "command",
    [
        "$VENV_PYTHON -m {}",
        "python3 -um {}",
        "uv run --no-sync python -m {}",
        "nohup python -m {} > x.log 2>&1 &",
        "docker exec c bash -lc 'python3 -m {}'",
        "ray job submit -- 'python3 -m {}'",
        'CMD=(python3 -m {}); "${{CMD[@]}}"',
        'C="python3 -m {}"; eval $C',
        "bash <<'X'\npython3 -m {}\nX",
        "env A=1 timeout 3h python3 -m {} | tee x",
        "srun -N 2 apptainer exec x.sif python3 /opt/{}",
    ],
)
def test_whatever_starts_the_program(command):
    program = "verl/trainer/main_ppo.py" if "/opt/" in command else "verl.trainer.main_ppo"
    overrides = "trainer.nnodes=2 actor_rollout_ref.rollout.n=4 data.train_batch_size=64"
    found = read(read_text(command.format(f"{program} {overrides}")))
    assert found is not None
    assert [found.settings[key] for key in ("nodes", "samples_per_prompt", "rollout_batch")] == [2, 4, 64]
