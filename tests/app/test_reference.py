"""The command-line reference is up to date, and every command has examples."""

from __future__ import annotations

import re
from pathlib import Path

from observatory.app.cli.reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == reference(), "run: .venv/bin/python -m observatory.app.cli.reference > " + PAGE.name


def test_every_command_has_examples_that_start_with_its_name() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 8
    for section in sections:
        name = section.splitlines()[0]
        examples = section.split("Examples:", 1)
        assert len(examples) == 2, f"{name}: no examples"
        assert name in examples[1], f"{name}: its examples show something else"
