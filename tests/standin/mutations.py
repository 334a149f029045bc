#!/usr/bin/env python3
"""Takes the waits out of the GPU's code, one at a time, and says which of these faults the stand-in finds.

Each fault is one line of the product that is changed in place, built, tried with the race detector and with late streams,
and put back. A fault is found when a check fails or the detector names a race. Exit code 1 if less than 95 % are found.
Usage: mutations.py PYTHON [--only WORD]    PYTHON: the one that tests/reference/install prints. Needs build/cuda and a clean tree."""
import argparse
import os
import subprocess
import sys

# What is lost, file, text, replacement, and what runs: checks of tests/gpu/check.py.
THREADS, PROCESSES = "schedule 1f1b,schedule zb-v,replicas", "processes auto,launch,replicas in processes"
LOCAL, DEVICE, NCCL, STAGED = (f"runtime/{name}.cpp" for name in
                               ("comm/local_communicator", "device/cuda_device", "comm/nccl_library", "comm/staged_channel"))
FAULTS = [
    ("threads: the copy of what is sent", LOCAL, "at::Tensor copy = t.tensor.clone();", "at::Tensor copy = t.tensor;", THREADS),
    ("device: the record of a mark", DEVICE,
     "C10_CUDA_CHECK(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream(device)));", "static_cast<void>(device);",
     "schedule 1f1b,processes gloo,evaluation"),
    ("device: the wait for page-locked memory", DEVICE, "if (host.device().is_cpu() && !host.is_pinned()) host = host.pin_memory();\n"
     "    return host.to(where(), /*non_blocking=*/true);",
     "at::Tensor made = at::empty_like(host, host.options().device(where()));\n    C10_CUDA_CHECK(cudaMemcpyAsync(made.data_ptr(), host.data_ptr(), "
     "host.nbytes(), cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream(index_)));\n    return made;", "schedule 1f1b,model resnet18"),
    ("NCCL: the record of an event", NCCL, "C10_CUDA_CHECK(cudaEventRecord(\n        event, stream ? stream_of(stream) : "
     "c10::cuda::getCurrentCUDAStream(device_).stream()));", "static_cast<void>(stream);", PROCESSES),
    ("NCCL: a stream that follows", NCCL,
     "C10_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event.get()), 0));",
     "static_cast<void>(stream), static_cast<void>(event);", PROCESSES),
    ("NCCL: the question whether it is done", NCCL, "if (state == cudaErrorNotReady) {\n      static_cast<void>(cudaGetLastError());\n"
     "      return false;", "if (state == cudaErrorNotReady) {\n      static_cast<void>(cudaGetLastError());\n      return true;", PROCESSES),
    ("NCCL: the sum on its own stream", NCCL,
     "const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream_of(stream), device_));",
     "static_cast<void>(stream);", PROCESSES),
    ("staged: the wait before a send", STAGED, "staged.tensor.copy_(transfer.tensor);", "staged.tensor.copy_(transfer.tensor, true);",
     "processes gloo"),
]
WAYS = ({"STANDIN_RACES": "1"}, {"STANDIN_LATE": "1"}, {"STANDIN_LATE": "2"}, {"STANDIN_LATE": "3"})


def checks_pass(python, only, way):
    environment = dict(os.environ, STANDIN_BYTES="8000000000", STANDIN_GPUS="4", **way)
    try:
        done = subprocess.run([python, "tests/gpu/check.py", "build/cuda/bin/millrace", "--standin", "build/cuda/standin/run", "--only", only],
                              env=environment, capture_output=True, text=True, timeout=280)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def build():
    done = subprocess.run(["cmake", "--build", "build/cuda", "--target", "millrace-worker-cuda"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-3000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    files = sorted({fault[1] for fault in FAULTS})
    if subprocess.run(["git", "diff", "--quiet", "--"] + files).returncode != 0:
        sys.exit("mutations: these files have changes that are not committed: " + ", ".join(files))
    faults = [fault for fault in FAULTS if given.only in fault[0]]
    found = 0
    build()
    for only in sorted({fault[4] for fault in faults}):
        for way in WAYS:
            if not checks_pass(given.python, only, way):
                sys.exit(f"mutations: without a fault already, '{only}' fails with {way}")
    for name, file, text, replacement, only in faults:
        with open(file) as opened:
            sound = opened.read()
        if sound.count(text) != 1:
            sys.exit(f"mutations: {file} has not exactly one '{text}'")
        try:
            with open(file, "w") as opened:
                opened.write(sound.replace(text, replacement))
            build()
            way = next((way for way in WAYS if not checks_pass(given.python, only, way)), None)
        finally:
            with open(file, "w") as opened:
                opened.write(sound)
        found += way is not None
        print(f"{'found by ' + ' '.join(f'{k}={v}' for k, v in way.items()) if way else 'NOT FOUND':26} {name}", flush=True)
    build()
    print(f"{found} of {len(faults)} faults found")
    return 0 if found >= 0.95 * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
