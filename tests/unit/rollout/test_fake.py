import pytest

from headway.rollout.engine import Completion, Request, SamplingParams
from headway.rollout.fake import FakeEngine

from .tiny_models import END, tokenizer

REQUESTS = [Request((1, 2), (0, step, prompt, sample)) for step in (0, 1) for prompt in (0, 1) for sample in (0, 1)]
PARAMS = SamplingParams(max_answer=20)


def by_prompt(request: Request) -> str:
    return f"prompt {request.key[2]}"


def test_answers_are_the_function_and_reproducible():
    engine = FakeEngine(by_prompt, tokenizer())
    answers = engine.generate(REQUESTS, PARAMS)
    assert [answer.text for answer in answers] == [by_prompt(request) for request in REQUESTS]
    for answer in answers:
        assert answer.token_ids == (*tokenizer().encode(answer.text), END)
        assert len(answer.logprobs) == len(answer.versions) == len(answer.token_ids)
        assert all(-3 < logprob < 0 for logprob in answer.logprobs)
        assert answer.finish == "stop"
    assert FakeEngine(by_prompt, tokenizer()).generate(REQUESTS[::-1], PARAMS)[::-1] == answers
    assert len({answer.logprobs for answer in answers}) == len(REQUESTS)


@pytest.mark.parametrize(
    ("params", "text", "finish", "tokens"),
    [
        (SamplingParams(max_answer=9), "prompt 0", "stop", 9),
        (SamplingParams(max_answer=8), "prompt 0", "length", 8),
        (SamplingParams(max_answer=3), "pro", "length", 3),
        (SamplingParams(max_answer=20, stop=("mp", "0")), "pro", "stop", 5),
        (SamplingParams(max_answer=4, stop=("mp",)), "prom", "length", 4),
        (SamplingParams(max_answer=20, stop=("x",)), "prompt 0", "stop", 9),
    ],
)
def test_length_and_stop_texts(params, text, finish, tokens):
    (answer,) = FakeEngine(by_prompt, tokenizer()).generate(REQUESTS[:1], params)
    assert (answer.text, answer.finish, len(answer.token_ids)) == (text, finish, tokens)


def test_versions_follow_the_weights():
    engine = FakeEngine(by_prompt, tokenizer())
    assert set(engine.generate(REQUESTS[:1], PARAMS)[0].versions) == {0}
    engine.update_weights(3)
    assert set(engine.generate(REQUESTS[:1], PARAMS)[0].versions) == {3}


def test_abort_while_generating_and_between_calls():
    def respond(request: Request) -> str:
        if request is REQUESTS[2]:
            engine.abort()
        return "yes"

    engine = FakeEngine(respond, tokenizer())
    aborted = Completion((), (), (), "", "abort")
    answers = engine.generate(REQUESTS[:4], PARAMS)
    assert [answer.text for answer in answers[:2]] == ["yes", "yes"]
    assert answers[2:] == [aborted, aborted]
    assert engine.generate(REQUESTS[:1], PARAMS)[0].text == "yes"
    engine.abort()
    assert engine.generate(REQUESTS[:1], PARAMS) == [aborted]


def test_a_sleeping_engine_does_not_generate():
    engine = FakeEngine(by_prompt, tokenizer())
    engine.sleep(2)
    with pytest.raises(RuntimeError, match="wake"):
        engine.generate(REQUESTS, PARAMS)
    engine.wake()
    assert engine.generate(REQUESTS, PARAMS)
    engine.close()
    with pytest.raises(RuntimeError, match="wake"):
        engine.generate(REQUESTS, PARAMS)
