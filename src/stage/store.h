/* store - a stage's files of its part of pages; for this room only.
 *
 * A store of prefixes (kv/store.h), whose pages are the stage's own memory: they stay as they are
 * until the engine has heard DONE, or has said DROP. */
#ifndef INGLE_STAGE_STORE_H
#define INGLE_STAGE_STORE_H

#include "stage/wire.h"

struct stage_store;
/* spec: of the pages, with the streams of other layers; it and pages are borrowed. */
MUST_CHECK ingle_status stage_store_open(struct stage_store **out,
                                         const struct stage_serve_options *o,
                                         const struct kv_spec *spec,
                                         const struct stage_pages *pages, struct err *err);
void stage_store_close(struct stage_store *s);
/* So many bytes a KEEP of a whole context has. */
size_t stage_store_longest(const struct stage_store *s);
/* A KEEP of the engine, in its turn.  INGLE_FORMAT: it is wrong; INGLE_LIMIT: it is too much. */
MUST_CHECK ingle_status stage_store_receive(struct stage_store *s, const struct link_in *in,
                                            const struct link_head *h, struct err *err);
/* What goes on, and what is to be said of it: say() takes m.  number: of the JOIN, 0: there is no
 * engine.  True: more goes on. */
bool stage_store_tend(struct stage_store *s, uint64_t number,
                      void (*say)(void *arg, const struct link_head *h, struct link_out *m),
                      void *arg);
/* The memory of pages [at, at + n) goes. */
void stage_store_give(struct stage_store *s, uint64_t at, uint64_t n);
/* The engine has left: no page is used any more. */
void stage_store_leave(struct stage_store *s);

#endif
