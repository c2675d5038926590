"""Two attempts side by side: what changed between their ends, what did not."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from headway.diagnose.finding import Finding
from headway.units import format_bytes


def compare(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What differs between the first ends of the runs, in their order; () for one run."""
    firsts: dict[int, Finding] = {}
    for finding in findings:
        if not finding.survived:
            firsts.setdefault(finding.run, finding)
    ends = [firsts[run] for run in sorted(firsts)]
    return tuple(line for before, after in pairwise(ends) for line in _pair(before, after))


def _pair(before: Finding, after: Finding) -> Iterator[str]:
    names = f"attempts {before.run + 1} and {after.run + 1}"
    if before.mechanism == after.mechanism:
        yield f"{names} ended alike: {after.mechanism}"
    else:
        yield f"{names} ended differently: {before.mechanism}, then {after.mechanism}"
    if before.step is not None and after.step is not None:
        yield (
            f"at step {before.step}, then {after.step}" if before.step != after.step else f"both at step {after.step}"
        )
    if before.kill is not None and after.kill is not None:
        used, total = format_bytes(before.kill.used), format_bytes(after.kill.total)
        yield f"node use {used}, then {format_bytes(after.kill.used)} of {total}"
        largest = {command: size for _, size, command in reversed(before.kill.top)}
        for _, size, command in after.kill.top[:3]:
            if command in largest:
                change = _change(largest[command], size)
                yield f"{command}: {format_bytes(largest[command])}, then {format_bytes(size)}{change}"
        if before.kill.top and after.kill.top:
            yield f"in no listed process: {format_bytes(before.kill.gap)}, then {format_bytes(after.kill.gap)}"
        if after.kill.used >= before.kill.used:
            yield "the change between them made no room: the second attempt held no less when it was killed"
    if before.asked is not None and after.asked is not None:
        yield f"asked for {format_bytes(before.asked)}, then {format_bytes(after.asked)} of device memory"


def _change(before: int, after: int) -> str:
    return " (unchanged within 1 %)" if abs(after - before) <= 0.01 * before else ""
