"""Reading: right line numbers, whatever the bytes are, and memory that does not grow with the log."""

import gzip
import io
import tracemalloc

import pytest

from headway.diagnose import lines
from headway.diagnose.lines import Scan, Scanner, Source
from headway.diagnose.matcher import matcher
from headway.diagnose.readers import NEEDLES, SERIES
from headway.diagnose.text import clean, plain_stream, process_of

FILL = "request {} finished: 812 tokens, reward 0.5\n"
END = "The process receives a SIGTERM.\n"


class Slow(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 1, 777))


def scan(data: bytes, file: type[io.BytesIO] = io.BytesIO) -> Scan:
    return Scanner(Source("a", lambda: file(data)), matcher(NEEDLES), SERIES).read()


def found(data: bytes) -> list[tuple[int, str]]:
    return [(line.place.line, line.text) for line in scan(data).lines]


@pytest.mark.parametrize("before", [0, 1, 7, 40_000])
def test_numbers_are_those_of_an_editor(before):
    text = "".join(FILL.format(n) for n in range(before)) + END + FILL
    assert found(text.encode()) == [(before + 1, END.strip())]


def test_a_piece_may_end_anywhere(monkeypatch):
    text = "".join(FILL.format(n) + (END.replace("a S", f"a {n} S") if n % 97 == 0 else "") for n in range(3000))
    text = text.replace("a 0 S", "a S")
    numbers = [n + 1 for n, line in enumerate(text.splitlines()) if "receives a SIGTERM" in line]
    monkeypatch.setattr(lines, "PIECE", 1000)
    monkeypatch.setattr(lines, "AHEAD", 300)
    monkeypatch.setattr(lines, "BEHIND", 300)
    assert [number for number, line in found(text.encode()) if "receives a SIGTERM" in line] == numbers


def test_a_pipe_that_gives_little_at_a_time():
    text = "".join(FILL.format(n) for n in range(2000)) + END
    assert [line.place.line for line in scan(text.encode(), Slow).lines] == [2001]


def test_neighbours_are_kept_on_both_sides():
    (line,) = scan(("a\nb\n" + END + "c\nd\n").encode()).lines
    assert line.before == ((1, "a"), (2, "b"))
    assert line.after[:2] == ((4, "c"), (5, "d"))


class TestEncodings:
    TEXT = FILL * 3 + END

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_marked(self, encoding):
        assert found(self.TEXT.encode(encoding)) == [(4, END.strip())]

    def test_gzip_and_two_members(self):
        data = gzip.compress(self.TEXT.encode()) + gzip.compress(END.encode())
        assert found(data) == [(4, END.strip()), (5, END.strip())]

    def test_a_cut_gzip_is_read_as_far_as_it_goes(self):
        text = END + "".join(f"{n * 7919 % 100_003} {n * 104_729 % 99_991}\n" for n in range(50_000))
        data = gzip.compress(text.encode())
        scanned = scan(data[: len(data) // 2])
        assert [line.place.line for line in scanned.lines] == [1]
        assert "cut off" in scanned.trouble

    def test_a_damaged_gzip_is_told(self):
        data = bytearray(gzip.compress((END * 9000).encode()))
        data[40:44] = b"\0\0\0\0"
        assert scan(bytes(data)).trouble

    def test_bytes_that_are_no_text(self):
        assert found(bytes(range(256)) * 50 + b"\n" + END.encode())[-1][1] == END.strip()

    def test_other_packings_are_named(self):
        assert "zip" in plain_stream(io.BytesIO(b"PK\x03\x04" + b"\0" * 40)).trouble


def test_a_progress_bar_is_a_line_each_and_keeps_the_number():
    data = b"a\n" + b"".join(b"step: %d/300\r" % n for n in range(300)) + b"Killed\nb\n"
    assert found(data) == [(2, "Killed")]


def test_a_line_of_ten_megabytes_keeps_what_stands_around_the_words():
    data = b"x" * 5_000_000 + b" The process receives a SIGTERM. " + b"y" * 5_000_000
    (line,) = scan(data).lines
    assert "receives a SIGTERM" in line.text
    assert len(line.text) <= lines.LONGEST


def test_lines_that_differ_in_numbers_are_counted_and_the_last_is_kept():
    text = "".join(f"NCCL WARN connection refused {n}\n" for n in range(20_000))
    kept = scan(text.encode()).lines
    assert [line.place.line for line in kept] == [1, 2, 3, 4, 5, 6, 20_000]
    assert kept[-1].repeated == 20_000 - 7


def test_memory_does_not_grow_with_kinds_of_lines(monkeypatch):
    monkeypatch.setattr(lines, "MOST", 50)
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghijklmno" for c in "abcdefghij"]
    text = "".join(f"OSError: {word} No space left on device\n" + FILL * 8 for word in words).encode()
    tracemalloc.start()
    kept = scan(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(kept.lines) == 100
    assert peak < 12 << 20


def test_a_series_is_thinned_evenly():
    text = "".join(f"Memory-Usage after train: {{'used_GB': {n}}}\n" for n in range(30_000))
    memory = scan(text.encode()).memory
    assert memory.seen == 30_000
    assert len(memory.lines) < lines.MOST_NUMBERS
    gaps = {b - a for (a, _), (b, _) in zip(memory.lines, memory.lines[1:], strict=False)}
    assert len(gaps) == 1


def test_the_step_is_that_of_the_lines_before():
    text = "step 7: {'loss': 0.1}\n" + FILL * 30_000 + "step 8: {'loss': 0.1}\n" + FILL * 10 + END
    (line,) = scan(text.encode()).lines
    assert line.step == 8


def test_what_ray_does_not_show_is_counted():
    (line,) = scan(b"(A pid=1) Killed [repeated 7x across cluster]\n").lines
    assert line.repeated == 7


@pytest.mark.parametrize(
    ("text", "name", "pid", "rank"),
    [
        ("(WorkerDict pid=12, ip=10.0.0.1) x", "WorkerDict", 12, None),
        ("[rank7]: x", "", None, 7),
        ("ray::Trainer.train() (pid=9, ip=10.0.0.1, actor_id=ff)", "", 9, None),
        ("(pid=33) x", "", 33, None),
    ],
)
def test_who_printed_it(text, name, pid, rank):
    process = process_of(text)
    assert (process.name, process.pid, process.rank) == (name, pid, rank)


def test_colours_go():
    assert clean(b"\x1b[31m\x1b[1mKilled\x1b[0m") == "Killed"
