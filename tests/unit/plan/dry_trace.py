"""A dry trace: the trainer's own step over fake tensors, and the bytes that they would hold.

    python -m tests.unit.plan.dry_trace          # whole models, predicted against traced, case by case
    python -m tests.unit.plan.dry_trace --short  # two short models per case, extrapolated to all layers

Everything that `headway train` runs is real: the model as `load` makes it, adapters, checkpointing, packing, forward
and backward passes, chunked log-probs, loss, clipping and AdamW. Only the numbers are missing: under torch's
FakeTensorMode a tensor has a shape, a dtype and a storage size, but no bytes, so that a model of any size fits. What
a kernel allocates and frees within one operator is not seen.
"""

import argparse
import gc
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._pytree import tree_map_only

from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.plan.ledger import Ledger, Phase
from headway.plan.plan import plan
from headway.rollout.samples import Sample
from headway.train.lora import add_adapters
from headway.train.model import load, set_checkpointing
from headway.train.optim import AdamW
from headway.train.update import Pass, Update, accumulate, make_update
from headway.units import GIB

from ..train.live_bytes import LiveBytes

CPU = torch.device("cpu")
STEPS = 100
"""Steps of the planned run: more than one, so that train and step hold moments."""
TRACED = (Phase.TRAIN, Phase.STEP)


class Case(Struct, frozen=True):
    """One run. `rank` 0 trains all parameters; a step has `samples` answers to one prompt."""

    model: str
    dtype: str
    rank: int
    checkpointing: bool
    cap: int
    max_prompt: int
    max_answer: int
    samples: int = 8
    chunk: int = 256
    attention: str = "sdpa"
    kl: float = 0.0
    entropy: float = 0.0
    targets: str = "all-linear"

    @property
    def name(self) -> str:
        """What tells it from the others."""
        recipe = f"lora{self.rank}" if self.rank else "full"
        words = [self.model, recipe, self.dtype, "checkpointing" if self.checkpointing else "all kept"]
        return ", ".join([*words, f"{self.max_prompt}+{self.max_answer} tokens in {self.cap}", self.attention])

    def spec(self) -> RunSpec:
        """The RunSpec that a user would write for it."""
        raw: dict[str, Any] = {
            "model": {
                "path": self.model, "init": "random", "dtype": self.dtype, "attention": self.attention,
            },
            "data": {"task": "chain_sum", "max_prompt": self.max_prompt},
            "rollout": {"prompts": 1, "samples": self.samples, "max_answer": self.max_answer},
            "objective": {"kl_coef": self.kl, "entropy_coef": self.entropy},
            "train": {
                "cap": self.cap, "checkpointing": self.checkpointing, "logprob_chunk": self.chunk, "steps": STEPS,
            },
            "memory": {"device": "cpu", "threads": 1},
        }  # fmt: skip
        if self.rank:
            raw["lora"] = {"rank": self.rank, "targets": self.targets}
        return RunSpec.model_validate(raw)


QUICK = (
    Case("smollm2-135M", "fp32", 0, True, 4096, 512, 512),
    Case("tinyllama-1.1B", "bf16", 0, False, 4096, 512, 512, chunk=1024),
    Case("qwen2.5-1.5B", "fp32", 8, False, 2048, 512, 512, targets="attention"),
    Case("qwen3-4B", "bf16", 32, False, 2048, 1024, 1024, samples=2, chunk=1024),
)
CASES = (
    *QUICK,
    Case("smollm2-135M", "bf16", 16, False, 4096, 128, 896, attention="eager"),
    Case("qwen3-0.6B", "bf16", 0, True, 8192, 1024, 1024, entropy=0.01),
    Case("qwen3-0.6B", "fp32", 16, True, 8192, 512, 3584, kl=0.01),
    Case("tinyllama-1.1B", "fp32", 0, True, 2048, 256, 256, samples=4),
    Case("qwen3-4B", "bf16", 0, True, 4096, 512, 1024),
)
"""Five shapes of three families up to 4B, one with an untied head; prompts, answers and caps as a user sets them."""


Peaks = dict[str, int]
"""The most bytes by moment: the pass, the operator and the function that called it."""


class Trace(LiveBytes):
    """Peak of the live bytes by phase, on top of a FakeTensorMode.

    Where the trainer asks a tensor for a number (a norm, a step count, a statistic), it gets 2. Every sample has
    `answer` response tokens.
    """

    def __init__(self, answer: int) -> None:
        super().__init__()
        self._answer = answer
        self._at = "start"
        self._peaks: Peaks = {}
        self._sum: tuple[Peaks, tuple[weakref.ref, ...]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        self._settle()
        if func is torch.ops.aten._local_scalar_dense.default:
            return 2.0 if args[0].is_floating_point() else 2
        self._at = str(func)
        if func is torch.ops.aten.repeat_interleave.Tensor:
            (repeats,) = args
            return repeats.new_empty(len(repeats) * self._answer)
        # what is no allocation need not pass through FakeTensorMode, which takes half a millisecond for an operator
        if func.is_view and isinstance(args[0], FakeTensor):
            return _view(func, args, kwargs or {})
        if _writes(func):
            return kwargs["out"] if kwargs and "out" in kwargs else args[0]
        if func is torch.ops.aten.add.Tensor and _by_engine():
            self._sum = dict(self._peaks), tuple(weakref.ref(tensor.untyped_storage()) for tensor in args[:2])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _settle(self) -> None:
        """Take back the peak of a sum of two gradients that autograd makes in place where nobody watches.

        It adds in place where it holds the last reference to one of the two, but never under a dispatch mode. Whether
        it did shows as soon as it goes on.
        """
        if self._sum is None:
            return
        before, summands = self._sum
        self._sum = None
        if any(storage() is None for storage in summands):
            self._peaks = before

    def hold(self, model: nn.Module) -> None:
        """Count the parameters and buffers of a model that was made before."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._watch(tensor, tensor.untyped_storage().nbytes())

    @contextmanager
    def phase(self) -> Iterator[Peaks]:
        """The peaks of what is inside; they are there at its end."""
        gc.collect()
        self._peaks, found = {"start": self.live}, {}
        yield found
        self._settle()
        found |= self._peaks

    def _watch(self, tensor: Tensor, size: int) -> None:
        if tensor.device.type == "meta":
            return
        before = self.live
        super()._watch(tensor, size)
        if self.live > before:
            moment = f"{_pass()}, {self._at} in {_function(sys._getframe())}"
            self._peaks[moment] = max(self.live, self._peaks.get(moment, 0))


@cache
def _writes(func: torch._ops.OpOverload) -> bool:
    """Whether an operator only fills a tensor that is there, so that its result is that tensor."""
    outs = [argument for argument in func._schema.arguments if argument.is_out]
    return len(outs) == 1 or func is torch.ops.aten.copy_.default or (
        func._schema.name.endswith("_") and torch.Tag.pointwise in func.tags
    )  # fmt: skip


def _by_engine() -> bool:
    """Whether autograd's engine itself calls an operator, not a function that it runs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(("eval_frame.py", "_compile.py")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _view(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """A view of a fake tensor: that of its meta tensor, on its device."""
    fake = args[0].fake_mode
    with in_kernel_invocation_manager(fake):
        result = func(*args, **kwargs)
    return tree_map_only(Tensor, lambda view: FakeTensor(fake, view, args[0].fake_device), result)


def _pass() -> str:
    return "backward" if torch._C._current_graph_task_id() >= 0 else "forward"


def _function(frame: FrameType | None) -> str:
    """The innermost function of the trainer or of the model's code."""
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in ("headway/train", "transformers/models")):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return "torch"


def unexpected(failure: object) -> None:
    """A traced pass allocates nothing, so that nothing fails."""
    raise AssertionError(failure)


def traced(case: Case, layers: int | None = None) -> dict[Phase, Peaks]:
    """Peaks of the second optimizer step, weights, gradients and moments included; `layers` shortens the model."""
    spec = case.spec()
    source = _source(spec, layers)
    how = Pass(spec.rollout.temperature, spec.train.logprob_chunk, spec.train.cap, 0, CPU)
    fake = FakeTensorMode()
    model = _model(spec, source, fake)
    optimizer = AdamW(dict(model.named_parameters()), betas=spec.train.betas, eps=spec.train.eps, weight_decay=0.01)
    with fake, Trace(case.max_answer) as trace, _values_are_read():
        trace.hold(model)
        for update in (_update(spec, 1), _update(spec, spec.rollout.samples)):
            with trace.phase() as train:
                accumulate(model, update, spec.objective, how, lambda: None, unexpected)
            with trace.phase() as step:
                optimizer.clip_(spec.train.grad_clip)
                optimizer.step(spec.train.lr)
    return {Phase.TRAIN: train, Phase.STEP: step}


def _source(spec: RunSpec, layers: int | None) -> ModelSource:
    source = resolve(spec.model)
    assert source.shape is not None
    return replace(source, shape=replace(source.shape, layers=layers or source.shape.layers))


def _model(spec: RunSpec, source: ModelSource, fake: FakeTensorMode) -> nn.Module:
    """The model as a job opens it, fake."""
    with fake:
        model: nn.Module = load(source, spec.model, CPU, spec.train.seed).model
    if spec.lora is not None:
        # peft moves its layers by swapping tensors, which fake parameters refuse: they are made real, then replaced
        model = add_adapters(model, spec.lora, spec.train.seed)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if not isinstance(parameter.data, FakeTensor):
                    module.register_parameter(name, nn.Parameter(fake.from_tensor(parameter.data)))
    set_checkpointing(model, spec.train.checkpointing)
    return model.train()


def _values_are_read() -> AbstractContextManager[Any]:
    """transformers asks whether positions start anew within a row, and only where they do builds a mask. Of a fake
    tensor it does not ask but builds one, which a run never has: sdpa takes no causal path and copies grouped heads.
    """
    return patch("transformers.masking_utils.is_tracing", lambda _=None: False)


def _update(spec: RunSpec, count: int) -> Update:
    """Samples of full length."""
    prompt, answer = (1,) * spec.data.max_prompt, (2,) * spec.rollout.max_answer
    values = (-1.0,) * len(answer)
    samples = [Sample(0, i, prompt, answer, values, "", "length", 0.0, 0.0) for i in range(count)]
    ref = [values] * count if spec.objective.kl_coef > 0 else None
    return make_update(samples, range(count), [1.0] * count, None, ref, spec.objective, spec.rollout.max_answer)


@cache
def extrapolated(case: Case, short: tuple[int, int] = (2, 3)) -> dict[Phase, Peaks]:
    """Peaks of the whole model from two short ones.

    At any one moment all that is alive grows linearly with layers. Their maximum does not, because the moment of a
    short model's peak may be another one than that of the whole.
    """
    shape = resolve(case.spec().model).shape
    assert shape is not None
    few, more = (traced(case, layers) for layers in short)
    share = (shape.layers - short[1]) / (short[1] - short[0])
    return {
        phase: {at: size + round((size - few[phase][at]) * share) for at, size in more[phase].items()}
        for phase in TRACED
    }


def planned(case: Case, layers: int | None = None) -> Ledger:
    """The plan of the case, placed on a device of its own, where tensors are told from all other memory."""
    spec = case.spec()
    return plan(replace(to_workload(spec, _source(spec, layers)), device="cuda"))


def allocated(ledger: Ledger, phase: Phase) -> int:
    """Expected bytes of the tensors of a phase."""
    return sum(line.bytes for line in ledger.lines if line.phase == phase and line.quantity == "allocated")


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Planned against traced bytes of headway's trainer.")
    parser.add_argument("--short", action="store_true", help="two short traces per case, extrapolated")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args(arguments)
    for case in CASES:
        if options.only not in case.name:
            continue
        start, ledger = time.perf_counter(), planned(case)
        found = extrapolated(case) if options.short else traced(case)
        sys.stdout.write(f"{case.name}  ({time.perf_counter() - start:.1f} s)\n")
        for phase, peaks in found.items():
            predicted, at = allocated(ledger, phase), max(peaks, key=peaks.__getitem__)
            sys.stdout.write(
                f"  {phase:5} {predicted / GIB:8.3f} planned {peaks[at] / GIB:8.3f} traced GiB "
                f"{predicted / peaks[at] - 1:+7.2%}  {at}\n"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
