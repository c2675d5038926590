"""Arguments that runs print: each system's form, other processes between the lines, logs of any size and content."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.foreign import arguments_log
from headway.foreign.found import KEYS

LOGS = Path(__file__).parents[2] / "data" / "scripts_other" / "logs"

SAID = {
    "slime-ray.log": {
        "system": "slime", "model_name": "Qwen3-4B", "tp": 2, "gpus_per_node": 4, "nodes": 2, "colocate": True,
        "max_tokens_per_gpu": 9216, "recompute": "full", "use_kl_loss": True, "num_experts": None,
        "optimizer_offload": False, "num_steps_per_rollout": None, "mode": "sync",
    },
    "megatron-srun.log": {
        "system": "megatron", "num_experts": 128, "ep": 4, "pp": 2, "low_precision": "fp8", "save_interval": None,
        "recompute": "selective", "sequence_parallel": False, "max_total_len": 4096, "nodes": None,
    },
    "verl-ray.log": {
        "system": "verl", "trainer_backend": "fsdp2", "model_name": "Qwen3-1.7B", "gpus_per_node": 4,
        "micro_batch": 2, "max_total_len": None, "optimizer_offload": True, "reference_loaded": True,
        "critic_loaded": False, "engine_mem_fraction": 0.5, "lora_rank": 0,
    },
    "openrlhf-old.log": {
        "system": "openrlhf", "model_name": "Qwen3-1.7B", "zero_stage": 3, "max_total_len": None, "kl_coef": 0.0,
        "max_tokens_per_gpu": 16384, "optimizer_offload": False, "rollout_gpus": 8,
    },
    "trl-openr1.log": {
        "system": "trl", "lora_rank": 16, "kl_coef": 0.04, "dtype": "bf16", "colocate": False, "save_interval": 0.1,
        "optimizer": "adamw_torch", "max_response_len": 1024, "model_name": "Qwen2.5-1.5B-Instruct",
    },
    "verl-trace.log": {"system": "verl", "rollout_batch": 64, "samples_per_prompt": 5, "gpus_per_node": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_a_run_printed(name):
    found = arguments_log.read(LOGS / name)
    assert found is not None
    assert {key: found.settings[key] for key in SAID[name]} == SAID[name]
    assert set(found.settings) | set(found.unknown) == set(KEYS)
    assert any(name in note for note in found.notes)


def test_a_line_of_another_process_does_not_end_or_fill_a_block():
    found = arguments_log.read(LOGS / "slime-ray.log")
    assert found is not None
    assert "max-running-requests" not in found.flags


def test_which_loop_printed_arguments_without_colocation_is_unknown():
    text = (LOGS / "slime-ray.log").read_text()
    found = arguments_log.read_log(text.replace("colocate", "colocated_not"))
    assert found is not None
    assert "mode" in found.unknown


def test_records_within_records_have_dotted_names():
    text = (
        "args Namespace(ds=Namespace(zero_stage=3, lora=Namespace(rank=8)), vllm=Namespace(num_engines=2), "
        "actor=Namespace(model_name_or_path='a/b'))"
    )
    found = arguments_log.read_log(text)
    assert found is not None
    assert (found.settings["zero_stage"], found.settings["lora_rank"], found.settings["model_name"]) == (3, 8, "b")


def bytes_read() -> int:
    """What this process has read from files so far, from /proc/self/io."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_a_log_of_gigabytes_is_read_at_its_start(tmp_path):
    path = tmp_path / "big.log"
    path.write_bytes((LOGS / "megatron-srun.log").read_bytes())
    with path.open("r+b") as file:
        file.truncate(20 << 30)
    before = bytes_read()
    found = arguments_log.read(path)
    assert found is not None
    assert found.settings["num_layers"] == 48
    assert bytes_read() - before < 64 << 20


@pytest.mark.parametrize(
    "text",
    [
        "-" * 3_000_000,
        ("-" * 40 + " arguments " + "-" * 40 + "\n") * 20_000,
        "Namespace(" * 100_000,
        "Namespace(a='" + "x" * 1_000_000,
        "{'actor_rollout_ref': {" * 50_000,
        "{'actor_rollout_ref': " + "{" * 300 + "}" * 300 + "}",
        "1" * 2_000_000,
        "+ " + "python " * 300_000,
        "a . " * 500_000,
        "(x pid=1) " * 200_000,
    ],
    ids=range(10),
)  # fmt: skip
def test_texts_made_to_hang_do_not(text):
    start = time.perf_counter()
    arguments_log.read_log(text)
    assert time.perf_counter() - start < 5


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SAID)), st.integers(0, 10_000),
    st.text(alphabet="()[]{}'\"=,:.-\n aNamespacepid1\\\x1b", max_size=30), st.integers(0, 60),
)  # fmt: skip
@example("verl-ray.log", 60, "\x00", 0)
def test_logs_changed_at_random_are_read_or_not(name, place, put, cut):
    text = (LOGS / name).read_text()
    place %= len(text)
    found = arguments_log.read_log(text[:place] + put + text[place + cut :])
    assert found is None or set(found.settings) | set(found.unknown) == set(KEYS)


def test_no_arguments_and_no_file(tmp_path):
    assert arguments_log.read_log("epoch 1 loss 0.3\n") is None
    with pytest.raises(InputError, match="cannot be read"):
        arguments_log.read(tmp_path / "none.log")
