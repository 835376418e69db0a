"""Positions of a step's rows, in pieces that a call may ask for."""

from collections.abc import Iterator, Mapping

from embstore.arrays import Inverse

Wanted = dict[str, Inverse]
"""By table, (n,) ascending positions."""


def pieces(
    wanted: Mapping[str, Inverse], row_bytes: Mapping[str, int], bytes_max: int
) -> Iterator[Wanted]:
    """Yield all positions in order, as many at a time as have rows of at most `bytes_max`, but
    always one.

    Parameters
    ----------
    wanted : (n,) positions by table
    row_bytes : for each table, the bytes of one row as it travels
    """
    piece: Wanted = {}
    left = bytes_max
    for name, positions in wanted.items():
        low = 0
        while low < len(positions):
            fits = left // row_bytes[name]
            if not fits and piece:
                yield piece
                piece, left = {}, bytes_max
                continue
            high = min(low + max(fits, 1), len(positions))
            piece[name] = positions[low:high]
            left -= (high - low) * row_bytes[name]
            low = high
    if piece:
        yield piece
