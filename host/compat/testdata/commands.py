"""Runs WASI commands on wasmtime: one JSON request a line in, one answer a line out.

A request has module, code (where compiled code is kept), args, env, stdin and dirs
(guest path to host path).
"""
import base64, json, os, sys, tempfile
import wasmtime

config = wasmtime.Config()
config.wasm_exceptions = True
engine = wasmtime.Engine(config)
linker = wasmtime.Linker(engine)
linker.define_wasi()


def load(request):
    if not os.path.exists(request["code"]):
        code = wasmtime.Module.from_file(engine, request["module"]).serialize()
        with open(request["code"] + ".part", "wb") as f:
            f.write(code)
        os.rename(request["code"] + ".part", request["code"])
    return wasmtime.Module.deserialize_file(engine, request["code"])


for line in sys.stdin:
    request = json.loads(line)
    with tempfile.TemporaryDirectory() as tmp:
        wasi = wasmtime.WasiConfig()
        wasi.argv = request["args"]
        wasi.env = [(k, v) for k, v in request["env"].items()]
        for name in ("stdin", "stdout", "stderr"):
            path = os.path.join(tmp, name)
            with open(path, "wb") as f:
                f.write(base64.b64decode(request["stdin"] or "") if name == "stdin" else b"")
            setattr(wasi, name + "_file", path)
        for guest, host in (request["dirs"] or {}).items():
            wasi.preopen_dir(host, guest)
        answer = {"exit": 0, "error": ""}
        try:
            module = load(request)
            store = wasmtime.Store(engine)
            store.set_wasi(wasi)
            linker.instantiate(store, module).exports(store)["_start"](store)
        except wasmtime.ExitTrap as e:
            answer["exit"] = e.code
        except Exception as e:
            answer["error"] = str(e)
        del store, wasi
        for name in ("stdout", "stderr"):
            with open(os.path.join(tmp, name), "rb") as f:
                answer[name] = base64.b64encode(f.read()).decode()
        print(json.dumps(answer), flush=True)
