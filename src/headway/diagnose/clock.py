"""Dates at the start of a log line, in the forms that Python, glog, Ray, engines, syslog and the kernel write."""

import re
from datetime import UTC, datetime, timedelta, timezone

from headway.diagnose.evidence import Clock

_MONTHS = {
    name: index
    for index, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = (
    re.compile(rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_TIME}(?P<zone>Z|[+-]\d\d:?\d\d)?"),
    re.compile(rf"\b(?P<name>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) {_TIME}"),
    re.compile(rf"\b[IWEFC](?P<month>\d{{1,2}})(?P<day>\d\d) {_TIME}"),
    re.compile(rf"\b[A-Z]+ (?P<month>\d\d)-(?P<day>\d\d) {_TIME}"),
)
_BOOT = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d{6})\]")
SEARCHED = 240
"""Characters of a line that are searched."""
_LEAP = 2000
"""Every date is put in one leap year, so that forms with and without a year can be compared."""


def read_clock(text: str) -> Clock | None:
    """When a line was printed, as it says itself.

    >>> read_clock("[2026-03-01 10:00:00,500 E 1 2] x").after(read_clock("E0301 09:59:59.500000 1 x.cc:2] y"))
    1.0
    """
    text = text[:SEARCHED]
    for form in _FORMS:
        match = form.search(text)
        if match is not None and (found := _clock(match.groupdict())) is not None:
            return found
    boot = _BOOT.match(text)
    return Clock(float(boot[1]), "boot") if boot else None


def _clock(parts: dict[str, str | None]) -> Clock | None:
    name = parts.get("name")
    month = _MONTHS.get(name.lower(), 0) if name else int(parts["month"] or 0)
    try:
        moment = datetime(
            _LEAP, month, int(parts["day"] or 0), int(parts["hour"] or 0), int(parts["minute"] or 0),
            int(parts["second"] or 0), int((parts.get("fraction") or "0")[:6].ljust(6, "0")), tzinfo=UTC,
        )  # fmt: skip
    except ValueError:
        return None
    zone = parts.get("zone")
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        if offset < timedelta(hours=24):
            moment = moment.replace(tzinfo=timezone(sign * offset))
    return Clock(moment.timestamp(), "utc" if zone else "wall")
