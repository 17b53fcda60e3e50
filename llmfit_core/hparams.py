"""Hyper-parameters and the config ledger: every config key is consumed, checked, or known to be irrelevant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmfit_core.architecture import REQUIRED, Architecture, Asserts, Ignores, Reads, Use
from llmfit_core.config import Config, contradiction, ropes_apart
from llmfit_core.errors import SourceError, UnsupportedError
from llmfit_core.events import Event
from llmfit_core.rope import Rope, read_rope

_TRAINING = Ignores("training only")
_SPEED = Ignores("how it runs, not what it computes")
_GENERATION = Ignores("a default of generation, not of the model")
_KNOWN_ELSEWHERE = Ignores("read by another part")

COMMON_CONFIG: dict[str, Use] = {
    **dict.fromkeys(
        (
            "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop residual_dropout "
            "embedding_dropout hidden_dropout_prob attention_probs_dropout_prob dropout classifier_dropout "
            "router_aux_loss_coef output_router_logits router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux "
            "gradient_checkpointing pretraining_tp use_unpad pruned_heads problem_type finetuning_task label2id "
            "id2label num_labels num_mtp_layers rescale_prenorm_residual unsloth_version unsloth_fixed training_type "
            "neftune_noise_alpha"
        ).split(),
        _TRAINING,
    ),
    **dict.fromkeys(
        (
            "use_cache torch_dtype dtype transformers_version _name_or_path _attn_implementation attn_implementation "
            "_attn_implementation_autoset _flash_attn_2_enabled use_flash_attn use_flash_attention_2 use_bfloat16 "
            "torchscript return_dict output_attentions output_hidden_states tf_legacy_loss chunk_size_feed_forward "
            "low_cpu_mem_usage fuse_attn tensor_parallel_size tp_plan base_model_tp_plan pp_plan base_model_pp_plan "
            "cache_implementation quantization_config_origin is_llama_config transformers.js_config model_max_length "
            "max_sequence_length keys_to_ignore_at_inference return_dict_in_generate inference_mode _commit_hash"
        ).split(),
        _SPEED,
    ),
    **dict.fromkeys(
        (
            "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id temperature top_k "
            "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
            "min_length max_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty "
            "num_return_sequences bad_words_ids suppress_tokens begin_suppress_tokens exponential_decay_length_penalty "
            "forced_bos_token_id forced_eos_token_id remove_invalid_values prefix task_specific_params tokenizer_class "
            "tokenizer_model_max_length tokenizer_padding_side bos_token eos_token pad_token unk_token"
        ).split(),
        _GENERATION,
    ),
    **dict.fromkeys(
        (
            "architectures model_type auto_map rope_scaling quantization_config compression_config quantization use_mtp "
            "original_max_position_embeddings vision_config audio_config text_config num_deepstack_layers"
        ).split(),
        _KNOWN_ELSEWHERE,
    ),
    **dict.fromkeys(
        (
            "image_token_id image_token_index video_token_id video_token_index audio_token_id audio_token_index "
            "vision_token_id vision_start_token_id vision_end_token_id audio_start_token_id audio_end_token_id"
        ).split(),
        Ignores("names a token of a part that is no text model"),
    ),
    "is_encoder_decoder": Asserts((False, None), "it would need an encoder"),
    "is_decoder": Asserts((True, False, None), ""),
    "add_cross_attention": Asserts((False, None), "cross attention would have its own weights"),
    "cross_attention_hidden_size": Asserts((None,), "cross attention would have its own weights"),
    "tie_encoder_decoder": Asserts((False, None), "it would need an encoder"),
}
"""Keys that mean the same in every decoder's config."""

DECODER_CONFIG: dict[str, Use] = {
    **COMMON_CONFIG,
    "hidden_size": Reads("embedding_length"),
    "num_hidden_layers": Reads("block_count"),
    "intermediate_size": Reads("feed_forward_length"),
    "num_attention_heads": Reads("attention.head_count"),
    "num_key_value_heads": Reads("attention.head_count_kv", None),
    "head_dim": Reads("attention.key_length", None),
    "max_position_embeddings": Reads("context_length"),
    "rms_norm_eps": Reads("attention.layer_norm_rms_epsilon", 1e-6),
    "vocab_size": Reads("vocab_size", None),
    "hidden_act": Reads("hidden_act", "silu"),
    "tie_word_embeddings": Reads("tie_word_embeddings", False),
    "rope_theta": Reads("rope.freq_base", 10000.0),
    "partial_rotary_factor": Reads("partial_rotary_factor", 1.0),
}
"""The keys of a decoder with rope and RMS norms, to be extended with `|`."""

DECODER_KEYS: tuple[str, ...] = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
)
"""What llama.cpp's loaders read for every decoder with rope and RMS norms, the start of a `Graph`'s `keys`."""

_COUNTS = frozenset(
    "embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv attention.key_length "
    "attention.value_length context_length vocab_size expert_count expert_used_count expert_feed_forward_length "
    "expert_shared_feed_forward_length attention.sliding_window".split()
)
_NEVER_ZERO = frozenset(
    "embedding_length block_count attention.head_count attention.head_count_kv attention.key_length "
    "attention.value_length context_length expert_used_count".split()
)
_MOST = {"block_count": 1 << 14, "expert_count": 1 << 16, "attention.head_count": 1 << 16}
MAX_INTEGER = 1 << 31
_ORIGINAL = "rope.scaling.original_context_length"
_CORRECT = "Correct config.json, as the model's authors published it."


@dataclass(frozen=True, kw_only=True)
class ConfigLedger:
    """What became of the config.

    Attributes:
        hparams: What was read, under GGUF's key names.
        rope: The rotary embedding.
        consumed: Config key to hparam.
        keys: Hparam to config key, for messages.
        asserted: Keys whose value was checked.
        ignored: Keys known to be irrelevant.
        unknown: Keys nobody knows.
        assumed: Keys a table requires, for which the class of a text part has a value of its own.
        events: Unknown keys, assumed values.
    """

    hparams: Mapping[str, object]
    rope: Rope
    consumed: Mapping[str, str]
    keys: Mapping[str, str]
    asserted: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    events: tuple[Event, ...]
    assumed: tuple[str, ...] = ()


def read_config(config: Config, architecture: Architecture) -> ConfigLedger:
    """Read a config by an architecture's table.

    Raises:
        SourceError: `config-key-missing`, `config-key-invalid`.
        UnsupportedError: `config-value`: an asserted key has another value.
    """
    hparams: dict[str, object] = {}
    keys: dict[str, str] = {}
    consumed: dict[str, str] = {}
    asserted, ignored, unknown = [], [], []
    events: list[Event] = []
    values, rope_types = ropes_apart(config, architecture.rope_kinds)
    hparams.update({f"rope_type.{kind}": name for kind, name in rope_types.items()})
    for key, value in values.items():
        use = architecture.config.get(key)
        if use is None:
            if not key.startswith("_"):
                unknown.append(key)
        elif isinstance(use, Ignores):
            ignored.append(key)
        elif isinstance(use, Asserts):
            asserted.append(key)
            if value not in use.values:
                raise UnsupportedError(
                    "config-value",
                    f"{key} in config.json is {value!r:.200}: {use.why}",
                    "There is no table for this variant; a plugin may add one under a class name of its own.",
                )
        else:
            consumed[key] = use.hparam
            if value is not None:
                checked = _checked(key, use, value)
                if use.hparam in hparams and hparams[use.hparam] != checked:
                    contradiction(keys[use.hparam], hparams[use.hparam], key, checked)
                hparams[use.hparam] = checked
                keys[use.hparam] = key
    assumed = _class_defaults(config, architecture)
    taken: list[str] = []
    for key, use in architecture.config.items():
        if isinstance(use, Reads) and use.hparam not in hparams:
            if use.null_is_none and key in values:
                keys.setdefault(use.hparam, key)
                continue
            if key in assumed:
                if assumed[key] is not None:
                    hparams[use.hparam] = assumed[key]
                if use.default is REQUIRED:
                    taken.append(key)
                keys.setdefault(use.hparam, key)
                continue
            if use.default is REQUIRED:
                raise SourceError(
                    "config-key-missing",
                    f"config.json lacks {config.prefix and config.prefix + '.'}{key}, which {architecture.hf_classes[0]} needs",
                    f"Add {key} to config.json, as the model's authors published it.",
                )
            if use.default is not None:
                hparams[use.hparam] = use.default
            keys.setdefault(use.hparam, key)
    events += [
        Event(
            code="unknown-config-key",
            message=f"config.json has the key {key}, which nobody here knows; it may change what is computed",
            subject=key,
        )
        for key in unknown
    ]
    if "rope_by_layer_type" in unknown:
        raise UnsupportedError(
            "config-value",
            f"rope_parameters in config.json states a rope for each kind of layer; {architecture.name} has one for all",
            _CORRECT,
        )
    _require_own_spelling(config, architecture)
    scaling = values.get("rope_scaling")
    if architecture.rope_default and not scaling and not _states_rope(config, architecture):
        scaling = architecture.rope_default
        kind = scaling.get("rope_type")
        message = f"config.json states no rope_scaling, for which {architecture.hf_classes[0]} takes {kind} rope of its own"
        events.append(Event(code="rope-default", message=message, severity="info", subject="rope_scaling"))
    # A class that reads the outer key itself has a default for it.
    reads = next((u for u in architecture.config.values() if isinstance(u, Reads) and u.hparam == _ORIGINAL), None)
    default = reads.default if reads is not None and isinstance(reads.default, int) else None
    rope, said = read_rope(
        scaling if isinstance(scaling, Mapping) else {},
        context=int(hparams.get("context_length", 0) or 0),  # type: ignore[call-overload]
        default_original=default,
    )
    return ConfigLedger(
        hparams=hparams,
        rope=rope,
        consumed=consumed,
        keys=keys,
        asserted=tuple(asserted),
        ignored=tuple(ignored),
        unknown=tuple(unknown),
        events=(*events, *(e for e in said if e.code != "unknown-config-key" or e.subject not in architecture.config)),
        assumed=tuple(taken),
    )


def _class_defaults(config: Config, architecture: Architecture) -> Mapping[str, object]:
    """What the config class assumes over the table; see `Architecture.part_defaults`."""
    usual = next(iter(architecture.model_types), "")
    kind = config.model_type or usual
    return architecture.part_defaults.get(kind, {}) if config.prefix or kind != usual else {}


def _states_rope(config: Config, architecture: Architecture) -> bool:
    """Whether a config says that its rope is plain, rather than nothing.

    Raises:
        SourceError: `config-key-invalid` for `rope_scaling: null`, where the class has a rope of its own: for some versions
            of transformers that is the class's rope, for others none.
    """
    stated = _as_stated(config)
    if any(isinstance(stated.get(k), Mapping) for k in ("rope_parameters", "rope_scaling")):
        return True
    if "rope_scaling" in stated:
        raise SourceError(
            "config-key-invalid",
            f"rope_scaling in config.json is null, which versions of transformers take for {architecture.hf_classes[0]}'s own "
            "rope or for none",
            'Say it: rope_scaling {"rope_type": "default"} for none, or remove the key for that of the class.',
        )
    return False


def _as_stated(config: Config) -> Mapping[str, object]:
    """The text part of config.json, before spellings were brought together."""
    part: object = config.raw
    for key in filter(None, config.prefix.split(".")):
        part = part[key] if isinstance(part, Mapping) else {}
    return part if isinstance(part, Mapping) else {}


def _require_own_spelling(config: Config, architecture: Architecture) -> None:
    """A class that has a name of its own for a rope key does not read the usual one beside the rope's other keys.

    Raises:
        SourceError: `config-key-missing`.
    """
    stated = _as_stated(config)
    nested = [v for k in ("rope_parameters", "rope_scaling") if isinstance(v := stated.get(k), Mapping)]
    for usual, own in (("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")):
        use = architecture.config.get(own)
        if not isinstance(use, Reads) or stated.get(usual) in (None, use.default) or stated.get(own) is not None:
            continue
        if all(part.get(usual) is None for part in nested):
            raise SourceError(
                "config-key-missing",
                f"config.json has {usual} and no {own}, which is what {architecture.hf_classes[0]} reads",
                f"Say {own}: {stated[usual]!r:.40} if that is meant, or remove {usual}.",
            )


def _checked(key: str, use: Reads, value: object) -> object:
    """A value of the kind that its key wants, or `SourceError`."""
    hparam, kind = use.hparam, use.kind or _kind(use)
    if kind == "count":
        return _count(key, value, 1 if hparam in _NEVER_ZERO else 0, _MOST.get(hparam, MAX_INTEGER))
    if kind == "number":
        least = 1 if hparam.endswith("freq_base") else 0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least < value < 1e30:
            raise _invalid(key, value, f"a number above {least}")
        return float(value)
    if kind == "flag":
        if value not in (True, False):
            raise _invalid(key, value, "true or false")
        return bool(value)
    if kind == "text" and not isinstance(value, str):
        raise _invalid(key, value, "a text")
    if kind in ("counts", "texts") and not isinstance(value, (list, tuple)):
        raise _invalid(key, value, "a list")
    if kind == "counts":
        return tuple(_count(key, v, 0, MAX_INTEGER) for v in value)  # type: ignore[attr-defined]
    if kind == "texts" and not all(isinstance(v, str) for v in value):  # type: ignore[attr-defined]
        raise _invalid(key, value, "a list of texts")
    return value


def _kind(use: Reads) -> str:
    if use.hparam in _COUNTS:
        return "count"
    if use.hparam.endswith(("epsilon", "freq_base")):
        return "number"
    names = {bool: "flag", int: "count", float: "number", str: "text"}
    return names.get(type(use.default), "")


def _count(key: str, value: object, least: int, most: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < most:
        raise _invalid(key, value, f"a count from {least} to {most - 1}")
    return value


def _invalid(key: str, value: object, wanted: str) -> SourceError:
    return SourceError("config-key-invalid", f"{key} in config.json is {value!r:.80}, not {wanted}", _CORRECT)
