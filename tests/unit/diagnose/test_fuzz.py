"""Whatever the bytes are, there is a sentence, names of the table, and evidence that stands in the text."""

import gzip
import io
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.diagnose.causes import table
from headway.diagnose.doctor import diagnose
from headway.diagnose.evidence import RANK, Line, Place
from headway.diagnose.finding import Diagnosis
from headway.diagnose.lines import LONGEST, Source
from headway.diagnose.readers import NEEDLES, read_line
from headway.reports.doctor import doctor_report
from headway.reports.doctor_json import document

PARTS = st.one_of(
    st.sampled_from(NEEDLES).map(str.encode),
    st.sampled_from([
        b"\n", b"\r", b"\r\n", b"\t", b"\0", b"(A pid=1, ip=10.0.0.1) ", b"\x1b[36m", b"[2026-03-01 10:00:00,1 E 1] ",
        b"Traceback (most recent call last):\n", b'  File "a.py", line 1, in f\n', b"ValueError: x\n", b"step 7: ",
        b"115.86GB / 121.69GB (0.952127)", b"99999999999999999999999\t9.9\tx\n", b"Tried to allocate 9e9 GiB",
        b"[repeated 7x across cluster]", b"exit code ", b"-9", b"137", b"Memory-Usage x: {'used_GB': 7.", b"\xff\xfe",
    ]),
    st.binary(max_size=30),
)  # fmt: skip


def check(found: Diagnosis) -> None:
    assert found.sentence.endswith(".")
    for each in found.findings:
        assert each.mechanism in table("mechanism")
        assert each.cause in (table("cause") if each.outcome == "died" else {"": None, **table("cause")})
        assert each.mechanism_grade in RANK
        assert all(place.line >= 1 for place in each.evidence)
    assert document(found)["answer"]["sentence"] == found.sentence
    assert doctor_report(found)


def told(data: bytes) -> Diagnosis:
    return diagnose([Source("a", lambda: io.BytesIO(data))])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, max_size=40))
def test_any_mixture_of_what_programs_print(parts):
    check(told(b"".join(parts)))


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, max_size=20), st.integers(0, 400))
def test_gzip_that_is_cut_anywhere(parts, cut):
    check(told(gzip.compress(b"".join(parts))[:cut]))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes(data):
    check(told(data))


def test_one_line_of_ten_megabytes():
    check(told(b"a" * 10_000_000))


def test_only_a_progress_bar():
    check(told(b"".join(b"\rTraining: %d%%|" % (n % 100) for n in range(20_000))))


def test_no_text_that_is_repeated_in_a_long_line_takes_long():
    """A pattern that backtracks over two thousand characters would take minutes over all texts."""
    started = time.process_time()
    for needle in NEEDLES:
        for filler in ("", " ", "("):
            line = Line(Place("a", 1, ((needle + filler) * 2000)[:LONGEST]), 1)
            list(read_line(line))
    assert time.process_time() - started < 60
