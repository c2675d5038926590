"""Text of logs and models on a page: nothing in it is markup, hides, or is longer than it may be."""

import html
import json
import re
from typing import Any

TEXT = 4000
"""Characters of a text on the page, unless its place allows fewer."""

# controls but for tab and line feed, halves of surrogate pairs, what turns the direction of writing around, what no
# eye sees
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
_MARKUP = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def clean(text: object, most: int = TEXT) -> str:
    """A text that can be seen: what is hidden becomes a replacement character, what is too long is cut.

    >>> clean("a\\x1b[31mb\\u202ec") == "a\\ufffd[31mb\\ufffdc", clean("abcdef", 3)
    (True, 'abc…')
    """
    found = str(text)
    found = found if len(found) <= most else found[:most] + "…"
    return _HIDDEN.sub("\ufffd", found)


def escaped(text: object, most: int = TEXT) -> str:
    """A text for HTML, between tags or as a quoted attribute.

    >>> escaped('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(clean(text, most))


def script_json(value: Any) -> str:
    """JSON that may stand in a script element: it holds no end of an element, and no end of a line.

    >>> script_json({"a": "</script>"})
    '{"a":"\\\\u003c/script\\\\u003e"}'

    ValueError for numbers that JSON does not have.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "".join(_MARKUP.get(letter, letter) for letter in text)
