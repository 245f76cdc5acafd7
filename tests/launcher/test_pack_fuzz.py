"""The C++ reader of packs: whatever is in the file, it ends in a result or an error, and touches no byte outside."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
from pathlib import Path

import pytest

from aot_build.pack import ENTRY, HEADER, encode_pack

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc_launcher"
CUBINS = [bytes([number]) * (7 * number + 1) for number in range(1, 6)]
FILES = 600
# What a damaged number may be.
EXTREMES = [0, 1, 15, 16, 40, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 16, 2**64 - 1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader alone, with the compiler's checks of memory and arithmetic."""
    out = tmp_path_factory.mktemp("packs") / "read_packs"
    sources = [Path(__file__).parent / "read_packs.cpp", *(CSRC / "core" / f"{name}.cpp" for name in ("pack", "sha256"))]  # fmt: skip
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["g++", "-std=c++17", "-O1", "-g", *checks, f"-I{CSRC}", f"-I{CSRC / 'core'}"]
    subprocess.run([*command, *map(str, sources), "-ldl", "-o", str(out)], check=True)
    return out


def changed(data: bytes, generator: random.Random) -> bytes:
    """Numbers of header and index replaced, bytes anywhere, a cut or an appendix."""
    made = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        index = HEADER.size + ENTRY.size * len(CUBINS)
        kind = generator.randrange(4)
        if kind == 0:
            struct.pack_into(
                "<Q", made, 8 * generator.randrange(index // 8), generator.choice(EXTREMES)
            )
        elif kind == 1:
            struct.pack_into(
                "<I",
                made,
                4 * generator.randrange(index // 4),
                generator.choice(EXTREMES) & 0xFFFFFFFF,
            )
        else:
            made[generator.randrange(len(made))] = generator.randrange(256)
    if generator.random() < 0.2:
        return bytes(made[: generator.randrange(len(made))])
    return bytes(made) + b"\0" * generator.choice([0, 0, 0, 1, 48])


def test_whatever_is_in_the_file(program: Path, tmp_path: Path):
    _, data = encode_pack("sm90", {hashlib.sha256(cubin).hexdigest(): cubin for cubin in CUBINS})
    generator = random.Random(7)
    paths = [tmp_path / str(number) for number in range(FILES)]
    paths[0].write_bytes(data)
    for path in paths[1:]:
        path.write_bytes(changed(data, generator))
    done = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert len(said) == FILES
    assert said[0] == "ok"
    reasons = {line.split(": ")[1].split(" (")[0] for line in said if ": " in line}
    # Damage of every kind is refused, what lies behind the check of the index included.
    for part in (
        "truncated",
        "not a pack",
        "lies outside the file",
        "was changed",
        "longer than the file",
    ):
        assert any(part in line for line in said), part
    assert len(reasons) > 4
