#!/usr/bin/env bash
# Builds README.md, CONTRIBUTING.md and docs/ into a site, build/site, by MkDocs in build/venv-docs. A link to a page,
# an anchor, a picture or a file of the tree that is not there fails; addresses outside are not fetched. Safe to run
# again.
# Usage: docs.sh [--self-test]   --self-test: also that links and anchors to nothing do fail
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
[ $# -eq 0 ] || [ "$*" = --self-test ] || fail "docs.sh: $*, expected nothing or --self-test"
need_packages python3=python3 python3-venv=py:ensurepip git=git

environment=build/venv-docs
if ! "$environment/bin/python" -c 'import mkdocs' 2>/dev/null; then
  say "environment $environment"
  python3 -m venv --clear "$environment"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check mkdocs==1.6.1
fi

# Pages link to sources and result files too, so the site is made of a copy of the tree, without what is data.
stage() {
  rm -rf build/docs
  mkdir -p build/docs
  git ls-files -z --cached --others --exclude-standard -- ':!fuzz/corpus' ':!*.safetensors' ':!*.npy' |
    while IFS= read -r -d '' path; do [ ! -f "$path" ] || printf '%s\0' "$path"; done |
    xargs -0 cp --parents -t build/docs
}

# Not --quiet: what is not shown does not count as a warning.
build() { "$environment/bin/mkdocs" build --strict >build/docs.log 2>&1; }

stage
if [ "${1:-}" = --self-test ]; then
  cp build/docs/README.md build/README.kept
  for wrong in '[x](docs/absent.md)' '[x](docs/cli.md#absent)' '[x](src/absent.hpp)' '[x](#absent)'; do
    printf '\n%s\n' "$wrong" >>build/docs/README.md
    ! build || fail "docs.sh: $wrong was not found out"
    grep -q "WARNING.*README.md" build/docs.log ||
      { cat build/docs.log; fail "docs.sh: $wrong failed for another reason"; }
    cp build/README.kept build/docs/README.md
  done
fi
build || { grep -v '^INFO' build/docs.log; fail "docs.sh: the site was not built"; }
echo "build/site/index.html: $(find build/site -name '*.html' | wc -l) pages"
