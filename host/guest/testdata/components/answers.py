"""Calls the cases of a component in wasmtime and writes what it answers.

python3 answers.py COMPONENT CASES.json [DIR] > ANSWERS.json

The component sees DIR as /data, and otherwise nothing.

Cases are [{"interface": ..., "export": ..., "in": {...}}]; an answer is the JSON
of the result, as wassette writes it, or {"trap": true}. Needs: pip install wasmtime.
"""
import json
import math
import sys

from wasmtime import Engine, Store, WasiConfig
from wasmtime import component as c


def to_val(t, v):
    if isinstance(t, c.ListType):
        if isinstance(t.element, c.U8):
            return bytes(v)
        return [to_val(t.element, x) for x in v]
    if isinstance(t, c.RecordType):
        r = c.Record()
        for name, of in t.fields:
            setattr(r, name, to_val(of, v[name]))
        return r
    if isinstance(t, c.TupleType):
        return tuple(to_val(of, x) for of, x in zip(t.elements, v))
    if isinstance(t, c.VariantType):
        of = dict(t.cases)[v["tag"]]
        return c.Variant(v["tag"], None if of is None else to_val(of, v["val"]))
    if isinstance(t, c.OptionType):
        if isinstance(t.payload, c.OptionType):
            return c.Variant("none") if v is None else c.Variant("some", to_val(t.payload, v))
        return None if v is None else to_val(t.payload, v)
    if isinstance(t, c.ResultType):
        tag = "ok" if "ok" in v else "err"
        of = t.ok if tag == "ok" else t.err
        raw = None if of is None else to_val(of, v[tag])
        return raw if distinct(t) else c.Variant(tag, raw)
    if isinstance(t, c.FlagsType):
        return set(v)
    if isinstance(t, (c.F32, c.F64)):
        return float(v)
    return v


def python_type(t):
    if t is None:
        return type(None)
    return type(to_val(t, example(t)))


def example(t):
    if isinstance(t, c.String):
        return ""
    if isinstance(t, (c.ListType, c.FlagsType)):
        return []
    return 0


def distinct(t):
    """wasmtime hands results without a tag where their Python types differ."""
    return python_type(t.ok) != python_type(t.err)


def of_val(t, v):
    if t is None:
        return None
    if isinstance(t, c.ListType):
        return [of_val(t.element, x) for x in v]
    if isinstance(t, c.RecordType):
        return {name: of_val(of, getattr(v, name)) for name, of in t.fields}
    if isinstance(t, c.TupleType):
        return [of_val(of, x) for of, x in zip(t.elements, v)]
    if isinstance(t, c.VariantType):
        of = dict(t.cases)[v.tag]
        return {"tag": v.tag} if of is None else {"tag": v.tag, "val": of_val(of, v.payload)}
    if isinstance(t, c.OptionType):
        if isinstance(v, c.Variant):
            v = v.payload
        return None if v is None else of_val(t.payload, v)
    if isinstance(t, c.ResultType):
        if isinstance(v, c.Variant):
            return {v.tag: of_val(t.ok if v.tag == "ok" else t.err, v.payload)}
        if type(v) is python_type(t.ok):
            return {"ok": of_val(t.ok, v)}
        return {"err": of_val(t.err, v)}
    if isinstance(t, c.FlagsType):
        return sorted(v, key=list(t.names).index)
    if isinstance(t, (c.F32, c.F64)) and not math.isfinite(v):
        return None
    return v


def main():
    engine = Engine()
    comp = c.Component.from_file(engine, sys.argv[1])
    answers = []
    for case in json.load(open(sys.argv[2])):
        store = Store(engine)
        wasi = WasiConfig()
        if len(sys.argv) > 3:
            wasi.preopen_dir(sys.argv[3], "/data")
        store.set_wasi(wasi)
        linker = c.Linker(engine)
        linker.add_wasip2()
        linker.add_wasi_http()
        inst = linker.instantiate(store, comp)
        at = inst.get_export_index(store, case["interface"]) if case.get("interface") else None
        f = inst.get_func(store, inst.get_export_index(store, case["export"], at))
        t = f.type(store)
        try:
            got = f(store, *[to_val(of, case["in"][name]) for name, of in t.params])
            answers.append(of_val(t.result, got))
        except Exception as e:
            print(case["export"], repr(e), e, file=sys.stderr)
            answers.append({"trap": True})
    print("[\n" + ",\n".join(json.dumps(a, ensure_ascii=False) for a in answers) + "\n]")


main()
