"""The end of making a GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf


def finish(w: gguf.GGUFWriter, part: Path, path: Path) -> Path:
    """Writes what was added to `part`, and gives it its name once it is whole."""
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    part.replace(path)
    return path
