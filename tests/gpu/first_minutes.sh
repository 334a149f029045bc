#!/usr/bin/env bash
# first_minutes.sh SOURCE BUILD: scripts/gpu-first on the stand-in writes a report of a training and of a comparison with PyTorch,
# goes on after a part that fails, and leaves an earlier report as it is.
set -euo pipefail
source=$1 build=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "first_minutes: $1" >&2 && cat "$folder"/*.md >&2 && exit 1; }
[ "$build" = "$source/build/cuda" ] || { echo "first_minutes: the script runs what is in build/cuda" && exit 77; }

"$source/scripts/gpu-first" --standin --only smoke,one --minutes 5 --out "$folder/report.md" || fail "a part failed"
grep -q '^| smoke: .* | passed |' "$folder/report.md" || fail "the report does not say that the training passed"
grep -q '^| 64, 8 | one | [0-9.]* (' "$folder/report.md" || fail "the report has no figure beside PyTorch's"
before=$(cksum <"$folder/report.md")
if "$source/scripts/gpu-first" --standin --only smoke --out "$folder/report.md" 2>"$folder/said"; then fail "it went on with an earlier report"; fi
grep -q 'give another --out' "$folder/said" || fail "it did not say what to do: $(cat "$folder/said")"
[ "$before" = "$(cksum <"$folder/report.md")" ] || fail "an earlier report was changed"

# A GPU without memory: the training fails, the next part has its turn, and the report says so.
code=0
STANDIN_BYTES=1000000 "$source/scripts/gpu-first" --standin --only smoke,predict --out "$folder/failed.md" || code=$?
[ "$code" = 1 ] || fail "exit code $code instead of 1"
grep -q '^| smoke: .*FAILED' "$folder/failed.md" && grep -q '^| predict: .*not on the stand-in' "$folder/failed.md" || fail "not all parts are in the report"
code=0
"$source/scripts/gpu-first" --standin --only smoke --minutes 0.01 --out "$folder/spent.md" || code=$?
[ "$code" = 1 ] && grep -q 'budget is spent' "$folder/spent.md" || fail "the budget is not kept"
