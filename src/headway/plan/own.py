"""headway's own run on one device: which items are alive in which phase."""

from collections.abc import Iterable, Iterator

from headway.facts.calibration import ProcessBase
from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan import host, kvcache, optimizer, weights
from headway.plan.activations import Batch
from headway.plan.item import Entry, Item, Phases
from headway.plan.ledger import Phase, Quantity
from headway.plan.passes import Moment, highest, scoring_moments, training_moments, without_adapter


def phases(workload: Workload, base: ProcessBase | None = None) -> Phases:
    """The entries of every phase; `base` is what the process and its allocator were measured to
    hold on the run's machine.

    Expected values assume prompts of `max_prompt` and answers of `max_answer` tokens, which a run reaches when its
    model does not end its answers early; shorter answers hold less. Upper bounds add what shorter samples can do
    (fill a micro-batch closer to the cap) and the uncertainty of each line.
    """
    items = {
        Phase.LOAD: _load(workload),
        Phase.ROLLOUT: _generate(workload, base, evaluation=False),
        Phase.TRAIN: _train(workload, base),
        Phase.STEP: _step(workload, base),
    }
    if workload.trainer.updates > 1 or workload.trainer.reference != "none":
        items[Phase.SCORE] = _score(workload, base)
    if workload.save:
        items[Phase.SAVE] = _save()
    if workload.rollout.eval_problems:
        items[Phase.EVAL] = _generate(workload, base, evaluation=True)
    resident = {stepped: list(_tensors(workload, _resident(workload, stepped=stepped))) for stepped in (False, True)}
    always = list(_always(workload, base))
    return {
        phase: (
            first_step(workload, phase),
            [
                *resident[_has_optimizer_state(workload, phase)], *_tensors(workload, held), *always,
                Entry("host", "host", "trainer", host.process(workload, phase, base)),
            ],
        )
        for phase, held in items.items()
    }  # fmt: skip


def micro_batches(workload: Workload) -> tuple[Batch, ...]:
    """The first two micro-batches of an optimizer step when every sample has full length."""
    rollout, trainer = workload.rollout, workload.trainer
    samples = rollout.prompts * rollout.samples // trainer.updates
    rows = min(samples, max(1, trainer.cap // rollout.longest))
    sizes = [rows] if samples <= rows else [rows, min(rows, samples - rows)]
    return tuple(Batch(size, rollout.longest, size * rollout.max_answer) for size in sizes)


def fullest_micro_batch(workload: Workload) -> Batch:
    """The most tokens that a micro-batch can have: shorter samples can fill the cap, none is over full length."""
    rollout, trainer = workload.rollout, workload.trainer
    samples = rollout.prompts * rollout.samples // trainer.updates
    tokens = min(max(trainer.cap, rollout.longest), samples * rollout.longest)
    return Batch(1, tokens, min(tokens, samples * rollout.max_answer), reach=rollout.longest)


def _resident(workload: Workload, *, stepped: bool) -> Iterator[Item]:
    """Weights and reference, and optimizer state where a step has made it."""
    shape, trainer = workload.model, workload.trainer
    size = DTYPE_BYTES[trainer.param_dtype]
    formula = f"{shape.parameters():,} parameters x {size} B"
    yield Item.exact("weights", weights.base_bytes(workload), formula, "one copy, shared with the engine")
    if trainer.reference == "copy":
        yield Item.exact("reference weights", weights.base_bytes(workload), formula, "a frozen copy")
    if trainer.lora is not None:
        count = weights.trained_parameters(workload)
        yield Item.exact("adapters", count * 4, f"{count:,} parameters x 4 B", "fp32")
    if stepped:
        yield from _optimizer_state(workload)


def _optimizer_state(workload: Workload) -> Iterator[Item]:
    count = weights.trained_parameters(workload)
    yield Item.exact(
        "optimizer moments", optimizer.moment_bytes(workload), f"{count:,} parameters x 8 B",
        "two moments in fp32, from the first optimizer step on",
    )  # fmt: skip
    if master := optimizer.master_bytes(workload):
        yield Item.exact("fp32 master", master, f"{count:,} parameters x 4 B", "from the first optimizer step on")


def _has_optimizer_state(workload: Workload, phase: Phase) -> bool:
    """Whether some pass through the phase begins after the first optimizer step."""
    match phase:
        case Phase.LOAD:
            return False
        case Phase.SAVE | Phase.EVAL | Phase.STEP:
            return True
        case Phase.TRAIN:
            return workload.optimizer_steps > 1
        case _:
            return workload.steps > 1


def first_step(workload: Workload, phase: Phase) -> int:
    """The step at which a phase first holds its peak."""
    match phase:
        case Phase.LOAD:
            return 0
        case Phase.SAVE:
            return workload.first_save
        case Phase.EVAL:
            return workload.first_eval
        case Phase.TRAIN | Phase.STEP:
            return 1 if workload.trainer.updates > 1 else min(2, workload.steps)
        case _:
            return min(2, workload.steps)


def _load(workload: Workload) -> Iterator[Item]:
    shape = workload.model
    size = shape.embedding_parameters() * DTYPE_BYTES[workload.trainer.param_dtype]
    yield Item(
        "tensor being read", 0, size, f"{shape.vocab:,} x {shape.hidden:,}", "read into its parameter, one at a time"
    )


def _generate(workload: Workload, base: ProcessBase | None, *, evaluation: bool) -> Iterator[Item]:
    rollout = workload.rollout
    per_prompt = rollout.eval_samples if evaluation else rollout.samples
    answers = (rollout.eval_problems if evaluation else rollout.prompts) * per_prompt
    held = kvcache.generation(workload, answers, per_prompt=per_prompt)
    yield Item(
        "KV cache", held.cache, max(held.cache, min(rollout.kv_budget, answers * held.cache // held.sequences)),
        f"{held.sequences:,} sequences x {rollout.longest:,} tokens x {kvcache.token_bytes(workload):,} B",
        "one slab, zeroed when a batch starts",
    )  # fmt: skip
    yield Item("activations", held.working, held.working, "one block, no gradients", "plan/activations.py")
    yield Item(
        "logits", held.logits, held.logits, f"{held.sequences:,} x {workload.model.vocab:,}", "plan/kvcache.py"
    )
    yield Item("answers", held.answers, 2 * held.answers, f"{answers:,} answers", "Python objects")
    yield host.fragmentation(held.working + held.logits, base)


def _train(workload: Workload, base: ProcessBase | None) -> Iterator[Item]:
    batches = micro_batches(workload)
    passes = [training_moments(workload, batches[0], accumulate=False)]
    if len(batches) > 1:
        passes.append(training_moments(workload, batches[1], accumulate=True))
    top = highest(tuple(moment for moments in passes for moment in moments))
    full = fullest_micro_batch(workload)
    worst = highest(training_moments(workload, full, accumulate=True))
    yield from _moment_items(workload, top, worst, batches[0])
    yield host.fragmentation(worst.bytes - worst.gradients, base)


def _score(workload: Workload, base: ProcessBase | None) -> Iterator[Item]:
    plain = without_adapter(workload) if workload.trainer.updates == 1 else workload
    batch = micro_batches(workload)[0]
    top = highest(scoring_moments(plain, batch))
    worst = highest(scoring_moments(plain, fullest_micro_batch(workload)))
    yield from _moment_items(workload, top, worst, batch)
    yield host.fragmentation(worst.bytes - worst.gradients, base)


def _moment_items(workload: Workload, top: Moment, worst: Moment, batch: Batch) -> Iterator[Item]:
    """Lines of a pass at its highest moment, each bounded by what the worst micro-batch holds."""
    tokens = f"{batch.rows:,} x {batch.longest:,} tokens"
    rows = (
        ("gradients", top.gradients, worst.gradients, "one for each trained parameter"),
        ("saved activations", top.kept, worst.kept, f"{workload.model.layers} blocks, {tokens}"),
        ("working set", top.working, worst.working, f"{top.at}, {tokens}"),
        ("logits", top.logits, worst.logits, f"{top.at}, {workload.trainer.logprob_chunk} tokens at a time"),
        ("head gradient", top.head_gradient, worst.head_gradient, top.at),
    )
    rest = worst.bytes
    for item, size, _, formula in rows:
        rest -= size
        if size:
            yield Item.exact(item, size, formula, "plan/passes.py")
    yield Item("fuller micro-batches", 0, max(0, rest), f"up to {worst.at}", "shorter samples fill the cap")


def _step(workload: Workload, base: ProcessBase | None) -> Iterator[Item]:
    gradients = weights.gradient_bytes(workload)
    once = workload.optimizer_steps == 1
    yield Item("gradients", 0 if once else gradients, gradients, "one for each trained parameter", "freed one by one")
    temporaries = optimizer.step_temporaries(workload)
    yield Item.exact("temporaries", temporaries, "one block of elements", "plan/optimizer.py")
    yield host.fragmentation(gradients // 2, base)


def _save() -> Iterator[Item]:
    yield Item("file buffers", 0, 64 << 20, "tensors are written from where they are", "safetensors")


def _tensors(workload: Workload, items: Iterable[Item]) -> Iterator[Entry]:
    """Entries of tensors, where the model is, and of Python's objects, in host memory."""
    cuda = workload.device == "cuda"
    for item in items:
        if item.upper == 0:
            continue
        on_device = cuda and item.item != "answers"
        quantity: Quantity = "host"
        if on_device:
            quantity = "reserved" if item.item == "fragmentation" else "allocated"
        yield Entry("device" if on_device else "host", quantity, _ROLES.get(item.item, "trainer"), item)


_ROLES = {"KV cache": "engine", "answers": "engine", "reference weights": "reference"}


def _always(workload: Workload, base: ProcessBase | None) -> Iterator[Entry]:
    """What every phase holds beside tensors, the trainer's process apart."""
    if workload.device == "cuda":
        yield Entry("device", "device_used", "trainer", host.cuda_context(base))
    yield Entry("host", "host", "trainer", host.problems(workload))
    if (tokenizer := host.tokenizer(workload)) is not None:
        yield Entry("host", "host", "trainer", tokenizer)
    if (reward := host.reward(workload)) is not None:
        yield Entry("host", "host", "reward", reward)
