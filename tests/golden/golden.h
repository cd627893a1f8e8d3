/*
 * golden - a tiny model opened through the rooms (no engine), and results to hold it
 * against: tensors of a golden.safetensors.
 */
#ifndef INGLE_TESTS_GOLDEN_H
#define INGLE_TESTS_GOLDEN_H

#include "unit/unit.h"

#include "base/err.h"
#include "session/session.h"
#include <stdatomic.h>

struct golden_options {
    enum device_numerics numerics;
    enum kern_kv_codec codec;
    const char *kv; /* instead of codec, as --kv or --kv-layers; NULL: codec */
    int n_threads;     /* 0: 2 */
    uint32_t cpu;      /* 0: all */
    int64_t max_rows;  /* 0: 512 */
    int64_t media_rows; /* 0: 512, -1: none */
    int64_t n_ctx;     /* 0: 512 */
    int64_t restore_every;
    uint64_t tree_bytes;
    const char *store;      /* directory, or NULL */
    int64_t store_min;
    const char *disk;       /* directory for pages beyond memory, or NULL; then: */
    uint64_t kv_bytes, disk_bytes; /* memory for pages, and the file's largest size (0: 256 MiB) */
    struct kern_select select;  /* rows of answers choose pages; part 0: they see all */
    bool draft;             /* bind a network that drafts, too; the runner has it ... */
    const char *draft_file; /* ... from a file of its own; NULL: the target's */
    const char *draft_refused; /* it is not accepted: part of the error */
    struct family_draft_options draft_options;
};

struct golden_model {
    struct device *device;
    struct io_file *file;
    struct model *model;
    struct io_meta *meta; /* of a checkpoint's config.json; NULL for GGUF */
    struct json_object *config; /* the same */
    const struct family *family;
    void *self;
    struct family_info info;
    struct runner *runner;
    struct report_sink sink;
    const struct family_draft *draft_kind;
    void *draft; /* its self, or NULL */
    struct family_draft_info draft_info;
    struct io_file *draft_file;
    struct model *draft_model;
    struct io_meta *draft_meta; /* of a checkpoint, as its config */
    struct json_object *draft_config;
    struct golden_stage *stage; /* [n_stages] */
    int n_stages;
    struct stage_remote *stages;
};

/* With emulated cards (tests/gpu) all is ten to a hundred times slower: as UNIT_ASAN in unit.h. */
#ifdef GOLDEN_ON_CARD
enum { GOLDEN_CARD = 1 };
#else
enum { GOLDEN_CARD = 0 };
#endif

/* Calls of the library in a test: a failure is the test's, with the library's text.  The
 * enclosing function has a `struct err e`. */
#define GOLDEN_OK(call)            \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

/* One kind of the way in which a session's rows are computed; the others stay. */
static inline void golden_set_sparse(struct session *s, uint32_t sparse)
{
    struct kv_way way = session_way(s);
    way.sparse = sparse;
    session_set_way(s, &way);
}
static inline void golden_set_select(struct session *s, const struct kern_select *select)
{
    struct kv_way way = session_way(s);
    way.select = *select;
    session_set_way(s, &way);
}
static inline void golden_set_gaps(struct session *s, struct kv_gaps *gaps)
{
    struct kv_way way = session_way(s);
    way.gaps = gaps;
    session_set_way(s, &way);
}

/* Called with each device that golden_open() makes, before anything else; NULL: nothing is. */
extern void (*golden_device_made)(struct device *d);
/* Called with each model whose matrices are bound, before they are loaded; NULL: nothing is. */
extern void (*golden_bound)(struct model *m);
/* Layers whose pages lie on the device's card, where they can. */
extern int64_t golden_own_first, golden_own_end;
/* The same of the drafter's streams. */
extern int64_t golden_draft_own_first, golden_draft_own_end;
/* So many stages have the layers behind the first ones, in threads of their own; where: of the
 * cuts, any number.  With GOLDEN_STAGES in the environment all models that can have stages do, at
 * the cuts GOLDEN_CUTS, with pieces of GOLDEN_PIECE rows. */
enum { GOLDEN_STAGES = 3 };
/* With GOLDEN_NODES in the environment all devices have so many memory nodes. */
enum { GOLDEN_THREADS = 16 };
extern int golden_n_stages;
extern uint64_t golden_cuts;
extern int64_t golden_piece_rows; /* stage_remote_options */
extern const char *golden_stages_store; /* NULL: none; this and -1, -2, -4 behind it */
extern int golden_stages_without;       /* the sum of those that have none */
extern atomic_int golden_stall_ms; /* of each turn of a stage, ... */
extern atomic_int golden_stalls;   /* ... which did so so often */
extern uint64_t golden_late_ns;    /* stage_remote_options */
/* For files of this program; it goes at the end, those of killed ones at the first call. */
const char *golden_folder(void);
/* It ends, and another one takes its place. */
void golden_lose_stage(struct golden_model *g, int i);
void golden_same_files(const char *a, const char *b);
void golden_open(struct golden_model *g, const char *path, const struct golden_options *o);
/* All sessions are gone: every page must be back. */
void golden_close(struct golden_model *g);

/* A tensor of 4-byte elements (F32, I32), freed by mem_free(). */
float *golden_floats(const char *path, const char *name, int64_t *n);
int32_t *golden_ints(const char *path, const char *name, int64_t *n);

struct golden_error { double max_abs, rel_rms; };
struct golden_error golden_compare(const float *got, const float *want, int64_t n);
int64_t golden_best(const float *x, int64_t n);

/* Computes n more tokens in chunks of at most `chunk` rows (0: as many as fit), keeping
 * every row of logits f32 [n][n_vocab] (freed by mem_free()) and, if hidden is not NULL,
 * the taps: hidden [n_layers + 2][n][n_embd] (embedding, layers, output norm). */
float *golden_logits(struct golden_model *g, struct session *s, const int32_t *tokens, int64_t n,
                     int64_t chunk, float *hidden);

#endif
