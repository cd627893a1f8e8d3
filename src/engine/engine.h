/*
 * engine - the rooms behind include/ingle/ingle.h.
 *
 * model.c    opening a file: tokenizer, chat format, what it says about answers
 * gpu.c      what lies on a card
 * folder.c   the one model that a path stands for
 * relatives.c  files that are no model of a family here
 * vocab.c    GGUF metadata to a tokenizer
 * grammar.c  what an answer's tokens must follow
 * chat.c     conversations to prompts
 * reader.c   tokens of an answer to events
 * draft_about.c  what a drafter was made for
 * draft.c    the drafter beside a model: found, paired, loaded
 * engine.c   weights, threads, KV memory: the plan and the machine
 * expect.c   what speed is to be expected of experts on disk
 * experts.c  experts that are not all in memory
 * worker.c   experts that other processes compute, and such a process
 * pack.c     directories of packed weights
 * session.c  timelines, steps, sampling
 * sparse.c   prompts that read the values that matter
 * media.c    pictures and sounds, and where they stand in prompts
 * select.c   answers that read chosen pages
 * shorten.c  prompts of which parts are left out
 * config.c   the table of options
 * scheduler*.c   many requests on one thread (engine/scheduler.h)
 *
 * Inside, calls use struct err; engine_say() hands it out.
 */
#ifndef INGLE_ENGINE_ENGINE_H
#define INGLE_ENGINE_ENGINE_H

#include "base/err.h"
#include "base/json.h"
#include "base/report.h"
#include "engine/media.h"
#include "ingle/ingle.h"
#include "io/io.h"
#include "session/session.h"
#include "grammar/grammar.h"
#include "text/text.h"
#include <pthread.h>

/* Copies *from into *to (which may be NULL) when st is a failure; returns st. */
ingle_status engine_say(struct ingle_error *to, ingle_status st, const struct err *from);

/* Bytes a second, of reads of one expert (one at a time, several) and of memory; 0: not measured
 * yet. */
struct engine_rates { double one, several, memory; };

struct ingle_model {
    struct report_sink sink;
    char *path;
    struct io_file *file;         /* NULL for a tokenizer.json */
    struct json_object *config;   /* config.json of a checkpoint, or NULL */
    struct tokenizer *tokenizer;  /* NULL: there is none, only ids can be used */
    struct engine_words *words;   /* what its grammars share */
    enum text_chat_family chat;
    struct text_turns turns;      /* of its prompts */
    struct engine_media_ids media;
    const char *chat_name;        /* "gemma4" */
    char *arch, *name;            /* never NULL */
    const char *template_name;
    int32_t *end, *suppress;
    size_t n_end, n_suppress, cap_end, cap_suppress;
    struct ingle_sampling sampling;
    int64_t n_layers, n_embd, n_ctx;
    bool large;
    bool built_in;
    bool revision_0731; /* DeepSeek V4: the effort texts of the later release */
    pthread_mutex_t rates_lock;
    /* Sync: rates_lock.  Measured once, so that plans of one model can be compared */
    struct engine_rates rates;
};

/* What is to lie on a card. */
struct engine_gpu {
    bool asked;         /* somebody wants one, or layers on it */
    int64_t first, end; /* layers; first == end: none */
    bool experts, head; /* with those of the layers; with what comes behind the last one */
    uint64_t weights, pages, rows, limit; /* bytes; limit: that it may take */
    const char *why;    /* why no layer is there, or NULL */
};

struct ingle_engine {
    struct ingle_model *model;
    struct link_events *events; /* NULL: prefixes are told to nobody */
    struct kv_watch watch;
    struct report_sink sink;
    const struct family *family;
    struct io_meta *own_meta; /* of a checkpoint; NULL: the file's */
    struct device *device;
    struct model *weights;
    void *self; /* the family's */
    struct family_info info;
    struct runner *runner;
    struct engine_gpu gpu;
    const char *cpu, *numerics;
    char kv[256]; /* what keys and values are kept as */
    uint64_t weight_bytes, identity, form; /* weight_bytes: in memory */
    /* of the weights: what experts take that are not all in memory; 0: they are */
    uint64_t expert_budget;
    struct expert_store *experts; /* or NULL */
    struct engine_draft *draft; /* the network that drafts, or NULL */
    bool draft_text;            /* n-grams and grammars may draft */
    int64_t draft_most;         /* tokens of a draft; 0: as many as pay */
    int64_t draft_least;        /* tokens that are drafted although they may not pay */
    int64_t draft_tree;         /* nodes of a tree of drafts; 0 or 1: chains alone */
    /* for tests: so many are drafted, whatever they bring; 0: as many as pay */
    int64_t draft_force;
    int draft_force_by;         /* ... and by whom if it offers any; INGLE_DRAFTERS: in turn */
    char draft_why[240];        /* why no network drafts, or "" */
    /* of ingle_session_draw(): what steps and drafts were like; NULL: none yet */
    struct sched_draft *drawn;
    struct text_avoid *no_calls; /* what samplers without calls must not draw; NULL: no tokenizer */
    ingle_tap_fn *tap;
    void *tap_arg;
    atomic_bool cancel; /* Sync: atomic */
    struct expert_remote *workers; /* that compute experts, or NULL */
    /* how prompts are computed where nobody says (struct kv_scope) */
    uint32_t sparse;
    const char *sparse_why;        /* why none can be sparse; NULL: they can */
    int64_t n_sparse_layers;
    bool sparse_told;              /* that somebody asked for it in vain */
    struct kern_select select;      /* how rows of answers choose pages; part 0: they see all */
    const char *select_why;       /* why none can choose; NULL: they can */
    bool select_told;             /* that somebody asked for it in vain */
    bool paging_told;           /* that there is nothing to keep on disk */
    const char *gaps_why;       /* why no part of a prompt can be left out; NULL: it can */
    struct engine_media *media; /* encoders of pictures and sound, or NULL; */
    char media_why[240];        /* ... why there are none */
    struct engine_shortener *shortener;   /* what shortens prompts, or NULL */
    /* the numerics, with how prompts and answers are computed where nobody says */
    char named[80];
};

/* A drafter that fits its target. */
struct engine_draft {
    const struct family_draft *kind;
    struct report_sink sink;     /* silent until it is taken */
    struct ingle_model *file;    /* owned; NULL: it lies in the target's own file */
    const char *path;            /* of its file, or the target's */
    struct io_meta *own_meta;    /* of a checkpoint */
    struct model *weights;
    void *self;
    struct family_draft_info info;
    uint64_t weight_bytes, form, identity;
};

/* Sets e->draft, draft_text, draft_most and draft_why as the options say; of several drafters the
 * best that suits (e: with e->draft set to it) agrees to, which may be asked again and again.
 * Behind the binding of the target. */
typedef bool engine_suits_fn(const struct ingle_engine *e, const struct ingle_engine_options *o);
MUST_CHECK ingle_status engine_draft_choose(struct ingle_engine *e,
                                            const struct ingle_engine_options *o,
                                            engine_suits_fn *suits, struct err *err);
void engine_draft_free(struct engine_draft *d);
/* What drafts for a request that asks for this method (NULL: "auto").  INGLE_ARG: there is no such
 * method, or it is not at hand; the text says what is. */
MUST_CHECK ingle_status engine_draft_method(const struct ingle_engine *e, const char *method,
                                            bool *network, bool *text, struct err *err);
/* scheduler_draft.c: memory of what drafts from text, at most. */
MUST_CHECK bool engine_drafts_bytes(int64_t n_sessions, int64_t n_ctx, uint64_t *out);
/* Branches that there are for trees of so many nodes. */
int64_t engine_branches_of(int64_t n_nodes);
/* Hash of hyper-parameters of an architecture ("ARCH."; "": all but the tokenizer's) on top of
 * h. */
uint64_t engine_meta_hash(const struct io_meta *meta, const char *arch, uint64_t h);

enum { ENGINE_MAX_TOP = 4096 }; /* probabilities that are reported with a token */

struct engine_drawing;
struct ingle_session {
    struct ingle_engine *e;
    struct session *s;
    struct engine_drawing *drawing; /* of ingle_session_draw(); NULL: none yet */
    struct ingle_sparse sparse;     /* since the last sync */
    bool sparse_told;
    struct ingle_select select;     /* since the last sync */
};
/* select.c: behind steps that moved it; at the end of an answer, says what it left out, if
 * anything, and begins anew. */
void engine_select_take(struct ingle_session *s);
void engine_select_tell(struct ingle_session *s);
/* Behind steps that moved it. */
void engine_sparse_tell(struct ingle_session *s);
void engine_drawing_free(struct engine_drawing *d);
/* The session has other tokens from now on. */
void engine_drawing_turn(const struct ingle_session *s);

/* Where the first tokens of n came from, and why there are not more of them. */
void engine_explain_reuse(const struct session_reuse *r, int64_t n, struct ingle_reuse *out);

/* The probabilities of the last draw, which was of `token`: out [n_top].  Returns how many are
 * filled. */
int engine_sampler_last(const struct ingle_sampler *s, int32_t token, float *logprob,
                        struct ingle_top *out, int n_top);

/* Users share no cached prefix, in memory or on disk; NULL: 0. */
uint64_t engine_salt_of(const char *user);

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

/* sparse.c: "off", "on", "on:eps=1/8,from=4096"; NULL: off.  what: whose value it is, in errors. */
MUST_CHECK ingle_status engine_sparse_parse(const char *what, const char *text, uint32_t *sparse,
                                            struct err *err);
/* Behind the binding of weights: e->sparse and what belongs to it. */
MUST_CHECK ingle_status engine_sparse_open(struct ingle_engine *e,
                                           const struct ingle_engine_options *o,
                                           const struct kv_types *kv, struct err *err);
/* Says once that it was asked for in vain. */
void engine_sparse_refuse(struct ingle_engine *e);

/* gpu.c: after the device is made; "auto" where nobody says. */
MUST_CHECK ingle_status engine_gpu_check(const char *gpu, const char *layers, uint64_t bytes,
                                         struct err *err);
MUST_CHECK ingle_status engine_gpu_open(struct ingle_engine *e,
                                        const struct ingle_engine_options *o, struct err *err);
/* The plan is made but for it: kv_bytes of pages, rows: what steps have for themselves. */
MUST_CHECK ingle_status engine_gpu_plan(struct ingle_engine *e,
                                        const struct ingle_engine_options *o,
                                        const struct runner_options *r, uint64_t kv_bytes,
                                        uint64_t rows, struct ingle_plan *out, struct err *err);
/* Before the weights are loaded. */
void engine_gpu_place(struct ingle_engine *e);
void engine_gpu_info(const struct ingle_engine *e, struct ingle_engine_info *out);

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

/* paging.c: keys and values beyond memory.  A family that has nothing to keep on disk has no disk,
 * which is said once. */
MUST_CHECK ingle_status engine_paging_open(struct ingle_engine *e, struct runner_options *r,
                                           struct err *err);
void engine_paging_plan(const struct ingle_engine *e, const struct runner_options *r,
                        const struct runner_plan *p, int64_t n_sessions, struct ingle_plan *out);
void engine_paging_tell(const struct ingle_engine *e, const struct runner_options *r,
                        const struct ingle_plan *p);
void engine_paging_count(const struct ingle_engine *e, struct ingle_paging *out);
void engine_sparse_text(uint32_t sparse, char *out, size_t n);
void engine_sparse_add(struct ingle_sparse *sum, const struct kern_sparse_seen *seen);
void engine_sparse_join(struct ingle_sparse *sum, const struct ingle_sparse *more);
/* Says what it left out of a prompt, if anything. */
void engine_sparse_report(const struct ingle_engine *e, uint32_t sparse,
                          const struct ingle_sparse *s);

/* expect.c: measures, and fills in what is to be expected of experts on disk; nothing where they
 * are in memory. */
void engine_expect(const struct ingle_engine *e, struct ingle_plan *p);
/* experts.c: between steps; gives memory back where it is short. */
void engine_experts_tend(struct ingle_engine *e);
/* experts.c: what was used since the engine was opened; zeros where all are in memory. */
struct ingle_expert_use engine_experts_used(const struct ingle_engine *e);
/* What came between `from` and `to`, added. */
void engine_experts_add(struct ingle_expert_use *sum, const struct ingle_expert_use *from,
                        const struct ingle_expert_use *to);
/* experts.c: bytes of the weights without experts; of all of them. */
uint64_t engine_dense_bytes(const struct ingle_engine *e);
/* A budget that was said: INGLE_LIMIT below the least, INGLE_ARG of other options. */
MUST_CHECK ingle_status engine_experts_check(const struct ingle_engine *e,
                                             const struct ingle_engine_options *o, struct err *err);
/* Behind loading, if there is a budget. */
MUST_CHECK ingle_status engine_experts_open(struct ingle_engine *e,
                                            const struct ingle_engine_options *o, struct err *err);
/* worker.c: behind that, if there are addresses; between steps. */
MUST_CHECK ingle_status engine_workers_open(struct ingle_engine *e,
                                            const struct ingle_engine_options *o, struct err *err);
void engine_workers_tend(struct ingle_engine *e);
/* Who this engine is, for workers: behind loading. */
struct link_hello;
MUST_CHECK ingle_status engine_worker_describe(const struct ingle_engine *e, struct link_hello *out,
                                               struct err *err);
/* engine.c: an engine whose weights are bound and not loaded; *out is to be closed in any case.
 * The memory that may be used, and what of it is left to others. */
MUST_CHECK ingle_status engine_prepare(struct ingle_engine **out, struct ingle_model *m,
                                       const struct ingle_engine_options *o, struct err *err);
MUST_CHECK ingle_status engine_memory_limit(const struct ingle_engine *e,
                                            const struct ingle_engine_options *o, uint64_t *out,
                                            struct err *err);
uint64_t engine_margin_of(const struct ingle_engine_options *o, uint64_t limit);

/* The built-in model (engine/nano.S). */
extern const unsigned char engine_nano[];
extern const unsigned char engine_nano_end[];
/* Its encoders, an mmproj file (scripts/nano_encoders.py). */
extern const unsigned char engine_nano_encoders[];
extern const unsigned char engine_nano_encoders_end[];

size_t engine_n_tokens(const struct ingle_model *m); /* 0: no tokenizer */
/* Where the turns of a prompt meet. */
void engine_borders(const struct ingle_model *m, const int32_t *ids, int64_t n,
                    struct session_borders *out);
/* INGLE_UNSUP when the model has no tokenizer. */
MUST_CHECK ingle_status engine_need_words(const struct ingle_model *m, struct err *err);
/* text_encode_within(); bounds may be NULL. */
MUST_CHECK ingle_status engine_encode(const struct tokenizer *t, const char *text, size_t n,
                                      bool add_special, const struct text_range *specials,
                                      size_t n_specials, struct ingle_bounds *bounds,
                                      struct text_ids *out, struct err *err);
/* The file or checkpoint folder that path stands for: itself, the one model of a folder, or the one
 * snapshot of a hub's cache.  *out is ended with mem_free().  Errors name what is there. */
MUST_CHECK ingle_status engine_find_file(const char *path, const struct report_sink *sink,
                                         char **out, struct err *err);
/* Files and checkpoint folders that may be a drafter: in a folder, or beside a model by their
 * names.  fn's INGLE_NOMEM ends it, other failures only where a folder was named. */
typedef ingle_status engine_path_fn(void *arg, const char *path, struct err *err);
MUST_CHECK ingle_status engine_each_drafter(const char *dir, engine_path_fn *fn, void *arg,
                                            struct err *err);
MUST_CHECK ingle_status engine_each_beside(const char *model, engine_path_fn *fn, void *arg,
                                           struct err *err);
/* What a GGUF file is that is no model: "a drafter, ...: give ...", or NULL. */
const char *engine_other_kind(const struct io_file *f);
/* INGLE_UNSUP: what its file is, where that is no model, or none of a known family. */
MUST_CHECK ingle_status engine_check_kind(const struct ingle_model *m, bool known, struct err *err);
MUST_CHECK ingle_status engine_vocab_gguf(struct tokenizer **out, const struct io_meta *meta,
                                          const char *source, struct err *err);
/* *out is ended with mem_free(). */
MUST_CHECK ingle_status engine_json_text(struct json_object *o, char **out, size_t *n,
                                         struct err *err);
/* Its tokens follow a grammar: an end of generation among them is the end of the text. */
bool engine_sampler_follows(const struct ingle_sampler *s);
/* ingle_sample(), or INGLE_CANCEL where the pause says so while the grammar is asked: then nothing
 * was drawn. Its logits can be kept until it is tried again; returns the rule whose mask takes so
 * long. */
struct grammar_pause;
struct engine_rule;
MUST_CHECK ingle_status engine_sample_within(struct ingle_sampler *s, const float *logits,
                                             const struct ingle_session *session,
                                             const struct grammar_pause *pause,
                                             struct ingle_token *out, struct ingle_error *error);
/* The same behind the first n tokens of the session, which are the history. */
MUST_CHECK ingle_status engine_sample_behind(struct ingle_sampler *s, const float *logits,
                                             const struct ingle_session *session, int64_t n,
                                             const struct grammar_pause *pause,
                                             struct ingle_token *out, struct ingle_error *error);
/* What would be drawn behind history [n] if these logits times `sharp` were the model's; what an
 * answer's grammar allows is not asked.  second: what session_sample_second() says then; may be
 * NULL. */
MUST_CHECK ingle_status engine_sample_draft(struct ingle_sampler *s, const float *logits,
                                            const int32_t *history, int64_t n, float sharp,
                                            int32_t *token, int32_t *second, struct err *err);
/* Whether its draws need no random numbers. */
bool engine_sampler_is_greedy(const struct ingle_sampler *s);
/* So many of n tokens may come one after the other, for all that the answer's grammar says. */
int64_t engine_sampler_fit(const struct ingle_sampler *s, const int32_t *token, int64_t n);
/* engine_rule_forced() of its grammar, within some thousand steps; 0: there is none. */
int64_t engine_sampler_forced(const struct ingle_sampler *s, int64_t width, int32_t *token,
                              float *confidence, struct text_ids *scratch);
struct engine_rule *engine_sampler_keep(struct ingle_sampler *s, const float *logits);
struct engine_rule *engine_sampler_rule(const struct ingle_sampler *s); /* NULL: none */
const float *engine_sampler_kept(const struct ingle_sampler *s);
/* "gemma4", "deepseek4"; false: no such name. */
bool engine_chat_by_name(const char *name, enum text_chat_family *out);

/* ---- events.c ---- */

/* After the runner: --kv-events. */
MUST_CHECK ingle_status engine_events_open(struct ingle_engine *e,
                                           const struct ingle_engine_options *o, struct err *err);
void engine_events_close(struct ingle_engine *e); /* before the runner */

#endif
