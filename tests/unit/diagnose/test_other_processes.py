"""Who else holds memory of the device, by torch's own account: named, added up and weighed."""

import pytest

from .told import told

HEAD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {total} "
    "GiB of which 1.00 GiB is free. "
)
OWN = "Including non-PyTorch memory, this process has {own} GiB memory in use. "


def refused(own: float, *others: tuple[int, float], total: float = 79.11) -> str:
    listed = "".join(f"Process {pid} has {size:.2f} GiB memory in use. " for pid, size in others)
    return HEAD.format(total=total) + listed + OWN.format(own=own)


def test_one_other_process_is_named_with_what_it_holds():
    found = told(refused(26, (811, 52)))
    assert (found.cause, found.cause_grade) == ("device-other-process", "supported")
    assert found.because == "process 811 holds 52.00 GiB of the device, this one 26.00 GiB"


def test_several_are_added_up_the_largest_first():
    found = told(refused(26, (811, 10), (812, 22), (813, 20)))
    assert (found.cause, found.cause_grade) == ("device-other-process", "supported")
    assert "(process 812 22.00 GiB, process 813 20.00 GiB, process 811 10.00 GiB) hold 52.00 GiB" in found.because
    many = told(refused(18, *((800 + n, 10) for n in range(6))))
    assert "2 more) hold 60.00 GiB" in many.because


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("(EngineCore_0 pid=811) INFO loading", "EngineCore_0"),
        ("|    0   N/A  N/A     811      C   /opt/venv/bin/python3     53248MiB |", "/opt/venv/bin/python3"),
    ],
)
def test_a_name_that_the_log_has_is_told(line, name):
    assert f"process 811 ({name}) holds 52.00 GiB" in told(f"{line}\n{refused(26, (811, 52))}").because
    assert name not in told(f"{line.replace('811', '8110')}\n{refused(26, (811, 52))}").because


def test_the_context_of_an_idle_process_is_none_and_the_process_itself_is_no_other_one():
    assert told(refused(77, (811, 0.5))).cause != "device-other-process"
    itself = (
        HEAD.format(total=23.64) + "Process 811 has 22.60 GiB memory in use. Of the allocated memory 21.90 GiB is "
    )
    assert told(itself + "allocated by PyTorch, and 100.00 MiB is reserved").cause != "device-other-process"


def test_small_ones_count_together():
    assert told(refused(20, *((800 + n, 1.9) for n in range(30)))).cause == "device-other-process"
    assert told(refused(77, (811, 0.5), (812, 0.4))).cause != "device-other-process"
