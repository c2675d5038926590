"""Which device and node each role is on, what is alive together, and what each node's host holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts import machines
from headway.facts.machine import Limit, Machine, Pool
from headway.facts.shapes import by_name
from headway.facts.workload import Engine, Workload
from headway.foreign.presets import GROWTH, workload
from headway.plan.flight import in_flight
from headway.plan.ledger import Ledger, Phase, total, total_upper
from headway.plan.placement.places import Places
from headway.plan.plan import plan
from headway.plan.verdict import longest_sample, of_pool, verdict
from headway.units import GIB, MIB

HOST = "node[0].host"


def run(*settings: str, trainer: str = "slime", model: str = "qwen3-4B") -> Workload:
    shape = by_name(model)
    assert shape is not None
    return workload(shape, trainer, settings)


def node(name: str = "8xb200", host: float = 1600e9) -> Machine:
    return machines.with_host(machines.by_name(name), int(host))


def held(ledger: Ledger, pool: str, phase: Phase, item: str) -> tuple[int, int]:
    lines = [line for line in ledger.select(pool, phase) if line.item == item]
    return total(lines), sum(line.upper for line in lines)


APART = ("layout.devices=4", "engine.colocated=false", "engine.devices=4")


# -- a public run: Qwen3-30B-A3B on eight B200 with 1600 GB, trained in slime on four, generated on four ------------

SEED = (
    "layout.devices=4", "layout.tensor=4", "layout.expert_parallel=4", "layout.expert_tensor=1",
    "engine.colocated=false", "engine.devices=4", "engine.tensor_parallel=4", "engine.memory_fraction=0.5",
    "mode=one-step-off", "rollout.max_answer=32768", "trainer.cap=20480", "trainer.recompute.granularity=full",
    "steps=300", "save=true", "rollout.eval_problems=64",
)  # fmt: skip
"""The flags of THUDM/slime issue 1740 that decide memory; prompts are not in it."""


@pytest.fixture(scope="module")
def seed() -> Workload:
    return run(*SEED, model="qwen3-30B-A3B")


@pytest.fixture(scope="module")
def ledger(seed: Workload) -> Ledger:
    return plan(seed, node())


def local_parameters() -> int:
    """Of one rank at TP 4, EP 4, by the model card: 48 layers, 32 of 128 experts, embedding and head apart."""
    experts = 32 * 3 * 2048 * 768
    attention = (2048 * (4096 + 2 * 512) + 4096 * 2048) // 4 + 2 * 128
    layer = experts + attention + 2048 * 128 + 2 * 2048
    padded = -(-151_936 // 512) * 512
    return 48 * layer + 2 * padded // 4 * 2048 + 2048


def test_trainer_and_engine_have_pools_of_their_own(ledger: Ledger) -> None:
    assert set(ledger.pools()) == {HOST, "node[0].device[0]", "node[0].device[4]"}
    roles = {pool: {line.role for line in ledger.lines if line.pool == pool} for pool in ledger.pools()}
    assert roles["node[0].device[0]"] == {"trainer"}
    assert roles["node[0].device[4]"] == {"engine"}
    assert {"trainer", "reference", "engine", "driver"} <= roles[HOST]


def test_eighteen_bytes_a_parameter_stay_on_each_training_gpu(ledger: Ledger) -> None:
    """No data parallel ranks: the distributed optimizer has nobody to share with. 128 of 178 GiB, in every phase."""
    for phase in (Phase.ROLLOUT, Phase.SCORE, Phase.TRAIN, Phase.STEP, Phase.SYNC, Phase.EVAL):
        sizes = {name: held(ledger, "node[0].device[0]", phase, name)[0] for name in
                 ("weights", "gradient buffer", "optimizer state")}  # fmt: skip
        assert sizes["weights"] == 2 * local_parameters()
        assert sizes["gradient buffer"] == 4 * local_parameters()
        assert sizes["optimizer state"] == 12 * local_parameters()
    assert 18 * local_parameters() / GIB == pytest.approx(128.1, abs=0.1)


def test_the_reference_is_loaded_at_coefficient_0_and_can_be_left_out(seed: Workload, ledger: Ledger) -> None:
    """Experts are 2048 x 1536 and 768 x 2048: 6 and 3 MiB become 8 and 4 in pinned memory."""
    copy, _ = held(ledger, HOST, Phase.TRAIN, "reference weights")
    assert copy == held(ledger, HOST, Phase.TRAIN, "actor weights")[0]
    experts = 4 * 48 * 32 * (8 + 4) * MIB
    assert experts < copy < 1.1 * experts
    without = plan(replace(seed, trainer=replace(seed.trainer, reference="none")), node())
    assert Phase.SCORE not in without.phases(HOST)
    freed = ledger.peak_of(HOST, Phase.TRAIN).bytes - without.peak_of(HOST, Phase.TRAIN).bytes
    assert freed == copy


def test_all_that_can_be_planned_fits_the_1600_gb_and_what_cannot_is_said(seed: Workload, ledger: Ledger) -> None:
    (host,) = [each for each in verdict(ledger, node()) if each.pool == HOST]
    assert host.kind == "fits"
    assert host.peak.phase is Phase.SAVE
    staged, _ = held(ledger, HOST, Phase.SAVE, "checkpoint staging")
    assert staged > 4 * 14 * local_parameters()
    assert held(ledger, HOST, Phase.TRAIN, "staging not given back")[1] >= staged
    assert GROWTH in seed.unknown


def test_the_longest_sample_decides_and_not_the_cap(seed: Workload) -> None:
    """A sample of 32,768 tokens and a prompt is alone in its micro-batch, over the cap of 20,480."""
    longest = longest_sample(seed, node(), 262_144)
    assert longest > seed.rollout.longest > 20_480
    shorter = replace(seed, trainer=replace(seed.trainer, cap=10_240))
    same = plan(shorter, node()).peak_of("node[0].device[0]", Phase.TRAIN)
    assert same == plan(seed, node()).peak_of("node[0].device[0]", Phase.TRAIN)


def test_the_engine_has_half_of_what_is_free_all_the_time(ledger: Ledger) -> None:
    pool = "node[0].device[4]"
    sizes = {phase: held(ledger, pool, phase, "KV pool")[0] for phase in ledger.phases(pool)}
    assert len(set(sizes.values())) == 1
    weights = held(ledger, pool, Phase.ROLLOUT, "weights")[0]
    assert (sizes[Phase.ROLLOUT] + weights) / GIB == pytest.approx(0.5 * 178.35, rel=0.05)


# -- places ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_an_engine_that_is_apart_never_shares_a_device(
    nodes: int, devices: int, engines: int, ranks: int, machine_nodes: int
) -> None:
    engine = Engine("sglang", 0.5, tensor_parallel=ranks, colocated=False, devices=engines * ranks)
    there = machines.by_name(f"{machine_nodes}x8xh100-80" if machine_nodes > 1 else "8xh100-80")
    layout = replace(run(*APART).layout, nodes=nodes, devices=devices)
    places = Places.of(replace(run(*APART), layout=layout, engine=engine), engine, there)
    mine = {places.trainer_at(rank) for rank in range(nodes * devices)}
    theirs = {places.engine_at(index) for index in range(engines * ranks)}
    assert len(mine) == nodes * devices
    assert not mine & theirs
    last = max(mine | theirs)[0]
    every = [places.node(index) for index in range(last + 1)]
    assert sum(each.ranks for each in every) == nodes * devices
    assert sum(each.engine_devices for each in every) == engines * ranks
    assert sum(each.engines for each in every) == engines
    assert [each.head for each in every] == [True] + [False] * last


def test_roles_on_nodes_of_their_own_leave_the_other_nodes_alone() -> None:
    found = plan(run("layout.devices=8", "engine.colocated=false", "engine.devices=8"), node("2x8xh100-80"))
    assert set(found.pools()) == {HOST, "node[1].host", "node[0].device[0]", "node[1].device[0]"}
    roles = {pool: {line.role for line in found.lines if line.pool == pool} for pool in found.pools()}
    assert roles["node[0].device[0]"] == {"trainer"}
    assert roles["node[1].device[0]"] == {"engine"}
    assert "engine" not in roles[HOST]
    assert not roles["node[1].host"] & {"trainer", "reference"}
    assert held(found, HOST, Phase.TRAIN, "rollout process")[0] > 0, "the first node drives the run"
    assert held(found, "node[1].host", Phase.TRAIN, "rollout process")[0] == 0
    assert found.peak(HOST).bytes > found.peak("node[1].host").bytes


def test_a_run_of_several_nodes_has_as_many_ranks_on_each_as_it_says() -> None:
    """Two nodes of four devices each, though one node of the machine would hold all eight."""
    half = plan(run("layout.nodes=2", "layout.devices=4"), node("2x8xh100-80"))
    whole = plan(run("layout.nodes=1", "layout.devices=8"), node("2x8xh100-80"))
    for item in ("actor weights", "process", "engine process", "server processes"):
        assert 2 * held(half, HOST, Phase.TRAIN, item)[0] == held(whole, HOST, Phase.TRAIN, item)[0] > 0


def test_two_unified_nodes_are_two_pools() -> None:
    found = plan(run("layout.devices=1", "engine.colocated=false", "engine.devices=1"), machines.by_name("2xgb10"))
    assert set(found.pools()) == {"node[0].unified", "node[1].unified"}
    for pool in found.pools():
        assert held(found, pool, Phase.TRAIN, "operating system")[0] > 0


def test_stages_that_are_worst_in_some_phase_are_named_with_their_rank() -> None:
    """Two stages of two: the first holds activations of two micro-batches, the last the logits."""
    settings = ("layout.devices=4", "layout.pipeline=2", "trainer.cap=65536", "rollout.max_answer=65024")
    found = plan(run(*settings, "engine.colocated=false", "engine.devices=4"), node())
    ranks = {line.pool: line.rank for line in found.lines if line.role == "trainer" and "device" in line.pool}
    assert ranks["node[0].device[2]"] == 2
    peak = max(found.peak_of(pool, Phase.SCORE).bytes for pool in ranks)
    assert peak == found.peak_of("node[0].device[2]", Phase.SCORE).bytes, "only the last stage makes logits"
    verdicts = {pool: of_pool(found, pool, ()) for pool in ranks}
    assert verdicts["node[0].device[2]"].rank == 2
    host = found.select(HOST, Phase.TRAIN)
    assert {line.rank for line in host if line.item == "actor weights"} == {0, 2}, "both stages are on the node"


def test_limits_of_nodes_beyond_the_machine_are_those_of_its_first() -> None:
    """A plan for more nodes than the machine has is judged as if all were alike."""
    found = plan(run("layout.devices=8", "engine.colocated=false", "engine.devices=8"), node("8xh100-80"))
    assert all(each.kind != "cannot tell" for each in verdict(found, node("8xh100-80")))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("mode=async",), "engine.colocated=false"),
        (("engine.colocated=false",), "set engine.devices"),
        (("engine.colocated=false", "engine.devices=6", "engine.tensor_parallel=4"), "multiple of 4"),
        (("trainer.copies=acter",), "there are actor"),
    ],
)
def test_what_cannot_be_placed_is_refused(settings: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        plan(run(*settings), node())


# -- properties ------------------------------------------------------------------------------------------------

TENSORS = ("allocated", "reserved")


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["slime", "verl-fsdp", "verl-megatron", "openrlhf", "miles-fsdp"]), st.booleans(), st.booleans(),
    st.sampled_from(["none", "host", "parameters", "optimizer", "parameters+optimizer", "dropped"]),
)  # fmt: skip
def test_more_ranks_never_raise_what_a_rank_holds(trainer: str, apart: bool, save: bool, offload: str) -> None:
    """Tensors of a rank by phase; communicators do grow with their peers."""
    before: dict[tuple[Phase, str], int] = {}
    for devices in (2, 4, 8):
        settings = [f"layout.devices={devices}", f"save={save}", f"trainer.offload={offload}"]
        if apart:
            settings += ["engine.colocated=false", "engine.devices=8"]
        found = plan(run(*settings, trainer=trainer), node("2x8xh200"))
        now: dict[tuple[Phase, str], int] = {}
        for line in found.lines:
            if line.quantity in TENSORS and line.role == "trainer":
                now[line.phase, line.item] = now.get((line.phase, line.item), 0) + line.bytes
        for key, size in now.items():
            assert size <= before.get(key, size), key
        before = now


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["slime", "verl-fsdp", "openrlhf"]), st.sampled_from(["sync", "one-step-off", "async"]),
    st.sampled_from([2, 8]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_phase_is_the_sum_of_its_lines(
    trainer: str, mode: str, devices: int, delta: bool, async_save: bool
) -> None:
    settings = [
        f"layout.devices={devices}", "engine.colocated=false", "engine.devices=4", f"mode={mode}", "save=true",
        f"engine.update={'delta' if delta else 'full'}", f"checkpoint={'async' if async_save else 'sync'}",
    ]  # fmt: skip
    found = plan(run(*settings, trainer=trainer), node("2x8xh200"))
    for pool in found.pools():
        for phase in found.phases(pool):
            lines = found.select(pool, phase)
            peak = found.peak_of(pool, phase)
            assert peak.bytes == sum(line.bytes for line in lines) > 0
            assert peak.upper == total_upper(lines) >= peak.bytes
            assert all(line.upper >= line.bytes >= 0 for line in lines)


# -- the engine and the trainer at the same time ------------------------------------------------------------------


def test_an_engine_that_generates_ahead_has_the_samples_of_more_steps_in_host_memory() -> None:
    """Two steps where the next one is generated; a stream of samples may have a third in its buffer."""
    data = {
        mode: held(plan(run(*APART, f"mode={mode}"), node()), HOST, Phase.TRAIN, "rollout data")
        for mode in ("sync", "one-step-off", "async")
    }
    assert data["sync"][0] < data["one-step-off"][0] == data["async"][0]
    assert data["one-step-off"][1] < data["async"][1]


def test_samples_of_a_step_and_of_an_evaluation_are_somewhere() -> None:
    """A trained token: 160 B where it is generated, 80 B in each rank that has it; 32 B on that rank's device."""
    settings = (
        *APART,
        "layout.tensor=2",
        "rollout.prompts=256",
        "rollout.max_answer=7680",
        "rollout.eval_problems=512",
    )
    found, tokens = plan(run(*settings), node()), 256 * 8 * 8192
    assert held(found, HOST, Phase.TRAIN, "rollout data")[0] == tokens * (160 + 4 * 80 // 2)
    assert held(found, "node[0].device[0]", Phase.TRAIN, "samples")[0] == tokens // 2 * 32
    assert held(found, HOST, Phase.EVAL, "evaluation data")[0] == 512 * 8192 * 160
    assert held(found, HOST, Phase.TRAIN, "evaluation data") == (0, 0)


def test_tools_run_while_the_engine_generates() -> None:
    tools = ("tools_limit_bytes=64GiB",)
    sync = plan(run(*APART, *tools), node())
    ahead = plan(run(*APART, *tools, "mode=async"), node())
    assert held(sync, HOST, Phase.ROLLOUT, "tools") == (0, 64 * GIB)
    assert held(sync, HOST, Phase.TRAIN, "tools") == (0, 0)
    assert held(ahead, HOST, Phase.TRAIN, "tools") == (0, 64 * GIB)


def test_the_trainer_keeps_its_devices_where_the_engine_has_others() -> None:
    found = plan(run(*APART, "trainer.offload=dropped"), node())
    device = "node[0].device[0]"
    assert Phase.SLEEP not in found.phases(device)
    assert held(found, device, Phase.ROLLOUT, "optimizer state") == held(found, device, Phase.STEP, "optimizer state")
    assert held(found, HOST, Phase.ROLLOUT, "optimizer state") == (0, 0)
    assert held(found, HOST, Phase.ROLLOUT, "actor weights")[0] > 0, "slime takes that copy all the same"


def test_new_weights_arrive_beside_the_pool() -> None:
    """A bucket on either side, and the process group that carries it."""
    found = plan(run(*APART, "engine.bucket=4GiB"), node())
    engine = "node[0].device[4]"
    assert held(found, engine, Phase.SYNC, "weight buckets")[0] == 4 * GIB
    assert held(found, engine, Phase.SYNC, "KV pool")[0] > 0
    assert held(found, "node[0].device[0]", Phase.SYNC, "weight buckets")[0] == 8 * GIB
    for pool in (engine, "node[0].device[0]"):
        assert held(found, pool, Phase.TRAIN, "weight update group")[0] > 0
        assert held(found, pool, Phase.LOAD, "weight update group")[0] == 0


def test_a_delta_needs_what_was_sent_before() -> None:
    full, delta = plan(run(*APART), node()), plan(run(*APART, "engine.update=delta"), node())
    kept = held(delta, HOST, Phase.TRAIN, "weights as sent")[0]
    assert kept == held(delta, HOST, Phase.TRAIN, "actor weights")[0]
    assert delta.peak(HOST).bytes - full.peak(HOST).bytes == kept


# -- engines -------------------------------------------------------------------------------------------------------


def test_each_engine_of_a_node_has_its_servers() -> None:
    one = plan(run(*APART, "engine.tensor_parallel=4"), node())
    four = plan(run(*APART, "engine.tensor_parallel=1"), node())
    name = "server processes"
    assert held(four, HOST, Phase.TRAIN, name)[0] == 4 * held(one, HOST, Phase.TRAIN, name)[0]
    name = "engine process"
    assert held(four, HOST, Phase.TRAIN, name) == held(one, HOST, Phase.TRAIN, name)


def test_engines_that_only_read_prompts_hold_no_answers() -> None:
    settings = (*APART, "rollout.prompts=4096", "engine.max_seqs=16")
    whole, split = run(*settings), run(*settings, "engine.prefill=1")
    assert in_flight(whole, plan(whole, node())) == 4 * 16
    assert in_flight(split, plan(split, node())) == 3 * 16
    assert plan(whole, node()).peaks("node[0].device[4]") == plan(split, node()).peaks("node[0].device[4]")


def test_an_all_to_all_takes_a_buffer_for_each_channel_and_peer() -> None:
    """Reported on H100: the first all-to-all of 8 ranks took 4.34 - 1.06 GB."""
    settings = ("layout.devices=8", "layout.expert_parallel=8", "layout.expert_tensor=1")
    found = plan(run(*settings, model="qwen3-30B-A3B"), node("8xh100-80"))
    size, _ = held(found, "node[0].device[0]", Phase.TRAIN, "all-to-all buffers")
    assert size == pytest.approx(4.34e9 - 1.06e9, rel=0.15)


# -- /dev/shm ------------------------------------------------------------------------------------------------------


def test_rays_store_is_in_shared_memory_where_the_machine_says_how_much_there_is() -> None:
    full = Limit("shm free", 64 * MIB, "who writes there dies of a bus error", "/dev/shm")
    small = replace(node(), pools=(*node().pools, Pool("node[0].shm", "shm", 64 * MIB, (full,))))
    long = run(*APART, "rollout.prompts=64", "rollout.max_answer=16384")
    found = plan(long, small)
    (pool,) = [each for each in verdict(found, small) if each.pool == "node[0].shm"]
    assert pool.kind == "does not fit"
    assert found.peak_of(HOST, Phase.TRAIN) == plan(long, node()).peak_of(HOST, Phase.TRAIN), "a part of the host's"
    assert "node[0].shm" not in plan(long, node()).pools()
