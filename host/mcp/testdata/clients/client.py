"""A client of MCP, by the SDK for Python, that does what the lines of its standard
input say, each a JSON object, and answers each with one.

    python client.py http MODE URL TOKEN
    python client.py stdio MODE COMMAND ARGS...

MODE is "legacy" or a version of the protocol without sessions.
"""

import asyncio
import json
import os
import sys

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

kind, mode, first, *rest = sys.argv[1:]
changed = asyncio.Event()
modern = mode != "legacy"


async def message(m):
    if getattr(m, "method", getattr(getattr(m, "root", None), "method", "")) == "notifications/tools/list_changed":
        changed.set()


async def operate(client, q, state):
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
        state["call"] = asyncio.ensure_future(client.call_tool(q["name"], q["args"]))
        return {}
    if op == "cancel":
        state["call"].cancel()
        try:
            await state["call"]
            return {"cancelled": False}
        except asyncio.CancelledError:
            return {"cancelled": True}
    if op == "changed":
        await changed.wait()
        changed.clear()
        return {}
    return {}


async def listen(client, ready):
    async with client.listen(tools_list_changed=True) as events:
        ready.set()
        async for _ in events:
            changed.set()


async def serve(client):
    state = {}
    listening = None
    if modern:
        ready = asyncio.Event()
        listening = asyncio.ensure_future(listen(client, ready))
        await ready.wait()
    while True:
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        q = json.loads(line)
        try:
            answer = await operate(client, q, state)
        except Exception as e:
            answer = {"failed": repr(e)}
        print(json.dumps(answer), flush=True)
        if q["op"] == "close":
            break
    if listening:
        listening.cancel()


async def main():
    if kind == "http":
        async with create_mcp_http_client(headers={"Authorization": "Bearer " + rest[0]}) as http:
            async with Client(streamable_http_client(first, http_client=http), mode=mode, message_handler=message) as client:
                await serve(client)
    else:
        server = StdioServerParameters(command=first, args=rest, env=dict(os.environ))
        async with Client(server, mode=mode, message_handler=message) as client:
            await serve(client)
    os._exit(0)


asyncio.run(main())
