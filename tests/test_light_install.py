"""The light half installed alone: `pip install .` without extras gives the command and every light module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
from headway.facts import shapes
assert shapes.by_name("qwen3-0.6b").layers == 28
try:
    import torch
except ModuleNotFoundError:
    print("no torch:", len(sys.argv) - 1, "modules")
"""


def call(*command: str | Path, cwd: Path) -> str:
    """Standard output; a failure shows both streams. PYTHONPATH would make this checkout visible."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> Path:
    """A fresh environment with headway and its light dependencies alone (needs the package index)."""
    folder = tmp_path_factory.mktemp("light")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python")
    call(*pip, "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", ROOT, cwd=folder)
    return folder


def light_modules() -> list[str]:
    heavy = {"train", "rollout", "cluster"}
    paths = sorted((ROOT / "src").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in paths]
    return [
        name.removesuffix(".__init__") for name in names if name.split(".")[1] not in heavy and "__main__" not in name
    ]


def test_every_light_module_imports(light):
    modules = light_modules()
    assert "headway.config.load" in modules
    printed = call(light / "bin" / "python", "-c", CHECK, *modules, cwd=light)
    assert printed.strip() == f"no torch: {len(modules)} modules"


def test_the_command_starts(light):
    assert "train" in call(light / "bin" / "headway", "--help", cwd=light)
    assert call(light / "bin" / "headway", "--version", cwd=light).startswith("headway 0.")


def test_the_commands_that_plan_need_nothing_more(light):
    run = light / "run.toml"
    run.write_text('[model]\npath = "qwen3-0.6b"\ninit = "random"\n[data]\ntask = "gcd"\n')
    headway = light / "bin" / "headway"
    for what in ("qwen3-0.6b", str(run)):
        assert "Fits: " in call(headway, "plan", what, "--machine", "gb10", cwd=light)
    assert "qwen3-0.6B" in call(headway, "size", "--machine", "gb10", "--model", "qwen3-0.6b", cwd=light)
