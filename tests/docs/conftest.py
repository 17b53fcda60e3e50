"""A place where the pages' commands run: a small model, a GGUF file of it, and the plugin of the tutorial."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, LAYERS, HEADS, KV_HEADS, MLP = 256, 2, 4, 2, 512


@dataclass
class Place:
    """A folder to run commands in."""

    folder: Path

    @property
    def site(self) -> Path:
        """What is "installed" for this folder alone."""
        return self.folder / ".site"

    @contextlib.contextmanager
    def entered(self, **env: str) -> Iterator[None]:
        """Be in the folder, with what is installed for it, and with no settings of somebody else's."""
        from llmfit_core.cli.context import registry

        before, stopped = Path.cwd(), signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as patch:
            for name in [n for n in os.environ if n.startswith("LLMFIT_")]:
                patch.delenv(name)
            for name, value in {"LLMFIT_CONFIG_DIR": str(self.folder / ".config"), **env}.items():
                patch.setenv(name, value)
            for name in [n for n in sys.modules if (self.site / f"{n}.py").exists()]:
                del sys.modules[name]
            patch.setattr(sys, "path", [str(self.site), *sys.path])
            patch.setattr(sys, "dont_write_bytecode", True)
            importlib.invalidate_caches()
            os.chdir(self.folder)
            registry.cache_clear()
            try:
                yield
            finally:
                os.chdir(before)
                registry.cache_clear()
                signal.signal(signal.SIGTERM, stopped)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `llmfit`, in this process, which saves its start; in one of its own where variables are set.

        Libraries read theirs when they are imported (`HF_HUB_OFFLINE`), which another test may have done.
        """
        if env:
            command = [sys.executable, "-m", "llmfit_core", *arguments]
            with self.entered(**env):
                return subprocess.run(command, capture_output=True, text=True, check=False)
        from llmfit_core.cli.guarded import run

        out, err = io.StringIO(), io.StringIO()
        with self.entered(**env), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def execute(self, program: str, name: str) -> None:
        """Run a Python program of a page."""
        with self.entered():
            exec(compile(program, name, "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with `model/`, `model.gguf`, `quantized/` and, under the tutorial's name, `SmolLM2-135M-Instruct/`."""
    found = Place(tmp_path_factory.mktemp("docs"))
    write_model(found.folder / "model")
    write_quantized(found.folder / "model", found.folder / "quantized")
    os.symlink("model", found.folder / "SmolLM2-135M-Instruct")
    done = found.run("convert", "model", "--to", "gguf:q8_0", "-o", "model.gguf", "--no-verify")
    assert done.returncode == 0, done.stderr
    return found


def write_quantized(model: Path, folder: Path) -> None:
    """The model with the linears of its layers as whole numbers of compressed-tensors, a scale a row."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((model / name).read_bytes())
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = load_file(model / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        scale = (np.abs(tensors[name]).max(axis=1, keepdims=True) / 127).astype(np.float16)
        tensors[f"{name}_scale"] = scale
        tensors[name] = np.clip(np.round(tensors[name] / scale.astype(np.float32)), -128, 127).astype(np.int8)
    save_file(tensors, folder / "model.safetensors")


def write_model(folder: Path) -> None:
    """A Llama of 1.4 million random weights, whose rows hold K-quants."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "th", "the", "<|im_start|>", "<|im_end|>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "_name_or_path": "model",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": MLP,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": len(vocab),
        "eos_token_id": vocab["<|im_end|>"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": template}), encoding="utf-8"
    )
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {"model.embed_tokens": (len(vocab), WIDTH), "model.norm": (WIDTH,), "lm_head": (len(vocab), WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"model.layers.{i}.self_attn.{x}_proj": (WIDTH, WIDTH) for x in "qo"}
        shapes |= {f"model.layers.{i}.self_attn.{x}_proj": (kv, WIDTH) for x in "kv"}
        shapes |= {f"model.layers.{i}.mlp.{x}_proj": (MLP, WIDTH) for x in ("gate", "up")}
        shapes |= {f"model.layers.{i}.{x}_layernorm": (WIDTH,) for x in ("input", "post_attention")}
        shapes[f"model.layers.{i}.mlp.down_proj"] = (WIDTH, MLP)
    random = np.random.default_rng(11)
    tensors = {
        f"{n}.weight": random.normal(1.0 if len(s) == 1 else 0.0, 0.1, s).astype(np.float32) for n, s in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
