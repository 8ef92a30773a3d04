"""Cells as plain Python, line by line: magics and shell lines become comments."""

from __future__ import annotations

import ast

from IPython.core.inputtransformer2 import TransformerManager

from cudassert_ipy.notebook.debug_cell import blank_magic_line

_PYTHON_BODIES = frozenset(("time", "capture", "timeit", "prun", "debug", "cuda_debug"))
"""Cell magics whose body is Python that runs in the notebook's own namespace."""
_PYTHON_LINES = frozenset(("time", "prun"))
_SHELL = "get_ipython"


def plain_python(source: str) -> str:
    """Return a cell with the same lines as plain Python. Nothing runs.

    Line and cell magics and shell commands become comments; a cell magic with a body of Python
    keeps the body, ``%time statement`` the statement. Raises ``SyntaxError`` for what is no Python.
    """
    lines = blank_magic_line(source.splitlines(keepends=True))
    above = []
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("%%")):
        # IPython would drop blank lines at the top, and with them the count of the rest.
        line = lines.pop(0)
        above.append(f"# {line.strip()}".rstrip() + "\n")
        magic = line.strip().removeprefix("%%").split()
        if line.strip() and magic[:1] and magic[0] not in _PYTHON_BODIES:
            return "".join([*above, *(f"# {rest.rstrip()}\n" for rest in lines)])
    text = TransformerManager().transform_cell("".join(lines))
    return "".join(above) + _without_magics(text)


def _without_magics(text: str) -> str:
    """Comment out the calls that IPython makes of magics and shell lines."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    edits = []
    for node in ast.walk(tree):
        call = _magic_call(node)
        if call is not None:
            statement: ast.AST = node
            while not isinstance(statement, ast.stmt):
                statement = parents[statement]
            edits.append((statement, call))
    for statement, call in sorted(edits, key=lambda edit: -edit[0].lineno):
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        indent = lines[first][: statement.col_offset]
        kept = _statement_of(call)
        said = "".join(f"{indent}# {line.strip()}\n" for line in lines[first:last])
        if indent.strip():  # behind a semicolon: the line goes as a whole
            said, indent = "".join(f"# {line.strip()}\n" for line in lines[first:last]), ""
        elif kept is not None:
            said = f"{indent}{kept}\n"
        elif indent:
            said = said.rstrip("\n").replace("# ", "pass  # ", 1) + "\n"
        lines[first:last] = [said]
    return "".join(lines)


def _magic_call(node: ast.AST) -> ast.Call | None:
    """Return the node if it is ``get_ipython().something(...)``."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call)
        and isinstance(node.func.value.func, ast.Name)
        and node.func.value.func.id == _SHELL
        and node.func.attr in ("run_line_magic", "run_cell_magic", "system", "getoutput", "magic")
    ):
        return node
    return None


def _statement_of(call: ast.Call) -> str | None:
    """Return the statement behind ``%time``; None for other magics."""
    values = [item.value for item in call.args if isinstance(item, ast.Constant)]
    if len(values) == 2 and values[0] in _PYTHON_LINES:
        try:
            ast.parse(str(values[1]))
        except SyntaxError:
            return None
        return str(values[1])
    return None
