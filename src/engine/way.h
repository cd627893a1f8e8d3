/*
 * way - other ways to compute prompts and answers.
 */
#ifndef INGLE_ENGINE_WAY_H
#define INGLE_ENGINE_WAY_H

#include "engine/engine.h"

/* sparse.c: "off", "on", "on:eps=1/8,from=4096"; NULL: off.  what: whose value it is, in errors. */
MUST_CHECK ingle_status engine_sparse_parse(const char *what, const char *text, uint32_t *sparse,
                                            struct err *err);
/* Behind the binding of weights: e->sparse and what belongs to it. */
MUST_CHECK ingle_status engine_sparse_open(struct ingle_engine *e,
                                           const struct ingle_engine_options *o,
                                           const struct kv_types *kv, struct err *err);
/* Says once that it was asked for in vain. */
void engine_sparse_refuse(struct ingle_engine *e);
void engine_sparse_text(uint32_t sparse, char *out, size_t n);
void engine_sparse_add(struct ingle_sparse *sum, const struct kern_sparse_seen *seen);
void engine_sparse_join(struct ingle_sparse *sum, const struct ingle_sparse *more);
/* Says what it left out of a prompt, if anything. */
void engine_sparse_report(const struct ingle_engine *e, uint32_t sparse,
                          const struct ingle_sparse *s);

/* select.c: "off" (or NULL), "1/16", "1/16,least=16".  what: whose value it is, in errors. */
MUST_CHECK ingle_status engine_select_parse(const char *what, const char *text,
                                          struct kern_select *select, struct err *err);
/* Behind the binding of weights: e->select, and what belongs to it. */
MUST_CHECK ingle_status engine_select_open(struct ingle_engine *e,
                                         const struct ingle_engine_options *o, struct err *err);
/* What a request or session says ("on": as the engine's options do, or 1/16; NULL: as they do).
 * INGLE_UNSUP: there are no copies of the keys; INGLE_LIMIT: with a disk, there is no room for what
 * it reads.  Where none can choose it is to see all, which engine_select_refuse() says once. */
MUST_CHECK ingle_status engine_select_choose(const struct ingle_engine *e, const char *how,
                                             struct kern_select *select, bool *in_vain,
                                             struct err *err);
void engine_select_refuse(struct ingle_engine *e);
void engine_select_text(const struct kern_select *p, char *out, size_t n);
void engine_select_add(struct ingle_select *sum, const struct kern_select_seen *seen);
void engine_select_join(struct ingle_select *sum, const struct ingle_select *more);
void engine_select_report(const struct ingle_engine *e, const struct ingle_select *s);

/* shorten.c: position as in ingle_request_options; NULL: there are no gaps.  INGLE_UNSUP: this
 * model can have none. */
/* Behind the binding of weights: e->gaps_why, and e->skip as the options say, with the memory that
 * it will take (0: none).  Behind loading: its weights. */
MUST_CHECK ingle_status engine_shortener_prepare(struct ingle_engine *e,
                                            const struct ingle_engine_options *o, struct err *err);
uint64_t engine_shortener_bytes(const struct ingle_engine *e);
MUST_CHECK ingle_status engine_shortener_open(struct ingle_engine *e, struct err *err);
void engine_shortener_close(struct ingle_engine *e);
MUST_CHECK ingle_status engine_gaps(const struct ingle_engine *e, const int32_t *position,
                                    int64_t n, struct kv_gaps **out, struct err *err);

#endif
