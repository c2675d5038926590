"""`headway watch`: options, what is shown and served, restarts and why there is none."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer
import yaml
from msgspec.structs import replace
from typer.testing import CliRunner

from headway.cli import metrics, watching
from headway.cli.app import app
from headway.cli.resuming import Resumer
from headway.diagnose.finding import Finding
from headway.errors import HeadwayError, InputError
from headway.foreign.pod import read_pods
from headway.foreign.readers import read_command, read_run
from headway.foreign.resume import edits_of_resume, last_checkpoint, resumed_command, resumed_script
from headway.guard.boxplan import PlannedPool, Worst
from headway.guard.forecast import Forecast, Reach
from headway.guard.frame import NO_HANDLE, Action, Frame, Gauge, ProcessUse
from headway.guard.watch import View
from headway.reports.watch import ROWS, StatusArea, action_line, status_line

GIB = 1 << 30
SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"


SAVES = "python3 train.py --rollout-batch-size 8 --save $CKPT/a"


def invoke(*words: str) -> Exception | None:
    return CliRunner().invoke(app, ["watch", *words]).exception


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a command after --"),
        (("--pid", "1", "--", "true"), "not both"),
        (("--pid", "1", "--restart", "1"), "cannot be started again"),
        (("--policy", "brave", "--", "true"), "guard policy 'brave': must be one of observe, protect, strict"),
        (("--restart", "1", "--", "python3", "mine.py"), "it starts mine.py); it knows those of slime, Miles,"),
        (("--restart", "1", "--", "true"), "--restart: true: it is no launch that headway can tell to resume; it"),
        (("--restart", "1", "--", "bash", "no.sh"), "can tell to resume (no.sh: no such file); it knows those of"),
        (("--restart", "1", "--", "headway", "train", "a.toml", "--force"), "headway train a.toml --on-limit resume"),
        (("--restart", "1", "--", "python3", "train.py", "--rollout-batch-size", "8"), "has no --save"),
        (("--restart", "1", "--", "bash", "-c", SAVES), "--save ${CKPT}/a: variable CKPT is not set"),
        (("--pid", "1", "--machine", "gb10"), "--machine, --model, --set: plan a command"),
        (("--out", "/dev/null", "--", "true"), "no recording can be written there"),
        (("--pid", "999999999",), "there is no such process"),
    ],
)  # fmt: skip
def test_bad_input_is_told_before_anything_runs(words, told, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    error = invoke(*words)
    assert isinstance(error, InputError), error
    assert told in str(error)


FRAME = Frame(
    1000.0,
    (
        Gauge("node[0].host", "cgroup", 3 * GIB, 4 * GIB),
        Gauge("node[0].host", "node", 5 * GIB, 20 * GIB),
        Gauge("disk:/", "disk", 99 * GIB, 100 * GIB),
    ),
    (ProcessUse(7, 1, "ray::Trainer.train", 2 * GIB),),
    "train",
    12,
)
FORECAST = Forecast(
    pool="node[0].host", gauge="cgroup", per_step=GIB // 8, per_minute=GIB // 4, level=3 * GIB, limit=4 * GIB,
    low=Reach(1100.0, 19), expected=Reach(1200.0, 20), high=Reach(1300.0, 22), cautious=None, at=1000.0, at_step=12,
    phase=None, observed_s=300.0, by_step=True, from_start=False, from_nothing=False,
    confident=True,
)  # fmt: skip
ACTION = Action(1000.0, "stop", "forecast", "node[0].host", "cgroup", 3, 4, 5.0, "it reaches the limit", dry=True)


def test_the_status_line_has_the_nearest_limits_first_and_the_forecast():
    line = status_line(View(FRAME, (FORECAST,)), 0.0)
    assert "train of step 12; node[0].host cgroup 3.00 GiB of 4.00 GiB (75%)" in line
    assert "1 process, largest ray::Trainer.train 2.00 GiB" in line
    assert "grows 128.0 MiB a step, reaches 4.00 GiB at step 19-22" in line
    assert action_line(ACTION) == "headway stop (not done: dry run): it reaches the limit"
    foreign = replace(ACTION, name="free", reason="it grows" + NO_HANDLE)
    assert action_line(foreign) == "headway free: it grows (not done: the command has no handle for it)"


class Screen:
    """A terminal that knows where the cursor is, as far as the view needs it."""

    def __init__(self, rows: int, columns: int) -> None:
        self.size, self.text = (rows, columns), ""

    def write(self, text: str) -> None:
        self.text += text


def test_the_planned_peak_stands_beside_its_pool():
    limits = (Gauge("node[0].device[0]", "device", 163 * GIB, 179 * GIB), *FRAME.gauges)
    host = PlannedPool("node[0].host", "tight", 7 * GIB // 2, 18 * GIB // 5, Worst("train", 2))
    device = PlannedPool("node[0].device[0]", "fits", 153 * GIB, 165 * GIB, Worst("train", 2))
    view = View(Frame(1000.0, limits), planned={each.pool: each for each in (host, device)})
    assert "cgroup 3.00 GiB of 4.00 GiB (75%), plan 3.5-3.6 GiB" in status_line(view, 0.0)
    for width in (80, 120):
        screen = Screen(30, width)
        StatusArea(screen.write, lambda screen=screen: screen.size).draw(view)
        assert "163.00 GiB of 179.00 GiB (91%), plan 153-165 GiB" in screen.text
        assert "3.00 GiB of 4.00 GiB (75%), plan 3.5-3.6 GiB" in screen.text
    assert "│" in screen.text  # the most that is planned


def test_the_view_stays_in_its_rows_and_gives_them_back():
    screen = Screen(30, 80)
    area = StatusArea(screen.write, lambda: screen.size)
    assert area.inner_size() == (30 - ROWS, 80)
    area.draw(View(FRAME, (FORECAST,)))
    assert f"\x1b[1;{30 - ROWS}r" in screen.text
    rows = [int(part.partition(";")[0]) for part in screen.text.split("\x1b[") if part.partition(";")[2][:2] == "1H"]
    assert rows == list(range(30 - ROWS + 1, 31))
    assert "ray::Trainer.train" in screen.text
    assert screen.text.count("\x1b7") == screen.text.count("\x1b8")
    before = len(screen.text)
    area.draw(View(FRAME))
    assert f"\x1b[1;{30 - ROWS}r" not in screen.text[before:]
    screen.size = (40, 90)
    area.draw(View(FRAME))
    assert f"\x1b[1;{40 - ROWS}r" in screen.text[before:]
    area.close()
    assert "\x1b[r" in screen.text[-300:]


def test_a_low_terminal_is_left_to_the_command():
    screen = Screen(10, 80)
    area = StatusArea(screen.write, lambda: screen.size)
    area.draw(View(FRAME))
    area.close()
    assert (area.inner_size(), screen.text) == ((10, 80), "")


def test_metrics_are_served_until_the_end():
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    view = View(FRAME, (FORECAST,), counts={"warn": 2})
    stop = metrics.serve(port, lambda: view)
    try:
        with pytest.raises(InputError, match="cannot listen"):
            metrics.serve(port, lambda: view)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        stop()
    assert 'headway_used_bytes{gauge="cgroup",pool="node[0].host"} 3.221225472e+09' in lines
    assert 'headway_process_rss_bytes{name="ray::Trainer.train",pid="7"} 2.147483648e+09' in lines
    assert 'headway_guard_actions_total{action="warn"} 2.0' in lines
    assert "headway_step 12.0" in lines
    assert 'headway_forecast_seconds{gauge="cgroup",pool="node[0].host"} 200.0' in lines


def test_metrics_without_the_library_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(HeadwayError, match="pip install prometheus-client"):
        metrics.serve(0, View)


def finding(mechanism: str, cause: str = "not-established", grade: str = "open") -> Finding:
    return Finding(
        mechanism,
        "proven",
        cause,
        grade,
        "open",
        "",
        None,
        "",
        "",
        "",
        (),
        (),
        (),
        (),
        (),  # type: ignore[arg-type]
    )


def save(folder: Path, step: int, *, tracked: bool = True, name: str = "iter_{:07d}") -> None:
    place = folder / name.format(step)
    place.mkdir(parents=True)
    (place / "common.pt").write_text("weights")
    if tracked:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


class TestRestart:
    """A foreign run goes on from its last complete checkpoint, or is not started again and it is said why."""

    def command(self, tmp_path: Path) -> tuple[str, ...]:
        return ("python3", "train.py", "--rollout-batch-size", "8", "--save", str(tmp_path / "ckpt"))

    def test_the_flags_of_its_system_are_added(self, tmp_path):
        resumer = Resumer(self.command(tmp_path), tmp_path)
        save(tmp_path / "ckpt", 20)
        words, told = resumer.again(finding("sigkill-class"), tmp_path, 1)
        assert words == [*self.command(tmp_path), "--load", str(tmp_path / "ckpt")]
        assert "goes on from checkpoint 20" in told

    def test_each_restart_must_have_made_progress(self, tmp_path):
        save(tmp_path / "ckpt", 20)
        resumer = Resumer(self.command(tmp_path), tmp_path)
        with pytest.raises(InputError, match="no checkpoint was written since the last start"):
            resumer.again(finding("sigterm"), tmp_path, 1)
        save(tmp_path / "ckpt", 40)
        resumer.again(finding("sigterm"), tmp_path, 1)
        with pytest.raises(InputError, match="still 40"):
            resumer.again(finding("sigterm"), tmp_path, 2)

    @pytest.mark.parametrize(
        ("found", "reason"),
        [
            (finding("unknown"), "nothing shows how it ended"),
            (finding("python-exception", "user-code-error", "proven"), "same data again"),
            (finding("device-allocation-failure", "device-logits", "proven"), "same memory again"),
            (finding("scheduler-cancel"), "the scheduler ended"),
            (finding("sigkill-class", "disk-full", "supported"), "disk is still full"),
        ],
    )
    def test_what_would_come_again_is_not_restarted(self, tmp_path, found, reason):
        resumer = Resumer(self.command(tmp_path), tmp_path)
        save(tmp_path / "ckpt", 20)
        with pytest.raises(InputError, match=reason):
            resumer.again(found, tmp_path, 1)

    def test_without_a_complete_checkpoint_there_is_nothing_to_resume(self, tmp_path):
        resumer = Resumer(self.command(tmp_path), tmp_path)
        with pytest.raises(InputError, match="no such folder"):
            resumer.again(finding("sigkill-class"), tmp_path, 1)
        (tmp_path / "ckpt").mkdir()
        with pytest.raises(InputError, match="no checkpoint in it is complete"):
            resumer.again(finding("sigkill-class"), tmp_path, 1)

    def test_a_torn_checkpoint_is_passed_over(self, tmp_path):
        ckpt = tmp_path / "ckpt"
        save(ckpt, 20)
        save(ckpt, 40)
        (ckpt / "iter_0000040" / "__0_0.distcp").write_text("a shard without .metadata")
        found = read_command(self.command(tmp_path))
        checkpoint = last_checkpoint(found, tmp_path)
        assert (checkpoint.step, checkpoint.latest) == (20, False)
        words = resumed_command(self.command(tmp_path), edits_of_resume(found, checkpoint))
        assert words[-4:] == ["--load", str(ckpt), "--ckpt-step", "20"]

    def test_what_is_newer_than_the_tracker_was_never_finished(self, tmp_path):
        save(tmp_path / "ckpt", 20)
        save(tmp_path / "ckpt", 40, tracked=False)
        assert last_checkpoint(read_command(self.command(tmp_path)), tmp_path).step == 20

    def test_verl_resumes_by_itself(self, tmp_path):
        words = (
            f"python3 -m verl.trainer.main_ppo trainer.default_local_dir={tmp_path}/ckpt trainer.n_gpus_per_node=8"
        )
        save(tmp_path / "ckpt", 20, name="global_step_{}")
        found = read_command(words.split())
        assert (last_checkpoint(found, tmp_path).step, edits_of_resume(found, last_checkpoint(found, tmp_path))) == (
            20,
            (),
        )

    def test_a_system_that_is_not_known_to_resume_is_refused(self, tmp_path):
        words = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "x", "--ckpt_path", "/ckpt"]
        with pytest.raises(InputError, match="does not know how a run of openrlhf"):
            Resumer(tuple(words), tmp_path)

    def test_a_script_is_copied_and_finds_what_lies_beside_the_original(self, tmp_path):
        home = tmp_path / "my-scripts"
        home.mkdir()
        (home / "args.sh").write_text('MODEL_ARGS=(--num-layers 28)\necho "sourced"\n')
        script = home / "run.sh"
        script.write_text(
            "#!/bin/bash\n"
            'DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
            'source "${0%/*}/args.sh"\n'
            "awk '{print $0}' <<< 'awk keeps its own'\n"
            f'python3 "$DIR/train.py" --rollout-batch-size 8 ${{MODEL_ARGS[@]}} --save {tmp_path}/ckpt \\\n  --lr 1\n'
        )
        script.chmod(0o750)
        before = script.read_bytes()
        save(tmp_path / "ckpt", 20)
        resumer = Resumer(("bash", str(script)), tmp_path)
        resumer._before = None
        box = tmp_path / "box"
        box.mkdir()
        words, _ = resumer.again(finding("sigkill-class"), box, 1)
        assert words[0] == "bash"
        assert Path(words[1]).parent == box
        assert Path(words[1]).stat().st_mode & 0o777 == 0o750
        assert script.read_bytes() == before
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python3").write_text('#!/bin/sh\necho "$@"\n')
        (tmp_path / "bin" / "python3").chmod(0o755)
        path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        plain, changed = (
            subprocess.run(each, capture_output=True, text=True, check=True, cwd=tmp_path, env=path).stdout
            for each in (["bash", str(script)], words)
        )
        assert plain.replace(f"--save {tmp_path}/ckpt", f"--save {tmp_path}/ckpt --load {tmp_path}/ckpt") == changed
        assert "awk keeps its own" in changed

    @pytest.mark.parametrize("name", ["slime-arrays.sh", "slime-defaults.sh", "miles-lora.sh", "slime-loops.sh"])
    def test_launch_scripts_can_be_copied(self, name, tmp_path):
        script = SCRIPTS / name
        found = read_run(script)
        assert found.system in ("slime", "miles")
        from headway.foreign.patch import Edit

        copy = tmp_path / name
        copy.write_text(resumed_script(script, [Edit("load", "/ckpt/x")]))
        assert subprocess.run(["bash", "-n", copy], check=False).returncode == 0
        assert str(script.resolve()) in copy.read_text()


def test_a_restart_for_real(tmp_path):
    """A trainer that is killed in its first attempt is started again from its checkpoint, and finishes."""
    trainer = tmp_path / "train.py"
    trainer.write_text(
        "import os, signal, sys\n"
        "save = sys.argv[sys.argv.index('--save') + 1]\n"
        "tracker = os.path.join(save, 'latest_checkpointed_iteration.txt')\n"
        "first = int(open(tracker).read()) + 1 if '--load' in sys.argv else 0\n"
        "for step in range(first, 6):\n"
        "    print(f'rollout {step}: reward', flush=True)\n"
        "    place = os.path.join(save, f'iter_{step:07d}')\n"
        "    os.makedirs(place, exist_ok=True)\n"
        "    open(os.path.join(place, 'common.pt'), 'w').write('x')\n"
        "    open(tracker, 'w').write(str(step))\n"
        "    if step == 3 and first == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, str(trainer), "--rollout-batch-size", "8", "--save", str(tmp_path / "ckpt")]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "headway", "watch", "--restart", "1", "--out", tmp_path / "box", "--", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [f"rollout {step}: reward" for step in range(6)]
    assert "restart 1 of 1: goes on from checkpoint 3" in done.stderr
    assert time.monotonic() - began < 60


class TestKubernetes:
    """The RayJob of docs/kubernetes.md is one, and starts headway as headway can be started."""

    PAGE = Path(__file__).parents[3] / "docs" / "kubernetes.md"

    @property
    def text(self) -> str:
        return self.PAGE.read_text().split("```yaml\n")[1].split("```")[0]

    def test_its_limits_are_read_by_plan(self, tmp_path):
        (tmp_path / "job.yaml").write_text(self.text)
        pods = read_pods(tmp_path / "job.yaml")
        assert [(pod.container, pod.limit, pod.gpus, pod.replicas) for pod in pods] == [
            ("ray-head", 128 * GIB, 0, 1), ("ray-worker", 1500 * GIB, 8, 2),
        ]  # fmt: skip
        assert [pod.shm for pod in pods] == [32 * GIB, 200 * GIB]

    def test_its_fields_are_those_of_kuberay(self):
        job = yaml.safe_load(self.text)
        assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
        assert job["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
        cluster = job["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            (container,) = pod["containers"]
            assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["volumes"]}
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["terminationMessagePath"] == str(watching.TERMINATION_LOG)
            assert [each["name"] for each in container["env"]] == ["POD_NAME"]

    def test_its_commands_are_understood(self, tmp_path):
        """Each is started by bash as a container would, with a headway that prints its words."""
        job = yaml.safe_load(self.text)
        cluster = job["spec"]["rayClusterSpec"]
        scripts = [job["spec"]["entrypoint"]]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            (container,) = group["template"]["spec"]["containers"]
            assert container["command"] == ["/bin/bash", "-lc", "--"]
            scripts += [script.replace("ulimit -n 65536; ", "") for script in container["args"]]
        (tmp_path / "headway").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
        (tmp_path / "headway").chmod(0o755)
        given = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_NAME": "pod-1",
            "KUBERAY_GEN_RAY_START_CMD": "ray start --head --block; true",
        }  # fmt: skip
        for script in scripts:
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=given)
            words = done.stdout.splitlines()
            assert words[0] == "watch"
            command = typer.main.get_command(app).commands["watch"]  # type: ignore[attr-defined]
            found = command.make_context("watch", words[1:]).params
            assert str(found["out"]).startswith("/blackbox/")
            assert found["quiet"]
            assert list(found["command"]) in (
                ["bash", "/scripts/run.sh"], ["bash", "-c", "ray start --head --block; true"],
            )  # fmt: skip
