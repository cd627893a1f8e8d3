/*
 * metrics - what the server counts, as Prometheus reads it: llama.cpp's names, and histograms
 * of our own.
 */
#ifndef INGLE_SERVER_METRICS_H
#define INGLE_SERVER_METRICS_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

struct metrics;
struct serve;
struct answer_record;

MUST_CHECK ingle_status metrics_open(struct metrics **out, struct err *err);
void metrics_close(struct metrics *m);
/* Counts an answer; m is a struct metrics.  Any thread. */
void metrics_observe(void *m, const struct answer_record *r);
/* When the last answer ended, in milliseconds since 1970; 0: there was none. */
int64_t metrics_used_ms(struct metrics *m);
void metrics_write(struct metrics *m, struct serve *s, struct str *out);
/* As a JSON array, the latest first: where the last prompts of this user came from, and why no more
 * of them. */
void metrics_decisions(struct metrics *m, const char *user, struct str *out);

#endif
