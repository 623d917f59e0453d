"""Prints divan's measurements and those of Python's packages for the same bytes: medians, in ns."""

import pathlib
import re
import statistics
import sys
import time

import msgpack
import ormsgpack

UNITS = {"ns": 1, "µs": 1_000, "us": 1_000, "ms": 1_000_000}


def divan(text):
    """The medians, by bench and sample."""
    medians, bench = {}, None
    for line in text.splitlines():
        name = re.match(r"[│├╰─ ]*([a-z_0-9]+)", line)
        times = re.findall(r"([\d.]+) (ns|µs|us|ms)", line)
        if name and len(times) >= 3:
            number, unit = times[2]
            medians[bench, name[1]] = float(number) * UNITS[unit]
        elif name:
            bench = name[1]
    return medians


def measure(work, argument):
    """The median of 30 samples of at least 10 ms each."""
    count = 1
    while True:
        start = time.perf_counter_ns()
        for _ in range(count):
            work(argument)
        if time.perf_counter_ns() - start > 10_000_000:
            break
        count *= 2
    samples = []
    for _ in range(30):
        start = time.perf_counter_ns()
        for _ in range(count):
            work(argument)
        samples.append((time.perf_counter_ns() - start) / count)
    return statistics.median(samples)


def main():
    medians = divan(pathlib.Path(sys.argv[1]).read_text())
    sizes = {}
    for sample in ["request", "result"]:
        data = (pathlib.Path(sys.argv[2]) / f"{sample}.msgpack").read_bytes()
        value = ormsgpack.unpackb(data)
        sizes[sample] = len(data)
        medians["decode_python_ormsgpack", sample] = measure(ormsgpack.unpackb, data)
        medians["decode_python_msgpack", sample] = measure(msgpack.unpackb, data)
        medians["encode_python_ormsgpack", sample] = measure(ormsgpack.packb, value)
        medians["encode_python_msgpack", sample] = measure(msgpack.packb, value)
    print(f"{'median, ns':<26} {'request':>10} {'result':>10} {'vs ormsgpack':>13}")
    print(f"{'(bytes)':<26} {sizes['request']:>10} {sizes['result']:>10}")
    for way in ["decode", "encode"]:
        benches = sorted({bench for bench, _ in medians if bench.startswith(way)}, key=lambda it: medians[it, "result"])
        for bench in benches:
            times = medians[f"{way}_python_ormsgpack", "result"] / medians[bench, "result"]
            print(f"{bench:<26} {medians[bench, 'request']:>10,.0f} {medians[bench, 'result']:>10,.0f} {times:>12.1f}x")


main()
