"""The command-line reference, from the commands themselves: `python -m observatory.app.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from observatory.app.cli.main import cli

WIDTH = 100


def reference() -> str:
    """The page docs/reference/command-line.md as Markdown."""
    root = click.Context(
        cli,
        info_name="observatory",
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=cli.context_settings["help_option_names"],
    )
    parts = [
        "# Command line",
        "",
        "Every command takes `--state DIR`, `--json` and `--help`. With `--json`, standard output is one JSON",
        'document, on errors `{"error": {"kind", "message", "file", "line", "mend"}}`; progress and words go to',
        "standard error.",
        "",
        "Exit codes: 0 done, 1 the job failed (or there is no such frame), 2 bad usage or input, 130 interrupted.",
        "",
        "This page is made from the commands' own help.",
    ]
    for context in _commands(root):
        parts += ["", f"## {context.command_path}", "", "```text", context.get_help().rstrip(), "```"]
    return "\n".join(parts) + "\n"


def _commands(parent: click.Context) -> Iterator[click.Context]:
    """Contexts of all commands below a group, depth first."""
    group = parent.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)
        yield context
        if isinstance(command, click.Group):
            yield from _commands(context)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
