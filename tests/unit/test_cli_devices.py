"""`rdmatx devices` and `rdmatx doctor`: which device would be used, and why none is there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.multiprocess.cli_processes import run


def test_the_software_hca_is_listed_and_chosen() -> None:
    done = run("devices", "--provider", "soft", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    devices = [json.loads(line) for line in done.stdout.splitlines()]
    assert {device["provider"] for device in devices} == {"soft"}
    (chosen,) = [device for device in devices if device["chosen"]]
    assert chosen["state"] == "ACTIVE"
    assert chosen["ports"][0]["gids"]
    assert chosen["reason"]


def test_people_see_the_choice_and_the_reason() -> None:
    done = run("devices", "--provider", "soft")
    assert done.returncode == 0
    assert "GID 0: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("* ")
    assert "(soft) would be used: " in done.stdout.splitlines()[-1]


def test_a_machine_without_libibverbs_is_told_so(tmp_path: Path) -> None:
    environment = {"RDMATX_IBVERBS_LIB": str(tmp_path / "libibverbs.so.1")}
    script = f"import os; os.environ.update({environment!r})"
    done = run("devices", "--provider", "system", "--json", patch=script)
    assert (done.returncode, done.stdout) == (1, "")
    assert "libibverbs" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("devices", "--json", patch=script)
    assert done.returncode == 0
    assert "no RDMA device of the system serves: " in done.stderr
    assert {json.loads(line)["provider"] for line in done.stdout.splitlines()} == {"soft"}


def test_a_device_that_is_not_there_is_an_error() -> None:
    done = run("devices", "--device", "mlx5_77", "--provider", "soft")
    assert done.returncode == 1
    assert "mlx5_77" in done.stderr


def test_doctor_says_what_can_be_used() -> None:
    done = run("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["usable"] is True
    assert report["device"]
    assert report["provider"] in ("system", "soft")
    assert report["reason"]
    for check in report["checks"]:
        assert check["verdict"] in ("fine", "hint", "problem")
        assert bool(check["remedy"]) == (check["verdict"] != "fine"), check


def test_doctor_prints_remedies_for_people() -> None:
    done = run("doctor")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("rdmatx would use ")
    assert all(len(line) <= 100 for line in done.stdout.splitlines()[:-1])
