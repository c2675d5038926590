"""What a plan says of a launch is in the launch's own flags, and of what `--set` gave in headway's keys."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headway.cli.app import app
from headway.cli.inputs import read_case
from headway.cli.launch import in_words
from headway.facts.workload import Workload
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.planned import Planned, examine
from headway.reports.plan import plan_report

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 "
    "data.max_prompt_length=2048 data.max_response_length=4096 actor_rollout_ref.model.path=Qwen/Qwen3-8B "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.fsdp_config.param_offload=True "
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True trainer.n_gpus_per_node=8 trainer.nnodes=1"
)
SHARE = "actor_rollout_ref.rollout.gpu_memory_utilization"


def planned(words: str, *given: str, machine: str = "8xh100-80") -> Planned:
    case = read_case(words.split(), None, machine, given)
    assert case.launch is not None
    return in_words(examine(case.workload, case.machine), case.launch.found, given)


def test_a_refusal_names_the_script_s_own_flag() -> None:
    refusal = planned(f"{VERL} {SHARE}=0.1").outcome.refusals[0]
    assert refusal.startswith(f"{SHARE} 0.1: leaves a KV pool of")
    assert "engine.memory_fraction" not in refusal
    assert "raise" not in refusal


def test_a_refusal_of_what_set_gave_keeps_its_key() -> None:
    refusal = planned(VERL, "engine.memory_fraction=0.1").outcome.refusals[0]
    assert refusal.startswith("engine.memory_fraction = 0.1: leaves")


def shown(found: Planned) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(plan_report(found, "verl", lines=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_tight_run_says_what_is_expected_to_fit_and_not_that_nothing_does() -> None:
    tight = planned(VERL, "machine.host=170GiB")
    assert tight.outcome.kind == "tight"
    assert tight.longest_sample == 0
    assert tight.longest_expected >= tight.workload.rollout.longest
    text = shown(tight)
    assert "Longest sample that is expected to fit alone: " in text
    assert "none fits" not in text
    assert "is over the limit" in text
    surely = planned(VERL, "machine.host=512GiB")
    assert surely.longest_expected == surely.longest_sample > 0
    assert "Longest sample that surely fits alone: " in shown(surely)


def test_the_worst_phase_of_a_tight_pool_has_the_highest_bound() -> None:
    lines = (
        Line("p", Phase.ROLLOUT, "trainer", 0, "a", 60, 61, "host", "", ""),
        Line("p", Phase.SAVE, "trainer", 0, "b", 50, 90, "host", "", ""),
    )
    ledger = Ledger(lines, {Phase.ROLLOUT: 1, Phase.SAVE: 2})
    assert ledger.worst("p", 80).phase == Phase.SAVE
    assert ledger.worst("p", 95).phase == Phase.ROLLOUT
    assert ledger.worst("p", 55).phase == Phase.ROLLOUT
    assert ledger.worst("p", None).phase == Phase.ROLLOUT


def weight(*more: str) -> float | None:
    case = read_case([*VERL.split(), *more], None, "8xh100-80", ())
    run: Workload = case.workload
    return run.trainer.reference_weight


def test_a_coefficient_of_the_reference_is_read() -> None:
    loss = "actor_rollout_ref.actor.use_kl_loss=True"
    assert weight(loss, "actor_rollout_ref.actor.kl_loss_coef=0.0") == 0
    assert weight(loss) == 0.001
    assert weight(loss, "actor_rollout_ref.actor.kl_loss_coef=0", "algorithm.use_kl_in_reward=True") == 0.001


@pytest.mark.parametrize(("settings", "said", "not_said"), [
    ((), "", "LoRA"),
    (("trainer.lora.rank=64",), "), LoRA of rank 64\n", "base"),
    (("trainer.lora.rank=8", "trainer.quant.kind=nf4"), "), LoRA of rank 8 on a base in nf4\n", "rank 16"),
])  # fmt: skip
def test_the_heading_says_what_is_trained(settings: tuple[str, ...], said: str, not_said: str) -> None:
    words = ["plan", "qwen3-4B", "--trainer", "fsdp2", "--machine", "h100"]
    heading = CliRunner().invoke(app, [*words, *(word for each in settings for word in ("--set", each))]).output
    heading = "\n".join(heading.splitlines()[:2])
    assert said.strip() in heading
    assert not_said not in heading


def test_changes_of_a_model_by_name_can_be_pasted() -> None:
    words = ["plan", "qwen3-4B", "--trainer", "trl", "--machine", "h100", "--set", "engine.system=vllm"]
    text = " ".join(CliRunner().invoke(app, words).output.split())
    assert "--set trainer.loss=fused --set engine.releases=weights+kv that is --use_liger_kernel true and" in text
    pasted = [*words, "--set", "trainer.loss=fused", "--set", "engine.releases=weights+kv"]
    assert "Fits: needs at most" in CliRunner().invoke(app, pasted).output
    # a launch has its own flags, and nothing of headway's
    script = CliRunner().invoke(app, ["plan", "--machine", "8xh100", "--", *VERL.split()]).output
    assert "--set trainer" not in script


@pytest.mark.parametrize(("settings", "said"), [
    (("trainer.optimizer.offload=1.0", "trainer.offload=none", "trainer.offload_parameters=true"),
     "Fits, if the host has room: needs at most"),
    (("trainer.optimizer.offload=1.0", "trainer.offload=none", "trainer.offload_parameters=true",
      "machine.host=1000GiB"), "Fits: needs at most"),
    (("rollout.max_answer=512", "trainer.lora.rank=16"), "Fits: needs at most"),
])  # fmt: skip
def test_a_verdict_that_hangs_on_the_host_says_so(settings: tuple[str, ...], said: str) -> None:
    words = ["plan", "qwen3-32B", "--trainer", "verl", "--machine", "8xh100"]
    done = CliRunner().invoke(app, [*words, *(word for each in settings for word in ("--set", each))])
    assert said in done.output
