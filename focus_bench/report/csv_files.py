"""Rows of a CSV file that may be damaged: whole, or an error that names the file.

Knows no columns.
"""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from focus_bench.core.errors import UsageError


@contextmanager
def naming_faults(file: Path) -> Iterator[None]:
    """Turns what reading damaged cells raises into a UsageError that names the file."""
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError("result file", str(file), "a file of a finished point") from None
    except OSError as error:
        raise UsageError("result file", str(file), f"a readable file ({error.strerror})") from None
    except (ValueError, KeyError, IndexError, OverflowError, csv.Error) as error:
        raise UsageError("result file", str(file), f"a whole CSV file ({error})") from error


def whole_rows(file: Path) -> Iterator[list[str]]:
    """The header and every row, all of the header's length.

    Raises ValueError for a file that is cut, inside a row or before its line's end; UnicodeError
    and csv.Error for one that is no text or no CSV.
    """
    with file.open("rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(0, size - 1))
        if raw.read() != b"\n":
            raise ValueError("it ends inside a line" if size else "it is empty")
    with file.open(encoding="utf-8", newline="") as opened:
        reader = csv.reader(opened, strict=True)
        header = next(reader)
        yield header
        for row in reader:
            if len(row) != len(header):
                raise ValueError(f"line {reader.line_num}: {len(row)} of {len(header)} cells")
            yield row
