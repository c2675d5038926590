"""What the doctor says of a text, for the tests."""

from headway.diagnose.doctor import diagnose
from headway.diagnose.finding import Diagnosis, Finding
from headway.diagnose.settings import Settings, from_table
from headway.diagnose.sources import text_source


def diagnosis(*texts: str, settings: Settings | None = None) -> Diagnosis:
    """Of texts that are one file each."""
    sources = [text_source(f"{number}.log", text) for number, text in enumerate(texts)]
    return diagnose(sources, settings)


def told(text: str, **facts: object) -> Finding:
    """The answer about one text, with facts of the run by the names that reports use."""
    return diagnosis(text, settings=from_table(facts)).answer
