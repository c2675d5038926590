"""From sources to a diagnosis: every source is scanned, its lines are read, and what they say is weighed together."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headway.diagnose.causes import NOT_ESTABLISHED
from headway.diagnose.ended import finished
from headway.diagnose.evidence import Evidence
from headway.diagnose.finding import Diagnosis, Finding, Moment
from headway.diagnose.infer import infer
from headway.diagnose.lines import Scan, Scanner, Source
from headway.diagnose.matcher import matcher
from headway.diagnose.numbers import MonitorKill
from headway.diagnose.readers import NEEDLES, SERIES, read_line, says
from headway.diagnose.settings import Settings
from headway.diagnose.sources import GIVE
from headway.units import format_bytes

MOST_PROCESSES = 5
MOST_NAMED = 3
"""Sources that a sentence names."""
HEAD = 4000
"""Characters of a first line that are looked at: a launch's command is long."""
SHOWN = 60
"""Lines of a timeline."""
_IMPORTANT = {"end": 0, "well": 0, "why": 1, "symptom": 2, "benign": 3, "context": 4}


class Read(Struct, frozen=True):
    """All that was read of some sources."""

    scans: tuple[Scan, ...]
    evidence: tuple[Evidence, ...]

    def of_run(
        self, run: int
    ) -> tuple[
        tuple[Evidence, ...], tuple[tuple[int, str], ...], tuple[tuple[int, int], ...], tuple[str, ...],
        tuple[str, ...],
    ]:  # fmt: skip
        """Evidence, measured memory, (order, step), first lines and last lines of one run."""
        scans = [scan for scan in self.scans if scan.source.run == run]
        memory = tuple(line for scan in scans for line in scan.memory.lines)
        steps = tuple((scan.first_order + line, step) for scan in scans for line, step in scan.steps)
        heads = tuple(text[:HEAD] for scan in scans for _, text in scan.head)
        tails = tuple(text for scan in scans for _, text in scan.tail)
        return tuple(each for each in self.evidence if each.line.run == run), memory, steps, heads, tails


def read(sources: Sequence[Source]) -> Read:
    """Scan and read every source. Errors of opening one are the caller's."""
    scans: list[Scan] = []
    evidence: list[Evidence] = []
    order = 0
    for source in sources:
        scan = Scanner(source, matcher(NEEDLES), SERIES, order).read()
        order += scan.count + 1
        scans.append(scan)
        for line in scan.lines:
            evidence += read_line(line)
    return Read(tuple(scans), tuple(evidence))


def diagnose(sources: Sequence[Source], settings: Settings | None = None) -> Diagnosis:
    """What ended the run or runs that the sources tell of. The answer is about the last run's first end."""
    found = read(sources)
    runs = sorted({source.run for source in sources}) or [0]
    settings = settings or Settings()
    each = [_or_nothing(infer(*_of(found, run, settings)), found, run) for run in runs]
    findings = tuple(finding for part in each for finding in part)
    return Diagnosis(
        answer=answer_of(each[-1]), findings=findings, timeline=timeline(found.evidence),
        notes=tuple(_notes(found.scans)), context=tuple(_processes(answer_of(each[-1]).kill)),
    )  # fmt: skip


def _processes(kill: MonitorKill | None) -> Iterator[str]:
    """Who held what when Ray's monitor killed."""
    if kill is None or not kill.top:
        return
    for pid, size, command in kill.top[:MOST_PROCESSES]:
        yield f"{command} (pid {pid}): {format_bytes(size)}"
    yield f"in no listed process: {format_bytes(kill.gap)}; free: {format_bytes(max(0, kill.total - kill.used))}"


def _of(found: Read, run: int, settings: Settings) -> tuple[
    tuple[Evidence, ...], Settings, tuple[tuple[int, str], ...], tuple[tuple[int, int], ...], tuple[str, ...],
    tuple[str, ...],
]:  # fmt: skip
    evidence, memory, steps, heads, tails = found.of_run(run)
    return evidence, settings, memory, steps, heads, tails


def answer_of(findings: Sequence[Finding]) -> Finding:
    """The first end that the run did not survive; where it survived all, the last."""
    return next((finding for finding in findings if not finding.survived), findings[-1])


def timeline(evidence: Sequence[Evidence]) -> tuple[Moment, ...]:
    """What was read, one moment a line, the most important where there are too many."""
    best: dict[tuple[str, int], Evidence] = {}
    for each in evidence:
        key = (each.place.file, each.place.line)
        if key not in best or _IMPORTANT[each.role] < _IMPORTANT[best[key].role]:
            best[key] = each
    kept = sorted(best.values(), key=lambda each: (_IMPORTANT[each.role], each.line.order))[:SHOWN]
    return tuple(
        Moment(each.place, each.line.clock, each.kind, each.role, says(each.kind), each.line.repeated, each.line.run)
        for each in sorted(kept, key=lambda each: each.line.order)
    )


def _or_nothing(findings: tuple[Finding, ...], found: Read, run: int) -> tuple[Finding, ...]:
    """The findings of a run; where its log says that it finished, that too, and where its sources hold no line that
    says anything, a sentence with what they hold."""
    scans = [scan for scan in found.scans if scan.source.run == run]
    if well := finished(findings, scans, [each for each in found.evidence if each.line.run == run]):
        return well
    if not scans or any(each.line.run == run for each in found.evidence) or findings[0].cause != NOT_ESTABLISHED:
        return findings
    said = "; ".join(f"{scan.source.name}: {held(scan)}" for scan in scans[:MOST_NAMED])
    more = f"; and {len(scans) - MOST_NAMED} more" if len(scans) > MOST_NAMED else ""
    return (replace(findings[0], sentence=f"Nothing here says how a run ended ({said}{more}); {GIVE}."),)


def held(scan: Scan) -> str:
    """What a source without any known line holds."""
    if not scan.bytes:
        return "empty"
    if scan.trouble:
        return scan.trouble
    if scan.binary:
        return f"{format_bytes(scan.bytes)} that are no text"
    steps = f" up to step {scan.steps[-1][1]}" if scan.steps else ""
    if scan.count == 1:
        return f"1 line{steps}, which tells of no end"
    return f"{scan.count:,} lines{steps}, none of which tells of an end"


def _notes(scans: Sequence[Scan]) -> list[str]:
    notes = [f"{scan.source.name}: {scan.trouble}" for scan in scans if scan.trouble]
    notes += [f"{scan.source.name}: is empty" for scan in scans if not scan.bytes]
    notes += [f"{scan.source.name}: is no text" for scan in scans if scan.binary and not scan.trouble]
    return notes
