"""A small simulator of asynchronous 1F1B pipelines, which shares no code with millrace.

It reads PipeDream's graph.txt, and is the second way by which benchmarks/table1.py checks what `millrace simulate` says.
A minibatch i is computed by replica i mod r of each stage. A worker begins with as many forwards as PipeDream's
runtime, then alternates backwards and forwards. Replicas average
their gradients once for every r minibatches, and compute on when all have them. Messages between servers occupy the
sender's and the receiver's port; messages inside a server occupy a wire of their own for each pair of workers.
"""
import heapq
import re
from collections import defaultdict


class Graph:
    def __init__(self, path):
        self.forward, self.backward, self.output, self.weights, self.edges = {}, {}, {}, {}, []
        with open(path) as file:
            for line in file:
                edge = re.match(r"\s*(\S+) -- (\S+)\s*$", line)
                node = re.match(r"(\S+) -- (.*) -- forward_compute_time=([\d.]+), backward_compute_time=([\d.]+), "
                                r"activation_size=(\[[^]]*\]|[\d.]+), parameter_size=([\d.]+)", line)
                if node:
                    name, text, forward, backward, output, weights = node.groups()
                    is_input = text.startswith("Input")
                    self.forward[name] = 0 if is_input else float(forward) / 1e3
                    self.backward[name] = 0 if is_input else float(backward) / 1e3
                    self.output[name] = 0 if is_input else sum(float(x) for x in re.findall(r"[\d.]+", output))
                    self.weights[name] = float(weights)
                elif edge:
                    self.edges.append(edge.groups())


class Cluster:
    def __init__(self, servers, devices, inside, between, speed=1.0):
        self.servers, self.devices, self.inside, self.between, self.speed = servers, devices, inside, between, speed
        self.ranks = servers * devices

    def server(self, rank):
        return rank // self.devices


def ring_seconds(cluster, ranks, size, flat):
    """An all-reduce of `size` bytes at the full rate: a flat ring, or one inside each server and one between them."""
    servers = len({cluster.server(r) for r in ranks})
    n = len(ranks)
    if n == 1:
        return 0.0
    if servers == 1:
        return 2 * (n - 1) / n * size / cluster.inside
    if flat:
        return 2 * (n - 1) / n * size / min(cluster.between, cluster.inside)
    local = n / servers
    return 2 * (local - 1) / local * size / cluster.inside + 2 * (servers - 1) / servers * size / cluster.between


def data_parallel_seconds(graph, order, cluster, flat):
    """Seconds of a minibatch for each worker. Each layer's gradients are summed one after the other, when they are ready."""
    time = sum(graph.forward.values()) / cluster.speed
    reduced = 0.0
    for layer in reversed(order):
        time += graph.backward[layer] / cluster.speed
        reduced = max(reduced, time) + ring_seconds(cluster, range(cluster.ranks), graph.weights[layer], flat)
    return max(time, reduced)


# What a comparison may leave out of the costs.
SWITCHES = ("messages", "limit", "lock step", "ports")


def steady_seconds(graph, cluster, stages, minibatches=40, without=()):
    """Seconds of a minibatch in the steady state. `stages`: [(layers, ranks)]. `without`: some of SWITCHES."""
    stage_of = {layer: s for s, (layers, _) in enumerate(stages) for layer in layers}
    crossing = defaultdict(float)  # (from, to) -> bytes
    seen = set()
    for a, b in graph.edges:
        if a in stage_of and b in stage_of and stage_of[a] < stage_of[b] and (a, stage_of[b]) not in seen:
            seen.add((a, stage_of[b]))
            crossing[stage_of[a], stage_of[b]] += graph.output[a]
    forward = [sum(graph.forward.get(x, 0) for x in layers) / cluster.speed for layers, _ in stages]
    backward = [sum(graph.backward.get(x, 0) for x in layers) / cluster.speed for layers, _ in stages]
    weights = [sum(graph.weights.get(x, 0) for x in layers) for layers, _ in stages]
    ranks = [list(r) for _, r in stages]
    inputs = [[a for a, b in crossing if b == s] for s in range(len(stages))]
    outputs = [[b for a, b in crossing if a == s] for s in range(len(stages))]
    behind = [sum(len(r) for r in ranks[s:]) for s in range(len(stages))]
    times = 4 if "limit" in without else 1  # as good as none
    limit = [-(-times * behind[s] // len(ranks[s])) for s in range(len(stages))]
    count = minibatches * cluster.ranks
    worker_of = lambda s, i: ranks[s][i % len(ranks[s])]
    stage_at = {rank: s for s, members in enumerate(ranks) for rank in members}
    free = defaultdict(float)  # port or wire -> when it is free
    actions = {}  # rank -> its (1 forward | 0 backward, minibatch) in order, the last one first
    for s, members in enumerate(ranks):
        for k, rank in enumerate(members):
            own = range(k, count, len(members))
            order = [(1, i) for i in own[:limit[s] - 1]]
            for n, i in enumerate(own):
                order += [(1, x) for x in own[n + limit[s] - 1:n + limit[s]]] + [(0, i)]
            actions[rank] = order[::-1]
    ready, busy = set(), defaultdict(bool)
    missing = {}
    rounds = defaultdict(list)
    events, serial, done = [], 0, []

    def at(time, *what):
        nonlocal serial
        serial += 1
        heapq.heappush(events, (time, serial, what))

    def occupy(now, keys, seconds):
        # Each port has a queue of its own: a message that waits for the receiver's port does not hold up the sender's.
        end = now
        for k in keys:
            free[k] = max(free[k], now) + seconds
            end = max(end, free[k])
        return end

    def send(now, a, b, size, *what):
        if "messages" in without or a == b:
            return at(now, *what)
        one, two = cluster.server(a), cluster.server(b)
        if one == two:
            return at(occupy(now, [(a, b)], size / cluster.inside) + 1e-5, *what)
        keys = [(a, "out"), (b, "in")] if "ports" in without else [("out", one), ("in", two)]
        at(occupy(now, keys, size / cluster.between) + 5e-5, *what)

    def reduce_seconds(now, s):
        servers = sorted({cluster.server(r) for r in ranks[s]})
        seconds = ring_seconds(cluster, ranks[s], weights[s], flat=False)
        if len(servers) == 1 or "ports" in without:
            return now + seconds
        return max(occupy(now, [(way, server)], seconds) for server in servers for way in ("out", "in"))

    def arrived(now, kind, s, i):
        key = (kind, s, i)
        missing[key] = missing.get(key, len(inputs[s] if kind else outputs[s])) - 1
        if missing[key] <= 0:
            ready.add(key)
            start(now, worker_of(s, i))

    def start(now, rank):
        s = stage_at[rank]
        if busy[rank] or not actions[rank] or (actions[rank][-1][0], s, actions[rank][-1][1]) not in ready:
            return
        kind, i = actions[rank].pop()
        busy[rank] = True
        if kind == 0 and len(ranks[s]) > 1 and "lock step" not in without:
            rounds[s, i // len(ranks[s])].append(now)
        at(now + (forward if kind else backward)[s], "computed", kind, s, i)

    for i in range(count):
        at(0.0, "arrived", 1, 0, i)
    waiting = defaultdict(list)
    while events:
        now, _, what = heapq.heappop(events)
        if what[0] == "arrived":
            arrived(now, *what[1:])
            continue
        if what[0] == "go":
            busy[what[1]] = False
            start(now, what[1])
            continue
        _, kind, s, i = what
        rank = worker_of(s, i)
        if kind == 1:
            for b in outputs[s]:
                send(now, rank, worker_of(b, i), crossing[s, b], "arrived", 1, b, i)
            if not outputs[s]:
                arrived(now, 0, s, i)
            at(now, "go", rank)
            continue
        for a in inputs[s]:
            send(now, rank, worker_of(a, i), crossing[a, s], "arrived", 0, a, i)
        if s == 0:
            done.append(now)
        members = len(ranks[s])
        if members == 1 or "lock step" in without:
            at(now, "go", rank)
            continue
        # The sum may begin while the last replica computes its backward; nobody computes on before it is there.
        turn = i // members
        waiting[s, turn].append(rank)
        if len(waiting[s, turn]) == min(members, count - turn * members):
            end = max(now, reduce_seconds(max(rounds[s, turn]), s))
            for member in waiting[s, turn]:
                at(end, "go", member)
    done.sort()
    first, last = len(done) // 3, len(done) * 9 // 10
    return (done[last] - done[first]) / (last - first)
