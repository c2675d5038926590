"""The statements of a Python script, in the order in which they would run: both ways where a condition is open."""

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.foreign.python import builtins, files_beside, parsers
from headway.foreign.python.expressions import Expressions, shown
from headway.foreign.python.state import DEEPEST_CALL, Saved, join
from headway.foreign.python.values import (
    LONGEST_LIST,
    MISSING,
    Cls,
    Either,
    Func,
    Missing,
    Obj,
    Ref,
    Scope,
    Text,
    Unknown,
    either,
    joined,
    lift,
    options,
    reason,
)

MOST_ROUNDS = 64
"""Rounds of a loop over a known list that are followed."""


class _EndedError(Exception):
    """A block ends before its last statement: `how` is return, break, continue or stop."""

    def __init__(self, how: str, value: Any = None) -> None:
        super().__init__(how)
        self.how, self.value = how, value


class Statements(Expressions):
    """Follows statements; what happens is in `state.events`."""

    def module(self, tree: ast.Module, scope: Scope) -> Scope:
        """Everything that a script does at its top."""
        self.state.scopes.append(scope)
        try:
            self.block(tree.body, scope)
        except _EndedError as end:
            self.state.ended = str(end.value or "") if end.how == "stop" else ""
        finally:
            self.state.scopes.pop()
        return scope

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Statements one after the other."""
        for place, node in enumerate(body):
            if isinstance(node, ast.If):
                test = self.value(node.test, scope)
                known = self.truth(test)
                if known is None:
                    self._open(node, test, body[place + 1 :], scope)
                    return
                self.block(node.body if known else node.orelse, scope)
            else:
                self.statement(node, scope)

    def _open(self, node: ast.If, test: Any, rest: Sequence[ast.stmt], scope: Scope) -> None:
        """A condition that is not decided: both ways, and what follows once for both."""
        why = self.hangs(node.test, test, scope)
        ended = self._ways([lambda: self.block(node.body, scope), lambda: self.block(node.orelse, scope)], why)
        known = [end for end in ended if end is not None]
        if len(known) < len(ended):
            returned = [end for end in known if end.how == "return"]
            try:
                self.block(rest, scope)
            except _EndedError as last:
                if last.how == "return" and returned:
                    last.value = either([*(end.value for end in returned), last.value], why)
                raise
            if returned and any(end.value is not None for end in returned):
                raise _EndedError("return", either([*(end.value for end in returned), None], why))
            return
        if all(end.how == "return" for end in known):
            raise _EndedError("return", either([end.value for end in known], why))
        raise next((end for end in known if end.how != "stop"), known[0])

    def _ways(self, ways: Sequence[Callable[[], None]], why: str) -> list[_EndedError | None]:
        """Every way followed from the same state, and the states of those joined that do not stop the script."""
        self.state.forks -= 1
        if self.state.forks < 0:
            self.state.note(f"{why}: too many such conditions; it is taken to be so")
            ways = ways[:1]
        self.state.when.append(why)
        ended: list[_EndedError | None] = []
        before = Saved(self.state) if len(ways) > 1 else None
        reached: list[Saved] = []
        try:
            for place, way in enumerate(ways):
                if place and before is not None:
                    reached.append(Saved(self.state)) if _goes_on(ended[-1]) else None
                    before.restore()
                    before = Saved(self.state) if place + 1 < len(ways) else None
                try:
                    way()
                    ended.append(None)
                except _EndedError as end:
                    ended.append(end)
        finally:
            self.state.when.pop()
        if reached and not _goes_on(ended[-1]):
            reached.pop().restore()
        for other in reached:
            join(self.state, other, why)
        kept = [end for end in ended if _goes_on(end)]
        return kept or ended

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """One statement."""
        self.state.spend()
        found = STATEMENTS.get(type(node))
        if found is not None:
            found(self, node, scope)

    # -- names -------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.put(target, value, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.put(node.target, self.value(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        before = self.value(node.target, scope)
        after = self.value(node.value, scope)
        text = isinstance(node.op, ast.Add) and all(_texts(each) for each in (before, after))
        if text:
            self.put(node.target, joined((before, after)), scope)
            return
        if isinstance(before, list) and isinstance(after, list | tuple) and len(before) + len(after) <= LONGEST_LIST:
            before.extend(after)
            return
        self.put(
            node.target, lift(lambda one, two: self.binary(node.op, one, two, node, scope), before, after), scope
        )

    def put(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Set what stands on the left of `=`."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
            self.state.length(target.id, value, scope.file, target.lineno)
        elif isinstance(target, ast.Tuple | ast.List):
            self._spread(target, value, scope)
        elif isinstance(target, ast.Attribute):
            for base in options(self.value(target.value, scope)):
                if isinstance(base, Obj):
                    base.set(target.attr, value, scope.file, target.lineno)
        elif isinstance(target, ast.Subscript):
            self._put_item(target, value, scope)

    def _spread(self, target: ast.Tuple | ast.List, value: Any, scope: Scope) -> None:
        if isinstance(value, Either):
            value = _across(value, len(target.elts))
        rows = value if isinstance(value, list | tuple) else None
        fits = rows is not None and len(rows) == len(target.elts) and not _starred(target.elts)
        for place, each in enumerate(target.elts):
            if fits and rows is not None:
                self.put(each, rows[place], scope)
            elif isinstance(value, Obj):
                # `model, tokenizer = load(...)`: the first is what the call is about
                inner = value if not place else Obj(f"{value.path}[{place}]", value.file, value.line)
                self.put(each.value if isinstance(each, ast.Starred) else each, inner, scope)
            else:
                why = reason(value) or self.unclear(target, scope).why
                self.put(each.value if isinstance(each, ast.Starred) else each, Unknown(why), scope)

    def _put_item(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        base = self.value(target.value, scope)
        if isinstance(target.slice, ast.Slice):
            return
        key = self.value(target.slice, scope)
        for each in options(base):
            if isinstance(each, Ref) and each.path == "os.environ" and isinstance(key, str):
                self.state.environment[key] = value
            elif _takes(each, key):
                each[key] = value

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    # -- imports -----------------------------------------------------------------------------------------

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for each in node.names:
            found = self._module(each.name, 0, scope)
            if each.asname:
                scope.names[each.asname] = found if found is not None else Ref(each.name)
            else:
                first = each.name.partition(".")[0]
                scope.names[first] = found if found is not None and first == each.name else Ref(first)

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = node.module or ""
        found = self._module(module, node.level, scope)
        for each in node.names:
            if found is not None and each.name == "*":
                scope.names.update(found.names)
            elif found is not None and each.name in found.names:
                scope.names[each.asname or each.name] = found.names[each.name]
            elif each.name != "*":
                inner = self._module(f"{module}.{each.name}".strip("."), node.level, scope) if node.level else None
                scope.names[each.asname or each.name] = (
                    inner if inner is not None else Ref(f"{module}.{each.name}".strip("."))
                )

    def _module(self, name: str, level: int, scope: Scope) -> Scope | None:
        """A module of the script's own, in a file beside it or below its root; None for a library's."""
        path = files_beside.module(name, level, Path(scope.file), self.state.root)
        if path is None:
            return None
        key = str(path)
        if key in self.state.modules:
            return self.state.modules[key]
        if len(self.state.modules) >= files_beside.MOST_MODULES or self.state.depth >= DEEPEST_CALL:
            return None
        made = Scope(key)
        self.state.modules[key] = made
        made.names["__name__"] = name
        self.state.depth += 1
        try:
            self.block(files_beside.tree(path).body, made)
        except (_EndedError, InputError):
            pass
        finally:
            self.state.depth -= 1
        return made

    # -- what goes on elsewhere --------------------------------------------------------------------------

    def _while(self, node: ast.While, scope: Scope) -> None:
        if self.truth(self.value(node.test, scope)) is not False:
            self._around(lambda: self.block(node.body, scope))

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        rows = self.value(node.iter, scope)
        if isinstance(rows, dict):
            rows = list(rows)
        if isinstance(rows, list | tuple) and len(rows) <= MOST_ROUNDS:
            for row in rows:
                self.put(node.target, row, scope)
                if self._around(lambda: self.block(node.body, scope)) == "break":
                    return
            return
        first = rows[0] if isinstance(rows, list | tuple) and rows else Unknown(_why(rows, node, scope))
        self.put(node.target, first, scope)
        self._around(lambda: self.block(node.body, scope))

    def _around(self, body: Callable[[], None]) -> str:
        """A round of a loop."""
        try:
            body()
        except _EndedError as end:
            if end.how not in ("break", "continue"):
                raise
            return end.how
        return ""

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.put(item.optional_vars, value, scope)
        self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        """The body, or a handler in its place; handlers that only print or raise change nothing."""
        handlers = [handler for handler in node.handlers if any(map(_acts, handler.body))]

        def plain() -> None:
            self.block(node.body, scope)
            self.block(node.orelse, scope)

        if not handlers:
            plain()
        else:
            why = f"{scope.file} line {node.lineno}: depends on whether it raises"
            self._after([plain, *(partial(self.block, handler.body, scope) for handler in handlers)], why)
        self.block(node.finalbody, scope)

    def _after(self, ways: Sequence[Callable[[], None]], why: str) -> None:
        """Ways after which the script goes on where one of them does."""
        ended = self._ways(ways, why)
        if all(end is not None for end in ended):
            raise next(end for end in ended if end is not None)

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            fits = self._fits(case.pattern, subject, scope) if case.guard is None else None
            if fits is None:
                why = self.hangs(node.subject, subject, scope)
                self._after([partial(self.block, case.body, scope) for case in node.cases], why)
                return
            if fits:
                self.block(case.body, scope)
                return

    def _fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | None:
        if isinstance(pattern, ast.MatchAs):
            return True if pattern.pattern is None else None
        if isinstance(pattern, ast.MatchSequence) and isinstance(subject, tuple):
            if len(subject) != len(pattern.patterns):
                return False
            parts = [self._fits(each, row, scope) for each, row in zip(pattern.patterns, subject, strict=True)]
            return False if False in parts else None if None in parts else True
        if isinstance(pattern, ast.MatchOr):
            found = [self._fits(each, subject, scope) for each in pattern.patterns]
            return True if True in found else None if None in found else False
        if isinstance(pattern, ast.MatchValue) and isinstance(subject, str | int | float | bool | None):
            value = self.value(pattern.value, scope)
            return value == subject if isinstance(value, str | int | float | bool) else None
        return None

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        raise _EndedError("stop", f"{scope.file} line {node.lineno}: {shown(node)}")

    def _return(self, node: ast.Return, scope: Scope) -> None:
        raise _EndedError("return", self.value(node.value, scope) if node.value is not None else None)

    def _break(self, _node: ast.Break, _scope: Scope) -> None:
        raise _EndedError("break")

    def _continue(self, _node: ast.Continue, _scope: Scope) -> None:
        raise _EndedError("continue")

    # -- functions and classes ---------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        defaults = {
            each.arg: self.value(value, scope)
            for each, value in zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True)
        }
        for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                defaults[each.arg] = self.value(value, scope)
        decorators = tuple(self.value(each, scope) for each in node.decorator_list)
        made = Func(node, scope, defaults, MISSING, decorators)
        parsers.registered(made)
        scope.names[node.name] = made

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        inner = Scope(scope.file, scope)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        bases = tuple(self.value(base, scope) for base in node.bases)
        for each in node.body:
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.FunctionDef):
                self.statement(each, inner)
        names = tuple(each.target.id for each in fields if isinstance(each.target, ast.Name))
        types = {each.target.id: ast.unparse(each.annotation) for each in fields if isinstance(each.target, ast.Name)}
        scope.names[node.name] = Cls(node.name, bases, inner, names, types, node.lineno)

    def follow(self, func: Func, args: list[Any], kwargs: dict[str, Any], line: int) -> Any:
        """What a function returns: its body is followed with its arguments."""
        node = func.node
        file = func.scope.file
        if self.state.depth >= DEEPEST_CALL:
            return Unknown(f"{file} line {line}: functions call each other too deep")
        inner = Scope(file, func.scope)
        inner.names.update(parsers.bound(self, func, args, kwargs, f"{file} line {node.lineno}"))
        for name, given in inner.names.items():
            self.state.length(name, given, file, node.lineno)
        self.state.scopes.append(inner)
        self.state.depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, inner)
            self.block(node.body, inner)
        except _EndedError as end:
            if end.how == "stop":
                raise
            return end.value
        finally:
            self.state.depth -= 1
            self.state.scopes.pop()
        return None

    def make(self, cls: Cls, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
        """An object of a class of the script: of a dataclass its fields, of another what `__init__` sets."""
        base = parsers.library_base(cls)
        made = Obj(base or f"{cls.scope.file}.{cls.name}", *at, cls=cls)
        made.args, made.kwargs = list(args), dict(kwargs)
        names, defaults = parsers.fields(self, cls)
        if base is None and args:
            made.kwargs |= dict(zip(names, args, strict=False))
        for name, value in defaults.items():
            if name not in made.kwargs and not isinstance(value, Missing):
                made.kwargs[name] = value
                made.places[name] = (cls.scope.file, cls.line)
        start = self.method(made, "__init__")
        if start is not None and base is None:
            self.follow(Func(start.node, start.scope, start.defaults, made), args, kwargs, at[1])
        after = self.method(made, "__post_init__")
        if after is not None and base is None:
            self.follow(Func(after.node, after.scope, after.defaults, made), [], {}, at[1])
        if base is not None:
            found = self.called(base, made, args, kwargs, at)
            return made if isinstance(found, Missing) else found
        return made

    def library_default(self, base: Obj, name: str) -> Any:
        """A default of a library's class that decides how a script goes on; MISSING for others."""
        return parsers.library_default(base, name)

    def called(self, path: str, value: Any, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
        """What a call of a library's name gives, where that is known; MISSING where an object stands for it."""
        last = path.rpartition(".")[2]
        if path in ("sys.exit", "builtins.exit", "builtins.quit", "os._exit"):
            raise _EndedError("stop", f"{at[0]} line {at[1]}: {path}")
        found = parsers.called(self, path, value, args, kwargs, at)
        if not isinstance(found, Missing):
            return found
        found = builtins.function(self.state, path, args, kwargs, at)
        if not isinstance(found, Missing):
            return found
        if isinstance(value, Obj) and last == "train" and value.last.endswith("Trainer"):
            self.state.event("train", value, *at)
            return None
        if isinstance(value, Obj) and value.cls is not None and last.endswith("Trainer") and value.path == path:
            self.state.event("made", value, *at)
            return MISSING
        if isinstance(value, Ref) and last.endswith("Trainer") and last[:1].isupper():
            made = Obj(path, *at)
            made.args, made.kwargs = list(args), dict(kwargs)
            made.places = dict.fromkeys(kwargs, at)
            self.state.event("made", made, *at)
            return made
        return files_beside.loaded(self.state, path, value, args, at)


def _takes(base: Any, key: Any) -> bool:
    """Whether a table or list takes a value at a key."""
    if isinstance(base, dict):
        return isinstance(key, str | int | bool | None)
    return isinstance(base, list) and isinstance(key, int) and -len(base) <= key < len(base)


def _across(value: Either, size: int) -> Any:
    """One of several rows of values -> a row of one of several; itself where they are no rows of that length.

    >>> _across(Either((("a", 1), ("b", 1)), "depends on x"), 2)
    (Either(options=('a', 'b'), why='depends on x'), 1)
    """
    rows = [each for each in value.options if not isinstance(each, Obj)]
    if not all(isinstance(each, list | tuple) and len(each) == size for each in rows) or len(rows) < 1:
        return value
    if len(rows) < len(value.options):
        return value
    return tuple(either((row[place] for row in rows), value.why) for place in range(size))


def _goes_on(end: _EndedError | None) -> bool:
    return end is None or end.how != "stop"


def _why(rows: Any, node: ast.For | ast.AsyncFor, scope: Scope) -> str:
    return reason(rows) or f"{scope.file} line {node.lineno}: what it loops over is known only when it runs"


def _starred(nodes: Iterable[ast.expr]) -> bool:
    return any(isinstance(each, ast.Starred) for each in nodes)


def _texts(value: Any) -> bool:
    return all(isinstance(each, str | Text) for each in options(value)) and isinstance(value, str | Text | Either)


def _acts(node: ast.stmt) -> bool:
    """Whether a statement of a handler changes what a run does: it sets something, or calls more than a printer."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.If | ast.With | ast.For | ast.ImportFrom):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and not ast.unparse(call.func).startswith(
        ("print", "logg", "warn", "traceback", "sys.")
    )


STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: Statements._assign, ast.AnnAssign: Statements._annotated, ast.AugAssign: Statements._augmented,
    ast.Delete: Statements._delete, ast.Expr: Statements._expression, ast.Import: Statements._import,
    ast.ImportFrom: Statements._import_from, ast.While: Statements._while, ast.For: Statements._for,
    ast.AsyncFor: Statements._for, ast.With: Statements._with, ast.AsyncWith: Statements._with,
    ast.Try: Statements._try, ast.Match: Statements._match, ast.Raise: Statements._raise,
    ast.Return: Statements._return, ast.Break: Statements._break, ast.Continue: Statements._continue,
    ast.FunctionDef: Statements._function, ast.AsyncFunctionDef: Statements._function,
    ast.ClassDef: Statements._class,
}  # fmt: skip
