"""What a script says of the model that it trains: what is loaded how, packed, with which adapters."""

from typing import Any

from headway.foreign.python.builtins import HIDDEN
from headway.foreign.python.values import MISSING, Either, Missing, Obj, Ref, Text, Unknown, either

UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastLlamaModel", "FastQwen2Model", "FastTextModel")
HEADS = ("AutoModelForSequenceClassification", "AutoModelForTokenClassification")
SAVED = "the adapter's own files tell its rank"
Table = dict[str, Any]
Places = dict[str, tuple[str, int]]


class Found:
    """Settings by the names that TRL's configurations have, and the line of each."""

    def __init__(self) -> None:
        self.table: Table = {}
        self.places: Places = {}
        self.notes: list[str] = []
        self.unsloth = False
        self.kinds: set[str] = set()

    def put(self, name: str, value: Any, at: tuple[str, int] | None) -> None:
        """One setting. What is set later holds."""
        if isinstance(value, Missing):
            return
        self.table[name] = value
        if at is not None:
            self.places[name] = at

    def take(self, other: "Found") -> None:
        """All that another says of the same model."""
        self.table |= other.table
        self.places |= other.places
        self.notes += other.notes
        self.unsloth |= other.unsloth
        self.kinds |= other.kinds


def of_model(value: Any) -> Found:
    """What is said of a model: a name, or what the calls that made it were given.

    >>> of_model("Qwen/Qwen3-0.6B").table
    {'model_name_or_path': 'Qwen/Qwen3-0.6B'}
    """
    found = Found()
    if isinstance(value, Either):
        return joined([of_model(each) for each in value.options], value.why)
    if isinstance(value, str | Text | Unknown):
        found.put("model_name_or_path", value, None)
    elif isinstance(value, Ref):
        found.put("model_name_or_path", Unknown(f"the model is {value.path}, which is not looked at"), None)
    elif isinstance(value, Obj):
        _made(found, value, 0)
    return found


def joined(ways: list[Found], why: str) -> Found:
    """What several ways say: a setting that only one of them has may be missing."""
    found = Found()
    for name in dict.fromkeys(name for way in ways for name in way.table):
        found.table[name] = either((way.table.get(name, MISSING) for way in ways), why)
    ranks = [way.table["lora_r"] for way in ways if isinstance(way.table.get("lora_r"), int)]
    others = [way.table["lora_r"] for way in ways if isinstance(way.table.get("lora_r"), Unknown)]
    if ranks and others and all(each.why.endswith(SAVED) for each in others):
        # one way goes on with an adapter that an earlier run of the same script has made
        found.table["lora_r"] = either(ranks, why)
        found.notes.append(f"lora_r = {max(ranks)}, also where an adapter is loaded that a run has saved: {why}")
    for way in ways:
        found.places |= way.places
        found.notes += way.notes
        found.unsloth |= way.unsloth
        found.kinds |= way.kinds
    return found


def _made(found: Found, made: Obj, depth: int) -> None:
    """The calls that made a model, the innermost first."""
    if depth > 12:
        return
    base = next((each for each in (made.kwargs.get("model"), *made.args) if isinstance(each, Obj | Either)), None)
    last, owner = made.last, made.path.rpartition(".")[0].rpartition(".")[2]
    if last in ("from_pretrained", "from_config"):
        if owner.startswith("Peft"):
            if base is not None:
                _below(found, base, depth + 1)
            at = (made.file, made.line)
            found.put("use_peft", True, at)
            found.put("lora_r", Unknown(f"{made.file} line {made.line}: {SAVED}"), at)
            return
        _loaded(found, made, owner)
    elif last == "get_peft_model" and owner in UNSLOTH:
        if base is not None:
            _below(found, base, depth + 1)
        _unsloth_adapter(found, made)
    elif last in ("get_peft_model", "PeftModel", "PeftModelForCausalLM"):
        if base is not None:
            _below(found, base, depth + 1)
        config = made.kwargs.get("peft_config", made.args[1] if len(made.args) > 1 else MISSING)
        of_adapter(found, config)
    elif last == "prepare_model_for_kbit_training":
        if base is not None:
            _below(found, base, depth + 1)
        if "gptq" not in found.kinds:  # whose other parameters PEFT leaves as they are
            found.put("kbit_prepared", True, (made.file, made.line))
        if made.kwargs.get("use_gradient_checkpointing", True) is not False:
            found.put("gradient_checkpointing", True, (made.file, made.line))
    elif base is not None:
        _below(found, base, depth + 1)
    else:
        why = f"{made.file} line {made.line}: what {made.last or 'it'}() gives is known only when it runs"
        found.put("model_name_or_path", Unknown(why), None)
    _called(found, made)


def _below(found: Found, base: Obj | Either, depth: int) -> None:
    """The model that an adapter or a change is put on, which may be one of several."""
    if isinstance(base, Obj):
        _made(found, base, depth)
        return
    ways = []
    for each in base.options:
        way = Found()
        if isinstance(each, Obj):
            _made(way, each, depth + len(base.options))  # so that ways of ways come to an end
        else:
            way = of_model(each)
        ways.append(way)
    found.take(joined(ways, base.why))


def _called(found: Found, made: Obj) -> None:
    """Methods that are called on the model."""
    for name, args, kwargs, line in made.calls:
        at = (made.file, line)
        if name == "gradient_checkpointing_enable":
            found.put("gradient_checkpointing", True, at)
        elif name == "gradient_checkpointing_disable":
            found.put("gradient_checkpointing", False, at)
        elif name == "add_adapter":
            config = next((each for each in (*args, *kwargs.values()) if isinstance(each, Obj)), MISSING)
            of_adapter(found, config)
        elif name in ("bfloat16", "half", "float"):
            kind = {"bfloat16": "bfloat16", "half": "float16", "float": "float32"}[name]
            found.put("dtype", kind, at)
        elif name == "to" and args and isinstance(args[-1], Ref) and "float" in args[-1].last:
            found.put("dtype", args[-1], at)


def _loaded(found: Found, made: Obj, owner: str) -> None:
    """`from_pretrained`, of transformers, TRL or Unsloth."""
    said, at = made.kwargs, made.places
    names = ("pretrained_model_name_or_path", "model_name", "model_id", "model_name_or_path", "config")
    name = next((said[each] for each in names if each in said), made.args[0] if made.args else MISSING)
    if isinstance(name, Obj) and name.last == "from_pretrained" and name.args:
        name = name.args[0]
    if isinstance(name, Obj) and name.last == "snapshot_download":  # of the hub's or ModelScope's: a folder of it
        asked = [*name.args, *(name.kwargs.get(each, MISSING) for each in ("repo_id", "model_id"))]
        name = next((each for each in asked if isinstance(each, str | Text | Unknown | Either)), name)
    if isinstance(name, Obj) and name.last == "Path":
        from headway.foreign.python.builtins import path_join

        name = path_join((name,))
    where = (made.file, made.line)
    if isinstance(name, Missing | Obj | None):
        name = Unknown(f"{made.file} line {made.line}: the model's name is not told")
    found.put("model_name_or_path", name, next((at[each] for each in names if each in at), where))
    if HIDDEN in said:
        found.put(HIDDEN, said[HIDDEN], where)
    for ours, theirs in LOADED.items():
        for each in theirs:
            if each in said:
                found.put(ours, said[each], at.get(each, where))
    if said.get("use_flash_attention_2") is True:
        found.put("attn_implementation", "flash_attention_2", at.get("use_flash_attention_2", where))
    quantization(found, said.get("quantization_config", MISSING), at.get("quantization_config", where))
    if owner in HEADS:
        found.put("few_outputs", True, where)
    if owner.endswith("WithValueHead"):
        found.kinds.add("value")
    if owner in UNSLOTH or made.path.startswith("unsloth."):
        _unsloth_loaded(found, made)
    elif "dtype" not in said and "torch_dtype" not in said:
        found.kinds.add("plain dtype")


LOADED = {
    "dtype": ("torch_dtype", "dtype"), "load_in_4bit": ("load_in_4bit",), "load_in_8bit": ("load_in_8bit",),
    "attn_implementation": ("attn_implementation",), "device_map": ("device_map",),
}  # fmt: skip
UNSLOTH_LOADED = {
    "model_max_seq_length": ("max_seq_length", 2048), "load_in_4bit": ("load_in_4bit", True),
    "full_finetuning": ("full_finetuning", False), "fast_inference": ("fast_inference", False),
    "gpu_memory_utilization": ("gpu_memory_utilization", 0.5), "unsloth_checkpoints": (
        "use_gradient_checkpointing", "unsloth"),
    "load_in_8bit": ("load_in_8bit", False), "load_in_16bit": ("load_in_16bit", False),
    "load_in_fp8": ("load_in_fp8", False), "offload_embedding": ("offload_embedding", False),
}  # fmt: skip
"""Our name -> the argument of Unsloth's `from_pretrained` and its default (unsloth 015bdef0d9, models/loader.py)."""


def _unsloth_loaded(found: Found, made: Obj) -> None:
    found.unsloth = True
    where = (made.file, made.line)
    for ours, (theirs, default) in UNSLOTH_LOADED.items():
        if theirs in made.kwargs:
            found.put(ours, made.kwargs[theirs], made.places.get(theirs, where))
        elif ours not in found.table:
            found.put(ours, default, None)
    others = ("load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
    if "load_in_4bit" not in made.kwargs and any(made.kwargs.get(name) for name in others):
        found.put("load_in_4bit", False, where)
    if found.table.get("full_finetuning") is True:
        found.put("load_in_4bit", False, found.places.get("full_finetuning", where))
    if found.table.get("dtype", 0) is None:
        found.table.pop("dtype")


def _unsloth_adapter(found: Found, made: Obj) -> None:
    """`FastLanguageModel.get_peft_model`: r 16 on all projections unless it says otherwise."""
    said, where = made.kwargs, (made.file, made.line)
    found.put("use_peft", True, where)
    found.put("lora_r", said.get("r", 16), made.places.get("r", where))
    for ours, theirs in (
        ("lora_target_modules", "target_modules"), ("lora_modules_to_save", "modules_to_save"),
        ("unsloth_checkpoints", "use_gradient_checkpointing"),
    ):  # fmt: skip
        if theirs in said:
            found.put(ours, said[theirs], made.places.get(theirs, where))


PACKED = ("GPTQConfig", "AwqConfig", "AutoRoundConfig")
"""Configurations of weights that are packed already, in 4 bits unless they say otherwise."""


def quantization(found: Found, config: Any, at: tuple[str, int] | None) -> None:
    """A `BitsAndBytesConfig`, or None."""
    if isinstance(config, Either):
        ways = []
        for each in config.options:
            way = Found()
            quantization(way, each, at)
            ways.append(way)
        both = joined(ways, config.why)
        for name, value in both.table.items():
            found.put(name, value, both.places.get(name, at))
        found.kinds |= both.kinds
        found.notes += both.notes
    elif isinstance(config, Unknown | Text):
        for name in ("load_in_4bit", "load_in_8bit"):
            found.put(name, Unknown(config.why), at)
    elif isinstance(config, Obj) and config.last == "get_quantization_config" and config.args:
        of_arguments(found, config.args[0])
    elif isinstance(config, Obj) and config.last in PACKED:
        bits = config.get("bits")
        bits = 4 if isinstance(bits, Missing) and not config.args else config.args[0] if config.args else bits
        for size in (4, 8):
            found.put(
                f"load_in_{size}bit", Unknown(bits.why) if isinstance(bits, Unknown | Either) else bits == size, at
            )
        found.kinds |= {"gptq"} if config.last == "GPTQConfig" else set()
        found.notes.append(f"weights of {config.last} are planned as bitsandbytes packs as many bits")
    elif isinstance(config, Obj):
        for name in ("load_in_4bit", "load_in_8bit"):
            found.put(name, config.get(name), config.places.get(name, at))
        double = config.get("bnb_4bit_use_double_quant")
        found.put("use_bnb_nested_quant", double, config.places.get("bnb_4bit_use_double_quant", at))
        if config.last == "Mxfp4Config":
            found.notes.append("Mxfp4Config is not planned: the weights are taken to be in half precision")


def of_adapter(found: Found, config: Any) -> None:
    """A `LoraConfig`, None, or what `get_peft_config(model_args)` makes."""
    if isinstance(config, Either):
        ways = []
        for each in config.options:
            way = Found()
            of_adapter(way, each)
            if each is None:
                way.put("use_peft", False, None)
            ways.append(way)
        both = joined(ways, config.why)
        for name, value in both.table.items():
            found.put(name, value, both.places.get(name))
    elif isinstance(config, Unknown | Text):
        found.put("use_peft", Unknown(config.why), None)
    elif isinstance(config, Obj) and config.last == "get_peft_config" and config.args:
        of_arguments(found, config.args[0])
    elif isinstance(config, Obj):
        where = (config.file, config.line)
        found.put("use_peft", True, where)
        if config.last not in ("LoraConfig", "DoraConfig"):
            found.notes.append(f"{config.last} is planned as a LoRA of the same rank")
        rank = config.get("r")
        found.put("lora_r", 8 if isinstance(rank, Missing) else rank, config.places.get("r", where))
        for ours, theirs in (
            ("lora_target_modules", "target_modules"), ("lora_modules_to_save", "modules_to_save"),
            ("lora_dropout", "lora_dropout"), ("use_dora", "use_dora"),
        ):  # fmt: skip
            found.put(ours, config.get(theirs), config.places.get(theirs, where))


ARGUMENTS = (
    "use_peft", "lora_r", "lora_target_modules", "lora_modules_to_save", "load_in_4bit", "load_in_8bit",
    "use_bnb_nested_quant",
)  # fmt: skip


def of_arguments(found: Found, arguments: Any) -> None:
    """TRL's `ModelConfig`, as the command's flags fill it."""
    if not isinstance(arguments, Obj):
        return
    for name in ARGUMENTS:
        found.put(name, arguments.get(name), arguments.places.get(name))
    if HIDDEN in arguments.kwargs:
        for name in ("use_peft", "load_in_4bit"):
            if name not in found.table:
                found.put(name, arguments.kwargs[HIDDEN], None)
