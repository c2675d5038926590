"""The table of `headway size --json`; docs/size.md describes its keys. Sizes are integers of bytes."""

from typing import Any

from headway.plan.size import RULE_BYTES, RULE_SHARE, Row, Rule
from headway.plan.sizing import Sizing

Document = dict[str, Any]


def document(found: Sizing) -> Document:
    """The whole table, a row for each model under each recipe."""
    rows = [*found.own, *found.others]
    return {
        "machine": found.machine.name,
        "memory_bytes": found.memory,
        "batch": {
            "prompts": found.batch.prompts, "samples": found.batch.samples, "max_prompt": found.batch.max_prompt,
            "max_answer": found.batch.max_answer,
        },
        "largest": {recipe: None if row is None else row.model for recipe, row in found.best.items()},
        "rule": {
            "bytes_per_parameter": RULE_BYTES, "share": RULE_SHARE, "guess_bytes": Rule(0, found.memory).guess,
            "largest": found.guess,
        },
        "said": list(found.said),
        "rows": [_row(found, row) for row in rows],
    }  # fmt: skip


def _row(found: Sizing, row: Row) -> Document:
    rule = found.rules[row.model]
    return {
        "model": row.model,
        "parameters": row.parameters,
        "recipe": row.recipe.name,
        "trainer": row.recipe.trainer_system,
        "trained_here": row in found.own,
        "verdict": row.kind,
        "pool": row.pool,
        "limit": None if row.limit is None else {"name": row.limit.name, "bytes": row.limit.bytes},
        "expected_bytes": row.expected,
        "upper_bytes": row.upper,
        "longest_answer": row.longest_answer,
        "in_flight": row.in_flight,
        "rule_bytes": rule.bytes,
        "rule_fits": rule.fits,
    }
