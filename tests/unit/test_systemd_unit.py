"""The service's unit file."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "systemd/brevisfs@.service"
# Each of these gives a service a mount namespace of its own, see systemd.exec(5).
NAMESPACED = re.compile(
    r"^(Private|Protect|ReadOnly|ReadWrite|Inaccessible|Exec|NoExec|Bind|Temporary|Root|Mount|Extension|"
    r"Dynamic|Log.*Namespace|Restrict.*Namespaces)\w*(?<!ExecStart)(?<!ExecStop)=",
    re.MULTILINE,
)


def test_it_says_when_it_is_ready_and_is_stopped_by_umount() -> None:
    text = UNIT.read_text()
    assert "\nType=notify\n" in text
    assert re.search(r"^ExecStart=.*brevisfs mount --foreground ", text, re.MULTILINE)
    assert re.search(r"^ExecStop=.*brevisfs umount ", text, re.MULTILINE)


def test_its_mount_is_everybodys() -> None:
    assert not NAMESPACED.search(UNIT.read_text())
    assert NAMESPACED.search("PrivateTmp=yes")
    assert NAMESPACED.search("ProtectSystem=full")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_to_complain_about() -> None:
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
