"""Clients of MCP, by the SDK for Python, in one process. Each line of the standard
input is a JSON object that says which client does what, and is answered by one.

    {"client": ID, "op": "open", "mode": MODE, "token": TOKEN, "url": URL}
    {"client": ID, "op": "open", "mode": MODE, "token": TOKEN, "command": [COMMAND, ARGS...]}
    {"client": ID, "op": "repeat", "mode": MODE, "token": TOKEN, "url": URL, "calls": N, "file": FILE}

MODE is "legacy" or a version of the protocol without sessions. The last appends N lines
to FILE by as many calls over connections that break: each is made again, by a new client
where need be, until it is answered.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


class Session:
    def __init__(self):
        self.changed = asyncio.Event()
        self.asked = asyncio.Queue()
        self.call = None

    async def message(self, m):
        if getattr(m, "method", getattr(getattr(m, "root", None), "method", "")) == "notifications/tools/list_changed":
            self.changed.set()

    async def listen(self, client, ready):
        async with client.listen(tools_list_changed=True) as events:
            ready.set()
            async for _ in events:
                self.changed.set()

    async def run(self, q, opened):
        """Opens the client, does what is asked of it, and closes it: all in one task, as the SDK wants it."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                if "url" in q:
                    http = await stack.enter_async_context(create_mcp_http_client(headers={"Authorization": "Bearer " + q["token"]}))
                    to = streamable_http_client(q["url"], http_client=http)
                else:
                    command, *args = q["command"]
                    to = StdioServerParameters(command=command, args=args, env=dict(os.environ, TOOL_TOKEN=q["token"]))
                client = await stack.enter_async_context(Client(to, mode=q["mode"], message_handler=self.message))
                modern, listening = q["mode"] != "legacy", None
                if modern:
                    ready = asyncio.Event()
                    listening = asyncio.ensure_future(self.listen(client, ready))
                    await ready.wait()
                opened.set_result({})
                while True:
                    q, answer = await self.asked.get()
                    try:
                        answer.set_result(await operate(self, client, modern, q))
                    except Exception as e:
                        answer.set_result({"failed": repr(e)})
                    if q["op"] == "close":
                        break
                if listening:
                    listening.cancel()
        except Exception as e:
            if not opened.done():
                opened.set_result({"failed": repr(e)})


async def operate(s, client, modern, q):
    op = q["op"]
    if op == "list":
        return {"tools": [t.name for t in (await client.list_tools(cache_mode="refresh" if modern else "use")).tools]}
    if op == "call":
        progress = []

        async def on_progress(progressed, total, text):
            progress.append(text)

        r = await client.call_tool(q["name"], q["args"], progress_callback=on_progress)
        meta = r.meta or {}
        return {
            "text": "".join(c.text for c in r.content),
            "isError": bool(r.is_error),
            "error": meta.get("io.toold/error"),
            "progress": progress,
        }
    if op == "start":
        s.call = asyncio.ensure_future(client.call_tool(q["name"], q["args"]))
        return {}
    if op == "cancel":
        s.call.cancel()
        try:
            await s.call
            return {"cancelled": False}
        except asyncio.CancelledError:
            return {"cancelled": True}
    if op == "changed":
        await s.changed.wait()
        s.changed.clear()
        return {}
    return {}


async def repeat(q):
    """Makes the calls of "repeat". A request that breaks before the head of its answer was
    read ends the transport's task group, which cancels the task that opened the client:
    each client has a task of its own, and whoever waits for that sees an error."""
    logging.disable()  # the SDK logs each break
    todo, cuts, failed = list(range(q["calls"])), 0, []

    async def serve(mine):
        http = create_mcp_http_client(headers={"Authorization": "Bearer " + q["token"]})
        async with http, Client(streamable_http_client(q["url"], http_client=http), mode=q["mode"], read_timeout_seconds=2) as client:
            while mine or todo:
                if not mine:
                    mine.append(todo.pop())
                i = mine[0]
                again = {("io.toold/turn" if i % 2 else "io.toold/idempotencyKey"): f"{q['file']} {i}"}
                line = f"{i}\n"
                r = await client.call_tool("tee", {"args": ["-a", q["file"]], "stdin": base64.b64encode(line.encode()).decode()}, meta=again)
                if r.is_error and ((r.meta or {}).get("io.toold/error") or {}).get("retriable"):
                    continue
                if r.is_error or "".join(c.text for c in r.content) != line:
                    failed.append(f"{i}: {r}")
                mine.clear()

    async def work():
        nonlocal cuts
        mine = []
        while mine or todo:
            try:
                await asyncio.ensure_future(serve(mine))
            except (Exception, asyncio.CancelledError):
                cuts += 1

    await asyncio.gather(*(work() for _ in range(16)))
    return {"cuts": cuts, "failed": "; ".join(failed)}


async def main():
    sessions = {}
    while True:
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        q, answer = json.loads(line), asyncio.get_running_loop().create_future()
        if q["op"] == "repeat":
            doing = answer = asyncio.ensure_future(repeat(q))
        elif q["op"] == "open":
            s = sessions[q["client"]] = Session()
            doing = s.doing = asyncio.ensure_future(s.run(q, answer))
        else:
            doing = sessions[q["client"]].doing
            sessions[q["client"]].asked.put_nowait((q, answer))
        # A connection that breaks cancels the task of its client, in whatever call.
        await asyncio.wait((answer, doing), return_when=asyncio.FIRST_COMPLETED)
        print(json.dumps(answer.result() if answer.done() else {"failed": "the client has ended"}), flush=True)
    os._exit(0)


asyncio.run(main())
