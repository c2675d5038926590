"""The byte-level tokenizer: every byte is its own id, and the special tokens come after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from headway.train.tokenizer import SIZE, byte_tokenizer

TOKENIZER = byte_tokenizer()


@given(st.text().filter(lambda text: "<|" not in text))
def test_ids_are_the_bytes_and_come_back_as_the_text(text):
    ids = TOKENIZER.encode(text)
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_special_tokens():
    assert TOKENIZER.encode("a<|pad|><|bos|><|im_start|><|im_end|>b") == [97, 256, 257, 258, 259, 98]
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (256, 257, 259)
    assert len(TOKENIZER) == SIZE == 260
    assert TOKENIZER.decode([97, 256, 257, 258, 259, 98], skip_special_tokens=True) == "ab"


def test_ids_of_a_larger_vocabulary_decode_to_nothing():
    assert TOKENIZER.decode([97, 260, 50_000, 98]) == "ab"


@pytest.mark.parametrize("generation", [False, True])
def test_chat_template(generation):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "1 + 1?"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
    expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
    assert text == expected + ("<|im_start|>assistant\n" if generation else "")


def test_saved_and_loaded_is_the_same(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "é <|im_start|> 😀\n"
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.chat_template == TOKENIZER.chat_template
    assert again.special_tokens_map == TOKENIZER.special_tokens_map
