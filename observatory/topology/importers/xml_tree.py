"""XML files as elements with line numbers. Entities and references to other files are refused, so are absurd sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from observatory.topology.importers.source import Source

_MOST_ELEMENTS = 400_000
_DEEPEST = 200
_ROOT = re.compile(r"(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)*<([A-Za-z_][\w.-]*)", re.DOTALL)


@dataclass(slots=True)
class Element:
    """One element: its name, attributes, line and what is inside."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str | None:
        """An attribute; None when there is none or it is empty."""
        return self.attributes.get(name) or None

    def of(self, tag: str) -> list[Element]:
        """The children of that name."""
        return [child for child in self.children if child.tag == tag]


def root_name(source: Source) -> str | None:
    """The name of the first element of an XML text, without parsing it; None when it is no XML."""
    match = _ROOT.match(source.head)
    return match[1] if match else None


def read_xml(source: Source) -> Element:
    """The root element. Raises BadTopology with the line for what is not well formed or not allowed."""
    builder = _Builder(source)
    parser = DefusedXMLParser(target=builder, forbid_entities=True, forbid_external=True)
    builder.expat = parser.parser
    try:
        parser.feed(source.text or "")
        parser.close()
    except ParseError as failure:
        line = failure.position[0]
        source.fail(
            f"is not well-formed XML: {str(failure).partition(':')[0]}",
            line,
            "the file is cut off, or was edited wrongly",
        )
    except DefusedXmlException as failure:
        source.fail(
            f"has {_forbidden(failure)}, which is not allowed here", builder.line, "remove the DOCTYPE's declarations"
        )
    if builder.root is None:
        source.fail("has no element", 1, "is this the whole file?")
    return builder.root


def _forbidden(failure: DefusedXmlException) -> str:
    name = getattr(failure, "name", None)
    return f"an entity ({name})" if name else "a reference to another file"


class _Builder:
    """The target of the parser."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root: Element | None = None
        self.expat: Any = None
        self._open: list[Element] = []
        self._elements = 0

    @property
    def line(self) -> int:
        """Where the parser is."""
        return int(self.expat.CurrentLineNumber)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        element = Element(tag, attributes, self.line)
        self._elements += 1
        if self._elements > _MOST_ELEMENTS or len(self._open) >= _DEEPEST:
            self.source.fail("has too many elements, or too deep ones", element.line, "no machine is like that")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _tag: str) -> None:
        """An element ends."""
        self._open.pop()

    def data(self, text: str) -> None:
        """Text between elements."""
        if self._open and not text.isspace():
            self._open[-1].text += text

    def close(self) -> None:
        """The file ends."""
