"""The whole run, readable as the algorithm: generate, score, advantage, update, evaluate, save."""

import math
import time

import torch

from headway.plan.ledger import Phase
from headway.rollout.data import prompts_for_step
from headway.rollout.samples import Sample, collect
from headway.train.advantage import group_advantages
from headway.train.evaluate import evaluate
from headway.train.job import Job
from headway.train.loss import LossStats
from headway.train.metrics import StepClock, step_record
from headway.train.model import reference_of
from headway.train.optim import learning_rate
from headway.train.pack import admit
from headway.train.stop import StopRequested
from headway.train.update import accumulate, make_update, score


def train(job: Job) -> str:
    """Train to the last step; returns "finished", or the name of the signal that asked the run to stop.

    A stop drops unfinished gradients and answers and saves what is done, so that a resume repeats nothing else.
    """
    progress = job.progress
    try:
        job.stop.check()
        if progress.step == 0 and progress.updates == 0:
            evaluate(job, 0)
        while progress.step < job.spec.train.steps:
            one_step(job)
            if job.due(job.spec.eval.every) or progress.step == job.spec.train.steps:
                evaluate(job, progress.step)
            if job.due(job.spec.output.save_every) or progress.step == job.spec.train.steps:
                job.save()
    except StopRequested as request:
        job.drop_gradients()
        job.save()
        return str(request)
    return "finished"


def one_step(job: Job) -> None:
    """One rollout and its optimizer steps. Goes on inside the rollout when the run was stopped there."""
    spec, progress, clock = job.spec, job.progress, StepClock()
    step = progress.step + 1

    if not progress.rollout:
        with job.phase(Phase.ROLLOUT, step), clock.time("rollout"):
            indices, _ = prompts_for_step(
                len(job.problems.train),
                spec.rollout.prompts,
                progress.step,
                spec.train.seed,
                spec.data.shuffle,
            )
            rollout = collect(
                job.engine, job.scorer, [job.problems.train[i] for i in indices],
                samples=spec.rollout.samples, params=job.sampling, seed=spec.train.seed, step=step,
            )  # fmt: skip
            job.stop.check()
            progress.rollout = rollout

    samples = progress.rollout
    advantages = group_advantages(
        torch.tensor([sample.reward for sample in samples]).view(spec.rollout.prompts, spec.rollout.samples),
        spec.objective.std_normalise,
    )
    kept, dropped = admit(samples, spec.train.cap, job.longest_allowed)

    if spec.train.updates > 1 and progress.old_logprobs is None:
        with job.phase(Phase.SCORE, step), clock.time("score"):
            progress.old_logprobs = score(job.model, samples, kept, job.how, job.stop.check)
    if spec.objective.kl_coef > 0 and progress.ref_logprobs is None:
        with (
            job.phase(Phase.SCORE, step),
            clock.time("score"),
            reference_of(job.model, job.reference) as reference,
        ):
            progress.ref_logprobs = score(reference, samples, kept, job.how, job.stop.check)

    stats, trained = LossStats.from_dict(progress.sums), 0
    while progress.updates < spec.train.updates:
        update = make_update(
            samples, job.part(kept, progress.updates), advantages.flatten().tolist(),
            progress.old_logprobs, progress.ref_logprobs, spec.objective, spec.rollout.max_answer,
        )  # fmt: skip
        with job.phase(Phase.TRAIN, step), clock.time("train"):
            added, job.how = accumulate(job.model, update, spec.objective, job.how, job.stop.check)
        with job.phase(Phase.STEP, step), clock.time("step"):
            lr = learning_rate(spec.train, progress.optimizer_steps, job.optimizer_steps)
            norm = job.optimizer.clip_(spec.train.grad_clip)
            if math.isfinite(norm):
                job.optimizer.step(lr)
            else:
                job.drop_gradients()
                job.view.message(f"step {step}: the gradient's norm is {norm}; this optimizer step is left out")
        stats, trained = stats + added, trained + sum(sample.tokens for sample in update.samples)
        progress.updates += 1
        progress.optimizer_steps += 1
        progress.sums = stats.to_dict()
        job.engine.update_weights(progress.optimizer_steps)

    finish(job, samples, stats, clock, trained=trained, lr=lr, grad_norm=norm, dropped=dropped)


def finish(
    job: Job,
    samples: tuple[Sample, ...],
    stats: LossStats,
    clock: StepClock,
    *,
    trained: int,
    lr: float,
    grad_norm: float,
    dropped: int,
) -> None:
    """Close the step: its record, its sample rollouts, and a clean place for the next one."""
    progress = job.progress
    progress.step += 1
    progress.seconds = job.elapsed()
    record = step_record(
        progress.step, samples, stats, clock, trained, job.memory_peaks(), job.scorer.failures.total()
    )
    job.write_step(record | {"lr": lr, "grad_norm": grad_norm, "dropped": dropped, "time": time.time()}, samples)
    progress.updates = 0
    progress.rollout, progress.old_logprobs, progress.ref_logprobs, progress.sums = (), None, None, {}
