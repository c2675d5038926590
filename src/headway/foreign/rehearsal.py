"""A rehearsal of a run of slime or Miles: the flags that make four steps of it, each as long as any may be.

slime and Miles: `--num-rollout`, `--start-rollout-id`, `--save-interval`, `--eval-interval`, `--rollout-stop`,
`--rollout-stop-token-ids` (`slime/utils/arguments.py`). Every argument of SGLang's server is one of theirs, with
`--sglang-` before it (`slime/backends/sglang_utils/arguments.py`); `--preferred-sampling-params` is JSON of sampling
parameters that hold where a request does not set them (`sglang/srt/managers/tokenizer_manager.py`), and neither
system's requests set `ignore_eos`. Nothing is run here.
"""

import json
from pathlib import Path

from msgspec import Struct

from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.patch import Edit

SYSTEMS = ("slime", "miles")
STEPS = 4
PREFERRED = "sglang-preferred-sampling-params"
AWAY = ("rollout-stop", "rollout-stop-token-ids", "use-wandb", "save-debug-rollout-data", "dump-details")
"""What would end an answer, or write where the run itself does."""
OWN_LENGTHS = ("rollout-function-path", "custom-generate-function-path", "eval-function-path")
"""Code of the user's own that asks for answers, and may set how long they are."""


class Variant(Struct, frozen=True):
    """The edits that make a script its rehearsal, and what they leave open."""

    edits: tuple[Edit, ...]
    notes: tuple[str, ...]


def variant(found: Found, folder: Path) -> Variant:
    """The rehearsal of a run, which saves into `folder`. InputError for a system that headway cannot rehearse.

    The longest answers are those of `--rollout-max-response-len` and `--eval-max-response-len`, which stay as they
    are.

    >>> flags = {"save": ("/c",), "load": ("/c",), "save-interval": ("20",), "rollout-stop": ("x",)}
    >>> made = variant(Found("slime", flags=flags), Path("/tmp/r"))
    >>> [f"{edit.name} {'gone' if edit.gone else edit.value}" for edit in made.edits][:5]
    ['num-rollout 4', 'save /tmp/r/checkpoints', 'load /tmp/r/checkpoints', 'save-interval 1', 'rollout-stop gone']
    """
    if found.system not in SYSTEMS:
        raise InputError(
            f"the script starts {found.system or 'no trainer that headway knows'}: only scripts of slime and Miles "
            "can be rehearsed; headway plan shows what it will hold"
        )
    edits = [Edit("num-rollout", str(STEPS)), *_saving(found, folder)]
    edits += [Edit(name, "1") for name in ("save-interval", "eval-interval") if name in found.flags]
    edits += [Edit(name, gone=True) for name in AWAY if name in found.flags]
    edits += _ignoring_ends(found)
    return Variant(tuple(edits), tuple(_notes(found)))


def _saving(found: Found, folder: Path) -> list[Edit]:
    """Save elsewhere; begin at step 0, wherever the run itself would go on."""
    edits = []
    save, load = (_last(found, name) for name in ("save", "load"))
    if "save" in found.flags:  # its value may be one that only the run itself makes, such as a date
        edits.append(Edit("save", str(folder / "checkpoints")))
    if load is not None and save is not None and load.rstrip("/") == save.rstrip("/"):
        edits.append(Edit("load", str(folder / "checkpoints")))
    elif "load" in found.flags:
        edits.append(Edit("start-rollout-id", "0"))
    if "save-hf" in found.flags:
        edits.append(Edit("save-hf", str(folder / "hf-{rollout_id}")))
    return edits


def _ignoring_ends(found: Found) -> list[Edit]:
    """No answer ends before its longest; what else the script asks SGLang for stays."""
    given = _last(found, PREFERRED)
    if given is None:
        return [Edit(PREFERRED, json.dumps({"ignore_eos": True}, separators=(",", ":")))]
    try:
        asked = dict(json.loads(given))
    except (ValueError, TypeError):
        raise InputError(f"--{PREFERRED} {given}: is no JSON object; set ignore_eos in it by hand") from None
    text = json.dumps(asked | {"ignore_eos": True}, separators=(",", ":"))
    return [Edit(PREFERRED, gone=True), Edit(PREFERRED, text)]


def _notes(found: Found) -> list[str]:
    """What the user has to know of the variant."""
    notes = [] if "save" in found.flags else ["--save is not given: the run does not save"]
    if "eval-interval" not in found.flags:
        notes.append("--eval-interval is not given: the run does not evaluate")
    for name in OWN_LENGTHS:
        if name in found.flags:
            notes.append(f"--{name} {_last(found, name)}: this code may end answers by itself; see that it does not")
    if "rollout-max-response-len" not in found.flags:
        notes.append("--rollout-max-response-len is not given: how long answers become is not bounded by a flag")
    return notes


def _last(found: Found, name: str) -> str | None:
    return (found.flags.get(name) or (None,))[-1]
