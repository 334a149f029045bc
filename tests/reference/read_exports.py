"""Reads what `millrace trace convert` wrote with the packages of the tools that it is for: TensorBoard's event reader,
Perfetto's messages, Python's JSON. read_exports.py FOLDER SPANS VALUES FLOWS"""
import csv
import glob
import json
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder, spans, values, flows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

chrome = json.load(open(f"{folder}/trace.chrome.json"))
complete = [event for event in chrome["traceEvents"] if event["ph"] == "X"]
assert len(complete) == spans, len(complete)
assert sum(event["ph"] == "C" for event in chrome["traceEvents"]) == values
assert {"backend", "rank", "world_size"} <= set(chrome["distributedInfo"])
assert sum(event["ph"] == "s" for event in chrome["traceEvents"]) == flows
assert sum(event["ph"] == "f" for event in chrome["traceEvents"]) == flows
tracks = {}
for event in complete:
    tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
for track in tracks.values():
    track.sort()
    assert all(a[1] <= b[0] + 1e-6 for a, b in zip(track, track[1:])), "spans of a track overlap"
for path in glob.glob(f"{folder}/trace.rank*.chrome.json"):
    one = json.load(open(path))
    assert one["distributedInfo"]["rank"] == int(path.split("trace.rank")[1].split(".")[0])

trace = Trace()
trace.ParseFromString(open(f"{folder}/trace.perfetto-trace", "rb").read())
names, depth, begun, ended, counters, out, into = {}, {}, 0, 0, 0, set(), set()
infos = 0
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        names[packet.track_descriptor.uuid] = packet.track_descriptor
        continue
    event = packet.track_event
    assert event.track_uuid in names
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        begun += 1
        depth[event.track_uuid] = depth.get(event.track_uuid, 0) + 1
        assert depth[event.track_uuid] == 1, "slices of a track nest"
        assert event.name
        out.update(event.flow_ids)
        into.update(event.terminating_flow_ids)
    elif event.type == TrackEvent.TYPE_SLICE_END:
        ended += 1
        depth[event.track_uuid] -= 1
        assert depth[event.track_uuid] == 0
    elif event.type == TrackEvent.TYPE_COUNTER:
        counters += 1
        assert names[event.track_uuid].HasField("counter")
    elif event.name == "distributedInfo":
        infos += 1
        assert {a.name for a in event.debug_annotations} == {"backend", "rank", "world_size"}
assert begun == ended == spans, (begun, ended)
assert counters == values and infos >= 1
assert out == into and len(out) == flows, (len(out), len(into))

read = 0
for path in glob.glob(f"{folder}/tensorboard/*"):
    accumulator = EventAccumulator(path, size_guidance={"scalars": 0})
    accumulator.Reload()
    for tag in accumulator.Tags()["scalars"]:
        read += len(accumulator.Scalars(tag))
assert read == values, read

with open(f"{folder}/spans.csv") as file:
    assert sum(1 for _ in csv.DictReader(file)) == spans
with open(f"{folder}/values.csv") as file:
    assert sum(1 for _ in csv.DictReader(file)) == values

last = 0
for line in open(f"{folder}/run.mllog"):
    token, rest = line.split(" ", 1)
    assert token == ":::MLLOG"
    event = json.loads(rest)
    assert list(event) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    assert event["event_type"] in ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")
    assert {"file", "lineno"} <= set(event["metadata"])
    assert event["time_ms"] >= last
    last = event["time_ms"]
assert last > 0

for line in open(f"{folder}/metrics.prom"):
    if not line.startswith("#"):
        name, value = line.rsplit(" ", 1)
        float(value)
        assert name.startswith("millrace_")
print("reference readers: all exports read")
