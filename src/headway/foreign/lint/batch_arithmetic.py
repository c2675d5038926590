"""Numbers of a launch that its system refuses, because they do not divide."""

from collections.abc import Iterator

from headway.foreign.lint.rule import SLIME, Rule, Sighting, Subject

ENDS = "it asserts this at its start, and ends"
UNEVEN = (
    "Megatron's count of micro-batches asserts it; versions that balance by tokens deal the samples unevenly instead"
)


def find(subject: Subject) -> Iterator[Sighting]:
    """What divides what, by system."""
    yield from _layout(subject)
    if subject.system in SLIME:
        yield from _slime(subject)
    elif subject.system == "verl":
        yield from _verl(subject)
    elif subject.system == "trl":
        yield from _trl(subject)
    if subject.system in (*SLIME, "megatron"):
        yield from _micro_batches(subject)


def _ranks(subject: Subject) -> int | None:
    nodes, devices = subject.count("nodes"), subject.count("gpus_per_node")
    return nodes * devices if nodes and devices else None


def _split(subject: Subject) -> int | None:
    sizes = [subject.count(key) for key in ("tp", "pp", "cp")]
    if any(size is None for size in sizes):
        return None
    tensor, pipeline, context = (size or 1 for size in sizes)
    return tensor * pipeline * context


def _is_megatron(subject: Subject) -> bool:
    return subject.found.value("trainer_backend") == "megatron"


def _layout(subject: Subject) -> Iterator[Sighting]:
    """Ranks over the parallel sizes, experts over their ranks, devices over engines."""
    ranks, parts = _ranks(subject), _split(subject)
    if ranks and parts and _is_megatron(subject) and ranks % parts:
        sizes = " x ".join(str(subject.count(key)) for key in ("tp", "pp", "cp"))
        yield Sighting(
            f"{ranks} trainer devices are no multiple of tensor x pipeline x context parallel = {sizes} = {parts}",
            subject.place("tp", "pp", "cp"), why=ENDS, instead="change the devices or one of the sizes",
        )  # fmt: skip
    experts, expert_ranks = subject.count("num_experts"), subject.count("ep")
    if experts and expert_ranks and experts % expert_ranks:
        text = f"{experts} experts are no multiple of {expert_ranks} expert parallel ranks"
        yield Sighting(text, subject.place("ep"), why=ENDS, instead="choose a divisor of the experts")
    heads, tensor = subject.count("num_attention_heads"), subject.count("tp")
    if heads and tensor and _is_megatron(subject) and heads % tensor:
        text = f"{heads} attention heads are no multiple of {tensor} tensor parallel ranks"
        yield Sighting(text, subject.place("tp"), why=ENDS, instead="choose a divisor of the heads")
    rollout, engine = subject.count("rollout_gpus"), subject.count("gpus_per_engine")
    if rollout and engine and rollout % engine:
        yield Sighting(
            f"{rollout} devices for rollouts are no multiple of the {engine} of an engine",
            subject.place("rollout_gpus", "gpus_per_engine"), "warning",
            "devices are left over, or the last engine waits for some that never come",
            "make one a multiple of the other",
        )  # fmt: skip


def _slime(subject: Subject) -> Iterator[Sighting]:
    """A rollout's answers over the steps that train on them."""
    prompts, samples = subject.count("rollout_batch"), subject.count("samples_per_prompt")
    batch = subject.count("global_batch") if subject.is_given("global_batch") else None
    steps = subject.count("num_steps_per_rollout") if subject.is_given("num_steps_per_rollout") else None
    if not prompts or not samples:
        return
    answers, place = prompts * samples, subject.place("global_batch", "num_steps_per_rollout", "rollout_batch")
    made = f"--rollout-batch-size {prompts} x --n-samples-per-prompt {samples} = {answers} answers"
    if batch and steps and answers // steps != batch:
        yield Sighting(
            f"{made} over --num-steps-per-rollout {steps} are {answers // steps} a step, not "
            f"--global-batch-size {batch}", place, why=ENDS, instead="leave one of the two out",
        )  # fmt: skip
    elif batch and answers % batch:
        yield Sighting(
            f"{made} are no multiple of --global-batch-size {batch}", place, why=ENDS,
            instead=f"set --global-batch-size to a divisor of {answers}",
        )  # fmt: skip
    elif steps and answers % steps:
        text = f"{made} are no multiple of --num-steps-per-rollout {steps}"
        yield Sighting(text, place, why=ENDS, instead=f"set it to a divisor of {answers}")


def _micro_batches(subject: Subject) -> Iterator[Sighting]:
    """A step's samples over data parallel ranks and micro-batches (Megatron's num_microbatches_calculator)."""
    ranks, parts = _ranks(subject), _split(subject)
    batch = subject.count("global_batch") if subject.is_given("global_batch") else None
    if not ranks or not parts or not batch or ranks % parts or not _is_megatron(subject):
        return
    copies = ranks // parts
    rows = 1 if subject.found.value("dynamic_batch") is True else subject.count("micro_batch")
    if not rows or batch % (copies * rows) == 0:
        return
    times = f" x --micro-batch-size {rows}" if rows > 1 else ""
    yield Sighting(
        f"--global-batch-size {batch} is no multiple of {copies} data parallel ranks{times}",
        subject.place("global_batch", "num_steps_per_rollout", "rollout_batch"),
        "warning" if subject.found.value("dynamic_batch") is True else None, UNEVEN,
        f"set a multiple of {copies * rows}",
    )  # fmt: skip


def _verl(subject: Subject) -> Iterator[Sighting]:
    """verl's checks of its batch sizes (utils/config.py, validate_config)."""
    prompts, samples, mini = (subject.count(key) for key in ("rollout_batch", "samples_per_prompt", "global_batch"))
    place = subject.place("rollout_batch", "global_batch")
    if prompts and mini and prompts < mini:
        yield Sighting(
            f"data.train_batch_size={prompts} is below actor.ppo_mini_batch_size={mini}", place, why=ENDS,
            instead=f"set the mini batch to a divisor of {prompts}",
        )  # fmt: skip
    ranks = _ranks(subject)
    if prompts and samples and ranks and not _is_megatron(subject) and prompts * samples % ranks:
        text = f"data.train_batch_size={prompts} x rollout.n={samples} is no multiple of {ranks} devices"
        yield Sighting(text, place, why=ENDS, instead=f"make the product a multiple of {ranks}")


def _trl(subject: Subject) -> Iterator[Sighting]:
    """TRL: the answers of a generation are groups of one prompt each."""
    rows, samples, ranks = subject.count("micro_batch"), subject.count("samples_per_prompt"), _ranks(subject)
    accumulated = subject.count("grad_accum") or 1
    other = subject.last("steps_per_generation", "generation_batch_size") is not None
    if other or not subject.is_given("micro_batch"):
        return
    if rows and samples and ranks and rows * ranks * accumulated % samples:
        yield Sighting(
            f"{rows} x {ranks} devices x {accumulated} accumulated = {rows * ranks * accumulated} answers a "
            f"generation are no multiple of --num_generations {samples}",
            subject.place("samples_per_prompt", "micro_batch"), why=ENDS, instead="choose a divisor",
        )  # fmt: skip


RULE = Rule(
    name="batch-arithmetic",
    severity="error",
    title="numbers that do not divide",
    sees="prompts x samples against the global batch and the steps of a rollout, the batch against data parallel "
    "ranks and micro-batches, devices against the parallel sizes, experts and heads against their ranks.",
    why=ENDS,
    example="python3 train.py --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 48",
    instead="choose numbers that divide",
    near_miss="python3 train.py --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 32",
    not_this="several steps of a rollout (a divisor) are allowed; what hangs on a value that is not known is not "
    "judged.",
    find=find,
)
