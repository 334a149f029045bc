#!/usr/bin/env python3
"""Takes each wait, record and copy that orders a GPU's work out of our code, and other things that a GPU's run needs, one at a time. Says
which of these faults the stand-in finds.

All faults are built in at once, in place, and the environment chooses one (MUTANT); the files are put back before anything runs. A fault is
found when a check fails: one of tests/gpu/check.py, with the race detector or with late streams; or one of failures.py ("failures: ..."); or
of benchmarks/gpu_calls.py ("calls: PLAN"). Exit code 1 if less than 95 % are found.
--list only says whether each fault still has its place in the code.
Usage: mutations.py PYTHON [--only WORD,...] [--list]   PYTHON: the one that tests/reference/install prints. Needs build/cuda and a clean tree."""
import argparse
import os
import subprocess
import sys

# Checks of check.py that run a fault, by what they reach.
THREADS = "schedule 1f1b,schedule zb-v,replicas"
PROCESSES = "processes auto,launch,replicas in processes"
STAGED = "processes gloo"
DEVICE, LIBRARY, NCCL, CHANNEL, LOCAL = (f"runtime/{name}.cpp" for name in (
    "device/cuda_device", "comm/nccl_library", "comm/nccl_communicator", "comm/staged_channel", "comm/local_communicator"))
BORDERS, TIES, SHARDS, RUNNER, TRAFFIC, FIRST = (f"runtime/{name}.cpp" for name in (
    "stage/stage_borders", "stage/tied_exchange", "stage/state_shards", "train/rank_runner", "train/traffic", "train/first_uses"))
# What is lost, file, text, what stands there instead, checks. A text that ends in ';' is a statement, another one an expression.
FAULTS = [
    ("threads: the copy of what is sent", LOCAL, "t.tensor.clone()", "at::Tensor(t.tensor)", THREADS),
    ("device: the record of a mark", DEVICE, "C10_CUDA_CHECK(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream(device)));", "",
     "schedule 1f1b,evaluation"),
    ("device: the wait for a mark", DEVICE, "C10_CUDA_CHECK(cudaEventSynchronize(event_));", "", "schedule 1f1b,evaluation"),
    ("device: page-locked memory for a batch", DEVICE, "return host.to(where(), /*non_blocking=*/true);",
     "at::Tensor made = at::empty_like(host, host.options().pinned_memory(false).device(where())); C10_CUDA_CHECK(cudaMemcpyAsync("
     "made.data_ptr(), host.data_ptr(), host.nbytes(), cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream(index_))); return made;",
     "schedule 1f1b,model resnet18"),
    ("device: the wait for all work", DEVICE, "c10::cuda::device_synchronize();", "", "failures: a profile's wait"),
    ("library: the record of an event", LIBRARY, "C10_CUDA_CHECK(cudaEventRecord(\n        event, stream ? stream_of(stream) : "
     "c10::cuda::getCurrentCUDAStream(device_).stream()));", "", PROCESSES),
    ("library: a stream that follows", LIBRARY, "C10_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event.get()), 0));",
     "", PROCESSES),
    ("library: the question whether it is done", LIBRARY, "      return false;\n", "      return true;\n", PROCESSES),
    ("library: the stream of a sum's additions", LIBRARY, "c10::cuda::getStreamFromExternal(stream_of(stream), device_)",
     "c10::cuda::getCurrentCUDAStream(device_)", "replicas in processes"),
    ("library: the wait for a communicator's end", LIBRARY, "ncclCommFinalize(comm_of(comm))",
     "(static_cast<void>(ncclCommFinalize(comm_of(comm))), ncclSuccess)", PROCESSES),
    ("NCCL: the wait for a connection", NCCL,
     'await(api_.mark(line.stream), line, start, [&](const std::string& problem) {\n'
     '      return "rank " + std::to_string(rank()) + ": " + what + ": " + problem;\n    });', "", PROCESSES),
    ("NCCL: the wait until a group is taken", NCCL, "settle(lines, start, options_.deadline, what);", "", PROCESSES),
    ("NCCL: messages behind the work that makes them", NCCL, "api().follow(part.line.stream,\n                   ready);", "", PROCESSES),
    ("NCCL: the event behind messages", NCCL, "part.done = api().mark(part.line.stream);", "part.done = api().mark(nullptr);", PROCESSES),
    ("NCCL: the wait for messages", NCCL,
     "fabric_->await(part.done, part.line, start, [&](const std::string& what) {\n"
     "        return wait_message(fabric_->rank(), part.transfer, fabric_->clock(), start, what);\n      });", "", PROCESSES),
    ("NCCL: a sum behind the work that makes it", NCCL, "api().follow(sums_.stream, api().mark(nullptr));", "", "replicas in processes"),
    ("NCCL: the event behind a sum", NCCL, "api().mark(sums_.stream)", "api().mark(nullptr)", "replicas in processes"),
    ("NCCL: the wait for a sum", NCCL, "if (!done_) return;", "return;", "replicas in processes"),
    ("NCCL: tensors kept until their sum is done", NCCL, "what_(std::move(what)) {}", "what_(std::move(what)) { tensors_.clear(); }",
     "three replicas in processes"),
    ("NCCL: tensors kept until their messages are through", NCCL, "return std::make_unique<NcclExchange>(fabric_, std::move(far), std::move(near), std::move(on_host));",
     "for (auto& part : far) part.transfer.tensor.reset(); return std::make_unique<NcclExchange>(fabric_, std::move(far), std::move(near), std::move(on_host));",
     PROCESSES),
    ("staged: the wait before a send", CHANNEL, "staged.tensor.copy_(transfer.tensor);", "staged.tensor.copy_(transfer.tensor, true);", STAGED),
    ("staged: the wait for a message", CHANNEL, "message_->wait();", "", STAGED),
    ("stage: the wait for what comes in", BORDERS, "message.pending->wait();", "", PROCESSES),
    ("stage: the wait before sends are dropped", BORDERS, "in_flight.front()->wait();", "", PROCESSES),
    ("stage: the wait for the last sends", BORDERS, "for (auto& pending : in_flight) pending->wait();", "", "evaluation in processes"),
    ("stage: the wait for reduced gradients", "runtime/stage/gradient_reducer.cpp", "for (auto& pending : pending_) pending->wait();", "",
     "replicas in processes"),
    ("ties: the wait for a gradient", TIES, "world_.exchange({&transfer, 1})->wait();", "world_.exchange({&transfer, 1});", "ties in processes"),
    ("ties: the wait for values", TIES, "for (Message& message : messages_) message.pending->wait();", "", "ties in processes"),
    ("ties: the copy of what is sent", TIES, "tensor.clone()", "at::Tensor(tensor)", "ties in processes"),
    ("zero-1: the wait for weights", SHARDS, 'RECEIVE of the updated weights"});\n  }\n'
     "  if (!transfers.empty()) replicas_->exchange(transfers)->wait();",
     'RECEIVE of the updated weights"});\n  }\n  if (!transfers.empty()) replicas_->exchange(transfers);', "zero-1 in processes"),
    ("zero-1: the wait for the rule's state", SHARDS, 'SEND of the rule\'s state"});\n  }\n'
     "  if (!transfers.empty()) replicas_->exchange(transfers)->wait();",
     'SEND of the rule\'s state"});\n  }\n  if (!transfers.empty()) replicas_->exchange(transfers);', "zero-1 in processes"),
    ("batch norm: the wait for sums of replicas", "runtime/stage/stage_executor.h", "replicas.all_reduce(values, what)->wait();",
     "static_cast<void>(replicas.all_reduce(values, what));", "batch norm in processes"),
    ("batch norm: the wait for means of replicas", "runtime/stage/running_statistics.cpp",
     'parts_.replicas->all_reduce(sums, "mean of running statistics, stage " + std::to_string(parts_.stage.value))\n      ->wait();',
     'static_cast<void>(parts_.replicas->all_reduce(sums, "mean of running statistics, stage "));', "batch norm in processes"),
    ("times: the wait for a span's end", RUNNER, "open_.back().end->wait();", "", "schedule 1f1b,evaluation"),
    ("times: the wait for the first mark", RUNNER, "anchor_->wait();", "", "spans in time"),
    ("NCCL: the question again whether a group is taken", NCCL, "if (answer.state == State::Done) break;", "break;", "slow NCCL"),
    ("NCCL: the order of a sum of three", NCCL, "api().run(sums_.stream, [=] { sum_in_order(received, flat); });",
     "api().run(sums_.stream, [=] { sum_in_order({received.rbegin(), received.rend()}, flat); });", "a sum of three in processes"),
    ("NCCL: what tells the peers", NCCL, 'store_->set(kAborted, "rank " + std::to_string(rank()) + ": " + text);', "",
     "failures: a rank that fails"),
    ("NCCL: the end of messages that nobody sends", NCCL, "for (const Line& line : lines_) aborts.emplace_back([this, comm = line.comm] { api_.abort(comm); });", "",
     "failures: a rank that is held up"),
    ("messages: the place in a joined one", BORDERS, "begin += size;", "", "tables in processes"),
    ("pairs: the ends of ties", TRAFFIC, "world.messages.merge(tied_pairs(t.plan, t.layouts[array]));", "", "ties over three stages"),
    ("batch norm: the share of each replica", "runtime/stage/running_statistics.cpp",
     "sums.div_(static_cast<double>(parts_.replicas->size()));", "", "statistics in processes"),
    ("pipedream: the share of each replica", "runtime/train/lane.cpp", "1.0 / held.replicas", "1.0",
     "pipedream in processes"),
    ("device: the share that masks keep", "runtime/layers/dropout_mask.cpp",
     "own.bernoulli_(1 - p, seeded_generator(mask.device(), seeds[i])).div_(1 - p);",
     "own.bernoulli_(1 - p, seeded_generator(mask.device(), seeds[i]));", "masks of the device"),
    ("staged: page-locked memory", CHANNEL, "at::TensorOptions(tensor.scalar_type()).pinned_memory(!tensor.device().is_cpu())",
     "at::TensorOptions(tensor.scalar_type())", "calls: staged"),
    ("weights: gradients that begin at zero", "runtime/stage/parameter_store.cpp", "flat_gradient_.zero_();", "", "schedule 1f1b"),
    ("first uses: the first steps through the host", FIRST, "through_host(world, is_new ? kAllMessages : 0);", "through_host(world, 0);",
     "hazards 1f1b"),
    ("first uses: new sizes through the host", FIRST, "through_host(world, is_new ? kAllMessages : 0);",
     "through_host(world, runs_ < kFirstRuns ? kAllMessages : 0);", "hazards lengths"),
    ("first uses: the first messages of a stream", "runtime/train/stream_loop.cpp",
     "through_host(t_.world.communicator, through_host_);", "through_host(t_.world.communicator, 0);", "hazards pipedream"),
    ("first uses: an evaluation through the host", "runtime/train/evaluations.cpp",
     "first_uses_.begin(t_.world.communicator, {evaluation.batches.get()}, next, end);", "through_host(t_.world.communicator, 0);",
     "hazards evaluation"),
]
WAYS = ({"STANDIN_RACES": "1"}, {"STANDIN_LATE": "1"}, {"STANDIN_LATE": "2"}, {"STANDIN_LATE": "3"})
MACRO = '#include <cstdlib>\n#define MUTANT(n) (::std::getenv("MUTANT") && ::std::atoi(::std::getenv("MUTANT")) == (n))\n'


def with_faults(sound, faults):
    """The file's text with all of its faults, each behind a question."""
    text = sound
    for number, (name, file, was, instead, _) in faults:
        if was.rstrip().endswith(";") and "\n  }\n" not in was:
            made = f"if (MUTANT({number})) {{ {instead} }} else {{ {was} }}"
        elif was.rstrip().endswith((";", "{}")):  # statements that no brace may stand around: the last ones differ
            at = next(i for i, pair in enumerate(zip(was, instead)) if pair[0] != pair[1])
            at = max(was.rfind(";", 0, at), was.rfind("}", 0, at), was.rfind("{", 0, at)) + 1
            made = was[:at] + f" if (MUTANT({number})) {{ {instead[at:].rstrip('}')} }} else {{ {was[at:].rstrip('}')} }}" + (
                "}" if was.endswith("}") else "")
        else:
            made = f"(MUTANT({number}) ? {instead} : {was})"
        text = text.replace(was, made)
    return text


def checks_pass(python, only, way, mutant):
    environment = dict(os.environ, STANDIN_BYTES="8000000000", STANDIN_GPUS="4", MUTANT=str(mutant), **way)
    millrace, run = "build/cuda/bin/millrace", "build/cuda/standin/run"
    command = [python, "tests/gpu/check.py", millrace, "--standin", run, "--only", only]
    if only.startswith("failures: "):
        command = [python, "tests/standin/failures.py", millrace, run, "--only", only.removeprefix("failures: ")]
    if only.startswith("calls: "):
        command = [python, "benchmarks/gpu_calls.py", millrace, run, "--models", "mlp", "--require", "--plans", only.removeprefix("calls: ")]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=400).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def build():
    done = subprocess.run(["cmake", "--build", "build/cuda", "--target", "millrace-worker-cuda"], capture_output=True, text=True)
    return done.returncode == 0 or print(done.stdout[-3000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    faults = [(number, fault) for number, fault in enumerate(FAULTS, 1) if any(word in fault[0] for word in given.only.split(","))]
    files = sorted({fault[1] for _, fault in faults})
    sound = {}
    for file in files:
        with open(file) as opened:
            sound[file] = opened.read()
    lost = [f"{fault[1]} has not exactly one '{fault[2]}' ({fault[0]})" for _, fault in faults if sound[fault[1]].count(fault[2]) != 1]
    if given.list or lost:
        print("\n".join([f"{number:2} {fault[0]}" for number, fault in faults] + lost))
        return 2 if lost else 0
    if subprocess.run(["git", "diff", "--quiet", "--"] + files).returncode != 0:
        sys.exit("mutations: these files have changes that are not committed: " + ", ".join(files))
    try:
        for file in files:
            text = with_faults(sound[file], [fault for fault in [(n, f) for n, f in faults] if fault[1][1] == file])
            with open(file, "w") as opened:
                opened.write(MACRO + text)
        good = build()
    finally:
        for file in files:
            with open(file, "w") as opened:
                opened.write(sound[file])
    if not good:
        return 2
    found, passes = 0, {}
    for number, (name, file, _, _, only) in faults:
        way = None
        for one in ({},) if ": " in only or "hazards" in only else WAYS:
            key = (only, str(one))
            if key not in passes:
                passes[key] = checks_pass(given.python, only, one, 0)
            if not passes[key]:
                sys.exit(f"mutations: without a fault already, '{only}' fails with {one}")
            if not checks_pass(given.python, only, one, number):
                way = one
                break
        found += way is not None
        print(f"{'found by ' + ' '.join(f'{k}={v}' for k, v in way.items()) if way else 'NOT FOUND':26} {name}", flush=True)
    print(f"{found} of {len(faults)} faults found")
    build()
    return 0 if found >= 0.95 * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
