#!/usr/bin/env python3
"""fields.py [--check] - writes what is made of tables: of src/server/params.inc schemas of share/openapi.json and
docs/use/request-fields.md, of src/engine/facts.inc those of counters; of the lists below the errors of each operation, and
those operations that only refuse; --check: says whether they are what it would write."""
import json, pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC, REFERENCE = ROOT / "share/openapi.json", ROOT / "docs/use/request-fields.md"
HEADERS = ("ingle.h", "scheduler.h")
FORMS = {"CHAT": "chat", "TEXT": "completions", "NATIVE": "/completion", "OLLAMA": "Ollama's options", "MESSAGES": "Messages",
         "RESPONSES": "Responses", "DAEMON": "daemon", "SPECULATIVE": "in speculative", "STREAM_OPTIONS": "in stream_options"}
METHODS = ["auto", "dflash", "mtp", "dspark", "model", "ngram", "none"]
SHAPES = {  # of kinds that are no plain numbers and booleans
    "SEED": {"type": ["number", "null"]}, "KEY": {}, "SPARSE": {"type": ["string", "boolean", "null"], "maxLength": 47},
    "SELECT": {"type": ["string", "boolean", "null"], "maxLength": 31}, "KEEP": {"type": ["number", "boolean", "null"], "maximum": 1},
    "METHOD": {"type": ["string", "null"]}, "PICTURE": {"enum": [70, 140, 280, 560, 1120, "auto", None]},
    "UNSUPPORTED": {"enum": ["refuse", "drop", None]}}
WORDS = {"SEED": "number", "KEY": "text", "SPARSE": "text, boolean", "SELECT": "text, boolean", "KEEP": "0 to 1, boolean",
         "METHOD": ", ".join(METHODS), "PICTURE": "70, 140, 280, 560, 1120, auto", "UNSUPPORTED": "refuse, drop", "FLAG": "boolean", "NOT": "boolean",
         "DRAFT": "boolean, whole number from -1"}


PLAIN = {400: "Bad", 401: "Key", 403: "Forbidden", 404: "Missing", 413: "Large", 429: "Busy", 500: "Failure", 501: "Unsupported",
         503: "Unavailable", 504: "Late"}
ERRORS = {  # statuses of operations, beside what share/openapi.json says of them
    "400 401 403 404 413 429 500 503 504": "chat completions native createResponse compactResponse",
    "400 401 403 404 413 500 503": "countChat countResponse renderChat renderText",
    "400 401 403 413 500 503": "control tokenize detokenize applyTemplate",
    "400 401 403 404 501 503": "resume",
    "400 401 403 501 503": "stop slots",
    "400 401 403 404 503": "getResponse deleteResponse cancelResponse responseInput getConversation deleteConversation "
        "conversationItems conversationItem removeItem",
    "400 401 403 404 413 503": "createConversation updateConversation addItems",
    "Anthropic 400 401 403 404 413 429 500 503 504": "messages",
    "Anthropic 400 401 403 413 500 503": "countMessages",
    "Ollama 400 401 403 404 413 429 500 503 504": "ollamaChat ollamaGenerate ollamaShow",
    "Ollama 400 401 403 503": "ollamaTags ollamaPs ollamaVersion",
    "Ollama 501": "ollamaPull ollamaPush ollamaCreate ollamaCopy ollamaDelete ollamaBlob ollamaEmbed "
        "ollamaEmbeddings",
    "400 401 404": "load unload",
    "400 401": "pull",
    "401 404": "modelEvents",
    "400 403": "models model version isSleeping openapi",
    "400 403 503": "livez readyz ping pingPost load_now health",
    "400 401 403 503": "serverInfo modelInfo kvEventSources props metrics adapters",
    "400 403 404": "page",
    "404": "page_file",
    "400 401 403 413 501 503": "setProps setAdapters infill embedding embeddings rerank reranking",
    "400 401 403 404 413 500 501 503": "slot",
}


RESPONSES = {  # what refusals are called: (what happened, {header: schema}, dialects beside OpenAI's)
    "OllamaBad": ("What is wrong.", {}, ()), "Bad": ("A field, the JSON, or a prompt that is too long.", {}, ("Anthropic",)),
    "Key": ("There is a key file and the request has no key of it.", {}, ("Anthropic",)),
    "Forbidden": ("A host or a web site that is not allowed.", {}, ("Anthropic",)),
    "Missing": ("There is no such thing.", {}, ("Anthropic",)),
    "Large": ("The body is larger than --limit body.", {}, ("Anthropic",)),
    "Busy": ("The queue is full, or the request waited too long in it.", {"Retry-After": {"description": "Seconds."}}, ("Anthropic",)),
    "Failure": ("The engine failed.", {}, ("Anthropic",)),
    "Unavailable": ("The model loads, the server stops, or it holds too many bodies.", {"Retry-After": {"description": "Seconds."}},
                    ("Anthropic",)),
    "Late": ("The request's time is up.", {}, ("Anthropic",)),
    "Method": ("The path exists with other methods.", {"Allow": {"required": True}}, ("Anthropic",)),
    "Unsupported": ("This server has no such thing.", {}, ()),
}


ANSWERS = {  # of operations: (what status 200 is, its schema, schemas of a stream's events, whether [DONE] ends it)
    "chat": ("The answer.", "ChatCompletion", "ChatChunk Error", True),
    "completions": ("The text.", "Completion", "Completion Error", True),
    "createResponse": ("The answer.", "Response", "ResponseEvent Error", False),
    "getResponse": ("The answer.", "Response", "ResponseEvent", False),
    "messages": ("The answer.", "Message", "MessageEvent", False),
} | {name: (what, schema, "", False) for names, what, schema in (
    ("cancelResponse", "The answer.", "Response"), ("conversationItem", "The item.", "KeptItem"),
    ("responseInput conversationItems", "A page of items.", "ItemList"), ("addItems", "The new items.", "ItemList"),
    ("createConversation getConversation updateConversation removeItem", "The conversation.", "Conversation"),
    ("ollamaShow", "The model.", "OllamaModelCard"), ("ollamaTags ollamaPs", "The list.", "OllamaList"),
    ("ollamaVersion", "The list.", "OllamaVersion"), ("load unload pull", "It will.", "Success"), ("models", "The list.", "Models"),
    ("props", "All of it.", "Props"), ("slot", "What was done.", "SlotDone")) for name in names.split()}


class Word(str):
    """A name of C: o.sampling.seed, CHAT | TEXT."""
    __getattr__ = lambda self, name: Word(f"{self}.{name}")
    __getitem__ = lambda self, at: Word(f"{self}[{at}]") if isinstance(at, Word) else str.__getitem__(self, at)


class Names(dict):
    def __missing__(self, name):
        return Word(name)


class Form(frozenset):
    """Of a set of forms."""


def read_table(path, **calls):
    """Runs a table of macro calls, which is Python but for its comments."""
    text = re.sub(r'"(?:\\.|[^"\\])*"|/\*.*?\*/', lambda m: m[0] * (m[0][0] == '"'), path.read_text(), flags=re.S)
    names = Names(calls, INT32_MAX=2**31 - 1, FLT_MAX=3.4028234663852886e38, NAN=None, NULL=None, true=True, false=False)
    code = []
    for line in text.replace("\\\n", " ").splitlines():
        define = line.split(None, 2) if line.startswith("#define ") else None
        if define and "(" not in define[1]:
            names[define[1]] = eval(words(define[2], names), {}, names)
        elif not line.startswith("#"):
            code.append(words(line, names))
    exec("\n".join(code), {}, names)


def words(line, names):
    """The line with names of texts as those, which may stand beside others."""
    return re.sub(r'"(?:\\.|[^"\\])*"|\b[A-Z]\w*\b', lambda m: repr(names[m[0]]) if type(names.get(m[0])) is str else m[0], line)


def rows():
    """[(name, other names, kind, min, max, forms, help)] of the table."""
    out = []
    forms = {f: Form([f]) for f in FORMS}
    read_table(ROOT / "src/server/params.inc", **forms,
               PARAM=lambda name, also, kind, low, high, member, echo, where, text: out.append((name, also.split(), kind, low, high, where, text)),
               CHECKED=lambda name, kind, low, high, where, text: out.append((name, [], kind, low, high, where, text)),
               REFUSED=lambda name, off, where, why: out.append((name, [], "REFUSED", off, off, where, why)),
               ABOVE=lambda name, most, where, why: out.append((name, [], "ABOVE", None, most, where, why)),
               ONLY=lambda name, value, where, why: out.append((name, [], "ONLY", value, value, where, why)))
    return out


def sentence(text):
    return text if "_" in text.split()[0] else text[0].upper() + text[1:] + "." * (text[-1] != ".")


def shape(row):
    name, _, kind, low, high, _, text = row
    out = {"description": sentence(text) if kind in ("REFUSED", "ABOVE", "ONLY") else text}
    if kind in SHAPES:
        out.update(SHAPES[kind])
        if name == "draft_method":
            out["enum"] = METHODS + [None]
    elif kind in ("FLAG", "NOT"):
        out["type"] = ["boolean", "null"]
    elif kind == "REFUSED":
        out["enum"] = [None, False, "", [], {}] + ([] if high is None else [high])
    elif kind == "ABOVE":
        out.update(type=["number", "null"], maximum=high)
    elif kind == "ONLY":
        out["enum"] = [high, None]
    else:
        types = {"NUMBER": ["number"], "DRAFT": ["boolean", "integer"]}.get(kind, ["integer"])
        out.update(type=types + ["null"], minimum=low, maximum=high)
    return out


def schemas_of(row):
    """In which schemas of openapi.json the row stands."""
    where, refused = row[5] - {"DAEMON"}, row[2] in ("REFUSED", "ABOVE", "ONLY")
    for names, forms in ((("Sampling", "Refused"), "CHAT TEXT NATIVE OLLAMA MESSAGES RESPONSES"), (("SamplingLimits",), "CHAT TEXT MESSAGES RESPONSES"),
                         (("SamplingLimitsNative",), "NATIVE OLLAMA"), (("", "RefusedInChats"), "CHAT MESSAGES RESPONSES")):
        if where == set(forms.split()) and names[-1 if refused else 0]:
            return [names[-1 if refused else 0]]
    common = {"CHAT", "TEXT", "NATIVE"} <= where
    rest = where - {"CHAT", "TEXT", "NATIVE"} if common else where
    return ["OpenaiFields"] * common + [f.title().replace("_", "") + "Fields" for f in sorted(rest)]


def names_of(form):
    """The names of a form."""
    return {n for r in rows() if form in r[5] for n in [r[0], *r[1]]}


def parameters():
    """{schema: {name: schema of it}} of the table of parameters."""
    made = {}
    for row in rows():
        for schema in schemas_of(row):
            for name in [*row[1], row[0]]:
                made.setdefault(schema, {})[name] = shape(row) if name == row[0] else dict(shape(row), description=f"As {row[0]}.")
    return made


def types_of(struct):
    """{member: its type in JSON} of a struct of the public header."""
    text = "".join(re.sub(r"/\*.*?\*/", "", (ROOT / "include/ingle" / h).read_text(), flags=re.S) for h in HEADERS)
    body = re.search(rf"^struct {struct} {{(.*?)^}}", text, re.M | re.S)[1]
    json_type = lambda c: {"bool": "boolean", "double": "number", "char": ["string", "null"]}.get(c, "integer")
    return {name: json_type(kind) for kind, names in re.findall(r"^ +(?:const )?(\w+) \*?([^;]+);", body, re.M)
            for name in re.findall(r"(\w+)(?:\[\w+\])?(?:, |$)", names)}


def counters():
    """The same of the table of counters, a schema for each group."""
    made, types = {}, {}

    def add(group, kind, key, text):
        if key:
            made.setdefault(f"{group.title()}Counters", {})[key] = {"type": kind} | ({"description": text} if text else {})

    read_table(ROOT / "src/engine/facts.inc",
               GROUP=lambda group, struct: types.update({group: types_of(struct)}),
               FACT=lambda group, member, key, metric, form, text: add(group, types[group][member], key, text),
               TIME=lambda group, member, key, metric, form, text: add(group, "integer", key, text),
               MEAN=lambda group, member, over, plus, none, key, metric, form, text: add(group, "number", key, text))
    return made


def write_schemas(text):
    objects = parameters()
    made = objects | {name: members for name, members in counters().items() if f'schemas/{name}"' in text}
    for schema, members in made.items():
        block = [f'      "{schema}": {{', f'        "description": "Made by scripts/fields.py.",']
        block += ['        "type": "object",'] * (schema in objects)  # counters may be null where they are
        block += ['        "properties": {', *(f"          {json.dumps(n)}: {json.dumps(s)}," for n, s in members.items())]
        block[-1] = block[-1][:-1]
        block += ["        }", "      }"]
        found = re.search(rf'^      "{schema}": \{{\n(?:       .*\n)*?      \}}', text, re.M)
        if not found:
            sys.exit(f"fields: share/openapi.json has no schema {schema}: write an empty one over two lines")
        text = text[:found.start()] + "\n".join(block) + text[found.end():]
    return text, sum(len(m) + (6 if s in objects else 5) for s, m in made.items())


def write_responses(text):
    """The answers that refuse, in each dialect."""
    made = {}
    for name, (what, headers, dialects) in RESPONSES.items():
        for dialect in ("Ollama" if name == "OllamaBad" else "", *dialects):
            schema = {"$ref": f"#/components/schemas/{dialect}Error"}
            made[name if dialect == "Ollama" else dialect + name] = {
                "description": what, "content": {"application/json": {"schema": schema}}} | (
                {"headers": {h: dict(more, schema={"type": "string"}) for h, more in headers.items()}} if headers else {})
    block = ",\n".join(f"      {json.dumps(n)}: {json.dumps(r)}" for n, r in made.items())
    found = re.search(r'^    "responses": \{\n((?:      .*\n)*)    \}', text, re.M)
    return text[:found.start(1)] + block + "\n" + text[found.end(1):], len(made)


def answer(what, schema, events, done):
    """Status 200 of an operation."""
    ref = lambda name: {"$ref": f"#/components/schemas/{name}"}
    content = {"application/json": {"schema": ref(schema)}}
    if events:
        some = [ref(name) for name in events.split()]
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": some} if some[1:] else some[0]}
        data = {"if": {"const": "[DONE]"}, "then": True, "else": data} if done else data
        content["text/event-stream"] = {"schema": {"type": "object", "required": ["data"],
                                                   "properties": {"event": {"type": "string"}, "data": data}}}
    return {"description": what, "content": content}


def write_answers(text):
    """Status 200 of operations, each on one line."""
    for operation, row in ANSWERS.items():
        found = re.search(rf'^        "operationId": "{operation}",\n(?:(?!      \}}).*\n)*?          "200": ', text, re.M)
        if not found:
            sys.exit(f"fields: share/openapi.json has no operation {operation} with a status 200 on lines of its own")
        _, end = json.JSONDecoder().raw_decode(text, found.end())
        text = text[:found.end()] + json.dumps(answer(*row)) + text[end:]
    return text, len(ANSWERS)


def errors_of(operation):
    """{status: name of a response} of an operation."""
    for statuses, operations in ERRORS.items():
        if operation in operations.split():
            *dialect, first = re.findall(r"[A-Z]\w+|[0-9 ]+", statuses)
            name = lambda status: "OllamaBad" if dialect == ["Ollama"] else "".join(dialect) + PLAIN[status]
            return {status: name(status) for status in map(int, first.split())}
    return {}


def write_errors(text):
    """The errors of each operation come after its other answers."""
    n = 0
    for operation in " ".join(ERRORS.values()).split():
        found = re.search(rf'^        "operationId": "{operation}",\n(?:(?!      \}}).*\n)*?        "responses": \{{\n((?:          .*\n)*)', text, re.M)
        if not found:
            sys.exit(f"fields: share/openapi.json has no operation {operation} with responses over several lines")
        kept = re.sub(r'^          "\d+": \{"\$ref": "#/components/responses/\w+"\},?\n', "", found[1], flags=re.M).rstrip(",\n")
        made = ",\n".join(f'          "{status}": {{"$ref": "#/components/responses/{name}"}}' for status, name in errors_of(operation).items())
        text = text[:found.start(1)] + ",\n".join(filter(None, (kept, made))) + "\n" + text[found.end(1):]
        n += made.count("\n") + 1
    return text, n


def write_refusals(text):
    """Paths that only refuse: those of endpoints_unsupported that have no other method."""
    routes = re.findall(r'^ROUTE\("(\w+)", "([^"]+)", (\w+)', (ROOT / "src/server/routes.inc").read_text(), re.M)
    n = 0
    for method, path, call in routes:
        if call != "endpoints_unsupported" or sum(p == path for _, p, _ in routes) > 1:
            continue
        ollama, name = path.startswith("/api/"), path.split("/")[-1]
        if name == "{}":
            path, name = path.replace("{}", "{digest}"), "blob"
        block = [f'    "{path}": {{', f'      "{method.lower()}": {{', '        "tags": ["unsupported"],',
                 f'        "operationId": "{"ollama" + name.capitalize() if ollama else name}",',
                 f'        "summary": "{"Not here." if ollama else "Not for these models."}",', '        "responses": {',
                 '        }', '      }', '    }']
        if "{digest}" in path:
            block.insert(5, '        "parameters": [{"name": "digest", "in": "path", "required": true, "schema": {"type": "string"}}],')
        found = re.search(rf'^    "{re.escape(path)}": \{{\n(?:      .*\n)*?    \}}', text, re.M)
        if not found:
            sys.exit(f"fields: share/openapi.json has no path {path}: write an empty one over two lines")
        text = text[:found.start()] + "\n".join(block) + text[found.end():]
        n += len(block)
    return text, n


def values(row):
    _, _, kind, low, high, _, _ = row
    if kind in WORDS:
        return WORDS[kind]
    plain = lambda v: "any" if abs(v) >= 2**31 - 1 else f"{v:g}"
    return f"from {plain(low)}" if plain(high) == "any" else f"{plain(low)} to {plain(high)}"


def reference():
    everywhere = set(FORMS) - {"DAEMON", "SPECULATIVE", "STREAM_OPTIONS"}
    out = ["# Fields of requests that are one value", "",
           "Written by `scripts/fields.py` from `src/server/params.inc`, which the server reads requests with. Fields that are",
           "lists, objects or texts are in [server-chat.md](server-chat.md) and `share/openapi.json`. A field that is null is absent.", "",
           "| field | values | in | what |", "|---|---|---|---|"]
    for row in rows():
        if row[2] in ("REFUSED", "ABOVE", "ONLY"):
            continue
        names = ", ".join(f"`{n}`" for n in [row[0], *row[1]])
        where = ["all"] if everywhere <= row[5] else [FORMS[f] for f in FORMS if f in row[5]]
        where += ["daemon"] if where == ["all"] and "DAEMON" in row[5] else []
        out.append(f"| {names} | {values(row)} | {', '.join(where)} | {row[6]} |")
    out += ["", "Refused, since the answer would be another one; the value in the second column, null, false, and empty texts, lists and",
            "objects are accepted.", "", "| field | accepted | why |", "|---|---|---|"]
    for row in rows():
        name, kind, high = row[0], row[2], row[4]
        if kind in ("REFUSED", "ABOVE", "ONLY"):
            what = "" if high is None else f"up to {high}" if kind == "ABOVE" else str(high).lower()
            where = "" if everywhere <= row[5] else " (" + ", ".join(FORMS[f] for f in FORMS if f in row[5]) + ")"
            out.append(f"| `{name}`{where} | {what} | {sentence(row[6])} |")
    return "\n".join(out) + "\n"


def main():
    before = DOC.read_text()
    text, n = before, 0
    for write in (write_schemas, write_refusals, write_responses, write_answers, write_errors):
        text, made = write(text)
        n += made
    doc = reference()
    if sys.argv[1:] == ["--check"]:
        old = REFERENCE.read_text() if REFERENCE.exists() else ""
        if (text, doc) != (before, old):
            print("share/openapi.json or docs/use/request-fields.md is not what scripts/fields.py makes of its tables: run it")
            return 1
        print(f"fields: ok, {n} lines of openapi.json are made, {before.count(chr(10)) - n} are not")
        return 0
    DOC.write_text(text)
    REFERENCE.write_text(doc)
    return 0


if __name__ == "__main__":
    sys.exit(main())
