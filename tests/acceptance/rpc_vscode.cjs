// Another front end that nobody here wrote the protocol of: Microsoft's vscode-jsonrpc, by lines or by node's own
// WebSocket, which is that of browsers. It is given where the package is, and how to reach the program; it prints what
// it saw as one JSON object.
"use strict";
const { spawn } = require("node:child_process");
const readline = require("node:readline");

const [kind, library, ...rest] = process.argv.slice(2);
const rpc = require(`${library}/node`);

const seen = { events: [] };
const waiting = [];

// The frames are ours: it has its own, with headers.
class Reader extends rpc.AbstractMessageReader {
  listen(callback) {
    this.take = (text) => callback(JSON.parse(text));
    return { dispose() {} };
  }
}

class Writer extends rpc.AbstractMessageWriter {
  constructor(send) {
    super();
    this.send = send;
  }
  async write(message) {
    this.send(JSON.stringify(message));
  }
  end() {}
}

function next(type) {
  return new Promise((resolve) => waiting.push({ type, resolve }));
}

function connected(send) {
  const reader = new Reader();
  const connection = rpc.createMessageConnection(reader, new Writer(send));
  connection.onNotification("event", (event) => {
    seen.events.push(event);
    for (const each of waiting.filter((one) => one.type === event.type)) {
      waiting.splice(waiting.indexOf(each), 1);
      each.resolve(event);
    }
  });
  connection.listen();
  return [connection, reader];
}

async function cancelled(connection) {
  const source = new rpc.CancellationTokenSource();
  const asked = connection.sendRequest("session.list", { limit: 1000 }, source.token);
  source.cancel();
  return asked.then(() => 0, (error) => error.code);
}

async function talk(connection, ready) {
  seen.ready = (await ready).payload;
  const { session_id } = await connection.sendRequest("session.create", { title: "By another" });
  const over = next("message.complete");
  await connection.sendRequest("prompt.submit", { session_id, text: "Hello there" });
  seen.reply = (await over).payload;
  // One after the other: the library would send all requests before the first cancellation.
  seen.cancelled = [];
  for (let number = 0; number < 20; number++) seen.cancelled.push(await cancelled(connection));
  seen.refused = await connection.sendRequest("no.such.method").then(() => null, (error) => error.code);
  seen.history = await connection.sendRequest("session.history", { session_id });
  seen.closed = await connection.sendRequest("session.close", { session_id });
}

async function byLines() {
  const program = spawn(rest[0], rest.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  const left = new Promise((resolve) => program.on("close", resolve));
  const ready = next("ready");
  const [connection, reader] = connected((text) => program.stdin.write(text + "\n"));
  readline.createInterface({ input: program.stdout }).on("line", (line) => reader.take(line));
  await talk(connection, ready);
  program.stdin.end();
  seen.code = await left;
}

async function byWebSocket() {
  const [address, token] = rest;
  const socket = new WebSocket(address, ["holdfast.rpc", `holdfast.token.${token}`]);
  const ready = next("ready");
  const [connection, reader] = connected((text) => socket.send(text));
  socket.onmessage = (message) => reader.take(message.data);
  await talk(connection, ready);
  const left = new Promise((resolve) => (socket.onclose = resolve));
  socket.close(1000);
  seen.code = (await left).code;
}

(kind === "lines" ? byLines() : byWebSocket()).then(
  () => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error, JSON.stringify(seen));
    process.exit(1);
  },
);
