#!/usr/bin/env bash
# An install tree that runs: `cmake --install` into a new folder, which then trains from somewhere else.
#   installed_programs.sh CMAKE BUILD_FOLDER
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" --install "$2" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cd "$work"
cat >job.yaml <<YAML
model: mlp
width: 16
depth: 2
stages: 2
steps: 2
output-dir: out
YAML
env -u LD_LIBRARY_PATH -u MILLRACE_WORKER prefix/bin/millrace launch job.yaml
prefix/bin/millrace report --run out
prefix/bin/millrace dlio --help >/dev/null
grep -q "'trace plot --formats'" prefix/share/bash-completion/completions/millrace
grep -q '"steps": 2' out/summary.json
test -s out/report.html
test -s prefix/share/doc/millrace/LICENSE
