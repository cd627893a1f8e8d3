/*
 * stage - layers of a model in other processes, here or on other machines (link/link.h).
 *
 * An engine has the first layers, the embedding, the head and all sessions; each *stage* has layers
 * [from, to).  A step goes through them in order: border rows (family.h) go to a stage and come
 * back.  Keys and values are divided by layers, too: the engine's pages have a part that
 * is at the stages (struct kv_memory), all of the same layout, so that the code of timelines,
 * prefixes and files is that of one process.  What happens to pages is sent to all stages in one
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

enum { STAGE_MOST = 15, STAGE_VERSION = 5, STAGE_CUT_LAYERS = 1024 };
/* What a JOIN asks for: pages and steps; who it is; to load layers [from, to). */
enum stage_look { STAGE_JOINS, STAGE_LOOKS, STAGE_ASSIGNS };

/* Who an end is: a stage, or (first > 0) an engine that asks a stage. */
struct stage_hello {
    uint32_t version, look; /* enum stage_look */
    uint32_t from, to;      /* layers of the stage */
    uint32_t first;         /* the engine has [0, first) */
    uint32_t n_layers, n_embd, n_ctx, max_rows, arithmetic, layout;
    /* hashes: names, types and shapes with parameters; all weights (0: not known); pages */
    uint64_t form, sum, pages;
    uint64_t budget_bytes;  /* of pages, counted as those of the whole model */
    uint64_t instance;      /* another number for each process */
    uint64_t weight_bytes, limit_bytes; /* of a stage: what it has in memory; what it may take */
    char numerics[48], family[32], kv[256], cpu[32], engine[32]; /* ended by 0 */
    uint32_t open;    /* of a stage: it takes the layers that an engine says; it has none if from is
                       * 0 */
    uint32_t loading; /* ... and is at it; another JOIN follows */
    uint64_t read_rate; /* bytes a second that it reads from memory; 0: not known */
    uint32_t keeps;     /* of a stage: it has a store */
};
/* Of the streams that no guest has. */
uint64_t stage_pages_hash(const struct kv_spec *s);

/* ---- which layers where ---- */

struct stage_layer { uint64_t memory_bytes, read_bytes; }; /* read: for a token */
struct stage_place {
    uint64_t memory_bytes;            /* that it has */
    uint64_t fixed_bytes, read_bytes; /* of no layer: what it takes; what it reads for a token */
    double rate;                      /* bytes a second */
    int64_t from, to;                 /* it has these layers and takes no others; 0, 0: any */
};
struct stage_cut {
    const struct stage_layer *layer; /* [n_layers] */
    const struct stage_place *place; /* [n_places], the engine first */
    int64_t n_layers;
    int n_places;
};
/* end [n_places]: where the layers of each end.  INGLE_LIMIT: memory is short wherever it is cut;
 * end is the cut with the least shortage.  INGLE_ARG: there is none. */
MUST_CHECK ingle_status stage_cut_find(const struct stage_cut *c, int64_t *end, struct err *err);

/* Of the slowest process of a cut; below 0: one has too little memory. */
double stage_cut_seconds(const struct stage_cut *c, const int64_t *end);

/* ---- a stage's side ---- */

/* An end that listens before there are layers. */
struct stage_offer;
struct stage_offer_options {
    const char *address, *key_file;
    bool plain;
    const struct stage_hello *hello; /* open, from 0 to all layers */
    const struct report_sink *sink;
    const atomic_bool *stop;
};
MUST_CHECK ingle_status stage_offer_open(struct stage_offer **out,
                                         const struct stage_offer_options *o, struct err *err);
void stage_offer_close(struct stage_offer *s);
const char *stage_offer_name(const struct stage_offer *s);
struct link *stage_offer_link(struct stage_offer *s); /* stays the offer's */
/* What an engine has asked for: *n_ctx 0: it did not say.  It knows that layers are loaded now.
 * False: *stop. */
struct stage_asked { struct link_peer by; int64_t from, to, n_ctx; };
bool stage_offer_wait(struct stage_offer *s, struct stage_asked *out);
/* ... that could not be had. */
void stage_offer_refuse(struct stage_offer *s, const struct link_peer *to, const char *why);

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
    struct link *link; /* borrowed: an end that listens; NULL: it opens its own */
    const struct link_peer *greet; /* who is notified that it is there; or NULL */
    const char *store; /* folder of its pages' files; NULL: none */
    uint64_t store_bytes;
    uint64_t identity; /* the model's, for them */
    const char *model;
    bool once;    /* it ends when its engine says that it ends */
    double share; /* of the bytes of pages: what is in this process */
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
/* Answers until *stop; true: an engine asks for other layers. */
bool stage_serve_run(struct stage_serve *s, struct stage_asked *out);
void stage_serve_count(const struct stage_serve *s, struct stage_counts *out);

/* Layers [from, to) on rows `in` as the device has them; NULL-ed rows in a dry run. */
void stage_forward(const struct family *fam, const void *self, const struct family_forward *f,
                   const struct family_range *range);
/* What the head reads of rows after the last layer, x [n][border], whose logits are wanted; y has
 * room for [n][width of the model].  Returns y, or x where it is read itself. */
struct rows stage_collapse(const struct family *fam, const void *self, struct device *d,
                           struct rows x, struct rows y);
/* The matrices of layers [from, to) are loaded, of the first layers also those of no layer, of the
 * last ones those of stage_collapse(). */
void stage_keep_layers(const struct family *fam, const void *self, struct model *m, int64_t from,
                       int64_t to, int64_t n_layers);
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
    /* Which layers open stages get: end [n + 1], the engine's first.  Called when one is open, with
     * the hellos of all; NULL: none may be. */
    ingle_status (*cut)(void *arg, const struct stage_remote *r, int64_t *end, struct err *err);
    void *cut_arg;
    int64_t piece_rows; /* of a long step that go together; 0: an eighth of it, at least 64 */
};
/* Before the weights are loaded: finds out what stages there are, and whether they are of this
 * model, in order and complete.  INGLE_UNSUP and INGLE_ARG name the stage and what differs. */
MUST_CHECK ingle_status stage_remote_open(struct stage_remote **out,
                                          const struct stage_remote_options *o, struct err *err);
/* Open stages load the layers that they were given; returns when all have them. */
MUST_CHECK ingle_status stage_remote_assign(struct stage_remote *r, int64_t n_ctx,
                                            struct err *err);
/* Before there are steps: the round trip and the rates of rows in both directions. */
struct stage_rates { double trip_us, out_bytes_per_s, in_bytes_per_s; char cipher[32]; };
MUST_CHECK ingle_status stage_remote_try(struct stage_remote *r, int i, struct stage_rates *out,
                                         struct err *err);
void stage_remote_close(struct stage_remote *r);
int stage_remote_n(const struct stage_remote *r);
const struct stage_hello *stage_remote_hello(const struct stage_remote *r, int i);
const char *stage_remote_address(const struct stage_remote *r, int i);
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
/* Steps of which nothing comes back have ended before the stages were at their end.  Whether there
 * are any; what is lost there is lost by all steps (stage_remote_losses()). */
bool stage_remote_is_ahead(struct stage_remote *r);
/* Others wait beside the steps that come: they go in small pieces. */
void stage_remote_set_shared(struct stage_remote *r, bool shared);
/* The same in two parts, between which other steps are computed: the engine's layers, after which
 * its rows go to the stages; and the head, when they are back.  f and its step are the caller's
 * until it lands; all rows go together.  NULL: the device has the error. */
struct stage_trip;
struct stage_trip *stage_trip_send(struct stage_remote *r, const struct family *fam,
                                   const void *self, const struct family_forward *f);
/* Sessions go on after those of its rows of which nothing comes back: if it fails, what stages
 * hold of it is lost, as of a step that nobody waited for. */
void stage_trip_commit(struct stage_trip *t);
/* Its rows are back, or will not be. */
bool stage_trip_is_over(struct stage_trip *t);
/* Waits for news of any step, so many ms at most. */
void stage_trip_wait(struct stage_remote *r, int timeout_ms);
/* t NULL: nothing happens.  It is not valid then. */
void stage_trip_land(struct stage_trip *t, const struct family *fam, const void *self);
/* A stage was lost: what it held is lost, and nothing is computed until stage_remote_renew(). */
bool stage_remote_is_lost(const struct stage_remote *r);
/* So often was anything lost; r NULL: 0. */
uint64_t stage_remote_losses(const struct stage_remote *r);
/* The same stage was late again and again since this was last so, or was over: what is computed has
 * continued. */
bool stage_remote_stays_late(struct stage_remote *r, bool over);
/* Waits until all stages are there; pages are without contents then.  INGLE_IO: they are not back
 * in time. */
MUST_CHECK ingle_status stage_remote_renew(struct stage_remote *r, const atomic_bool *cancel,
                                           struct err *err);

/* All stages have a store: *far keeps their parts of pages there, *form are the bytes of pages that
 * the engine's own files have (it borrows), and `name` says so in their settings.  False: not all
 * have. */
bool stage_remote_far(struct stage_remote *r, struct kv_far *far, struct kv_spec *form, char *name,
                      size_t n_name);

struct stage_remote_counts {
    const char *address;
    int64_t from, to;
    bool ready;
    bool direct; /* its rows go to the next stage */
    uint64_t steps, rows, sent_bytes, received_bytes, losses;
    uint64_t compute_ns, wait_ns; /* by its clock; steps waited for it */
    uint64_t weight_bytes, limit_bytes, budget_bytes, read_rate;
    double trip_us;               /* of the handshake */
    char trouble[240];            /* why it is not there; "" */
};
/* Any thread. */
void stage_remote_count(struct stage_remote *r, int i, struct stage_remote_counts *out);
/* Any thread: all stages are there, as far as is known. */
bool stage_remote_is_ready(struct stage_remote *r, char *why, size_t n_why);

#endif
