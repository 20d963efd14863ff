"""The settings of a protocol as its source tells them, without importing it: `--help` need not wait for torch.

Names and defaults are those of the function's keyword arguments, meanings those of its docstring. Defaults may name
constants of the module or of those that it imports from.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Keyword arguments that a caller gives, not a person
NOT_SETTINGS = frozenset({"progress", "warn", "device", "state", "save_seconds", "branch", "out", "quiet", "predict"})
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


@dataclass(frozen=True)
class Setting:
    """One setting: what it is without being set, and what it means."""

    name: str
    default: Any
    meaning: str

    @property
    def written(self) -> str:
        """The default as a person writes it: `k=[10, 20]`."""
        return f"{self.name}={_written(self.default)}"


def read_settings(module: str, function: str) -> dict[str, Setting]:
    """The settings of a function of a module, in their order."""
    node = next(n for n in _tree(module).body if isinstance(n, ast.FunctionDef) and n.name == function)
    meanings = _meanings(ast.get_docstring(node) or "")
    return {
        argument.arg: Setting(argument.arg, _value(default, module), meanings.get(argument.arg, ""))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if argument.arg not in NOT_SETTINGS and default is not None
    }


@cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _value(node: ast.expr, module: str) -> Any:
    """What a default is, as long as it is made of constants."""
    match node:
        case ast.Name(id=name):
            return _constant(name, module)
        case ast.Tuple(elts=parts):
            return tuple(_value(part, module) for part in parts)
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, module), _value(right, module))
    return ast.literal_eval(node)


def _constant(name: str, module: str) -> Any:
    """A constant of a module, or of the one that it is imported from."""
    for node in _tree(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return _value(value, module)
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                return _value(value, module)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for one, value in zip(targets, values, strict=True):
                    if isinstance(one, ast.Name) and one.id == name:
                        return _value(value, module)
            case ast.ImportFrom(module=str(other), names=imported):
                for alias in imported:
                    if name == (alias.asname or alias.name):
                        return _constant(alias.name, other)
    raise LookupError(f"{module} has no constant {name}")


def _meanings(docstring: str) -> dict[str, str]:
    """The entries of `Args:`, each on one line."""
    found: dict[str, str] = {}
    name = ""
    for line in docstring.partition("\nArgs:\n")[2].splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent == 0:
            break
        if indent == 4:
            name, _, line = line.partition(":")  # noqa: PLW2901 - the rest of it
            name = name.strip()
        found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def _written(value: Any) -> str:
    """As YAML, which `key=value` is read as."""
    if isinstance(value, tuple):
        return f"[{', '.join(_written(part) for part in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
