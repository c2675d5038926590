"""How long a run's prompts are, known in a moment and without torch: what its plan is made of."""

import json
import re
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from headway.config.fits import DataFacts, held_out
from headway.config.sections import RunSpec
from headway.config.source import ModelSource
from headway.errors import InputError
from headway.rollout.data import all_too_long, select, surely_too_long
from headway.rollout.files import Record
from headway.rollout.prompts import Tokenizer, messages, prompt_ids
from headway.rollout.tasks import draw_records

TEXT_BYTES = 1 << 20
"""Text that is tokenized for a plan, longest prompts first: a second of a fast tokenizer."""
FILE_BYTES = 64 << 20
"""A larger file is not read for a plan alone: a few tenths of a second."""
TEMPLATE_TOKENS = 64
"""What a chat template is taken to add for each message, and once before the answer, where it is not here."""
SPECIAL_TOKENS = 4
"""What a tokenizer is taken to add to a text."""
SAMPLE = 64
"""Problems of a task that are drawn to see how long they are."""
MARGIN = 1.25
"""A task's longest prompt is taken to be so many times the longest of the sample."""


_NO_TOKENIZER = "the model's tokenizer is not here to count them"


def data_facts(spec: RunSpec, source: ModelSource, *, thorough: bool) -> DataFacts:
    """Read the problems of a run, and count the tokens of its longest prompt.

    Not `thorough`, as in `headway plan`: problems of a task are not drawn, and a Parquet or a very large file is
    not read, which take seconds and large packages. InputError for a file that a run would refuse.
    """
    assumed = f"data.max_prompt = {spec.data.max_prompt}: prompts are taken to be so long"
    if spec.data.task is not None:
        if not thorough:
            told = f"{assumed}; headway train --dry-run draws a sample of {spec.data.task}"
            return DataFacts(spec.data.max_prompt, False, said=told)
        return _of_task(spec, source)
    file = spec.data.file
    if file is not None and not thorough and (_is_parquet(file) or _is_large(file)):
        return DataFacts(spec.data.max_prompt, False, said=f"{assumed}; headway train --dry-run reads {file.name}")
    train, held, _ = select(spec.data, spec.eval, spec.train.seed)
    found = _longest(spec, source, (*train, *held))
    kept, asked = (sum(each.place not in found.dropped for each in records) for records in (train, held))
    return DataFacts(found.tokens, found.exact, kept, asked, found.said)


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _is_large(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > FILE_BYTES


def _of_task(spec: RunSpec, source: ModelSource) -> DataFacts:
    assert spec.data.task is not None
    with closing(draw_records(spec.data.task, spec.data.params, spec.train.seed)) as records:
        sample = list(islice(records, SAMPLE))
    found = _longest(spec, source, sample)
    planned = min(spec.data.max_prompt, int(found.tokens * MARGIN) + 1)
    about = found.said or f"the longest of {len(sample)} problems of {spec.data.task} has {found.tokens}"
    told = f"prompts of up to {planned} tokens: {about}, and a quarter more"
    return DataFacts(planned, False, None, held_out(spec.eval.problems, None), told)


class _Longest(NamedTuple):
    """The longest kept prompt in tokens, whether that is exact, where it comes from otherwise, and the places of the
    records that are over data.max_prompt."""

    tokens: int
    exact: bool
    said: str
    dropped: frozenset[str] = frozenset()


def _longest(spec: RunSpec, source: ModelSource, records: Sequence[Record]) -> _Longest:
    most = spec.data.max_prompt
    ordered = sorted(records, key=_size, reverse=True)
    tokenizer = light_tokenizer(source)
    if tokenizer is None:
        bound = _size(ordered[0]) + _around(spec, ordered[0])
        if bound >= most:
            return _Longest(
                most, False, f"data.max_prompt = {most}: prompts are taken to be so long; {_NO_TOKENIZER}"
            )
        return _Longest(bound, False, f"prompts of up to {bound} tokens: a bound from their bytes; {_NO_TOKENIZER}")
    longest, text = 0, 0
    dropped, counts = set[str](), list[int]()
    for record in ordered:
        bound = _size(record) + _around(spec, record)
        if bound <= longest:
            break  # a token is a byte at least
        if text > TEXT_BYTES:
            longest = longest or most
            said = f"prompts of up to {longest} tokens: those of the {len(counts)} longest by bytes of {len(records)}"
            return _Longest(longest, False, said, frozenset(dropped))
        if surely_too_long(record, spec.data):
            dropped.add(record.place)
            continue
        count = len(prompt_ids(record, spec.data, tokenizer))
        text += _size(record)
        counts.append(count)
        if count > most:
            dropped.add(record.place)
        longest = max(longest, count if count <= most else 0)
    if not longest:
        shortest = min(counts, default=None)
        raise InputError(all_too_long(spec.data, "training and evaluation", records, shortest))
    return _Longest(longest, True, "", frozenset(dropped))


def _size(record: Record) -> int:
    return len(record.prompt.encode("utf-8", "surrogatepass"))


def _around(spec: RunSpec, record: Record) -> int:
    """Bytes of all that stands around a problem's text, and what a chat template or a tokenizer may add."""
    text = len((spec.data.template + (spec.data.system or "")).encode())
    return text + (
        SPECIAL_TOKENS if spec.data.format == "text" else TEMPLATE_TOKENS * (2 + len(messages(record, spec.data)))
    )


# -- tokenizers ------------------------------------------------------------------------------------------


def light_tokenizer(source: ModelSource) -> Tokenizer | None:
    """The tokenizer of a model that is on this machine, without transformers; None where its files are not here, are
    of another kind than tokenizer.json, or the package tokenizers is not installed."""
    if source.kind == "random":
        return ByteTokenizer()
    folder = source.folder
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        return FileTokenizer(folder)
    except (ImportError, ValueError, OSError):
        return None


class ByteTokenizer:
    """Counts as the tokenizer of models with random weights does: a token a byte, special tokens as one."""

    chat_template = "bytes"

    def __call__(self, text: str) -> dict[str, Sequence[int]]:
        return {"input_ids": range(len(text.encode()))}

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: bool) -> list[int]:  # noqa: ARG002
        # <|im_start|>role\ncontent<|im_end|>\n for each message, then <|im_start|>assistant\n
        sizes = (len(each["role"].encode()) + len(each["content"].encode()) + 4 for each in conversation)
        return list(range(sum(sizes) + len("assistant") + 2))


class FileTokenizer:
    """A tokenizer.json and its chat template, read by the library tokenizers and by jinja's sandbox."""

    def __init__(self, folder: Path) -> None:
        """ImportError, ValueError or OSError where the files or the packages cannot be used."""
        from tokenizers import Tokenizer as Fast

        try:
            self._fast = Fast.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise ValueError(str(error)) from None
        self._fast.no_truncation()
        self._fast.no_padding()
        settings = _json(folder / "tokenizer_config.json")
        self._special = {name: _text(settings.get(name)) for name in _SPECIAL if settings.get(name) is not None}
        file = folder / "chat_template.jinja"
        template = file.read_text() if file.is_file() else settings.get("chat_template")
        self.chat_template = template if isinstance(template, str) else None
        self._render: Any = None

    def __call__(self, text: str) -> dict[str, Sequence[int]]:
        return {"input_ids": self._fast.encode(text).ids}

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: bool) -> list[int]:  # noqa: ARG002
        if self._render is None:
            self._render = _compiled(self.chat_template or "")
        text = self._render.render(messages=conversation, add_generation_prompt=True, **self._special)
        return list(self._fast.encode(text, add_special_tokens=False).ids)


_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())
    return found if isinstance(found, dict) else {}


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


_MARKS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""What only tells which tokens are the assistant's."""


def _compiled(template: str) -> Any:
    """A chat template in the environment that transformers gives it (utils/chat_template_utils.py)."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: time.strftime(form)
    return environment.from_string(_MARKS.sub("", template))
