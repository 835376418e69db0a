"""Positions of a step's rows, in pieces that fit into one call."""

from collections.abc import Iterator, Mapping

from embstore.arrays import Inverse

Wanted = dict[str, Inverse]
"""By table, ascending positions, (n,)."""


def pieces(
    wanted: Mapping[str, Inverse], row_bytes: Mapping[str, int], bytes_max: int
) -> Iterator[Wanted]:
    """Yield all positions in order, in pieces whose rows have at most `bytes_max` bytes. A piece
    has at least one position.

    Parameters
    ----------
    wanted : (n,) positions by table
    row_bytes : by table, the bytes of one row in a message
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
