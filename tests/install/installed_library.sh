#!/usr/bin/env bash
# The installed library: all examples are configured, compiled and run against an install tree, without anything of the
# source tree but the examples themselves.
#   installed_library.sh CMAKE BUILD_FOLDER SOURCE_FOLDER CXX [LAUNCHER...]
# The folder is the same each time, so that a compiler cache knows what was compiled before.
set -euo pipefail
cmake=$1 build=$2 source=$3 cxx=$4
launcher=$(IFS=';'; echo "${*:5}")
work=$build/tests/installed-library
rm -rf "$work"
mkdir -p "$work"
cd "$work"
unset LD_LIBRARY_PATH MILLRACE_WORKER MILLRACE_LIBTORCH
fail() { echo "installed_library: $1" >&2; exit 1; }
quietly() { "$@" >log 2>&1 || { cat log >&2; fail "failed: $*"; }; }

quietly "$cmake" --install "$build" --prefix prefix
# Nothing that is installed names the source tree (LibTorch may lie anywhere).
if grep -rl "$source/" prefix/lib/cmake prefix/include | grep -q .; then fail "the package names the source tree"; fi
test -s prefix/include/millrace/millrace.h || fail "no millrace.h"
cp -r prefix/share/doc/millrace/examples examples
wc -l <examples/own_model/main.cpp | { read -r lines; [ "$lines" -lt 150 ] || fail "own_model has $lines lines"; }
quietly "$cmake" -S examples -B examples-build -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-restrict -O1" \
  -DCMAKE_BUILD_TYPE=None
quietly "$cmake" --build examples-build --parallel 2
if "$cmake" -S examples/bert -B refused -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DMILLRACE_LIBTORCH=/nowhere >log 2>&1; then fail "found a LibTorch in /nowhere"; fi
grep -q "No LibTorch in '/nowhere'" log || { cat log; fail "no word of where LibTorch was looked for"; }

# What docs/your-model.md shows is what was compiled. Its classes are whole, so that they compile where they are pasted.
python3 - "$source/docs/your-model.md" examples/own_model/main.cpp <<'PYTHON' || fail "docs/your-model.md shows what the example does not have"
import re, sys
page, example = (open(path).read() for path in sys.argv[1:])
known = [line.strip() for line in example.splitlines()]
blocks = [[line.strip() for line in block.splitlines()] for block in re.findall(r"```cpp\n(.*?)```", page, re.S)]
shown = [line for block in blocks for line in block]
strange = [line for line in shown if line not in known]
text = "\n".join(known)
strange += ["not whole: " + b[0] for b in blocks if b[0].startswith("class ") and (b[-1] != "};" or "\n".join(b) not in text)]
strange += ["outside of its class: " + line for b in blocks for line in b if " override {" in line and not b[0].startswith("class ")]
print("\n".join(strange), file=sys.stderr)
sys.exit(bool(strange) or not shown)
PYTHON

own=examples-build/own_model/own_model
losses() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/summary.json"))["losses"])' "$1"; }

# ---- by hand: a Trainer, step by step
quietly $own by-hand
[ "$(grep -c '^step' log)" = 20 ] || { cat log; fail "20 steps were asked for"; }
grep -q "two stages: the same losses" log || { cat log; fail "a pipeline of threads has other losses"; }

# ---- with every flag: models and data of its own, their options, profile, plan, train
quietly $own models
grep -q "^waves " log || fail "models does not list its own"
grep -q "^resnet50 " log || fail "models does not list millrace's"
quietly $own train --help
tr -s ' \n' ' ' <log | grep -q "Of this program: waves" || fail "train --help does not know its data"
quietly $own profile --model waves --width 16 --microbatch 8 --repetitions 2 --blocks 1 --out profile.json
quietly $own plan --profile profile.json --stages 2 --straight --microbatches 4 --out plan.json
train="--model waves --width 16 --data waves --microbatch 8 --microbatches 4 --steps 12 --lr 0.05"
quietly $own train $train --output-dir one
quietly $own train $train --plan plan.json --output-dir threads
[ "$(losses one)" = "$(losses threads)" ] || fail "two threads have other losses than one"
grep -q absolute_error one/summary.json || fail "the head's second sum is not in the summary"
quietly $own train $train --precision bfloat16
if $own train $train --width 0 2>log; then fail "took a width of 0"; fi
grep -q -- "--width" log || { cat log; fail "no word of --width"; }
if $own trian 2>log; then fail "took a command that there is none of"; fi
grep -q "did you mean 'train'" log || { cat log; fail "no nearest command"; }

# ---- it is its own worker, by its own launch and by millrace's
cat >job.yaml <<YAML
model: waves
width: 16
data: waves
stages: 2
schedule: zb-h1
microbatch: 8
microbatches: 4
steps: 12
lr: 0.05
YAML
quietly $own launch job.yaml --output-dir launched
quietly prefix/bin/millrace launch --worker $own job.yaml --output-dir by-millrace
for run in launched by-millrace; do [ "$(losses one)" = "$(losses $run)" ] || fail "$run has other losses"; done
grep -q "^worker: $own" by-millrace/job.yaml || fail "the job does not record its worker"
quietly prefix/bin/millrace report --run by-millrace
if prefix/bin/millrace launch --worker ./nothing job.yaml 2>log; then fail "started a worker that is not there"; fi
grep -q "nothing: .*cannot be started" log || { cat log; fail "no word of the missing worker"; }
if prefix/bin/millrace launch --worker $own job.yaml --set widht=3 -o typo 2>log; then fail "took widht"; fi
grep -q "did you mean 'width'" log || { cat log; fail "the worker's options are not known"; }

# ---- a new project, and a program without CMake
quietly prefix/bin/millrace new my-model --dir project
for refused in "my-model --dir project" "resnet18" "My" "test" "x --dir log"; do
  # shellcheck disable=SC2086
  if prefix/bin/millrace new $refused >/dev/null 2>refusal; then fail "millrace new took $refused"; fi
  grep -q Hint refusal || { cat refusal; fail "no hint for millrace new $refused"; }
done
quietly "$cmake" -S project -B project/build -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-restrict -O1" \
  -DCMAKE_BUILD_TYPE=None
quietly "$cmake" --build project/build --parallel 2
quietly project/build/model_test
grep -q "after 100 steps" log || { cat log; fail "the new project's test says nothing"; }
quietly project/build/my-model train --model my-model --data circles --stages 2 --steps 10 --depth 2 --rule adam --output-dir project/run  # as in its README
(cd project && ../project/build/my-model launch job.yaml --set steps=10 >log 2>&1) || { cat project/log; fail "the new job failed"; }
cat >without_cmake.cpp <<'CPP'
#include <millrace/program.h>
int main(int argc, char** argv) { return millrace::run_program(argc, argv, {}); }
CPP
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
[ "$(pkg-config --modversion millrace)" = "$(prefix/bin/millrace --version | sed 's/.* //')" ] || fail "millrace.pc has another version"
# shellcheck disable=SC2046
quietly ${launcher//;/ } "$cxx" -O1 $(pkg-config --cflags millrace) -c without_cmake.cpp -o without_cmake.o
# shellcheck disable=SC2046
quietly "$cxx" without_cmake.o $(pkg-config --libs millrace) -o without_cmake
quietly ./without_cmake train --model mlp --width 16 --steps 2

# ---- the other examples, small
python3 - <<'PYTHON'
import os, random
random.seed(1)
os.makedirs("cifar")
for name, records in (("data_batch_1.bin", 40), ("data_batch_2.bin", 24), ("test_batch.bin", 16)):
    with open("cifar/" + name, "wb") as out:
        for _ in range(records):
            label = random.randrange(10)
            out.write(bytes([label]) + bytes(random.randrange(25) + label * 20 for _ in range(3072)))
PYTHON
quietly examples-build/vgg_cifar/vgg_cifar train --model vgg11_cifar --data cifar10:cifar --microbatch 8 --microbatches 2 \
  --stages 2 --steps 3 --lr 0.01
grep -q "evaluation: loss" log || { cat log; fail "vgg_cifar was not evaluated"; }
if examples-build/vgg_cifar/vgg_cifar train --model vgg11_cifar --data cifar10:nowhere --steps 1 2>log; then fail "read nowhere"; fi
grep -q "has no data_batch" log || { cat log; fail "no word of missing files"; }
quietly prefix/bin/millrace data generate --workload images --out images --size 300kB --classes 3 --image-side 48
mkdir -p folder
[ -d images/train ] && mv images/train images/val folder/ 2>/dev/null || { mkdir -p folder/train; mv images/* folder/train/; }
quietly examples-build/resnet_imagenet/resnet_imagenet folder resnet18 32 2 2
grep -q "loss" log || { cat log; fail "resnet_imagenet has no loss"; }
quietly examples-build/gnmt/gnmt synthetic:128 2 4
grep -q "evaluation perplexity" log || { cat log; fail "gnmt was not evaluated"; }
quietly examples-build/bert/bert synthetic:64 10
grep -q "step 10 loss" log || { cat log; fail "bert did not come to step 10"; }
rm -rf "$work"
echo "installed_library: ok"
