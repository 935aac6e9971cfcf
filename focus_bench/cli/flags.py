"""How commands declare flags: as fields of one frozen dataclass, which Typer sees as options."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

# The panels of help.
MODEL = "Model"
DATA = "Data set and arrivals"
DECODING = "Decoding"
SAMPLING = "Sampling"
SCHEDULING = "Batching and memory"
MEASURING = "Measuring"
PREDICTION = "Prediction"
OUTSIDE = "Outside engines"
OUTPUT = "Output"

Flags = TypeVar("Flags")


def takes(flags: type[Flags]) -> Callable[[Callable[[Flags], int]], Callable[..., int]]:
    """Turn a command of one record into one that Typer can call with the record's fields."""

    def decorate(command: Callable[[Flags], int]) -> Callable[..., int]:
        def call(**values: Any) -> int:
            return command(flags(**values))

        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=field.type,
                default=inspect.Parameter.empty
                if field.default is dataclasses.MISSING
                else field.default,
            )
            for field in dataclasses.fields(flags)  # type: ignore[arg-type]
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__doc__ = command.__doc__
        return call

    return decorate


def flag(panel: str, text: str, *, shown: str | bool = True) -> typer.models.OptionInfo:
    """An option; `shown` is what help calls the default where its value would not say it."""
    info: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=panel, show_default=shown
    )
    return info


def whole(panel: str, text: str, *, shown: str | bool = True) -> typer.models.OptionInfo:
    """An option whose value is a whole number."""
    return _number(int, "INTEGER", "a whole number", panel, text, shown)


def real(panel: str, text: str) -> typer.models.OptionInfo:
    """An option whose value is a number."""
    return _number(float, "NUMBER", "a number", panel, text, True)


def _number(
    convert: Callable[[str], float],
    metavar: str,
    allowed: str,
    panel: str,
    text: str,
    shown: str | bool,
) -> typer.models.OptionInfo:
    # Typer's own numbers do not name the value that they refuse.
    def parse(value: str) -> float:
        try:
            return convert(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not usable; allowed: {allowed}") from None

    info: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=panel, show_default=shown, parser=parse, metavar=metavar
    )
    return info


def existing_or_new(value: str) -> Path:
    """The path that a flag or an argument names; "" is refused, which Path takes for "."."""
    if not value:
        raise typer.BadParameter("'' is not usable; allowed: a path (. for the current folder)")
    return Path(value)


# What makes an option of Typer a path.
PATH: dict[str, Any] = {"parser": existing_or_new, "metavar": "PATH"}


def path(panel: str, text: str, *, shown: str | bool = True) -> typer.models.OptionInfo:
    """An option whose value is a path."""
    info: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=panel, show_default=shown, **PATH
    )
    return info


def switch(name: str, panel: str, text: str) -> typer.models.OptionInfo:
    """An option without a value."""
    info: typer.models.OptionInfo = typer.Option(name, help=text, rich_help_panel=panel)
    return info
