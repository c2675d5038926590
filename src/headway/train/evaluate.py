"""Evaluation on held-out problems: greedy pass@1, or pass@1 and pass@k from k samples."""

from statistics import fmean

from headway.plan.ledger import Phase
from headway.rollout.engine import SamplingParams
from headway.rollout.samples import collect, right, share_correct
from headway.train.job import Job
from headway.train.output import append

EVALUATION = 2**32 - 1
"""Takes the step's place in an evaluation's random keys, so that every evaluation draws the same randomness."""


def evaluate(job: Job, step: int) -> None:
    """Score the held-out problems after `step` steps and record it. Nothing where it is off or already recorded.

    `reward` is the mean of the answers' own scores, without those that could not be scored; `correct` the share with
    the full score, unless a score outside 0 to 1 leaves open what that is.
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
        job.heed_failures(samples, Phase.EVAL)
    groups = [samples[at : at + spec.eval.samples] for at in range(0, len(samples), spec.eval.samples)]
    scores, correct = [sample.score for sample in samples if sample.score is not None], share_correct(samples)
    result = {
        **({"reward": fmean(scores)} if scores else {}),
        **({} if correct is None else {"correct": correct}),
        "problems": float(len(groups)),
        "answer_tokens": sum(len(sample.response_ids) for sample in samples) / len(samples),
        "answer_truncated": sum(sample.finish == "length" for sample in samples) / len(samples),
    }
    if failed := sum(sample.failure is not None for sample in samples):
        result["reward_failures"] = float(failed)
    if correct is not None and not greedy:
        result[f"pass@{spec.eval.samples}"] = fmean(any(map(right, group)) for group in groups)
    job.write_samples(Phase.EVAL, step, samples)
    append(job.folder.evaluations, {"step": step} | result)
    job.writers.evaluation(step, result)
    job.view.evaluation(step, result)
