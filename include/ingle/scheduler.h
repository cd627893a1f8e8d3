/*
 * scheduler - many requests at once; ingle.h includes it.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INGLE_SCHEDULER_H
#define INGLE_SCHEDULER_H

#include "ingle/ingle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- many requests at once ---- */

/*
 * A scheduler is the thread that runs an engine for many requests: each step takes the next token
 * of every running answer and a bounded share of the waiting prompts.  While it lives the engine
 * and its sessions belong to it, and ingle_engine_cancel() does not reach it.  Requests are
 * submitted and cancelled from any thread; the functions of a request are called on the scheduler's
 * thread, must not block, and may call ingle_request_constrain(), ingle_request_constrain_behind(),
 * ingle_request_cancel() and ingle_request_hold(), nothing else of the scheduler.
 */
struct ingle_scheduler;
struct ingle_request;

struct ingle_scheduler_options {
    int64_t max_running;        /* answers that are computed at once; 0: 16 */
    int64_t max_waiting;        /* requests in the queue; 0: 64 */
    int64_t max_waiting_tokens; /* of their prompts together; 0: 4 contexts */
    double step_seconds;        /* aim for a step while answers run; 0: 1.8 decode steps */
    /* of the first step of a prompt, after which it is known how long steps take; 0: no limit */
    int64_t first_rows;
};
INGLE_API ingle_status ingle_scheduler_open(struct ingle_scheduler **out, struct ingle_engine *e,
                                            const struct ingle_scheduler_options *o,
                                            struct ingle_error *error);
/* Ends the running and waiting requests with INGLE_FINISH_CANCEL, then the thread. */
INGLE_API void ingle_scheduler_close(struct ingle_scheduler *s);

enum ingle_finish {
    INGLE_FINISH_END,      /* an end-of-generation token was drawn */
    INGLE_FINISH_LENGTH,   /* max_tokens, or the context is full */
    INGLE_FINISH_ASKED,    /* the token function asked for it */
    INGLE_FINISH_CANCEL,
    INGLE_FINISH_DEADLINE,
    INGLE_FINISH_ERROR,    /* error says why */
    /* the queue was full, and a user with fewer requests took its place: try later */
    INGLE_FINISH_BUSY
};

struct ingle_top {
    int32_t id;
    float logprob;
};
/* A drawn token (the one that ends the answer, too), or (prompt logprobs) a token of the
 * prompt: then index is -1. */
struct ingle_drawn {
    int32_t id;
    float logprob; /* under the unchanged logits, or drawn_from; 0 unless asked */
    const struct ingle_top *top; /* [n_top], most probable first */
    int n_top;
    int64_t position; /* in the sequence */
};
/* Of experts that are not all in memory, in the steps that a request had part in; other requests
 * may have shared them. */
struct ingle_expert_use {
    uint64_t hits, misses, read_bytes, stall_ns;
};

/* Keys and values that were read from disk, likewise. */
struct ingle_page_use { uint64_t read_bytes; double waited_seconds; };

struct ingle_usage {
    struct ingle_reuse reuse;
    struct ingle_page_use pages;     /* zeros: all were in memory */
    struct ingle_expert_use experts; /* zeros: all are in memory */
    struct ingle_way_use way;
    int64_t n_prompt, n_generated;           /* n_prompt: without what is left out of it, */
    int64_t n_skipped;                       /* ... so many tokens */
    /* drafts that were verified; tokens of them; those that were right */
    int64_t n_drafts, n_drafted, n_accepted;
    /* by them, as measured beside plain steps; below 0: lost */
    double draft_saved_seconds;
    /* why most steps were without drafts; "": they had some */
    char draft_why[96];
    double queue_seconds, prefill_seconds, decode_seconds;
    /* of n_prompt: of pictures and of sounds, with their markers */
    int64_t image_tokens, audio_tokens;
    /* pictures and sounds of the prompt; of them those that were encoded for it, in so many
     * seconds: the others' vectors, or keys and values, were there */
    int64_t n_media, n_encoded;
    double encode_seconds; /* not part of prefill_seconds */
};

/* For measurements of a request whose tokens are known: what would be drafted is replaced, by the
 * right token with this likelihood at each place, else by a wrong one.  The drafter runs all the
 * same, and the text is the same. */
struct ingle_draft_trial {
    const int32_t *answer; /* [n]: of each answer; borrowed until done() */
    int64_t n;
    double right;          /* 0 to 1 */
    uint64_t seed;         /* of the places where it is */
};

struct ingle_request_options {
    const int32_t *prompt; /* copied */
    int64_t n_prompt;
    int64_t max_tokens;    /* -1: as many as the context holds; 0: only the prompt is computed */
    int n;                 /* answers to the one prompt; 0: 1.  Answer i has seed + i */
    /* end-of-generation tokens are ordinary ones; with a grammar one is drawn only where the
     * grammar allows nothing else, and ends the answer */
    bool ignore_end;
    struct ingle_sampling sampling;
    int n_top;             /* most probable tokens reported with each, 0 to 4096 */
    bool drawn_from;       /* ... of those left behind all samplers and the grammar, with the
                            * probabilities by which one of them was drawn */
    bool prompt_logprobs;  /* token() is called for the prompt's tokens, too */
    const struct ingle_grammar *grammar; /* from the first token on; NULL: none */
    /* tokens that are drafted for a step, at most; 0: as many as pay, -1: none */
    int64_t draft_max;
    /* so many at least where something can be drafted; 0: as ingle_engine_options.draft_min says */
    int64_t draft_min;
    const struct ingle_draft_trial *draft_trial; /* NULL: drafts are the drafter's */
    bool anew;             /* all of the prompt is computed, whatever is known of it */
    int priority;          /* -10 to 10: higher first */
    /* whose share it is, and whose cached prefixes; NULL: everybody's.  Copied */
    const char *user;
    double deadline_seconds; /* from now; 0: none */
    /* Any may be NULL.  end() is called once for each answer, done() once and last: after
     * it the request's memory is gone. */
    void (*begin)(void *arg, const struct ingle_reuse *reuse); /* out of the queue */
    void (*progress)(void *arg, int64_t n_done, int64_t n_prompt);
    int (*token)(void *arg, int index, const struct ingle_drawn *t); /* nonzero: no more of it */
    void (*end)(void *arg, int index, enum ingle_finish why, const struct ingle_error *error);
    void (*done)(void *arg, const struct ingle_usage *usage);
    void *arg;
    /* tokens of a tree of drafts, at most; 0: as ingle_engine_options.draft_tree says, which cannot
     * be exceeded; 1: chains alone */
    int64_t draft_tree;
    /* what drafts of what the engine has: as ingle_engine_options.draft_method, whose names it has.
     * Borrowed */
    const char *draft_method;
    /* as in ingle_session_set_way(); NULL: as the engine's options say.  Not kept */
    const char *way[INGLE_WAYS];
    /* [n_prompt]: as in ingle_session_set_positions(); NULL: nothing is left out.  Not kept */
    const int32_t *position;
    /* [n_spans]: as in ingle_session_sync_media().  Copied, with references */
    const struct ingle_span *span;
    size_t n_spans;
    /* NULL, or called while media are encoded, before progress(): so many of those that it needs
     * are done, the next one by a part of 0 to 1 */
    void (*encoding)(void *arg, int64_t n_done, int64_t n_media, double part);
};
/* INGLE_ARG names the field; INGLE_LIMIT: the prompt is longer than the context, or the
 * queue is full (the text says which; *retry_seconds, if not NULL, is -1 for the former and
 * else when to try again).  *out is valid until done() returns. */
INGLE_API ingle_status ingle_scheduler_submit(struct ingle_scheduler *s,
                                              const struct ingle_request_options *o,
                                              struct ingle_request **out, double *retry_seconds,
                                              struct ingle_error *error);
/* Its number in ingle_slot.request.  Until done() returns. */
INGLE_API int64_t ingle_request_number(const struct ingle_request *r);
/* The request ends in the middle of the running step, after one of its operations, and the step
 * with it if it is this request's alone or mostly its prompt.  The others lose nothing; what was
 * computed is remembered. */
INGLE_API void ingle_request_cancel(struct ingle_scheduler *s, struct ingle_request *r);
/* While it is held a request takes no part in steps, from the next one on: it keeps what it has,
 * and the others go on.  For one whose reader cannot keep up.  Cancelling it and its deadline end
 * it all the same.  Nobody computes while all are held.  The tokens are the same however often it
 * was. */
INGLE_API void ingle_request_hold(struct ingle_scheduler *s, struct ingle_request *r, bool held);
/* Answer `index` follows g from its next token on (NULL: free).  Only from token(). */
INGLE_API ingle_status ingle_request_constrain(struct ingle_request *r, int index,
                                               const struct ingle_grammar *g,
                                               struct ingle_error *error);
/* As ingle_sampler_constrain_behind(). */
INGLE_API ingle_status ingle_request_constrain_behind(struct ingle_request *r, int index,
                                                      const struct ingle_grammar *g,
                                                      const char *text, size_t n,
                                                      struct ingle_error *error);
/* Runs fn(e, arg) on the scheduler's thread between two steps and waits for it. */
INGLE_API void ingle_scheduler_call(struct ingle_scheduler *s,
                                    void (*fn)(struct ingle_engine *e, void *arg), void *arg);
/* ingle_session_load() for a session of the scheduler's engine, from any other thread: the file is
 * read there while answers go on.  Nobody else uses the session meanwhile. */
INGLE_API ingle_status ingle_scheduler_load(struct ingle_scheduler *s,
                                            struct ingle_session *session, const char *path,
                                            struct ingle_error *error);
/* ingle_session_sync() in the same way: what is on disk is read while answers go on. */
INGLE_API ingle_status ingle_scheduler_sync(struct ingle_scheduler *s,
                                            struct ingle_session *session, const int32_t *tokens,
                                            int64_t n, struct ingle_reuse *reuse,
                                            struct ingle_error *error);
/* The same of ingle_session_sync_media(). */
INGLE_API ingle_status ingle_scheduler_sync_media(struct ingle_scheduler *s,
                                                  struct ingle_session *session,
                                                  const int32_t *tokens, int64_t n,
                                                  const struct ingle_span *span, size_t n_spans,
                                                  struct ingle_reuse *reuse,
                                                  struct ingle_error *error);

struct ingle_slot {
    int64_t request; /* number of the request, from 1; 0: the slot is free */
    int64_t n_prompt, n_prefilled, n_generated, max_tokens;
    bool held; /* ingle_request_hold() */
    bool encoding; /* a medium of its prompt is being encoded */
    bool restoring; /* what is on disk of the prompt is being read; it takes no part in steps */
};
enum { INGLE_DRAFT_PLACES = 16 };
enum ingle_drafter {
    INGLE_DRAFTER_NETWORK,
    INGLE_DRAFTER_TEXT,
    INGLE_DRAFTER_GRAMMAR,
    INGLE_DRAFTERS
};
struct ingle_scheduler_status {
    int64_t n_running, n_waiting, n_waiting_tokens, max_running, max_waiting;
    int64_t n_steps, n_step_rows;     /* since the start */
    int64_t prompt_tokens, cached_tokens, generated_tokens, drafted_tokens, accepted_tokens;
    int64_t queried_tokens;           /* of prompts: computed and cached ones */
    int64_t n_drafts;                            /* that were verified */
    /* tokens by their place in a draft; later places count with the last one */
    int64_t drafted_at[INGLE_DRAFT_PLACES], accepted_at[INGLE_DRAFT_PLACES];
    /* tokens by who drafted them */
    int64_t drafted_by[INGLE_DRAFTERS], accepted_by[INGLE_DRAFTERS];
    /* by drafting, as measured beside plain steps; below 0: lost */
    double draft_saved_seconds;
    /* rounds of a network; steps of answers alone with drafts, and without */
    int64_t n_rounds, n_verified, n_plain;
    double round_seconds, verified_seconds, plain_seconds; /* what those took */
    char draft_why[96];                          /* why no answer is drafted for now; "" */
    double prompt_seconds, generated_seconds;
    int64_t n_done, n_cancelled, n_failed, n_refused;
    int64_t n_parked; /* times that a request gave its KV pages to more urgent ones for a while */
    double last_step_seconds, since_step_seconds; /* the second grows while a step runs */
    uint64_t kv_used_bytes, kv_budget_bytes, cache_bytes, store_bytes;
    uint64_t kv_busy_bytes; /* of kv_used_bytes: what eviction cannot give back */
    uint64_t grammar_bytes; /* tables of grammars that are kept for the next answers */
    int64_t cache_hits, store_hits, store_corrupt;
    int64_t store_written, store_skipped; /* files; what there was no room for and is tried again */
    int64_t store_files, store_evicted, store_failed; /* failed: writes */
    uint64_t store_budget_bytes, store_written_bytes, store_restored_bytes;
    bool store_saving;            /* false: there is none, or writes fail; */
    double store_retry_seconds;   /* ... the next is tried when so many have passed, */
    char store_error[160];        /* ... and why the last one failed; else "" */
    struct ingle_way_use way;     /* of all prompts and answers */
    struct ingle_paging paging;
    struct ingle_media_counts media;
    bool gpu_lost; /* the card has failed, and the processor goes on */
    int64_t resting_threads; /* they have no processor, or hardly: others compute for them */
};
/* A snapshot from any thread; fills up to n_slots slots and returns how many there are. */
INGLE_API int64_t ingle_scheduler_status(struct ingle_scheduler *s,
                                         struct ingle_scheduler_status *out,
                                         struct ingle_slot *slots, int64_t n_slots);

/* What was told of cached prefixes.  False: nothing is (kv_events). */
struct ingle_events {
    const char *address, *replay, *topic; /* valid until the engine is closed; replay: or NULL */
    uint64_t batches;         /* numbered from 0 on */
    uint64_t stored, removed; /* blocks of 16 tokens */
    uint64_t lost;            /* batches that were given up before they were sent */
    uint64_t replays;         /* that were asked for */
    uint64_t memory_blocks, disk_blocks; /* there now */
};
/* Any thread. */
INGLE_API bool ingle_engine_events(const struct ingle_engine *e, struct ingle_events *out);

#ifdef __cplusplus
}
#endif

#endif
