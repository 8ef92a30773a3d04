"""What one statement of a cell binds, reads, changes and shares, as far as its text tells.

Errs on the side of more: a call whose result is dropped changes what it is given, a name may share
its object with every name that its value was made of. Nothing is executed.
"""

from __future__ import annotations

import ast
import symtable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cudassert_ipy.replay.changing import (
    CONSUMING,
    DEEP,
    PURE,
    SHALLOW,
    base_of,
    bases_of,
    flat_targets,
    is_loud,
    names_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SEEDS: Final = frozenset(
    (
        *("seed", "manual_seed", "manual_seed_all", "seed_everything", "set_seed"),
        *("set_rng_state", "set_state", "use_deterministic_algorithms"),
    )
)
_SETTINGS: Final = frozenset(("os", "sys", "torch", "random", "numpy", "np", "warnings"))
"""Modules whose state later statements may depend on without naming what was set."""
_NO_SETTING: Final = frozenset(("save", "savez", "savetxt", "show", "synchronize", "empty_cache"))
_OPAQUE: Final = frozenset(
    ("exec", "eval", "globals", "locals", "vars", "get_ipython", "__import__", "compile", "dir")
)


@dataclass(slots=True)
class Facts:
    """What one top-level statement does.

    Attributes:
        binds: names that it may bind.
        kills: names that it binds for certain, so that earlier values of them are gone.
        reads: names that it reads when it runs.
        later: names that a function or class defined in it reads when it is called.
        sets: names that such a function binds when it is called.
        shallow: names whose object itself it may change.
        deep: names whose object, and whatever that holds, it may change.
        groups: names that may share objects, in any direction.
        holds: (name, names): the first may hold the objects of the others.
        made: (name, what was called): the value of the first came from a call of the second.
        is_class: whether it defines a class whose calls make new objects.
        calls: names in each call that changes nothing unless what it calls does.
        inert: of ``binds``, those whose value cannot be changed: numbers, texts, modules.
        is_loud: whether a function or class defined in it may change more than its own objects.
        seeds: whether it sets a random state or a setting that others depend on unnamed.
        is_import: whether it only imports.
        opaque: why nothing can be said about it; None if something can.
        awaits: whether it awaits outside a function.

    """

    binds: set[str] = field(default_factory=set)
    kills: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    shallow: set[str] = field(default_factory=set)
    deep: set[str] = field(default_factory=set)
    groups: list[set[str]] = field(default_factory=list)
    holds: list[tuple[str, set[str]]] = field(default_factory=list)
    made: list[tuple[str, str]] = field(default_factory=list)
    is_class: bool = False
    calls: list[set[str]] = field(default_factory=list)
    inert: set[str] = field(default_factory=set)
    is_loud: bool = False
    seeds: bool = False
    is_import: bool = False
    opaque: str | None = None
    awaits: bool = False


def facts_of(statement: ast.stmt) -> Facts:
    """Return what a top-level statement does."""
    facts = Facts()
    _scopes(statement, facts)
    _effects(statement, facts)
    _whole(statement, facts)
    return facts


_COMPREHENSIONS: Final = ("listcomp", "setcomp", "dictcomp", "genexpr")


def _scopes(statement: ast.stmt, facts: Facts) -> None:
    """Tell names apart by scope, as Python's own compiler does."""
    text = ast.unparse(statement)
    try:
        top = symtable.symtable(text, "<cell>", "exec")
    except SyntaxError:  # it awaits in a comprehension, or the like: every name counts
        names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        facts.reads |= names
        facts.binds |= names
        return
    for symbol in top.get_symbols():
        name = symbol.get_name()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            facts.binds.add(name)
        if symbol.is_referenced():
            facts.reads.add(name)
    for child in top.get_children():
        _inner(child, facts, is_later=_is_function(child))


def _is_function(table: symtable.SymbolTable) -> bool:
    return table.get_type() == "function" and table.get_name() not in _COMPREHENSIONS


def _inner(table: symtable.SymbolTable, facts: Facts, *, is_later: bool) -> None:
    for symbol in table.get_symbols():
        if not symbol.is_global():
            continue
        name = symbol.get_name()
        if symbol.is_assigned() or symbol.is_imported():
            if is_later:
                facts.sets.add(name)
                facts.is_loud = True
            else:
                facts.binds.add(name)
        if symbol.is_referenced():
            (facts.later if is_later else facts.reads).add(name)
            if table.get_name() in ("genexpr", "lambda"):
                facts.later.add(name)
                facts.reads.add(name)
    for child in table.get_children():
        _inner(child, facts, is_later=is_later or _is_function(child))


def _code(statement: ast.AST, *, functions: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes that run when the statement does; function bodies only when asked for."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not functions:
            waiting += [*node.decorator_list, *node.args.defaults]
            waiting += [item for item in node.args.kw_defaults if item is not None]
        elif isinstance(node, ast.Lambda) and not functions:
            waiting += node.args.defaults
        else:
            waiting += ast.iter_child_nodes(node)


def _effects(statement: ast.stmt, facts: Facts) -> None:
    for node in _code(statement):
        _effect(node, facts)
    # Functions are loud by what is in their bodies, `__init__` too where it reaches beyond `self`.
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            facts.is_loud = facts.is_loud or is_loud(node)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for decorator in statement.decorator_list:
            facts.groups.append({statement.name, *names_in(decorator)})
    if isinstance(statement, ast.ClassDef):
        facts.is_class = not statement.keywords and not statement.decorator_list
        facts.is_class = facts.is_class and "__new__" not in ast.unparse(statement)
        facts.groups.append({statement.name, *names_in(*statement.bases, *statement.keywords)})
    if facts.later:
        for name in facts.binds | facts.shallow | facts.deep:
            facts.groups.append({name, *facts.later})


def _effect(node: ast.AST, facts: Facts) -> None:
    if isinstance(node, ast.Assign):
        _assigned(node.targets, node.value, facts)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        _assigned([node.target], node.value, facts)
    elif isinstance(node, ast.AugAssign):
        names = bases_of(node.target)
        facts.shallow |= names
        facts.reads |= names
        facts.groups.append(names | names_in(node.value))
        facts.deep |= names if not isinstance(node.target, ast.Name) else set()
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            names = bases_of(target)
            facts.reads |= names
            (facts.binds if isinstance(target, ast.Name) else facts.shallow).update(names)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        facts.groups.append(names_in(node.target, node.iter))
        facts.deep |= names_in(node.iter) - PURE
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            facts.groups.append(names_in(item.context_expr, item.optional_vars))
            facts.deep |= names_in(item.context_expr)
    elif isinstance(node, ast.Match):
        facts.groups.append(names_in(node.subject) | facts.binds)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        _dropped(node.value, facts)
    elif isinstance(node, ast.Call):
        _called(node, facts)
    elif isinstance(node, ast.Await):
        facts.deep |= names_in(node)


def _assigned(targets: Iterable[ast.expr], value: ast.expr, facts: Facts) -> None:
    given = _shared(value)
    maker = None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and given:
        maker = value.func.id
        given = names_in(*value.args, *value.keywords)
    for target in targets:
        for item in flat_targets(target):
            names = bases_of(item)
            facts.made += [(name, maker) for name in names if maker is not None]
            if isinstance(item, ast.Name):
                if _is_display(value):
                    facts.holds.append((item.id, given))
                else:
                    facts.groups.append(names | given)
                continue
            facts.shallow |= names
            if not isinstance(base_of(item), ast.Name) or not isinstance(
                getattr(item, "value", None), ast.Name
            ):
                facts.deep |= names  # x.y.z = 1 changes what x holds
            for name in names:
                facts.holds.append((name, given))


def _is_display(value: ast.expr) -> bool:
    return isinstance(value, ast.List | ast.Tuple | ast.Dict | ast.Set)


def _shared(value: ast.expr) -> set[str]:
    """Return the names with which the value of an expression may share objects."""
    if isinstance(value, ast.Constant | ast.JoinedStr | ast.Compare):
        return set()
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in PURE:
        return set()
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") in ("item", "tolist"):
        return set()
    if isinstance(value, ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.IfExp | ast.Dict | ast.Set):
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        return set().union(*map(_shared, parts))
    if isinstance(value, ast.List | ast.Tuple):
        return set().union(*map(_shared, value.elts))
    return names_in(value)


def _dropped(value: ast.expr, facts: Facts) -> None:
    """Note a call whose result nobody takes: it is made for what it changes."""
    call = value.value if isinstance(value, ast.Await) else value
    if isinstance(call, ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id in PURE:
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr in SHALLOW:
            return  # `_called` knows it
        if _is_setting(call):
            facts.seeds = True
    names = names_in(value)
    facts.deep |= names
    facts.groups.append(names)


def _is_setting(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in _NO_SETTING:
        return False
    return bool(bases_of(call.func) & _SETTINGS)


def _called(node: ast.Call, facts: Facts) -> None:
    arguments = [*node.args, *(item.value for item in node.keywords)]
    names = names_in(node.func, *arguments)
    if isinstance(node.func, ast.Name):
        called = node.func.id
        if called in PURE:
            return
        if called in CONSUMING:
            facts.deep |= names_in(*arguments)
    elif isinstance(node.func, ast.Attribute):
        called = node.func.attr
        base = bases_of(node.func)
        if called in SHALLOW:
            facts.shallow |= base
            if not isinstance(node.func.value, ast.Name):
                facts.deep |= base
            given = set().union(*map(_shared, arguments))
            for name in base:
                facts.holds.append((name, given))
            names = base | given
        if called in DEEP or (called.endswith("_") and not called.endswith("__")):
            facts.deep |= base | names_in(*arguments)
            facts.groups.append(base | names_in(*arguments))
    else:
        called = ""
    if called in _SEEDS:
        facts.seeds = True
    facts.calls.append(names)


def _whole(statement: ast.stmt, facts: Facts) -> None:
    """Note what only the statement as a whole can tell."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        facts.is_import = True
        facts.inert = set(facts.binds)
        if any(item.name == "*" for item in statement.names):
            facts.opaque = "import *"
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            facts.seeds = True
        return
    for node in _code(statement, functions=True):
        if isinstance(node, ast.Name) and node.id in _OPAQUE and isinstance(node.ctx, ast.Load):
            facts.opaque = node.id
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any(item.name == "*" for item in node.names):
                facts.opaque = "import *"
            facts.inert |= {(item.asname or item.name).partition(".")[0] for item in node.names}
    facts.awaits = any(
        isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in _code(statement)
    )
    if isinstance(statement, ast.Assign) and isinstance(
        statement.targets[0], ast.Attribute | ast.Subscript
    ):
        facts.seeds = facts.seeds or bool(bases_of(statement.targets[0]) & _SETTINGS)
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if statement.value is not None:
            facts.kills = {
                item.id for t in targets for item in flat_targets(t) if isinstance(item, ast.Name)
            }
            if not _shared(statement.value) and _is_scalar(statement.value):
                facts.inert = set(facts.kills)
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        facts.kills = {statement.name}
    elif isinstance(statement, ast.Delete):
        facts.kills = {t.id for t in statement.targets if isinstance(t, ast.Name)}


def _is_scalar(value: ast.expr) -> bool:
    return all(
        isinstance(
            node,
            ast.Constant
            | ast.UnaryOp
            | ast.BinOp
            | ast.operator
            | ast.unaryop
            | ast.Compare
            | ast.cmpop,
        )
        for node in ast.walk(value)
    )
