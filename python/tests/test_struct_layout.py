"""The ctypes definitions against the C compiler's view of tessera.h: fields, sizes, offsets, constants, functions."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tessera import _c

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADER = re.sub(r"/\*.*?\*/", "", (INCLUDE / "tessera" / "tessera.h").read_text(), flags=re.S)


def _declared_fields(struct: str) -> list[str]:
    """Names of the header's fields, in order: the last word of each declarator; a function pointer's is (*name)."""
    body = re.search(r"typedef struct " + struct + r" \{(.*?)\n\} " + struct + ";", HEADER, flags=re.S).group(1)
    names = []
    for declaration in body.split(";"):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        if pointer:
            names.append(pointer.group(1))
        elif declaration.strip():
            names += [re.search(r"(\w+)\s*(\[\d+\])?\s*$", part).group(1) for part in declaration.split(",")]
    return names


def _run_c(tmp_path: Path, statements: str) -> list[str]:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler: set CC or install gcc")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "tessera/tessera.h"\nint main(void) {\n'
        + statements
        + "  return 0;\n}\n"
    )
    subprocess.run(
        [compiler, "-std=c11", "-Wall", "-Werror", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True
    )
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


def test_every_struct_of_the_header_is_defined():
    assert set(re.findall(r"typedef struct (\w+) \{", HEADER)) == set(_c.STRUCTS)


@pytest.mark.parametrize("struct", _c.STRUCTS)
def test_fields_in_order(struct):
    assert _declared_fields(struct) == [field[0] for field in _c.STRUCTS[struct]._fields_]


def test_sizes_and_offsets(tmp_path):
    statements, expected = "", []
    for struct, ctype in _c.STRUCTS.items():
        statements += f'  printf("{struct} %zu\\n", sizeof({struct}));\n'
        expected.append(f"{struct} {ctypes.sizeof(ctype)}")
        for name, *_ in ctype._fields_:
            field = f"(({struct}*)0)->{name}"
            statements += f'  printf("{struct}.{name} %zu %zu\\n", offsetof({struct}, {name}), sizeof({field}));\n'
            place = getattr(ctype, name)
            expected.append(f"{struct}.{name} {place.offset} {place.size}")
    assert _run_c(tmp_path, statements) == expected


def test_constants(tmp_path):
    names = re.findall(r"\bTESSERA_(?!VERSION|ISA|API|BUILD|TESSERA_H)([A-Z0-9_]+)\b", HEADER)
    names = sorted(set(names) - {"H"})
    assert len(names) > 30
    statements = "".join(f'  printf("{name} %llu\\n", (unsigned long long)TESSERA_{name});\n' for name in names)
    assert _run_c(tmp_path, statements) == [f"{name} {getattr(_c, name)}" for name in names]


def test_functions():
    assert set(re.findall(r"TESSERA_API [\w\s*]*?\b(tessera_\w+)\(", HEADER)) == set(_c.FUNCTIONS)
    for name in _c.FUNCTIONS:
        declared = re.search(rf"\b{name}\((.*?)\);", HEADER, flags=re.S).group(1)
        count = 0 if declared == "void" else declared.count(",") + 1
        assert len(_c.FUNCTIONS[name][1]) == count, name


def test_version_of_header_and_library(tmp_path):
    number = "(TESSERA_VERSION_MAJOR << 16 | TESSERA_VERSION_MINOR << 8 | TESSERA_VERSION_PATCH)"
    assert _run_c(tmp_path, f'  printf("%d\\n", {number});\n') == [str(_c.lib.tessera_version())]
