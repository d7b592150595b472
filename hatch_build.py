"""What a wheel holds beside the package: the labs, their data, and the two files that say how to run them."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Wheel(BuildHookInterface):
    """Adds `notebooks/` as `qkvlab/_notebooks` and `data/` as `qkvlab/_data`.

    In a static `force-include` these would also be copied by `pip install -e .`, where the checkout itself is read.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        root = Path(self.root)
        include = build_data["force_include"]
        for folder in ("notebooks", "data"):
            for path in sorted((root / folder).rglob("*")):
                inside = path.relative_to(root / folder)
                if path.is_file() and not any(part.startswith((".", "__")) for part in inside.parts):
                    include[str(path)] = f"qkvlab/_{folder}/{inside.as_posix()}"
        for name in ("pyproject.toml", "constraints.txt"):  # marimo's settings; what `qkvlab doctor` compares with
            include[str(root / name)] = f"qkvlab/_notebooks/{name}"
