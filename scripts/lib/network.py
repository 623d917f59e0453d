#!/usr/bin/env python3
"""A network between two hosts on this machine with controllable faults, transparent to programs.

    scripts/lib/network.py with COMMAND...    runs a command with the network, which ends with it; needs root and Linux

The far host is this machine itself, at 10.77.0.1 on `tb-far`; the near one is the network namespace `tb-near`, at
10.77.0.2 (`ip netns exec tb-near ...`). NETWORK_NAME (default `tb`) and NETWORK (default 10.77.0) change these, for two
networks at once. Every packet between them passes through this program. TOOLBRIDGE_NETWORK tells COMMAND the path of a
Unix socket that accepts lines of JSON and answers each with `ok`:

    {"class": "signaling", "cut": true}       no packet of the class passes
    {"class": "udp", "loss": 0.02}             this share of packets is lost in each direction
    {"class": "tcp", "delay": 0.02}            each packet takes this many seconds longer in each direction
    {"class": "all", "jitter": 0.005}          a random delay of up to this many seconds: packets overtake each other
    {"class": "all", "rate": 100000}           this many bytes a second in each direction, with a queue of up to 0.2 s

Other settings stay unchanged. `signaling` is TCP on the port SIGNALING_PORT (default 7880), `tcp` all other TCP, `udp` the
rest, `media` is `udp` and `tcp`, `all` is all three. {"near": false} removes the near host's address, as when its
interface goes down, and {"near": true} adds another one, 10.77.0.3.
"""

import fcntl
import heapq
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

NAME = os.environ.get("NETWORK_NAME", "tb")
FAR_DEVICE, NAMESPACE = f"{NAME}-far", f"{NAME}-near"
FAR, NEAR, NEAR_LATER = (f"{os.environ.get('NETWORK', '10.77.0')}.{host}" for host in (1, 2, 3))
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
TCP = 6
MAX_WAIT = 0.2
CLASSES = {"all": ["signaling", "tcp", "udp"], "media": ["tcp", "udp"]}


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def tunnel(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


class Path:
    """The treatment of one class of packets in one direction."""

    def __init__(self):
        self.cut, self.loss, self.delay, self.jitter, self.rate, self.free = False, 0.0, 0.0, 0.0, 0, 0.0

    def due(self, now, size):
        """Returns when a packet is forwarded, or None if it is lost."""
        if self.cut or random.random() < self.loss:
            return None
        if self.rate:
            self.free = max(self.free, now)
            if self.free - now > MAX_WAIT:
                return None
            self.free += size / self.rate
            now = self.free
        return now + self.delay + random.random() * self.jitter


class Network:
    def __init__(self, path):
        self.port = int(os.environ.get("SIGNALING_PORT", "7880"))
        self.ends = [tunnel(FAR_DEVICE), tunnel(NAMESPACE)]
        ip("netns", "add", NAMESPACE)
        ip("link", "set", NAMESPACE, "netns", NAMESPACE)
        ip("addr", "add", f"{FAR}/24", "dev", FAR_DEVICE)
        ip("link", "set", FAR_DEVICE, "up")
        ip("-n", NAMESPACE, "link", "set", "lo", "up")
        ip("-n", NAMESPACE, "addr", "add", f"{NEAR}/24", "dev", NAMESPACE)
        ip("-n", NAMESPACE, "link", "set", NAMESPACE, "up")
        # [class][direction]
        self.ways = {name: [Path(), Path()] for name in CLASSES["all"]}
        self.waiting, self.order = [], 0
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind(path)
        self.control.listen()
        self.selector = selectors.DefaultSelector()
        for direction, end in enumerate(self.ends):
            self.selector.register(end, selectors.EVENT_READ, ("packets", direction))
        self.selector.register(self.control, selectors.EVENT_READ, ("accept", None))

    def remove(self):
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)
        for end in self.ends:
            os.close(end)

    def class_of(self, packet):
        if len(packet) > 24 and packet[0] >> 4 == 4 and packet[9] == TCP:
            head = (packet[0] & 15) * 4
            ports = struct.unpack("!HH", packet[head : head + 4])
            return "signaling" if self.port in ports else "tcp"
        return "udp"

    def run(self, is_over):
        while not is_over():
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, _, direction, packet = heapq.heappop(self.waiting)
                try:
                    os.write(self.ends[1 - direction], packet)
                except OSError:
                    pass  # a host whose interface is down
            wait = self.waiting[0][0] - now if self.waiting else 0.1
            for key, _ in self.selector.select(min(wait, 0.1)):
                what, direction = key.data
                if what == "packets":
                    self.read(key.fileobj, direction)
                elif what == "accept":
                    connection, _ = self.control.accept()
                    self.selector.register(connection, selectors.EVENT_READ, ("order", connection.makefile("rw")))
                else:
                    self.obey(key.fileobj, direction)

    def read(self, end, direction):
        for _ in range(64):
            try:
                packet = os.read(end, 65535)
            except BlockingIOError:
                return
            now = time.monotonic()
            name = self.class_of(packet)
            due = self.ways[name][direction].due(now, len(packet))
            if due is not None:
                self.order += 1
                heapq.heappush(self.waiting, (due, self.order, name, direction, packet))

    def obey(self, connection, lines):
        line = lines.readline()
        if not line:
            self.selector.unregister(connection)
            connection.close()
            return
        order = json.loads(line)
        if "near" in order:
            if order.pop("near"):
                ip("-n", NAMESPACE, "addr", "add", f"{NEAR_LATER}/24", "dev", NAMESPACE)
            else:
                ip("-n", NAMESPACE, "addr", "flush", "dev", NAMESPACE)
        name = order.pop("class", None)
        classes = CLASSES.get(name, [name] if name else [])
        for each in classes:
            for way in self.ways[each]:
                for field, value in order.items():
                    setattr(way, field, value)
        if order.get("cut"):
            self.waiting = [packet for packet in self.waiting if packet[2] not in classes]
            heapq.heapify(self.waiting)
        lines.write("ok\n")
        lines.flush()


def main():
    if len(sys.argv) < 3 or sys.argv[1] != "with":
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "network")
        network = Network(path)
        try:
            command = subprocess.Popen(sys.argv[2:], env={**os.environ, "TOOLBRIDGE_NETWORK": path})
            try:
                network.run(lambda: command.poll() is not None)
            finally:
                command.terminate()
            status = command.wait()
        finally:
            network.remove()
    sys.exit(status)


main()
