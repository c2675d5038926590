"""The device failed."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("gpu-hardware")
    if found is not None:
        certain = re.search(r"uncorrectable|fallen off|double.bit|is lost", found.place.text, re.I) is not None
        return Claim("proven" if certain else "supported", "the device reported a fault of its own", (found.place,))
    xid = case.first("xid-hardware")
    if xid is None:
        return None
    certain = xid.fields["xid"] in ("48", "79", "94", "95")
    return Claim(
        "proven" if certain else "supported",
        f"the driver reported Xid {xid.fields['xid']}, a fault of the device or its firmware",
        (xid.place,),
    )


RULE = Rule(
    name="gpu-hardware",
    level="cause",
    sees="'uncorrectable ECC error', Xid 48, 79, 94, 95, 119 and the like, 'fallen off the bus'.",
    why="Memory cells, the bus, NVLink or the firmware of the device failed.",
    sure="Proven for uncorrectable ECC errors and a device off the bus; other Xids are supported.",
    look_alikes="Xid 13, 31 and 43 mostly come from the application; 45 is clean-up after another fault.",
    example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
    near_miss="NVRM: Xid (PCI:0000:0b:00): 45, pid=4242, name=python3, Ch 00000008",
    advice=(
        Advice(
            "drain the node, reset or replace the device, resume elsewhere", "no second death there", "a node less"
        ),
    ),
    settle=(settle.NVIDIA,),
    find=_find,
)
