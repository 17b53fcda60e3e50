"""Next-token distributions by transformers, in a process of its own: torch, its memory and its global settings stay there.

Reads `{"folder", "ids", "out"}` as JSON from standard input and writes float32 log-probabilities `[len(ids), vocabulary]`
as `.npy` to `out`. Exit code 3: transformers or torch is not installed; 4: the class wants other tensors, named on standard
error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MISSING, OTHER_TENSORS = 3, 4


def main() -> int:
    """Load a folder in float32 with plain attention and score the ids."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    job = json.load(sys.stdin)
    try:
        import numpy as np
        import torch
        import transformers
    except ImportError as error:
        print(error, file=sys.stderr)
        return MISSING
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model, said = load(
        job["folder"],
        dtype=torch.float32,
        attn_implementation="eager",
        trust_remote_code=False,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(n if isinstance(n, str) else n[0] for n in said[f"{kind}_keys"])
        if names:
            print(f"{kind}: {', '.join(names[:3])}", file=sys.stderr)
            return OTHER_TENSORS
    with torch.inference_mode():
        logits = model.eval()(torch.tensor([job["ids"]])).logits[0]
        np.save(job["out"], logits.double().log_softmax(-1).float().numpy())
    return 0


if __name__ == "__main__":
    sys.exit(main())
