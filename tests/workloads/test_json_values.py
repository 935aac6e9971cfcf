"""JSON values out of whole, cut, broken and oddly encoded files, at every chunk border."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from focus_bench.workloads import text_chunks
from focus_bench.workloads.json_values import JsonValues
from focus_bench.workloads.rows import BAD_ROW, CUT_OFF, Lost
from focus_bench.workloads.text_chunks import TextChunks

ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["id", 'q"uote', "back\\slash"]),
        st.text(max_size=12)
        | st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=6)), max_size=2),
        max_size=3,
    ),
    max_size=5,
)
SAME_FIXTURES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(path: Path, data: bytes) -> tuple[list[object], JsonValues]:
    path.write_bytes(data)
    values = JsonValues(TextChunks(path))
    return list(values), values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 3)


@SAME_FIXTURES
@given(rows=ROWS, indent=st.sampled_from([None, 2]), ascii_only=st.booleans(), data=st.data())
@pytest.mark.usefixtures("tiny_chunks")
def test_array_cut_anywhere_gives_every_whole_row(
    path: Path, rows: list[object], indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    text, ends = "[", []
    for number, row in enumerate(rows):
        text += ("," if number else "") + "\n"
        text += json.dumps(row, indent=indent, ensure_ascii=ascii_only)
        ends.append(len(text.encode("utf-8", "surrogatepass")))
    whole = (text + "\n]").encode("utf-8", "surrogatepass")
    cut = data.draw(st.integers(0, len(whole)))
    got, values = read(path, whole[:cut])
    complete = sum(end <= cut for end in ends)
    assert [value for value in got if not isinstance(value, Lost)] == rows[:complete]
    starts_another = whole[max([0, *ends[:complete]]) : cut].strip(b"[,\n") not in (b"", b"]")
    assert got[complete:] == ([Lost(CUT_OFF)] if starts_another else [])
    assert values.truncated == (0 < cut < len(whole))


@SAME_FIXTURES
@given(rows=ROWS, data=st.data())
@pytest.mark.usefixtures("tiny_chunks")
def test_lines_cut_anywhere_give_every_whole_row(
    path: Path, rows: list[object], data: st.DataObject
) -> None:
    lines = [json.dumps(row) for row in rows]
    whole = "\r\n\r\n".join(lines).encode()
    cut = data.draw(st.integers(0, len(whole)))
    got, values = read(path, whole[:cut])
    text = whole[:cut].decode()
    last = text.rpartition("\n")[2].strip()
    broken = bool(last) and last not in lines
    complete = sum(bool(line.strip()) for line in text.split("\n")) - broken
    assert got == rows[:complete] + [Lost(CUT_OFF)] * broken
    assert values.truncated == broken


@pytest.mark.parametrize(
    "broken",
    [
        '{"id": , "x": {"y": "}"}}',
        '{"id": "a" "b"}',
        "nonsense",
        "{'id': 1}",
        '{"n": %s}' % ("1" * 5000),
    ],
)
@pytest.mark.parametrize("chunk", [2, 1 << 20])
def test_broken_row_between_good_ones(
    path: Path, broken: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", chunk)
    got, values = read(path, f'[{{"id": 1}}, {broken}, {{"id": 2}}]'.encode())
    assert got == [{"id": 1}, Lost(BAD_ROW), {"id": 2}]
    assert not values.truncated
    got, values = read(path, f'{{"id": 1}}\n{broken}\n\n{{"id": 2}}\n'.encode())
    assert got == [{"id": 1}, Lost(BAD_ROW), {"id": 2}]
    assert not values.truncated


def test_one_object_over_many_lines(path: Path) -> None:
    row = {"problem": "1 + 1?", "solution": "2"}
    assert read(path, json.dumps(row, indent=4).encode())[0] == [row]


def test_line_separators_of_unicode_end_no_row(path: Path) -> None:
    rows = [{"prompt": "a\u2028b\u0085c"}, {"prompt": "d"}]
    data = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    assert read(path, data)[0] == rows


def test_too_deep_a_value_is_a_bad_row(path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    got, _ = read(path, f'[{{"id": 1}}, {deep}, {{"id": 2}}]'.encode())
    assert got == [{"id": 1}, Lost(BAD_ROW), {"id": 2}]


@pytest.mark.parametrize("data", [b"", b"  \n\n ", b"[]", b"\xef\xbb\xbf", b"[ ]\n"])
def test_nothing_in_it(path: Path, data: bytes) -> None:
    got, values = read(path, data)
    assert got == []
    assert not values.truncated


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_broken_bytes_are_counted_and_genuine_replacement_characters_are_not(
    path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", chunk)
    data = b'\xef\xbb\xbf{"prompt": "caf\xe9 \xef\xbf\xbd \xd0\x96"}\n{"prompt": "\xff"}\n\xf0\x9f'
    got, values = read(path, data)
    assert got == [
        {"prompt": "caf\ufffd \ufffd \u0416"},
        {"prompt": "\ufffd"},
        Lost(CUT_OFF),
    ]
    assert values.replaced == 3


def test_gzip_whole_and_cut(path: Path) -> None:
    rows = [{"id": number, "text": str(number) * 50} for number in range(2000)]
    data = gzip.compress("\n".join(json.dumps(row) for row in rows).encode(), mtime=0)
    got, values = read(path, data)
    assert got == rows
    assert not values.truncated
    got, values = read(path, data[: len(data) // 2])
    kept = [value for value in got if not isinstance(value, Lost)]
    assert kept == rows[: len(kept)]
    assert len(kept) > 900
    assert got[len(kept) :] == [Lost(CUT_OFF)]
    assert values.truncated
