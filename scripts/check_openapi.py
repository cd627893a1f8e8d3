#!/usr/bin/env python3
"""check_openapi.py - share/openapi.json tells what the server serves: every route of routes.inc with its
method (and those of a router) and nothing else, the fields of params.inc (fields.py), and every other field that the
readers of requests look at; a field that it describes and nobody reads must be called ignored."""
import json, pathlib, re, sys
import fields

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVER = ROOT / "src/server"
DOC = json.loads((ROOT / "share/openapi.json").read_text())
READERS = {  # who reads the body of a path; "+": reads some of it, and more that others have
    "/chat/completions /completions /completion": "openai/read openai/sampling openai/forced openai/messages openai/chat "
                                                  "openai/completions openai/native +part",
    "/messages": "anthropic/read openai/sampling openai/forced +part",
    "/responses /conversations /conversations/{id} /conversations/{id}/items":
        "responses/read responses/tools responses/conversations openai/sampling openai/forced +part",
    "/api/chat /api/generate /api/show": "ollama/read ollama/ollama +openai/sampling +openai/messages +part",
    "/tokenize /detokenize": "endpoints",
    "/slots/{id}": "slots",
}
FORMS = {"/chat/completions": "CHAT TEXT NATIVE STREAM_OPTIONS", "/messages": "MESSAGES", "/responses": "RESPONSES", "/api/chat": "OLLAMA"}
CALL = re.compile(r"\b(?:request_get\w*|view_get|view_member|openai_think_word|openai_think_budget|read_ids|has_word|params_refuse_above)\("
                  r'[^";]*?"([\w.]+)"')
NESTED = re.compile(r'\b(?:view_get|view_member)\(view_\w+\([^()]*\),\s*"(\w+)"')
LIST = re.compile(r"\*const \w+\[\] = \{([^}]*)\}")
bad = []


def members(schema, seen):
    """{name: whether it is only ignored} of all objects in a schema."""
    out = {}
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if not isinstance(schema, dict):
        return out
    ref = schema.get("$ref")
    if ref and ref not in seen:
        seen.add(ref)
        out.update(members(DOC["components"]["schemas"][ref.rsplit("/", 1)[1]], seen))
    for key, value in schema.items():
        if key == "properties":
            for name, x in value.items():
                out[name] = out.get(name, True) and "ignored" in x.get("description", "")
        for name, ignored in members(value, seen).items():
            out[name] = out.get(name, True) and ignored
    return out


def routes():
    text = (SERVER / "routes.inc").read_text() + (ROOT / "src/router/routes.inc").read_text()
    return {(method, path): fn
            for method, path, fn in re.findall(r'^ROUTE\("(\w+)", "([^"]+)", (\w+)', text, re.M)}


def described():
    return {(method.upper(), re.sub(r"\{\w+\}", "{}", path)): operation
            for path, methods in DOC["paths"].items() for method, operation in methods.items()}


def check_routes(served, told):
    for method, path in sorted(served.keys() - told.keys()):
        bad.append(f"{method} {path} is served and not in share/openapi.json")
    for method, path in sorted(told.keys() - served.keys()):
        bad.append(f"{method} {path} is in share/openapi.json and not served")
    for key in served.keys() & told.keys():
        unsupported = served[key] == "endpoints_unsupported"
        if unsupported != ("unsupported" in told[key]["tags"]):
            bad.append(f"{key[0]} {key[1]}: the tag 'unsupported' does not fit {served[key]}()")


def check_fields(paths, files):
    known, read, words = {}, {}, set()
    for path in paths:
        body = DOC["paths"][path]["post"]["requestBody"]
        for name, ignored in members(body, set()).items():
            known[name] = known.get(name, True) and ignored
    for form in f"SPECULATIVE {FORMS[paths[0]]}".split() if paths[0] in FORMS else []:
        read.update(dict.fromkeys(fields.names_of(form), "params"))
        words.update(fields.names_of(form))
    for file in files:
        text = (SERVER / f"{file.removeprefix('+')}.c").read_text()
        words.update(re.findall(r'"([\w.]+)"', text))
        if file.startswith("+"):
            continue
        found = CALL.findall(text) + NESTED.findall(text)
        # Lists of names that a loop reads stand in the readers alone.
        if file.endswith(("/read", "/sampling")):
            found += [w for block in LIST.findall(text) for w in re.findall(r'"(\w+)"', block)]
        read.update(dict.fromkeys(found, file))
    for name in sorted(read.keys() - known.keys()):
        bad.append(f"src/server/{read[name]}.c reads '{name}', which {' '.join(paths)} does not describe")
    for name in sorted(n for n, ignored in known.items() if not ignored and n not in words):
        bad.append(f"{' '.join(paths)} describes '{name}', which nobody reads: say that it is ignored")


def main():
    told = described()
    check_routes(routes(), told)
    for paths, files in READERS.items():
        check_fields(paths.split(), files.split())
    ids = [operation["operationId"] for operation in told.values()]
    bad.extend(f"operationId '{i}' is given twice" for i in sorted({i for i in ids if ids.count(i) > 1}))
    print("\n".join(bad) if bad else f"openapi: ok, {len(told)} operations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
