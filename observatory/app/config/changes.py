"""What becomes of a running platform when its configuration is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observatory.app.config.environment import SECTIONS
from observatory.app.config.load import Config, ConfiguredPipeline, load_config
from observatory.app.config.sections import Reload
from observatory.model.errors import MediaObservatoryError


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that has another value now, and when that takes effect. `key` is as `frames.keep_one_in`."""

    key: str
    old: Any
    new: Any
    effect: Reload

    def __str__(self) -> str:
        when = {"at once": "now", "new pipelines": "for pipelines that start from now on", "restart": "after a restart"}
        return f"{self.key}: {shown(self.old)} -> {shown(self.new)}, {when[self.effect]}"


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """What differs. `removed` are names; `changed` pipelines are to be ended and started as they are now."""

    added: tuple[ConfiguredPipeline, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ConfiguredPipeline, ...] = ()
    settings: tuple[SettingChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.settings)

    def with_effect(self, effect: Reload) -> tuple[SettingChange, ...]:
        """The settings that take effect then."""
        return tuple(change for change in self.settings if change.effect == effect)

    def words(self) -> list[str]:
        """One line each, for people."""
        lines = [f"pipeline {name}: removed" for name in self.removed]
        lines += [f"pipeline {one.name}: changed, starts anew" for one in self.changed]
        lines += [f"pipeline {one.name}: added" for one in self.added]
        return lines + [str(change) for change in self.settings]


def changes(old: Config, new: Config) -> ConfigChanges:
    """What has to be done to get from one to the other."""
    before = {one.name: one for one in old.pipelines}
    after = {one.name: one for one in new.pipelines}
    return ConfigChanges(
        added=tuple(one for name, one in after.items() if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            one for name, one in after.items() if name in before and before[name].submission != one.submission
        ),
        settings=tuple(_settings(old, new)),
    )


def _settings(old: Config, new: Config) -> list[SettingChange]:
    found: list[SettingChange] = []
    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            before, after = (getattr(getattr(config, section), name) for config in (old, new))
            if before != after:
                extra = field.json_schema_extra
                assert isinstance(extra, dict)
                effect: Any = extra["reload"]
                found.append(SettingChange(f"{section}.{field.alias or name}", before, after, effect))
    return found


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None or value == ():
        return "unset"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


class ConfigWatch:
    """The configuration of a running platform, read again when somebody says so (SIGHUP).

    Attributes:
        config: the one in force.
        error: why it could not be read the last time; None when it could.
    """

    def __init__(self, config: Config, path: Path | None, options: Mapping[str, tuple[str, Any]] | None = None) -> None:
        self.config = config
        self.error: MediaObservatoryError | None = None
        self._path = path or config.file
        self._options = options

    def reload(self) -> ConfigChanges | None:
        """Read it again, with the same options. None when it cannot be used: then the old one stays in force."""
        try:
            new = load_config(self._path, options=self._options)
        except MediaObservatoryError as error:
            self.error = error
            return None
        self.error = None
        found, self.config = changes(self.config, new), new
        return found
