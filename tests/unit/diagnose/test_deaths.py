"""Texts in the forms that programs print, and public reports: names, grades, and nothing claimed too high."""

import json
from pathlib import Path

import pytest

from doctor_accuracy import answer, judge, summary

from .told import told

DATA = Path(__file__).parents[2] / "data" / "deaths"
FORMS = [json.loads(line) for line in (DATA / "forms.jsonl").read_text().splitlines()]
PUBLIC = [json.loads(line) for line in (DATA / "public.jsonl").read_text().splitlines()]
NOISE = "\n".join(f"(RolloutManager pid={40 + n}) request {n} finished: 812 tokens, reward 0.5" for n in range(200))


@pytest.mark.parametrize("form", FORMS, ids=[f"{n}-{form['mechanism']}" for n, form in enumerate(FORMS)])
class TestForms:
    def test_names(self, form):
        found = told(form["text"])
        assert found.mechanism == form["mechanism"]
        assert found.cause == form["cause"] or (form["cause"] == "not-established" and found.cause_grade == "open")

    def test_in_the_middle_of_a_log(self, form):
        found = told(f"{NOISE}\n{form['text']}\n{NOISE}")
        assert found.mechanism == form["mechanism"]
        assert found.cause == form["cause"] or found.cause_grade == "open"

    def test_with_the_prefix_of_an_actor_and_colours(self, form):
        lines = [f"\x1b[36m(WorkerDict pid=77, ip=10.0.0.9)\x1b[0m {line}" for line in form["text"].splitlines()]
        assert told("\n".join(lines)).mechanism == form["mechanism"]

    def test_every_piece_of_evidence_is_a_line_of_the_text(self, form):
        lines = [line.strip() for line in form["text"].splitlines()]
        for place in told(form["text"]).evidence:
            assert place.text.strip().replace("\t", "") == lines[place.line - 1].replace("\t", "")


@pytest.mark.parametrize("case", PUBLIC, ids=[case["id"] for case in PUBLIC])
def test_public_reports(case):
    verdict = judge(case, answer(case))
    assert False not in (verdict["mechanism"], verdict["family"], verdict["cause"])
    assert not verdict["wrong_at_proven"]
    assert not verdict["overclaimed"]


@pytest.mark.parametrize("case", PUBLIC, ids=[case["id"] for case in PUBLIC])
def test_public_reports_in_another_order_claim_nothing_false(case):
    verdict = judge(case, answer(case | {"log_lines": case["log_lines"][::-1]}))
    assert verdict["mechanism"] is not False
    assert not verdict["wrong_at_proven"]
    assert not verdict["overclaimed"]


CONSTANT = (
    "This can happen if the instance where the node was running failed, the node was preempted, or raylet crashed "
    "unexpectedly (e.g., due to OOM) etc.",
    "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory "
    "usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other "
    "unexpected errors.",
    "(3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error.",
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.",
    "[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue, e.g. because of a retry)",
    "/tmp/ray is over 95% full, available space: 48.2 GB; capacity: 1000 GB.",
    "KV cache pool is full. Retract requests. #retracted_reqs: 3",
    "The worker may have exceeded K8s pod memory limits.",
    "0 Workers (tasks / actors) killed due to memory pressure (OOM), 2 Workers crashed due to other reasons",
)


@pytest.mark.parametrize("text", CONSTANT)
def test_what_is_printed_whatever_happened_is_no_evidence(text):
    found = told(text)
    assert (found.mechanism, found.cause) == ("unknown", "not-established")


@pytest.mark.parametrize("text", CONSTANT)
def test_what_is_printed_whatever_happened_changes_no_answer(text):
    alone = told("The process receives a SIGTERM.")
    beside = told(f"{text}\nThe process receives a SIGTERM.\n{text}")
    assert (beside.mechanism, beside.cause, beside.mechanism_grade) == (alone.mechanism, alone.cause, "proven")


class TestTheScore:
    CASE = PUBLIC[0]

    def test_a_false_mechanism_that_is_called_proven_is_counted(self):
        case = self.CASE | {"log_lines": ["Memory cgroup out of memory: Killed process 12 (python3)"]}
        verdict = judge(case, answer(case))
        assert verdict["mechanism"] is False
        assert verdict["wrong_at_proven"]

    def test_a_cause_where_none_can_be_known_is_counted(self):
        case = self.CASE | {"log_lines": ["torch.OutOfMemoryError: CUDA out of memory.", "logits.float()"]}
        assert judge(case, answer(case))["overclaimed"]

    def test_the_summary_counts_what_is_decidable(self):
        judged = [judge(case, answer(case)) for case in PUBLIC]
        figures = summary(judged)
        assert figures["cause_cases"] == sum(case["decidable"] == "cause" for case in PUBLIC)
        assert figures["mechanism_accuracy"] == 1.0
