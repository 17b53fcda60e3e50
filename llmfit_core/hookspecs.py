"""The whole contract between llmfit and its plugins.

A plugin is a distribution with an entry point in the group `llmfit` that names a module (or an
object) holding functions decorated with `llmfit_core.hookimpl`:

    # pyproject.toml
    [project]
    name = "llmfit-acme"
    dependencies = ["llmfit-core>=0.1,<0.2"]

    [project.entry-points.llmfit]
    acme = "llmfit_acme"

The range of cores a plugin fits is read from its dependencies before it is imported; outside of it the
plugin is `incompatible` and stays in the list with that reason.

Every declaring hook is named `llmfit_<plural>`, takes no argument, and returns an iterable of frozen
declarations (a generator is the usual way). It is called once, when the registry is loaded, by every
command that needs plugins; so it has to be quick, read no file, and import nothing heavy: numpy, torch and
their like belong inside the functions that a declaration names, which are called late. Order never matters:
things are chosen by name. What a hook prints goes to stderr.

A plugin fails as a whole: one that raises in a hook, even half-way, that yields something of another type
or more than 1000 declarations, that misspells a hook or gives it another signature, that declares one name
twice, is listed as `failed` with the reason and provides nothing. Others are not concerned. Two plugins
that claim one name (an architecture, a class name, an exporter, ...) both load; the error comes when that
name is used, and `llmfit plugins prefer NAME DISTRIBUTION` decides.

Names of declarations are lower-case letters, digits, and `.`, `_`, `+`, `-`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable

    import typer

    from llmfit_core.architecture import Architecture
    from llmfit_core.declarations import Diagnosis, Packager, TokenizerReader, Transform
    from llmfit_core.decode import Decoder
    from llmfit_core.export import Exporter
    from llmfit_core.plan import Artifact, Plan
    from llmfit_core.runtime import Runtime

hookspec = pluggy.HookspecMarker("llmfit")
hookimpl = pluggy.HookimplMarker("llmfit")


class Hooks:
    """The hooks, one method each."""

    @hookspec
    def llmfit_architectures(self) -> Iterable[Architecture]:
        """Declare model families: what their saved tensors mean, who feeds whom, and what computes them elsewhere.

        Called once, when plugins are loaded. A checkpoint is matched by its class names (`hf_classes`), then by
        `model_types`, then by its tensors' names. No format is mentioned but in `graphs`: an exporter derives
        what it writes from the roles. Every tensor of a checkpoint has to be in the table or waived with a
        reason, and every config key has to be read, asserted or ignored with a reason; what is forgotten becomes
        an error or a warning at plan time, never a wrong file.

        Returns:
            `Architecture` values. Their tables name tensors without `.weight` and `.bias`.

        Example:
            ```python
            from llmfit_core import DECODER_CONFIG, PRE_NORM_DECODER, Architecture, Graph, Role, Slot, hookimpl

            ACME = Architecture(
                name="acme",
                hf_classes=("AcmeForCausalLM",),
                model_types=("acme",),
                tensors={
                    "decoder.embed": Role.EMBED,
                    "decoder.blocks.{layer}.norm_1": Role.ATTN_NORM,
                    "decoder.blocks.{layer}.query": Role.ATTN_Q,
                    "decoder.blocks.{layer}.key": Role.ATTN_K,
                    "decoder.blocks.{layer}.value": Role.ATTN_V,
                    "decoder.blocks.{layer}.out": Role.ATTN_OUT,
                    "decoder.blocks.{layer}.norm_2": Role.FFN_NORM,
                    "decoder.blocks.{layer}.gate": Role.FFN_GATE,
                    "decoder.blocks.{layer}.up": Role.FFN_UP,
                    "decoder.blocks.{layer}.down": Role.FFN_DOWN,
                    "decoder.norm": Role.OUTPUT_NORM,
                    "head": Slot(Role.HEAD, optional=True),
                },
                config=DECODER_CONFIG,
                wiring=PRE_NORM_DECODER,
                graphs=(
                    Graph(
                        format="gguf",
                        name="llama",
                        engine="llama.cpp",
                        keys=("block_count", "context_length", "embedding_length", "feed_forward_length",
                              "attention.head_count", "attention.head_count_kv", "rope.freq_base",
                              "attention.layer_norm_rms_epsilon", "vocab_size", "rope.dimension_count"),
                        rope_rows="pairs",
                    ),
                ),
            )

            @hookimpl
            def llmfit_architectures():
                yield ACME
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_tokenizers(self) -> Iterable[TokenizerReader]:
        """Declare tokenizer files that the core cannot read.

        Called once, when plugins are loaded. The readers' `detects` are asked for every checkpoint before the core's
        own readers (`tokenizer.json`, `tokenizer.model`), so each has to be sure of its kind. `read` gives a
        `Vocab`, the tokenizer in the terms of GGUF's keys; its `pre` has to be a pre-tokenizer that a runtime
        knows, or the tokens will not be the model's.

        Returns:
            `TokenizerReader` values.

        Example:
            ```python
            from llmfit_core import TokenizerReader, TokenType, Vocab, hookimpl

            def detects(side, config):
                return "vocab.txt" in side and "tokenizer.json" not in side

            def read(side, config):
                tokens = tuple(side["vocab.txt"].read_text(encoding="utf-8").splitlines())
                types = tuple(TokenType.CONTROL if t.startswith("[") else TokenType.NORMAL for t in tokens)
                specials = {"unk": tokens.index("[UNK]")} if "[UNK]" in tokens else {}
                return Vocab(model="bert", pre="default", tokens=tokens, types=types, specials=specials)

            @hookimpl
            def llmfit_tokenizers():
                yield TokenizerReader(name="vocab-txt", detects=detects, read=read)
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_decoders(self) -> Iterable[Decoder]:
        """Declare kinds of checkpoint that can be read as if they were plain.

        Called once, when plugins are loaded. `detects` is asked for every source; the one decoder that answers yes
        turns the checkpoint into one with Hugging Face names, a Hugging Face config and lazy plain tensors,
        before the architecture is looked for. It adds an event where the source was quantized already, since
        quantizing again loses more.

        Returns:
            `Decoder` values.

        Example:
            ```python
            from dataclasses import replace

            from llmfit_core import Decoder, hookimpl

            PREFIX = "acme_export::"

            def detects(checkpoint):
                return bool(checkpoint.tensors) and all(name.startswith(PREFIX) for name in checkpoint.tensors)

            def decode(checkpoint, architectures):
                plain = {
                    name.removeprefix(PREFIX): replace(ref, name=name.removeprefix(PREFIX))
                    for name, ref in checkpoint.tensors.items()
                }
                return replace(checkpoint, tensors=plain)

            @hookimpl
            def llmfit_decoders():
                yield Decoder(name="acme-export", detects=detects, decode=decode)
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_transforms(self) -> Iterable[Transform]:
        """Declare what one format needs of one architecture and that no fact of its table says.

        Called once, when plugins are loaded; `apply` runs when a plan for that pair is made, on the understood
        model, and reads no weight: it wraps tensors in the named operations of `llmfit_core.transform`. Look first
        whether a storage fact or the graph says it (`Fused`, `Slot.shift`, `Graph.merges`, ...): then every format
        profits, and the way back is known too. Plans and manifests name every transform that was applied.

        Returns:
            `Transform` values.

        Example:
            ```python
            from dataclasses import replace

            from llmfit_core import Role, Transform, hookimpl
            from llmfit_core.transform import Affine

            def halve_head(model):
                tensors = {
                    key: Affine(tensor, scale=0.5) if key.role == Role.HEAD else tensor
                    for key, tensor in model.tensors.items()
                }
                return replace(model, tensors=tensors)

            @hookimpl
            def llmfit_transforms():
                yield Transform(name="acme-logit-scale", architecture="acme", format="gguf", apply=halve_head)
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_exporters(self) -> Iterable[Exporter]:
        """Declare formats that models can be written in.

        Called once, when plugins are loaded. An exporter is chosen by `--to NAME:SCHEME` and holds no list of
        models: it derives everything from roles, wiring and graphs, and refuses with `UnsupportedError` what
        cannot be right. `plan` decides all from headers; `fill` then writes one file, head and tensors at the offsets
        that the plan says, and tells each tensor that is done; `reopen` proves that the result is what was planned.
        Places, atomicity, manifest and the journal of a resumed run are the core's business.

        Returns:
            `Exporter` values.

        Example:
            ```python
            import hashlib
            import json

            from llmfit_core import Exporter, Filled, OutputFile, Plan, Scheme, VerificationError, hookimpl

            def plan(model, recipe):
                table = {ref.name: list(ref.shape) for ref in model.refs}
                head = json.dumps(table, sort_keys=True).encode()
                file = OutputFile(name=f"{model.name}.shapes.json", head=head, size=len(head))
                return Plan(model=model, recipe=recipe, files=(file,))

            def fill(file, path, options):
                path.write_bytes(file.head)  # no file of this format holds a tensor
                return Filled(sha256=hashlib.sha256(file.head).hexdigest())

            def reopen(path, plan):
                if path.read_bytes() != plan.files[0].head:
                    raise VerificationError("damaged", f"{path} is not what was planned", "Convert again.")

            @hookimpl
            def llmfit_exporters():
                yield Exporter(
                    name="shapes",
                    suffix=".json",
                    schemes=(Scheme(name="plain", summary="tensor shapes as JSON", bits=0.0),),
                    plan=plan,
                    fill=fill,
                    reopen=reopen,
                )
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_runtimes(self) -> Iterable[Runtime]:
        """Declare programs and libraries that serve an artifact.

        Called once, when plugins are loaded. `probe` says whether the runtime is here and never raises for its
        absence; `capabilities` names the graphs its build contains; `plan` turns a model's path and options into
        the command that would be started, or raises `LaunchError` for what cannot work. A runtime that can
        answer, score or tokenize by itself gives `generate`, `score` and `tokenize`, which run the engine in a
        child process: native engines abort the process on files they dislike.

        Returns:
            `Runtime` values.

        Example:
            ```python
            import shutil

            from llmfit_core import Capabilities, LaunchPlan, Probe, Runtime, hookimpl

            def probe():
                if shutil.which("acme-server"):
                    return Probe(available=True, version="1", backends=("cpu",))
                return Probe(available=False, reason="acme-server is not on PATH; install acme-server")

            def capabilities():
                return Capabilities(engine="acme", version="1", graphs=frozenset({"llama"}))

            def plan(model, options):
                argv = ("acme-server", "--model", str(model), "--port", str(options.port))
                return LaunchPlan(runtime="acme", argv=argv, url=f"http://{options.host}:{options.port}")

            @hookimpl
            def llmfit_runtimes():
                yield Runtime(name="acme", formats=("gguf",), probe=probe, capabilities=capabilities, plan=plan)
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_packagers(self) -> Iterable[Packager]:
        """Declare hosts that an artifact can be handed to.

        Called once, when plugins are loaded. `package` puts what the host needs beside or around a finished
        artifact (a Modelfile, a folder in the host's layout), never replaces a file it did not write, and says
        what the user does next.

        Returns:
            `Packager` values.

        Example:
            ```python
            import json

            from llmfit_core import OutputError, Packaged, Packager, Probe, hookimpl

            def package(artifact, folder):
                path = (folder or artifact.parent) / "acme.json"
                if path.exists():
                    raise OutputError("output-exists", f"{path} exists", "Move it away, or name another folder.")
                path.write_text(json.dumps({"model": artifact.name}), encoding="utf-8")
                return Packaged(paths=(path,), steps=(f"acme load {path}",))

            @hookimpl
            def llmfit_packagers():
                yield Packager(
                    name="acme", formats=("gguf",), probe=lambda: Probe(available=True), package=package
                )
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_diagnoses(self) -> Iterable[Diagnosis]:
        """Declare what error messages of other tools are really about.

        Called once, when plugins are loaded. A pattern is searched for, case ignored, in the text a user pastes;
        named groups of it may be used as `{name}` in `cause` and `remedy`. `check` looks whether the cause is
        present on this machine.

        Returns:
            `Diagnosis` values.

        Example:
            ```python
            from llmfit_core import Diagnosis, hookimpl

            @hookimpl
            def llmfit_diagnoses():
                yield Diagnosis(
                    name="lm-studio-no-runtime",
                    pattern=r"No LM Runtime found for model format '(?P<format>[a-z]+)'",
                    cause="No engine pack for {format} is installed or enabled in LM Studio; the file is not at fault.",
                    remedy="Install one under Settings, Runtime.",
                )
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_commands(self, app: typer.Typer) -> None:
        """Add sub-commands to the command line.

        Called once by the `llmfit` command, and not at all where the core is used as a library. The `app` is the
        plugin's own: its commands and groups are moved to the command line afterwards if the hook went
        well. A command that llmfit has itself cannot be replaced, and no callback of the whole line can be set;
        trying either fails the plugin. Print results to stdout and all else to stderr, offer `--json`, and raise
        `LlmfitError` subclasses for what goes wrong.

        Args:
            app: A `typer.Typer` to add commands to.

        Example:
            ```python
            import typer

            from llmfit_core import hookimpl

            @hookimpl
            def llmfit_commands(app):
                @app.command("acme-hello", help="Greet.")
                def hello(name: str = typer.Argument("world")) -> None:
                    typer.echo(f"hello {name}")
            ```
        """
        raise NotImplementedError

    @hookspec
    def llmfit_artifact_written(self, artifact: Artifact, plan: Plan) -> None:
        """Observe a finished conversion.

        Called once for each artifact, after its files carry their final names and the manifest is written. It may
        copy, announce or record; it must not change the files. An error here is reported as the event
        `observer-failed` and is never fatal.

        Args:
            artifact: What was written: format, scheme, paths, manifest.
            plan: How it was decided. An implementation may leave out an argument it does not need.

        Example:
            ```python
            import sys

            from llmfit_core import hookimpl

            @hookimpl
            def llmfit_artifact_written(artifact):
                print("acme: written", *artifact.paths, file=sys.stderr)
            ```
        """
        raise NotImplementedError
