"""Ray was asked to kill the actor."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="ray-kill",
    level="mechanism",
    tier=4,
    sees="'The actor is dead because it was killed by `ray.kill`.'",
    why="The framework's teardown, or a health monitor that gave an engine up, called ray.kill.",
    sure="Proven, and never the root: something made the framework do it, earlier.",
    look_alikes="A memory monitor's kill has a text of its own.",
    example="The actor is dead because it was killed by `ray.kill`.",
    near_miss="2 worker(s) were killed due to the node running low on memory.",
    advice=(Advice("read the first traceback of the whole log", "shows what came before", "none"),),
    settle=(settle.EARLIER, settle.STDERR),
    ends={"ray-kill": "proven"},
)
