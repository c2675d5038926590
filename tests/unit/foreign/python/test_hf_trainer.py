"""Scripts of transformers' own Trainer: how long samples are, and what its optimizers keep."""

from pathlib import Path

import pytest

from headway.facts.machines import by_name
from headway.facts.workload import Workload
from headway.foreign.launched import workload
from headway.foreign.readers import read_run
from headway.plan.offload import optimizer_bytes
from headway.plan.planned import examine
from headway.plan.rank import Rank

SCRIPT = """
import argparse
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--bs", type=int, default={rows})
    opts = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained("mistralai/Mistral-7B-v0.1")
    model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", torch_dtype="bfloat16")
    def tokenize(row):
        return tokenizer(row["text"]{length})
    args = TrainingArguments("out", per_device_train_batch_size=opts.bs, bf16=True, optim="{optim}")
    Trainer(model=model, args=args, train_dataset=data.map(tokenize)).train()
main()
"""


def made(
    folder: Path, length: str = ", max_length=opts.longest", optim: str = "adamw_torch", rows: int = 1
) -> Workload:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(length=length, optim=optim, rows=rows))
    return workload(read_run(path))


@pytest.mark.parametrize(("length", "expected"), [
    (", truncation=True, max_length=opts.longest", 4096),
    (", truncation=True, max_length=2048", 2048),
    # another number of the command line is no length
    (", max_length=opts.unheard", 1024),
])  # fmt: skip
def test_a_length_that_a_function_takes_from_the_command_line(tmp_path: Path, length: str, expected: int) -> None:
    assert made(tmp_path, length).rollout.longest == expected


def test_a_length_that_nobody_says_is_assumed_and_may_decide(tmp_path: Path) -> None:
    run = made(tmp_path, "", optim="sgd", rows=4)
    assert any(text.startswith("max_total_len = 1024 (assumed") for text in run.unknown)
    assert examine(run, by_name("h200")).outcome.kind == "fits"
    # four samples of a length that is not known: half of what is assumed fits here, twice as much does not
    close = examine(run, by_name("a6000")).outcome
    assert (close.kind, close.deciding[0].partition(" ")[0]) == ("cannot tell", "max_total_len")
    told = made(tmp_path, optim="sgd", rows=4)
    assert examine(told, by_name("a6000")).outcome.kind == "does not fit"


@pytest.mark.parametrize(("optim", "bytes_each"), [
    ("adamw_torch", 4), ("rmsprop", 2), ("adagrad", 2), ("lion_32bit", 2), ("adafactor", 0), ("sgd", 0),
    ("adamw_torch_4bit", 2 * (0.5 + 4 / 128)), ("adamw_bnb_8bit", 2 * (1 + 4 / 256)),
])  # fmt: skip
def test_what_an_optimizer_keeps_of_each_bf16_parameter(tmp_path: Path, optim: str, bytes_each: float) -> None:
    run = made(tmp_path, optim=optim)
    moments, master = optimizer_bytes(run, Rank.of(run))
    assert master == 0
    assert moments == pytest.approx(bytes_each * run.model.parameters(), rel=0.01)
