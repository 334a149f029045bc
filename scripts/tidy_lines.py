"""Runs clang-tidy over changed lines; scripts/tidy calls it: CLANG_TIDY BUILD COMMIT SECONDS."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time


def changed_lines(base):
    """Returns {file: [[first, last], ...]} of the lines of C++ files that are new since `base`."""
    diff = subprocess.run(["git", "diff", "-U0", base, "--", "*.h", "*.cpp", ":!tests", ":!*cuda*", ":!*nccl_library*"],
                          check=True, capture_output=True, text=True).stdout
    lines, file = {}, None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.startswith("+++ b/") else None
        elif file and (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            if count:
                lines.setdefault(file, []).append([first, first + count - 1])
    return lines


def main(clang_tidy, build, base, seconds):
    lines = changed_lines(base)
    compiled = {os.path.relpath(one["file"]) for one in json.load(open(f"{build}/compile_commands.json"))}
    # A header is checked through the source file beside it.
    sources = sorted({os.path.splitext(file)[0] + ".cpp" for file in lines} & compiled)
    wanted = json.dumps([{"name": file, "lines": ranges} for file, ranges in lines.items()])
    end = time.monotonic() + seconds
    left, found = [], []

    def check(source):
        if time.monotonic() > end:
            left.append(source)
            return
        run = subprocess.run([clang_tidy, "-p", build, "--quiet", "--warnings-as-errors=*", f"--line-filter={wanted}",
                              "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Qunused-arguments", source],
                             capture_output=True, text=True)
        if run.returncode:
            found.append(source)
            print(run.stdout, end="")
            if not run.stdout:
                print(run.stderr, end="", file=sys.stderr)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(check, sources))
    if left:
        print(f"tidy: no time for {len(left)} of {len(sources)} files: {' '.join(sorted(left))}")
    print(f"tidy: {len(sources) - len(left)} files, {len(found)} with findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
