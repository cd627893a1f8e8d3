/*
 * fleet - what routers, probes and scrapers of a fleet ask a server: whether it lives and is ready,
 * and vLLM's forms of a rendered prompt and of the server itself.
 */
#ifndef INGLE_SERVER_FLEET_H
#define INGLE_SERVER_FLEET_H

#include "base/str.h"

#include <stdbool.h>

struct http_exchange;
struct http_request;
struct serve;

/* Tokens of a block, as vLLM's routers count prefixes. */
enum { FLEET_BLOCK = 16 };

/* Why no new requests should come, in words; NULL: they may. */
const char *fleet_why_not_ready(const struct serve *s);
/* False: a step takes longer than the watchdog allows. */
bool fleet_lives(struct serve *s);
/* 200 or 503 with a reason. */
void fleet_answer_live(struct serve *s, struct http_exchange *x, const struct http_request *rq);
void fleet_answer_ready(struct serve *s, struct http_exchange *x, const struct http_request *rq);

#endif
