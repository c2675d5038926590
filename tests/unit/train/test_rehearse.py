"""The worst step made to happen first: a real job on a tiny model, in this process."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config.load import load
from headway.rollout.full_length import PREFILLS
from headway.rollout.hf import HfEngine
from headway.rollout.samples import Sample
from headway.train.pack import groups
from headway.train.rehearse import EventView, rehearse, sample_lengths

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text", max_prompt = 24}
reward = {kind = "exact", extract = "whole"}
rollout = {prompts = 4, samples = 3, max_answer = 40, stop = ["a", "e"]}
train = {steps = 9, cap = 150, updates = %(updates)d}
objective = {kl_coef = %(kl)g}
eval = {problems = 4}
memory = {threads = 1}
output = {dir = "out", tensorboard = false, rollouts = 100}
"""


@pytest.fixture
def runspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(updates: int = 1, kl: float = 0.0) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(SPEC % {"updates": updates, "kl": kl})
        return path

    return write


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("updates", "kl"), [(1, 0.0), (2, 0.1)])
def test_every_phase_comes_and_every_answer_is_full(runspec, tmp_path, capsys, updates, kl) -> None:
    spec = load(runspec(updates, kl))
    rehearse(spec, "own", 64, 2, EventView())
    rows = [row for row in read(tmp_path / "out/recording.jsonl") if row["kind"] == "phase"]
    score = {"score"} if kl else set()
    assert {row["phase"] for row in rows} == {"load", "rollout", "train", "step", "eval", "save"} | score
    assert all(row["ended"] == "ok" for row in rows)
    first, second = read(tmp_path / "out/metrics.jsonl")
    # every sample has a gradient: rewards are spread inside each group
    assert second["reward_std"] > 0
    assert second["answer_tokens_max"] == 40
    assert first["answer_tokens_max"] == 16
    assert second["dropped"] == 0
    evaluation = [row for row in read(tmp_path / "out/rollouts.jsonl") if row["phase"] == "eval"]
    assert {len(row["response_ids"]) for row in evaluation} == {40}
    assert {len(row["prompt_ids"]) for row in evaluation} == {24}
    assert (tmp_path / "out/final/config.json").is_file()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["phase"] for event in events if event["event"] == "phase"][:2] == ["load", "rollout"]


def test_prompts_beyond_the_first_groups_are_not_computed(runspec, tmp_path, monkeypatch) -> None:
    computed = []

    def forward(self, ids, *rest, own=HfEngine._forward):
        computed.append(tuple(ids.shape))
        return own(self, ids, *rest)

    monkeypatch.setattr(HfEngine, "_forward", forward)
    monkeypatch.setattr("headway.rollout.hf.PREFILL_TOKENS", 24)  # one prompt at a time, of 4
    rehearse(load(runspec()), "own", 64, 1, EventView())
    assert [shape for shape in computed if shape[1] > 1] == [(1, 24)] * 2 * PREFILLS  # a rollout and an evaluation
    assert {row["ended"] for row in read(tmp_path / "out/recording.jsonl") if row["kind"] == "phase"} == {"ok"}


def test_tensors_are_counted_in_a_step_of_their_own(runspec, tmp_path) -> None:
    rehearse(load(runspec()), "own", 64, 2, EventView(), tensors=True)
    rows = read(tmp_path / "out/recording.jsonl")
    counted = {row["phase"]: row for row in rows if row["kind"] == "tensors"}
    assert set(counted) == {"rollout", "train", "step", "eval"}
    assert {row["step"] for row in counted.values()} == {3}
    assert max(row["step"] for row in rows if row["kind"] == "phase") == 2
    (measured,) = [row for row in rows if row["kind"] == "phase" and row["phase"] == "train" and row["step"] == 2]
    held = measured["rss_peak"] - measured["rss_start"]
    assert 0 < counted["train"]["peak"] < held + (4 << 20)
    assert abs(held - counted["train"]["peak"]) < 16 << 20


def test_the_moments_exist_before_the_step_that_counts(runspec, tmp_path) -> None:
    spec = load(runspec())
    rehearse(spec, "own", 64, 2, EventView())
    from safetensors import safe_open

    (folder,) = (tmp_path / "out/checkpoints").iterdir()
    with safe_open(folder / "optimizer.safetensors", "pt") as file:
        assert any(file.get_tensor(name).abs().sum() > 0 for name in file.keys())  # noqa: SIM118


@given(count=st.integers(1, 80), longest=st.integers(4, 400), cap=st.integers(1, 3000), prompt=st.integers(1, 3))
def test_the_largest_micro_batches_that_can_be_are_among_them(count, longest, cap, prompt) -> None:
    lengths = sample_lengths(count, longest, cap, prompt)
    assert 0 < len(lengths) <= count
    assert all(prompt < tokens <= longest for tokens in lengths)
    samples = [Sample(0, 0, (0,) * prompt, (0,) * (size - prompt), (), "", "length", 0, 0) for size in lengths]
    made = [(len(group), samples[group[0]].tokens) for group in groups(samples, cap)]
    rows = max(1, cap // longest)
    # the largest of full-length samples
    assert (min(rows, count), longest) in made
    # and none fills the cap better by more than the tokens that a row is shorter
    fullest = max(size * tokens for size, tokens in made)
    if count >= 2 * rows + 1 and longest <= cap and cap // (rows + 1) > prompt:
        assert fullest > cap - (rows + 1)
