// What MCAP's own reader for JavaScript finds in a file, as one JSON object: the same that count.py says.
//
//     count.mjs FILE

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import zstd from "@foxglove/wasm-zstd";
import { McapIndexedReader, McapStreamReader } from "@mcap/core";

const file = new Uint8Array(readFileSync(process.argv[2]));
await zstd.isLoaded;
const decompressHandlers = { zstd: (bytes, size) => zstd.decompress(bytes, Number(size)) };

class Count {
  channels = {};
  digests = {};
  all = createHash("sha256");

  channel({ id, topic, messageEncoding: encoding }) {
    this.channels[id] ??= { topic, encoding, messages: 0 };
  }

  message({ channelId, sequence, logTime, data }) {
    this.channels[channelId].messages += 1;
    const head = Buffer.alloc(22);
    head.writeUInt16LE(channelId, 0);
    head.writeUInt32LE(sequence, 2);
    head.writeBigUInt64LE(logTime, 6);
    head.writeBigUInt64LE(BigInt(data.byteLength), 14);
    this.digests[channelId] ??= createHash("sha256");
    this.digests[channelId].update(head.subarray(2)).update(data);
    this.all.update(head).update(data);
  }

  said() {
    for (const [id, digest] of Object.entries(this.digests)) {
      this.channels[id].sha256 = digest.digest("hex");
    }
    return { channels: this.channels, messages: this.all.digest("hex") };
  }
}

function inOrder() {
  const [count, schemas] = [new Count(), new Set()];
  const found = { metadata: [], attachments: 0, whole: false, chunks: 0, checksums: { chunks: 0, data: false } };
  try {
    const reader = new McapStreamReader({ decompressHandlers, includeChunks: true, validateCrcs: true });
    reader.append(file);
    for (let record; (record = reader.nextRecord()); ) {
      switch (record.type) {
        case "Header":
          found.library = record.library;
          break;
        case "Schema":
          schemas.add(record.id);
          break;
        case "Channel":
          count.channel(record);
          break;
        case "Message":
          count.message(record);
          break;
        case "Metadata":
          found.metadata.push(record.name);
          break;
        case "Attachment":
          found.attachments += 1;
          break;
        case "Chunk":
          found.chunks += 1;
          found.checksums.chunks += record.uncompressedCrc === 0 ? 0 : 1;
          break;
        case "DataEnd":
          found.checksums.data = record.dataSectionCrc !== 0;
          break;
        case "Footer":
          found.whole = true;
          break;
      }
    }
    if (!reader.done()) {
      found.error = `it ends ${reader.bytesRemaining()} bytes behind the last record`;
    }
  } catch (error) {
    found.error = String(error);
  }
  return { ...found, ...count.said(), schemas: schemas.size };
}

async function byIndex() {
  const [count, found] = [new Count(), {}];
  try {
    const readable = {
      size: async () => BigInt(file.byteLength),
      read: async (offset, size) => file.subarray(Number(offset), Number(offset + size)),
    };
    const reader = await McapIndexedReader.Initialize({ readable, decompressHandlers });
    found.chunk_indexes = reader.chunkIndexes.length;
    found.statistics = reader.statistics ? Number(reader.statistics.messageCount) : null;
    for await (const message of reader.readMessages({ validateCrcs: true })) {
      count.channel(reader.channelsById.get(message.channelId));
      count.message(message);
    }
    found.metadata = [];
    for await (const { name } of reader.readMetadata()) {
      found.metadata.push(name);
    }
  } catch (error) {
    found.error = String(error);
  }
  return { ...found, ...count.said() };
}

console.log(JSON.stringify({ order: inOrder(), index: await byIndex() }));
