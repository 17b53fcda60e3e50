"""A bounded reader of SentencePiece's `tokenizer.model`, a protobuf message, without protobuf.

Field numbers are those of sentencepiece_model.proto: `ModelProto.pieces` 1, `trainer_spec` 2,
`normalizer_spec` 3. Only what decides ids is read; every length is checked against the bytes at hand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from llmfit_core.errors import SourceError

UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Piece types; GGUF took the numbers over as token types."""
_MAX_PIECES = 16_000_000


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """What a `tokenizer.model` says.

    Attributes:
        kind: `UNIGRAM`, `BPE`, `WORD` or `CHAR`.
        texts: Pieces by id.
        scores: By id.
        types: By id.
        byte_fallback: Whether unknown characters become byte pieces.
        whitespace_as_suffix: Whether a word's space stands behind it.
        add_dummy_prefix: Whether text gets a leading space.
        remove_extra_whitespaces: Whether runs of spaces shrink and ends are trimmed.
        escape_whitespaces: Whether a space is written U+2581.
        charsmap: The precompiled normalization map; empty for identity.
        normalizer: Its name (`identity`, `nmt_nfkc`).
        unk, bos, eos, pad: Ids, -1 where there is none.
    """

    kind: int
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    byte_fallback: bool
    whitespace_as_suffix: bool
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    charsmap: bytes
    normalizer: str
    unk: int
    bos: int
    eos: int
    pad: int


def parse_model(data: bytes, name: str = "tokenizer.model") -> SentencePieceModel:
    """Parse the bytes of a `tokenizer.model`; raises `SourceError` on anything else."""
    texts: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, object] = {}
    normalizer: dict[int, object] = {}
    if data[:40].startswith(b"version https://git-lfs"):
        raise _bad(name, "a git-lfs pointer")
    try:
        for field, value in _fields(data):
            if field == 1 and isinstance(value, bytes):
                text, score, kind = "", 0.0, NORMAL
                for inner, item in _fields(value):
                    if inner == 1 and isinstance(item, bytes):
                        text = item.decode("utf-8")
                    elif inner == 2 and isinstance(item, float):
                        score = item
                    elif inner == 3 and isinstance(item, int):
                        kind = item
                texts.append(text)
                scores.append(score)
                types.append(kind)
            elif field == 2 and isinstance(value, bytes):
                trainer.update(_fields(value))
            elif field == 3 and isinstance(value, bytes):
                normalizer.update(_fields(value))
    except (ValueError, struct.error) as error:
        raise _bad(name, f"no SentencePiece model ({error})") from None
    if not texts or len(texts) > _MAX_PIECES:
        raise _bad(name, f"a SentencePiece model of {len(texts)} pieces")
    bad = next((i for i, k in enumerate(types) if not NORMAL <= k <= BYTE), None)
    if bad is not None:
        raise _bad(name, f"piece {bad} has the unknown type {types[bad]}")
    bad = next((i for i, s in enumerate(scores) if not math.isfinite(s)), None)
    if bad is not None:
        raise _bad(name, f"piece {bad} has the score {scores[bad]}")
    charsmap, rule = normalizer.get(2, b""), normalizer.get(1, b"")
    return SentencePieceModel(
        kind=_number(trainer, 3, UNIGRAM),
        texts=tuple(texts),
        scores=tuple(scores),
        types=tuple(types),
        byte_fallback=bool(_number(trainer, 35, 0)),
        whitespace_as_suffix=bool(_number(trainer, 24, 0)),
        add_dummy_prefix=bool(_number(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_number(normalizer, 4, 1)),
        escape_whitespaces=bool(_number(normalizer, 5, 1)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        normalizer=rule.decode("utf-8", "replace") if isinstance(rule, bytes) else "",
        unk=_signed(_number(trainer, 40, 0)),
        bos=_signed(_number(trainer, 41, 1)),
        eos=_signed(_number(trainer, 42, 2)),
        pad=_signed(_number(trainer, 43, -1)),
    )


def _bad(name: str, what: str) -> SourceError:
    return SourceError("bad-sentencepiece", f"{name}: {what}", "Get the file anew.")


def _number(fields: dict[int, object], key: int, default: int) -> int:
    value = fields.get(key, default)
    return value if isinstance(value, int) else default


def _signed(value: int) -> int:
    """Protobuf writes a negative int32 as a 64-bit two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Field numbers and values of a message: varints, float32 and byte strings; 64-bit values are skipped."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if field == 0:
            raise ValueError(f"field number 0 at byte {at}")
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value
        elif wire == 2:
            size, at = _varint(data, at)
            if size > end - at:
                raise ValueError(f"{size} bytes announced at byte {at}, {end - at} left")
            yield field, data[at : at + size]
            at += size
        elif wire == 5:
            yield field, struct.unpack_from("<f", data, at)[0]
            at += 4
        elif wire == 1 and at + 8 <= end:
            at += 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("the file ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number longer than 10 bytes at byte {at}")
