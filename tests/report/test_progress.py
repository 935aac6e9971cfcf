"""Progress and consoles: bars on terminals, few plain lines in pipes, nothing when quiet."""

import io

import pytest
from rich.console import Console

from focus_bench.report.console import is_live, make_console
from focus_bench.report.progress import SweepProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(console: Console, *, requests: int, step_s: float, steps: int) -> None:
    clock = Clock()
    with SweepProgress(console, 2, clock=clock) as progress:
        progress.begin_point("focus, batch 8", requests)
        for i in range(steps):
            clock.now += step_s
            progress.update(requests * (i + 1) // steps, 10 * (i + 1))
        progress.end_point("123 tok/s")


def test_a_pipe_gets_at_most_a_line_per_tenth():
    file = io.StringIO()
    serve(make_console(file), requests=1000, step_s=1.0, steps=1000)
    lines = file.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "[1/2] focus, batch 8: 100/1000 requests, 10 tok/s, 900 s left"
    assert lines[-1] == "[1/2] focus, batch 8: 123 tok/s"
    assert "\x1b" not in file.getvalue()
    assert "\r" not in file.getvalue()


def test_lines_in_a_pipe_are_five_seconds_apart():
    file = io.StringIO()
    serve(make_console(file), requests=1000, step_s=0.012, steps=1000)  # 12 s in all
    assert len(file.getvalue().splitlines()) == 3


def test_a_pipe_gets_no_control_codes_even_if_colours_are_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    file = io.StringIO()
    serve(make_console(file), requests=10, step_s=6.0, steps=10)
    assert "\x1b[?25l" not in file.getvalue()  # hides the cursor
    assert "\r" not in file.getvalue()
    assert "\x1b[2K" not in file.getvalue()


def test_a_terminal_gets_a_bar_with_rate_and_time_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    serve(make_console(file), requests=4, step_s=1.0, steps=4)
    text = file.getvalue()
    assert "2/4 requests, 10 tok/s, 2.00 s left" in text
    assert "\x1b[2K" in text  # redrawn in place
    assert "[1/2] focus, batch 8: 123 tok/s" in text


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not is_live(make_console(Terminal()))


def test_quiet_prints_nothing_anywhere():
    for file in (io.StringIO(), Terminal()):
        serve(make_console(file, quiet=True), requests=100, step_s=6.0, steps=50)
        assert file.getvalue() == ""


def test_points_without_requests_and_without_time_are_no_division_by_zero():
    file = io.StringIO()
    clock = Clock()
    with SweepProgress(make_console(file), 1, clock=clock) as progress:
        progress.begin_point("a", 0)
        progress.update(0, 0)
        progress.end_point("nothing to do")
    assert file.getvalue() == "[1/1] a: nothing to do\n"


def test_data_is_never_read_as_markup_or_emoji():
    file = io.StringIO()
    make_console(file).print("[bold]x[/] :smile: [1, 2]")
    assert file.getvalue() == "[bold]x[/] :smile: [1, 2]\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_that_the_locale_lacks_is_no_error(encoding):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    make_console(file).print("Привет 你好 ok")
    file.flush()
    assert raw.getvalue() == b"?????? ?? ok\n"
