"""What was found in another system's launch script, flags or log: settings, unknowns, what could not be read."""

from msgspec import Struct, field

from headway.foreign.shell.values import Item, Origin

Setting = int | float | str | bool | None

KEYS = (
    "system", "trainer_backend", "engine", "model_name", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "num_kv_heads", "kv_channels", "vocab_size", "num_experts", "moe_topk",
    "moe_ffn_hidden_size", "nodes", "gpus_per_node", "colocate", "rollout_gpus", "gpus_per_engine", "tp", "pp", "cp",
    "ep", "etp", "sequence_parallel", "zero_stage", "recompute", "dynamic_batch", "max_tokens_per_gpu", "micro_batch",
    "grad_accum", "global_batch", "num_steps_per_rollout", "rollout_batch", "samples_per_prompt", "max_prompt_len",
    "max_response_len", "max_total_len", "eval_max_response_len", "engine_mem_fraction", "use_kl_loss",
    "kl_loss_coef", "kl_coef", "reference_path_given", "reference_loaded", "critic_loaded", "optimizer",
    "optimizer_offload", "param_offload", "lora_rank", "dtype", "low_precision", "save_interval", "eval_interval",
    "mode", "update_weight_buffer_bytes",
)  # fmt: skip
"""The keys that every reader fills: each is in `settings`, or in `unknown` with the reason."""

SHAPE_KEYS = KEYS[4:14]
"""Those that describe the model."""


class Found(Struct, frozen=True):
    """A run as its script says it.

    `settings` holds what the script says: None for a flag with a value that is not given, False for an on/off flag
    that is not given. `derived` is what the system makes of it where the script says nothing: a default, or what
    follows from other settings. `unknown` says why a key cannot be told, `unread` what could not be read, `notes`
    what was assumed. `places` is where each value is written. `flags` are all flags of the training command as last
    given, by their names without dashes; `argv` its words.

    >>> found = Found("slime", {"tp": 4, "pp": None}, derived={"pp": 1}, unknown={"cp": "variable CP is not set"})
    >>> found.value("tp"), found.value("pp"), found.value("cp")
    (4, 1, None)
    """

    system: str
    settings: dict[str, Setting] = field(default_factory=dict)
    derived: dict[str, Setting] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    argv: tuple[Item, ...] = ()
    flags: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    places: dict[str, Origin] = field(default_factory=dict)
    sourced: tuple[str, ...] = ()
    program: str = ""
    at: Origin | None = None
    asked: frozenset[str] = frozenset()
    """The flags that the reader asked for, given or not."""
    model: str = ""
    """The name or path of the model's checkpoint as the script has it; empty where it names none."""
    beside: tuple[str, ...] = ()
    """Servers of other models that the script starts on the same machine, in words; no line of a plan has them."""

    def value(self, key: str) -> Setting:
        """What a key is for the run: what the script says, else what the system makes of it; None if unknown."""
        if key in self.unknown:
            return None
        said = self.settings.get(key)
        return self.derived.get(key) if said is None else said
