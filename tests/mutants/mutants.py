#!/usr/bin/env python3
"""A mutation score: which of the seeded mutations in mutations.py do the tests of their room find?

All mutations are built in at once, in a copy of the tree, and MILLRACE_MUTANT=NUMBER chooses one when a test program starts.

    git worktree add /tmp/mutants && tests/mutants/mutants.py seed /tmp/mutants
    (cd /tmp/mutants && scripts/build release test_optimizer test_schedule test_stage test_checkpoint test_comm)
    tests/mutants/mutants.py run /tmp/mutants/build/release/bin [--only WORD,...] [--programs test_train]
    tests/mutants/mutants.py list

seed and list refuse a text that is not in its file exactly once; seed changes nothing then. run prints a row for each mutant: number, seconds,
the first test that failed (or the one that ran too long or ended the program), file, mutation. Its exit code is 1 if a mutant was missed."""
import argparse
import os
import re
import subprocess
import sys
import time

from mutations import MUTATIONS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The test program of a room, by the beginning of a file's path.
PROGRAMS = {"optimizer": "test_optimizer", "runtime/schedule": "test_schedule", "runtime/stage": "test_stage",
            "runtime/checkpoint": "test_checkpoint", "runtime/saved": "test_checkpoint", "runtime/comm": "test_comm"}
HEADER = """#pragma once
#include <cstdlib>
inline bool millrace_mutant(int number) {
  static const int chosen = [] {
    const char* text = std::getenv("MILLRACE_MUTANT");
    return text ? std::atoi(text) : 0;
  }();
  return chosen == number;
}
"""


class Mutant:
    def __init__(self, number, file, text, instead):
        self.number, self.file, self.instead = number, file, instead
        self.before, self.was, self.after = text.split("@@")

    @property
    def program(self):
        return next(program for room, program in PROGRAMS.items() if self.file.startswith(room))

    def __str__(self):
        line = (self.before + "[" + self.was + " -> " + (self.instead or "nothing") + "]" + self.after).strip()
        return " ".join(line.split())

    def applied(self, text):
        """The file's text, with a choice in the place of the mutated part."""
        if self.was.endswith(";"):
            choice = f"if (millrace_mutant({self.number})) {{ {self.instead} }} else {{ {self.was} }}"
        else:
            choice = f"(millrace_mutant({self.number}) ? {self.instead} : {self.was})"
        return text.replace(self.before + self.was + self.after, self.before + choice + self.after)


def all_mutants():
    entries = [(file, text, instead) for file, mutations in MUTATIONS.items() for text, instead in mutations]
    return [Mutant(number, *entry) for number, entry in enumerate(entries, 1)]


def mutated(tree):
    """The texts of the files with all mutations in them, by name. Ends the program where one has lost its place."""
    texts, lost = {}, []
    for mutant in all_mutants():
        if mutant.file not in texts:
            with open(os.path.join(tree, mutant.file)) as file:
                texts[mutant.file] = file.read()
        place = mutant.before + mutant.was + mutant.after
        if texts[mutant.file].count(place) != 1:
            lost.append(f"mutants: {mutant.file} has not exactly one '{place}'")
        texts[mutant.file] = mutant.applied(texts[mutant.file])
    if lost:
        sys.exit("\n".join(lost))
    return texts


def seed(tree):
    if os.path.realpath(tree) == os.path.realpath(ROOT):
        sys.exit("mutants: give a copy of the tree, not the tree itself")
    for name, text in mutated(tree).items():
        with open(os.path.join(tree, name), "w") as file:
            file.write('#include "runtime/base/mutant.h"\n' + text)
    with open(os.path.join(tree, "runtime/base/mutant.h"), "w") as file:
        file.write(HEADER)


def first_failure(program, number, limit_s):
    """The first test that fails; None: all pass."""
    environment = dict(os.environ, MILLRACE_MUTANT=str(number), GTEST_FAIL_FAST="1", GTEST_COLOR="no")
    process = subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace",
                               start_new_session=True)
    try:
        told, ended = process.communicate(timeout=limit_s)[0], "ends the program in "
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        told, ended = process.communicate()[0], "hangs in "
    if process.returncode == 0:
        return None
    failed = re.search(r"^\[  FAILED  \] ([\w./]+)", told, re.MULTILINE)
    if failed:
        return failed[1]
    return ended + (re.findall(r"^\[ RUN      \] (\S+)", told, re.MULTILINE) or ["its start"])[-1]


def run(folder, words, programs):
    mutants = [m for m in all_mutants() if any(word == str(m.number) if word.isdigit() else word in m.file for word in words)]
    limits, missed = {}, []
    for mutant in mutants:
        found = None
        for name in programs or [mutant.program]:
            path = os.path.join(folder, name)
            if path not in limits:
                begun = time.monotonic()
                if broken := first_failure(path, 0, 1800):
                    sys.exit(f"mutants: {name} without a mutation already: {broken}")
                limits[path] = 60 + 4 * (time.monotonic() - begun)
            begun = time.monotonic()
            found = found or first_failure(path, mutant.number, limits[path])
        if not found:
            missed.append(mutant)
        print(f"{mutant.number:4} {time.monotonic() - begun:6.1f} s  {found or 'MISSED':60} {mutant.file}: {mutant}", flush=True)
    print(f"{len(mutants) - len(missed)} of {len(mutants)} mutants found")
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["seed", "run", "list"])
    parser.add_argument("folder", nargs="?", help="seed: the copy of the tree; run: its programs")
    parser.add_argument("--only", default="", help="parts of file names, or numbers")
    parser.add_argument("--programs", default="", help="these test programs, not those of the room")
    given = parser.parse_args()
    if given.what == "list":
        mutated(ROOT)
        print("\n".join(f"{m.number:4} {m.file}: {m}" for m in all_mutants()))
        return 0
    if not given.folder:
        parser.error("a folder is missing")
    if given.what == "seed":
        return seed(given.folder)
    return run(given.folder, given.only.split(","), [p for p in given.programs.split(",") if p])


if __name__ == "__main__":
    sys.exit(main())
