"""From bytes to plain text: compression, encodings, colours, and the prefixes that name a process."""

import codecs
import json
import re
import zlib
from typing import BinaryIO, Protocol

from headway.diagnose.evidence import Process

COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]{0,200}\x07")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor or turns its text around."""
REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")
_ACTOR = re.compile(r"\((?P<name>[^()\n]{0,80}?)[, ]*pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:]+))?[^)\n]{0,80}\)")
_RANK = re.compile(
    r"(?<![\w.])\[(?:rank|default)?(?P<rank>\d{1,5})\]:|\[rank (?P<other>\d{1,5})\]|"
    r"\b(?:TP|Rank |rank=)(?P<tp>\d{1,5})\b"
)
_PREFIX = re.compile(
    r"^\s*(?:\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)\]?(?: std(?:out|err) [FP])?|"
    r"\([^()\n]{0,120}pid=\d+[^()\n]{0,120}\)|\[(?:rank|default)?\d{1,5}\]:|"
    r"(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\]|"
    r"\[pod/[\w./-]+\]|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ "
    r"(?:python[\d.]*|bash|torchrun|docker|\w+\.sh)(?:\[\d+\])?:|"
    r"[\w.-]{1,60}[-_]\d+ +\|(?= )|\d{1,5}:(?= )) ?"
)

BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


_PROBLEM = re.compile(r'^\s*"problem": (?P<text>"(?:[^"\\]|\\.)*"),?\s*$')
"""The line of a run's summary.json that says why it ended."""


def spoken(text: str) -> str:
    """A line as it is, or the sentence that a summary of headway holds in it.

    >>> spoken(' "problem": "disk full: \\\\"x\\\\" of step 1",'), spoken('"loss": "nan"')
    ('disk full: "x" of step 1', '"loss": "nan"')
    """
    found = _PROBLEM.match(text)
    return str(json.loads(found["text"])) if found is not None else text


class Stream(Protocol):
    """Bytes, some at a time; b"" at the end. `trouble` says what could not be read."""

    trouble: str

    def read(self, size: int) -> bytes: ...


class Plain:
    """A file as it is."""

    def __init__(self, file: BinaryIO, start: bytes = b"") -> None:
        self._file, self._start, self.trouble = file, start, ""

    def read(self, size: int) -> bytes:
        if self._start:
            start, self._start = self._start, b""
            return start
        try:
            return self._file.read(size)
        except OSError as error:
            self.trouble = f"reading stopped early ({error.strerror})"
            return b""


class Gunzip:
    """A gzip file, its members one after the other; what a cut file holds is read to its last byte."""

    def __init__(self, inner: Stream) -> None:
        self._inner, self.trouble = inner, ""
        self._unpack, self._waiting, self._ended = zlib.decompressobj(31), b"", False

    def read(self, size: int) -> bytes:
        while not self._ended:
            if not self._waiting:
                self._waiting = self._inner.read(size)
                if not self._waiting:
                    self._ended = True
                    if not self._unpack.eof:
                        self.trouble = "the gzip file is cut off; what is left of it was read"
                    return self._unpack.flush()
            try:
                found = self._unpack.decompress(self._waiting, size)
            except zlib.error:
                self._ended, self.trouble = True, "the gzip file is damaged; what comes before was read"
                return b""
            self._waiting = self._unpack.unconsumed_tail
            if self._unpack.eof:
                rest = self._unpack.unused_data.lstrip(b"\0")
                self._waiting, self._unpack = rest, zlib.decompressobj(31)
                self._ended = not rest and not (rest := self._inner.read(size))
                self._waiting = rest
            if found:
                return found
        return b""


class Recoded:
    """Text in UTF-16, or UTF-8 with a mark, as UTF-8."""

    def __init__(self, inner: Stream, encoding: str) -> None:
        self._inner, self._decoder = inner, codecs.getincrementaldecoder(encoding)(errors="replace")
        self.trouble = inner.trouble

    def read(self, size: int) -> bytes:
        while True:
            data = self._inner.read(size)
            self.trouble = self._inner.trouble
            found = self._decoder.decode(data, final=not data).encode(errors="replace")
            if found or not data:
                return found


def plain_stream(file: BinaryIO) -> Stream:
    """The bytes of a file as UTF-8 or something near to it, unpacked where it is gzip."""
    start = file.read(4)
    packed = next((name for mark, name in PACKED.items() if start.startswith(mark)), "")
    stream: Stream = Plain(file, start)
    if packed == "gzip":
        stream = Gunzip(stream)
        start = stream.read(1 << 16)
        trouble, stream = stream.trouble, _Resumed(start, stream)
        stream.trouble = trouble
    elif packed and packed != "bzip2":
        stream.trouble = f"packed with {packed}: unpack it first"
    encoding = next((name for mark, name in BOMS if start.startswith(mark)), "")
    return Recoded(stream, encoding) if encoding else stream


class _Resumed:
    """A stream whose first bytes were read already."""

    def __init__(self, start: bytes, inner: Stream) -> None:
        self._start, self._inner, self.trouble = start, inner, inner.trouble

    def read(self, size: int) -> bytes:
        if self._start:
            start, self._start = self._start, b""
            return start
        found = self._inner.read(size)
        self.trouble = self._inner.trouble
        return found


BINARY = 0.1
"""Share of characters that are none, above which something is no text."""


def is_binary(start: bytes) -> bool:
    """Whether the beginning of a file is no text: too much of it is neither a character nor white space.

    >>> is_binary(b"step 3: loss 0.5"), is_binary(bytes([137, 80, 78, 71, 13, 10, 26, 10])), is_binary(b"")
    (False, True, False)
    """
    text = COLOURS.sub("", start.decode("utf-8", errors="replace"))
    odd = sum(each == "\ufffd" or (each < " " and each not in "\t\n\r\b\f\x1b") for each in text)
    return odd > BINARY * len(text)


def clean(data: bytes) -> str:
    """A line without colours and control characters.

    >>> clean(b"\\x1b[36m(Actor pid=7)\\x1b[0m Killed\\r")
    '(Actor pid=7) Killed'
    """
    return CONTROL.sub("", COLOURS.sub("", data.decode("utf-8", errors="replace"))).rstrip()


def process_of(text: str) -> Process:
    """Who printed a line, by its prefix or by the call that it names.

    >>> process_of("(MegatronTrainRayActor pid=31, ip=10.0.0.4) [rank3]: x")
    Process(name='MegatronTrainRayActor', pid=31, host='10.0.0.4', rank=3)
    """
    text = text[:400]
    actor, rank = _ACTOR.search(text), _RANK.search(text)
    found = next((each for each in rank.groups() if each), None) if rank else None
    if actor is None:
        return Process(rank=None if found is None else int(found))
    return Process(
        actor["name"].strip(), int(actor["pid"][:12]), actor["host"] or "", None if found is None else int(found)
    )


def without_prefix(text: str) -> str:
    """A line without the prefix of its process, and without the date that a platform's log has before it.

    >>> without_prefix("(Trainer pid=3) [rank1]:   File x")
    '  File x'
    """
    for _ in range(6):  # an actor's in another's, a rank's, a logger's
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text
