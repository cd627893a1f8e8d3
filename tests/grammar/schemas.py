#!/usr/bin/env python3
"""Answers under random JSON schemas, held against the package jsonschema.

usage: schemas.py INGLE [N]

Each of N schemas (200) is given to one `ingle daemon` on the built-in model at a high temperature.  An
answer that ended by itself must be valid; at least four of five must end.  Exits 77 (skipped)
where jsonschema is not installed.
"""
import json, os
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python package jsonschema is not installed")
    sys.exit(77)

NAMES = ["a", "ab", "name", "x-y", "größe", "two words", 'quo"te', "b\\c", "id", "n", "list"]


def string(r):
    s = {"type": "string"}
    kind = r.randrange(6)
    if kind == 0:
        s["pattern"] = r.choice(["^[a-z]{2,5}$", "^\\d+-\\w{3}$", "^(foo|ba[rz])$", "^[^\\d]{1,4}$", "^#[0-9a-f]{6}$"])
    elif kind == 1:
        s["format"] = r.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email"])
    elif kind == 2:
        s["enum"] = r.sample(["red", "gr\u00fcn", 'a"b', "", "line\nfeed", "\U0001F600"], r.randint(1, 4))
        del s["type"]
    else:
        low = r.randint(0, 6)
        s["minLength"], s["maxLength"] = low, low + r.randint(0, 12)
    return s


def number(r):
    s = {"type": r.choice(["integer", "number"])}
    if s["type"] == "integer":
        low = r.choice([-1000, -17, -1, 0, 1, 9, 99, 12345])
        span = r.choice([1, 9, 100, 54321])
    else:
        low = r.choice([-12.5, -1, -0.25, 0, 0.125, 3, 99.99])
        span = r.choice([0.5, 1, 2.75, 1000])
    which = r.randrange(4)
    if which & 1:
        s[r.choice(["minimum", "exclusiveMinimum"])] = low
    if which & 2:
        s[r.choice(["maximum", "exclusiveMaximum"])] = low + span + 1
    return s


def array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.3:
        s["prefixItems"] = [schema(r, depth - 1) for _ in range(r.randint(1, 3))]
        s["items"] = r.choice([False, {"type": "boolean"}])
        s["maxItems"] = 5
    else:
        s["items"] = schema(r, depth - 1)
        low = r.randint(0, 2)
        s["minItems"], s["maxItems"] = low, low + r.randint(0, 3)
    return s


def an_object(r, depth):
    names = r.sample(NAMES, r.randint(0, 5))
    s = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}}
    s["required"] = [n for n in names if r.random() < 0.6]
    kind = r.randrange(4)
    if kind == 0:
        s["additionalProperties"] = False
    elif kind == 1 and r.random() < 0.3:
        s["additionalProperties"] = {"type": "integer"}
    return s


def schema(r, depth):
    kind = r.randrange(10 if depth > 0 else 5)
    if kind < 2:
        return string(r)
    if kind == 2:
        return number(r)
    if kind == 3:
        return r.choice([{"type": "boolean"}, {"type": "null"}, {"const": [1, {"k": None}]},
                         {"type": ["integer", "null"]}, {"enum": [1, 2.5, "x", None, [True]]}])
    if kind == 4:
        return number(r)
    if kind < 7:
        return an_object(r, depth)
    if kind == 7:
        return array(r, depth)
    if kind == 8:
        return {"anyOf": [schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    first, second = an_object(r, depth), an_object(r, depth)
    for s in first, second:
        s.pop("additionalProperties", None)
    for name in first["properties"]:
        second["properties"].pop(name, None)
    second["required"] = [n for n in second["required"] if n in second["properties"]]
    return {"allOf": [first, second]}


def with_refs(r):
    node = {"type": "object", "properties": {"v": schema(r, 1), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"], "additionalProperties": False}
    return {"$defs": {"node": node, "leaf": schema(r, 1)}, "type": "object",
            "properties": {"head": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#/$defs/leaf"}}, "required": ["head"]}


def run(daemon, wanted, seed):
    """The answer's text and how it ended; None and the error."""
    command = {"do": "generate", "id": str(seed), "prompt": "JSON:", "max_tokens": 700, "temperature": 1.5, "top_k": 0, "top_p": 1,
               "min_p": 0, "seed": seed, "json_schema": wanted}
    daemon.stdin.write(json.dumps(command) + "\n")
    daemon.stdin.flush()
    text = ""
    for line in daemon.stdout:
        event = json.loads(line)
        if event["event"] == "text":
            text += event["text"]
        elif event["event"] == "end":
            return text, event["finish"]
        elif event["event"] == "error":
            return None, event["error"]
    return None, "the daemon ended"


def main():
    ingle, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
    n = max(n, 200) if os.environ.get("INGLE_TEST_SOAK") else n
    r = random.Random(20)
    failed = ended = 0
    with subprocess.Popen([ingle, "daemon", "-c", "1024"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        for i in range(n):
            s = with_refs(r) if i % 8 == 0 else schema(r, 3)
            answer, how = run(daemon, s, i)
            if answer is None:
                print(f"schema {i}: {how}\n{json.dumps(s)}")
                failed += 1
                continue
            if how != "stop":
                continue
            ended += 1
            try:
                value = json.loads(answer)
                jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker()).validate(value)
            except (ValueError, jsonschema.ValidationError) as e:
                print(f"schema {i}: {e}\n{json.dumps(s)}\n{answer}")
                failed += 1
        daemon.stdin.close()
    print(f"{n} schemas, {ended} answers that ended, {failed} failures")
    return failed > 0 or ended < 0.8 * n


if __name__ == "__main__":
    sys.exit(main())
