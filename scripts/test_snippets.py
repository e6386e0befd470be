#!/usr/bin/env python3
"""Runs what stands on the pages, so that what a newcomer copies works: the C and C++ programs and the shell commands of
README.md, CONTRIBUTING.md, docs/ and examples/. Python snippets are run by python/tests/test_docs.py.

A fenced block says its language, `text` where it is none. C and C++ blocks are programs, or parts of the program in
tests/snippets that the line `<!-- in tests/snippets/NAME -->` before the block names. A command of the shell ends well;
one for CUDA may say that there is no device. Commands in scripts/ that install and build are not run here but must be
there. A command that needs a Python package which is missing is skipped, and said to be. A block behind the line
`<!-- from FILE -->` is a part of that file and must stand there.
Usage: test_snippets.py BUILD_DIR"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"(?:^<!-- (in tests/snippets/\S+|from \S+) -->\n)?^```(.*)\n((?:.*\n)*?)^```$", re.M)
# A command among lines that are only shown would never be run.
SHOWN_COMMAND = re.compile(r"^ {4}(?:tessera|build/\S+/tessera) (?:run|check|bench|explain) [^A-Z\[]*$", re.M)
LANGUAGES = {"c", "cpp", "sh", "python", "text"}
BUILDERS = re.compile(r"(scripts/(?:quickstart|test|docs|test_python)\.sh|\.ci/run)\b")
WARNINGS = ["-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def pages():
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def run(arguments, folder, **options):
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, errors="replace", timeout=300, **options
    )


def run_program(language, code, harness, build, folder):
    """Compiles with every warning an error, and runs. What is wrong, or None."""
    compiler = ["c++", "-std=c++20"] if language == "cpp" else ["cc", "-std=c11"]
    snippet = folder / f"snippet.{language}"
    snippet.write_text(code)
    source = snippet
    if harness:
        source = ROOT / harness
        compiler.append(f'-DTESSERA_SNIPPET="{snippet}"')
    built = run(
        [
            *compiler,
            *WARNINGS,
            str(source),
            "-o",
            str(folder / "program"),
            f"-I{ROOT / 'include'}",
            f"-L{build}",
            "-ltessera",
        ],
        folder,
    )
    if built.returncode:
        return built.stderr
    done = run([str(folder / "program")], folder, env=dict(os.environ, LD_LIBRARY_PATH=str(build)))
    return None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def run_command(line, environment, folder):
    """(what is wrong or None, why it was skipped or None)"""
    builder = BUILDERS.match(line)
    if builder:
        there = os.access(ROOT / builder[1], os.X_OK)
        return (None, "it installs and builds") if there else (f"no program {builder[1]}", None)
    done = run(["bash", "-euo", "pipefail", "-c", line], folder, env=environment)
    told = done.stdout + done.stderr
    if done.returncode == 0:
        return None, None
    if (
        done.returncode == 3
        and re.search(r"\bcuda\b", line)
        and re.search("no CUDA device|no NVIDIA driver|no CUDA kernels|no kernel for CUDA", told)
    ):
        return None, "no CUDA here"
    absent = re.search("No module named '?([a-z_]+)", told)
    if absent:
        return None, f"{absent[1]} is not installed"
    return f"exit code {done.returncode}\n{told}", None


def commands(code):
    """Commands of a block: a line each, joined where one ends in a backslash."""
    return [line for line in re.sub(r"\\\n\s*", " ", code).split("\n") if line.strip() and line[0] != "#"]


def shell_folder(build, folder):
    """A folder with the sample's arrays in which the tree's own folders seem to lie."""
    for name in ("scripts", "examples", "bench", "python", "docs"):
        (folder / name).symlink_to(ROOT / name)
    for sample in (ROOT / "examples" / "sample").glob("*.npy"):
        shutil.copy(sample, folder)
    return dict(
        os.environ,
        PATH=f"{build}:{os.environ['PATH']}",
        TESSERA_LIBRARY=str(build / "libtessera.so"),
        PYTHONPATH=str(ROOT / "python"),
    )


def run_block(language, code, remark, build, folder):
    """Problems of a block. `remark`: `in HARNESS`, `from FILE` or nothing."""
    relation, _, harness = (remark or "").partition(" ")
    if relation == "from":
        there = (ROOT / harness).is_file() and code in (ROOT / harness).read_text(encoding="utf-8")
        return [] if there else [f"not in {harness}:\n{code}"]
    if language in ("c", "cpp"):
        if harness and not (ROOT / harness).is_file():
            return [f"no file {harness}"]
        wrong = run_program(language, code, harness, build, folder)
        return [wrong] if wrong else []
    if language != "sh":
        return []
    problems, environment = [], shell_folder(build, folder)
    for line in commands(code):
        wrong, skipped = run_command(line, environment, folder)
        if skipped:
            print(f"  not run: {line.strip()}: {skipped}")
        if wrong:
            problems.append(f"{line}\n{wrong}")
    return problems


def self_test(build):
    """Each kind of snippet fails once; a runner that finds nothing is caught here."""
    wrong = [
        ("cpp", "int main() { return 1; }\n"),
        ("c", "int main(void) { int x; return 0; }\n"),
        ("sh", "tessera check nonsense\n"),
        ("sh", "scripts/absent.sh\n"),
        ("sh", "false \\\n  | true\n"),
    ]
    right = [("cpp", "int main() {}\n"), ("sh", "# a remark\ntessera devices >devices.txt\ngrep -q cpu devices.txt\n")]
    for language, code in wrong + right:
        with tempfile.TemporaryDirectory() as scratch:
            found = run_block(language, code, None, build, pathlib.Path(scratch))
            if bool(found) != ((language, code) in wrong):
                sys.exit(f"self-test: {code!r} gave {found}")
    for file in ("scripts/test_snippets.py", "scripts/absent.py"):
        if not run_block("cpp", "int nowhere;\n", f"from {file}", build, ROOT):
            sys.exit(f"self-test: a block that is not in {file} was found there")


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1], "libtessera.so").is_file():
        print(f"{__doc__}\nexpected a build folder with libtessera.so")
        return 2
    build = pathlib.Path(sys.argv[1]).resolve()
    self_test(build)
    failed = count = 0
    for page in pages():
        name, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        problems = [f"shown, not run: {line}" for line in SHOWN_COMMAND.findall(FENCE.sub("", text))]
        if text.count("\n```") % 2:
            problems.append("a block that never ends")
        for remark, language, code in FENCE.findall(text):
            if language not in LANGUAGES:
                problems.append(f"a block of language '{language}', expected {', '.join(sorted(LANGUAGES))}")
                continue
            count += language in ("c", "cpp", "sh")
            with tempfile.TemporaryDirectory() as scratch:
                problems += run_block(language, code, remark, build, pathlib.Path(scratch))
        for problem in problems:
            print(f"{name}: {problem}")
        failed += len(problems)
    print(f"{count} snippets, {failed} problems")
    return 1 if failed or count < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
