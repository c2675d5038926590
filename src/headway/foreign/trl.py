"""TRL's launch scripts: flags of its trainers, their YAML, `accelerate launch`, DeepSpeed's JSON -> `Found`.

Names and defaults: huggingface/trl 1.x (commit f2cd57710, 2026), `trl/trainer/grpo_config.py`, `sft_config.py`,
`model_config.py`; transformers' `TrainingArguments` below them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from headway.foreign import documents
from headway.foreign.command import Flag, Launch, Line, split
from headway.foreign.documents import RefusedError, Table
from headway.foreign.found import Found, Setting
from headway.foreign.gather import (
    TRUTHS,
    Gather,
    Got,
    checkpoint,
    describe,
    dtype,
    flag,
    hides,
    named,
    number,
    programs,
    text,
    tree,
    truth,
    whole,
)
from headway.foreign.launcher import Processes, processes
from headway.foreign.shell import Command, Script
from headway.foreign.shell.values import Gap, Origin, Word
from headway.foreign.trl_claims import MARKS, claims, keys_of

VERSION = "TRL 1.x"
TRAINERS = ("online_dpo", "grpo", "rloo", "sft", "dpo", "kto", "ppo", "gkd", "reward")
SAMPLING = ("grpo", "rloo", "online_dpo", "ppo")
"""Trainers that generate."""
PLAIN = frozenset({
    "model_name_or_path", "per_device_train_batch_size", "gradient_accumulation_steps", "use_peft", "dataset_name",
    "config", "max_seq_length", "max_length", "gradient_checkpointing",
})  # fmt: skip
"""Settings by which the records that a log prints are known, beside those of `MARKS`."""
NAMED: dict[str, Table] = {
    "single_gpu": {"distributed_type": "NO", "num_machines": 1, "num_processes": 1},
    "multi_gpu": {"distributed_type": "MULTI_GPU", "num_machines": 1, "num_processes": 8},
    "fsdp1": {"distributed_type": "FSDP", "num_machines": 1, "num_processes": 8},
    "fsdp2": {"distributed_type": "FSDP", "num_machines": 1, "num_processes": 8},
} | {
    f"zero{stage}": {
        "distributed_type": "DEEPSPEED", "num_machines": 1, "num_processes": 8,
        "deepspeed_config": {
            "zero_stage": stage, "offload_optimizer_device": "none", "offload_param_device": "none",
            "zero3_save_16bit_model": stage == 3,
        },
    }
    for stage in (1, 2, 3)
}  # fmt: skip
"""What `trl --accelerate_config NAME` stands for: files of TRL's own (`trl/accelerate_configs/`)."""


def launches(command: Command) -> Iterator[Launch]:
    """Python programs, and `trl grpo ...`, which starts no Python file."""
    for place, word in enumerate(command.argv[:-1]):
        after = command.argv[place + 1]
        if not isinstance(word, Word) or not isinstance(after, Word):
            continue
        name = (after.text or "").replace("-", "_")
        if (word.text or "").rpartition("/")[2] == "trl" and name in TRAINERS:
            environment = dict(command.environment)
            yield Launch(f"trl {name}", command.argv[place + 2 :], command.argv[:place], environment, command)
            return
    yield from programs(command)


def read(script: Script, root: Path | None = None) -> Found | None:
    """A script of TRL; None where it is none. YAML and JSON files are read below `root` only; nothing is run.

    A vLLM server that the script starts as well is the run's engine.
    """
    path, root = tree(script, root)

    def world(launch: Launch, words: list[Word | Gap]) -> Found:
        return _world(launch, split(words), path, root, script.commands)

    def ours(launch: Launch) -> bool:
        return claims(launch) or claims(launch, keys_of(launch, path, root))

    return describe(script, ours, world, launches)


class Options(Struct):
    """A trainer's settings: its flags over its YAML file. `hidden` says why what is in neither may be set."""

    line: Line
    table: Table = field(default_factory=dict)
    name: str = ""
    hidden: str = ""
    asked: set[str] = field(default_factory=set)

    def get(self, *names: str) -> Got:
        """What is said of the setting with one of these names, the first that is there."""
        self.asked.update(names)
        for name in names:
            found = flag(self.line, name, switch=True)
            if found.given:
                return found
            if f"no_{name}" in self.line:
                return Got(False, given=True)
        for name in names:
            if name in self.table:
                return Got(self.table[name], given=True, at=Origin(self.name, 1) if self.name else None)
        hidden = self.hidden or (
            f"may be among words that are not known: {hides(self.line)}" if hides(self.line) else ""
        )
        return Got(why=hidden) if hidden else Got()

    def on(self, *names: str) -> bool | None:
        """Whether a setting is on; None where that is not known."""
        got = self.get(*names)
        try:
            return None if got.why else bool(truth(got.raw)) if got.given else False
        except ValueError:
            return None


def _world(launch: Launch, raw: Line, script: Path | None, root: Path | None, commands: Sequence[Command]) -> Found:
    into = Gather("trl")
    line = named(raw)
    options = Options(line)
    for name in ("config", "config_file"):
        given = line.last(name)
        if given is not None:
            _file(into, options, given, script, root)
    if not line.flags and line.words and (line.words[0].text or "").endswith((".yaml", ".yml", ".json")):
        _file(into, options, Flag("config", line.words[:1]), script, root)
    started = processes(launch.launcher)
    if launch.program.startswith("trl "):
        started = Processes(
            "accelerate", flag(line, "num_machines"), Got(), flag(line, "num_processes"),
            line.last("accelerate_config"), line,
        )  # fmt: skip
    backend = _backend(into, options, started, script, root)
    kind = _kind(launch.program, options)
    return _filled(into, options, backend, kind, launch.program, commands)


def from_table(table: Table, name: str, kind: str = "") -> Found:
    """What a trainer's whole table of settings says, such as one that a log prints."""
    options = Options(Line({}), table, name)
    kind = kind if kind in TRAINERS else _kind("", options)
    return from_options(options, Processes(), kind, f"trl {kind}", None, None)


def from_options(
    options: Options, started: Processes, kind: str, program: str, script: Path | None, root: Path | None
) -> Found:
    """What a trainer's settings say, wherever they were found."""
    into = Gather("trl")
    backend = _backend(into, options, started, script, root)
    return _filled(into, options, backend, kind, program, ())


def _filled(
    into: Gather, options: Options, backend: "Backend", kind: str, program: str, commands: Sequence[Command]
) -> Found:
    _trainer(into, options, kind)
    _precision(into, options, backend)
    _adapter(into, options)
    _engine(into, options, kind, commands)
    _reference(into, options, kind)
    _worked_out(into, options, kind)
    model = checkpoint(into, options.get("model_name_or_path", "model_name"))
    flags = {key: tuple(word.text for word in given[-1].values) for key, given in options.line.flags.items()}
    flags |= {key: (str(value)[:200],) for key, value in options.table.items() if key not in flags}
    flags["trl_kind"] = (kind,)
    if backend.total:
        flags["num_processes"] = (backend.total,)
    if backend.configuration:
        flags["accelerate_config_file"] = (backend.configuration,)
    asked = frozenset({*options.line.asked, *options.asked})
    return into.found(flags=flags, model=model, program=program, asked=asked)


def _file(into: Gather, options: Options, given: Flag, script: Path | None, root: Path | None) -> None:
    """The trainer's YAML: below the flags."""
    word = given.values[0] if given.values else Word()
    path, why = documents.locate(word, script, root)
    try:
        if path is None:
            raise RefusedError(why)
        options.table, options.name = {**documents.table(path), **options.table}, str(path)
    except RefusedError as error:
        options.hidden = f"{word.shown[-80:] or 'the configuration'} {error}"
        into.unread.append(options.hidden)


def _kind(program: str, options: Options) -> str:
    """Which trainer it is, by the program's name, else by its flags."""
    name = program.lower().rpartition("/")[2].replace("-", "_")
    found = next((each for each in TRAINERS if each in name), None)
    if found is not None:
        return found
    return "grpo" if any(name in options.line or name in options.table for name in MARKS) else "sft"


# -- placement ----------------------------------------------------------------------------------------------


class Backend(Struct):
    """How processes share the model, from accelerate's and DeepSpeed's files.

    `hidden` says why what accelerate's file would tell is not known, `inner` the same of DeepSpeed's own.
    """

    table: Table = field(default_factory=dict)
    fsdp: Table = field(default_factory=dict)
    deepspeed: Table = field(default_factory=dict)
    name: str = ""
    hidden: str = ""
    inner: str = ""
    configuration: str = ""
    total: str = ""
    mixed: Got = field(default_factory=Got)

    def got(self, table: Table, key: str) -> Got:
        """A key of one of the tables."""
        if key in table:
            return Got(table[key], given=True, at=Origin(self.name, 1))
        why = self.hidden or (self.inner if table is self.deepspeed else "")
        return Got(why=why) if why else Got()


def _backend(into: Gather, options: Options, started: Processes, script: Path | None, root: Path | None) -> Backend:
    found = Backend()
    _accelerate(into, found, started, script, root)
    _deepspeed(into, found, options.get("deepspeed"), script, root)
    line = started.line
    _strategy(into, found, options, started)
    stage = flag(line, "zero_stage")
    into.take("zero_stage", stage if stage.given else found.got(found.deepspeed, "zero_stage"), whole)
    for key, part in (("optimizer_offload", "optimizer"), ("param_offload", "param")):
        said = flag(line, f"offload_{part}_device")
        got = said if said.given else found.got(found.deepspeed, f"offload_{part}_device")
        own = _fsdp(found, options, line, "fsdp_offload_params") if part == "param" else Got()
        into.take(key, own if own.given else replace(got, raw=_device(got.raw)) if got.given else got, truth, False)
    _counts(into, found, started)
    _host(into, found, options, line)
    mixed = flag(line, "mixed_precision")
    found.mixed = mixed if mixed.given else found.got(found.table, "mixed_precision")
    return found


def _fsdp(found: Backend, options: Options, line: Line, name: str) -> Got:
    """A setting of FSDP: of the launcher's flags, the trainer's `--fsdp`, or accelerate's file."""
    said = flag(line, name)
    words = options.get("fsdp")
    if not said.given and name == "fsdp_offload_params" and words.given and "offload" in str(words.raw).split():
        return replace(words, raw=True)
    return said if said.given else found.got(found.fsdp, name) if found.fsdp else Got()


def _host(into: Gather, found: Backend, options: Options, line: Line) -> None:
    """What goes through the first rank's host memory: `gathers` and `loads` as a Workload has them.

    FSDP 1 gathers a full state dict unless told otherwise, FSDP 2 does not (accelerate's defaults); ZeRO 3 does where
    its configuration says so. What no file tells is left to the planner's habit of the system.
    """
    backend = into.value("trainer_backend")
    if backend in ("fsdp", "fsdp2"):
        kind = _fsdp(found, options, line, "fsdp_state_dict_type")
        is_full = "FULL" in str(kind.raw).upper() if kind.given else backend == "fsdp"
        into.derive("gathers", None if kind.why else "in turn" if is_full else "nothing")
        efficient = _fsdp(found, options, line, "fsdp_cpu_ram_efficient_loading")
        if efficient.given and TRUTHS.get(str(efficient.raw).lower()) is False:
            into.derive("loads", "each")
    elif backend == "deepspeed" and into.value("zero_stage") == 3:
        said = flag(line, "zero3_save_16bit_model")
        got = said if said.given else found.got(found.deepspeed, "zero3_save_16bit_model")
        if not got.why:
            gathers = got.given and TRUTHS.get(str(got.raw).lower()) is True
            into.derive("gathers", "weights" if gathers else "nothing")


def _device(raw: object) -> object:
    return None if raw is None else str(raw).lower() in ("cpu", "nvme")


def _accelerate(into: Gather, found: Backend, started: Processes, script: Path | None, root: Path | None) -> None:
    """`accelerate launch --config_file`; with none, the default of the user's machine, which nobody knows."""
    if started.config is None:
        return
    word = started.config.values[0] if started.config.values else Word()
    found.configuration = word.shown[-200:]
    if (word.text or "") in NAMED:
        found.table, found.name = NAMED[word.text or ""], f"trl/accelerate_configs/{word.text}.yaml"
        inner = found.table.get("deepspeed_config")
        found.deepspeed = inner if isinstance(inner, dict) else {}
        found.fsdp = {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"} if word.text == "fsdp2" else {}
        return
    path, why = documents.locate(word, script, root)
    try:
        if path is None:
            raise RefusedError(why)
        found.table, found.name = documents.table(path), str(path)
    except RefusedError as error:
        found.hidden = f"{word.shown[-80:] or 'the accelerate configuration'} {error}"
        into.unread.append(found.hidden)
        return
    for key, into_table in (("fsdp_config", "fsdp"), ("deepspeed_config", "deepspeed")):
        inner = found.table.get(key)
        if isinstance(inner, dict):
            setattr(found, into_table, {str(name): value for name, value in inner.items()})
    named = found.deepspeed.get("deepspeed_config_file")
    if isinstance(named, str):
        _deepspeed(into, found, Got(named, given=True), script, root)


def _deepspeed(into: Gather, found: Backend, given: Got, script: Path | None, root: Path | None) -> None:
    """DeepSpeed's own JSON, as the trainer's `--deepspeed` or accelerate's configuration names it."""
    if not given.given or given.why or not isinstance(given.raw, str | dict):
        return
    try:
        if isinstance(given.raw, dict):
            own = given.raw
        elif given.raw.lstrip().startswith("{"):
            own = documents.from_json(given.raw)
        else:
            path, why = documents.locate(Word((given.raw,)), script, root)
            if path is None:
                raise RefusedError(why)
            own, found.name = documents.table(path), str(path)
    except RefusedError as error:
        found.inner = f"{str(given.raw)[-80:]} {error}"
        into.unread.append(found.inner)
        found.deepspeed.setdefault("is_deepspeed", True)
        return
    zero = own.get("zero_optimization") if isinstance(own, dict) else None
    zero = zero if isinstance(zero, dict) else {}
    found.deepspeed = {**found.deepspeed, "is_deepspeed": True}
    if "stage" in zero:
        found.deepspeed["zero_stage"] = zero["stage"]
    found.deepspeed["zero3_save_16bit_model"] = zero.get("stage3_gather_16bit_weights_on_model_save", False)
    for part in ("optimizer", "param"):
        inner = zero.get(f"offload_{part}")
        if isinstance(inner, dict) and "device" in inner:
            found.deepspeed[f"offload_{part}_device"] = inner["device"]


MOST_OF_A_NODE = 8
"""Processes that are on one machine where nothing says how many machines there are."""
KINDS: dict[str, str] = {"DEEPSPEED": "deepspeed", "FSDP": "fsdp", "MULTI_GPU": "ddp", "NO": "ddp"}


def _strategy(into: Gather, found: Backend, options: Options, started: Processes) -> None:
    line = started.line
    version = flag(line, "fsdp_version")
    version = version if version.given else found.got(found.fsdp, "fsdp_version")
    is_second = version.given and str(version.raw) == "2"
    flagged = options.get("fsdp")
    if found.deepspeed.get("is_deepspeed") or "use_deepspeed" in line:
        into.said("trainer_backend", "deepspeed")
    elif "use_fsdp" in line or (flagged.given and flagged.raw):
        into.said("trainer_backend", "fsdp2" if is_second else "fsdp")
    else:
        got = found.got(found.table, "distributed_type")
        name = KINDS.get(str(got.raw).upper()) if got.given else None
        if name == "fsdp" and is_second:
            name = "fsdp2"
        into.take("trainer_backend", replace(got, raw=name), text, "ddp")


def _counts(into: Gather, found: Backend, started: Processes) -> None:
    """Nodes and the processes on each: what accelerate counts is all processes together."""
    nodes = started.nodes if started.nodes.given else found.got(found.table, "num_machines")
    into.take("nodes", nodes, whole, None if started.kind == "srun" else 1)
    if started.kind != "accelerate":
        # deepspeed takes every device of the node, srun as many as the job has tasks there
        into.take("gpus_per_node", started.devices, whole, None if started.kind in ("deepspeed", "srun") else 1)
        return
    total = started.total if started.total.given else found.got(found.table, "num_processes")
    found.total = str(total.raw or "")[:20]
    machines = into.count("nodes")
    into.take("gpus_per_node", total, whole)
    every = into.settings.get("gpus_per_node")
    if isinstance(every, int) and machines is None and every <= MOST_OF_A_NODE and started.total.given:
        into.notes.append(f"--num_processes {every} is taken to be on one machine")
    elif isinstance(every, int) and machines is None:
        into.cannot("gpus_per_node", into.unknown.get("nodes", "the number of machines is not known"))
    elif isinstance(every, int) and machines and every >= machines:
        into.settings["gpus_per_node"] = every // machines


# -- the trainer --------------------------------------------------------------------------------------------


def _trainer(into: Gather, options: Options, kind: str) -> None:
    into.take("micro_batch", options.get("per_device_train_batch_size"), whole, 8)
    into.take("grad_accum", options.get("gradient_accumulation_steps"), whole, 1)
    into.take("recompute", options.get("gradient_checkpointing"), _checkpointing, "gradient_checkpointing")
    into.take("optimizer", options.get("optim"), _optimizer, "adamw_torch_fused")
    into.take("save_interval", options.get("save_steps"), number, 500)
    into.take("eval_interval", options.get("eval_steps"), number)
    if kind in SAMPLING:
        into.take("samples_per_prompt", options.get("num_generations"), whole, {"grpo": 8, "ppo": 1}.get(kind, 2))
        into.take("max_prompt_len", options.get("max_prompt_length"), whole)
        answer = options.get("max_completion_length", "max_new_tokens", "response_length")
        into.take("max_response_len", answer, whole, 512 if kind == "grpo" else 256)
        into.take("max_total_len", options.get("vllm_max_model_length", "vllm_max_model_len"), whole)
        into.take("rollout_batch", options.get("generation_batch_size"), whole)
    else:
        # transformers' own trainer has no such setting: its data is cut before
        default = None if kind == "trainer" else 1024
        into.take("max_total_len", options.get("max_length", "max_seq_length"), whole, default)
    into.said("mode", "sync")


def _optimizer(raw: object) -> Setting:
    """The name of an optimizer, which records print as `OptimizerNames.ADAMW_TORCH`."""
    name = text(raw)
    return name.removeprefix("OptimizerNames.").lower() if name and name.startswith("OptimizerNames.") else name


def _checkpointing(raw: object) -> Setting:
    found = truth(raw)
    return "gradient_checkpointing" if found else found


def _precision(into: Gather, options: Options, backend: Backend) -> None:
    """The dtype that the weights are loaded in, else that of autocast."""
    loaded = options.get("dtype", "torch_dtype")
    if loaded.given or loaded.why:
        into.take("dtype", loaded, dtype)
    else:
        half = next((name for name in ("bf16", "fp16") if options.on(name)), None)
        into.take("dtype", Got(half, given=half is not None), text, "fp32")
        mixed = backend.mixed
        if half is None and mixed.given and not mixed.why and mixed.raw in ("bf16", "fp16"):
            into.derive("dtype", str(mixed.raw))
    packed = {name: options.get(f"load_in_{name}") for name in ("4bit", "8bit")}
    on = next((name for name in packed if options.on(f"load_in_{name}")), None)
    if on is None and any(got.why for got in packed.values()):
        into.cannot("low_precision", next(got.why for got in packed.values() if got.why))
    else:
        into.said("low_precision", on, (packed[on],) if on else ())


def _adapter(into: Gather, options: Options) -> None:
    """LoRA's rank counts only with `--use_peft`."""
    used = options.get("use_peft")
    rank = options.get("lora_r")
    if used.why:
        into.cannot("lora_rank", used.why)
    elif options.on("use_peft"):
        into.take("lora_rank", rank, whole, 16)
    else:
        into.take("lora_rank", Got(), whole, 0)
        if rank.given:
            into.notes.append("--lora_r has no effect without --use_peft")


def _engine(into: Gather, options: Options, kind: str, commands: Sequence[Command]) -> None:
    used = options.get("use_vllm")
    if kind not in SAMPLING:
        return
    if used.why:
        for key in ("engine", "colocate"):
            into.cannot(key, used.why)
    else:
        into.take("engine", replace(used, raw="vllm" if options.on("use_vllm") else None), text, "hf")
    mode = options.get("vllm_mode")
    into.take("colocate", replace(mode, raw=_colocated(mode.raw)), truth)
    if into.value("engine") == "vllm":
        into.derive("colocate", True if into.settings.get("colocate") is None else None)
    into.take("gpus_per_engine", options.get("vllm_tensor_parallel_size"), whole, 1)
    into.take("engine_mem_fraction", options.get("vllm_gpu_memory_utilization"), number, 0.3)
    if into.settings.get("colocate") is False:
        _server(into, commands)


SERVERS = ("vllm-serve", "vllm_serve", "trl.scripts.vllm_serve")


def _colocated(raw: object) -> object:
    return {"colocate": True, "server": False}.get(str(raw).lower(), raw)


def _server(into: Gather, commands: Sequence[Command]) -> None:
    """`trl vllm-serve` in the same script: the engine's own flags."""
    for command in commands:
        words = [item for item in command.argv if isinstance(item, Word | Gap)]
        if not any(isinstance(word, Word) and word.text in SERVERS for word in words):
            continue
        line = named(split(words))
        into.take("gpus_per_engine", flag(line, "tensor_parallel_size"), whole, 1)
        into.take("engine_mem_fraction", flag(line, "gpu_memory_utilization"), number, 0.9)
        copies, ranks = flag(line, "data_parallel_size"), into.count("gpus_per_engine")
        if not copies.why and ranks:
            try:
                into.derive("rollout_gpus", ranks * (whole(copies.raw) or 1))
            except (ValueError, OverflowError):
                return
        return


def _reference(into: Gather, options: Options, kind: str) -> None:
    """A reference is loaded where KL counts; with LoRA it is the model without its adapter."""
    into.said("critic_loaded", kind == "ppo")
    into.said("reference_path_given", options.get("ref_model", "ref_model_name_or_path").given)
    beta = options.get("beta")
    if kind in SAMPLING:
        into.take("kl_coef", beta, number, 0.0 if kind == "grpo" else 0.05)
        if "kl_coef" in into.unknown:
            into.cannot("reference_loaded", into.unknown["kl_coef"])
            return
        strength = into.value("kl_coef")
        into.derive("kl_loss_coef", strength)
        into.derive("use_kl_loss", bool(strength))
        loaded = bool(strength)
    else:
        # DPO needs none where its log-probs are computed before; GKD's other model is its teacher
        loaded = kind in ("dpo", "kto") and not options.on("precompute_ref_log_probs")
    if loaded and "lora_rank" in into.unknown:
        into.cannot("reference_loaded", into.unknown["lora_rank"])
        return
    rank = into.value("lora_rank")
    into.said("reference_loaded", loaded and not (isinstance(rank, int) and rank > 0), (beta,))


def _worked_out(into: Gather, options: Options, kind: str) -> None:
    """What follows from other settings."""
    rows, steps = into.count("micro_batch"), into.count("grad_accum")
    nodes, devices = into.count("nodes"), into.count("gpus_per_node")
    if rows and steps and nodes and devices:
        batch = rows * steps * nodes * devices
        into.derive("global_batch", batch)
        if kind in SAMPLING and into.settings.get("rollout_batch") is None:
            into.derive("rollout_batch", batch)
    if kind == "grpo":
        rounds = options.get("num_iterations")
        try:
            into.derive("num_steps_per_rollout", whole(rounds.raw) if rounds.given and not rounds.why else 1)
        except (ValueError, OverflowError):
            into.unread.append("num_iterations is no whole number")
        prompt, answer = into.count("max_prompt_len"), into.count("max_response_len")
        if prompt and answer and into.settings.get("max_total_len") is None:
            into.derive("max_total_len", prompt + answer)
