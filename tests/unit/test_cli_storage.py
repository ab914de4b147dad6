"""Where received files go: inside the folder, whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdmatx.cli.errors import CommandError
from rdmatx.cli.transfer import storage
from rdmatx.cli.transfer.protocol import FileEntry
from rdmatx.cli.transfer.storage import Folder, IncomingFile, check_name


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "in" / "here")
    yield made
    made.close()


@pytest.fixture(params=["unnamed", "part"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with unnamed files (O_TMPFILE), and one without."""
    if request.param == "part":
        real_open = os.open

        def refusing_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return real_open(path, flags, *rest, **options)

        monkeypatch.setattr(storage.os, "open", refusing_open)
    return str(request.param)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    with pytest.raises(CommandError, match="no file name"):
        check_name(name)


def test_names_of_any_other_kind_are_fine() -> None:
    for name in ("model.safetensors", "…", "...", "a b", "-rf", "\udcff"):
        check_name(name)


@pytest.mark.usefixtures("file_system")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_appears_when_it_is_whole(folder: Folder, overwrite: bool) -> None:
    incoming = IncomingFile(folder, "a.bin", overwrite=overwrite)
    incoming.write(3, memoryview(b"def"))
    incoming.write(0, memoryview(b"abc"))
    assert not (folder.path / "a.bin").exists()
    incoming.commit()
    incoming.discard()
    assert (folder.path / "a.bin").read_bytes() == b"abcdef"
    assert os.listdir(folder.path) == ["a.bin"]


@pytest.mark.usefixtures("file_system")
def test_a_file_that_is_discarded_leaves_nothing(folder: Folder) -> None:
    incoming = IncomingFile(folder, "a.bin", overwrite=False)
    incoming.write(0, memoryview(b"abc"))
    incoming.discard()
    incoming.discard()
    assert os.listdir(folder.path) == []


@pytest.mark.usefixtures("file_system")
def test_a_file_that_came_meanwhile_is_not_replaced(folder: Folder) -> None:
    incoming = IncomingFile(folder, "a.bin", overwrite=False)
    (folder.path / "a.bin").write_text("theirs")
    with pytest.raises(FileExistsError):
        incoming.commit()
    incoming.discard()
    assert (folder.path / "a.bin").read_text() == "theirs"
    assert os.listdir(folder.path) == ["a.bin"]


@pytest.mark.usefixtures("file_system")
def test_overwrite_replaces(folder: Folder) -> None:
    (folder.path / "a.bin").write_text("old")
    incoming = IncomingFile(folder, "a.bin", overwrite=True)
    incoming.write(0, memoryview(b"new"))
    incoming.commit()
    assert (folder.path / "a.bin").read_text() == "new"
    assert os.listdir(folder.path) == ["a.bin"]


@pytest.mark.parametrize("file_system", ["part"], indirect=True)
def test_a_leftover_part_is_replaced_and_a_busy_one_is_not(
    folder: Folder, file_system: str
) -> None:
    (folder.path / "a.bin.part").write_text("of a receiver that was killed, and longer")
    incoming = IncomingFile(folder, "a.bin", overwrite=False)
    with pytest.raises(CommandError, match="another receiver is writing"):
        IncomingFile(folder, "a.bin", overwrite=False)
    incoming.write(0, memoryview(b"x"))
    incoming.commit()
    assert (folder.path / "a.bin").read_text() == "x"


@pytest.mark.parametrize("file_system", ["part"], indirect=True)
def test_a_part_that_is_a_link_is_not_followed(
    folder: Folder, file_system: str, tmp_path: Path
) -> None:
    (folder.path / "a.bin.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        IncomingFile(folder, "a.bin", overwrite=False)
    assert not (tmp_path / "elsewhere").exists()


def test_all_is_checked_before_anything_is_sent(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "old").write_text("x")
    with pytest.raises(CommandError, match=r"old exists already .* --overwrite"):
        folder.check([FileEntry("new", 1), FileEntry("old", 1)], overwrite=False)
    folder.check([FileEntry("new", 1), FileEntry("old", 1)], overwrite=True)
    with pytest.raises(CommandError, match="same name"):
        folder.check([FileEntry("a", 1), FileEntry("a", 1)], overwrite=True)
    with pytest.raises(CommandError, match="no file name"):
        folder.check([FileEntry("../a", 1)], overwrite=True)
    monkeypatch.setattr(folder, "free_bytes", lambda: 1_000_000)
    with pytest.raises(CommandError, match=r"no space for 1\.5 MB .* 1\.0 MB are free"):
        folder.check([FileEntry("a", 750_000), FileEntry("b", 750_000)], overwrite=False)


def test_a_dangling_link_counts_as_there(folder: Folder) -> None:
    (folder.path / "a").symlink_to("nowhere")
    with pytest.raises(CommandError, match="exists already"):
        folder.check([FileEntry("a", 1)], overwrite=False)


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CommandError, match="cannot receive into"):
        Folder(tmp_path / "file")
    with pytest.raises(CommandError, match="cannot receive into"):
        Folder(tmp_path / "file" / "below")
