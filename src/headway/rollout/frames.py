"""How the trainer and the reward process talk: each message is a 4-byte big-endian length and that much JSON."""

import json
import struct
from typing import Any, BinaryIO

HEADER = struct.Struct(">I")

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """One frame. The JSON is ASCII, so a lone surrogate in a model's text survives.

    >>> encode({"a": 1})
    b'\\x00\\x00\\x00\\x08{"a": 1}'
    """
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def receive(source: BinaryIO) -> Message | None:
    """The next message of a buffered stream, waiting for it; None at the end of the stream."""
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = source.read(length)
    return json.loads(body) if len(body) == length else None
