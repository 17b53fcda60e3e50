"""Each family in llama.cpp against transformers; what its graph cannot compute is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from llmfit_core.errors import LlmfitError, UnsupportedError
from llmfit_core.pipeline import convert, plan_conversion
from llmfit_core.plan import Recipe
from llmfit_core.readers.gguf import read_gguf
from tests.e2e.vectors import apart, by_llamacpp, by_transformers, same_vectors, some_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmfit_core.plugins import PluginRegistry

    ToGguf = Callable[..., tuple[Path, tuple[Any, ...]]]

SLOW = pytest.mark.slow(reason="a variant of a quicker case")
GATED = {"within": 3e-7, "most": 1e-5}
FAMILIES = {
    "bert": ("BertModel", "BertConfig", "wpm", {}),
    "bert-mlm": ("BertForMaskedLM", "BertConfig", "wpm", {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
    "roberta": ("RobertaModel", "RobertaConfig", "bpe-gpt-2", {}),
    "roberta-mlm": ("RobertaForMaskedLM", "RobertaConfig", "bpe-gpt-2", {"type_vocab_size": 1, "pad_token_id": 3}),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", "unigram", {"type_vocab_size": 1}),
    "camembert": ("CamembertModel", "CamembertConfig", "unigram", {}),
    "distilbert": ("DistilBertModel", "DistilBertConfig", "wpm", {"sinusoidal_pos_embds": True}),
    "distilbert-mlm": ("DistilBertForMaskedLM", "DistilBertConfig", "wpm", {}),
    "nomic": ("NomicBertModel", "NomicBertConfig", "wpm", {}),
    "nomic-linear": (
        "NomicBertModel",
        "NomicBertConfig",
        "wpm",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}},
    ),
}
SPECIALS = {f"{r}_token_id": 0 for r in ("pad", "bos", "eos", "cls", "sep")}
MODERN = SPECIALS | {"num_hidden_layers": 5, "local_attention": 16, "max_position_embeddings": 128}
FULL, SLIDING = "full_attention", "sliding_attention"
FAMILIES |= {
    "modernbert": ("ModernBertModel", "ModernBertConfig", "bpe-gpt-2", MODERN),
    "modernbert-mlm": ("ModernBertForMaskedLM", "ModernBertConfig", "bpe-gpt-2", MODERN | {"hidden_activation": "silu"}),
    "modernbert-kinds": (
        "ModernBertModel",
        "ModernBertConfig",
        "bpe-gpt-2",
        MODERN | {"local_attention": 9, "layer_types": [SLIDING, FULL, FULL, SLIDING, FULL]},
    ),
}
QUICK = ("bert-mlm", "roberta", "xlm-roberta", "distilbert", "nomic", "modernbert-kinds")


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in QUICK else SLOW) for f in FAMILIES])
def test_vectors_are_those_of_transformers(family: str, encoder: Callable[..., Path], to_gguf: ToGguf) -> None:
    cls, config, tokenizer, more = FAMILIES[family]
    model = encoder(cls, config, tokenizer, **more)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity in ("warning", "fallback", "error")] == []
    same_vectors(model, file, **(GATED if family.startswith(("nomic", "modern")) else {}))


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in ("roberta", "nomic") else SLOW) for f in FAMILIES])
def test_the_way_back(family: str, encoder: Callable[..., Path], to_gguf: ToGguf, to_hf: Callable[..., Path]) -> None:
    cls, config, tokenizer, more = FAMILIES[family]
    model = encoder(cls, config, tokenizer, **more)
    file, _ = to_gguf(model)
    back = to_hf(file, "f32")
    ids = some_ids(model, 20)
    assert np.array_equal(by_transformers(back, ids), by_transformers(model, ids))
    stated = json.loads((back / "config.json").read_text(encoding="utf-8"))
    had = json.loads((model / "config.json").read_text(encoding="utf-8"))
    same = ("max_position_embeddings", "vocab_size", "type_vocab_size", "pad_token_id", "layer_norm_eps")
    assert {k: stated[k] for k in same if k in stated} == {k: had[k] for k in same if k in stated}


def test_whole_conversion_is_proven(encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path) -> None:
    for family in ("roberta", "xlm-roberta"):
        cls, config, tokenizer, more = FAMILIES[family]
        artifact, _ = convert(encoder(cls, config, tokenizer, **more), Recipe(exporter="gguf", scheme="q8_0"), tmp_path / f"{family}.gguf", registry)
        verified = artifact.manifest["verified"]
        assert (verified["tokens"], verified["opened"], verified["reopened"]) == (True, True, True)
        assert verified["known_differences"] == 0


def test_positions_are_cut(encoder: Callable[..., Path], to_gguf: ToGguf) -> None:
    """llama.cpp counts positions from nought, RoBERTa from behind its padding token."""
    cls, config, tokenizer, more = FAMILIES["roberta-mlm"]
    file, _ = to_gguf(encoder(cls, config, tokenizer, **more))
    found = read_gguf(file)
    assert (found.tensors["position_embd.weight"].shape, found.kv["bert.context_length"].value) == ((62, 64), 62)


@pytest.mark.parametrize(
    ("cls", "config", "tokenizer"),
    [
        ("BertForSequenceClassification", "BertConfig", "wpm"),
        ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", "unigram"),
    ],
)
def test_rerankers(cls: str, config: str, tokenizer: str, encoder: Callable[..., Path], to_gguf: ToGguf) -> None:
    """A reranker's score for two texts, by llama.cpp's own endpoint; the peer leaves BERT's pooler out, and is wrong."""
    import torch
    import transformers

    model = encoder(cls, config, tokenizer, num_labels=1, type_vocab_size=1)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.code == "bound-graph"] == []
    judge = transformers.AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    tok = transformers.AutoTokenizer.from_pretrained(model)
    query, documents = "the licence", ["the copy of the work", "you may", "derivative works of it"]
    pairs = tok([query] * 3, documents, padding=True, return_tensors="pt")
    with torch.inference_mode():
        want = judge(pairs["input_ids"], attention_mask=pairs["attention_mask"]).logits[:, 0].tolist()
    assert ranked(file, query, documents) == pytest.approx(want, abs=5e-3)


def ranked(file: Path, query: str, documents: list[str]) -> list[float]:
    import urllib.request

    from llmfit_core.launch import launch
    from llmfit_core.runtime import LaunchOptions
    from llmfit_llamacpp import LLAMACPP

    with launch(LLAMACPP.plan(file, LaunchOptions(port=0, threads=2, gpu_layers=0))) as server:
        body = json.dumps({"query": query, "documents": documents}).encode()
        request = urllib.request.Request(f"{server.url}/v1/rerank", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            results = json.load(answer)["results"]
    return [r["relevance_score"] for r in sorted(results, key=lambda r: int(r["index"]))]


def test_a_reranker_of_two_kinds_of_token_is_told(encoder: Callable[..., Path], registry: PluginRegistry) -> None:
    model = encoder("BertForSequenceClassification", "BertConfig", "wpm", num_labels=1)
    planned = plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry)
    assert "first text" in next(e.message for e in planned.plan.events if e.code == "bound-graph")


def test_classes_come_back(encoder: Callable[..., Path], to_gguf: ToGguf, to_hf: Callable[..., Path]) -> None:
    names = {"0": "no", "1": "maybe", "2": "yes"}
    model = encoder("BertForSequenceClassification", "BertConfig", "wpm", id2label=names)
    file, _ = to_gguf(model)
    assert list(read_gguf(file).kv["bert.classifier.output_labels"].value) == ["no", "maybe", "yes"]
    back = to_hf(file, "f32")
    ours, theirs = load_file(back / "model.safetensors"), load_file(model / "model.safetensors")
    assert {n.removeprefix("bert.") for n in theirs} == {n.removeprefix("bert.") for n in ours}
    assert all(ours[n.removeprefix("bert.")].equal(t) for n, t in theirs.items())
    stated = json.loads((back / "config.json").read_text(encoding="utf-8"))
    assert (stated["id2label"], stated["model_type"]) == (names, "bert")


@pytest.mark.parametrize("cls", ["BertModel", "BertForSequenceClassification"])
def test_without_a_class_the_tensors_tell_a_classifier(
    cls: str, encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    model = changed(encoder(cls, "BertConfig", "wpm"), tmp_path / "bare", architectures=...)
    planned = plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry)
    assert planned.plan.model.architecture.hf_classes[0] == cls


def changed(model: Path, to: Path, tensors: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **config: Any) -> Path:
    shutil.copytree(model, to)
    stated = json.loads((to / "config.json").read_text(encoding="utf-8")) | config
    (to / "config.json").write_text(json.dumps({k: v for k, v in stated.items() if v is not ...}), encoding="utf-8")
    if tensors is not None:
        save_file(tensors(load_file(model / "model.safetensors")), to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("bert", {"max_position_embeddings": 40}, "max_position_embeddings"),
        ("bert", {"type_vocab_size": 3}, "type_vocab_size"),
        ("bert", {"num_attention_heads": 5}, "num_attention_heads"),
        ("roberta", {"pad_token_id": 900}, "position"),
        ("distilbert", {"activation": "relu"}, "activation"),
        ("nomic", {"hidden_act": "gelu"}, "hidden_act"),
        ("nomic", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("nomic", {"prenorm": True}, "prenorm"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation"),
        ("modernbert", {"layer_types": ["chunked_attention"] * 5}, "attention"),
        ("modernbert", {"mlp_bias": True}, "mlp_bias"),
        ("nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers"),
    ],
)
def test_what_the_graphs_do_not_compute_is_refused(
    family: str, config: dict[str, Any], said: str, encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path
) -> None:
    cls, config_cls, tokenizer, more = FAMILIES[family]
    model = changed(encoder(cls, config_cls, tokenizer, **more), tmp_path / "odd", **config)
    with pytest.raises(LlmfitError) as caught:
        plan_conversion(model, Recipe(exporter="gguf", scheme="f32"), registry)
    assert said in caught.value.cause
    assert caught.value.remedy


def test_more_context_than_positions_is_refused(encoder: Callable[..., Path], registry: PluginRegistry) -> None:
    for family in ("bert", "roberta"):
        cls, config, tokenizer, more = FAMILIES[family]
        with pytest.raises(UnsupportedError, match="learned position"):
            plan_conversion(
                encoder(cls, config, tokenizer, **more),
                Recipe(exporter="gguf", scheme="f32", context_length=2048),
                registry,
            )


def test_names_of_old_checkpoints(encoder: Callable[..., Path], to_gguf: ToGguf, tmp_path: Path) -> None:
    """`gamma` and `beta`, the buffers of older versions, and a prefix with a head beside it."""
    import torch

    model = encoder("BertModel", "BertConfig", "wpm")

    def renamed(tensors: dict[str, Any]) -> dict[str, Any]:
        swap = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        out = {}
        for name, tensor in tensors.items():
            for a, b in swap.items():
                name = name.replace(a, b)
            out[f"bert.{name}"] = tensor
        return out | {
            "bert.embeddings.position_ids": torch.arange(66)[None],
            "cls.predictions.bias": torch.zeros(640),
            "cls.predictions.decoder.weight": tensors["embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.transform.LayerNorm.gamma": torch.ones(64),
            "cls.seq_relationship.weight": torch.zeros(2, 64),
        }

    old = changed(model, tmp_path / "old", renamed, architectures=["BertForPreTraining"])
    file, _ = to_gguf(old, name="old")
    plain, _ = to_gguf(model, name="plain")
    a, b = (read_gguf(f).tensors for f in (file, plain))
    assert sorted(a) == sorted(b)
    ids = some_ids(model, 9)
    assert apart(by_llamacpp(file, ids), by_llamacpp(plain, ids)) < 1e-12


def test_a_stray_tensor_is_an_error(encoder: Callable[..., Path], registry: PluginRegistry, tmp_path: Path) -> None:
    import torch

    model = encoder("BertModel", "BertConfig", "wpm")
    odd = changed(model, tmp_path / "odd", lambda t: t | {"encoder.layer.0.crossattention.self.query.weight": torch.zeros(64, 64)})
    with pytest.raises(LlmfitError, match="crossattention"):
        plan_conversion(odd, Recipe(exporter="gguf", scheme="f32"), registry)


def test_modernberts_older_config_makes_the_same_file(encoder: Callable[..., Path], to_gguf: ToGguf, tmp_path: Path) -> None:
    cls, config, tokenizer, more = FAMILIES["modernbert"]
    model = encoder(cls, config, tokenizer, **more)
    older = changed(
        model, tmp_path / "older", rope_parameters=..., layer_types=..., global_attn_every_n_layers=3,
        global_rope_theta=160000.0, local_rope_theta=10000.0,
    )  # fmt: skip
    a, b = (read_gguf(to_gguf(m, name=n)[0]).kv for m, n in ((older, "a"), (model, "b")))
    own = "llmfit.config"
    assert {k: str(v.value) for k, v in a.items() if k != own} == {k: str(v.value) for k, v in b.items() if k != own}


def test_nomics_own_config_is_understood(encoder: Callable[..., Path], to_gguf: ToGguf, tmp_path: Path) -> None:
    """The keys of the model's own code: a GPT-2 config with those of flash-attention."""
    cls, config, tokenizer, more = FAMILIES["nomic"]
    model = encoder(cls, config, tokenizer, **more)
    old = {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "n_positions": 8192, "max_trained_positions": 2048,
        "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "activation_function": "swiglu", "prenorm": False,
        "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "use_rms_norm": False,
        "parallel_block": False, "scale_attn_weights": True, "type_vocab_size": 2, "vocab_size": 640, "use_flash_attn": True,
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert",
    }  # fmt: skip
    folder = tmp_path / "own"
    shutil.copytree(model, folder)
    (folder / "config.json").write_text(json.dumps(old), encoding="utf-8")
    file, events = to_gguf(folder, name="own")
    assert [e for e in events if e.severity in ("warning", "fallback")] == []
    plain, _ = to_gguf(model, name="plain")
    a, b = ({k: v.value for k, v in read_gguf(f).kv.items() if k.startswith("nomic")} for f in (file, plain))
    assert a == b | {"nomic-bert.context_length": 2048}
    ids = some_ids(model, 30)
    assert apart(by_llamacpp(file, ids), by_transformers(model, ids)) < 1e-6
