"""Ends inside an inference engine: its part of the run is named, and the advice is in its own settings."""

import pytest

from headway.diagnose.settings import Settings

from .told import diagnosis, told

VLLM = "/usr/lib/python3.12/dist-packages/vllm"
WORKER = "(VllmWorker rank=7 pid=10948) ERROR 03-16 06:12:38 [multiproc_executor.py:375] "
DATED = "2025-07-03T14:20:51.565839352Z "
OLD = "ERROR 03-20 02:29:07 engine.py:387] "
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 "
    "GiB of "
    "which 1.00 GiB is free."
)
WARM_UP = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
    "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
FREE = (
    "ValueError: Free memory on device cuda:0 ({}/{} GiB) on startup is less than desired GPU memory utilization "
    "(0.6, 73.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
FAULT = "CUDA error: an illegal memory access was encountered"
LATE = "CUDA kernel errors might be asynchronously reported, so the stacktrace below might be incorrect."


def trace(*calls: tuple[str, str], end: str, prefix: str = "") -> str:
    """A traceback through (file, function), outermost first."""
    lines = ["Traceback (most recent call last):"]
    for file, name in calls:
        lines += [f'  File "{file}", line 12, in {name}', "    out = self.call(x)"]
    return "\n".join(prefix + line for line in (*lines, end))


TRAINER = ("/root/verl/verl/workers/fsdp_workers.py", "generate_sequences")
RUNNER = (f"{VLLM}/v1/worker/gpu_model_runner.py", "execute_model")


class TestRefusedRequests:
    @pytest.mark.parametrize("prefix", ["", WORKER, OLD, DATED, f"[{DATED.strip()}] {WORKER}"])
    def test_the_innermost_code_is_the_engine_s(self, prefix):
        found = told(trace(TRAINER, RUNNER, end=OOM, prefix=prefix))
        assert (found.mechanism, found.component) == ("device-allocation-failure", "engine")
        assert found.advice[0].text.startswith("lower actor_rollout_ref.rollout.gpu_memory_utilization")
        assert not [each for each in found.advice if "micro-batch" in each.text]

    def test_the_innermost_code_is_the_trainer_s(self):
        rollout = ("/root/verl/verl/workers/rollout/vllm_rollout/vllm_rollout.py", "update_weights")
        actor = ("/root/verl/verl/workers/actor/dp_actor.py", "update_policy")
        for calls in ((rollout, actor), (RUNNER, actor)):
            found = told(trace(*calls, end=OOM))
            assert found.component != "engine"
            assert "gpu_memory_utilization" not in found.advice[0].text

    @pytest.mark.parametrize("environment", ["verl", "vllm", "sglang", "openrlhf"])
    def test_the_name_of_an_environment_says_nothing(self, environment):
        packages = f"/opt/conda/envs/{environment}/lib/python3.10/site-packages"
        engine = (f"{packages}/vllm/v1/worker/gpu_model_runner.py", "execute_model")
        inside = (f"{packages}/torch/nn/modules/module.py", "_call_impl")
        assert told(trace(TRAINER, engine, inside, end=OOM)).component == "engine"
        assert told(trace(("/home/me/train.py", "main"), inside, end=OOM)).component != "engine"

    def test_an_engine_s_traceback_before_it_is_another(self):
        earlier = trace(RUNNER, end="ValueError: a request was too long")
        assert told(f"{earlier}\n{trace(('/home/me/train.py', 'main'), end=OOM)}").component != "engine"

    def test_an_engine_s_lines_beside_a_trainer_s_end_do_not_make_it_the_engine_s(self):
        engine = f'(EngineCore_DP0 pid=270)   File "{RUNNER[0]}", line 9, in execute_model'
        config = "(WorkerDict pid=77) {'rollout': {'name': 'vllm', 'gpu_memory_utilization': 0.5}}"
        found = told(f"{engine}\n{config}\n(WorkerDict pid=77) {OOM}\n{engine}")
        assert found.component == "trainer"
        assert "gpu_memory_utilization" not in found.advice[0].text

    def test_an_engine_in_the_list_of_a_kill_is_not_who_was_killed(self):
        kill = (
            "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. "
            "Memory on the "
            "node was 115.86GB / 121.69GB (0.952127)\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n"
            "2657\t36.77\tray::FSDPTrainRayActor.train\n3402\t2.73\tsglang::scheduler"
        )
        assert told(kill).component == "trainer"

    def test_sglang_s_settings_have_its_own_names(self):
        scheduler = ("/sgl/python/sglang/srt/managers/scheduler.py", "run_scheduler_process")
        found = told("[2025-03-01 10:00:00 TP0] Scheduler hit an exception: " + trace(scheduler, end=OOM))
        assert found.component == "engine"
        text = " ".join(each.text for each in found.advice)
        assert "--mem-fraction-static" in found.advice[0].text
        assert "--max-running-requests" in text
        assert "gpu_memory_utilization" not in text

    @pytest.mark.parametrize(
        "text",
        [
            WARM_UP,
            WORKER + WARM_UP,
            trace((f"{VLLM}/v1/worker/gpu_model_runner.py", "_dummy_sampler_run"), end=WARM_UP, prefix=WORKER),
            trace((f"{VLLM}/v1/worker/gpu_worker.py", "determine_available_memory"), end=OOM),
            trace((f"{VLLM}/worker/cache_engine.py", "_allocate_kv_cache"), end=OOM, prefix=OLD),
            trace(("/sgl/python/sglang/srt/mem_cache/memory_pool.py", "init_memory_pool"), end=OOM),
        ],
    )
    def test_an_engine_that_makes_itself_ready(self, text):
        found = told(text)
        assert (found.cause, found.cause_grade, found.component) == ("engine-start-budget", "supported", "engine")
        assert found.advice[0].text.startswith("lower ")
        assert not [each for each in found.advice if each.text.startswith("raise the engine's share")]

    def test_too_little_for_the_cache_still_asks_for_a_larger_share(self):
        found = told("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
        assert found.advice[0].text.startswith("raise the engine's share")

    def test_an_engine_at_work_is_not_at_its_start(self):
        logits = ("/sgl/python/sglang/srt/layers/logits_processor.py", "_get_logits")
        found = told(trace(logits, end=OOM))
        assert (found.cause, found.component) == ("device-logits", "engine")
        assert "--mem-fraction-static" in found.advice[0].text

    def test_graphs_come_first_where_they_were_captured(self):
        runner = ("/sgl/python/sglang/srt/model_executor/cuda_graph_runner.py", "capture_one_batch_size")
        found = told(trace(runner, end=f"Exception: Capture cuda graph failed: {OOM}"))
        assert (found.cause, found.component) == ("device-graph-capture", "engine")
        assert "--cuda-graph-max-bs" in found.advice[0].text

    def test_slime_passes_the_settings_on_under_a_prefix(self):
        scheduler = ("/sgl/python/sglang/srt/managers/scheduler.py", "run_batch")
        text = trace(scheduler, end=OOM)
        assert (
            "--sglang-mem-fraction-static" in diagnosis(text, settings=Settings(system="slime")).answer.advice[0].text
        )
        assert "--sglang-" not in told(text).advice[0].text

    @pytest.mark.parametrize("text", ["Failed to CUDA malloc 4194304 bytes", "Cuda failure 2 'out of memory'"])
    def test_nccl_beside_a_full_engine(self, text):
        line = f"node:270:270 [0] include/alloc.h:103 NCCL WARN {text}"
        communicator = (f"{VLLM}/distributed/device_communicators/pynccl.py", "__init__")
        found = told(trace(communicator, end=line))
        assert (found.mechanism, found.cause, found.component) == (
            "device-allocation-failure", "device-communication-buffers", "engine",
        )  # fmt: skip
        assert found.advice[0].text.startswith("lower gpu_memory_utilization")
        alone = told(line)
        assert (alone.cause, alone.component) == ("device-communication-buffers", "")
        assert not alone.advice[0].text.startswith("lower gpu_memory_utilization")


class TestFreeMemoryAtTheStart:
    @pytest.mark.parametrize(
        ("free", "total"), [("31.60", "121.69"), ("2.6", "121.63"), ("40.10", "119.70"), ("9", "122.8")]
    )
    def test_on_unified_memory_the_page_cache_is_named(self, free, total):
        found = told(FREE.format(free, total))
        assert (found.mechanism, found.cause, found.cause_grade) == (
            "engine-exit", "unified-memory-full", "supported",
        )  # fmt: skip
        assert found.advice[0].text.startswith("free -h: where buff/cache is large")
        assert "page cache" in found.because
        assert "device-other-process" in [each.name for each in found.candidates]
        assert not [each for each in found.advice if "RAY_memory_usage_threshold" in each.text]

    def test_a_machine_that_is_said_to_be_unified(self):
        found = diagnosis(FREE.format("12.00", "61.37"), settings=Settings(unified=True)).answer
        assert found.cause == "unified-memory-full"
        assert told(FREE.format("12.00", "61.37")).cause == "device-other-process"

    def test_a_device_of_its_own_is_somebody_else_s(self):
        found = told(FREE.format("43.00", "79.15"))
        assert (found.cause, found.cause_grade) == ("device-other-process", "supported")
        assert found.advice[0].text.startswith("lower gpu_memory_utilization to 0.54 at most")
        assert not [each for each in found.advice if "buff/cache" in each.text]

    def test_a_share_above_what_the_driver_leaves_is_nobody_s(self):
        found = told(FREE.format("271.0", "287.98"))
        assert (found.cause, found.cause_grade) == ("engine-start-budget", "supported")
        assert "0.94 at most" in found.advice[0].text

    @pytest.mark.parametrize(
        "text",
        [
            "AssertionError: Error in memory profiling. Initial free memory 60.1 GiB, current free memory 70.2 GiB.",
            "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        ],
    )
    def test_others_come_and_go_while_it_measures(self, text):
        assert (told(text).mechanism, told(text).cause) == ("engine-exit", "device-other-process")

    def test_an_engine_that_makes_itself_ready_there(self):
        text = trace((f"{VLLM}/v1/worker/gpu_worker.py", "determine_available_memory"), end=OOM)
        assert "buff/cache" in told(text.replace("79.15", "121.69")).advice[0].text
        assert "buff/cache" not in told(text).advice[0].text

    def test_a_refused_request_on_such_a_machine_names_it_too(self):
        found = told(OOM.replace("79.15", "121.69"))
        assert found.cause == "unified-memory-full"
        assert "buff/cache" in found.advice[0].text
        assert "buff/cache" not in told(OOM).advice[0].text


class TestFaultsThatAreReportedLate:
    @pytest.mark.parametrize("prefix", ["", WORKER, OLD])
    def test_the_engine_is_named_and_the_shown_call_is_not_blamed(self, prefix):
        end = f"RuntimeError: {FAULT}\n{prefix}{LATE}"
        found = told(trace(RUNNER, ("/opt/torch/nn/modules/activation.py", "forward"), end=end, prefix=prefix))
        assert (found.mechanism, found.component) == ("python-exception", "engine")
        assert (found.cause, found.cause_grade) == ("library-fault", "open")
        assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0].text
        assert "enforce_eager" in found.advice[0].text
        assert not [each for each in found.advice if "your own code" in each.text]

    def test_in_an_engine_s_own_words(self):
        scheduler = ("/sgl/python/sglang/srt/managers/scheduler.py", "event_loop")
        text = "[2025-03-01 10:00:00 TP0] Scheduler hit an exception: " + trace(scheduler, end="{}")
        found = told(text.format(f"torch.AcceleratorError: {FAULT}\n{LATE}"))
        assert (found.mechanism, found.cause) == ("engine-exit", "library-fault")
        assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0].text
        assert "--disable-cuda-graph" in found.advice[0].text
        assert "CUDA_LAUNCH_BLOCKING=1" not in told(text.format("KeyError: 'x'")).advice[0].text

    def test_as_the_watchdog_s_abort(self):
        text = (
            f"{trace(RUNNER, end='TimeoutError: x')}\n[rank2]:[E626 23:10:17.92 ProcessGroupNCCL.cpp:1896] [PG ID "
            f"2 Rank 2] "
            f"Process group watchdog thread terminated with exception: {FAULT}\n{LATE}\n"
            "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            f"  what():  [PG ID 2 Rank 2] Process group watchdog thread terminated with exception: {FAULT}"
        )
        found = told(text)
        assert found.mechanism == "native-crash"
        assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0].text
        assert "CUDA_LAUNCH_BLOCKING=1" not in told("terminate called without an active exception").advice[0].text

    def test_in_a_trainer(self):
        found = told(
            trace(("/root/verl/verl/workers/actor/dp_actor.py", "update"), end=f"RuntimeError: {FAULT}\n{LATE}")
        )
        assert found.component != "engine"
        assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0].text
        assert "enforce_eager" not in found.advice[0].text

    def test_another_error_of_the_runtime_is_answered_as_before(self):
        found = told(trace(RUNNER, end="RuntimeError: CUDA error: invalid device ordinal"))
        assert not [each for each in found.advice if "CUDA_LAUNCH_BLOCKING" in each.text]
