"""Write a checkpoint as the PEFT folder that ``--adapter`` and ``--start-from`` take.

python checkpoints/unpack.py checkpoints/smollm2-135m-sql-next.npz training/next
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def main() -> None:
    kept, folder = np.load(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in kept.files if f"{name}:scale" in kept.files]
    weights = {name: (kept[name] * kept[f"{name}:scale"]).astype(np.float16) for name in names}
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_bytes(kept["config"].tobytes())


if __name__ == "__main__":
    main()
