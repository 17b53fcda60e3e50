"""Token ids as llama.cpp gives them, without loading any weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmfit_core.errors import LaunchError, SourceError
from llmfit_core.readers.gguf import read_gguf
from llmfit_llamacpp.capabilities import has_pretokenizer
from llmfit_llamacpp.diagnose import pretokenizer_missing
from llmfit_llamacpp.engine import find_engine
from llmfit_llamacpp.generation import require_text
from llmfit_llamacpp.gguf_writing import vocabulary_file
from llmfit_llamacpp.header import find_model
from llmfit_llamacpp.session import Client, session
from llmfit_llamacpp.settings import Settings

_BY_ARCHITECTURE = frozenset({"nomic-bert-moe", "jina-bert-v3"})
"""llama.cpp changes the attributes of some tokens for models of these names."""


def tokenize(path: Path, texts: Sequence[str], add_special: bool) -> list[list[int]]:
    """The ids of each text, special tokens in it recognised as such.

    The vocabulary is loaded by llama.cpp from a copy of the file's tokenizer keys, next to a model of one layer: that
    takes as long for 100 GB as for 100 MB, and says nothing about the tensors of the file.

    Args:
        path: The model, or a GGUF file that holds a vocabulary only.
        texts: What to tokenize.
        add_special: Add what the file says belongs before and after a text (BOS, EOS).

    Raises:
        SourceError: As `read_gguf`; `missing-key`, `bad-vocabulary` and others where llama.cpp refuses the vocabulary.
        UnsupportedError: `pretokenizer-missing`.
        LaunchError: `runtime-missing`, `runtime-died`, `bad-text`.
    """
    for text in texts:
        require_text(text)
    path = find_model(path)
    file = read_gguf(path)
    for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in file.kv:
            raise SourceError("missing-key", f"{path} lacks the key {key}", "Convert the original anew.")
    tokens = file.kv["tokenizer.ggml.tokens"]
    if tokens.type != "array[string]" or not len(tokens.value):
        raise SourceError("bad-key", f"{path}: tokenizer.ggml.tokens holds no tokens", "Convert the original anew.")
    engine = find_engine()
    pre = file.kv.get("tokenizer.ggml.pre")
    if pre is not None and file.kv["tokenizer.ggml.model"].value == "gpt2" and not has_pretokenizer(pre.value):
        raise pretokenizer_missing(str(path), pre.value)
    with tempfile.TemporaryDirectory(prefix="llmfit-") as folder:
        model = path
        if file.kv["general.architecture"].value not in _BY_ARCHITECTURE:
            model = Path(folder) / path.name
            vocabulary_file(model, file.kv)
        size = (256 << 20) + 16 * model.stat().st_size
        settings = Settings(model=model.absolute(), context=64, host="", port=0)
        settings = replace(settings, exact=True, chat=False, warmup=False, gpu_layers=0, threads=1)
        with session(engine, settings, size) as client:
            return [_ids(client, text, add_special) for text in texts]


def _ids(client: Client, text: str, add_special: bool) -> list[int]:
    answer = client.ask("/tokenize", {"content": text, "add_special": add_special, "parse_special": True})
    ids = json.loads(answer).get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise LaunchError("runtime-answer", "llama.cpp gave no token ids", "Install another version of llama.cpp.")
    return ids
