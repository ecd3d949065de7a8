"""Random operations on a mount and on a plain folder: no difference, whatever is packed meanwhile.

BREVISFS_MODEL_STEPS and BREVISFS_MODEL_SEED make it longer and another one.
"""

import os
import random
from pathlib import Path

import pytest

from brevisfs.fs import RecompressionOptions, umount
from tests.mount.conftest import Mounter
from tests.twins import Twins

STEPS = int(os.environ.get("BREVISFS_MODEL_STEPS", "400"))
SEED = int(os.environ.get("BREVISFS_MODEL_SEED", "0"))
# Some files are packed in the middle of it all, most when they are waited for: a worker takes as long as
# many steps do.
PACKING = RecompressionOptions(settle=0.5, profile="fast", max_load=1000)

pytestmark = pytest.mark.timeout(max(300, STEPS))


def test_no_difference(mount: Mounter, store: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    mounted = mount(recompression=PACKING)
    chance = random.Random(SEED)
    twins = Twins(mounted.path, plain, chance)
    packed = unpacked = 0
    try:
        for _ in range(STEPS):
            twins.step()
            twins.check()
            match chance.randrange(200):
                case 0 | 1 | 2 | 3:
                    mounted.drain()
                    twins.check()
                    twins.check_content()
                case 4:
                    twins.close()
                    mounted.settle()
                    packed += mounted.packing()["packed"]
                    umount(mounted.path)
                    mounted = mount(recompression=PACKING)
                    twins.check()
                    twins.check_content()
        twins.close()
        mounted.drain()
        twins.check()
        twins.check_content()
    except BaseException:
        print(f"seed {SEED}, {len(twins.log)} steps; the last of them:", *twins.log[-30:], sep="\n  ")
        raise
    finally:
        twins.close()
    packed += mounted.packing()["packed"]
    unpacked += mounted.log.read_text().count("was unpacked")
    assert packed > STEPS / 100
    assert unpacked > STEPS / 500
    assert os.listdir(store / ".brevisfs/tmp") == os.listdir(store / ".brevisfs/lost+found") == []
