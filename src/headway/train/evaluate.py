"""Evaluation on held-out problems: greedy pass@1, or pass@1 and pass@k from k samples."""

from headway.plan.ledger import Phase
from headway.rollout.engine import SamplingParams
from headway.rollout.samples import collect
from headway.train.job import Job
from headway.train.output import append

EVALUATION = 2**32 - 1
"""Takes the step's place in an evaluation's random keys, so that every evaluation draws the same randomness."""


def evaluate(job: Job, step: int) -> None:
    """Score the held-out problems after `step` steps and record it. Nothing where it is off or already recorded.

    `reward` is the mean of `correct`: the exact answer alone, never credit for its format.
    """
    spec = job.spec
    if not job.problems.held_out:
        return
    if job.folder.evaluation(step) is not None:
        return
    greedy = spec.eval.samples == 1
    params = SamplingParams(
        spec.rollout.max_answer, 0.0 if greedy else spec.eval.temperature, stop=tuple(spec.rollout.stop)
    )
    with job.phase(Phase.EVAL, step):
        samples = collect(
            job.engine, job.scorer, job.problems.held_out,
            samples=spec.eval.samples, params=params, seed=spec.train.seed, step=EVALUATION,
        )  # fmt: skip
        job.stop.check()
    groups = [samples[at : at + spec.eval.samples] for at in range(0, len(samples), spec.eval.samples)]
    result = {
        "reward": sum(sample.correct for sample in samples) / len(samples),
        "problems": float(len(groups)),
        "answer_tokens": sum(len(sample.response_ids) for sample in samples) / len(samples),
        "answer_truncated": sum(sample.finish == "length" for sample in samples) / len(samples),
    }
    if not greedy:
        result[f"pass@{spec.eval.samples}"] = sum(any(s.correct >= 1 for s in group) for group in groups) / len(
            groups
        )
    job.write_samples(Phase.EVAL, step, samples)
    append(job.folder.evaluations, {"step": step} | result)
    job.writers.evaluation(step, result)
    job.view.evaluation(step, result)
