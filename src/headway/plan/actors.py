"""Processes of a run with an engine, without their tensors: of Ray's actors, or of the trainer's own ranks."""

from collections.abc import Iterator

from headway.facts.workload import Workload
from headway.plan.item import Entry, Item
from headway.plan.placement.places import Node
from headway.units import GIB, MIB

GPU_PROCESS = 2795 * MIB
"""Resident memory of a process that uses CUDA: an SGLang scheduler, 2.73 GiB. Read once, from the public list of a
Ray kill on a GB10."""
ACTOR = 1362 * MIB
"""A Ray actor that imports torch but uses no device, 1.33 GiB. Read once, from the same list."""
RAY = 1 * GIB
"""Raylet, control store, dashboard and agents of a node. Not measured; bounded generously."""
READ = "one public reading"


def processes(workload: Workload, node: Node) -> Iterator[Entry]:
    """The processes of one node: trainers, engines, and on the first node what drives them.

    Without Ray the first rank drives the run itself, and an engine on the trainer's devices is in its ranks'
    processes (TRL's colocate mode, Unsloth); a server of other devices has its own.
    """
    in_ranks = workload.in_trainers_process
    if node.ranks:
        trainer = Item("process", GPU_PROCESS, 2 * GPU_PROCESS, "python, torch with CUDA, transformers", READ).alone()
        yield Entry("host", "host", "trainer", trainer, node.first, node.ranks, node.index)
    if node.engine_devices and not in_ranks:
        text = "one for each device of an engine"
        scheduler = Item("engine process", GPU_PROCESS, GPU_PROCESS * 3 // 2, text, READ).alone()
        yield Entry("host", "host", "engine", scheduler, 0, node.engine_devices, node.index)
    if node.engines and not in_ranks:
        server = Item("server processes", 2 * ACTOR, 3 * ACTOR, "server and detokenizer of an engine", READ).alone()
        yield Entry("host", "host", "engine", server, 0, node.engines, node.index)
    if node.head and workload.ray:
        rollout = Item("rollout process", ACTOR, ACTOR * 3 // 2, "generates, scores, keeps the data", READ).alone()
        yield Entry("host", "host", "driver", rollout, 0, 1, node.index)
        driver = Item("driver processes", 2 * ACTOR, 3 * ACTOR, "controller and job driver", READ).alone()
        yield Entry("host", "host", "driver", driver, 0, 1, node.index)
    if workload.ray:
        ray = Item("Ray", RAY, 4 * RAY, "raylet, control store, agents", "not measured").alone()
        yield Entry("host", "host", "driver", ray, 0, 1, node.index)
