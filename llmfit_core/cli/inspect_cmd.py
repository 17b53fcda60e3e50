"""`llmfit inspect`: what is this?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from llmfit_core.cli.context import registry
from llmfit_core.cli.convert_cmd import Json, Pre, Source
from llmfit_core.cli.results import print_json

if TYPE_CHECKING:
    from llmfit_core.prepare import Prepared


def inspect(source: Source, as_json: Json = False, pre: Pre = None) -> None:
    """Tell what a model is: architecture, tensors by role, config, tokenizer, template, risks."""
    from llmfit_core.prepare import prepare

    found = prepare(source, registry(), pre=pre)
    report = inspection(found)
    if as_json:
        print_json({"inspection": report})
    else:
        _print(report)


def inspection(found: Prepared) -> dict[str, object]:
    """The documented JSON of an inspection."""
    model = found.model
    vocab = model.vocab
    checkpoint = model.checkpoint
    roles: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    for ref in model.refs:
        roles[ref.role] = roles.get(ref.role, 0) + 1
        dtypes[ref.dtype] = dtypes.get(ref.dtype, 0) + 1
    tokenizer: dict[str, object] | None = None
    if vocab is not None:
        tokenizer = {
            "model": vocab.model,
            "pre": vocab.pre,
            "tokens": len(vocab.tokens),
            "merges": len(vocab.merges),
            "specials": {k: {"id": i, "text": vocab.tokens[i]} for k, i in vocab.specials.items()},
            "stops": list(vocab.stops),
            "add_bos": vocab.add_bos,
            "add_eos": vocab.add_eos,
            "chat_template": vocab.chat_template is not None,
            "chat_templates": sorted(vocab.chat_templates),
        }
    events = [*model.events, *(vocab.events if vocab is not None else ())]
    return {
        "source": checkpoint.label,
        "format": "gguf" if checkpoint.gguf is not None else "hf",
        "repo": checkpoint.repo,
        "revision": checkpoint.revision,
        "name": model.name,
        "architecture": model.architecture.name,
        "class": model.architecture.hf_classes[0],
        "evidence": model.ledger.evidence,
        "plugin": model.plugin,
        "decoders": list(found.decoders),
        "graphs": [{"format": g.format, "name": g.name, "engine": g.engine} for g in model.architecture.graphs],
        "hparams": dict(model.hparams),
        "rope": asdict(model.rope),
        "tensors": len(model.refs),
        "dtypes": dtypes,
        "roles": roles,
        "waived": dict(model.ledger.waived),
        "left_out": list(checkpoint.config.left_out),
        "config": {
            "consumed": dict(model.ledger.consumed),
            "asserted": list(model.ledger.asserted),
            "ignored": list(model.ledger.ignored),
            "unknown": list(model.ledger.unknown),
        },
        "tokenizer": tokenizer,
        "events": [e.as_json() for e in events],
    }


def _print(report: dict[str, object]) -> None:
    for key in ("source", "format", "repo", "revision", "name", "class", "evidence", "plugin"):
        if report[key]:
            print(f"{key:<13} {report[key]}")
    hparams = report["hparams"]
    assert isinstance(hparams, dict)
    print("hparams")
    for name, value in hparams.items():
        print(f"  {name:<40} {value}")
    print(f"rope          {report['rope']}")
    print(f"tensors       {report['tensors']}  {report['dtypes']}")
    roles = report["roles"]
    assert isinstance(roles, dict)
    for role, count in roles.items():
        print(f"  {role:<40} {count}")
    for part in ("waived", "left_out"):
        if report[part]:
            print(f"{part:<13} {report[part]}")
    tokenizer = report["tokenizer"]
    if isinstance(tokenizer, dict):
        print("tokenizer")
        for name, value in tokenizer.items():
            print(f"  {name:<16} {value}")
    else:
        print("tokenizer     none")
    for event in report["events"]:  # type: ignore[attr-defined]
        print(f"{event['severity']:<13} {event['message']} [{event['code']}]")
