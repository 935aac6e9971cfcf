"""Rows of a parquet file as plain objects, batch by batch; needs the extra `[parquet]`.

Knows no data set.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from focus_bench.core.errors import UsageError, reason_of

PARQUET_MAGIC = b"PAR1"
_BATCH_ROWS = 64  # conversations are long: a batch stays in the megabytes


class ParquetValues:
    """Iterates over the rows of a parquet file, only the named columns that it has.

    Raises UsageError where pyarrow is not installed or the file is damaged.
    """

    truncated = False  # parquet has its index at the end: a cut file cannot be opened at all
    replaced = 0

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise UsageError(
                "--dataset-path",
                str(path),
                "JSON or JSONL here; parquet needs pyarrow: pip install 'focus-bench[parquet]'",
            ) from error
        self._arrow_error = importlib.import_module("pyarrow").ArrowException
        self._path = path
        try:
            self._file = parquet.ParquetFile(path)
        except (self._arrow_error, OSError) as error:
            raise self._damaged(error) from error
        present = set(self._file.schema_arrow.names)
        self._columns = [name for name in columns if name in present]

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(
            "--dataset-path", f"{self._path} ({reason_of(error)})", "a whole parquet file"
        )

    def __iter__(self) -> Iterator[object]:
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=self._columns):
                yield from batch.to_pylist()
        except (self._arrow_error, OSError) as error:
            raise self._damaged(error) from error
