"""The configuration: one file, overridden by the environment; mistakes with their lines; what a reload does."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from observatory.app.cli.common import NoHome
from observatory.app.cli.main import run_cli
from observatory.app.config.changes import ConfigWatch, changes
from observatory.app.config.check import check
from observatory.app.config.environment import misspelt, variables
from observatory.app.config.errors import ConfigError
from observatory.app.config.load import Config, find_config, load_config
from observatory.app.config.reference import reference
from observatory.app.config.sections import FramesSection
from observatory.app.config.toml_lines import key_lines
from observatory.app.gateways import Gateways
from observatory.app.submission import read_submission
from observatory.app.typed import probe_here
from observatory.frames.retention import RetentionPolicy
from tests.app.command import Workspace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"

# The superuser may look everywhere, unless it gives up these.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()

SPEC = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: {name}}}
spec:
  operators:
    - {{name: decode, op: decode}}
    - {{name: enc, op: encode, inputs: [decode], params: {{codec: libx264}}}}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {name}.mp4}}}}
"""

FULL = """# a comment = with an equals sign
[platform]
host = "::1"
port = 0
state = "state"
topology = "nodes/mine.yaml"
memory_limit = "8GB"
queue_frames = 12
allowed_hosts = [
  "cam.example",   # the load balancer
  "other.example",
]

[frames]
keep_all_seconds = 60
keep_one_in = 10
slow_seconds = 0.25
disk_budget = "2 Gi"
check_seconds = 2.5

[[pipelines]]
spec = "one.yaml"
inputs = "film.mp4"
frames = 100
realtime = true

[[pipelines]]
spec = "one.yaml"
name = "again"
[pipelines.inputs]
decode = "rtp://0.0.0.0:5004"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty but for a pipeline; no configuration anywhere."""
    for name in (*variables(), "OBSERVATORY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "one.yaml").write_text(SPEC.format(name="one"))
    return here


def config(text: str, folder: Path, name: str = "observatory.toml", **options: Any) -> Config:
    (folder / name).write_text(text)
    return load_config(folder / name, **options)


def mistakes(text: str, folder: Path, **options: Any) -> list[tuple[int | None, str, str | None]]:
    with pytest.raises(ConfigError) as caught:
        config(text, folder, **options)
    assert caught.value.exit_code == 2
    assert caught.value.message == caught.value.errors[0].message
    return [(error.line, error.message, error.mend) for error in caught.value.errors]


def test_without_a_file_the_defaults_hold(folder: Path) -> None:
    found = load_config(None)
    assert found.file is None
    assert (found.platform.host, found.platform.port, found.platform.queue_frames) == ("127.0.0.1", 8050, 8)
    assert found.platform.state == folder.parent / "xdg-state" / "media-observatory"
    assert found.platform.memory_limit_bytes is None
    assert found.frames.retention() == RetentionPolicy(600.0, 100, None, 10_000_000_000)
    assert found.pipelines == ()
    assert str(found.source_of("platform.port")) == "default"


def test_a_whole_file(folder: Path) -> None:
    found = config(FULL, folder)
    platform, frames = found.platform, found.frames
    assert (platform.host, platform.port, platform.queue_frames) == ("::1", 0, 12)
    assert platform.state == folder / "state"
    assert platform.topology == str(folder / "nodes" / "mine.yaml")
    assert platform.memory_limit_bytes == 8_000_000_000
    assert platform.allowed_hosts == ("cam.example", "other.example")
    assert frames.retention() == RetentionPolicy(60.0, 10, 0.25, 2_147_483_648)
    assert frames.check_seconds == 2.5
    one, again = found.pipelines
    assert (one.name, one.line, again.name, again.line) == ("one", 21, "again", 27)
    assert one.submission.inputs == ("film.mp4",)
    assert (one.submission.frames, one.submission.realtime) == (100, True)
    assert again.submission.inputs == ("decode=rtp://0.0.0.0:5004",)
    assert (again.submission.name, again.submission.folder) == ("again", str(folder))
    assert str(found.source_of("frames.disk_budget")).endswith("observatory.toml:18")
    assert found.source_of("platform.allowed_hosts").where.endswith("observatory.toml:9")


def test_paths_start_at_the_files_folder_wherever_one_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "observatory.toml").write_text('[platform]\nstate = "s"\n[[pipelines]]\nspec = "one.yaml"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = load_config(Path("../here/observatory.toml"), environment={"OBSERVATORY_PLATFORM_TOPOLOGY": "t.yaml"})
    assert found.platform.state.resolve() == folder / "s"
    assert found.platform.topology == str(elsewhere / "t.yaml")
    typed = read_submission(found.pipelines[0].submission, probe_here, Gateways())  # the generated picture
    assert Path(typed.operators["out"].node.params["path"]).resolve() == folder / "one.mp4"


@pytest.mark.parametrize("topology", ["real", "two-socket-8gpu"])
def test_topologies_by_name_are_no_paths(folder: Path, topology: str) -> None:
    assert config(f'[platform]\ntopology = "{topology}"', folder).platform.topology == topology


def test_the_environment_goes_over_the_file_and_options_over_both(folder: Path) -> None:
    environment = {
        "OBSERVATORY_PLATFORM_PORT": "9000",
        "OBSERVATORY_FRAMES_DISK_BUDGET": "2GB",
        "OBSERVATORY_PLATFORM_ALLOWED_HOSTS": "a.example, b.example",
        "OBSERVATORY_STATE": "/var/lib/observatory",
        "OBSERVATORY_FRAMES_KEEP_ONE_IN": "",  # as good as not set
    }
    found = config(FULL, folder, environment=environment, options={"platform.port": ("--port", 7)})
    assert found.platform.port == 7
    assert found.frames.disk_budget_bytes == 2_000_000_000
    assert found.platform.allowed_hosts == ("a.example", "b.example")
    assert found.platform.state == Path("/var/lib/observatory")
    assert found.frames.keep_one_in == 10
    keys = ("platform.port", "frames.disk_budget", "platform.state", "frames.keep_one_in", "platform.memory")
    kinds = [found.source_of(key).kind for key in keys]
    assert kinds == ["option", "environment", "environment", "file", "default"]
    assert str(found.source_of("platform.state")) == "OBSERVATORY_STATE"


def test_every_field_has_a_variable_that_works(folder: Path) -> None:
    values: dict[str, tuple[str, Any]] = {
        "platform.host": ("0.0.0.0", "0.0.0.0"),
        "platform.port": ("1", 1),
        "platform.state": ("/s", Path("/s")),
        "platform.topology": ("real", "real"),
        "platform.memory_limit": ("1k", 1000),
        "platform.queue_frames": ("3", 3),
        "platform.compact_pools_seconds": ("0", 0.0),
        "platform.share_prefixes": ("false", False),
        "platform.allowed_hosts": ("x", ("x",)),
        "frames.keep_all_seconds": ("1.5", 1.5),
        "frames.keep_one_in": ("2", 2),
        "frames.slow_seconds": ("0.1", 0.1),
        "frames.disk_budget": ("1Mi", 2**20),
        "frames.check_seconds": ("9", 9.0),
        "telemetry.enabled": ("no", False),
        "telemetry.machine": ("real", "real"),
        "telemetry.receivers": ("kmsg, numa", ("kmsg", "numa")),
        "telemetry.endpoints": ("http://a:9400/metrics", ("http://a:9400/metrics",)),
        "telemetry.period_seconds": ("0.5", 0.5),
        "otlp.endpoint": ("http://[::1]:4318", "http://[::1]:4318"),
        "otlp.headers": ("a=b=c, d=e", (SecretStr("a=b=c"), SecretStr("d=e"))),
        "otlp.interval_seconds": ("3", 3.0),
        "otlp.timeout_seconds": ("4", 4.0),
        "otlp.compression": ("none", "none"),
    }
    names = {f"{section}.{field}": name for name, (section, field) in variables().items()}
    assert set(names) == set(values)
    found = load_config(None, environment={names[key]: text for key, (text, _) in values.items()})
    for key, (_, wanted) in values.items():
        section, field = key.split(".")
        model = getattr(found, section)
        assert getattr(model, field, getattr(model, f"{field}_bytes", None)) == wanted, key


def test_which_file_is_taken(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_config() is None
    users = tmp_path / "xdg" / "media-observatory" / "observatory.toml"
    users.parent.mkdir(parents=True)
    users.write_text("")
    assert find_config() == users
    (folder / "observatory.toml").write_text("")
    assert find_config() == Path("observatory.toml")
    named = tmp_path / "named.toml"
    monkeypatch.setenv("OBSERVATORY_CONFIG", str(named))
    with pytest.raises(ConfigError, match="OBSERVATORY_CONFIG: there is no such file"):
        find_config()
    named.write_text("[platform]\nport = 1\n")
    assert load_config(None).platform.port == 1


def test_every_mistake_is_found_with_its_line(folder: Path) -> None:
    text = """
[platform]
prot = 9000
memory_limit = "8 gigs"
queue_frames = true
allowed_hosts = ["a", 3]

[frame]
keep_one_in = 50
[frames]
keep_all_seconds = -3
slow_seconds = inf
disk_budget = 0
[[pipelines]]
specs = "one.yaml"
[[pipelines]]
spec = "one.yaml"
inputs = [1]
realtime = "perhaps"
[[pipelines]]
frames = 1.5
"""
    assert mistakes(text, folder) == [
        (3, "platform.prot: there is no such key", "did you mean port?"),
        (4, "platform.memory_limit: '8 gigs' is no size; write for example 800M or 2Gi", None),
        (5, "platform.queue_frames must be a number, not true", None),
        (6, "platform.allowed_hosts[1] must be text, not 3", None),
        (8, "frame: there is no such key", "did you mean frames?"),
        (11, "frames.keep_all_seconds must be at least 0, not -3", None),
        (12, "frames.slow_seconds must be a finite number, not inf", None),
        (13, "frames.disk_budget must be more than 0, not 0", None),
        (15, "pipelines[0].specs: there is no such key", "did you mean spec?"),
        (
            18,
            "pipelines[1].inputs must be a file or URL in quotes, or a table: {operator = file or URL, ...}",
            None,
        ),
        (19, "pipelines[1].realtime must be true or false, not 'perhaps'", None),
        (20, "pipelines[2].spec is missing", 'add spec = "..."'),
        (21, "pipelines[2].frames must be a whole number, not 1.5", None),
    ]


def test_the_one_error_says_that_there_are_more(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config("[platform]\nprot = 1\nhots = 2\n", folder)
    assert caught.value.mend == "did you mean port?; and 1 more mistake: observatory config check shows all"


@pytest.mark.parametrize(
    ("text", "line", "words", "mend"),
    [
        ("a = 1\nb: 2\n", 2, "is not TOML", "TOML writes key = value, not key: value"),
        ("[platform\nport = 1", 1, "is not TOML", "text stands in quotes"),
        ("[platform]\nhost = localhost\n", 2, "is not TOML", "text stands in quotes"),
        ("[platform]\nport = 1\nport = 2\n", 3, "is not TOML", "text"),
        ("platform = 3\n", 1, "platform must be a table, not 3", None),
        ("pipelines = 'x'\n", 1, "pipelines must be a list, not 'x'", None),
        ("\n[pipelines]\nspec = 'x'\n", 2, "pipelines must be a list", "two brackets begin a pipeline: [[pipelines]]"),
        ("[[platform]]\nport = 1\n", 1, "platform must be a table", "one bracket begins this section: [platform]"),
    ],
)
def test_what_is_no_configuration(folder: Path, text: str, line: int, words: str, mend: str | None) -> None:
    ((at, message, hint),) = mistakes(text, folder)
    assert at == line
    assert message.startswith(words)
    assert (hint or "").startswith(mend or "")


def test_files_that_cannot_be_read(folder: Path) -> None:
    (folder / "latin.toml").write_bytes(b"[platform]\nhost = '\xe9'\n")
    (folder / "large.toml").write_bytes(b"#" * 1_000_001)
    for name, words, line in (
        ("none.toml", "there is no such file", None),
        (".", "is a folder", None),
        ("latin.toml", "is not UTF-8 text", 2),
        ("large.toml", "is larger than 1 MB", None),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            load_config(folder / name)
        assert caught.value.line == line


@pytest.mark.parametrize("text", ["x = " + "9" * 4301, "x = " + "1_0" * 2200, "x = -" + "9" * 5000])
def test_a_number_that_python_does_not_convert(folder: Path, text: str) -> None:
    assert mistakes(f"# one\n[platform]\n{text}\n", folder) == [
        (3, "a number of more than 4300 digits is too long", None)
    ]


def test_a_number_that_python_does_not_write(folder: Path) -> None:
    number = "0x" + "f" * 4000  # converted it has 4817 decimal digits
    found = mistakes(f"[platform]\nport = {number}\nhost = {number}\n[frames]\nslow_seconds = {number}\n", folder)
    assert [line for line, _, _ in found] == [2, 3, 5]
    assert all(len(words) < 200 for _, words, _ in found), found


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="[]{}=.,\"'#\n 0x19_-+:eaT\\\t\0", max_size=60),
        st.sampled_from(
            ["x = " + "[" * 5000, "x = " + "{a=" * 3000, "x" + ".x" * 3000 + " = 1", "[" + "x." * 3000 + "x]"]
        ),
    )
)
def test_nothing_that_is_written_into_it_is_more_than_a_mistake(text: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "observatory.toml"
        path.write_text(text, newline="")
        with suppress(ConfigError):
            load_config(path, environment={"OBSERVATORY_STATE": scratch})


def test_a_pipe_is_refused_and_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo")
    with pytest.raises(ConfigError, match="fifo: cannot be read: it is a pipe, not a file"):
        load_config(folder / "fifo")
    with pytest.raises(ConfigError, match="zero: cannot be read: it is a device, not a file"):
        load_config(Path("/dev/zero"))
    monkeypatch.setenv("OBSERVATORY_CONFIG", "fifo")
    with pytest.raises(ConfigError, match="it is a pipe"):
        load_config(None)
    monkeypatch.delenv("OBSERVATORY_CONFIG")
    ((line, words, _),) = mistakes('[[pipelines]]\nname = "one"\nspec = "fifo"\n', folder)
    assert (line, "it is a pipe, not a file" in words) == (3, True)


def test_homes_that_there_are_not_and_names_that_cannot_be(folder: Path) -> None:
    assert mistakes('[platform]\nport = 1\nstate = "~nobody-of-that-name/x"\n', folder) == [
        (3, "platform.state: there is no home for ~nobody-of-that-name", "write the whole path")
    ]
    assert mistakes('[[pipelines]]\nspec = "~nobody-of-that-name/x"\n', folder) == [
        (2, "pipelines[0].spec: there is no home for ~nobody-of-that-name", "write the whole path")
    ]
    assert mistakes('[platform]\nstate = "a\\u0000b"\n', folder) == [
        (2, "platform.state: no file can have a NUL in its name", "write the whole path")
    ]
    with pytest.raises(ConfigError, match=r"^OBSERVATORY_STATE: there is no home for ~nobody"):
        load_config(None, environment={"OBSERVATORY_STATE": "~nobody-of-that-name"})


def test_a_place_where_one_may_not_look_is_left_out_and_said(workspace: Workspace) -> None:
    home = workspace.folder / "home"
    home.mkdir(mode=0)
    plain = workspace.arguments("config", "check")[:-2]  # with the state directory in that home
    command = [*AS_ANYBODY, "env", f"HOME={home}", *plain]
    unset = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "OBSERVATORY_CONFIG", "OBSERVATORY_STATE")
    environment = {key: value for key, value in workspace.environment.items() if key not in unset}
    try:
        state = ["--state", str(workspace.state)]
        done = subprocess.run([*command, *state], capture_output=True, text=True, cwd=workspace.folder, env=environment)
        if "setpriv:" in done.stderr:
            pytest.skip(f"capabilities cannot be given up: {done.stderr}")
        assert done.returncode == 0, done.stderr
        words = f"warning: {home}/.config/media-observatory/observatory.toml cannot be looked at (Permission denied)"
        assert words in done.stderr
        done = subprocess.run(command, capture_output=True, text=True, cwd=workspace.folder, env=environment)
        assert (done.returncode, f"error: platform.state: {home} cannot be written" in done.stderr) == (2, True)
        environment["OBSERVATORY_CONFIG"] = str(home / "own.toml")
        done = subprocess.run([*command, *state], capture_output=True, text=True, cwd=workspace.folder, env=environment)
        assert done.returncode == 2
        assert f"error: {home}/own.toml: OBSERVATORY_CONFIG: cannot be looked at: Permission denied" in done.stderr
    finally:
        home.chmod(0o700)


def test_a_user_without_a_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # one that the list of users does not have
    assert run_cli(["ps"]) == 2
    assert "mend: set HOME, or give --state" in capsys.readouterr().err
    with pytest.raises(NoHome):
        load_config(None)
    assert run_cli(["config", "check", "--state", str(folder / "state")]) == 0


def test_a_wrong_variable_is_named(folder: Path) -> None:
    environment = {"OBSERVATORY_PLATFORM_PORT": "http", "OBSERVATORY_FRAMES_DISK_BUDGET": "much"}
    assert mistakes("[platform]\nport = 80\n", folder, environment=environment) == [
        (None, "OBSERVATORY_PLATFORM_PORT must be a whole number, not 'http'", None),
        (None, "OBSERVATORY_FRAMES_DISK_BUDGET: 'much' is no size; write for example 800M or 2Gi", None),
    ]


def test_a_misspelt_variable_is_warned_about(folder: Path) -> None:
    known = dict.fromkeys([*variables(), "OBSERVATORY_CONFIG", "OBSERVATORY_DEBUG", "OBSERVATORY_BEGAN"], "1")
    assert misspelt(known) == []
    assert misspelt({"OBSERVATORY_TEST_MARK": "1", "OBSERVATORY_SANITIZER": "address", "PATH": "/"}) == []
    (words,) = load_config(None, environment={"OBSERVATORY_PLATFROM_PORT": "1"}).warnings
    assert words.endswith(
        "OBSERVATORY_PLATFROM_PORT is not known and sets nothing: did you mean OBSERVATORY_PLATFORM_PORT?"
    )
    assert "OBSERVATORY_FRAMES_X is not known" in misspelt({"OBSERVATORY_FRAMES_X": "1"})[0]
    assert "OBSERVATORY_PLATFORM_STATE is not known" in misspelt({"OBSERVATORY_PLATFORM_STATE": "/s"})[0]


def test_pipelines_that_cannot_be_read_are_all_named(folder: Path) -> None:
    (folder / "broken.yaml").write_text(SPEC.format(name="b").replace("inputs: [enc]", "inptus: [enc]"))
    text = """
[[pipelines]]
spec = "one.yaml"
[[pipelines]]
spec = "missing.yaml"
[[pipelines]]
spec = "broken.yaml"
[[pipelines]]
spec = "one.yaml"
[[pipelines]]
spec = "one.yaml"
name = "named"
[pipelines.inputs]
decod = "a.mp4"
"""
    with pytest.raises(ConfigError) as caught:
        config(text, folder)
    missing, broken, twice, unknown = caught.value.errors
    assert (Path(missing.file or "").name, missing.line) == ("observatory.toml", 5)
    assert "missing.yaml: there is no such file" in missing.message
    assert (Path(broken.file or "").name, broken.line, broken.mend) == ("broken.yaml", 8, "did you mean inputs?")
    assert (twice.line, twice.message) == (8, "pipelines[3]: there is a pipeline one already, on line 2")
    assert (unknown.line, unknown.mend) == (14, "did you mean decode?")
    assert unknown.message == "pipelines[4].inputs.decod: one.yaml has no source of that name"


# Where keys are


@settings(max_examples=60)
@given(st.data())
def test_the_lines_of_keys_are_where_they_are_written(data: st.DataObject) -> None:
    """Any document of tables, lists of tables and all kinds of values: the same keys as tomllib's, on their lines."""
    keys = st.sampled_from(["a", "b-1", "0", '"q.k"', "'l k'", '"e\\"#="'])
    scalars = st.sampled_from(
        ["1", "-3.5e2", "true", "nan", '"x # ] } , = "', "'\\'", '"""\na = 1 # no\n[t]\n"""', "''''q''''", '"""a"""""',
         "1979-05-27 07:32:00", '""', "''''''"]
    )  # fmt: skip
    values = st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda v: "[" + " , # c ] \n ".join(v) + "]" if v else "[ # c\n ]"),
            st.dictionaries(keys, inner.filter(lambda v: "\n" not in v), max_size=3).map(
                lambda d: "{" + ", ".join(f"{k} = {v}" for k, v in d.items()) + "}"
            ),
        ),
        max_leaves=6,
    )
    lines: list[str] = []
    wanted: dict[tuple[str | int, ...], int] = {}

    def line() -> int:
        return "\n".join(lines).count("\n") + 2 if lines else 1

    def plain(key: str) -> str:
        (name,) = tomllib.loads(f"{key} = 1")
        return str(name)

    def pairs(prefix: tuple[str | int, ...]) -> None:
        for key, value in data.draw(st.dictionaries(keys, values, max_size=3)).items():
            wanted[(*prefix, plain(key))] = line()
            lines.append(f"  {key}\t= {value} # c" if data.draw(st.booleans()) else f"{key}={value}")
            if data.draw(st.booleans()):
                lines.append(data.draw(st.sampled_from(["", "# x = 1", "\t"])))

    pairs(())
    for number in range(data.draw(st.integers(0, 3))):
        wanted[("tables", number)] = line()
        wanted.setdefault(("tables",), line())
        lines.append("[[ tables ]]")
        pairs(("tables", number))
        if data.draw(st.booleans()):
            wanted[("tables", number, "sub")] = line()
            lines.append("[tables . sub]")
            pairs(("tables", number, "sub"))
    text = "\n".join(lines)
    found = key_lines(text)
    assert set(found) == set(paths(tomllib.loads(text), ()))
    assert {path: found[path] for path in wanted} == wanted


def paths(value: Any, above: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, below in items for path in ((*above, key), *paths(below, (*above, key)))]


# Reloading


def test_what_a_reload_does(folder: Path) -> None:
    for name in ("two", "three"):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name))
    entry = '[[pipelines]]\nspec = "{}.yaml"\n'
    old = config(FULL.split("[[", 1)[0] + "".join(map(entry.format, ("one", "two"))), folder)
    text = FULL.split("[[", 1)[0].replace("port = 0", "port = 8051").replace("keep_one_in = 10", "keep_one_in = 20")
    text = text.replace('"8GB"', '"9GB"')
    new = config(text + entry.format("one") + "frames = 3\n" + entry.format("three"), folder)
    found = changes(old, new)
    assert [one.name for one in found.added] == ["three"]
    assert found.removed == ("two",)
    assert [one.name for one in found.changed] == ["one"]
    assert {change.key: change.effect for change in found.settings} == {
        "platform.port": "restart",
        "platform.memory_limit": "new pipelines",
        "frames.keep_one_in": "at once",
    }
    assert [change.key for change in found.with_effect("restart")] == ["platform.port"]
    assert found.words() == [
        "pipeline two: removed",
        "pipeline one: changed, starts anew",
        "pipeline three: added",
        "platform.port: 0 -> 8051, after a restart",
        "platform.memory_limit: 8000000000 -> 9000000000, for pipelines that start from now on",
        "frames.keep_one_in: 10 -> 20, now",
    ]
    assert not changes(new, new)


def test_a_pipeline_whose_own_file_changed_starts_anew(folder: Path) -> None:
    text = '[[pipelines]]\nspec = "one.yaml"\n'
    old = config(text, folder)
    assert not changes(old, config("# moved by a comment\n" + text, folder))
    (folder / "one.yaml").write_text(SPEC.format(name="one").replace("libx264", "mpeg4"))
    assert [one.name for one in changes(old, config(text, folder)).changed] == ["one"]


def test_a_broken_file_changes_nothing(folder: Path) -> None:
    options = {"platform.port": ("--port", 7)}
    first = config("[frames]\nkeep_one_in = 10\n", folder, options=options)
    watch = ConfigWatch(first, None, options)
    (folder / "observatory.toml").write_text("[frames]\nkeep_one_in = none\n")
    assert watch.reload() is None
    assert watch.config is first
    assert [error.line for error in (watch.error,) if error] == [2]
    (folder / "observatory.toml").write_text('[[pipelines]]\nspec = "gone.yaml"\n')
    assert watch.reload() is None
    assert watch.config is first
    (folder / "observatory.toml").write_text("[frames]\nkeep_one_in = 11\n[platform]\nport = 9\n")
    found = watch.reload()
    assert found is not None
    assert [str(change) for change in found.settings] == ["frames.keep_one_in: 10 -> 11, now"]
    assert watch.error is None
    assert watch.config.frames.keep_one_in == 11


# Checking


def test_a_check_looks_at_what_the_file_names(folder: Path) -> None:
    (folder / "two.yaml").write_text(SPEC.format(name="two").replace("two.mp4", "one.mp4"))
    (folder / "typo.yaml").write_text(SPEC.format(name="typo").replace("codec:", "codek:"))
    (folder / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check(
            config(
                f"""[platform]
port = {port}
state = "file/state"
topology = "nowhere.yaml"
[frames]
disk_budget = "8000000T"
[[pipelines]]
spec = "one.yaml"
[[pipelines]]
spec = "two.yaml"
inputs = "b.mp4"
[[pipelines]]
spec = "typo.yaml"
""",
                folder,
            )
        )
    errors = [(Path(error.file or "").name, error.line, error.message) for error in found.errors]
    assert errors[0][:2] == ("observatory.toml", 3)
    assert "is a file, not a folder" in errors[0][2]
    assert errors[1][:2] == ("observatory.toml", 4)
    assert "there is no topology" in errors[1][2]
    assert errors[2][:2] == ("observatory.toml", 9)
    assert "pipeline two: its operator out writes to" in errors[2][2]
    assert errors[3][:2] == ("typo.yaml", 7)
    assert len(errors) == 4
    words = "\n".join(found.warnings)
    assert f"127.0.0.1:{port} cannot be used now" in words
    assert "frames.disk_budget: 8e+06 TB, but the disk of" in words
    assert f"its input {folder}/b.mp4 is not there (yet)" in words


def test_a_state_directory_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (error,) = check(config('[platform]\nstate = "mine/state"\n', folder)).errors
    assert f"{folder} cannot be written" in error.message
    assert error.line == 2


# The command


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(folder)


def test_the_command_checks(workspace: Workspace) -> None:
    assert workspace.run("config", "check").out.startswith("OK: no file, the defaults")
    workspace.write('[[pipelines]]\nspec = "one.yaml"\n', "observatory.toml")
    good = workspace.run("config", "check")
    assert (good.code, good.err) == (0, "")
    assert "pipelines: one" in good.out
    assert workspace.run("config", "check", "--json").json == {
        "ok": True,
        "errors": [],
        "warnings": [],
        "file": str(workspace.folder / "observatory.toml"),
        "pipelines": ["one"],
    }
    bad = workspace.write('[platform]\nprot = 1\nhost = ""\n', "bad.toml")
    result = workspace.run("config", "check", bad, "--json")
    assert result.code == 2
    assert [error["line"] for error in result.json["errors"]] == [2, 3]
    assert result.json["error"]["mend"] == "did you mean port?"
    assert f"error: {bad}:2: platform.prot: there is no such key" in result.err
    assert f"error: {bad}:3: platform.host" in result.err


def test_the_command_shows(workspace: Workspace) -> None:
    path = workspace.write(FULL, "observatory.toml")
    shown = workspace.run("config", "show")
    assert shown.code == 0
    lines = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert lines["frames.keep_one_in"].split() == ["frames.keep_one_in", "10", "observatory.toml:16"]
    assert lines["platform.state"].split()[-1] == "--state"
    document = workspace.run("config", "show", path, "--json").json
    assert document["settings"]["platform.memory_limit"] == {
        "value": 8_000_000_000,
        "source": "file",
        "where": f"{path}:7",
    }
    assert [one["name"] for one in document["pipelines"]] == ["one", "again"]


def test_where_telemetry_goes_is_asked_for_and_its_secrets_are_not_shown(workspace: Workspace) -> None:
    assert load_config(None).otlp.settings() is None
    text = """[otlp]
endpoint = "https://otlp.example/tenant"
headers = {Authorization = "Bearer top-secret", X-Scope = " a=b "}
"""
    path = workspace.write(text, "observatory.toml")
    settings = load_config(Path(path)).otlp.settings()
    assert settings is not None
    assert settings.endpoint == "https://otlp.example/tenant"
    assert settings.headers == {"Authorization": "Bearer top-secret", "X-Scope": "a=b"}
    for arguments in (("config", "show", path), ("config", "show", path, "--json"), ("config", "check", path)):
        shown = workspace.run(*arguments)
        assert shown.code == 0
        assert "secret" not in shown.out + shown.err
    for headers in ('["a"]', '{a = "top-secret\\n"}', '{"top-secret name" = "x"}', '{a = {b = "top-secret"}}', "3"):
        path = workspace.write(f'[otlp]\nheaders = {headers}\nendpoint = "ftp://x"', "observatory.toml")
        shown = workspace.run("config", "check", path)
        assert shown.code == 2
        assert "secret" not in shown.out + shown.err
        assert f"{path}:2: otlp.headers must" in shown.err
        assert f"{path}:3: otlp.endpoint" in shown.err


# The reference


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == reference(), "run: .venv/bin/python -m observatory.app.config.reference > " + PAGE.name


def test_the_example_of_the_page_is_a_configuration(folder: Path) -> None:
    example = reference().split("```toml\n")[1].split("```")[0]
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "ladder.yaml").write_text(SPEC.format(name="ladder"))
    right = SPEC.format(name="right").split("operators:\n")[1].replace("enc", "enc2").replace("out", "out2")
    both = SPEC.format(name="mosaic") + right.replace("decode,", "right,").replace("[decode]", "[right]")
    (folder / "pipelines" / "mosaic.yaml").write_text(
        both.replace("{name: decode", "{name: left").replace("[decode]", "[left]")
    )
    found = config(example, folder)
    assert [one.name for one in found.pipelines] == ["ladder", "evening"]
    assert found.frames == FramesSection(disk_budget=20_000_000_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[telemetry]\nreceivers = ["nvml", "infniband"]\n',
            "there is no receiver 'infniband'; did you mean infiniband?",
        ),
        ('[telemetry]\nendpoints = ["ftp://x"]\n', "'ftp://x' is no address of an exporter"),
        ('[telemetry]\nmachine = "virtual"\n', "telemetry.machine"),
        ('[otlp]\nheaders = "x"\n', "otlp.headers"),
    ],
)
def test_what_looks_at_hardware_is_checked(folder: Path, text: str, words: str) -> None:
    ((line, message, _),) = mistakes(text, folder)
    assert line == 2
    assert words in message
