#!/usr/bin/env python3
"""Budgets and hygiene of our own sources: a file <= 500 lines, a host function <= 60, a device function <= 150, a line
<= 120 columns; no tab, no space at a line's end, no note to oneself left behind, no path of somebody's machine.
Kernels that use what the compiler leaves out below 9.0 are compiled for 9.0 too.

A function is found by its braces alone: comments and literals are blanked first, then every `{` is classified by the
text before it. No compiler is asked, so host and CUDA sources are read alike. Usage: check_sources.py [--self-test]"""
import pathlib
import re
import subprocess
import sys

FILE_LINES = 500
HOST_LINES = 60
DEVICE_LINES = 150
COLUMNS = 120
SELF = "scripts/check_sources.py"
C_SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".inl"}
LINE_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".cmake"}
LEFTOVER = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|(?<![\w.])/(?:home|root|tmp|work)/\w")
DEVICE_WORDS = re.compile(r"__global__|__device__")
NOT_A_FUNCTION = re.compile(r"^(namespace|struct|class|enum|union|extern)\b|=\s*$")
CONTROL = re.compile(r"^(if|else|for|while|do|switch|try|catch|return|case|default)\b")

BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^\s()\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)


def blank(text):
    """The text with comments, literals and preprocessor lines replaced by spaces, line ends kept."""
    keep_lines = lambda found: re.sub(r"[^\n]", " ", found.group(0))
    text = BLANK.sub(keep_lines, text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", keep_lines, text, flags=re.M)


def head_of(text, brace):
    """What stands between the previous `;`, `{` or `}` outside parentheses and the brace."""
    depth, at = 0, brace - 1
    while at >= 0:
        c = text[at]
        if c == ")":
            depth += 1
        elif c == "(":
            if depth == 0:
                break
            depth -= 1
        elif depth == 0 and c in ";{}":
            break
        at -= 1
    return text[at + 1:brace].strip(), at + 1


def is_function(head):
    bare = re.sub(r"^(template\s*<[^;{}]*>\s*|\[\[[^]]*\]\]\s*|static\s+|inline\s+|constexpr\s+)*", "", head)
    return "(" in head and not CONTROL.match(bare) and not NOT_A_FUNCTION.search(bare)


def functions(text):
    """(first line, last line, head) of every outermost function body; what is nested in one counts with it."""
    text = blank(text)
    line_of = lambda index: text.count("\n", 0, index) + 1
    found, stack, inside = [], [], None
    for index, c in enumerate(text):
        if c == "{":
            head, start = head_of(text, index)
            if inside is None and is_function(head):
                inside = len(stack)
                start += len(text[start:index]) - len(text[start:index].lstrip())
                stack.append((start, head))
            else:
                stack.append(None)
        elif c == "}" and stack:
            top = stack.pop()
            if inside == len(stack):
                inside = None
                found.append((line_of(top[0]), line_of(index), " ".join(top[1].split())))
    return found


def check_file(path, text):
    problems = []
    lines = text.count("\n") + (not text.endswith("\n"))
    if lines > FILE_LINES:
        problems.append(f"{path}: {lines} lines, at most {FILE_LINES}")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS and "://" not in line:
            problems.append(f"{path}:{number}: {len(line)} columns, at most {COLUMNS}")
        if "\t" in line or line != line.rstrip():
            problems.append(f"{path}:{number}: a tab, or a space at the end")
        if LEFTOVER.search(line) and path != SELF:
            problems.append(f"{path}:{number}: left behind: {LEFTOVER.search(line).group(0)}")
    if pathlib.Path(path).suffix in C_SUFFIXES:
        for first, last, head in functions(text):
            limit = DEVICE_LINES if DEVICE_WORDS.search(head) else HOST_LINES
            if last - first + 1 > limit:
                size = last - first + 1
                problems.append(f"{path}:{first}: a function of {size} lines, at most {limit}: {head[-80:]}")
    return problems


def included(path, root):
    """The file and all of ours that it includes."""
    found, open_files = set(), [path]
    while open_files:
        file = open_files.pop()
        if file in found:
            continue
        found.add(file)
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.M):
            places = [(folder / name).resolve() for folder in (file.parent, root / "src", root / "src/cuda")]
            open_files += [place for place in places if place.exists()][:1]
    return found


def check_passes(root):
    """A source without a pass for 9.0 compiles as well: without the instructions, and nothing but its speed says so."""
    passes = re.search(r'"/\(([a-z|]+)\)_\[\^/\]\*[^\n]*\n\s*list\(APPEND passes 90\)',
                       (root / "src/CMakeLists.txt").read_text(encoding="utf-8"))
    if not passes:
        return ["src/CMakeLists.txt: which sources have a pass for 9.0 was not found"]
    has = re.compile(rf"({passes.group(1)}|sm90)_")
    problems, asking = [], 0
    for source in sorted(root.glob("src/cuda/instances/*.cu")):
        asks = [file.name for file in included(source.resolve(), root)
                if "__CUDA_ARCH__ >= 900" in file.read_text(encoding="utf-8")]
        asking += bool(asks)
        if asks and not has.match(source.name):
            problems.append(f"src/cuda/instances/{source.name}: no pass for 9.0, which {sorted(asks)[0]} asks for")
    if asking == 0:
        problems.append("src/cuda/instances: none was found to ask for a pass for 9.0, though decode and backward do")
    return problems


def self_test():
    """Each budget is overrun once; a checker that finds nothing is caught here."""
    body = "  f();\n" * 59
    cases = [
        ("long file", "a.hpp", "\n" * 501, 1),
        ("long line", "a.cpp", "// " + "x" * 118 + "\n", 1),
        ("note to oneself", "a.py", "# TO" + "DO later\n", 1),
        ("tab", "a.py", "\tx\n", 1),
        ("60 lines", "a.cpp", "int f() {\n" + body[:-7] + "}\n", 0),
        ("61 lines", "a.cpp", "namespace n {\ntemplate <class T>\nint S<T>::f(int a) const {\n" + body + "}\n}\n", 1),
        ("lambda counts with its function", "a.cpp", "int f() {\n g([&](int i) {\n" + body + " });\n}\n", 1),
        ("braces in literals", "a.cpp",
         "int f() { return '{' + g(\"}{\") + 1'000; } // {\nint g() {\n" + body[:-7] + "}\n", 0),
        ("class body is free", "a.hpp", "class A final : public B<int (*)()> {\n" + body + body + "};\n", 0),
        ("device 150", "a.cu", "__global__ void k(float* x) {\n" + "  f();\n" * 148 + "}\n", 0),
        ("device 151", "a.cu", "template <int N>\n__global__ void k(float* x) {\n" + "  f();\n" * 149 + "}\n", 1),
    ]
    failed = [name for name, path, text, count in cases if len(check_file(path, text)) != count]
    for name in failed:
        print(f"self-test failed: {name}")
    return not failed


def main():
    if not self_test():
        return 1
    if sys.argv[1:] == ["--self-test"]:
        return 0
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True)
    paths = [p for p in listed.stdout.split("\n") if pathlib.Path(p).suffix in LINE_SUFFIXES or p == ".ci/run"]
    problems = [line for p in paths if (root / p).exists()
                for line in check_file(p, (root / p).read_text(encoding="utf-8"))] + check_passes(root)
    for line in problems:
        print(line)
    print(f"budgets: {len(paths)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
