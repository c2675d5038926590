"""An engine in the processes of the trainer's ranks (TRL colocated, Unsloth), and a frozen base under autocast."""

from collections.abc import Iterable

import pytest

from headway.facts import machines
from headway.facts.shapes import by_name
from headway.foreign.presets import workload
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.plan import plan
from headway.units import GIB

HOST, DEVICE = "node[0].host", "node[0].device[0]"
ENGINE = ("engine.system=vllm", "engine.memory_fraction=0.3")
LORA = ("trainer.lora.rank=16",)
PROCESSES = {"engine process", "server processes", "driver processes", "rollout process"}


def ledger(trainer: str, *settings: str) -> Ledger:
    shape = by_name("qwen2.5-7B")
    assert shape is not None
    return plan(workload(shape, trainer, settings), machines.with_host(machines.by_name("h100"), 500 * GIB))


def held(lines: Iterable[Line], *names: str, role: str) -> int:
    return sum(line.bytes for line in lines if line.item in names and line.role == role)


def weights(found: Ledger, phase: Phase) -> int:
    """Bytes of the engine's own weights wherever a line has them."""
    return held(found.select(DEVICE, phase), "weights", "idle", "asleep", role="engine")


def test_an_engine_that_never_sleeps_has_its_weights_once_in_every_phase() -> None:
    found = ledger("trl", *ENGINE, "engine.releases=nothing")
    pool = held(found.select(DEVICE, Phase.ROLLOUT), "KV pool", "CUDA graphs", role="engine")
    own = held(found.select(DEVICE, Phase.ROLLOUT), "weights", role="engine")
    assert own == pytest.approx(2 * 7_615_616_512, rel=0.01)
    for phase in (Phase.SYNC, Phase.TRAIN, Phase.SCORE):
        assert weights(found, phase) == pytest.approx(own + pool, abs=GIB)


def test_one_that_gave_its_weights_back_has_them_again_when_new_ones_come_in() -> None:
    found = ledger("trl", *ENGINE, "engine.releases=weights+kv")
    own = held(found.select(DEVICE, Phase.ROLLOUT), "weights", role="engine")
    assert weights(found, Phase.TRAIN) < GIB
    assert own < weights(found, Phase.SYNC) < own + GIB


def test_words_say_asleep_of_an_engine_that_sleeps_alone() -> None:
    for releases, name, other in (("nothing", "idle", "asleep"), ("weights+kv", "asleep", "idle")):
        items = {
            line.item for line in ledger("trl", *ENGINE, f"engine.releases={releases}").select(DEVICE, Phase.TRAIN)
        }
        assert name in items
        assert other not in items


def test_without_ray_an_engine_on_the_trainers_devices_has_no_process_of_its_own() -> None:
    def processes(found: Ledger) -> set[str]:
        return {line.item for line in found.select(HOST, Phase.ROLLOUT)} & PROCESSES

    assert processes(ledger("trl", *ENGINE)) == set()
    # a server of other devices has; Ray's actors are processes in every layout
    apart = ("engine.colocated=false", "engine.devices=1")
    assert processes(ledger("verl-fsdp", *ENGINE, "layout.devices=1")) == PROCESSES
    shape = by_name("qwen2.5-7B")
    assert shape is not None
    two = plan(workload(shape, "trl", (*ENGINE, *apart)), machines.by_name("2xh100"))
    assert processes(two) == {"engine process", "server processes"}


def test_weights_go_parameter_by_parameter_to_an_engine_in_the_same_process() -> None:
    full, lora = ledger("trl", *ENGINE), ledger("trl", *ENGINE, *LORA)
    assert held(full.select(DEVICE, Phase.SYNC), "weight buckets", "weights being sent", role="trainer") == 0
    # merging makes a projection's product in fp32, of 3584 x 18944
    merged = held(lora.select(DEVICE, Phase.SYNC), "weights being sent", role="trainer")
    assert merged == 2 * 4 * 3584 * 18944
    assert held(ledger("verl-fsdp", *ENGINE).select(DEVICE, Phase.SYNC), "weight buckets", role="trainer") > 4 * GIB


def test_autocast_keeps_no_copies_of_a_frozen_base() -> None:
    def cast(*settings: str, phase: Phase = Phase.TRAIN) -> int:
        return held(ledger("trl", *ENGINE, *settings).select(DEVICE, phase), "gathered blocks", role="trainer")

    head = 2 * 152_064 * 3584
    assert cast(*LORA) == head
    assert cast(*LORA, phase=Phase.SCORE) == head
    # without checkpointing the graph has one of each product, for the gradient of its input
    kept = cast(*LORA, "trainer.checkpointing=false")
    assert kept == pytest.approx(2 * 7.07e9, rel=0.01)
    assert cast(*LORA, "trainer.checkpointing=false", phase=Phase.SCORE) == head
    # what is packed is unpacked in its own product
    assert cast(*LORA, "trainer.quant.kind=nf4", "trainer.checkpointing=false") == head
    # weights that take gradients are cached whatever is checkpointed
    assert cast(phase=Phase.SCORE) == pytest.approx(2 * 7.07e9, rel=0.01)
