"""Byte-level BPE itself: the printable byte alphabet, and merging one word."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]

BYTE_TO_CHAR: dict[int, str] = {b: chr(b) for b in _PRINTABLE} | {
    b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in set(_PRINTABLE))
}
"""GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and on."""

CHAR_TO_BYTE: dict[str, int] = {c: b for b, c in BYTE_TO_CHAR.items()}


def to_text(token: str) -> str:
    """What a byte-level token spells; bytes that are no UTF-8 become U+FFFD, letters outside the alphabet stay."""
    out = bytearray()
    for char in token:
        byte = CHAR_TO_BYTE.get(char)
        out += char.encode("utf-8", "replace") if byte is None else bytes([byte])
    return out.decode("utf-8", "replace")


def merge_ranks(merges: Iterable[str]) -> dict[tuple[str, str], int]:
    """Ranks by pair, from `"left right"` texts."""
    ranks: dict[tuple[str, str], int] = {}
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        ranks[(left, right)] = rank
    return ranks


def merge_word(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """BPE of one word: the leftmost pair of the lowest rank joins until none is left."""
    parts = list(word)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get((parts[i], parts[i + 1]), len(ranks)))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def unreachable(tokens: Iterable[str], merges: Sequence[str], limit: int = 3) -> list[str]:
    """Up to `limit` of those tokens that merging their own letters does not give: where `ignore_merges` matters."""
    ranks = merge_ranks(merges)
    joined = {left + right for left, right in ranks}
    found: list[str] = []
    for token in tokens:
        if len(token) > 1 and (token not in joined or merge_word(token, ranks) != [token]):
            found.append(token)
            if len(found) == limit:
                break
    return found


def merges_numbers(merges: Iterable[str]) -> bool:
    """Whether some merge gives a token with two digits, so that the cutting of numbers can show."""
    for merge in merges:
        text = to_text(merge.replace(" ", ""))
        if sum(unicodedata.category(c)[0] == "N" for c in text) > 1:
            return True
    return False


def mixes_numbers(merges: Iterable[str]) -> bool:
    """Whether some merge joins a letter of the byte alphabet that is a digit to one that is not."""
    for merge in merges:
        numeric = [c.isnumeric() for c in merge if c != " "]
        if any(numeric) and not all(numeric):
            return True
    return False
