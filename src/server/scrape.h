/*
 * scrape - a second address with the counters and the probes only, for programs that watch a fleet
 * and have no key: --metrics-address.
 */
#ifndef INGLE_SERVER_SCRAPE_H
#define INGLE_SERVER_SCRAPE_H

#include "base/err.h"

struct scrape;
struct serve;

/* address: "HOST:PORT" or "[::1]:PORT", port 0: any free one.  s is borrowed until
 * scrape_close(). */
MUST_CHECK ingle_status scrape_open(struct scrape **out, const char *address, struct serve *s,
                                    struct err *err);
int scrape_port(const struct scrape *c);
void scrape_close(struct scrape *c);

#endif
