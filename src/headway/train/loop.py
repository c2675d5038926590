"""The whole run, readable as the algorithm: generate, score, advantage, update, evaluate, save."""

import math
import time

from headway.errors import LimitReachedError
from headway.plan.ledger import Phase
from headway.rollout.data import prompts_for_step
from headway.rollout.samples import Sample, collect
from headway.train.advantage import group_advantages, group_rewards
from headway.train.evaluate import evaluate
from headway.train.failures import with_retries
from headway.train.job import Job
from headway.train.loss import LossStats
from headway.train.metrics import StepClock, step_record
from headway.train.model import reference_of
from headway.train.optim import learning_rate
from headway.train.pack import admit, scored
from headway.train.stop import StopRequested
from headway.train.update import accumulate, make_update, score


def train(job: Job) -> str:
    """Train to the last step; returns "finished", or who asked the run to stop: a signal's name, or "guard".

    A stop drops unfinished gradients and answers and saves what is done, so that a resume repeats nothing else.
    """
    progress = job.progress
    try:
        job.stop.check()
        if progress.updates == 0 and (progress.step in (0, job.spec.train.steps) or job.due(job.spec.eval.every)):
            evaluate(job, progress.step)  # nothing where it is done: a stop may have come before its end
        while progress.step < job.spec.train.steps:
            job.heed()
            one_step(job)
            if job.due(job.spec.eval.every) or progress.step == job.spec.train.steps:
                evaluate(job, progress.step)
            if job.due(job.spec.output.save_every) or progress.step == job.spec.train.steps:
                job.save()
    except StopRequested as request:
        job.drop_gradients()
        job.save(again=False)
        return str(request)
    except LimitReachedError:
        job.rescue()
        raise
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
            job.heed_failures(rollout, Phase.ROLLOUT)
            progress.rollout = rollout

    samples = progress.rollout
    advantages = group_advantages(group_rewards(samples, spec.rollout.samples), spec.objective.std_normalise)
    kept = admit(samples, spec.train.cap, job.longest_allowed)

    if spec.train.updates > 1 and progress.old_logprobs is None:
        with job.phase(Phase.SCORE, step), clock.time("score"):
            progress.old_logprobs = score(job.model, samples, kept, job.how, job.check, job.failed)
    if spec.objective.kl_coef > 0 and progress.ref_logprobs is None:
        with (
            job.phase(Phase.SCORE, step),
            clock.time("score"),
            reference_of(job.model, job.reference) as reference,
        ):
            progress.ref_logprobs = score(reference, samples, kept, job.how, job.check, job.failed)
    kept = scored(kept, samples, progress.old_logprobs, progress.ref_logprobs)

    stats, trained = LossStats.from_dict(progress.sums), 0
    while progress.updates < spec.train.updates:
        job.heed()
        update = make_update(
            samples, job.part(kept, progress.updates), advantages.flatten().tolist(),
            progress.old_logprobs, progress.ref_logprobs, spec.objective, spec.rollout.max_answer,
        )  # fmt: skip
        with job.phase(Phase.TRAIN, step), clock.time("train"):
            passes = accumulate(job.model, update, spec.objective, job.how, job.check, job.failed)
            job.learn_from(passes)
        with job.changing_weights(), job.phase(Phase.STEP, step), clock.time("step"):
            lr = learning_rate(spec.train, progress.optimizer_steps, job.optimizer_steps)
            norm = update_parameters(job, lr)
        stats, trained = stats + passes.stats, trained + passes.trained
        progress.updates += 1
        progress.optimizer_steps += 1
        progress.sums = stats.to_dict()
        job.engine.update_weights(progress.optimizer_steps)

    too_long = len(samples) - len(kept)
    finish(job, samples, stats, clock, trained=trained, lr=lr, grad_norm=norm, too_long=too_long)


def update_parameters(job: Job, lr: float) -> float:
    """Clip and apply the gradients, unless they are not finite; returns their norm before."""
    norm = with_retries(lambda: job.optimizer.clip_(job.spec.train.grad_clip))
    if math.isfinite(norm):
        with_retries(lambda: job.optimizer.step(lr))
    else:
        job.drop_gradients()
        job.view.message(f"the gradient's norm is {norm}; this optimizer step is left out")
    return norm


def finish(
    job: Job,
    samples: tuple[Sample, ...],
    stats: LossStats,
    clock: StepClock,
    *,
    trained: int,
    lr: float,
    grad_norm: float,
    too_long: int,
) -> None:
    """Close the step: its record, its sample rollouts, and a clean place for the next one."""
    progress = job.progress
    progress.step += 1
    progress.seconds = job.elapsed()
    record = step_record(progress.step, samples, job.spec.rollout.samples, stats, clock, trained, job.memory_peaks())
    record |= {"lr": lr, "grad_norm": grad_norm, "dropped": too_long + stats.dropped, "time": time.time()}
    job.write_step(record, samples)
    progress.updates = 0
    progress.rollout, progress.old_logprobs, progress.ref_logprobs, progress.sums = (), None, None, {}
