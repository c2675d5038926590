"""How long a run takes: tokens over rates that were measured here, or over what its devices can do at most.

Every answer is taken to be as long as it may be, so a run whose answers end earlier is faster. Loading, saving,
weight transfer and tools are left out.

From the table of devices (facts/speeds.py), in seconds:

- a decode step reads the weights and the KV cache of the answers in flight, at `READ` of the memory's bandwidth, or
  computes 2 FLOPs a parameter and token, whichever is slower; a fixed time a step or a layer comes on top (the
  roofline of Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2);
- training computes 6 FLOPs a parameter and token (2 forward, 4 backward), 2 more where activations are recomputed,
  2 less for frozen weights under adapters, and 2 for each scoring pass; attention adds 2 x tokens x width a layer to
  each 2 a parameter (PaLM, arXiv:2204.02311, appendix B, halved because attention is causal). The share of the peak
  that is reached is `UTILISATION`: 0.3 to 0.55 are reported for Megatron (arXiv:2104.04473, table 1) and less for
  plainer trainers.
"""

from math import ceil

from msgspec import Struct

from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape
from headway.facts.speeds import DeviceSpeed, Rate, device_speed
from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan.flight import answering, in_flight
from headway.plan.ledger import Ledger

READ = 0.6
"""Share of the memory's bandwidth that decoding reaches."""
PREFILL = 0.4
"""Share of the peak FLOP/s in reading prompts."""
GRAPH_S = 0.004
"""Fixed seconds of a decode step of an engine that replays CUDA graphs: scheduling, sampling, replay."""
EAGER_LAYER_S = 0.0006
"""Fixed seconds of a decode step for each layer where every kernel is launched from Python."""
UTILISATION = {"megatron": 0.35, "plain": 0.25}
"""Share of the peak FLOP/s in training, by the kind of trainer."""
MEGATRON = ("slime", "megatron", "nemo")
CPU_ROLLOUT, CPU_TRAIN = 14e9, 36e9
"""FLOP/s a core that headway reached generating and training (SmolLM2-135M, fp32, LoRA, two cores with AVX-512)."""
TABLE, CPU, SAME, SCALED = 3.0, 4.0, 1.5, 3.0
"""Within which factor: from the table of devices, from a core's rate, from earlier runs of the same model and kind
with steps about as large, and of others."""


ALIKE = 4
"""A rate of another model is scaled where the two differ by no more than this in parameters; steps that differ by no
more than this in tokens are about as large."""


class Estimate(Struct, frozen=True):
    """Seconds of one step and of the whole run, evaluations included; either may be wrong by `factor`. `run` is None
    where nobody said how many steps it has.

    `rollout` and `train` are the parts of a step; `basis` says what they come from.

    >>> Estimate(60.0, 6000.0, 40.0, 20.0, 3.0, "the table of devices").step
    60.0
    """

    step: float
    run: float | None
    rollout: float
    train: float
    factor: float
    basis: str


def estimate(workload: Workload, machine: Machine, ledger: Ledger) -> Estimate | None:
    """How long the run takes on a machine; None where nothing tells how fast that is."""
    rate = _nearest(workload, machine.rates) if workload.trainer.system == "headway" else None
    speed = device_speed(machine.name) if workload.device == "cuda" else None
    if rate is not None:
        same = rate.model == workload.model.name and _as_large(workload, rate)
        about = f"earlier runs of {rate.model} on this machine"
        return _of_rates(workload, _scaled(rate, workload), about, SAME if same else SCALED)
    if speed is not None:
        rollout, one = _device_rollout(workload, ledger, speed), _device_train(workload, speed)
        return _whole(workload, rollout, one, f"the data sheet of {machine.name}", TABLE)
    if workload.device == "cpu" and machine.cores:
        tokens = 2 * workload.model.active_parameters()
        cores = min(workload.threads, machine.cores)
        rates = CPU_ROLLOUT * cores / tokens, CPU_TRAIN * cores / (_multiple(workload) * tokens / 2)
        return _of_rates(workload, rates, f"what {cores} CPU cores do elsewhere", CPU)
    return None


def _nearest(workload: Workload, earlier: tuple[Rate, ...]) -> Rate | None:
    """The newest rate of the same model and way to train, else of the same way to train, nearest in size."""
    lora = workload.trainer.lora is not None
    alike = [
        rate for rate in earlier
        if (rate.device, rate.dtype, rate.lora) == (workload.device, workload.trainer.param_dtype, lora)
    ]  # fmt: skip
    count = workload.model.active_parameters()

    def apart(rate: Rate) -> float:
        return max(rate.parameters, count) / max(1, min(rate.parameters, count))

    nearest = min(alike, key=apart, default=None)
    return nearest if nearest is not None and apart(nearest) <= ALIKE else None


def _as_large(workload: Workload, rate: Rate) -> bool:
    """Whether a step may have about as many answer tokens as those that the rate is of."""
    rollout = workload.rollout
    most = rollout.prompts * rollout.samples * rollout.max_answer
    return rate.answered / ALIKE <= most <= rate.answered * ALIKE


def _scaled(rate: Rate, workload: Workload) -> tuple[float, float]:
    share = rate.parameters / workload.model.active_parameters()
    return rate.rollout * share, rate.train * share


def _of_rates(workload: Workload, rates: tuple[float, float], basis: str, factor: float) -> Estimate:
    """From tokens/s of the rollout (answer tokens) and of training (prompt and answer)."""
    rollout = workload.rollout
    samples = rollout.prompts * rollout.samples
    made = samples * rollout.max_answer / rates[0] if rollout.max_prompt else 0.0
    return _whole(workload, made, samples * rollout.longest / rates[1], basis, factor)


def _whole(workload: Workload, rollout: float, train: float, basis: str, factor: float) -> Estimate:
    """A step, and all steps with their evaluations: answers like those of the rollout."""
    step = rollout + train if workload.mode == "sync" else max(rollout, train)
    answers = workload.rollout.prompts * workload.rollout.samples
    share = workload.rollout.eval_problems * workload.rollout.eval_samples / max(1, answers)
    every = workload.eval_every
    times = 2 + (workload.steps - 1) // every if every else 2
    run = workload.steps * step + times * share * rollout if workload.steps_known else None
    return Estimate(step, run, rollout, train, factor, basis)


# -- from the table of devices ---------------------------------------------------------------------------


def _device_rollout(workload: Workload, ledger: Ledger, speed: DeviceSpeed) -> float:
    """Seconds in which the answers of a step are made: waves of answers in flight, token by token."""
    rollout, shape, engine = workload.rollout, workload.model, workload.engine
    if not rollout.max_prompt:
        return 0.0
    answers = rollout.prompts * rollout.samples
    replicas = workload.layout.ranks if engine is None else answering(workload, engine)
    wide = 1 if engine is None else engine.tensor_parallel * engine.pipeline_parallel
    flying = in_flight(workload, ledger)
    together = max(1, ceil(min(answers, flying or answers) / replicas))
    size = DTYPE_BYTES[
        workload.trainer.compute_dtype or workload.trainer.param_dtype if engine is None else engine.dtype
    ]
    token = 2 * shape.layers * shape.kv_width * size
    read = size * _touched(shape, together) + together * token * (rollout.max_prompt + rollout.max_answer // 2)
    fixed = GRAPH_S if engine is not None and engine.graphs else EAGER_LAYER_S * shape.layers
    bandwidth, flops = speed.bandwidth * wide * READ, speed.flops * wide * PREFILL
    decode = max(read / bandwidth, 2 * shape.active_parameters() * together / flops) + fixed
    waves = ceil(answers / (replicas * together))
    prefill = 2 * shape.active_parameters() * rollout.prompts * rollout.max_prompt / (flops * replicas)
    return waves * rollout.max_answer * decode + prefill


def _touched(shape: ModelShape, tokens: int) -> float:
    """Parameters that a decode step of so many tokens reads: of experts, those that one of them is routed to."""
    whole, active = shape.parameters(), shape.active_parameters()
    if not shape.experts:
        return whole
    share = 1 - (1 - shape.experts_per_token / shape.experts) ** tokens
    return active + (whole - active) * share


def _device_train(workload: Workload, speed: DeviceSpeed) -> float:
    """Seconds of a step's passes on all ranks of the trainer."""
    rollout, shape = workload.rollout, workload.model
    tokens = rollout.prompts * rollout.samples * rollout.longest
    attention = 2 * shape.layers * shape.query_width * rollout.longest
    one = 2 * shape.active_parameters() + attention
    system = workload.trainer.system
    kind = "megatron" if any(name in system for name in MEGATRON) else "plain"
    return tokens * one * _multiple(workload) / 2 / (speed.flops * UTILISATION[kind] * workload.layout.ranks)


def _multiple(workload: Workload) -> int:
    """FLOPs a parameter and token of all passes over a sample."""
    trainer = workload.trainer
    passes = 6 - (2 if trainer.lora is not None else 0) + (2 if trainer.checkpointing else 0)
    old = trainer.updates > 1 or trainer.scores
    return passes + 2 * old + 2 * (trainer.reference != "none")
