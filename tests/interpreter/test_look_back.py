"""The look-back of find_runs over every mix of words that a tile may meet, and over words that come late."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from tests.interpreter.harness import SPECS, Interpreter

OWN, UP_TO = 1, 2
LARGEST = 2**30 - 1


def word(flag: int, count: int, last: int) -> int:
    bits = flag << 62 | count << 31 | last
    return bits - (1 << 64) if flag == UP_TO else bits


def look_back(
    words: list[int], late: dict[int, int], count: int, last: int, window: int
) -> tuple[list[int], list[int]]:
    """(what the tile after ``words`` finds, all words then); ``late`` ones replace theirs one after the other."""
    sys.path.insert(0, str(SPECS))
    from tests.interpreter.look_back_kernel import look_back_kernel

    status = torch.tensor([*words, 0])
    before = torch.full((2,), -7, dtype=torch.int32)

    def publish() -> None:
        for tile, value in late.items():
            time.sleep(0.02)
            status[tile] = value

    publisher = threading.Thread(target=publish)
    publisher.start()
    look_back_kernel[(1,)](before, status, len(words), count, last, WINDOW=window)
    publisher.join()
    return before.tolist(), status.tolist()


def check(
    interpreter: Interpreter,
    flags: list[int],
    window: int,
    late: dict[int, int] | None = None,
    size: int = 3,
) -> None:
    """Tile i starts ``size`` runs, the last of them at place 10 i + 1; every third tile starts none."""
    counts = [0 if tile % 3 == 2 else size for tile in range(len(flags) + 1)]
    lasts = [0 if tile % 3 == 2 else 10 * tile + 1 for tile in range(len(flags) + 1)]

    def word_of(tile: int, flag: int) -> int:
        if flag == OWN:
            return word(OWN, counts[tile], lasts[tile])
        return word(flag, sum(counts[: tile + 1]), max(lasts[: tile + 1])) if flag else 0

    words = [word_of(tile, flag) for tile, flag in enumerate(flags)]
    late_words = {tile: word_of(tile, flag) for tile, flag in (late or {}).items()}
    tile = len(flags)
    found, left = interpreter._pool.submit(
        look_back, words, late_words, counts[tile], lasts[tile], window
    ).result()
    assert found == [sum(counts[:tile]), max(lasts[:tile], default=0)]
    assert left[tile] == word(UP_TO, sum(counts), max(lasts))
    assert left[:tile] == [late_words.get(tile, word) for tile, word in enumerate(words)]


@pytest.mark.parametrize("window", [4, 32])
@pytest.mark.parametrize("tiles", [0, 1, 3, 4, 5, 31, 32, 33, 70])
def test_sums_of_single_tiles(triton_interpreter: Interpreter, tiles: int, window: int) -> None:
    check(triton_interpreter, ([UP_TO] + [OWN] * tiles)[:tiles], window)


@pytest.mark.parametrize("nearest", [0, 1, 30, 36, 37, 38, 39])
def test_stops_at_the_nearest_sum_of_all(triton_interpreter: Interpreter, nearest: int) -> None:
    # What lies before it is not read: tiles that have not published there would stop the program.
    check(triton_interpreter, [0] * nearest + [UP_TO] + [OWN] * (39 - nearest), 32)


def test_waits_for_words_that_come_late(triton_interpreter: Interpreter) -> None:
    flags = [UP_TO] + [OWN] * 9
    flags[3] = flags[8] = flags[9] = 0
    check(triton_interpreter, flags, 4, late={8: OWN, 3: OWN, 9: OWN})
    check(triton_interpreter, flags, 32, late={9: OWN, 3: UP_TO, 8: UP_TO})


def test_sums_of_thirty_bits(triton_interpreter: Interpreter) -> None:
    check(triton_interpreter, [UP_TO, OWN, OWN], 4, size=LARGEST // 3)
