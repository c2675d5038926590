"""What `headway plan RUN` names: a RunSpec, or a model under a trainer, on this machine or on a named one."""

import os
import re
from collections.abc import Sequence
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from headway.config.words import as_workload
from headway.errors import InputError
from headway.facts import machines, probe, shapes
from headway.facts.context import too_long
from headway.facts.machine import Limit, Machine
from headway.facts.names import like, misspelt
from headway.facts.shapes import ModelShape
from headway.facts.workload import ROLES, Layout, Workload
from headway.foreign import presets
from headway.units import parse_bytes

if TYPE_CHECKING:
    from headway.cli.launch import Launch
    from headway.config.sections import RunSpec
    from headway.config.source import ModelSource

HOST_KEYS = ("machine.host", "host.bytes")
"""The one key of `--set` that is the machine's, by both of its names: how much host memory a node has."""

OWN = "headway"
SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch")
LOGS = (".log", ".out", ".err", ".txt")
_SHEBANG = re.compile(rb"#!.*\b(ba|z|k|da)?sh\b")
"""How a file begins that a shell runs."""


class Case(Struct, frozen=True):
    """A run to plan and the machine that it is planned for. `trainer` is its system in words.

    `spec` is the RunSpec where the run is one, as `load` gave it, `launch` what was read of another system's launch:
    into those a remedy can be written.
    """

    workload: Workload
    machine: Machine
    trainer: str
    spec: "RunSpec | None" = None
    launch: "Launch | None" = None


def read_case(
    words: Sequence[str],
    trainer: str | None,
    machine: str | None,
    settings: Sequence[str],
    *,
    model: str | None = None,
    pod: Path | None = None,
    thorough: bool = False,
) -> Case:
    """The run that the words of a command line name, on the machine of that name or on this one.

    `settings` are `key=value`, of the RunSpec or of the Workload by what is planned, and `machine.host`. `model` is
    the model of a launch, `pod` a file with the limits of the pod that the run is in. `thorough`: problems are read
    that take seconds (rollout/lengths.py). InputError says what the words
    would have to be instead.
    """
    if not words or not words[0].strip():
        raise InputError(f"RUN: is {'empty' if words else 'missing'}; {_instead()}")
    read_as = _settings_file(words)
    if read_as or is_launch(words):
        from headway.cli.launch import launch_case, read_launch, read_settings
        from headway.foreign.readers import NoTrainerError

        if trainer is not None:
            raise InputError(
                f"--trainer {trainer}: {' '.join(words)[:80]} says itself who trains; leave --trainer out"
            )
        try:
            launch = read_settings(Path(words[0]).expanduser(), read_as) if read_as else read_launch(words)
        except NoTrainerError as error:
            refused = error.named(machine, model)
            if read_as:
                why = re.sub(r": line 1 starts ([\w-]+) \(.*?\)", r": has settings of \1", error.why, count=1)
                refused = NoTrainerError(why, error.instead, machine, model)
            raise refused from None
        case = launch_case(launch, model, machine, pod, as_workload(settings))
        if not read_as:
            return case
        note = f"{words[0]} is settings alone: read as {' '.join(read_as)} has them, on one device"
        return replace(case, workload=replace(case.workload, unknown=(*case.workload.unknown, note)))
    if model is not None:
        raise InputError(f"--model {model}: only a launch script or command has one; name the model as RUN")
    case = _case(words[0], trainer, machine, settings, thorough)
    if pod is None:
        return case
    from headway.cli.launch import in_pod

    there, notes = in_pod(case.machine, pod, case.workload)
    return replace(case, machine=there, workload=replace(case.workload, unknown=(*case.workload.unknown, *notes)))


def _settings_file(words: Sequence[str]) -> tuple[str, ...]:
    """The command that reads a YAML file of settings which is named alone; none for anything else."""
    path = Path(words[0]).expanduser()
    if len(words) > 1 or path.suffix.lower() not in (".yaml", ".yml") or is_launch(words):
        return ()
    from headway.foreign.yaml_settings import command_of

    return command_of(path)


def _case(run: str, trainer: str | None, machine: str | None, settings: Sequence[str], thorough: bool) -> Case:
    """A RunSpec, or a model under a trainer."""
    host, keys = host_memory(settings)
    path = Path(run).expanduser()
    if path.suffix.lower() in (".yaml", ".yml"):
        raise InputError(
            f"{run}: describes no job (no entrypoint, no container), and a YAML file of settings does not say which "
            "program reads it; pass the command that uses it, such as: "
            f"headway plan -- trl grpo --config {run}"
        )
    if _is_runspec(path):
        if trainer is not None:
            raise InputError(
                f"--trainer {trainer}: {run} is a RunSpec, which headway's own trainer runs; leave --trainer out, "
                f"or name a model: headway plan qwen3-4B --trainer {trainer}"
            )
        return _of_spec(path, machine, host, keys, thorough)
    shape = model_shape(run)
    if trainer is None and shape.family not in shapes.TRAINED:
        own = f"headway trains {', '.join(shapes.TRAINED)}"
        raise InputError(f"{run}: {own}, and this is {shape.family}; name who trains it, such as --trainer fsdp2")
    return _of_model(shape, trainer or OWN, machine, host, as_workload(keys))


def is_launch(words: Sequence[str]) -> bool:
    """Whether the words of a command line are a launch: a command, a script or a log by its ending, or by how it
    begins.

    >>> is_launch(["run.sh"]), is_launch(["python3", "train.py"]), is_launch(["qwen3-4B"]), is_launch(["run.toml"])
    (True, True, False, False)
    """
    if len(words) != 1:
        return len(words) > 1
    path = Path(words[0]).expanduser()
    suffix = path.suffix.lower()
    if suffix in (*SCRIPTS, *LOGS, ".py", ".ipynb"):
        return True
    if suffix in (".yaml", ".yml", ".json"):
        from headway.foreign.manifests import is_manifest

        return is_manifest(path)
    return suffix not in (".toml", ".json") and path.is_file() and is_shell_script(path)


def is_shell_script(path: Path) -> bool:
    """Whether a file begins as a shell script does, or is called one. A file that cannot be read is none."""
    if path.suffix.lower() in SCRIPTS and path.is_file():
        return True
    try:
        with path.open("rb") as file:
            return _SHEBANG.match(file.read(200)) is not None
    except OSError:
        return False


def _instead() -> str:
    return (
        "name the model and its trainer, such as: headway plan qwen3-4B --trainer miles-fsdp --machine gb10 "
        "--set rollout.max_answer=1024"
    )


def _is_runspec(path: Path) -> bool:
    """A file that is no config.json, whether it is there or only called a TOML file."""
    suffix = path.suffix.lower()
    return suffix == ".toml" or (suffix != ".json" and path.is_file())


def model_shape(run: str) -> ModelShape:
    """A model by its folder, its config.json, or its name in the built-in table."""
    path = Path(run).expanduser()
    if (path / "config.json").is_file() or path.suffix.lower() == ".json":
        from headway.facts.configs import from_folder

        folder = path if path.is_dir() else path.parent
        if not path.is_dir() and path.name != "config.json":
            raise InputError(f"{run}: is no config.json; name the model's folder or the config.json in it")
        if not path.exists():
            raise InputError(f"{run}: no such file")
        return replace(from_folder(folder), name=folder.resolve().name)
    found = shapes.by_name(run)
    if found is None and not path.is_dir():
        from headway.foreign.shape_flags import by_variant

        found = by_variant(run)
    if found is not None:
        return found
    if path.is_dir():
        raise InputError(f"{run}: the folder has no config.json")
    if (made_of := like(run) or misspelt(run)) is not None:
        return made_of
    near = shapes.nearest(run)
    names = f"; nearest are {', '.join(near)}" if near else ""
    raise InputError(
        f"{run}: no RunSpec (a TOML file), no folder with a config.json, and no model of the built-in table{names}"
    )


# -- machine ---------------------------------------------------------------------------------------------


def host_memory(settings: Sequence[str]) -> tuple[int | None, tuple[str, ...]]:
    """The host memory that `machine.host` sets in bytes, and the other settings."""
    host, rest = None, []
    for setting in settings:
        key, _, text = setting.partition("=")
        if key.strip() not in HOST_KEYS:
            rest.append(setting)
            continue
        try:
            host = parse_bytes(_plain_number(text))
        except ValueError as error:
            raise InputError(f"--set {setting}: {error}") from None
        if not host:
            raise InputError(f"--set {setting}: must be above 0")
    return host, tuple(rest)


def _plain_number(text: str) -> str:
    """A number of bytes in scientific notation written out: 1600e9 is 1600000000000.

    >>> _plain_number("1600e9"), _plain_number("512GiB")
    ('1600000000000', '512GiB')
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)[eE]\+?(\d{1,2})\s*", text)
    return str(int(Decimal(match[1]).scaleb(int(match[2])))) if match else text


def find_machine(
    name: str | None, host: int | None = None, *, limit: int | None = None, ray: bool = False
) -> Machine:
    """The machine of that name, or this one as it is now; only a run under Ray has Ray's limits.

    `host` bytes are each node's host memory; `limit` is a RunSpec's `memory.limit`, for every pool.
    """
    machine = probe.detect(limit, ray=ray) if name is None else machines.by_name(name)
    if host is not None:
        machine = machines.with_host(machine, host)
    if name is not None and limit is not None:
        machine = _limited(machine, limit)
    return machine if ray else machine.without_ray()


def _limited(machine: Machine, limit: int) -> Machine:
    """The machine with a limit of the run's own on every pool. A pool's floor is no part of the run."""
    pools = (
        replace(
            pool,
            limits=(
                *pool.limits,
                Limit("memory.limit", limit + pool.floor_bytes, "headway does not start the run", "RunSpec"),
            ),
        )
        for pool in machine.pools
    )
    return replace(machine, pools=tuple(pools))


# -- RunSpec ---------------------------------------------------------------------------------------------


def _of_spec(path: Path, name: str | None, host: int | None, settings: Sequence[str], thorough: bool) -> Case:
    # pydantic's sections take longer to build than all of a plan, so only a RunSpec loads them; and pydantic would
    # look for plugins in every package that is installed
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from headway.config.fits import missing_packages
    from headway.config.load import load
    from headway.config.source import resolve
    from headway.config.workload import to_workload
    from headway.rollout.lengths import data_facts

    spec = load(path, settings)
    source, unknown = _sized(resolve(spec.model))
    machine = find_machine(name, host, limit=spec.memory.limit)
    here = name is None and find_spec("torch") is not None  # a light installation plans for runs elsewhere
    if here and (missing := tuple(missing_packages(spec, source))):
        raise InputError(*missing)
    data = data_facts(spec, source, thorough=thorough)
    workload = to_workload(spec, source, None if name is None else machine, data)
    told = (*unknown, *workload.model.assumed, *machines.said(name or ""))
    workload = replace(workload, unknown=(*workload.unknown, *told))
    return Case(workload, machine, "headway", spec)


def _sized(source: "ModelSource") -> tuple["ModelSource", tuple[str, ...]]:
    """The source with a shape: that of the built-in table for a hub id whose files were not fetched."""
    shape = None if source.shape is not None else shapes.by_name(source.path) or like(source.path)
    if shape is None:
        return source, ()
    named = replace(shape, name=source.path)
    files = 2 * shape.parameters()
    about = "model.path: its files were not read; shape from the built-in table, 2 bytes a parameter on disk"
    return replace(source, shape=named, files_bytes=files), (about,)


# -- model under a trainer -------------------------------------------------------------------------------


def _of_model(shape: ModelShape, trainer: str, name: str | None, host: int | None, settings: Sequence[str]) -> Case:
    workload = presets.workload(shape, trainer, settings)
    machine = find_machine(name, host, ray=workload.ray)
    given = {setting.partition("=")[0].strip() for setting in settings}
    filled = _from_machine(workload, machine, given)
    if filled:
        workload = presets.workload(shape, trainer, (*settings, *filled))
    taken = {setting.partition("=")[0] for setting in filled}
    large = presets.large(workload, given | taken)
    if large:
        workload = presets.workload(shape, trainer, (*settings, *filled, *large))
    said = [f"{setting.replace('=', ' = ')} (nobody said; as {machine.name} is)" for setting in filled]
    source = presets.SOURCES.get(workload.trainer.system, "")
    said += [f"{setting.replace('=', ' = ')} (nobody said; as {source})" for setting in large]
    workload = replace(workload, unknown=(*workload.unknown, *said))
    if (beyond := beyond_context(workload)) is not None:
        if given & {"rollout.max_prompt", "rollout.max_answer"}:
            raise InputError(beyond)
        workload = replace(workload, unknown=(*workload.unknown, beyond))
    check_device(workload, machine, f"--trainer {trainer}")
    check_layout(workload, machine)
    workload = replace(workload, unknown=(*workload.unknown, *machines.said(name or "")))
    return Case(workload, machine, presets.by_name(trainer).title)


def _from_machine(workload: Workload, machine: Machine, given: set[str]) -> tuple[str, ...]:
    """Settings that nobody gave and that follow from the machine: a trainer that divides its state takes all devices
    that there are, and headway's own trains on the CPU where there is none."""
    system = workload.trainer.system
    if not machine.device_count:
        return ("device=cpu",) if system == OWN and "device" not in given else ()
    sharded = system in presets.SHARDED or system in presets.NODES
    if not sharded or any(key.startswith("layout.") for key in given):
        return ()
    devices, layout = machine.device_count // machine.nodes, workload.layout
    found = (("layout.nodes", machine.nodes, layout.nodes), ("layout.devices", devices, layout.devices))
    return tuple(f"{key}={count}" for key, count, own in found if count > 1 or count != own)


def beyond_context(workload: Workload) -> str | None:
    """What is wrong with samples that are longer than the model's context; None where they are not, or where the
    context is not known."""
    shape, rollout = workload.model, workload.rollout
    return too_long(shape.name, shape.context, rollout.max_prompt, rollout.max_answer)


def check_device(workload: Workload, machine: Machine, run: str) -> None:
    """InputError for a run on devices where the machine has none. `run` is what the user named."""
    if workload.device == "cpu" or machine.device_count:
        return
    cpu = "" if workload.engine is not None else ", or set device=cpu"
    raise InputError(
        f"{run}: runs on a device, and {machine.name} has none; name a machine with devices, such as "
        f"--machine h100-80{cpu}"
    )


def check_layout(workload: Workload, machine: Machine) -> None:
    """InputError for a run of more devices than the machine has."""
    layout, there, engine = workload.layout, machine.device_count, workload.engine
    apart = 0 if engine is None or engine.colocated else engine.devices
    others = f", engine.devices = {apart}" if apart else ""
    for name, each in workload.by_field.items():
        if each.group:
            others += f", {ROLES[name]} {each.layout.nodes} x {each.layout.devices}"
    apart += sum(workload.groups)
    if there and layout.ranks + apart > there:
        raise InputError(
            f"layout.nodes = {layout.nodes}, layout.devices = {layout.devices}{others}: {machine.name} has {there} "
            f"device{'s' if there > 1 else ''}; set fewer, or name a machine with more, such as "
            f"--machine {_enough(machine, layout, layout.ranks + apart)}"
        )


def _enough(machine: Machine, layout: Layout, devices: int) -> str:
    """A machine of the same kind with so many devices: on as many nodes as the run asks for, where it asks for
    several, else on one of up to 8."""
    kind = machine.name.rpartition("x")[2] if re.match(r"\d+x", machine.name) else machine.name
    kind = next((name for name in (machine.name, kind) if name in machines.table()), "h100-80")
    if machines.table()[kind].unified:
        return f"{devices}x{kind}"
    each = layout.devices if layout.nodes > 1 else max(layout.devices, min(devices, 8))
    nodes = -(-devices // each)
    return f"{nodes}x{each}x{kind}" if nodes > 1 else f"{each}x{kind}"
