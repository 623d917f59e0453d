// Headless Chromium with a new profile, for the pages of browser.mjs and rpc_browser.mjs.
//
//     chromium.mjs
//
// As a program it prints {"event": "ready", "devtools": "HOST:PORT"} and runs until its standard input ends. A page that is
// opened with this address in BROWSER is a tab of that browser. CHROMIUM is the browser's path.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const FLAGS = [
  "--headless=new",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-dev-shm-usage",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // Tabs behind another one keep their timers.
  "--disable-background-timer-throttling",
  "--disable-renderer-backgrounding",
  "--disable-backgrounding-occluded-windows",
];

// Starts a browser in this process group. `exited` is called if it ends by itself, `end` ends it and removes its profile.
export function start(more, exited) {
  const profile = mkdtempSync(join(tmpdir(), "toolbridge-browser-"));
  const flags = [...FLAGS, `--user-data-dir=${profile}`, ...more];
  const browser = spawn(process.env.CHROMIUM ?? "chromium", flags, { stdio: ["ignore", "ignore", "pipe"] });
  const devtools = new Promise((resolve) => {
    createInterface(browser.stderr).on("line", (line) => {
      const found = line.match(/^DevTools listening on ws:\/\/([^/]+)\//);
      if (found) resolve(found[1]);
    });
  });
  browser.once("error", exited);
  browser.once("exit", exited);
  const end = async () => {
    browser.removeAllListeners("exit");
    const gone = new Promise((resolve) => browser.once("exit", resolve));
    if (browser.exitCode === null && browser.signalCode === null && browser.kill()) await gone;
    try {
      rmSync(profile, { recursive: true, force: true, maxRetries: 10 }); // its other processes may still write to it
    } catch {
      // The system removes it.
    }
  };
  return { devtools, end };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { devtools, end } = start(["--remote-debugging-port=0", "about:blank"], (error) => {
    console.error(error?.message ?? "the browser has ended");
    process.exit(1);
  });
  process.stdin.resume().once("end", () => end().then(() => process.exit(0)));
  console.log(JSON.stringify({ event: "ready", devtools: await devtools }));
}
