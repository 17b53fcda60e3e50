"""llama.cpp's own tokenizer, by the C API that xllamacpp's extension exports: the judge of what we write."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


class _Opaque(ctypes.Structure):
    """llama_model_params, larger than it is in any version: passed on as given, never looked into."""

    _fields_ = (("bytes", ctypes.c_byte * 256),)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    import xllamacpp.xllamacpp as extension

    lib = ctypes.CDLL(extension.__file__)
    lib.llama_model_default_params.restype = _Opaque
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Opaque]
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    lib.llama_model_free.argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool
    ]  # fmt: skip
    lib.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.llama_vocab_is_eog.restype = ctypes.c_bool
    for name in ("bos", "eos", "eot", "pad", "sep", "mask"):
        getattr(lib, f"llama_vocab_{name}").argtypes = [ctypes.c_void_p]
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    lib.quiet = callback(lambda level, text, data: None)
    lib.llama_log_set(lib.quiet, None)
    lib.llama_backend_init()
    return lib


class LlamaCpp:
    """A loaded tiny model whose vocabulary is to be judged."""

    def __init__(self, path: Path) -> None:
        self.lib = library()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = self.lib.llama_model_get_vocab(self.model)

    def ids(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        out = (ctypes.c_int32 * room)()
        n = self.lib.llama_tokenize(self.vocab, data, len(data), out, room, add_special, parse_special)
        assert n >= 0
        return list(out[:n])

    def special(self, name: str) -> int:
        return int(getattr(self.lib, f"llama_vocab_{name}")(self.vocab))

    def is_eog(self, token: int) -> bool:
        return bool(self.lib.llama_vocab_is_eog(self.vocab, token))

    def close(self) -> None:
        self.lib.llama_model_free(self.model)


def write_tiny(path: Path, keys: Mapping[str, Any], n_vocab: int, name: str = "tiny") -> Path:
    """A one-layer Llama with a given tokenizer: `keys` as `gguf_keys` gives them."""
    import gguf
    import numpy as np

    width, heads, ffn = 32, 2, 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    add_keys(writer, keys)
    shapes = {"token_embd": (n_vocab, width), "output_norm": (width,)}
    for part, shape in {
        "attn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
        "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn),
    }.items():  # fmt: skip
        shapes[f"blk.0.{part}"] = shape
    for tensor, shape in shapes.items():
        writer.add_tensor(f"{tensor}.weight", np.ones(shape, np.float32 if len(shape) == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_keys(writer: Any, keys: Mapping[str, Any]) -> None:
    import gguf

    kinds = {
        "string": "STRING",
        "bool": "BOOL",
        "uint32": "UINT32",
        "float32": "FLOAT32",
        "int32": "INT32",
        "uint8": "UINT8",
    }
    for key, kv in keys.items():
        if kv.type.startswith("array["):
            element = gguf.GGUFValueType[kinds[kv.type[6:-1]]]
            writer.add_key_value(key, list(kv.value), gguf.GGUFValueType.ARRAY, sub_type=element)
        else:
            writer.add_key_value(key, kv.value, gguf.GGUFValueType[kinds[kv.type]])


def ids_of(path: Path, texts: Iterable[str], **flags: bool) -> list[list[int]]:
    judge = LlamaCpp(path)
    try:
        return [judge.ids(t, **flags) for t in texts]
    finally:
        judge.close()
