"""Faults of hosts that are reached by ssh: a real sshd on this machine, and one thing wrong."""
import os
import pathlib
import shutil
import socket
import subprocess
import time

from rig import TWO, Skip, fault, kill, result

SSHD = "/usr/sbin/sshd"
HELLO = r"""#!/bin/sh
printf '\nmillrace-agent-1\n\0\0\0\36H{"version":"0.0.1","host":"x"}'
sleep 5
"""


class Sshd:
    """An sshd of this user. 127.0.0.2 and its neighbours are hosts, all of them this machine."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        for name in ("key", "other_key", "host_key", "old_host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        with socket.socket() as one, socket.socket() as closed:
            one.bind(("127.0.0.1", 0))
            closed.bind(("127.0.0.1", 0))
            port, closed_port = one.getsockname()[1], closed.getsockname()[1]
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        at = self.folder
        (at / "banner").write_text("*** Welcome. All is logged. ***\n" * 20)
        (at / "noise").write_text('#!/bin/sh\necho "last login: today"\necho "module: not found" >&2\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
        (at / "noise").chmod(0o755)
        keys = [(at / f"{name}.pub").read_text().strip() for name in ("key", "host_key", "old_host_key")]
        (at / "authorized").write_text(f"{keys[0]}\n")
        (at / "known").write_text(f"right {keys[1]}\nchanged {keys[2]}\n")
        (at / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host_key\nAuthorizedKeysFile {at}/authorized\nStrictModes no\n"
            f"UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nPidFile none\n"
            f"Banner {at}/banner\nAcceptEnv NOISE\nMatch LocalPort {port}\n  ForceCommand {at}/noise\n")
        # The first value that ssh finds is the one it takes.
        (at / "ssh_config").write_text(
            f"Host 127.0.0.11\n  IdentityFile {at}/other_key\nHost 127.0.0.12\n  HostKeyAlias changed\n"
            f"Host 127.0.0.13\n  Port {closed_port}\nHost 127.0.0.14\n  HostName nowhere.invalid\n"
            f"Host 127.* !127.0.0.11\n  IdentityFile {at}/key\n"  # files of all blocks are tried
            f"Host 127.*\n  HostName 127.0.0.1\n  Port {port}\n  IdentitiesOnly yes\n  UserKnownHostsFile {at}/known\n"
            f"  HostKeyAlias right\n")
        (at / "client").write_text(f'#!/bin/sh\nexec ssh -F {at}/ssh_config "$@"\n')
        (at / "old_agent").write_text(HELLO)
        for name in ("client", "old_agent"):
            (at / name).chmod(0o755)
        self.process = subprocess.Popen([SSHD, "-D", "-f", at / "sshd_config"], stderr=open(at / "sshd.log", "wb"))
        end = time.monotonic() + 10
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return self
            except OSError:
                time.sleep(0.02)
        kill(self.process.pid)
        raise Skip("sshd does not start here: " + (at / "sshd.log").read_text()[:200])

    def __exit__(self, *_):
        kill(self.process.pid)
        self.process.wait()


# What is wrong: the second host or more flags, and what the launch says of it. Nothing: it trains.
CASES = [("one of four hosts is down", "127.0.0.3,127.0.0.4,127.0.0.13", [], "host 127.0.0.13: "),
         ("a banner and a shell that prints", "127.0.0.3", [], None),
         ("a key that is refused", "127.0.0.11", [], "host 127.0.0.11: "),
         ("a host key that has changed", "127.0.0.12", [], "host 127.0.0.12: "),
         ("a host that is not known", "127.0.0.14", [], "host 127.0.0.14: "),
         ("no agent there", "127.0.0.3", ["--remote-millrace", "/nowhere/millrace"], "host 127.0.0.3: "),
         ("an agent of another version", "127.0.0.3", ["--remote-millrace", "OLD"], "version 0.0.1")]


@fault("R18", "faults of ssh", "each host at fault is named within 15 s, exit 2; noise does no harm", limit=15)
def ssh_faults(rig):
    if not os.path.exists(SSHD) or not shutil.which("ssh-keygen"):
        raise Skip("needs sshd and ssh (Debian: openssh-server, openssh-client)")
    job = {**TWO, "timeout": 60}
    rig.reference(job)
    folder = rig.fresh()
    with Sshd(folder) as sshd:
        for name, hosts, flags, says in rig.pick(CASES, 1):
            hosts = "127.0.0.2," + hosts
            ranks = len(hosts.split(","))
            of_hosts = job if ranks == 2 else {**job, "stages": 4}
            words = [str(sshd.folder / "old_agent") if word == "OLD" else word for word in flags]
            run = rig.launch(of_hosts, "--client", sshd.folder / "client", "--hosts", hosts, *words)
            at = run.started
            run.wait()
            if says:
                yield rig.ended(name, run, at, run.code == 2 and run.says(says) and not run.says("host 127.0.0.2: " if not flags else "\0"))
            else:
                yield rig.ended(name, run, at, run.code == 0, result(run.out) == rig.reference(job))
