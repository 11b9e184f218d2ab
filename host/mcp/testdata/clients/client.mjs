// Clients of MCP, by the SDK for TypeScript, in one process. Each line of the standard
// input is a JSON object that says which client does what, and is answered by one.
//
//   {"client": ID, "op": "open", "token": TOKEN, "url": URL}
//   {"client": ID, "op": "open", "token": TOKEN, "command": [COMMAND, ARGS...]}
//   {"client": ID, "op": "repeat", "token": TOKEN, "url": URL, "calls": N, "file": FILE}
//
// The last appends N lines to FILE by as many calls over connections that break: each is
// made again, by a new client where need be, until it is answered.
import readline from 'node:readline'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(process.env.MODULES + '/index.js')
const load = (name) => import(pathToFileURL(require.resolve('@modelcontextprotocol/sdk/' + name)).href)
const { Client } = await load('client/index.js')
const { StreamableHTTPClientTransport } = await load('client/streamableHttp.js')
const { StdioClientTransport } = await load('client/stdio.js')
const { ToolListChangedNotificationSchema } = await load('types.js')

async function open({ token, url, command }) {
  const transport = url
    ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: 'Bearer ' + token } } })
    : new StdioClientTransport({ command: command[0], args: command.slice(1), env: { ...process.env, TOOL_TOKEN: token } })
  const client = new Client({ name: 'test', version: '1' })
  let changes = 0
  let waiting = () => {}
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => { changes++; waiting() })
  await client.connect(transport)
  let abort, started
  return {
    async list() { return { tools: (await client.listTools()).tools.map((t) => t.name) } },
    async call({ name, args }) {
      const progress = []
      const r = await client.callTool({ name, arguments: args }, undefined, { onprogress: (p) => progress.push(p.message) })
      return { text: r.content.map((c) => c.text).join(''), isError: r.isError ?? false, error: r._meta?.['io.toold/error'], progress }
    },
    async start({ name, args }) {
      abort = new AbortController()
      started = client.callTool({ name, arguments: args }, undefined, { signal: abort.signal }).then(() => false, () => true)
      return {}
    },
    async cancel() { abort.abort('enough'); return { cancelled: await started } },
    async changed() {
      while (changes === 0) await new Promise((resolve) => { waiting = resolve })
      changes = 0
      return {}
    },
    async close() { await client.close(); return {} },
  }
}

async function repeat({ token, url, calls, file }) {
  let next = 0, cuts = 0
  const failed = []
  async function work() {
    let client, i
    for (;;) {
      if (i === undefined) {
        if (next === calls) break
        i = next++
      }
      try {
        if (!client) {
          client = new Client({ name: 'test', version: '1' })
          await client.connect(new StreamableHTTPClientTransport(new URL(url), {
            requestInit: { headers: { Authorization: 'Bearer ' + token } },
            reconnectionOptions: { initialReconnectionDelay: 10, maxReconnectionDelay: 50, reconnectionDelayGrowFactor: 1, maxRetries: 2 },
          }), { timeout: 2000 })
        }
        const again = i % 2 ? { 'io.toold/turn': file + ' ' + i } : { 'io.toold/idempotencyKey': file + ' ' + i }
        const r = await client.callTool({ name: 'tee', arguments: { args: ['-a', file], stdin: btoa(i + '\n') }, _meta: again }, undefined, { timeout: 2000 })
        if (r.isError && r._meta?.['io.toold/error']?.retriable) continue
        if (r.isError || r.content.map((c) => c.text).join('') !== i + '\n') failed.push(i + ': ' + JSON.stringify(r))
        i = undefined
      } catch {
        cuts++
        await client?.close().catch(() => {})
        client = undefined
      }
    }
    await client?.close().catch(() => {})
  }
  await Promise.all(Array.from({ length: 16 }, work))
  return { cuts, failed: failed.join('; ') }
}

const clients = {}
for await (const line of readline.createInterface({ input: process.stdin })) {
  const q = JSON.parse(line)
  let answer = {}
  try {
    if (q.op === 'open') clients[q.client] = await open(q)
    else if (q.op === 'repeat') answer = await repeat(q)
    else answer = await clients[q.client][q.op](q)
  } catch (e) {
    answer = { failed: String(e) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
process.exit(0)
