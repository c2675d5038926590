"""The value of an expression of a Python script, as far as the script tells it: nothing is run.

A name of a library is a `Ref`, a call of one makes an `Obj`; functions of the script are followed.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from headway.foreign.python import builtins
from headway.foreign.python.state import State
from headway.foreign.python.values import (
    LARGEST,
    LONGEST_LIST,
    LONGEST_TEXT,
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
    is_plain,
    joined,
    lift,
    options,
    reason,
    same,
)

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
FORMAT = re.compile(r"[<>^]?[+]?0?\d{0,2},?(?:\.\d{1,2})?[dfegs%]?")


class Expressions:
    """Works out expressions. `Statements` adds what follows functions and classes."""

    def __init__(self, state: State) -> None:
        self.state = state

    # -- what `Statements` has ---------------------------------------------------------------------------

    def follow(self, func: Func, args: list[Any], kwargs: dict[str, Any], line: int) -> Any:
        """What a function of the script returns."""
        raise NotImplementedError

    def make(self, cls: Cls, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
        """An object of a class of the script."""
        raise NotImplementedError

    def called(self, path: str, value: Any, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
        """What a call of a library's name gives, where that is known; MISSING where an object stands for it."""
        raise NotImplementedError

    def library_default(self, base: Obj, name: str) -> Any:
        """A default of a library's class that decides how a script goes on; MISSING for others."""
        raise NotImplementedError

    # -- expressions -------------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression."""
        self.state.spend()
        found = EXPRESSIONS.get(type(node))
        return self.unclear(node, scope) if found is None else found(self, node, scope)

    def unclear(self, node: ast.AST, scope: Scope, why: str = "") -> Unknown:
        """A value that only a run can tell."""
        text = why or f"`{shown(node)}` is known only when it runs"
        return Unknown(f"{scope.file} line {getattr(node, 'lineno', 0)}: {text}")

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > LARGEST:
            return value if value == float("inf") else self.unclear(node, scope)
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            return self.unclear(node, scope, "a text longer than 64 KiB")
        return value if value is None or isinstance(value, bool | int | float | str) else self.unclear(node, scope)

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        if isinstance(found, Missing):
            if node.id == "__name__":
                return "__main__"
            if node.id == "__file__":
                return scope.file
            if node.id in builtins.NAMES:
                return Ref(f"builtins.{node.id}")
            if builtins.KNOWN.fullmatch(node.id):
                self.state.imported.append(node.id)
                return Ref(f"{'unsloth' if node.id.startswith('Fast') else 'trl'}.{node.id}")
            return self.unclear(node, scope, f"{node.id} is set nowhere before")
        return found

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        return joined(self._piece(each, scope) for each in node.values)

    def _piece(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        assert isinstance(node, ast.FormattedValue)
        spec = self._text(node.format_spec, scope) if isinstance(node.format_spec, ast.JoinedStr) else ""

        def one(value: Any) -> Any:
            if isinstance(value, Obj | Ref | list | dict | tuple | Missing | Cls | Func):
                return self.unclear(node.value, scope)
            if isinstance(value, Unknown | Text):
                return value
            if not isinstance(spec, str) or not FORMAT.fullmatch(spec):
                return self.unclear(node.value, scope)
            try:
                return format(value, spec) if spec else str(value)
            except (ValueError, TypeError, OverflowError):
                return self.unclear(node.value, scope)

        return lift(one, self.value(node.value, scope))

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        base = self.value(node.value, scope)
        return lift(lambda each: self.attribute(each, node.attr, node, scope), base)

    def attribute(self, base: Any, name: str, node: ast.AST, scope: Scope) -> Any:
        """An attribute of one value."""
        if isinstance(base, Ref) and name == "is_floating_point" and base.path.startswith("torch."):
            return "float" in base.last
        if isinstance(base, Ref):
            return Ref(f"{base.path}.{name}")
        if isinstance(base, Unknown):
            return base
        if isinstance(base, Scope):
            found = base.names.get(name, MISSING)
            return self.unclear(node, scope) if isinstance(found, Missing) else found
        if isinstance(base, Cls):
            found = base.scope.names.get(name, MISSING)
            return self.unclear(node, scope) if isinstance(found, Missing) else found
        if isinstance(base, Obj):
            found = base.get(name)
            if not isinstance(found, Missing):
                return found
            for known in (builtins.attribute(base, name), self.library_default(base, name)):
                if not isinstance(known, Missing):
                    return known
            method = self.method(base, name)
            if method is not None:
                return self._property(method, base)
            if base.path.startswith("argparse."):
                return self.unclear(node, scope, f"there is no argument {name}")
        return self.unclear(node, scope)

    def _property(self, method: Func, base: Obj) -> Any:
        """A method bound to its object; a property is worked out at once."""
        bound = Func(method.node, method.scope, method.defaults, base)
        names = [each.path if isinstance(each, Ref) else "" for each in method.decorators]
        if any(name.rpartition(".")[2] in ("property", "cached_property") for name in names):
            return self.follow(bound, [], {}, method.node.lineno)
        return bound

    def method(self, base: Obj, name: str) -> Func | None:
        """A function of the class of an object, or of the classes below it."""
        waiting: list[Any] = [base.cls] if base.cls is not None else []
        for _ in range(16):
            if not waiting:
                break
            cls = waiting.pop(0)
            if not isinstance(cls, Cls):
                continue
            found = cls.scope.names.get(name)
            if isinstance(found, Func):
                return found
            waiting += cls.bases
        return None

    def _item(self, node: ast.Subscript, scope: Scope) -> Any:
        base = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            parts = [None if each is None else self.value(each, scope) for each in _bounds(node.slice)]
            return lift(lambda each, *at: self._slice(each, at, node, scope), base, *parts)
        key = self.value(node.slice, scope)
        return lift(lambda each, at: self.item(each, at, node, scope), base, key)

    def item(self, base: Any, key: Any, node: ast.AST, scope: Scope) -> Any:
        """An item of a list or table."""
        if isinstance(base, Unknown):
            return base
        if isinstance(base, Ref) and base.path == "os.environ":
            return builtins.environment(self.state, key, MISSING, f"{scope.file} line {getattr(node, 'lineno', 0)}")
        if isinstance(base, Ref) and base.path == "sys.argv":
            return self._argument(key, node, scope)
        if isinstance(base, Ref) and base.last in builtins.TABLES and isinstance(key, str):
            return builtins.TABLES[base.last].get(key, self.unclear(node, scope))
        if isinstance(base, Obj) and base.path == builtins.NAMESPACE:
            found = base.get(str(key))
            return self.unclear(node, scope) if isinstance(found, Missing) else found
        try:
            if isinstance(base, dict) and isinstance(key, str | int | float | bool | None):
                return base[key]
            if isinstance(base, list | tuple | str) and isinstance(key, int):
                return base[key]
        except (KeyError, IndexError):
            return self.unclear(node, scope, f"there is no {shown(node)}")
        why = reason(base, key)
        return Unknown(why) if why else self.unclear(node, scope)

    def _argument(self, key: Any, node: ast.AST, scope: Scope) -> Any:
        words = self.state.arguments
        if isinstance(key, int) and 1 <= key <= len(words):
            return words[key - 1]
        return self.unclear(node, scope, "is an argument of the command, and is not given")

    def _slice(self, base: Any, at: tuple[Any, ...], node: ast.AST, scope: Scope) -> Any:
        if isinstance(base, Ref) and base.path == "sys.argv" and at[0] == 1 and at[1] is None:
            return list(self.state.arguments)
        if isinstance(base, list | tuple | str) and all(each is None or isinstance(each, int) for each in at):
            try:
                return base[slice(*at)]
            except ValueError:
                return self.unclear(node, scope)
        return Unknown(reason(base, *at)) if reason(base, *at) else self.unclear(node, scope)

    def _several(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        found: list[Any] = []
        for each in node.elts:
            value = self.value(each.value if isinstance(each, ast.Starred) else each, scope)
            if not isinstance(each, ast.Starred):
                found.append(value)
            elif isinstance(value, list | tuple):
                found.extend(value)
            else:
                return Unknown(reason(value) or self.unclear(each, scope).why)
            if len(found) > LONGEST_LIST:
                return self.unclear(node, scope, "a list of more than 1,024")
        return tuple(found) if isinstance(node, ast.Tuple) else found

    def _table(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            made = self.value(value, scope)
            if key is None:
                if isinstance(made, Either) and all(isinstance(each, dict) for each in made.options):
                    names = dict.fromkeys(name for each in made.options for name in each)
                    found |= {name: either((e.get(name, MISSING) for e in made.options), made.why) for name in names}
                elif isinstance(made, dict):
                    found.update(made)
                else:
                    found[builtins.HIDDEN] = Unknown(reason(made) or self.unclear(value, scope).why)
                continue
            name = self.value(key, scope)
            if isinstance(name, str | int | float | bool | None) and len(found) < LONGEST_LIST:
                found[name] = made
            elif isinstance(name, Ref):
                found[name.path] = made
        return found

    # -- operators ---------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        texts = [_is_text(each) for each in (left, right)]
        told = [text or isinstance(each, Unknown) for text, each in zip(texts, (left, right), strict=True)]
        if isinstance(node.op, ast.Add) and any(texts) and all(told):
            return joined((left, right))
        return lift(lambda one, two: self.binary(node.op, one, two, node, scope), left, right)

    def binary(self, op: ast.operator, one: Any, two: Any, node: ast.AST, scope: Scope) -> Any:
        """An operation on two values."""
        if isinstance(one, Unknown | Text) or isinstance(two, Unknown | Text):
            return Unknown(reason(one, two))
        if isinstance(op, ast.Div) and isinstance(one, Obj) and one.last == "Path" and isinstance(two, str):
            made = Obj("pathlib.Path", scope.file, getattr(node, "lineno", 0))
            made.args = [builtins.path_join((*one.args, two))]
            return made
        if isinstance(op, ast.BitOr) and isinstance(one, dict) and isinstance(two, dict):
            return {**one, **two}
        if isinstance(op, ast.Add) and type(one) is type(two) and isinstance(one, list | tuple):
            return one + two if len(one) + len(two) <= LONGEST_LIST else self.unclear(node, scope)
        if isinstance(op, ast.Mod) and isinstance(one, str):
            return self.unclear(node, scope)
        if isinstance(op, ast.Mult) and isinstance(one, str | list) and isinstance(two, int):
            return one * two if len(one) * max(two, 0) <= LONGEST_LIST else self.unclear(node, scope)
        if not isinstance(one, int | float) or not isinstance(two, int | float):
            return self.unclear(node, scope)
        if isinstance(op, ast.Pow | ast.LShift) and (abs(two) > 100 or abs(one) > 10**6):
            return self.unclear(node, scope, "is too large a number")
        try:
            found = ARITHMETIC[type(op)](one, two)
        except (ArithmeticError, KeyError, ValueError, TypeError):
            return self.unclear(node, scope)
        if isinstance(found, complex) or abs(found) > LARGEST:
            return self.unclear(node, scope, "is too large a number")
        return found

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)

        def one(each: Any) -> Any:
            if isinstance(node.op, ast.Not):
                known = self.truth(each)
                return Unknown(reason(each) or self.unclear(node, scope).why) if known is None else not known
            if isinstance(each, int | float) and isinstance(node.op, ast.USub):
                return -each
            return each if isinstance(node.op, ast.UAdd) else self.unclear(node, scope)

        return lift(one, value)

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is not known."""
        if isinstance(value, Either):
            found = {self.truth(each) for each in value.options}
            return found.pop() if len(found) == 1 else None
        if isinstance(value, Unknown):
            return None
        if isinstance(value, Text):
            return True if any(isinstance(part, str) and part for part in value.parts) else None
        if isinstance(value, Obj | Func | Cls | Scope | Ref):
            return None if isinstance(value, Obj) and value.cls is None and not _is_thing(value) else True
        return False if isinstance(value, Missing) else bool(value)

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> Any:
        left = self.value(node.values[0], scope)
        for each in node.values[1:]:
            known = self.truth(left)
            if known is None:
                right = self.value(each, scope)
                if isinstance(node.op, ast.Or) and isinstance(left, Unknown) and left.variable and is_plain(right):
                    builtins.taken(self.state, f"{scope.file} line {node.lineno}", left.variable, right)
                    left = right
                    continue
                left = either((*options(left), *options(right)), reason(left) or self.unclear(node, scope).why)
            elif known == isinstance(node.op, ast.And):
                left = self.value(each, scope)
            else:
                return left
        return left

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for op, each in zip(node.ops, node.comparators, strict=True):
            right = self.value(each, scope)
            found = lift(lambda one, two, op=op: self._compared(op, one, two, node, scope), left, right)
            if len(node.ops) == 1 or self.truth(found) is not True:
                return found
            left = right
        return True

    def _compared(self, op: ast.cmpop, one: Any, two: Any, node: ast.AST, scope: Scope) -> Any:
        if isinstance(op, ast.In | ast.NotIn):
            found = self._inside(one, two)
            if found is None:
                return Unknown(reason(one, two) or self.unclear(node, scope).why)
            return found == isinstance(op, ast.In)
        if isinstance(one, Unknown | Text) or isinstance(two, Unknown | Text):
            return Unknown(reason(one, two))
        if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
            if isinstance(one, Ref) != isinstance(two, Ref) and None not in (one, two):
                return self.unclear(node, scope)
            numbers = isinstance(one, int | float) and isinstance(two, int | float)
            return (one == two if numbers else same(one, two)) == isinstance(op, ast.Eq | ast.Is)
        try:
            if type(one) is type(two) or (isinstance(one, int | float) and isinstance(two, int | float)):
                return COMPARED[type(op)](one, two)
        except (TypeError, KeyError):
            pass
        return self.unclear(node, scope)

    def _inside(self, one: Any, two: Any) -> bool | None:
        """Whether a value is in a list, a table or a text; None where that is not known."""
        if isinstance(two, Ref) and two.path == "os.environ" and isinstance(one, str):
            return True if one in self.state.environment else None
        if isinstance(one, Unknown | Text | Obj) or isinstance(two, Unknown | Obj | Ref):
            return None
        if isinstance(two, Text):
            return True if isinstance(one, str) and any(isinstance(p, str) and one in p for p in two.parts) else None
        if isinstance(two, str):
            return one in two if isinstance(one, str) else None
        if isinstance(two, list | tuple | dict):
            if any(same(one, each) for each in two):
                return True
            return None if reason(list(two)) else False
        return None

    def _choice(self, node: ast.IfExp, scope: Scope) -> Any:
        test = self.value(node.test, scope)
        known = self.truth(test)
        if known is not None:
            return self.value(node.body if known else node.orelse, scope)
        why = self.hangs(node.test, test, scope)
        return either((*options(self.value(node.body, scope)), *options(self.value(node.orelse, scope))), why)

    def hangs(self, node: ast.expr, value: Any, scope: Scope) -> str:
        """Why a condition is not decided, in words."""
        inner = reason(value)
        text = f"{scope.file} line {node.lineno}: depends on `{shown(node)}`"
        return text if not inner or inner.startswith(f"{scope.file} line {node.lineno}") else f"{text} ({inner})"

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        on = node.func if isinstance(node.func, ast.Attribute) else None
        base = self.value(node.func if on is None else on.value, scope)
        args, kwargs, places = self._arguments(node, scope)
        at = (scope.file, node.lineno)
        if on is None:
            return lift(lambda each: self.call(each, args, kwargs, at, node, scope, places), base)
        return lift(lambda each: self._call_on(each, on.attr, args, kwargs, at, node, scope, places), base)

    def _arguments(
        self, node: ast.Call, scope: Scope
    ) -> tuple[list[Any], dict[str, Any], dict[str, tuple[str, int]]]:
        args: list[Any] = []
        for each in node.args:
            value = self.value(each.value if isinstance(each, ast.Starred) else each, scope)
            if not isinstance(each, ast.Starred):
                args.append(value)
            elif isinstance(value, list | tuple):
                args.extend(value)
        kwargs: dict[str, Any] = {}
        places: dict[str, tuple[str, int]] = {}
        for word in node.keywords:
            value = self.value(word.value, scope)
            if word.arg is not None:
                kwargs[word.arg], places[word.arg] = value, (scope.file, word.value.lineno)
                continue
            table = self._table(ast.Dict([None], [word.value]), scope) if isinstance(value, Either) else value
            if isinstance(table, Obj):
                table = {**table.kwargs, **table.attrs}
            if isinstance(table, dict):
                named = {name: each for name, each in table.items() if isinstance(name, str)}
                kwargs |= named
                places |= dict.fromkeys(named, (scope.file, word.value.lineno))
            else:
                kwargs[builtins.HIDDEN] = Unknown(reason(value) or self.unclear(word.value, scope).why)
        return args, kwargs, places

    def _call_on(
        self, base: Any, name: str, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int], node: ast.Call,
        scope: Scope, places: dict[str, tuple[str, int]],
    ) -> Any:  # fmt: skip
        """A method of a value."""
        if isinstance(base, Unknown):
            return base
        if isinstance(base, Ref | Scope | Cls):
            func = self.attribute(base, name, node.func, scope)
            return self.call(func, args, kwargs, at, node, scope, places)
        if isinstance(base, Obj):
            found = base.get(name)
            if isinstance(found, Func):
                return self.follow(found, args, kwargs, at[1])
            method = self.method(base, name)
            if method is not None:
                return self.follow(Func(method.node, method.scope, method.defaults, base), args, kwargs, at[1])
            return self.call_object(base, name, args, kwargs, at, places)
        found = builtins.method(base, name, args, kwargs)
        if isinstance(found, Missing):
            return Unknown(reason(base, args) or self.unclear(node, scope).why)
        return found

    def call_object(
        self, base: Obj, name: str, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int],
        places: dict[str, tuple[str, int]],
    ) -> Any:  # fmt: skip
        """A method of an object of a library."""
        if base.path == "re.Match" and name == "group" and all(isinstance(each, int) for each in args):
            place = args[0] if args else 0
            return base.args[place] if 0 <= place < len(base.args) else MISSING
        found = self.called(f"{base.path}.{name}", base, args, kwargs, at)
        if not isinstance(found, Missing):
            return found
        base.calls.append((name, tuple(args), dict(kwargs), at[1]))
        if name in builtins.SAME:
            return base
        made = Obj(f"{base.path}.{name}", *at)
        made.args, made.kwargs, made.places = [base, *args], kwargs, places
        return made

    def call(
        self, func: Any, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int], node: ast.Call, scope: Scope,
        places: dict[str, tuple[str, int]],
    ) -> Any:  # fmt: skip
        """A call of one value."""
        if isinstance(func, Func):
            found = self.called(
                func.node.name if not isinstance(func.node, ast.Lambda) else "", func, args, kwargs, at
            )
            return self.follow(func, args, kwargs, at[1]) if isinstance(found, Missing) else found
        if isinstance(func, Cls):
            made = self.make(func, args, kwargs, at)
            if isinstance(made, Obj):
                made.places = {**made.places, **places}
            return made
        if isinstance(func, Ref):
            found = self.called(func.path, func, args, kwargs, at)
            if not isinstance(found, Missing):
                return found
            if func.path.startswith("builtins."):
                return Unknown(reason(args) or self.unclear(node, scope).why)
            made = Obj(func.path, *at)
            made.args, made.kwargs, made.places = args, kwargs, places
            return made
        if isinstance(func, Obj):
            found = self.called(f"{func.path}()", func, args, kwargs, at)
            if not isinstance(found, Missing):
                return found
        return Unknown(reason(func) or self.unclear(node, scope).why)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Func:
        return Func(node, scope, {})

    def _listed(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Any:
        """A list made by a loop over a known one."""
        if len(node.generators) != 1:
            return self.unclear(node, scope)
        each = node.generators[0]
        rows = self.value(each.iter, scope)
        if not isinstance(rows, list | tuple) or len(rows) > 64 or not isinstance(each.target, ast.Name):
            return Unknown(reason(rows) or self.unclear(node, scope).why)
        found = []
        for row in rows:
            inner = Scope(scope.file, scope)
            inner.names[each.target.id] = row
            tests = [self.truth(self.value(test, inner)) for test in each.ifs]
            if None in tests:
                return self.unclear(node, scope)
            if all(tests):
                found.append(self.value(node.elt, inner))
        return found

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        scope.names[node.target.id] = value
        return value


def _is_text(value: Any) -> bool:
    """Whether a value is text, with or without parts that are not known."""
    return isinstance(value, str | Text) or (
        isinstance(value, Either) and all(isinstance(each, str | Text) for each in value.options)
    )


def _is_thing(value: Obj) -> bool:
    """Whether a library's object is one that counts as true: what a class makes, by how its name is written."""
    last = value.last
    if value.path == "re.Match":
        return True
    return last[:1].isupper() or last in ("from_pretrained", "get_peft_model", "prepare_model_for_kbit_training")


def _bounds(node: ast.Slice) -> tuple[ast.expr | None, ...]:
    return node.lower, node.upper, node.step


def shown(node: ast.AST) -> str:
    """An expression as it is written, shortened."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "an expression"
    return text if len(text) <= 60 else f"{text[:57]}..."


EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: Expressions._constant, ast.Name: Expressions._name, ast.JoinedStr: Expressions._text,
    ast.Attribute: Expressions._attribute, ast.Subscript: Expressions._item, ast.List: Expressions._several,
    ast.Tuple: Expressions._several, ast.Set: Expressions._several, ast.Dict: Expressions._table,
    ast.BinOp: Expressions._binary, ast.UnaryOp: Expressions._unary, ast.BoolOp: Expressions._boolean,
    ast.Compare: Expressions._compare, ast.IfExp: Expressions._choice, ast.Call: Expressions._call,
    ast.Lambda: Expressions._lambda, ast.ListComp: Expressions._listed, ast.GeneratorExp: Expressions._listed,
    ast.SetComp: Expressions._listed, ast.NamedExpr: Expressions._named,
}  # fmt: skip
