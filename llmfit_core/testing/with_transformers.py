"""transformers as a judge: what it saves for a config, and what it computes. Imported late, kept quiet, put back as found."""

from __future__ import annotations

import contextlib
import json
import warnings
from typing import TYPE_CHECKING, Any

from llmfit_core.testing.outcome import CheckFailed, NotRun, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MISSING = "torch and transformers are not installed: pip install torch transformers"
BY_LENGTH = frozenset({"longrope", "dynamic"})
"""Ropes that look at the length of the whole text."""


@contextlib.contextmanager
def judge() -> Iterator[Any]:
    """transformers, with torch on the CPU in float32 whatever the caller has set, and no chatter.

    Raises:
        NotRun: torch or transformers is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecations
        try:
            import torch
            import transformers
        except ImportError:
            raise NotRun(MISSING) from None
        logging: Any = transformers.utils.logging
        verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
        dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(min(threads, 2))
        try:
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                yield transformers
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            logging.set_verbosity(verbosity)
            if bar:
                logging.enable_progress_bar()


def is_here() -> bool:
    """Whether both can be imported: an installation that is broken is as good as none."""
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("transformers") is None:
        return False
    try:
        with judge():
            return True
    except NotRun:
        return False


def knows(config: Mapping[str, object]) -> bool:
    """Whether transformers is here and has the class of this config.

    Raises:
        NotRun: torch or transformers is not installed.
    """
    with judge() as transformers:
        return _class(transformers, config) is not None and config.get("model_type") in transformers.CONFIG_MAPPING


def version() -> str:
    """`transformers VERSION`."""
    from importlib.metadata import version

    return f"transformers {version('transformers')}"


def config_defaults(config: Mapping[str, object]) -> dict[str, object]:
    """What the config class of this `model_type` assumes."""
    with judge() as transformers:
        made = transformers.CONFIG_MAPPING[config["model_type"]]()
        return {**{k: getattr(made, k) for k in made.attribute_map if hasattr(made, k)}, **made.to_dict()}


def save_start(config: Mapping[str, object], folder: Path) -> None:
    """Have transformers make a model of this config and save it in bfloat16: the names, shapes and config.json of its files.

    Raises:
        CheckFailed: The class does not take this config.
    """
    import torch

    with judge() as transformers:
        cls = _class(transformers, config)
        values = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
        try:
            made = transformers.CONFIG_MAPPING[config["model_type"]](**values)
            made.architectures = list(config["architectures"])  # type: ignore[call-overload]
            net = cls(made)
        except Exception as error:
            raise CheckFailed(f"transformers makes no {_name(config)} of this config: {error}") from error
        net.to(torch.bfloat16).save_pretrained(folder)


class Network:
    """A model folder, loaded by transformers in float32 with eager attention.

    Args:
        folder: The model.
        waived: Patterns of names that it may lack, under any prefix: of heads and poolers that nothing here looks at.
    """

    def __init__(self, folder: Path, waived: Sequence[str] = ()) -> None:
        import torch

        with judge() as transformers:
            name = _name(json.loads((folder / "config.json").read_text(encoding="utf-8")))
            cls = getattr(transformers, name)
            self.net, said = cls.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            said = {**said, "missing_keys": [k for k in said["missing_keys"] if not _among(str(k), waived)]}
            odd = {k: sorted(map(str, said[k])) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if said.get(k)}
            require(not odd, f"transformers does not find in the folder what {name} consists of: {odd}")
            self.net.eval()

    def log_probabilities(self, ids: Sequence[int], lengths: Sequence[int], *, by_length: bool = False) -> NDArray[Any]:
        """What it says of the next token after the first n of `ids`, for each n of `lengths`: `[lengths, vocabulary]`.

        Args:
            ids: Token ids.
            lengths: Of prefixes.
            by_length: Compute each prefix on its own, as a rope that looks at the length wants it.
        """
        import torch

        with judge(), torch.inference_mode():
            if by_length:
                rows = [self.net(torch.tensor([list(ids[:n])])).logits[0, -1] for n in lengths]
            else:
                every = self.net(torch.tensor([list(ids)])).logits[0]
                rows = [every[n - 1] for n in lengths]
            found: NDArray[Any] = torch.stack(rows).double().log_softmax(-1).numpy()
            return found

    def vectors(self, ids: Sequence[int]) -> NDArray[Any]:
        """What the last layer gives for each token: `[len(ids), width]`."""
        import torch

        with judge(), torch.inference_mode():
            rows: NDArray[Any] = self.net.base_model(torch.tensor([list(ids)])).last_hidden_state[0].double().numpy()
            return rows

    def embedding_factor(self, ids: Sequence[int]) -> float:
        """What the model multiplies embeddings by, measured."""
        import torch

        with judge(), torch.inference_mode():
            first = self.net(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[0]
            stored = self.net.get_input_embeddings().weight[torch.tensor(list(ids))]
            return float(first.std() / stored.std())


def _among(name: str, waived: Sequence[str]) -> bool:
    stem = name.rpartition(".")[0]
    return any(f".{n}".endswith(f".{w}") for w in waived for n in (name, stem))


def _name(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, (list, tuple)) and names else ""


def _class(transformers: Any, config: Mapping[str, object]) -> Any:
    return getattr(transformers, _name(config), None)
