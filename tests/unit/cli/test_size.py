"""`headway size`: the table of a machine in text and JSON, what may be set, and what it loads."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headway.cli.app import app
from headway.cli.inputs import read_case
from headway.facts import machines
from headway.facts.shapes import by_name
from headway.plan.planned import examine
from headway.plan.size import OTHERS, size
from headway.reports.size import tokens

GIB = 1 << 30


def call(*words: str, width: int = 80) -> Result:
    return CliRunner().invoke(app, ["size", *words], env={"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"})


def table(*words: str) -> dict[str, Any]:
    done = call(*words, "--json")
    assert done.exit_code == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_row_is_what_plan_says_of_the_same_run() -> None:
    found = table("--machine", "gb10", "--model", "qwen3-4b")
    (row,) = [row for row in found["rows"] if row["recipe"] == "full"]
    case = read_case(["qwen3-4B"], None, "gb10", ["rollout.kv_budget=7788MiB"])
    (pool,) = examine(case.workload, case.machine).outcome.pools
    assert found["memory_bytes"] // 16 >> 20 == 7788
    assert (row["expected_bytes"], row["upper_bytes"], row["verdict"]) == (pool.peak.bytes, pool.upper, "fits")
    assert row["rule_bytes"] == 16 * row["parameters"]


def test_what_headway_trains_is_told_from_what_others_do() -> None:
    rows = table("--machine", "gb10", "--model", "qwen3-1.7b")["rows"]
    assert {(row["trainer"] == "headway") for row in rows if row["trained_here"]} == {True}
    assert {row["trainer"] for row in rows if not row["trained_here"]} >= {"miles-fsdp", "trl"}
    text = call("--machine", "gb10", "--model", "qwen3-1.7b", "--lines", width=110).stdout
    assert text.index("headway train") < text.index("LoRA r16") < text.index("Other trainers")
    assert text.index("Other trainers") < text.index("full, Miles FSDP")


def test_the_largest_are_the_largest_that_surely_fit() -> None:
    found = table("--machine", "rtx4090", "--model", "qwen3-")
    for recipe, model in found["largest"].items():
        fitting = [row for row in found["rows"] if row["recipe"] == recipe and row["verdict"] == "fits"]
        assert model == (max(fitting, key=lambda row: row["parameters"])["model"] if fitting else None)
    assert found["largest"]["LoRA r16"] is not None


def test_shorter_answers_let_more_fit() -> None:
    long, short = (
        table("--machine", "l4", "--model", "qwen3-", "--set", f"rollout.max_answer={tokens}")
        for tokens in (8192, 64)
    )
    assert (long["batch"]["max_answer"], short["batch"]["max_answer"]) == (8192, 64)
    largest = [
        max(row["parameters"] for row in each["rows"] if row["recipe"] == "LoRA r16" and row["verdict"] == "fits")
        for each in (long, short)
    ]
    assert largest[1] > largest[0]


def test_host_memory_can_be_set() -> None:
    unknown = table("--machine", "rtx4090", "--model", "qwen3-0.6b")
    small = table("--machine", "rtx4090", "--model", "qwen3-0.6b", "--set", "machine.host=1GiB")
    assert {row["verdict"] for row in unknown["rows"] if row["recipe"] == "full"} == {"fits"}
    assert {row["pool"] for row in small["rows"] if row["recipe"] == "full"} == {"node[0].host"}


def test_a_machine_without_devices_has_no_recipes_of_trainers_that_need_one() -> None:
    assert all(row["trained_here"] for row in table("--machine", "cpu-64gib", "--model", "qwen3-0.6b")["rows"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "qwen9"), "no model of that name"),
        (("--model", "mixtral"), "headway trains llama"),
        (("--machine", "gb11"), "nearest are gb10"),
        (("--set", "trainer.cap=3"), "use headway plan"),
        (("--set", "rollout.samples=few"), "must be a whole number"),
    ],
)
def test_bad_input_says_what_can_be_given(words: tuple[str, ...], said: str) -> None:
    assert said in str(call(*words).exception)


@pytest.mark.parametrize("pattern", ["qwen3-?.*b", "QWEN3-1", "qwen3-1.7b"])
def test_models_are_found_by_pattern_and_part(pattern: str) -> None:
    models = {row["model"] for row in table("--machine", "gb10", "--model", pattern)["rows"]}
    assert "qwen3-1.7B" in models
    assert all(model.startswith("qwen3") for model in models)


@pytest.mark.parametrize("width", [40, 80, 110])
def test_every_width_holds_the_table_and_keeps_the_units_apart(width: int) -> None:
    text = call("--machine", "gb10", "--model", "qwen3-", "--lines", width=width).stdout
    assert max(map(len, text.splitlines())) <= width
    above, _, below = " ".join(text.split()).partition("The rule of thumb, in decimal GB")
    assert not re.search(r"\d ?GB\b", above)
    assert re.search(
        r"50% of 130\.7 GB of memory is 65\.3 GB, for 4\.08 billion parameters: qwen3-4B, 64\.4 GB\.", below
    )
    assert "◀" in above


@pytest.mark.parametrize("machine", ["rtx4090", "gb10", "h100-80", "l4", "cpu-64gib"])
def test_in_short_it_fits_a_screen_of_80_columns(machine: str) -> None:
    lines = [line.rstrip() for line in call("--machine", machine).stdout.splitlines()]
    assert 20 <= len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)


def test_the_largest_model_stands_first_and_people_train_those() -> None:
    text = call("--machine", "rtx4090").stdout
    models = re.findall(
        r"^([a-z][\w.-]+\d+[BM][\w-]*) .*$", text.partition("the largest model first")[2], re.MULTILINE
    )
    sizes = [by_name(name).parameters() for name in models]
    assert sizes == sorted(sizes, reverse=True)
    assert {"qwen3-8B", "llama3.1-8B-Instruct", "gemma3-4B", "mistral-small-24B"} <= set(models)
    assert not [name for name in models if name.startswith(("yi-", "tinyllama", "falcon", "codellama", "qwen2-"))]


def test_the_answers_in_short_are_those_of_the_rows() -> None:
    text = call("--machine", "rtx4090", "--model", "qwen3-").stdout
    rows = {(row["model"], row["recipe"]): row for row in table("--machine", "rtx4090", "--model", "qwen3-")["rows"]}
    line = next(line for line in text.splitlines() if line.startswith("qwen3-8B"))
    assert line.split()[1:] == [
        "x",
        "x",
        tokens(rows["qwen3-8B", "LoRA r16"]["longest_answer"]),
        "x",
        "x",
        "x",
        tokens(rows["qwen3-8B", "QLoRA r16, PEFT"]["longest_answer"]),
    ]


def test_a_large_vocabulary_hides_no_model_with_a_small_one() -> None:
    """Gemma 3 of 270 million parameters has 262,144 logits a token, SmolLM2 of 360 million 49,152."""
    shapes = [by_name("gemma3-270m"), by_name("smollm2-360m"), by_name("qwen2.5-0.5b")]
    rows = size(machines.by_name("rtx4090").without_ray(), shapes, [r for r in OTHERS if r.name == "full, TRL"])
    kinds = {row.model: row.kind for row in rows}
    assert kinds["gemma3-270M"] == "does not fit"
    assert kinds["smollm2-360M"] == "fits"


def test_it_loads_no_heavy_library_and_no_runspec() -> None:
    code = (
        "import sys; from headway.cli.app import app\n"
        "try: app(['size', '--machine', 'gb10', '--model', 'qwen3-0.6b', '--json'])\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "headway.plan.size" in loaded
    assert not {"torch", "transformers", "numpy", "rich.table", "headway.config.sections"} & set(loaded)


@pytest.mark.parametrize(("machine", "said", "not_said"), [
    ("m4-max-64gib", "Miles, vLLM and bitsandbytes need CUDA", "of the 2 devices"),
    ("2xrtx3090", "each run is on one of the 2 devices", "CUDA"),
    ("h100", "h100 is taken to be the one of 80 GB", "devices"),
    ("gb10", "", "need CUDA"),
])  # fmt: skip
def test_what_to_know_of_the_machine_is_said(machine: str, said: str, not_said: str) -> None:
    found = CliRunner().invoke(app, ["size", "--machine", machine, "--json"])
    text = " ".join(json.loads(found.stdout)["said"])
    assert said in text
    assert not_said not in text
