"""What MCAP's own reader for Python finds in a file, as one JSON object.

    count.py FILE

`order` is the file read from its beginning to its end, with its checksums; `index` is what the index leads to, in the order
of time. Each channel has its topic, how many messages, and a digest of them: for each message its sequence (4 bytes), time (8)
and length (8), little endian, and its bytes; `messages` is the digest of all of them, with the channel (2 bytes) before each.
What ends a reading before its time is `error`.
"""

import hashlib
import json
import struct
import sys

from mcap.reader import make_reader
from mcap.records import Attachment, Channel, Chunk, DataEnd, Footer, Header, Message, Metadata, Schema
from mcap.stream_reader import StreamReader


class Count:
    def __init__(self):
        self.channels = {}
        self.digests = {}
        self.all = hashlib.sha256()

    def channel(self, id, topic, encoding):
        self.channels.setdefault(id, {"topic": topic, "encoding": encoding, "messages": 0})

    def message(self, message):
        self.channels[message.channel_id]["messages"] += 1
        head = struct.pack("<IQQ", message.sequence, message.log_time, len(message.data))
        for digest in (self.digests.setdefault(message.channel_id, hashlib.sha256()), self.all):
            if digest is self.all:
                digest.update(struct.pack("<H", message.channel_id))
            digest.update(head)
            digest.update(message.data)

    def said(self):
        for id, digest in self.digests.items():
            self.channels[id]["sha256"] = digest.hexdigest()
        return {"channels": self.channels, "messages": self.all.hexdigest()}


def in_order(path):
    count, found, schemas = Count(), {"metadata": [], "attachments": 0, "whole": False}, set()
    try:
        for record in StreamReader(path, validate_crcs=True).records:
            match record:
                case Header():
                    found["library"] = record.library
                case Schema():
                    schemas.add(record.id)
                case Channel():
                    count.channel(record.id, record.topic, record.message_encoding)
                case Message():
                    count.message(record)
                case Metadata():
                    found["metadata"].append(record.name)
                case Attachment():
                    found["attachments"] += 1
                case Footer():
                    found["whole"] = True
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return {**found, **count.said(), "schemas": len(schemas), **checksums(path)}


def checksums(path):
    """How many chunks there are, and which checksums the file has; zero is none."""
    chunks, checked, data = 0, 0, False
    try:
        for record in StreamReader(path, emit_chunks=True).records:
            match record:
                case Chunk():
                    chunks += 1
                    checked += record.uncompressed_crc != 0
                case DataEnd():
                    data = record.data_section_crc != 0
    except Exception:
        pass  # `error` says it already
    return {"chunks": chunks, "checksums": {"chunks": checked, "data": data}}


def by_index(path):
    count, found = Count(), {}
    try:
        with open(path, "rb") as file:
            reader = make_reader(file, validate_crcs=True)
            summary = reader.get_summary()
            found["chunk_indexes"] = len(summary.chunk_indexes) if summary else 0
            found["statistics"] = summary.statistics.message_count if summary and summary.statistics else None
            for _, channel, message in reader.iter_messages(log_time_order=True):
                count.channel(channel.id, channel.topic, channel.message_encoding)
                count.message(message)
            found["metadata"] = [record.name for record in reader.iter_metadata()]
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return {**found, **count.said()}


print(json.dumps({"order": in_order(sys.argv[1]), "index": by_index(sys.argv[1])}))
