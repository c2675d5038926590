"""How each kind of statement is read: one function a kind, and the table of them."""

from collections.abc import Sequence

from headway.foreign.shell import assign, lexer, parse, patterns
from headway.foreign.shell.calls import BUILTINS, DONE, PROBES, Call, Outcome
from headway.foreign.shell.conditions import Maybe, Status, Test, negated
from headway.foreign.shell.evaluate import Evaluator, Reader
from headway.foreign.shell.expand import gap_of
from headway.foreign.shell.parse import Node
from headway.foreign.shell.values import Array, Gap, Hole, Item, Table, Word, join, known, unknown


def _command(run: Evaluator, node: Node) -> Outcome:
    at = run.unit.origin(node)
    items: list[Item] = []
    environment: list[tuple[str, Word]] = []
    piped = run.piped
    for child in node.children:
        if child.type == "variable_assignment":
            name, equals, text = run.unit.text(child).partition("=")
            if equals:
                environment.append((name, run.expander.single(text, run.unit.origin(child))))
        elif child.type == "herestring_redirect":
            run.piped = _herestring(run, child)
        elif child.type in ("comment", "file_redirect", "heredoc_redirect"):
            continue
        elif child.is_error:
            for offset, word in lexer.words(run.unit.text(child)):
                items += run.expander.fields(word, run.unit.within(child, run.unit.text(child), offset, len(word)))
        elif run.unit.text(child).strip():
            items += run.expander.fields(run.unit.text(child), run.unit.origin(child))
    items = [_many(item) for item in items]
    try:
        if not items:
            for name, value in environment:
                run.state.set(name, value)
            return DONE
        return run.call(items, at, tuple(environment))
    finally:
        if any(child.type == "herestring_redirect" for child in node.children):
            run.piped = piped


def _many(item: Item) -> Item:
    """An unknown variable of a file that was not read, with nothing beside it, may stand for any number of words."""
    if isinstance(item, Word) and len(item.parts) == 1 and isinstance(item.parts[0], Hole):
        hole = item.parts[0]
        if hole.kind == "unread" and ("ARG" in hole.name.upper() or "OPT" in hole.name.upper()):
            return gap_of(item)
    return item


def _herestring(run: Evaluator, node: Node) -> Word:
    text = run.unit.text(node).partition("<<<")[2].strip()
    word = run.expander.single(text)
    return join((*word.parts, "\n"))


def _assignment(run: Evaluator, node: Node) -> Outcome:
    nodes = node.children if node.type == "variable_assignments" else [node]
    for each in nodes:
        if each.type == "variable_assignment":
            assign.assign(run.expander, run.unit, each)
    return DONE


def _declaration(run: Evaluator, node: Node) -> Outcome:
    """export, local, declare, readonly, typeset."""
    kind, flags = run.unit.text(node.children[0]) if node.children else "", ""
    for child in node.children[1:]:
        if child.type == "variable_assignment":
            name = run.unit.text(child).partition("=")[0].partition("[")[0].rstrip("+")
            _declare(run, kind, flags, name)
            if "n" in flags and kind != "export":
                target = run.expander.single(run.unit.text(child).partition("=")[2])
                if target.text and target.text != name:
                    run.state.references[name] = target.text
                continue
            assign.assign(run.expander, run.unit, child, table="A" in flags)
            continue
        if child.type in ("comment", "file_redirect"):
            continue
        for item in run.expander.fields(run.unit.text(child), run.unit.origin(child)):
            text = item.text if isinstance(item, Word) else None
            if text is None:
                continue
            if text.startswith(("-", "+")):
                flags += text[1:]
            elif "=" in text:
                name, _, value = text.partition("=")
                _declare(run, kind, flags, name)
                assign.put(run.expander, name, None, known(value, run.unit.origin(child)))
            elif text.isidentifier():
                _declare(run, kind, flags, text)
                if "a" in flags and run.state.get(text) is None:
                    run.state.set(text, Array())
                if "A" in flags:
                    run.state.set(text, Table())
    return DONE


def _declare(run: Evaluator, kind: str, flags: str, name: str) -> None:
    if kind == "export" or "x" in flags:
        run.state.exported.add(name)
    if run.state.shadowed and (kind == "local" or (kind in ("declare", "typeset") and "g" not in flags)):
        frame = run.state.shadowed[-1]
        if name not in frame:
            frame[name] = run.state.variables.pop(name, None)


def _test(run: Evaluator, node: Node) -> Outcome:
    text = run.unit.text(node)
    if text.startswith("[["):
        return Outcome("", Test(run.expander, text.removeprefix("[[").removesuffix("]]"), double=True).whole())
    if text.startswith("(("):
        return _arithmetic(run, text[2:-2])
    return Outcome("", Test(run.expander, text.removeprefix("[").removesuffix("]"), double=False).whole())


def _arithmetic(run: Evaluator, text: str) -> Outcome:
    value = run.expander.arithmetic(text)
    if value.text is None:
        hole = value.holes[0]
        return Outcome("", Maybe(value.why, hole.name))
    return Outcome("", value.text != "0")


def _if(run: Evaluator, node: Node) -> Outcome:
    branches: list[tuple[list[Node], list[Node]]] = [([], [])]
    otherwise: list[Node] = []
    in_body = False
    for child in node.children:
        if child.type in ("if", "then", "fi"):
            in_body = in_body or child.type == "then"
        elif child.type == "elif_clause":
            index = next((i for i, each in enumerate(child.children) if each.type == "then"), len(child.children))
            branches.append((child.children[1:index], child.children[index + 1 :]))
        elif child.type == "else_clause":
            otherwise = child.children[1:]
        else:
            branches[0][1 if in_body else 0].append(child)
    return _branch(run, branches, otherwise)


def _branch(run: Evaluator, branches: Sequence[tuple[list[Node], list[Node]]], otherwise: list[Node]) -> Outcome:
    if not branches:
        return run.run(otherwise)
    (test, body), rest = branches[0], branches[1:]
    return run.choose(run.condition(test), lambda: run.run(body), lambda: _branch(run, rest, otherwise))


def _case(run: Evaluator, node: Node) -> Outcome:
    subject_node = node.child_by_field_name("value")
    subject = run.expander.single(run.unit.text(subject_node)) if subject_node is not None else known("")
    return _cases(run, subject, parse.parts(node, "case_item"))


def _cases(run: Evaluator, subject: Word, items: Sequence[Node]) -> Outcome:
    """The first item whose patterns match, and what it falls through to."""
    if not items:
        return DONE
    item, rest = items[0], items[1:]
    closing = next((child for child in item.children if child.type == ")"), None)
    if closing is None:
        return _cases(run, subject, rest)
    labels = run.unit.data[item.start_byte : closing.start_byte].decode(errors="replace")
    status = _matches(run, subject, labels.strip().removeprefix("("))
    return run.choose(status, lambda: _case_body(run, subject, items), lambda: _cases(run, subject, rest))


def _case_body(run: Evaluator, subject: Word, items: Sequence[Node]) -> Outcome:
    """The statements of an item; `;&` goes on with those of the next, `;;&` with the next that matches."""
    children = items[0].children
    index = next((place for place, child in enumerate(children) if child.type == ")"), 0)
    outcome = run.run([child for child in children[index + 1 :] if child.type not in (";&", ";;&")])
    last = children[-1].type
    if outcome.signal or last not in (";&", ";;&") or len(items) < 2:
        return outcome
    return _case_body(run, subject, items[1:]) if last == ";&" else _cases(run, subject, items[1:])


def _matches(run: Evaluator, subject: Word, labels: str) -> Status:
    status: Status = False
    for label in labels.split("|"):
        pattern = run.expander.single(label.strip())
        if label.strip() == "*":
            return True
        if pattern.text is None:
            status = Maybe(pattern.why)
            continue
        lean = patterns.matches("", pattern.text) if subject.never_set else None
        if subject.text is None:
            name = subject.holes[0].name if subject.never_set else ""
            status = Maybe(subject.why, name, lean)
            continue
        found = patterns.matches(subject.text, pattern.text)
        if found:
            return True
        status = status if found is False else Maybe(f"the pattern {pattern.text[:40]!r} is not understood")
    return status


def _for(run: Evaluator, node: Node) -> Outcome:
    variable = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    if variable is None or body is None:
        return DONE
    name = run.unit.text(variable)
    items: list[Item] = []
    listed = False
    for child in node.children:
        listed = listed or child.type == "in"
        if listed and child.is_named and child.id not in (variable.id, body.id) and child.type != "comment":
            items += run.expander.fields(run.unit.text(child), run.unit.origin(child))
    if not listed:
        items = list(run.state.arguments)
    doubt = next((item for item in items if not isinstance(item, Word)), None)
    bare = next((item for item in items if isinstance(item, Word) and len(item.parts) == 1 and item.holes), None)
    if doubt is not None or (bare is not None and bare.holes[0].kind != "branch"):
        why = (
            doubt.why
            if isinstance(doubt, Gap)
            else "depends on the words of a loop"
            if doubt
            else bare.why
            if bare
            else ""
        )
        run.state.set(name, unknown(why, name))
        return run.once(body, Maybe(why))
    rest = iter(items)

    def again() -> Status:
        item = next(rest, None)
        if isinstance(item, Word):
            run.state.set(name, item)
        return item is not None

    for _ in items:
        again_once = again()
        run.leaving.append([])
        outcome = run.body(body) if again_once else DONE
        pending = run.leaving.pop()
        run.settle(pending, "depends on when a loop ends")
        if outcome.signal in ("exit", "return"):
            return outcome
        if outcome.signal == "break":
            break
    return DONE


def _c_for(run: Evaluator, node: Node) -> Outcome:
    body = node.child_by_field_name("body")
    text = run.unit.text(node)
    start = text.find("((")
    end = lexer.close(text, start) if start >= 0 else -1
    if body is None or end < 0:
        return DONE
    parts = text[start + 2 : end - 1].split(";")
    if len(parts) != 3:
        return DONE
    first, test, step = parts
    run.expander.arithmetic(first)
    return run.rounds(
        body,
        lambda: _arithmetic(run, test).status if test.strip() else True,
        lambda: run.expander.arithmetic(step),
    )


def _while(run: Evaluator, node: Node) -> Outcome:
    body = node.child_by_field_name("body")
    if body is None:
        return DONE
    test = [child for child in node.children[1:] if child.id != body.id]
    until = bool(node.children) and node.children[0].type == "until"

    def goes_on() -> Status:
        found = negated(run.condition(test)) if until else run.condition(test)
        over = isinstance(found, Maybe) and found.name.isdigit() and found.lean is False
        return False if over else found  # `while [ "$1" != "" ]` goes through arguments, of which there are no more

    return run.rounds(body, goes_on)


def _function(run: Evaluator, node: Node) -> Outcome:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        run.state.functions[run.unit.text(name)] = (run.unit, body)
    return DONE


def _group(run: Evaluator, node: Node) -> Outcome:
    text = run.unit.text(node)
    if text.startswith("((") and text.endswith("))"):
        return _arithmetic(run, text[2:-2])
    return run.run([child for child in node.children if child.is_named])


def _subshell(run: Evaluator, node: Node) -> Outcome:
    before = run.state
    run.expander.state = before.copy()
    outcome = run.run([child for child in node.children if child.is_named])
    before.output = run.state.output
    run.expander.state = before
    return Outcome("", outcome.status, outcome.program)


def _list(run: Evaluator, node: Node) -> Outcome:
    named = [child for child in node.children if child.is_named and child.type != "comment"]
    if len(named) < 2:
        return run.run(named)
    sign = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
    return _then(run, run.statement(named[0]), sign, named[1:])


def _then(run: Evaluator, left: Outcome, sign: str, rest: Sequence[Node]) -> Outcome:
    """`left && rest` or `left || rest`. What asks nothing is taken to succeed."""
    if left.signal:
        return left
    status = left.status
    if isinstance(status, Maybe) and left.program and left.program not in PROBES:
        status = True

    def right() -> Outcome:
        return run.run(rest)

    def skip() -> Outcome:
        return Outcome("", status, left.program)

    return run.choose(status, right, skip) if sign == "&&" else run.choose(status, skip, right)


def _negated(run: Evaluator, node: Node) -> Outcome:
    outcome = run.run([child for child in node.children if child.is_named])
    return outcome if outcome.signal else Outcome("", negated(outcome.status), outcome.program)


def _pipeline(run: Evaluator, node: Node) -> Outcome:
    stages = [child for child in node.children if child.is_named and child.type != "comment"]
    return pipe(run, stages)


def pipe(run: Evaluator, stages: Sequence[Node]) -> Outcome:
    """Commands of which each reads what the one before prints, in shells of their own."""
    before, piped, outcome = run.state, run.piped, DONE
    for index, stage in enumerate(stages):
        last = index == len(stages) - 1
        run.expander.state = before.copy()
        if not last:
            run.state.output = Word()
        outcome = run.statement(stage)
        if not last:
            run.piped = run.state.output
    before.output = run.state.output
    run.expander.state, run.piped = before, piped
    return Outcome("", outcome.status, outcome.program)


def _redirected(run: Evaluator, node: Node) -> Outcome:
    body = [child for child in node.children if child.is_named and not child.type.endswith("_redirect")]
    quiet = any(_hides(run.unit.text(child)) for child in parse.parts(node, "file_redirect"))
    piped, output = run.piped, run.state.output
    onward: list[Node] = []
    after: list[Node] = []
    for child in node.children:
        if child.type == "heredoc_redirect":
            run.piped = _heredoc(run, child)
            onward += [stage for each in parse.parts(child, "pipeline") for stage in each.children if stage.is_named]
            quiet = quiet or any(_hides(run.unit.text(each)) for each in parse.parts(child, "file_redirect"))
            sign = next((index for index, each in enumerate(child.children) if each.type in ("&&", "||")), None)
            after = child.children[sign : sign + 2] if sign is not None else []
        elif child.type == "herestring_redirect":
            run.piped = _herestring(run, child)
        elif child.type == "file_redirect" and run.unit.text(child).lstrip("0").startswith("<"):
            run.piped = unknown(f"asks the machine: {run.unit.text(child)[:60]}", "file")
    if quiet:
        run.state.output = None
    outcome = pipe(run, [*body, *onward]) if onward else run.run(body)
    if quiet:
        run.state.output = output
    run.piped = piped
    return _then(run, outcome, after[0].type, after[1:]) if after else outcome


def _hides(redirect: str) -> bool:
    """Whether what is printed goes elsewhere."""
    plain = redirect.replace(" ", "")
    return plain.startswith((">", "1>", "&>")) and not plain.startswith((">&1", "1>&1", ">("))


def _heredoc(run: Evaluator, node: Node) -> Word:
    start = next(iter(parse.parts(node, "heredoc_start")), None)
    body = next(iter(parse.parts(node, "heredoc_body")), None)
    if start is None or body is None:
        return unknown("a here-document that is not understood", "document")
    text, label = run.unit.text(body), run.unit.text(start)
    if run.unit.text(node).startswith("<<-"):
        text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
    if label[:1] in "'\"\\":
        return known(text, run.unit.origin(body))
    return run.expander.single(text.replace('"', '\\"'), run.unit.origin(body), quoted=True)


def _unset(run: Evaluator, node: Node) -> Outcome:
    items: list[Item] = []
    for child in node.children[1:]:
        if child.is_named:
            items += run.expander.fields(run.unit.text(child), run.unit.origin(child))
    flags = [item for item in items if isinstance(item, Word) and item.text != "-v"]
    return BUILTINS["unset"](run, Call("unset", tuple(flags), run.unit.origin(node)))


STATEMENTS: dict[str, Reader] = {
    "command": _command, "variable_assignment": _assignment, "variable_assignments": _assignment,
    "declaration_command": _declaration, "unset_command": _unset, "test_command": _test, "if_statement": _if,
    "case_statement": _case, "for_statement": _for, "c_style_for_statement": _c_for, "while_statement": _while,
    "function_definition": _function, "compound_statement": _group, "subshell": _subshell, "list": _list,
    "negated_command": _negated, "pipeline": _pipeline, "redirected_statement": _redirected,
}  # fmt: skip
