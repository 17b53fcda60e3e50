"""The f32 file in llama.cpp against the model in transformers, position by position, over what configs may say.

Exact means: mean KL under 3e-6 over 24 positions (the noise of float32 is 3e-7). A case that llama.cpp's graph does not
compute has to be refused, or told as a bound inside which it is exact. The configs of Llama,
Mistral, Mixtral and Qwen are in the `tests/test_kit.py` of their plugins; here is what needs more than the kit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import LlmfitError, UnsupportedError
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of
from tests.expert_forms import as_one, load, one_by_one, save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llmfit_core.events import Event
    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

    ToGguf = Callable[..., tuple[Path, tuple[Event, ...]]]

EXACT = 3e-6
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one; together they take minutes")


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def yarn(**more: Any) -> dict[str, Any]:
    return rope("yarn", **{"factor": 4.0, "original_max_position_embeddings": 128, **more})


def longrope(original: int, pairs: int, **more: Any) -> dict[str, Any]:
    short = [1 + 0.05 * i for i in range(pairs)]
    return rope(
        "longrope",
        original_max_position_embeddings=original,
        short_factor=short,
        long_factor=[1 + 0.4 * i for i in range(pairs)],
        **more,
    )


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

RIGHT: list[Any] = [
    pytest.param("phi3", {"num_key_value_heads": 4, "tie_word_embeddings": True, "num_hidden_layers": 3}, id="phi3-tied"),
    pytest.param("phi3", {"num_key_value_heads": 1}, id="phi3-one-kv-head", marks=SLOW),
    pytest.param("phi3", rope("default", partial_rotary_factor=0.75), id="phi3-partial"),
]

REFUSED: list[Any] = [
    pytest.param("qwen2", {"hidden_act": "relu"}, "hidden_act", id="qwen2-relu"),
    pytest.param("phi3", {"hidden_act": "gelu"}, "hidden_act", id="phi3-gelu"),
    pytest.param("phi3", {"head_dim": 64}, "head_dim", id="phi3-wide-heads"),
    pytest.param("qwen3moe", yarn(truncate=False), "truncate", id="qwen3moe-yarn-untruncated"),
    pytest.param("qwen3", longrope(256, 16), "longrope", id="qwen3-longrope"),
    pytest.param("qwen3", {"attention_bias": True}, "attn_output", id="qwen3-output-bias"),
    pytest.param("qwen2moe", {"norm_topk_prob": True}, "norm_topk_prob", id="qwen2moe-normalised"),
    pytest.param("qwen3moe", {"norm_topk_prob": False}, "norm_topk_prob", id="qwen3moe-not-normalised"),
    pytest.param("qwen2moe", {"mlp_only_layers": [0]}, "mlp_only_layers", id="qwen2moe-dense-layer"),
    pytest.param("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step", id="qwen3moe-every-other-layer"),
]

WINDOWS: list[Any] = [
    pytest.param("mistral", {"sliding_window": 16}, id="mistral"),
    pytest.param("mixtral", {"sliding_window": 16}, id="mixtral", marks=SLOW),
    pytest.param("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, id="qwen2"),
    pytest.param("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, id="qwen3", marks=SLOW),
    pytest.param("qwen2moe", {"use_sliding_window": True, "sliding_window": 16}, id="qwen2moe", marks=SLOW),
    pytest.param("qwen3moe", {"use_sliding_window": True, "sliding_window": 16}, id="qwen3moe"),
    pytest.param("phi3", {"sliding_window": 16}, id="phi3", marks=SLOW),
]


def mean_divergence(
    model: Path, file: Path, positions: Sequence[int] = range(33, 57), *, context: int = 256, reference: Path | None = None
) -> float:
    ids = ids_of(model)
    wanted = by_transformers(reference or model, ids, positions)
    return float(divergence(wanted, by_llamacpp(file, ids, positions, context=context)).mean())


@pytest.mark.parametrize(("family", "changes"), RIGHT)
def test_exact(family: str, changes: dict[str, Any], golden_models: GoldenModels, to_gguf: ToGguf) -> None:
    model = golden_models.variation(family, changes)
    file, events = to_gguf(model)
    assert not [e for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"]
    assert mean_divergence(model, file) < EXACT


@pytest.mark.parametrize(("family", "changes", "reason"), REFUSED)
def test_refused_with_the_reason(
    family: str, changes: dict[str, Any], reason: str, golden_models: GoldenModels, to_gguf: ToGguf, tmp_path: Path
) -> None:
    model = golden_models.variation(family, changes)
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(model)
    assert caught.value.code == "graph-cannot"
    assert reason in caught.value.cause
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize(("family", "changes"), WINDOWS)
def test_a_window_bounds_what_is_exact(
    family: str, changes: dict[str, Any], golden_models: GoldenModels, to_gguf: ToGguf
) -> None:
    model = golden_models.variation(family, changes)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"] == ["bound-sliding-window"]
    assert mean_divergence(model, file, range(4, 17)) < EXACT, "up to the window"
    assert mean_divergence(model, file, range(33, 57)) > 0.1, "beyond it the bound is there for a reason"


@pytest.mark.parametrize(
    ("family", "pairs", "more"),
    [
        pytest.param("phi3", 16, {}, id="phi3"),
        pytest.param("phi3", 12, {"partial_rotary_factor": 0.75}, id="phi3-partial", marks=SLOW),
        pytest.param("llama", 16, {"attention_factor": 1.5, "factor": 3.0}, id="llama-own-factor", marks=SLOW),
    ],
)
def test_longrope_on_both_sides(
    family: str, pairs: int, more: dict[str, Any], golden_models: GoldenModels, to_gguf: ToGguf
) -> None:
    """llama.cpp chooses the factors by the launched context, transformers by the text's length."""
    changes = longrope(256, pairs, **more)
    if family == "phi3":
        changes["original_max_position_embeddings"] = 256
    model = golden_models.variation(family, changes)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity == "bound" and e.subject != "tokenizer_config.json"] == ["bound-longrope"]
    assert mean_divergence(model, file, range(33, 57), context=256) < EXACT, "short side"
    assert mean_divergence(model, file, range(33, 57), context=512) > 0.01, "launched with more, short texts differ"
    ids = (ids_of(model) * 6)[:264]
    wanted = by_transformers(model, ids, (257, 260, 264))
    assert divergence(wanted, by_llamacpp(file, ids, (257, 260, 264), context=512)).mean() < EXACT, "long side"


def test_early_names_of_longrope(golden_models: GoldenModels, to_gguf: ToGguf, with_config: Callable[..., Path]) -> None:
    """Phi-3's first revisions called it "su", then "yarn"; transformers takes both for longrope."""
    model = golden_models.variation("phi3", {**longrope(256, 16), "original_max_position_embeddings": 256})
    plain, _ = to_gguf(model, name="plain")
    values = longrope(256, 16)["rope_parameters"]
    for name in ("su", "yarn"):
        scaling = {"type": name, "short_factor": values["short_factor"], "long_factor": values["long_factor"]}
        old = with_config(model, rope_parameters=..., rope_theta=10000.0, rope_scaling=scaling)
        file, _ = to_gguf(old, name=name)
        assert _without_own_keys(file) == _without_own_keys(plain)


def _without_own_keys(path: Path) -> tuple[dict[str, object], dict[str, object]]:
    from llmfit_core.readers.gguf import read_gguf

    file = read_gguf(path)
    keys = {
        k: (list(v.value) if not isinstance(v.value, str | int | float | bool) else v.value)
        for k, v in file.kv.items()
        if not k.startswith("llmfit.")
    }
    return keys, {n: (t.ggml_type, t.shape) for n, t in file.tensors.items()}


@pytest.mark.parametrize("family", ["mixtral", "qwen2moe", pytest.param("qwen3moe", marks=SLOW)])
def test_experts_in_every_form_make_the_same_file(
    family: str, golden_models: GoldenModels, to_gguf: ToGguf, tmp_path: Path
) -> None:
    # Widths under which no matrix is square, and one where the fused one is: H = 2 I.
    for width in (96, 64):
        key = "intermediate_size" if family == "mixtral" else "moe_intermediate_size"
        model = golden_models.variation(family, {key: width})
        tensors = load(model)
        published, _ = to_gguf(model, name=f"published-{width}")
        for form, made in (
            ("new-names", one_by_one(tensors)),
            ("one-tensor", as_one(tensors)),
            ("turned", as_one(tensors, turned=True)),
        ):
            folder = save(model, made, tmp_path / f"{form}-{width}")
            file, _ = to_gguf(folder, name=f"{form}-{width}")
            assert file.read_bytes() == published.read_bytes(), (form, width)
    assert mean_divergence(model, published) < EXACT


@pytest.mark.parametrize("used", [0, 5])
def test_impossible_mixtures(
    used: int, golden_models: GoldenModels, to_gguf: ToGguf, with_config: Callable[..., Path]
) -> None:
    """llama.cpp aborts on these; the reason is told before the work."""
    with pytest.raises(LlmfitError) as caught:
        to_gguf(with_config(golden_models.variation("mixtral", {}), num_experts_per_tok=used))
    assert "num_experts_per_tok" in caught.value.cause


def test_more_than_llamacpp_holds(golden_models: GoldenModels, registry: PluginRegistry) -> None:
    """Its arrays have fixed lengths, and longer models abort it."""
    from dataclasses import replace

    from llmfit_core.prepare import prepare
    from llmfit_gguf.graphs import choose_graph

    model = prepare(golden_models.variation("mixtral", {}), registry).model
    for more in ({"block_count": 513}, {"expert_count": 1025}):
        with pytest.raises(UnsupportedError) as caught:
            choose_graph(replace(model, hparams={**model.hparams, **more}))
        assert "more than the" in caught.value.cause


def test_noise_is_far_below_the_limit(golden_models: GoldenModels, to_gguf: ToGguf) -> None:
    """The judge tells a small fault: one channel of one norm, off by a twentieth."""
    model = golden_models.variation("llama", {})
    tensors = load(model)
    file, _ = to_gguf(model)
    assert abs(mean_divergence(model, file)) < 1e-6
    tensors["model.layers.1.input_layernorm.weight"][5] *= 1.05
    changed, _ = to_gguf(save(model, tensors, file.parent / "changed"), name="changed")
    assert mean_divergence(model, changed) > EXACT
