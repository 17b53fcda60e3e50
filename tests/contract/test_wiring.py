"""The wiring of each table, proven on the model: a scale moved along it changes nothing, and a forgotten sink does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llmfit_core.errors import UnsupportedError
from llmfit_core.prepare import prepare
from llmfit_core.wiring import Block, ScaleGroup, scale_groups
from tests.expert_forms import as_one, load, one_by_one, save, turned_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from llmfit_core.model import Model
    from llmfit_core.plugins import PluginRegistry
    from tests.golden_models import GoldenModels

torch = pytest.importorskip("torch", reason="the judge is transformers")
pytest.importorskip("transformers", reason="the judge is transformers")

MHA = {"num_key_value_heads": 4}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", {}, ""),
    "llama-mha-biases": ("llama", {**MHA, "attention_bias": True, "mlp_bias": True}, ""),
    "mistral-head-dim": ("mistral", {"head_dim": 64}, ""),
    "mixtral": ("mixtral", {"num_hidden_layers": 1}, ""),
    "mixtral-new-names": ("mixtral", {"num_hidden_layers": 1}, "one by one"),
    "mixtral-as-one": ("mixtral", {"num_hidden_layers": 1}, "as one"),
    "qwen2": ("qwen2", {}, ""),
    "qwen2-mha": ("qwen2", MHA, ""),
    "qwen2moe": ("qwen2moe", {"num_hidden_layers": 1}, ""),
    "qwen2moe-as-one": ("qwen2moe", {"num_hidden_layers": 1}, "as one"),
    "qwen2moe-turned": ("qwen2moe", {"num_hidden_layers": 1}, "turned"),
    "qwen2moe-with-dense-layer": ("qwen2moe", {"mlp_only_layers": [0], **MHA}, ""),
    "qwen3": ("qwen3", {"head_dim": 64}, ""),
    "qwen3-mha-biases": ("qwen3", {**MHA, "attention_bias": True}, ""),
    "qwen3moe": ("qwen3moe", {"num_hidden_layers": 1}, ""),
    "qwen3moe-as-one": ("qwen3moe", {"num_hidden_layers": 1}, "as one"),
    "phi3": ("phi3", {}, ""),
    "phi3-mha": ("phi3", MHA, ""),
}
FORMS: Mapping[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "": dict,
    "one by one": one_by_one,
    "as one": as_one,
    "turned": lambda tensors: as_one(tensors, turned=True),
}


class Subject:
    """A model whose stored tensors can be changed and whose logits can be taken."""

    def __init__(self, source: Path, form: str, registry: PluginRegistry, work: Path) -> None:
        tensors = {n: t.float() for n, t in load(source).items()}
        self.tensors = FORMS[form](tensors)
        # The forms that transformers cannot load, as it can.
        self.loadable = {"turned": turned_back, "one by one": as_one}.get(form, dict)
        self.work = work
        self.folder = save(source, self.tensors, work / "stored")
        self.model: Model = prepare(self.folder, registry).model
        self.plain = self.logits(self.tensors)

    def logits(self, tensors: dict[str, Tensor]) -> Tensor:
        """In transformers: float32, eager."""
        from transformers import AutoModelForCausalLM

        folder = save(self.folder, self.loadable(tensors), self.work / "changed")
        net, said = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not said["missing_keys"]
        assert not said["unexpected_keys"]
        with torch.inference_mode():
            return net.eval()(torch.arange(12, 76)[None]).logits[0]

    def distance(self, scaled: Iterable[tuple[ScaleGroup, np.ndarray]], left_out: Block | None = None) -> float:
        """Largest change of a logit after these scales moved, relative to the logits' spread."""
        tensors = {n: t.clone() for n, t in self.tensors.items()}
        for group, scale in scaled:
            for block in group.sources:
                multiply(tensors[block.name], block, 1 / scale)
            for block in group.sinks:
                if block is not left_out:
                    multiply(tensors[block.name], block, scale)
        return float((self.logits(tensors) - self.plain).abs().max() / self.plain.std())


def multiply(stored: Tensor, block: Block, scale: np.ndarray) -> None:
    """Scale a block of a stored tensor in place."""
    view = stored[tuple(slice(*at) for at in block.index)]
    shape = [1] * view.ndim
    shape[block.axis] = -1
    view.add_(block.shift).mul_(torch.from_numpy(scale).float().reshape(shape)).sub_(block.shift)


@pytest.fixture(params=sorted(CASES))
def subject(
    request: pytest.FixtureRequest, golden_models: GoldenModels, registry: PluginRegistry, tmp_path: Path
) -> Subject:
    family, changes, form = CASES[request.param]
    return Subject(golden_models.variation(family, changes), form, registry, tmp_path)


def scales(groups: Iterable[ScaleGroup]) -> list[tuple[ScaleGroup, np.ndarray]]:
    """A random positive scale for each group, between a half and two."""
    random = np.random.default_rng(7)
    return [(g, np.exp2(random.uniform(-1, 1, g.channels))) for g in groups]


def test_scales_move_unseen_along_every_group_and_show_when_a_sink_is_forgotten(subject: Subject) -> None:
    groups = scale_groups(subject.model)
    assert subject.distance(scales(groups)) < 1e-4, "all groups at once change the model"
    for group, scale in scales(g for g in groups if g.layer == 0):
        for sink in group.sinks:
            told = subject.distance([(group, scale)], left_out=sink)
            assert told > 1e-3, f"{sink.name} {sink.index} makes no difference to {group.link.source}"


def test_every_matrix_of_a_layer_has_a_place_in_some_group(subject: Subject) -> None:
    """Each block matrix reads channels of a norm, of v or of up; only v to o under grouped heads has no pair."""
    groups = scale_groups(subject.model)
    read = {(b.name, b.index) for g in groups for b in g.sinks}
    names = {name for name, _ in read}
    grouped = subject.model.hparams["attention.head_count"] != subject.model.hparams["attention.head_count_kv"]
    for ref in subject.model.refs:
        if ref.layer is None or len(ref.shape) < 2:
            continue
        assert (ref.name in names) != (grouped and ref.role == "attn_output"), ref.name
        # A fused tensor is read in all its rows: its parts' blocks cover it.
        covered = sum(np.prod([b - a for a, b in index]) for name, index in read if name == ref.name)
        assert covered == (np.prod(ref.shape) if ref.name in names else 0), ref.name


def test_no_wiring_is_a_refusal(golden_models: GoldenModels, registry: PluginRegistry) -> None:
    from dataclasses import replace

    model = prepare(golden_models.variation("llama", {}), registry).model
    silent = replace(model, architecture=replace(model.architecture, wiring=()))
    with pytest.raises(UnsupportedError) as caught:
        scale_groups(silent)
    assert caught.value.code == "no-wiring"


def test_wiring_that_does_not_describe_the_checkpoint_is_a_refusal(
    golden_models: GoldenModels, registry: PluginRegistry
) -> None:
    from dataclasses import replace

    from llmfit_core.roles import Link, Role

    model = prepare(golden_models.variation("llama", {}), registry).model
    wrong = (Link(source=Role.ATTN_V, sinks=(Role.ATTN_OUT,)),)  # grouped heads: v has fewer rows than o columns
    with pytest.raises(UnsupportedError) as caught:
        scale_groups(replace(model, architecture=replace(model.architecture, wiring=wrong)))
    assert caught.value.code == "wiring-disagrees"
    odd = (replace(wrong[0], when="moon_is_full"),)
    with pytest.raises(UnsupportedError) as caught:
        scale_groups(replace(model, architecture=replace(model.architecture, wiring=odd)))
    assert caught.value.code == "unknown-condition"
