"""A link between two hosts that misbehaves on request. The hosts are network namespaces NAME-1 (10.79.0.1) and NAME-2 (10.79.0.2),
each with a TUN device; packets between them go through this process. Needs root, ip and /dev/net/tun."""
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def reset_of(packet, back):
    """The packet that resets the sender of a TCP packet (`back`), or its receiver; None: it is no TCP with an acknowledgement."""
    start = (packet[0] & 15) * 4
    if packet[0] >> 4 != 4 or packet[9] != 6 or not packet[start + 13] & 0x10:
        return None
    source, target, ports = packet[12:16], packet[16:20], packet[start:start + 4]
    if back:
        source, target, ports = target, source, ports[2:] + ports[:2]
    sequence = packet[start + 8:start + 12] if back else packet[start + 4:start + 8]
    head = ports + sequence + struct.pack("!IBBHHH", 0, 5 << 4, 4, 0, 0, 0)
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(head))
    head = head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, 6, 0) + source + target
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + head


def payload_of(packet):
    """Where the TCP header and the bytes of a TCP packet begin; None: it is none."""
    start = (packet[0] & 15) * 4
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return None
    return start, start + (packet[start + 12] >> 4) * 4


def with_sums(packet):
    """A TCP packet whose check sums are right again."""
    start, _ = payload_of(packet)
    packet = packet[:10] + b"\0\0" + packet[12:start + 16] + b"\0\0" + packet[start + 18:]
    segment = packet[start:]
    pseudo = packet[12:20] + struct.pack("!BBH", 0, 6, len(segment)) + segment + b"\0" * (len(segment) % 2)
    packet = packet[:start + 16] + struct.pack("!H", checksum(pseudo)) + packet[start + 18:]
    return packet[:10] + struct.pack("!H", checksum(packet[:start])) + packet[12:]


def end_of(packet):
    """The packet that says that the sender of a TCP packet sends nothing after it (FIN)."""
    start, begin = payload_of(packet)
    sequence = struct.unpack("!I", packet[start + 4:start + 8])[0] + len(packet) - begin
    head = packet[start:start + 4] + struct.pack("!I", sequence & 0xFFFFFFFF) + packet[start + 8:start + 12]
    head += struct.pack("!BB", 5 << 4, 0x11) + packet[start + 14:start + 16] + b"\0" * 4
    return with_sums(packet[:2] + struct.pack("!H", start + 20) + packet[4:start] + head)


class Relay:
    """set(drop=SHARE, drop_from=HOST, delay=SECONDS, rate=BYTES_PER_SECOND, reset=True, close=HOST); set() mends the link.
    Hosts are 0 and 1. `close` ends one direction of each connection, as a half-closed socket does. flip() changes one bit of
    the next packet that carries many bytes, under a check sum that is right."""

    def __init__(self, name, seed=1):
        self.spaces = [f"{name}-1", f"{name}-2"]
        self.random = random.Random(seed)
        self.flips_wanted, self.flipped_at = 0, None
        self.set()

    def set(self, drop=0.0, drop_from=None, delay=0.0, rate=None, reset=False, close=None):
        self.how, self.closed = (drop, drop_from, delay, rate, reset, close), set()

    def flip(self):
        self.flips_wanted = 1

    def _flipped(self, packet):
        start_and_begin = payload_of(packet)
        if not self.flips_wanted or not start_and_begin or len(packet) - start_and_begin[1] < 256:
            return packet
        self.flips_wanted, self.flipped_at = 0, time.monotonic()
        place = self.random.randrange(start_and_begin[1], len(packet))
        return with_sums(packet[:place] + bytes([packet[place] ^ 1 << self.random.randrange(8)]) + packet[place + 1:])

    def _closing(self, packet):
        """What is sent in the place of a packet of the host whose direction is closed."""
        start_and_begin = payload_of(packet)
        if not start_and_begin or not packet[start_and_begin[0] + 13] & 0x10:
            return [packet]
        connection = packet[12:20] + packet[start_and_begin[0]:start_and_begin[0] + 4]
        if connection in self.closed:
            return []
        self.closed.add(connection)
        return [packet, end_of(packet)]

    def __enter__(self):
        self.devices, self.ended, self.made = [], threading.Event(), []
        try:
            for number, space in enumerate(self.spaces, 1):
                self._ip("netns", "add", space)
                self.made.append(space)
                self.devices.append(self._device_in(space))
                for words in (f"addr add 10.79.0.{number}/24 dev e0", "link set e0 up", "link set lo up"):
                    self._ip("-n", space, *words.split())
        except BaseException:
            self._remove()
            raise
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self._remove()

    def _remove(self):
        for device in self.devices:
            os.close(device)
        for space in self.made:
            subprocess.run(["ip", "netns", "delete", space])

    @staticmethod
    def _ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"a relay has no other end: ip {' '.join(words)}: {done.stderr.strip()}")

    @staticmethod
    def _device_in(space):
        """Opens a TUN device in a namespace, in a thread of its own: setns changes the thread."""
        made = []

        def make():
            try:
                with open(f"/run/netns/{space}") as there:
                    if LIBC.setns(there.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                made.append(device)
                fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"e0", IFF_TUN | IFF_NO_PI))
            except OSError as error:
                made.insert(0, error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            for device in made[1:]:
                os.close(device)
            raise RuntimeError(f"a relay has no other end: host {space}: {made[0]}")
        return made[0]

    def _carry(self):
        waiting, count, free_at = [], 0, [0.0, 0.0]  # (due, number, target, packet), in order of time
        while not self.ended.is_set():
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, packet = heapq.heappop(waiting)
                self._write(target, packet)
            patience = min(0.1, max(0.0, waiting[0][0] - now)) if waiting else 0.1
            for device in select.select(self.devices, [], [], patience)[0]:
                source = self.devices.index(device)
                drop, drop_from, delay, rate, reset, close = self.how
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    continue
                if reset and reset_of(packet, True):
                    self._write(source, reset_of(packet, True))
                    self._write(1 - source, reset_of(packet, False))
                elif not reset and drop_from != source and self.random.random() >= drop:
                    begun = max(time.monotonic(), free_at[source])
                    free_at[source] = begun + (len(packet) / rate if rate else 0)
                    for one in self._closing(packet) if close == source else [self._flipped(packet)]:
                        count += 1
                        heapq.heappush(waiting, (free_at[source] + delay, count, 1 - source, one))

    def _write(self, target, packet):
        try:
            os.write(self.devices[target], packet)
        except OSError:
            pass  # the device is going away, or full: a packet is lost
