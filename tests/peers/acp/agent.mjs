// An ACP agent over the official SDK. Each line of a prompt is a step: see ../README.md.

import { Readable, Writable } from "node:stream";
import { agent, methods, ndJsonStream, PROTOCOL_VERSION, RequestError } from "@agentclientprotocol/sdk";
import { callTool } from "./room.mjs";

const { session, elicitation } = methods.client;
const sessions = new Map();

class Turn {
  constructor(client, sessionId, open) {
    Object.assign(this, { client, sessionId, open });
  }
  update = (update) => this.client.notify(session.update, { sessionId: this.sessionId, update });
  say = (text, sessionUpdate = "agent_message_chunk") =>
    this.update({ sessionUpdate, content: { type: "text", text } });
  cancelled = () => new Promise((resolve) => this.open.signal.addEventListener("abort", resolve, { once: true }));
  async request(method, params) {
    try {
      return await this.client.request(method, { sessionId: this.sessionId, ...params });
    } catch (error) {
      return { error: error.code };
    }
  }
}

const steps = {
  say: (turn, text) => turn.say(text),
  think: (turn, text) => turn.say(text, "agent_thought_chunk"),
  update: (turn, text) => turn.update(JSON.parse(text)),
  async call(turn, id) {
    const location = { path: "/srv/app/main.rs", line: 3 };
    await turn.update({ sessionUpdate: "tool_call", toolCallId: id, title: "Edit main.rs", kind: "edit", status: "pending" });
    const change = (more) => turn.update({ sessionUpdate: "tool_call_update", toolCallId: id, ...more });
    await change({ status: "in_progress", rawInput: { path: location.path }, locations: [location] });
    await change({ content: [{ type: "content", content: { type: "text", text: "half done" } }] });
    const diff = { type: "diff", path: location.path, oldText: "a\n", newText: "b\n" };
    await change({ status: "completed", rawOutput: { changed: 1 }, content: [diff] });
  },
  plan: (turn) =>
    turn.update({ sessionUpdate: "plan", entries: [{ content: "Look around", priority: "high", status: "in_progress" }] }),
  async permit(turn, kind) {
    const toolCall = { toolCallId: "permit", title: "Run the tests", kind: kind || "execute", rawInput: { command: "true" } };
    const options = ["allow_once", "allow_always", "reject_once"].map((it) => ({ optionId: `o-${it}`, name: `Do ${it}`, kind: it }));
    const answer = await turn.request(session.requestPermission, { toolCall, options });
    await turn.say(`permit: ${answer.outcome?.optionId ?? answer.outcome?.outcome ?? answer.error}`);
  },
  async ask(turn) {
    const properties = { name: { type: "string", title: "Your name" } };
    const requestedSchema = { type: "object", properties, required: ["name"] };
    const answer = await turn.request(elicitation.create, { mode: "form", message: "Who are you?", requestedSchema });
    await turn.say(`ask: ${answer.action ?? answer.error} ${answer.content?.name ?? ""}`);
  },
  async "sign-in"(turn) {
    const params = { mode: "url", message: "Sign in", elicitationId: "e1", url: "https://example.com/sign-in" };
    const answer = await turn.request(elicitation.create, params);
    await turn.say(`sign-in: ${answer.action ?? answer.error}`);
  },
  async request(turn, text) {
    const [method, ...params] = text.split(" ");
    const answer = await turn.request(method, JSON.parse(params.join(" ") || "{}"));
    await turn.say(`request: ${JSON.stringify(answer)}`);
  },
  async room(turn, text) {
    const [name, ...parameters] = text.split(" ");
    const [server] = sessions.get(turn.sessionId).mcpServers;
    await turn.say(JSON.stringify(await callTool(server, name, JSON.parse(parameters.join(" ") || "{}"))));
  },
  servers: (turn) => turn.say(JSON.stringify(sessions.get(turn.sessionId).mcpServers)),
  wait: (turn) => turn.cancelled(),
  deaf: () => new Promise(() => setInterval(() => {}, 1000)),
  crash: () => process.exit(3),
  junk: (_, text) => new Promise((resolve) => process.stdout.write(`${text}\n`, resolve)),
  stop: (_, reason) => reason,
};

async function prompt({ params, client }) {
  const open = new AbortController();
  const known = sessions.get(params.sessionId);
  if (!known) throw RequestError.invalidParams("unknown session");
  known.open = open;
  const turn = new Turn(client, params.sessionId, open);
  const text = params.prompt.map((block) => block.text ?? "").join("\n");
  for (const line of text.split("\n").filter(Boolean)) {
    const [name, ...rest] = line.split(" ");
    if (!steps[name]) throw RequestError.invalidParams(`unknown step ${name}`);
    const stopReason = await steps[name](turn, rest.join(" "));
    if (name === "stop") return { stopReason };
    if (open.signal.aborted) return { stopReason: "cancelled" };
  }
  return { stopReason: "end_turn" };
}

agent({ name: "scripted" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: Number(process.env.ACP_VERSION ?? PROTOCOL_VERSION),
    agentCapabilities: { loadSession: false, mcpCapabilities: { http: process.env.ACP_HTTP === "1" } },
    authMethods: [],
  }))
  .onRequest(methods.agent.session.new, ({ params }) => {
    const sessionId = `s${sessions.size + 1}`;
    sessions.set(sessionId, { mcpServers: params.mcpServers });
    return { sessionId };
  })
  .onRequest(methods.agent.session.prompt, prompt)
  .onNotification(methods.agent.session.cancel, ({ params }) => sessions.get(params.sessionId)?.open?.abort())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
