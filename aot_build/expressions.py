"""The expressions of operators.toml: Python's syntax, rendered as C++ and as Python that accepts symbolic sizes.

One text serves both languages, so that an eager call and a fake cannot disagree. What an expression may hold is in
the head of operators.toml; anything else is an error when the build starts.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace


class ExpressionError(ValueError):
    """What is wrong with an expression, for the one who wrote it."""


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use."""

    tensors: AbstractSet[str]
    lists: AbstractSet[str]
    integers: AbstractSet[str]
    bools: AbstractSet[str] = frozenset()
    floats: AbstractSet[str] = frozenset()
    strings: AbstractSet[str] = frozenset()
    string_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def with_let(self, name: str, kind: str) -> Scope:
        """The scope after ``let name = <int or bool>``."""
        integers = self.integers | {name} if kind == "int" else self.integers
        bools = self.bools | {name} if kind == "bool" else self.bools
        return replace(self, integers=integers, bools=bools)


@dataclass(frozen=True)
class Expression:
    """One expression in both languages; ``kind`` is "int", "bool", "float" or "str"."""

    cpp: str
    python: str
    kind: str


_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


class _Translator:
    def __init__(self, text: str, scope: Scope) -> None:
        self.text = text
        self.scope = scope

    def error(self, message: str) -> ExpressionError:
        return ExpressionError(f"{message} in `{self.text}`")

    def want(self, expression: Expression, kind: str) -> Expression:
        if expression.kind != kind:
            raise self.error(f"`{expression.python}` is {expression.kind}, expected {kind}")
        return expression

    def visit(self, node: ast.expr) -> Expression:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return Expression(str(value), str(value), "int")
            case ast.Constant(value=str(value)):
                return Expression(f'"{value}"', f"'{value}'", "str")
            case ast.Name(id=name) if name in self.scope.integers:
                return Expression(f"in.{name}", name, "int")
            case ast.Name(id=name) if name in self.scope.bools:
                return Expression(f"in.{name}", name, "bool")
            case ast.Name(id=name) if name in self.scope.floats:
                return Expression(f"in.{name}", name, "float")
            case ast.Name(id=name) if name in self.scope.strings:
                return Expression(f"in.{name}", name, "str")
            case ast.Name(id=name):
                raise self.error(f"`{name}` is no number, string or let name")
            case ast.BoolOp(op=op, values=values):
                return self.bool_op(op, [self.want(self.visit(v), "bool") for v in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.want(self.visit(operand), "bool")
                return Expression(f"(not {inner.cpp})", f"rules.negate({inner.python})", "bool")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b = self.want(self.visit(left), "int"), self.want(self.visit(right), "int")
                sign = _OPERATORS[type(op)]
                # C++ truncates where Python floors: the same for sizes, which are never negative.
                cpp_sign = "/" if sign == "//" else sign
                return Expression(
                    f"({a.cpp} {cpp_sign} {b.cpp})", f"({a.python} {sign} {b.python})", "int"
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                a, b = self.visit(left), self.visit(right)
                if (a.kind, b.kind) != ("float", "int"):
                    b = self.want(b, a.kind)
                sign = _COMPARISONS[type(op)]
                if a.kind not in {"int", "float"} and sign not in {"==", "!="}:
                    raise self.error(f"`{sign}` compares numbers only")
                return Expression(
                    f"({a.cpp} {sign} {b.cpp})", f"({a.python} {sign} {b.python})", "bool"
                )
            case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Name(id=name)]) if (
                name in self.scope.string_sets
            ):
                a = self.want(self.visit(left), "str")
                words = self.scope.string_sets[name]
                cpp = " or ".join(f'{a.cpp} == "{word}"' for word in words) or "false"
                return Expression(f"({cpp})", f"({a.python} in {tuple(words)!r})", "bool")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.want(self.visit(test), "bool")
                a = self.visit(body)
                b = self.want(self.visit(orelse), a.kind)
                return Expression(
                    f"({condition.cpp} ? {a.cpp} : {b.cpp})",
                    f"({a.python} if {condition.python} else {b.python})",
                    a.kind,
                )
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self.scope.lists:
                i = self.want(self.visit(index), "int")
                return Expression(f"in.{name}[{i.cpp}]", f"{name}[{i.python}]", "int")
            case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
                return self.call(function, arguments)
            case _:
                raise self.error(f"`{ast.unparse(node)}` is not allowed")

    def bool_op(self, op: ast.boolop, values: list[Expression]) -> Expression:
        word, function = ("and", "every") if isinstance(op, ast.And) else ("or", "either")
        return Expression(
            f"({f' {word} '.join(value.cpp for value in values)})",
            f"rules.{function}({', '.join(value.python for value in values)})",
            "bool",
        )

    def call(self, function: str, arguments: list[ast.expr]) -> Expression:
        match function, arguments:
            case "numel", [ast.Name(id=name)] if name in self.scope.tensors:
                return Expression(f"in.{name}.numel", f"rules.numel({name})", "int")
            case "size", [ast.Name(id=name), ast.Constant(value=int(dimension))] if (
                name in self.scope.tensors
            ):
                return Expression(
                    f"in.{name}.sizes[{dimension}]", f"{name}.size({dimension})", "int"
                )
            case "dtype", [ast.Name(id=name)] if name in self.scope.tensors:
                return Expression(
                    f"dtype_name(in.{name}.dtype)", f"rules.dtype_name({name}.dtype)", "str"
                )
            case "rank", [ast.Name(id=name)] if name in self.scope.tensors:
                return Expression(f"in.{name}.rank", f"{name}.dim()", "int")
            case "given", [ast.Name(id=name)] if name in self.scope.tensors:
                return Expression(f"in.{name}.given", f"rules.given({name})", "bool")
            case "len", [ast.Name(id=name)] if name in self.scope.lists:
                return Expression(f"in.{name}.size()", f"len({name})", "int")
            case "sum" | "min" | "max", [
                ast.Subscript(
                    value=ast.Name(id=name),
                    slice=ast.Slice(
                        lower=ast.Constant(value=int(start)),
                        upper=None,
                        step=ast.Constant(value=int(step)),
                    ),
                )
            ] if name in self.scope.lists:
                default = "" if function == "sum" else ", default=0"
                return Expression(
                    f"in.{name}.{function}_from({start}, {step})",
                    f"{function}({name}[{start}::{step}]{default})",
                    "int",
                )
            case _:
                shown = ", ".join(ast.unparse(argument) for argument in arguments)
                raise self.error(f"`{function}({shown})` is not allowed")


def translate(text: str, scope: Scope) -> Expression:
    """An expression in both languages.

    Raises:
        ExpressionError: a name, function or syntax that is not allowed, or a mismatch of kinds.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"{error.msg} in `{text}`") from None
    return _Translator(text, scope).visit(node)


@dataclass(frozen=True)
class Message:
    """A message with expressions in braces: arguments of C++'s ``fail`` and an f-string."""

    cpp: str
    python: str


def translate_message(text: str, scope: Scope) -> Message:
    """A message template in both languages.

    Raises:
        ExpressionError: an expression in it is wrong.
    """
    cpp: list[str] = []
    python = ""
    prefix = ""
    for literal, expression_text, spec, conversion in string.Formatter().parse(text):
        if not set(literal).isdisjoint('"\\{}'):
            raise ExpressionError(f"a double quote, backslash or brace in the message `{text}`")
        if literal:
            cpp.append(f'"{literal}"')
            python += literal
        if expression_text is not None:
            if spec or conversion:
                raise ExpressionError(f"a format in the message `{text}`")
            expression = translate(expression_text, scope)
            cpp.append(expression.cpp)
            # As C++ streams write a float.
            shown = ":g" if expression.kind == "float" else ""
            python += f"{{{expression.python}{shown}}}"
            prefix = "f"
    return Message(", ".join(cpp), f'{prefix}"{python}"')
