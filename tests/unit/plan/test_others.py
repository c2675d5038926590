"""Whole models beside the actor: what their lines hold, whose turn it is, where they are."""

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts import machines
from headway.facts.shapes import by_name
from headway.facts.workload import Layout, OtherModel, Workload
from headway.foreign.presets import workload
from headway.plan.ledger import Ledger, Phase
from headway.plan.plan import plan

DEVICE = "node[0].device[0]"
MACHINE = machines.by_name("8xh100-80")
RANKS = 8


def run(preset: str = "verl-fsdp", *overrides: str, model: str = "llama3-8b") -> Workload:
    shape = by_name(model)
    assert shape is not None
    return workload(shape, preset, ("layout.devices=8", "save=true", "rollout.prompts=16", *overrides))


def held(ledger: Ledger, role: str, item: str, phase: Phase, pool: str = DEVICE) -> int:
    return sum(line.bytes for line in ledger.select(pool, phase) if (line.role, line.item) == (role, item))


def test_a_critic_of_fsdp_holds_16_bytes_a_parameter_over_its_ranks() -> None:
    with_critic = run("verl-fsdp", "critic.trainer.rows=1", "critic.trainer.cap=0")
    ledger = plan(with_critic, MACHINE)
    assert with_critic.critic is not None
    # llama3-8B without its output head: 8.03 - 0.53 billion
    count = by_name("llama3-8b").parameters() - 128_256 * 4096
    assert with_critic.critic.model.parameters() == count
    share = -(-count // RANKS)
    assert held(ledger, "critic", "weights", Phase.ROLLOUT) == pytest.approx(4 * share, abs=8)
    assert held(ledger, "critic", "optimizer moments", Phase.ROLLOUT) == pytest.approx(8 * share, abs=8)
    working = [phase for phase in Phase if held(ledger, "critic", "gradients", phase)]
    # at any time one of the two has gradients
    assert set(working) <= {Phase.TRAIN, Phase.STEP}
    for phase in (Phase.TRAIN, Phase.STEP):
        both = [held(ledger, role, "gradients", phase) for role in ("critic", "trainer")]
        assert sorted(each > 0 for each in both) == [False, True]


def test_without_one_the_plan_is_as_it_was() -> None:
    plain = run()
    made = run("verl-fsdp", "critic.trainer.rows=1")
    assert {line.role for line in plan(plain, MACHINE).lines} == {"trainer", "engine", "driver"}
    assert plan(replace(made, critic=None), MACHINE) == plan(plain, MACHINE)


def test_the_turn_that_holds_the_most_is_the_one_of_the_ledger() -> None:
    small = plan(run("verl-fsdp", "critic.trainer.rows=1", "critic.trainer.cap=0"), MACHINE)
    large = plan(run("verl-fsdp", "critic.trainer.rows=64", "critic.trainer.cap=0"), MACHINE)
    assert held(small, "trainer", "logits", Phase.TRAIN) > 0
    assert held(small, "critic", "working set", Phase.TRAIN) == 0
    assert held(large, "critic", "working set", Phase.TRAIN) > 0
    assert held(large, "trainer", "working set", Phase.TRAIN) == 0
    # the other rests beside it, its optimizer included
    for ledger, rests in ((small, "critic"), (large, "trainer")):
        assert held(ledger, rests, "optimizer moments", Phase.TRAIN) > 0
    assert held(large, "critic", "logits", Phase.TRAIN) == 0


@pytest.mark.parametrize(
    ("offload", "stays", "waits"),
    [
        ("none", {"weights", "optimizer moments"}, set()),
        ("parameters", {"optimizer moments"}, {"weights"}),
        ("optimizer", {"weights"}, {"optimizer moments"}),
        ("parameters+optimizer", set(), {"weights", "optimizer moments"}),
    ],
)
def test_each_model_goes_to_the_host_only_when_its_own_flags_say_so(
    offload: str, stays: set[str], waits: set[str]
) -> None:
    ledger = plan(run("verl-fsdp", f"critic.trainer.offload={offload}"), MACHINE)
    for phase in (Phase.ROLLOUT, Phase.SYNC):
        here = {line.item for line in ledger.select(DEVICE, phase) if line.role == "critic"}
        there = [line for line in ledger.select("node[0].host", phase) if line.role == "critic"]
        assert here == stays
        assert {line.item for line in there} == waits
        assert all(line.formula.startswith(f"{RANKS} x ") for line in there)
        actor = {line.item for line in ledger.select(DEVICE, phase) if line.role == "trainer"}
        assert {"weights", "optimizer moments"} <= actor


def test_an_offloaded_actor_is_away_while_the_critic_trains() -> None:
    ledger = plan(run("verl-fsdp", "trainer.offload=parameters+optimizer", "critic.trainer.rows=64"), MACHINE)
    assert held(ledger, "critic", "working set", Phase.TRAIN) > 0
    assert held(ledger, "trainer", "optimizer moments", Phase.TRAIN) == 0
    assert held(ledger, "trainer", "optimizer moments", Phase.TRAIN, "node[0].host") > 0


def test_a_model_that_only_scores_has_weights_and_a_pass_and_no_optimizer() -> None:
    ledger = plan(run("verl-fsdp", "reward_model.trainer.rows=256", "reward_model.trainer.cap=0"), MACHINE)
    items = {(line.item, line.phase) for line in ledger.lines if line.role == "reward" and line.pool == DEVICE}
    assert {item for item, phase in items if phase is not Phase.SCORE} == {"weights"}
    assert {"gathered blocks", "working set"} <= {item for item, phase in items if phase is Phase.SCORE}
    assert not {"gradients", "optimizer moments", "logits"} & {item for item, _ in items}


def test_a_model_in_the_host_is_pinned_there_and_holds_nothing_between_its_passes() -> None:
    ledger = plan(run("verl-fsdp", "reward_model.in_host=true", "reward_model.trainer.rows=4"), MACHINE)
    assert held(ledger, "reward", "weights", Phase.ROLLOUT) == 0
    assert all(held(ledger, "reward", "weights", phase, "node[0].host") for phase in ledger.phases("node[0].host"))


def test_a_critic_on_devices_of_its_own_leaves_those_of_the_actor_alone() -> None:
    base = run("openrlhf", "layout.devices=2", "trainer.reference=none")
    critic = OtherModel(
        base.model.valued(), replace(base.trainer, loss="value"), Layout(devices=4, shards=4), trained=True, group=1,
        process=True,
    )  # fmt: skip
    ledger = plan(replace(base, critic=critic), MACHINE)
    assert {line.role for line in ledger.lines if line.pool == DEVICE} == {"trainer", "engine"}
    own = {line.role for line in ledger.lines if line.pool == "node[0].device[2]"}
    assert own == {"critic"}
    assert held(ledger, "critic", "weights", Phase.LOAD, "node[0].device[2]") == pytest.approx(
        2 * critic.model.parameters() / 4, rel=1e-6
    )
    before = plan(base, MACHINE)
    for phase in before.phases(DEVICE):
        assert ledger.peak_of(DEVICE, phase).bytes == before.peak_of(DEVICE, phase).bytes


def test_two_models_that_share_devices_of_their_own_are_in_one_pool() -> None:
    base = run("openrlhf", "layout.devices=2", "trainer.reference=none")
    layout = Layout(devices=2, shards=2)
    critic = OtherModel(base.model.valued(), replace(base.trainer, loss="value"), layout, trained=True, group=1)
    reward = replace(critic, trained=False)
    together = plan(replace(base, critic=critic, reward_model=reward), MACHINE)
    assert {line.role for line in together.lines if line.pool == "node[0].device[2]"} == {"critic", "reward"}
    apart = plan(replace(base, critic=critic, reward_model=replace(reward, group=2)), MACHINE)
    assert {line.role for line in apart.lines if line.pool == "node[0].device[2]"} == {"critic"}
    assert {line.role for line in apart.lines if line.pool == "node[0].device[4]"} == {"reward"}


def test_a_critic_of_megatron_has_no_output_layer_and_its_own_process_its_own_context() -> None:
    base = run("slime", "layout.tensor=2", "critic.process=true", "critic.trainer.offload=parameters+optimizer")
    assert base.critic is not None
    ledger = plan(base, MACHINE)
    contexts = [line for line in ledger.select(DEVICE, Phase.TRAIN) if line.item == "CUDA context"]
    assert {line.role for line in contexts} == {"trainer", "critic"}
    # half of the parameters on each of two tensor ranks, without the head's table
    table = 128_256 * 4096
    expected = (by_name("llama3-8b").parameters() - table) // 2 * 2
    awake = plan(replace(base, critic=replace(base.critic, trainer=replace(base.critic.trainer, cap=65536))), MACHINE)
    assert held(awake, "critic", "weights", Phase.TRAIN) == pytest.approx(expected, rel=0.01)
    assert held(awake, "critic", "logits", Phase.TRAIN) == 0
    assert held(ledger, "critic", "weights", Phase.ROLLOUT) == 0
    asleep = {line.item for line in ledger.select(DEVICE, Phase.ROLLOUT) if line.role == "critic"}
    assert "left after pausing" in asleep
    assert "communicators" not in asleep


def test_a_critic_trained_in_one_pass_with_the_actor_adds_to_it() -> None:
    base = run("trl", "layout.devices=1", model="qwen3-0.6b")
    critic = OtherModel(
        base.model.valued(), replace(base.trainer, loss="value"), base.layout, trained=True, together=True
    )
    alone, both = plan(base, MACHINE), plan(replace(base, critic=critic), MACHINE)
    for phase in (Phase.TRAIN, Phase.STEP):
        for item in ("gradients", "optimizer moments"):
            assert held(both, "trainer", item, phase) == held(alone, "trainer", item, phase)
        assert held(both, "critic", "optimizer moments", phase) > 0
    assert held(both, "critic", "gradients", Phase.STEP) == 4 * base.model.parameters()


def test_the_frozen_copy_of_training_without_an_engine_is_a_model_beside_it() -> None:
    """DPO's reference: whole on each rank without shards, divided with them."""
    for shards, replicas in ((1, 8), (8, 1)):
        sets = (f"layout.shards={shards}", f"layout.replicas={replicas}", "layout.devices=8")
        base = run("trl", *sets, model="qwen3-0.6b")
        ledger = plan(replace(base, trainer=replace(base.trainer, reference="copy")), MACHINE)
        expected = 4 * base.model.parameters() // shards
        for phase in ledger.phases(DEVICE):
            assert held(ledger, "reference", "weights", phase) == pytest.approx(expected, abs=8)
        assert held(ledger, "reference", "logits", Phase.SCORE) > 0
        assert not {line.role for line in plan(base, MACHINE).lines} & {"reference"}


def test_checkpoints_have_the_critic_too() -> None:
    ledger = plan(
        run("slime", "critic.process=true", "critic.trainer.offload=parameters+optimizer", "save=true"),
        MACHINE,
    )
    host = "node[0].host"
    assert held(ledger, "critic", "checkpoint staging", Phase.SAVE, host) > 0
    assert held(ledger, "critic", "checkpoint staging", Phase.TRAIN, host) == 0


def test_ranks_that_do_not_divide_into_a_critics_groups_are_said() -> None:
    with pytest.raises(InputError, match="does not divide"):
        plan(run("slime", "critic.layout.tensor=3"), MACHINE)
