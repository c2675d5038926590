"""A run's weights as a folder that transformers or peft loads, published or served without headway."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from headway.config import adapter
from headway.config.run_folder import recorded
from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve, weight_files
from headway.errors import HeadwayError, InputError
from headway.train.card import card
from headway.train.content import model_digests
from headway.train.lora import lora_config
from headway.train.model import DTYPES, config_for, load, prepare, quiet
from headway.train.output import RunFolder
from headway.train.record import name_of, record_of, write_record
from headway.train.tensors_file import SHARD, Entry, write_file, write_model
from headway.train.tokenizer import byte_tokenizer
from headway.train.trained import Lazy, Trained, tensors_of, trained_of
from headway.units import format_bytes

PEFT = "base_model.model."
"""How peft's names of a model's layers begin."""


@dataclass(frozen=True)
class Exported:
    """What was written: `kind` is "model" or "adapter"; `base` an adapter's, or the model that was trained."""

    folder: Path
    kind: str
    step: int
    base: str
    dtype: str
    parameters: int
    files: dict[str, int]


def export(
    run: Path,
    target: Path,
    progress: Callable[[str], None],
    *,
    merge: bool = False,
    step: int | None = None,
    base: Path | None = None,
    overwrite: bool = False,
    shard: int | str = SHARD,
) -> Exported:
    """Write the weights of a run after its last step, or after `step`, into the folder `target`.

    A full run's model; of a LoRA run the adapter, or with `merge` the base with the adapter added to it. One tensor
    is in memory at a time. The folder appears whole. `base` is where the base model lies by now.

    InputError for a folder that is no run, a step that was not kept, a base that is another one, and a target that
    holds something.
    """
    folder = RunFolder(run.resolve())
    spec = _spec(folder, base)
    whole = merge or spec.lora is None
    with _readable(folder):
        trained = trained_of(folder, spec, step)
        source = _base(folder, spec, trained, progress)
        target = _free(target, folder, source, overwrite=overwrite)
        config, family = _config(source, spec), source.shape.family if source.shape else ""
        with _written(target, overwrite=overwrite) as written, ExitStack() as stack, quiet():
            tensors = tensors_of(trained, stack)
            digests = model_digests(source)
            record = record_of(source, digests, trained.step, target, adapter=not whole)
            if whole:
                if spec.lora is None:
                    entries = list(_model_entries(tensors, trained, config, spec))
                else:
                    entries = list(_merged_entries(tensors, source, spec, stack))
                _room(target, entries)
                config.save_pretrained(written)
                _generation(source, config).save_pretrained(written)
                write_model(written, entries, shard)
            else:
                assert spec.lora is not None
                entries = [_entry(name, read) for name, read in tensors.items()]
                _room(target, entries)
                peft_config = lora_config(spec.lora, family)
                peft_config.inference_mode = True
                peft_config.save_pretrained(written)
                write_file(written / adapter.WEIGHTS, entries)
            _tokenizer(source).save_pretrained(written)
            write_record(written, record)
            text = card(folder, spec, trained, source, merged=whole)
            (written / "README.md").write_text(text)
    return Exported(
        target,
        "model" if whole else "adapter",
        trained.step,
        source.path if record.base is None else name_of(record.base),
        spec.model.dtype if whole else "fp32",
        sum(each.bytes // each.dtype.itemsize for each in entries),
        {path.name: path.stat().st_size for path in sorted(target.iterdir())},
    )


# -- what there is ---------------------------------------------------------------------------------------


def _spec(folder: RunFolder, base: Path | None) -> RunSpec:
    """The RunSpec of the run, with its base where it is now."""
    if not folder.runspec.is_file():
        raise InputError(f"{folder.root}: is no folder of a run (it has no runspec.toml); name the output.dir of one")
    spec = recorded(folder.root)
    if base is None:
        return spec
    if not base.is_dir():
        raise InputError(f"--base {base}: there is no such folder; set it to the base model's")
    model = spec.model.model_copy(update={"path": str(base.resolve()), "init": "pretrained"})
    return spec.model_copy(update={"model": model})


def _base(folder: RunFolder, spec: RunSpec, trained: Trained, progress: Callable[[str], None]) -> ModelSource:
    """The model that the run trained, on this machine and the same as then."""
    try:
        source = prepare(resolve(spec.model), progress)
    except InputError as error:
        raise InputError(
            *error.problems, f"{folder.root}: needs the model that it was started from; say where it is with --base"
        ) from None
    if trained.content is not None:
        before, now = trained.content.model, model_digests(source)
        other = [name for name, digest in before.items() if now.get(name) != digest]
        if other:
            raise InputError(
                f"{source.folder}: is not the model that the run was started from: {', '.join(other)} "
                f"{'differs' if len(other) == 1 else 'differ'}; say where that one is with --base"
            )
    return source


@contextmanager
def _readable(folder: RunFolder) -> Iterator[None]:
    """What goes wrong with reading and writing files, as a message."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise HeadwayError(
            f"{folder.root}: not exported ({error}); nothing was written. A run that goes on deletes its older "
            "checkpoints: then try again"
        ) from error


# -- tensors ---------------------------------------------------------------------------------------------

Read = Callable[[], Tensor]


def _entry(name: str, tensor: Lazy) -> Entry:
    return Entry(name, tensor.shape, tensor.dtype, tensor)


def _model_entries(
    tensors: Mapping[str, Lazy], trained: Trained, config: PretrainedConfig, spec: RunSpec
) -> Iterator[Entry]:
    """The tensors of a full run, under the names that transformers writes: a mixture's experts one by one."""
    if not trained.from_checkpoint or not hasattr(config, "num_experts"):
        yield from (_entry(name, tensor) for name, tensor in tensors.items())
        return
    dtype = DTYPES[spec.model.dtype]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, tensor in tensors.items():
        empty = torch.empty(tensor.shape, dtype=dtype, device="meta")
        parts = revert_weight_conversion(model, {name: empty})

        @lru_cache(maxsize=1)
        def read(name: str = name, tensor: Lazy = tensor) -> dict[str, Tensor]:
            return revert_weight_conversion(model, {name: tensor()})  # type: ignore[no-any-return]

        for part, like in parts.items():
            yield Entry(part, tuple(like.shape), like.dtype, lambda part=part, read=read: read()[part])  # type: ignore[misc]


def _merged_entries(
    tensors: Mapping[str, Lazy], source: ModelSource, spec: RunSpec, stack: ExitStack
) -> Iterator[Entry]:
    """The base's tensors in the run's dtype, those with an adapter with it added in fp32."""
    assert spec.lora is not None
    scale, dtype = spec.lora.alpha / spec.lora.rank, DTYPES[spec.model.dtype]
    left = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    for name, shape, read in _base_tensors(source, spec, stack):
        layer = next((each for each in _layers(name) if each in left), None)
        if layer is None:
            yield Entry(name, shape, dtype, lambda read=read: read().to(dtype))  # type: ignore[misc]
            continue
        left.discard(layer)
        a, b = tensors[f"{layer}.lora_A.weight"], tensors[f"{layer}.lora_B.weight"]
        yield Entry(
            name, shape, dtype, lambda read=read, a=a, b=b: read().float().addmm_(b(), a(), alpha=scale).to(dtype)
        )  # type: ignore[misc] # fmt: skip
    if left:
        raise InputError(f"{source.folder}: has no {', '.join(sorted(left)[:3])}, which the run adapted")


def _layers(name: str) -> tuple[str, ...]:
    """What peft may call the layer of a tensor in the base's files, which may lack the first `model.`."""
    layer = name.removesuffix(".weight")
    return (f"{PEFT}{layer}", f"{PEFT}model.{layer}")


def _base_tensors(
    source: ModelSource, spec: RunSpec, stack: ExitStack
) -> Iterator[tuple[str, tuple[int, ...], Read]]:
    """Name, shape and reader of each tensor of the base; random weights are made anew, all at once."""
    if source.kind == "random" or source.folder is None:
        made = load(source, spec.model, torch.device("cpu"), spec.train.seed).model
        for name, value in made.named_parameters():
            yield name, tuple(value.shape), lambda value=value: value.detach().clone()  # type: ignore[misc]
        return
    for file in weight_files(source.folder):
        opened = stack.enter_context(safe_open(file, framework="pt", backend="pread"))
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            tensor = Lazy(opened, name)
            yield name, tensor.shape, tensor


# -- what stands beside the weights ----------------------------------------------------------------------


def _config(source: ModelSource, spec: RunSpec) -> PretrainedConfig:
    """The model's config, with the dtype that is written."""
    if source.kind == "random" or source.folder is None:
        assert source.shape is not None
        config = config_for(source.shape)
    else:
        config = AutoConfig.from_pretrained(source.folder)
    with torch.device("meta"):
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.dtype = DTYPES[spec.model.dtype]
    return config


def _generation(source: ModelSource, config: PretrainedConfig) -> GenerationConfig:
    if source.folder is not None and (source.folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(source.folder)
    return GenerationConfig.from_model_config(config)


def _tokenizer(source: ModelSource) -> Any:
    return byte_tokenizer() if source.folder is None else AutoTokenizer.from_pretrained(source.folder)


# -- the folder ------------------------------------------------------------------------------------------


def _free(target: Path, folder: RunFolder, source: ModelSource, *, overwrite: bool) -> Path:
    """The folder to write, absolute. InputError where something is in it that is to stay."""
    target = Path(os.path.abspath(target.expanduser()))
    real = target.resolve()
    own = real in (folder.root, folder.final, *folder.root.parents)
    if own or folder.checkpoints in (real, *real.parents) or real in (source.folder, source.adapter):
        raise InputError(f"{target}: belongs to the run or is its base model; name another folder")
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file; name a folder that is new or empty")
    if not target.exists() or not any(target.iterdir()):
        return target
    if not overwrite:
        raise InputError(f"{target}: is not empty; name a new folder, or add --overwrite to replace it")
    if not (target / adapter.RECORD).is_file():
        raise InputError(f"{target}: holds files that no export wrote, and is not replaced; name a new folder")
    return target


def _room(target: Path, entries: list[Entry]) -> None:
    """InputError where the disk has less room than the tensors take."""
    needed = sum(each.bytes for each in entries)
    place = next(each for each in target.parents if each.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise InputError(
            f"{target}: takes {format_bytes(needed)}, and its disk has {format_bytes(free)} free; name a folder on "
            "another disk"
        )


@contextmanager
def _written(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder under a temporary name that takes the target's place when all went well, and else is gone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    replaced = target.with_name(f".{target.name}.{os.getpid()}.old")
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir()
    try:
        yield written
        if overwrite and target.exists():
            target.rename(replaced)
        written.rename(target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
