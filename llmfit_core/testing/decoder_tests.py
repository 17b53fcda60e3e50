"""`DecoderTests`: what a decoder of quantized or foreign checkpoints promises, on small ones that its author writes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmfit_core.errors import LlmfitError
from llmfit_core.tensors import Given, read, row_count
from llmfit_core.testing.declared import Declared
from llmfit_core.testing.outcome import CheckFailed, NotRun, few, require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmfit_core.checkpoint import Checkpoint
    from llmfit_core.decode import Decoder
    from llmfit_core.plugins import PluginRegistry

Writer = Callable[[Path], tuple[Path, Mapping[str, Any]]]


class DecoderTests(Declared, kit=True):
    """Inherit, set `decoder` and `samples`, and name the class `Test...`.

    Attributes:
        decoder: The declaration.
        samples: By name, `(empty folder) -> (what to open, plain tensors by Hugging Face name)`: writes a checkpoint of this
            kind and says what it holds, by arithmetic that is not the decoder's.
        lossless: The kind loses nothing, so that no event has to tell that it was quantized.
        tolerance: Largest difference from the author's values, relative to the largest of them; above 0 it has to be in
            `overrides`.
    """

    settings: ClassVar[frozenset[str]] = frozenset({"decoder", "samples", "lossless", "tolerance"})
    parameters: ClassVar[tuple[str, ...]] = ("sample",)
    plural: ClassVar[str] = "decoders"
    setting: ClassVar[str] = "decoder"

    decoder: ClassVar[Decoder]
    samples: ClassVar[Mapping[str, Writer]] = {}
    lossless: ClassVar[bool] = False
    tolerance: ClassVar[float] = 0.0

    @classmethod
    def values_for(cls, parameter: str) -> tuple[str, ...]:
        """The samples."""
        return tuple(cls.samples)

    @classmethod
    def loosened(cls) -> frozenset[str]:
        """Values that need not be equal."""
        return frozenset({"tolerance"} if cls.tolerance else ())

    def test_it_detects_its_own(self, sample: str) -> None:
        """It says yes to its own, and no other installed decoder does."""
        checkpoint, _ = _opened(self, sample)
        require(self.decoder.detects(checkpoint), "it does not detect its own")
        others = [p.value for p in self.bench().registry.decoders() if p.value.name != self.decoder.name]
        also = [d.name for d in others if d.detects(checkpoint)]
        require(not also, f"these decoders take it too: {few(also)}")

    def test_it_leaves_others_alone(self) -> None:
        """It says no to a plain checkpoint, and to one that another package quantized."""
        from llmfit_core.checkpoint import open_checkpoint

        plain = open_checkpoint(self.bench().built().folder)
        require(not self.decoder.detects(plain), "it detects a plain checkpoint")
        strange = {"quantization_config": {"quant_method": "llmfit-kit-unknown"}}
        config = replace(plain.config, values={**plain.config.values, **strange}, raw={**plain.config.raw, **strange})
        require(not self.decoder.detects(replace(plain, config=config)), "it detects what is quantized by a method nobody knows")

    def test_decoding_reads_no_weight(self, sample: str) -> None:
        """With the weight files gone, names, shapes and types are all there."""
        checkpoint, reference = _opened(self, sample)
        away = [(p, p.with_name(p.name + ".away")) for p in checkpoint.weight_files]
        for path, other in away:
            os.replace(path, other)
        try:
            decoded = _decode(self, checkpoint)
        except LlmfitError as error:
            raise CheckFailed(f"decoding reads weights: {error.cause} [{error.code}]") from error
        finally:
            for path, other in away:
                os.replace(other, path)
        shapes = {n: tuple(ref.shape) for n, ref in decoded.tensors.items()}
        wrong = [n for n, t in reference.items() if shapes.get(n) != tuple(t.shape)]
        require(not wrong, f"missing or of another shape: {few(f'{n} {shapes.get(n)}' for n in wrong)}")

    def test_values_are_right(self, sample: str) -> None:
        """Every tensor holds what its author says."""
        import numpy as np

        checkpoint, reference = _opened(self, sample)
        decoded = _decode(self, checkpoint)
        for name, want in reference.items():
            have = _floats(read(decoded.tensors[name].tensor))
            expected = _floats(np.asarray(want))
            require(have.shape == expected.shape, f"{name} is {have.shape}, not {expected.shape}")
            far = float(np.abs(have - expected).max()) if have.size else 0.0
            allowed = self.tolerance * float(np.abs(expected).max()) if have.size else 0.0
            require(far <= allowed and not np.isnan(have).any(), f"{name} differs from the author's values by {far:.2e}")

    def test_rows_are_rows_of_the_whole(self, sample: str) -> None:
        """Any range of rows is that range of the whole tensor, from a copy that travelled too."""
        import numpy as np

        checkpoint, reference = _opened(self, sample)
        decoded = _decode(self, checkpoint)
        for name in reference:
            tensor = decoded.tensors[name].tensor
            rows = row_count(tensor.shape)
            whole = _floats(read(tensor)).reshape(rows, -1)
            copy = pickle.loads(pickle.dumps(tensor))
            for start, stop in {(0, rows), (0, 1), (rows - 1, rows), (rows // 3, 2 * rows // 3 + 1), (rows // 2, rows // 2)}:
                part = _floats(copy.rows(start, min(stop, rows)))
                require(np.array_equal(part, whole[start : min(stop, rows)]), f"{name}: rows {start} to {stop} differ from the whole")

    def test_quantization_is_told(self, sample: str) -> None:
        """What had lost something already is said, so that quantizing again can be warned of."""
        if self.lossless:
            raise NotRun("this kind loses nothing")
        checkpoint, _ = _opened(self, sample)
        decoded = _decode(self, checkpoint)
        told = len(decoded.events) > len(checkpoint.events) or decoded.quantized
        require(told, "neither an event nor `quantized` says that the source was quantized")

    def test_other_shapes_are_refused(self, sample: str) -> None:
        """A stored tensor with one row or column more is an error with a code, at the latest when it is read."""
        checkpoint, _ = _opened(self, sample)
        if checkpoint.gguf is not None:
            raise NotRun("the file's own reader holds shapes and bytes together")
        seen = set()
        for name, ref in checkpoint.tensors.items():
            kind = name.rpartition(".")[2]
            if kind in seen or not ref.shape:
                continue
            seen.add(kind)
            for axis in range(len(ref.shape)):
                shape = tuple(n + (at == axis) for at, n in enumerate(ref.shape))
                wrong = replace(ref, tensor=Given(bytes(_bytes(shape, ref.dtype)), shape, ref.dtype))
                _refused_or_untouched(self, checkpoint, name, {**checkpoint.tensors, name: wrong})
            _refused_or_untouched(self, checkpoint, name, {n: r for n, r in checkpoint.tensors.items() if n != name})

    def test_the_model_is_understood(self, sample: str) -> None:
        """An installed architecture recognises what was decoded, and every tensor of it is claimed."""
        from llmfit_core.prepare import prepare

        source, _ = _written(self, sample)
        prepared = prepare(source, _registry(self))
        require(self.decoder.name in prepared.decoders, f"decoded by {prepared.decoders}")


_WRITTEN: dict[tuple[type, str], tuple[Path, Mapping[str, Any]]] = {}


def _registry(tests: DecoderTests) -> PluginRegistry:
    return tests.bench().registry


def _written(tests: DecoderTests, sample: str) -> tuple[Path, Mapping[str, Any]]:
    key = type(tests), sample
    if key not in _WRITTEN or not _WRITTEN[key][0].exists():
        folder = tests.bench().work / "samples" / sample
        folder.mkdir(parents=True)
        _WRITTEN[key] = tests.samples[sample](folder)
    return _WRITTEN[key]


def _opened(tests: DecoderTests, sample: str) -> tuple[Checkpoint, Mapping[str, Any]]:
    from llmfit_core.checkpoint import open_checkpoint

    source, reference = _written(tests, sample)
    return open_checkpoint(source), reference


def _decode(tests: DecoderTests, checkpoint: Checkpoint) -> Checkpoint:
    return tests.decoder.decode(checkpoint, [p.value for p in _registry(tests).architectures()])


def _floats(array: Any) -> NDArray[Any]:
    import numpy as np

    found: NDArray[Any] = np.asarray(array).astype(np.float64)
    return found


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    from llmfit_core.dtypes import DTYPES
    from llmfit_core.tensors import element_count

    return element_count(shape) * DTYPES[dtype].size


def _refused_or_untouched(tests: DecoderTests, checkpoint: Checkpoint, name: str, tensors: Mapping[str, Any]) -> None:
    """Decode a changed checkpoint and read all: an error with a code, or the change is there for the table to refuse."""
    try:
        decoded = _decode(tests, replace(checkpoint, tensors=tensors))
        for ref in decoded.tensors.values():
            read(ref.tensor)
    except LlmfitError:
        return
    except Exception as error:
        raise CheckFailed(f"{name} missing or in another shape ends as {type(error).__name__}: {error}") from error
    before = {n: tuple(r.shape) for n, r in _decode(tests, checkpoint).tensors.items()}
    after = {n: tuple(r.shape) for n, r in decoded.tensors.items()}
    require(before != after, f"{name} missing or in another shape decodes as if nothing were wrong")
