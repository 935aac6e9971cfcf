"""Server-sent events from bytes, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.backends import sse
from focus_bench.backends.reply import joined
from focus_bench.backends.sse import EventDecoder, MalformedStream

LINES = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1, max_size=8
)


def decoded(stream: bytes, cuts: list[int]) -> list[str]:
    decoder = EventDecoder()
    bounds = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    return [event for begin, end in pairwise(bounds) for event in decoder.feed(stream[begin:end])]


@given(
    events=st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=4),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    noise=st.sampled_from(["", ": a comment", "event: message", "id: 7", "retry: 5", "data"]),
    cuts=st.lists(st.integers(0, 200), max_size=30),
)
def test_any_cut_of_a_stream_gives_the_same_events(
    events: list[list[str]], line_end: str, noise: str, cuts: list[int]
) -> None:
    lines: list[str] = []
    expected = []
    for event in events:
        if noise:
            lines.append(noise)
        lines += [f"data: {text}" for text in event] + [""]
        # A field without a value is an empty line of data; the others are none.
        expected.append("\n".join(["", *event] if noise == "data" else event))
    stream = "".join(line + line_end for line in lines).encode()
    got = decoded(stream + b"\n", cuts)  # behind "\r" something must come before it is an end
    assert got == expected


def test_the_blank_behind_the_colon_may_be_missing_and_only_one_is_left_out() -> None:
    assert decoded(b"data:{}\n\ndata:  x\n\n", []) == ["{}", " x"]


def test_a_character_in_single_bytes_is_whole() -> None:
    stream = "data: 🦜é\n\n".encode()
    assert decoded(stream, list(range(len(stream)))) == ["🦜é"]


def test_an_event_that_has_not_ended_is_none() -> None:
    assert decoded(b"data: a\n\ndata: b\n", []) == ["a"]


def test_bytes_that_are_no_utf8_are_malformed() -> None:
    with pytest.raises(MalformedStream, match="not UTF-8"):
        EventDecoder().feed(b"data: \xff\n\n")


def test_a_line_without_an_end_is_malformed_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    decoder = EventDecoder()
    assert decoder.feed(b"data: " + b"x" * 94) == []
    with pytest.raises(MalformedStream, match="more than 100 bytes"):
        decoder.feed(b"x")


def test_halves_of_a_character_from_two_events_are_joined() -> None:
    assert joined(["a\ud83e", "\udd9c", "b"]) == "a🦜b"
    assert joined(["\ud83e", "x"]) == "\ufffdx"
