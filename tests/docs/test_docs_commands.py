"""Every command that a page prints is one that the program takes: its flags parse, its lists and
values are allowed, and the words of `focus-bench COMMAND` within sentences are real.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from doc_text import DOCS, PAGES, Command, commands, inline_commands

from focus_bench.cli.app import app
from focus_bench.cli.backend_options import backend_of, outside_flags
from focus_bench.cli.points import points_from_flags
from focus_bench.cli.sweep_options import PointFlags, RunFlags, SimulateFlags
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import DEFAULT_MODEL
from focus_bench.workloads.loader import DATASETS

PRINTED = [command for page in PAGES for command in commands(page)]
NAMED = [command for page in PAGES for command in inline_commands(page)]
GROUP = typer.main.get_command(app)
# Those of extending.md need its changes; test_docs_extending runs them.
SWEEPS = [c for c in PRINTED if c.arguments[0] in ("run", "simulate") and c.page != "extending.md"]


def parse(command: Command) -> dict[str, Any]:
    """Parse a call as the program would, up to running it; the values by the flags' names."""
    name, *rest = command.arguments
    assert name in GROUP.commands, f"no command {name}"
    values = GROUP.commands[name].make_context(name, list(rest)).params
    return {key: None if value == () else value for key, value in values.items()}


def options_of(name: str) -> set[str]:
    return {text for parameter in GROUP.commands[name].params for text in parameter.opts}


def test_the_pages_print_commands() -> None:
    names = {command.arguments[0] for command in PRINTED}
    assert {"run", "simulate", "eval", "report"} <= names
    assert len(PRINTED) > 20


@pytest.mark.parametrize("command", PRINTED, ids=str)
def test_a_printed_command_parses(command: Command) -> None:
    parse(command)


@pytest.mark.parametrize("command", SWEEPS, ids=str)
def test_values_of_a_printed_sweep_are_allowed(command: Command) -> None:
    """Policies, models, data sets, hardware and numbers, beyond the names of the flags."""
    values = parse(command)
    if "/" in values["model"]:  # the reader's own folder
        values["model"] = DEFAULT_MODEL
    flags: PointFlags
    if command.arguments[0] == "run":
        flags = RunFlags(**values)
        flags = outside_flags(flags) if backend_of(flags).is_outside else flags
    else:
        flags = SimulateFlags(**values)
        assert set((flags.gpu or "cpu").split(",")) <= {"cpu", *HARDWARE}
    assert set(flags.dataset.split(",")) <= set(DATASETS)
    assert points_from_flags(flags, simulated=command.arguments[0] == "simulate")


@pytest.mark.parametrize("command", NAMED, ids=str)
def test_a_named_command_exists(command: Command) -> None:
    """Placeholders such as FOLDER may stand in a sentence; names and flags may not be wrong."""
    if not command.arguments or command.arguments[0] == "COMMAND":
        return
    name, *rest = command.arguments
    assert name in GROUP.commands
    flags = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert flags <= options_of(name)


def test_a_wrong_command_does_not_parse() -> None:
    """The check itself would notice: an unknown flag, a word for a number, a missing argument."""
    for arguments in (["run", "--no-such"], ["run", "--seed", "x"], ["report"], ["compare"]):
        with pytest.raises(typer.TyperException):
            parse(Command(page="", line=0, arguments=tuple(arguments)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links to files of the repository, and anchors to headings of its pages."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [p.name for p in PAGES if p.parent == DOCS and f"({p.name})" not in index]
    assert missing == ["index.md"]
