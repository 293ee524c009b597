"""On which line of a TOML file each key was written: `tomllib` does not say.

Walks a text that `tomllib` has accepted, so that it only has to find where keys and values begin and end.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?""""{0,2}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?''''{0,2}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """Path of every key, table and list element -> 1-based line of its first mention."""
    return _Walk(text).document()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Path, int] = {}
        self.lists: dict[Path, int] = {}  # lists of tables: how many elements they have so far

    def document(self) -> dict[Path, int]:
        table: Path = ()
        self.skip()
        while self.at < len(self.text):
            line = self.line()
            if self.text.startswith("[[", self.at):
                self.at += 2
                table = self.into(self.key())
                number = self.lists[table] = self.lists.get(table, -1) + 1
                table = (*table, number)
                self.note(table, line)
                self.skip()
                self.at += 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self.into(self.key())
                self.note(table, line)
                self.skip()
                self.at += 1
            else:
                self.pair(table)
            self.skip()
        return self.lines

    def line(self) -> int:
        return bisect_right(self.starts, self.at)

    def note(self, path: Path, line: int) -> None:
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def skip(self) -> None:
        self.at = self.take(_SPACE)[1]

    def take(self, pattern: re.Pattern[str]) -> tuple[str, int]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"line {self.line()}: this is no TOML that tomllib accepts")
        self.at = match.end()
        return match.group(), self.at

    def into(self, key: tuple[str, ...]) -> Path:
        """The table that a header names: within a list of tables, its last element is meant."""
        path: Path = ()
        for number, part in enumerate(key):
            path = (*path, part)
            if path in self.lists and number < len(key) - 1:
                path = (*path, self.lists[path])
        return path

    def key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self.skip()
            first = self.text[self.at]
            if first in "\"'":
                quoted, _ = self.take(_BASIC if first == '"' else _LITERAL)
                parts.append(tomllib.loads(f"k = {quoted}")["k"])
            else:
                parts.append(self.take(_BARE_KEY)[0])
            self.skip()
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def pair(self, table: Path) -> None:
        line = self.line()
        path = (*table, *self.key())
        self.note(path, line)
        self.at += 1  # the equals sign
        self.value(path)

    def value(self, path: Path) -> None:
        self.skip()
        first = self.text[self.at]
        if first == "[":
            self.elements(path)
        elif first == "{":
            self.inline_table(path)
        elif self.text.startswith('"""', self.at):
            self.take(_LONG_BASIC)
        elif self.text.startswith("'''", self.at):
            self.take(_LONG_LITERAL)
        elif first in "\"'":
            self.take(_BASIC if first == '"' else _LITERAL)
        else:
            self.take(_SCALAR)

    def elements(self, path: Path) -> None:
        self.at += 1
        number = 0
        while self.next_of("]"):
            self.note((*path, number), self.line())
            self.value((*path, number))
            number += 1

    def inline_table(self, path: Path) -> None:
        self.at += 1
        while self.next_of("}"):
            self.pair(path)

    def next_of(self, end: str) -> bool:
        """Whether another element follows, past the comma; past the end where none does."""
        self.skip()
        if self.text[self.at] == ",":
            self.at += 1
            self.skip()
        if self.text[self.at] != end:
            return True
        self.at += 1
        return False
