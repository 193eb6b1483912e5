// A front end that nobody here wrote the protocol of: npm's json-rpc-2.0 drives a whole conversation, by lines or by ws.
// It is given where the packages are, and how to reach the program; it prints what it saw as one JSON object.
"use strict";
const { spawn } = require("node:child_process");
const readline = require("node:readline");

const [kind, library, ...rest] = process.argv.slice(2);
const { JSONRPCClient, JSONRPCServer, JSONRPCServerAndClient } = require(library);

const seen = { events: [], strange: [] };
const waiting = [];

function peerOver(send) {
  const peer = new JSONRPCServerAndClient(new JSONRPCServer(), new JSONRPCClient(send));
  peer.addMethod("event", (event) => {
    seen.events.push(event);
    for (const each of [...waiting]) {
      if (each.type === event.type) {
        waiting.splice(waiting.indexOf(each), 1);
        each.resolve(event);
      }
    }
  });
  return peer;
}

function next(type) {
  return new Promise((resolve) => waiting.push({ type, resolve }));
}

function take(peer, text) {
  let frame;
  try {
    frame = JSON.parse(text);
  } catch {
    seen.strange.push(text);
    return;
  }
  peer.receiveAndSend(frame);
}

async function ask(peer, session_id, text) {
  const over = next("message.complete");
  await peer.request("prompt.submit", { session_id, text });
  return (await over).payload;
}

async function talk(peer, ready) {
  seen.ready = (await ready).payload;
  seen.info = await peer.request("server.info", {});
  const { session_id } = await peer.request("session.create", { title: "By a client" });
  seen.first = await ask(peer, session_id, "Hello there");
  seen.second = await ask(peer, session_id, "And again");
  seen.history = await peer.request("session.history", { session_id });
  seen.batch = await peer.requestAdvanced([
    { jsonrpc: "2.0", id: "a", method: "session.title", params: { session_id } },
    { jsonrpc: "2.0", id: "b", method: "no.such.method" },
  ]);
  seen.refused = await peer.request("prompt.submit", { session_id }).then(() => null, (error) => error.code);
  seen.closed = await peer.request("session.close", { session_id });
  seen.list = await peer.request("session.list", {});
}

async function byLines() {
  const program = spawn(rest[0], rest.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  const left = new Promise((resolve) => program.on("close", resolve));
  const peer = peerOver((frame) => program.stdin.write(JSON.stringify(frame) + "\n"));
  const ready = next("ready");
  readline.createInterface({ input: program.stdout }).on("line", (line) => take(peer, line));
  await talk(peer, ready);
  program.stdin.end();
  seen.code = await left;
}

function refusal(WebSocket, address, options) {
  return new Promise((resolve) => {
    const socket = new WebSocket(address, options);
    socket.on("unexpected-response", (_, response) => {
      resolve(response.statusCode);
      response.destroy();
    });
    socket.on("error", () => {});
    socket.on("open", () => resolve(null));
  });
}

async function byWebSocket() {
  const [place, address, token] = rest;
  const WebSocket = require(place);
  const headers = { authorization: `Bearer ${token}` };
  seen.refusals = [
    await refusal(WebSocket, address, {}),
    await refusal(WebSocket, address, { headers: { authorization: "Bearer wrong" } }),
    await refusal(WebSocket, address, { headers, origin: "https://example.org" }),
  ];
  const socket = new WebSocket(address, ["holdfast.rpc", `holdfast.token.${token}`]);
  const peer = peerOver((frame) => socket.send(JSON.stringify(frame)));
  const ready = next("ready");
  socket.on("message", (data, binary) => (binary ? seen.strange.push("binary") : take(peer, data.toString())));
  await talk(peer, ready);
  seen.protocol = socket.protocol;
  const left = new Promise((resolve) => socket.on("close", resolve));
  socket.send("x".repeat(17 << 20));
  seen.code = await left;
}

(kind === "lines" ? byLines() : byWebSocket()).then(
  () => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error, JSON.stringify(seen));
    process.exit(1);
  },
);
