"""Numbers that are none: proven where the end says so, supported where the last loss is one, and not where they came
and went or belong to something else."""

import time

import pytest

from .told import told

TRACE = 'Traceback (most recent call last):\n  File "{}", line 3, in step\n    x = work()\n'
LIBRARY, OWN = TRACE.format("/lib/python3.11/site-packages/transformers/utils.py"), TRACE.format("/home/me/train.py")
SAMPLING = "probability tensor contains either `inf`, `nan` or element < 0"
KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], "
    f"thread: [0,0,0] Assertion `{SAMPLING}` failed.\n"
)
ASSERT = "RuntimeError: CUDA error: device-side assert triggered\n"
VLLM = f"ERROR EngineCore encountered a fatal error.\n{TRACE.format('/site-packages/vllm/v1/sample.py')}"


@pytest.mark.parametrize(
    "end",
    [
        f"{LIBRARY}RuntimeError: {SAMPLING}",
        f"{KERNEL}{LIBRARY}{ASSERT}",
        f"{LIBRARY}torch.AcceleratorError: CUDA error: device-side assert triggered\n{KERNEL}",
        f"MultinomialKernel.cu:109: block: [0,0,0] Assertion `cumdist[size - 1] > 0` failed.\n{LIBRARY}{ASSERT}",
        f"{LIBRARY}RuntimeError: invalid multinomial distribution (encountering probability entry = infinity or NaN)",
        f"{LIBRARY}RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output.",
        f"{LIBRARY}RuntimeError: Rank 3: Unexpected result nan (message='found NaN in local grad norm')",
        f"{LIBRARY}Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        f"{LIBRARY}RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it "
        "cannot be clipped.",
        f"{OWN.replace('x = work()', 'raise ValueError(msg)')}ValueError: Loss is nan, stopping training",
        "".join(f"(EngineCore_0 pid=9) {line}\n" for line in f"{VLLM}RuntimeError: {SAMPLING}".splitlines()),
    ],
)
def test_an_end_that_says_it_proves_the_numbers_and_not_why(end):
    found = told(f"step 10: {{'loss': 0.4}}\nstep 11: {{'loss': nan, 'grad_norm': nan}}\n{end}\n")
    assert (found.cause, found.cause_grade, found.family) == ("numerics", "proven", "numerics")
    assert "loss was nan first at step 11, 0.log:2" in found.sentence
    assert "the changes are to be tried" in found.sentence
    assert "first not finite" in found.advice[0].text
    assert {2} <= {place.line for place in found.evidence}
    assert not any("CUDA_LAUNCH_BLOCKING" in each.text for each in found.advice)


@pytest.mark.parametrize(
    "end",
    [
        f"{LIBRARY}{ASSERT}",
        f"Indexing.cu:1290: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n{LIBRARY}{ASSERT}",
        f"{OWN}KeyError: 'answer'",
        f"WARNING: NaN or Inf found in input tensor.\n{OWN}KeyError: 'answer'",
        f"gradients are checked for nan: no NaN detected\n{OWN}KeyError: 'answer'",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "run.sh: line 3: 12345 Killed   python train.py",
    ],
)
def test_another_end_is_not_one_of_numbers(end):
    assert told(f"step 11: {{'loss': nan}}\n{end}\n").cause != "numerics"


LASTING = (
    "{'loss': nan, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 0.03}\n" * 2,
    "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.03}\n" * 2,
    "step:12 - actor/pg_loss:nan - actor/grad_norm:nan\nstep:13 - actor/pg_loss:nan - actor/grad_norm:nan\n",
    " iteration       12/     500 | lm loss: NaN | grad norm: nan |\n",
    '{"step": 7, "train/loss": NaN, "train/grad_norm": Infinity}\n',
    "loss: tensor(nan, device='cuda:0')\n",
    "{'critic/value_loss': nan}\n",
)
GONE = (
    "{'loss': 0.3, 'grad_norm': inf}\n{'loss': 0.3, 'grad_norm': 2.1}\n",
    "{'loss': nan}\nOVERFLOW! Skipping step.\n{'loss': 0.4}",
    "{'loss': 0.3, 'grad_norm': 1.0, 'eval_loss': nan}\n",
    "{'eval/loss': nan, 'val_loss': nan, 'rewards/std': nan, 'kl': nan}\n",
    "loss mask: nan\nlossy: nan\n",
    "{'loss': 0.3, 'name': 'nano'}\n",
)


@pytest.mark.parametrize("log", LASTING)
def test_a_loss_that_stays_no_number_is_a_cause_without_a_death(log):
    found = told(f"step 1 {{'loss': 0.4}}\n{log}")
    assert (found.mechanism, found.cause, found.cause_grade) == ("unknown", "numerics", "supported")


@pytest.mark.parametrize("log", GONE)
def test_what_came_and_went_or_is_no_loss_is_none(log):
    assert told(f"step 1 {{'loss': 0.4}}\n{log}").cause != "numerics"


def test_a_long_line_is_read_quickly():
    before = time.perf_counter()
    for text in ("a_" * 900, "loss_" * 300, "word " * 350):
        told(f"step 1: {text}x: nan\n{text}: nan and {text}\n")
    assert time.perf_counter() - before < 2


def test_it_is_told_of_a_run_that_finished_or_was_stopped_too():
    finished = told(f"{LASTING[0]}{{'train_runtime': 12.0}}\n")
    assert (finished.outcome, finished.cause, bool(finished.advice)) == ("finished", "numerics", True)
    stopped = told(f"{LASTING[0]}{OWN}KeyboardInterrupt\n")
    assert (stopped.outcome, stopped.cause, bool(stopped.advice)) == ("stopped", "numerics", True)
    assert "numerics" in stopped.sentence


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("accelerate launch --fp16", "the log shows fp16"),
        ("torch_dtype: float16", "the log shows fp16"),
        ("nothing", "where fp16 is in use"),
        ("trainer --bf16 true", ""),
    ],
)
def test_the_precision_that_the_log_shows_is_what_is_advised_on(setting, said):
    found = told(f"{setting}\n{KERNEL}{LIBRARY}{ASSERT}")
    advised = [each.text for each in found.advice if "bf16 in place" in each.text]
    assert [said in text for text in advised] == ([True] if said else [])
