"""Step time of one process, one thread, in float32 and bfloat16: precision.py MILLRACE [ROUNDS [float16]]. Runs
alternate; medians over the rounds of the median step. The first line names what of this CPU decides the outcome.
float16 is measured only if it is asked for: without units for it a step can take half a minute."""
import json
import statistics
import subprocess
import sys

MODELS = {
    "mlp, width 2048": "--model mlp --width 2048 --classes 2048 --depth 4 --microbatch 64 --microbatches 2",
    "vgg16, 32 x 32": "--model vgg16 --image-size 32 --classes 10 --microbatch 16 --microbatches 2",
    "resnet18, 64 x 64": "--model resnet18 --image-size 64 --classes 10 --microbatch 16 --microbatches 2",
    "transformer_lm": "--model transformer_lm --microbatch 8 --microbatches 2",
}

millrace, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
PRECISIONS = ["float32", "bfloat16", *sys.argv[3:]]
flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "").split()
units = [unit for unit in ("avx512f", "avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16") if unit in flags]
print("CPU:", " ".join(units) or "none of avx512f, avx512_bf16, amx_bf16, avx512_fp16, amx_fp16")
print(f"{'model':20}" + "".join(f"{p:>12}" for p in PRECISIONS) + "   ms/step")
for name, options in MODELS.items():
    times = {p: [] for p in PRECISIONS}
    for _ in range(rounds):
        for precision in PRECISIONS:
            command = [millrace, "train", *options.split(), "--steps", "6", "--no-evaluation", "--threads", "1",
                       "--precision", precision, "--format", "json"]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode != 0:
                sys.exit(f"{' '.join(command)}\n{ran.stderr}")
            times[precision].append(json.loads(ran.stdout)["median_step_s"])
    print(f"{name:20}" + "".join(f"{statistics.median(times[p]) * 1e3:12.1f}" for p in PRECISIONS), flush=True)
