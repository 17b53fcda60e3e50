"""Models that give vectors and no logits: what a runtime computes for each token, against what transformers computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmfit_core.runtime import LaunchOptions
from llmfit_core.testing import parity, record, with_transformers
from llmfit_core.testing.outcome import CheckFailed, NotRun, require

if TYPE_CHECKING:
    from llmfit_core.export import Exporter
    from llmfit_core.testing.bench import Bench

FARTHEST = 5e-3
"""Largest difference of a component, in terms of the vectors' root mean square: what tables of GELU in half precision cost."""
APART = 1e-6
"""One minus the smallest cosine of two vectors that are the same."""


def compare(bench: Bench, case: str, exporter: Exporter) -> record.Parity:
    """Convert in float32, embed a short text and one beyond every window, compare each token's vector and their mean.

    Raises:
        NotRun: No exact scheme, no runtime that embeds, no reference.
        CheckFailed: They do not compute the same.
    """
    import numpy as np

    scheme = parity.exact_scheme(exporter)
    if scheme is None:
        raise NotRun(f"{exporter.name} has no scheme that holds float32")
    built, model = bench.built(case), bench.model(case)
    if not with_transformers.knows(built.config):
        raise NotRun(f"transformers has no {bench.architecture.hf_classes[0]}")
    path, plan = bench.artifact(case, exporter, scheme)
    found = parity.scorer(bench, exporter, plan, of="embed")
    if found.runtime.embed is None:
        raise NotRun(f"{found.runtime.name} does not embed")
    context = model.integer("context_length") or parity.LONGEST
    longest = min(context, max(parity.reach(model) + parity.POSITIONS, 56))
    farthest, cosine, count = 0.0, 1.0, 0
    random = np.random.default_rng(bench.sample.seed)
    padding = built.config.get("pad_token_id")  # some classes give it no position
    usual = [i for i in range(parity.ordinary(bench)) if i != padding]
    for length in (3, longest):
        ids = [int(i) for i in random.choice(usual, length)]
        ours = built.network.vectors(ids)
        require(np.isfinite(ours).all(), "the reference computes NaNs")
        for pooling, want in (("none", ours), ("mean", ours.mean(0, keepdims=True))):
            answer = found.runtime.embed(path, ids, LaunchOptions(threads=2, pooling=pooling))
            have = np.array(answer, dtype=np.float64)
            require(have.shape == want.shape, f"{found.runtime.name} gave {have.shape}, the reference {want.shape}")
            norms = np.linalg.norm(have, axis=-1) * np.linalg.norm(want, axis=-1)
            cosine = min(cosine, float(((have * want).sum(-1) / norms).min()))
            farthest = max(farthest, float(np.abs(have - want).max() / np.sqrt((want**2).mean())))
        count += length
    figure = record.Parity(
        architecture=bench.architecture.name,
        plugin=bench.registry.architecture(bench.architecture.name).plugin.distribution,
        hf_class=str(model.checkpoint.config.architectures[0] if model.checkpoint.config.architectures else ""),
        variation=case,
        kl=None,
        max_kl=None,
        max_difference=farthest,
        of="vectors",
        top1=cosine,
        positions=count,
        longest=longest,
        exact_context=plan.exact_context,
        graph=plan.graph,
        runtime=found.runtime.name,
        runtime_version=found.version,
        reference=with_transformers.version(),
    )
    record.add(figure)
    if farthest >= FARTHEST or 1 - cosine >= APART:
        raise CheckFailed(
            f"{found.runtime.name}'s graph {plan.graph} computes other vectors than {figure.reference}: one minus the smallest "
            f"cosine is {1 - cosine:.1e}, the largest difference {farthest:.1e} of their root mean square"
        )
    return figure
