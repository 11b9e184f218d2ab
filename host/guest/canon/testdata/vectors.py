"""Writes vectors.json: values of the canonical ABI as its reference definition
lifts and lowers them. Run with the folder of the reference, design/mvp/canonical-abi
of github.com/WebAssembly/component-model (vectors.json is of its commit 6d28164):

    python3 vectors.py component-model/design/mvp/canonical-abi > vectors.json

Types are random, and so are the values that are lowered and the core values and the
memory that are lifted. Handles are left out: the host of these tests has no table.
"""

import json
import random
import struct
import sys

sys.path.insert(0, sys.argv[1])
import definitions as d

d.DETERMINISTIC_PROFILE = True
r = random.Random(18)
PLAIN = {"bool": d.BoolType, "s8": d.S8Type, "u8": d.U8Type, "s16": d.S16Type, "u16": d.U16Type, "s32": d.S32Type,
         "u32": d.U32Type, "s64": d.S64Type, "u64": d.U64Type, "f32": d.F32Type, "f64": d.F64Type, "char": d.CharType,
         "string": d.StringType}
ENCODINGS = {"utf8": "utf8", "utf16": "utf16", "latin1": "latin1+utf16"}


class Context(d.LiftLowerContext):
    """Allocates upwards, from 8, and never frees."""

    def __init__(self, memory, encoding):
        opts = d.CanonicalOptions()
        opts.memory, opts.string_encoding = d.MemInst(memory, "i32"), encoding
        super().__init__(opts, None)
        self.at, self.grew = 8, False

    def reallocate(self, old, old_size, alignment, size):
        self.grew |= old_size != 0
        ptr = (self.at + alignment - 1) // alignment * alignment
        d.trap_if(ptr + size > len(self.opts.memory))
        self.at = ptr + size
        self.opts.memory[ptr : ptr + old_size] = self.opts.memory[old : old + old_size]
        return ptr


def make(depth=0):
    """Answers a type as JSON."""
    if depth > 2 or r.random() < 0.35:
        return r.choice(list(PLAIN))
    inner = lambda: make(depth + 1)
    maybe = lambda: None if r.random() < 0.3 else inner()
    some = lambda f, most: [f() for _ in range(r.randint(1, most))]
    kind = r.choice(["list", "record", "tuple", "variant", "enum", "option", "result", "flags"])
    match kind:
        case "list" | "option":
            return {kind: inner()}
        case "record" | "tuple":
            return {kind: some(inner, r.choice([2, 4, 9]))}
        case "variant":
            return {kind: some(maybe, 5)}
        case "result":
            return {kind: [maybe(), maybe()]}
        case "enum":
            return {kind: r.choice([1, 3, 256, 257])}
        case "flags":
            return {kind: r.choice([1, 3, 8, 9, 16, 17, 31, 32])}


def typ(t):
    """Answers the reference's type."""
    if t is None:
        return None
    if isinstance(t, str):
        return PLAIN[t]()
    [(kind, of)] = t.items()
    match kind:
        case "list":
            return d.ListType(typ(of))
        case "option":
            return d.OptionType(typ(of))
        case "record":
            return d.RecordType([d.FieldType(str(i), typ(f)) for i, f in enumerate(of)])
        case "tuple":
            return d.TupleType([typ(f) for f in of])
        case "variant":
            return d.VariantType([d.CaseType(str(i), typ(c)) for i, c in enumerate(of)])
        case "result":
            return d.ResultType(typ(of[0]), typ(of[1]))
        case "enum":
            return d.EnumType([str(i) for i in range(of)])
        case "flags":
            return d.FlagsType([str(i) for i in range(of)])


def cases(t):
    """Answers the cases of a type that has some: their labels, and their types."""
    [(kind, of)] = t.items()
    match kind:
        case "variant":
            return [str(i) for i in range(len(of))], of
        case "option":
            return ["none", "some"], [None, of]
        case "result":
            return ["ok", "error"], of
        case "enum":
            return [str(i) for i in range(of)], [None] * of


def value(t):
    """Answers a value as the reference has it."""
    if isinstance(t, str):
        match t:
            case "bool":
                return r.random() < 0.5
            case "f32":
                return r.choice([0.0, -0.0, 1.5, -3.25, float("inf"), float("nan"), 2.0**-149, 16777216.0])
            case "f64":
                return r.choice([0.0, -0.0, 0.1, -3.25, float("-inf"), float("nan"), 5e-324, 1e300])
            case "char":
                return r.choice("aü€𝄞\0\ud7ff\U0010ffff")
            case "string":
                s = "".join(r.choice(r.choice(["abc", "aüÿ", "a€", "aü€𝄞\0"])) for _ in range(r.randint(0, 6)))
                return (s, "utf8", len(s.encode()))
        bits = int(t[1:])
        v = r.choice([0, 1, 2**bits - 1, 2 ** (bits - 1), r.getrandbits(bits)])
        return v - 2**bits if t[0] == "s" and v >= 2 ** (bits - 1) else v
    [(kind, of)] = t.items()
    match kind:
        case "list":
            return [value(of) for _ in range(r.randint(0, 4))]
        case "record" | "tuple":
            return {str(i): value(f) for i, f in enumerate(of)}
        case "flags":
            return {str(i): r.random() < 0.5 for i in range(of)}
    names, types = cases(t)
    i = r.randrange(len(names))
    return {names[i]: None if types[i] is None else value(types[i])}


def bits(x, wide):
    return struct.unpack("<Q" if wide else "<I", struct.pack("<d" if wide else "<f", x))[0]


def shown(t, v):
    """Answers a value of the reference as JSON: numbers in text, floats as their bits."""
    if isinstance(t, str):
        match t:
            case "bool":
                return v
            case "f32" | "f64":
                return str(bits(v, t == "f64"))
            case "char":
                return str(ord(v))
            case "string":
                return v[0]
        return str(v)
    [(kind, of)] = t.items()
    match kind:
        case "list":
            return [shown(of, x) for x in v]
        case "record" | "tuple":
            return [shown(f, v[str(i)]) for i, f in enumerate(of)]
        case "flags":
            return str(sum(1 << i for i in range(of) if v[str(i)]))
    names, types = cases(t)
    [(name, x)] = v.items()
    i = names.index(name)
    return {"case": i} if types[i] is None else {"case": i, "value": shown(types[i], x)}


def core(kind):
    """Answers a core value: its bits, and what the reference takes."""
    v = r.choice([r.randrange(0, 4), r.randrange(0, 64), r.randrange(0, 16) * 8, r.getrandbits(64)])
    if kind in ("i32", "f32"):
        v &= 0xFFFFFFFF
    match kind:
        case "f32":
            x = d.decode_i32_as_float(v)
            return bits(x, False), x
        case "f64":
            x = d.decode_i64_as_float(v)
            return bits(x, True), x
    return v, v


def flat_bits(kind, v):
    match kind:
        case "f32":
            return bits(v, False)
        case "f64":
            return bits(v, True)
    return v


def lowered():
    t, name = make(), r.choice(list(ENCODINGS))
    v = value(t)
    params = r.random() < 0.5
    memory = bytearray(4096)
    cx = Context(memory, ENCODINGS[name])
    kinds = d.flatten_types([typ(t)], cx.opts)
    if params:
        flat = d.lower_flat_values(cx, 16, [v], [typ(t)])
    else:
        out = cx.reallocate(0, 0, 8, d.elem_size(typ(t), "i32"))
        flat = d.lower_flat_values(cx, 1, [v], [typ(t)], d.CoreValueIter([out]))
    if len(kinds) > (16 if params else 1):
        kinds = ["i32"]
    return {
        "do": "lower params" if params else "lower result", "type": t, "encoding": name, "value": shown(t, v),
        "flat": [str(flat_bits(k, x)) for k, x in zip(kinds, flat)], "memory": bytes(memory[: cx.at]).hex(),
        # Strings that did not fit at first lie elsewhere when they are measured first.
        **({"moved": True} if cx.grew else {}),
    }


TEXTS = ["string", {"option": "string"}, {"tuple": ["string", "char"]}, {"list": "char"}, {"result": [{"list": {"enum": 3}}, "string"]}]


def lifted(texts):
    t, name = r.choice(TEXTS) if texts else make(), r.choice(list(ENCODINGS))
    params = r.random() < 0.5
    # Small numbers are cases, lengths and pointers; letters, strings in all encodings.
    memory = bytearray(r.choice([0, 0, 1, 2, 3, 8, 16, 24, 0x41, 0x61, 0xE9, r.getrandbits(8)]) for _ in range(128))
    if texts:
        params, memory = True, bytearray(r.choice([0, 1, 2, 0x41, 0x61, r.choice([0, 0x61, 0xC3, 0xD8, 0xDC, 0xBC])]) for _ in range(128))
    cx = Context(memory, ENCODINGS[name])
    kinds = d.flatten_types([typ(t)], cx.opts)
    if len(kinds) > (16 if params else 1):
        kinds = ["i32"]
    flat = [core(k) for k in kinds]
    if texts:  # a case, pointers and lengths
        flat = [(n, n) for n in (r.randrange(0, 12) for _ in kinds)]
    if kinds[0] == "i32" and (len(kinds) == 3 or not texts) and r.random() < 0.7:
        small = r.randrange(0, 3) if len(kinds) > 1 else r.randrange(0, 8) * 8
        flat[0] = (small, small)
    test = {"do": "lift params" if params else "lift result", "type": t, "encoding": name, "flat": [str(b) for b, _ in flat],
            "memory": bytes(memory).hex()}
    try:
        [v] = d.lift_flat_values(cx, 16 if params else 1, d.CoreValueIter([x for _, x in flat]), [typ(t)])
        test["value"] = shown(t, v)
    except d.Trap:
        test["trap"] = True
    return test


tests, traps = [], 0
while len(tests) < 500:
    v = lowered()
    if len(v["memory"]) < 1500:
        tests.append(v)
while len(tests) < 1000:
    v = lifted(len(tests) >= 850)
    if v.get("trap") and len(tests) < 850:
        traps += 1
        if traps > 150:
            continue
    if len(json.dumps(v)) < 2000:
        tests.append(v)
print("[\n" + ",\n".join(json.dumps(t, ensure_ascii=True) for t in tests) + "\n]")
