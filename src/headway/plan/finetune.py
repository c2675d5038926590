"""Training without an engine by another system: fine-tuning on given samples, one rank on its device."""

from collections.abc import Iterator

from headway.facts.workload import Workload
from headway.plan import host, training
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase
from headway.plan.systems import system
from headway.units import MIB

WORKSPACE = 64 * MIB
"""cuBLAS workspaces and small buffers that the allocator holds. Reported 32 to 64 MiB on Hopper."""
COMMUNICATOR = 600 * MIB
"""Device memory of NCCL with more than one rank. Reported: 544 MB for 2 ranks, 688 MB for more (nccl issue 964)."""


def phases(workload: Workload) -> Phases:
    """The entries of every phase: load, train, step and save."""
    batch = training.micro_batch(workload)
    later = min(2, workload.optimizer_steps)
    stepped = workload.optimizer_steps > 1
    tensors: dict[Phase, tuple[int, list[Item]]] = {
        Phase.LOAD: (0, _load(workload)),
        Phase.TRAIN: (later, training.states(workload, stepped=stepped) + training.train(workload, batch)),
        Phase.STEP: (1, training.states(workload, stepped=True) + training.step(workload)),
    }
    if workload.save:
        tensors[Phase.SAVE] = (workload.steps, training.states(workload, stepped=True))
    return {
        phase: (step, list(_placed(workload, phase, items, host_stepped=phase is not Phase.LOAD)))
        for phase, (step, items) in tensors.items()
    }


def _load(workload: Workload) -> list[Item]:
    """States without the optimizer's, and a whole parameter or block while shards are cut from it."""
    found = training.states(workload, stepped=False)
    size = training.load_bytes(workload)
    found.append(Item("tensor being read", 0, size, "before it is divided or packed", "plan/finetune.py"))
    return found


def _placed(workload: Workload, phase: Phase, items: list[Item], *, host_stepped: bool) -> Iterator[Entry]:
    cuda = workload.device == "cuda"
    for item in items:
        yield Entry("device" if cuda else "host", "allocated" if cuda else "host", "trainer", item)
    if cuda:
        yield Entry(
            "device", "allocated", "trainer", Item("workspaces", WORKSPACE, 2 * WORKSPACE, "constant", "reported")
        )
        yield Entry("device", "reserved", "trainer", training.reserved(items, system(workload.trainer.system)))
        yield Entry("device", "device_used", "trainer", host.cuda_context())
        if workload.layout.ranks > 1:
            yield Entry(
                "device", "device_used", "trainer",
                Item("communicators", COMMUNICATOR, 2 * COMMUNICATOR, "constant", "NCCL, reported"),
            )  # fmt: skip
    ranks = workload.layout.devices
    if host_stepped:
        for item in training.host_states(workload):
            yield Entry("host", "host", "trainer", item, count=ranks)
    yield Entry("host", "host", "trainer", host.process(workload, phase), count=ranks)
    yield Entry("host", "host", "trainer", host.problems(workload))
