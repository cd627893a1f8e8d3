/*
 * stage - layers of a model in other processes, here or on other machines (link/link.h).
 *
 * An engine has the first layers, the embedding, the head and all sessions; each *stage* has layers
 * [from, to).  A step goes through them in order: border rows (family.h) go to a stage and come
 * back.  Keys and values are divided by layers, too: the engine's pages have a part that
 * lies at the stages (struct kv_memory), all of the same layout, so that the code of timelines,
 * prefixes and files is that of one process.  What happens to pages is told to all stages in one
 * order, with the steps: pages taken, given back, copied, written from a file, read for one.
 *
 * Each page has, at both ends, a hash of the tokens down to each of its positions.  A step says
 * the hash before each span, and a stage whose own differs does not compute.
 */
#ifndef INGLE_STAGE_STAGE_H
#define INGLE_STAGE_STAGE_H

#include "family/family.h"
#include "kv/kv.h"
#include "link/link.h"
#include <stdatomic.h>

enum { STAGE_MOST = 15, STAGE_VERSION = 3 };

/* Who an end is: a stage, or (first > 0) an engine that asks a stage. */
struct stage_hello {
    uint32_t version, look; /* look: nothing is agreed on */
    uint32_t from, to;      /* layers of the stage */
    uint32_t first;         /* the engine has [0, first) */
    uint32_t n_layers, n_embd, n_ctx, max_rows, arithmetic, layout;
    /* hashes: names, types and shapes with parameters; all weights (0: not known); pages */
    uint64_t form, sum, pages;
    uint64_t budget_bytes;  /* of pages, counted as those of the whole model */
    uint64_t instance;      /* of an engine: another number for each */
    uint64_t weight_bytes, limit_bytes; /* of a stage: what it has in memory; what it may take */
    char numerics[48], family[32], kv[256], cpu[32], engine[32]; /* ended by 0 */
};
/* Of the streams that no guest has. */
uint64_t stage_pages_hash(const struct kv_spec *s);

/* ---- a stage's side ---- */

struct stage_serve;
struct stage_serve_options {
    const char *address, *key_file;
    bool plain;
    const struct stage_hello *hello;
    const struct family *family;
    const void *self;
    const struct family_info *info;
    const struct kv_types *kv;
    const struct report_sink *sink;
    const atomic_bool *stop;
    void (*tend)(void *arg); /* between steps; or NULL */
    void *tend_arg;
};
struct stage_counts {
    uint64_t steps, rows, failed, refused, engines;
    uint64_t page_bytes; /* of pages that the engine has taken, as the whole model's */
    uint64_t compute_ns;
};
MUST_CHECK ingle_status stage_serve_open(struct stage_serve **out, struct device *d,
                                         const struct stage_serve_options *o, struct err *err);
void stage_serve_close(struct stage_serve *s);
const char *stage_serve_name(const struct stage_serve *s); /* where it listens */
void stage_serve_run(struct stage_serve *s);               /* answers until *stop */
void stage_serve_count(const struct stage_serve *s, struct stage_counts *out);

/* Layers [from, to) on rows `in` as the device has them; NULL-ed rows in a dry run. */
void stage_forward(const struct family *fam, const void *self, const struct family_forward *f,
                   const struct family_range *range);
/* Pages of which only the streams of layers [from, to) are kept, those that they borrow, and with
 * the first layers those of a guest; *out borrows from spec. */
void stage_share(const struct family *fam, const void *self, const struct kv_spec *spec,
                 int64_t from, int64_t to, struct kv_spec *out);
/* Scratch of the largest step of layers [from, to). */
size_t stage_dry_run(const struct family *fam, const void *self, const struct family_info *info,
                     struct device *d, const struct kv_spec *spec, int64_t n_ctx, int64_t max_rows,
                     int64_t from, int64_t to);

/* ---- an engine's side ---- */

struct stage_remote;
struct stage_remote_options {
    const char *const *address; /* [n] */
    int n;
    const char *key_file;
    bool plain;
    const struct stage_hello *hello; /* who this engine is; sum and pages are said later */
    const struct report_sink *sink;
    uint64_t wait_ns;   /* so long is waited for a stage, at the start and when it is lost */
    uint64_t late_ns;   /* a step's answer: this, or 20 times the usual; 0: 10 s */
    int heartbeat_ms, dead_ms; /* as in link.h */
    int64_t piece_rows; /* of a long step that go together; 0: an eighth of it, at least 64 */
};
/* Before the weights are loaded: finds out what stages there are, and whether they are of this
 * model, in order and complete.  INGLE_UNSUP and INGLE_ARG name the stage and what differs. */
MUST_CHECK ingle_status stage_remote_open(struct stage_remote **out,
                                          const struct stage_remote_options *o, struct err *err);
void stage_remote_close(struct stage_remote *r);
int stage_remote_n(const struct stage_remote *r);
const struct stage_hello *stage_remote_hello(const struct stage_remote *r, int i);
int64_t stage_remote_first(const struct stage_remote *r); /* layers that the engine has */
/* Which streams of the spec lie at stages. */
void stage_remote_mark(const struct stage_remote *r, const struct family *fam, const void *self,
                       struct kv_spec *spec);
/* After loading: spec is borrowed; from now on there are pages and steps. */
MUST_CHECK ingle_status stage_remote_start(struct stage_remote *r, const struct family *fam,
                                           const void *self, const struct kv_spec *spec,
                                           const struct stage_hello *hello, struct err *err);
struct kv_memory stage_remote_memory(struct stage_remote *r);

/* All of the network: the engine's layers, those of the stages, and the head.  Errors stay in the
 * device.  r NULL: family->forward(). */
void stage_remote_forward(struct stage_remote *r, const struct family *fam, const void *self,
                          const struct family_forward *f);
/* A stage was lost: what lay there is gone, and nothing is computed until stage_remote_renew(). */
bool stage_remote_is_lost(const struct stage_remote *r);
/* Waits until all stages are there; pages are without contents then.  INGLE_IO: they are not back
 * in time. */
MUST_CHECK ingle_status stage_remote_renew(struct stage_remote *r, const atomic_bool *cancel,
                                           struct err *err);

struct stage_remote_counts {
    const char *address;
    int64_t from, to;
    bool ready;
    bool direct; /* its rows go to the next stage */
    uint64_t steps, rows, sent_bytes, received_bytes, losses;
    uint64_t compute_ns, wait_ns; /* by its clock; steps waited for it */
    uint64_t weight_bytes, limit_bytes, budget_bytes;
    double trip_us;               /* of the handshake */
    char trouble[240];            /* why it is not there; "" */
};
/* Any thread. */
void stage_remote_count(struct stage_remote *r, int i, struct stage_remote_counts *out);
/* Any thread: all stages are there, as far as is known. */
bool stage_remote_is_ready(struct stage_remote *r, char *why, size_t n_why);

#endif
