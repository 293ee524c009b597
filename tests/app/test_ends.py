"""Ways for a run to end before its input does: signals to it and to its workers, outputs that nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import psutil
import pytest

from tests.app.command import LADDER, Workspace, probe
from tests.app.test_bad_input import wait_for_worker

TINY = LADDER.replace("op: decode}}", "op: decode, params: {{source: {{size: 320x180}}}}}}")


def test_sigterm_to_a_worker_is_no_end_of_stream(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000, "--json") as process:
        os.kill(wait_for_worker(workspace, "decode"), signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "operator decode (pid " in err
    assert "SIGTERM" in err
    assert err.count("error:") == 1
    assert not [path for path in workspace.folder.iterdir() if ".mp4" in path.name]


def test_sigterm_to_all_processes_is_a_service_being_stopped(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        for pid in sorted(workspace.processes(), reverse=True):  # workers first
            os.kill(pid, signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert probe(workspace.folder / "hd.mp4").pts


def test_a_failing_producer_makes_no_encoder_fail_on_its_own(workspace: Workspace) -> None:
    """Encoders end while they hold frames; a worker that fails in ending would leave a log, and hide the cause."""
    spec = workspace.write(TINY.format(out=workspace.folder).replace("ultrafast", "medium"))
    with workspace.started("run", spec, "--frames", 1_000_000) as process:
        victim = wait_for_worker(workspace, "decode")
        time.sleep(0.3)
        os.kill(victim, signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"operator decode (pid {victim}) was told to end by SIGTERM" in err
    assert [log.read_text() for log in workspace.state.glob("run/*/*.log")] == []


def test_ctrl_c_ends_a_run_whose_workers_do_not_come_to_their_start(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000, "--json") as process:
        run, stopped = psutil.Process(process.pid), 0
        while not stopped:
            assert process.poll() is None
            for child in run.children(recursive=True):
                if child.ppid() != process.pid:
                    child.send_signal(signal.SIGSTOP)
                    stopped += 1
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_a_closed_terminal_ends_the_run_as_ctrl_c_does(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    with workspace.started("run", spec, "--frames", 1_000_000, "--json") as process:
        wait_for_worker(workspace, "mux-hd")
        time.sleep(0.3)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert probe(workspace.folder / "hd.mp4").pts


@pytest.mark.slow
def test_nohup_is_respected(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    command = ["nohup", *workspace.arguments("run", spec, "--frames", 1_000_000)]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=workspace.environment)
    try:
        wait_for_worker(workspace, "decode")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
    assert probe(workspace.folder / "hd.mp4").pts


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "words"),
    [
        ([], ">/dev/full", 1, "standard output cannot be written: No space left on device"),
        (["--json"], ">/dev/full", 1, "standard output cannot be written: No space left on device"),
        (["--json"], ">&-", 0, ""),
        (["nobody"], "2>/dev/full", 2, ""),
        (["--json"], "| true", 0, ""),
    ],
)
def test_outputs_that_cannot_be_written(
    workspace: Workspace, arguments: list[str], redirection: str, code: int, words: str
) -> None:
    command = f'set -o pipefail; "$@" {redirection}'
    asked = workspace.arguments("ps", *arguments)
    done = subprocess.run(
        ["bash", "-c", command, "-", *asked], capture_output=True, text=True, env=workspace.environment, timeout=30
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error:") == bool(words)


def test_an_error_that_nobody_reads(workspace: Workspace) -> None:
    command = '"$@" >/dev/full'
    asked = workspace.arguments("run", "no-such-file.yaml", "--json")
    done = subprocess.run(
        ["bash", "-c", command, "-", *asked], capture_output=True, text=True, env=workspace.environment, timeout=30
    )
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


def test_few_file_descriptors(workspace: Workspace) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    for limit, code in (("-Sn 64", 0), ("-n 40", 1)):
        done = subprocess.run(
            ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", *workspace.arguments("run", spec, "--frames", 3)],
            capture_output=True,
            text=True,
            env=workspace.environment,
            timeout=30,
        )
        assert done.returncode == code, done.stderr
    assert "this process may have 40" in done.stderr
    assert "ulimit -n" in done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(workspace: Workspace, encoding: str) -> None:
    spec = workspace.write(TINY.format(out=workspace.folder))
    environment = {**workspace.environment, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        workspace.arguments("plan", spec),
        capture_output=True,
        text=True,
        env=environment,
        encoding=encoding,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_for_who_wants_none(workspace: Workspace, setting: dict[str, str]) -> None:
    main, terminal = os.openpty()
    subprocess.run(
        workspace.arguments("ps", "nobody"),
        stdout=terminal,
        stderr=terminal,
        env=workspace.environment | setting,
        timeout=30,
    )
    os.close(terminal)
    shown = os.read(main, 10_000)
    os.close(main)
    assert b"error:" in shown
    assert b"\x1b" not in shown
