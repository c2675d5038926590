"""Processes of a run under Ray, without their tensors."""

from collections.abc import Iterator
from math import ceil

from headway.facts.workload import Engine, Workload
from headway.plan.item import Entry, Item
from headway.units import GIB, MIB

GPU_PROCESS = 2795 * MIB
"""Resident memory of a process that uses CUDA: an SGLang scheduler, 2.73 GiB. Read once, from the public list of a
Ray kill on a GB10."""
ACTOR = 1362 * MIB
"""A Ray actor that imports torch but uses no device, 1.33 GiB. Read once, from the same list."""
RAY = 1 * GIB
"""Raylet, control store, dashboard and agents of a node. Not measured; bounded generously."""
READ = "one public reading"


def processes(workload: Workload, engine: Engine) -> Iterator[Entry]:
    """The processes of one node: trainers, engines, and what drives them."""
    layout = workload.layout
    trainer = Item("process", GPU_PROCESS, 2 * GPU_PROCESS, "python, torch with CUDA, transformers", READ).alone()
    yield Entry("host", "host", "trainer", trainer, count=layout.devices)
    engines = max(1, ceil(layout.devices / (engine.tensor_parallel * engine.pipeline_parallel)))
    scheduler = Item(
        "engine process", GPU_PROCESS, GPU_PROCESS * 3 // 2, "one for each device of an engine", READ
    ).alone()
    yield Entry("host", "host", "engine", scheduler, count=layout.devices)
    server = Item("server processes", 2 * ACTOR, 3 * ACTOR, "server and detokenizer of an engine", READ).alone()
    yield Entry("host", "host", "engine", server, count=engines)
    rollout = Item("rollout process", ACTOR, ACTOR * 3 // 2, "generates, scores, keeps the data", READ).alone()
    yield Entry("host", "host", "driver", rollout)
    driver = Item("driver processes", 2 * ACTOR, 3 * ACTOR, "controller and job driver", READ).alone()
    yield Entry("host", "host", "driver", driver)
    if workload.ray:
        yield Entry(
            "host",
            "host",
            "driver",
            Item("Ray", RAY, 4 * RAY, "raylet, control store, agents", "not measured").alone(),
        )
