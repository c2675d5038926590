"""Which pool the kernel's out-of-memory killer found empty: the constraint decides, and no function's name does."""

import pytest

from headway.diagnose.settings import Settings

from .told import diagnosis, told

GLOBAL = """\
[10.100000] java invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0
[10.100000] Call trace:
[10.100000]  oom_kill_process+0x1f8/0x3e0
[10.100000]  out_of_memory+0xe8/0x3a0
[10.100000]  __alloc_pages_may_oom+0x144/0x218
[10.100000]  ? mem_cgroup_out_of_memory+0x20/0x80
[10.200000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
task_memcg=/kubepods/pod7,task=python3,pid=777,uid=0
[10.200000] Out of memory: Killed process 777 (python3) total-vm:90000000kB, anon-rss:60000000kB, UID:0
[10.300000] oom_reaper: reaped process 777 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"""
MEMCG = """\
[627142.700000] ray::Trainer invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=936
[627142.700000] Call Trace:
[627142.700000]  out_of_memory+0x3dc/0x5c0
[627142.800000]  ? mem_cgroup_iter+0x1c6/0x240
[627142.800000]  try_charge_memcg+0x827/0xa90
[627142.800000]  charge_memcg+0x3f/0x1f0
[627142.900000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,\
oom_memcg=/kubepods/pod7,task_memcg=/kubepods/pod7/c1,task=ray::Trainer,pid=4242,uid=0
[627142.900000] Memory cgroup out of memory: Killed process 4242 (ray::Trainer) total-vm:9kB, anon-rss:88000000kB"""
CUPS = "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=job7,mems_allowed=1,global_oom,task=python,pid=5"


def lines(text: str, *words: str) -> str:
    """The lines that hold one of the words."""
    return "\n".join(line for line in text.splitlines() if any(word in line for word in words))


def prefixed(text: str, prefix: str) -> str:
    """With another clock in front, as dmesg -T and journald write it."""
    return "\n".join(prefix + line.split("] ", 1)[1] for line in text.splitlines())


PREFIXES = ("[Mon Dec  8 17:51:31 2025] ", "Jul 16 11:53:24 node7 kernel: [1310061.327439] ",
            "2024-04-29T14:55:41,679685+02:00 ", "<4>[39261021.091603] ")  # fmt: skip


class TestTheConstraintDecides:
    @pytest.mark.parametrize("prefix", PREFIXES)
    @pytest.mark.parametrize(("text", "mechanism"), [(GLOBAL, "kernel-oom-kill"), (MEMCG, "cgroup-oom-kill")])
    def test_in_every_form_of_the_kernel_s_log(self, text, mechanism, prefix):
        for each in (text, prefixed(text, prefix)):
            found = told(each)
            assert (found.mechanism, found.mechanism_grade) == (mechanism, "proven")

    def test_the_advice_is_that_of_the_pool(self):
        assert "machine with more memory" in told(GLOBAL).advice[0].text
        assert "raise the limit" in told(MEMCG).advice[0].text

    def test_the_name_of_a_function_says_nothing(self):
        trace = lines(GLOBAL, "out_of_memory+", "may_oom", "invoked")
        assert told(trace).mechanism == "unknown"

    def test_a_charge_to_a_group_in_the_trace_alone_supports_it(self):
        found = told(lines(MEMCG, "+0x", "invoked"))
        assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "supported")

    def test_the_constraint_is_more_than_a_frame(self):
        frame = "[10.100000]  mem_cgroup_out_of_memory+0x4b/0x80\n"
        found = told(frame + lines(GLOBAL, "constraint", "Killed process"))
        assert (found.mechanism, found.mechanism_grade) == ("kernel-oom-kill", "proven")

    def test_lines_of_the_run_in_between(self):
        kernel = GLOBAL.splitlines()
        mixed = "\n".join(line for n, each in enumerate(kernel) for line in (each, f"step {n}: loss 0.5"))
        assert told(mixed).mechanism == "kernel-oom-kill"

    @pytest.mark.parametrize(("word", "said"), [("CPUSET", "cpuset"), ("MEMORY_POLICY", "memory policy")])
    def test_memory_nodes_that_a_process_is_bound_to(self, word, said):
        found = told(CUPS.replace("CPUSET", word))
        assert (found.mechanism, found.mechanism_grade) == ("kernel-oom-kill", "proven")
        assert f"the memory nodes that its {said} allows ran out" in found.sentence
        assert "whole machine" in told(GLOBAL).sentence

    @pytest.mark.parametrize(("text", "process"), [(GLOBAL, "python3 pid 777"), (MEMCG, "ray::Trainer pid 4242")])
    def test_the_constraint_s_line_names_the_process_too(self, text, process):
        found = told(lines(text, "constraint="))
        assert found.process == process
        assert found.component == ("trainer" if "Trainer" in process else "")

    def test_slurm_s_state_is_still_read(self):
        for state in ("OUT_OF_MEMORY", "OUT_OF_ME+"):
            assert told(f"4242.batch {state} 0:125").mechanism == "cgroup-oom-kill"

    @pytest.mark.parametrize(
        "outside",
        [
            "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM "
            "Killed.",
        ],
    )
    @pytest.mark.parametrize("last", [False, True])
    def test_a_counter_of_the_group_rises_at_a_kill_of_the_whole_machine_too(self, outside, last):
        texts = (GLOBAL, outside) if last else (outside, GLOBAL)
        assert diagnosis(*texts).answer.mechanism == "kernel-oom-kill"
        assert diagnosis(outside, MEMCG).answer.mechanism == told(outside).mechanism == "cgroup-oom-kill"


class TestOtherWords:
    def test_the_process_that_asked_is_killed_itself(self):
        line = "[5.100000] Out of memory (oom_kill_allocating_task): Killed process 7 (python3) total-vm:9kB"
        assert (told(line).mechanism, told(line).mechanism_grade) == ("kernel-oom-kill", "proven")
        assert told(line.replace("Out of memory", "Memory cgroup out of memory")).mechanism == "cgroup-oom-kill"

    def test_a_machine_of_one_memory(self):
        found = diagnosis(GLOBAL, settings=Settings(unified=True)).answer
        assert (found.mechanism, found.cause, found.cause_grade) == (
            "kernel-oom-kill", "unified-memory-full", "supported",
        )  # fmt: skip
        assert diagnosis(MEMCG, settings=Settings(unified=True)).answer.cause == "not-established"


class TestOldKernels:
    def test_a_group_s_kill(self):
        found = told(
            "python cpuset=157d3ac310d3 mems_allowed=0-1\n"
            "Memory cgroup out of memory: Kill process 24572 (java) score 0 or sacrifice child\n"
            "Killed process 28438 (java) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB"
        )
        assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "proven")
        assert found.process == "java pid 28438"

    def test_the_machine_s_kill(self):
        found = told(
            "Out of memory: Kill process 911 (python3) score 912 or sacrifice child\n"
            "Killed process 911, UID 1000, (python3) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB"
        )
        assert (found.mechanism, found.mechanism_grade) == ("kernel-oom-kill", "proven")
        assert found.process == "python3 pid 911"

    def test_the_group_s_numbers_before_it(self):
        found = told(
            "Memory cgroup stats for /kubepods/pod9: cache:32KB rss:524188KB rss_huge:370688KB\n"
            "Killed process 911 (python3) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB"
        )
        assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "supported")

    def test_the_limit_s_line_before_it(self):
        found = told(
            "Task in /docker/4d killed as a result of limit of /docker/4d\n"
            "Killed process 911 (python3) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB"
        )
        assert (found.mechanism, found.mechanism_grade) == ("cgroup-oom-kill", "proven")


class TestALineWithoutItsReason:
    @pytest.mark.parametrize(
        "line",
        [
            "[99.500000] Killed process 911 (python3) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB",
            "[99.550000] Tasks in /kubepods/pod7 are going to be killed due to memory.oom.group set",
            "[99.600000] oom_reaper: reaped process 911 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        ],
    )
    def test_it_is_the_kernel_and_the_pool_is_open(self, line):
        found = told(line)
        assert (found.mechanism, found.mechanism_grade) == ("kernel-oom-kill", "supported")
        assert "cgroup-oom-kill" in [each.name for each in found.candidates]
        assert "do not say whether" in found.sentence

    def test_kubernetes_says_that_it_was_the_container(self):
        line = "[99.500000] Killed process 911 (python3) total-vm:20255636kB, anon-rss:466160kB"
        assert diagnosis(line, "Reason:       OOMKilled\nExit Code:    137").answer.mechanism == "cgroup-oom-kill"

    @pytest.mark.parametrize(
        "line", ["Killed process group 911 of the old run", "bash: line 3: 911 Killed  python3 a.py"]
    )
    def test_other_kills_are_not_the_kernel_s(self, line):
        assert told(line).mechanism != "kernel-oom-kill"


def test_two_kills_hours_apart_name_their_own_victims():
    later = GLOBAL.replace("[10.", "[99910.").replace("777", "888")
    found = diagnosis(f"{GLOBAL}\n{later}").findings
    assert [each.process for each in found] == ["python3 pid 777", "python3 pid 888"]
