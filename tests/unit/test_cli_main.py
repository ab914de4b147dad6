"""The entry point: exit statuses, and errors as one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rdmatx.cli import main as cli
from rdmatx.cli.errors import CommandError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], int]], None]:
    """Replaces `rdmatx devices` by a function of the test."""

    def install(execute: Callable[[Any], int]) -> None:
        module = SimpleNamespace(configure=lambda parser: None, execute=execute)
        monkeypatch.setitem(sys.modules, "rdmatx.cli.test_command", module)
        monkeypatch.setitem(cli.COMMANDS, "devices", ("rdmatx.cli.test_command", "for a test"))

    return install


def raising(error: BaseException) -> Callable[[Any], int]:
    def execute(_: Any) -> int:
        raise error

    return execute


def test_the_status_of_a_command_is_the_exit_status(command: Any) -> None:
    command(lambda _: 3)
    assert cli.main(["devices"]) == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CommandError("no space left"), "rdmatx: no space left\n"),
        (FileNotFoundError(2, "No such file", "x"), "rdmatx: No such file: 'x'\n"),
    ],
)
def test_an_error_is_one_sentence_on_stderr(
    command: Any, capsys: pytest.CaptureFixture[str], error: Exception, text: str
) -> None:
    command(raising(error))
    assert cli.main(["devices"]) == 1
    captured = capsys.readouterr()
    assert captured.err == text
    assert captured.out == ""


def test_a_mistake_of_ours_asks_for_a_report(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(ZeroDivisionError("division by zero")))
    assert cli.main(["devices"]) == 1
    message = capsys.readouterr().err
    assert "ZeroDivisionError" in message
    assert "RDMATX_DEBUG=1" in message
    assert "Traceback" not in message


def test_debug_shows_the_traceback(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMATX_DEBUG", "1")
    command(raising(CommandError("no")))
    with pytest.raises(CommandError):
        cli.main(["devices"])


def test_ctrl_c_is_130(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyboardInterrupt()))
    assert cli.main(["devices"]) == 130
    assert capsys.readouterr().err == "rdmatx: interrupted\n"


def test_a_term_signal_unwinds_the_command(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []

    def execute(_: Any) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)
        return 0

    command(execute)
    assert cli.main(["devices"]) == 128 + signal.SIGTERM
    assert cleaned == [True]
    assert "SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["recv", "--count", "0"], ["send", "x"]])
def test_a_command_line_that_makes_no_sense_is_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


def test_every_command_has_help() -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as caught:
            cli.main([name, "--help"])
        assert caught.value.code == 0


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from rdmatx.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('rdmatx.cli.send', 'rdmatx.lab', 'rich'))])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert output.stdout.splitlines()[-1] == "[]"


def test_python_m_rdmatx_prints_the_version() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "rdmatx", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    name, version = output.stdout.split()
    assert name == "rdmatx"
    assert version[0].isdigit()


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rdmatx", "doctor", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)[0], process.stderr
    assert process.returncode == 1
    assert errors is not None
