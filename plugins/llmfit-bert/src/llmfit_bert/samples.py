"""Tiny encoders, for the tests and for `llmfit plugins check bert`. llmfit never loads this by itself."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 80,
}  # fmt: skip
PADDED: dict[str, Any] = {**SMALL, "pad_token_id": 1}
MODERN: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 4, "max_position_embeddings": 128, "local_attention": 16, "pad_token_id": 0, "cls_token_id": 0,
    "sep_token_id": 0,
}  # fmt: skip
DISTIL: dict[str, Any] = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 80}
FULL, SLIDING = "full_attention", "sliding_attention"
CANNOT = "graph-cannot"


def _of(cls: str, kind: str, sizes: dict[str, Any], **more: Any) -> dict[str, Any]:
    slow = frozenset(set(more.get("variations", ())) - {"odd-kinds"})
    return {"config": {"architectures": [cls], "model_type": kind, **sizes}, "slow": slow, **more}


SAMPLES: dict[str, dict[str, Any]] = {
    "architectures": {
        "bert": [
            _of(
                "BertModel", "bert", SMALL,
                variations={"gelu-new": {"hidden_act": "gelu_new", "type_vocab_size": 1, "layer_norm_eps": 1e-5}},
                refused={
                    "relu": ({"hidden_act": "relu"}, CANNOT),
                    "relative": ({"position_embedding_type": "relative_key"}, "config-value"),
                    "decodes": ({"is_decoder": True}, "config-value"),
                },
            ),
            _of("BertForMaskedLM", "bert", SMALL),
            _of("BertForPreTraining", "bert", SMALL),
        ],
        "bert-classifier": [_of("BertForSequenceClassification", "bert", {**SMALL, "type_vocab_size": 1, "num_labels": 3})],
        "roberta": [
            _of("RobertaModel", "roberta", PADDED, variations={"one-kind": {"type_vocab_size": 1, "pad_token_id": 3}}),
            _of("RobertaForMaskedLM", "roberta", PADDED),
            _of("XLMRobertaModel", "xlm-roberta", {**PADDED, "type_vocab_size": 1}),
            _of("XLMRobertaForMaskedLM", "xlm-roberta", PADDED),
            _of("CamembertModel", "camembert", PADDED),
            _of("CamembertForMaskedLM", "camembert", PADDED),
        ],
        "roberta-classifier": [
            _of("RobertaForSequenceClassification", "roberta", {**PADDED, "type_vocab_size": 1}),
            _of("XLMRobertaForSequenceClassification", "xlm-roberta", {**PADDED, "type_vocab_size": 1, "num_labels": 1}),
            _of("CamembertForSequenceClassification", "camembert", {**PADDED, "type_vocab_size": 1}),
        ],
        "distilbert": [
            _of(
                "DistilBertModel", "distilbert", DISTIL,
                variations={"sinusoids": {"sinusoidal_pos_embds": True}},
                refused={"relu": ({"activation": "relu"}, CANNOT)},
            ),
            _of("DistilBertForMaskedLM", "distilbert", DISTIL),
        ],
        "nomic-bert": [
            _of(
                "NomicBertModel", "nomic_bert", {**SMALL, "pad_token_id": 0},
                variations={"linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}},
                refused={"gelu": ({"hidden_act": "gelu"}, CANNOT)},
            )
        ],
        "modern-bert": [
            _of(
                "ModernBertModel", "modernbert", MODERN,
                variations={
                    "odd-kinds": {"local_attention": 9, "layer_types": [SLIDING, FULL, FULL, SLIDING]},
                    "silu": {"hidden_activation": "silu"},
                },
                refused={"relu": ({"hidden_activation": "relu"}, CANNOT), "biases": ({"mlp_bias": True}, "config-value")},
            ),
            _of("ModernBertForMaskedLM", "modernbert", MODERN),
        ],
    }
}  # fmt: skip
