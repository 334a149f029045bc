#!/usr/bin/env python3
"""A launch of many ranks: time to start, meet, and stop, memory, supervision; with --train, what joins ranks that train.

The hosts are made up: a script in the place of ssh starts each agent on this machine. So all that many hosts would do runs
on one machine's cores. `start` is from the command to the last rank's meeting of all others; `supervision` is the processor
time of launcher and agents for each second of the run; `stop` is from Ctrl-C to the launcher's end; `killed` is from a
rank's SIGKILL to the launcher's end, when no process is left. Memory is what the processes have for themselves (PSS).

With --train the ranks train a small mlp, a stage on each host with a replica on each of its ranks. The hosts are network and
process namespaces of this machine at one bridge (needs root and ip). `connections` are those of the host with the most of
them; `values` are set in the store, and `reads` are the times that one was read; `segments` are all that the hosts send over TCP
for each step, `start` is from the command to the end of rank 0's first step. --ranks-a-host N makes ranks / N hosts.
Usage: ranks.py MILLRACE LIGHT_RANK [--ranks 256,512,1024] [--hosts 16] [--rounds 3] [--train] [--ranks-a-host 8]"""
import argparse
import glob
import os
import random
import re
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
        (ranks if ("light_rank" in everyone[pid][1] or "millrace-worker" in everyone[pid][1].split("\0")[0]) and pid != root else agents).append(pid)
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


def launch(millrace, ranks, hosts, address, keys, begun, patience=300):
    """Starts the job. Returns the launcher and, once `begun()` returns something, that and the seconds until then."""
    entries = ",".join(f"{address(h)}:{ranks // hosts}" for h in range(hosts))
    with open("job.yaml", "w") as file:
        file.write(f"model: mlp\nstages: {hosts}\nreplicas: {ranks // hosts}\nhosts: '{entries}'\nclient: {os.getcwd()}/enter\n"
                   f"output_dir: run\noverwrite: true\ntimeout: {patience}\n{keys}")
    shutil.rmtree("run", ignore_errors=True)
    start = time.time()
    log = open("launch.log", "w")
    launcher = subprocess.Popen([millrace, "launch", "job.yaml"], stdout=log, stderr=log)
    found = None
    while not found:
        if launcher.poll() is not None or time.time() > start + patience:
            launcher.kill()
            sys.exit(f"{open('launch.log').read()[-3000:]}the ranks did not meet")
        time.sleep(0.1)
        found = begun()
    return launcher, found, time.time() - start


def launch_light(millrace, light, ranks, hosts):
    began = time.time()
    launcher, times, _ = launch(millrace, ranks, hosts, lambda host: f"127.0.1.{host + 1}", f"steps: 1\nworker: {light}\n", lambda: logged(ranks))
    return launcher, max(times) - began


def ended(launcher, since, code):
    launcher.wait(timeout=120)
    seconds = time.time() - since
    if launcher.returncode != code:
        sys.exit(f"{open('launch.log').read()[-3000:]}exit code {launcher.returncode}, expected {code}")
    return seconds


class Namespaces:
    """Hosts at one bridge, and a program that is called like ssh and enters one."""

    def __init__(self, count):
        self.bridge = f"mrb{os.getpid()}"
        self.names = [f"mr{os.getpid()}-{host}" for host in range(count)]
        with open("enter", "w") as file:
            file.write('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2; shift 2\nIFS=. read -r _ _ high low <<EOF\n$host\nEOF\n'
                       f'exec ip netns exec "mr{os.getpid()}-$((high * 250 + low - 1))" unshare --pid --fork --kill-child --mount-proc sh -c "$*"\n')
        os.chmod("enter", 0o755)

    @staticmethod
    def address(host):
        return f"10.81.{host // 250}.{host % 250 + 1}"

    def __enter__(self):
        commands = [f"link add {self.bridge} type bridge", f"link set {self.bridge} up"]
        for host, name in enumerate(self.names):
            end = f"{self.bridge}-{host}"[-15:]
            commands += [f"netns add {name}", f"link add {end} type veth peer name e0 netns {name}", f"link set {end} master {self.bridge} up",
                         f"-n {name} addr add {self.address(host)}/16 dev e0", f"-n {name} link set e0 up", f"-n {name} link set lo up"]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], check=False)

    def read(self, file):
        return [subprocess.run(["ip", "netns", "exec", name, "cat", file], check=True, capture_output=True, text=True).stdout for name in self.names]

    def segments(self):
        lines = [[line.split() for line in text.splitlines() if line.startswith("Tcp:")] for text in self.read("/proc/net/snmp")]
        return sum(int(values[names.index("OutSegs")]) for names, values in lines)

    def connections(self):
        return max(sum(line.split()[3] == "01" for line in text.splitlines()[1:]) for text in self.read("/proc/net/tcp"))


def step_of_rank_0():
    try:
        with open("run/status.rank0.json") as file:
            return int(re.search(r'"step": ?(\d+)', file.read()).group(1))
    except (OSError, AttributeError):
        return 0


def trained(millrace, ranks, hosts):
    with Namespaces(hosts) as namespaces:
        keys = f"width: 4\ndepth: {hosts}\nmicrobatch: 1\nmicrobatches: {ranks // hosts}\ndata: 'synthetic:{ranks}'\nsteps: 100000000\nthreads: 1\nno_evaluation: true\n"
        launcher, _, start = launch(millrace, ranks, hosts, namespaces.address, keys, lambda: step_of_rank_0() > 1, 900)
        time.sleep(WATCHED_S)  # the first steps still connect
        first, began = step_of_rank_0(), time.time()
        before = namespaces.segments()
        while step_of_rank_0() < first + 20 and time.time() < began + 120:
            time.sleep(0.5)
        steps = step_of_rank_0() - first
        segments = (namespaces.segments() - before) / steps
        connections = namespaces.connections()
        _, members = family(launcher.pid)
        memory = pss(members)
        since = time.time()
        launcher.send_signal(signal.SIGINT)
        stop = ended(launcher, since, 75)
    with open("run/logs/rank_0.err") as file:
        met = re.search(r"met by (\d+) values, read (\d+) times", file.read())
    return start, connections, *map(int, met.groups()), segments, memory, stop


def round_of(millrace, light, ranks, hosts):
    launcher, start = launch_light(millrace, light, ranks, hosts)
    agents, members = family(launcher.pid)
    supervisors = [launcher.pid] + agents
    before, began = cpu_seconds(supervisors), time.time()
    time.sleep(WATCHED_S)
    share = (cpu_seconds(supervisors) - before) / (time.time() - began)
    memory = pss([launcher.pid]), pss(agents), pss(members)
    since = time.time()
    launcher.send_signal(signal.SIGINT)
    stop = ended(launcher, since, 75)
    launcher, _ = launch_light(millrace, light, ranks, hosts)
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
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--ranks-a-host", type=int)
    given = parser.parse_args()
    millrace, light = os.path.abspath(given.millrace), os.path.abspath(given.light_rank)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    columns = (["hosts", "start, s", "connections", "values", "reads", "segments", "ranks, MB", "stop, s"] if given.train
               else ["start, s", "supervision, cores", "launcher, MB", "agents, MB", "ranks, MB", "stop, s", "killed, s"])
    print("| ranks | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("enter", "w") as file:
            file.write('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec "$@"\n')
        os.chmod("enter", 0o755)
        for ranks in map(int, given.ranks.split(",")):
            hosts = ranks // given.ranks_a_host if given.ranks_a_host else given.hosts
            if given.train:
                rows = [trained(millrace, ranks, hosts) for _ in range(given.rounds)]
                start, connections, values, reads, segments, memory, stop = (statistics.median(column) for column in zip(*rows))
                print(f"| {ranks} | {hosts} | {start:.1f} | {connections:.0f} | {values:.0f} | {reads:.0f} | {segments:.0f} | {memory / 1e6:.0f} | {stop:.1f} |", flush=True)
                continue
            rows = [round_of(millrace, light, ranks, hosts) for _ in range(given.rounds)]
            start, share, launcher, agents, members, stop, killed = (statistics.median(column) for column in zip(*rows))
            print(f"| {ranks} | {start:.2f} | {share:.3f} | {launcher / 1e6:.1f} | {agents / 1e6:.1f} | {members / 1e6:.1f} | {stop:.2f} | {killed:.2f} |", flush=True)


if __name__ == "__main__":
    main()
