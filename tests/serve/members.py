#!/usr/bin/env python3
"""members.py INGLE - each member of each request that share/openapi.json describes, with a value of a wrong kind:
the reply is a 4xx that names it, or names it in warnings, or IGNORED says why it may pass.
"""
import copy, json

import client

with open("share/openapi.json") as file:
    DOC = json.load(file)
USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
         {"id": "b", "type": "custom", "custom": {"name": "f", "input": "x"}}]
FUNCTION = {"name": "f", "description": "d", "parameters": client.WEATHER}
TOOLS = [{"type": "function", "function": FUNCTION}]
TURNS = [USER, {"role": "assistant", "content": "x", "tool_calls": CALLS}, {"role": "tool", "tool_call_id": "a", "content": "y"}, USER]
CHAT = {"messages": TURNS, "tools": TOOLS, "max_tokens": 1}
INPUT = [USER, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
         {"type": "function_call_output", "call_id": "a", "output": "y"},
         {"type": "local_shell_call", "call_id": "b", "action": {"command": ["x"]}}, USER]
RESPONSE = {"input": INPUT, "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 1}
BLOCKS = [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "y"}]}]
MESSAGE = {"messages": BLOCKS, "tools": [{"name": "f", "description": "d", "input_schema": client.WEATHER}], "max_tokens": 1}
OLLAMA = {"stream": False, "options": {"num_predict": 1}}
BODIES = {
    "/chat/completions": CHAT, "/apply-template": CHAT, "/completions": {"prompt": "x", "max_tokens": 1},
    "/completion": {"prompt": "x", "n_predict": 1}, "/responses": RESPONSE, "/messages": MESSAGE,
    "/api/chat": {"messages": TURNS, "tools": TOOLS, **OLLAMA}, "/api/generate": {"prompt": "x", **OLLAMA},
    "/api/show": {"model": "nano-gemma4"}, "/tokenize": {"content": "x"}, "/detokenize": {"tokens": [5]},
    "/conversations": {"items": INPUT}}
# What a member needs beside it, by the beginning of its path: a JSON body without the members of another form.
SCHEMA = {"type": "json_schema", "schema": {}}
TYPED = {"type": "json_schema", "json_schema": {"schema": {}}}
NEEDS = {
    "response_format.schema": {"response_format": SCHEMA}, "response_format.value": {"response_format": {"type": "json_schema"}},
    "response_format.json_schema": {"response_format": TYPED}, "response_format.pattern": {"response_format": {"type": "regex"}},
    "response_format.grammar": {"response_format": {"type": "grammar"}}, "grammar.value": {"grammar": {"type": "regex"}},
    "functions": {"tools": None}, "tool_choice.allowed_tools": {"tool_choice": {"type": "allowed_tools"}},
    "tool_choice.name": {"tool_choice": {"type": "tool"}}, "tool_choice.namespace": {"tool_choice": {"type": "function", "name": "f"}},
    "tool_choice.tools": {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode": {"tool_choice": {"type": "allowed_tools"}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled"}}, "output_config.format.schema": {"output_config": {"format": SCHEMA}},
    "output_format.schema": {"output_format": SCHEMA}, "text.format": {"text": {"format": SCHEMA}},
    "top_logprobs": {"logprobs": True}, "/tokenize prompt": {"content": None}, "/tokenize messages": {"content": None}}
# What openapi.json leaves open, by its last name.
KINDS = {**dict.fromkeys(("name", "id", "description", "type", "text", "tool_call_id", "call_id", "reasoning_content", "thinking",
                          "encrypted_content", "namespace", "tool_use_id", "signature"), "string"),
         **dict.fromkeys(("parameters", "input_schema"), "object"), "tools": "array", "tool_calls": "array"}
# Members that mean nothing here, whatever they hold: what a cloud does with a request (docs/use/server-dialects.md).
CLOUD = ("user metadata store service_tier safety_identifier verbosity prediction prompt_cache_retention prompt_cache_key "
         "web_search_options container context_management betas mcp_servers max_tool_calls cache_control backend disable_fallback "
         "guided_decoding_backend num_ctx truncate shift strict stream_options").split()
V1 = dict.fromkeys(("/chat/completions", "/completions", "/responses", "/messages", "/conversations"), "/v1")
VALUES = (5, "wr0ng", [5], {"wr0ng": 5}, True, 1.5)


def resolve(schema):
    while "$ref" in schema:
        at = DOC
        for part in schema["$ref"][2:].split("/"):
            at = at[part.replace("~1", "/")]
        schema = at
    return schema


def forms(schema):
    schema = resolve(schema)
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for other in schema.get(key, []):
            yield from forms(other)


def kind_of(value):
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def members(schemas, path=()):
    """Each path with the kinds that it may have; [] is None."""
    found = [f for s in schemas for f in forms(s)]
    kinds = set()
    for f in found:
        kinds.update(f["type"] if isinstance(f.get("type"), list) else [f["type"]] if "type" in f else [])
        kinds.update(kind_of(v) for v in [*f.get("enum", []), *([f["const"]] if "const" in f else [])] if v is not None)
    if path:
        yield path, kinds
    names = {k for f in found for k in f.get("properties", {})}
    for k in sorted(names):
        yield from members([f["properties"][k] for f in found if k in f.get("properties", {})], (*path, k))
    items = [f["items"] for f in found if isinstance(f.get("items"), dict)]
    if items:
        yield from members(items, (*path, None))


def put(body, path, value):
    """The body with the value there; False: there is nothing around it."""
    at = body = copy.deepcopy(body)
    for i, key in enumerate(path):
        last = i == len(path) - 1
        if key is None:
            if not isinstance(at, list):
                return None
            want = path[i + 1] if not last else None
            n = next((n for n, x in enumerate(at) if isinstance(x, dict) and want in x), 0)
            if last:
                at[:] = [value]
            elif not at or not isinstance(at[n], dict):
                return None
            else:
                at = at[n]
        elif not isinstance(at, dict):
            return None
        elif last:
            at[key] = value
        else:
            at = at.setdefault(key, [] if path[i + 1] is None else {})
    return body


class Members(client.Case):
    options = ["--parallel", "4"]

    def silent(self, path):
        schema = next(iter(DOC["paths"][path]["post"]["requestBody"]["content"].values()))["schema"]
        missed = []
        for where, kinds in members([schema]):
            name = next((k for k in reversed(where) if k), "")
            if name in CLOUD or ".".join(k or "[]" for k in where) in IGNORED:
                continue
            kinds = kinds - {"null"} or {KINDS.get(name)} - {None}
            if "number" in kinds:
                kinds = kinds | {"integer"}
            at = ".".join(k or "[]" for k in where)
            base = {**BODIES[path], **next((v for k, v in NEEDS.items() if at.startswith(k) or f"{path} {at}".startswith(k)), {})}
            for value in VALUES:
                body = put(base, where, value) if kinds and kind_of(value) not in kinds else None
                if not body:
                    continue
                status, head, r = self.server.post(V1.get(path, "") + path, body)
                said = json.dumps(r.get("error", "")) + json.dumps(r.get("warnings", "")) + head.get("X-Ingle-Warnings", "")
                names = [k for k in where if k] if 400 <= status < 500 else [name]
                if status >= 500 or not any(k in said for k in names):
                    missed.append((path, at, json.dumps(value), status, said[:160]))
                    break
        return missed


IGNORED = {"items.[].id"}  # it gets another one, which the reply shows


def make(path):
    def test(self):
        missed = self.silent(path)
        self.assertEqual(missed, [], "\n" + "\n".join(map(str, missed)))
    return test


for p in BODIES:
    setattr(Members, "test" + p.replace("/", "_"), make(p))

if __name__ == "__main__":
    client.main()
