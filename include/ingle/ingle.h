/*
 * ingle - a local inference engine for large language models.
 * The whole interface, with scheduler.h and tables.h, which it includes.  Comments are the manual.
 *
 * The ideas a caller needs:
 *   a model    is an open file: its metadata, tokenizer, chat format (cheap);
 *   an engine  is a model's weights in memory, the compute threads, the KV memory and the
 *              prefix cache;
 *   a session  is one timeline of tokens.  Callers hand over full token prefixes;
 *              ingle_session_sync() reuses whatever the session or the cache still has;
 *   a step     runs the waiting tokens of any number of sessions as one batch.
 *
 * One arithmetic: the logits of a token are a function of the tokens before it alone,
 * whatever else is in the batch, however a prompt is cut, with any number of threads.
 *
 * There are no globals: any number of models and engines may live in one process.  A
 * model is read-only once open and may be used by any thread.  An engine and its sessions,
 * samplers and readers belong to one thread at a time; ingle_engine_cancel() alone may be
 * called from anywhere, also from a signal handler.  The calling thread computes with the
 * engine's own, on up to 2 MiB of its stack.
 *
 * Calls that can fail return an ingle_status and fill *error (which may be NULL); results
 * are written only on success, *error only on failure.  Texts of errors are lower case and
 * name file, field, value and limit.  Pointers that a call gives out are borrowed and live
 * as long as the thing they came from, unless the comment says "ended with ...".  Enders
 * take NULL.  Token ids are int32_t, positions and counts int64_t, sizes of text size_t in
 * bytes, text is UTF-8 and need not end in a 0 where a size is given.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INGLE_INGLE_H
#define INGLE_INGLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ingle/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INGLE_API __attribute__((visibility("default")))

/* What may draft, of a server or of one request: all there is, one kind of network, a smaller
 * model, the text itself, nothing. */
#define INGLE_DRAFT_METHODS "auto", "dflash", "mtp", "dspark", "model", "ngram", "none"

/* Where the library's reports and progress go.  Any member may be NULL.  The report
 * function may be called from any thread of the engine while a call of it runs; progress
 * is called from the caller's thread. */
struct ingle_callbacks {
    ingle_report_fn *report;
    ingle_progress_fn *progress;
    void *arg;
};

struct ingle_error {
    ingle_status status;
    char text[480];
};

INGLE_API const char *ingle_version(void); /* "0.2.0" */
/* The status in words: "out of memory". */
INGLE_API const char *ingle_status_text(ingle_status s);
/* Ends what a call gave out "ended with ingle_free()". */
INGLE_API void ingle_free(void *p);

/* ---- models ---- */

struct ingle_model;

/* path: a GGUF file (the first shard of a split one), a .safetensors file or a directory
 * with one, a GGUF without tensors or a tokenizer.json (then only the calls of this and the
 * next two sections work), or NULL for the model that is part of this library.
 * callbacks may be NULL; they are borrowed until ingle_model_close(). */
INGLE_API ingle_status ingle_model_open(struct ingle_model **out, const char *path,
                                        const struct ingle_callbacks *callbacks,
                                        struct ingle_error *error);
/* The built-in model: the bytes of a GGUF file. */
INGLE_API const void *ingle_nano(size_t *n_bytes);
/* Its engines must be closed. */
INGLE_API void ingle_model_close(struct ingle_model *m);

struct ingle_model_info {
    const char *path;     /* as given; "nano-gemma4 (built in)" for the library's own */
    const char *name;     /* general.name, or "" */
    const char *arch;     /* "gemma4" */
    const char *chat;     /* the chat format: "gemma4", "deepseek4", or "" if unknown */
    const char *template_name; /* which known template the file holds; "" for none, "unknown" */
    int64_t n_vocab, n_layers, n_embd, n_ctx; /* 0: the file does not say */
    int64_t n_tensors;
    uint64_t n_params; /* numbers in all tensors */
    uint64_t file_bytes;
    int32_t bos; /* -1: none */
    bool add_bos;
    bool large;       /* Gemma 4: the chat rules of the larger sizes hold */
    bool has_weights; /* an engine can be opened on it */
};
INGLE_API void ingle_model_info(const struct ingle_model *m, struct ingle_model_info *out);

/* For what models this one can draft, by its headers, in words ("dflash for Gemma 4, width 5376,
 * ..."); false: it is no drafter (any model drafts for a larger one of its vocabulary). */
INGLE_API bool ingle_model_drafts(const struct ingle_model *m, char *text, size_t n);

/* The ids that end an answer: those of the file and those of its family, ascending. */
INGLE_API const int32_t *ingle_model_ends(const struct ingle_model *m, size_t *n);
INGLE_API bool ingle_model_is_end(const struct ingle_model *m, int32_t token);

/* ---- tokens ---- */

enum {
    INGLE_ADD_SPECIAL = 1,   /* put BOS first, if the vocabulary wants it */
    INGLE_PARSE_SPECIAL = 2, /* special tokens spelt in the text count as those tokens */
};

/* *ids [*n_ids] is ended with ingle_free().  Ill-formed UTF-8: each maximal part counts as
 * one U+FFFD. */
INGLE_API ingle_status ingle_tokenize(const struct ingle_model *m, const char *text, size_t n,
                                      int flags, int32_t **ids, size_t *n_ids,
                                      struct ingle_error *error);
/* What bounds the work of making tokens, which may take seconds for megabytes of text. */
struct ingle_bounds {
    /* 0: any number.  A text of which its bytes alone tell that it has more is refused at once
     * (INGLE_LIMIT), one that turns out to have more than twice as many when that is seen; one
     * with a few more is counted to its end. */
    int64_t max_tokens;
    int64_t least;           /* after INGLE_LIMIT: so many tokens there are at least */
    bool (*stop)(void *arg); /* NULL, or asked every few milliseconds: true is INGLE_CANCEL */
    void *arg;
};
INGLE_API ingle_status ingle_tokenize_within(const struct ingle_model *m, const char *text,
                                             size_t n, int flags, struct ingle_bounds *bounds,
                                             int32_t **ids, size_t *n_ids,
                                             struct ingle_error *error);
/* The bytes of the tokens; special: control tokens show their spelling, else nothing.
 * *text [*n] has a 0 behind it and is ended with ingle_free(). */
INGLE_API ingle_status ingle_detokenize(const struct ingle_model *m, const int32_t *ids,
                                        size_t n_ids, bool special, char **text, size_t *n,
                                        struct ingle_error *error);
/* The spelling of a token in the vocabulary, *n bytes; NULL for an id outside it. */
INGLE_API const char *ingle_token(const struct ingle_model *m, int32_t id, size_t *n);
/* The id whose spelling is exactly this, or -1. */
INGLE_API int32_t ingle_find_token(const struct ingle_model *m, const char *bytes, size_t n);

/* ---- pictures and sound ---- */

/*
 * A picture or a sound enters a prompt as soft tokens: vectors of an encoder ("tower"), which stand
 * where the prompt has as many placeholder ids, between two markers.  The way of one:
 *   ingle_medium_open()   decodes, checks and resizes it: how many soft tokens it has is known;
 *   ingle_chat.media or ingle_tokenize_media()   make a prompt: ids, and spans (where media stand);
 *   ingle_session_sync_media() or ingle_request_options.span   take both; what is not known of
 *   the encoder's vectors is computed when the prompt is.
 */
struct ingle_engine;

enum ingle_media_kind { INGLE_MEDIA_ANY, INGLE_MEDIA_IMAGE, INGLE_MEDIA_AUDIO };
/* of ingle_media.budget */
enum { INGLE_MEDIA_BUDGET = 0, INGLE_MEDIA_AUTO = -1 };

/* One as it comes: one of bytes, rgb and samples is there. */
struct ingle_media {
    /* ANY: the bytes tell it; else INGLE_ARG if they are of the other kind */
    enum ingle_media_kind kind;
    const void *bytes; /* [n_bytes]: a file: JPEG, PNG, WebP, GIF (its first picture), WAV */
    size_t n_bytes;
    const uint8_t *rgb; /* [height][width][3]: upright, without alpha */
    int32_t width, height;
    const float *samples; /* [n_samples]: 16 kHz, one channel, -1 to 1 */
    size_t n_samples;
    /* soft tokens of a picture, at most: 70, 140, 280, 560, 1120; INGLE_MEDIA_AUTO: the smallest
     * of them that keeps its pixels; INGLE_MEDIA_BUDGET: as ingle_engine_options.image_tokens */
    int32_t budget;
    const char *name; /* for errors: "message 2, part 1"; NULL: "picture", "sound" */
};

/* One that is decoded and checked.  Counted; any thread. */
struct ingle_medium;
struct ingle_medium_info {
    enum ingle_media_kind kind;
    int64_t n_soft;   /* soft tokens */
    int64_t n_tokens; /* with its two markers */
    int32_t width, height;           /* of a picture, upright, */
    int32_t used_width, used_height; /* ... and as the encoder sees it */
    int32_t budget;
    double seconds; /* of a sound */
    uint8_t id[32]; /* of what the encoder sees, and of the encoder: the same, the same vectors */
};
/* From any thread, several at a time.  INGLE_UNSUP: the model does not read this kind, or no
 * decoder of this format is there; INGLE_FORMAT: damaged, or no known format; INGLE_LIMIT: too
 * large, too long. in is borrowed for the call. */
INGLE_API ingle_status ingle_medium_open(struct ingle_medium **out, struct ingle_engine *e,
                                         const struct ingle_media *in, struct ingle_error *error);
INGLE_API struct ingle_medium *ingle_medium_ref(struct ingle_medium *m);
/* Gives a reference back.  Before ingle_engine_close(). */
INGLE_API void ingle_medium_close(struct ingle_medium *m);
INGLE_API void ingle_medium_info(const struct ingle_medium *m, struct ingle_medium_info *out);

/* The soft tokens of a medium in a prompt: positions [start, start + n), n being its n_soft.  Spans
 * are ascending and have other tokens between them. */
struct ingle_span {
    int64_t start, n;
    struct ingle_medium *medium;
};

/* ---- chat ---- */

/* Messages and tools are JSON in the form of OpenAI chat completions: an array of {role,
 * content, tool_calls, tool_call_id, reasoning_content ...}, an array of {type, function}. */
struct ingle_chat {
    const char *messages;
    size_t n_messages; /* bytes */
    const char *tools; /* NULL: none */
    size_t n_tools;
    bool thinking;
    bool preserve_thinking;    /* older turns keep their thoughts */
    bool no_generation_prompt; /* do not ask for an answer */
    /* role developer is what the published template makes of it, a turn of its own; else it is role
     * system */
    bool developer_own;
    const char *effort;        /* DeepSeek V4: reasoning effort, or NULL */
    struct ingle_bounds *bounds; /* NULL: none */
    /* [n_media]: of the parts of messages with type image, image_url, audio or input_audio: a
     * part's member "medium" is its number here; of parts without it, as they come.  Borrowed for
     * the call */
    struct ingle_medium *const *media;
    size_t n_media;
};

struct ingle_prompt {
    char *text; /* special tokens by their spelling; a 0 behind it */
    size_t n_text;
    int32_t *ids; /* special tokens only where the template wrote them */
    size_t n_ids;
    bool open_thought; /* the prompt ends inside a thought */
    /* [n_spans]: where media stand in ids; each has a reference of the prompt's */
    struct ingle_span *span;
    size_t n_spans;
};
INGLE_API void ingle_prompt_release(struct ingle_prompt *p);
/* How many tokens of a prompt stand before the last place where turns meet, such as the request for
 * an answer: a later turn's prompt begins with them.  0: its tokens show none. */
INGLE_API size_t ingle_prompt_stable(const struct ingle_model *m, const int32_t *ids, size_t n);

/* INGLE_ARG: not as many media as parts, or one of another kind; INGLE_UNSUP: a part that no prompt
 * of this model holds (video; in a system message). */
INGLE_API ingle_status ingle_chat_render(const struct ingle_model *m, const struct ingle_chat *c,
                                         struct ingle_prompt *out, struct ingle_error *error);

/* A prompt of a text in which each `marker` (not empty) stands for the next of media [n_media];
 * the pieces between them are tokenised one by one, the first with `flags`, the others without
 * INGLE_ADD_SPECIAL.  bounds may be NULL.  INGLE_ARG: not as many markers as media. */
INGLE_API ingle_status ingle_tokenize_media(const struct ingle_model *m, const char *text, size_t n,
                                            int flags, const char *marker,
                                            struct ingle_medium *const *media, size_t n_media,
                                            struct ingle_bounds *bounds, struct ingle_prompt *out,
                                            struct ingle_error *error);

/* The same for one JSON object that holds the arguments as members (messages, tools,
 * enable_thinking, large ...), as test vectors do.  family: "gemma4" or "deepseek4".  m may
 * be NULL: then there are no ids. */
INGLE_API ingle_status ingle_render_case(const char *family, const struct ingle_model *m,
                                         const char *json, size_t n, struct ingle_prompt *out,
                                         struct ingle_error *error);
/* Model output in one JSON object (text, tools_enabled, splits ...) to the message as JSON
 * {content, reasoning_content, tool_calls}; *message is ended with ingle_free(). */
INGLE_API ingle_status ingle_parse_case(const char *family, const char *json, size_t n,
                                        char **message, struct ingle_error *error);

/* A reader turns an answer's tokens into events: whole UTF-8 characters of content and
 * reasoning, tool calls, the end.  It holds back what may still become a marker or a stop
 * string, and nothing else. */
enum ingle_event_kind {
    INGLE_EVENT_CONTENT,
    INGLE_EVENT_REASONING,
    INGLE_EVENT_CALL_BEGIN,     /* text: the function's name */
    INGLE_EVENT_CALL_ARGUMENTS, /* text: a piece of JSON */
    INGLE_EVENT_CALL_END,
    INGLE_EVENT_CALL_CUT        /* instead of CALL_END: the arguments are only a beginning */
};
/* call: the number of the tool call, from 0; -1 for content and reasoning. */
typedef void ingle_event_fn(void *arg, enum ingle_event_kind kind, int call, const char *text,
                            size_t n);

struct ingle_reader_options {
    bool raw;           /* no chat format: everything is content, special tokens are shown */
    bool tools;         /* tool calls are looked for */
    bool partial_calls; /* a call whose end did not come is told, with CALL_CUT, and no text */
    bool open_thought;  /* from the prompt */
    const char *const *stop; /* strings that end the content; they are not part of it */
    size_t n_stop;           /* at most 64 strings of 1 to 1024 bytes; copied */
    const char *family; /* NULL: the model's */
};

enum ingle_end {
    INGLE_END_NONE, /* the answer goes on */
    INGLE_END_TURN, /* an end-of-generation token came */
    INGLE_END_STOP, /* a stop string came */
};

struct ingle_reader;
INGLE_API ingle_status ingle_reader_open(struct ingle_reader **out, const struct ingle_model *m,
                                         const struct ingle_reader_options *o,
                                         ingle_event_fn *fn, void *arg,
                                         struct ingle_error *error);
/* Takes the next token of the answer; after an end nothing more is taken. */
INGLE_API ingle_status ingle_reader_token(struct ingle_reader *r, int32_t token,
                                          enum ingle_end *end, struct ingle_error *error);
/* The next token would still belong to a thought, as far as the answer so far tells. */
INGLE_API bool ingle_reader_in_thought(const struct ingle_reader *r);
/* The next token would still belong to tool calls, if what began goes on well.  *rest (may be
 * NULL): the *n bytes behind the marker with which it began, valid until the next call on r; NULL
 * unless the marker was that and no text, and the call is the first behind it and not trusted. */
INGLE_API bool ingle_reader_in_call(const struct ingle_reader *r, const char **rest, size_t *n);
/* A grammar holds the answer to calls until ingle_reader_in_call() is false: they are told while
 * they come, and not when it is clear that they were calls. */
INGLE_API void ingle_reader_trust_call(struct ingle_reader *r);
/* Behind INGLE_END_STOP: which of the stop strings it was; else -1. */
INGLE_API int ingle_reader_stop(const struct ingle_reader *r);
/* There will be no more tokens: what is held back goes out. */
INGLE_API ingle_status ingle_reader_finish(struct ingle_reader *r, struct ingle_error *error);
/* The message so far as JSON {content, reasoning_content, tool_calls}; ended with
 * ingle_free(). */
INGLE_API ingle_status ingle_reader_message(const struct ingle_reader *r, char **json, size_t *n,
                                            struct ingle_error *error);
INGLE_API void ingle_reader_close(struct ingle_reader *r);

/* ---- engines ---- */

struct ingle_engine;

struct ingle_engine_options {
    int threads;           /* 0: one a physical core, within the cgroup's quota */
    bool no_pin;           /* do not bind threads to cores */
    const char *numa;      /* memory nodes: "auto" (or NULL), "off", "interleave" */
    const char *cpu;       /* highest instruction set: "ref", "avx2", ... ; NULL: the machine's */
    const char *numerics;  /* "exact" (or NULL), "fast", "reference" */
    /* "f16" (or NULL), "q8_0" or another format of docs/use/long-context.md; "K:V": one
     * for keys and one for values; "f16v": keys are made of values; with "+rot", too, except for
     * the quarter of a key that depends on its position. */
    const char *kv;
    int64_t n_ctx;         /* positions a session may have; 0: the model's, or what fits */
    /* tokens in the largest step; 0: 512, with experts up to 2048 as memory allows */
    int64_t max_rows;
    int64_t max_logits;    /* rows of logits in the largest step; 0: 16 */
    int64_t n_sessions;    /* full sessions that must fit; 0: 1 */
    uint64_t memory_bytes; /* for everything; 0: what machine and cgroup leave free */
    bool force;            /* what does not fit in it is tried all the same, and reported */
    /* of it for the prefix cache; 0: what half a session needs, and two restore points that lie
     * apart at least */
    uint64_t cache_bytes;
    const char *store;     /* directory of the store on disk; NULL: none */
    /* where cached prefixes are told to routers, by ZeroMQ ("tcp://127.0.0.1:5557"; NULL:
     * nowhere), where what was told is told again, the topic (NULL: ""), vLLM's
     * --kv-events-config instead of these (NULL), and whether events are arrays */
    const char *kv_events, *kv_events_replay, *kv_events_topic, *kv_events_config;
    bool kv_events_array;
    uint64_t store_bytes;  /* what the store may hold; 0: 16 GiB */
    int64_t store_tokens;  /* it saves prefixes that add at least so many; 0: 256 */
    /* tokens between restore points of a long sequence, at least 128; 0: 8192 */
    int64_t restore_every;
    const char *pack_cache; /* directory of files of packed weights; NULL: none */
    bool pack_write;       /* one that is missing is written before the engine is open */
    uint64_t pack_bytes;   /* what all of them may take; 0: what leaves a tenth of the disk free */
    /* keep weights, keys and values in memory; what forbids it is reported */
    bool lock;
    /* Drafting: several tokens are guessed and verified in one step.  The text is the same, in
     * bits. */
    /* [n_draft]: files or folders of drafters for this model, "auto" (in the model's file, beside
     * it by name, or none but the text itself), "ngram" (the text itself) or "off"; 0: "auto" */
    const char *const *draft;
    size_t n_draft;
    const char *draft_method; /* of those at hand: one of INGLE_DRAFT_METHODS; NULL: "auto" */
    int64_t draft_max;     /* tokens of a draft, at most; 0: as many as pay */
    /* so many are drafted in each step where something can be, even if they do not pay: for tests
     * and measurements; 0: as many as pay */
    int64_t draft_min;
    /* tokens of a tree of drafts, at most: branches are verified beside the likeliest tokens where
     * they pay, and have pages of their own; 0 or 1: chains alone */
    int64_t draft_tree;
    /* For experiments, none of which changes a text. */
    /* which positions a drafter sees, by the name that its kind has for it; NULL: as its file
     * says */
    const char *draft_rule;
    const char *draft_tap; /* where the target is tapped: "late" (or NULL), "early", "upstream" */
    int64_t draft_block;   /* rows of a round; 0: as trained */
    int64_t draft_ctx;     /* newest positions that a drafter sees; 0: all */
    /* memory for experts, the others stay in a file; 0: all, or what fits if all do not */
    uint64_t expert_bytes;
    /* how they are read: "auto" (or NULL), or "direct" or "cached", by "threads" or "uring", or
     * both as in "direct,threads" */
    const char *experts_io;
    /* reads before a layer chooses: "auto" (or NULL), "off", or the most a layer */
    const char *experts_early;
    /* checksums: "first" (or NULL): of each at its first read, "always", "off" */
    const char *experts_verify;
    const char *experts_trace;  /* file for lines "step,layer,expert"; NULL: none */
    /* file that keeps which experts are used, from run to run; NULL: none */
    const char *experts_profile;
    struct ingle_callbacks callbacks; /* copied */
    /* of keys or values alone, instead of `kv`; NULL: as it says */
    const char *kv_k, *kv_v;
    /* "full=K:V,sliding=TYPE": by kind of layer, instead of the others; NULL: as they say */
    const char *kv_layers;
    /* addresses of workers that compute experts, "HOST:PORT,unix:PATH"; NULL: none */
    const char *experts_worker;
    /* file with the key that they share; NULL: none, which is enough on one host */
    const char *worker_key;
    bool worker_plain;          /* beyond it without a key all the same */
    /* per cent of a layer's experts that they compute; "auto" (or NULL): as many as make all finish
     * together */
    const char *experts_share;
    /* addresses of stages, which have the layers behind this engine's: in their order,
     * "HOST:PORT,unix:PATH"; NULL: none */
    const char *stages;
    /* "N,N,...": the layers of the engine and of each stage end before these; "auto" (or NULL): as
     * the stages say, and for those that take any, by their memory and speed */
    const char *layer_ends;
    double stage_wait; /* seconds that a stage may be away before steps fail; 0: 60 */
    /* how prompts attend where a layer sees everything: "off" (or NULL), "on",
     * "on:eps=1/8,from=4096": rows from a position on read the values of large weights alone, and
     * means for the others, which are below eps of a row's sum together.
     * docs/use/sparse-prompts.md */
    const char *sparse;
    /* Lossy: rows of answers read a part of the pages of 128 tokens in layers that see everything;
     * 4-bit copies of the keys choose which, and means stand for the others: "off" (or NULL),
     * "1/16", "1/16,least=16" (pages that are read at least).  docs/use/kv-select.md */
    const char *kv_select;
    /* Keys and values beyond memory, of layers that see everything: pages that memory has no room
     * for lie in a file in kv_disk (NULL: none do), of kv_disk_bytes at most; of a session those of
     * kv_pool_tokens stay in memory; 0: as many as fit. */
    const char *kv_disk;
    uint64_t kv_disk_bytes;
    int64_t kv_pool_tokens;
    /* Lossy: a small model of the same family reads long prompts, and this one only the part that
     * the small one attends to: ingle_shorten().  Its file, as for ingle_model_open(); NULL: none.
     * docs/use/prompt-drafter.md */
    const char *prompt_drafter;
    double prompt_keep;       /* the share of a prompt that is kept where nobody says; 0: 0.2 */
    int64_t prompt_keep_from; /* tokens of the shortest prompt that is shortened; 0: 4,096 */
    /* tokens of the longest one; 0: as n_ctx says, or what both models were made for */
    int64_t prompt_ctx;
    /* The encoders of pictures and sound: a file, "auto" (or NULL: in the model's file, or the one
     * file mmproj*.gguf beside it, or none), "off".  Several beside it are an error. */
    const char *mmproj;
    /* soft tokens of a picture where nobody says: 70, 140, 280, 560, 1120; INGLE_MEDIA_AUTO; 0: as
     * the model's files say, or 280 */
    int32_t image_tokens;
    /* bytes of encoders' results that are kept; 0: 256 MiB, or 16 of the largest pictures */
    uint64_t media_cache;
    /* A graphics card that computes a part, with the same bits: "auto" (or NULL: the first that
     * can, without a word if there is none), "off", or its number, "0" for the first */
    const char *gpu;
    /* the layers that it has: "auto" (or NULL: as many as its memory holds), "all", "12" (the first
     * 12), "8-20" (8 to 19), "99+" (the first 99, or all if there are fewer) */
    const char *gpu_layers;
    uint64_t gpu_bytes;    /* of its memory; 0: all that is free but a reserve */
    /* the drafter's layers that it has, in the same words; "auto" (or NULL): all, if the model's
     * last layers are there and these fit, too, else none */
    const char *draft_gpu_layers;
};

enum { INGLE_PLAN_ITEMS = 16 };

struct ingle_plan {
    struct {
        const char *name; /* "weights" */
        uint64_t bytes;
    } item[INGLE_PLAN_ITEMS];
    int n_items;
    uint64_t total_bytes, limit_bytes;
    /* of the prefix cache: a restore point, beside the pages that are kept whole; where the windows
     * of several meet they share pages */
    uint64_t point_bytes;
    bool fits;
    int64_t n_ctx, max_rows;
    char kv[256];
    /* when it does not fit: what would; when the context was cut: what would hold all of it, if
     * anything; else "" */
    char advice[256];
    char numerics[80];
    /* the weights are a file's: page cache, shared by processes, counted in full */
    bool mapped;
    int n_nodes;       /* memory nodes that weights, keys and values lie on */
    /* of all experts, and of those in memory; less than all: the others are read from a file when
     * they are chosen */
    uint64_t expert_bytes, expert_memory_bytes;
    /* With experts on disk: tokens a second that are to be expected in decode, from the rates of
     * random reads of an expert and of memory, which are measured now (for about half a second),
     * and from a simulation of routing; 0: not known. */
    double tokens_low, tokens_high, disk_bytes_per_s, read_bytes_per_s;
    uint64_t n_experts; /* of all layers */
    /* Keys and values beyond memory: what is on disk of a session of n_ctx tokens, and of all; of
     * such a session so many tokens are in memory.  Zeros: all are. */
    uint64_t kv_disk_session_bytes, kv_disk_bytes, kv_disk_limit_bytes;
    int64_t kv_pool_tokens;
    /* The card, "": none computes; its layers [first, end), with their experts or without; what it
     * takes of its memory, and may. */
    char gpu[64];
    int64_t gpu_first, gpu_end;
    bool gpu_experts;
    uint64_t gpu_bytes, gpu_limit_bytes;
    uint64_t item_gpu_bytes[INGLE_PLAN_ITEMS]; /* of each item: on the card */
    /* The card shares the processor's memory: what is on it is a part of total_bytes. */
    bool gpu_shared;
    /* ... and the drafter's layers [first, end), of so many; their experts, if there are any */
    int64_t gpu_draft_first, gpu_draft_end, draft_layers;
    bool gpu_draft_experts;
};

/* What an engine would take, before anything large is taken. */
INGLE_API ingle_status ingle_engine_plan(struct ingle_model *m,
                                         const struct ingle_engine_options *o,
                                         struct ingle_plan *out, struct ingle_error *error);
/* Of a model that is divided by layers: the engine (the first), or a stage. */
enum { INGLE_STAGE_PARTS = 16 };
struct ingle_stage_part {
    char address[256]; /* "": the engine */
    char engine[32], cpu[32], cipher[32]; /* of a stage: what it is; what encrypts, "": nothing */
    int64_t from, to;  /* layers [from, to) */
    bool open;         /* it takes the layers that it is given */
    bool fits;
    uint64_t weight_bytes, kv_bytes, other_bytes, total_bytes, limit_bytes;
    uint64_t token_bytes;    /* of weights: what a token reads */
    double read_bytes_per_s; /* of memory, measured there; 0: not known */
    double trip_us, out_bytes_per_s, in_bytes_per_s; /* if measured */
    char advice[256]; /* what would fit */
};
/* The plans of an engine and its stages (o->stages), which are asked; nothing is loaded.  measure:
 * how fast they are reached.  best: where the layers of each would end if all could take any. */
INGLE_API ingle_status ingle_engine_plan_stages(struct ingle_model *m,
                                                const struct ingle_engine_options *o,
                                                bool measure, struct ingle_plan *engine,
                                                struct ingle_stage_part out[INGLE_STAGE_PARTS],
                                                int *n, int64_t best[INGLE_STAGE_PARTS],
                                                struct ingle_error *error);
/* Who a model is, as in ingle_engine_info, without an engine: all weights are read, or a file of
 * packed weights tells it. */
INGLE_API ingle_status ingle_engine_identity(struct ingle_model *m,
                                             const struct ingle_engine_options *o, uint64_t *out,
                                             struct ingle_error *error);
/* A file of a store: the tokens [from, length) of a conversation. */
struct ingle_store_entry {
    const char *name, *model;
    const char *settings; /* keys and values, numerics: "f16 exact" */
    uint64_t identity, bytes;
    int64_t from, length;
    int64_t age_seconds;  /* since it was last used */
    const char *damage;   /* NULL, or what is wrong with it */
};
typedef void ingle_store_fn(void *arg, const struct ingle_store_entry *entry);
/* Calls fn for every file of the store in dir, in no order.  Changes nothing. */
INGLE_API ingle_status ingle_store_list(const char *dir, ingle_store_fn *fn, void *arg,
                                        struct ingle_error *error);

/* What an engine would say of dir as its store.  It is made if it is not there. */
INGLE_API ingle_status ingle_store_check(const char *dir, struct ingle_error *error);

/* A file in a directory of packed weights.  It is mapped at a start instead of reading and
 * packing the model's own file; the bits are the same, and processes share the memory. */
struct ingle_pack_entry {
    const char *name;
    const char *model;    /* path of the model, perhaps cut at its beginning */
    uint64_t bytes;
    int64_t age_seconds;  /* since it was used */
    bool in_use, foreign; /* by a process, now; of another version of ingle */
    bool temporary;       /* being written, or what a killed process left */
    const char *damage;   /* NULL: none was found */
};
typedef void ingle_pack_fn(void *arg, const struct ingle_pack_entry *entry);
/* verify: every byte is read and compared with its checksum. */
INGLE_API ingle_status ingle_pack_list(const char *dir, bool verify, ingle_pack_fn *fn, void *arg,
                                       struct ingle_error *error);
/* Deletes all but what is being written.  A file in use takes its space until its user ends. */
INGLE_API ingle_status ingle_pack_clear(const char *dir, int64_t *n_files, uint64_t *n_bytes,
                                        struct ingle_error *error);

/* o may be NULL: all defaults.  INGLE_LIMIT: it does not fit; the text has the numbers and
 * what would.  m is borrowed until ingle_engine_close(). */
INGLE_API ingle_status ingle_engine_open(struct ingle_engine **out, struct ingle_model *m,
                                         const struct ingle_engine_options *o,
                                         struct ingle_error *error);
/* Its sessions must be closed. */
INGLE_API void ingle_engine_close(struct ingle_engine *e);

/* Keys and values beyond memory; zeros: there is no disk for them. */
struct ingle_paging {
    uint64_t bytes, budget_bytes;        /* on disk now, and at most */
    uint64_t written_bytes, read_bytes;  /* since the start */
    double read_seconds, waited_seconds; /* of reading, beside steps; of steps that waited for it */
    double bytes_per_s;                  /* how fast it is read, as measured */
    uint64_t failed;                     /* reads and writes that failed */
    char error[160];                     /* why nothing can be written for now; "" */
};

struct ingle_engine_info {
    int threads;
    const char *cpu; /* the instruction set in use: "avx512vnni" */
    /* in effect: of "fast" its recipes, "fast-panels+fast-wide", or "exact" if */
    const char *numerics;
                          /* nothing would be faster */
    const char *kv;
    int64_t n_ctx, max_rows, n_vocab, n_layers, n_embd;
    int64_t n_experts, n_experts_used; /* 0: no mixture of experts */
    uint64_t weight_bytes, kv_used_bytes, kv_peak_bytes, kv_budget_bytes;
    uint64_t kv_token_bytes; /* of a token in the layers without a window */
    uint64_t identity; /* hash of hyper-parameters, tensors and the bytes of all weights */
    bool mapped;             /* the matrices lie in a file of packed weights */
    bool locked;             /* ... and stay in memory */
    bool packed;             /* a file of packed weights was written */
    uint64_t matrix_bytes;   /* of the matrices, as they lie in memory */
    uint64_t huge_bytes;     /* of them on huge pages after loading; 0 if mapped */
    /* the share of them that lies on the memory node whose threads read it, by the answer of the
     * system about some pages after loading; below 0: not known (--numa off, unbound threads) */
    double local_share;
    int unbound_threads;     /* that were to be bound to processors, and are not */
    double join_us;          /* what it cost to share a job among the threads, at start */
    double load_seconds;
    /* the kind of the network that drafts: "dflash", "mtp" ...; "": none */
    const char *draft;
    const char *draft_path;  /* its file, or that of the model; "" */
    const char *draft_why;   /* why there is none; else "" */
    /* tokens of earlier text, and those that a grammar forces, are drafted, too */
    bool draft_text;
    bool draft_confidence;   /* the network tells how sure it is */
    /* tokens of a draft, at most; 0: as many as pay (only without a network) */
    int64_t draft_most;
    uint64_t draft_bytes;    /* of its weights */
    int64_t draft_tree;      /* tokens of a tree of drafts, at most; 0 or 1: chains */
    /* ingle_engine_options.sparse in effect: "off", "on:eps=1/8,from=4096" */
    char sparse[48];
    char sparse_why[160];    /* why no prompt can be sparse here; else "" */
    int64_t sparse_layers;   /* that it is about */
    char kv_select[48];      /* ingle_engine_options.kv_select in effect: "off", "1/16" */
    char kv_select_why[160]; /* why no answer can choose pages here; else "" */
    struct ingle_paging paging; /* as it is now */
    bool sees, hears;        /* reads pictures, sound */
    const char *mmproj;      /* the file of the encoders; "": there are none, */
    const char *mmproj_why;  /* ... and why not: "no mmproj file beside the model", "off"; "" */
    uint64_t mmproj_bytes;   /* of their weights and scratch */
    int32_t image_tokens;    /* in effect: 280; INGLE_MEDIA_AUTO */
    uint64_t media_cache;    /* bytes of results that may be kept */
    /* the card that computes layers [first, end), with their experts or without; "": none */
    char gpu[64];
    int64_t gpu_first, gpu_end;
    bool gpu_experts, gpu_lost; /* lost: it has failed, and the processor goes on */
    uint64_t gpu_bytes;         /* of weights on it, the drafter's among them */
    int64_t gpu_draft_first, gpu_draft_end, draft_layers; /* the drafter's layers there, of all */
};
INGLE_API void ingle_engine_info(const struct ingle_engine *e, struct ingle_engine_info *out);

/* Pictures and sounds since the start. */
struct ingle_media_counts {
    /* in prompts; of them: encoded; their vectors were kept; not needed, as their keys and values
     * were there */
    int64_t n_media, n_encoded, n_kept, n_reused;
    int64_t image_tokens, audio_tokens; /* of prompts, with markers */
    int64_t encoded_tokens;             /* soft tokens that were encoded */
    double encode_seconds;
    uint64_t cache_bytes, budget_bytes; /* of vectors that are kept, now and at most */
};
/* Any thread. */
INGLE_API void ingle_engine_media(const struct ingle_engine *e, struct ingle_media_counts *out);

/* What sparse prompts left out.  A pair is a row of a prompt and a query head of a layer; zeros:
 * there were none. */
struct ingle_sparse {
    uint64_t pairs;
    /* sum over pairs: the share of a pair's weights whose values were replaced by means */
    double missed;
    double most;              /* ... of the pair that missed most */
    uint64_t n_read, n_seen;  /* positions whose values were read, and whose keys were */
};

/* What answers left out that read chosen pages.  A pair is a row of an answer and a query head of a
 * layer; zeros: none chose. */
struct ingle_select {
    uint64_t pairs;
    /* sum over pairs: the estimated share of a pair's weights in pages that were not read; the
     * largest */
    double missed, most;
    /* pairs that were computed with all pages (every 64th position): */
    uint64_t checked;
    double missed_true, most_true;    /* ... what the choice would have missed, as it is */
    uint64_t pages_read, pages_seen;  /* of row and key/value head */
    uint64_t bytes_read;              /* keys and values in those */
};

/* Ways to compute rows that are not "each sees all before it". */
enum ingle_way_kind { INGLE_WAY_SPARSE, INGLE_WAY_SELECT, INGLE_WAYS };
enum { INGLE_WAY_TEXT = 48 };
/* "off", "on:eps=1/8,from=4096"; "off", "1/16,least=8" */
struct ingle_way {
    char text[INGLE_WAYS][INGLE_WAY_TEXT];
};
struct ingle_way_use {
    struct ingle_sparse sparse;
    struct ingle_select select;
};

/* Experts that are not all in memory.  False: they are, or there are none. */
struct ingle_experts {
    /* experts of all layers; places in memory; of them taken for longer */
    uint64_t n, slots, resident;
    uint64_t memory_bytes, expert_bytes;   /* of the places; of all experts */
    uint64_t choices, hits, misses;        /* experts of a layer in a step: all, in memory, not */
    /* misses that had been read before they were chosen; such reads */
    uint64_t early_hits, early_reads;
    uint64_t evictions, failed_reads;
    uint64_t reads, read_bytes, busy_ns;   /* of the file; while any was under way */
    uint64_t stall_ns;                     /* steps waited for reads */
    /* experts whose last read failed; reads that do not end */
    uint64_t bad, stuck;
    bool direct, packed;                   /* direct I/O; from a file of packed weights */
    /* the last failure, with file, layer and expert; "": there was none */
    char trouble[320];
    bool uring;                            /* io_uring reads, and not threads */
    /* experts are read before they are chosen, other than to see whether that pays */
    bool reads_early;
    /* of early_hits: they were there when they were chosen */
    uint64_t early_in_time;
    /* comparisons of steps with and without early reads (experts_early auto) */
    uint64_t early_tries;
    /* time of steps with them, by those without, less 1; share of guesses that were right */
    double early_change, early_right;
};
/* Any thread. */
INGLE_API bool ingle_engine_experts(const struct ingle_engine *e, struct ingle_experts *out);
struct ingle_expert_layer {
    int64_t layer;
    uint64_t choices, hits, early_hits, read_bytes, stall_ns;
};
/* Of the i-th layer with experts; false: there are no more.  Any thread. */
INGLE_API bool ingle_engine_expert_layer(const struct ingle_engine *e, size_t i,
                                         struct ingle_expert_layer *out);

/* A worker that computes experts. */
struct ingle_engine_worker {
    /* "ready", "away", "refused"; valid until the engine is closed */
    const char *address, *state;
    char layers[32];                    /* that it computes: "all", "A:B" */
    uint64_t slots, budget_bytes;       /* its places for experts */
    /* what it was asked: messages, rows; and experts that it computed */
    uint64_t evals, pairs, experts;
    /* that this process computed, of layers that may have workers */
    uint64_t experts_here;
    uint64_t sent_bytes, received_bytes;
    /* of the connection; experts that were computed here instead */
    uint64_t losses, redone;
    uint64_t hits, misses;              /* experts in its memory, and not */
    uint64_t compute_ns, wait_ns;       /* its computing; steps waited for it */
    /* one expert with one row, there and here; the round trip; 0: not measured */
    double unit_us, here_us, trip_us;
    char trouble[240];                  /* why it is not ready; else "" */
    bool shares;                        /* large rows go through memory that both processes have */
    uint64_t shared;                    /* messages whose rows did */
    /* questions that were taken back; experts that it says it has in memory */
    uint64_t cancels, have;
    /* What it last said of itself: of all engines that it has.  there_up_ns 0: nothing yet. */
    uint64_t there_evals, there_pairs, there_failed, there_cancelled, there_engines;
    uint64_t there_resident, there_bad, there_read_bytes, there_stall_ns, there_up_ns;
};
/* The i-th; false: there are no more.  Any thread. */
INGLE_API bool ingle_engine_worker(const struct ingle_engine *e, int i,
                                   struct ingle_engine_worker *out);

/* How often each expert of a layer was chosen since the engine was opened: hits
 * [info.n_experts], growing while steps run.  NULL: the layer has no experts. */
INGLE_API const uint64_t *ingle_engine_expert_hits(const struct ingle_engine *e, int64_t layer);

/* ---- a worker: experts alone, for engines that ask ---- */

struct ingle_worker;
struct ingle_worker_options {
    const char *listen; /* "HOST:PORT", "unix:PATH", "fd:N": a socket that listens already */
    const char *layers; /* "all" (or NULL), or "A:B": A to B - 1 */
    /* "A:B": a stage, which has layers A to B - 1 as a whole; "auto": those that an engine says,
     * and what the options of ingle_worker_open() point to is borrowed until the end; NULL:
     * experts alone */
    const char *stage;
    bool once; /* a stage: ingle_worker_run() returns when its engine has ended in good order */
};
/* Of o the options of devices, packed files and experts count, and those of keys.  Experts come
 * from the model's file; nothing else of it is loaded.  m is borrowed until
 * ingle_worker_close(). */
INGLE_API ingle_status ingle_worker_open(struct ingle_worker **out, struct ingle_model *m,
                                         const struct ingle_engine_options *o,
                                         const struct ingle_worker_options *how,
                                         struct ingle_error *error);
INGLE_API void ingle_worker_close(struct ingle_worker *w);
/* with the port that was taken */
INGLE_API const char *ingle_worker_address(const struct ingle_worker *w);
/* Answers until ingle_worker_stop(), which any thread or signal handler may call. */
INGLE_API void ingle_worker_run(struct ingle_worker *w);
INGLE_API void ingle_worker_stop(struct ingle_worker *w);
struct ingle_worker_info { uint64_t evals, pairs, refused, failed, hits, misses, read_bytes; };
/* Behind ingle_worker_run(). */
INGLE_API void ingle_worker_info(const struct ingle_worker *w, struct ingle_worker_info *out);

/* A stage of an engine, which has some of its layers. */
struct ingle_engine_stage {
    const char *address;
    int64_t from, to; /* layers [from, to) */
    bool ready;
    bool direct; /* its rows go to the next stage, not to the engine */
    uint64_t steps, rows, sent_bytes, received_bytes, losses;
    uint64_t compute_ns, wait_ns; /* by its clock; so long steps waited for it */
    uint64_t weight_bytes, limit_bytes; /* its weights; memory that it may take */
    uint64_t budget_bytes;  /* of pages that it has room for, counted as the whole model's */
    uint64_t read_bytes_per_s; /* of its memory, measured; 0: not known */
    double trip_us;                     /* of a greeting, there and back */
    char trouble[240];                  /* why it is not there; "" */
};
/* False: there is none of this number.  Any thread. */
INGLE_API bool ingle_engine_stage(const struct ingle_engine *e, int i,
                                  struct ingle_engine_stage *out);
/* All stages are there, as far as is known; else why not.  Any thread. */
INGLE_API bool ingle_engine_stages_ready(const struct ingle_engine *e, char *why, size_t n_why);

/* A worker as it is seen from outside. */
struct ingle_worker_seen {
    char engine[32], cpu[32], family[32], numerics[48], layers[32]; /* what it says of itself */
    int version_min, version_max; /* of the protocol */
    uint32_t arithmetic, layout;  /* what bits results have; how weights are packed */
    uint32_t threads, n_layers, n_experts, n_used, hidden, width;
    uint32_t most_rows, most_pairs; /* of one question */
    bool all_bytes;               /* it knows the hash of all weights, not of samples alone */
    /* of its layers; those that have a place in its memory, and its bytes */
    uint64_t experts, slots, budget_bytes;
    uint64_t resident;            /* that are there now */
    /* until there is a connection; a question without work, the median */
    double connect_ms, trip_us;
    double expert_us;             /* its computing of one expert with one row; 0: it does not */
    /* rows there and back, without computing; 0: not measured */
    double socket_bytes_per_s, shared_bytes_per_s;
    char no_rates[240], no_share[160]; /* why the one or the other was not; "" */
    char cipher[32], slow[80]; /* what encrypts; "": nothing; why it is not the fast one; "" */
    bool compared;                /* with a model */
    /* why an engine with that model would not have it; "": it would */
    char refused[400];
};
/* Looks at one; takes about a second.  m: the model that is to be computed there, or NULL.  Of o
 * the options of keys count, and with m those of devices.  INGLE_IO: it cannot be reached. */
INGLE_API ingle_status ingle_worker_look(const char *address, struct ingle_model *m,
                                         const struct ingle_engine_options *o,
                                         struct ingle_worker_seen *out, struct ingle_error *error);

/* Makes running and later steps return INGLE_CANCEL until ingle_engine_resume(). */
INGLE_API void ingle_engine_cancel(struct ingle_engine *e);
INGLE_API void ingle_engine_resume(struct ingle_engine *e);
/* Forgets the prefix cache. */
INGLE_API void ingle_engine_forget(struct ingle_engine *e);

/* Time spent in each operation while on. */
struct ingle_profile {
    const char *op;
    uint64_t calls, ns;
    double bytes, ops; /* weights, keys and values read; multiplications and additions; 0: few */
    uint64_t joins;    /* jobs that threads shared and waited for the end of */
    uint64_t launches; /* of kernels on a graphics card */
};
INGLE_API void ingle_engine_profile(struct ingle_engine *e, bool on);
INGLE_API int ingle_engine_profile_read(const struct ingle_engine *e, struct ingle_profile *out,
                                        int n_max);
/* Pieces of work that each thread has run since the engine was opened, its own and those of others,
 * of jobs that have several for each: how they relate is how threads share the work.  Returns the
 * number of threads. */
INGLE_API int ingle_engine_pieces(const struct ingle_engine *e, uint64_t *n, int n_max);

/* Hidden states of every step, until set to NULL: the stream after the embedding, after
 * each layer (DeepSeek V4: four streams side by side), and the head's input.  x: f32
 * [n][stride], width used (it differs between taps), row i is row i of the
 * step; valid for the call. */
enum ingle_tap { INGLE_TAP_EMBED, INGLE_TAP_LAYER, INGLE_TAP_NORM };
typedef void ingle_tap_fn(void *arg, enum ingle_tap tap, int layer, const float *x, int64_t n,
                          int64_t width, int64_t stride);
INGLE_API void ingle_engine_set_tap(struct ingle_engine *e, ingle_tap_fn *fn, void *arg);

/* ---- prompts of which a part is left out ---- */

struct ingle_shorten_options {
    /* the share that is kept, 1: all; 0: as ingle_engine_options.prompt_keep says */
    double keep;
    const char *user;   /* as in ingle_request_options */
    /* [n_spans]: media in the prompt.  They are kept whole; the drafter reads the text */
    const struct ingle_span *span;
    size_t n_spans;
    bool (*stop)(void *arg); /* asked now and then; true: INGLE_CANCEL.  Or NULL */
    void *arg;
};
struct ingle_shortened {
    int32_t *ids, *position; /* [n]: for ingle_request_options.prompt and position */
    struct ingle_span *span; /* [n_spans]: where media are among them; without references */
    size_t n_spans;
    /* 0: the prompt is to be read whole; ids and position are NULL then, and why says it */
    int64_t n;
    double seconds;
    char why[200];
};
/* Chooses what is kept of a prompt by the attention of the engine's prompt drafter: a function of
 * the tokens, `keep` and the drafter alone.  What does not work (no drafter, a prompt that is too
 * long for it, a failure) is reported, and the prompt is read whole.  From any thread, one at a
 * time; it takes as long as the drafter reads.  INGLE_CANCEL, INGLE_ARG (keep), INGLE_NOMEM. */
INGLE_API ingle_status ingle_shorten(struct ingle_engine *e, const int32_t *ids, int64_t n,
                                     const struct ingle_shorten_options *o,
                                     struct ingle_shortened *out, struct ingle_error *error);
INGLE_API void ingle_shortened_release(struct ingle_shortened *s);

struct ingle_shortener_info {
    const char *path;      /* of the drafter; "": there is none */
    const char *why_never; /* why no prompt is shortened though it was asked for; or "" */
    double keep;
    int64_t from, n_ctx;
    uint64_t bytes;        /* its memory */
    /* that were shortened; that were read whole though they were long enough */
    uint64_t n_prompts, n_whole;
    uint64_t n_read, n_kept;     /* tokens of the former, before and after */
    double seconds;
};
INGLE_API void ingle_shortener(struct ingle_engine *e, struct ingle_shortener_info *out);

/* ---- sessions ---- */

struct ingle_session;

INGLE_API ingle_status ingle_session_open(struct ingle_session **out, struct ingle_engine *e,
                                          struct ingle_error *error);
INGLE_API void ingle_session_close(struct ingle_session *s);
/* Whose cached prefixes it may use (NULL: everybody's), as ingle_request_options.user.  The
 * session is empty after a change. */
INGLE_API void ingle_session_set_user(struct ingle_session *s, const char *user);
/* How its rows are computed from now on; NULL: as the engine's options say, as it is in the
 * beginning.  Of prompts: as ingle_engine_options.sparse; what is computed stays as far as it is
 * the same either way, the rest waits again.  Of answers: as ingle_engine_options.kv_select; "on":
 * as the engine's say, or 1/16 where they say off or 1/1; the session is empty after a change.
 * INGLE_ARG: no such way; INGLE_UNSUP: the engine has no copies of the keys, since its kv_select is
 * off (with "1/1" it has); INGLE_LIMIT: with kv_disk, more pages than its own kv_select makes room
 * for.  Where it cannot be, which is reported once, they read all. */
INGLE_API ingle_status ingle_session_set_way(struct ingle_session *s, enum ingle_way_kind kind,
                                             const char *how, struct ingle_error *error);
/* What it is now, which a file may have changed. */
INGLE_API void ingle_session_way(const struct ingle_session *s, struct ingle_way *out);
/* INGLE_ARG: it is no such text. */
INGLE_API ingle_status ingle_way_check(enum ingle_way_kind kind, const char *how,
                                       struct ingle_error *error);
/* What that left out since the last ingle_session_sync(). */
INGLE_API void ingle_session_way_use(const struct ingle_session *s, struct ingle_way_use *out);
INGLE_API void ingle_way_use_add(struct ingle_way_use *to, const struct ingle_way_use *more);
/* Where its tokens stand in a text of which parts are left out, from now on: position [n],
 * ascending; those behind them go on from the last one; NULL: one behind the other, as it is in the
 * beginning.  What is computed stays as far as it is the same either way, the rest waits again.
 * INGLE_UNSUP: this model's tokens cannot have gaps between them. */
INGLE_API ingle_status ingle_session_set_positions(struct ingle_session *s, const int32_t *position,
                                                   int64_t n, struct ingle_error *error);
/* Where token i of it stands. */
INGLE_API int64_t ingle_session_position(const struct ingle_session *s, int64_t i);
/* Positions that are left out before its end. */
INGLE_API int64_t ingle_session_skipped(const struct ingle_session *s);
/* What waits now is a prompt's, as all of an ingle_session_sync() is; or it is not, as what is
 * appended. */
INGLE_API void ingle_session_prompt(struct ingle_session *s, bool is_one);

/* Where the first `kept` tokens came from: the session itself, the prefix cache in memory,
 * or the store on disk; and if tokens that were once computed had to wait again, why. */
struct ingle_reuse {
    int64_t kept, from_session, from_cache, from_disk;
    int64_t matched; /* tokens of the longest known prefix; more than kept: no restore point */
    char why[128];   /* "", or "no restore point between 512 and 700", "evicted", ... */
};
/* Makes tokens [0, n) the session's contents.  The longest prefix that is still there is kept, the
 * rest waits for a step (at least the last token does, so that there will be logits).  reuse may be
 * NULL.  When it is computed the prefix cache remembers it where its turns meet: at the end of
 * system and tools, where its last turns begin, and at its end. */
INGLE_API ingle_status ingle_session_sync(struct ingle_session *s, const int32_t *tokens,
                                          int64_t n, struct ingle_reuse *reuse,
                                          struct ingle_error *error);
/* The same with media: the tokens of spans are placeholders of the model, as prompts have them.
 * Spans are copied, with references.  A step encodes what it needs. */
INGLE_API ingle_status ingle_session_sync_media(struct ingle_session *s, const int32_t *tokens,
                                                int64_t n, const struct ingle_span *span,
                                                size_t n_spans, struct ingle_reuse *reuse,
                                                struct ingle_error *error);
/* The same of ingle_session_append(); spans count from its tokens' beginning. */
INGLE_API ingle_status ingle_session_append_media(struct ingle_session *s, const int32_t *tokens,
                                                  int64_t n, const struct ingle_span *span,
                                                  size_t n_spans, struct ingle_error *error);
/* The media among a session's tokens, *n of them, each with a reference for the caller; *out is
 * ended with ingle_free().  Of a session that was loaded only their names are known: they stand in
 * prompts as far as keys and values are there, and cannot be computed again. */
INGLE_API ingle_status ingle_session_spans(const struct ingle_session *s, struct ingle_span **out,
                                           size_t *n, struct ingle_error *error);
/* Puts tokens behind what is there; they wait for a step. */
INGLE_API ingle_status ingle_session_append(struct ingle_session *s, const int32_t *tokens,
                                            int64_t n, struct ingle_error *error);
/* Shortens to n tokens; what has to be computed again for that waits for a step.  Of a medium all
 * soft tokens stay or none: to a place inside one it goes back to its first one. */
INGLE_API ingle_status ingle_session_rewind(struct ingle_session *s, int64_t n,
                                            struct ingle_error *error);
/* dst (of the same engine) becomes what src is; memory is shared until one of them goes on. */
INGLE_API ingle_status ingle_session_fork(struct ingle_session *dst,
                                          const struct ingle_session *src,
                                          struct ingle_error *error);
/* Writes tokens and KV memory to a file (a temporary name, then renamed), and reads them back: the
 * session goes on with the same bits.  INGLE_FORMAT: the file is damaged; INGLE_UNSUP: it is
 * another model's, or of other numerics.  The session is unchanged on failure.  A file of sparse
 * prompts makes the session's sparse, in the same way; so it is with how answers choose pages, and
 * with positions.  INGLE_LOST: a part lay on a graphics card or at a stage that is lost; after
 * ingle_session_finish(), which computes that anew, it can be saved.  A save, and it alone, may run
 * on any thread while a scheduler has the engine, as long as nobody else uses this session: answers
 * go on meanwhile. */
INGLE_API ingle_status ingle_session_save(const struct ingle_session *s, const char *path,
                                          struct ingle_error *error);
INGLE_API ingle_status ingle_session_load(struct ingle_session *s, const char *path,
                                          struct ingle_error *error);
/* Puts the computed prefix into the prefix cache. */
INGLE_API ingle_status ingle_session_remember(struct ingle_session *s, struct ingle_error *error);

INGLE_API int64_t ingle_session_length(const struct ingle_session *s);  /* computed tokens */
INGLE_API int64_t ingle_session_pending(const struct ingle_session *s); /* waiting tokens */
/* All of them, computed and waiting; valid until the next call on s. */
INGLE_API const int32_t *ingle_session_tokens(const struct ingle_session *s, int64_t *n);

enum ingle_want { INGLE_WANT_NONE, INGLE_WANT_LAST, INGLE_WANT_ALL };

struct ingle_work {
    struct ingle_session *session;
    int64_t max_tokens;   /* of the waiting ones in this step; 0: as many as fit */
    enum ingle_want want; /* LAST: logits of the last waiting token, if this step reaches it */
    /* written by the step */
    int64_t n_done;       /* tokens computed; 0 if the step was full before this item */
    const float *logits;  /* f32 [n_logits][n_vocab], valid until the next step; or NULL */
    int64_t n_logits;
};
/* One step over n items (distinct sessions of e), filled in order up to max_rows tokens and
 * max_logits rows of logits.  INGLE_CANCEL, INGLE_NUMERIC (the text names the layer where a
 * value was no number first): the sessions are as before the step.  A card that is lost on the way
 * is no error: the step is computed again by the processor. */
INGLE_API ingle_status ingle_step(struct ingle_engine *e, struct ingle_work *work, int64_t n,
                                  struct ingle_error *error);
/*
 * A round of the network that drafts (ingle_engine_info.draft): most probable tokens behind
 * sessions of which exactly one token waits.  To verify them: append them, a step with
 * INGLE_WANT_ALL, compare row by row with what is drawn, ingle_session_rewind() to what was right.
 * Schedulers do all of that by themselves.
 */
struct ingle_draft {
    struct ingle_session *session;
    int64_t width;     /* tokens wanted, up to ingle_engine_info.draft_most */
    int32_t *token;    /* [width] */
    /* [width], where draft_confidence is set: that the model draws the token, if it drew those
     * before; or NULL */
    float *confidence;
    float *logits;     /* f32 [width][n_vocab], the drafter's; or NULL */
    int64_t n;         /* written: tokens drafted; fewer where there was no room */
};
/* The sessions (distinct ones of e) stay as they are; logits of the last step are gone.  INGLE_ARG:
 * a session does not have one waiting token, or there is no network. */
INGLE_API ingle_status ingle_draft(struct ingle_engine *e, struct ingle_draft *draft, int64_t n,
                                   struct ingle_error *error);
/* Steps until nothing waits in s; *logits: f32 [n_vocab] of the last token, valid until the
 * next step.  Progress is reported as "prefill". */
INGLE_API ingle_status ingle_session_finish(struct ingle_session *s, const float **logits,
                                            struct ingle_error *error);

/* ---- sampling ---- */

struct ingle_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY forbids the token */
};

/* Each parameter means what it means in llama.cpp; they act in this order. */
struct ingle_sampling {
    const struct ingle_bias *bias;
    size_t n_bias;
    float repeat_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0: off */
    int32_t penalty_window;                 /* tokens looked back at; 0: 64, -1: all */
    float dry_multiplier, dry_base;         /* 0: off; 0: 1.75 */
    int32_t dry_allowed_length, dry_window; /* 0: 2; 0: all */
    int32_t top_k;                          /* 0: off */
    float typical_p, top_p, min_p;          /* 1, 1, 0: off */
    float xtc_probability, xtc_threshold;   /* 0: off */
    float temperature;                      /* 0: the most probable token */
    uint64_t seed;
    bool logprobs;
    bool no_calls; /* the marker that begins a tool call is never drawn, nor spelled */
    /* The answer begins behind n_prompt tokens (requests of a scheduler: behind their prompt). */
    int64_t n_prompt;
    /* no end of generation, and none of stop, among so many of its first tokens */
    int64_t min_tokens;
    const int32_t *stop;   /* [n_stop]: where the caller ends it; copied, as are the others */
    size_t n_stop;
    /* [n_banned]: sequences of tokens that do not come in it, each with -1 behind it */
    const int32_t *banned;
    size_t n_banned;
    const int32_t *only;   /* [n_only]: no other token is drawn; 0: any may be */
    size_t n_only;
};
/* What the model's file asks for, else what its family's authors recommend. */
INGLE_API void ingle_sampling_defaults(const struct ingle_model *m, struct ingle_sampling *out);

struct ingle_sampler;
/* INGLE_ARG names the parameter, its value and its range.  Tokens that the model's file
 * suppresses are never drawn, nor are those that no answer of text holds: control tokens that do
 * not end it, markers of media, reserved ones. */
INGLE_API ingle_status ingle_sampler_open(struct ingle_sampler **out, const struct ingle_engine *e,
                                          const struct ingle_sampling *o,
                                          struct ingle_error *error);
INGLE_API void ingle_sampler_close(struct ingle_sampler *s);

struct ingle_token {
    int32_t id;
    float logprob; /* under the unchanged logits; 0 unless asked */
};
/* Draws the token that follows the session's tokens from logits f32 [n_vocab].  It is a
 * function of the seed, the number of tokens before it, the logits and those tokens.
 * INGLE_UNSUP: grammar and biases leave no token, or the grammar is too ambiguous here. */
INGLE_API ingle_status ingle_sample(struct ingle_sampler *s, const float *logits,
                                    const struct ingle_session *session, struct ingle_token *out,
                                    struct ingle_error *error);
/* Draws the next 1 to `most` tokens: computes what waits in the session (at least one token),
 * draws, and appends what it drew. They are those that ingle_session_finish(), ingle_sample() and
 * ingle_session_append() give one by one, bit for bit; where the engine drafts (a network, the
 * text, a grammar) several come out of one step.  It stops behind a token that ends generation.
 * token [most]; *n: how many were drawn, the last of which waits for the next step, as after an
 * append.  On failure nothing was drawn: INGLE_ARG: nothing waits, or most is below 1; else as
 * those calls.  Logits of earlier steps are gone. */
INGLE_API ingle_status ingle_session_draw(struct ingle_session *session, struct ingle_sampler *s,
                                          struct ingle_token *token, int64_t most, int64_t *n,
                                          struct ingle_error *error);
/* Tokens that were drafted for its draws since the session was opened, and those of them that were
 * drawn. */
INGLE_API void ingle_session_drafted(const struct ingle_session *session, int64_t *n_drafted,
                                     int64_t *n_accepted);

/* ---- grammars ---- */

/* A compiled grammar is read-only and may serve any number of requests of its model. */
struct ingle_grammar;

enum ingle_grammar_kind {
    INGLE_GRAMMAR_GBNF,        /* text: rules as in llama.cpp, "root" is the start */
    INGLE_GRAMMAR_JSON,        /* text: NULL; any JSON object */
    INGLE_GRAMMAR_JSON_SCHEMA, /* text: a JSON schema; what is supported: docs/use/grammars.md */
    INGLE_GRAMMAR_REGEX,       /* text: a regular expression for the whole answer */
    /* text: {"tools": [...], "choice": "required", a name or a list of names, "parallel": bool}:
     * one call or more in the model's own form; with "answer" (a JSON schema, or true for any
     * object) they or a JSON text of it; with "behind": true what follows the marker of a call,
     * tools whose schema is not supported with any arguments (reported) */
    INGLE_GRAMMAR_TOOLS,
};
/* INGLE_ARG, INGLE_UNSUP: the text names rule, keyword or limit.  Ended with
 * ingle_grammar_close(), after the requests that use it. */
INGLE_API ingle_status ingle_grammar_open(struct ingle_grammar **out, const struct ingle_model *m,
                                          enum ingle_grammar_kind kind, const char *text, size_t n,
                                          struct ingle_error *error);
INGLE_API void ingle_grammar_close(struct ingle_grammar *g);
/* How a grammar is compiled; zeroed: as ingle_grammar_open() does. */
struct ingle_grammar_options {
    bool (*stop)(void *arg); /* NULL, or asked every few thousand steps, on the caller's thread:
                              * true is INGLE_CANCEL */
    void *arg;
    bool drop; /* what is not supported of a schema is left out, and ingle_grammar_warnings() says
                * so; else it is INGLE_UNSUP */
};
INGLE_API ingle_status ingle_grammar_open_with(struct ingle_grammar **out,
                                               const struct ingle_model *m,
                                               enum ingle_grammar_kind kind, const char *text,
                                               size_t n, const struct ingle_grammar_options *o,
                                               struct ingle_error *error);
/* What of its text the grammar does not enforce, with the place: [*n] texts, valid until
 * ingle_grammar_close().  They were reported, too. */
INGLE_API const char *const *ingle_grammar_warnings(const struct ingle_grammar *g, size_t *n);
/* From the next draw on the sampler's tokens follow g from its start; NULL: they are free.
 * ingle_sample() then takes only tokens that may come next (an end of generation where the
 * text may end), and advances by the drawn one.  g is borrowed. */
INGLE_API ingle_status ingle_sampler_constrain(struct ingle_sampler *s,
                                               const struct ingle_grammar *g,
                                               struct ingle_error *error);

/* The same where the n bytes of text, which g begins with, were drawn before.  INGLE_ARG: it does
 * not begin so, and nothing has changed. */
INGLE_API ingle_status ingle_sampler_constrain_behind(struct ingle_sampler *s,
                                                      const struct ingle_grammar *g,
                                                      const char *text, size_t n,
                                                      struct ingle_error *error);

#ifdef __cplusplus
}
#endif

/* Many requests at once; counters and options, described. */
#include "ingle/scheduler.h"
#include "ingle/tables.h"

#endif
