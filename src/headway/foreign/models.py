"""The whole models beside the actor that a script loads: critic, reward model, teacher, reference of its own.

By the systems' code: verl b178a3cd5 (`main_ppo.py`, `fsdp_workers.py`), OpenRLHF 3c3be6234 and 0.9
(`train_ppo_ray.py`), TRL f2cd57710 (`ppo.py`, `grpo.py`, `online_dpo.py`, `gkd_trainer.py`). What cannot be planned
is named in `Workload.unplanned`, so that no verdict says that the run fits.
"""

from typing import Literal

from msgspec.structs import replace

from headway.facts.shapes import ModelShape
from headway.facts.workload import (
    VALUED,
    Layout,
    Lora,
    Offload,
    Optimizer,
    OtherModel,
    Recompute,
    Role,
    Trainer,
    Workload,
)
from headway.foreign.found import Found
from headway.foreign.runs import HALF, REF, Reading
from headway.foreign.scoring import critic_scoring
from headway.foreign.shape_flags import by_checkpoint

FIELDS = {"critic": "critic", "reward": "reward_model", "teacher": "teacher", "reference": "reference_model"}
"""Role -> field of the Workload."""
SAME = "the actor's"
"""What a path is called that is the actor's own, where the script gives both by one variable."""


def with_others(reading: Reading, made: Workload) -> Workload:
    """The run with the models beside its actor, as its system loads them; notes are those of the reading."""
    build = {"verl": _verl, "openrlhf": _openrlhf, "trl": _trl, "unsloth": _trl}.get(reading.found.system)
    return made if build is None else build(reading, made)


def shape_named(path: str) -> ModelShape | None:
    """The shape of the table that a checkpoint's name tells, also behind words that name a reward model or a run.

    >>> [each and each.name for each in map(shape_named, ("OpenRLHF/Llama-3-8b-rm-700k", "/models/critic"))]
    ['llama3-8B', None]
    """
    return by_checkpoint(Found("", model=path))


class _Model:
    """One model beside the actor, put together from what the script says of it."""

    def __init__(self, reading: Reading, made: Workload, role: Role) -> None:
        self.reading, self.made, self.role = reading, made, role

    def put(
        self, path: str | None, key: str, trainer: Trainer, layout: Layout, *, trained: bool = False, group: int = 0,
        in_host: bool = False, process: bool = False, together: bool = False,
    ) -> Workload:  # fmt: skip
        """The run with it. `path` is its checkpoint's and `key` what names it; None where the script names none."""
        shape = self.shape(path, key)
        held = replace(
            trainer, reference="none", copies=(), entropy=False, temperature=False,
            loss="value" if self.role in VALUED else trainer.loss,
        )  # fmt: skip
        if shape is not None and self.role in VALUED:
            shape = shape.valued()
        other = OtherModel(
            shape, held, layout, trained, group, in_host, process, together, "" if shape else f"{key} {path}"
        )
        return replace(self.made, **{FIELDS[self.role]: other})

    def shape(self, path: str | None, key: str) -> ModelShape | None:
        """The model's shape; None where a path is given that tells no sizes."""
        actor, note = self.made.model, self.reading.notes.append
        if path is None:
            note(f"{self.role} = {actor.name} (assumed: {key} is not given; like the actor)")
            return actor
        if path in (SAME, self.reading.found.model) or path == self.reading.found.value("model_name"):
            return actor
        found = shape_named(path)
        if found is not None and by_checkpoint(Found("", model=path)) is None:
            note(f"{self.role} = {found.name} (assumed: by the name of {key}, {path})")
        return found


def unplanned(made: Workload, text: str) -> Workload:
    """The run with one more thing that is in no line."""
    return replace(made, unplanned=(*made.unplanned, text))


def _critic_loaded(reading: Reading, made: Workload) -> tuple[bool, Workload]:
    """Whether a critic is loaded; where that is not known, the run has something that is not planned."""
    why = reading.found.unknown.get("critic_loaded")
    if why is not None:
        return False, unplanned(made, f"critic: whether one is loaded is not known ({why})")
    return reading.found.value("critic_loaded") is True, made


# -- verl ---------------------------------------------------------------------------------------------------

CRITIC_FSDP = ("critic.model.fsdp_config", "critic.fsdp_config", "critic.fsdp")


def _verl(reading: Reading, made: Workload) -> Workload:
    critic, made = _critic_loaded(reading, made)
    if critic:
        trainer, layout = _verl_critic(reading, made)
        path = _path(reading, "critic.model.path")
        made = _Model(reading, made, "critic").put(path, "critic.model.path", trainer, layout, trained=True)
    made = _verl_reward(reading, made)
    made = _verl_reference(reading, made)
    if reading.flag("distillation.enabled", "distillation.enable"):
        made = unplanned(made, "teacher (distillation.enabled): an engine of its own serves it")
    return made


def _path(reading: Reading, *names: str) -> str | None:
    """A checkpoint's path; None where none is given."""
    given = next((name for name in names if name in reading.found.flags), None)
    if given is None:
        return None
    text = reading.text(given)
    return None if text in ("null", "None") else text or "that is not known"


def _micro(reading: Reading, prefix: str, made: Workload, layout: Layout, *, cap_key: str) -> tuple[int, int]:
    """(cap, rows) of a verl worker: its own keys, else the actor's; a total is divided over all devices."""
    dynamic = reading.flag(f"{prefix}.use_dynamic_bsz", "critic.use_dynamic_bsz", default=made.trainer.cap > 0)
    if dynamic:
        return reading.number(cap_key, "critic.ppo_max_token_len_per_gpu", default=32768) * layout.context, 0
    name = "ppo_micro_batch_size" if prefix == "critic" else "micro_batch_size"
    rows = reading.number(f"{prefix}.{name}_per_gpu")
    if not rows and (total := reading.number(f"{prefix}.{name}")):
        rows = max(1, total // layout.ranks)
    if not rows:
        rows = made.trainer.rows or 1
        reading.notes.append(f"{prefix}.{name}_per_gpu = {rows} (assumed: the script does not say; as the actor)")
    return 0, rows


def _verl_critic(reading: Reading, made: Workload) -> tuple[Trainer, Layout]:
    """How verl's critic is held: fp32 in FSDP as the actor, or by Megatron, with offload flags of its own."""
    strategy = reading.text("critic.strategy") or ""
    if made.trainer.system == "verl-megatron" and strategy in ("", "megatron"):
        layout = _verl_megatron_layout(reading, made, "critic.megatron")
        base = replace(made.trainer, offload=_offload(reading, "critic.megatron"), lora=None)
        granularity = reading.text("critic.megatron.override_transformer_config.recompute_granularity")
        recompute = made.trainer.recompute if granularity in ("full", "selective") else Recompute()
        base = replace(base, recompute=recompute, optimizer=replace(base.optimizer, offload=0.0))
    else:
        layout = _verl_layout(reading, made)
        dtype = HALF.get(_dtype(_first(reading, "model_dtype")), "fp32")
        policy = reading.flag(*(f"{each}.offload_policy" for each in CRITIC_FSDP))
        optimizer = Optimizer(
            step="foreach", master=False, state_dtype="fp32" if dtype == "fp32" else "bf16",
            offload=1.0 if policy else 0.0,
        )  # fmt: skip
        rank = reading.number("critic.model.lora_rank")
        lora = Lora(rank, "all-linear") if rank > 0 else None
        base = replace(
            made.trainer, system="verl-fsdp", param_dtype=dtype, compute_dtype="bf16", lora=lora,
            grad_dtype=dtype if lora is None else None,
            optimizer=optimizer, offload="none" if policy else _offload(reading, *CRITIC_FSDP),
            checkpointing=reading.flag("critic.model.enable_gradient_checkpointing", default=True),
        )  # fmt: skip
    cap, rows = _micro(reading, "critic", made, layout, cap_key="critic.ppo_max_token_len_per_gpu")
    packed = base.system == "verl-megatron" or reading.flag("critic.model.use_remove_padding")
    return critic_scoring(reading, replace(base, cap=cap, rows=rows, padding_free=packed), layout), layout


def _first(reading: Reading, key: str) -> str | None:
    return reading.text(*(f"{each}.{key}" for each in CRITIC_FSDP))


def _dtype(text: str | None) -> str:
    from headway.foreign.gather import DTYPES

    return DTYPES.get(str(text).lower().removeprefix("torch."), "")


def _offload(reading: Reading, *sections: str) -> Offload:
    """What of a worker goes to host memory between its turns."""
    parameters = reading.flag(*(f"{each}.param_offload" for each in sections))
    optimizer = reading.flag(*(f"{each}.optimizer_offload" for each in sections))
    if parameters:
        return "parameters+optimizer" if optimizer else "parameters"
    return "optimizer" if optimizer else "none"


def _verl_layout(reading: Reading, made: Workload) -> Layout:
    """All devices of the trainer, sharded by FSDP."""
    ranks = made.layout.ranks
    shards = reading.number(*(f"{each}.fsdp_size" for each in CRITIC_FSDP), default=-1)
    shards = ranks if shards < 1 or ranks % shards else shards
    context = max(1, reading.number("critic.ulysses_sequence_parallel_size", default=1))
    nodes, devices = made.layout.nodes, made.layout.devices
    return Layout(nodes=nodes, devices=devices, shards=shards, replicas=ranks // shards, context=context)


def _verl_megatron_layout(reading: Reading, made: Workload, section: str) -> Layout:
    """Megatron's groups of a worker: verl's default of each is 1."""
    tensor, pipeline, context, expert = (
        max(1, reading.number(f"{section}.{name}_parallel_size", default=1))
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    return Layout(
        nodes=made.layout.nodes, devices=made.layout.devices, tensor=tensor, pipeline=pipeline, context=context,
        replicas=max(1, made.layout.ranks // (tensor * pipeline * context)), expert_parallel=expert,
        sequence_parallel=reading.flag(f"{section}.sequence_parallel", default=True) and tensor > 1,
    )  # fmt: skip


def _verl_reward(reading: Reading, made: Workload) -> Workload:
    """A reward model: scored by a worker whose half-precision parameters FSDP keeps in the host, or by an engine."""
    enabled = "reward_model.enable", "reward.reward_model.enable"
    if any(reading.found.flags.get(name) == (None,) for name in enabled):
        return unplanned(made, "reward model: whether one is loaded is not known (reward_model.enable)")
    if not reading.flag(*enabled):
        return made
    served = reading.text("reward_model.rollout.name", "reward.reward_model.rollout.name")
    served = None if served == "???" else served
    pool = reading.flag("reward_model.enable_resource_pool", "reward.reward_model.enable_resource_pool")
    if served or reading.flag("reward.reward_model.enable"):
        where = "devices of its own" if pool else "the trainer's devices"
        return unplanned(made, f"reward model: {served or 'an engine'} serves it on {where}")
    layout = _verl_layout(reading, made)
    if pool:
        nodes, devices = (max(1, reading.number(f"reward_model.{name}", default=default)) for name, default in (
            ("nnodes", 1), ("n_gpus_per_node", 8)
        ))  # fmt: skip
        layout = Layout(nodes=nodes, devices=devices, shards=nodes * devices)
    trainer = made.trainer
    is_megatron = "megatron" in (reading.text("reward_model.strategy") or trainer.system)
    if is_megatron and trainer.system == "verl-megatron":
        layout = layout if pool else _verl_megatron_layout(reading, made, "reward_model.megatron")
        if pool:
            layout = replace(layout, shards=1, replicas=layout.ranks)
        in_host = reading.flag("reward_model.megatron.param_offload")
    else:
        trainer, in_host = replace(trainer, system="verl-fsdp", compute_dtype="bf16"), True
    cap, rows = _micro(reading, "reward_model", made, layout, cap_key="reward_model.forward_max_token_len_per_gpu")
    trainer = replace(
        trainer, param_dtype="bf16", grad_dtype=None, lora=None, cap=cap, rows=rows, score_cap=0, score_rows=0,
        padding_free=False, offload="none",
    )  # fmt: skip
    path = _path(reading, "reward_model.model.path")
    return _Model(reading, made, "reward").put(
        path, "reward_model.model.path", trainer, layout, group=1 if pool else 0, in_host=in_host
    )


def _verl_reference(reading: Reading, made: Workload) -> Workload:
    """A reference of other sizes than the actor, which distillation uses as a teacher."""
    path = _path(reading, f"{REF}.model.path")
    estimator = (reading.text("algorithm.adv_estimator") or "").lower()
    distils = any(word in estimator for word in ("opd", "distill"))
    role: Role = "teacher" if distils else "reference"
    is_loaded = distils or made.trainer.reference in ("copy", "host")
    if path is None or not is_loaded or path in (SAME, reading.found.model):
        return made
    if not distils and shape_named(path) == made.model:
        return made
    trainer = replace(
        made.trainer, param_dtype="bf16", compute_dtype="bf16", grad_dtype=None, lora=None, offload="none"
    )
    in_host = made.trainer.system == "verl-fsdp" or made.trainer.reference == "host"
    found = _Model(reading, made, role).put(path, f"{REF}.model.path", trainer, made.layout, in_host=in_host)
    return replace(found, trainer=replace(found.trainer, reference="none"))


# -- OpenRLHF -----------------------------------------------------------------------------------------------


def _openrlhf(reading: Reading, made: Workload) -> Workload:
    critic, made = _critic_loaded(reading, made)
    remote = _path(reading, "remote_rm_url", "reward.remote_url", "agent_func_path", "train.agent_func_path")
    rewards = _path(reading, "reward_pretrain", "reward.model_name_or_path")
    groups = _Groups(reading, made)
    if reading.flag("enable_ema", "train.enable_ema"):
        made = unplanned(made, "a running mean of the actor (--enable_ema)")
    if made.trainer.reference in ("copy", "host") and not (groups.all or groups.with_actor):
        made = _openrlhf_reference(reading, made, groups)
    if critic:
        path, key = _path(reading, "critic_pretrain", "critic.model_name_or_path"), "--critic_pretrain"
        if path is None and rewards and not remote:
            path, key = rewards.split(",")[0], "--reward_pretrain"
        group = groups.of("critic")
        made = _Model(reading, made, "critic").put(
            path or SAME, key, made.trainer, groups.layout("critic", group, trained=True), trained=True, group=group,
            process=groups.ray,
        )  # fmt: skip
    if rewards and not remote:
        first, *more = rewards.split(",")
        away = reading.flag("ref_reward_offload", "reward.offload")
        group = groups.of("critic" if groups.with_critic else "reward")
        made = _Model(reading, made, "reward").put(
            first, "--reward_pretrain", _scoring(made), groups.layout("reward", group), group=group,
            in_host=away, process=groups.ray,
        )  # fmt: skip
        if more:
            made = unplanned(made, f"{len(more)} more reward models of --reward_pretrain")
    return made


def _openrlhf_reference(reading: Reading, made: Workload, groups: "_Groups") -> Workload:
    """A reference on devices of its own."""
    path = _path(reading, "ref_pretrain", "ref.model_name_or_path") or SAME
    group = groups.of("ref")
    found = _Model(reading, made, "reference").put(
        path, "--ref_pretrain", _scoring(made), groups.layout("ref", group), group=group,
        in_host=made.trainer.reference == "host", process=True,
    )  # fmt: skip
    return replace(found, trainer=replace(found.trainer, reference="none"))


def _scoring(made: Workload) -> Trainer:
    """A model that only scores: DeepSpeed's inference of half-precision parameters, in batches of the rollout."""
    trainer = replace(made.trainer, grad_dtype=None, lora=None, offload="none")
    if trainer.score_cap or trainer.score_rows:
        trainer = replace(trainer, cap=trainer.score_cap, rows=trainer.score_rows)
    return replace(trainer, score_cap=0, score_rows=0)


class _Groups:
    """Where OpenRLHF puts its models: all on the actor's devices, or each role's ranks on as many of its own.

    `ray`: each role has processes of its own; without Ray (`train_ppo`) one process a device holds them all.
    """

    def __init__(self, reading: Reading, made: Workload) -> None:
        self.reading, self.made = reading, made
        self.ray = "ray" in reading.found.program
        self.all = reading.on("colocate") or not self.ray
        self.with_actor = reading.flag("colocate_actor_ref", "train.colocate_actor_ref")
        self.with_critic = reading.flag("colocate_critic_reward", "train.colocate_critic_reward")
        self.numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The number of the devices that a role of this name has, the actor's being 0."""
        return 0 if self.all else self.numbers.setdefault(name, len(self.numbers) + 1)

    def layout(self, role: str, group: int, *, trained: bool = False) -> Layout:
        """How the ranks divide it: as the actor's, but models that only score are whole on each unless ZeRO is 3."""
        actor = self.made.layout
        nodes, devices = actor.nodes, actor.devices
        if group:
            nodes = self._count(role, "num_nodes", 1)
            devices = self._count(role, "num_gpus_per_node", 8)
        ranks = max(1, nodes * devices // actor.tensor)
        shared = actor.shards > 1 or actor.zero == "none"
        zero: Literal["none", "optimizer", "gradients"] = actor.zero if trained else "none"
        return replace(
            actor, nodes=nodes, devices=devices, shards=ranks if shared else 1, replicas=1 if shared else ranks,
            zero=zero,
        )  # fmt: skip

    def _count(self, role: str, name: str, default: int) -> int:
        names = (f"{role}_{name}", f"{role}.{name}")
        if any(self.reading.found.flags.get(each) == (None,) for each in names):
            self.reading.notes.append(f"{names[0]} = {default} (assumed: the script does not say)")
        return max(1, self.reading.number(*names, default=default))


# -- TRL ----------------------------------------------------------------------------------------------------


def _trl(reading: Reading, made: Workload) -> Workload:
    """Models in the trainer's own processes, sharded with it where it shards parameters."""
    critic, made = _critic_loaded(reading, made)
    trainer = replace(made.trainer, lora=None, quant=None)
    names = ("reward_model_path", "reward_model_name_or_path", "reward_model")
    key = "--" + next((name for name in names if name in reading.found.flags), names[0])
    reward = _path(reading, *names)
    if critic:
        path = _path(reading, "value_model_path", "value_model_name_or_path", "value_model") or reward
        made = _Model(reading, made, "critic").put(path, key, trainer, made.layout, trained=True, together=True)
    whole = made.layout if made.layout.shards > 1 else replace(made.layout, zero="none")
    frozen = replace(trainer, grad_dtype=None, optimizer=replace(trainer.optimizer, offload=0.0))
    if critic or (reward is not None and made.trainer.scores):
        made = _Model(reading, made, "reward").put(reward, key, frozen, whole)
    teacher = _path(reading, "teacher_model_name_or_path", "teacher_model_path", "teacher_model")
    if reading.flag("use_teacher_server"):
        made = unplanned(made, "teacher: a server that this script does not describe (use_teacher_server)")
    elif teacher is not None:
        made = _Model(reading, made, "teacher").put(teacher, "--teacher_model_name_or_path", frozen, whole)
    path = _path(reading, "ref_model_name_or_path", "ref_model")
    # one that is given without a name is like the actor, as the trainer's own copy is
    if path not in (None, "given") and made.trainer.reference == "copy":
        made = _Model(reading, made, "reference").put(path, "--ref_model_name_or_path", frozen, whole)
        made = replace(made, trainer=replace(made.trainer, reference="none"))
    return made
