"""Why Ray's monitor killed: what the log measured of host memory, and what ran in the processes that it lists."""

from .told import told

STEP = "(TaskRunner pid=2310) step:{0} - training/global_step:{0} - perf/cpu_memory_used_gb:{1} - timing_s/step:{2}\n"
KILL = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.5, ID: 5a1c) where the task (actor ID: 77ff, name=W.__init__, pid=9912, memory "
    "used=62.10GB) was running was 486.53GB / 503.51GB (0.966276), which exceeds the memory usage threshold of 0.95. "
    "Ray killed this worker (ID: 2201) because it was the most recently scheduled task; Top 10 memory users:\n"
    "PID\tMEM(GB)\tCOMMAND\n9912\t{0:.2f}\tray::WorkerDict.{2}\n9913\t{1:.2f}\tray::WorkerDict.{3}\n"
)
UPDATE, SAVE = "actor_rollout_update_actor", "actor_rollout_save_checkpoint"
TRAINS = KILL.format(62.1, 40.0, UPDATE, UPDATE)


def steps(*sizes: float) -> str:
    return "".join(STEP.format(38 + at, size, 301.5 + at) for at, size in enumerate(sizes))


class TestGrowth:
    def test_verls_own_metric_shows_it(self):
        found = told(steps(301.2, 331.0, 360.7, 391.2, 421.0, 450.9, 480.1) + TRAINS)
        assert (found.mechanism, found.cause, found.cause_grade) == (
            "ray-memory-monitor", "host-memory-growth", "supported",
        )  # fmt: skip
        assert "from 301 to 480 GB over 7 readings" in found.because
        assert found.step == 44

    def test_level_readings_show_none(self):
        found = told(steps(470.2, 471.0, 470.7, 471.2, 470.9, 471.0, 470.1) + TRAINS)
        assert found.cause != "host-memory-growth"

    def test_what_people_print_of_psutil(self):
        rising = "".join(f"step {at} loss 0.5 rss={100 + 40 * at} GB\n" for at in range(8))
        assert told(rising + TRAINS).cause == "host-memory-growth"

    def test_a_kernels_line_is_no_reading(self):
        kernel = "Out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB\n"
        assert told(kernel).mechanism == "kernel-oom-kill"


class TestSave:
    def test_processes_that_save_by_most_of_their_memory(self):
        found = told(steps() + KILL.format(62.1, 40.0, SAVE, UPDATE))
        assert (found.cause, found.cause_grade, found.phase) == ("host-memory-checkpoint-spike", "supported", "save")
        assert f"{SAVE} ran in 1 of the 2 processes" in found.because

    def test_a_small_one_is_no_reason(self):
        assert told(KILL.format(62.1, 4.0, UPDATE, SAVE)).cause == "not-established"

    def test_a_name_with_the_word_in_it_is_no_save(self):
        assert told(KILL.format(62.1, 40.0, "saved_rollouts", "unsave")).cause != "host-memory-checkpoint-spike"
