"""Faults of networks: partitions and slow links between two hosts in network namespaces, ports, strangers."""
import os
import pathlib
import socket
import subprocess
import time

from relay import Relay
from rig import JOB, TWO, Skip, Trial, fault, processes_in, result

TCP = {**TWO, "backend": "tcp", "timeout": 3, "steps": 40}


def need_namespaces():
    if os.geteuid() != 0:
        raise Skip("needs root, to make network namespaces")
    name = f"mrf-probe-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    except FileNotFoundError:
        raise Skip("needs ip (Debian: iproute2)") from None
    if made:
        subprocess.run(["ip", "netns", "delete", name])
    if not made or not os.path.exists("/dev/net/tun"):
        raise Skip("network namespaces or /dev/net/tun are not allowed here")


def on_two_hosts(rig, job, folder):
    """A launch whose ranks are in the two namespaces of a relay."""
    script = folder / "client"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nhost=$1\nshift\n'
                      f'exec ip netns exec mrf{os.getpid()}-${{host##*.}} "$@"\n')
    script.chmod(0o755)
    return rig.launch(job, "--client", script, "--hosts", "10.79.0.1,10.79.0.2", folder=folder,
                      failpoints="update:rank=0:step=12:delay=0.5")


# What the relay does to the link, and whether it can be mended.
PARTITIONS = {"black hole": {"drop": 1.0}, "one way": {"drop_from": 0}, "other way": {"drop_from": 1}, "reset": {"reset": True},
              "half-close": {"close": 0}, "other half-close": {"close": 1}}
FINAL = ("reset", "half-close", "other half-close")  # what ends a connection for good


@fault("R5", "a link: black hole, one way, reset, half-close", "ends within timeout + 3 s and names both ranks; healed: bit-equal",
       limit=7)
def partitions(rig):
    need_namespaces()
    plain = {key: value for key, value in TCP.items() if key != "backend"}
    rig.reference(plain)
    cases = [(name, heals) for name in PARTITIONS for heals in ((False,) if name in FINAL else (False, True))] * rig.some(1, 4)
    for name, heals in rig.pick(cases, 1):
        with Relay(f"mrf{os.getpid()}") as relay:
            run = on_two_hosts(rig, TCP, rig.fresh())
            at = None
            if run.until(run.fired):
                at = time.monotonic()
                relay.set(**PARTITIONS[name])
                if heals:
                    time.sleep(1.5)
                    relay.set()
            run.wait()
            if heals:
                detected, equal = run.code == 0, result(run.out) == rig.reference(plain)
            else:
                detected = run.code == 5 and run.says("rank 0", "rank 1")
                relay.set()
                again = on_two_hosts(rig, {**TCP, "resume": "auto"}, run.folder)
                equal = again.wait() == 0 and result(run.out) == rig.reference(plain)
            yield rig.ended(name + (", healed after 1.5 s" if heals else ""), run, at, detected, equal)


@fault("R10", "a bit that changes on the way", "with --wire-checksum all are found, none is trained on", limit=8)
def flips(rig):
    need_namespaces()
    plain = {key: value for key, value in TCP.items() if key != "backend"}
    rig.reference(plain)

    def flipped(job, seed):
        with Relay(f"mrf{os.getpid()}", seed) as relay:
            run = on_two_hosts(rig, job, rig.fresh())
            if run.until(run.fired):
                relay.flip()
            run.wait()
            return run, relay.flipped_at

    for i in range(rig.some(1, 100)):
        # A header that is changed shows at the timeout only. A busy machine needs some time by itself.
        run, at = flipped({**TCP, "wire_checksum": True, "timeout": 20 if rig.quick else 3}, rig.random.random())
        yield rig.ended(f"flip {i}", run, at, run.code == 5 and run.says("rank 0", "rank 1"))
    wrong, runs = 0, [flipped(TCP, seed) for seed in range(rig.some(0, 5))]
    for run, at in runs:  # else nothing was flipped above, either
        wrong += run.code == 0 and at is not None and result(run.out) != rig.reference(plain)
    if runs:
        yield Trial("runs without checksums", wrong > 0, note=f"{wrong} of {len(runs)} trained on wrong numbers")


@fault("R6", "50 ms of delay, 1 Mbit/s, lost packets", "trains to its end, bit-equal")
def slow_links(rig):
    need_namespaces()
    plain = {key: value for key, value in TCP.items() if key != "backend"}
    plain["steps"] = 15
    job = {**TCP, "steps": 15, "timeout": 20}
    rig.reference(plain)
    for name, how in rig.pick([("delay", {"delay": 0.05}), ("throttle", {"rate": 125_000}), ("loss", {"drop": 0.03})], 1):
        with Relay(f"mrf{os.getpid()}") as relay:
            run = on_two_hosts(rig, job, rig.fresh())
            at = None
            if run.until(run.fired):
                at = time.monotonic()
                relay.set(**how)
            run.wait()
            yield rig.ended(name, run, at, run.code == 0, result(run.out) == rig.reference(plain))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def rank_by_hand(rig, folder, rank, port, token, job):
    words = [f"--{key.replace('_', '-')}={value}" for key, value in job.items() if not isinstance(value, bool)]
    return rig.command("train", *words, "--no-evaluation", "--deterministic", folder=folder, RANK=str(rank), WORLD_SIZE="2",
                       LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), MILLRACE_TOKEN=token)


def losses(folder):
    return [(step, loss) for step, loss in result(folder / "out")[0]]


BY_HAND = {**TWO, "timeout": 4, "backend": "tcp", "output_dir": "out"}


@fault("R16", "two jobs start at one port", "no job takes another's ranks; one trains, the other is refused")
def port_races(rig):
    jobs = [{**BY_HAND, "seed": seed} for seed in (3, 4)]
    clean = [rig.reference({key: value for key, value in job.items() if key != "output_dir"})[0] for job in jobs]
    for i in range(rig.some(1, 50)):
        port, folders = free_port(), [rig.fresh(), rig.fresh()]
        ranks = [(job, rank) for rank in (0, 1) for job in (0, 1)]
        rig.random.shuffle(ranks)
        runs = {(job, rank): rank_by_hand(rig, folders[job], rank, port, f"token{job}", jobs[job]) for job, rank in ranks}
        codes = {key: run.wait(40) for key, run in runs.items()}
        trained = [job for job in (0, 1) if codes[job, 0] == codes[job, 1] == 0]
        merged = any(losses(folders[job]) != clean[job] for job in trained)
        refused = all(code in (2, 5) for (job, _), code in codes.items() if job not in trained)
        last = max(run.ended - run.started for run in runs.values())
        left = rig.leftovers(folders[0]) + rig.leftovers(folders[1])
        yield Trial(f"race {i}", len(trained) >= 1 and refused, last, not merged, left,
                    f"{codes} " + " || ".join(run.tail()[:200] for run in runs.values()))


def listeners(pid):
    """(address in hexadecimal, port) of the TCP ports on which a process listens."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                found.append((address, int(port, 16)))
    return found


@fault("S1", "who listens where", "no socket on all addresses, in any launch")
def listening(rig):
    for backend in rig.pick(("tcp", "shm", "auto"), 1):
        run = rig.launch({**JOB, "backend": backend}, failpoints="forward:rank=0:step=12:delay=1")
        seen = []
        run.until(lambda: seen.extend(one for pid, _ in list(processes_in(run.folder)) for one in open_ports(pid)) or run.fired())
        at = run.fired()
        run.wait()
        wide = [one for one in seen if set(one[0]) == {"0"}]
        yield rig.ended(f"backend {backend}", run, at, run.code == 0 and not wide, note=str(wide))


def open_ports(pid):
    try:
        return listeners(pid)
    except OSError:
        return []


@fault("S2", "strangers at the ports of a meeting", "the run is bit-equal, each stranger is sent away")
def strangers(rig):
    job = BY_HAND
    clean = rig.reference({key: value for key, value in job.items() if key != "output_dir"})[0]
    for name, words in rig.pick([("garbage", os.urandom(1000)), ("silence", b""), ("2 GiB", b"\xff\xff\xff\x7f" + b"y" * 100),
                                 ("greeting", b"millrace-store-2\n"), ("HTTP", b"GET / HTTP/1.1\r\n\r\n")], 1):
        port, folder = free_port(), rig.fresh()
        first = rank_by_hand(rig, folder, 0, port, "right", job)
        at, kept = None, []
        if first.until(lambda: any(one[1] == port for one in open_ports(first.pid(0) or os.getpid()))):
            at = time.monotonic()
            for _ in range(20):
                kept.append(socket.create_connection(("127.0.0.1", port), 5))
                kept[-1].sendall(words)
        second = rank_by_hand(rig, folder, 1, port, "right", job)
        codes = second.wait(), first.wait()
        away = 0
        for one in kept:
            one.settimeout(6)
            try:
                while one.recv(4096):
                    pass
                away += 1
            except ConnectionError:
                away += 1
            except OSError:
                pass
            one.close()
        yield rig.ended(f"20 times {name}", first, at, codes == (0, 0) and away == len(kept) > 0, losses(folder) == clean)
