"""From a problem to the tokens that the model sees."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from headway.config.sections import DataSection
from headway.errors import InputError
from headway.rollout.files import Chat, Record


class Tokenizer(Protocol):
    """What is needed of a transformers tokenizer."""

    chat_template: str | None

    def __call__(self, text: str) -> Mapping[str, Sequence[int]]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool
    ) -> list[int]: ...


def prompt_ids(record: Record, data: DataSection, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of the prompt. In `data.template` only {prompt} is replaced: other braces are text.

    With format = "chat" the template goes around the last user message and the model's chat template around all;
    messages of the problem's own keep their system message. With format = "text" the tokenizer adds the special
    tokens that it adds to any text.

    Raises InputError where the format does not fit the tokenizer or the problem.
    """
    if data.format == "text":
        if record.chat is not None:
            raise InputError(
                f'data.format = "text": the prompt of {record.place} is a list of messages; set data.format = "chat"'
            )
        return tuple(tokenizer(_around(record.prompt, data.template))["input_ids"])
    return _chat_ids(messages(record, data), record.place, tokenizer)


def messages(record: Record, data: DataSection) -> list[dict[str, str]]:
    """The conversation of a problem, template and system message included."""
    chat: Chat = record.chat or ({"role": "user", "content": record.prompt},)
    last = max(index for index, message in enumerate(chat) if message["role"] == "user")
    conversation = [dict(message) for message in chat]
    conversation[last]["content"] = _around(conversation[last]["content"], data.template)
    if data.system is not None and conversation[0]["role"] != "system":
        conversation.insert(0, {"role": "system", "content": data.system})
    return conversation


def _chat_ids(conversation: list[dict[str, str]], place: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        raise InputError(
            'data.format = "chat": the model\'s tokenizer has no chat template; set data.format = "text"'
        )
    try:
        return tuple(
            tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=True, return_dict=False)
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in conversation)
        raise InputError(
            f"the model's chat template refuses the messages ({roles}) of {place}: {error}; "
            'remove data.system, change the messages, or set data.format = "text"'
        ) from None


def _around(prompt: str, template: str) -> str:
    return template.replace("{prompt}", prompt)
