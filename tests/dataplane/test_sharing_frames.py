"""The programs in docs/sharing-frames.md, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dataplane.errors
import dataplane.exchange

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "sharing-frames.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", TEXT, re.DOTALL))


def lines_of_code(name: str) -> int:
    return sum(bool(line.strip()) for line in FILES[name].splitlines())


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / name).write_text(FILES[name])
    command = [sys.executable, str(folder / name), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)


def test_the_programs_are_short() -> None:
    assert set(FILES) == {"producer.py", "consumer.py", "consumer_async.py"}
    assert all(lines_of_code(name) <= 20 for name in FILES), {name: lines_of_code(name) for name in FILES}


@pytest.mark.parametrize("name", ["consumer.py", "consumer_async.py"])
def test_the_programs_do_what_is_said(tmp_path: Path, name: str) -> None:
    consumer = start(tmp_path, name, str(tmp_path / "cam.sock"))
    producer = start(tmp_path, "producer.py", str(tmp_path / "cam.sock"))
    said, _ = consumer.communicate(timeout=60)
    producer.communicate(timeout=60)
    assert (consumer.returncode, producer.returncode) == (0, 0)
    words = re.fullmatch(r"(\d+) frames seen, (\d+) lost\n", said)
    assert words is not None
    seen, lost = map(int, words.groups())
    assert seen > 0
    if name == "consumer.py":
        assert seen + lost == 100
    else:
        assert seen <= 100


def test_what_the_page_names_exists() -> None:
    for error in re.findall(r"^\| `([A-Z]\w+)", TEXT, re.MULTILINE):
        assert hasattr(dataplane.exchange, error), error
        assert issubclass(getattr(dataplane.exchange, error), dataplane.errors.ExchangeError)
