"""YAML written by people, read with line numbers, so that every complaint can say where.

Scalars follow the core schema of YAML 1.2 (section 10.3): `64e9` is a number, `on` and `no` are words, `1:30` is text.
Built from the parser's events, because the loaders of PyYAML drop the marks, let a key win silently over its twin, and
expand anchors without a limit.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from observatory.model.errors import MediaObservatoryError

MAX_BYTES = 10_000_000
MAX_VALUES = 2_000_000  # with every alias counted as what it stands for
MAX_DEPTH = 64

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = re.compile(r"(~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_BASE = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_TAGS = {f"tag:yaml.org,2002:{t}": t for t in ("str", "int", "float", "bool", "null", "map", "seq")}

Path_ = Sequence[str | int]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(slots=True)
class _Node:
    """A value, the line it starts on (its key's line in a mapping), its children, and how many values it stands for."""

    value: Any
    line: int
    children: dict[str, _Node] | list[_Node] | None = None
    size: int = 1


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: plain values, and where each of them was written."""

    file: str
    value: Any
    error: type[MediaObservatoryError]
    _root: _Node = field(repr=False)

    def line_of(self, path: Path_) -> int:
        """1-based line of the value at `path`, or of the closest thing above it that exists."""
        node = self._root
        for step in path:
            children = node.children
            if isinstance(children, dict):
                below = children.get(step) if isinstance(step, str) else None
            elif isinstance(children, list):
                below = children[step] if isinstance(step, int) and 0 <= step < len(children) else None
            else:
                below = None
            if below is None:
                break
            node = below
        return node.line

    def fail(self, message: str, path: Path_ = (), *, mend: str | None = None) -> NoReturn:
        """Raise the document's error class at the line of `path`."""
        raise self.error(message, file=self.file, line=self.line_of(path), mend=mend)

    def parse(self, model: type[Model], value: Any = None, path: tuple[str | int, ...] = ()) -> Model:
        """`value` (by default the whole document; `path` says where it sits) as `model`.

        Raises:
            the document's error class: for the first mistake in the file, with its line and, if known, a mend.
        """
        try:
            return model.model_validate(self.value if value is None else value)
        except ValidationError as error:
            found = error.errors(include_url=False)
            typos = {e["loc"][:-1] for e in found if e["type"] == "extra_forbidden"}
            found = [e for e in found if e["type"] != "missing" or e["loc"][:-1] not in typos]
            details = min(found, key=lambda e: self.line_of((*path, *e["loc"])))
            message, mend = explain(model, details)
            self.fail(message, (*path, *details["loc"]), mend=mend)


def read_document(path: str | Path, error: type[MediaObservatoryError], *, max_bytes: int = MAX_BYTES) -> Document:
    """Read the one YAML document in the file at `path`.

    Raises:
        error: the file cannot be read, is too large, is no UTF-8 text, no YAML, empty, several documents, or holds
            duplicate keys, unknown tags, numbers that are not finite, or aliases that expand beyond reason.
    """
    return parse_document(read_text(path, error, max_bytes=max_bytes), str(path), error)


def read_text(
    path: str | Path,
    error: type[MediaObservatoryError],
    *,
    max_bytes: int = MAX_BYTES,
    pipes: bool = True,
    kind: str = "YAML",
) -> str:
    """The UTF-8 text of the file at `path`.

    Args:
        pipes: also from a pipe, for as long as that takes: a shell's `<(...)` is one. Devices are refused in any case.
        kind: what is to be in it, in words.

    Raises:
        error: it cannot be read, is too large, is no file, or no such text.
    """
    name = str(path)
    try:
        with _open(path, pipes) as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise error("there is no such file", file=name, mend="check the path") from None
    except IsADirectoryError:
        raise error("is a folder, not a file", file=name, mend=f"name the {kind} file in it") from None
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise error(f"cannot be read: {reason}", file=name) from None
    if len(data) > max_bytes:
        raise error(f"is larger than {max_bytes / 1e6:g} MB", file=name, mend=f"is this really a {kind} file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = data[: failure.start].count(b"\n") + 1
        raise error(
            "is not UTF-8 text", file=name, line=line, mend=f"name a {kind} file here; media goes to --input"
        ) from None


def _open(path: str | Path, pipes: bool) -> BinaryIO:
    """Open what can be read to an end. Never waits for somebody to write, except into a pipe where one is allowed."""
    if pipes and Path(path).is_fifo():
        return Path(path).open("rb")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode):
            raise ValueError("it is a pipe, not a file")
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ValueError("it is a device, not a file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def parse_document(text: str, name: str, error: type[MediaObservatoryError]) -> Document:
    """The one YAML document in `text`; `name` stands for the file in messages. Raises `error` as read_document does."""
    try:
        root = _Builder(name, error, yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        line = mark.line + 1 if mark else None
        lines = text.splitlines()
        tab = line is not None and line <= len(lines) and lines[line - 1].lstrip(" ").startswith("\t")
        words = ", ".join(w for w in (failure.context, failure.problem) if w) or "it cannot be parsed"
        mend = "YAML indents with spaces, not tabs" if tab else "mind the indentation, brackets and quotes"
        raise error(f"is not YAML: {words}", file=name, line=line, mend=mend) from None
    except yaml.YAMLError as failure:
        words = str(failure).splitlines()[0]
        raise error(f"is not YAML: {words}", file=name, mend="it must be plain UTF-8 text") from None
    return Document(name, root.value, error, root)


class _Builder:
    """Builds nodes from the parser's events."""

    def __init__(self, name: str, error: type[MediaObservatoryError], events: Iterator[Any]) -> None:
        self.name, self.error, self.events = name, error, events
        self.anchors: dict[str, _Node] = {}
        self.values = 0

    def fail(self, message: str, line: int, mend: str | None = None) -> NoReturn:
        raise self.error(message, file=self.name, line=line, mend=mend)

    def document(self) -> _Node:
        next(self.events)  # the stream's start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            self.fail("is empty", 1, "write a document into it")
        root = self.node(next(self.events), 0)
        next(self.events)  # the document's end
        following = next(self.events)
        if not isinstance(following, yaml.StreamEndEvent):
            self.fail("holds a second document", following.start_mark.line + 1, "one document per file")
        if root.value is None:
            self.fail("is empty", 1, "write a document into it")
        return root

    def node(self, event: Any, depth: int) -> _Node:
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            self.fail(f"nests deeper than {MAX_DEPTH} levels", line)
        if isinstance(event, yaml.AliasEvent):
            known = self.anchors.get(event.anchor or "")
            if known is None:  # also within its own anchor: the anchor counts once it is complete
                self.fail(f"*{event.anchor}: there is no anchor of that name above", line)
            self.count(known.size, line)
            return _Node(known.value, line, known.children, known.size)
        tag = self.tag(event, line)
        self.count(1, line)
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(self.scalar(event, tag, line), line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(line, depth)
        else:
            node = self.mapping(line, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def count(self, values: int, line: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            self.fail(f"holds more than {MAX_VALUES:,} values, aliases expanded", line, "use fewer aliases")

    def tag(self, event: Any, line: int) -> str | None:
        if event.tag is None or event.tag == "!":
            return "str" if event.tag == "!" and isinstance(event, yaml.ScalarEvent) else None
        if event.tag not in _TAGS:
            self.fail(f"the tag {event.tag} is not allowed here", line, "plain values need no tag")
        return _TAGS[event.tag]

    def sequence(self, line: int, depth: int) -> _Node:
        children: list[_Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            children.append(self.node(event, depth + 1))
        return _Node([c.value for c in children], line, children, 1 + sum(c.size for c in children))

    def mapping(self, line: int, depth: int) -> _Node:
        children: dict[str, _Node] = {}
        merged: list[_Node] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            at = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent) or event.value == "":
                self.fail("a key must be a word", at, "put braces around templates into quotes")
            key = event.value
            child = self.node(next(self.events), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged += self.merge(child, at)
                continue
            if key in children:
                self.fail(f"{key} is written twice, first on line {children[key].line}", at, "remove one of them")
            children[key] = _Node(child.value, at, child.children, child.size)
        for source in merged:
            for key, child in source.children.items() if isinstance(source.children, dict) else ():
                children.setdefault(key, child)
        size = 1 + sum(c.size for c in children.values())
        return _Node({k: c.value for k, c in children.items()}, line, children, size)

    def merge(self, node: _Node, line: int) -> list[_Node]:
        sources = node.children if isinstance(node.children, list) else [node]
        if not all(isinstance(s.children, dict) for s in sources):
            self.fail("<< takes a mapping or a list of mappings", line)
        return sources

    def scalar(self, event: Any, tag: str | None, line: int) -> Any:
        text: str = event.value
        if tag == "str" or (tag is None and not event.implicit[0]):
            return text
        if _NULL.match(text):
            return None
        if _BOOL.match(text):
            return text.lower() == "true"
        try:
            if _INT.match(text):
                return float(text) if tag == "float" else int(text)
            if _BASE.match(text):
                return int(text, 0)
        except ValueError:
            self.fail(f"a number of {len(text):,} digits is too long", line)
        if _NOT_FINITE.match(text):
            self.fail(f"{text} is not a finite number", line, "write a number, or null when it is unknown")
        if _FLOAT.match(text):
            number = float(text)
            if not math.isfinite(number):
                self.fail(f"{text} is too large a number", line)
            return number
        if tag is not None:
            self.fail(f"{text!r} is no {tag}", line)
        return text


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    names = list(known)
    folded = {n.lower().replace("_", "").replace("-", ""): n for n in reversed(names)}
    plain = word.lower().replace("_", "").replace("-", "")
    found = difflib.get_close_matches(plain, folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, most: int = 12) -> str:
    """A mend for an unknown word: the closest known one, else the known ones (at most `most` of them)."""
    names = list(known)
    if (meant := closest(word, names)) is not None:
        return f"did you mean {meant}?"
    more = ", ..." if len(names) > most else ""
    return f"known: {', '.join(names[:most])}{more}" if names else "there is none to choose from"


def dotted(path: Iterable[str | int]) -> str:
    """`spec.operators[2].name`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def explain(model: type[BaseModel], details: ErrorDetails) -> tuple[str, str | None]:
    """One validation error in words, and how to mend it."""
    where, kind = details["loc"], details["type"]
    name, given = dotted(where) or "the document", details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{name}: there is no such key", did_you_mean(str(where[-1]), _keys(model, where[:-1]))
    if kind == "missing":
        return f"{name} is missing", f"add {where[-1]}: ..."
    if kind in ("literal_error", "enum"):
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"{name}: {_short(given)} is not allowed here", did_you_mean(
            given if isinstance(given, str) else _short(given), allowed
        )
    if kind == "string_pattern_mismatch":
        return (
            f"{name}: {_short(given)} has characters or a form that are not allowed",
            f"the form is {context['pattern']}",
        )
    if kind.endswith("_type") or kind in ("int_from_float",):
        words = {
            "string_type": "text",
            "int_type": "a whole number",
            "int_from_float": "a whole number",
            "float_type": "a number",
            "bool_type": "true or false",
            "list_type": "a list",
            "tuple_type": "a list",
            "dict_type": "a mapping (key: value)",
            "model_type": "a mapping (key: value)",
            "model_attributes_type": "a mapping (key: value)",
        }
        if kind in words:
            return f"{name} must be {words[kind]}, not {_short(given)}", None
    if kind == "value_error":
        return (f"{name}: {context['error']}" if where else str(context["error"])), None
    text = details["msg"]
    return f"{name}: {text[:1].lower()}{text[1:]}, not {_short(given)}", None


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of very many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys that `model` allows in the mapping at `path` (lists are stepped through)."""
    current: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int) or current is None:
            continue
        found = next((f for n, f in current.model_fields.items() if step in (n, f.alias)), None)
        current = None if found is None else _model_in(found.annotation)
    return [] if current is None else [f.alias or n for n, f in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(a) for a in getattr(annotation, "__args__", ()))
    return next((m for m in inner if m is not None), None)
