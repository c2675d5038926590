import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.rollout.stopping import StopWatch, visible_text

from .tiny_models import END, tokenizer

TOKENIZER = tokenizer()


def tokens_until_stop(ids: list[int], stops: tuple[str, ...]) -> int | None:
    watch = StopWatch(TOKENIZER, stops)
    return next((at + 1 for at, token in enumerate(ids) if watch.push(token)), None)


@given(
    st.text(alphabet="abü€😀\n ", max_size=30),
    st.lists(st.text(alphabet="abü€\n ", min_size=1, max_size=4), min_size=1),
)
def test_stops_at_the_first_token_that_completes_a_stop_text(text, stops):
    ids = TOKENIZER.encode(text)
    ends = [len(text[: text.find(stop) + len(stop)].encode()) for stop in stops if stop in text]
    assert tokens_until_stop(ids, tuple(stops)) == min(ends, default=None)
    assert visible_text(TOKENIZER, ids, stops) == min((text.split(stop)[0] for stop in stops), key=len)


def test_broken_characters_neither_hide_nor_make_a_stop_text():
    broken = TOKENIZER.encode("€")[0]
    assert tokens_until_stop([broken] * 20 + TOKENIZER.encode("ok"), ("ok",)) == 22
    assert tokens_until_stop([broken] * 20, ("ok",)) is None


def test_tokens_without_text_do_not_hide_a_stop_text():
    a, b = TOKENIZER.encode("ab")
    assert tokens_until_stop([a, 290, 291, 292, b, a], ("ab",)) == 5


def test_a_special_token_may_be_a_stop_text():
    ids = [*TOKENIZER.encode("ab"), END]
    assert tokens_until_stop(ids, ("<end>",)) == 3
    assert visible_text(TOKENIZER, ids, ("<end>",)) == "ab"


def test_only_a_few_tokens_are_decoded_at_a_time(monkeypatch):
    longest = []
    decode = type(TOKENIZER).decode

    def counting(self, ids, **kwargs):
        longest.append(len(ids))
        return decode(self, ids, **kwargs)

    monkeypatch.setattr(type(TOKENIZER), "decode", counting)
    broken = TOKENIZER.encode("€")[0]
    for ids in (TOKENIZER.encode("ab" * 200), [299] * 400, [broken] * 400):
        assert tokens_until_stop(ids, ("zz",)) is None
    assert max(longest) <= 16


def test_no_stops_show_all_text():
    assert visible_text(TOKENIZER, TOKENIZER.encode("a b . c"), ()) == "a b . c"


@pytest.mark.parametrize("text", ["x<end>y"])
def test_special_tokens_are_not_shown(text):
    assert visible_text(TOKENIZER, TOKENIZER.encode(text), ()) == "xy"
