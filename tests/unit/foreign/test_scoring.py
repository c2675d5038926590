"""How many samples or tokens the passes that only score take, from the scripts of verl, OpenRLHF and slime."""

import pytest

from headway.facts.machines import by_name
from headway.facts.workload import Workload
from headway.foreign.launched import workload
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text
from headway.plan.ledger import Phase
from headway.plan.plan import plan
from headway.plan.planned import examine
from headway.plan.training import micro_batch, scoring_batch

MODEL, ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout", "ref"))
VERL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=7168 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.n_gpus_per_node=8 algorithm.adv_estimator=grpo "
    f"{ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True "
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2 "
)
DYNAMIC = f"{VERL} {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=9216 "
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --actor_num_gpus_per_node 8 --zero_stage 3 "
    "--train_batch_size 64 --generate_max_len 1024 --colocate_all_models "
    "--remote_rm_url http://x --advantage_estimator rloo "
)
SLIME = (
    "python3 train.py --actor-num-gpus-per-node 8 --hf-checkpoint /m/Qwen3-4B --rollout-batch-size 32 --colocate "
    "--n-samples-per-prompt 8 --rollout-max-response-len 2048 --use-dynamic-batch-size --max-tokens-per-gpu 4096 "
)


def made(text: str) -> Workload:
    return workload(settings_of(read_text(text)))


def own(run: Workload) -> tuple[int, int]:
    """(cap, rows) of the passes that only score."""
    return run.trainer.score_cap, run.trainer.score_rows


@pytest.mark.parametrize(("said", "expected"), [
    ("", (0, 0)),
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2", (0, 0)),
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=32", (0, 32)),
    (f"{ROLLOUT}.log_prob_micro_batch_size=64", (0, 8)),
    # a reference scores in its own micro-batches, where there is one
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4 {REF}.log_prob_micro_batch_size_per_gpu=16", (0, 4)),
    (
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4 {REF}.log_prob_micro_batch_size_per_gpu=16 "
        f"{ACTOR}.use_kl_loss=True",
        (0, 16),
    ),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz=True {ROLLOUT}.log_prob_max_token_len_per_gpu=65536", (65536, 0)),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz=True", (16384, 0)),
])  # fmt: skip
def test_verls_log_probs_have_micro_batches_of_their_own(said: str, expected: tuple[int, int]) -> None:
    assert own(made(VERL + said)) == expected


@pytest.mark.parametrize(("said", "expected"), [
    ("", (0, 0)),
    (f"{ROLLOUT}.log_prob_max_token_len_per_gpu=9216", (0, 0)),
    (f"{ROLLOUT}.log_prob_max_token_len_per_gpu=40960", (40960, 0)),
    (f"{ROLLOUT}.log_prob_max_token_len_per_gpu=40960 {ACTOR}.ulysses_sequence_parallel_size=2", (81920, 0)),
    # training counts tokens, the log-probs samples
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz=False {ROLLOUT}.log_prob_micro_batch_size_per_gpu=8", (0, 8)),
])  # fmt: skip
def test_verls_dynamic_micro_batches_of_log_probs(said: str, expected: tuple[int, int]) -> None:
    assert own(made(DYNAMIC + said)) == expected


def test_verls_critic_computes_values_in_its_own_micro_batches() -> None:
    gae = VERL.replace("grpo", "gae") + "critic.ppo_micro_batch_size_per_gpu=2 "
    as_training, larger = made(gae).critic, made(gae + "critic.forward_micro_batch_size_per_gpu=32").critic
    assert as_training is not None
    assert larger is not None
    assert (as_training.trainer.score_rows, larger.trainer.score_rows) == (0, 32)
    assert larger.trainer.rows == as_training.trainer.rows == 2


def test_openrlhf_makes_experience_in_batches_of_the_rollout() -> None:
    assert own(made(OPENRLHF + "--micro_train_batch_size 2 --micro_rollout_batch_size 16")) == (0, 16)
    assert own(made(OPENRLHF + "--micro_train_batch_size 8")) == (0, 0)


def test_log_probs_of_many_tokens_are_the_peak_and_advice_lowers_them() -> None:
    machine = by_name("8xh100")
    small = examine(made(f"{VERL} {ROLLOUT}.log_prob_micro_batch_size_per_gpu=2"), machine)
    large = examine(made(f"{VERL} {ROLLOUT}.log_prob_micro_batch_size_per_gpu=64"), machine)
    assert (small.outcome.kind, large.outcome.kind) == ("fits", "does not fit")
    device = next(pool for pool in large.outcome.pools if not pool.pool.endswith("host"))
    assert device.peak.phase is Phase.SCORE
    bounds = [logits(each.workload, Phase.SCORE)[1] for each in (small, large)]
    assert bounds[1] == pytest.approx(32 * bounds[0], rel=1e-6)
    first = large.advice.remedies[0].changes[0]
    assert first.key == "trainer.score_rows"
    assert f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu={first.value}" in first.text


def test_a_cap_of_slime_is_one_of_each_context_parallel_rank() -> None:
    """slime's `dp_schedule.py`: a micro-batch has at most `max_tokens_per_gpu` x context parallel ranks."""
    alone, divided = made(SLIME), made(f"{SLIME} --context-parallel-size 2")
    assert (alone.trainer.cap, divided.trainer.cap) == (4096, 8192)
    assert micro_batch(alone).tokens == micro_batch(divided).tokens == scoring_batch(divided).tokens == 4096
    assert plan(divided, by_name("8xh100"))


def logits(run: Workload, phase: Phase) -> tuple[int, int]:
    """Bytes expected of the logits in a phase, and their bound."""
    lines = plan(run, by_name("8xh100")).lines
    return next((line.bytes, line.upper) for line in lines if line.item == "logits" and line.phase is phase)


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.SCORE])
def test_samples_without_padding_are_expected_to_be_shorter_and_bound_by_the_longest(phase: Phase) -> None:
    padded = f"{VERL} {MODEL}.use_remove_padding=False "
    many = f"{ACTOR}.ppo_micro_batch_size_per_gpu=5"
    (expected, bound), (full, fullest) = logits(made(VERL + many), phase), logits(made(padded + many), phase)
    assert expected == pytest.approx(full * 2 / 5, rel=1e-3)  # one longest, and four of a fourth
    assert bound == fullest
    # one sample has nothing beside it, and a cap on tokens is reached either way
    for said in (f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", f"{ACTOR}.use_dynamic_bsz=True"):
        assert logits(made(VERL + said), phase) == logits(made(padded + said), phase)


def test_a_run_that_fits_by_shorter_samples_alone_is_tight() -> None:
    many = f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"
    kinds = [
        examine(made(f"{VERL} {many} {MODEL}.use_remove_padding={removed}"), by_name("8xh100")).outcome.kind
        for removed in (True, False)
    ]
    assert kinds == ["tight", "does not fit"]


def test_openrlhf_removes_padding_where_it_is_asked_to() -> None:
    assert [made(OPENRLHF + said).trainer.padding_free for said in ("", "--packing_samples")] == [False, True]


SFT = (
    "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer engine.ulysses_sequence_parallel_size=2 "
    "model.path=Qwen/Qwen3-4B data.max_length=8192 data.train_batch_size=96 data.use_dynamic_bsz=True "
)


@pytest.mark.parametrize(("cap", "expected"), [(10_000, 10_000), (200_000, 24 * 8192 // 2)])
def test_a_micro_batch_has_no_more_than_the_samples_of_its_rank(cap: int, expected: int) -> None:
    """96 samples are 24 for each of 4 pairs, of which each device has half of every sample."""
    run = made(f"{SFT} data.max_token_len_per_gpu={cap}")
    assert micro_batch(run).tokens == expected


def test_changes_of_supervised_fine_tuning_are_in_the_words_of_its_trainer() -> None:
    run = made(f"{SFT} data.max_token_len_per_gpu=65536")
    remedies = examine(run, by_name("8xh100")).advice.remedies
    words = [change.text for remedy in remedies for change in remedy.changes]
    assert "data.max_token_len_per_gpu=32768" in words
    assert not [text for text in words if "actor_rollout_ref" in text]
