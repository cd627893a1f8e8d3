#!/usr/bin/env python3
"""deepseek.py INGLE - /chat/completions on the nano DeepSeek V4 file, where there is one."""
import json

import client
from client import Case, together

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a city", "parameters": client.WEATHER}}


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


class DeepSeek(Case):
    @classmethod
    def setUpClass(cls):
        cls.options = ["-m", client.nano_v4(), "-c", "2048", "--parallel", "4"]
        super().setUpClass()

    def one(self, body):
        status, _, r = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, r)
        return r["choices"][0]

    def parts(self, body):
        events = self.server.events("/v1/chat/completions", {**body, "stream": True})
        deltas = [d["choices"][0]["delta"] for _, d in events[:-1]]
        calls = [c["function"] for d in deltas for c in d.get("tool_calls", [])]
        return {"content": "".join(d.get("content") or "" for d in deltas),
                "reasoning": "".join(d.get("reasoning_content") or "" for d in deltas),
                "calls": "".join(c.get("name", "") + c["arguments"] for c in calls)}

    def test_answers(self):
        m = self.one(user("What is the capital of Italy?"))["message"]
        self.assertEqual(m["content"], "The capital of Italy is Rome.")

    def test_thinking(self):
        for more in ({"think": True}, {"thinking": {"type": "enabled"}}, {"reasoning_effort": "max"},
                     {"reasoning_effort": "medium"}):
            c = self.one(user("What is 7+5?", logprobs=True, **more))
            m = c["message"]
            self.assertTrue(m["reasoning_content"], more)
            self.assertEqual("".join(t["token"] for t in c["logprobs"]["content"]), m["content"])
            parts = self.parts(user("What is 7+5?", **more))
            self.assertEqual((parts["content"], parts["reasoning"]),
                             (m["content"], m["reasoning_content"]))
        self.assertNotIn("reasoning_content", self.one(user("What is 7+5?"))["message"])

    def test_calls(self):
        body = user("What is the weather in Oslo?", tools=[WEATHER])
        c = self.one(body)
        self.assertEqual(c["finish_reason"], "tool_calls")
        call = c["message"]["tool_calls"][0]
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Oslo"})
        self.assertEqual(self.parts(body)["calls"], "get_weather" + call["function"]["arguments"])
        again = [*body["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        self.assertEqual(self.one({**body, "messages": again})["finish_reason"], "stop")

    def test_cut_calls(self):
        body = user("What is the weather in Oslo?", tools=[WEATHER])
        whole = self.one(body)["message"]["tool_calls"][0]["function"]["arguments"]
        seen = set()
        for k in range(1, 200):
            c = self.one({**body, "max_tokens": k})
            if c["finish_reason"] != "length":
                break
            self.assertFalse((c["message"].get("content") or "").strip("\n<"), c)
            calls = c["message"].get("tool_calls", [])
            parts = self.parts({**body, "max_tokens": k})
            self.assertEqual(parts["calls"], "".join(x["function"]["name"] + x["function"]["arguments"]
                                                     for x in calls))
            if not calls or calls[0]["function"]["arguments"] in seen:
                continue
            arguments = calls[0]["function"]["arguments"]
            self.assertTrue(whole.startswith(arguments), arguments)
            seen.add(arguments)
            self.one({**body, "max_tokens": 1, "messages": [
                *body["messages"], c["message"],
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "cut off"}]})
        self.assertGreater(len(seen), 3)

    def test_calls_are_told_as_they_come(self):
        body = user("What is the weather in Oslo?", tools=[WEATHER])
        events = self.server.events("/v1/chat/completions", {**body, "stream": True})
        pieces = [c["function"]["arguments"] for _, e in events[:-1] for k in e["choices"]
                  for c in k["delta"].get("tool_calls", [])]
        self.assertGreater(len(pieces), 4)
        self.assertEqual("".join(pieces), '{"city": "Oslo"}')

    def test_what_is_forced(self):
        for more in ({}, {"think": True}):
            c = self.one(user("Who are you?", tools=[WEATHER], tool_choice="required", max_tokens=400,
                              **more))
            self.assertEqual(c["finish_reason"], "tool_calls", c)
            self.assertEqual(bool(c["message"].get("reasoning_content")), bool(more))
            arguments = json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])
            self.assertEqual(list(arguments), ["city"])
            c = self.one(user("What is 7+5?", json_schema={"type": "integer", "minimum": 10,
                                                           "maximum": 19}, **more))
            self.assertRegex(c["message"]["content"], r"^\s*1\d\s*$")

    def test_forced_calls_of_any_seed(self):
        """A thought that the model would end the answer in ends before the call."""
        body = user("Who are you?", tools=[WEATHER], tool_choice="required", max_tokens=300)
        bodies = [{**body, **client.HOT, "seed": seed, "think": seed % 3 > 0} for seed in range(1, 25)]
        for c in together([lambda b=b: self.one(b) for b in bodies]):
            self.assertIn(c["finish_reason"], ("tool_calls", "length"), c)
            if c["finish_reason"] == "length":
                continue
            for call in c["message"].get("tool_calls", []):
                self.assertEqual(list(json.loads(call["function"]["arguments"])), ["city"])

    def test_prefill(self):
        m = [{"role": "user", "content": "What is the capital of Italy?"},
             {"role": "assistant", "content": "The capital of"}]
        self.assertEqual(self.one({"messages": m, "temperature": 0})["message"]["content"],
                         " Italy is Rome.")
        m = [{"role": "user", "content": "What is 7+5?"},
             {"role": "assistant", "reasoning_content": "The user asks for 7+5. 7+5"}]
        got = self.one({"messages": m, "temperature": 0})["message"]
        self.assertTrue(got["reasoning_content"].startswith(" ="), got)

    def test_a_system_turn_before_the_answer(self):
        """What the model was asked with is what the next turn begins with."""
        asked = [{"role": "user", "content": "What is 7+5?"}, {"role": "system", "content": "Answer briefly."}]
        later = [*asked, {"role": "assistant", "content": "12"}, {"role": "user", "content": "And 8+9?"}]
        first, second = (self.server.post("/apply-template", {"messages": m})[2]["prompt"] for m in (asked, later))
        self.assertEqual(second[:len(first)], first)

    def test_the_same_alone_and_among_others(self):
        bodies = [user(f"Say 1 to {20 + i}.", temperature=1.2, seed=i, max_tokens=40) for i in range(16)]
        alone = [self.one(b)["message"]["content"] for b in bodies]
        self.assertEqual(together([lambda b=b: self.one(b)["message"]["content"] for b in bodies]), alone)


if __name__ == "__main__":
    client.main()
