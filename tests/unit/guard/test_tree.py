"""Which processes belong to a run: real ones that daemonise, and bystanders of the same names. And trees of files."""

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.errors import InputError
from headway.guard.tree import MARKER, Ended, Tree, become_subreaper

SESSION = "session_2026-11-30_02-12-37_050466_{maker}"


class Processes:
    """Real processes, all of them ended at the end. One is a copy of a shell under another name that waits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started, self.strays = folder, [], set()

    def run(self, command: list[str], **options) -> subprocess.Popen:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.started.append(process)
        return process

    def named(self, name: str, *arguments: str, **options) -> subprocess.Popen:
        """A process that the kernel knows by this name, with these arguments in its command line."""
        program = self.folder / name
        if not program.exists():
            shutil.copy(shutil.which("bash"), program)
        process = self.run([str(program), "-c", "echo ready; read line", *arguments], **options)
        assert process.stdout.readline() == "ready\n"
        return process

    def attached(self, script: str = "echo $$; exec sleep 1000", **options) -> int:
        """A root process that is not this process's child; its pid."""
        shell = self.run(["bash", "-c", f"setsid bash -c '{script}' & wait"], **options)
        root = int(shell.stdout.readline())
        self.strays.add(root)
        return root

    def end(self) -> None:
        for pid in self.strays:
            with_no_error(os.kill, pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()
            for file in (process.stdin, process.stdout, process.stderr):
                if file is not None:
                    file.close()


def with_no_error(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except ProcessLookupError:
        return


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()
    become_subreaper(False)


def wait_until(check: Callable[[], object], seconds: float = 10.0) -> None:
    """Until `check` holds; asserts it after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return
        time.sleep(0.02)
    assert check()


def signs(tree: Tree) -> dict[str, str]:
    """Of the sleepers in the tree, by what they sleep: the sign by which each belongs. One that only begins has no
    command yet."""
    sleepers = [(each.command.split(), each.sign) for each in tree.refresh() if each.name == "sleep"]
    return {words[1]: sign for words, sign in sleepers if len(words) > 1}


def test_descendants_and_daemons_belong_and_their_ends_are_known(processes: Processes) -> None:
    """A child, a grandchild, and a daemon: forked twice, in a session of its own, its parent gone."""
    become_subreaper()
    script = "sleep 101 & bash -c 'sleep 102 & wait' & setsid bash -c 'sleep 103 & exit 0'; read line; exit 7"
    root = processes.run(["bash", "-c", script])
    tree = Tree(root.pid)
    wait_until(lambda: {"101", "102", "103"} <= set(signs(tree)))
    processes.strays |= {member.pid for member in tree.members} - {root.pid}
    daemon, child = (one(tree, command) for command in ("sleep 103", "sleep 101"))
    with open(f"/proc/{daemon.pid}/stat") as file:
        assert int(file.read().rpartition(")")[2].split()[1]) == os.getpid()
    os.kill(daemon.pid, signal.SIGKILL)
    ends = collect(tree, daemon.pid)
    assert (ends[daemon.pid].code, ends[daemon.pid].signal) == (None, signal.SIGKILL)
    with pytest.raises(ChildProcessError):
        os.waitpid(daemon.pid, os.WNOHANG)  # reaped
    root.stdin.close()
    ends = collect(tree, root.pid)
    assert (ends[root.pid].code, ends[root.pid].signal) == (7, None)
    assert root.wait() == 7, "the root's status is left for whoever started it"
    assert child.pid in {member.pid for member in tree.refresh()}, "the rest of the tree outlives its root"
    tree.close()


def one(tree: Tree, command: str):
    (member,) = (each for each in tree.members if each.command == command)
    return member


def collect(tree: Tree, pid: int) -> dict[int, Ended]:
    """Refresh until this process has ended; all ends by pid."""
    ends: dict[int, Ended] = {}

    def seen() -> bool:
        tree.refresh()
        ends.update({each.pid: each for each in tree.ended()})
        return pid in ends

    wait_until(seen)
    return ends


@pytest.mark.skipif(
    tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 15),
    reason="before Linux 6.15 the kernel tells how a process ended to its parent alone",
)
def test_the_end_of_a_process_is_known_that_its_own_parent_waited_for(processes: Processes) -> None:
    root = processes.run(["bash", "-c", "sleep 104 & wait $!; bash -c 'sleep 2; exit 5'; read line"])
    tree = Tree(root.pid)
    wait_until(lambda: "104" in signs(tree))
    sleeper = one(tree, "sleep 104")
    os.kill(sleeper.pid, signal.SIGTERM)
    ends = collect(tree, sleeper.pid)
    assert ends[sleeper.pid].signal == signal.SIGTERM
    wait_until(lambda: any(each.command.startswith("bash -c sleep 2") for each in tree.refresh()))
    inner = next(each for each in tree.members if each.command.startswith("bash -c sleep 2"))
    assert collect(tree, inner.pid)[inner.pid].code == 5
    tree.close()


def test_what_bears_the_marker_belongs_wherever_it_is(processes: Processes) -> None:
    root = processes.attached()
    tree = Tree(root, marker="run-1")
    ours = processes.named("raylet", env={**os.environ, MARKER: "run-1"}, start_new_session=True)
    others = [
        processes.named("raylet", env={**os.environ, MARKER: "run-10"}),
        processes.named("raylet", f"{MARKER}=run-1"),
        processes.named("gcs_server"),
    ]
    found = {member.pid: member.sign for member in tree.refresh()}
    assert found == {root: "root", ours.pid: "marker"}
    assert not {other.pid for other in others} & found.keys()
    tree.close()


def test_an_orphan_of_a_group_that_the_run_led_belongs(processes: Processes) -> None:
    """Attached late: the daemon's parent has ended before anybody looked."""
    root = processes.attached("(sleep 105 &); echo $$; exec sleep 109")
    tree = Tree(root)
    wait_until(lambda: signs(tree).get("105") == "group")
    processes.strays |= {member.pid for member in tree.members} - {root}
    tree.close()


def test_a_neighbour_in_the_pipeline_does_not_belong(processes: Processes) -> None:
    """`run.sh | tee log` in a shell with job control: both are in the group that the first one leads."""
    shell = processes.run(
        ["bash", "-c", "set -m; bash -c 'echo $$ >&2; sleep 106; :' | sleep 107"], stderr=subprocess.PIPE
    )
    root = int(shell.stderr.readline())
    processes.strays.add(root)
    time.sleep(0.2)
    tree = Tree(root)
    wait_until(lambda: "106" in signs(tree))
    assert signs(tree) == {"106": "child"}
    with_no_error(os.killpg, root, signal.SIGKILL)
    tree.close()


class TestRaySessions:
    """Programs that carry the folder of a Ray session, as `ray start` starts them: detached, no child of the run."""

    @staticmethod
    def folder(processes: Processes, maker: int) -> str:
        return str(processes.folder / SESSION.format(maker=maker))

    def test_a_session_that_a_member_made(self, processes: Processes) -> None:
        root = processes.attached("echo $$; sleep 1000; :")
        tree = Tree(root)
        wait_until(lambda: len(tree.refresh()) == 2)
        maker = next(member.pid for member in tree.members if member.pid != root)
        processes.strays.add(maker)
        folder = self.folder(processes, maker)
        raylet = processes.named("raylet", f"--raylet_socket_name={folder}/sockets/raylet", "--gcs-address=h:63791")
        client = processes.named("python3", "-m", "ray.util.client.server", "--address=h:63791")
        bystanders = [
            processes.named("raylet", f"--raylet_socket_name={self.folder(processes, 2**22 + 1)}/sockets/raylet"),
            processes.named("gcs_server", f"--log_dir={folder}0/logs"),
            processes.named("tail", "-f", f"{folder}/logs/raylet.out"),
            processes.named("python3", "-m", "ray.util.client.server", "--address=h:6379"),
        ]
        tree.refresh()
        found = {member.pid: member.sign for member in tree.refresh()}
        assert found == {root: "root", maker: "child", raylet.pid: "Ray session", client.pid: "Ray session"}
        assert not {each.pid for each in bystanders} & found.keys()
        assert tree.sessions == (folder,)
        tree.close()

    def test_a_session_that_the_run_calls(self, processes: Processes) -> None:
        root = processes.attached(env={**os.environ, "RAY_ADDRESS": "http://127.0.0.1:18265"})
        folder = self.folder(processes, 1)
        options = ["/x/ray/dashboard/dashboard.py", "--host=127.0.0.1"]
        dashboard = processes.named("python3", *options, "--port=18265", f"--session-dir={folder}")
        raylet = processes.named("raylet", f"--session-dir={folder}")
        other = processes.named("python3", *options, "--port=18266", f"--session-dir={self.folder(processes, 2)}")
        tree = Tree(root)
        found = {member.pid for member in tree.refresh()}
        assert found == {root, dashboard.pid, raylet.pid}
        assert other.pid not in found
        tree.close()

    def test_a_cluster_that_is_older_than_the_run_is_not_its_own(self, processes: Processes) -> None:
        """It only submits a job there; the worker that the old raylet starts for it is the old cluster's."""
        folder = self.folder(processes, 1)
        processes.named("gcs_server", f"--log_dir={folder}/logs", "--gcs_server_port=63790")
        time.sleep(0.05)
        root = processes.attached(env={**os.environ, "RAY_ADDRESS": "127.0.0.1:63790"})
        tree = Tree(root)
        processes.named("python3", "default_worker.py", f"--raylet-name={folder}/sockets/raylet")
        tree.refresh()
        assert {member.pid for member in tree.refresh()} == {root}
        assert tree.sessions == ()
        tree.close()


def test_children_that_the_watcher_has_or_excludes_are_not_the_run_s(processes: Processes) -> None:
    before = processes.named("raylet")
    root = processes.run(["sleep", "108"])
    tree = Tree(root.pid)
    helper = processes.named("nvidia-smi")
    tree.exclude(helper.pid)
    assert {member.pid for member in tree.refresh()} == {root.pid}
    helper.communicate("end\n")
    before.communicate("end\n")
    tree.refresh()
    assert helper.returncode == before.returncode == 0
    tree.close()


def test_no_such_process_is_said() -> None:
    with pytest.raises(InputError, match="there is no such process"):
        Tree(2**22 + 1)


class FakeProc:
    """A folder that stands for /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(
        self, pid: int, parent: int, start: int = 100, name: str = "python", *, state: str = "S", status: int = 0
    ) -> None:
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        middle = "0 " * 12 + f"{start} " + "0 " * 29 + f"{status}"
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194304 {middle}")
        (folder / "cmdline").write_bytes(name.encode() + b"\0")

    def remove(self, pid: int) -> None:
        """Its folder stays under another name, so that the next one has another inode, as in /proc."""
        folder = self.root / f"proc/{pid}"
        folder.rename(folder.with_suffix(".gone"))

    def renew(self, pid: int) -> None:
        """The same files in another folder, which has another inode."""
        folder = self.root / f"proc/{pid}"
        shutil.copytree(folder, folder.with_suffix(".new"))
        old = folder.rename(folder.with_suffix(".old"))
        folder.with_suffix(".new").rename(folder)
        shutil.rmtree(old)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    proc.process(1, 0, start=1, name="init")
    proc.process(50, 1, name="run")
    return proc


def pids(tree: Tree) -> set[int]:
    return {member.pid for member in tree.refresh()}


def test_a_new_inode_is_not_a_new_process(proc: FakeProc) -> None:
    """The kernel may number a folder of /proc anew when memory is short, just when it matters."""
    proc.process(51, 50)
    tree = Tree(50, proc.root)
    proc.process(51, 1)  # its parent is gone, so no sign would take it up again
    proc.renew(51)
    assert pids(tree) == {50, 51}
    assert tree.ended() == ()


def test_a_number_that_is_used_again_is_another_process(proc: FakeProc) -> None:
    proc.process(51, 50)
    tree = Tree(50, proc.root)
    proc.remove(51)
    proc.process(51, 1, start=900)
    assert pids(tree) == {50}
    assert [(end.pid, end.start) for end in tree.ended()] == [(51, 100)]


def test_a_process_older_than_the_root_is_never_taken_up(proc: FakeProc) -> None:
    proc.process(51, 50, start=99)
    assert pids(Tree(50, proc.root)) == {50}


def test_a_child_may_be_listed_before_its_parent(proc: FakeProc) -> None:
    proc.process(9, 60, start=300)
    proc.process(60, 50, start=200)
    assert pids(Tree(50, proc.root)) == {9, 50, 60}


def test_a_status_that_waits_for_the_parent_is_read_once(proc: FakeProc) -> None:
    proc.process(51, 50)
    tree = Tree(50, proc.root)
    proc.process(51, 50, state="Z", status=3 << 8)
    assert pids(tree) == {50}
    assert pids(tree) == {50}
    assert [(end.pid, end.code, end.signal) for end in tree.ended()] == [(51, 3, None)]
    assert tree.ended() == ()


def test_a_copy_of_its_parent_gets_its_name_when_it_runs_its_own_program(proc: FakeProc) -> None:
    proc.process(51, 50, name="bash")
    stat = proc.root / "proc/51/stat"
    stat.write_text(stat.read_text().replace("4194304", str(4194304 | 0x40)))
    tree = Tree(50, proc.root)
    assert [(member.name, member.forked) for member in tree.members if member.pid == 51] == [("bash", True)]
    proc.process(51, 50, name="raylet")
    tree.refresh()
    assert [(member.name, member.forked) for member in tree.members if member.pid == 51] == [("raylet", False)]


def test_process_1_is_given_everybody_s_orphans_and_takes_its_own(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the watcher may be the first process, which inherits what `kubectl exec` leaves behind too."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    tree = Tree(50, proc.root, marker="run-1")
    proc.process(51, 1, start=200)
    proc.process(52, 1, start=200)
    (proc.root / "proc/52/environ").write_bytes(b"A=b\0HEADWAY_WATCH=run-1\0")
    assert pids(tree) == {50, 52}


def test_a_process_may_watch_what_it_starts_itself(processes: Processes) -> None:
    tree = Tree(os.getpid())
    child = processes.named("raylet")
    assert {member.pid: member.sign for member in tree.refresh()}.get(child.pid) == "child"
    child.communicate("end\n")
    assert child.pid not in {member.pid for member in tree.refresh()}
    tree.close()


def test_an_end_that_was_waited_for_elsewhere_is_noted(proc: FakeProc) -> None:
    tree = Tree(50, proc.root)
    tree.note_end(50, 9)
    tree.note_end(77, 0)
    assert [(end.pid, end.signal) for end in tree.ended()] == [(50, 9)]
