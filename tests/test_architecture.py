"""The walls and limits of the design: who may import whom, what the light half may load, how long things may be."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headway"

# Each part may import itself and what stands to its right.
LIGHT_ORDER = ("cli", "reports", "diagnose", "guard", "plan", "foreign", "config", "facts", "base")
HEAVY_ORDER = ("cluster", "train", "rollout")
BELOW_HEAVY = {"guard", "plan", "config", "facts", "base"}
BASE = {"headway", "headway.units", "headway.errors"}

HEAVY_LIBRARIES = {
    *("torch", "transformers", "peft", "accelerate", "safetensors", "gguf", "datasets", "numpy", "pandas", "pyarrow"),
    *("reasoning_gym", "math_verify", "sympy", "tensorboard", "wandb", "ray", "vllm", "sglang"),
}
MEASURING = {
    *("headway.facts.probe", "headway.guard.read", "headway.guard.gauges", "headway.guard.senders"),
    *("headway.diagnose.live", "headway.facts.filesystem"),
}
"""The only modules that ask this machine."""
ONLY_IN = {"psutil": MEASURING, "pynvml": MEASURING, "ray": {"headway.cluster.ray"}}

FILE_LINES, FUNCTION_LINES, LOOP_LINES, OPTIONS = 600, 80, 150, 10
TOO_LONG: dict[str, str] = {}
"""`path` or `path:function` -> why it may be longer than the limit."""


@dataclass(frozen=True)
class Import:
    """One imported module. `deferred`: inside a function, or for type checkers alone."""

    module: str
    target: str
    line: int
    deferred: bool

    def __str__(self) -> str:
        return f"{self.module} line {self.line} imports {self.target}"


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def part_of(module: str) -> str:
    """The part of the design that a module of headway belongs to."""
    if module in BASE:
        return "base"
    return "cli" if module == "headway.__main__" else module.split(".")[1]


def is_light(module: str) -> bool:
    return part_of(module) in LIGHT_ORDER


LIGHT_MODULES = [name for name in MODULES if is_light(name) and name != "headway.__main__"]


def imports_of(module: str) -> Iterator[Import]:
    yield from _imports(module, TREES[module], deferred=False)


def _imports(module: str, node: ast.AST, *, deferred: bool) -> Iterator[Import]:
    for target in _targets(module, node):
        yield Import(module, target, node.lineno, deferred)  # type: ignore[attr-defined]
    deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _typing_only(node)
    for child in ast.iter_child_nodes(node):
        yield from _imports(module, child, deferred=deferred)


def _targets(module: str, node: ast.AST) -> list[str]:
    """What one node imports; a name that is a module of headway is that module, not only its package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
        origin = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
        inner = {f"{origin}.{alias.name}" for alias in node.names} & MODULES.keys()
        return sorted(inner) or [origin]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "importlib.import_module",
        "import_module",
        "__import__",
    ):
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return []


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def may_import(part: str, target: str, *, deferred: bool) -> bool:
    """Whether one part of headway may import another."""
    if part in HEAVY_ORDER:
        return target in BELOW_HEAVY or target in HEAVY_ORDER[HEAVY_ORDER.index(part) :]
    if target in HEAVY_ORDER:
        return part == "cli" and deferred
    return target in LIGHT_ORDER[LIGHT_ORDER.index(part) :]


IMPORTED_AS = {"google-re2": "re2", "pyyaml": "yaml"}
"""Distributions that are imported by another name."""


def light_libraries() -> set[str]:
    """Import names of the dependencies of a light install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {dependency.split(">=")[0] for dependency in project["dependencies"]}
    # annotated-types and pydantic-core are pydantic's own, pinned by it; pynvml reads NVIDIA devices where installed.
    imported = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    return imported | {"annotated_types", "pydantic_core", "pynvml"}


def test_a_part_imports_only_what_stands_to_its_right():
    wrong = [
        str(found)
        for module in MODULES
        for found in imports_of(module)
        if found.target.split(".")[0] == "headway"
        and not may_import(part_of(module), part_of(found.target), deferred=found.deferred)
    ]
    assert not wrong


def test_the_light_half_names_only_light_libraries():
    allowed = light_libraries() | sys.stdlib_module_names | {"headway"}
    wrong = [
        str(found)
        for module in filter(is_light, MODULES)
        for found in imports_of(module)
        if found.target.split(".")[0] not in allowed and not (part_of(module) == "cli" and found.deferred)
    ]
    assert not wrong


def test_some_libraries_have_one_door():
    wrong = [
        str(found)
        for module in MODULES
        for found in imports_of(module)
        if module not in ONLY_IN.get(found.target.split(".")[0], {module})
    ]
    assert not wrong


def test_only_the_measuring_modules_read_the_kernel_s_files():
    wrong = [
        f"{module} line {node.lineno}: {node.value!r}"
        for module in MODULES.keys() - MEASURING
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("/proc", "/sys", "proc/", "sys/"))
    ]
    assert not wrong


def test_importing_the_light_half_loads_no_heavy_library():
    code = f"import sys, {', '.join(LIGHT_MODULES)}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(LIGHT_MODULES) <= set(loaded)
    assert not HEAVY_LIBRARIES & set(loaded)
    assert not [name for name in loaded if name.startswith("headway.") and not is_light(name)]


def lines_of(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "configs"])
def test_files_and_functions_stay_readable(folder):
    sizes = {}
    for path in (ROOT / folder).rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        sizes[name] = (len(text.splitlines()), FILE_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                sizes[f"{name}:{node.name}"] = (lines_of(node), FUNCTION_LINES)
    over = {key: size for key, (size, limit) in sizes.items() if size > limit and key not in TOO_LONG}
    assert not over


def test_the_loop_fits_on_a_screen():
    assert len((SOURCE / "train" / "loop.py").read_text().splitlines()) <= LOOP_LINES


def test_exceptions_to_the_limits_are_still_needed():
    assert not [key for key in TOO_LONG if not (ROOT / key.split(":")[0]).exists()]


def test_commands_have_few_options():
    from headway.cli.app import app

    commands = typer.main.get_command(app).commands
    assert {"train", "plan", "size", "doctor"} <= set(commands)
    options = {
        name: [param.name for param in command.params if param.param_type_name == "option"]
        for name, command in commands.items()
    }
    assert not {name: found for name, found in options.items() if len(found) > OPTIONS}


class TestTheWallsThemselves:
    """The rules above find what they are for."""

    @pytest.mark.parametrize(
        ("part", "target", "deferred", "allowed"),
        [
            ("cli", "reports", False, True),
            ("reports", "cli", True, False),
            ("plan", "guard", False, False),
            ("guard", "plan", False, True),
            ("facts", "config", True, False),
            ("cli", "train", False, False),
            ("cli", "train", True, True),
            ("reports", "train", True, False),
            ("train", "rollout", False, True),
            ("rollout", "train", True, False),
            ("train", "reports", False, False),
            ("rollout", "guard", False, True),
        ],
    )
    def test_order(self, part, target, deferred, allowed):
        assert may_import(part, target, deferred=deferred) is allowed

    def test_every_way_to_import_is_seen(self):
        code = (
            "import torch.nn\nfrom ..plan import ledger\nfrom headway.facts.shapes import by_name\n"
            "if TYPE_CHECKING:\n    import numpy\n"
            "def f():\n    from headway import units\n    importlib.import_module('ray')\n"
        )
        found = [(i.target, i.deferred) for i in _imports("headway.config.load", ast.parse(code), deferred=False)]
        assert found == [
            ("torch.nn", False),
            ("headway.plan.ledger", False),
            ("headway.facts.shapes", False),
            ("numpy", True),
            ("headway.units", True),
            ("ray", True),
        ]
