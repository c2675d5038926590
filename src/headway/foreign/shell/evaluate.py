"""A script read statement by statement without running anything: which commands it would run, with which words.

Where a condition hangs on something that the script does not tell, all its branches are read, and what they leave
different is unknown afterwards, with the condition as the reason. A branch that ends the script is taken to be
the one that is not meant: the question is about the run that runs.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.foreign import jobs
from headway.foreign.shell import files, parse
from headway.foreign.shell.calls import BUILTINS, DONE, Call, Inner, Outcome, external, inner_file
from headway.foreign.shell.commands import Command
from headway.foreign.shell.conditions import Maybe, Status
from headway.foreign.shell.expand import Expander
from headway.foreign.shell.parse import Node, Unit
from headway.foreign.shell.state import DEEPEST, Budget, State, merged
from headway.foreign.shell.values import Array, Gap, Hole, Item, Origin, Word, array, join, known, unknown

MOST_COMMANDS = 2000
MOST_ROUNDS = 1000
MOST_NOTES = 100

Reader = Callable[["Evaluator", Node], Outcome]
"""Reads one kind of statement."""

SKIPPED = frozenset({"comment", "\n", ";", "&", ";;", "heredoc_body"})


class Evaluator:
    """Reads one script and what it sources; where it `follows`, the scripts that it starts too."""

    def __init__(
        self,
        state: State,
        budget: Budget,
        readers: Mapping[str, Reader],
        script: Path | None = None,
        root: Path | None = None,
        *,
        follows: bool = False,
        counts: jobs.Counts | None = None,
    ) -> None:
        self.budget, self.readers, self.script, self.root = budget, readers, script, root
        self.follows, self.counts = follows, counts
        self.job: jobs.Job | None = None
        self.expander = Expander(state, budget, self.substitute)
        self.commands: list[Command] = []
        self.notes: list[str] = []
        self.sourced: list[str] = []
        self.started: list[str] = []
        self.when: list[str] = []
        self.piped: Word | None = None
        self.unit: Unit = parse.parse("", "")
        self.leaving: list[list[State]] = []
        self.returning: list[list[State]] = []

    @property
    def state(self) -> State:
        """What the script has set so far, in the branch that is being read."""
        return self.expander.state

    def note(self, at: Origin, text: str) -> None:
        """Something that could not be read."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{at}: {text}")

    # -- statements --------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Node]) -> Outcome:
        """The statements in order, up to one that leaves."""
        outcome = DONE
        for node in nodes:
            if node.type in SKIPPED:
                continue
            outcome = self.statement(node)
            if outcome.signal:
                return outcome
        return outcome

    def statement(self, node: Node) -> Outcome:
        """One statement."""
        self.budget.spend()
        reader = self.readers.get(node.type)
        self.expander.at = self.unit.origin(node)
        if self.budget.depth > DEEPEST:
            self.note(self.unit.origin(node), "statements nested too deep")
            return DONE
        self.budget.depth += 1
        try:
            if reader is not None:
                return reader(self, node)
            if node.is_error:
                self.note(self.unit.origin(node), f"not understood: {self.unit.text(node).strip()[:60]!r}")
                return self.run([child for child in node.children if child.is_named])
            return self.run(node.children) if node.type in ("program", "do_group") else DONE
        finally:
            self.budget.depth -= 1

    def fork(self, options: Sequence[Callable[[], Outcome]], maybe: Maybe, lean: int | None = None) -> Outcome:
        """Read each option from the present state, and go on with what they share.

        `lean`: the option that is taken where the variable which the condition hangs on stays unset; what it sets
        that variable to is its default.
        """
        before = self.state
        ends: list[tuple[State, Outcome]] = []
        self.when.append(maybe.why)
        for option in options:
            self.expander.state = before.copy()
            outcome = option()
            ends.append((self.state, outcome))
        self.when.pop()
        going = [end for end in ends if end[1].signal != "exit"] or ends
        if not self.when and all(end[1].signal == "exit" and end[1].status is not True for end in ends):
            self.expander.state = before
            return DONE
        normal = [end for end in going if not end[1].signal]
        if not normal:
            self.expander.state = merged([state for state, _ in going], maybe.why)
            return going[0][1]
        for state, outcome in going:
            pending = self.returning if outcome.signal == "return" else self.leaving
            if outcome.signal and pending:
                pending[-1].append(state)
        state = merged([state for state, _ in normal], maybe.why)
        if lean is not None and maybe.name and ends[lean] in normal:
            self._lean(state, before, ends[lean][0], [other for other, _ in normal], maybe)
        self.expander.state = state
        same = {repr(outcome.status) for _, outcome in normal}
        return Outcome("", normal[0][1].status if len(same) == 1 else maybe)

    def _lean(self, state: State, before: State, unset: State, ends: Sequence[State], maybe: Maybe) -> None:
        """Variables that only whoever sets the condition's variable would make another: what the branch sets that
        variable to where it is unset, and what the other branch takes from it."""
        for name, value in unset.variables.items():
            if name == maybe.name:
                if value != before.variables.get(name):
                    state.variables[name] = value
                continue
            others = [end.variables.get(name) for end in ends if end is not unset]
            if (
                isinstance(value, Word)
                and value.text is not None
                and all(_from(other, maybe.name) for other in others)
            ):
                state.variables[name] = value

    def choose(self, status: Status, yes: Callable[[], Outcome], no: Callable[[], Outcome]) -> Outcome:
        """The branch that a condition decides for, or both."""
        if isinstance(status, Maybe):
            lean = None if status.lean is None else 0 if status.lean else 1
            return self.fork((yes, no), status, lean)
        taken, other = (yes, no) if status else (no, yes)
        before, recorded = self.state.copy(), len(self.commands)
        outcome = taken()
        if outcome.signal == "exit" and outcome.status is not True and not self.when:
            # the script gives up here, and the question is about a run that does not; within a branch that may not
            # be taken, it is that branch which is not meant
            del self.commands[recorded:]
            self.expander.state = before
            return other()
        return outcome

    def condition(self, nodes: Sequence[Node]) -> Status:
        """Whether the last of the statements of a condition succeeds."""
        return self.run(nodes).status

    def settle(self, pending: list[State], why: str) -> None:
        """The states of the ways out of a loop or a function come together."""
        if pending:
            self.expander.state = merged([self.state, *pending], why)

    # -- loops -------------------------------------------------------------------------------------------

    def body(self, node: Node) -> Outcome:
        """One round of a loop."""
        return self.run(node.children)

    def once(self, node: Node, maybe: Maybe) -> Outcome:
        """A loop of which nobody knows how often it goes round: what it changes is unknown afterwards."""
        before = self.state.copy()
        self.leaving.append([])
        self.when.append(maybe.why)
        outcome = self.body(node)
        self.when.pop()
        self.settle(self.leaving.pop(), maybe.why)
        after = self.state
        for name, value in after.variables.items():
            old = before.variables.get(name)
            if value == old:
                continue
            if isinstance(value, Array):
                kept = old.items if isinstance(old, Array) else ()
                shared = kept if value.items[: len(kept)] == kept else ()
                after.variables[name] = array((*shared, Gap(maybe.why, name, "branch")))
            elif isinstance(value, Word):
                after.variables[name] = unknown(maybe.why, name, "branch")
        return DONE if outcome.signal != "return" else outcome

    def rounds(self, node: Node, again: Callable[[], Status], after: Callable[[], object] = lambda: None) -> Outcome:
        """Rounds while a condition holds."""
        for _ in range(MOST_ROUNDS):
            status = again()
            if isinstance(status, Maybe):
                return self.once(node, status)
            if not status:
                return DONE
            before = dict(self.state.variables)
            self.leaving.append([])
            outcome = self.body(node)
            pending = self.leaving.pop()
            self.settle(pending, "depends on when a loop ends")
            if outcome.signal in ("exit", "return"):
                return outcome
            if outcome.signal == "break" or pending:
                return DONE
            after()
            if self.state.variables == before and self.piped is None:
                if not _beside(node):
                    self.note(self.unit.origin(node), "a loop that does not end by itself was left")
                return DONE
        self.note(self.unit.origin(node), f"a loop of more than {MOST_ROUNDS} rounds was left")
        return DONE

    # -- commands ----------------------------------------------------------------------------------------

    def call(self, items: Sequence[Item], at: Origin, environment: tuple[tuple[str, Word], ...] = ()) -> Outcome:
        """One command with its words expanded."""
        while items and isinstance(items[0], Word) and items[0].text in ("command", "builtin", "time"):
            option = items[1] if len(items) > 1 else None
            if isinstance(option, Word) and (option.text or "").startswith("-"):
                if items[0].text != "time":
                    return Outcome("", Maybe(f"asks the machine: command {option.text}"), "command")
                items = items[1:]
            items = items[1:]
        if not items:
            return DONE
        first = items[0]
        name = first.text if isinstance(first, Word) else None
        call = Call(name or "", tuple(items[1:]), at, environment)
        if environment and (name in self.state.functions or name in ("source", ".", "eval")):
            return self.with_environment(call)
        if name is None:
            self.record(call, items)
            if self.follows and (inner := inner_file(items)) is not None:
                return self.script_file(inner, call)
            return Outcome("", Maybe("depends on a command whose name is not known"), "command")
        if name in self.state.functions:
            return self.function(name, call)
        if name == "exec":
            if call.arguments:
                self.call(call.arguments, at, environment)
                return Outcome("exit", True)
            return DONE
        if name in BUILTINS:
            return BUILTINS[name](self, call)
        return external(self, call)

    def with_environment(self, call: Call) -> Outcome:
        """A function or a sourced file, with variables that are set while it runs."""
        before = {name: self.state.get(name) for name, _ in call.environment}
        for name, value in call.environment:
            self.state.set(name, value)
        outcome = self.call((known(call.name, call.at), *call.arguments), call.at)
        for name, old in before.items():
            if old is not None:
                self.state.set(name, old)
            else:
                self.state.variables.pop(self.state.name(name), None)
        return outcome

    def record(self, call: Call, items: Sequence[Item] | None = None) -> None:
        """A command that the script would run."""
        argv = tuple(items) if items is not None else (known(call.name, call.at), *call.arguments)
        if len(self.commands) < MOST_COMMANDS:
            when = tuple(dict.fromkeys(self.when))
            self.commands.append(Command(argv, call.at, call.environment, when))

    def function(self, name: str, call: Call) -> Outcome:
        """A function of the script, with arguments and variables of its own."""
        if self.budget.depth > DEEPEST - 4:
            self.note(call.at, f"the function {name} calls itself too often")
            return Outcome("", Maybe(f"depends on the function {name}"))
        unit, body = self.state.functions[name]
        outer_unit, arguments = self.unit, self.state.arguments
        self.unit, self.state.arguments = unit, call.arguments
        self.state.shadowed.append({})
        self.returning.append([])
        outcome = self.statement(body)
        self.settle(self.returning.pop(), f"depends on where the function {name} returns")
        for variable, value in (self.state.shadowed.pop() if self.state.shadowed else {}).items():
            self.state.references.pop(variable, None)
            if value is None:
                self.state.variables.pop(variable, None)
            else:
                self.state.variables[variable] = value
        self.unit, self.state.arguments = outer_unit, arguments
        return Outcome("exit", outcome.status) if outcome.signal == "exit" else Outcome("", outcome.status)

    # -- scripts within scripts --------------------------------------------------------------------------

    def script_text(self, text: str, file: str, at: Origin, *, exact: bool = False) -> Outcome:
        """Statements of another text, in the present state."""
        outer = self.unit
        self.unit = parse.parse(text, file, at.line, exact=exact)
        try:
            return self.statement(self.unit.tree.root_node)
        finally:
            self.unit = outer

    def nested(self, text: Word, at: Origin, *, apart: bool = False) -> Outcome:
        """A word that is a script: of `eval`, or `apart` in a shell of its own, which sees exported variables.

        What is unknown in it becomes a variable that is unknown.
        """
        plain: list[str] = []
        holes: dict[str, Word] = {}
        for part in text.parts:
            if isinstance(part, Hole):
                name = f"HEADWAY_HOLE_{len(holes)}_{self.budget.steps}"
                holes[name] = Word((part,))
                plain.append(f"${{{name}}}")
            else:
                plain.append(part)
        before = self.state
        if apart:
            self.expander.state = before.copy()
            seen = {name: value for name, value in before.variables.items() if name in before.exported}
            self.state.variables = seen
            self.state.arguments, self.state.functions = (), {}
        self.state.variables.update(holes)
        piped, self.piped = self.piped, None
        outcome = self.script_text("".join(plain), at.file, at)
        self.piped = piped
        for name in holes:
            self.state.variables.pop(name, None)
        if apart:
            output = self.state.output
            self.expander.state = before
            before.output = output
            return Outcome("", Maybe("depends on what a shell returns"), "bash")
        return outcome

    def substitute(self, text: str, at: Origin | None) -> Word:
        """What `$(text)` prints, without the newlines at its end."""
        if kind := jobs.asks(text):
            return self._counted(kind, text.strip())
        before = self.state
        self.expander.state = before.copy()
        self.state.output = Word()
        place = at or Origin(self.unit.file, self.unit.line)
        outcome = self.script_text(text, self.unit.file, place)
        output = self.state.output or Word()
        self.expander.state = before
        parts = list(output.parts)
        while parts and isinstance(parts[-1], str):
            parts[-1] = parts[-1].rstrip("\n")
            if parts[-1]:
                break
            parts.pop()
        if not parts and outcome.program:
            return unknown(f"asks the machine: {text.strip()[:80]}", outcome.program)
        return join(parts)

    def schedule(self, job: jobs.Job | None, file: str) -> None:
        """What the script asks its scheduler for, and the variables that the scheduler then sets."""
        if job is None:
            return
        self.job = job
        for name, value in job.variables.items():
            self.state.set(name, known(value, Origin(file, job.line)))
            self.state.exported.add(name)

    def _counted(self, kind: str, text: str) -> Word:
        """How many devices or nodes there are, as far as the job or the machine that is asked for says so."""
        visible = self.state.scalar("CUDA_VISIBLE_DEVICES")
        if "device_count" in text and visible is not None and (visible.text or "").strip(","):
            return known(str(len((visible.text or "").strip(",").split(","))))
        for source in (self.job, self.counts):
            count = None if source is None else source.devices if kind == "devices" else source.nodes
            if count is not None:
                return known(str(count))
        self.state.asked.add(kind)
        return unknown(f"asks the machine: {text[:80]}", text.split()[0])

    def script_file(self, inner: Inner, call: Call) -> Outcome:
        """A script that is started by the name of its file: read as `source` reads one, in a shell of its own."""
        outcome = Outcome("", Maybe("depends on what a script returns"), "bash")
        found = self.find(inner.file)
        if found.path is None and inner.folder is not None:
            found = self.find(join((*inner.folder.parts, "/", *inner.file.parts)))
        text = files.read(found.path) if found.path is not None else None
        if found.path is None or text is None or self.budget.depth > DEEPEST - 6:
            self.note(call.at, f"the script {inner.file.shown[:120]}: {found.why or 'cannot be read as text'}")
            return outcome
        path = str(found.path)
        self.sourced.append(path)
        self.started.append(path)
        before, script, piped = self.state, self.script, self.piped
        given = dict((*call.environment, *inner.environment))
        self.expander.state = State(
            {name: value for name, value in before.variables.items() if name in before.exported} | given,
            before.exported | set(given), arguments=inner.arguments, script=known(path), folder=before.folder,
            output=before.output, missing=before.missing, asked=before.asked,
        )  # fmt: skip
        own, told = jobs.of_script(text), jobs.of_words([word.text for word in (known(call.name), *call.words)])
        self.schedule(jobs.over(own, told if call.name == "sbatch" else None), path)
        self.script, self.piped = found.path, None
        self.script_text(text, path, Origin(path, 1), exact=True)
        before.output = self.state.output
        self.expander.state, self.script, self.piped = before, script, piped
        return outcome

    def find(self, word: Word) -> files.Found:
        """The file that a word means, in the script's tree."""
        if self.script is None or self.root is None:
            return files.Found(None, "no file is read here")
        return files.find(word, self.state.folder, self.script, self.root)

    def source(self, word: Word, arguments: Sequence[Item], at: Origin) -> Outcome:
        """`source file`: read where it lies in the script's tree, named as unread where not."""
        name = files.name_of(word)
        found = self.find(word)
        text = files.read(found.path) if found.path is not None else None
        if found.path is None or text is None or self.budget.depth > DEEPEST - 6:
            why = found.why or "cannot be read as text"
            self.note(at, f"source {word.shown[:120]}: {why}")
            if name not in files.ENVIRONMENTS:
                self.state.missing = tuple(dict.fromkeys((*self.state.missing, name)))
            return Outcome("", Maybe(f"depends on {name}, which was not read"), "source")
        self.sourced.append(str(found.path))
        before = self.state.arguments
        if arguments:
            self.state.arguments = tuple(arguments)
        self.state.sources = (*self.state.sources, known(str(found.path)))
        self.returning.append([])
        outcome = self.script_text(text, str(found.path), Origin(str(found.path), 1), exact=True)
        self.settle(self.returning.pop(), f"depends on where {name} returns")
        self.state.sources = self.state.sources[:-1]
        self.state.arguments = before
        return outcome if outcome.signal == "exit" else Outcome("", outcome.status)


def _beside(node: Node) -> bool:
    """Whether a statement runs in the background, itself or with what it stands in."""
    at: Node | None = node
    while at is not None:
        if at.next_sibling is not None and at.next_sibling.type == "&":
            return True
        at = at.parent
    return False


def _from(value: object, name: str) -> bool:
    """Whether a value is a variable that nothing sets, with text around it at most."""
    return isinstance(value, Word) and bool(value.holes) and all(hole.name == name for hole in value.holes)
