"""A refused request's numbers: whose memory it was, whether pieces were the reason, sizes that no machine has."""

import pytest

from headway.diagnose.numbers import refusal

from .told import told

GPU = "GPU 2 has a total capacity of 39.39 GiB of which 10.00 MiB is free. "
ASKED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. "
HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation."
)
OWN = (
    f"{ASKED}{GPU}Process 4242 has 39.36 GiB memory in use. Of the allocated memory 38.40 GiB is allocated by "
    f"PyTorch, "
    "and 300.00 MiB is reserved by PyTorch but unallocated."
)
TRACE = "Traceback (most recent call last):\n"
TIMEOUT = (
    "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
BEYOND = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."


def device(total: float, free: float, allocated: float, spare: float, *held: float, own: float = 0) -> str:
    """A message of torch 2, sizes in GiB; `held` are processes with a number, `own` is "this process"."""
    listed = "".join(f"Process {100 + n} has {size:.2f} GiB memory in use. " for n, size in enumerate(held))
    mine = f"Including non-PyTorch memory, this process has {own:.2f} GiB memory in use. " if own else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
        f"{total:.2f} GiB of which {free:.2f} GiB is free. {listed}{mine}Of the allocated memory {allocated:.2f} "
        f"GiB is "
        f"allocated by PyTorch, and {spare:.2f} GiB is reserved by PyTorch but unallocated."
    )


class TestTheProcessItself:
    def test_a_process_of_another_number_that_fills_the_device_is_this_one(self):
        found = told(OWN)
        assert (found.cause, found.cause_grade, found.family) == ("device-activations", "open", "device-memory")
        assert "it is process 4242 of the message" in found.because
        assert not [each for each in found.candidates if each.name == "device-other-process"]

    @pytest.mark.parametrize(
        ("text", "itself", "others"),
        [
            (device(79.15, 1, 70, 1, 77.5), 100, 0),  # alone in a container
            (device(79.15, 1, 24, 1, 52, 26), 101, 52),  # and another beside it
            (device(79.15, 1, 24, 1, 52), None, 52),  # both fit: it is the other one
            (device(79.15, 1, 40, 1, 52, own=50), 100, 0),  # with its own line, more than the device
            (device(79.15, 1, 24, 1, 52, own=25.5), None, 52),  # with its own line, and room for both
            (device(79.15, 1, 74, 1, 0.5, 0.5, own=76), None, 1),  # contexts of other ranks
            (device(79.15, 40, 36, 1, 38), 100, 0),  # far from full, and it holds as much
        ],
    )
    def test_which_of_the_listed_processes_it_is(self, text, itself, others):
        found = refusal(text)
        assert (found.itself and found.itself[0]) == itself
        assert round(found.others / 2**30) == others

    def test_a_full_device_at_the_optimizer_s_step_is_not_full_of_activations(self):
        text = device(79.15, 1, 76, 0.5, own=77.9)
        assert told(f"{text}\n    self.optimizer.step()").cause == "not-established"
        assert told(text).cause == "device-activations"

    def test_another_process_that_holds_more_is_still_the_cause(self):
        for text in (
            device(79.15, 1, 24, 1, 52),
            device(79.15, 1, 24, 1, 52, 26),
            device(79.15, 1, 24, 1, 52, own=25),
        ):
            assert (told(text).cause, told(text).cause_grade) == ("device-other-process", "supported")

    def test_what_is_in_use_and_nobody_s_counts_as_others(self):
        text = device(14.56, 1.31, 0.65, 0.36)
        found = told(text.replace("1.00 GiB. GPU", "1.69 GiB. GPU"))
        assert (found.cause, found.cause_grade) == ("device-other-process", "supported")
        assert "12.24 GiB of the device are in use and not this process's" in found.because
        assert told(device(79.15, 1, 76, 0.5, own=77.9)).cause == "device-activations"

    def test_a_paused_engine_s_pool_of_the_same_process_is_not_surely_another(self):
        text = device(79.15, 1, 20, 1)
        assert told(text).cause_grade == "supported"
        assert told(f"torch_memory_saver paused\n{text}").cause_grade == "open"

    def test_on_unified_memory_the_rest_is_the_host_s(self):
        assert told(device(121.69, 1, 40, 1, own=43)).cause == "unified-memory-full"

    @pytest.mark.parametrize(
        ("asked", "total", "free", "who", "held", "allocated", "spare"),
        [
            ("224.00 MiB", "14.75 GiB", "11.06 MiB", "Process 3258", "14.73 GiB", "14.04 GiB", "509.85 MiB"),
            ("1.15 GiB", "23.69 GiB", "912.81 MiB", "Process 454738", "22.79 GiB", "21.50 GiB", "1001.89 MiB"),
            ("102.00 MiB", "39.38 GiB", "29.81 MiB", "this process", "39.32 GiB", "37.54 GiB", "1.12 GiB"),
            ("1.25 GiB", "15.77 GiB", "281.12 MiB", "this process", "15.49 GiB", "15.04 GiB", "4.72 MiB"),
        ],
    )
    @pytest.mark.parametrize("wrapped", ["", "\n"])
    def test_full_devices_in_containers_and_beside_none(
        self, asked, total, free, who, held, allocated, spare, wrapped
    ):  # fmt: skip
        text = (
            f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacty of {total} of which {free} is "
            f"free. {wrapped}{who} has {held} memory in use. {wrapped}Of the allocated memory {allocated} is "
            f"allocated "
            f"by PyTorch, and {spare} is reserved by PyTorch but unallocated.{HINT}"
        )
        found = told(text)
        assert (found.cause, found.cause_grade) == ("device-activations", "open")
        assert f"this process fills the device itself: {held} of {total}" in found.because
        names = {each.name for each in found.candidates}
        assert not names & {"device-other-process", "device-fragmentation"}

    def test_a_size_that_the_driver_does_not_know(self):
        text = device(8, 0.1, 7, 0.2, own=2**34)
        assert refusal(text).held == refusal(text).reserved
        assert "17179869184" not in told(text).because
        assert refusal(device(8, 0.1, 7, 0.2, 2**34)).others == 0

    def test_a_limit_that_the_run_set_to_torch(self):
        text = (
            "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 47.37 GiB of which "
            "46.57 GiB is "
            "free. Including non-PyTorch memory, this process has 772.00 MiB memory in use. 800.55 MiB allowed; "
            "Of the "
            "allocated memory 245.48 MiB is allocated by PyTorch, and 16.52 MiB is reserved by PyTorch but "
            "unallocated."
        )
        assert (told(text).cause, told(text).cause_grade) == ("configuration-error", "supported")
        assert told(text.replace("800.55 MiB allowed; ", "")).cause == "not-established"


class TestPieces:
    def test_the_rest_of_a_full_device_is_no_fragmentation(self):
        found = told(OWN + HINT)
        assert "device-fragmentation" in [each.name for each in found.ruled_out]
        assert not [each for each in found.advice if "expandable_segments" in each.text]

    @pytest.mark.parametrize(
        ("allocated", "spare", "grade"), [(60, 14.2, "supported"), (70, 5, "open"), (75, 2, ""), (50, 0.9, "")]
    )
    def test_a_real_share_is_wanted_beside_the_size(self, allocated, spare, grade):
        found = told(device(79.15, 1, allocated, spare, own=77))
        claims = {each.name: each.grade for each in found.candidates} | {found.cause: found.cause_grade}
        assert claims.get("device-fragmentation", "") == grade

    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            ("79.15 GiB total capacity; 55.00 GiB already allocated; 3.00 GiB free; 75.00 GiB reserved in total", 1),
            ("79.15 GiB total capacity; 74.00 GiB already allocated; 3.00 GiB free; 75.00 GiB reserved in total", 0),
            ("11.17 GiB total capacity; 6.90 GiB already allocated; 576.00 KiB free; 3.96 GiB cached", 1),
            ("11.17 GiB total capacity; 10.90 GiB already allocated; 576.00 KiB free; 30.96 MiB cached", 0),
            ("60.97 GiB total capacity; 40.24 GiB already allocated; 19.79 MiB free; 58.65 GiB reserved in total", 1),
        ],
    )  # fmt: skip
    def test_the_wordings_of_older_torch(self, text, pieces):
        found = told(f"RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; {text})")
        assert (found.cause == "device-fragmentation") == bool(pieces)


def test_the_word_as_torch_2_1_wrote_it():
    text = device(79.15, 1, 24, 1, 52, own=25)
    assert refusal(text.replace("capacity", "capacty")) == refusal(text)


class TestImpossibleSizes:
    @pytest.mark.parametrize(
        "text",
        [
            BEYOND,
            f"{OOM}300.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 70.00 GiB is free.",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 70368744177664 bytes.",
        ],
    )
    def test_after_a_time_out_the_time_out_is_the_cause(self, text):
        found = told(f"{TIMEOUT}\n{text}")
        assert (found.mechanism, found.mechanism_grade) == ("collective-timeout", "proven")
        assert "Watchdog caught" in found.evidence[0].text
        pool = "host" if "CPU" in text else "device"
        assert f"{pool}-allocation-failure" in [each.name for each in found.ruled_out]

    def test_a_size_that_is_possible_stays_the_root(self):
        text = f"{OOM}2.00 GiB. GPU 0 has a total capacity of 79 GiB"
        assert told(f"{TIMEOUT}\n{text}").mechanism == "device-allocation-failure"

    def test_an_assertion_of_a_kernel_before_it_is_the_cause(self):
        failed = (
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [0,0,0], thread: "
            "[0,0,0] "
            "Assertion `srcIndex < srcSelectDimSize` failed."
        )
        found = told(f"{failed}\n{BEYOND}")
        assert found.mechanism == "python-exception"
        assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0].text
        assert told("test.py: Assertion `a < b` failed in my log").mechanism == "unknown"

    def test_an_index_error_before_it_is_the_cause(self):
        frame = f'{TRACE}  File "/home/me/data.py", line 7, in pick\n    return rows[n]\n'
        error = f"{frame}IndexError: list index out of range"
        found = told(f"{error}\n[rank1]: {BEYOND}")
        assert (found.mechanism, found.cause) == ("python-exception", "user-code-error")

    def test_more_than_the_device_from_the_user_s_own_call(self):
        text = OOM + "{} GiB. GPU 0 has a total capacity of 79.15 GiB"
        frame = '  File "/x/model.py", line 3, in generate_qkv\n    return torch.empty(n)\n'
        found = told(frame + text.format("300.00"))
        assert (found.mechanism, found.cause, found.cause_grade) == (
            "device-allocation-failure", "user-code-error", "supported",
        )  # fmt: skip
        assert any("generate_qkv" in each.text for each in found.evidence)
        assert not [each for each in found.advice if "micro-batch" in each.text and "none" not in each.risk]
        assert told(frame + text.format("30.00")).cause != "user-code-error"

    def test_more_than_the_device_from_a_library_s_call_is_open(self):
        frame = f'{TRACE}  File "/x/site-packages/transformers/models/qwen2.py", line 3, in eager_attention\n'
        text = f"{OOM}74.16 GiB. GPU 0 has a total capacity of 44.40 GiB"
        found = told(f"{frame}    x = softmax(x)\n{text}")
        assert (found.cause, found.cause_grade) == ("device-oversize-sample", "open")

    @pytest.mark.parametrize(
        "text",
        [
            BEYOND,
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you "
            "tried to allocate 70368744177664 bytes. Error code 12 (Cannot allocate memory)",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 512. TiB for an array with shape "
            "(70368744177664,)",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 EiB for an array with shape "
            "(1152921504606846976,)",
        ],
    )
    def test_sizes_that_no_machine_has(self, text):
        assert (told(text).cause, told(text).cause_grade) == ("user-code-error", "supported")

    @pytest.mark.parametrize(
        "text",
        [
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 116813856768 bytes. Error code 12",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 50.0 GiB for an array with shape "
            "(6710886400,)",
        ],
    )
    def test_sizes_that_a_larger_machine_has(self, text):
        found = told(text)
        assert (found.mechanism, found.cause) == ("host-allocation-failure", "not-established")

    def test_code_that_joins_data_is_not_the_cause_of_an_absurd_size(self):
        frame = f'{TRACE}  File "/home/me/data.py", line 7, in collate\n    out = torch.empty(n, m)\n'
        text = (
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12"
        )
        assert told(frame + text.format(70368744177664)).cause == "user-code-error"
        assert told(frame + text.format(116813856768)).cause == "host-memory-data-spike"


class TestTextsOfOwnCode:
    @pytest.mark.parametrize(
        ("raised", "shown"),
        [
            ('RuntimeError("out of memory: too large a batch")', "RuntimeError: out of memory: too large a batch"),
            ('RuntimeError("CUDA out of memory: too large")', "RuntimeError: CUDA out of memory: too large"),
            ('torch.cuda.OutOfMemoryError("CUDA out of memory")', "torch.cuda.OutOfMemoryError: CUDA out of memory"),
            ('MemoryError("the data set is too large")', "MemoryError: the data set is too large"),
            ("RuntimeError(", "RuntimeError: CUDA out of memory, rank 3 of 8"),
        ],
    )
    def test_what_the_source_line_raises_is_no_refusal(self, raised, shown):
        frame = f'{TRACE}  File "/home/me/train.py", line 88, in check\n    raise {raised}\n'
        found = told(frame + shown)
        assert (found.mechanism, found.cause) == ("python-exception", "user-code-error")
        library = frame.replace("/home/me/train.py", "/opt/lib/python3/site-packages/accelerate/utils.py")
        assert told(library + shown).cause != "user-code-error"
        called = frame.replace(f"raise {raised}", "x = torch.empty(n)")
        assert told(called + shown).mechanism in (
            "device-allocation-failure",
            "host-allocation-failure",
            "python-exception",
        )

    @pytest.mark.parametrize(
        "line",
        [
            "raise e",
            "raise",
            "raise RuntimeError(text)",
            'raise RuntimeError(f"failed: {e}")',
            'raise RuntimeError("x") from e',
        ],
    )
    def test_what_raises_a_caught_one_again_is(self, line):
        frame = f'{TRACE}  File "/home/me/train.py", line 88, in check\n    {line}\n'
        assert told(f"{frame}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").mechanism == (
            "device-allocation-failure"
        )

    def test_an_assertion_with_words_of_its_own(self):
        frame = (
            f'{TRACE}  File "/home/me/train.py", line 88, in check\n    assert fits, "CUDA out of memory is near"\n'
        )
        found = told(f"{frame}AssertionError: CUDA out of memory is near")
        assert (found.mechanism, found.cause) == ("python-exception", "user-code-error")

    def test_a_refusal_below_the_user_s_text_stays_the_root(self):
        frame = f'{TRACE}  File "/home/me/train.py", line 80, in f\n    x = torch.empty(n)\n'
        real = frame + device(79, 1, 70, 1, own=77)
        own = f'{TRACE}  File "/home/me/train.py", line 88, in f\n    raise RuntimeError("out of memory") from e\n'
        chain = "\n\nThe above exception was the direct cause of the following exception:\n\n"
        assert told(f"{real}{chain}{own}RuntimeError: out of memory").mechanism == "device-allocation-failure"

    def test_through_ray(self):
        text = (
            "ray.exceptions.RayTaskError(MemoryError): ray::Worker.f() (pid=1, ip=10.0.0.1)\n"
            '  File "/home/me/train.py", line 88, in f\n    {}\nMemoryError: the data set is too large'
        )
        assert told(text.format('raise MemoryError("the data set is too large")')).mechanism == "python-exception"
        assert told(text.format("rows = list(source)")).mechanism == "host-allocation-failure"


class TestErrorsInAConstructor:
    TEXT = (
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
        "ray::Worker.__init__() (pid=77, ip=10.0.0.1, actor_id=ab, repr=<worker.Worker object at 0x7f>)\n{}"
        '  File "{}", line 30, in check\n    raise ValueError("n_samples has to be even")\n'
        "ValueError: n_samples has to be even"
    )

    @pytest.mark.parametrize("deep", [0, 9])
    def test_of_the_user_s_own_code(self, deep):
        calls = "".join(f'  File "/home/me/worker.py", line {n}, in f{n}\n    self.g()\n' for n in range(deep))
        found = told(self.TEXT.format(calls, "/home/me/worker.py"))
        assert (found.mechanism, found.cause, found.cause_grade) == (
            "python-exception", "user-code-error", "supported",
        )  # fmt: skip
        assert "n_samples has to be even" in found.sentence

    def test_of_a_framework(self):
        found = told(self.TEXT.format("", "/root/verl/verl/single_controller/base/worker.py"))
        assert (found.mechanism, found.cause) == ("python-exception", "not-established")

    def test_a_refused_request_in_it_is_the_root(self):
        text = self.TEXT.format("", "/home/me/worker.py").rpartition("\n")[0].replace("raise Value", "x = Value")
        assert told(f"{text}\n{device(79, 1, 70, 1, own=77)}").mechanism == "device-allocation-failure"
