"""Whether words of an error are a program's own statement, or part of what somebody wrote.

Tests, searches, documentation and bug reports name errors that did not happen here. What stands in
front of the words, and what follows them, decides; in doubt they are quoted.
"""

from __future__ import annotations

import re

_BEFORE = 200
# What may follow the words of an error where they are not part of somebody's sentence.
_END_OF_STATEMENT = re.compile(
    r"\s*(?:$|[.!]\s*$|['\"`>)]|[|│][\s|│]*$|\*\*|\\n|at\s*(?:$|[^\s.:/\\]*[.:/\\])"
    r"|[-;] (?!(?i:how|why|what|solved|is ))|\. use CUDA_LAUNCH_BLOCKING"
    r"|\((?:function |in function |\w+ at |error |code |\d|Triggered)"
    r"|at line \d{1,9} in file |Error from |\S{1,200}:\d{1,9}\s*$|\S{1,100}\.cu\w? \d"
    r"|CUDA kernel errors might|Search for `|Compile with|For debugging|For more detailed)"
)
# Words right in front of which an error is spoken of.
_SENTENCE = re.compile(
    r"(?:\b(?:[Yy]ou|[Ww]e|[Ii]f|[Ww]h(?:y|at(?!\()|en)|[Hh]ow|[Mm]y|[Yy]our)\b.*"
    r"|\bI (?:a|d|g|h|k|s|t|w)[a-z']+\b.*"  # not the level of a log line
    r"|\b(?i:the|an?|about|like|says?|fix(?:ed|es)?|solved?|avoid|handle|echo|no|not|without"
    r"|match(?:es|ing)?|contain(?:s|ing)?|expect(?:ed|ing)?|(?<!failed )(?<!aborted )for|such as"
    r"|including|e\.g\.,?|ignor(?:ed?|es|ing)|raises|throws|gives|(?:similar|related) to):?"
    r"|^\s*[-*•]) (?:[\w.]{1,60}(?:Error|Exception): )?$|^\s*[-*] ['\"]$"
    r"|(?i:expected|pattern|regex)[^:]{0,20}: ['\"]$"
)
# Anywhere in front: tests and what they expect, documents, searches, source code and its comments.
_ABOUT = re.compile(
    r"\bXFAIL|\bSKIP(?:PED)?\b|\bPASSED\b|\b[Tt]ests? passed\b|^\s*ok \d{1,6} "
    r"|\bpytest\.|\bassertRaises|\braises\(|\bmatch ?="
    r"|\b(?i:expected|simulated|injected|mock(?:ed)?|fake|example|sample)"
    r" (?i:errors?|exceptions?|failures?|messages?|output|text)\b"
    r"|\b(?i:usage): |\b(?i:known (?:issues?|bugs?|errors?|problems?|limitations?))\b"
    r"|\b(?:wrote|writes|said|asked): |\.(?:md|rst):\d{1,9}[:-]"
    r"|^\s*[A-Za-z_][\w.]{0,60} = [\[({]|(?:\s\s|[)\];,])\s?# |[;){}]\s{0,4}// "
)
# Comments, headings, tables, and titles.
_WRITING = re.compile(
    r"\s*(?:(?:>>>? ?)?#{1,6} |//|/\*|<!--|\| .{0,200}\|\s*\S|(?:Title|Subject): )"
)
_QUOTING = re.compile(
    r"(?:[:,\[{]\s*|(?<![=!<> ])=|(?<!raise )(?<![\w.])[\w.]{1,60}(?:Error|Exception)\()$"
)

# Source code that holds the words as a string; a repr in a log holds them too, but not so.
_STRING = re.compile(
    r"(?:^\s*[A-Za-z_]\w{0,60} = |\bassert |\b(?:print|printf|puts|write|echo|search|match)\("
    r"|match=|(?i:expected): )[bfru]{0,2}[\"']$"
)
# Much is put in front of a line of CUDA; these words are not.
_TOLD = re.compile(r"\b(?:[Ii]f you (?:see|get)|I (?:get|got|see)|matches for):? $")


def is_source(in_front: str) -> bool:
    """Whether ``in_front`` of a printed line shows that it is a string, a comment or a quotation.

    List marks and ``>`` alone are how people paste logs.
    """
    return any(
        (
            is_writing(in_front),
            _STRING.search(in_front),
            _ABOUT.search(in_front),
            _TOLD.search(in_front),
        )
    )


def is_writing(line: str) -> bool:
    """Whether the whole line is a comment, a heading, or a row of a table."""
    return _WRITING.match(line) is not None


def is_quoted(line: str, start: int, *, unmistakable: bool = False) -> bool:
    """Whether what stands in front of ``start`` shows that somebody speaks of the words there.

    ``unmistakable``: nobody puts these words into a sentence.
    """
    in_front = line[max(0, start - _BEFORE) : start]
    if is_writing(line) or _ABOUT.search(in_front):
        return True
    return not unmistakable and _SENTENCE.search(in_front) is not None


def ends(match: re.Match[str], end: int) -> bool:
    """Whether the words that end at ``end`` are the whole statement, and nobody quotes them."""
    line, start = match.string, match.start()
    rest = line[end : end + 300]
    if not _END_OF_STATEMENT.match(rest):
        return False
    quote = rest[:1]
    opening = line.rfind(quote, 0, start) if quote and quote in "'\"`" else -1
    return opening < 0 or _QUOTING.search(line[max(0, opening - 80) : opening]) is not None
