"""What the kit leaves open of Gemma: the words of refusals, contradictions, windows left out, folded factors, the model that sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from llmfit_core.errors import LlmfitError, UnsupportedError
from tests.e2e.scoring import by_llamacpp, by_transformers, divergence, ids_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXACT = 5e-6
"""float32 and llama.cpp's table of GELU values, which is half precision: 3e-7 to 2e-6."""
SLOW = pytest.mark.slow(reason="the kind of case is covered by a quicker one")
F, S = "full_attention", "sliding_attention"
DEFAULT = {"rope_type": "default"}


def ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {F: DEFAULT | full, S: DEFAULT | sliding}}


def layers(*kinds: str) -> dict[str, Any]:
    return {"layer_types": list(kinds), "num_hidden_layers": len(kinds)}


REFUSED: list[Any] = [
    pytest.param("gemma", {"hidden_act": "silu"}, "tanh approximation", id="gemma-silu"),
    pytest.param("gemma2", {"tie_word_embeddings": False}, "its head differs", id="gemma2-own-head"),
    pytest.param("gemma3", {"attention_bias": True}, "bias on attn_output", id="gemma3-bias"),
    pytest.param("gemma3", {**ropes({}, {"rope_type": "linear", "factor": 2.0})}, "plain rope", id="gemma3-sliding-linear"),
]


def apart(model: Path, file: Path, positions: Sequence[int] = range(33, 57)) -> float:
    ids = ids_of(model)
    return float(divergence(by_transformers(model, ids, positions), by_llamacpp(file, ids, positions)).mean())


@SLOW
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("gemma2", {"num_hidden_layers": 46, "hidden_size": 96, "query_pre_attn_scalar": 24}, id="gemma2-27b"),
        pytest.param("gemma2", {"num_hidden_layers": 46, "hidden_size": 96}, id="gemma2-27b-scalar"),
        pytest.param("gemma3", {"num_hidden_layers": 62, "hidden_size": 96}, id="gemma3-27b-scalar"),
    ],
)
def test_as_many_layers_as_the_27b_model_has(
    family: str, changes: dict[str, Any], variation: Any, to_gguf: Any, to_hf: Any, same_model: Any
) -> None:
    """So many layers tell the graph that it is the 27b model, whose queries it scales otherwise."""
    model = variation(family, changes)
    file, events = to_gguf(model)
    assert [e.code for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"] == []
    assert apart(model, file) < EXACT
    same_model(to_hf(file), model)


@pytest.mark.parametrize(("family", "changes", "reason"), REFUSED)
def test_refused_with_the_reason(family: str, changes: dict[str, Any], reason: str, variation: Any, to_gguf: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_gguf(variation(family, changes))
    assert caught.value.code == "graph-cannot"
    assert reason in caught.value.cause


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma3", {"sliding_window": None}, "sliding_window"),
        ("gemma2", {"sliding_window": 0}, "sliding_window"),
        ("gemma2", {"layer_types": [S]}, "layer_types in config.json has 1 entries for 2 layers"),
        ("gemma3", {"layer_types": [S, S, F, "chunked_attention"]}, "layer_types in config.json names chunked_attention"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma3", {"rope_theta": 5.0}, "contradicts itself: rope_theta"),
        ("gemma3", {"rope_parameters": {"chunked_attention": {"rope_theta": 5.0}}}, "chunked_attention"),
        ("gemma3", {"sliding_window_pattern": 0, "layer_types": ...}, "sliding_window_pattern"),
    ],
)
def test_what_a_config_cannot_say(
    family: str, changes: dict[str, Any], key: str, variation: Any, to_gguf: Any, with_config: Any
) -> None:
    with pytest.raises(LlmfitError) as caught:
        to_gguf(with_config(variation(family), **changes))
    assert key in caught.value.cause


@pytest.mark.parametrize("family", [pytest.param("gemma2", marks=SLOW), "gemma3"])
def test_no_window_where_no_layer_wants_one(
    family: str, variation: Any, to_gguf: Any, to_hf: Any, same_model: Any, with_config: Any
) -> None:
    """transformers itself wants a number there, and does not use it."""
    model = variation(family, layers(F, F))
    file, _ = to_gguf(with_config(model, sliding_window=None))
    assert apart(model, file) < EXACT
    same_model(to_hf(file), model)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({S: {"rope_theta": 77.0}}, {"rope.freq_base": 1e6, "rope.freq_base_swa": 77.0}),
        ({F: {"rope_theta": 77.0}}, {"rope.freq_base": 77.0, "rope.freq_base_swa": 1e4}),
        ({F: {"rope_theta": 77.0}, S: None}, {"rope.freq_base": 77.0, "rope.freq_base_swa": 1e4}),
    ],
)
def test_kinds_left_out_have_the_bases_of_the_class(
    changes: dict[str, Any], expected: dict[str, float], variation: Any, with_config: Any, registry: Any
) -> None:
    from llmfit_core.prepare import prepare

    folder = with_config(variation("gemma3"), rope_parameters=changes)
    hparams = prepare(folder, registry).model.hparams
    assert {k: hparams[k] for k in expected} == expected
    import transformers

    ours = transformers.AutoConfig.from_pretrained(folder).rope_parameters
    assert [ours[F]["rope_theta"], ours[S]["rope_theta"]] == list(expected.values())


def test_a_folded_factor_is_told(variation: Any, to_gguf: Any) -> None:
    model = variation("gemma2", {"query_pre_attn_scalar": 56})
    _, events = to_gguf(model)
    told = [e for e in events if e.code == "scale-folded"]
    assert [(e.severity, e.subject) for e in told] == [("info", "attn_q")]
    assert "0.7559289" in told[0].message  # the root of 32 / 56
    _, quiet = to_gguf(variation("gemma2"), name="quiet")
    assert not [e for e in quiet if e.code == "scale-folded"]


def test_the_text_model_of_a_model_that_sees(variation: Any, to_gguf: Any, tmp_path: Path) -> None:
    """Gemma3ForConditionalGeneration, saved by transformers and with the hub's older names: the file of its text model."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    from tests.e2e.test_golden import tensors_of

    text = variation("gemma3", layers(S, F))
    net = transformers.AutoModelForCausalLM.from_pretrained(text, dtype=torch.bfloat16)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    config = transformers.Gemma3Config(
        text_config=net.config.to_dict(), vision_config={"model_type": "siglip_vision_model", **vision}, mm_tokens_per_image=4
    )
    whole = transformers.Gemma3ForConditionalGeneration(config).to(torch.bfloat16)
    whole.model.language_model.load_state_dict(net.model.state_dict())
    wanted, _ = to_gguf(text, "bf16", name="text")
    for number in range(2):
        folder = tmp_path / f"whole-{number}"
        whole.save_pretrained(folder)
        if number:
            file = folder / "model.safetensors"
            old = {
                n.replace("model.language_model.", "language_model.model.").replace("model.vision_tower", "vision_tower"): t
                for n, t in load_file(file).items()
            }
            save_file(old, file, {"format": "pt"})
        for name in ("tokenizer.model", "tokenizer_config.json"):
            if (text / name).exists():
                (folder / name).write_bytes((text / name).read_bytes())
        file, events = to_gguf(folder, "bf16", name=f"whole-{number}")
        assert {"text-part", "part-left-out"} <= {e.code for e in events}
        assert [e.code for e in events if e.severity != "info" and e.subject != "tokenizer_config.json"] == []
        assert tensors_of(file) == tensors_of(wanted)
