"""What the doctor says of headway's own run when it ended badly: one sentence, the last thing printed."""

import io
from pathlib import Path


def sentence_of(text: str, output: Path) -> str:
    """The doctor's sentence for what a run printed at its end, with phase and step from its recording.

    `output` is the run's directory; a recording that is missing or cannot be read is left out.
    """
    from headway.diagnose.doctor import diagnose
    from headway.diagnose.lines import Source
    from headway.diagnose.readers.recordings import read
    from headway.diagnose.settings import Settings
    from headway.errors import InputError

    try:
        recorded = read(output / "recording.jsonl")
    except InputError:
        recorded = None
    known = Settings() if recorded is None else Settings(phase=recorded.phase, step=recorded.step)
    return diagnose([Source("headway train", lambda: io.BytesIO(text.encode()))], known).sentence
