#!/usr/bin/env python3
"""compare_requests.py OLD NEW [FILE] [--part=I/N] - two programs answer the same requests alike: each field that the old one's
/openapi.json describes, with good values, bounds, values beyond them, wrong types and null, in every dialect, each
member of a command of the daemon, and the lines {"path", "body"} of FILE.  Statuses and bodies are compared, without times and ids.
--part: only each N-th of them, from the I-th (0 to N - 1) on."""
import fields as table, http.client, json, re, subprocess, sys

ANY = [None, True, False, 0, 1, -1, 2, 3, 20, 21, 0.5, 1.5, 70, 5000, -0.5, -1.5, 1e10, 1e30, 2**63, "", "x", "on", "auto", "0", [], [1],
       ["x"], [None], {}, {"x": 1}]
TEXT = {"prompt": "Once upon", "seed": 7, "temperature": 0}
TALK = {"messages": [{"role": "user", "content": "Hi"}], "seed": 7, "temperature": 0}
OPTIONS = {"num_predict": 2, "seed": 7, "temperature": 0}
PATHS = {  # a small body, and where its fields of sampling are
    "/v1/chat/completions": (dict(TALK, max_tokens=2), None),
    "/v1/completions": (dict(TEXT, max_tokens=2), None),
    "/completion": (dict(TEXT, n_predict=2), None),
    "/v1/messages": (dict(TALK, max_tokens=2), None),
    "/v1/responses": ({"input": "Hi", "max_output_tokens": 2, "seed": 7, "temperature": 0, "store": False}, None),
    "/api/chat": ({"messages": TALK["messages"], "stream": False, "options": OPTIONS}, "options"),
    "/api/generate": ({"prompt": "Hi", "stream": False, "options": OPTIONS}, "options"),
}
NOISE = [(re.compile(p), r) for p, r in (
    (r'"((?:\w*_)?(?:ms|per_second|seconds|duration|at|created|time)|created)":-?[\d.e+-]+', r'"\1":0'),
    (r'"created_at":"[^"]*"', '"created_at":""'), (r'"(\w*[sS]eed)":\d{6,}', r'"\1":0'),
    (r"\b(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_|req_|call_|toolu_|conv_|ctc_|lsh_|ts_)[\w-]+", r"\1"),
    (r',?"(?:draft_n\w*|drafts|mean_length|\w+_prediction_tokens)":[\d.e+-]+', ""), (r'"why_off":(?:null|"[^"]*")', ""),
    (r'"(request_id|id)":"[\w-]{16,}"', r'"\1":""'), (r'"signature":"[^"]*"', '"signature":""'),
    (r'"(system_fingerprint|build_info)":"[^"]*"', r'"\1":""'), (r'"encrypted_content":"[^"]*"', ""))]


class Program:
    def __init__(self, path):
        self.path = path
        self.server = subprocess.Popen([path, "serve", "--port", "0"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.port = next(int(m[1]) for m in (re.search(r"http://127\.0\.0\.1:(\d+)", x) for x in self.server.stdout) if m)
        self.http = None
        while self.ask("/health", None)[0] != 200:
            pass

    def ask(self, path, body):
        for _ in range(2):
            try:
                self.http = self.http or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                self.http.request("POST" if body is not None else "GET", path, body, {"Content-Type": "application/json"})
                r = self.http.getresponse()
                return r.status, r.read().decode(errors="replace")
            except (http.client.HTTPException, OSError):
                self.http = None
        return 0, "no answer"

    def daemon(self, lines):
        events = {}
        for i in range(0, len(lines), 40):  # as many as its queue holds
            out = subprocess.run([self.path, "daemon"], input="\n".join(lines[i:i + 40]) + "\n", text=True, capture_output=True).stdout
            for e in map(json.loads, out.splitlines()):
                e = {k: v for k, v in e.items() if not k.endswith("_s") and k not in ("reused_tokens", "computed_tokens", "why", "drafted", "accepted")}
                events.setdefault(e.get("id"), []).extend([e] * (e["event"] not in ("progress", "ready")))
        return events


def values(doc, schema):
    """What a schema names: words, bounds and what is beyond them."""
    if "$ref" in schema:
        yield from values(doc, doc["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    yield from schema.get("enum", [])
    if "const" in schema:
        yield schema["const"]
    for key in ("minimum", "maximum"):
        if key in schema:
            yield from (schema[key], schema[key] + 1, schema[key] - 1, schema[key] + 0.01, schema[key] - 0.01)
    for key, n in (("maxLength", schema.get("maxLength", 0)), ("minLength", schema.get("minLength", 0))):
        if key in schema:
            yield from ("y" * n, "y" * (n + 1))
    if 0 < schema.get("maxItems", 0) < 5000:
        yield from (["y"] * schema["maxItems"], ["y"] * (schema["maxItems"] + 1))
    for key in ("anyOf", "allOf"):
        for s in schema.get(key, []):
            yield from values(doc, s)


def fields(doc, schema, prefix=()):
    """(path of the member, schema) of all members of an object."""
    if "$ref" in schema:
        yield from fields(doc, doc["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], prefix)
    for key in ("anyOf", "allOf"):
        for s in schema.get(key, []):
            yield from fields(doc, s, prefix)
    for name, s in schema.get("properties", {}).items():
        yield prefix + (name,), s
        if len(prefix) < 2 and name not in ("messages", "input", "prompt", "tools"):
            yield from fields(doc, s, prefix + (name,))


def requests(doc):
    for path, (small, _) in PATHS.items():
        body = doc["paths"][path.removeprefix("/v1")]["post"]["requestBody"]["content"]["application/json"]["schema"]
        seen = set()
        for where, schema in fields(doc, body):
            for v in [*ANY, *values(doc, schema)]:
                whole = json.loads(json.dumps(small))
                at = whole
                for name in where[:-1]:
                    at = at.setdefault(name, {})
                    at = at if isinstance(at, dict) else {}
                at[where[-1]] = v
                text = json.dumps(whole)
                if text not in seen and not (where[-1] == "resumable" and v is True):
                    yield path, text
                seen.add(text)


def commands():
    """Commands of the daemon, with each member of generate."""
    words = sorted(table.names_of("DAEMON") | set("session messages prompt tokens tools tool_choice thinking effort seed stop draft_method "
                                                   "grammar json_schema json_object regex nonsense".split()))
    numbers = [4096, 4097, 100, 101, -100, -101, 0.01, 0.009, -10, 10, -11, 11, 1e9, 1e12, 1e13, "1/16", "mtp", "none"]
    n = 0
    for word in words:
        for v in [*ANY, *numbers]:
            n += 1
            yield json.dumps({"do": "generate", "id": str(n), "max_tokens": 2, "temperature": 0, "prompt": "Hi", word: v})


def settled(request):
    """The same request, drawn with a seed and without drafts, whose number depends on times."""
    try:
        whole = json.loads(request["body"])
        at = whole.setdefault("options", {}) if request["path"].startswith("/api/") else whole
        if "speculative" not in at:
            at.update({"seed": 7, "draft_max": 0} | {k: v for k, v in at.items() if k in ("seed", "draft_max")})
        return dict(request, body=json.dumps(whole))
    except (ValueError, AttributeError, TypeError):
        return request


def plain(text):
    for pattern, to in NOISE:
        text = pattern.sub(to, text)
    return text


def main():
    part = [re.fullmatch(r"--part=(\d+)/(\d+)", x) for x in sys.argv[1:] if x.startswith("--part")]
    first, step = map(int, part[0].groups()) if part else (0, 1)
    files = [x for x in sys.argv[1:] if not x.startswith("--part")]
    old, new = Program(files[0]), Program(files[1])
    more = [settled(json.loads(x)) for x in open(files[2])] if files[2:] else []
    doc = json.loads(old.ask("/openapi.json", None)[1])
    n = n_bad = 0
    for path, body in [*requests(doc), *((x["path"], x["body"]) for x in more)][first::step]:
        for again in range(2):
            a, b = old.ask(path, body), new.ask(path, body)
            if (a[0], plain(a[1])) == (b[0], plain(b[1])):
                break
        else:
            n_bad += 1
            if n_bad <= 40:
                print(f"{path} {body[:300]}\n  old {a[0]} {plain(a[1])[:700]}\n  new {b[0]} {plain(b[1])[:700]}")
        n += 1
    sys.stdout.flush()
    lines = list(commands())[first::step]
    a, b = old.daemon(lines), new.daemon(lines)
    for key in sorted(a.keys() | b.keys(), key=str):
        n += 1
        if a.get(key) != b.get(key):
            n_bad += 1
            print(f"daemon {next((x for x in lines if json.loads(x)['id'] == key), '')}\n  old {a.get(key)}\n  new {b.get(key)}")
    for p in (old, new):
        p.server.terminate()
    print(f"{n} requests and commands, {n_bad} of them differ")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
