"""Reads what a docstring says of parameters, in the styles of Google, Sphinx and NumPy.

A library for this would be the first dependency of the wheel; only names and texts of parameters are needed.
"""

from __future__ import annotations

import re

#: The first line of Google's section.
_GOOGLE = re.compile(r"(Args|Arguments|Parameters):\s*")
#: `name: text`, or `name (type): text`.
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_SPHINX_ENTRY = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+):\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Returns the text without what it says of parameters, and that by their names."""
    lines = doc.splitlines()
    text: list[str] = []
    about: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        is_numpy = line.strip() == "Parameters" and at + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[at + 1])
        sphinx = _SPHINX_ENTRY.fullmatch(line.strip())
        if is_numpy:
            at = _section(lines, at + 2, _indent(line), _NUMPY_ENTRY, about, is_numpy=True)
        elif _GOOGLE.fullmatch(line.strip()):
            at = _section(lines, at + 1, _indent(line) + 1, _GOOGLE_ENTRY, about)
        elif sphinx:
            at = _entry(lines, at, sphinx, about)
        else:
            text.append(line)
            at += 1
    found = {name: " ".join(part for part in parts if part) for name, parts in about.items()}
    return "\n".join(text).strip(), {name: it for name, it in found.items() if it}


def _section(
    lines: list[str], at: int, least: int, entry: re.Pattern[str], about: dict[str, list[str]], *, is_numpy: bool = False
) -> int:
    """Reads the entries of a section, which ends with a line that is indented less. Returns the line behind it."""
    while at < len(lines):
        line = lines[at]
        found = entry.fullmatch(line.strip())
        is_next = is_numpy and at + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[at + 1])
        if line.strip() and (_indent(line) < least or is_next):
            break
        at = _entry(lines, at, found, about) if found else at + 1
    return at


def _entry(lines: list[str], at: int, found: re.Match[str], about: dict[str, list[str]]) -> int:
    """Reads an entry, which goes on in lines that are indented more. Returns the line behind it."""
    parts = [found.group(2).strip()] if found.re.groups > 1 else []
    about[found.group(1)] = parts
    indent, at = _indent(lines[at]), at + 1
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) > indent:
        parts.append(lines[at].strip())
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
