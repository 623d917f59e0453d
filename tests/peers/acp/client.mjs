// An ACP client over the official SDK, which drives an agent by a script: see ../README.md.
//
//   client.mjs SCRIPT COMMAND [ARGUMENTS]

import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { client, methods, ndJsonStream, RequestError } from "@agentclientprotocol/sdk";

const [script, command, ...words] = process.argv.slice(2);
const { prompts = [], permission = null, elicitation = null, cancelOn = null, requests = [], version = 1 } = JSON.parse(script);
const print = (event, fields) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);

const child = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));

const app = client({ name: "scripted" })
  .onNotification(methods.client.session.update, async ({ params, agent }) => {
    print("update", params);
    const { status, toolCallId } = params.update;
    if (cancelOn !== null && status === cancelOn) {
      print("cancelling", { toolCallId });
      await agent.notify(methods.agent.session.cancel, { sessionId: params.sessionId });
    }
  })
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    print("permission", params);
    const option = params.options.find((it) => it.kind === permission || it.optionId === permission);
    if (permission === "silent") return new Promise(() => {});
    return { outcome: option ? { outcome: "selected", optionId: option.optionId } : { outcome: "cancelled" } };
  })
  .onRequest(methods.client.elicitation.create, ({ params }) => {
    if (!elicitation) throw RequestError.methodNotFound("elicitation/create");
    print("elicitation", params);
    return elicitation;
  });

async function attempt(event, request) {
  try {
    const result = await request;
    print(event, { result });
    return result;
  } catch (error) {
    print(event, { error: { code: error.code, message: error.message, data: error.data } });
    return null;
  }
}

async function drive(agent) {
  const clientCapabilities = elicitation ? { elicitation: { form: {}, url: {} } } : {};
  await attempt("initialized", agent.request(methods.agent.initialize, { protocolVersion: version, clientCapabilities }));
  for (const [method, params] of requests) await attempt("answered", agent.request(method, params));
  const session = await attempt("session", agent.request(methods.agent.session.new, { cwd: process.cwd(), mcpServers: [] }));
  for (const text of session ? prompts : []) {
    const prompt = [{ type: "text", text }];
    await attempt("stopped", agent.request(methods.agent.session.prompt, { sessionId: session.sessionId, prompt }));
  }
}

await app.connectWith(ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)), drive);
child.stdin.end();
print("ended", await ended);
process.exit(0);
