// A client of MCP, by the SDK for TypeScript, that does what the lines of its standard
// input say, each a JSON object, and answers each with one.
//
//   node client.mjs http URL TOKEN
//   node client.mjs stdio COMMAND ARGS...
import readline from 'node:readline'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(process.env.MODULES + '/index.js')
const load = (name) => import(pathToFileURL(require.resolve('@modelcontextprotocol/sdk/' + name)).href)
const { Client } = await load('client/index.js')
const { StreamableHTTPClientTransport } = await load('client/streamableHttp.js')
const { StdioClientTransport } = await load('client/stdio.js')
const { ToolListChangedNotificationSchema } = await load('types.js')

const [kind, first, ...rest] = process.argv.slice(2)
const transport = kind === 'http'
  ? new StreamableHTTPClientTransport(new URL(first), { requestInit: { headers: { Authorization: 'Bearer ' + rest[0] } } })
  : new StdioClientTransport({ command: first, args: rest, env: process.env })
const client = new Client({ name: 'test', version: '1' })
let changes = 0
let waiting = () => {}
client.setNotificationHandler(ToolListChangedNotificationSchema, () => { changes++; waiting() })
await client.connect(transport)

let abort, started
const ops = {
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
for await (const line of readline.createInterface({ input: process.stdin })) {
  const q = JSON.parse(line)
  let answer
  try {
    answer = await ops[q.op](q)
  } catch (e) {
    answer = { failed: String(e) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
  if (q.op === 'close') break
}
process.exit(0)
