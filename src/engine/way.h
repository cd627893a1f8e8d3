/*
 * way - other ways to compute prompts and answers.
 */
#ifndef INGLE_ENGINE_WAY_H
#define INGLE_ENGINE_WAY_H

#include "engine/engine.h"

/* Of one kind, after the binding of weights: e->way, as the options say, and why it cannot be.
 * types: NULL: those of the options. */
MUST_CHECK ingle_status engine_way_open(struct ingle_engine *e, enum kv_way_kind kind,
                                        const struct ingle_engine_options *o,
                                        const struct kv_types *types, struct err *err);
/* Reports once that it was requested where it cannot be. */
void engine_way_refuse(struct ingle_engine *e, enum kv_way_kind kind);
/* What a request or session says (NULL: as the engine's options do; of selected pages "on": as they
 * do, or 1/16) into *way, whose other kinds stay.  Where it cannot be, all is read, and
 * *unsupported is set.  INGLE_UNSUP: there are no copies of the keys; INGLE_LIMIT: with a disk,
 * there is no room for what it reads. */
MUST_CHECK ingle_status engine_way_choose(const struct ingle_engine *e, enum kv_way_kind kind,
                                          const char *how, struct kv_way *way, bool *unsupported,
                                          struct err *err);
/* What was left out of a session's steps since the last call of this. */
struct ingle_way_use engine_way_take(struct session *s);
/* Reports what was left out in one of these ways, if anything. */
void engine_way_report(const struct ingle_engine *e, enum kv_way_kind kind, uint32_t sparse,
                       const struct ingle_way_use *use);

/* shorten.c: position as in ingle_request_options; NULL: there are no gaps.  INGLE_UNSUP: this
 * model can have none. */
MUST_CHECK ingle_status engine_gaps(const struct ingle_engine *e, const int32_t *position,
                                    int64_t n, struct kv_gaps **out, struct err *err);
/* After the binding of weights: e->shortener as the options say, with the memory that it will take
 * (0: none).  After loading: its weights. */
MUST_CHECK ingle_status engine_shortener_prepare(struct ingle_engine *e,
                                                 const struct ingle_engine_options *o,
                                                 struct err *err);
uint64_t engine_shortener_bytes(const struct ingle_engine *e);
MUST_CHECK ingle_status engine_shortener_open(struct ingle_engine *e, struct err *err);
void engine_shortener_close(struct ingle_engine *e);

#endif
