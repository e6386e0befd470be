"""The wheel: its tag and contents, a fresh environment that runs it without NumPy, and only documented symbols."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The file that TESSERA_WHEEL names (scripts/test_python.sh sets it), else one that pip builds here."""
    named = os.environ.get("TESSERA_WHEEL")
    if named:
        return Path(named).resolve()
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(out), str(ROOT)], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_tag_and_contents(wheel):
    assert re.fullmatch(r"tessera-[0-9.]+-py3-none-linux_(x86_64|aarch64)\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {"tessera/__init__.py", "tessera/libtessera.so", "tessera/py.typed"} <= names
    assert all(n.startswith("tessera/") or ".dist-info/" in n for n in names)
    assert not [n for n in names if n.endswith((".h", ".a", ".pyc"))]
    assert wheel.stat().st_size < 40 << 20
    version = re.search(r"project\(tessera VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert f"\nVersion: {version}\n" in text and f"-{version}-" in wheel.name
    assert "Requires-Dist: numpy\n" not in text


def test_fresh_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name not in ("TESSERA_LIBRARY", "PYTHONPATH")}
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-index", wheel], check=True, env=environment, cwd=tmp_path
    )
    code = (
        "import tessera\n"
        "plan = tessera.Plan('fwd f32 sq4 d8 cpu')\n"
        "assert str(tessera.library_path).startswith(r'%s'), tessera.library_path\n"
        "print(plan.kernel, tessera.version())\n" % (tmp_path / "venv")
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cpu.")
    main = subprocess.run([python, "-m", "tessera"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert main.returncode == 0 and "numpy not installed" in main.stdout, main.stderr


def test_only_documented_symbols(wheel, tmp_path):
    if not shutil.which("nm"):
        pytest.skip("no nm: install binutils")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("tessera/libtessera.so", tmp_path)
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines() if line.split()[-2] != "A"}
    header = (ROOT / "include" / "tessera" / "tessera.h").read_text()
    assert exported == set(re.findall(r"TESSERA_API [\w\s*]*?\b(tessera_\w+)\(", header))
