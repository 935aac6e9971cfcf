"""Lets a command take its flags as one frozen dataclass, whose fields Typer sees as options."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

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
