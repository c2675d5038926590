"""The byte-level tokenizer of models with random weights: token i is byte i, then the special tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

PAD, BOS, START, END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, BOS, START, END)
SIZE = 256 + len(SPECIAL)
"""Token ids are below this; a model's vocabulary must be at least as large."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """UTF-8 bytes as ids 0 to 255, then pad 256, bos 257, start of turn 258 and end of turn 259 (eos).

    Ids of a larger model vocabulary that are no token decode to nothing. No token is added by `__call__`.

    >>> byte_tokenizer().encode("Aé<|im_end|>")
    [65, 195, 169, 259]
    """
    # ByteLevel writes each byte as a printable character, as GPT-2 did; with no merges every character is a token.
    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
