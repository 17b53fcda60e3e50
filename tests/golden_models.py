"""Tiny models from transformers' config classes, made once and kept: the golden cases and variations of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

HERE = Path(__file__).parent / "golden"

FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", "spm"),
    "mistral": ("MistralForCausalLM", "MistralConfig", "spm"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", "spm"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", "bpe:qwen2"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", "bpe:qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", "bpe:qwen2"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", "bpe:qwen2"),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", "spm"),
}
"""Family: model class, config class, tokenizer (of `tests/golden/tok`)."""

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 128},
    "qwen2moe": {**EXPERTS, "shared_expert_intermediate_size": 192},
    "qwen3": {"head_dim": 32},
    "qwen3moe": {**EXPERTS, "head_dim": 32, "norm_topk_prob": True},
    "phi3": {"original_max_position_embeddings": 512},
}
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def gold(case: str) -> dict[str, Any]:
    """What llama.cpp made of a golden case."""
    found: dict[str, Any] = json.loads((HERE / "json" / f"{case}.json").read_text(encoding="utf-8"))
    return found


class GoldenModels:
    """A cache of model folders. Several processes may share it: a folder appears whole or not at all."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / _version()

    def golden(self, case: str) -> Path:
        """The folder of a golden case."""
        return self._made(case, lambda maker: _build(maker, case))

    def variation(self, family: str, changes: Mapping[str, Any]) -> Path:
        """A small model of a family with `changes` to its config; the same changes give the same model."""
        config = {**SMALL, **DEFAULTS.get(family, {}), **changes}
        name = f"{family}-{hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]}"

        def build(maker: ModuleType) -> None:
            cls, config_cls, tokenizer = FAMILIES[family]
            maker.case(name, cls, config_cls, tokenizer, config, base={})
            maker.build(name)

        return self._made(name, build)

    def _made(self, name: str, build: Any) -> Path:
        place = self.folder / name
        if not place.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".making-") as work:
                maker = _maker()
                maker.ROOT = work
                with warnings.catch_warnings():
                    # make_tiny.py, kept as it was when the golden data was made, leaves files to the collector.
                    warnings.simplefilter("ignore", ResourceWarning)
                    build(maker)
                try:
                    os.replace(Path(work, "models", name), place)
                except OSError:
                    if not place.is_dir():  # another process was not faster: something is wrong
                        raise
        return place

    def copy(self, source: Path, to: Path, **config: Any) -> Path:
        """A copy of a model folder with other config values; `...` removes a key."""
        shutil.copytree(source, to)
        path = to / "config.json"
        values = json.loads(path.read_text(encoding="utf-8")) | config
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}), encoding="utf-8")
        return to


def _build(maker: ModuleType, case: str) -> None:
    (maker.build_variant if case in maker.VARIANTS else maker.build)(case)


@cache
def _version() -> str:
    from importlib.metadata import version

    parts = [hashlib.sha256((HERE / "make_tiny.py").read_bytes()).hexdigest(), version("torch"), version("transformers")]
    parts.append(json.dumps([FAMILIES, SMALL, {k: dict(v) for k, v in DEFAULTS.items()}], sort_keys=True))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@cache
def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llmfit_make_tiny", HERE / "make_tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return module
