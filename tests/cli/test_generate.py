"""focus-bench generate, report and doctor at the command level."""

import re

import pytest

from focus_bench.cli.main import main


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_pipe_gets_a_frame_for_every_step_and_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["generate", "--prompt", "Hello", "--max-new-tokens", "30", "--policy", "focus"]
    arguments += ["--model", "dummy-tiny"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    frames = re.findall(r"^block (\d+)-(\d+), step (\d+): (\d+) new, (\d+) masked", out, re.M)
    assert frames[0][:3] == ("0", "31", "1")
    masked = {"0": 32 - 7, "32": 32}  # user marker, five bytes, assistant marker
    for start, _, _, new, left in frames:
        masked[start] -= int(new)
        assert int(left) == masked[start]
    assert masked["0"] == 0
    assert "\x1b" not in out + err
    assert "random" in err
    assert "dummy weights" in err

    assert main([*arguments, "--no-stream"]) == 0
    text = capsys.readouterr().out
    assert "block" not in text
    assert out.endswith(text)
    assert text.strip()


@pytest.mark.parametrize("policy", ["baseline", "delayed-cache", "focus-fixed"])
def test_other_policies_complete_the_prompt(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--prompt", "x", "--no-stream", "--raw", "--block-length", "4"]
    arguments += ["--model", "dummy-tiny"]
    assert main([*arguments, "--max-new-tokens", "5", "--policy", policy]) == 0
    assert "5 tokens on cpu; length" in capsys.readouterr().err


def test_doctor_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("focus-bench", "python", "torch", "transformers", "CPU cores", "memory", "GPU"):
        assert re.search(rf"^{name} +\S", out, re.M), name
    assert "none" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"focus-bench \d+\.\d+\.\d+\n", capsys.readouterr().out)
