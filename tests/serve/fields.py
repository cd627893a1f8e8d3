#!/usr/bin/env python3
"""fields.py INGLE - every field of every dialect: what it takes, that null is nothing, what is a 400; and that
share/openapi.json describes every field of the answers.

A row is the field's type (of which all others are refused), values that are taken, values that are not.
Fields of type "any" are ignored, or have forms of their own.
"""
import json

import client

OTHERS = {"string": [5, True, [], {}], "int": ["x", [], {}, True, 1.5], "number": ["x", [], {}, True],
          "bool": ["x", 5, [], {}], "array": ["x", 5, {}, True], "object": ["x", 5, [], True], "any": []}
USER = [{"role": "user", "content": "hi"}]
BOOL = {"type": "boolean"}
FUNCTION = {"name": "f", "description": "d", "parameters": client.WEATHER, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
STOP = ("any", ["x", ["a", "b"], [], "", [""], ["", None]], [5, [5], {}, ["x"] * 65])
STREAM = ("bool", [False], [])
TOLD = {"timings_per_token": ("bool", [True], []), "return_progress": ("bool", [True], [])}
ANY = ("any", [1, "x", {}, [], True], [])
CHOICE = ("any", ["none", "auto"], ["sometimes", 5, []])
MESSAGES = ("array", [], [[], [5], [{"role": "nobody", "content": "x"}], [{"role": "user", "content": 5}],
                          [{"role": "user"}], [{"content": "x"}]])
SAMPLING = {
    "temperature": ("number", [0, 1, 2, 0.5], [-0.1, 2.1, 1e99]), "top_p": ("number", [0, 0.5, 1], [-0.1, 1.1]),
    "seed": ("any", [0, -1, 42, 2**63 - 1, 2**64 - 1, 2**53 + 1, 1e300], ["x", [], {}, True]),
    "frequency_penalty": ("number", [-2, 2, 0], [-2.1, 2.1]),
    "presence_penalty": ("number", [-2, 2], [-2.1, 2.1]),
}
LLAMA = {
    "sparse": ("any", [True, "on", "off"], ["x", 5, [], "l0=y"]),
    "top_k": ("int", [0, 40], [-2, 2**40]), "min_p": ("number", [0, 1], [-1, 2]),
    "typical_p": ("number", [0.5, 1], [-1, 2]), "repeat_penalty": ("number", [0, 1, 1.1], [-1]),
    "repeat_last_n": ("int", [-1, 0, 64], [-2, 2**40]), "dry_multiplier": ("number", [0, 1], [-1]),
    "dry_base": ("number", [1.75], [-1]), "dry_allowed_length": ("int", [2], [-1]),
    "xtc_probability": ("number", [0, 1], [-1, 2]), "xtc_threshold": ("number", [0, .5], [-1, 2]),
    "mirostat": ("int", [0], []), "min_keep": ("int", [0, 1], [-1, 2]), "ignore_eos": ("bool", [True], []),
    "id_slot": ("int", [0, -1, 1], []), "n_keep": ("int", [0, -1], [-2**40]), "n_discard": ("int", [0], [-1]),
    "t_max_predict_ms": ("int", [0, 1000], []), "post_sampling_probs": ("bool", [False, True], []),
    "lora": ("any", [[], {}, False], ["x", 5, True, [{"id": 0}]]), "grammar": ("any", ['root ::= "a"', "", {"type": "json", "value": BOOL}], ["root ::= (", 5, [], {}, {"type": "x"}]),
    "json_schema": ("any", [BOOL, json.dumps(BOOL), ""], ["x", 5, [], True]), "logit_bias": ("any", [
        {"5": 1}, [[5, 1]], [["a", False]], {}, [[5, -100]]],
        ["x", 5, {"5": "y"}, {"999999999": 1}, [5], [[5]]]),
    **dict.fromkeys(("chat_template", "documents", "logits_processors", "lora_request", "prompt_logprobs",
                     "use_beam_search", "guidance_scale", "watermark", "truncate_prompt_tokens", "image_data"),
                    ("any", ["", [], {}, False], ["x", 5, [1], {"a": 1}, True])),
    "length_penalty": ("any", [1, 1.0], [2]), "dynatemp_range": ("any", [0], [0.5]),
    "top_n_sigma": ("number", [0, -1], [1]), "adaptive_target": ("number", [-1], [0, 0.5]),
    "samplers": ("any", [[], ["top_k", "temperature"], "edkypmxt", ""], [["top_q"], ["temp", "top_k"], "tk", 5, {}, [5]]),
    "dry_sequence_breakers": ("array", [["*", "\"", ":", "\n"]], [[";"]]),
    "reasoning_format": ("any", ["auto", "deepseek"], ["none", "x", 5]), "detokenize": ("bool", [True], [False]),
    "parse_tool_calls": ("bool", [True], [False]), "separate_reasoning": ("bool", [True], [False]),
    "do_sample": ("bool", [True, False], []), "min_tokens": ("int", [0, 1], [-1]),
    "stop_token_ids": ("array", [[], [5]], [[-1], ["x"], [2**40]]), "allowed_token_ids": ("array", [[824]], [[-1], ["x"]]),
    "bad_words": ("array", [[], ["x"]], [[5], [""]]), "include_stop_str_in_output": ("bool", [True], []),
    "cache_prompt": ("bool", [True, False], []), "regex": ("string", ["a", ""], ["("]), "ebnf": ("string", ['root ::= "a"', ""], []),
    "format": ("any", ["json", "", BOOL], ["yaml", 5, []]), "guided_json": ("any", [BOOL, json.dumps(BOOL), ""], ["x", 5, []]),
    "guided_regex": ("string", ["a", ""], ["("]), "guided_choice": ("array", [["a", "b"]], [[], [5]]),
    "guided_grammar": ("string", ['root ::= "a"', ""], []), "structural_tag": ("any", [False], ["x", {}]),
    "structured_outputs": ("any", [{}, {"choice": ["a"]}, {"json": BOOL}, {"regex": "a"}, True, {"json_object": True},
                                   {"structural_tag": None}],
                           [{"choice": []}, {"structural_tag": "x"}, {"regex": "a", "json": BOOL}, 5, "x"]),
}
CHAT = {
    "model": ("string", ["x"], []), "messages": MESSAGES, "stream": STREAM, "stop": STOP,
    "max_completion_tokens": ("int", [0, 1, 5], [-2]), "max_tokens": ("int", [0, 1, -1], [-2]),
    "n": ("int", [1, 16], [0, 17, -1]), "logprobs": ("bool", [True, False], []),
    "top_logprobs": ("int", [], [-1, 21, 3]),
    "tools": ("array", [[TOOL], []], [[5], [{"type": "function"}], [TOOL] * 257]),
    "parallel_tool_calls": ("bool", [True, False], []),
    "tool_choice": ("any", CHOICE[1], [*CHOICE[2], {"type": "x"}, "required"]),
    "response_format": ("object", [
        {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": BOOL}},
        {"type": "json_schema", "schema": BOOL}], [
        {}, {"type": 123}, {"type": "hiccup"}, {"type": "json_schema", "json_schema": {"schema": 5}},
        {"type": "json_schema"}, {"type": "json_schema", "json_schema": 5}]),
    "reasoning_effort": ("any", ["none", "minimal", "low", "medium", "high", "xhigh", "max", "", "auto"], [5, "banana"]),
    "thinking": ("any", [{"type": "enabled"}, {"type": "disabled"}, True], [5, {"type": "hard"}]),
    "think": ("any", [True, False, "high", "", "true"], ["banana"]), "enable_thinking": ("any", [True, False], []),
    "chat_template_kwargs": ("object", [{"enable_thinking": False}, {}], [{"reasoning_effort": "banana"}]),
    "echo": ("bool", [False], [True]), "skip_special_tokens": ("bool", [True], [False]),
    "include_reasoning": ("bool", [True, False], []), "reasoning": ("any", [{"exclude": True}, {}], [{"effort": "banana"}]),
    "thinking_budget_tokens": ("int", [0, -1, 10], [-2]), "modalities": ("any", [["text"]], [["audio"]]),
    "audio": ("any", [], [{"voice": "x", "format": "wav"}]), "functions": ("array", [[FUNCTION]], [[5]]),
    **dict.fromkeys(("user", "metadata", "store", "service_tier", "safety_identifier", "verbosity",
                     "prediction", "prompt_cache_key", "prompt_cache_retention", "unknown"), ANY),
    **SAMPLING, **LLAMA, **TOLD,
}
PROMPT = ("any", ["x", "", [2, 5], ["a", "b"], [[2, 5], "b"]], [5, {}, [], [[]], [-1], [99999999], [1.5]])
TEXT = {
    "prompt": PROMPT, "stream": STREAM, "stop": STOP, "max_tokens": ("int", [0, 1, -1], [-2]),
    "suffix": ("any", [""], ["x"]), "echo": ("bool", [True], []), "logprobs": ("any", [0, 5, 20], [-1, 21, "x"]),
    "n": ("int", [1, 2], [0, 17]), "best_of": ("int", [1, 3], [0, 17]), "user": ANY, "unknown": ANY,
    **SAMPLING, **LLAMA, **TOLD,
}
NATIVE = {
    "prompt": PROMPT, "stream": STREAM, "stop": STOP, "n_predict": ("int", [0, 1, -1], [-2]),
    "n_probs": ("int", [0, 5], [-1]), "response_fields": ("array", [["content"]], [[5]]),
    "return_tokens": ("bool", [True], []), "unknown": ANY, **SAMPLING, **LLAMA, **TOLD,
    "temperature": ("number", [0, 2.1, 1e9], [-0.1, 1e99]), "frequency_penalty": ("number", [-2.1, 2.1], [1001]),
    "presence_penalty": ("number", [-2.1, 1000], [-1001]),
}
TOOL_R = {"type": "function", "name": "f", "parameters": client.WEATHER}
RESPONSES = {
    "model": ("string", ["x"], []), "stream": STREAM, "instructions": ("any", ["x"], [5]),
    "input": ("any", ["x", USER], [5, {}, True, [5], *MESSAGES[2][2:4]]),
    "tools": ("array", [[TOOL_R], [{"type": "web_search"}], []], [[5], [{"type": "function"}]]),
    "tool_choice": ("any", CHOICE[1], [*CHOICE[2], "required"]), "parallel_tool_calls": ("bool", [True, False], []),
    "reasoning": ("object", [{"effort": "low"}, {"effort": ""}, {"summary": "auto"}, {}],
                  [{"effort": 5}, {"effort": "banana"}, {"summary": 5}]),
    "text": ("object", [{"format": {"type": "text"}}, {"verbosity": "low"}, {"format": {"type": "json_object"}},
                        {"format": {"type": "json_schema", "name": "n", "schema": BOOL}}],
             [{"format": 5}, {"format": {"type": "hiccup"}}, {"format": {"type": "json_schema"}}]),
    "max_output_tokens": ("int", [16, 0, 5, -1], [-2]), "top_logprobs": ("int", [0, 20], [-1, 21]),
    "store": ("bool", [True, False], []), "background": ("bool", [False, True], []),
    "include": ("array", [["reasoning.encrypted_content"], []], [[5]]),
    "previous_response_id": ("string", [], []), "conversation": ("any", [], [5, [], True, {}]),
    "prompt": ("any", [], [{"id": "x"}]), "truncation": ("string", ["auto", "disabled"], ["", "sometimes"]),
    **dict.fromkeys(("metadata", "max_tool_calls", "prompt_cache_key", "service_tier",
                     "context_management", "user", "unknown"), ANY), **SAMPLING, **LLAMA, **TOLD,
}
MESSAGES_ALL = {
    "model": ("string", ["x"], []), "stream": STREAM, "max_tokens": ("int", [1, 5], [-2]), "messages": MESSAGES,
    "system": ("any", ["x", [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]], [5, {}, [5]]),
    "tools": ("array", [[{"name": "f", "input_schema": client.WEATHER}], [],
                        [{"type": "bash_20250124", "name": "bash"}]], [[5]]),
    "tool_choice": ("object", [{"type": "auto"}, {"type": "none"}], [{"type": "x"}, {"type": "tool"}, {"type": "any"}, {}]),
    "thinking": ("object", [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"},
                            {"type": "adaptive"}], [{"type": "x"}, {"type": "enabled", "budget_tokens": "x"}]),
    "output_config": ("object", [{"effort": "low"}, {"format": {"type": "json_schema", "schema": BOOL}}],
                      [{"format": {"type": "x"}}, {"effort": 5}, {"effort": "banana"}]), **SAMPLING, **LLAMA,
    "temperature": ("number", [0, 1], [-1, 2.5]), "top_p": SAMPLING["top_p"], "stop_sequences": ("array", [["x"], [], [""]], [[5], ["x"] * 65]),
    **dict.fromkeys(("metadata", "service_tier", "container", "context_management", "betas", "unknown"), ANY),
}
NEEDED = {"messages", "prompt", "input"}


with open("share/openapi.json") as file:
    DOC = json.load(file)
ASKED = [  # method, path (with those of DOC where they differ), body
    ("GET", "/health", None), ("GET", "/v1/models", None), ("GET", "/v1/models/nano-gemma4", "/models/{id}"),
    ("GET", "/props", None), ("GET", "/slots", None),
    *(("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 40, **more}) for more in (
        {"logprobs": True, "top_logprobs": 2, "verbose": True}, {"tools": [TOOL], "tool_choice": "required"},
        {"reasoning_effort": "high", "n": 2}, {"messages": 5})),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, "logprobs": 2}),
    ("POST", "/completion", {"prompt": "x", "n_predict": 2, "n_probs": 2}),
    *(("POST", "/v1/responses", {"input": "x", "max_output_tokens": 40, **more}) for more in (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"reasoning": {"summary": "auto"}},
        {"tools": [{"type": "function", **FUNCTION}, {"type": "local_shell"}], "tool_choice": "required"},
        {"tools": [{"type": "custom", "name": "c"}], "tool_choice": "required"})),
    ("POST", "/v1/responses/input_tokens", {"input": "x"}),
    *(("POST", "/v1/messages", {"messages": USER, "max_tokens": 40, **more}) for more in (
        {"thinking": {"type": "adaptive"}}, {"tool_choice": {"type": "any"},
                                             "tools": [{"name": "f", "input_schema": client.WEATHER}]})),
    ("POST", "/v1/messages/count_tokens", {"messages": USER}),
    ("POST", "/v1/chat/completions/input_tokens", {"messages": USER}), ("POST", "/v1/conversations", {}),
    ("POST", "/tokenize", {"content": "x", "with_pieces": True}), ("POST", "/tokenize", {"prompt": "x"}), ("POST", "/detokenize", {"tokens": [5]}),
    ("POST", "/apply-template", {"messages": USER}), ("POST", "/v1/embeddings", {"input": "x"})]


def forms(schema):
    """A schema and all that it refers to, of which a value may have the members."""
    while "$ref" in schema:
        at = DOC
        for part in schema["$ref"][2:].split("/"):
            at = at[part.replace("~1", "/")]
        schema = at
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for other in schema.get(key, []):
            yield from forms(other)


def undescribed(value, schemas, path=""):
    """Paths of members that no schema names, but where it names none at all."""
    found = [f for s in schemas for f in forms(s)]
    if isinstance(value, list):
        items = [f["items"] for f in found if "items" in f]
        return {p for v in value for p in undescribed(v, items, path + "[]")}
    if not isinstance(value, dict) or not any("properties" in f for f in found) \
            or any("additionalProperties" in f for f in found):
        return set()
    named = {k: [f["properties"][k] for f in found if k in f.get("properties", {})] for k in value}
    return {f"{path}.{k}" for k in value if not named[k]}.union(
        *(undescribed(v, named[k], f"{path}.{k}") for k, v in value.items()))


def with_enum(values):
    return {"messages": USER, "max_tokens": 100, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": values}}}


class Answers(client.Case):
    def test_described(self):
        for method, path, body in ASKED:
            name = body if isinstance(body, str) else path.removeprefix("/v1")
            status, _, r = self.server.request(method, path, body if isinstance(body, dict) else None)
            described = next(forms(DOC["paths"][name][method.lower()]["responses"][str(status)]))
            with self.subTest(path=path, body=body):
                self.assertEqual(undescribed(r, [described["content"]["application/json"]["schema"]]), set())


class Fields(client.Case):
    options = ["--temp", "0", "--parallel", "8", "-c", "1024"]

    def rows(self, path, base, rows):
        for field, (kind, taken, refused) in rows.items():
            null = (None, 400 if field in NEEDED and field in base else 200)
            for value, want in [*((v, 200) for v in taken), null,
                                *((v, 400) for v in refused + OTHERS[kind])]:
                got, _, r = self.server.post(path, {**base, field: value})
                with self.subTest(path=path, field=field, value=json.dumps(value)[:80]):
                    self.assertEqual(got, want, str(r)[:300])
                    if got == 400:
                        self.assertEqual(r["error"]["type"], "invalid_request_error")
                        self.assertNotRegex(r["error"]["message"], rf"^'?{field}\b\W+{field}\b")

    def test_chat(self):
        self.rows("/v1/chat/completions", {"messages": USER, "max_tokens": 1}, CHAT)

    def test_completions(self):
        self.rows("/v1/completions", {"prompt": "x", "max_tokens": 1}, TEXT)

    def test_native(self):
        self.rows("/completion", {"prompt": "x", "n_predict": 1}, NATIVE)

    def test_responses(self):
        self.rows("/v1/responses", {"input": "x", "max_output_tokens": 1}, RESPONSES)

    def test_messages(self):
        self.rows("/v1/messages", {"messages": USER, "max_tokens": 1}, MESSAGES_ALL)


class Values(client.Case):
    """What is left out of a request is named in its reply; values of a wrong kind are refused."""

    def ok(self, path, body, status=200):
        got, _, r = self.server.post(path, body)
        self.assertEqual(got, status, r)
        return r

    def test_names_of_tools_have_one_bound(self):
        for n, status in ((65, 200), (256, 200), (257, 400)):
            tools = [{"type": "function", "function": {"name": "a" * n, "parameters": client.WEATHER}}]
            self.ok("/v1/chat/completions", {"messages": USER, "max_tokens": 1, "tools": tools}, status)
            self.ok("/api/chat", {"messages": USER, "stream": False, "tools": tools, "options": {"num_predict": 1}}, status)
            self.ok("/v1/responses", {"input": "x", "max_output_tokens": 1, "tools": [{"type": "function", "name": "a" * n}]})
            self.ok("/v1/messages", {"messages": USER, "max_tokens": 1, "tools": [{"name": "a" * n, "input_schema": client.WEATHER}]}, status)
        tools.append(TOOL)
        r = self.ok("/v1/chat/completions", {"messages": USER, "max_tokens": 1, "tools": tools})
        self.assertIn("tools[0]", r["warnings"][0])
        r = self.ok("/v1/chat/completions", {"messages": USER, "max_tokens": 500, "tool_choice": "required",
                                            "tools": [{"type": "function", "function": {"name": "b" * 200}}]})
        self.assertEqual(r["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "b" * 200)

    def test_many_words_of_one_prefix(self):
        words = [f"product-code-{i:05d}" for i in range(20000)]
        for values in ({"enum": words}, {"anyOf": [{"const": w} for w in words]}, {"enum": [{"id": w} for w in words[:5000]]}):
            said = json.loads(self.ok("/v1/chat/completions", with_enum(values))["choices"][0]["message"]["content"])
            self.assertIn(said["id"] if isinstance(said, dict) else said, words)
        rule = "root ::= " + " | ".join(f'"{w}"' for w in words)
        self.assertIn(self.ok("/completion", {"prompt": "x", "n_predict": 100, "grammar": rule})["content"], words)

    def test_params_of_schemas(self):
        for schema, at in (({"type": "strin"}, ".type"), ({"properties": {"a": {"type": "x"}}}, ".properties.a.type"),
                           ({"anyOf": [{"type": "string"}, {"enum": 5}]}, ".anyOf[1].enum"), (5, ""), ({"pattern": "("}, ".pattern")):
            e = self.ok("/v1/chat/completions", with_enum(schema), 400)["error"]
            self.assertEqual(e["param"], "response_format.json_schema.schema" + at)

    def test_messages(self):
        self.ok("/v1/messages", {"messages": USER, "max_tokens": 1, "tools": [{"name": "f", "input_schema": 5}]}, 400)
        self.ok("/v1/messages", {"messages": USER, "max_tokens": 1, "tools": [{"name": "f", "defer_loading": True, "input_schema": 5}]}, 400)
        call = [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]
        for told, status in (({}, 200), ({"tool_use_id": 5}, 400), ({"tool_use_id": "x"}, 200)):
            result = {"role": "user", "content": [{"type": "tool_result", "content": "y", **told}]}
            r = self.ok("/v1/messages", {"messages": [*call, result], "max_tokens": 1}, status)
            self.assertEqual("warnings" in r, not told)

    def test_tokens_as_vllm_has_them(self):
        r = self.ok("/tokenize", {"prompt": "I am"})
        self.assertEqual((r["count"], r["max_model_len"], r["tokens"][1:]), (3, 4096, self.ok("/tokenize", {"content": "I am"})["tokens"]))
        self.assertEqual(self.ok("/tokenize", {"prompt": "I am", "add_special_tokens": False})["count"], 2)
        r = self.ok("/tokenize", {"messages": USER})
        self.assertEqual(r["count"], self.ok("/v1/chat/completions/input_tokens", {"messages": USER})["input_tokens"])
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"messages": 5}), ("/detokenize", {})):
            self.ok(path, body, 400)

    def test_addresses(self):
        for method, path, status, says in (
                ("GET", "/v1/chat/completions", 405, "takes POST, not GET"), ("POST", "/v1/models", 405, "takes GET, not POST"),
                ("POST", "/v1/v1/messages", 404, "it is /v1/messages"), ("GET", "//v1/models", 404, "it is /v1/models"),
                ("GET", "/v1/v1/v1//models", 404, "it is /v1/models"), ("GET", "/models/sse", 404, "--models"), ("GET", "/v1/v1/nope", 404, "there is no endpoint")):
            got, _, r = self.server.request(method, path, {} if method == "POST" else None)
            self.assertEqual(got, status, path)
            self.assertIn(says, json.dumps(r), path)

    def test_files_that_are_text(self):
        said = []
        for data in ("data:text/plain;base64,R3LDtsOfZQ==", "data:text/csv,Gr%C3%B6%C3%9Fe", "data:text/markdown;charset=utf-8;base64,R3LDtsOfZQ"):
            for part in ({"type": "file", "file": {"filename": "a.txt", "file_data": data}}, {"type": "input_file", "filename": "a.txt", "file_data": data}):
                said.append(self.ok("/apply-template", {"messages": [{"role": "user", "content": [part]}]})["prompt"])
                self.ok("/v1/responses", {"input": [{"role": "user", "content": [part]}], "max_output_tokens": 1})
        self.assertEqual(len(set(said)), 1)
        self.assertIn("a.txt:\nGröße", said[0])
        for data in ("data:application/pdf;base64,AAAA", "data:text/plain;base64,/w==", "data:text/plain;base64,A%", "text"):
            part = {"type": "file", "file": {"file_data": data}}
            self.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}, 400)


if __name__ == "__main__":
    client.main()
