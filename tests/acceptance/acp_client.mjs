// An editor that nobody here wrote the protocol of: the official TypeScript SDK drives `holdfast acp`.
// It is given the SDK's entry, what to do, and the program; it prints all it saw as one JSON object.
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [entry, story, given, ...command] = process.argv.slice(2);
const acp = await import(pathToFileURL(entry));
const input = JSON.parse(given);
const seen = { frames: [], strange: [], notes: {} };
const cwd = process.cwd();

// Every frame of both directions is kept in the order this side saw them.
function tapped(stream) {
  const outgoing = new TransformStream({
    transform(frame, to) {
      seen.frames.push({ sent: frame });
      to.enqueue(frame);
    },
  });
  const incoming = new TransformStream({
    transform(frame, to) {
      seen.frames.push({ got: frame });
      for (const each of [...waiting]) each();
      to.enqueue(frame);
    },
  });
  outgoing.readable.pipeTo(stream.writable).catch(() => {});
  return { writable: outgoing.writable, readable: stream.readable.pipeThrough(incoming) };
}

// The bytes themselves: whatever is on standard output and is no JSON is kept, too.
function watched(readable) {
  let rest = "";
  const decoder = new TextDecoder();
  return readable.pipeThrough(
    new TransformStream({
      transform(bytes, to) {
        rest += decoder.decode(bytes, { stream: true });
        const lines = rest.split("\n");
        rest = lines.pop();
        for (const line of lines) {
          try {
            JSON.parse(line);
          } catch {
            seen.strange.push(line);
          }
        }
        to.enqueue(bytes);
      },
      flush() {
        if (rest) seen.strange.push(rest);
      },
    }),
  );
}

const waiting = new Set();

function updates(kind) {
  const all = seen.frames.flatMap(({ got }) => (got?.method === "session/update" ? [got.params.update] : []));
  return all.filter((update) => !kind || update.sessionUpdate === kind);
}

function until(found) {
  return new Promise((resolve) => {
    const look = () => {
      const value = found();
      if (value) {
        waiting.delete(look);
        resolve(value);
      }
    };
    waiting.add(look);
    look();
  });
}

const text = (words) => [{ type: "text", text: words }];
const refused = (promise) => promise.then(() => null, (error) => error.code);

// What an editor offers: buffers that were not saved yet, and terminals.
const buffers = new Map();
const terminals = new Map();
const hands = {
  "fs/read_text_file": ({ path }) => {
    if (buffers.has(path)) return { content: buffers.get(path) };
    if (existsSync(path)) return { content: readFileSync(path, "utf8") };
    throw acp.RequestError.resourceNotFound(path);
  },
  "fs/write_text_file": ({ path, content }) => {
    buffers.set(path, content);
    writeFileSync(path, content);
    return {};
  },
  "terminal/create": ({ command, args, env, cwd: folder }) => {
    const variables = Object.fromEntries((env ?? []).map(({ name, value }) => [name, value]));
    const child = spawn(command, args ?? [], { cwd: folder ?? cwd, env: { ...process.env, ...variables } });
    const terminal = { child, output: "" };
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (terminal.output += data));
    terminal.exit = new Promise((resolve) => child.on("close", (exitCode, signal) => resolve({ exitCode, signal })));
    terminals.set(`terminal-${terminals.size + 1}`, terminal);
    return { terminalId: `terminal-${terminals.size}` };
  },
  "terminal/output": ({ terminalId }) => ({ output: terminals.get(terminalId).output, truncated: false }),
  "terminal/wait_for_exit": ({ terminalId }) => terminals.get(terminalId).exit,
  "terminal/kill": ({ terminalId }) => {
    terminals.get(terminalId).child.kill("SIGKILL");
    return {};
  },
  "terminal/release": ({ terminalId }) => {
    terminals.get(terminalId).child.kill("SIGKILL");
    return {};
  },
};

let permit = (params) => selected(params, "allow_once");

function selected(params, kind) {
  const option = params.options.find((each) => each.kind === kind);
  return { outcome: { outcome: "selected", optionId: option.optionId } };
}

const stories = {
  // Everything an editor does with a conversation, from the first word to the list it is found in again.
  async talk(agent, session) {
    const { sessionId, ...opened } = session;
    seen.notes.opened = opened;
    await until(() => updates("available_commands_update").length);
    const ask = (prompt) => agent.request("session/prompt", { sessionId, prompt });
    seen.notes.stops = [(await ask(text("Hello there"))).stopReason];
    seen.notes.stops.push((await ask(text("run `touch once.txt`"))).stopReason);
    permit = (params) => selected(params, "reject_once");
    seen.notes.stops.push((await ask(text("run `touch never.txt`"))).stopReason);
    permit = (params) => selected(params, "allow_always");
    seen.notes.stops.push((await ask(text("run `touch always.txt`"))).stopReason);
    permit = () => {
      throw new Error("asked again");
    };
    seen.notes.stops.push((await ask(text("run `touch always.txt`"))).stopReason);
    seen.notes.stops.push(
      (
        await ask([
          { type: "text", text: "Keep this in mind." },
          { type: "resource", resource: { uri: `file://${cwd}/plan.md`, mimeType: "text/markdown", text: "# The plan" } },
          { type: "resource_link", uri: `file://${cwd}/notes.txt`, name: "notes.txt" },
          { type: "image", mimeType: "image/png", data: input.picture },
        ])
      ).stopReason,
    );
    seen.notes.list = await agent.request("session/list", {});
    seen.notes.unknown = {
      load: await refused(agent.request("session/load", { sessionId: "nobody", cwd, mcpServers: [] })),
      prompt: await refused(agent.request("session/prompt", { sessionId: "nobody", prompt: text("Hello") })),
      method: await refused(agent.request("session/dance", {})),
    };
  },

  // The three modes, by both of the ways a client may set one, and the model.
  async modes(agent, session) {
    const { sessionId } = session;
    for (const { id } of session.modes.availableModes) {
      await agent.request("session/set_mode", { sessionId, modeId: id });
      const asked = () => seen.frames.filter(({ got }) => got?.method === "session/request_permission").length;
      const before = asked();
      await agent.request("session/prompt", { sessionId, prompt: text(`run \`touch mode-${id}.txt\``) });
      seen.notes[id] = asked() - before;
    }
    seen.notes.wrong = await refused(agent.request("session/set_mode", { sessionId, modeId: "rampage" }));
    seen.notes.options = [];
    for (const option of session.configOptions ?? []) {
      const value = option.currentValue;
      seen.notes.options.push(
        await agent.request("session/set_config_option", { sessionId, configId: option.id, value }),
      );
    }
  },

  // Stopped while a tool runs, and while a person is asked.
  async cancel(agent, session) {
    const { sessionId } = session;
    const first = agent.request("session/prompt", { sessionId, prompt: text("run `touch begun; sleep 600`") });
    while (!existsSync("begun")) await new Promise((resolve) => setTimeout(resolve, 20));
    await agent.notify("session/cancel", { sessionId });
    seen.notes.tool = (await first).stopReason;
    let asked;
    const answered = new Promise((resolve) => {
      permit = () => {
        asked();
        return new Promise((answer) => resolve(() => answer({ outcome: { outcome: "cancelled" } })));
      };
    });
    const open = new Promise((resolve) => (asked = resolve));
    const second = agent.request("session/prompt", { sessionId, prompt: text("run `sleep 601`") });
    await open;
    await agent.notify("session/cancel", { sessionId });
    (await answered)();
    seen.notes.question = (await second).stopReason;
    seen.notes.after = (await agent.request("session/prompt", { sessionId, prompt: text("Hello there") })).stopReason;
  },

  // A long conversation, compacted, with a word after it.
  async compact(agent, session) {
    const { sessionId } = session;
    for (let number = 1; number <= 12; number++) {
      const words = `The harbour of ${number} has ${number * 7} boats in it. `.repeat(40);
      await agent.request("session/prompt", { sessionId, prompt: text(words) });
    }
    const before = updates().length;
    seen.notes.compacted = (await agent.request("session/prompt", { sessionId, prompt: text("/compact here 1") })).stopReason;
    seen.notes.told = updates("agent_message_chunk").length > 0 && updates().slice(before);
    await agent.request("session/prompt", { sessionId, prompt: text("And a last word.") });
  },

  // Another process, the same conversation: all of it comes before the answer.
  async load(agent) {
    const { sessionId } = input;
    seen.notes.loaded = await agent.request("session/load", { sessionId, cwd, mcpServers: [] });
    seen.notes.replayed = updates().length;
    seen.notes.after = (await agent.request("session/prompt", { sessionId, prompt: text("Hello again") })).stopReason;
  },

  // Files and terminals of the editor's, and a server of tools that it brings.
  async hands(agent, session) {
    const { sessionId } = session;
    buffers.set(`${cwd}/notes.txt`, "What is not saved yet.\n");
    seen.notes.stop = (await agent.request("session/prompt", { sessionId, prompt: text("Do it all") })).stopReason;
    // A server takes its time to start, and a turn does not wait for it for long.
    const listed = () => JSON.stringify(updates("tool_call_update")).includes("[FILE] notes.txt");
    for (let tries = 0; tries < input.tries && !listed(); tries++)
      await agent.request("session/prompt", { sessionId, prompt: text("List it") });
  },

  // Taken up without a replay, forked in another folder, listed by folder, and closed.
  async lives(agent, session) {
    const { sessionId } = session;
    await agent.request("session/prompt", { sessionId, prompt: text("Hello there") });
    const folders = [cwd, `${cwd}/aside`, `${cwd}/nothing`];
    mkdirSync(folders[1]);
    const fork = await agent.request("session/fork", { sessionId, cwd: folders[1], mcpServers: [] });
    await agent.request("session/prompt", { sessionId: fork.sessionId, prompt: text("Only in the fork") });
    seen.notes.fork = fork.sessionId;
    seen.notes.lists = await Promise.all(folders.map((folder) => agent.request("session/list", { cwd: folder })));
    seen.notes.closed = await agent.request("session/close", { sessionId });
    seen.notes.gone = await refused(agent.request("session/prompt", { sessionId, prompt: text("Hello?") }));
    const before = updates("user_message_chunk").length;
    await agent.request("session/resume", { sessionId, cwd, mcpServers: [] });
    seen.notes.silent = updates("user_message_chunk").length === before;
    seen.notes.after = (await agent.request("session/prompt", { sessionId, prompt: text("Hello again") })).stopReason;
  },
};

async function main() {
  const program = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"], cwd });
  const left = new Promise((resolve) => program.on("close", resolve));
  const lines = acp.ndJsonStream(Writable.toWeb(program.stdin), watched(Readable.toWeb(program.stdout)));
  const editor = acp
    .client({ name: "acceptance" })
    .onRequest("session/request_permission", ({ params }) => permit(params))
    .onNotification("session/update", () => {});
  for (const [method, handle] of Object.entries(hands)) editor.onRequest(method, ({ params }) => handle(params));
  await editor.connectWith(tapped(lines), async (agent) => {
    seen.initialized = await agent.request("initialize", {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities:
        story === "hands" ? { fs: { readTextFile: true, writeTextFile: true }, terminal: true } : {},
      clientInfo: { name: "acceptance", version: "1" },
    });
    const fresh = story === "load" ? null : await agent.request("session/new", { cwd, mcpServers: input.mcpServers ?? [] });
    seen.session = fresh?.sessionId ?? input.sessionId;
    await stories[story](agent, fresh);
  });
  program.stdin.end();
  seen.code = await left;
}

main().then(
  () => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error, JSON.stringify(seen.frames.slice(-8)));
    process.exit(1);
  },
);
