"""Kinds that whole public reports showed, each beside one that must stay as it is."""

from .told import told

SHARDS = "Loading checkpoint shards: {}%|{}| {}/4 [00:10<?, ?it/s]"
KILLED = "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 0 (pid: 8158)"
WAITED = (
    "[rank{0}]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=BROADCAST, NumelIn=131072000, NumelOut=131072000, Timeout(ms)=600000) ran for "
    "600081 milliseconds before timing out."
)
REFUSED = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 23.69 GiB of "
    "which 875.62 MiB is free. Process 492814 has {} GiB memory in use. Including non-PyTorch memory, this process "
    "has {} GiB memory in use. Of the allocated memory 17.97 GiB is allocated by PyTorch, and 1.02 GiB is reserved "
    "by PyTorch but unallocated."
)
ENGINE = "/env/lib/python3.11/site-packages/sglang/srt"


class TestLoads:
    def test_a_kill_while_weights_were_loaded_is_no_save(self):
        found = told(f"{SHARDS.format(25, '##  ', 1)}\n{KILLED}\n")
        assert (found.cause, found.cause_grade, found.phase) == ("host-memory-capacity", "open", "load")
        assert "loaded the model's weights" in found.because
        assert not any("save" in each.text for each in found.advice)

    def test_loaded_weights_are_no_reason(self):
        found = told(f"{SHARDS.format(100, '####', 4)}\n{KILLED}\n")
        assert found.cause == "not-established"

    def test_a_save_that_had_begun_is_one(self):
        found = told(f"saving checkpoint at iteration 50 to /ckpt\n{KILLED}\n")
        assert found.cause == "host-memory-checkpoint-spike"
        assert found.because.startswith("a save had begun")


class TestFirstCollective:
    def test_ranks_that_wait_in_the_first_one_do_not_reach_each_other(self):
        found = told("\n".join(WAITED.format(rank, 1) for rank in (0, 1)))
        assert (found.mechanism, found.cause, found.cause_grade) == ("collective-timeout", "network", "supported")
        assert "NCCL_P2P_DISABLE=1" in found.advice[0].text

    def test_of_one_rank_it_is_open(self):
        found = told(WAITED.format(0, 1))
        assert (found.cause, found.cause_grade) == ("network", "open")

    def test_a_later_one_says_nothing_of_the_network(self):
        found = told("\n".join(WAITED.format(rank, 812) for rank in (0, 1)))
        assert found.cause == "not-established"

    def test_a_new_group_s_first_one_after_steps_says_nothing_of_it(self):
        found = told("step 75: loss 0.5\n" + "\n".join(WAITED.format(rank, 1) for rank in (0, 1)))
        assert found.cause == "not-established"


class TestOtherProcess:
    def test_without_it_the_request_had_fitted(self):
        found = told(REFUSED.format("3.78", "3.21", "19.40"))
        assert (found.cause, found.cause_grade) == ("device-other-process", "open")
        assert "had fitted" in found.because

    def test_without_it_the_request_had_not_fitted_either(self):
        found = told(REFUSED.format("6.78", "3.21", "19.40"))
        assert found.cause == "not-established"


class TestEngineRaised:
    def log(self, error):
        worker = "(WorkerDict pid=26109) "
        lines = (
            "[2025-11-20 01:13:05 TP1] Scheduler hit an exception: Traceback (most recent call last): "
            "[repeated 2x across cluster]",
            f'  File "{ENGINE}/managers/scheduler.py", line 2534, in run_scheduler_process',
            "    scheduler = Scheduler(",
            f"{error} [repeated 2x across cluster]",
        )
        return "\n".join(worker + line for line in lines)

    def test_its_exception_is_told(self):
        found = told(self.log("ValueError: unknown architecture Foo"))
        assert "ValueError: unknown architecture Foo)" in found.sentence
        assert any("unknown architecture" in place.text for place in found.evidence)

    def test_a_port_of_another_is_the_reason(self):
        found = told(self.log("RuntimeError: nonce == returnedNonce. Ping failed, invalid nonce returned"))
        assert (found.cause, found.cause_grade) == ("network", "supported")
        assert "port" in found.advice[0].text

    def test_a_warning_about_a_port_is_none(self):
        warned = "WARNING dashboard: Address already in use, taking another port\n"
        found = told(warned + self.log("ValueError: unknown architecture Foo"))
        assert found.cause != "network"


DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 150008 "
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits with an exit code "
    "None."
)
ACTOR = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n\tactor_id: 8c22\n\tpid: {}\n"
)


class TestDeadActor:
    def log(self, pid):
        between = ["    return fn(*args)"] * 14
        settings = (
            "Error executing job with overrides: ['actor_rollout_ref.rollout.n=5', 'algorithm.adv_estimator=grpo']"
        )
        call = "    actor_output = self.actor_rollout_wg.update_actor(batch)"
        return "\n".join((DIED, settings, *between, call, ACTOR.format(pid)))

    def test_its_class_and_phase_come_from_the_driver_s_words(self):
        found = told(self.log(150008))
        assert found.process == "WorkerDict pid 150008"
        assert (found.phase, found.component) == ("train", "trainer")

    def test_another_actor_s_class_is_not_its_own(self):
        found = told(self.log(7))
        assert found.process == "pid 150008"


DEEPSPEED = "/env/lib/python3.11/site-packages/deepspeed/runtime/zero"


class TestGatheredParameters:
    def log(self, *frames):
        calls = (line for file, name in frames for line in (f'  File "{file}", line 195, in {name}', "    run()"))
        refused = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
        )
        return "\n".join(
            ("Traceback (most recent call last):", *calls, f"{refused} 79.11 GiB of which 1.00 GiB is free.")
        )

    def test_a_gather_of_all_parameters_for_generation_is_named(self):
        found = told(self.log(
            ("/env/lib/python3.11/site-packages/trl/models/utils.py", "unwrap_model_for_generation"),
            (f"{DEEPSPEED}/partition_parameters.py", "__enter__"),
            (f"{DEEPSPEED}/partition_parameters.py", "_all_gather"),
        ))  # fmt: skip
        assert (found.cause, found.cause_grade) == ("device-weight-sync", "supported")
        assert "ds3_gather_for_generation=False" in found.advice[0].text

    def test_a_layer_s_own_gather_in_a_pass_is_none(self):
        found = told(self.log(
            (f"{DEEPSPEED}/partitioned_param_coordinator.py", "fetch_sub_module"),
            (f"{DEEPSPEED}/partition_parameters.py", "all_gather_coalesced"),
        ))  # fmt: skip
        assert found.cause != "device-weight-sync"
