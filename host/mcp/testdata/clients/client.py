"""Clients of MCP, by the SDK for Python, in one process. Each line of the standard
input is a JSON object that says which client does what, and is answered by one.

    {"client": ID, "op": "open", "mode": MODE, "token": TOKEN, "url": URL}
    {"client": ID, "op": "open", "mode": MODE, "token": TOKEN, "command": [COMMAND, ARGS...]}

MODE is "legacy" or a version of the protocol without sessions.
"""

import asyncio
import contextlib
import json
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


async def main():
    sessions, tasks = {}, []
    while True:
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        q, answer = json.loads(line), asyncio.get_running_loop().create_future()
        if q["op"] == "open":
            s = sessions[q["client"]] = Session()
            tasks.append(asyncio.ensure_future(s.run(q, answer)))
        else:
            sessions[q["client"]].asked.put_nowait((q, answer))
        print(json.dumps(await answer), flush=True)
    os._exit(0)


asyncio.run(main())
