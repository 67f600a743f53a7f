"""What is shipped: the wheel's top-level names, and the copies behind the links."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_two_packages_and_true_copies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info/" not in n}
    assert tops == {"ablate", "hydra_plugins"}
    assert "hydra_plugins/__init__.py" not in names, "hydra_plugins is a shared namespace"
    for shipped in ("ablate/conf/train.yaml", "ablate/conf/sweep/hello.yaml"):
        assert shipped in names, shipped
    assert any(n.startswith("ablate/analysis/") for n in names)
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "sweeps").rglob("*.yaml")}
    assert {n.replace("ablate/conf/sweep/", "sweeps/") for n in names if "/sweep/" in n} >= sources


def test_an_extra_that_is_named_anywhere_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "ablate").rglob("*.py")]
    text = "\n".join(p.read_text(encoding="utf-8") for p in files)
    named = set(re.findall(r"ablate\[([\w-]+)\]", text))
    assert "workspace" in named
    assert named <= set(project["optional-dependencies"])
