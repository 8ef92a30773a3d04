"""The loop in which a cell failed, made into code that runs only what is needed of it.

The loop is cut out of the source with the positions of its nodes kept, so that lines and columns of
a finding are those of the cell as typed. It runs with the variables of the frame in which it stood:

* over a DataLoader: the loop statement itself, its loader giving the last batches again;
* any other: its body once, with the variables as they are, the loop's own included.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cudassert_ipy.checks.frames import is_user_file
from cudassert_ipy.model import Frame
from cudassert_ipy.replay.loop_source import (
    SCOPES,
    Loop,
    Place,
    compiler_flags,
    find_loop,
    is_module,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from cudassert_ipy.replay.batches import Batch, Loader

MAX_FRAMES: Final = 20
MAX_FED: Final = 2
"""Loaders of a cell whose last batches are run again."""
MAX_PLAIN: Final = 2
"""Frames whose innermost loop is tried."""
_HEADER_LIMIT = 60
_ONCE = "__cudassert_once__"
STEP: Final = "__cudassert_step__"
"""Name under which the code calls back at the start of each run of the body."""

_Node = TypeVar("_Node", bound=ast.AST)
_HARMLESS_CONTEXTS = frozenset(
    {"no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast"}
)
"""Context managers around a loop that are entered again for it; others may write or close."""


@dataclass(frozen=True, slots=True)
class FailedFrame:
    """One user frame of a traceback, with its variables by reference."""

    code: CodeType
    line: int
    variables: dict[str, Any]
    names: dict[str, Any]
    """Its globals."""
    bindings: dict[str, Any] = field(default_factory=dict)
    """Of a cell's own frame: the names that its code uses, as they were when it failed."""

    @property
    def filename(self) -> str:
        """Name under which its source was compiled."""
        return self.code.co_filename

    @property
    def of_module(self) -> bool:
        """Whether it is a cell's own frame (IPython 8.0 to 8.5 name it by its line)."""
        return is_module(self.code)

    def shown(self) -> Frame:
        """Return it as a frame of a finding."""
        source = linecache.getline(self.filename, self.line).rstrip("\r\n")
        name = self.code.co_qualname
        return Frame(function=name, line=self.line, source=source, file=self.filename)


def failed_frames(error: BaseException) -> tuple[FailedFrame, ...]:
    """Return the user frames of ``error``'s traceback, from the cell inwards (at most 20)."""
    found = []
    trace = error.__traceback__
    while trace is not None:
        frame, code = trace.tb_frame, trace.tb_frame.f_code
        if is_user_file(code.co_filename):
            line = trace.tb_lineno or frame.f_lineno
            own, names = frame.f_locals, frame.f_globals
            bindings = {}
            if is_module(code):
                bindings = {name: own[name] for name in code.co_names if name in own}
            found.append(FailedFrame(code, line, own, names, bindings))
        trace = trace.tb_next
    return tuple(found[:MAX_FRAMES])


@dataclass(frozen=True, slots=True)
class LoopBody:
    """What to run of a loop, and in which variables.

    Attributes:
        code: a module that calls ``STEP`` at the start of every run of the body.
        variables: of its frame; for a function's frame merged with its globals, a new dict.
        line: of the loop, in its file.
        header: its first line, for people.
        targets: the loop's own variables, by name.
        statements: the body.
        anew: whether each round binds the loop's variables anew, as the loop itself does.
        bindings: what the names that the loop binds meant when it failed: a later cell may have
            used the same ones.
        batches: what the loader gives again, oldest first; empty without a DataLoader.
        loaders: all loaders of the cell, for iterators that the loop uses beside its own.
        outer: frames from the cell to the loop's own, that one left out.
        function: name of the loop's function.

    """

    code: CodeType
    variables: dict[str, Any]
    line: int
    header: str
    targets: tuple[str, ...]
    statements: tuple[ast.stmt, ...]
    anew: bool = False
    bindings: dict[str, Any] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    loaders: tuple[Loader, ...] = ()
    total: int = 0
    outer: tuple[Frame, ...] = ()
    function: str = "<module>"


def find_bodies(
    frames: Sequence[FailedFrame],
    loaders: Sequence[Loader],
    namespace: dict[str, Any],
    cell_files: Sequence[str] = (),
) -> tuple[LoopBody, ...]:
    """Return what to run of the loops that led to a failure, the most likely first.

    Empty where no ``for`` or ``while`` was on the way, or where its body cannot run by itself
    (``return``, ``yield``, ``await``, private names of a class).

    Args:
        frames: of the traceback, from the cell inwards.
        loaders: DataLoaders that the cell used, the last used one first.
        namespace: variables of the cell itself.
        cell_files: names under which the failed cell is compiled, for a failure without traceback.

    """
    fed: list[LoopBody] = []
    inside = False
    for number in range(min(len(loaders), MAX_FED)):
        order = (loaders[number], *loaders[:number], *loaders[number + 1 :])
        body, failed_in_it = _fed_body(frames, order, namespace, cell_files)
        if body is not None and all(body.line != other.line for other in fed):
            fed.append(body)
            inside = inside or failed_in_it
    if inside:
        return tuple(fed)  # batches say more than one run of what is around or inside their loop
    plain: list[LoopBody] = []
    for number in range(len(frames) - 1, -1, -1):
        place = find_loop(frames[number].code, frames[number].line)
        if place is None or any(_is_around(place.loop, frames[number], body) for body in fed):
            continue
        found = _make(place, frames[number], frames[:number])
        if found is not None and len(plain) < MAX_PLAIN:
            plain.append(found)
    return (*plain, *fed)


def _fed_body(
    frames: Sequence[FailedFrame],
    loaders: Sequence[Loader],
    namespace: dict[str, Any],
    cell_files: Sequence[str],
) -> tuple[LoopBody | None, bool]:
    """Return the loop that the first of ``loaders`` gave batches to, and if the failure is in it.

    The user's code may have asked for a batch in a function or a generator of its own; then the
    loop is that around the call of it.
    """
    batches = loaders[0].batches
    if not all(batch.intact for batch in batches):
        return None, False
    for code, line in batches[-1].sites:
        place = find_loop(code, line)
        if place is None:
            continue
        number = next((n for n, frame in enumerate(frames) if _same_scope(frame.code, code)), None)
        if number is not None:
            last = place.loop.end_lineno or place.loop.lineno
            inside = place.loop.lineno <= frames[number].line <= last
            return _make(place, frames[number], frames[:number], loaders, line), inside
        if is_module(code) and code.co_filename in cell_files:
            frame = FailedFrame(code, line, namespace, namespace)
            return _make(place, frame, (), loaders, line), False
    return None, False


def _same_scope(mine: CodeType, other: CodeType) -> bool:
    # IPython compiles the statements of a cell one by one, all under the name of the cell.
    both_modules = is_module(mine) and is_module(other)
    return mine is other or (both_modules and mine.co_filename == other.co_filename)


def _is_around(loop: Loop, frame: FailedFrame, body: LoopBody) -> bool:
    """Whether ``body`` is of a loop inside ``loop``: running that would be an epoch, not a step."""
    same = frame.filename == body.code.co_filename
    return same and loop.lineno <= body.line <= (loop.end_lineno or loop.lineno)


# --- cutting it out -------------------------------------------------------------------------------


def _make(
    place: Place,
    frame: FailedFrame,
    outer: Sequence[FailedFrame],
    loaders: Sequence[Loader] = (),
    asked: int = 0,
) -> LoopBody | None:
    """Return the body of a loop to run; ``asked``: the line that asked the loader for a batch."""
    loop = place.loop
    if not _can_run_alone(loop, place.scope):
        return None
    batches = tuple(loaders[0].batches) if loaders else ()
    in_header = isinstance(loop, ast.For) and bool(batches) and asked < loop.body[0].lineno
    if isinstance(loop, ast.For) and in_header:
        statement = _fed(loop, batches[0].number)
    else:
        statement = _once(loop, max(len(batches), 1))
    for node in reversed(place.around):
        statement = _inside(node, statement)
    if isinstance(place.scope, ast.FunctionDef):
        statement = _decorated(place.scope, statement)
    module = ast.fix_missing_locations(ast.Module([statement], []))
    flags = compiler_flags(frame.code)
    try:
        code = compile(module, frame.filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    variables = frame.names if frame.of_module else {**frame.names, **frame.variables}
    return LoopBody(
        code=code if frame.of_module else _named(code, frame.code),
        variables=variables,
        line=loop.lineno,
        header=_header(loop, frame.filename),
        targets=_names_in(loop.target) if isinstance(loop, ast.For) else (),
        anew=in_header,
        statements=tuple(loop.body),
        bindings={name: frame.bindings[name] for name in _bound_in(loop) & set(frame.bindings)},
        batches=batches,
        loaders=tuple(loaders),
        total=loaders[0].total if loaders else 0,
        outer=tuple(item.shown() for item in outer),
        function=frame.code.co_qualname,
    )


def _header(loop: Loop, filename: str) -> str:
    text = linecache.getline(filename, loop.lineno).strip()
    return text if len(text) <= _HEADER_LIMIT else f"{text[:_HEADER_LIMIT]}…"


def _named(code: CodeType, like: CodeType) -> CodeType:
    return code.replace(co_name=like.co_name, co_qualname=like.co_qualname)


def _can_run_alone(loop: Loop, scope: ast.AST) -> bool:
    for node in _walk_scope(loop):
        if isinstance(
            node,
            ast.Return | ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFor | ast.AsyncWith,
        ):
            return False
    in_function = isinstance(scope, ast.FunctionDef)
    for node in ast.walk(loop):
        if isinstance(node, ast.Nonlocal):
            return False
        if isinstance(node, ast.Name) and in_function and node.id in ("super", "__class__"):
            return False
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if in_function and name.startswith("__") and not name.endswith("__"):
            return False  # a class would mangle it
    return True


def _walk_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Walk without entering functions and classes."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += [c for c in ast.iter_child_nodes(current) if not isinstance(c, SCOPES)]


def _step(at: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(STEP, ast.Load()), [], [])
    return _located(ast.Expr(call), at)


def _located(node: _Node, at: ast.AST) -> _Node:
    for child in ast.walk(node):
        ast.copy_location(child, at)
    return node


def _once(loop: Loop, times: int) -> ast.stmt:
    """Return its body in a loop of our own, in which ``break`` and ``continue`` are legal."""
    target = _located(ast.Name(_ONCE, ast.Store()), loop)
    turns = _located(ast.Tuple([ast.Constant(None)] * times, ast.Load()), loop)
    body = [_step(loop.body[0]), *loop.body]
    return ast.copy_location(ast.For(target, turns, body, []), loop)


def _fed(loop: ast.For, first: int) -> ast.stmt:
    """Return ``loop`` as it is, to be given batches by its loader, the ``first`` of that number."""
    body = [_step(loop.body[0]), *loop.body]
    return ast.copy_location(ast.For(loop.target, _counted(loop.iter, first), body, []), loop)


def _counted(iterable: ast.expr, first: int) -> ast.expr:
    """Let ``enumerate(…)`` count from the first batch that is given again."""
    if not (
        isinstance(iterable, ast.Call)
        and isinstance(iterable.func, ast.Name)
        and iterable.func.id == "enumerate"
        and not any(isinstance(item, ast.Starred) for item in iterable.args)
        and len(iterable.args) + len(iterable.keywords) <= 2
        and iterable.args
    ):
        return iterable
    given = [*iterable.args[1:], *(k.value for k in iterable.keywords if k.arg == "start")]
    number: ast.expr = _located(ast.Constant(first), iterable)
    if given:
        number = _located_sum(given[0], number, iterable)
    call = ast.Call(iterable.func, [iterable.args[0], number], [])
    return ast.copy_location(call, iterable)


def _located_sum(left: ast.expr, right: ast.expr, at: ast.expr) -> ast.expr:
    return ast.copy_location(ast.BinOp(left, ast.copy_location(ast.Add(), at), right), at)


def _inside(node: ast.stmt, statement: ast.stmt) -> ast.stmt:
    """Put ``statement`` into what was around it, where that only switches a mode of torch."""
    if not isinstance(node, ast.With) or not all(_is_harmless(item) for item in node.items):
        return statement
    return ast.copy_location(ast.With(node.items, [statement]), node)


def _is_harmless(item: ast.withitem) -> bool:
    call = item.context_expr
    return item.optional_vars is None and isinstance(call, ast.Call) and _is_mode(call.func)


def _is_mode(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in _HARMLESS_CONTEXTS


def _decorated(function: ast.FunctionDef, statement: ast.stmt) -> ast.stmt:
    """Put ``statement`` under the modes that the function's decorators switch on."""
    for item in reversed(function.decorator_list):
        called = item.func if isinstance(item, ast.Call) else item
        if _is_mode(called):
            call = item if isinstance(item, ast.Call) else _located(ast.Call(item, [], []), item)
            block = ast.With([ast.withitem(call)], [statement])
            statement = ast.copy_location(block, statement)
    return statement


def _bound_in(loop: Loop) -> set[str]:
    """Return the names that ``loop`` gives values to."""
    nodes = (node for node in ast.walk(loop) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _names_in(target: ast.expr) -> tuple[str, ...]:
    names = (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    return tuple(islice(names, 20))
