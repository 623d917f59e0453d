// A page's half of page.mjs: its settings, what it says, and its room.

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// One after the other: a page's requests may overtake each other.
let said = Promise.resolve();
export const say = (event, more) => {
  said = said.then(() => fetch("/say", { method: "POST", body: JSON.stringify({ event, ...more }) }));
  return said;
};

const fail = (reason) => fetch("/failed", { method: "POST", body: String(reason) });
addEventListener("error", ({ message }) => fail(message));
addEventListener("unhandledrejection", ({ reason }) => fail(reason?.stack ?? reason));

// Answered when the program is told to leave. If the program is killed, its page goes, too.
export const left = fetch("/leave").catch(() => location.replace("about:blank"));

// Runs `main` with the settings and a room that is not joined yet, leaves the room, and ends with the status that it returns.
export async function run(main) {
  const settings = await (await fetch("/settings")).json();
  const { ExternalE2EEKeyProvider, Room } = LivekitClient;
  const options = { singlePeerConnection: !settings.twoConnections };
  if (settings.key !== undefined) {
    const keyProvider = new ExternalE2EEKeyProvider();
    await keyProvider.setKey(settings.key);
    options.encryption = { keyProvider, worker: new Worker("/e2ee-worker.mjs", { type: "module" }) };
  }
  const room = new Room(options);
  if (settings.key !== undefined) await room.setE2EEEnabled(true);
  const join = async () => {
    await room.connect(settings.url, settings.token, { autoSubscribe: false });
    await say("ready", { identity: room.localParticipant.identity, room: room.name });
  };
  const status = await main({ room, join, settings });
  await room.disconnect();
  await said;
  await fetch("/ended", { method: "POST", body: String(status ?? 0) });
}
