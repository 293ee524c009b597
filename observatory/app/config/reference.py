"""The configuration reference, from the models: `python -m observatory.app.config.reference`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from observatory.app.config.environment import OTHERS, SECTIONS, variables
from observatory.app.config.sections import PipelineSection

_HEAD = """# Configuration

One TOML file configures a platform (`observatory up`). It is the file that `--config` names, else
`$OBSERVATORY_CONFIG`, else `./observatory.toml`, else `$XDG_CONFIG_HOME/media-observatory/observatory.toml`
(`~/.config/...`), else there is none and the defaults hold. Over it go environment variables, and over those the
options of the command line.

    observatory config check        every mistake, with file, line and mend; exit code 2 when there is one
    observatory config show         the values in force, and where each comes from

```toml
[platform]
port = 9000
state = "/var/lib/media-observatory"
memory_limit = "8GB"

[frames]
keep_all_seconds = 600
keep_one_in = 100
disk_budget = "20GB"

[telemetry]
receivers = ["nvml", "infiniband", "sysfs-pcie", "kmsg"]
[otlp]
endpoint = "http://127.0.0.1:4318"
headers = {Authorization = "Bearer 0123456789"}

[[pipelines]]
spec = "pipelines/ladder.yaml"
inputs = "rtp://0.0.0.0:5004"

[[pipelines]]
name = "evening"
spec = "pipelines/mosaic.yaml"
inputs = {left = "clips/a.mp4", right = "srt://0.0.0.0:9000?mode=listener"}
realtime = true
```

Relative paths in the file start at its folder, those of variables and options at the current one. Sizes are numbers
of bytes or words: `"800M"`, `"8GB"` (powers of 1000), `"2Gi"` (of 1024). An unknown key is an error, an unknown
variable that looks like one of these a warning.

**Reloading.** A platform that gets SIGHUP reads its file again. Pipelines that are new in it are started, those that
are gone are ended in good order, those whose entry or whose own file has changed are ended and started anew; all
others go on without a gap. The tables say when a changed setting takes effect. A file with a mistake changes nothing:
the old values stay in force, and the platform says why.
"""

_WHEN = {"at once": "at once", "new pipelines": "for pipelines that start later", "restart": "after a restart"}


def reference() -> str:
    """The page docs/reference/configuration.md as Markdown."""
    parts = [_HEAD]
    by_key = {key: name for name, key in variables().items()}
    for section, model in SECTIONS.items():
        parts += [f"## [{section}]", "", _sentence(model), ""]
        parts += ["| field, variable | default | a change takes effect | |", "|---|---|---|---|"]
        for key, default, words, reload in _fields(model):
            parts.append(f"| `{key}` `{by_key[section, key]}` | {default} | {_WHEN[reload]} | {words} |")
        parts.append("")
    parts += ["## [[pipelines]]", "", _sentence(PipelineSection), "", "| field | default | |", "|---|---|---|"]
    parts += [f"| `{key}` | {default} | {words} |" for key, default, words, _ in _fields(PipelineSection)]
    others = ", ".join(f"`{name}`" for name in OTHERS)
    parts += ["", f"Other variables: {others}. No field of a pipeline can be set by a variable.", ""]
    return "\n".join(parts)


def _sentence(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """Of each field: its name in the file, its default, its description, and when a change takes effect."""
    for name, field in model.model_fields.items():
        extra: Any = field.json_schema_extra or {}
        if field.is_required():
            default = "required"
        elif field.default_factory is not None:
            default = "`$XDG_STATE_HOME/media-observatory`"
        else:
            default = _default(name, field.default)
        yield field.alias or name, default, field.description or "", extra.get("reload", "")


def _default(name: str, value: Any) -> str:
    if value is None or value == ():
        return ""
    if name.endswith("_bytes"):
        return f'`"{value / 1e9:g}GB"`'
    value = list(value) if isinstance(value, tuple) else value
    text = f"{value:g}" if isinstance(value, float) else repr(value).replace("'", '"')
    return f"`{re.sub('True|False', lambda match: match.group().lower(), text)}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
