/*
 * write - what the dialects' answers say alike, as JSON (base/write.h).
 */
#ifndef INGLE_SERVER_WRITE_H
#define INGLE_SERVER_WRITE_H

#include "base/write.h"
#include "ingle/ingle.h"

/* Drafted tokens that were right, and the others, by OpenAI's names; n_drafted 0: nothing. */
void write_drafted(struct str *s, int64_t n_drafted, int64_t n_right);
/* The counters of a group (ingle_facts) as members of an object. */
void write_facts(struct str *s, const char *group, const void *of);
/* "sparse" and "kv_select", what prompts and answers left out; nothing where there were none. */
void write_ways(struct str *s, const struct ingle_way_use *u);
/* "computed_tokens": those of a prompt that was shortened, the cached ones among them; nothing of
 * one that was not.  And those of pictures and sounds, if there are any. */
void write_computed(struct str *s, const struct ingle_usage *u);
/* A member "kv_disk", if keys and values were read from disk. */
void write_pages(struct str *s, const struct ingle_page_use *u);

#endif
