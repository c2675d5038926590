"""An engine whose share of the device does not let it start."""

from collections.abc import Iterator

from headway.foreign.lint.rule import Rule, Sighting, Subject
from headway.foreign.spelling import shares_as_given


def find(subject: Subject) -> Iterator[Sighting]:
    """A share that is none, and the planner's refusals."""
    share = subject.number("engine_mem_fraction")
    place = subject.place("engine_mem_fraction")
    if share is not None and not 0 < share <= 1:
        text = f"{subject.flag('engine_mem_fraction')} {share:g} is no share of a device"
        yield Sighting(text, place, instead="set a number above 0 and at most 1, such as 0.6")
        return
    for refusal in subject.refusals:
        text = shares_as_given(subject.system, refusal).replace(
            "engine.memory_fraction", subject.flag("engine_mem_fraction")
        )
        yield Sighting(text, place, instead="make one of the changes that the plan lists")


RULE = Rule(
    name="engine-start",
    severity="error",
    title="an engine that cannot start",
    sees="the engine's share of the device is not between 0 and 1, or by the plan leaves no KV pool beside the "
    "weights, or none for a single sample of full length.",
    why="SGLang and vLLM size their KV pool when they start, by what the share leaves beside the weights, and end "
    "with an error where nothing is left; a pool below one sample ends or stalls at the first long one",
    example="python3 train.py --rollout-batch-size 8 --sglang-mem-fraction-static 70",
    instead="spread the engine over more devices, shorten the samples, or raise the share where the device has room",
    near_miss="python3 train.py --rollout-batch-size 8 --sglang-mem-fraction-static 0.7",
    not_this="a small share is no mistake where its pool holds the samples that generate at once.",
    find=find,
)
