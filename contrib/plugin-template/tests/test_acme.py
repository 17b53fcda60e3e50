"""The plugin is found, its model is converted, and what llama.cpp computes from the file is what Acme computes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from llmfit_core import LaunchOptions, PluginError, Recipe, UnsupportedError, convert, plan_conversion


def test_the_plugin_is_installed(registry):
    (record,) = [r for r in registry.records() if r.distribution == "llmfit-acme"]
    assert (record.status, record.reason) == ("loaded", "")
    assert record.provides["architectures"] == ("acme",)


def test_llama_cpp_computes_the_same(model, reference, registry, tmp_path):
    folder, tensors = model
    artifact, events = convert(folder, Recipe(exporter="gguf", scheme="f32"), tmp_path / "acme.gguf", registry)
    assert not [e for e in events if e.severity in ("warning", "fallback")]
    try:
        runtime = registry.runtime("llamacpp").value
    except PluginError as error:
        pytest.skip(f"no runtime to compare with: {error.cause}")
    if not runtime.probe().available:
        pytest.skip("llama.cpp is not installed")
    ids = list(b"tiny models are proven by numbers")[:24]
    ours = reference(tensors, ids)
    theirs = np.array(runtime.score(artifact.paths[0], ids, LaunchOptions(context=64)), dtype=np.float64)
    divergence = (np.exp(ours) * (ours - theirs[: len(ids)])).sum(-1)
    assert divergence.mean() < 1e-6


def test_there_and_back_again(model, registry, tmp_path):
    folder, tensors = model
    convert(folder, Recipe(exporter="gguf", scheme="f32"), tmp_path / "acme.gguf", registry, verify=False)
    plan = plan_conversion(tmp_path / "acme.gguf", Recipe(exporter="hf", scheme="f32"), registry).plan
    convert(tmp_path / "acme.gguf", Recipe(exporter="hf", scheme="f32"), tmp_path / "back", registry, verify=False)
    back = {k: v for f in (tmp_path / "back").glob("*.safetensors") for k, v in load_file(f).items()}
    # The file says `llama`, which llmfit-llama knows under its own tensor names: the values are what has to agree.
    assert sorted(v.tobytes() for v in back.values()) == sorted(v.tobytes() for v in tensors.values())
    assert plan.decoders == ("gguf",)


def test_what_the_table_asserts_is_refused(model, registry):
    folder, _ = model
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"acme_clip_qkv": 8.0}), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="acme_clip_qkv"):
        plan_conversion(folder, Recipe(exporter="gguf", scheme="f32"), registry)
