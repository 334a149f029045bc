#!/usr/bin/env python3
"""VGG-16 on two hosts whose cable is shaped to a rate: links measured, plans predicted, and the plans launched.

The hosts are network namespaces of this machine (needs root, ip and tc), one rank each. In each round the model is
profiled with two ranks at once, the links are measured by `profile --network`, and the planner's choice stands beside two
plans that a person would try: two replicas, and a pipeline of two stages. A figure is the median over the rounds; of a run
it is the median step of the slower rank, the first ones aside. `times` is the share of the error that comes from computing
times other than the profile's, as `millrace report` tells it apart; `messages` is the rest: jitter, links and the model.
Usage: shaped_hosts.py MILLRACE [--rounds N] [--rates 100mbit,1gbit] [--microbatch N] [--steps N]"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from side_by_side import steps_of_ranks

MODEL = ["--model", "vgg16", "--image-size", "32", "--classes", "10"]
HOSTS = ["10.80.0.1", "10.80.0.2"]
MICROBATCHES = 4
PLANS = {"planner's choice": [], "two replicas": ["--stages", "1"], "pipeline": ["--stages", "2", "--straight"]}


def call(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Hosts:
    """Two namespaces at the ends of one cable, and a program that is called like ssh and enters them."""

    def __init__(self, folder):
        self.names = [f"mrs{os.getpid()}{end}" for end in "ab"]
        self.client = os.path.join(folder, "enter")
        cases = "".join(f"{host}) name={name};; " for host, name in zip(HOSTS, self.names))
        with open(self.client, "w") as file:
            file.write('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2; shift 2\n'
                       f'case "$host" in {cases}esac\nexec ip netns exec "$name" sh -c "$*"\n')
        os.chmod(self.client, 0o755)

    def __enter__(self):
        a, b = self.names
        for name in self.names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
        for name, host in zip(self.names, HOSTS):
            call("ip", "-n", name, "addr", "add", host + "/24", "dev", "cable")
            for device in ("lo", "cable"):
                call("ip", "-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def shape(self, rate):
        for name in self.names:
            call("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "cable", "root", "tbf", "rate", rate,
                 "burst", "256kb", "latency", "1s")


def job(hosts, plan, microbatch, steps):
    keys = {"model": "vgg16", "image_size": 32, "classes": 10, "plan": plan, "stages": None if plan else 2, "microbatch": microbatch, "steps": steps,
            "threads": 1, "no_evaluation": "true", "trace_first": 3, "trace_steps": 6, "data": f"synthetic:{microbatch * MICROBATCHES * 4}", "print_every": 1000,
            "hosts": ",".join(host + ":1" for host in HOSTS), "backend": "tcp", "client": hosts.client, "output_dir": "run",
            "overwrite": "true"}
    with open("job.yaml", "w") as file:
        file.writelines(f"{key}: {value}\n" for key, value in keys.items() if value is not None)
    return "job.yaml"


def shape_of(plan):
    return " ".join(f"{s['first_layer']}-{s['last_layer']}@{','.join(map(str, s['ranks']))}" if "first_layer" in s
                    else ",".join(map(str, s["ranks"])) for s in plan["stages"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("millrace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    millrace = os.path.abspath(given.millrace)
    results = {}
    with tempfile.TemporaryDirectory() as folder, Hosts(folder) as hosts:
        os.chdir(folder)
        for _ in range(given.rounds):
            for rate in given.rates.split(","):
                hosts.shape(rate)
                call(millrace, "profile", *MODEL, "--microbatch", given.microbatch, "--ranks", "2", "--out", "profile.json")
                call(millrace, "profile", "--network", "--job", job(hosts, None, given.microbatch, 1), "--out", "cluster.yaml")
                for name, flags in PLANS.items():
                    call(millrace, "plan", "--profile", "profile.json", "--cluster", "cluster.yaml", "--microbatches",
                         MICROBATCHES, "--steps", given.steps, *flags, "--out", "plan.json")
                    with open("plan.json") as file:
                        plan = json.load(file)
                    call(millrace, "launch", job(hosts, "plan.json", given.microbatch, given.steps))
                    steps = [statistics.median(log[2:]) for log in steps_of_ranks("run", 2, given.steps)]
                    predicted = plan.get("predicted_run_step_s", plan["predicted_step_s"])
                    error = json.loads(call(millrace, "report", "--run", "run", "--format", "json"))["error"]
                    results.setdefault((rate, name), []).append(
                        (predicted, max(steps), error["of_times"], error["of_jitter"] + error["of_model"], shape_of(plan), plan["schedule"]))
    print("| cable | plan | ranks of the stages | predicted, ms | measured, ms | off by | times off by | messages off by |\n"
          "|---|---|---|---|---|---|---|---|")
    for (rate, name), rows in results.items():
        predicted, measured, times, rest = (statistics.median(row[i] for row in rows) for i in range(4))
        print(f"| {rate} | {name} | {rows[-1][4]} {rows[-1][5]} | {predicted * 1e3:.0f} | {measured * 1e3:.0f} | "
              f"{(measured / predicted - 1) * 100:+.1f} % | {times * 100:+.1f} % | {rest * 100:+.1f} % |")


if __name__ == "__main__":
    main()
