"""Faults of clocks: a rank whose wall clock is wrong, or jumps."""
import json
import shutil
import subprocess
import time

from rig import JOB, Skip, fault, result

# Stands before the C library in every process of a run, and changes what the rank SKEW_RANK takes for the time of day.
SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long seconds_of(clockid_t clock) {
  struct timespec now;
  syscall(SYS_clock_gettime, clock, &now);
  return now.tv_sec;
}
static long begun;
__attribute__((constructor)) static void begin(void) { begun = seconds_of(CLOCK_MONOTONIC); }
static long skew(void) {
  const char *rank = getenv("RANK"), *wanted = getenv("SKEW_RANK");
  if (!rank || !wanted || atoi(rank) != atoi(wanted)) return 0;
  return seconds_of(CLOCK_MONOTONIC) - begun < atol(getenv("SKEW_AFTER")) ? 0 : atol(getenv("SKEW"));
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return failed;
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* to) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (to) *to = exact.tv_sec;
  return exact.tv_sec;
}
"""


def skewing_library(rig):
    compiler = shutil.which("cc")
    if not compiler:
        raise Skip("needs a C compiler, for a library that changes the time of day")
    folder = rig.fresh()
    (folder / "skew.c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "skew.so", folder / "skew.c"], check=True)
    return folder / "skew.so"


def beat_of(out, rank):
    """The rank's time of day, from its status file, which may be written just now."""
    try:
        return json.loads((out / f"status.rank{rank}.json").read_text())["beat"] / 1000
    except (ValueError, KeyError):
        return time.time()


@fault("R14", "a rank whose clock is wrong, or jumps", "trains on bit-equal, is not called lost; a killed rank is still named")
def clocks(rig):
    if rig.quick:
        raise Skip("each trial holds a run up for seconds")
    library, job = skewing_library(rig), {**JOB, "heartbeat": 2}
    rig.reference(job)
    shifts = [(-3600, 0), (3600, 0), (30, 0), (-3600, 1)]
    for rank, (shift, after) in [(rank, shift) for rank in range(4) for shift in shifts]:
        skewed = {"LD_PRELOAD": str(library), "SKEW_RANK": str(rank), "SKEW": str(shift), "SKEW_AFTER": str(after)}
        name = f"rank {rank} by {shift} s" + (" in the run" if after else "")
        run = rig.launch(job, failpoints=f"update:rank={(rank + 1) % 4}:step=12:delay=3.5", **skewed)
        at, states = None, []
        while run.until(run.fired) and states != ["healthy"] * 4 and run.process.poll() is None:
            if abs(beat_of(run.out, rank) - time.time()) > 20:  # so it is wrong
                at = time.monotonic()
                answer = subprocess.run([rig.bin / "millrace", "status", run.out, "--format", "json"], capture_output=True, check=True)
                states = [one["state"] for one in json.loads(answer.stdout)["ranks"]]
        run.wait()
        heads = [json.loads((run.out / f"steps.rank{one}.jsonl").read_text().partition("\n")[0]) for one in range(4)]
        times = [head["unix_ns"] + head["clock_offset_ns"] for head in heads]
        apart = max(times) - min(times)
        words = f"the clock of rank {rank} is " if rank else "ahead of rank 0's" if shift < 0 else "behind rank 0's"
        seen = after or (apart < 10e9 and run.says(words))
        yield rig.ended(name, run, at, run.code == 0 and states == ["healthy"] * 4 and seen, result(run.out) == rig.reference(job),
                        f"{states}, logs are {apart / 1e9:.1f} s apart")
        victim = (rank + 2) % 4
        yield rig.broken(f"{name}, rank {victim} is killed", job, f"update:rank={victim}:step=12:action=kill", {137},
                         [f"millrace launch: rank {victim} ", "killed by signal 9 (SIGKILL)"], **skewed)
