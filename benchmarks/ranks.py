#!/usr/bin/env python3
"""A launch of many ranks that compute nothing: time to start, meet, and stop, memory and processor time of the supervision.

The hosts are made up: a script in the place of ssh starts each agent on this machine. So all that many hosts would do runs
on one machine's cores. `start` is from the command to the last rank's meeting of all others; `supervision` is the processor
time of launcher and agents for each second of the run; `stop` is from Ctrl-C to the launcher's end; `killed` is from a
rank's SIGKILL to the launcher's end, when no process is left. Memory is what the processes have for themselves (PSS).
Usage: ranks.py MILLRACE LIGHT_RANK [--ranks 256,512,1024] [--hosts 16] [--rounds 3]"""
import argparse
import glob
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

WATCHED_S = 5


def processes():
    """Parent and command line of each process."""
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(path + "/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(path + "/cmdline") as file:
                found[int(os.path.basename(path))] = (parent, file.read())
        except OSError:
            pass
    return found


def family(root):
    """The launcher, its agents and its ranks."""
    children = {}
    everyone = processes()
    for pid, (parent, _) in everyone.items():
        children.setdefault(parent, []).append(pid)
    todo, agents, ranks = [root], [], []
    while todo:
        pid = todo.pop()
        (ranks if "light_rank" in everyone[pid][1] and pid != root else agents).append(pid)
        todo += children.get(pid, [])
    agents.remove(root)
    return agents, ranks


def pss(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total * 1024


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def logged(ranks):
    times = []
    for rank in range(ranks):
        try:
            with open(f"run/logs/rank_{rank}.out") as file:
                words = file.read().split()
        except OSError:
            return None
        if len(words) < 2 or words[0] != "met":
            return None
        times.append(float(words[1]))
    return times


def launch(millrace, light, ranks, hosts):
    entries = ",".join(f"127.0.1.{h + 1}:{ranks // hosts}" for h in range(hosts))
    with open("job.yaml", "w") as file:
        file.write(f"model: mlp\nstages: {hosts}\nreplicas: {ranks // hosts}\nsteps: 1\nworker: {light}\nhosts: '{entries}'\nclient: {os.getcwd()}/enter\n"
                   "output_dir: run\noverwrite: true\ntimeout: 300\n")
    shutil.rmtree("run", ignore_errors=True)
    start = time.time()
    log = open("launch.log", "w")
    launcher = subprocess.Popen([millrace, "launch", "job.yaml"], stdout=log, stderr=log)
    times = None
    while not times:
        if launcher.poll() is not None or time.time() > start + 300:
            launcher.kill()
            sys.exit(f"{open('launch.log').read()[-3000:]}the ranks did not meet")
        time.sleep(0.1)
        times = logged(ranks)
    return launcher, max(times) - start


def ended(launcher, since, code):
    launcher.wait(timeout=120)
    seconds = time.time() - since
    if launcher.returncode != code:
        sys.exit(f"{open('launch.log').read()[-3000:]}exit code {launcher.returncode}, expected {code}")
    return seconds


def round_of(millrace, light, ranks, hosts):
    launcher, start = launch(millrace, light, ranks, hosts)
    agents, members = family(launcher.pid)
    supervisors = [launcher.pid] + agents
    before, began = cpu_seconds(supervisors), time.time()
    time.sleep(WATCHED_S)
    share = (cpu_seconds(supervisors) - before) / (time.time() - began)
    memory = pss([launcher.pid]), pss(agents), pss(members)
    since = time.time()
    launcher.send_signal(signal.SIGINT)
    stop = ended(launcher, since, 75)
    launcher, _ = launch(millrace, light, ranks, hosts)
    _, members = family(launcher.pid)
    since = time.time()
    os.kill(random.choice(members), signal.SIGKILL)
    killed = ended(launcher, since, 137)
    left = [pid for pid, (_, words) in processes().items() if "light_rank" in words and "launch" not in words and "ranks.py" not in words]
    if left:
        sys.exit(f"processes are left: {left}")
    return (start, share, *memory, stop, killed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("millrace")
    parser.add_argument("light_rank")
    parser.add_argument("--ranks", default="256,512,1024")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    millrace, light = os.path.abspath(given.millrace), os.path.abspath(given.light_rank)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    print("| ranks | start, s | supervision, cores | launcher, MB | agents, MB | ranks, MB | stop, s | killed, s |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("enter", "w") as file:
            file.write('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec "$@"\n')
        os.chmod("enter", 0o755)
        for ranks in map(int, given.ranks.split(",")):
            rows = [round_of(millrace, light, ranks, given.hosts) for _ in range(given.rounds)]
            start, share, launcher, agents, members, stop, killed = (statistics.median(column) for column in zip(*rows))
            print(f"| {ranks} | {start:.2f} | {share:.3f} | {launcher / 1e6:.1f} | {agents / 1e6:.1f} | {members / 1e6:.1f} | {stop:.2f} | {killed:.2f} |", flush=True)


if __name__ == "__main__":
    main()
