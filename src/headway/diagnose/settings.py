"""What is known of the run beside its logs: from a launch script, from printed arguments, or as a table of facts."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from headway.facts.workload import Workload

UNIFIED = re.compile(r"gb10\b|dgx ?spark|\bspark\b|unified|jetson|tegra|\borin\b|\bthor\b", re.IGNORECASE)


class Settings(Struct, frozen=True):
    """Facts of a run that weigh in a diagnosis; None or empty where nobody says.

    `vocab` is of the whole model, `tensor` how many ranks split it, `cap` the tokens of a micro-batch. `save` and
    `evaluate` are the steps between two of them. `unified`: CPU and GPU share one memory. `limit_gb` is a
    container's. `flags` are those of the launch by their names, as last given; `launch` is
    the script's own text, without what is commented out.

    >>> from_table({"tp": 2, "vocab_per_tp": 76032, "max_tokens_per_gpu": 9216}).vocab_per_rank
    76032
    """

    vocab: int | None = None
    tensor: int = 1
    cap: int | None = None
    save: int | None = None
    evaluate: int | None = None
    steps: int | None = None
    unified: bool = False
    phase: str = ""
    limit_gb: float | None = None
    used_gb: float | None = None
    step: int | None = None
    lints: tuple[str, ...] = ()
    workload: "Workload | None" = None
    system: str = ""
    script: str = ""
    notes: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""

    @property
    def planned_for(self) -> str:
        """The trainer as the planner calls it, its backend included; as its script's reader does where none is
        planned."""
        return self.workload.trainer.system if self.workload is not None and self.system else self.system

    @property
    def vocab_per_rank(self) -> int | None:
        """Columns of the logits on one rank."""
        return None if self.vocab is None else max(1, self.vocab // max(1, self.tensor))


def from_table(table: Mapping[str, Any]) -> Settings:
    """Facts by the names that scripts and reports use; what is not known is passed over."""

    def number(*names: str) -> float | None:
        for name in names:
            value = table.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return float(value)
        return None

    def whole(*names: str) -> int | None:
        found = number(*names)
        return None if found is None else int(found)

    words = " ".join(str(value) for value in table.values() if isinstance(value, str))
    tensor = whole("tp", "tensor_parallel", "tensor_model_parallel_size") or 1
    per_rank, vocab = whole("vocab_per_tp"), whole("vocab", "vocab_size")
    if vocab is None and per_rank is not None:
        vocab = per_rank * tensor
    model = table.get("model")
    if vocab is None and isinstance(model, str):
        from headway.facts import shapes  # here, because most diagnoses know no model

        shape = shapes.by_name(model.split("/")[-1])
        vocab = None if shape is None else shape.vocab
    phase = table.get("phase")
    return Settings(
        vocab=vocab, tensor=tensor, cap=whole("max_tokens_per_gpu", "max_token_len_per_gpu", "cap"),
        save=whole("save_interval", "save_period", "save_freq"),
        evaluate=whole("eval_interval", "val_period", "test_freq"),
        steps=whole("num_rollout", "steps", "total_steps"), unified=UNIFIED.search(words) is not None,
        phase=phase if isinstance(phase, str) else "",
        limit_gb=number("container_limit_gb", "container_request_gb", "limit_gb"),
        used_gb=number("used_gb"), step=whole("crash_step"),
    )  # fmt: skip
