#!/usr/bin/env python3
"""haproxy_fleet.py INGLE - replicas behind HAProxy with share/deploy/haproxy.cfg."""
# packages: prometheus-client
import json

import rolling

HAPROXY = rolling.program("haproxy")


class HAProxy(rolling.Fleet):
    def command(self, port, urls, folder):
        return [HAPROXY, "-db", "-f", rolling.deployed("haproxy.cfg", (port, *self.ports), folder)]

    def test_answers_are_found_in_their_replica(self):
        for i in range(6):
            status, headers, r = self.request("POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 2},
                                              {"X-Conversation-Id": f"talk-{i}"})
            self.assertEqual(status, 200, r)
            r = json.loads(r)
            self.assertTrue(r["id"].endswith("." + headers["X-Ingle-Replica"]), (r["id"], headers))
            status, _, again = self.request("GET", "/v1/responses/" + r["id"])
            self.assertEqual((status, json.loads(again)["id"]), (200, r["id"]))


if __name__ == "__main__":
    rolling.main()
