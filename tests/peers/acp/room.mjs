// Calls a tool of the MCP server that a session was given, over HTTP or over stdio, by plain JSON-RPC.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const byName = (pairs) => Object.fromEntries(pairs.map(({ name, value }) => [name, value]));

function overHttp({ url, headers }) {
  const all = { ...byName(headers), accept: "application/json, text/event-stream", "content-type": "application/json" };
  return {
    async send(message) {
      const response = await fetch(url, { method: "POST", headers: all, body: JSON.stringify(message) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      all["mcp-session-id"] ??= response.headers.get("mcp-session-id");
      const text = await response.text();
      const events = text.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
      const messages = (text.startsWith("{") ? [text] : events).filter(Boolean).map((it) => JSON.parse(it));
      return messages.find((it) => it.id === message.id);
    },
    close() {},
  };
}

// The server gets the variables that it was given, and no others but the path.
function overStdio({ command, args, env }) {
  const stdio = ["pipe", "pipe", "inherit"];
  const child = spawn(command, args, { env: { PATH: process.env.PATH, ...byName(env) }, stdio });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    async send(message) {
      child.stdin.write(`${JSON.stringify(message)}\n`);
      while (message.id !== undefined) {
        const { value, done } = await lines.next();
        if (done) throw new Error("the server has ended");
        const answer = JSON.parse(value);
        if (answer.id === message.id) return answer;
      }
    },
    close: () => child.stdin.end(),
  };
}

export async function callTool(server, name, parameters) {
  const connection = server.type === "http" ? overHttp(server) : overStdio(server);
  let last = 0;
  const request = (method, params) => connection.send({ jsonrpc: "2.0", id: ++last, method, params });
  try {
    const clientInfo = { name: "scripted", version: "1.0.0" };
    await request("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo });
    await connection.send({ jsonrpc: "2.0", method: "notifications/initialized" });
    const tools = (await request("tools/list", {})).result.tools.map((tool) => tool.name);
    const { result, error } = await request("tools/call", { name, arguments: parameters });
    return { over: server.type ?? "stdio", tools, result, error };
  } finally {
    connection.close();
  }
}
