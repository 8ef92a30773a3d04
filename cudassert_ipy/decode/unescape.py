"""Undo what a log's way has done to the characters of an expression."""

from __future__ import annotations

import html
import re

# Go's JSON encoder, so docker's and kubernetes', escapes these as well.
_JSON = re.compile(r"\\u00(3c|3e|26|27|60|22)", re.IGNORECASE)
_QUOTE = re.compile(r"(?<!\\)\\+(?=[\"'])")
_HTML = re.compile(r"&(?:lt|gt|amp|quot|#39|#x27|#96|#34);")
_TYPOGRAPHIC = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "}
)


def unescaped(expression: str) -> str:
    """Return the expression as the compiler had it: no JSON, HTML or typographic forms."""
    if "\\" in expression:
        # A line inside a JSON string or a repr has its quotes escaped.
        expression = _JSON.sub(lambda match: chr(int(match[1], 16)), expression)
        expression = _QUOTE.sub("", expression)
    if '""' in expression and not expression.endswith('&& ""'):
        expression = expression.replace('""', '"')  # CSV
    if _HTML.search(expression):
        expression = html.unescape(expression)
    return expression.translate(_TYPOGRAPHIC).strip()
