#!/usr/bin/env python3
"""background.py INGLE - /v1/responses that need no client, and /v1/conversations."""
import json, time

import client
from client import together
from wait import attempts, busy, until

COUNT = {"input": "Count from 1 to 30.", "background": True}
LONG = {"input": "Tell me a story about a brave fox called Mia.", "background": True, "temperature": 1.5,
        "top_k": 0, "top_p": 1, "seed": 3, "text": {"format": {"type": "json_schema", "schema": {
            "type": "array", "minItems": 4000, "items": {"type": "integer"}}}}}


class Api(client.Case):
    def ask(self, method, path, body=None, status=200):
        got, _, r = self.server.request(method, "/v1" + path, body)
        self.assertEqual(got, status, r)
        return r

    def create(self, status=200, **body):
        return self.ask("POST", "/responses", body, status)

    def wait(self, r, wanted=("completed", "incomplete", "failed", "cancelled")):
        for _ in attempts(f"{r['id']} is over"):
            if r["status"] in wanted:
                return r
            r = self.ask("GET", "/responses/" + r["id"])

    def events(self, path):
        """All events of a stream that is fetched."""
        c, r = self.server.open("GET", "/v1" + path)
        text = r.read().decode()
        self.assertEqual(r.status, 200, text)
        blocks = [b for b in text.split("\n\n") if b and b[0] != ":"]
        c.close()
        return [json.loads(b.split("data: ", 1)[1]) for b in blocks]

    def begin(self, body, n_events):
        """A stream of which so many events are read before the client leaves."""
        c, r = self.server.open("POST", "/v1/responses", {**body, "stream": True})
        events = []
        while len(events) < n_events:
            line = r.readline().decode()
            self.assertTrue(line, events[-2:])
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
        r.close()
        c.close()
        return events


class Background(Api):
    options = ["--temp", "0", "-c", "32768"]  # LONG is not over before it is cancelled

    def test_polled(self):
        whole = self.create(input=COUNT["input"])
        r = self.create(**COUNT)
        self.assertEqual((r["status"], r["background"], r["output"], r["usage"]), ("queued", True, [], None))
        r = self.wait(r)
        self.assertEqual(r["output"][0]["content"], whole["output"][0]["content"])
        self.assertEqual(r["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        again = self.create(input="And now?", previous_response_id=r["id"])
        self.assertGreater(again["usage"]["input_tokens"], r["usage"]["total_tokens"])

    def test_stream_goes_on(self):
        """The client leaves, comes back, and misses nothing; the answer waits for nobody."""
        first = self.begin(COUNT, 8)
        rid = first[0]["response"]["id"]
        self.assertEqual([e["type"] for e in first[:3]],
                         ["response.created", "response.queued", "response.in_progress"])
        self.assertEqual(self.wait({"id": rid, "status": ""})["status"], "completed")
        everything = self.events(f"/responses/{rid}?stream=true")
        self.assertEqual([e["sequence_number"] for e in everything], list(range(len(everything))))
        self.assertEqual(everything[:8], first)
        self.assertEqual(everything[-1]["type"], "response.completed")
        self.assertEqual("".join(e["delta"] for e in everything if e["type"] == "response.output_text.delta"),
                         everything[-1]["response"]["output"][0]["content"][0]["text"])
        rest = self.events(f"/responses/{rid}?stream=true&starting_after=7")
        self.assertEqual(rest, everything[8:])
        self.assertEqual(self.events(f"/responses/{rid}?stream=true&starting_after=100000"), [])

    def test_listened_to_while_it_runs(self):
        first = self.begin(LONG, 6)
        rid = first[0]["response"]["id"]
        self.assertEqual(self.ask("GET", "/responses/" + rid)["status"], "in_progress")

        def listen():
            return self.events(f"/responses/{rid}?stream=true&starting_after=5")

        def stop():
            time.sleep(0.3)
            self.ask("POST", f"/responses/{rid}/cancel")

        one, two, _ = together([listen, listen, stop])
        self.assertEqual(one, two)
        self.assertEqual(one[0]["sequence_number"], 6)
        self.assertEqual(one[-1]["type"], "response.cancelled")
        self.assertEqual(one[-1]["response"]["status"], "cancelled")

    def test_cancel(self):
        r = self.create(**LONG)
        for _ in range(2):
            self.assertEqual(self.ask("POST", f"/responses/{r['id']}/cancel")["status"], "cancelled")
            until(lambda: not busy(self.server))
        self.assertEqual(self.ask("GET", "/responses/" + r["id"])["status"], "cancelled")
        done = self.wait(self.create(**COUNT))
        self.assertEqual(self.ask("POST", f"/responses/{done['id']}/cancel"), done)
        plain = self.create(input="Count from 1 to 3.")
        self.ask("POST", f"/responses/{plain['id']}/cancel", status=400)
        self.ask("POST", "/responses/resp_none/cancel", status=404)

    def test_delete(self):
        r = self.create(**LONG)
        self.assertEqual(self.ask("DELETE", "/responses/" + r["id"]),
                         {"id": r["id"], "object": "response.deleted", "deleted": True})
        self.ask("GET", "/responses/" + r["id"], status=404)
        until(lambda: not busy(self.server))
        self.ask("GET", "/responses/" + r["id"], status=404)
        r = self.create(input="Count from 1 to 3.")
        self.ask("DELETE", f"/responses/{r['id']}/cancel", status=405)
        self.ask("GET", "/responses/" + r["id"])

    def test_refused(self):
        self.create(status=400, **COUNT, store=False)
        self.create(status=400, input="x", background="yes")
        self.create(status=400, input=5, background=True)
        self.create(status=400, input="x " * 40000, background=True)
        self.create(status=400, input="x " * 40000, background=True, stream=True)
        r = self.create(**LONG)
        self.create(status=400, input="x", previous_response_id=r["id"])
        for query in ("stream=1", "starting_after=false", "stream=true&starting_after=x", "stream=true&starting_after=-1",
                      "stream=true"):
            self.ask("GET", f"/responses/{r['id']}?{query}", status=400)
        self.ask("POST", f"/responses/{r['id']}/cancel")

    def test_many(self):
        """More than run at once: all of them come to their end."""
        some = [self.create(**{**COUNT, "input": f"Count from 1 to {i + 2}."}) for i in range(24)]
        texts = [self.wait(r)["output"][0]["content"][0]["text"] for r in some]
        self.assertEqual(texts, [" ".join(map(str, range(1, i + 3))) for i in range(24)])

    def test_input_items(self):
        a = self.create(input="My name is Leo.", instructions="Be brief.")
        b = self.create(input=[{"role": "user", "content": [{"type": "input_text", "text": "And?"}]}],
                        previous_response_id=a["id"])
        page = self.ask("GET", f"/responses/{b['id']}/input_items?order=asc")
        texts = [i["content"][0]["text"] for i in page["data"]]
        self.assertEqual((texts[0], texts[-1]), ("My name is Leo.", "And?"))
        self.assertEqual([i["role"] for i in page["data"]], ["user", "assistant", "user"])
        self.assertEqual((page["object"], page["has_more"], page["first_id"]),
                         ("list", False, page["data"][0]["id"]))
        last = self.ask("GET", f"/responses/{b['id']}/input_items?limit=1")
        self.assertEqual((last["data"], last["has_more"]), (page["data"][2:], True))
        more = self.ask("GET", f"/responses/{b['id']}/input_items?after={last['last_id']}")
        self.assertEqual((more["data"], more["has_more"]), (page["data"][1::-1], False))
        for query in ("limit=0", "limit=101", "limit=x", "order=up"):
            self.ask("GET", f"/responses/{b['id']}/input_items?{query}", status=400)
        self.ask("GET", "/responses/resp_none/input_items", status=404)


class Bounded(Api):
    """A store of three answers and 64 KiB, of which one stream may take a quarter."""
    options = ["--temp", "0", "-c", "32768", "--limit", "responses=3", "--limit", "responses-bytes=65536"]

    def test_streams_forget(self):
        first = self.begin(LONG, 400)
        rid = first[0]["response"]["id"]
        self.ask("GET", f"/responses/{rid}?stream=true", status=400)
        for i in range(5):  # others go, that one stays
            self.create(input="Count from 1 to 2.")
        self.ask("POST", f"/responses/{rid}/cancel")
        self.assertEqual(self.wait({"id": rid, "status": ""})["status"], "cancelled")


class Conversations(Api):
    def test_nulls_of_an_item(self):
        c = self.ask("POST", "/conversations", {})
        path = f"/conversations/{c['id']}/items"
        r = self.ask("POST", path, {"items": [{"type": None, "id": None, "status": None, "role": "user",
                                               "content": "Hi"}]})
        self.assertEqual([(i["type"], i["status"]) for i in r["data"]], [("message", "completed")])
        self.assertEqual(len(self.ask("GET", path)["data"]), 1)

    def test_ids_that_are_none(self):
        path = f"/conversations/{self.ask('POST', '/conversations', {})['id']}/items"
        items = [{"type": t, "id": i, "role": "user", "content": "Hi", "call_id": "c"}
                 for t in (None, "", "message", "other", "other_output") for i in ({}, "", 3, [])]
        self.ask("POST", path, {"items": items})
        kept = self.ask("GET", path + "?limit=100")["data"]
        self.assertEqual(len(kept), len(items))
        for item in kept:
            self.assertTrue(item["id"] and isinstance(item["id"], str), item)

    def test_a_part_is_not_the_whole(self):
        c = self.ask("POST", "/conversations", {})
        for path, method in (("/items", "DELETE"), ("/more", "GET"), ("/items/a/b", "GET")):
            self.assertIn(self.server.request(method, f"/v1/conversations/{c['id']}{path}")[0], (404, 405))
        self.ask("GET", "/conversations/" + c["id"])

    def test_life(self):
        c = self.ask("POST", "/conversations", {"metadata": {"topic": "x"}, "items": [
            {"role": "user", "content": "My name is Leo."}]})
        self.assertEqual((c["object"], c["metadata"]), ("conversation", {"topic": "x"}))
        self.assertTrue(c["id"].startswith("conv_"))
        path = "/conversations/" + c["id"]
        self.assertEqual(self.ask("GET", path), c)
        self.assertEqual(self.ask("POST", path, {"metadata": {"topic": "y"}})["metadata"], {"topic": "y"})
        self.assertEqual(self.ask("GET", path)["metadata"], {"topic": "y"})
        added = self.ask("POST", path + "/items", {"items": [{"role": "user", "content": "a"},
                                                             {"role": "user", "content": "b"}]})
        self.assertEqual([i["content"][0]["text"] for i in added["data"]], ["a", "b"])
        one = added["data"][0]
        self.assertEqual(self.ask("GET", f"{path}/items/{one['id']}"), one)
        self.assertEqual(self.ask("DELETE", f"{path}/items/{one['id']}")["id"], c["id"])
        self.ask("GET", f"{path}/items/{one['id']}", status=404)
        texts = [i["content"][0]["text"] for i in self.ask("GET", path + "/items")["data"]]
        self.assertEqual(texts, ["b", "My name is Leo."])
        self.assertEqual(self.ask("DELETE", path),
                         {"id": c["id"], "object": "conversation.deleted", "deleted": True})
        for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/other")):
            self.ask(method, path + rest, status=404)

    def test_responses(self):
        c = self.ask("POST", "/conversations")
        apart = self.create(input="What is the capital of Italy?")
        r = self.create(input="What is the capital of Italy?", conversation=c["id"], store=False)
        self.assertEqual((r["conversation"], r["output"][0]["content"]),
                         ({"id": c["id"]}, apart["output"][0]["content"]))
        self.ask("GET", "/responses/" + r["id"], status=404)
        second = self.create(input="What is 7+5?", conversation={"id": c["id"]})
        chain = self.create(input="What is 7+5?", previous_response_id=apart["id"])
        self.assertEqual(second["usage"]["input_tokens"], chain["usage"]["input_tokens"])
        self.assertEqual(second["output"][0]["content"], chain["output"][0]["content"])
        third = self.create(**{**COUNT, "conversation": c["id"]})
        self.ask("GET", "/responses/" + self.wait(third)["id"])
        items = self.ask("GET", f"/conversations/{c['id']}/items?order=asc")["data"]
        self.assertEqual([i["role"] for i in items], ["user", "assistant"] * 3)
        self.assertEqual(len({i["id"] for i in items}), 6)
        self.assertEqual(items[3]["content"], second["output"][0]["content"])

    def test_refused(self):
        c = self.ask("POST", "/conversations")["id"]
        self.create(status=404, input="x", conversation="conv_none")
        self.create(status=404, input="x", conversation="resp_none")
        self.create(status=400, input="x", conversation=5)
        self.create(status=404, input="x", previous_response_id=c)
        r = self.create(input="Count from 1 to 2.")
        self.create(status=400, input="x", conversation=c, previous_response_id=r["id"])
        self.ask("GET", "/responses/" + c, status=404)
        self.ask("GET", "/conversations/" + r["id"], status=404)
        for body in ({"metadata": 5}, {"metadata": {"a": 5}}, {"metadata": {str(i): "" for i in range(17)}},
                     {"metadata": {"x" * 65: ""}}, {"metadata": {"x": "y" * 513}}, {"items": "x"},
                     {"items": [5]}, {"items": [{"role": "nobody", "content": "x"}]},
                     {"items": [{"role": "user", "content": "x"}] * 21}):
            self.ask("POST", "/conversations", body, 400)
        self.ask("POST", f"/conversations/{c}/items", {}, 400)
        self.ask("POST", "/conversations/conv_none/items", {"items": []}, 404)
        self.ask("POST", "/conversations/conv_none", {"metadata": {}}, 404)


if __name__ == "__main__":
    client.main()
